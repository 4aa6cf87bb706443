"""The tools of a workspace, as services and scripts declare them."""

from typing import Annotated, Final

import msgspec
import typer

from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import (
    JsonOption,
    NamedWorkspaceOption,
    StoreOption,
    UrlOption,
)
from ayes.ops.terminal.output import print_data, print_message
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import read_tools

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
