"""How cost grows: with the facts in the log, and with the processes at work.

    python -m bench.growth --facts 10000,100000,1000000
    python -m bench.growth --facts 10000,100000 --packed

One store grows from size to size, so that nothing is written twice. It starts with the same
facts at each size: a long conversation, and calls that are never decided. The log of the other
workloads follows. At each size the broker is killed while it is busy, started, stopped, and started
again, and then everything is measured again.

Each line compares a cost with the same cost at the first size, so its ratio is its growth. Costs
that must not grow have a target; for the others the table at the end has the growth for a million
more facts. Then 1, 2, 4 and 8 processes of gate and executor do approvals on a fresh
store each, compared with one of them.

With `--packed`, what is settled is packed and removed from the stream as the log grows
(docs/packing.md). The packs are counted as facts.
"""

import argparse
import asyncio
import itertools
import math
import os
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct

from ayes.interfaces.cli.terminal.logs import setup
from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Recorded
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import DURABLES, LEDGER
from ayes.ops.actions.packing import REMOVED_AFTER, PackedThread, pack_log
from ayes.ops.audit.replay import replay
from ayes.ops.broker.server import HOST, EmbeddedServer, free_ports
from ayes.ops.broker.setup import declare_streams
from ayes.projections.fold import ProjectedRow, ProjectionState
from ayes.projections.pending import OPEN_APPROVALS, oldest
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import ROOT, ThreadRef
from bench import history, logs
from bench.append import AT_ONCE, broker, timed
from bench.cycle import REVIEWER, Clients, at_work
from bench.history import MESSAGES, PROVIDER, THREAD
from bench.logs import Place
from bench.replay import peak_mb
from bench.results import SYNC, Better, Result, compared, told

WORKLOAD: Final = "growth"
PROCESSES: Final = "processes"
#: By how much noise may make grow what must not.
FLAT: Final = 4 / 3
#: A smaller log has no room for the measured thread and calls at its start.
SMALLEST: Final = 3_000
#: Calls that wait for people at every size.
_WAITING: Final = 500
#: A round of what takes milliseconds, and its figure their median.
_RUNS: Final = 15
#: And of what takes less than one.
_ALONE: Final = 200
_MANY: Final = 2_000
_WARM: Final = 10
#: More than any log holds: where the mix would come to its end.
_ENDLESS: Final = 10**12
#: The workspace of approvals that are begun beside the mix. Their calls never end, so none of their
#: facts leaves the stream.
_BESIDE: Final = "beside"
#: With `--packed`, the log is packed each time that so many facts were written.
_PACKED_EVERY: Final = 20_000


class Cost(Struct, frozen=True):
    """A cost that is measured at each size."""

    what: str
    unit: str
    better: Better = "lower"
    #: Must it cost the same at each size?
    flat: bool = False


#: The measured values, round by round.
type Measured = dict[Cost, list[float]]

WRITTEN: Final = Cost("broker memory, when all was just written", "MB")
STARTED: Final = Cost("broker memory, when it was just started", "MB")
A_FACT: Final = Cost("broker memory by the fact, when all was just written", "bytes")
HEAP: Final = Cost("broker heap, when it was just started", "MB")
SUBJECTS: Final = Cost("subjects in the log's stream", "subjects")
DISK: Final = Cost("disk", "MB")
DISK_A_FACT: Final = Cost("disk by the fact", "bytes", flat=True)
START: Final = Cost("broker start-up after a stop", "ms")
KILLED: Final = Cost("broker start-up after kill -9", "ms")
CONNECT: Final = Cost("connecting and a first answer, p50", "ms", flat=True)
CALL: Final = Cost("reading a call, p50", "ms", flat=True)
HISTORY: Final = Cost(f"history of {MESSAGES} messages for {PROVIDER}, p50", "ms", flat=True)
QUEUE: Final = Cost("listing the queue, p50", "ms", flat=True)
#: Not held to a target: it is bounded, but reaches its bound only some hundred thousand facts from
#: the start.
REPLAY: Final = Cost("peak memory of a replay", "MB")
APPEND: Final = Cost("append, one writer, p50", "ms", flat=True)
APPENDS: Final = Cost(f"appends, {AT_ONCE} writers", "facts/s", "higher", flat=True)
APPROVAL: Final = Cost("an approval in a new conversation, to its start, p50", "ms", flat=True)

