"""Connections to the MCP servers behind the gateway, in both eras of the protocol.

Since 2026-07-28 requests have no session: all clients share one connection to a program, and over
HTTP each request has its own, so that what comes with its answer belongs to it. Before, a client
has a session of its own with each server, with the capabilities that it declared, and what the
server asks is passed on to it.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from ayes import __version__
from ayes.adapters.mcp_gateway.settings import ServerFile
from ayes.adapters.mcp_gateway.wire import CAPABILITIES, SUBSCRIPTION, Json
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.adapters.mcp_gateway.upstream")

VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
OURSELVES: Final = {"name": "ayes mcp gateway", "version": __version__}
#: How long a server may take to start, or to accept a connection.
CONNECT_S: Final = 30.0
#: How long a server may be silent over HTTP before it is given up.
_SILENT_S: Final = 3600.0

#: How the messages of errors begin that the library makes of an answer without a JSON-RPC message
#: (mcp 2.3, client/streamable_http.py), as of a proxy that gave up. A server that says the same
#: itself leaves its call in doubt too.
_MADE_UP: Final = (
    "Server returned an error response",
    "Session terminated",
    "Failed to parse",
    "Unexpected content type",
    "server answered a request with 202",
)

type Streams = AbstractAsyncContextManager[Any]


class Caller(Protocol):
    """The client whose request is being passed on."""

    @property
    def request_id(self) -> int | str | None: ...
    async def notify(self, method: str, params: Json | None, *, related: bool) -> None:
        """Pass a notification on; `related`: it belongs to the request."""
        ...

    async def progress(self, progress: float, total: float | None, message: str | None) -> None: ...
    async def ask(self, method: str, params: Json | None) -> Json:
        """Pass a server's own request on."""
        ...


class Gone(Exception):
    """The connection ended before the answer came: nobody knows what the server did."""


