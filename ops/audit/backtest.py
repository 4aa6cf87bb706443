"""A policy tried on the past: its verdict on every call ever made, next to what really happened.

`backtest` is a function of candidate calls; they come from the ledger, or from a file of
conversations, for which no broker is needed (both at the end). The rules of this file:

* The candidate is judged as a workspace's policy, together with the organisation's; or as the
  organisation's, together with the policy of each workspace. Limits of a thread apply as
  at the gate.
* What calls spend of budgets is added up in the order in which they were decided: of calls that the
  candidate allows, and of those that it asks about if people, a grant or a policy really let them
  run. Tokens are those of the replies that were recorded before.
* Outcomes that depend on people are not tried; `LEFT_OUT` lists them, and every report includes it.
* Calls that the gate asks nobody about count as at the gate: arguments that fit no schema are
  `invalid`, a question that nobody could answer is `blocked`, and a tool that can change policy is
  `asked` about instead of `allowed`.
* Whether arguments fit does not depend on the policy. If the gate has judged a call, its finding is
  used.
* Without conditions a verdict does not depend on the arguments, so they are not parsed, and the
  verdict is cached for similar calls.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from operator import itemgetter
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from ayes.ledger.call import Call, mode_of
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.budgets import Sum, day_of, sums, tokens_of
from ayes.ledger.judging.policies import AppliedPolicy, Policies, PolicyDecision, ThreadUsage
from ayes.ledger.judging.policy_rules import NO_RULE, RuleMatch
from ayes.ledger.judging.verdict import Case, PolicyVerdict, beyond, policy_verdict, verdict
from ayes.projections.formats.conversation import (
    ConversationStep,
    RecordedReply,
    read_conversations,
)
from ayes.schemas import events as e
from ayes.schemas.amounts import total, written
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.durations import parse_position
from ayes.schemas.errors import BadFact
from ayes.schemas.events import Shadow
from ayes.schemas.ids import token
from ayes.schemas.policy import TOKENS, Policy, Then
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import ORGANISATION, POLICY, ROOT, TOOL, CallRef, policy_slot
from ayes.schemas.tools import Tool, highest_class

type Outcome = Literal["asked", "allowed", "blocked", "invalid"]
type Since = int | datetime

#: Inputs of the gate that a backtest ignores.
LEFT_OUT: Final = (
    "grants",
    "repeats of what people denied",
    "votes and edits",
    "what calls that did not run give back to a budget",
    "agents and labels that a request leaves to its thread",
    "the agents above a sub-agent",
    "with --since, what came before it in the limits of threads and budgets",
    "with --since, the classes of calls above that were requested before it",
)
#: The time of all calls, on which no verdict depends without grants.
_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
#: For names that a conversation lacks.
_NONE: Final = "none"
#: The call that stands for all earlier ones in a sum of a budget.
_EARLIER: Final = "backtest/earlier/calls"
#: Verdicts that are cached at most.
_MAX_CACHED: Final = 100_000
_OUTCOMES: Final[dict[Then, Outcome]] = {"ask": "asked", "allow": "allowed", "block": "blocked"}
#: What really happened, by the decision and its ground.
_HAPPENED: Final[dict[tuple[type, str], str]] = {
    (e.Approved, "policy"): "allowed",
    (e.Approved, "people"): "approved",
    (e.Approved, "requester_confirms"): "confirmed",
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
#: What the gate had said of a call to which this really happened. People were asked about those not
#: listed, but for `unknown`; a repeat of a denied call is asked about without the denial.
_SAID: Final[dict[str, Outcome | None]] = {
    "allowed": "allowed",
    "blocked": "blocked",
    "limited": "blocked",
    "invalid": "invalid",
    "unknown": None,
    "": None,
}
#: What really happened to a call that people, a grant or a policy let run.
_LET_RUN: Final = frozenset({"allowed", "approved", "confirmed", "granted", "glass_broken"})
#: Changes that a report lists at most.
MAX_CHANGES: Final = 200
#: The gate had not judged these when they ended, so it is unknown whether their arguments fit.
_UNJUDGED: Final = frozenset({"withdrawn", "superseded", "unknown"})


class CandidateCall(Struct, frozen=True, gc=False):
    """A call to try the candidate on, and what really happened to it."""

    tool: str
    #: Raw JSON text.
    arguments: str
    agent: str = ""
    requester: str = ""
    workspace: str = ""
    thread: str = ""
    labels: dict[str, str] = {}
    #: Whether the arguments fit the tool's schema; `None` if unknown, then any JSON object does.
    fits: bool | None = None
    #: Whether the tool can change policy.
    governs: bool = False
    #: What really happened; empty if unknown.
    actual: str = ""
    #: Calls that its thread requested before it.
    before: int = 0
    #: Its id in the thread; empty for conversations.
    call: str = ""
    #: The day of its request, for budgets; empty for conversations.
    day: str = ""
    #: The highest of its tool and of the tools of the calls above it.
    tool_class: e.ToolClass = "irreversible"


class TokensUsed(Struct, frozen=True, gc=False):
    """The tokens of one reply, for budgets of tokens."""

    tokens: int
    workspace: str
    thread: str
    #: Of its thread's opening; empty if it has none.
    agent: str
    requester: str
    #: The day of the reply, in UTC.
    day: str


class ChangedCall(Struct, frozen=True):
    """A call of which the candidate says something else than the gate said."""

    #: As `workspace/thread/call`.
    call: str
    tool: str
    #: What really happened to it.
    actual: str
    #: What the candidate says.
    outcome: Outcome
    #: The candidate's rule.
    rule: str


class Counts(Struct):
    """Numbers of calls by the candidate's verdict."""

    #: The number of calls.
    calls: int = 0
    #: How many would be put to people.
    asked: int = 0
    allowed: int = 0
    blocked: int = 0
    #: Not judged: their arguments break the tool's schema.
    invalid: int = 0
    #: Among those asked: the requester may confirm it.
    requester_confirms: int = 0

    def add(self, outcome: Outcome, calls: int, *, own: bool = False) -> None:
        self.calls += calls
        self.requester_confirms += calls if own else 0
        setattr(self, outcome, getattr(self, outcome) + calls)


