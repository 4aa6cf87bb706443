"""Why a call has its status: the recorded judgement, the votes, and the policies in force now.

All of it is computed from the facts, by the functions that the gate uses too. The output of
`ayes policy explain` is an `Explained`.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec
from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.descriptions import describe, describe_on_call
from ayes.ledger.judging.budgets import Sum
from ayes.ledger.judging.chain import Chain
from ayes.ledger.judging.grants import Delegation
from ayes.ledger.judging.policies import AppliedPolicy, Origin, Policies, classed
from ayes.ledger.judging.verdict import Case, verdict
from ayes.ledger.judging.votes import (
    NO_MEMBERS,
    CastVote,
    Members,
    Tally,
    asked,
    cast_votes,
    joined,
    tally,
    with_members,
)
from ayes.ledger.objections import VoteFlaw
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.events import Shadow
from ayes.schemas.people import is_excluded, is_mapped
from ayes.schemas.policy import Policy
from ayes.schemas.quorums import is_among, seated
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import Tool

_UNKNOWN: Final = Origin()


class Seat(Struct, frozen=True):
    """A quorum, and the people who fill its seats."""

    voters: tuple[str, ...]
    votes_needed: int
    agree: tuple[str, ...] = ()
    missing: int = 0
    #: Its voters as the policy writes them.
    name: str = ""


class ExplainedRequest(Struct, frozen=True):
    """The approval request of a verdict."""

    quorums: tuple[Seat, ...]
    #: The quorums of the workspace's rule if the organisation's rule asks too. The same votes count
    #: for both.
    besides: tuple[Seat, ...]
    denials_needed: int
    #: People whose votes never count, with the reason.
    excluded: dict[str, str]
    mode: e.Mode
    #: With `requester_confirms`: the people whom `excluded` would name otherwise.
    own: dict[str, str]
    may_break_glass: tuple[str, ...]
    expires_in_s: float | None
    on_timeout: e.OnTimeout
    stages: tuple[e.Stage, ...]


class ExplainedVerdict(Struct, frozen=True):
    """The verdict of the policies on a call."""

    #: `allow`, `ask` or `block`; `invalid` or `limit` if that comes before any rule.
    then: str
    rule: str
    policy_version: int
    organisation: bool
    reason: str
    asks: ExplainedRequest | None = None
    #: The verdicts of shadow rules.
    shadows: tuple[Shadow, ...] = ()


class Vote(Struct, frozen=True):
    """A vote, and whether it counts."""

    reviewer: str
    on_behalf_of: str
    verdict: str
    reason: str
    #: The arguments that it is about, if they are not the requested ones.
    arguments: str | None
    #: Why it does not count; empty if it does.
    flaw: str


class ExplainedStage(Struct, frozen=True):
    """The people to be asked in addition, and when."""

    voters: tuple[str, ...]
    at: datetime | None


class ExplainedBudget(Struct, frozen=True):
    """A sum of a budget that covers the call, as it stands now."""

    name: str
    organisation: bool
    #: The values of the budget's `per`, in its order.
    key: tuple[str, ...]
    unit: str
    limit: Decimal
    #: By all other calls; None if a part of it cannot be read.
    used: Decimal | None
    #: By this call; None if that is not known.
    needed: Decimal | None
    #: All this as a sentence.
    words: str


class Explained(Struct, frozen=True):
    """Why a call has its status."""

    call: str
    status: str
    #: As `Call.outcome`.
    outcome: str
    tool: str
    arguments: str
    requester: str
    agent: str
    #: The recorded verdict; None if no gate has judged the call.
    judged: ExplainedVerdict | None
    votes: tuple[Vote, ...]
    #: People who were asked in addition, since nobody decided in time.
    asked_as_well: tuple[str, ...]
    #: Who of them was on call, or why nobody was asked who is.
    on_call: tuple[str, ...]
    next_stage: ExplainedStage | None
    expires_at: datetime | None
    #: The grants used, as `giver/grant`.
    grants: tuple[str, ...]
    decision: str | None
    decided: str
    #: The budgets in force now that cover the call.
    budgets: tuple[ExplainedBudget, ...]
    #: The verdict by the policies and budgets as they stand now, if it differs.
    by_now: ExplainedVerdict | None
    #: The highest class of its tool and of the tools of the calls above it; None: no policy in
    #: force speaks of classes.
    tool_class: e.ToolClass | None = msgspec.field(name="class", default=None)


def explained(
    call: Call,
    policies: Policies,
    tool: Tool | None,
    delegations: Sequence[Delegation] = (),
    grants: tuple[str, ...] = (),
    whence: Origin = _UNKNOWN,
    budgets: tuple[Sum, ...] = (),
    *,
    names_requester: bool = True,
) -> Explained:
    """Explain a requested call.

    Args:
        call: with requester, agent and labels of its thread (`policies.attributed`), with its class
            (`policies.classed`), and with who was removed (`with_given`).
        policies: those in force now.
        tool: the declaration; None if there is none.
        grants: the grants that the call used, as `giver/grant`.
        budgets: the sums that it would spend of.
        names_requester: whether the request itself names the requester.
    """
    assert call.requested
    wish, decision = call.wish, call.decided.event if call.decided else None

    stands = tally(call, policies, tool, delegations) if call.approval_request else None
    votes = cast_votes(call, policies, tool, delegations)
    ballots = [one for one in votes if one.objection is None]
    judged = _judged(call, stands, ballots)
    requested = Call(call.ref, requested=call.requested, tool_class=call.tool_class)
    wished = Case(
        requested,
        policies,
        tool,
        origin=whence,
        names_requester=names_requester,
        budgets=budgets,
    )
    now = _explained_verdict(verdict(wished, call.requested.recorded_at), wish)
    stage = call.next_stage
    return Explained(
        call=str(call.ref),
        status=str(call.status),
        outcome=str(call.outcome),
        tool=wish.tool,
        arguments=wish.arguments,
        requester=wish.requester,
        agent=wish.agent,
        judged=judged,
        votes=tuple(_vote(call, one) for one in votes),
        asked_as_well=call.escalated_to(),
        on_call=tuple(map(describe_on_call, call.on_call)),
        next_stage=ExplainedStage(stage.voters, call.due)
        if stage is not None and decision is None
        else None,
        expires_at=call.deadline,
        grants=decision.grants if isinstance(decision, e.Approved) and decision.grants else grants,
        decision=_kind(decision) if decision is not None else None,
        decided=describe(call.decided) if call.decided is not None else "",
        budgets=tuple(_budget(one, call, tool) for one in budgets),
        by_now=now if judged is None or _differ(judged, now) else None,
        tool_class=call.tool_class if policies.speak_of_classes else None,
    )


def _budget(one: Sum, call: Call, tool: Tool | None) -> ExplainedBudget:
    arguments = call.wish.arguments
    is_secret = tool is not None and tool.hides(one.budget.amount)
    return ExplainedBudget(
        name=one.budget.name,
        organisation=one.organisation,
        key=one.key,
        unit=one.budget.unit,
        limit=one.budget.limit,
        used=one.spent(call.ref),
        needed=None if is_secret else one.cost(arguments),
        words=one.described(call.ref, arguments, is_secret=is_secret),
    )


def _judged(
    call: Call,
    stands: Tally | None,
    ballots: Sequence[CastVote],
) -> ExplainedVerdict | None:
    """The recorded verdict, with the people who agree by now."""
    decision = call.decided.event if call.decided else None
    if call.approval_request is None:
        return (
            _explained_verdict(decision, call.wish)
            if isinstance(decision, e.Approved | e.Denied)
            else None
        )
    people = stands.people if stands is not None else ()
    if isinstance(decision, e.Approved | e.Answered):
        people = tuple(decision.on_behalf_of.get(one, one) for one in decision.voters)
    members = stands.members if stands is not None else {}
    joined_by = with_members(call, members)
    anywhere = {
        one.person for one in ballots if is_among(one.person, joined_by.escalated_to(one.seq))
    }
    return _explained_verdict(call.approval_request, call.wish, people, anywhere, members)


def _explained_verdict(
    event: e.Approved | e.Denied | e.ApprovalRequested,
    wish: e.ToolRequested,
    people: Sequence[str] = (),
    anywhere: Collection[str] = (),
    members: Members = NO_MEMBERS,
) -> ExplainedVerdict:
    match event:
        case e.ApprovalRequested():
            then = "ask"
        case e.Approved(ground=ground) | e.Denied(ground=ground):
            then = _THEN.get((type(event), ground), "ask")
    return ExplainedVerdict(
        then=then,
        rule=event.rule,
        policy_version=event.policy_version,
        organisation=event.organisation,
        reason=event.reason,
        asks=_explained_request(event, wish, people, anywhere, members)
        if isinstance(event, e.ApprovalRequested)
        else None,
        shadows=event.shadows,
    )


def _explained_request(
    asking: e.ApprovalRequested,
    wish: e.ToolRequested,
    people: Sequence[str],
    anywhere: Collection[str],
    members: Members,
) -> ExplainedRequest:
    seats = [
        tuple(
            Seat(one.voters, one.votes_needed, tuple(sit), one.votes_needed - len(sit), one.name)
            for one, sit in zip(
                quorums, seated(joined(quorums, members), people, anywhere), strict=True
            )
        )
        for quorums in asked(asking)
    ]
    return ExplainedRequest(
        quorums=seats[0],
        besides=seats[1] if len(seats) > 1 else (),
        denials_needed=asking.denials_needed,
        excluded={one: _why_excluded(one, wish, asking) for one in asking.excluded},
        mode=asking.mode,
        own={one: _why_excluded(one, wish, asking) for one in asking.own},
        may_break_glass=asking.may_break_glass,
        expires_in_s=asking.expires_in_s,
        on_timeout=asking.on_timeout,
        stages=asking.stages,
    )


def _why_excluded(name: str, wish: e.ToolRequested, asking: e.ApprovalRequested) -> str:
    agents = filter(None, (wish.agent, *(link.agent for link in asking.chain)))
    behind = " or ".join(dict.fromkeys(agents))
    asked_for_it = is_excluded(name, filter(is_mapped, (wish.requester,)), asking.people)
    return "asked for it" if asked_for_it or not behind else f"is behind the agent {behind}"


def _differ(then: ExplainedVerdict, now: ExplainedVerdict) -> bool:
    """Whether the verdict or the people asked differ, apart from versions, reasons and votes."""
    if then.then == now.then == "invalid":
        return False
    if then.then == "limit":  # the verdict of the rule was not recorded
        return (then.rule, then.organisation) != (now.rule, now.organisation)
    if (then.then, then.rule, then.organisation) != (now.then, now.rule, now.organisation):
        return True
    return then.asks is not None and now.asks is not None and _bare(then.asks) != _bare(now.asks)


def _bare(question: ExplainedRequest) -> ExplainedRequest:
    """The approval request without the people who agree."""

    def bare(seats: Sequence[Seat]) -> tuple[Seat, ...]:
        return tuple(Seat(one.voters, one.votes_needed) for one in seats)

    return msgspec.structs.replace(
        question, quorums=bare(question.quorums), besides=bare(question.besides)
    )


def _vote(call: Call, cast: CastVote) -> Vote:
    vote = cast.vote
    return Vote(
        cast.reviewer,
        vote.on_behalf_of,
        vote.verdict,
        vote.reason,
        vote.arguments,
        _flaw(call, cast),
    )


def _flaw(call: Call, cast: CastVote) -> str:
    """Why a vote does not count, in words for people; empty if it does."""
    if cast.objection is None:
        return ""
    who, asking = cast.objection.person, call.approval_request
    match cast.objection.flaw:
        case "excluded" if asking is not None:
            only = ", and may vote in person alone" if asking.own else ""
            return f"{who} {_why_excluded(who, call.wish, asking)}{only}"
        case "removed":
            return f"{who} was removed before it"
        case "elsewhere":
            return f"{who} was not of {call.ref.workspace} then"
        case "stranger" if cast.vote.verdict != "break_glass":
            return f"{who} was not asked"
        case "stranger" | "glass_for_another":
            return f"{who} may not break the glass"
        case "not_delegated":
            return f"{who} had not given {cast.reviewer} the vote then"
        case "voted":
            return f"{who} has voted already"
        case "bad_signature":
            return f"it is not signed with a key of {who} that was in force when people were asked"
        case "counter_fell":
            return f"the counter of {who}'s passkey was as high before: there may be a copy of it"
        case flaw:
            return _FLAWS[flaw]


def _kind(event: object) -> str:
    return event.type if isinstance(event, e.Carried) else type(event).__name__


def said_to(
    wish: e.ToolRequested, workspace: str, policy: Policy, tool_class: e.ToolClass | None = None
) -> ExplainedVerdict:
    """The verdict on a wish if this policy were in force and any arguments were valid.

    Args:
        tool_class: the class that its tool declares; None: none.
    """
    ref = ThreadRef(workspace, "t").call("c")
    now = datetime.fromtimestamp(0).astimezone()
    call = Call(ref, requested=Fact(1, now, ref.requested, wish))
    if not wish.requester:  # any requester will do
        policy = policy.model_copy(update={"unmapped_requesters": "exclude_nobody"})
    declared = msgspec.structs.replace(_ANY, tool_class=tool_class)
    tool = Tool(wish.tool, wish.tool_version, declared)
    case = Case(classed(call, tool, Chain()), Policies(AppliedPolicy(0, policy)), tool)
    return _explained_verdict(verdict(case, now), wish)


_THEN: Final[dict[tuple[type, str], str]] = {
    (e.Approved, "policy"): "allow",
    (e.Denied, "policy"): "block",
    (e.Denied, "invalid"): "invalid",
    (e.Denied, "limit"): "limit",
}
#: Flaws of a vote that do not depend on the voter.
_FLAWS: Final[dict[VoteFlaw, str]] = {
    "not_asked": "nobody had been asked by then",
    "decided": "the call had been decided by then",
    "deadline": "it came after the deadline",
    "other_bytes": "it is about other arguments than those of the call",
    "glass_without_reason": "breaking the glass needs a reason",
    "unused": "it holds an instruction that its verdict does not use",
    "may_not_run": "its edited arguments may not run",
    "unsigned": "it is not signed",
}
#: A tool that takes any object.
_ANY: Final = e.ToolDeclared(description="", schema='{"type":"object"}')
