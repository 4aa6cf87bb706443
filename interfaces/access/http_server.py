"""Serving HTTP, for every listener of ours that takes requests from others.

uvicorn waits for ever for a request that does not come, and for any number of them. So a request
must be here whole within `REQUEST_S`, and an address has `MAX_OPEN` connections at most. A request
with two lengths is refused: a proxy before us could take the one that we do not.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ayes.schemas.addresses import client_of

#: The whole of a request, from the connection on or from its first byte.
REQUEST_S: Final = 60.0
MAX_OPEN: Final = 2_000


class _Bounded(H11Protocol):
    """A connection of a client that is not trusted."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Or a body waits until the client acknowledges the header, 40 ms later. asyncio does the
        # same, but not for connections to a listener that was made by `socket.create_server`.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._who = client_of(self.client[0] if self.client else "")
        #: The open connections by client, of this server.
        self._open: Counter[str] = vars(self.server_state).setdefault("open_by_client", Counter())
        self._open[self._who] += 1
        self._await_request()
        if self._open[self._who] > MAX_OPEN:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._await_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # it is here
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._open[self._who] -= 1
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the program that this runs in."""
        yield


def server(app: ASGIApp, *, has_signals: bool = False, **settings: Any) -> uvicorn.Server:
    """A server of this application.

    Args:
        has_signals: whether SIGINT and SIGTERM end it.
    """

    async def with_one_length(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            headers = {"connection": "close"}
            refusal = PlainTextResponse("A request has one length.\n", 400, headers)
            await refusal(scope, receive, send)
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(
        with_one_length, http=_Bounded, ws="none", log_level="warning", **settings
    )
    return (uvicorn.Server if has_signals else _Server)(config)
