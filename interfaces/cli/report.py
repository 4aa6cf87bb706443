"""The lake as one page with plots."""

from pathlib import Path
from typing import Annotated, Final

import typer

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, StoreOption, ToOption
from ayes.interfaces.cli.terminal.output import print_json, print_message
from ayes.ops.lake.report import report as render
from ayes.ops.lake.sync import default_directory
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
    """Write the lake as one page with plots, readable offline and without scripts."""
    try:
        page = render((to or default_directory(store)) / "lake", title)
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"a report needs {missing.name}, which is not installed: "
            "pip install 'ayes[analytics,reports]'."
        ) from None
    temporary = output.with_name(f".{output.name}.writing")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(output)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise BadInput(f"{output} cannot be written: {problem.strerror}.") from None
    if json:
        print_json({"file": str(output), "bytes": len(page.encode())})
    else:
        print_message(f"{output}: {len(page.encode()):,} bytes, nothing else is needed to read it.")
