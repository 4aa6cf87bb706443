"""A policy tried on the past: what it would have said to every call that was ever made, beside what
really happened.

`backtest` is a function over wishes; where they come from is at the end: the ledger's own calls, or
the conversations of a file, for which no broker is needed. The rules of this file:

* The candidate is judged as a workspace's policy, with the organisation's beside it; or as the
  organisation's, with the policy of each workspace beside it. Limits of a thread hold as at the
  gate.
* What depends on what people would have said is not tried; `LEFT_OUT` lists it, and every report
  says so.
* What the gate puts to nobody counts as the gate would have it: arguments that fit no schema are
  `invalid`, a question that nobody could answer is `blocked`, and a tool that can change policy is
  `asked` about instead of `allowed`.
* Whether arguments fit does not depend on the policy. Where the gate has judged a call, its word is
  taken for that.
* Without conditions a verdict does not depend on the arguments, so they are not even parsed, and a
  verdict is kept for the next call like it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Final, Literal

from msgspec import Struct

from ayes.ledger.policies import AppliedPolicy, Policies, PolicyDecision, evaluate
from ayes.ledger.policy_rules import NO_RULE, About, RuleMatch
from ayes.ledger.services import Ledger
from ayes.ledger.verdict import question, unanswerable
from ayes.ops.rehearsal.transcripts import read_transcripts
from ayes.ops.terminal.times import parse_time
from ayes.projections.formats.conversation import (
    ConversationStep,
    RecordedReply,
    read_conversations,
)
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadFact, BadInput
from ayes.schemas.events import Shadow
from ayes.schemas.ids import token
from ayes.schemas.policy import Policy, Then
from ayes.schemas.slots import ORGANISATION, POLICY, ROOT, TOOL
from ayes.schemas.tools import Tool

type Outcome = Literal["asked", "allowed", "blocked", "invalid"]
type Since = int | datetime

#: What the gate looks at and a backtest does not.
LEFT_OUT: Final = (
    "grants",
    "repeats of what people denied",
    "votes and edits",
    "agents and labels that a request leaves to its thread",
    "with --since, the calls before it in a thread's limits",
)
#: Of a sequence number: what the broker can count.
_MOST_DIGITS: Final = 18
#: So many verdicts are kept for the next call like theirs.
_MOST_KEPT: Final = 100_000
_WORDS: Final[dict[Then, Outcome]] = {"ask": "asked", "allow": "allowed", "block": "blocked"}
#: What really happened, by the decision and what it rests on.
_HAPPENED: Final[dict[tuple[type, str], str]] = {
    (e.Approved, "policy"): "allowed",
    (e.Approved, "people"): "approved",
    (e.Approved, "grant"): "granted",
    (e.Approved, "broken_glass"): "glass_broken",
    (e.Denied, "policy"): "blocked",
    (e.Denied, "people"): "denied",
    (e.Denied, "invalid"): "invalid",
    (e.Denied, "repeated"): "repeated",
    (e.Denied, "limit"): "limited",
    (e.Answered, ""): "answered",
    (e.Expired, ""): "expired",
    (e.Withdrawn, ""): "withdrawn",
    (e.Superseded, ""): "superseded",
}
#: The gate had not judged these when they ended, so nobody knows yet whether their arguments fit.
_UNJUDGED: Final = frozenset({"withdrawn", "superseded", "unknown"})


class CandidateCall(Struct, frozen=True, gc=False):
    """A call as a candidate is judged on it, and what really became of it."""

    tool: str
    #: Raw JSON text.
    arguments: str
    agent: str = ""
    requester: str = ""
    workspace: str = ""
    thread: str = ""
    labels: dict[str, str] = {}
    #: Do the arguments fit the tool's schema? None: it is not known, so any JSON object does.
    fits: bool | None = None
    #: Can the tool change policy?
    governs: bool = False
    #: Empty: nobody knows.
    actual: str = ""
    #: How many calls its thread requested before it.
    before: int = 0


class Counts(Struct):
    """Of some calls, what the candidate would have done with how many."""

    calls: int = 0
    asked: int = 0
    allowed: int = 0
    blocked: int = 0
    #: Never judged: the tool's schema turns their arguments down.
    invalid: int = 0

    def add(self, word: Outcome, calls: int) -> None:
        self.calls += calls
        setattr(self, word, getattr(self, word) + calls)


class Report(Struct, frozen=True):
    """What became of all calls. Each is in exactly one of asked, allowed, blocked and invalid."""

    calls: int
    asked: int
    allowed: int
    blocked: int
    invalid: int
    #: Among those asked: a condition could not be evaluated.
    uncertain: int
    #: The most called first.
    by_tool: dict[str, Counts]
    #: Every rule of the candidate that has effect, in the order of the file, also those that never
    #: matched; then those of the other policy that counted, and limits of threads. Nothing that is
    #: invalid.
    by_rule: dict[str, Counts]
    #: What the rules without effect would have said, where they matched.
    shadows: dict[str, Counts]
    #: What really happened to what the candidate would have asked, allowed, blocked. Empty for
    #: conversations.
    actual: dict[str, Counts]
    #: What was not tried.
    left_out: tuple[str, ...] = LEFT_OUT


class Beside(Struct, frozen=True):
    """What is in force beside the candidate."""

    #: The organisation's policy; None: the candidate is the organisation's.
    organisation: Policy | None = Policy()
    #: By workspace, where the candidate is the organisation's.
    workspaces: dict[str, Policy] = {}


NOTHING_BESIDE: Final = Beside()


def backtest(
    policy: Policy, wishes: Iterable[CandidateCall], beside: Beside = NOTHING_BESIDE
) -> Report:
    """What the policy would have said to these."""
    trial = Backtest(policy, beside)
    for wished in wishes:
        trial.take(wished)
    return trial.report()


class _CandidateVerdict(Struct, frozen=True):
    """What the policies say to a wish."""

    word: Outcome
    rule: str = ""
    uncertain: bool = False
    shadows: tuple[Shadow, ...] = ()


_INVALID: Final = _CandidateVerdict("invalid")


class Backtest:
    """A backtest under way: `take` the wishes one by one, then ask for the report."""

    def __init__(self, policy: Policy, beside: Beside = NOTHING_BESIDE) -> None:
        self._policy = policy
        self._beside = beside
        self._counts: Counter[tuple[str, str, _CandidateVerdict]] = Counter()
        #: By thread, what would be asked there, where only so much may be: as which call of the
        #: thread, and the rest.
        self._asked: dict[tuple[str, str], list[tuple[int, str, str, _CandidateVerdict]]] = {}
        self._policies: dict[str, Policies] = {}
        self._labels: dict[str, list[str]] = {}
        self._kept: dict[tuple[object, ...], tuple[_CandidateVerdict, PolicyDecision]] = {}
        self._conditional: dict[tuple[str, str], bool] = {}
        #: By what is asked and of whom, whether enough may vote.
        self._answerable: dict[tuple[object, ...], bool] = {}

    def take(self, wished: CandidateCall) -> None:
        """Judge one more."""
        policies = self._of(wished.workspace)
        said = self._said(policies, wished)
        calls, questions = (
            policies.limit("calls_per_thread"),
            policies.limit("questions_per_thread"),
        )
        if said.word != "invalid" and calls is not None and wished.before >= calls:
            said = _CandidateVerdict("blocked", _limit("calls_per_thread"), shadows=said.shadows)
        if said.word == "asked" and questions is not None:
            place = (wished.workspace, wished.thread)
            one = (wished.before, wished.tool, wished.actual, said)
            self._asked.setdefault(place, []).append(one)
        else:
            self._counts[wished.tool, wished.actual, said] += 1

    def report(self) -> Report:
        """What it comes to by now."""
        rules = self._policy.rules
        total, uncertain = Counts(), 0
        by_tool: dict[str, Counts] = {}
        by_rule = {rule.name: Counts() for rule in rules if not rule.shadow}
        shadows = {rule.name: Counts() for rule in rules if rule.shadow}
        actual: dict[str, Counts] = {}
        for (tool, happened, said), calls in self._all().items():
            total.add(said.word, calls)
            by_tool.setdefault(tool, Counts()).add(said.word, calls)
            uncertain += calls if said.uncertain else 0
            if said.word != "invalid":
                by_rule.setdefault(said.rule, Counts()).add(said.word, calls)
            for shadow in said.shadows:
                shadows.setdefault(shadow.rule, Counts()).add(_WORDS[shadow.then], calls)
            if happened:
                actual.setdefault(happened, Counts()).add(said.word, calls)
        return Report(
            calls=total.calls,
            asked=total.asked,
            allowed=total.allowed,
            blocked=total.blocked,
            invalid=total.invalid,
            uncertain=uncertain,
            by_tool=_most_first(by_tool),
            by_rule=by_rule,
            shadows=shadows,
            actual=_most_first(actual),
        )

    def _all(self) -> Counter[tuple[str, str, _CandidateVerdict]]:
        """The counts, with what each thread would ask, in the order in which it was requested, up
        to its limit.
        """
        counts = self._counts.copy()
        for (workspace, _thread), waiting in self._asked.items():
            most = self._of(workspace).limit("questions_per_thread")
            assert most is not None
            for place, (_, tool, happened, said) in enumerate(sorted(waiting, key=itemgetter(0))):
                over = _CandidateVerdict(
                    "blocked", _limit("questions_per_thread"), shadows=said.shadows
                )
                counts[tool, happened, said if place < most else over] += 1
        return counts

    def _of(self, workspace: str) -> Policies:
        """The policies by which a workspace's calls are judged."""
        if (found := self._policies.get(workspace)) is None:
            over = self._beside.organisation
            own = (
                self._policy
                if over is not None
                else self._beside.workspaces.get(workspace, Policy())
            )
            found = Policies(
                AppliedPolicy(0, own),
                AppliedPolicy(0, self._policy if over is None else over, organisation=True),
            )
            self._policies[workspace] = found
        return found

    def _said(self, policies: Policies, wished: CandidateCall) -> _CandidateVerdict:
        if not (_is_object(wished.arguments) if wished.fits is None else wished.fits):
            return _INVALID
        if wished.requester and not policies.is_known(wished.requester):
            return _INVALID
        said, ruling = self._ruled(policies, wished)
        if said.word == "asked" and not self._can_be_answered(policies, ruling, wished):
            return _CandidateVerdict("blocked", said.rule, said.uncertain, said.shadows)
        return said

    def _ruled(
        self, policies: Policies, wished: CandidateCall
    ) -> tuple[_CandidateVerdict, PolicyDecision]:
        both = (policies.workspace.policy, policies.organisation.policy)
        tool, workspace = wished.tool, wished.workspace
        if (conditional := self._conditional.get((workspace, tool))) is None:
            conditional = any(rule.when for policy in both for rule in policy.about(tool))
            self._conditional[workspace, tool] = conditional
        if conditional:
            return self._judged(policies, wished, strict_json.read(wished.arguments))
        if (labels := self._labels.get(workspace)) is None:
            # Only labels that some rule asks for can make a difference.
            labels = sorted(
                {name for policy in both for rule in policy.rules for name in rule.labels}
            )
            self._labels[workspace] = labels
        key: tuple[object, ...] = (tool, wished.agent, workspace, wished.governs)
        key += tuple(map(wished.labels.get, labels))
        if (found := self._kept.get(key)) is None:
            found = self._judged(policies, wished, None)
            if len(self._kept) < _MOST_KEPT:
                self._kept[key] = found
        return found

    def _judged(
        self, policies: Policies, wished: CandidateCall, args: object
    ) -> tuple[_CandidateVerdict, PolicyDecision]:
        about = About(
            tool=wished.tool,
            args=args,
            agent=wished.agent,
            requester=wished.requester,
            workspace=wished.workspace,
            thread=wished.thread,
            labels=wished.labels,
        )
        ruling = evaluate(policies, about)
        judged = ruling.judged
        word = _WORDS["ask" if judged.then == "allow" and wished.governs else judged.then]
        is_candidates = ruling.by.policy is self._policy
        rule = judged.rule.name if is_candidates or judged.rule is NO_RULE else _other(ruling)
        return _CandidateVerdict(word, rule, _is_uncertain(judged), ruling.shadows), ruling

    def _can_be_answered(
        self, policies: Policies, ruling: PolicyDecision, wished: CandidateCall
    ) -> bool:
        """Are there enough who may vote, without those who do not count?"""
        beside = ruling.beside.rule.name if ruling.beside is not None else ""
        key = (
            wished.workspace,
            ruling.by.organisation,
            ruling.judged.rule.name,
            ruling.judged.then,
            beside,
            wished.requester,
            wished.agent,
        )
        if (found := self._answerable.get(key)) is None:
            found = not unanswerable(
                question(
                    policies, ruling, digest="", requester=wished.requester, agent=wished.agent
                )
            )
            if len(self._answerable) < _MOST_KEPT:
                self._answerable[key] = found
        return found


