"""What passes over the connection for each message: read off it and written to it without detours.

nats-py keeps the connection: it connects, authenticates, reconnects, answers pings. But each
message that it reads costs it two regular expressions, a queue, a task and a dictionary of headers,
and each that it writes two checks and two calls (docs/performance.md says how much that is). A
ledger reads and writes little else than messages, so these two are here: a parser that takes
messages itself and leaves every other line to nats-py's, and frames of bytes
(docs.nats.io/reference/reference-protocols/nats-protocol).

For that it needs attributes of nats-py that are private, and may change with any minor version. All
of them are used in this file and listed in `PRIVATE`; a test looks each of them up, and
pyproject.toml admits the minor version for which that was done.
"""

import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Final
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser as Theirs

from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.nats.protocol")

#: The option by which a socket is closed with a reset (socket(7)).
_RESET: Final = struct.pack("ii", 1, 0)

#: A message as it came: subject, reply subject, data, headers (empty where it has none).
type NatsMessage = tuple[bytes, bytes, bytes, bytes]
type OnMessage = Callable[[NatsMessage], None]

#: What is used here of nats-py although it is private, by class, and what for.
PRIVATE: Final[dict[type, dict[str, str]]] = {
    Client: {
        "_ps": "the parser of a connection, replaced by ours",
        "_process_msg": "takes a message that is nats-py's own",
        "_transport": "the bytes below, replaced by ours",
        "_pending": "frames that wait for a connection",
        "_pending_data_size": "their bytes",
        "_max_pending_size": "how many may",
        "_send_command": "writes frames into the buffer",
        "_flush_queue": "whether a flush is under way",
        "_flush_pending": "asks for one",
        "_server_info": "the server's id, and whether it is a node of a cluster",
        "_public_nkey": "the key that signs on; nats-py takes a seed with the package nkeys only",
    },
    Subscription: {"_id": "the number by which the broker names a subscription"},
    TcpTransport: {"_io_writer": "the stream that is aborted"},
}


