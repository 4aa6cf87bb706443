"""A broker for one test, with the ledger's streams or without."""

import asyncio
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.streams import DURABLES, ensure
from ayes.ops.broker.server import EmbeddedServer, adopt, find_binary

#: The files of a broker that has the streams, by the `ack_wait_s` of their consumers: to copy them
#: costs half of what it costs to declare the streams again.
_DECLARED: dict[float, TemporaryDirectory[str]] = {}


@asynccontextmanager
async def running(path: Path, ack_wait_s: float = 30.0) -> AsyncGenerator[EmbeddedServer]:
    """A broker that has the streams.

    It flushes to disk every two minutes rather than before each acknowledgement: only a power cut
    shows the difference.
    """
    if ack_wait_s not in _DECLARED:
        made = TemporaryDirectory(prefix="declared-")
        await _declare(Path(made.name), ack_wait_s)
        _DECLARED[ack_wait_s] = made
    server = EmbeddedServer(path, sync="2m")
    _copy(_DECLARED[ack_wait_s].name, server.store)
    async with server:
        yield server


def _copy(declared: str, store: Store) -> None:
    if not (store.path / "jetstream").exists():
        adopt(store)
        shutil.copytree(Path(declared, "jetstream"), store.path / "jetstream")


async def _declare(path: Path, ack_wait_s: float) -> None:
    async with EmbeddedServer(path, sync="2m") as server:
        connection = Connection(server.store.login("admin"))
        await connection.open(name="test set-up")
        requests = Api(connection)
        await requests.start()
        await ensure(requests, ack_wait_s=ack_wait_s, also=tuple(DURABLES))
        await connection.close()


@asynccontextmanager
async def bare(path: Path, config: str = "", user: str = "") -> AsyncGenerator[str]:
    """A nats-server with nothing but this configuration; yields its URL.

    Args:
        user: as in a URL, `name:password@`.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = path / "bare.conf"
    file.write_text(f'listen: "127.0.0.1:{port}"\nlog_file: "{path}/bare.log"\n{config}\n')
    process = await asyncio.create_subprocess_exec(str(find_binary()), "-c", str(file))
    try:
        yield f"{'tls' if 'tls {' in config else 'nats'}://{user}127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
