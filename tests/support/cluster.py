"""A cluster of three nats-servers on the loopback interface, with the ledger's streams."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from ayes.ledger.subscriptions import DURABLES
from ayes.ops.cluster.local import LocalCluster


@asynccontextmanager
async def cluster(path: Path, *people: str) -> AsyncGenerator[LocalCluster]:
    """Each node has a store of its own; that of the cluster names all of them.

    They flush to disk every two minutes, as the broker of `brokers.running`.
    """
    async with LocalCluster(path / "cluster", people=people, sync="2m") as running:
        # Three times so much is on one disk.
        await running.declare(also=tuple(DURABLES), max_bytes=2 << 30)
        yield running
