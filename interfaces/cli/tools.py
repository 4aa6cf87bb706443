"""The tools of a workspace, as services and scripts declare them."""

from typing import Annotated, Any, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import NamedWorkspaceOption, WorkspaceOption, argument
from ayes.ops.actions.tools import newest_tools
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import read_tools

app: Final = commands()


@command(app, examples="ayes tool declare tools.toml -w shop")
async def declare(
    file: Annotated[str, argument("FILE.toml", "[[tool]] tables: name, description, schema.")],
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
    async with session.connect("observer") as ledger:
        newest = await newest_tools(ledger, workspace)
    session.print_rows(
        [
            (_json(workspace, name, tool.version), f"{name}  version {tool.version}")
            for name, (tool, _) in newest.items()
        ],
        if_none=f"No tool is declared in {workspace}. "
        f"Next: ayes tool declare FILE.toml -w {workspace}",
    )


def _json(workspace: str, tool: str, version: str) -> dict[str, Any]:
    return {"workspace": workspace, "tool": tool, "version": version}
