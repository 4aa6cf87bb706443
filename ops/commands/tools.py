"""The tools of a workspace, as services and scripts declare them."""

from contextlib import suppress
from typing import Annotated, Final

import msgspec
import typer

from ayes.ledger.in_force import tool_of
from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import (
    JsonOption,
    NamedWorkspaceOption,
    StoreOption,
    UrlOption,
    WorkspaceOption,
)
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.schemas.errors import BadFact
from ayes.schemas.ids import token
from ayes.schemas.slots import declarations
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import Tool, read_tools

app: Final = commands()


@command(app)
async def declare(
    file: Annotated[
        str, typer.Argument(metavar="FILE.toml", help="[[tool]] tables: name, description, schema.")
    ],
    workspace: NamedWorkspaceOption,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Declare tools that services or scripts run themselves, so that they can be requested."""
    specs = read_tools(read_text(file), file)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        declared = [await ledger.declare(workspace, spec) for spec in specs]
    for ref in declared:
        if json:
            print_data(
                msgspec.json.encode(
                    {"workspace": workspace, "tool": ref.tool, "version": ref.version}
                ).decode()
            )
        else:
            print_message(f"{ref.tool} is declared in {workspace}, version {ref.version}.")


@command(app, "list")
async def show_tools(
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """The tools that are declared in a workspace, each in its newest version."""
    newest: dict[str, Tool] = {}
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        for fact in await ledger.read(declarations(token("workspace", workspace))):
            with suppress(BadFact):  # a void declaration; `ayes status` names it
                tool = tool_of(fact)
                newest[tool.name] = tool
    for name, tool in sorted(newest.items()):
        if json:
            one = {"workspace": workspace, "tool": name, "version": tool.version}
            print_data(msgspec.json.encode(one).decode())
        else:
            print_line(f"{name}  version {tool.version}")
    if not newest and not json:
        print_message(
            f"No tool is declared in {workspace}. Next: ayes tool declare FILE.toml -w {workspace}"
        )
