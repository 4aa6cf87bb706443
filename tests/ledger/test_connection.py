"""Connections that come about, that move to another server, and that end."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import urlparse

import pytest
from brokers import bare, running
from cable import Cable
from until import until

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import connection, ordered_consumer
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Address, Login, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import Transport
from ayes.ops.broker.server import EmbeddedServer, free_ports
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import ToolSpec

THREAD = ThreadRef("shop", "t1")


def address_of(store: Path) -> tuple[str, int]:
    """User and password of a service, and the broker's port."""
    address = Store(store).read()
    return f"service:{address.passwords['service']}", address.port


# --------------------------------------------------------------------------- which servers they are


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("nats://a:p@h1,nats://a:p@h2:4333", Login("nats://h1:4222,nats://h2:4333", "a", "p")),
        ("nats://a:p@h1:4222,h2:4222", Login("nats://h1:4222,nats://h2:4222", "a", "p")),
        ("tls://h1, h2", Login("tls://h1:4222,tls://h2:4222")),
        ("h1,a:p@h2", Login("nats://h1:4222,nats://h2:4222", "a", "p")),
    ],
)
def test_a_url_may_name_several_servers(url: str, login: Login):
    """Each with scheme and credentials, or both given once, as with the nats CLI (D8)."""
    assert Login.parse(url) == login


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats://a:p@h1,nats://b:p@h2", "different users or passwords"),
        ("nats://a:secret@h1,tls://h2", "all servers of a cluster with the same"),
        ("http://a:secret@h1", "must begin with nats:// or tls://"),
        ("nats://a:secret@h1,", "has no host"),
    ],
)
def test_servers_that_do_not_belong_together_are_bad_input(url: str, why: str):
    """One sentence that says why, without the password (D8)."""
    with pytest.raises(BadInput, match=why) as refused:
        Login.parse(url)
    assert "secret" not in str(refused.value)


async def test_any_server_that_answers_will_do(store: Path):
    """A start does not fail because one of the servers is away (D8)."""
    user, port = address_of(store)
    [nobody] = free_ports(0)
    url = f"nats://{user}@127.0.0.1:{nobody},127.0.0.1:{port}"
    async with Ledger.connect(url=url, timeout_s=60) as desk:
        assert await desk.log.last_seq() == 0


async def test_connecting_waits_for_a_broker_that_starts_later(tmp_path: Path):
    """A program may be started before its broker, even before the store has one, and waits for as
    long as it was asked to (D9).
    """

    async def connect() -> int:
        async with Ledger.connect(tmp_path / "store", timeout_s=None) as desk:
            return await desk.log.last_seq()

    connecting = asyncio.create_task(connect())
    await asyncio.sleep(0.3)
    assert not connecting.done()
    async with running(tmp_path / "store"):
        assert await connecting == 0


async def test_refused_connections_are_tried_again_until_the_time_is_up():
    """A port that refuses is tried for as long as it was asked for, not twice (D9)."""
    [nobody] = free_ports(0)
    begun = time.monotonic()
    with pytest.raises(BrokerAway, match="no NATS broker answers"):
        async with Ledger.connect(url=f"nats://127.0.0.1:{nobody}", timeout_s=1.0):
            pass
    assert time.monotonic() - begun >= 1.0


async def test_a_wrong_password_is_refused_at_once(store: Path):
    """However long the caller would wait for a broker (D9)."""
    _, port = address_of(store)
    async with asyncio.timeout(60):
        with pytest.raises(BrokerRefused, match="does not accept the credentials of 'service'"):
            async with Ledger.connect(url=f"nats://service:no@127.0.0.1:{port}", timeout_s=None):
                pass


# ----------------------------------------------------------------------------------------- over TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a certificate of 127.0.0.1 that it signed."""
    folder = tmp_path_factory.mktemp("tls")
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    node = "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE"
    ca = "-addext keyUsage=critical,keyCertSign"
    for words in (
        f"{new} -subj /CN=test-ca {ca} -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=node {node} -CA ca.pem -CAkey ca.key -keyout node.key -out node.pem",
    ):
        subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return folder