class Channel:
    """One connection, which lives in a task of its own until it is closed."""

    def __init__(self, connect: Callable[[], Streams], version: str) -> None:
        self.version = version
        self._connect = connect
        self._ids = itertools.count(1)
        self._dispatcher: JSONRPCDispatcher[Any] | None = None
        self._callers: dict[str, Caller] = {}
        self._last: Caller | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        return not self._task.done() and not self._closing.is_set()

    async def opened(self) -> "Channel":
        """Wait until it is open.

        Raises:
            MCPError: the server cannot be reached.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.shield(self._ready)
        except (TimeoutError, OSError, ValueError, ExceptionGroup, httpx2.HTTPError) as problem:
            await self.close()
            raise MCPError(INTERNAL_ERROR, f"the server does not start: {problem}") from None
        return self

    def started(self, _value: object = None) -> None:
        """The dispatcher runs (as `anyio.abc.TaskStatus`)."""
        if not self._ready.done():
            self._ready.set_result(None)

    async def close(self) -> None:
        self._closing.set()
        done, _ = await asyncio.wait([self._task], timeout=5)
        if not done:
            self._task.cancel()

    async def _live(self) -> None:
        try:
            async with self._connect() as (reads, writes):
                self._dispatcher = JSONRPCDispatcher(reads, writes)
                running = asyncio.create_task(
                    self._dispatcher.run(self._on_request, self._on_notify, task_status=self)
                )
                closing = asyncio.create_task(self._closing.wait())
                await asyncio.wait([running, closing], return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                closing.cancel()
                await asyncio.gather(running, closing, return_exceptions=True)
        except Exception as problem:  # noqa: BLE001 - whoever waits for it is told
            if not self._ready.done():
                self._ready.set_exception(problem)
                self._ready.exception()  # it may be that nobody waits
            else:
                _log.warning("a connection to a server ended", problem=str(problem))

    async def request(
        self,
        method: str,
        params: Json | None,
        caller: Caller | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a request and return the result as it came.

        Raises:
            MCPError: the server's own error.
            Gone: the connection ended before the answer.
        """
        assert self._dispatcher is not None
        upstream_id = f"ayes-{next(self._ids)}"
        options: CallOptions = {
            "request_id": upstream_id,
            "headers": self._headers(method, params) | dict(headers or {}),
        }
        meta = dict((params or {}).get("_meta") or {})
        if caller is not None:
            self._callers[upstream_id] = self._last = caller
            if meta.pop("progressToken", None) is not None:
                options["on_progress"] = caller.progress
        sent = None if params is None else {**params, "_meta": meta} if meta else dict(params)
        if sent is not None and not meta:
            sent.pop("_meta", None)
        try:
            result = await self._dispatcher.send_raw_request(method, sent, options)
        except MCPError as problem:
            made_up = problem.error.message.startswith(_MADE_UP)
            if problem.error.code == CONNECTION_CLOSED or (made_up and method == "tools/call"):
                raise Gone(method) from None
            raise
        except (RuntimeError, OSError) as problem:  # not running any more
            raise Gone(f"{method}: {problem}") from None
        finally:
            self._callers.pop(upstream_id, None)
        return _renamed(result, upstream_id, caller)

    def _headers(self, method: str, params: Json | None) -> dict[str, str]:
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if self.version != LATEST_MODERN_VERSION:
            return headers if method != "initialize" else {}
        key = NAME_BEARING_METHODS.get(method)
        name = (params or {}).get(key) if key else None
        named = {MCP_NAME_HEADER: encode_header_value(name)} if isinstance(name, str) else {}
        return headers | {MCP_METHOD_HEADER: method} | named

    async def notify(self, method: str, params: Json | None) -> None:
        assert self._dispatcher is not None
        await self._dispatcher.notify(method, params, {"headers": self._headers(method, params)})

    async def _on_notify(
        self, _context: Any, method: str, params: Mapping[str, Any] | None
    ) -> None:
        given = None if params is None else dict(params)
        listening = ((given or {}).get("_meta") or {}).get(SUBSCRIPTION)
        if isinstance(listening, str) and (caller := self._callers.get(listening)) is not None:
            await caller.notify(method, _renamed(given or {}, listening, caller), related=True)
        elif method == "notifications/message":
            # Over a shared connection nobody knows whose it is, unless there is one request alone.
            if len(self._callers) == 1:
                await next(iter(self._callers.values())).notify(method, given, related=True)
        elif self._last is not None and self.version != LATEST_MODERN_VERSION:
            await self._last.notify(method, given, related=False)

    async def _on_request(
        self, _context: Any, method: str, params: Mapping[str, Any] | None
    ) -> Json:
        caller = next(iter(self._callers.values())) if len(self._callers) == 1 else self._last
        if caller is None or self.version == LATEST_MODERN_VERSION:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        return await caller.ask(method, None if params is None else dict(params))


def _renamed(value: Json, upstream_id: str, caller: Caller | None) -> Json:
    """The same JSON, with the client's own id in place of ours where it names a subscription."""
    meta = value.get("_meta")
    if caller is None or not isinstance(meta, dict) or meta.get(SUBSCRIPTION) != upstream_id:
        return value
    return {**value, "_meta": {**meta, SUBSCRIPTION: caller.request_id}}


