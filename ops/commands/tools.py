"""The tools of a workspace, as services and scripts declare them."""

from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from ayes.ledger.in_force import tool_of
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.commands.options import NamedWorkspaceOption, WorkspaceOption
from ayes.schemas.errors import BadFact
from ayes.schemas.ids import token
from ayes.schemas.slots import declarations
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import Tool, read_tools

app: Final = commands()


@command(app, examples="ayes tool declare tools.toml -w shop")
async def declare(
    file: Annotated[
        str, typer.Argument(metavar="FILE.toml", help="[[tool]] tables: name, description, schema.")
    ],
    workspace: NamedWorkspaceOption,
    session: Session,
) -> None:
    """Declare tools that services or scripts run themselves, so that they can be requested."""
    specs = read_tools(read_text(file), file)
    async with session.connect("service") as ledger:
        declared = [await ledger.declare(workspace, spec) for spec in specs]
    for ref in declared:
        session.print(
            _json(workspace, ref.tool, ref.version),
            f"{ref.tool} is declared in {workspace}, version {ref.version}.",
        )


@command(app, "list")
async def show_tools(workspace: WorkspaceOption = "default", *, session: Session) -> None:
    """List the tools of a workspace, each in its newest version."""
    newest: dict[str, Tool] = {}
    async with session.connect("observer") as ledger:
        for fact in await ledger.read(declarations(token("workspace", workspace))):
            with suppress(BadFact):  # a void declaration; `ayes status` names it
                tool = tool_of(fact)
                newest[tool.name] = tool
    session.print_rows(
        [
            (_json(workspace, name, tool.version), f"{name}  version {tool.version}")
            for name, tool in sorted(newest.items())
        ],
        if_none=f"No tool is declared in {workspace}. "
        f"Next: ayes tool declare FILE.toml -w {workspace}",
    )


def _json(workspace: str, tool: str, version: str) -> dict[str, Any]:
    return {"workspace": workspace, "tool": tool, "version": version}
