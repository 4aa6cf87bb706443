"""Reading the oldest 50 of 10,000 pending calls, among 100,000 that were decided.

A service that reads the queue repeatedly has a view of it, which is updated by changes and answers
without a request. A first request is that of `ayes pending --limit 50` over a new connection: it
reads the whole live queue (the key-value bucket).

A decided call leaves a marker in the bucket for an hour. These times are without markers, and the
last line shows the cost if all calls were decided within the hour. The ledger holds all the calls.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ayes.consumers.pending_view import PendingView
from ayes.ledger.clients.services import Ledger
from ayes.ledger.validity import call_of
from ayes.projections import pending
from ayes.projections.pending import Entry
from ayes.schemas.codec import encode, fact_of
from ayes.schemas.slots import CallRef, ThreadRef
from bench import logs
from bench.append import LATER, broker, timed
from bench.logs import Log, Place
from bench.results import Result, compared

WORKLOAD: Final = "pending"
#: Target in milliseconds, for a running service.
WANTED_MS: Final = 0.2
OLDEST: Final = 50
#: Calls that wait; ten times that number were decided.
_MAX: Final = 10_000
_DECIDED: Final = 10
#: Requests of a round; its figure is their median.
_RUNS: Final = 7
_IN_FLIGHT: Final = 500
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
        async with Ledger.connect(store, role="admin") as admin:
            await _decide(admin, waiting)
        marked = [await _first(store, waiting) for _ in range(rounds)]

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
        line(f"{what}, starting that service's inbox, p50", begun, read, "a first request"),
        line(f"{what}, all within the hour, first request, p50", marked, read, "longer ago"),
    ]


def _again(inbox: PendingView, waiting: int) -> float:
    """Milliseconds to read the oldest from a view."""
    times: list[float] = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        found, there = inbox.entries.oldest(OLDEST), len(inbox.entries)
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
                _check(inbox.entries.oldest(OLDEST), len(inbox.entries), waiting)
    return statistics.median(times) * 1000


async def _first(store: Path, waiting: int) -> float:
    """Milliseconds to read the oldest in a command."""
    times: list[float] = []
    for _ in range(_RUNS):
        async with Ledger.connect(store, role="observer") as ledger:
            begun = time.perf_counter()
            found, there, _ = pending.oldest(await ledger.log.pending.entries(), OLDEST)
            times.append(time.perf_counter() - begun)
            _check(found, there, waiting)
    return statistics.median(times) * 1000


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
