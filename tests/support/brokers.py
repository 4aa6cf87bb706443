"""A broker for one test, with the ledger's streams or without."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.streams import DURABLES, ensure
from ayes.ops.broker.server import EmbeddedServer, find_binary


@asynccontextmanager
async def running(path: Path, ack_wait_s: float = 30.0) -> AsyncGenerator[EmbeddedServer]:
    """A broker that has the streams.

    It flushes to disk every two minutes rather than before each acknowledgement: only a power cut
    shows the difference, and declaring the streams takes 0.06 s rather than 0.25 s.
    """
    async with EmbeddedServer(path, sync="2m") as server:
        connection = Connection(server.store.login("admin"))
        await connection.open(name="test set-up")
        requests = Api(connection)
        await requests.start()
        await ensure(requests, ack_wait_s=ack_wait_s, also=tuple(DURABLES))
        await connection.close()
        yield server


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
