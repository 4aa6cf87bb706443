"""The tools that the task scenarios of the official conformance suite call, as an MCP server over
stdio: none of them knows of tasks, which are the gateway's.
"""

import asyncio
from typing import Annotated

from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

server = MCPServer("tasks", version="1")


class Confirmation(BaseModel):
    confirm: bool = True


class Name(BaseModel):
    name: str = "nobody"


async def ask_confirmation() -> Elicit[Confirmation]:
    return Elicit("Delete it?", Confirmation)


async def ask_first() -> Elicit[Confirmation]:
    return Elicit("The first?", Confirmation)


async def ask_second() -> Elicit[Confirmation]:
    return Elicit("The second?", Confirmation)


async def ask_name() -> Elicit[Name]:
    return Elicit("Who is it?", Name)


@server.tool()
def greet(name: str) -> str:
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float = 1, label: str = "") -> str:
    await asyncio.sleep(seconds)
    return f"{label} took {seconds:g} s"


@server.tool()
async def failing_job() -> str:
    raise ValueError("it fails")


@server.tool()
async def protocol_error_job() -> str:
    raise MCPError(-32603, "it breaks")


@server.tool()
def confirm_delete(
    filename: str = "", answer: Annotated[Confirmation, Resolve(ask_confirmation)] = None
) -> str:
    return f"{filename} is deleted: {answer.confirm}"


@server.tool()
def multi_input(
    first: Annotated[Confirmation, Resolve(ask_first)],
    second: Annotated[Confirmation, Resolve(ask_second)],
) -> str:
    return f"{first.confirm} and {second.confirm}"


@server.tool()
async def test_tool_with_task(answer: Annotated[Name, Resolve(ask_name)]) -> str:
    await asyncio.sleep(3)
    return f"it was {answer.name}"


if __name__ == "__main__":
    server.run("stdio")
