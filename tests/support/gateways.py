"""Gateways in front of `mcp_shop.py`, in this process, and real clients of theirs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import mcp_shop
import pytest
import uvicorn
from mcp import Client
from ports import free_port
from program import forked
from until import until

from ayes.interfaces.mcp import upstream
from ayes.interfaces.mcp.server import Gateway, http_app, opened
from ayes.interfaces.mcp.settings import ClientSettings, GatewaySettings, ServerSettings
from ayes.ledger.clients.services import Ledger

SHOP = Path(__file__).with_name("mcp_shop.py")
KEY = b"k" * 32
#: How long a program may take to start on a busy machine.
PATIENCE_S = 120.0


def shop_server(journal: Path, name: str = "desk", **environment: str) -> ServerSettings:
    """The settings of a shop over stdio."""
    command = tuple(forked(SHOP, journal))
    return ServerSettings(name=name, command=command, environment=environment)


@asynccontextmanager
async def web_shop(journal: Path, **options: Any) -> AsyncIterator[ServerSettings]:
    """The settings of a shop over HTTP in this process, which takes half of a program's time."""
    mcp_shop.JOURNAL = journal
    app = mcp_shop.server.streamable_http_app(host="127.0.0.1", **options)
    async with serving(app) as url:
        yield ServerSettings(name="desk", url=url)


def raw_server(name: str = "bad", **wanted: Any) -> ServerSettings:
    """The settings of a server that says what a test wants (`mcp_raw.py`)."""
    command = (sys.executable, str(SHOP.with_name("mcp_raw.py")), json.dumps(wanted))
    return ServerSettings(name=name, command=command)


class BadGateway:
    """An MCP server over HTTP behind a proxy that gives every call of a tool up, once it runs."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = await receive()
        if b'"tools/call"' not in message.get("body", b""):
            waiting = [message]

            async def again() -> Any:
                return waiting.pop() if waiting else await receive()

            await self._app(scope, again, send)
            return
        self.calls += 1
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 502, "headers": headers})
        await send({"type": "http.response.body", "body": b"<h1>Bad Gateway</h1>"})


def settings(
    *servers: ServerSettings, clients: tuple[ClientSettings, ...] = (), hold: str = "60s"
) -> Any:
    return GatewaySettings(
        workspace="shop", requester="rita", hold=hold, server=servers, client=clients
    )


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application; yields its URL."""
    port = free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = server.force_exit = True
        await running


async def first_answer(url: str) -> int:
    """The status of the first answer of a program that has just been started."""
    async with httpx.AsyncClient(timeout=60) as http:

        async def status() -> int:
            with suppress(httpx.TransportError):
                return (await http.get(url)).status_code
            return 0

        return await until(status)


@asynccontextmanager
async def gateway(
    ledger: Ledger, file: GatewaySettings, *, ready: bool = True
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway over HTTP; yields it and its URL, by default once its servers are there."""
    with pytest.MonkeyPatch.context() as patch:
        # One that starts too slowly would be taken for one of the era before.
        patch.setattr(upstream, "CONNECT_S", PATIENCE_S)
        async with opened(file, ledger, KEY) as made, serving(http_app(made, "127.0.0.1")) as url:
            for server in made.routes.upstreams.values() if ready else ():
                await server.reached(PATIENCE_S)
            yield made, url


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    async with Client(url, **options) as connected:
        yield connected