class Findings(Struct, frozen=True, kw_only=True):
    """The verdicts. Each call is in exactly one of asked, allowed, blocked and invalid."""

    #: The number of calls.
    calls: int
    #: How many would be put to people.
    asked: int
    allowed: int
    blocked: int
    #: Not judged: their arguments break the tool's schema.
    invalid: int
    #: Among those asked: the requester may confirm it.
    requester_confirms: int
    #: Among those asked: a condition could not be evaluated.
    uncertain: int
    #: The most called first.
    by_tool: dict[str, Counts]
    #: Every rule of the candidate that has effect, in the order of the file, also those that never
    #: matched; then those of the other policy that counted, and limits of threads. Without invalid
    #: calls.
    by_rule: dict[str, Counts]
    #: The candidate's verdicts by what really happened. Empty for conversations.
    actual: dict[str, Counts]
    #: Inputs of the gate that were ignored.
    left_out: tuple[str, ...] = LEFT_OUT
    #: How many calls there are of which the gate said something else.
    changed: int = 0
    #: The last `MAX_CHANGES` of them.
    changes: tuple[ChangedCall, ...] = ()


class Report(Findings, frozen=True, kw_only=True):
    """The result."""

    #: The verdicts of rules without effect, if they matched.
    shadows: dict[str, Counts]


class Beside(Struct, frozen=True):
    """The policies in force together with the candidate."""

    #: The organisation's policy; `None` if the candidate is the organisation's.
    organisation: Policy | None = Policy()
    #: By workspace, if the candidate is the organisation's.
    workspaces: dict[str, Policy] = {}


NOTHING_BESIDE: Final = Beside()