CYCLES: Final = Cost(f"approval cycles, {AT_ONCE} at once", "cycles/s", "higher")
VOTE_TO_START: Final = Cost("vote to tool started, one at a time, p50", "ms", flat=True)
WORKER: Final = Cost("memory of each process", "MB", flat=True)


def best(cost: Cost, rounds: list[float]) -> float:
    return max(rounds) if cost.better == "higher" else min(rounds)


# --------------------------------------------------------------------------------- facts in the log


class ProfiledServer(EmbeddedServer):
    """A broker that tells what it has in memory."""

    def _config(self, port: int) -> str:
        [self.profile_port] = free_ports(0)
        return super()._config(port) + f"\nprof_port: {self.profile_port}\n"

    def heap_mb(self) -> float:
        """What is left after its garbage was collected."""
        url = f"http://{HOST}:{self.profile_port}/debug/pprof/heap?gc=1&debug=1"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        mark = "# HeapAlloc = "
        return int(next(one for one in lines if one.startswith(mark))[len(mark) :]) / (1 << 20)


class Growing:
    """A store whose log grows by the same mix of facts.

    Args:
        packed: pack what is settled as it grows.
    """

    def __init__(self, store: Path, *, packed: bool = False) -> None:
        self.store = store
        self._packed = packed
        self._mix: Iterator[Place] = iter(())

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ProfiledServer]:
        """Its broker."""
        async with ProfiledServer(self.store, sync=SYNC) as server:
            yield server

    async def begin(self) -> int:
        """Write the measured thread and calls, unless a log exists; the number of facts."""
        front = list(_front())
        async with self.running():
            await declare_streams(self.store, packed=self._packed)
            async with Ledger.connect(self.store, role="admin") as ledger:
                log = jetstream(ledger)
                if self._packed:
                    await without_workers(log)
                if not await ledger.log.last_seq():
                    await logs.append_all(ledger, iter(front))
                held = await ledger.log.last_seq()
                others = (packs.EVERY, f"{ROOT}.{_BESIDE}.>")
                made = held - sum([len(await log.counted(LEDGER, one)) for one in others])
                if (await ledger.call(THREAD.wish(2, 0))).status is not Status.RETURNED:
                    raise BadInput(
                        f"the log in {self.store} was not begun here. Name another store."
                    )
        self._mix = itertools.islice(logs.mixed(_ENDLESS, logs.AT_ONCE), made - len(front), None)
        return held

    async def grow(self, ledger: Ledger, facts: int) -> None:
        """Write until the log has `facts` facts; with packs, somewhat more."""
        before = await ledger.log.last_seq()
        if self._packed:
            held = before
            while held < facts:
                more = self.next(min(facts - held, _PACKED_EVERY))
                await logs.append_all(ledger, more, packed=True)
                for _ in range(2):  # the second one removes
                    await pack(ledger, await ledger.log.clock())
                held = await ledger.log.last_seq()
            return
        await logs.append_all(ledger, self.next(facts - before))
        after = await ledger.log.last_seq()
        if after != max(before, facts):
            raise BadInput(
                f"the log in {self.store} holds {after:,} facts instead of {facts:,}: not all of "
                "it was written here. "
                "Name another store."
            )

    def next(self, facts: int) -> Iterator[Place]:
        """The next facts of the mix."""
        return itertools.islice(self._mix, max(0, facts))


def jetstream(ledger: Ledger) -> JetStream:
    assert isinstance(ledger.log, JetStream)
    return ledger.log


async def without_workers(log: JetStream) -> None:
    """Delete the workers' consumers: none runs, and what waits for one is not removed."""
    for durable in DURABLES.values():
        await log.api.ask(f"$JS.API.CONSUMER.DELETE.{LEDGER}.{durable.name}", b"")


async def pack(ledger: Ledger, before: datetime) -> None:
    """Pack what was settled before that time, and remove what an earlier run packed, as if
    `REMOVED_AFTER` had passed since: nobody else reads or writes those threads.
    """
    now = await ledger.log.clock() + REMOVED_AFTER
    async with aclosing(pack_log(ledger, settled_for=now - before, now=now)) as threads:
        async for one in threads:
            assert isinstance(one, PackedThread), one
            assert not one.problem, one


