"""Reading the oldest 50 of 10,000 pending calls, among 100,000 that were decided.

A service that reads the queue repeatedly has a view of it, which is updated by changes and answers
without a request. A first request is that of `ayes pending --limit 50` over a new connection: it
asks the page service, in its own process as in `ayes work queue`. Without the service it reads the
whole live queue (the key-value bucket), and decodes the entries that are shown.

The page service runs alone here. The queue's worker would first receive all facts of the ledger,
which takes long, and find each entry unchanged.

A decided call leaves a marker in the bucket for an hour. These times are without markers, and the
last lines show the cost if all calls were decided within the hour. The ledger holds all the calls.
"""

import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from ayes.consumers import pending_service
from ayes.consumers.pending_client import ROLE, SERVICE, SUBJECT, oldest
from ayes.consumers.pending_view import PendingView
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.validity import call_of
from ayes.ops.broker.processes import die_with_parent, environment
from ayes.projections import pending
from ayes.projections.pending import Entry
from ayes.schemas.codec import encode, fact_of
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import CallRef, ThreadRef
from bench import logs
from bench.append import LATER, broker, timed
from bench.logs import Log, Place
from bench.results import Result, compared

WORKLOAD: Final = "pending"
#: Targets in milliseconds, for a running service and for a command's first request.
WANTED_MS: Final = 0.2
WANTED_FIRST_MS: Final = 5.0
OLDEST: Final = 50
#: Calls that wait; ten times that number were decided.
_MAX: Final = 10_000
_DECIDED: Final = 10
#: Requests of a round; its figure is their median.
_RUNS: Final = 7
_IN_FLIGHT: Final = 500
#: The page service starts within seconds.
_PATIENCE_S: Final = 60.0
_AT: Final = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds to read the oldest."""
    store = scratch / "pending"
    waiting = max(OLDEST, min(_MAX, log.facts // 20))
    # Reading waits for no disk, so writing it all need not either.
    async with broker(store, LATER):
        async with Ledger.connect(store, role="admin") as admin:
            await logs.append_all(admin, _places(waiting))
            await _show(admin, waiting)
            facts, version = await admin.log.last_seq(), admin.log.server_version
        async with Ledger.connect(store, role="observer") as ledger, PendingView(ledger) as inbox:
            again = [_again(inbox, waiting) for _ in range(rounds)]
        read = [await _first(store, waiting) for _ in range(rounds)]
        begun = [await _begin(store, waiting) for _ in range(rounds)]
        async with _page_service(store) as answered:
            first = [await _first(store, waiting) for _ in range(rounds)]
            await answered(rounds * _RUNS)
        async with Ledger.connect(store, role="admin") as admin:
            await _decide(admin, waiting)
        marked_read = [await _first(store, waiting) for _ in range(rounds)]
        async with _page_service(store) as answered:
            marked = [await _first(store, waiting) for _ in range(rounds)]
            await answered(rounds * _RUNS)

    def line(
        what: str, ours: list[float], floor: list[float], beside: str, target: float | None = None
    ) -> Result:
        return compared(
            WORKLOAD, what, "ms", ours, floor, beside=beside, better="lower", target=target,
            facts=facts, nats_server=version, sync=LATER,
        )  # fmt: skip

    what = f"oldest {OLDEST} of {waiting:,}, {waiting * _DECIDED:,} decided"
    return [
        line(f"{what}, in a running service, p50", again, [WANTED_MS], "wanted", 1.0),
        line(f"{what}, starting that service's inbox, p50", begun, read, "reading the bucket"),
        line(f"{what}, first request, p50", first, [WANTED_FIRST_MS], "wanted", 1.0),
        line(
            f"{what}, first request where nobody answers, p50", read, first,
            "answered by the page service",
        ),
        line(f"{what}, all within the hour, first request, p50", marked, first, "longer ago"),
        line(
            f"{what}, all within the hour, first request where nobody answers, p50",
            marked_read, read, "longer ago",
        ),
    ]  # fmt: skip


def _again(inbox: PendingView, waiting: int) -> float:
    """Milliseconds to read the oldest from a view."""
    times: list[float] = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        found, there = inbox.oldest(OLDEST), len(inbox)
        times.append(time.perf_counter() - begun)
        _check(found, there, waiting)
    return statistics.median(times) * 1000


async def _begin(store: Path, waiting: int) -> float:
    """Milliseconds to start a view."""
    times: list[float] = []
    for _ in range(_RUNS):
        async with Ledger.connect(store, role="observer") as ledger:
            begun = time.perf_counter()
            async with PendingView(ledger) as inbox:
                times.append(time.perf_counter() - begun)
                _check(inbox.oldest(OLDEST), len(inbox), waiting)
    return statistics.median(times) * 1000


async def _first(store: Path, waiting: int) -> float:
    """Milliseconds to read the oldest in a command."""
    times: list[float] = []
    for _ in range(_RUNS):
        async with Ledger.connect(store, role="observer") as ledger:
            begun = time.perf_counter()
            found, there, _ = await oldest(ledger, OLDEST)
            times.append(time.perf_counter() - begun)
            _check(found, there, waiting)
    return statistics.median(times) * 1000


@asynccontextmanager
async def _page_service(store: Path) -> AsyncGenerator[Callable[[int], Awaitable[None]]]:
    """The page service in its own process; and a check that it answered most of `many` requests.

    Where it was too slow for one the bucket was read, and that is in the figure as it would be for
    everybody.
    """
    program = (
        f"import asyncio, sys; from {__spec__.name} import serve; asyncio.run(serve(sys.argv[1]))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(store)),
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent(),
        env=environment(),
    )
    try:
        async with Ledger.connect(store, role="observer") as ledger:
            begun = await _answered(ledger)

            async def answered(many: int) -> None:
                if await _answered(ledger) - begun - 1 <= many // 2:
                    raise AssertionError("the page service was not asked, or did not answer")

            yield answered
    finally:
        process.terminate()
        await process.wait()


async def serve(store: str) -> None:
    """Answers requests until it is stopped."""
    async with JetStream.connect(store, role=ROLE) as log:
        await pending_service.serve(log)


async def _answered(ledger: Ledger) -> int:
    """The number of requests the page service has answered, this one included; waits until it
    runs.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                await ledger.log.ask(SUBJECT, b"", _PATIENCE_S)
                [endpoint] = msgspec.json.decode(
                    await ledger.log.ask(f"$SRV.STATS.{SERVICE}", b"", _PATIENCE_S)
                )["endpoints"]
                return int(endpoint["num_requests"]) - int(endpoint["num_errors"])
            except Unavailable:
                await asyncio.sleep(0.05)


