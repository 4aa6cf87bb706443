"""Delegations: another person votes in one's place.

Each is given in the giver's own name, always has an end, and can be taken back before it.
"""

import secrets
from typing import Annotated, Final

import typer

from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.decide import as_reviewer
from ayes.ops.commands.options import (
    AsOption,
    JsonOption,
    NamedOption,
    NamedWorkspaceOption,
    StoreOption,
    UrlOption,
    WhyOption,
    WorkspaceOption,
)
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.times import parse_time
from ayes.schemas.errors import NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.slots import DelegationRef

app: Final = commands()


@command(app)
async def give(
    to: Annotated[str, typer.Argument(metavar="NAME", help="Who votes in your place.")],
    name: AsOption,
    starts: Annotated[
        str, typer.Option("--from", metavar="TIME", help="ISO, UTC: 2026-11-21T08:00.")
    ],
    ends: Annotated[str, typer.Option("--until", metavar="TIME", help="The same.")],
    workspace: NamedWorkspaceOption,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="PATTERN", help="Only for such tools; may be repeated."),
    ] = None,
    named: NamedOption = "",
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Let another person vote in your place for a time. Their decisions say: ben for ana."""
    tools = tuple(tool or ("*",))
    ref = DelegationRef(workspace, name, named or f"d-{secrets.token_hex(4)}")
    token("reviewer", to)
    for one in tools:
        token("tool", one.replace("*", "x").replace("?", "x"))
    async with as_reviewer(name, store, url) as ledger:
        given = await ledger.reviewer(name).delegate(
            ref,
            to,
            starts_at=parse_time("--from", starts),
            ends_at=parse_time("--until", ends),
            tools=tools,
            reason=reason,
        )
        now = ledger.now()
    if json:
        print_data(output.delegation_json(given, now))
    else:
        print_message(output.delegation_words(given, now))


@command(app, "list")
async def show_delegations(
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Every delegation of a workspace: who votes for whom, from when until when."""
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        found, now = await ledger.delegations(workspace), ledger.now()
    for delegation in found:
        if json:
            print_data(output.delegation_json(delegation, now))
        else:
            print_line(output.delegation_words(delegation, now))
    if not found and not json:
        print_message(f"Nobody ever delegated anything in {workspace}.")


@command(app)
async def end(
    delegation: Annotated[str, typer.Argument(metavar="DELEGATION", help="workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """End your delegation before its time."""
    ref = DelegationRef.parse(delegation)
    if ref.giver != name:
        raise NotAllowed(f"only {ref.giver} can end {ref}: a delegation is its giver's word.")
    async with as_reviewer(name, store, url) as ledger:
        ended = await ledger.reviewer(name).end_delegation(ref, reason=reason)
        now = ledger.now()
    if json:
        print_data(output.delegation_json(ended, now))
    else:
        print_message(f"{ref} has ended. Votes that were cast by it stay what they are.")