def _front() -> Iterator[Place]:
    """The thread and calls that are read at each size."""
    yield from history.conversation()
    for number in range(_WAITING):
        call = ThreadRef("bench", f"w{number // logs.TURNS}").call(f"c{number}")
        yield from itertools.islice(logs.calling(call), 2)


async def measured(growing: Growing, facts: int, rounds: int) -> tuple[int, Measured, str]:
    """Each cost at this size of the log; the number of facts, and the broker's version."""
    found: Measured = {}
    async with growing.running() as server:
        async with Ledger.connect(growing.store, role="admin") as ledger:
            await growing.grow(ledger, facts)
            facts = await ledger.log.last_seq()
        found[WRITTEN] = [resident_mb(server.pid)]
        found[A_FACT] = [found[WRITTEN][0] * (1 << 20) / facts]
        os.kill(server.pid, signal.SIGKILL)
        await server.exited()
    found[KILLED] = [await _started(growing)]
    found[START] = [await _started(growing) for _ in range(rounds)]
    found[DISK] = [disk_mb(growing.store)]
    found[DISK_A_FACT] = [found[DISK][0] * (1 << 20) / facts]
    async with growing.running() as server:
        found[STARTED] = [resident_mb(server.pid)]
        found[HEAP] = [server.heap_mb()]
        async with (
            Ledger.connect(growing.store, role="admin") as admin,
            Ledger.connect(growing.store, role="observer") as ledger,
        ):
            stream = await jetstream(admin).api.call(f"STREAM.INFO.{LEDGER}")
            found[SUBJECTS] = [float(stream["state"]["num_subjects"])]
            found |= await _read(growing, admin, ledger, facts, rounds)
            found[REPLAY] = [await peak_mb(growing.store, facts)]
            found |= await _appended(growing, admin, facts, rounds)
            return facts, found, admin.log.server_version


async def _started(growing: Growing) -> float:
    begun = time.perf_counter()
    async with growing.running():
        return (time.perf_counter() - begun) * 1000


async def _read(
    growing: Growing, admin: Ledger, ledger: Ledger, facts: int, rounds: int
) -> Measured:
    rows = await _queue(ledger, facts)
    await _show(admin, rows)
    call = THREAD.wish(2, 0)

    async def connecting() -> None:
        async with Ledger.connect(growing.store, role="observer") as fresh:
            await fresh.call(call)

    async def reading() -> None:
        if (await ledger.call(call)).status is not Status.RETURNED:
            raise AssertionError(f"{call} was not read")

    async def writing() -> None:
        if (entries := await history.written(ledger)) != MESSAGES:
            raise AssertionError(f"the history has {entries} messages instead of {MESSAGES}")

    async def listing() -> None:
        if (waiting := oldest(await ledger.log.pending.entries()).waiting) != len(rows):
            raise AssertionError(f"{waiting} calls wait instead of {len(rows)}")

    return {
        CONNECT: await _medians(connecting, rounds),
        CALL: await _medians(reading, rounds, _ALONE),
        HISTORY: await _medians(writing, rounds),
        QUEUE: await _medians(listing, rounds),
    }


async def _medians(
    one: Callable[[], Awaitable[None]], rounds: int, runs: int = _RUNS
) -> list[float]:
    """Milliseconds, round by round."""

    async def spent() -> float:
        begun = time.perf_counter()
        await one()
        return (time.perf_counter() - begun) * 1000

    return [statistics.median([await spent() for _ in range(runs)]) for _ in range(rounds)]


async def _queue(ledger: Ledger, facts: int) -> list[ProjectedRow]:
    """The queue after that number of facts."""
    state = ProjectionState(OPEN_APPROVALS)

    async def batch() -> None:
        state.evicted(OPEN_APPROVALS)

    await replay(ledger, state, until=facts, batch=batch)
    return list(state.rows(OPEN_APPROVALS))


