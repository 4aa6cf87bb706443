"""Grants and delegations as everybody outside sees them."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ayes.ledger.judging.grants import Delegation, Grant, GrantStanding
from ayes.projections.views.copied import copied
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e

type DelegationStanding = Literal["to come", "in force", "ended"]


class GrantState(Struct, frozen=True):
    """An approval in advance."""

    #: As `workspace/giver/name`.
    grant: str
    standing: GrantStanding
    tool: str
    #: Exactly these, raw JSON text; None: see `when`.
    arguments: str | None
    #: Those that meet this condition (CEL); empty: any.
    when: str
    #: Patterns with `*`.
    agent: str
    #: A pattern with `*`.
    thread: str
    #: How many calls it approves.
    uses: int
    #: How many more it approves.
    left: int
    #: The calls that it approved.
    used_by: list[str]
    #: The last time that it approved one.
    used_at: datetime | None
    #: When it was given.
    given_at: datetime
    ends_at: datetime
    reason: str
    #: Who revoked it, or the call whose denial did; empty if nobody did.
    revoked_by: str
    seq: int


def grant_state(grant: Grant, now: datetime, secrets: Secrets) -> GrantState:
    granted = secrets.event(grant.granted, grant.ref.workspace)
    revoked = grant.revoked.event if grant.revoked else None
    return copied(
        GrantState,
        granted,
        grant=str(grant.ref),
        standing=grant.standing(now),
        left=grant.left,
        used_by=[fact.event.call for fact in grant.used if isinstance(fact.event, e.GrantUsed)],
        used_at=max((fact.recorded_at for fact in grant.used), default=None),
        given_at=grant.given.recorded_at,
        ends_at=grant.ends_at,
        revoked_by=revoked.reviewer or revoked.call if isinstance(revoked, e.GrantRevoked) else "",
        seq=grant.given.seq,
    )


def grant_words(grant: Grant, now: datetime, secrets: Secrets) -> str:
    granted = secrets.event(grant.granted, grant.ref.workspace)
    like = "any arguments"
    if granted.arguments is not None:
        like = granted.arguments
    elif granted.when:
        like = f"any where {granted.when}"
    scope = "" if granted.agent == "*" else f", agent {granted.agent or 'none'}"
    scope += "" if granted.thread == "*" else f", thread {granted.thread}"
    return (
        f"{grant.ref}  {grant.standing(now)}  {granted.tool} {like}{scope}  "
        f"{grant.left} of {granted.uses} uses left, ends {grant.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    )


class DelegationState(Struct, frozen=True):
    """A permission to vote in the giver's place."""

    #: As `workspace/giver/name`.
    delegation: str
    standing: DelegationStanding
    #: The person who may vote.
    to: str
    starts_at: datetime
    ends_at: datetime
    #: Names, or patterns with `*`.
    tools: tuple[str, ...]
    reason: str
    seq: int


def delegation_state(delegation: Delegation, now: datetime) -> DelegationState:
    return copied(
        DelegationState,
        delegation.delegated,
        delegation=str(delegation.ref),
        standing=_delegation_standing(delegation, now),
        seq=delegation.given.seq,
    )


def delegation_words(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    tools = "" if given.tools == ("*",) else f"  {', '.join(given.tools)}"
    by = "  by the calendar" if delegation.by_calendar else ""
    period = f"{given.starts_at:%Y-%m-%d %H:%M:%S} to {given.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{delegation.ref}  {_delegation_standing(delegation, now)}  "
        f"{given.to} for {delegation.ref.giver}, {period}{tools}{by}"
    )


def _delegation_standing(delegation: Delegation, now: datetime) -> DelegationStanding:
    given = delegation.delegated
    if delegation.ended is not None or now >= given.ends_at:
        return "ended"
    return "in force" if now >= given.starts_at else "to come"