async def test_a_certificate_is_verified(tmp_path, certificates, monkeypatch):
    """`tls://` connects with the CA's file, from AYES_CA or from the store; without it the
    certificate is refused at once, and so is a file that holds none (D8).
    """
    config = (
        f'tls {{ cert_file: "{certificates}/node.pem", key_file: "{certificates}/node.key" }}\n'
        "authorization { user: service, password: p }"
    )
    async with bare(tmp_path, config, "service:p@") as url:
        (tmp_path / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
        Store(tmp_path).write(
            Address(url.replace("service:p@", ""), passwords={"service": "p"}, ca="ca.pem")
        )
        async with JetStream.connect(tmp_path, timeout_s=60, any_level=True) as log:
            assert log.server_version
        with pytest.raises(BrokerRefused, match=r"certificate .* is not valid: .*AYES_CA names"):
            async with JetStream.connect(url=url, timeout_s=None):
                pass
        monkeypatch.setenv("AYES_CA", str(certificates / "ca.pem"))
        async with JetStream.connect(url=url, timeout_s=60, any_level=True) as log:
            assert log.server_version
        monkeypatch.setenv("AYES_CA", str(certificates / "missing.pem"))
        with pytest.raises(BadInput, match=r"missing\.pem is not a file of certificates"):
            async with JetStream.connect(url=url):
                pass


async def test_no_password_is_sent_without_tls_if_the_url_requires_it(store: Path):
    """A server that offers no TLS is refused at once, whoever it is (D8)."""
    user, port = address_of(store)
    with pytest.raises(BrokerRefused, match=r"offers no TLS, .* Nothing was sent"):
        async with Ledger.connect(url=f"tls://{user}@127.0.0.1:{port}", timeout_s=None):
            pass


# ---------------------------------------------------------------------------- a server that is gone


@asynccontextmanager
async def two_cables(store: Path) -> AsyncIterator[tuple[dict[int, Cable], str]]:
    """Two ways to one broker, which are two servers to a client: by port, and the URL of both."""
    user, port = address_of(store)
    async with AsyncExitStack() as stack:
        cables = [Cable(port), Cable(port)]
        ports = [await stack.enter_async_context(cable.laid()) for cable in cables]
        url = f"nats://{user}@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        yield dict(zip(ports, cables, strict=True)), url


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(connection, "PROBE_S", 0.3)
    monkeypatch.setattr(connection, "CONNECT_S", 0.5)


async def test_a_follower_leaves_a_server_that_fell_silent(store: Path, impatient: None):
    """A server that sends no heartbeats and answers no ping is left, no fact is lost (D6)."""
    async with (
        two_cables(store) as (cables, url),
        Ledger.connect(store) as writer,
        Ledger.connect(url=url, timeout_s=60) as reader,
        aclosing(reader.watch()) as facts,
        asyncio.timeout(60),
    ):
        assert isinstance(reader.log, JetStream)
        await writer.declare("shop", ToolSpec(name="one", schema='{"type":"object"}'))
        first = await anext(facts)
        silent = port_of(reader.log.connection)
        cables[silent].silence()
        await writer.declare("shop", ToolSpec(name="two", schema='{"type":"object"}'))
        second = await anext(facts)
        assert (first.seq, second.seq) == (1, 2)
        assert port_of(reader.log.connection) != silent


async def test_a_client_that_only_asks_leaves_a_server_that_fell_silent(store, monkeypatch):
    """Without a follower unanswered pings decide. Bytes that the server does not take, because it
    vanished, do not hold the client (D6).
    """
    monkeypatch.setattr(connection, "PING_S", 0.2)
    monkeypatch.setattr(connection, "CONNECT_S", 0.5)
    async with (
        two_cables(store) as (cables, url),
        Ledger.connect(url=url, timeout_s=60) as desk,
        asyncio.timeout(60),
    ):
        assert isinstance(desk.log, JetStream)
        used = desk.log.connection
        silent = port_of(used)
        cables[silent].silence()
        for _ in range(64):
            await used.client.publish("_INBOX.service._.nobody", bytes(1 << 17))
        await until(lambda: port_of(used) != silent)
        assert await desk.log.last_seq() == 0


def port_of(used: Connection) -> int:
    """The port of the server in use; 0 while there is none."""
    url = used.client.connected_url
    return url.port or 0 if url else 0


async def test_the_intervals_of_pings_are_those_of_every_client(store: Path):
    """A silent server is given up after six seconds (D6)."""
    async with Ledger.connect(store) as desk:
        assert isinstance(desk.log, JetStream)
        options = desk.log.connection.client.options
        assert (options["ping_interval"], options["max_outstanding_pings"]) == (2, 2)


async def test_a_connection_is_closed_with_a_reset():
    """A server that nobody hears must know at once: what it pushes to a dead connection is
    delivered to nobody, and an orderly end would wait behind what it has not acknowledged.
    """
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except OSError as problem:
            ended.set_result(problem)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = Transport(needs_tls=False)
        await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), 1024, 10)
        transport.close()
        assert isinstance(await asyncio.wait_for(ended, 60), ConnectionResetError)


async def test_a_connection_whose_broker_died_can_be_closed(tmp_path: Path):
    """What could not be sent any more is no error of closing (D7)."""
    async with EmbeddedServer(tmp_path / "store", sync="2m") as server:
        async with JetStream.connect(server.store.path) as log:
            os.kill(server.pid, 9)
            await server.exited()
            await until(lambda: not log.connection.client.is_connected)
            await log.api.send("$JS.API.INFO", b"")
        assert log.connection.client.is_closed


async def test_a_close_that_is_cancelled_closes_all_the_same(tmp_path: Path):
    """The broker is frozen, so what is buffered cannot be sent; whoever closes does not wait for
    it, and no socket stays behind.
    """
    async with running(tmp_path / "store") as server:
        connection = Connection(server.store.login("admin"))
        await connection.open(name="tests")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            state = Path(f"/proc/{server.pid}/stat")
            await until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
            closing = asyncio.create_task(connection.close())
            await until(lambda: not connection._is_open)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            assert connection.client.is_closed
        finally:
            os.kill(server.pid, signal.SIGCONT)
            await connection.client.close()


async def test_a_close_that_is_cancelled_later_leaves_no_socket_either(tmp_path: Path):
    """nats-py says that it is closed before it closes its socket."""
    async with running(tmp_path / "store") as server:
        connection = Connection(server.store.login("admin"))
        await connection.open(name="tests")
        transport = connection.client._transport._io_writer.transport
        closing = asyncio.create_task(connection.close())
        while not connection.client.is_closed:  # noqa: ASYNC110 - it is about the very moment
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert transport.is_closing()