async def _show(admin: Ledger, rows: list[ProjectedRow]) -> None:
    """Make the live queue hold these, as its worker would have."""
    queue, shown = admin.log.pending, await admin.log.pending.entries()
    wanted = {row.key: row.value for row in rows}
    for key in shown.keys() - wanted.keys():
        _, revision = await queue.get(key)
        if not await queue.delete(key, revision):
            raise AssertionError(f"somebody else changes {key}")
    for key in wanted.keys() - shown.keys():
        if not await queue.put(key, wanted[key], 0):
            raise AssertionError(f"somebody else changes {key}")


async def _appended(growing: Growing, ledger: Ledger, facts: int, rounds: int) -> Measured:
    """Approvals in new conversations, then the next facts with one writer, and with many."""
    spent: list[float] = []

    async def one(place: Place) -> None:
        begun = time.perf_counter()
        match await ledger.append(*place):
            case Recorded():
                spent.append((time.perf_counter() - begun) * 1000)
            case answer:
                raise AssertionError(f"{place[0].subject} was not recorded: {answer}")

    async def approval() -> None:
        call = ThreadRef(_BESIDE, uuid4().hex).call("c0")
        for place in itertools.islice(logs.calling(call), 5):
            await one(place)

    approvals = await _medians(approval, rounds, _ALONE)
    alone, rates = [], []
    for _ in range(rounds):
        spent.clear()
        await timed(one, list(growing.next(min(_ALONE, facts // 20))), 1)
        alone.append(statistics.median(spent))
        places = list(growing.next(min(_MANY, facts // 4)))
        rates.append(len(places) / await timed(one, places, AT_ONCE))
    return {APPEND: alone, APPENDS: rates, APPROVAL: approvals}


def check_memory() -> None:
    """Raise `BadInput` where `resident_mb` cannot tell."""
    if not Path("/proc/self/status").exists():
        raise BadInput("memory is read from /proc, which is not here. Measure on Linux.")


def resident_mb(pid: int, what: str = "VmRSS") -> float:
    """Memory that a process holds now; with `VmHWM` the most that it has held."""
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        int(next(line for line in status.splitlines() if line.startswith(f"{what}:")).split()[1])
        / 1024
    )


def disk_mb(store: Path) -> float:
    files = (file.stat() for file in (store / "jetstream").rglob("*") if file.is_file())
    return sum(file.st_blocks * 512 for file in files) / (1 << 20)


# -------------------------------------------------------------------------------- processes at work


async def at_processes(scratch: Path, count: int, cycles: int, rounds: int) -> tuple[Measured, str]:
    """Approvals by `count` processes of gate and executor; and the broker's version."""
    store = scratch / f"processes-{count}"
    async with broker(store, SYNC) as server, AsyncExitStack() as working:
        await server.ensure_account(f"reviewer-{REVIEWER}")
        pids = [await working.enter_async_context(at_work(store)) for _ in range(count)]
        async with Clients.at(store) as clients:
            await clients.cycles(_WARM * count, AT_ONCE)  # fills the caches
            rates, waits = [], []
            for _ in range(rounds):
                begun = time.perf_counter()
                await clients.cycles(cycles, AT_ONCE)
                rates.append(cycles / (time.perf_counter() - begun))
                waits.append(
                    statistics.median(await clients.cycles(math.ceil(cycles / 5), 1)) * 1000
                )
            found: Measured = {
                CYCLES: rates,
                VOTE_TO_START: waits,
                WORKER: [statistics.mean(map(resident_mb, pids))],
            }
            return found, clients.service.log.server_version


# ------------------------------------------------------------------------------------------ telling


def lines(
    facts: int, found: Measured, first_facts: int, first: Measured, nats_server: str
) -> list[Result]:
    """Each cost at this size, compared with the first."""
    return [
        compared(
            WORKLOAD,
            cost.what,
            cost.unit,
            rounds,
            first[cost],
            beside=f"with {first_facts:,} facts",
            better=cost.better,
            target=_target(cost) if facts > first_facts else None,
            facts=facts,
            nats_server=nats_server,
        )
        for cost, rounds in found.items()
    ]


def process_lines(
    count: int, found: Measured, first_count: int, first: Measured, cycles: int, nats_server: str
) -> list[Result]:
    """Each cost with this number of processes, compared with the first number."""
    return [
        compared(
            PROCESSES,
            f"{cost.what}, {_processes(count)}",
            cost.unit,
            rounds,
            first[cost],
            beside=_processes(first_count),
            better=cost.better,
            target=_target(cost) if count > first_count else None,
            facts=6 * cycles,
            nats_server=nats_server,
        )
        for cost, rounds in found.items()
    ]


def _target(cost: Cost) -> float | None:
    if not cost.flat:
        return None
    return FLAT if cost.better == "lower" else 1 / FLAT


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def table(head: str, sizes: dict[int, Measured], *, slope: bool) -> str:
    """What was measured at each size, how much it grew, and with `slope` by how much for a million
    more.
    """
    first, last = min(sizes), max(sizes)
    rows = [
        (
            head,
            *(f"{size:,}" for size in sizes),
            "grew",
            *(["for a million more"] if slope else []),
        ),
        ("---",) * (len(sizes) + 2 + slope),
    ]
    for cost in sizes[first]:
        values = {size: best(cost, found[cost]) for size, found in sizes.items()}
        more = (values[last] - values[first]) / max(1, last - first) * 1_000_000
        rows.append(
            (
                f"{cost.what}, {cost.unit}",
                *(figure(value) for value in values.values()),
                f"{values[last] / values[first]:.2f}{', must not' if cost.flat else ''}",
                *([("" if cost.flat or cost is A_FACT else figure(more))] if slope else []),
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def figure(value: float) -> str:
    """Three digits that count, without an exponent."""
    if not value:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{float(f'{value:.3g}'):,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


# ------------------------------------------------------------------------------------- command line


def main() -> None:
    """Measure each size and each number of processes; a line for each result as it comes."""
    options = argparse.ArgumentParser(description="Measure how cost grows.")
    options.add_argument(
        "--facts", type=_numbers, default="10000,100000,1000000", help="sizes of the log"
    )
    options.add_argument(
        "--processes", type=_numbers, default="1,2,4,8", help="of gate and executor; '' for none"
    )
    options.add_argument("--rounds", type=int, default=3, help="of each (default: %(default)s)")
    options.add_argument("--cycles", type=int, default=600, help="approvals a round")
    options.add_argument(
        "--store",
        type=Path,
        help="keep the log in this directory; one that is there goes on growing",
    )
    options.add_argument(
        "--packed", action="store_true", help="pack what is settled as the log grows"
    )
    options.add_argument("--json", action="store_true", help="one JSON object a line")
    given = options.parse_args()
    setup(verbose=False)
    try:
        check_memory()
        asyncio.run(_measure(given))
    except ApprovalsError as problem:
        sys.exit(str(problem))


async def _measure(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="approvals-bench-") as scratch:
        sizes: dict[int, Measured] = {}
        growing = Growing(given.store or Path(scratch) / "store", packed=given.packed)
        async for facts, found, version in _sizes(growing, given.facts, given.rounds):
            sizes[facts] = found
            _tell(lines(facts, found, min(sizes), sizes[min(sizes)], version), given)
        counts: dict[int, Measured] = {}
        for count in given.processes:
            found, version = await at_processes(Path(scratch), count, given.cycles, given.rounds)
            counts[count] = found
            first = min(counts)
            _tell(process_lines(count, found, first, counts[first], given.cycles, version), given)
    if not given.json:
        for head, told_of, slope in (("facts in the log", sizes, True), (PROCESSES, counts, False)):
            if told_of:
                print(f"\n{table(head, told_of, slope=slope)}")


async def _sizes(
    growing: Growing, sizes: list[int], rounds: int
) -> AsyncGenerator[tuple[int, Measured, str]]:
    if not sizes:
        return
    held = await growing.begin()
    if sizes[0] < max(SMALLEST, held):
        raise BadInput(
            f"a log of {sizes[0]:,} facts cannot be made in {growing.store}: it holds {held:,}, "
            f"and the smallest is {SMALLEST:,}. Name larger ones, or another store."
        )
    for facts in sizes:
        yield await measured(growing, facts, rounds)


def _tell(results: list[Result], given: argparse.Namespace) -> None:
    for result in results:
        print(told(result, json=given.json), flush=True)


def _numbers(text: str) -> list[int]:
    return sorted({int(number) for number in text.split(",") if number})


if __name__ == "__main__":
    main()
