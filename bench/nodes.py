"""Three nodes against one server, in turns: appends, approval cycles, and what they cost.

All nodes are on this machine, so they share its processors and its disk, and have no network
between them: the rates say little of three machines. What carries over is the processor time of a
fact on the leader and on all nodes together, and the number of fsyncs.

On three replicas the leader collects single publishes that arrive during one Raft append into the
next, so group commit could be left to it. It is measured beside ours. fsyncs are counted by
`strace` in a round of their own, since it slows everything down; without strace these lines are
missing.
"""

import asyncio
import itertools
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.cluster.local import LocalCluster
from ayes.schemas.codec import encode
from bench import append, cycle
from bench.append import AT_ONCE, broker
from bench.logs import Log
from bench.results import SYNC, Better, Result, compared, in_turns

WORKLOAD: Final = "nodes"
WRITERS: Final = (1, AT_ONCE, 256)
#: Facts of a round; of one writer alone, and of a round under strace.
_MAX: Final = 20_000
_MAX_ALONE: Final = 1_000
_MAX_TRACED: Final = 2_000
_CYCLES: Final = 1_000
_CYCLES_ALONE: Final = 200


class Site(NamedTuple):
    """A broker of one or more servers, and a service at it."""

    store: Path
    pids: tuple[int, ...]
    ledger: Ledger

    def cpu_s(self) -> list[float]:
        """The processor time of each server so far, in seconds."""
        return [_cpu_s(pid) for pid in self.pids]


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Each figure of three nodes, compared with that of one server."""
    found: list[Result] = []
    # The gate would judge the requests that the first one appends.
    for part in (_appends, _cycles):
        stores = (scratch / f"{part.__name__}-{count}" for count in ("one", "three"))
        async with _one(next(stores)) as one, _three(next(stores)) as three:
            found += await part(one, three, rounds, log.facts)
    return found


@asynccontextmanager
async def _one(store: Path) -> AsyncGenerator[Site]:
    async with broker(store, SYNC) as server, Ledger.connect(store) as ledger:
        await server.ensure_account(f"reviewer-{cycle.REVIEWER}")
        yield Site(store, (server.pid,), ledger)


@asynccontextmanager
async def _three(store: Path) -> AsyncGenerator[Site]:
    async with LocalCluster(store, people=[cycle.REVIEWER]) as cluster:
        await cluster.declare()
        async with Ledger.connect(store) as ledger:
            yield Site(store, tuple(node.pid for node in cluster.nodes), ledger)


# ------------------------------------------------------------------------------------------ appends

type Append = Callable[[Site, int, int], Awaitable[float]]


async def _appends(one: Site, three: Site, rounds: int, facts: int) -> list[Result]:
    found = []
    for writers in WRITERS:
        what = f"{writers} writers" if writers > 1 else "one writer"
        count = min(_MAX if writers > 1 else _MAX_ALONE, facts)
        sides = _Side(three, _ours), _Side(one, _ours, "one server")
        found += await _compared(f"three nodes: {what}", *sides, rounds, count, writers)
        if writers > 1:
            singly = _Side(three, _singly), _Side(three, _ours, "in batches")
            what = f"three nodes: {what}, published singly"
            found += await _compared(what, *singly, rounds, count, writers)
    return found


async def _ours(site: Site, count: int, writers: int) -> float:
    return await append.appended(site.ledger, f"n{next(_runs)}", count, writers)


async def _singly(site: Site, count: int, writers: int) -> float:
    """The same bytes, each in a publish of its own."""
    assert isinstance(site.ledger.log, JetStream)
    requests = site.ledger.log.api
    facts = [
        (slot.subject, encode(site.ledger.with_envelope(event)))
        for slot, event in append.places(f"n{next(_runs)}", count)
    ]

    async def one(fact: tuple[str, bytes]) -> None:
        assert (await requests.publish(*fact)).error is None

    return count / await append.timed(one, facts, writers)


class _Side:
    """One of two that are compared: its rates, and the processor time of its servers."""

    def __init__(self, site: Site, append: Append, name: str = "") -> None:
        self.site = site
        self.append = append
        self.name = name
        self.costs: list[list[float]] = []

    async def run(self, count: int, writers: int) -> float:
        """Facts a second."""
        before = self.site.cpu_s()
        rate = await self.append(self.site, count, writers)
        spent = zip(self.site.cpu_s(), before, strict=True)
        self.costs.append([(now - then) * 1e6 / count for now, then in spent])
        return rate

    async def fsyncs(self, count: int, writers: int) -> float:
        """The fsyncs of a server for each fact."""
        async with _counted(self.site.pids) as calls:
            await self.append(self.site, count, writers)
        return sum(calls) / count / len(self.site.pids)


async def _compared(
    what: str, ours: _Side, other: _Side, rounds: int, count: int, writers: int
) -> list[Result]:
    async def run(side: _Side) -> float:
        return await side.run(count, writers)

    def line(aspect: str, unit: str, values: list[float], than: list[float]) -> Result:
        better: Better = "lower" if aspect else "higher"
        version = ours.site.ledger.log.server_version
        return _line(f"{what}{aspect}", unit, values, than, other.name, better, count, version)

    rates = await in_turns(rounds, partial(run, ours), partial(run, other))
    found = [
        line("", "facts/s", *rates),
        *(
            line(f": CPU of {which}", "µs/fact", *([*map(of, one.costs)] for one in (ours, other)))
            for which, of in (("the busiest node", max), ("all nodes", sum))
        ),
    ]
    if shutil.which("strace"):
        few = min(count, _MAX_TRACED)
        flushes = [[await one.fsyncs(few, writers)] for one in (ours, other)]
        found.append(line(": fsyncs of a node", "a fact", *flushes))
    return found


_runs: Final = itertools.count()


@asynccontextmanager
async def _counted(pids: Iterable[int]) -> AsyncGenerator[list[int]]:
    """The numbers of fsyncs of the processes during the block, filled in at its end."""
    found: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        tracers = [
            await asyncio.create_subprocess_exec(
                *("strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", f"{folder}/{pid}"),
                *("-p", str(pid)), stderr=subprocess.PIPE,
            )
            for pid in pids
        ]  # fmt: skip
        for tracer in tracers:
            assert tracer.stderr
            await tracer.stderr.readline()  # attached
        yield found
        for tracer in tracers:
            tracer.send_signal(2)
            await tracer.communicate()
        found += [_calls(Path(folder, str(pid)).read_text()) for pid in pids]  # noqa: ASYNC240


def _calls(summary: str) -> int:
    """The calls that a summary of strace counts: the fourth column."""
    rows = (line.split() for line in summary.splitlines() if line.endswith("sync"))
    return sum(int(row[3]) for row in rows)


# ------------------------------------------------------------------------------------------- cycles


async def _cycles(one: Site, three: Site, rounds: int, facts: int) -> list[Result]:
    many, alone = min(_CYCLES, facts), min(_CYCLES_ALONE, facts)
    async with (
        cycle.at_work(one.store),
        cycle.at_work(three.store),
        cycle.Clients.at(one.store) as at_one,
        cycle.Clients.at(three.store) as at_three,
    ):
        for clients in (at_one, at_three):
            await clients.cycles(10, 1)

        def rate(clients: cycle.Clients) -> Callable[[], Awaitable[float]]:
            async def run() -> float:
                begun = time.perf_counter()
                await clients.cycles(many, AT_ONCE)
                return many / (time.perf_counter() - begun)

            return run

        def wait(clients: cycle.Clients) -> Callable[[], Awaitable[float]]:
            async def run() -> float:
                return statistics.median(await clients.cycles(alone, 1)) * 1000

            return run

        rates = await in_turns(rounds, rate(at_three), rate(at_one))
        waits = await in_turns(rounds, wait(at_three), wait(at_one))
    version = three.ledger.log.server_version
    many_at_once = f"three nodes: approval cycles, {AT_ONCE} at once"
    start = "three nodes: vote to tool started, one at a time, p50"
    return [
        _line(many_at_once, "cycles/s", *rates, "one server", "higher", many * 6, version),
        _line(start, "ms", *waits, "one server", "lower", alone * 6, version),
    ]


def _line(
    what: str,
    unit: str,
    ours: list[float],
    other: list[float],
    beside: str,
    better: Better,
    facts: int,
    version: str,
) -> Result:
    return compared(
        WORKLOAD, what, unit, ours, other, beside=beside, better=better, facts=facts,
        nats_server=version,
    )  # fmt: skip


def _cpu_s(pid: int) -> float:
    """The processor time of all threads so far; they do not end while a server runs."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9
