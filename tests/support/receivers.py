"""Receivers of webhooks on loopback: real HTTP servers that note what they are sent."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from standardwebhooks import Webhook

from ayes.consumers.webhooks.endpoints import Endpoint

SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return msgspec.json.decode(self.body)

    def verified(self, secret: str = SECRET) -> Any:
        """The event, once the reference library has verified its signature."""
        return Webhook(secret).verify(self.body, self.headers)


#: Status and headers of an answer; None: it never answers.
type Reply = tuple[int, dict[str, str]] | None


class Receiver:
    """Agrees to everything, and answers as `answer` says."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Reply] = lambda _request: (204, {})
        self.body = b""
        self.agrees = True
        self.port = 0
        self.connections = 0
        #: How long it takes to answer, and how many requests it had at a time.
        self.takes_s = 0.0
        self.most_at_once = self._answering = 0
        self._came = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    @property
    def posts(self) -> list[Request]:
        return [one for one in self.requests if one.method == "POST"]

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.posts]

    @property
    def types(self) -> list[str]:
        return [one.event["type"].removeprefix("ayes.") for one in self.posts]

    async def until(self, there: Callable[[], object], within_s: float = 60) -> None:
        """Wait until this holds; it is asked after each request."""
        async with asyncio.timeout(within_s), self._came:
            await self._came.wait_for(there)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task
        self._serving.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def end(self) -> None:
        """End the connections that are open."""
        serving = [*self._serving]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _read(reader)
        reply = self._reply(request)
        self._answering += 1
        self.most_at_once = max(self.most_at_once, self._answering)
        await asyncio.sleep(self.takes_s)
        self._answering -= 1
        async with self._came:
            self.requests.append(request)
            self._came.notify_all()
        if reply is None:
            await reader.read()  # until the client gives up
            return
        status, headers = reply
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(self.body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + self.body)
        await writer.drain()

    def _reply(self, request: Request) -> Reply:
        if request.method == "OPTIONS":
            origin = request.headers["webhook-request-origin"]
            return 200, {"webhook-allowed-origin": origin} if self.agrees else {}
        return self.answer(request)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (one.partition(":") for one in lines if one)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


@asynccontextmanager
async def receiving(
    port: int = 0, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()
        await server.wait_closed()


def endpoint(receiver: Receiver | str, name: str = "crm", **fields: Any) -> Endpoint:
    """An endpoint on loopback that fails fast."""
    url = receiver if isinstance(receiver, str) else receiver.url
    given: dict[str, Any] = {
        "secret": SECRET, "origin": "ayes.test", "allow_private": True, "tries": 3,
        "backoff_s": 0.05, "timeout_s": 5.0,
    }  # fmt: skip
    return Endpoint(name=name, url=url, **(given | fields))