class Parser(Theirs):
    """Passes the messages of registered subscriptions straight to their receivers."""

    def __init__(self, client: Client) -> None:
        self.straight: dict[bytes, OnMessage] = {}
        #: Whether the server has ended the connection since its login is to be repeated.
        self.has_expired = False
        super().__init__(client)

    def reset(self) -> None:
        super().reset()
        self._rest = bytearray()
        #: How long the frame is at least that `_rest` begins with.
        self._whole = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take what has come; what is not whole waits for the rest.

        Raises:
            ProtocolError: no server speaks like this.
        """
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._whole:
                return
            data = bytes(rest)
            rest.clear()
        begin = 0
        self._whole = 0
        while (end := data.find(b"\r\n", begin)) >= 0:
            start = end + 2
            if data.startswith((b"MSG ", b"HMSG "), begin):
                try:
                    # By spaces alone: a subject may hold the other characters that `split()` takes
                    # for white space.
                    kind, subject, sid, *others, size = data[begin:end].split(b" ")
                    number = int(sid)
                    after = start + int(size)
                    headers = start + int(others.pop()) if kind == b"HMSG" else start
                    reply = others[0] if others else b""
                    if not start <= headers <= after:
                        raise ValueError("impossible sizes")  # noqa: TRY301 - reported below
                except (ValueError, IndexError):
                    raise ProtocolError(f"nats: malformed {data[begin:end]!r}") from None
                if after + 2 > len(data):
                    self._whole = after + 2 - begin
                    break
                begin = after + 2
                take = self.straight.get(sid)
                if take is not None:
                    take((subject, reply, data[headers:after], data[start:headers]))
                else:
                    head = data[start:headers] or None
                    await self._hand_on(number, subject, reply, data[headers:after], head)
            else:
                line = data[begin:start]
                begin = start
                if line.lower().startswith(b"-err 'user authentication expired"):
                    self.has_expired = True  # nats-py would close for good instead of reconnecting
                    continue
                try:
                    await super().parse(line)
                except (ValueError, LookupError, TypeError) as problem:
                    raise ProtocolError(f"nats: malformed {line!r}: {problem}") from None
        self._rest += data[begin:]

    async def _hand_on(
        self, number: int, subject: bytes, reply: bytes, data: bytes, head: bytes | None
    ) -> None:
        """Give a message to nats-py, and skip one that it cannot read: an error would end its loop.

        Publishers choose a message's headers, and the status in them need not be text.
        """
        try:
            await self.nc._process_msg(number, subject, reply, data, head)  # noqa: SLF001 - as theirs
        except (ValueError, LookupError, TypeError) as problem:
            _log.warning(
                "a message that cannot be read was passed over",
                subject=subject,
                problem=str(problem),
            )


class NoTls(nats.errors.Error):
    """The server offers no TLS, and the login requires it."""


class Transport(TcpTransport):
    """Drops a connection at once when it is closed, and sends nothing without TLS if that is
    required.

    asyncio's own `close` waits until the peer took what was written, and said good-bye over TLS. A
    peer that vanished does neither, and nats-py would wait with it before it reconnects.
    """

    def __init__(self, *, needs_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._needs_tls = needs_tls
        self._has_tls = False

    def __bool__(self) -> bool:
        return True  # nats-py makes its own in place of a false one

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.close()  # the one before, if nobody answered there: nats-py leaves it open
        self._has_tls = False
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        self._has_tls = True

    def write(self, payload: bytes) -> None:
        # nats-py turns to TLS only if the server asks for it, whatever the scheme of the URL.
        if self._needs_tls and not self._has_tls:
            raise NoTls
        super().write(payload)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._io_writer is None:
            return
        # With a reset instead of an orderly end, which would wait behind what the peer has not
        # acknowledged: a server that is heard by nobody would go on sending deliveries to us.
        socket = self._io_writer.get_extra_info("socket")
        if socket is not None:  # TLS that has ended has none
            with suppress(OSError):  # closed already
                socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """Return at once: an aborted connection is closed in the next pass of the event loop.

        After a TLS handshake that failed asyncio's own would never return.
        """


def sign_on_with(client: Client, key: str) -> None:
    """Name the public key that a connection signs on with; empty: it has a password, or nothing."""
    client._public_nkey = key or None  # noqa: SLF001


def replace_parts(client: Client, *, needs_tls: bool, key: str = "") -> Parser:
    """Use our parser and transport on a connection that is not open yet; returns the parser.

    Args:
        key: the public key that it signs on with.
    """
    sign_on_with(client, key)
    parser = client._ps = Parser(client)  # noqa: SLF001
    client._transport = Transport(needs_tls=needs_tls)  # noqa: SLF001
    return parser


def discard_unsent(client: Client) -> None:
    """Forget what waits for a connection.

    nats-py's `close` writes it to the transport, and raises a `TypeError` or an `AttributeError`
    out of asyncio if that has ended already.
    """
    client._pending = []  # noqa: SLF001
    client._pending_data_size = 0  # noqa: SLF001


async def close_client(client: Client) -> None:
    """Close it, and its socket also if this is cancelled: nats-py calls itself closed before it has
    closed that, and a second `close` does nothing.
    """
    try:
        await client.close()
    finally:
        assert client._transport  # noqa: SLF001 - by `replace_parts`
        client._transport.close()  # type: ignore[no-untyped-call]  # noqa: SLF001


def subscription_number(subscription: Subscription) -> bytes:
    """The number by which the broker names a subscription in each message."""
    return b"%d" % subscription._id  # noqa: SLF001


def server_id(client: Client) -> str:
    """The id of the connected server, for requests to the system account."""
    return str(client._server_info["server_id"])  # noqa: SLF001


def is_clustered(client: Client) -> bool:
    """Whether the server in use, or else the last one, is a node of a cluster."""
    return "cluster" in client._server_info  # noqa: SLF001


def frame(
    subject: str, payload: bytes, reply: str = "", headers: Mapping[str, str] | None = None
) -> bytes:
    """A message as it is published. Header values are one line each."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(payload), payload)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (
        to.encode(),
        len(head),
        len(head) + len(payload),
        head,
        payload,
    )


async def settled(client: Client) -> None:
    """Return when the broker has handled all that was sent, such as subscriptions.

    A broker that pings a connection while it begins leaves nats-py an answer too many, which it
    takes for the answer of its first `flush`. The second one waits for that of the first.
    """
    await client.flush()
    await client.flush()


async def write(client: Client, frames: bytes) -> None:
    """Write frames to the connection; while it is being restored they are buffered.

    Raises:
        nats.errors.Error: it is closed, or there is no room.
    """
    if client.is_closed:
        raise nats.errors.ConnectionClosedError
    if (
        not client.is_connected
        and client._pending_data_size + len(frames) > client._max_pending_size  # noqa: SLF001
    ):
        raise nats.errors.OutboundBufferLimitError
    await client._send_command(frames)  # noqa: SLF001
    if client._flush_queue is not None and client._flush_queue.empty():  # noqa: SLF001
        await client._flush_pending()  # noqa: SLF001