def backtest(
    policy: Policy, wishes: Iterable[CandidateCall], beside: Beside = NOTHING_BESIDE
) -> Report:
    """Judge these calls by the policy."""
    trial = Backtest(policy, beside)
    for wished in wishes:
        trial.take(wished)
    return trial.report()


class CandidateVerdict(Struct, frozen=True):
    """What the candidate says of a call."""

    outcome: Outcome
    #: Of the other policy as `(organisation) ...`.
    rule: str = ""
    #: Whether people are asked since a condition could not be evaluated.
    uncertain: bool = False
    shadows: tuple[Shadow, ...] = ()
    #: Whether the requester may confirm it.
    own: bool = False


#: A tool, what really happened, and the candidate's verdict.
type _Key = tuple[str, str, CandidateVerdict]

_INVALID: Final = CandidateVerdict("invalid")


class Backtest:
    """A backtest in progress: `take` the calls one by one, then get the report."""

    def __init__(self, policy: Policy, beside: Beside = NOTHING_BESIDE) -> None:
        self._policy = policy
        self._beside = beside
        self._counts: Counter[_Key] = Counter()
        #: If questions are limited, those of each thread: its number among the thread's calls, the
        #: key of `_counts`, and its id.
        self._asked: dict[tuple[str, str], list[tuple[int, _Key, str]]] = {}
        #: The number of calls of which the gate said something else, and the last of them.
        self._changed = 0
        self._changes: deque[ChangedCall] = deque(maxlen=MAX_CHANGES)
        self._policies = cache(self._policies_of)
        self._labels = cache(self._labels_of)
        self._conditional = cache(self._is_conditional)
        self._limited = cache(self._has_limits)
        self._tool = lru_cache(_MAX_CACHED)(tool_of)
        self._people = lru_cache(_MAX_CACHED)(self._people_of)
        self._cached: dict[tuple[object, ...], tuple[PolicyVerdict, CandidateVerdict]] = {}
        #: What the calls spent of each sum.
        self._spent: dict[tuple[object, ...], Decimal] = {}

    def take(self, one: CandidateCall | TokensUsed) -> None:
        """Judge a call, or count what a reply used: the calls after it were decided later."""
        if isinstance(one, TokensUsed):
            self._use(one)
        else:
            self._judge(one)

    def by_policies(self, wished: CandidateCall) -> CandidateVerdict:
        """What the policies alone say of a call, without limits and budgets. It is not counted."""
        policies = self._policies(wished.workspace, named=bool(wished.requester))
        tool = self._tool(wished.tool, governs=wished.governs)
        return self._by_policies(policies, wished, tool)[1] if _fits(wished, tool) else _INVALID

    def _judge(self, wished: CandidateCall) -> None:
        policies = self._policies(wished.workspace, named=bool(wished.requester))
        said = self._verdict_on(policies, wished)
        key = (wished.tool, wished.actual, said)
        if said.outcome == "asked" and policies.limit("questions_per_thread") is not None:
            place = (wished.workspace, wished.thread)
            self._asked.setdefault(place, []).append((wished.before, key, wished.call))
        else:
            self._count(wished.workspace, wished.thread, wished.call, key)

    def _count(self, workspace: str, thread: str, call: str, key: _Key) -> None:
        self._counts[key] += 1
        tool, happened, said = key
        if _SAID.get(happened, "asked") in {None, said.outcome}:
            return
        self._changed += 1
        if call:
            ref = f"{workspace}/{thread}/{call}"
            self._changes.append(ChangedCall(ref, tool, happened, said.outcome, said.rule))

    def _use(self, used: TokensUsed) -> None:
        for one in self._sums(self._policies(used.workspace, named=bool(used.requester)), used):
            if one.budget.amount == TOKENS:
                self._spend(one, Decimal(used.tokens))

    def _spend(self, one: Sum, amount: Decimal) -> None:
        self._spent[_place(one)] = total((self._spent.get(_place(one), Decimal(0)), amount))

    def _sums(self, policies: Policies, of: CandidateCall | TokensUsed) -> Iterator[Sum]:
        """The sums of budgets that are its, with what was spent of them so far."""
        for one in sums(
            policies, of.workspace, of.thread, agent=of.agent, requester=of.requester, day=of.day
        ):
            if spent := self._spent.get(_place(one)):
                earlier = e.BudgetUsed(call=_EARLIER, amount=written(spent), key=one.key)
                fact = Fact(0, _AT, policy_slot(of.workspace, 0), earlier)
                yield replace(one, used=(fact,), tokens=int(spent))
            else:
                yield one

    def report(self) -> Report:
        """The verdicts on the calls that were taken. To be asked for once all calls were taken: the
        questions of each thread are counted here, up to the limit, in the order of its requests.
        """
        self._count_questions()
        rules = self._policy.rules
        total, uncertain = Counts(), 0
        by_tool: dict[str, Counts] = {}
        by_rule = {rule.name: Counts() for rule in rules if not rule.shadow}
        shadows = {rule.name: Counts() for rule in rules if rule.shadow}
        actual: dict[str, Counts] = {}
        for (tool, happened, said), calls in self._counts.items():
            total.add(said.outcome, calls, own=said.own)
            by_tool.setdefault(tool, Counts()).add(said.outcome, calls, own=said.own)
            uncertain += calls if said.uncertain else 0
            if said.outcome != "invalid":
                by_rule.setdefault(said.rule, Counts()).add(said.outcome, calls, own=said.own)
            for shadow in said.shadows:
                shadows.setdefault(shadow.rule, Counts()).add(_OUTCOMES[shadow.then], calls)
            if happened:
                actual.setdefault(happened, Counts()).add(said.outcome, calls, own=said.own)
        return Report(
            **asdict(total),
            uncertain=uncertain,
            by_tool=_most_first(by_tool),
            by_rule=by_rule,
            shadows=shadows,
            actual=_most_first(actual),
            changed=self._changed,
            changes=tuple(self._changes),
        )

    def _count_questions(self) -> None:
        """Count the questions of each thread, in the order of its requests, up to its limit."""
        for (workspace, thread), asked in self._asked.items():
            most = self._policies(workspace, named=True).limit("questions_per_thread")
            assert most is not None
            over = CandidateVerdict("blocked", "(limit) questions_per_thread")
            asked.sort(key=itemgetter(0))
            for number, (_, (tool, happened, said), call) in enumerate(asked):
                judged = said if number < most else replace(over, shadows=said.shadows)
                self._count(workspace, thread, call, (tool, happened, judged))
        self._asked.clear()

    def _policies_of(self, workspace: str, *, named: bool) -> Policies:
        """The policies for a call of which the requester is named; or for one whose thread, which
        is not read, or whose file names nobody.
        """
        own, over = self._policy, self._beside.organisation
        if over is None:
            own, over = self._beside.workspaces.get(workspace, Policy()), self._policy
        if not named:
            own, over = (
                one.model_copy(update={"unmapped_requesters": "exclude_nobody"})
                for one in (own, over)
            )
        return Policies(AppliedPolicy(0, own), AppliedPolicy(0, over, organisation=True))

    def _labels_of(self, workspace: str) -> list[str]:
        """The labels that occur in a rule: only those can make a difference."""
        both = _both(self._policies(workspace, named=True))
        return sorted({name for policy in both for rule in policy.rules for name in rule.labels})

    def _is_conditional(self, workspace: str, tool: str) -> bool:
        both = _both(self._policies(workspace, named=True))
        return any(rule.when for policy in both for rule in policy.about(tool))

    def _has_limits(self, workspace: str) -> bool:
        """Whether a verdict depends on more than the call."""
        policies = self._policies(workspace, named=True)
        limited = policies.limit("calls_per_thread") is not None
        return limited or any(policy.budgets for policy in _both(policies))

    def _people_of(self, workspace: str, requester: str, agent: str) -> tuple[object, ...]:
        """What depends on who asks: whether the requester is known, and who may not vote."""
        policies = self._policies(workspace, named=bool(requester))
        return policies.is_known(requester), policies.excluded(requester, agent)

    def _verdict_on(self, policies: Policies, wished: CandidateCall) -> CandidateVerdict:
        tool = self._tool(wished.tool, governs=wished.governs)
        if not _fits(wished, tool):
            return _INVALID
        by_policies, said = self._by_policies(policies, wished, tool)
        if said is _INVALID or not self._limited(wished.workspace):
            return said
        budgets = (
            one for one in self._sums(policies, wished) if is_among(wished.tool, one.budget.tools)
        )
        past = ThreadUsage(calls=wished.before, questions=0, unjudged=0, denied=None, repeats=0)
        case = replace(
            case_of(policies, wished, tool),
            past=past,
            budgets=tuple(budgets),
            by_policies=by_policies,
        )
        says = verdict(case, _AT)
        limited = isinstance(says, e.Denied) and says.ground == "limit"
        if limited or _outcome(says) != said.outcome:
            rule = f"(limit) {_limit(case, says)}"
            uncertain = said.uncertain and isinstance(says, e.ApprovalRequested)
            said = CandidateVerdict(_outcome(says), rule, uncertain, said.shadows)
        said = replace(said, own=_is_own(says))
        if said.outcome == "allowed" or (said.outcome == "asked" and wished.actual in _LET_RUN):
            for one in case.budgets:
                self._spend(one, one.cost(wished.arguments) or Decimal(0))
        return said

    def _by_policies(
        self, policies: Policies, wished: CandidateCall, tool: Tool
    ) -> tuple[PolicyVerdict, CandidateVerdict]:
        """The verdict of the policies alone, also as the report has it."""
        place = wished.workspace
        people = self._people(place, wished.requester, wished.agent)
        labels = map(wished.labels.get, self._labels(place))
        of_tool = (wished.tool, wished.governs, wished.tool_class)
        key = (*of_tool, wished.agent, place, people, *labels)
        if self._conditional(place, wished.tool) or (found := self._cached.get(key)) is None:
            by_policies = policy_verdict(case_of(policies, wished, tool))
            found = by_policies, self._worded(by_policies)
            if not self._conditional(place, wished.tool) and len(self._cached) < _MAX_CACHED:
                self._cached[key] = found
        return found

    def _worded(self, by_policies: PolicyVerdict) -> CandidateVerdict:
        ruling, outcome = by_policies.ruling, _outcome(by_policies.says)
        if outcome == "invalid":
            return _INVALID
        judged = ruling.judged
        is_candidates = ruling.by.organisation == (self._beside.organisation is None)
        rule = judged.rule.name if is_candidates or judged.rule is NO_RULE else _other(ruling)
        own = _is_own(by_policies.says)
        return CandidateVerdict(outcome, rule, _is_uncertain(judged), ruling.shadows, own)


