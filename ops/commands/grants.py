"""Grants: approvals given in advance, for calls like one that was seen.

Each is given in the giver's own name, always has an end, and can be revoked before it.
"""

import glob
import secrets
from typing import Annotated, Final, NamedTuple

import typer

from ayes.ledger.grants import Grant
from ayes.ledger.lifecycle import Call, may_vote
from ayes.ledger.services import Ledger
from ayes.ops.commands import completion
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.commands.options import AsOption, NamedOption, WhyOption, WorkspaceOption
from ayes.ops.terminal.output import grant_json, grant_words
from ayes.ops.terminal.times import lasting_s
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, Refused
from ayes.schemas.slots import CallRef, GrantRef

app: Final = commands()


@command(
    app,
    examples="""
    ayes grant give shop/order-24/refund-1 --duration 8h --uses 5 --as ana
    ayes grant give --tool refund -w shop --when 'args.amount < 20' --duration 7d --as ana
    """,
)
async def give(
    name: AsOption,
    duration: Annotated[
        str, typer.Option("--duration", metavar="DURATION", help="How long: 90s, 15m, 8h, 7d.")
    ],
    call: Annotated[
        str | None,
        typer.Argument(
            metavar="CALL",
            help="Calls like this: workspace/thread/call",
            show_default=False,
            autocompletion=completion.pending_calls,
        ),
    ] = None,
    uses: Annotated[
        int, typer.Option("--uses", metavar="N", help="The number of calls, 1 to 1,000.")
    ] = 1,
    any_arguments: Annotated[
        bool,
        typer.Option("--any-arguments", help="With any arguments; else with exactly the call's."),
    ] = False,
    when: Annotated[
        str,
        typer.Option(
            "--when", metavar="CONDITION", help="With arguments that meet this CEL condition."
        ),
    ] = "",
    any_thread: Annotated[
        bool, typer.Option("--any-thread", help="In any thread; else in the call's.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="PATTERN", help="By matching agents; else by the call's, or any."
        ),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="Without a call: of this tool.")
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("-w", "--workspace", metavar="WS", help="Without a call: in this workspace."),
    ] = None,
    named: NamedOption = "",
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Approve calls like this one for a time, up to a number: your vote, given early. On this
    call you vote now.
    """
    for_s = lasting_s("--duration", duration)
    ref = None if call is None else CallRef.parse(call)
    check_scope(call, tool, when, workspace or "", any_arguments=any_arguments)
    if ref is None and workspace is None:
        raise BadInput("in which workspace? Name it with -w, since there is no call.")
    scope = GrantScope(tool or "", for_s, uses, when, agent, reason, any_arguments, any_thread)
    async with session.as_reviewer(name) as ledger:
        grant = grant_ref(ref.workspace if ref else workspace or "", name, named)
        given, problem = await give_grant(ledger, grant, ref, scope)
        now = ledger.now()
    session.print(grant_json(given, now), grant_words(given, now))
    if problem is not None:
        raise vote_problem(grant, ref, problem)


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
    exact = known is not None and not (scope.any_arguments or scope.when)
    given = await ledger.reviewer(grant.giver).grant(
        grant,
        known.wish.tool if known else scope.tool,
        for_s=scope.for_s,
        uses=scope.uses,
        arguments=known.wish.arguments if known and exact else None,
        when=scope.when,
        agent=_agents(known) if scope.agent is None else scope.agent,
        thread=known.ref.thread if known and not scope.any_thread else "*",
        reason=scope.reason,
    )
    return given, await _vote_too(ledger, known, grant.giver, scope.reason)


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
    if not may_vote(call, vote, name) or any(one.slot.tail[3] == name for one in call.votes):
        return None
    try:
        await ledger.reviewer(name).approve(call.ref, reason=reason)
    except Refused as problem:
        return problem
    return None


@command(app, "list")
async def show_grants(workspace: WorkspaceOption = "default", *, session: Session) -> None:
    """List the grants of a workspace, with their status, the uses that are left, and their end."""
    async with session.connect("observer") as ledger:
        found, now = await ledger.grants(workspace), ledger.now()
    session.print_rows(
        [(grant_json(one, now), grant_words(one, now)) for one in found],
        if_none=f"No grant was ever given in {workspace}.",
    )


@command(app)
async def revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Revoke a grant, your own or another reviewer's."""
    ref = GrantRef.parse(grant)
    async with session.as_reviewer(name) as ledger:
        revoked = await ledger.reviewer(name).revoke_grant(ref, reason=reason)
        now = ledger.now()
    session.print(
        grant_json(revoked, now), f"{ref} covers no more calls. Calls approved by it stay approved."
    )
