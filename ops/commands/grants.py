"""Grants: approvals given in advance, for calls like one that was seen.

Each is given in the giver's own name, always has an end, and can be revoked before it.
"""

import glob
import secrets
from typing import Annotated, Final

import typer

from ayes.ledger.grants import MAX_S
from ayes.ledger.lifecycle import Call, may_vote
from ayes.ledger.services import Ledger
from ayes.ops.commands import completion
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.commands.options import AsOption, NamedOption, WhyOption, WorkspaceOption
from ayes.ops.terminal.output import grant_json, grant_words
from ayes.ops.terminal.times import parse_duration
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
    if duration.isdecimal():
        raise BadInput(
            f"--duration {duration} has no unit. Write {duration}h, or another of s, m and d."
        )
    for_s = parse_duration("--duration", duration, most=MAX_S)
    ref = None if call is None else CallRef.parse(call)
    _check_scope(call, tool, when, any_arguments=any_arguments)
    if ref is None and workspace is None:
        raise BadInput("in which workspace? Name it with -w, since there is no call.")
    grant = GrantRef(
        ref.workspace if ref else workspace or "", name, named or f"g-{secrets.token_hex(4)}"
    )
    async with session.as_reviewer(name) as ledger:
        known = None if ref is None else await ledger.known_call(ref)
        given = await ledger.reviewer(name).grant(
            grant,
            known.wish.tool if known else tool or "",
            for_s=for_s,
            uses=uses,
            arguments=known.wish.arguments if known and not (any_arguments or when) else None,
            when=when,
            # A name that holds wildcards means itself.
            agent=agent if agent is not None else glob.escape(known.wish.agent) if known else "*",
            thread=known.ref.thread if known and not any_thread else "*",
            reason=reason,
        )
        problem = await _vote_too(ledger, known, name, reason)
        now = ledger.now()
    session.print(grant_json(given, now), grant_words(given, now))
    if problem is not None:
        raise type(problem)(f"The grant {grant} stands, but the vote on {ref} does not: {problem}")


def _check_scope(call: str | None, tool: str | None, when: str, *, any_arguments: bool) -> None:
    if (call is None) == (tool is None):
        raise BadInput(
            "a grant is for calls like one CALL, or for a tool: name the CALL, or give --tool TOOL."
        )
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
