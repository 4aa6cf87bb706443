"""The gateway as its clients see it: one MCP server, over stdio or HTTP, in both eras.

A middleware answers every request before the library looks at it, with the server's own JSON; only
`initialize` and what comes before it are the library's. States that clients carry are sealed by the
library's `RequestStateBoundary`: bound to the requester, the method and the arguments, and with an
end.
"""

import asyncio
import hmac
import io
import json
import os
import weakref
from collections.abc import AsyncGenerator, Buffer, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER
from mcp_types import methods
from mcp_types.jsonrpc import HEADER_MISMATCH
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

from ayes import __version__
from ayes.interfaces.mcp.client import Client
from ayes.interfaces.mcp.ladder import Ladder, no_tasks
from ayes.interfaces.mcp.routes import Routes
from ayes.interfaces.mcp.settings import ClientSettings, GatewaySettings
from ayes.interfaces.mcp.streams import BeforeExec
from ayes.interfaces.mcp.wire import (
    SERVER_INFO,
    WAIT_TOOL,
    Json,
    declares_tasks,
    with_tasks,
)
from ayes.ledger.clients.services import Ledger
from ayes.schemas.errors import ApprovalsError

NAME: Final = "ayes mcp gateway"
#: In the scope of an HTTP request: on whose behalf it is made.
REQUESTER: Final = "ayes.requester"
#: How long a client may wait before it comes back with a state.
STATE_S: Final = 3600.0