def case_of(policies: Policies, wished: CandidateCall, tool: Tool) -> Case:
    """The call as the gate would find it, with a tool that takes any object."""
    wish = e.ToolRequested(
        tool=wished.tool,
        arguments=wished.arguments,
        digest=call_digest(wished.tool, tool.version, wished.arguments),
        tool_version=tool.version,
        requester=wished.requester,
        agent=wished.agent,
        labels=wished.labels,
    )
    names = (wished.workspace, wished.thread, wished.call)
    ref = CallRef(*(name or _NONE for name in names))
    request = Fact(0, _AT, ref.requested, wish)
    return Case(Call(ref, requested=request, tool_class=wished.tool_class), policies, tool)


def _fits(wished: CandidateCall, tool: Tool) -> bool:
    return tool.problems(wished.arguments) is None if wished.fits is None else wished.fits


def tool_of(name: str, *, governs: bool) -> Tool:
    return Tool(
        name, "", e.ToolDeclared(description="", schema='{"type":"object"}', governs=governs)
    )


def _outcome(says: e.Approved | e.Denied | e.ApprovalRequested) -> Outcome:
    match says:
        case e.Approved():
            return "allowed"
        case e.ApprovalRequested():
            return "asked"
        case e.Denied(ground="invalid"):
            return "invalid"
        case e.Denied():
            return "blocked"


