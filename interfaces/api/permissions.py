"""What a visitor may do about a call now, and why not: the rules that would refuse it, asked
before.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ayes.interfaces.api.identity import Role, Visitor
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.objections import asks_groups, may_revoke, objection_to_voter
from ayes.projections.doubt import CallInDoubt
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, NotAllowed, NotOpen, Refused
from ayes.schemas.people import person

#: What a visitor may do about a call.
type Action = Literal[
    "approve",
    "deny",
    "answer",
    "edit",
    "hand_over",
    "break_glass",
    "revoke",
    "reconcile",
    "withdraw",
    "doubt",
    "comment",
    "reveal",
]


class Permission(Struct, frozen=True):
    """Whether the visitor may do something about the call now."""

    #: `edit` approves it with other arguments; `doubt` records that nobody knows how it ended;
    #: `reveal` shows values of its arguments that the tool declares as secret.
    action: Action
    #: Why not, in a sentence; empty if they may.
    refusal: str


async def permissions(
    ledger: Ledger, call: Call, visitor: Visitor, doubt: CallInDoubt | None
) -> list[Permission]:
    """Each action, with the reason why this visitor may not take it.

    Args:
        call: with its requester (`with_origin`).
        doubt: about the call, if it is in doubt.
    """
    ref, name, reviewer = call.ref, visitor.name, ledger.reviewer(visitor.name)
    asked = call.approval_request
    vote = e.Voted(verdict="approve", digest=asked.digest if asked else "")
    glass = replace(vote, verdict="break_glass", reason="an emergency")
    reconciled = e.Reconciled(happened=True, output="", reviewer=name)

    async def as_reviewer(check: Callable[[], Awaitable[object]]) -> str:
        return await _refusal(lambda: _required(visitor, check))

    # Of somebody with a session they are read before the vote.
    forgives = visitor.kind == "session"
    may_vote = await as_reviewer(lambda: reviewer.check_vote(call, vote, forgives=forgives))
    no = replace(vote, verdict="deny")
    may_deny = await as_reviewer(lambda: reviewer.check_vote(call, no, forgives=forgives))
    refusals: dict[Action, str] = {
        "approve": may_vote,
        "deny": may_deny,
        "answer": may_vote,
        "edit": may_vote,
        "hand_over": may_deny,
        "break_glass": await as_reviewer(
            lambda: reviewer.check_vote(call, glass, forgives=forgives)
        ),
        "revoke": await as_reviewer(
            lambda: ledger.check(call, ref.revoked_by(name), e.Revoked(reviewer=name))
        ),
        "reconcile": await as_reviewer(
            lambda: ledger.check(call, ref.reconciled_by(name), reconciled)
        ),
        "withdraw": await _refusal(lambda: check_withdrawal(ledger, call, visitor)),
        "doubt": await _refusal(lambda: check_doubt(ledger, call, visitor, doubt)),
        "comment": await _refusal(lambda: check_comment(call, visitor)),
        "reveal": await _refusal(lambda: check_reveal(ledger, call, visitor)),
    }
    return [Permission(action, refusal) for action, refusal in refusals.items()]


async def _required(visitor: Visitor, check: Callable[[], Awaitable[object]]) -> None:
    visitor.require(Role.REVIEWER)
    await check()


async def _refusal(check: Callable[[], Awaitable[object]]) -> str:
    try:
        await check()
    except (Refused, BadInput) as problem:
        return str(problem).removesuffix(" Nothing was recorded.")
    return ""


async def check_withdrawal(ledger: Ledger, call: Call, visitor: Visitor) -> None:
    """Refuse a withdrawal by a visitor who is neither the requester nor a service.

    Args:
        call: with its requester (`with_origin`).

    Raises:
        Refused: as of `Ledger.withdraw`, or they did not ask for it.
    """
    if not (_is_requester(call, visitor) or Role.SERVICE in visitor.roles):
        raise NotAllowed(
            f"{visitor.name} did not ask for {call.ref}. Its requester can withdraw it, or the "
            "service that requested it."
        )
    await ledger.check_withdrawal(call)


async def check_comment(call: Call, visitor: Visitor) -> None:
    """Refuse a comment of a visitor who did not ask for the call and decides about none.

    Args:
        call: with its requester (`with_origin`).

    Raises:
        NotAllowed: they are such a visitor.
    """
    if not _is_requester(call, visitor):
        visitor.require(Role.REVIEWER)


async def check_reveal(ledger: Ledger, call: Call, visitor: Visitor) -> None:
    """Refuse to show what is secret to a visitor who neither asked for the call, nor decides about
    it, nor may revoke it.

    Args:
        call: with its requester (`with_origin`).

    Raises:
        NotAllowed: they are such a visitor.
    """
    if visitor.is_service or _is_requester(call, visitor):
        return
    name, asking = visitor.name, call.approval_request
    if asks_groups(call):
        call, _ = await ledger.with_given(call, name)
    vote = e.Voted(verdict="deny", digest=asking.digest if asking else "")
    alone = replace(vote, verdict="break_glass")
    is_approved = call.decided is not None and isinstance(call.decided.event, e.Approved)
    may = Role.REVIEWER in visitor.roles and (
        any(objection_to_voter(call, one, name, ledger.now()) is None for one in (vote, alone))
        or (is_approved and may_revoke(call, name))
    )
    if not may and call.status is Status.PENDING and Role.REVIEWER in visitor.roles:
        # As a member of a group, or in another's place.
        forgives = visitor.kind == "session"
        may = not await _refusal(
            lambda: ledger.reviewer(name).check_vote(call, vote, forgives=forgives)
        )
    if not may:
        raise NotAllowed(
            f"{name} may not see what is secret in {call.ref}: its requester can, and those who "
            "decide about it."
        )


def _is_requester(call: Call, visitor: Visitor) -> bool:
    people = call.approval_request.people if call.approval_request else {}
    is_theirs = person(visitor.person, people) == person(call.wish.requester, people)
    return bool(visitor.person) and is_theirs


async def check_doubt(
    ledger: Ledger, call: Call, visitor: Visitor, doubt: CallInDoubt | None
) -> None:
    """Refuse that a person says nobody knows how a call ended, while its service is alive.

    Raises:
        Refused: as of `Ledger.doubt`, or the service that runs it may be alive.
    """
    visitor.require(Role.SERVICE, Role.REVIEWER, Role.OPERATOR)
    await ledger.check_doubt(call)
    if doubt is None and Role.SERVICE not in visitor.roles:
        raise NotOpen(
            f"{call.ref} is {Status.RUNNING}, and the service that runs it may be alive. Wait, or "
            "let that service say it."
        )