def _limit(name: str) -> str:
    return f"(limit) {name}"


def _other(ruling: PolicyDecision) -> str:
    return (
        f"({'organisation' if ruling.by.organisation else 'workspace'}) {ruling.judged.rule.name}"
    )


def _is_uncertain(judged: RuleMatch) -> bool:
    """Is it asked because a condition could not be evaluated? Then its reason is not that of the
    rule.
    """
    return judged.then == "ask" and judged.reason != judged.rule.reason


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(strict_json.read(arguments), dict)
    except strict_json.BadJson:
        return False


def _most_first(counts: dict[str, Counts]) -> dict[str, Counts]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1].calls, one[0])))


# ---------------------------------------------------------------------------------- a file's wishes


def wishes_in(path: str, form: str | None = None, workspace: str = "") -> Iterator[CandidateCall]:
    """Every wish of a file of conversations, which is read whole first.

    Args:
        form: one of `ayes.projections.formats.PROVIDERS`; None: our own
            (`ayes.projections.formats.conversation`).
        workspace: where they are taken to have been made.

    Raises:
        BadInput: there is no such form.
        BadFile: with the line of the first mistake.
    """
    read = read_conversations(path) if form is None else read_transcripts(path, form)
    return (
        CandidateCall(wish.tool, wish.arguments, workspace=workspace, thread=one.id, before=before)
        for one in read
        for before, wish in enumerate(_wishes(one.steps))
    )


