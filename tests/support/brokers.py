"""A broker of a test's own, with the ledger's streams."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.streams import DURABLES, ensure
from ayes.ops.broker.server import EmbeddedServer


@asynccontextmanager
async def running(path: Path, ack_wait_s: float = 30.0) -> AsyncGenerator[EmbeddedServer]:
    """A broker that has the streams."""
    async with EmbeddedServer(path) as server:
        connection = Connection(server.store.login("admin"))
        await connection.open(name="test set-up")
        requests = Api(connection)
        await requests.start()
        await ensure(requests, ack_wait_s=ack_wait_s, also=tuple(DURABLES))
        await connection.close()
        yield server
