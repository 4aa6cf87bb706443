"""Giving grants and delegations in a person's name."""

import glob
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import Grant
from ayes.ledger.validity import may_vote
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, Refused
from ayes.schemas.slots import CallRef, DelegationRef, GrantRef
from ayes.schemas.tool_names import tool_name


def delegation_ref(workspace: str, giver: str, named: str) -> DelegationRef:
    """The name of a new delegation, chosen at random if its giver did not choose one."""
    return DelegationRef(workspace, giver, named or f"d-{secrets.token_hex(4)}")


def check_patterns(tools: Iterable[str]) -> None:
    """Refuse patterns that no tool's name can match.

    Raises:
        BadId: one of them holds a character that no name has.
    """
    for one in tools:
        tool_name(one.replace("*", "x").replace("?", "x"))


class GrantScope(NamedTuple):
    """What a grant is for, as its giver says it."""

    #: Only without a call like which it is.
    tool: str
    #: How long it lasts, in seconds.
    for_s: float
    uses: int = 1
    #: Arguments that meet this condition (CEL).
    when: str = ""
    #: A pattern; None: the call's agent, or any.
    agent: str | None = None
    reason: str = ""
    #: Else exactly the call's, or those of `when`.
    any_arguments: bool = False
    #: Else the call's, or any.
    any_thread: bool = False


def grant_ref(workspace: str, giver: str, named: str) -> GrantRef:
    """The name of a new grant, chosen at random if its giver did not choose one."""
    return GrantRef(workspace, giver, named or f"g-{secrets.token_hex(4)}")


async def give_grant(
    ledger: Ledger, grant: GrantRef, like: CallRef | None, scope: GrantScope
) -> tuple[Grant, Refused | None]:
    """Give a grant for calls like one, or for a tool; and vote on that call, if it is pending.

    Returns also why the vote was refused, if it was.

    Args:
        ledger: on the giver's own credentials.
    """
    known = None if like is None else await ledger.known_call(like)
    new = granted(known, scope)
    given = await ledger.reviewer(grant.giver).grant(
        grant,
        new.tool,
        for_s=new.expires_in_s,
        uses=new.uses,
        arguments=new.arguments,
        when=new.when,
        agent=new.agent,
        thread=new.thread,
        reason=new.reason,
    )
    return given, await _vote_too(ledger, known, grant.giver, scope.reason)


def granted(like: Call | None, scope: GrantScope) -> e.Granted:
    """The grant of this scope, for calls like one."""
    exact = like is not None and not (scope.any_arguments or scope.when)
    return e.Granted(
        tool=like.wish.tool if like else scope.tool,
        expires_in_s=scope.for_s,
        uses=scope.uses,
        arguments=like.wish.arguments if like and exact else None,
        when=scope.when,
        agent=_agents(like) if scope.agent is None else scope.agent,
        thread=like.ref.thread if like and not scope.any_thread else "*",
        reason=scope.reason,
    )


def _agents(like: Call | None) -> str:
    """The agent of a call, as a pattern: a name that holds wildcards means itself."""
    return glob.escape(like.wish.agent) if like else "*"


def vote_problem(grant: GrantRef, like: CallRef | None, problem: Refused) -> Refused:
    """What to say if a grant was given and the vote with it was refused."""
    said = f"The grant {grant} stands, but the vote on {like} does not: {problem}"
    return type(problem)(said)


def check_scope(
    call: str | None, tool: str | None, when: str, workspace: str, *, any_arguments: bool
) -> None:
    """Refuse a grant that does not say which calls it is for.

    Raises:
        BadInput: it names neither or both of a call and a tool, or says two things of arguments.
    """
    if (call is None) == (tool is None):
        raise BadInput(
            "a grant is for calls like one CALL, or for a tool: name the CALL, or give --tool TOOL."
        )
    if call is not None and workspace not in ("", CallRef.parse(call).workspace):
        raise BadInput(f"{call} is not in workspace {workspace!r}. Leave the workspace out.")
    if any_arguments and when:
        raise BadInput("--any-arguments and --when say different things. Give one of them.")
    if call is None and not (any_arguments or when):
        raise BadInput(
            "which calls of the tool? Give --when CONDITION, or --any-arguments for all of them."
        )


async def _vote_too(ledger: Ledger, call: Call | None, name: str, reason: str) -> Refused | None:
    """Cast the giver's vote on the call itself, if it is pending; returns why it was refused, if it
    was.
    """
    if (
        call is None
        or call.approval_request is None
        or call.decided is not None
        or call.withdrawn is not None
    ):
        return None
    vote = e.Voted(verdict="approve", digest=call.approval_request.digest)
    call, _ = await ledger.with_given(call, name)
    has_voted = any(one.slot.tail[3] == name for one in call.votes)
    if has_voted or not may_vote(call, vote, name, ledger.now()):
        return None
    try:
        await ledger.reviewer(name).approve(call.ref, reason=reason)
    except Refused as problem:
        return problem
    return None
