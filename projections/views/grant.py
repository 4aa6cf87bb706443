"""Grants and delegations as everybody outside sees them."""

from datetime import datetime
from typing import Any

from ayes.ledger.judging.grants import Delegation, Grant
from ayes.schemas import events as e


def grant_json(grant: Grant, now: datetime) -> dict[str, Any]:
    """A grant: what it covers, its status, and the calls that used it."""
    granted = grant.granted
    revoked = grant.revoked.event if grant.revoked else None
    uses = [fact.event.call for fact in grant.used if isinstance(fact.event, e.GrantUsed)]
    return {
        "grant": str(grant.ref),
        "standing": grant.standing(now),
        "tool": granted.tool,
        "arguments": granted.arguments,
        "when": granted.when,
        "agent": granted.agent,
        "thread": granted.thread,
        "uses": granted.uses,
        "left": grant.left,
        "used_by": uses,
        "given_at": grant.given.recorded_at,
        "ends_at": grant.ends_at,
        "reason": granted.reason,
        "revoked_by": revoked.reviewer or revoked.call
        if isinstance(revoked, e.GrantRevoked)
        else "",
    }


def grant_words(grant: Grant, now: datetime) -> str:
    granted = grant.granted
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


def delegation_json(delegation: Delegation, now: datetime) -> dict[str, Any]:
    given = delegation.delegated
    return {
        "delegation": str(delegation.ref),
        "standing": _delegation_standing(delegation, now),
        "to": given.to,
        "starts_at": given.starts_at,
        "ends_at": given.ends_at,
        "tools": given.tools,
        "reason": given.reason,
    }


def delegation_words(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    tools = "" if given.tools == ("*",) else f"  {', '.join(given.tools)}"
    period = f"{given.starts_at:%Y-%m-%d %H:%M:%S} to {given.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{delegation.ref}  {_delegation_standing(delegation, now)}  "
        f"{given.to} for {delegation.ref.giver}, {period}{tools}"
    )


def _delegation_standing(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    if delegation.ended is not None or now >= given.ends_at:
        return "ended"
    return "in force" if now >= given.starts_at else "to come"
