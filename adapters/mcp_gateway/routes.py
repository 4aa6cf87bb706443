"""Which server a request is for, and what several servers list as one.

With one server behind the gateway, everything is passed on as it is. With several, lists are
joined, and a name or URI goes to the server that listed it.
"""

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from ayes.adapters.mcp_gateway.names import offered_names
from ayes.adapters.mcp_gateway.upstream import CLIENT_INFO, VERSION, Caller, Channel, Gone, Upstream
from ayes.adapters.mcp_gateway.wire import CAPABILITIES, WAIT, Json, merged, without_tasks
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.adapters.mcp_gateway.routes")

#: The key under which the result of each listing has its entries, and the name of an entry.
LISTS: Final = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
#: A listing has at most so many pages: a server that never ends is not waited for.
_PAGES: Final = 100
_EVERYWHERE: Final = frozenset({"logging/setLevel"})
#: The tools that a server may offer, and the bytes of what is declared of each.
TOOLS_MOST: Final = 1000
TOOL_BYTES: Final = 16 * 1024


class Client(Caller, Protocol):
    """The client of a request, as this module needs it."""

    #: Whether it speaks 2026-07-28.
    modern: bool
    #: What it sent with `initialize`; None: it has no session.
    session: Any
    #: What each request of it says about it, since 2026-07-28.
    envelope: Json
    #: The `_meta` of this request.
    meta: Json
    #: On whose behalf.
    requester: str


class Offered(NamedTuple):
    """A tool as clients see it."""

    server: str
    #: As its server declares it.
    tool: Json
    #: Whether only clients that declare the tasks extension may call it.
    needs_task: bool = False

    @property
    def has_schema(self) -> bool:
        return bool(self.tool.get("outputSchema"))


