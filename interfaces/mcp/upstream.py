"""Connections to the MCP servers behind the gateway, in both eras of the protocol.

Since 2026-07-28 requests have no session: all clients share one connection to a program, and over
HTTP each request has its own, so that what comes with its answer belongs to it. Before, a client
has a session of its own with each server, with the capabilities that it declared, and what the
server asks is passed on to it.
"""

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import httpx2
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
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    DiscoverResult,
    InitializeResult,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from ayes import __version__
from ayes.interfaces.mcp.client import Client
from ayes.interfaces.mcp.settings import ServerSettings
from ayes.interfaces.mcp.streams import BeforeExec, http_client, program, website
from ayes.interfaces.mcp.wire import CAPABILITIES, CLIENT_INFO, SUBSCRIPTION, VERSION, Json
from ayes.schemas.backoff import Backoff
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.mcp.upstream")

OURSELVES: Final = {"name": "ayes mcp gateway", "version": __version__}
#: How long a server may take to start, or to accept a connection.
CONNECT_S: Final = 30.0
#: How long a server may be silent over HTTP before it is given up.
_SILENT_S: Final = 3600.0
_NOT_MCP: Final = "what the server says of itself is not a valid result of MCP"
#: A server that lives for less does not start again at once.
_SHORT_S: Final = 60.0
#: The pauses between attempts to reach a server, after the first, which comes at once.
_PAUSES: Final = Backoff(1.0, 60.0)

#: How the messages of errors begin that the library makes of an answer without a JSON-RPC message
#: (mcp 2.3, client/streamable_http.py), as of a proxy that gave up. A server that says the same
#: itself leaves its call in doubt too.
_NO_SESSION: Final = "Session terminated"
_MADE_UP: Final = (
    "Server returned an error response",
    _NO_SESSION,
    "Failed to parse",
    "Unexpected content type",
    "server answered a request with 202",
)

type Streams = AbstractAsyncContextManager[Any]


class Gone(Exception):
    """The connection ended before the answer came: nobody knows what the server did."""