def _is_own(says: e.Event) -> bool:
    return isinstance(says, e.ApprovalRequested) and says.mode == "requester_confirms"


def _limit(case: Case, says: e.Event) -> str:
    """The limit because of which a verdict is not that of the policies alone."""
    most, over = case.policies.limit("calls_per_thread"), beyond(case)
    assert case.past
    if isinstance(says, e.Denied) and most is not None and case.past.calls >= most:
        return "calls_per_thread"
    return f"budget {over[0].budget.name}"


def _both(policies: Policies) -> tuple[Policy, Policy]:
    return policies.workspace.policy, policies.organisation.policy


def _place(one: Sum) -> tuple[object, ...]:
    return one.workspace, one.organisation, one.budget.name, one.key


def _other(ruling: PolicyDecision) -> str:
    whose = "organisation" if ruling.by.organisation else "workspace"
    return f"({whose}) {ruling.judged.rule.name}"


def _is_uncertain(judged: RuleMatch) -> bool:
    """Whether people are asked since a condition could not be evaluated: then the reason is not
    that of the rule.
    """
    return judged.then == "ask" and judged.reason != judged.rule.reason


def _most_first(counts: dict[str, Counts]) -> dict[str, Counts]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1].calls, one[0])))


# ---------------------------------------------------------------------------------- a file's wishes