class Gateway:
    """The middleware that answers clients."""

    def __init__(
        self, settings: GatewaySettings, ledger: Ledger, key: bytes, before_exec: BeforeExec = None
    ) -> None:
        self.settings = settings
        self.routes = Routes(settings.servers, self._changed, before_exec)
        #: Those of clients of the era before 2026-07-28.
        self._connections = weakref.WeakSet[Any]()
        self._telling = set[asyncio.Task[Any]]()
        # Keys are derived from it for this purpose alone.
        self._security = RequestStateSecurity(
            keys=[NAME.encode() + key], ttl=STATE_S, bind_principal=self._requester, audience=NAME
        )
        self.ladder = Ladder(
            ledger,
            self.routes,
            self._security.codec,
            workspace=settings.workspace,
            thread=settings.thread,
            hold_s=settings.hold_s,
        )

    def server(self) -> Server[Any]:
        server: Server[Any] = Server(NAME, version=__version__, get_tool_input_schema=self._schema)
        server.middleware.append(RequestStateBoundary(self._security, default_audience=NAME))
        server.middleware.append(self.answer)
        return server

    async def close(self) -> None:
        await self.ladder.runs.close()
        await self.routes.close()

    def _requester(self, context: ServerRequestContext[Any, Any]) -> str:
        """On whose behalf a request is made: the file says so, or the token that came with it."""
        scope = getattr(context.request, "scope", {})
        return str(scope.get(REQUESTER) or self.settings.requester)

    def _schema(self, tool: str) -> Mapping[str, Any] | None:
        """The schema by which the library checks the headers that repeat arguments (SEP-2243)."""
        offered = self.routes.tools.get(tool)
        schema = offered.tool.get("inputSchema") if offered else None
        return schema if isinstance(schema, dict) else None

    async def answer(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Answer a request, as the library's `ServerMiddleware`."""
        client = Client(ctx, self._requester(ctx))
        if ctx.request_id is None:
            return await call_next(ctx)
        if ctx.method == "initialize":
            return await self._initialize(ctx, call_next)
        if not client.modern and client.session is None:
            return await call_next(ctx)  # nothing is served before `initialize`
        result = await self._answer(client, ctx.method, _dict(ctx.params))
        return self._stamped(result) if client.modern else result

    async def _initialize(
        self, context: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        committed = await call_next(context)
        assert isinstance(committed, dict)
        self._connections.add(context.session._connection)  # noqa: SLF001 - sessions are per request
        about = await self.routes.handshake(_dict(context.params) or {})
        capabilities = {"tools": {}, **(about.get("capabilities") or {})}
        capabilities.pop("tasks", None)  # of that era, which the gateway does not speak
        known: Json = {key: about[key] for key in ("serverInfo", "instructions") if key in about}
        return {**committed, **known, "capabilities": capabilities}

    def _changed(self) -> None:
        """Tell clients that a server has come. Those of 2026-07-28 list what there is each time."""
        for connection in self._connections:
            for kind in ("tools", "prompts", "resources"):
                method = f"notifications/{kind}/list_changed"
                task = asyncio.create_task(connection.notify(method, None))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def _answer(self, client: Client, method: str, params: Json | None) -> Json:
        match method:
            case "server/discover":
                about = await self.routes.about()
                capabilities = with_tasks(about.get("capabilities") or {})
                versions = {"supportedVersions": list(MODERN_PROTOCOL_VERSIONS)}
                kept = {key: one for key, one in about.items() if key not in _OF_INITIALIZE}
                return {"resultType": "complete", **versions, **kept, "capabilities": capabilities}
            case "tools/list":
                return await self._tools(client, params)
            case "tools/call":
                methods.validate_client_request(method, client.version, params)
                return await self.ladder.call_tool(client, params or {})
            case "tasks/get" | "tasks/update" | "tasks/cancel" if client.modern:
                return await self._task(client, method, params or {})
            case _:
                return await self.routes.forward(client, method, params)

    async def _tools(self, client: Client, params: Json | None) -> Json:
        listed = await self.routes.forward(client, "tools/list", params)
        if listed.get("nextCursor") is None:
            return {**listed, "tools": [*(listed.get("tools") or []), WAIT_TOOL]}
        return listed

    async def _task(self, client: Client, method: str, params: Json) -> Json:
        if not declares_tasks(client.meta):
            raise no_tasks()
        if (named := client.named) is not None and named != params.get("taskId"):
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} is not the taskId of the request")
        try:
            match method:
                case "tasks/get":
                    return await self.ladder.get_task(client, params)
                case "tasks/update":
                    return await self.ladder.update_task(client, params)
                case _:
                    return await self.ladder.cancel_task(client, params)
        except ApprovalsError as problem:
            raise MCPError(-32603, f"the ledger cannot be asked: {problem}") from None

    def _stamped(self, result: Json) -> Json:
        """The result with the name of the server that a client expects in each."""
        meta = result.get("_meta") or {}
        if SERVER_INFO in meta:
            return result
        first = next(iter(self.routes.upstreams.values())).about
        info = (first.get("_meta") or {}).get(SERVER_INFO) or first.get("serverInfo")
        ours = {"name": NAME, "version": __version__}
        return {**result, "_meta": {**meta, SERVER_INFO: info or ours}}


_OF_INITIALIZE: Final = frozenset({"protocolVersion", "serverInfo", "capabilities"})


def _dict(params: Mapping[str, Any] | None) -> Json | None:
    return None if params is None else dict(params)


# ------------------------------------------------------------------------------------------ serving


@asynccontextmanager
async def opened(
    settings: GatewaySettings, ledger: Ledger, key: bytes, before_exec: BeforeExec = None
) -> AsyncGenerator[Gateway]:
    """A gateway whose servers are started.

    Args:
        before_exec: run in each program before it begins.
    """
    gateway = Gateway(settings, ledger, key, before_exec)
    gateway.routes.start()
    try:
        yield gateway
    finally:
        await gateway.close()


async def serve_stdio(gateway: Gateway) -> None:
    """Serve one client over stdin and stdout until it closes stdin, for the rest of the process."""
    server = gateway.server()
    wire = io.BufferedWriter(_Wire(os.dup(1), "wb", closefd=False))
    with suppress(OSError):
        os.dup2(2, 1)  # what other code prints must not be taken for a message
    stdout = anyio.wrap_file(io.TextIOWrapper(wire, encoding="utf-8"))
    async with stdio_server(stdout=stdout) as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


class _Wire(io.FileIO):
    """The client's end of stdout: what is for a client that has closed it is dropped."""

    def write(self, data: Buffer, /) -> int:
        with suppress(ConnectionError):
            return super().write(data)
        return memoryview(data).nbytes


def http_app(gateway: Gateway, host: str) -> ASGIApp:
    """The ASGI application that serves `/mcp`."""
    app = gateway.server().streamable_http_app(host=host)
    return _Tokens(app, gateway.settings.clients) if gateway.settings.clients else app


class _Tokens:
    """Lets nobody in without a token of the file, and says on whose behalf it is."""

    def __init__(self, app: ASGIApp, clients: tuple[ClientSettings, ...]) -> None:
        self._app, self._clients = app, clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        sent = headers[0] if len(headers) == 1 else b""
        found = ""
        for one in self._clients:
            if hmac.compare_digest(sent, b"Bearer " + one.token.encode()):
                found = one.requester
        if found:
            await self._app({**scope, REQUESTER: found}, receive, send)
            return
        said = {"error": "this gateway needs a token of its settings: Authorization: Bearer TOKEN"}
        kept = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": kept})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})
