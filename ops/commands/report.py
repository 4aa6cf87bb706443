"""For whoever wants to read instead of asking: the lake as one page."""

from pathlib import Path

import msgspec

from ayes.ops.commands.lake import default
from ayes.ops.lake.report import report
from ayes.ops.terminal.output import print_data, print_message
from ayes.schemas.errors import BadInput


async def write(output: Path, *, title: str, to: Path | None, store: Path | None, json: bool) -> None:
    """Write the page, whole or not at all."""
    try:
        page = report((to or default(store)) / "lake", title)
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"a report needs {missing.name}, which is not installed. It comes with the extra `reports`: "
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
