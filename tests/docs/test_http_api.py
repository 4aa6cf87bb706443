"""docs/api.md: its commands are run, and its list of operations is that of the OpenAPI document.

`python tests/docs/test_http_api.py` writes the list anew.
"""

import asyncio
import os
import re
import sys
from pathlib import Path

from console_client import site
from pages import blocks
from paths import ROOT
from program import killed_at_the_end

from ayes.interfaces.console.application import api
from ayes.interfaces.console.serving import serving
from ayes.schemas.slots import CallRef

PAGE = ROOT / "docs" / "api.md"
HEADING = "## Every operation\n"
HEAD = f"""{HEADING}
Generated from the OpenAPI document, which has the fields of each.
"""


def operations() -> str:
    """The operations of the API by resource, each with the first sentence of its description."""
    document = api().openapi()
    tables: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            said = " ".join(operation["description"].split())
            sentence = re.split(r"(?<=\.) ", said)[0]
            row = f"| `{method.upper()} {path.removeprefix('/api/v1')}` | {sentence} |"
            tables.setdefault(operation["tags"][0], []).append(row)
    parts = (
        "\n".join((f"| {name} | |", "|---|---|", *sorted(rows, key=place)))
        for name, rows in sorted(tables.items())
    )
    return "\n".join((HEAD, "\n\n".join(parts), ""))


def place(row: str) -> tuple[str, ...]:
    method, path = row.split("`")[1].split()
    return path, method


def test_every_operation_is_listed():
    """The list is that of the program; if not: python tests/docs/test_http_api.py"""
    _, heading, rest = PAGE.read_text().partition(HEADING)
    assert heading + rest == operations(), (
        "write it anew: PYTHONPATH=tests/support .venv/bin/python tests/docs/test_http_api.py"
    )


async def test_the_page_works(tmp_path):
    """The story of the page, against a real console. (B84)"""
    async with site(tmp_path) as shop, serving(shop.server.store, "ana") as console:
        script = "\n".join(block.text for block in blocks(PAGE, "sh"))
        assert "http://127.0.0.1:8420" in script
        environment = os.environ | {
            "AYES_STORE": str(shop.server.store.path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c"),
            script.replace("http://127.0.0.1:8420", console.url),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        # A dozen programs, one after the other. The bound is for one that hangs.
        async with killed_at_the_end(process), asyncio.timeout(240):
            said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        call = await shop.service.known_call(CallRef.parse("shop/order-17/refund-7"))
        assert call.status == "returned"


if __name__ == "__main__":
    text = PAGE.read_text().partition(HEADING)[0]
    PAGE.write_text(text + operations())