class Upstream:
    """A server behind the gateway, and the connections to it."""

    def __init__(self, settings: ServerFile) -> None:
        self.name = settings.name
        self.settings = settings
        self._http: httpx2.AsyncClient | None = None
        self._shared: Channel | None = None
        self._opening = asyncio.Lock()
        #: Whether it speaks 2026-07-28; None: it was not asked yet.
        self.is_modern: bool | None = None
        #: What it says of itself: `server/discover`, or the result of `initialize`.
        self.about: Json = {}
        #: The result of `initialize` for clients of the era before; None: it was not asked yet.
        self._handshake: Json | None = None
        #: By name, the places of the arguments that are repeated in headers.
        self.headers_of: dict[str, Any] = {}

    def _streams(self) -> Streams:
        one = self.settings
        if one.url:
            if self._http is None:
                timeout = httpx2.Timeout(CONNECT_S, read=_SILENT_S)
                self._http = httpx2.AsyncClient(headers=one.headers, timeout=timeout)
            streams: Streams = streamable_http_client(one.url, http_client=self._http)
            return streams
        program, *arguments = one.command
        # With the harmless variables of this process only: its own logins are none of theirs.
        server = StdioServerParameters(command=program, args=arguments, env=one.environment)
        started: Streams = stdio_client(server)
        return started

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()
        if self._http is not None:
            await self._http.aclose()

    async def probe(self) -> None:
        """Find out once which era it speaks, and what it says of itself.

        Raises:
            MCPError: it cannot be reached.
            Gone: it ended meanwhile.
        """
        async with self._opening:
            if self.is_modern is None:
                await self._probe()

    async def _probe(self) -> None:
        channel = await Channel(self._streams, LATEST_MODERN_VERSION).opened()
        meta = {VERSION: LATEST_MODERN_VERSION, CLIENT_INFO: OURSELVES, CAPABILITIES: {}}
        try:
            async with asyncio.timeout(CONNECT_S):
                self.about = await channel.request("server/discover", {"_meta": meta})
        except (MCPError, Gone, TimeoutError):
            await channel.close()
            first = await self.session(
                {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}}, self._learn
            )
            self.is_modern, self._shared = False, first
        else:
            self.is_modern = True
            if self.settings.url:
                await channel.close()
            else:
                self._shared = channel

    def _learn(self, initialized: Json) -> None:
        self.about = self._handshake = initialized

    async def handshake(self, initialize: Json) -> Json:
        """What it says of itself to clients of the era before 2026-07-28.

        Raises:
            MCPError: it cannot be reached, or has no sessions.
        """
        await self.probe()
        if self._handshake is None:
            found: list[Json] = []
            channel = await self.session(initialize, found.append)
            await channel.close()
            self._handshake = found[0]
        return self._handshake

    async def session(
        self, initialize: Json, learn: Callable[[Json], None] | None = None
    ) -> Channel:
        """A session of the era before 2026-07-28, for one client.

        Args:
            initialize: the parameters of the client.
            learn: is given the result.
        """
        channel = Channel(self._streams, str(initialize["protocolVersion"]))
        await channel.opened()
        try:
            result = await channel.request("initialize", {"clientInfo": OURSELVES, **initialize})
        except Gone:
            raise MCPError(INTERNAL_ERROR, f"the server {self.name} ended at its start") from None
        channel.version = str(result.get("protocolVersion", channel.version))
        if learn is not None:
            learn(result)
        await channel.notify("notifications/initialized", None)
        return channel

    @asynccontextmanager
    async def stateless(self) -> AsyncGenerator[Channel]:
        """A connection for one request without a session."""
        await self.probe()
        if self.is_modern and self.settings.url:
            channel = await Channel(self._streams, LATEST_MODERN_VERSION).opened()
            try:
                yield channel
            finally:
                closing = asyncio.create_task(channel.close())
                await asyncio.shield(closing)
            return
        async with self._opening:
            if self._shared is None or not self._shared.is_open:
                if self.is_modern:
                    self._shared = await Channel(self._streams, LATEST_MODERN_VERSION).opened()
                else:
                    self._shared = await self.session(
                        {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}}
                    )
            channel = self._shared
        yield channel

    def learn_tools(self, tools: list[Json]) -> None:
        """Remember which arguments of its tools are repeated in headers (SEP-2243)."""
        for tool in tools:
            schema = tool.get("inputSchema")
            if isinstance(schema, dict) and find_invalid_x_mcp_header(schema) is None:
                self.headers_of[str(tool.get("name"))] = x_mcp_header_map(schema)

    def headers(self, method: str, params: Json) -> dict[str, str]:
        """The headers of a call that repeat its arguments."""
        found = self.headers_of.get(str(params.get("name"))) if method == "tools/call" else None
        return mcp_param_headers(found, params.get("arguments") or {}) if found else {}