def _check(found: list[Entry], there: int, waiting: int) -> None:
    if there != waiting or [one.ref for one in found] != [
        _call(number) for number in range(OLDEST)
    ]:
        raise AssertionError(f"{there} of {waiting} wait, and the oldest are not the first")


def _call(number: int, thread: str = "t") -> CallRef:
    return ThreadRef("bench", f"{thread}{number // logs.TURNS}").call(f"c{number}")


def _places(waiting: int) -> Iterator[Place]:
    """Pending calls, each followed by calls that were decided meanwhile."""
    for number in range(waiting):
        yield from itertools.islice(logs.calling(_call(number)), 2)
        for other in range(number * _DECIDED, (number + 1) * _DECIDED):
            yield from itertools.islice(logs.calling(_call(other, "d")), 4)


async def _show(admin: Ledger, waiting: int) -> None:
    """Put them into the live queue, as its worker would have."""

    async def one(number: int) -> None:
        call = _call(number)
        facts = [
            fact_of(2 * number + place, _AT, slot.subject, encode(admin.with_envelope(event)))
            for place, (slot, event) in enumerate(itertools.islice(logs.calling(call), 2), 1)
        ]
        entry = pending.entry(call_of(call, tuple(facts)))
        assert entry, f"{call} waits"
        if not await admin.log.pending.put(pending.key(call), pending.encode(entry), 0):
            raise AssertionError(f"{call} was in the queue before")

    await timed(one, list(range(waiting)), _IN_FLIGHT)


async def _decide(admin: Ledger, waiting: int) -> None:
    """Leave the marker of each call that was decided."""

    async def one(number: int) -> None:
        if not await admin.log.pending.delete(pending.key(_call(number, "d")), 0):
            raise AssertionError(f"{_call(number, 'd')} was decided before")

    await timed(one, list(range(waiting * _DECIDED)), _IN_FLIGHT)
