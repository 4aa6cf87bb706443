"""A policy tried on the past: what it would have said to every call that was ever made, beside what really happened.

`backtest` is a function over wishes; where they come from is at the end: the ledger's own calls, or the conversations of
a file, for which no broker is needed. The rules of this file:

* The candidate is judged alone, as `schemas.policy.judge` does, so an organisation's policy can be tried as well as a
  workspace's. What depends on what people would have said then is not tried: limits, repeats and grants.
* What the gate puts to nobody counts as the gate would have it: arguments that fit no schema are `invalid`, a question
  that nobody could answer is `blocked`, and a tool that can change policy is `asked` about instead of `allowed`.
* Whether arguments fit does not depend on the policy. Where the gate has judged a call, its word is taken for that.
* Without conditions a verdict does not depend on the arguments, so they are not even parsed, and a verdict is kept for
  the next call like it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from ledger.client import Ledger
from ledger.votes import empty_seats
from ops.times import moment
from ops.transcripts import read_transcripts
from schemas import events as e
from schemas import jsontext
from schemas.codec import Fact
from schemas.conversations import Reply, Step, read_conversations
from schemas.digest import call_digest
from schemas.errors import BadFact, BadInput
from schemas.events import Shadow
from schemas.ids import token
from schemas.policy import About, Judged, Policy, Then, judge
from schemas.slots import ROOT, TOOL
from schemas.tools import Tool

type Word = Literal["asked", "allowed", "blocked", "invalid"]
type Since = int | datetime

#: Of a sequence number: what the broker can count.
_MOST_DIGITS: Final = 18
#: So many verdicts are kept for the next call like theirs.
_MOST_KEPT: Final = 100_000
_WORDS: Final[dict[Then, Word]] = {"ask": "asked", "allow": "allowed", "block": "blocked"}
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


class Wished(Struct, frozen=True, gc=False):
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


class Counts(Struct):
    """Of some calls, what the candidate would have done with how many."""

    calls: int = 0
    asked: int = 0
    allowed: int = 0
    blocked: int = 0
    #: Never judged: the tool's schema turns their arguments down.
    invalid: int = 0

    def add(self, word: Word, calls: int) -> None:
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
    #: Every rule that has effect, in the order of the file, also those that never matched. Nothing that is invalid.
    by_rule: dict[str, Counts]
    #: What the rules without effect would have said, where they matched.
    shadows: dict[str, Counts]
    #: What really happened to what the candidate would have asked, allowed, blocked. Empty for conversations.
    actual: dict[str, Counts]


def backtest(policy: Policy, wishes: Iterable[Wished]) -> Report:
    """What the policy would have said to these."""
    trial = Trial(policy)
    for wished in wishes:
        trial.take(wished)
    return trial.report()


class _Said(Struct, frozen=True):
    """What the candidate says to a wish."""

    word: Word
    rule: str = ""
    uncertain: bool = False
    shadows: tuple[Shadow, ...] = ()


_INVALID: Final = _Said("invalid")


class Trial:
    """A backtest under way: `take` the wishes one by one, then ask for the report."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._counts: Counter[tuple[str, str, _Said]] = Counter()
        #: Only labels that some rule asks for can make a difference.
        self._labels = sorted({name for rule in policy.rules for name in rule.labels})
        self._kept: dict[tuple[object, ...], _Said] = {}
        self._conditional: dict[str, bool] = {}
        #: Rules that ask people: there it matters who does not count.
        self._asking = {rule.name: rule for rule in policy.rules if rule.then == "ask"}
        self._answerable = lru_cache(maxsize=_MOST_KEPT)(self._can_be_answered)

    def take(self, wished: Wished) -> None:
        """Judge one more."""
        said = self._said(wished)
        if (
            said.word == "asked"
            and said.rule in self._asking
            and not self._answerable(said.rule, wished.requester, wished.agent)
        ):
            said = _Said("blocked", said.rule, said.uncertain, said.shadows)
        self._counts[wished.tool, wished.actual, said] += 1

    def report(self) -> Report:
        """What it comes to by now."""
        rules = self._policy.rules
        total, uncertain = Counts(), 0
        by_tool: dict[str, Counts] = {}
        by_rule = {rule.name: Counts() for rule in rules if not rule.shadow}
        shadows = {rule.name: Counts() for rule in rules if rule.shadow}
        actual: dict[str, Counts] = {}
        for (tool, happened, said), calls in self._counts.items():
            total.add(said.word, calls)
            by_tool.setdefault(tool, Counts()).add(said.word, calls)
            uncertain += calls if said.uncertain else 0
            if said.word != "invalid":
                by_rule.setdefault(said.rule, Counts()).add(said.word, calls)
            for shadow in said.shadows:
                shadows[shadow.rule].add(_WORDS[shadow.then], calls)
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

    def _said(self, wished: Wished) -> _Said:
        if not (_is_object(wished.arguments) if wished.fits is None else wished.fits):
            return _INVALID
        tool = wished.tool
        if (conditional := self._conditional.get(tool)) is None:
            conditional = any(rule.when for rule in self._policy.about(tool))
            self._conditional[tool] = conditional
        if conditional:
            return self._judged(wished, jsontext.read(wished.arguments))
        key: tuple[object, ...] = (tool, wished.agent, wished.workspace, wished.governs)
        if self._labels:
            key += tuple(map(wished.labels.get, self._labels))
        if (said := self._kept.get(key)) is None:
            said = self._judged(wished, None)
            if len(self._kept) < _MOST_KEPT:
                self._kept[key] = said
        return said

    def _judged(self, wished: Wished, args: object) -> _Said:
        about = About(
            tool=wished.tool,
            args=args,
            agent=wished.agent,
            requester=wished.requester,
            workspace=wished.workspace,
            thread=wished.thread,
            labels=wished.labels,
        )
        judged = judge(self._policy, about)
        word = _WORDS["ask" if judged.then == "allow" and wished.governs else judged.then]
        return _Said(word, judged.rule.name, _is_uncertain(judged), judged.shadows)

    def _can_be_answered(self, rule: str, requester: str, agent: str) -> bool:
        """Are there enough who may vote, without those who do not count?"""
        asking, policy = self._asking[rule], self._policy
        excluded = (*filter(None, (requester,)), *policy.behind(agent))
        return not empty_seats((policy.quorums(asking),), policy.stages(asking), excluded)