def _wishes(steps: Iterable[ConversationStep]) -> Iterator[e.Wish]:
    for step in steps:
        if isinstance(step, RecordedReply):
            yield from step.wishes


# ------------------------------------------------------------------------------- the ledger's calls


class Calls:
    """Requests and decisions in the order of the log, put together."""

    def __init__(self, declarations: Iterable[Fact] = ()) -> None:
        self._declared = {
            (fact.slot.workspace, *fact.slot.tail[1:]): fact.event
            for fact in declarations
            if isinstance(fact.event, e.ToolDeclared)
        }
        self._governing = {tool for tool, declared in self._declared.items() if declared.governs}
        self._tools: dict[tuple[str, ...], Tool | None] = {}
        #: With how many its thread requested before it.
        self._open: dict[tuple[str, str, str], tuple[e.ToolRequested, int]] = {}
        self._requested: Counter[tuple[str, str]] = Counter()
        #: Requests that this program cannot read: of a newer one, or no facts.
        self.unreadable = 0

    def take(self, fact: Fact) -> CandidateCall | None:
        """The call that this fact ends the story of, if it does."""
        slot, event = fact.slot, fact.event
        if type(event) is e.Carried and slot.tail[-1].endswith("requested"):
            self.unreadable += 1
            return None
        place = (slot.workspace, slot.thread, slot.tail[1]) if slot.thread else ("", "", "")
        if type(event) is e.ToolRequested:
            self._open[place] = event, self._requested[place[:2]]
            self._requested[place[:2]] += 1
            return None
        found = self._open.pop(place, None)
        if found is None:
            return None  # requested before the time that is looked at
        return self._wished(
            place, *found, _HAPPENED.get((type(event), getattr(event, "ground", "")), "unknown")
        )

    def left(self) -> Iterator[CandidateCall]:
        """Those that are not decided."""
        for place, (wish, before) in self._open.items():
            yield self._wished(place, wish, before, "open")

    def _wished(
        self, place: tuple[str, str, str], wish: e.ToolRequested, before: int, actual: str
    ) -> CandidateCall:
        tool = (place[0], wish.tool, wish.tool_version)
        judged = actual != "open" and actual not in _UNJUDGED
        return CandidateCall(
            wish.tool,
            wish.arguments,
            wish.agent,
            wish.requester,
            place[0],
            place[1],
            wish.labels,
            actual != "invalid" if judged else self._fits(tool, wish),
            tool in self._governing,
            actual,
            before,
        )

    def _fits(self, named: tuple[str, ...], wish: e.ToolRequested) -> bool:
        """What the gate would find, or has found without saying so."""
        if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
            return False
        if named not in self._tools:
            self._tools[named] = self._compiled(named)
        tool = self._tools[named]
        return tool is not None and tool.problems(wish.arguments) is None

    def _compiled(self, named: tuple[str, ...]) -> Tool | None:
        _, name, version = named
        declared = self._declared.get(named)
        try:
            return Tool(name, version, declared) if declared is not None else None
        except BadFact:
            return None


