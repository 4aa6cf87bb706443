"""For whoever wants to read instead of asking: the lake as one page."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from ayes.ops.commands.command import command, commands
from ayes.ops.commands.lake import default
from ayes.ops.commands.options import JsonOption, StoreOption, ToOption
from ayes.ops.lake.report import report as render
from ayes.ops.terminal.output import print_data, print_message
from ayes.schemas.errors import BadInput

app: Final = commands()


@command(app)
async def report(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.")],
    title: Annotated[str, typer.Option("--title", help="Its heading.")] = "Approvals",
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """The lake as one page with plots: readable offline, in light and in dark, and nothing in it
    runs.
    """
    try:
        page = render((to or default(store)) / "lake", title)
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"a report needs {missing.name}, which is not installed. It comes with the extra "
            "`reports`: "
            "pip install 'ayes[analytics,reports]'."
        ) from None
    beside = output.with_name(f".{output.name}.writing")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(output)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise BadInput(f"{output} cannot be written: {problem.strerror}.") from None
    if json:
        print_data(msgspec.json.encode({"file": str(output), "bytes": len(page.encode())}).decode())
    else:
        print_message(f"{output}: {len(page.encode()):,} bytes, nothing else is needed to read it.")
