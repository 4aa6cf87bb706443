"""The HTTP server of all listeners, asked over sockets by clients that do not finish."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse

from ayes.interfaces.access import http_server
from ayes.schemas.addresses import check_reach
from ayes.schemas.errors import BadInput

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


@asynccontextmanager
async def served():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = http_server.server(app, lifespan="off", log_config=None)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            await running


async def connected(port, sent=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def rest(reader):
    """All that still comes, once the server has closed the connection."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD,
        HEAD + b"X: " + b"a" * 1000,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345",
    ],
)
async def test_a_request_that_is_not_finished_ends(monkeypatch, sent):
    """I8: half of a request holds no connection; a whole one is answered, however late."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    async with served() as (port, _):
        reader, writer = await connected(port, sent)
        assert await rest(reader) == b""
        writer.close()
        reader, writer = await connected(port, HEAD + b"\r\n")
        assert (await reader.readuntil(b"0 bytes")).startswith(b"HTTP/1.1 200")
        writer.write(HEAD)
        assert await rest(reader) == b""
        writer.close()


async def test_one_address_has_so_many_connections(monkeypatch):
    """I8: the next one is closed at once, until one of the others ends."""
    monkeypatch.setattr(http_server, "MAX_OPEN", 3)
    async with served() as (port, _):
        held = [await connected(port, HEAD) for _ in range(3)]
        reader, writer = await connected(port, HEAD + b"\r\n")
        assert await rest(reader) == b""
        writer.close()
        held.pop()[1].close()
        async with asyncio.timeout(60):
            answer = b""
            while not answer:
                reader, writer = await connected(port, HEAD + b"Connection: close\r\n\r\n")
                answer = await rest(reader)
                writer.close()
        assert answer.startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()


async def test_a_request_with_two_lengths_is_refused():
    """A proxy could take the other one, and let through what is then a request of its own."""
    both = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served() as (port, _):
        reader, writer = await connected(
            port, both + b"0\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        answer = await rest(reader)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


async def test_an_answer_does_not_wait_for_an_acknowledgement():
    """Its header and its body are two writes, and a client may acknowledge the first late."""
    async with served() as (port, server):
        reader, writer = await connected(port, HEAD + b"\r\n")
        await reader.readuntil(b"0 bytes")
        [connection] = server.server_state.connections
        open_socket = connection.transport.get_extra_info("socket")
        assert open_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "198.51.100.7", "gateway.example"])
def test_what_others_reach_needs_tls(host):
    """B75: tokens are not sent in clear. One function decides it for every listener."""
    with pytest.raises(BadInput, match=r"could be read on the way.*--behind-tls"):
        check_reach("--http", host, has_tls=False, how="--behind-tls")
    check_reach("--http", host, has_tls=True, how="--behind-tls")
    check_reach("--http", "127.0.0.1", has_tls=False, how="--behind-tls")