class Routes:
    def __init__(self, upstreams: list[Upstream]) -> None:
        self.upstreams = {one.name: one for one in upstreams}
        #: By the name that clients use.
        self.tools: dict[str, Offered] = {}
        #: By method and name, the server that listed it.
        self._listed: dict[tuple[str, str], str] = {}
        #: By the identity of a client's session and the server's name.
        self._sessions: dict[tuple[int, str], Channel] = {}
        self._opening = asyncio.Lock()
        self._closings: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for channel in self._sessions.values():
            await channel.close()
        for one in self.upstreams.values():
            await one.close()

    async def about(self) -> Json:
        """What all servers say of themselves to clients of 2026-07-28, as one.

        Raises:
            MCPError: one cannot be reached.
        """
        for one in self.upstreams.values():
            await self._reached(one)
        return merged([one.about for one in self.upstreams.values()])

    async def handshake(self, initialize: Json) -> Json:
        """The same for clients of the era before, who send `initialize`.

        Raises:
            MCPError: one cannot be reached.
        """
        found = []
        for one in self.upstreams.values():
            await self._reached(one)
            try:
                found.append(await one.handshake(initialize))
            except MCPError:
                found.append(one.about)  # it has no sessions
        return merged(found)

    async def _reached(self, one: Upstream) -> None:
        try:
            await one.probe()
        except MCPError as problem:
            raise MCPError(INTERNAL_ERROR, f"{one.name}: {problem.message}") from None
        except Gone:
            raise MCPError(INTERNAL_ERROR, f"{one.name}: the server ended") from None

    # ------------------------------------------------------------------------------------ requests

    async def forward(self, client: Client, method: str, params: Json | None) -> Json:
        """Pass any request but a call of a tool on, and return the result as it came.

        Raises:
            MCPError: the server's own error, or there is no such method, name or server.
        """
        if len(self.upstreams) == 1:
            [server] = self.upstreams
            result = await self._sent(client, server, method, params)
            self._learn(method, server, result)
            return result
        if method in LISTS:
            return await self._joined(client, method, params)
        if method in _EVERYWHERE or method == "ping":
            results = [await self._sent(client, one, method, params) for one in self.upstreams]
            return results[0]
        return await self._sent(
            client, await self._server_of(client, method, params), method, params
        )

    async def call(self, client: Client | None, server: str, params: Json) -> Json:
        """Call a tool of a server. Only for `runs.py`, after a claim.

        Raises:
            MCPError: the server's own error.
            Gone: nobody knows what the server did.
        """
        return await self._request(client, server, "tools/call", params)

    async def reach(self, client: Client | None, server: str) -> None:
        """Make sure that a server can be called.

        Raises:
            MCPError: it cannot be reached.
        """
        if server not in self.upstreams:
            raise MCPError(INVALID_PARAMS, f"there is no server {server!r} behind the gateway")
        await self._reached(self.upstreams[server])
        if client is not None and client.session is not None:
            await self._session(client, self.upstreams[server])

    async def _sent(self, client: Client, server: str, method: str, params: Json | None) -> Json:
        try:
            return await self._request(client, server, method, params)
        except Gone:
            raise MCPError(
                INTERNAL_ERROR, f"the server {server} ended before it answered"
            ) from None

    async def _request(
        self, client: Client | None, server: str, method: str, params: Json | None
    ) -> Json:
        upstream = self.upstreams[server]
        await self._reached(upstream)
        if client is not None and client.session is not None and not client.modern:
            channel = await self._session(client, upstream)
            if channel is not None:
                return self._bounded(method, server, await channel.request(method, params, client))
        async with upstream.stateless() as channel:
            sent = _stamped(params, channel, client)
            headers = upstream.headers(method, sent)
            result = await channel.request(method, sent, client, headers)
        result = self._bounded(method, server, result)
        if client is not None and client.modern and not upstream.is_modern:
            return {"resultType": "complete", **result}
        return result

    async def _session(self, client: Client, upstream: Upstream) -> Channel | None:
        """The client's own session with a server; None if the server has no sessions."""
        key = (id(client.session), upstream.name)
        async with self._opening:
            if (channel := self._sessions.get(key)) is not None and channel.is_open:
                return channel
            initialize = client.session.model_dump(by_alias=True, mode="json", exclude_none=True)
            try:
                channel = await upstream.session(initialize)
            except MCPError as problem:
                if upstream.is_modern:
                    _log.info("has no sessions", server=upstream.name, problem=problem.message)
                    return None
                raise
            self._sessions[key] = channel
            loop = asyncio.get_running_loop()
            gone = weakref.finalize(client.session, loop.call_soon_threadsafe, self._end, key)
            gone.atexit = False
            return channel

    def _end(self, key: tuple[int, str]) -> None:
        """Close the session of a client that is gone."""
        if (channel := self._sessions.pop(key, None)) is not None:
            closing = asyncio.get_running_loop().create_task(channel.close())
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    # ------------------------------------------------------------------------------------- listing

    async def refresh_tools(self, client: Client) -> None:
        """Read again which tools the servers have."""
        found: list[tuple[str, Json]] = []
        for server, upstream in self.upstreams.items():
            if "tools" in (upstream.about.get("capabilities") or {"tools": {}}):
                tools = await self._pages(client, server, "tools/list")
                found += [(server, tool) for tool in tools]
        self._offer(found)

    def _offer(self, found: list[tuple[str, Json]]) -> list[Json]:
        names = offered_names(
            [(server, str(tool.get("name"))) for server, tool in found], frozenset({WAIT})
        )
        self.tools = {
            name: self._offered(server, tool)
            for name, (server, tool) in zip(names, found, strict=True)
        }
        for server, upstream in self.upstreams.items():
            upstream.learn_tools([tool for one, tool in found if one == server])
        return [
            {**tool, "name": name} if tool.get("name") != name else tool
            for name, (_, tool) in zip(names, found, strict=True)
        ]

    def _bounded(self, method: str, server: str, result: Json) -> Json:
        """A listing of tools without those that are not offered."""
        listed = result.get("tools") if method == "tools/list" else None
        if not isinstance(listed, list):
            return result
        sound = [one for one in listed if not isinstance(one, dict) or _size(one) <= TOOL_BYTES]
        if len(listed) > len(kept := sound[:TOOLS_MOST]):
            _log.warning(
                f"tools are not offered: a server may have {TOOLS_MOST:,}, each described in "
                f"{TOOL_BYTES:,} bytes",
                server=server,
                tools=len(listed) - len(kept),
            )
        return {**result, "tools": kept}

    def _learn(self, method: str, server: str, result: Json) -> None:
        """Remember the tools of a page that the only server listed."""
        if method == "tools/list":
            if len(self.tools) > TOOLS_MOST:
                self.tools = {}  # what is called and not known is listed again
            tools = [one for one in result.get("tools") or () if isinstance(one, dict)]
            self.upstreams[server].learn_tools(tools)
            self.tools |= {str(one.get("name")): self._offered(server, one) for one in tools}

    def _offered(self, server: str, tool: Json) -> Offered:
        needs_task = str(tool.get("name")) in self.upstreams[server].settings.task_only
        return Offered(server, tool, needs_task)

    async def _pages(self, client: Client, server: str, method: str) -> list[Json]:
        key, _ = LISTS[method]
        found: list[Json] = []
        cursor: object = None
        for _ in range(_PAGES):
            params = _listing(client, cursor)
            result = await self._sent(client, server, method, params)
            found += [one for one in result.get(key) or () if isinstance(one, dict)]
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                break
        return found[:TOOLS_MOST] if method == "tools/list" else found

    async def _joined(self, client: Client, method: str, params: Json | None) -> Json:
        key, name = LISTS[method]
        found: list[tuple[str, Json]] = []
        for server, upstream in self.upstreams.items():
            await self._reached(upstream)
            try:
                listed = await self._pages(client, server, method)
            except MCPError as problem:
                if problem.code != METHOD_NOT_FOUND:
                    raise
                continue
            found += [(server, one) for one in listed]
            self._listed |= {(key, str(one.get(name))): server for one in listed}
        entries = self._offer(found) if method == "tools/list" else [one for _, one in found]
        joined: Json = {key: entries}
        if not client.modern:
            return joined
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **joined}

    async def _server_of(self, client: Client, method: str, params: Json | None) -> str:
        """The server that listed what the request names; else the first one."""
        match method, params or {}:
            case "prompts/get", {"name": str(name)}:
                wanted = "prompts", name
            case (
                "resources/read" | "resources/subscribe" | "resources/unsubscribe",
                {"uri": str(uri)},
            ):
                wanted = "resources", uri
            case "completion/complete", {"ref": {"name": str(name)}}:
                wanted = "prompts", name
            case "completion/complete", {"ref": {"uri": str(uri)}}:
                wanted = "resourceTemplates", uri
            case _:
                return next(iter(self.upstreams))
        if wanted not in self._listed:
            for listing, (key, _) in LISTS.items():
                if key == wanted[0]:
                    await self._joined(client, listing, None)
        return self._listed.get(wanted, next(iter(self.upstreams)))


