"""Grants: what people approve in advance, "calls like this, until then".

Each is given in the giver's own name, always has an end, and can be taken back before it.
"""

import glob
import secrets
from typing import Annotated, Final

import typer

from ayes.ledger.lifecycle import Call, may_vote
from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.decide import as_reviewer
from ayes.ops.commands.options import (
    AsOption,
    JsonOption,
    NamedOption,
    StoreOption,
    UrlOption,
    WhyOption,
    WorkspaceOption,
)
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.times import parse_duration
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, Refused
from ayes.schemas.slots import CallRef, GrantRef

app: Final = commands()


@command(app)
async def give(
    name: AsOption,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Until then: 90s, 15m, 8h, 7d.")
    ],
    call: Annotated[
        str | None,
        typer.Argument(
            metavar="CALL", help="Calls like this: workspace/thread/call", show_default=False
        ),
    ] = None,
    uses: Annotated[
        int, typer.Option("--uses", metavar="N", help="So many calls, 1 to 1,000.")
    ] = 1,
    any_arguments: Annotated[
        bool,
        typer.Option("--any-arguments", help="With any arguments; else with exactly the call's."),
    ] = False,
    when: Annotated[
        str,
        typer.Option("--when", metavar="CONDITION", help="With arguments that this CEL holds for."),
    ] = "",
    any_thread: Annotated[
        bool, typer.Option("--any-thread", help="In any thread; else in the call's.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="PATTERN", help="By such an agent; else by the call's, or any."
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
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Allow calls like this one until then, so many times. It is your vote, given early; on this
    call it is given now.
    """
    if duration.isdecimal():
        raise BadInput(
            f"--for {duration} has no unit. Write {duration}h, or another of s, m and d."
        )
    for_s = parse_duration("--for", duration)
    ref = None if call is None else CallRef.parse(call)
    _make_sense(call, tool, when, any_arguments=any_arguments)
    if ref is None and workspace is None:
        raise BadInput("in which workspace? Name it with -w, since no call does.")
    grant = GrantRef(
        ref.workspace if ref else workspace or "", name, named or f"g-{secrets.token_hex(4)}"
    )
    async with as_reviewer(name, store, url) as ledger:
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
    if json:
        print_data(output.grant_json(given, now))
    else:
        print_message(output.grant_words(given, now))
    if problem is not None:
        raise type(problem)(f"The grant {grant} stands, but the vote on {ref} does not: {problem}")


def _make_sense(call: str | None, tool: str | None, when: str, *, any_arguments: bool) -> None:
    if (call is None) == (tool is None):
        raise BadInput("a grant is like a call, or for a tool: name the CALL, or give --tool TOOL.")
    if any_arguments and when:
        raise BadInput("--any-arguments and --when say different things. Give one of them.")
    if call is None and not (any_arguments or when):
        raise BadInput(
            "which calls of the tool? Give --when CONDITION, or --any-arguments for all of them."
        )


async def _vote_too(ledger: Ledger, call: Call | None, name: str, reason: str) -> Refused | None:
    """Who grants calls like this one agrees to this one, if it waits for them; why their vote was
    refused, if it was.
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
async def show_grants(
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Every grant of a workspace: in force, revoked, ended or used up; how many uses are left, and
    until when.
    """
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        found, now = await ledger.grants(workspace), ledger.now()
    for grant in found:
        if json:
            print_data(output.grant_json(grant, now))
        else:
            print_line(output.grant_words(grant, now))
    if not found and not json:
        print_message(f"No grant was ever given in {workspace}.")


@command(app)
async def revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take a grant back, whoever gave it."""
    ref = GrantRef.parse(grant)
    async with as_reviewer(name, store, url) as ledger:
        revoked = await ledger.reviewer(name).revoke_grant(ref, reason=reason)
        now = ledger.now()
    if json:
        print_data(output.grant_json(revoked, now))
    else:
        print_message(f"{ref} covers nothing more. What it let run stays approved.")