def _is_uncertain(judged: Judged) -> bool:
    """Is it asked because a condition could not be evaluated? Then its reason is not that of the rule."""
    return judged.then == "ask" and judged.reason != judged.rule.reason


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(jsontext.read(arguments), dict)
    except jsontext.BadJson:
        return False


def _most_first(counts: dict[str, Counts]) -> dict[str, Counts]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1].calls, one[0])))


# ------------------------------------------------------------------------------------------------ a file's wishes


def wishes_in(path: str, form: str | None = None, workspace: str = "") -> Iterator[Wished]:
    """Every wish of a file of conversations, which is read whole first.

    Args:
        form: one of `projections.providers.PROVIDERS`; None: our own (`schemas.conversations`).
        workspace: where they are taken to have been made.

    Raises:
        BadInput: there is no such form.
        BadFile: with the line of the first mistake.
    """
    read = read_conversations(path) if form is None else read_transcripts(path, form)
    return (
        Wished(wish.tool, wish.arguments, workspace=workspace, thread=one.id)
        for one in read
        for wish in _wishes(one.steps)
    )


def _wishes(steps: Iterable[Step]) -> Iterator[e.Wish]:
    for step in steps:
        if isinstance(step, Reply):
            yield from step.wishes


# ---------------------------------------------------------------------------------------------- the ledger's calls


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
        self._open: dict[tuple[str, str, str], e.ToolRequested] = {}
        #: Requests that this program cannot read: of a newer one, or no facts.
        self.unreadable = 0

    def take(self, fact: Fact) -> Wished | None:
        """The call that this fact ends the story of, if it does."""
        slot, event = fact.slot, fact.event
        if type(event) is e.Carried and slot.tail[-1].endswith("requested"):
            self.unreadable += 1
            return None
        place = (slot.workspace, slot.thread, slot.tail[1]) if slot.thread else ("", "", "")
        if type(event) is e.ToolRequested:
            self._open[place] = event
            return None
        wish = self._open.pop(place, None)
        if wish is None:
            return None  # requested before the time that is looked at
        return self._wished(
            place, wish, _HAPPENED.get((type(event), getattr(event, "ground", "")), "unknown")
        )

    def left(self) -> Iterator[Wished]:
        """Those that are not decided."""
        for place, wish in self._open.items():
            yield self._wished(place, wish, "open")

    def _wished(self, place: tuple[str, str, str], wish: e.ToolRequested, actual: str) -> Wished:
        tool = (place[0], wish.tool, wish.tool_version)
        judged = actual != "open" and actual not in _UNJUDGED
        return Wished(
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
    ledger: Ledger, policy: Policy, *, workspace: str = "", since: Since = 1
) -> tuple[Report, int]:
    """What the policy would have said to every call in the ledger, and how many requests could not be read.

    Args:
        workspace: only its calls; empty: all workspaces.
        since: only calls that were requested from this fact on, or from this time on.
    """
    where = f"{ROOT}.{token('workspace', workspace) if workspace else '*'}"
    calls, trial = Calls(await ledger.read(f"{where}.{TOOL}.*.*")), Trial(policy)
    async for fact in ledger.replay(since, f"{where}.*.call.*.requested", f"{where}.*.call.*.decided"):
        if (wished := calls.take(fact)) is not None:
            trial.take(wished)
    for wished in calls.left():
        trial.take(wished)
    return trial.report(), calls.unreadable


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
        return moment("--since", text)
    except BadInput:
        raise BadInput(
            f"--since {text!r} is neither a sequence number nor an ISO time such as 2026-11-21T08:50:00."
        ) from None
