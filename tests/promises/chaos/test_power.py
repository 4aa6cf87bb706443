"""Power failures: no acknowledged fact is missing on a disk that lost what was not flushed.

The store is on a disk of its own (`disks.py`). While clients write, the broker is stopped, the
disk is copied without what the kernel has not yet written to it, and a broker starts from the copy,
on which the clients go on until the next failure. With `sync: always` every
acknowledged fact must be there after each; the control flushes every two minutes, and must lose
some, or these disks keep what a power failure would lose.

`make power` has 20 failures.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from disks import Disk, power_failure, why_not

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import EmbeddedServer, adopt
from ayes.ops.broker.setup import declare_streams
from ayes.ops.cluster.local import LocalCluster
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef

LONG = "POWER_FAILURES" in os.environ
FAILURES = int(os.environ.get("POWER_FAILURES", "2"))
SEED = int(os.environ.get("SEED", "1"))
#: Writers on one connection. A few publish one by one, many at once commit atomic batches.
FEW, MANY = 4, 60
#: How long an acknowledgement that the broker has sent may take to be read.
READ_S = 0.3

pytestmark = pytest.mark.timeout(1800)

#: What was acknowledged: the subject and the text, by the number in the log.
type Acknowledged = dict[int, tuple[str, str]]


type Start = Callable[[Path, str], AbstractAsyncContextManager[list[EmbeddedServer]]]


@asynccontextmanager
async def one_server(store: Path, sync: str) -> AsyncIterator[list[EmbeddedServer]]:
    async with EmbeddedServer(store, sync=sync) as server:
        await declare_streams(store)
        yield [server]


@asynccontextmanager
async def three_nodes(store: Path, sync: str) -> AsyncIterator[list[EmbeddedServer]]:
    async with LocalCluster(store, sync=sync) as cluster:
        await cluster.declare(max_bytes=1 << 30)
        yield cluster.nodes


class Site:
    """A store whose servers each keep their data on a disk of their own."""

    def __init__(self, folder: Path, start: Start, places: list[str], sync: str) -> None:
        self.store, self.start, self.places, self.sync = folder / "store", start, places, sync
        self.disks = [Disk.formatted(folder / f"disk{number}") for number in range(len(places))]
        self.acknowledged: Acknowledged = {}
        self.failures = 0
        adopt(Store(self.store))  # a disk may be mounted within it

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[EmbeddedServer]]:
        with ExitStack() as stack:
            for disk, place in zip(self.disks, self.places, strict=True):
                stack.enter_context(disk.mounted(self.store.parent / place))
            async with self.start(self.store, self.sync) as servers:
                yield servers

    async def fail(self, chance: random.Random) -> None:
        """Let clients write for a moment, and then fail the power of all servers at once."""
        self.failures += 1
        copies = [disk.image.with_suffix(f".{self.failures}") for disk in self.disks]
        async with (
            self.running() as servers,
            writing(self.store, self.acknowledged, f"f{self.failures}"),
        ):
            await grown(self.acknowledged, by=chance.randint(100, 1500))
            for server in servers:
                os.kill(server.pid, signal.SIGSTOP)
            kept = await asyncio.to_thread(power_failure, self.disks, copies)
            await asyncio.sleep(READ_S)
            for server in servers:
                os.kill(server.pid, signal.SIGKILL)
                await server.exited()
        for disk in self.disks:
            disk.image.unlink()
        self.disks = kept

    async def missing(self) -> Acknowledged:
        """The acknowledged facts that the log does not have, or not at their numbers."""
        found: Acknowledged = {}
        async with self.running(), Ledger.connect(self.store, timeout_s=60) as ledger:
            async for facts in ledger.log.follow((), 1, until_end=True):
                for one in facts:
                    assert isinstance(one.event, e.Said)
                    found[one.seq] = (one.slot.subject, one.event.text)
        return {seq: one for seq, one in self.acknowledged.items() if found.get(seq) != one}


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """A directory for disks."""
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    return tmp_path


SERVERS: dict[str, tuple[Start, list[str]]] = {
    "one": (one_server, ["store"]),
    "three": (three_nodes, ["store/n1", "store/n2", "store/n3"]),
}


each_site = pytest.mark.parametrize(
    "servers",
    [
        "one",
        # Its nodes take ten seconds to elect their leaders after each start.
        pytest.param("three", marks=pytest.mark.skipif(not LONG, reason="part of `make power`")),
    ],
)


@each_site
async def test_no_acknowledged_fact_is_missing_after_power_failures(servers: str, disks: Path):
    """Publishes and batches, flushed before each acknowledgement; three nodes fail at once."""
    site = Site(disks, *SERVERS[servers], sync="always")
    chance = random.Random(SEED)
    for number in range(1, FAILURES + 1):
        await site.fail(chance)
        missing = await site.missing()
        assert not missing, (
            f"failure {number}: of {len(site.acknowledged)} facts these are missing: {missing}"
        )
    report(f"{servers}: {FAILURES} failures, {len(site.acknowledged)} acknowledged, none missing")


@each_site
async def test_without_flushing_acknowledged_facts_are_missing(servers: str, disks: Path):
    """The control: the same failure loses facts if the log is flushed every two minutes only."""
    site = Site(disks, *SERVERS[servers], sync="2m")
    await site.fail(random.Random(SEED))
    missing = await site.missing()
    assert missing, f"all {len(site.acknowledged)} facts were there without a flush"
    report(f"{servers}, control: {len(missing)} of {len(site.acknowledged)} are missing")


async def grown(acknowledged: Acknowledged, by: int) -> None:
    """However slow the disk is: a minute without any acknowledgement is a fault."""
    enough = len(acknowledged) + by
    while (before := len(acknowledged)) < enough:
        async with asyncio.timeout(60):
            while len(acknowledged) == before:  # noqa: ASYNC110 - the writers only count
                await asyncio.sleep(0.001)


@asynccontextmanager
async def writing(store: Path, acknowledged: Acknowledged, name: str) -> AsyncIterator[None]:
    """Clients that write for as long as the block lasts."""
    async with (
        Ledger.connect(store, timeout_s=60) as few,
        Ledger.connect(store, timeout_s=60) as many,
    ):
        lanes = [(few, f"{name}-few-{lane}") for lane in range(FEW)]
        lanes += [(many, f"{name}-many-{lane}") for lane in range(MANY)]
        tasks = [asyncio.create_task(write(*lane, acknowledged)) for lane in lanes]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def write(ledger: Ledger, thread: str, acknowledged: Acknowledged) -> None:
    ref = ThreadRef("power", thread)
    for number in range(1_000_000):
        slot, text = ref.said(f"m{number}"), f"{thread} says {number}"
        match await ledger.append(slot, e.Said(role="user", text=text)):
            case Recorded(seq):
                assert seq not in acknowledged, f"two facts were acknowledged as number {seq}"
                acknowledged[seq] = (slot.subject, text)


def report(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