def _size(tool: Json) -> int:
    told = [tool.get(key) for key in ("name", "title", "description", "annotations", "inputSchema")]
    return len(msgspec.json.encode(told))


def _listing(client: Client, cursor: object) -> Json | None:
    """The parameters of a listing of our own, in the era of the client."""
    paged: Json = {} if cursor is None else {"cursor": cursor}
    return paged | ({"_meta": client.envelope} if client.envelope else {}) or None


def _stamped(params: Json | None, channel: Channel, client: Client | None) -> Json:
    """The parameters in the era of the server: since 2026-07-28 each request says who asks."""
    sent = dict(params or {})
    meta = without_tasks(dict(sent.get("_meta") or {}))
    if channel.version >= "2026":
        meta = {VERSION: channel.version, CLIENT_INFO: _info(client), CAPABILITIES: {}} | meta
    else:
        meta = {key: one for key, one in meta.items() if not _is_envelope(key)}
    return {**sent, "_meta": meta} if meta else {k: v for k, v in sent.items() if k != "_meta"}


def _info(client: Client | None) -> Mapping[str, Any]:
    session = client.session if client is not None else None
    info = getattr(session, "client_info", None)
    if info is None:
        return {"name": "ayes mcp gateway", "version": "0"}
    return info.model_dump(by_alias=True, mode="json", exclude_none=True)  # type: ignore[no-any-return]


def _is_envelope(key: str) -> bool:
    return key in (VERSION, CLIENT_INFO, CAPABILITIES, "io.modelcontextprotocol/logLevel")
