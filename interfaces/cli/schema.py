"""The command that prints the contracts for other languages."""

from importlib.resources import files
from json import dumps, loads
from typing import Annotated, Any, Final

from ayes.interfaces import api
from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, argument, option
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
    event: Annotated[str, argument("[EVENT]", "Only that of this event, such as Voted.")] = "",
    asyncapi: Annotated[
        bool, option("--asyncapi", "All subjects, as an AsyncAPI 3.1 document.")
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
        made: dict[str, Any] = loads(files(api).joinpath("asyncapi.json").read_text("utf-8"))
        return made
    if event and event not in e.TYPES:
        raise BadInput(f"there is no event {event!r}. There are {', '.join(sorted(e.TYPES))}.")
    return json_schema.document(*filter(None, [event]))
