"""Which server a request is for, and what several servers list as one.

With one server behind the gateway, everything is passed on as it is. With several, lists are
joined, and a name or URI goes to the server that listed it.
"""

import asyncio
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Prompt,
    Resource,
    ResourceTemplate,
    Tool,
)
from pydantic import BaseModel, ValidationError

from ayes.interfaces.mcp.client import Client
from ayes.interfaces.mcp.names import offered_names
from ayes.interfaces.mcp.settings import ServerSettings
from ayes.interfaces.mcp.streams import BeforeExec
from ayes.interfaces.mcp.upstream import CONNECT_S, Gone, ServerConnection, Upstream
from ayes.interfaces.mcp.wire import (
    CAPABILITIES,
    CLIENT_INFO,
    VERSION,
    WAIT,
    Json,
    merged,
    without_tasks,
)
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.mcp.routes")

#: The key under which the result of each listing has its entries, the name of an entry, its type.
LISTS: Final[Mapping[str, tuple[str, str, type[BaseModel]]]] = {
    "tools/list": ("tools", "name", Tool),
    "prompts/list": ("prompts", "name", Prompt),
    "resources/list": ("resources", "uri", Resource),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", ResourceTemplate),
}
#: How long after its start a server is awaited before the gateway says what it has, and before it
#: lists what there is. Clients of 2026-07-28 wait for ten seconds for the first.
START_S: Final = 5.0
LIST_S: Final = 15.0
#: A listing has at most so many pages: a server that never ends is not waited for.
_PAGES: Final = 100
_NOT_KEPT: Final[Json] = {"ttlMs": 0, "cacheScope": "private"}
_EVERYWHERE: Final = frozenset({"logging/setLevel"})
#: The tools that a server may offer, and the bytes of what is declared of each.
MAX_TOOLS: Final = 1000
TOOL_BYTES: Final = 128 * 1024


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
    """Args:
    changed: called when a server comes that was missed before.
    """

    def __init__(
        self,
        servers: Sequence[ServerSettings],
        changed: Callable[[], None],
        before_exec: BeforeExec = None,
    ) -> None:
        self.upstreams = {one.name: Upstream(one, changed, before_exec) for one in servers}
        #: By the name that clients use.
        self.tools: dict[str, Offered] = {}
        #: By server and its own name, the tools that it listed last.
        self._known: dict[str, dict[str, Json]] = {}
        #: By method and name, the server that listed it.
        self._listed: dict[tuple[str, str], str] = {}
        #: By the identity of a client's session and the server's name.
        self._sessions: dict[tuple[int, str], ServerConnection] = {}
        self._opening = defaultdict[tuple[int, str], asyncio.Lock](asyncio.Lock)
        self._closings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start all servers at once."""
        for one in self.upstreams.values():
            one.start()

    async def close(self) -> None:
        servers = [one.close() for one in self.upstreams.values()]
        await asyncio.gather(*servers, return_exceptions=True)

    @property
    def missing(self) -> list[str]:
        return [name for name, one in self.upstreams.items() if not one.is_here]

    async def about(self) -> Json:
        """What the servers that are there say of themselves to clients of 2026-07-28, as one.

        Raises:
            MCPError: none can be reached.
        """
        return self._merged([one.about for one in await self._here()])

    async def handshake(self, initialize: Json) -> Json:
        """The same for clients of the era before, who send `initialize`.

        Raises:
            MCPError: none can be reached.
        """

        async def of(one: Upstream) -> Json:
            try:
                async with asyncio.timeout(LIST_S):
                    return await one.handshake(initialize)
            except (MCPError, TimeoutError):
                return one.about  # it has no sessions

        return self._merged(await asyncio.gather(*map(of, await self._here())))

    async def _here(self) -> list[Upstream]:
        """The servers that are there, after a short wait."""
        servers = self.upstreams.values()
        waits = (one.reached(START_S) for one in servers)
        problems = await asyncio.gather(*waits, return_exceptions=True)
        if all(one.problem is not None for one in servers):
            raise MCPError(INTERNAL_ERROR, "; ".join(map(str, problems)))
        return [one for one in servers if one.is_here]

    def _merged(self, found: list[Json]) -> Json:
        told = merged(found)
        if not (missing := self.missing):
            return told
        # What these have is not known yet. It is listed once they are there.
        capabilities = dict(told.get("capabilities") or {})
        for name in ("tools", "prompts", "resources"):
            capabilities[name] = {**(capabilities.get(name) or {}), "listChanged": True}
        said = f"Servers of this gateway that are not there now: {', '.join(missing)}."
        instructions = "\n\n".join(filter(None, (told.get("instructions"), said)))
        return {**told, "capabilities": capabilities, "instructions": instructions}

    # ------------------------------------------------------------------------------------ requests

    async def forward(self, client: Client, method: str, params: Json | None) -> Json:
        """Pass any request but a call of a tool on, and return the result as it came.

        Raises:
            MCPError: the server's own error, or there is no such method, name or server.
        """
        if len(self.upstreams) == 1:
            [server] = self.upstreams
            result = await self._sent(client, server, method, params)
            return self._page(server, result) if method == "tools/list" else result
        if method in LISTS:
            return await self._joined(client, method, params)
        if method == "ping":
            return {}
        if method in _EVERYWHERE:
            found = await self._each(
                self.upstreams, lambda one: self._sent(client, one, method, params)
            )
            return next(iter(found.values()))
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
        await self.upstreams[server].reached(CONNECT_S, again=True)
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
        await upstream.reached(CONNECT_S, again=True)
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
            # Since then results say what kind they are, and some how long they may be kept.
            kept = _NOT_KEPT if method in LISTS or method == "resources/read" else {}
            return {"resultType": "complete", **kept, **result}
        return result

    async def _session(self, client: Client, upstream: Upstream) -> ServerConnection | None:
        """The client's own session with a server; None if the server has no sessions."""
        key = (id(client.session), upstream.name)
        async with self._opening[key]:
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
        self._opening.pop(key, None)
        if (channel := self._sessions.pop(key, None)) is not None:
            closing = asyncio.get_running_loop().create_task(channel.close())
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    # ------------------------------------------------------------------------------------- listing

    async def refresh_tools(self, client: Client, server: str = "") -> None:
        """Read again which tools the servers have, or one of them alone.

        Raises:
            MCPError: none of them answers.
        """
        await self._lists(client, "tools/list", [server] if server else self.upstreams)

    async def _lists(
        self, client: Client, method: str, servers: Iterable[str]
    ) -> dict[str, list[Json]]:
        """What each of these servers lists; one that does not answer is left out."""

        async def of(server: str) -> list[Json]:
            await self.upstreams[server].reached(LIST_S)
            try:
                return await self._pages(client, server, method)
            except MCPError as problem:
                if problem.code != METHOD_NOT_FOUND:
                    raise
                return []

        found = await self._each(servers, of)
        if method == "tools/list":
            for server, tools in found.items():
                self._note(server, tools, before={})
        return found

    async def _each[T](
        self, servers: Iterable[str], ask: Callable[[str], Awaitable[T]]
    ) -> dict[str, T]:
        """The answers of these servers, all asked at once; one that does not answer is left out.

        Raises:
            MCPError: none answers.
        """
        problems: list[MCPError] = []

        async def answer(server: str) -> T | None:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await ask(server)
            except TimeoutError:
                problem = MCPError(INTERNAL_ERROR, f"the server {server} does not answer")
            except MCPError as raised:
                problem = raised
            _log.warning("a server is left out", server=server, problem=problem.message)
            problems.append(problem)
            return None

        names = list(servers)
        answers = await asyncio.gather(*map(answer, names))
        found = {name: one for name, one in zip(names, answers, strict=True) if one is not None}
        if not found:
            raise problems[0]
        return found

    def _note(self, server: str, tools: list[Json], before: dict[str, Json]) -> None:
        """Remember the tools of a server, after those of earlier pages."""
        old = self._known.get(server, {})
        self._known[server] = before | {tool["name"]: tool for tool in tools}
        for tool in tools:
            if old.get(tool["name"], tool) != tool:
                _log.warning("a server changed a tool", server=server, tool=tool["name"])
        self.upstreams[server].learn_tools(tools)
        # In the order of the file, not of the answers. A server that is away keeps its names.
        found = [
            (one, tool) for one in self.upstreams for tool in self._known.get(one, {}).values()
        ]
        names = offered_names([(one, tool["name"]) for one, tool in found], frozenset({WAIT}))
        self.tools = {
            name: self._offered(one, tool) for name, (one, tool) in zip(names, found, strict=True)
        }

    def _bounded(self, method: str, server: str, result: Json) -> Json:
        """A listing of tools without those that are not offered."""
        listed = result.get("tools") if method == "tools/list" else None
        if not isinstance(listed, list):
            return result
        sound = [one for one in listed if not isinstance(one, dict) or _size(one) <= TOOL_BYTES]
        if len(listed) > len(kept := sound[:MAX_TOOLS]):
            _log.warning(
                f"tools are not offered: a server may have {MAX_TOOLS:,}, each described in "
                f"{TOOL_BYTES:,} bytes",
                server=server,
                tools=len(listed) - len(kept),
            )
        return {**result, "tools": kept}

    def _page(self, server: str, result: Json) -> Json:
        """A page of the only server, with the names under which its tools are called here."""
        tools = _entries("tools/list", server, result)
        before = self._known.get(server, {})
        # What is called and not known is listed again.
        self._note(server, tools, before=before if len(before) <= MAX_TOOLS else {})
        names = {one.tool["name"]: name for name, one in self.tools.items()}
        return {**result, "tools": [_named(tool, names[tool["name"]]) for tool in tools]}

    def _offered(self, server: str, tool: Json) -> Offered:
        needs_task = tool["name"] in self.upstreams[server].settings.task_only
        return Offered(server, tool, needs_task)

    async def _pages(self, client: Client, server: str, method: str) -> list[Json]:
        found: list[Json] = []
        cursor: object = None
        for _ in range(_PAGES):
            result = await self._sent(client, server, method, _listing(client, cursor))
            found += _entries(method, server, result)
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                break
        return found[:MAX_TOOLS] if method == "tools/list" else found

    async def _joined(self, client: Client, method: str, params: Json | None) -> Json:
        key, name, _ = LISTS[method]
        lists = await self._lists(client, method, self.upstreams)
        for server, listed in lists.items():
            self._listed |= {(key, str(one.get(name))): server for one in listed}
        if method == "tools/list":
            offered = self.tools.items()
            entries = [_named(one.tool, name) for name, one in offered if one.server in lists]
        else:
            entries = [one for listed in lists.values() for one in listed]
        joined: Json = {key: entries}
        if not client.modern:
            return joined
        return {"resultType": "complete", **_NOT_KEPT, **joined}

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
                return self._first
        if wanted not in self._listed:
            for listing, (key, *_) in LISTS.items():
                if key == wanted[0]:
                    await self._joined(client, listing, None)
        return self._listed.get(wanted, self._first)

    @property
    def _first(self) -> str:
        """The first server that is there."""
        here = (name for name, one in self.upstreams.items() if one.is_here)
        return next(here, next(iter(self.upstreams)))


def _entries(method: str, server: str, result: Json) -> list[Json]:
    """The entries of a listing, without those that no client could read: it would refuse all."""
    key, name, kind = LISTS[method]
    found = []
    for one in result.get(key) or ():
        try:
            kind.model_validate(one, by_name=False)
        except ValidationError:
            known = one.get(name) if isinstance(one, dict) else None
            _log.warning("a server lists what is not valid", server=server, kind=key, name=known)
        else:
            found.append(one)
    return found


def _named(tool: Json, name: str) -> Json:
    return tool if tool["name"] == name else {**tool, "name": name}


def _size(tool: Json) -> int:
    told = [tool.get(key) for key in ("name", "title", "description", "annotations", "inputSchema")]
    return len(msgspec.json.encode(told))


def _listing(client: Client, cursor: object) -> Json | None:
    """The parameters of a listing of our own, in the era of the client."""
    paged: Json = {} if cursor is None else {"cursor": cursor}
    return paged | ({"_meta": client.envelope} if client.envelope else {}) or None


def _stamped(params: Json | None, channel: ServerConnection, client: Client | None) -> Json:
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
