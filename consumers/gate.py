"""The gate: judges each wish once, counts votes, and alone decides.

    requested ──► the policy in force says allow, ask or block        ──► decided, or gated and a timer
    vote      ──► enough of the right, distinct people?               ──► decided
    withdrawn ──► the requester's side takes it back                  ──► decided
    said      ──► a user said something new, where that supersedes    ──► decided, every open call of the thread
    due       ──► nobody decided in time                              ──► decided

Anything uncertain is not a yes: an unknown tool and arguments that break the schema are denied before anybody is
asked; a policy that cannot be read asks everybody. The clock is the broker's: "now" is when what was handed was recorded.

Whether a message supersedes a question is read off the log, so it does not matter who is quicker, the gate or the
user (docs/decisions/0010):

* It does if a user said it after the wish was made: after the model's reply, or, in a service's own loop, after the
  request. So all wishes of one reply are superseded by the same messages, and a slow gate asks nothing that is moot.
* What was recorded before the message counts, and nothing that came after it: a vote that decides, a withdrawal and the
  deadline win if they came first, and else the message. So two who look at different times do not disagree about it.
* Whoever is handed anything about such a call looks for messages, also right after the question was recorded, and whoever
  is handed a message looks for such calls. One of them comes last and sees both.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Never

import structlog
from msgspec import Struct
from msgspec.structs import replace

from consumers.steps import Append, CancelTimer, LookAgain, SetTimer, Step
from ledger.client import Ledger
from ledger.judging import about, edit_problem
from ledger.lifecycle import Call, call_of
from ledger.port import Due, Handed
from ledger.votes import tally
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.errors import BadFile, BadId, Unavailable, UnknownTool
from schemas.policy import Policy, Rule, is_plain, judge, read_policy
from schemas.slots import ROOT, CallRef, Slot, policies
from schemas.tools import Tool

_log: Final = structlog.get_logger("consumers.gate")


class InForce(Struct, frozen=True):
    """A policy and its version; 0 where none was ever applied."""

    version: int
    policy: Policy


class Case(Struct, frozen=True):
    """What the gate looks at: the call, and what judges it."""

    call: Call
    in_force: InForce
    tool: Tool | None
    #: The first thing that a user said after the wish was made. Only looked for where it supersedes the question.
    newer: Fact | None = None


class Heard(Struct, frozen=True):
    """What the gate looks at when somebody says something: the thread's open calls that this may supersede."""

    cases: tuple[Case, ...]


