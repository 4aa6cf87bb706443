"""An MCP server for the tests of the gateway, as a program: over stdio, or over HTTP on a port.

    python mcp_shop.py JOURNAL [PORT]

Each run of a tool is a line in the journal. It says which tools it has in `JOURNAL.tools`, if there
is such a file: one description a line.
"""

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, Elicit, Image, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from pictures import pdf, png
from pydantic import BaseModel

JOURNAL = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.devnull)
server = MCPServer("shop", version="1", instructions="A small shop.")


class Receipt(BaseModel):
    order: str
    amount: float


class Size(BaseModel):
    size: str


def ran(line: str) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(f"{line}\n")


@server.tool(description=(os.environ.get("REFUND_DESCRIPTION") or "Pay money back."))
def refund(order: str, amount: float = 0) -> str:
    ran(f"refund {order} {amount:g}")
    return f"{amount:g} given back for {order}"


@server.tool()
def search(text: str) -> str:
    """Find orders."""
    ran(f"search {text}")
    return f"nothing about {text}"


@server.tool()
def receipt(order: str) -> Receipt:
    """Write a receipt."""
    ran(f"receipt {order}")
    return Receipt(order=order, amount=4.5)


@server.tool()
def chart(large: bool = False) -> Any:
    """Draw a chart."""
    ran("chart")
    return ["Refunds by month.", Image(data=png(160, 160, level=0) if large else png())]


@server.tool()
def report() -> CallToolResult:
    """Write a report: a page, a chart with annotations, a link, and the numbers."""
    ran("report")
    page = {"uri": "file:///reports/may.pdf", "mimeType": "application/pdf"}
    notes = {"uri": "file:///reports/may.txt", "text": "Calm."}
    told = [
        {"type": "text", "text": "May."},
        {"type": "resource", "resource": {**page, "blob": _base64(pdf())}},
        {"type": "resource", "resource": notes},
        {"type": "image", "data": _base64(png(160, 160, level=0)), "mimeType": "image/png",
         "annotations": {"audience": ["user"]}},
        {"type": "resource_link", "uri": "shop://hours", "name": "hours"},
    ]  # fmt: skip
    return CallToolResult.model_validate({"content": told, "structuredContent": {"refunds": 3}})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@server.tool()
def fails() -> str:
    """Fail."""
    ran("fails")
    raise ValueError("the till is closed")


@server.tool()
def breaks() -> str:
    """Break the protocol's way."""
    ran("breaks")
    raise MCPError(-32050, "the shop is closed", {"until": "nine"})


@server.tool()
async def slow(context: Context, seconds: float = 1) -> str:
    """Take a while, and tell how far it is."""
    ran("slow began")
    await context.report_progress(1, 2, "half")
    await asyncio.sleep(seconds)
    ran("slow ended")
    return "done"


@server.tool()
def dies() -> str:
    """End the server while it runs."""
    ran("dies")
    os._exit(1)


async def ask_size() -> Elicit[Size]:
    return Elicit("Which size?", Size)


@server.tool()
def order(size: Annotated[Size, Resolve(ask_size)]) -> str:
    """Order a shirt."""
    ran(f"order {size.size}")
    return f"one shirt in {size.size}"


@server.resource("shop://hours")
def hours() -> str:
    """When it is open."""
    return "nine to five"


@server.resource("shop://orders/{order}")
def one_order(order: str) -> str:
    """An order."""
    return f"order {order}"


@server.prompt()
def complain(about: str) -> str:
    """Write a complaint."""
    return f"Complain about {about}."


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Any:
    from mcp_types import Completion

    return Completion(values=[f"{argument.value}-17"], total=1, has_more=False)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
