"""The gate: judges each wish once, counts votes, and alone decides.

    requested ──► the policy in force says allow, ask or block        ──► decided, or gated and a timer
    vote      ──► enough of the right, distinct people?               ──► decided
    withdrawn ──► the requester's side takes it back                  ──► decided
    due       ──► nobody decided in time                              ──► decided

Anything uncertain is not a yes: an unknown tool and arguments that break the schema are denied before anybody is
asked; a policy that cannot be read asks everybody. The clock is the broker's: "now" is when what was handed was recorded.
"""

from collections.abc import Sequence
from typing import Final, Never

import structlog
from msgspec import Struct

from consumers.steps import Append, CancelTimer, LookAgain, SetTimer, Step
from ledger.client import Ledger
from ledger.lifecycle import Call
from ledger.port import Due, Handed
from ledger.votes import tally
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.errors import BadFile, BadId, Unavailable, UnknownTool
from schemas.policy import Policy, Rule, is_plain, judge, read_policy
from schemas.slots import CallRef, Slot, policies
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


class Gate:
    durables = ("gate", "gate-timers")

    def __init__(self) -> None:
        # Policies and declarations never change, so what was read once is known for ever.
        self._policies: dict[Slot, InForce] = {}

    async def look(self, ledger: Ledger, handed: Handed) -> Case:
        call = await ledger.call(_call(handed), having=handed.slot if isinstance(handed, Fact) else None)
        if isinstance(handed, Due) and call.gated is None:
            # A timer is set after its question was read, so it is there. Nobody else would see to this deadline.
            raise Unavailable(f"the question of {call.ref} cannot be read yet; a replica is behind.")
        in_force, tool = _NOTHING, None
        if call.requested is not None and call.decided is None:
            if call.gated is None:
                in_force = await self._in_force(ledger, call.ref.workspace)
            if call.gated is None or any(_edits(vote) for vote in call.votes):
                tool = await _tool(ledger, call)
        return Case(call, in_force, tool)

    def react(self, seen: Case, handed: Handed) -> Sequence[Step[Never]]:
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
            # The deadline counts from when the broker has recorded the question.
            again = () if decision.expires_in_s is None else (LookAgain(),)
            return [Append(call.ref.gated, decision), *again]
        return [Append(call.ref.decided, decision), *_cancelled(call)]

    async def do(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the gate does nothing outside of the ledger")

    async def _in_force(self, ledger: Ledger, workspace: str) -> InForce:
        fact = await ledger.port.latest(policies(workspace))
        if fact is None:
            return _NOTHING
        if fact.slot not in self._policies:
            self._policies[fact.slot] = _read(fact)
        return self._policies[fact.slot]


_NOTHING: Final = InForce(0, Policy())


def _decision(seen: Case, handed: Handed) -> e.Event | None:
    """What the facts come to; None while it is open."""
    call = seen.call
    if call.withdrawn is not None:
        event = call.withdrawn.event
        return e.Superseded(reason=event.reason) if isinstance(event, e.Superseded) else _withdrawn(event)
    if call.gated is None:
        return verdict(call, seen.in_force, seen.tool)
    tool = seen.tool
    stands = tally(call, fits=lambda arguments: tool is not None and tool.problems(arguments) is None)
    if stands.verdict is not None:
        return stands.verdict
    if call.deadline is not None and handed.recorded_at >= call.deadline:
        asking = call.asking
        assert asking
        assert asking.expires_in_s
        return e.Expired(rule=asking.rule, policy_version=asking.policy_version, after_s=asking.expires_in_s)
    return None


def verdict(call: Call, in_force: InForce, tool: Tool | None) -> e.Approved | e.Denied | e.ApprovalRequested:
    """What the policy says to a wish. Looked at before anybody is asked, in this order:

    1. the digest is not that of the wish, the tool is unknown, the arguments break its schema: denied as invalid;
    2. the rule that counts (the strictest that matches) blocks, allows or asks;
    3. it asks fewer people than it needs, without the one who asked for it: denied, since nobody could ever decide.
    """
    wish = call.wish
    rule: Rule = judge(in_force.policy, wish.tool)

    def invalid(reason: str) -> e.Denied:
        return e.Denied(ground="invalid", rule=rule.name, policy_version=in_force.version, reason=reason)

    if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
        return invalid("The request's digest is not that of its arguments.")
    if tool is None:
        return invalid(f"There is no tool {wish.tool!r}. Only the tools that were offered can be called.")
    if problem := tool.problems(wish.arguments):
        return invalid(problem)
    match rule.then:
        case "block":
            return e.Denied(
                ground="policy", rule=rule.name, policy_version=in_force.version, reason=rule.reason
            )
        case "allow":
            return e.Approved(
                digest=wish.digest,
                ground="policy",
                rule=rule.name,
                policy_version=in_force.version,
                reason=rule.reason,
            )
        case "ask" if (missing := _missing(rule, wish)) > 0:
            return e.Denied(
                ground="policy",
                rule=rule.name,
                policy_version=in_force.version,
                reason=f"It needs {missing} more who may vote: {wish.requester} asked for it and does not count.",
            )
        case "ask":
            return e.ApprovalRequested(
                digest=wish.digest,
                rule=rule.name,
                policy_version=in_force.version,
                reason=rule.reason,
                voters=rule.voters,
                excluded=tuple(filter(None, (wish.requester,))),
                votes_needed=rule.votes_needed,
                expires_in_s=rule.expires_in_s,
            )


def _missing(rule: Rule, wish: e.ToolRequested) -> int:
    """How many voters the rule lacks for this wish: a question that nobody can answer must not be asked."""
    if not all(map(is_plain, rule.voters)):
        return 0
    return rule.votes_needed - len(set(rule.voters) - {wish.requester})


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