def wishes_in(path: str, workspace: str = "") -> Iterator[CandidateCall]:
    """Every tool call of a file of conversations, which is read whole first.

    Args:
        workspace: the workspace in which they are judged.

    Raises:
        BadFile: with the line of the first mistake.
    """
    return (
        CandidateCall(wish.tool, wish.arguments, workspace=workspace, thread=one.id, before=before)
        for one in read_conversations(path)
        for before, wish in enumerate(_wishes(one.steps))
    )


def _wishes(steps: Iterable[ConversationStep]) -> Iterator[e.Wish]:
    for step in steps:
        if isinstance(step, RecordedReply):
            yield from step.wishes


# ------------------------------------------------------------------------------- the ledger's calls


class Calls:
    """Joins requests and decisions in the order of the log, and replies with their threads.

    Args:
        opened: the openings of threads. Only replies and rules that speak of classes need them.
    """

    def __init__(self, declarations: Iterable[Fact] = (), opened: Iterable[Fact] = ()) -> None:
        self._declared = {
            (fact.slot.workspace, *fact.slot.tool): fact.event
            for fact in declarations
            if isinstance(fact.event, e.ToolDeclared)
        }
        self._governing = {tool for tool, declared in self._declared.items() if declared.governs}
        self._tools: dict[tuple[str, str, str], Tool | None] = {}
        self._whose = {
            (fact.slot.workspace, fact.slot.thread): (fact.event.agent, fact.event.requester)
            for fact in opened
            if isinstance(fact.event, e.ThreadOpened)
        }
        self._parents = {
            (fact.slot.workspace, fact.slot.thread): tuple(fact.event.parent.split("/"))
            for fact in opened
            if isinstance(fact.event, e.ThreadOpened) and fact.event.parent
        }
        #: The class of each call that is a parent, by its place.
        self._classes: dict[tuple[str, ...], e.ToolClass | None] = dict.fromkeys(
            self._parents.values()
        )
        #: Each with the number of calls that its thread requested before it, and its day.
        self._open: dict[tuple[str, str, str], tuple[e.ToolRequested, int, str]] = {}
        self._requested: Counter[tuple[str, str]] = Counter()
        #: Requests that this program cannot read: from a newer program, or not valid facts.
        self.unreadable = 0

    def take(self, fact: Fact) -> CandidateCall | TokensUsed | None:
        """Add a fact. Returns the call that it decides, or what a reply used."""
        slot, event = fact.slot, fact.event
        if slot.tail[0] == "turn":
            return self._used(fact)
        if type(event) is e.Carried and slot.tail[-1].endswith("requested"):
            self.unreadable += 1
            return None
        place = (slot.workspace, slot.thread, slot.tail[1]) if slot.thread else ("", "", "")
        if type(event) is e.ToolRequested:
            day = day_of(fact.recorded_at)
            if place in self._classes:
                self._classes[place] = self._class(place, event)
            self._open[place] = event, self._requested[place[:2]], day
            self._requested[place[:2]] += 1
            return None
        found = self._open.pop(place, None)
        if found is None:
            return None  # requested before `since`
        is_own = mode_of(event) == "requester_confirms"
        how = "requester_confirms" if is_own else getattr(event, "ground", "")
        actual = _HAPPENED.get((type(event), how), "unknown")
        return self._candidate(place, *found, actual)

    def _used(self, reply: Fact) -> TokensUsed | None:
        if not isinstance(reply.event, e.ModelReplied):
            return None
        thread = reply.slot.thread_ref
        place = (thread.workspace, thread.thread)
        agent, requester = self._whose.get(place, ("", ""))
        tokens = tokens_of(reply.event.usage)
        return TokensUsed(tokens, *place, agent, requester, day_of(reply.recorded_at))

    def left(self) -> Iterator[CandidateCall]:
        """The calls that are not decided."""
        for place, found in self._open.items():
            yield self._candidate(place, *found, "open")

    def _candidate(
        self, place: tuple[str, str, str], wish: e.ToolRequested, before: int, day: str, actual: str
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
            place[2],
            day,
            self._class(place, wish),
        )

    def _class(self, place: tuple[str, ...], wish: e.ToolRequested) -> e.ToolClass:
        """The highest class of its tool and of the calls above it, which were requested before."""
        declared = self._declared.get((place[0], wish.tool, wish.tool_version))
        own = declared.tool_class if declared is not None else None
        parent = self._parents.get((place[0], place[1]))
        return highest_class((own, self._classes[parent]) if parent is not None else (own,))

    def _fits(self, named: tuple[str, str, str], wish: e.ToolRequested) -> bool:
        """Whether the gate would accept the digest and arguments."""
        if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
            return False
        if named not in self._tools:
            self._tools[named] = self._compiled(named)
        tool = self._tools[named]
        return tool is not None and tool.problems(wish.arguments) is None

    def _compiled(self, named: tuple[str, str, str]) -> Tool | None:
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
    """Judge every call in the ledger by the policy. Also returns the number of unreadable requests.

    Args:
        organisation: whether the policy is tried as the organisation's, or as a workspace's.
        workspace: only its calls; empty for all workspaces.
        since: only calls that were requested from this fact or time on.
    """
    where = f"{ROOT}.{token('workspace', workspace) if workspace else '*'}"
    declared = await ledger.read(f"{where}.{TOOL}.*.*")
    beside = await _beside(ledger, where, organisation=organisation)
    subjects = [f"{where}.*.call.*.requested", f"{where}.*.call.*.decided"]
    opened: tuple[Fact, ...] = ()
    policies = (policy, beside.organisation or policy, *beside.workspaces.values())
    counts_tokens = any(one.amount == TOKENS for each in policies for one in each.budgets)
    if counts_tokens or any(each.speaks_of_classes for each in policies):
        opened = await ledger.read(f"{where}.*.opened")
    if counts_tokens:
        subjects.append(f"{where}.*.turn.*.replied")
    calls, trial = Calls(declared, opened), Backtest(policy, beside)
    async for fact in ledger.replay(since, *subjects):
        if (one := calls.take(fact)) is not None:
            trial.take(one)
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
    """The value of `--since`; without it, the first fact.

    Raises:
        BadInput: it is neither a sequence number nor a time.
    """
    return 1 if text is None else parse_position("--since", text)
