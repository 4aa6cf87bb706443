"""The oldest 50 of 10,000 calls that wait for people, among 100,000 that were decided.

A service that asks again and again has an inbox, which is kept up by what changes, and takes no request to answer; its
start, which reads all that waits, is told beside a first request. That is what `approvals pending` makes, over a
connection that has just been made: it reads the whole of the live queue (the key-value bucket), and decodes what is shown.

What is decided leaves a marker in the bucket for an hour. So these times are taken when all was decided longer ago, and
the last line says what it costs if all of it was decided within the hour. The ledger holds every one of the calls.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from consumers.inbox import Inbox
from ledger.client import Ledger
from ledger.lifecycle import call_of
from ops.bench import logs
from ops.bench.append import LATER, broker, timed
from ops.bench.logs import Log, Place
from ops.bench.results import Result, compared
from ops.commands import decide
from projections import pending
from projections.pending import Entry
from schemas.codec import encode, fact_of
from schemas.slots import CallRef, ThreadRef

WORKLOAD: Final = "pending"
#: Milliseconds that are wanted of a running service, and of a command's first request.
WANTED_MS: Final = 0.2
WANTED_FIRST_MS: Final = 5.0
OLDEST: Final = 50
#: As many wait, and ten times as many were decided.
_MOST: Final = 10_000
_DECIDED: Final = 10
#: A round is so many requests, and its figure their median.
_RUNS: Final = 7
_IN_FLIGHT: Final = 500
_AT: Final = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds until the oldest are at hand."""
    store = scratch / "pending"
    waiting = max(OLDEST, min(_MOST, log.facts // 20))
    # Reading waits for no disk, so writing it all need not either.
    async with broker(store, LATER):
        async with Ledger.connect(store, role="admin") as admin:
            await logs.append_all(admin, _places(waiting))
            await _show(admin, waiting)
            facts, version = await admin.port.last_seq(), logs.broker_version(admin)
        async with Ledger.connect(store, role="observer") as ledger, Inbox(ledger) as inbox:
            again = [_again(inbox, waiting) for _ in range(rounds)]
        first = [await _first(store, waiting) for _ in range(rounds)]
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

    oldest = f"oldest {OLDEST} of {waiting:,}, {waiting * _DECIDED:,} decided"
    return [
        line(f"{oldest}, in a running service, p50", again, [WANTED_MS], "wanted", 1.0),
        line(f"{oldest}, starting that service's inbox, p50", begun, first, "a first request"),
        line(f"{oldest}, first request, p50", first, [WANTED_FIRST_MS], "wanted", 1.0),
        line(f"{oldest}, all within the hour, first request, p50", marked, first, "longer ago"),
    ]


def _again(inbox: Inbox, waiting: int) -> float:
    """Milliseconds until the oldest are at hand, of an inbox."""
    times: list[float] = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        oldest, there = inbox.oldest(OLDEST), len(inbox)
        times.append(time.perf_counter() - begun)
        _check(oldest, there, waiting)
    return statistics.median(times) * 1000


async def _begin(store: Path, waiting: int) -> float:
    """Milliseconds until an inbox can be asked."""
    times: list[float] = []
    for _ in range(_RUNS):
        async with Ledger.connect(store, role="observer") as ledger:
            begun = time.perf_counter()
            async with Inbox(ledger) as inbox:
                times.append(time.perf_counter() - begun)
                _check(inbox.oldest(OLDEST), len(inbox), waiting)
    return statistics.median(times) * 1000


async def _first(store: Path, waiting: int) -> float:
    """Milliseconds until the oldest are at hand, of a command."""
    times: list[float] = []
    for _ in range(_RUNS):
        async with Ledger.connect(store, role="observer") as ledger:
            begun = time.perf_counter()
            oldest, there = await decide.first_page(ledger, "", OLDEST)
            times.append(time.perf_counter() - begun)
            _check(oldest, there, waiting)
    return statistics.median(times) * 1000


def _check(oldest: list[Entry], there: int, waiting: int) -> None:
    if there != waiting or [one.ref for one in oldest] != [_call(number) for number in range(OLDEST)]:
        raise AssertionError(f"{there} of {waiting} wait, and the oldest are not the first")


def _call(number: int, thread: str = "t") -> CallRef:
    return ThreadRef("bench", f"{thread}{number // logs.TURNS}").call(f"c{number}")


def _places(waiting: int) -> Iterator[Place]:
    """Calls that wait, each followed by those that were decided meanwhile."""
    for number in range(waiting):
        yield from itertools.islice(logs.calling(_call(number)), 2)
        for other in range(number * _DECIDED, (number + 1) * _DECIDED):
            yield from itertools.islice(logs.calling(_call(other, "d")), 4)


async def _show(admin: Ledger, waiting: int) -> None:
    """Put them into the live queue, as its worker would have."""

    async def one(number: int) -> None:
        call = _call(number)
        facts = [
            fact_of(2 * number + place, _AT, slot.subject, encode(admin.stamped(event)))
            for place, (slot, event) in enumerate(itertools.islice(logs.calling(call), 2), 1)
        ]
        entry = pending.entry(call_of(call, tuple(facts)))
        assert entry, f"{call} waits"
        if not await admin.port.pending.put(pending.key(call), pending.encode(entry), 0):
            raise AssertionError(f"{call} was in the queue before")

    await timed(one, list(range(waiting)), _IN_FLIGHT)


async def _decide(admin: Ledger, waiting: int) -> None:
    """Leave the marker of each call that was decided."""

    async def one(number: int) -> None:
        if not await admin.port.pending.delete(pending.key(_call(number, "d")), 0):
            raise AssertionError(f"{_call(number, 'd')} was decided before")

    await timed(one, list(range(waiting * _DECIDED)), _IN_FLIGHT)


if __name__ == "__main__":
    from ops.bench.program import main

    main(WORKLOAD)