class Gate:
    durables = ("gate", "gate-timers")

    def __init__(self) -> None:
        # Policies and declarations never change, so what was read once is known for ever.
        self._policies: dict[Slot, InForce] = {}

    async def look(self, ledger: Ledger, handed: Handed) -> Case | Heard:
        if isinstance(handed, Fact) and isinstance(handed.event, e.Said):
            return await self._heard(ledger, handed, handed.event)
        call = await ledger.call(_call(handed), having=handed.slot if isinstance(handed, Fact) else None)
        if isinstance(handed, Due) and call.gated is None:
            # A timer is set after its question was read, so it is there. Nobody else would see to this deadline.
            raise Unavailable(f"the question of {call.ref} cannot be read yet; a replica is behind.")
        if call.requested is None or call.decided is not None:
            return Case(call, _NOTHING, None)
        if call.gated is not None:
            return await self._asked(ledger, call, handed)
        return Case(call, await self._in_force(ledger, call.ref.workspace), await _tool(ledger, call))

    def react(self, seen: Case | Heard, handed: Handed) -> Sequence[Step[Never]]:
        match seen:
            case Case():
                return _steps(seen, handed)
            case Heard(cases):
                return [step for case in cases for step in _steps(case, handed)]

    async def do(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the gate does nothing outside of the ledger")

    async def _heard(self, ledger: Ledger, handed: Fact, said: e.Said) -> Heard:
        """Where no question is open that a message supersedes, this is one request, and none for what no user said."""
        if said.role != "user":
            return Heard(())
        waiting = await ledger.open_questions(handed.slot.thread_ref, having=handed.slot)
        return Heard(tuple([await self._asked(ledger, call, handed) for call in waiting if _yields(call)]))

    async def _asked(self, ledger: Ledger, call: Call, handed: Handed) -> Case:
        """The case of an open question, with what a user said since the wish was made where that counts."""
        newer = None
        if _yields(call):
            assert call.gated
            facts = await ledger.read(*_around(call.ref), having=_later(call.gated, handed))
            call = call_of(call.ref, facts)
            newer = said_since(call.ref, facts)
        if call.requested is None or not any(map(_edits, call.votes)):
            return Case(call, _NOTHING, None, newer)
        # An edit is judged again, by the policy that is in force by then.
        in_force = await self._in_force(ledger, call.ref.workspace)
        return Case(call, in_force, await _tool(ledger, call), newer)

    async def _in_force(self, ledger: Ledger, workspace: str) -> InForce:
        fact = await ledger.port.latest(policies(workspace))
        if fact is None:
            return _NOTHING
        if fact.slot not in self._policies:
            self._policies[fact.slot] = _read(fact)
        return self._policies[fact.slot]


_NOTHING: Final = InForce(0, Policy())


def _steps(seen: Case, handed: Handed) -> Sequence[Step[Never]]:
    call = seen.call
    if call.requested is None:
        return ()  # a vote or a withdrawal of nothing: it counts when there is something, which is handed then
    if call.decided is not None:
        return _cancelled(call)
    decision = _decision(seen, handed)
    if decision is None:
        # Set again on redelivery: a crash may have come between the question and its timer.
        return [SetTimer(call.ref, call.deadline)] if call.deadline is not None else ()
    if isinstance(decision, e.ApprovalRequested):
        # The deadline counts from when the broker has recorded the question, and a message may have come before it.
        last = decision.expires_in_s is None and decision.while_pending != "supersede"
        return [Append(call.ref.gated, decision), *(() if last else (LookAgain(),))]
    return [Append(call.ref.decided, decision), *_cancelled(call)]


def _decision(seen: Case, handed: Handed) -> e.Event | None:
    """What the facts come to; None while it is open."""
    if seen.newer is None:
        return _decided(seen, handed.recorded_at)
    first = _decided(replace(seen, call=_before(seen.call, seen.newer)), seen.newer.recorded_at)
    return first or e.Superseded(reason=f"The user said something new, message {seen.newer.slot.tail[1]!r}.")


def _before(call: Call, message: Fact) -> Call:
    """The call without what people said about it after this message made it moot, or after the question if that came last."""
    assert call.gated
    end = max(message.seq, call.gated.seq)
    withdrawn = call.withdrawn if call.withdrawn and call.withdrawn.seq < end else None
    return replace(call, votes=tuple(vote for vote in call.votes if vote.seq < end), withdrawn=withdrawn)


def _decided(seen: Case, now: datetime) -> e.Event | None:
    call = seen.call
    if call.withdrawn is not None:
        event = call.withdrawn.event
        return e.Superseded(reason=event.reason) if isinstance(event, e.Superseded) else _withdrawn(event)
    if call.gated is None:
        return verdict(call, seen.in_force, seen.tool)
    stands = tally(call, fits=lambda arguments: _fits(seen, arguments))
    if stands.verdict is not None:
        return stands.verdict
    if call.deadline is not None and now >= call.deadline:
        asking = call.asking
        assert asking
        assert asking.expires_in_s
        return e.Expired(rule=asking.rule, policy_version=asking.policy_version, after_s=asking.expires_in_s)
    return None


def _fits(seen: Case, arguments: str) -> bool:
    """May the call run with a reviewer's arguments?"""
    if seen.tool is None or seen.tool.problems(arguments) is not None:
        return False
    return edit_problem(seen.in_force.policy, seen.call, arguments) is None


def verdict(call: Call, in_force: InForce, tool: Tool | None) -> e.Approved | e.Denied | e.ApprovalRequested:
    """What the policy says to a wish. Looked at before anybody is asked, in this order:

    1. the digest is not that of the wish, the tool is unknown, the arguments break its schema: denied as invalid;
    2. the rule that counts (the strictest that matches) blocks, allows or asks;
    3. it asks fewer people than it needs, without the one who asked for it: denied, since nobody could ever decide.
    """
    wish = call.wish
    version = in_force.version

    def invalid(reason: str) -> e.Denied:
        rule = judge(in_force.policy, about(call)).rule.name
        return e.Denied(ground="invalid", rule=rule, policy_version=version, reason=reason)

    if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
        return invalid("The request's digest is not that of its arguments.")
    if tool is None:
        return invalid(f"There is no tool {wish.tool!r}. Only the tools that were offered can be called.")
    if problem := tool.problems(wish.arguments):
        return invalid(problem)
    judged = judge(in_force.policy, about(call, wish.arguments))
    rule, reason, shadows = judged.rule, judged.reason, judged.shadows
    match judged.then:
        case "block":
            return e.Denied(
                ground="policy", rule=rule.name, policy_version=version, reason=reason, shadows=shadows
            )
        case "allow":
            return e.Approved(
                digest=wish.digest,
                ground="policy",
                rule=rule.name,
                policy_version=version,
                reason=reason,
                shadows=shadows,
            )
        case "ask" if (missing := _missing(rule, wish)) > 0:
            return e.Denied(
                ground="policy",
                rule=rule.name,
                policy_version=version,
                reason=f"It needs {missing} more who may vote: {wish.requester} asked for it and does not count.",
                shadows=shadows,
            )
        case "ask":
            return e.ApprovalRequested(
                digest=wish.digest,
                rule=rule.name,
                policy_version=version,
                reason=reason,
                voters=rule.voters,
                excluded=tuple(filter(None, (wish.requester,))),
                votes_needed=rule.votes_needed,
                expires_in_s=rule.expires_in_s,
                while_pending=in_force.policy.while_pending,
                shadows=shadows,
            )


def _missing(rule: Rule, wish: e.ToolRequested) -> int:
    """How many voters the rule lacks for this wish: a question that nobody can answer must not be asked."""
    if not all(map(is_plain, rule.voters)):
        return 0
    return rule.votes_needed - len(set(rule.voters) - {wish.requester})


def _yields(call: Call) -> bool:
    """Does a user's message make this call moot?"""
    return call.asking is not None and call.asking.while_pending == "supersede"


def _later(gated: Fact, handed: Handed) -> Slot:
    """The later of the two facts: whoever has it has all that stands before it. (A timer is of another stream.)"""
    return handed.slot if isinstance(handed, Fact) and handed.seq > gated.seq else gated.slot


def _around(ref: CallRef) -> tuple[str, ...]:
    """The subjects of a call, of the reply that wished for it, and of all that was said in its thread."""
    reply = _reply(ref)
    said = f"{ROOT}.{ref.workspace}.{ref.thread}.said.*"
    return (ref.subjects, said, *([reply.subject] if reply else []))


def _reply(ref: CallRef) -> Slot | None:
    """Where the reply stands that wished for this call. None: a model's wishes have other ids, so it is a service's own."""
    turn, _, index = ref.call.partition("-")
    if not (turn.isdigit() and index.isdigit()) or ref.thread_ref.wish(int(turn), int(index)) != ref:
        return None
    return ref.thread_ref.replied(int(turn))


def said_since(ref: CallRef, facts: Sequence[Fact]) -> Fact | None:
    """The first thing that a user said after the wish for this call was made, among facts in the order of the log."""
    wished = (fact.seq for fact in facts if fact.slot in (ref.requested, _reply(ref)))
    since = min(wished, default=None)
    said = (fact for fact in facts if isinstance(fact.event, e.Said) and fact.event.role == "user")
    return next((fact for fact in said if since is not None and fact.seq > since), None)


def _cancelled(call: Call) -> Sequence[CancelTimer]:
    return [CancelTimer(call.ref)] if call.deadline is not None else ()


def _withdrawn(event: object) -> e.Withdrawn:
    return e.Withdrawn(reason=event.reason) if isinstance(event, e.Withdrawn) else e.Withdrawn()


def _call(handed: Handed) -> CallRef:
    if isinstance(handed, Due):
        return handed.call
    ref = handed.slot.call_ref
    assert ref, "the gate is handed facts about calls only"
    return ref


def _edits(vote: Fact) -> bool:
    return isinstance(vote.event, e.Voted) and vote.event.arguments is not None


async def _tool(ledger: Ledger, call: Call) -> Tool | None:
    wish = call.wish
    if not wish.tool_version:
        return None
    try:
        return await ledger.tool(call.ref.workspace, wish.tool, wish.tool_version)
    except (UnknownTool, BadId):  # the latter: a name that no tool can have
        return None


def _read(fact: Fact) -> InForce:
    version = int(fact.slot.tail[1])
    if isinstance(fact.event, e.PolicyApplied):
        try:
            return InForce(version, read_policy(fact.event.text, fact.slot.subject))
        except BadFile as problem:
            _log.error("the policy in force cannot be read; everything is asked about", problem=str(problem))
    return InForce(version, Policy())
