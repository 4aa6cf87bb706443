"""The command that prints the contracts for other languages."""

from json import dumps
from typing import Annotated, Any, Final

import typer

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.console import INSTALL, is_installed
from ayes.interfaces.cli.options import JsonOption
from ayes.interfaces.cli.terminal.output import print_data, print_json
from ayes.schemas import events as e
from ayes.schemas import json_schema
from ayes.schemas.errors import BadInput

app: Final = commands()


@command(
    app,
    examples="""
    ayes schema
    ayes schema Voted
    ayes schema --asyncapi
    """,
)
async def schema(
    event: Annotated[
        str, typer.Argument(metavar="[EVENT]", help="Only that of this event, such as Voted.")
    ] = "",
    asyncapi: Annotated[
        bool,
        typer.Option("--asyncapi", help="All subjects, as an AsyncAPI 3.1 document."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print the JSON Schemas of the events, or the AsyncAPI document."""
    made = _made(event, asyncapi=asyncapi)
    if json:
        print_json(made)
    else:
        print_data(dumps(made, indent=2))


def _made(event: str, *, asyncapi: bool) -> dict[str, Any]:
    if asyncapi:
        if event:
            raise BadInput("--asyncapi prints one document about everything. Leave out EVENT.")
        if not is_installed():
            raise BadInput(f"it describes the API too, which is not installed: {INSTALL}.")
        from ayes.interfaces.api.asyncapi import document
        from ayes.interfaces.console.application import described

        return document(described())
    if event and event not in e.TYPES:
        raise BadInput(f"there is no event {event!r}. There are {', '.join(sorted(e.TYPES))}.")
    return json_schema.document(*filter(None, [event]))