async def backtest_ledger(
    ledger: Ledger,
    policy: Policy,
    *,
    workspace: str = "",
    since: Since = 1,
    organisation: bool = False,
) -> tuple[Report, int]:
    """What the policy would have said to every call in the ledger, and how many requests could not
    be read.

    Args:
        organisation: is the policy tried as the organisation's? Else as a workspace's.
        workspace: only its calls; empty: all workspaces.
        since: only calls that were requested from this fact on, or from this time on.
    """
    where = f"{ROOT}.{token('workspace', workspace) if workspace else '*'}"
    declared = await ledger.read(f"{where}.{TOOL}.*.*")
    calls, trial = (
        Calls(declared),
        Backtest(policy, await _beside(ledger, where, organisation=organisation)),
    )
    async for fact in ledger.replay(
        since, f"{where}.*.call.*.requested", f"{where}.*.call.*.decided"
    ):
        if (wished := calls.take(fact)) is not None:
            trial.take(wished)
    for wished in calls.left():
        trial.take(wished)
    return trial.report(), calls.unreadable


async def _beside(ledger: Ledger, where: str, *, organisation: bool) -> Beside:
    if not organisation:
        return Beside((await ledger.policies(ORGANISATION)).organisation.policy)
    applied = await ledger.read(f"{where}.{POLICY}.*")
    named = {fact.slot.workspace for fact in applied} - {ORGANISATION}
    return Beside(
        None, {one: (await ledger.policies(one)).workspace.policy for one in sorted(named)}
    )


def since(text: str | None) -> Since:
    """Read from where on; None: from the first fact on.

    Raises:
        BadInput: it is neither a sequence number nor a time.
    """
    if text is None:
        return 1
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    try:
        return parse_time("--since", text)
    except BadInput:
        raise BadInput(
            f"--since {text!r} is neither a sequence number nor an ISO time such as "
            "2026-11-21T08:50:00."
        ) from None
