"""`/livez`, `/readyz` and `/metrics`, in the event loop of the program that runs them.

The probes answer in the convention of Kubernetes: 200 or 503, with the reason as text. One request,
one answer; then the connection is closed. There is no sign-in, so an address that others reach
must be one that only probes and Prometheus reach.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from ayes.ops.inspection.checks import Wanted
from ayes.ops.inspection.metrics import exposition
from ayes.ops.inspection.monitor import Monitor
from ayes.schemas.addresses import check_reach
from ayes.schemas.errors import BadInput

INSTALL: Final = "pip install 'ayes[metrics]'"
#: Where it listens by default: next to the console's port.
PORT: Final = 8421
_HOST: Final = "127.0.0.1"
#: How long a client may take to send its request, and to take the answer.
_REQUEST_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


class ListenAddress(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str, *, has_tls: bool = False) -> "ListenAddress":
        """Read `HOST:PORT`, or a port alone, which means this machine only.

        Raises:
            BadInput: it is not that, or others could reach it without TLS.
        """
        host, colon, port = text.rpartition(":")
        is_port = port.isascii() and port.isdecimal() and int(port) < 1 << 16
        if not is_port or (colon and not host):
            raise BadInput(
                f"{option} {text!r} is not HOST:PORT or a port. It looks like 127.0.0.1:{PORT}."
            )
        address = cls(host.strip("[]") or _HOST, int(port))
        check_reach(option, address.host, has_tls=has_tls, how="`ayes monitor --behind-tls`")
        return address


class ProbeAnswer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


@asynccontextmanager
async def monitored(
    store: Path | str | None,
    address: ListenAddress,
    *,
    url: str | None = None,
    wanted: Wanted = Wanted(),  # noqa: B008 - it is immutable
) -> AsyncGenerator[str]:
    """Monitor a broker, and answer at this address, for as long as the block lasts. Yields the URL.

    Raises:
        BadInput: it cannot listen there.
    """
    monitor = Monitor(store, url=url, wanted=wanted)
    try:
        server = await asyncio.start_server(partial(_converse, monitor), *address)
    except OSError as problem:
        host, port = address
        raise BadInput(f"cannot serve at {host}:{port}: {problem.strerror}.") from None
    async with monitor.running(), server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://{f'[{address.host}]' if ':' in address.host else address.host}:{port}"


async def _converse(
    monitor: Monitor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        async with asyncio.timeout(_REQUEST_S):
            status, body, content_type = answer(monitor, await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
                "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        pass  # the client has gone, or does not speak HTTP
    finally:
        writer.close()


def answer(monitor: Monitor, head: bytes) -> ProbeAnswer:
    """The answer to the head of an HTTP request."""
    first, *lines = head.decode("latin-1").split("\r\n")
    match first.split(" ")[:2]:
        case ["GET", target]:
            path = target.partition("?")[0]
        case _:
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered")
    match path:
        case "/livez":
            return _said(HTTPStatus.OK, "ok")
        case "/readyz":
            why = monitor.seen().why
            return _said(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, why or "ok")
        case "/metrics" if monitor.measuring:
            headers = (line.partition(":") for line in lines)
            accept = [text for name, _, text in headers if name.lower() == "accept"]
            body, content_type = exposition(monitor.seen(), ",".join(accept))
            return ProbeAnswer(HTTPStatus.OK, body, content_type)
        case "/metrics":
            return _said(HTTPStatus.NOT_IMPLEMENTED, f"metrics are not installed: {INSTALL}.")
        case _:
            return _said(HTTPStatus.NOT_FOUND, "GET /livez, /readyz or /metrics")


def _said(status: HTTPStatus, text: str) -> ProbeAnswer:
    return ProbeAnswer(status, f"{text}\n".encode())
