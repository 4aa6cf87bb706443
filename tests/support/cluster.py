"""A cluster of three nats-servers on the loopback interface, with the ledger's streams."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from brokers import running
from long import sampled

from ayes.ledger.nats.credentials import Store
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.cluster.local import LocalCluster

#: The sizes of a site; `make test` has one server.
SIZES: Final = sampled(["one server", "three nodes"], "one server")


@asynccontextmanager
async def cluster(path: Path, *people: str) -> AsyncGenerator[LocalCluster]:
    """Each node has a store of its own; that of the cluster names all of them.

    They flush to disk every two minutes, as the broker of `brokers.running`.
    """
    async with LocalCluster(path / "cluster", people=people, sync="2m") as nodes:
        # Three times so much is on one disk.
        await nodes.declare(also=tuple(DURABLES), max_bytes=2 << 30)
        yield nodes


@asynccontextmanager
async def sized(size: str, path: Path, *people: str) -> AsyncGenerator[Store]:
    """The store of a site of one of `SIZES`, which has logins of these reviewers."""
    if size == "one server":
        async with running(path / "store") as server:
            for name in people:
                await server.ensure_account(f"reviewer-{name}")
            yield server.store
    else:
        async with cluster(path, *people) as nodes:
            yield nodes.store