class ServerConnection:
    """One connection, which lives in a task of its own until it is closed."""

    def __init__(self, connect: Callable[[], Streams], version: str) -> None:
        self.version = version
        self._connect = connect
        self._ids = itertools.count(1)
        self._dispatcher: JSONRPCDispatcher[Any] | None = None
        self._callers: dict[str, Client] = {}
        self._last: Client | None = None
        #: On whose behalf it was ever used.
        self._requesters = set[str]()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        return not self._task.done() and not self._closing.is_set()

    async def opened(self) -> "ServerConnection":
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
        except asyncio.CancelledError:
            await self.close()
            raise
        return self

    def started(self, _value: object = None) -> None:
        """The dispatcher runs (as `anyio.abc.TaskStatus`)."""
        if not self._ready.done():
            self._ready.set_result(None)

    async def ended(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait([self._task])

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
        caller: Client | None = None,
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
            self._requesters.add(caller.requester)
            if meta.pop("progressToken", None) is not None:
                options["on_progress"] = caller.progress
        sent = None if params is None else {**params, "_meta": meta} if meta else dict(params)
        if sent is not None and not meta:
            sent.pop("_meta", None)
        try:
            result = await self._dispatcher.send_raw_request(method, sent, options)
        except MCPError as problem:
            made_up = problem.error.message.startswith(_MADE_UP)
            if problem.error.message.startswith(_NO_SESSION):
                self._closing.set()  # a server that was started again knows none of before
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
            # Over a shared connection nobody knows whose it is, unless there is one request alone;
            # and then it may be about an earlier one, which nobody else may read.
            if len(self._callers) == len(self._requesters) == 1:
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


def _renamed(value: Json, upstream_id: str, caller: Client | None) -> Json:
    """The same JSON, with the client's own id in place of ours where it names a subscription."""
    meta = value.get("_meta")
    if caller is None or not isinstance(meta, dict) or meta.get(SUBSCRIPTION) != upstream_id:
        return value
    return {**value, "_meta": {**meta, SUBSCRIPTION: caller.request_id}}


class Upstream:
    """A server behind the gateway, and the connections to it.

    A task keeps it: the server is started at once, and again whenever it has ended or could not be
    reached. What is asked of others never waits for it.

    Args:
        changed: called when it is there after it was missed.
    """

    def __init__(
        self, settings: ServerSettings, changed: Callable[[], None], before_exec: BeforeExec = None
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self._changed, self._before_exec = changed, before_exec
        self._http: httpx2.AsyncClient | None = None
        self._shared: ServerConnection | None = None
        self._connections = weakref.WeakSet[ServerConnection]()
        self._keeper: asyncio.Task[None] | None = None
        self._began = 0.0
        #: Set while it is there, or the last attempt to reach it has failed.
        self._settled = asyncio.Event()
        #: Set at the end of the present attempt.
        self._tried = asyncio.Event()
        self._wanted = asyncio.Event()
        self._missed = False
        self.is_here = False
        #: Why the last attempt to reach it failed; None: none did.
        self.problem: str | None = None
        #: Whether it speaks 2026-07-28; of one that is there.
        self.is_modern = False
        #: What it says of itself: `server/discover`, or the result of `initialize`.
        self.about: Json = {}
        #: The result of `initialize` for clients of the era before; None: it was not asked yet.
        self._handshake: Json | None = None
        #: By name, the places of the arguments that are repeated in headers.
        self.headers_of: dict[str, Any] = {}

    def _streams(self) -> Streams:
        one = self.settings
        if not one.url:
            return program(one.command, one.environment, self._before_exec)
        if self._http is None:
            self._http = http_client(one.headers, httpx2.Timeout(CONNECT_S, read=_SILENT_S))
        return website(one.url, self._http)

    def _connection(self, version: str) -> ServerConnection:
        one = ServerConnection(self._streams, version)
        self._connections.add(one)
        return one

    def start(self) -> None:
        if self._keeper is None:
            self._began = asyncio.get_running_loop().time()
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await asyncio.gather(*[one.close() for one in self._connections])
        if self._http is not None:
            await self._http.aclose()

    async def reached(self, within_s: float, *, again: bool = False) -> None:
        """Wait until it is there, at most for so long after its start.

        Args:
            again: whether to try it now if the last attempt failed.

        Raises:
            MCPError: it is not there.
        """
        self.start()
        event, since = self._settled, self._began
        if again and self.problem is not None:
            self._wanted.set()
            event, since = self._tried, asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(since + within_s):
                await event.wait()
        if not self.is_here:
            self._missed = True
            problem = self.problem or "the server has not started yet"
            raise MCPError(INTERNAL_ERROR, f"{self.name}: {problem}")

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            self._wanted.clear()
            self._began = loop.time()
            try:
                await self._probe()
            except (MCPError, ValidationError) as problem:
                self.problem = problem.message if isinstance(problem, MCPError) else _NOT_MCP
                _log.warning("a server is missing", server=self.name, problem=self.problem)
                self._tell()
            else:
                self.is_here, self.problem = True, None
                self._tell()
                if self._missed:
                    self._missed = False
                    self._changed()
                if self._shared is None:
                    return  # each request has a connection of its own
                await self._shared.ended()
                self.is_here = False
                if loop.time() - self._began < _SHORT_S:
                    self.problem = "the server ended"
                else:
                    self._settled.clear()
                    tries = 0
            with suppress(TimeoutError):
                pause_s = _PAUSES.pause_s(tries) if tries else 0
                await asyncio.wait_for(self._wanted.wait(), pause_s)
            tries += 1

    def _tell(self) -> None:
        self._settled.set()
        self._tried.set()
        self._tried = asyncio.Event()

    async def _probe(self) -> None:
        """Find out which era it speaks, and what it says of itself.

        Raises:
            MCPError: it cannot be reached.
            ValidationError: clients could not read what it says of itself.
        """
        meta = {VERSION: LATEST_MODERN_VERSION, CLIENT_INFO: OURSELVES, CAPABILITIES: {}}
        self._shared = None
        channel = await self._connection(LATEST_MODERN_VERSION).opened()
        try:
            async with asyncio.timeout(CONNECT_S):
                about = await channel.request("server/discover", {"_meta": meta})
            DiscoverResult.model_validate(about)
        except (MCPError, Gone, TimeoutError):
            await channel.close()
            initialize = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}}
            self._shared = await self.session(initialize, self._learn)
            self.is_modern = False
        except BaseException:
            await channel.close()
            raise
        else:
            self.is_modern, self.about = True, about
            if self.settings.url:
                await channel.close()
            else:
                self._shared = channel

    def _learn(self, initialized: Json) -> None:
        InitializeResult.model_validate(initialized)
        self.about = self._handshake = initialized

    async def handshake(self, initialize: Json) -> Json:
        """What it says of itself to clients of the era before 2026-07-28.

        Raises:
            MCPError: it cannot be reached, or has no sessions.
        """
        if self._handshake is None:
            found: list[Json] = []
            channel = await self.session(initialize, found.append)
            await channel.close()
            self._handshake = found[0]
        return self._handshake

    async def session(
        self, initialize: Json, learn: Callable[[Json], None] | None = None
    ) -> ServerConnection:
        """A session of the era before 2026-07-28, for one client.

        Args:
            initialize: the parameters of the client.
            learn: is given the result.

        Raises:
            MCPError: it cannot be reached, or has no sessions.
        """
        channel = await self._connection(str(initialize["protocolVersion"])).opened()
        try:
            async with asyncio.timeout(CONNECT_S):
                result = await channel.request(
                    "initialize", {"clientInfo": OURSELVES, **initialize}
                )
                channel.version = str(result.get("protocolVersion", channel.version))
                if learn is not None:
                    learn(result)
                await channel.notify("notifications/initialized", None)
        except BaseException as problem:
            await channel.close()
            if isinstance(problem, Gone):
                raise MCPError(INTERNAL_ERROR, "the server ended at its start") from None
            if isinstance(problem, TimeoutError):
                raise MCPError(INTERNAL_ERROR, "the server does not answer") from None
            raise
        return channel

    @asynccontextmanager
    async def stateless(self) -> AsyncGenerator[ServerConnection]:
        """A connection for one request without a session."""
        await self.reached(CONNECT_S, again=True)
        if self._shared is not None:
            yield self._shared
            return
        channel = await self._connection(LATEST_MODERN_VERSION).opened()
        try:
            yield channel
        finally:
            closing = asyncio.create_task(channel.close())
            await asyncio.shield(closing)

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
