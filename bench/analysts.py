"""Analysts' queries while facts are appended: the age of the results, and the effect on the writer.

A service appends 2,000 facts a second. The archivist follows in its own process, as `ayes lake sync
--follow` does. Two analysts, each a process, reopen the catalog for each query without a pause: the
times to decision of all calls by tool, and the time of the newest fact. The age of that fact is the
age of the result. Then the same without analysts.

Any error on either side ends the measurement.
"""

import asyncio
import itertools
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import duckdb
import msgspec

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.lake.sync import write
from ayes.ops.lake.writer import LakeWriter
from ayes.ops.workers import until_signalled
from bench import logs
from bench.logs import Log, Place
from bench.results import SYNC, Result, compared

WORKLOAD: Final = "analysts"
_ANALYSTS: Final = 2
#: Facts a second, and the number of steps a second in which they are appended.
_RATE: Final = 2_000
_STEPS: Final = 20
_SECONDS: Final = 10.0
#: The facts in the log at the start.
_BEFORE: Final = 100_000
_QUESTIONS: Final = (
    """
    SELECT tool, count(*),
        quantile_cont(date_diff('millisecond', gated_at, decided_at), [0.5, 0.9, 0.99])
    FROM calls GROUP BY tool
    """,
    "SELECT max(recorded_at) FROM events",
)


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Ages, and the analysts' effect on the archivist. Uses its own log, since it appends a lot."""
    before = min(log.facts, _BEFORE)
    return await measured(
        rounds, scratch / "analysts", before=before, seconds=_SECONDS * before / _BEFORE + 1
    )


async def measured(rounds: int, scratch: Path, *, before: int, seconds: float) -> list[Result]:
    """Start with `before` facts; each of the two parts lasts `seconds`."""
    ages, with_them, without = list[float](), list[float](), list[float]()
    store, archive = scratch / "store", scratch / "archive"
    async with EmbeddedServer(store, sync=SYNC):
        await declare_streams(store)
        async with Ledger.connect(store, role="admin") as ledger:
            places = logs.mixed(10**9, logs.AT_ONCE)
            await logs.append_all(ledger, itertools.islice(places, before))
            for _ in range(rounds):
                alone, _ages = await _together(ledger, archive, places, 0, seconds)
                beside, answered = await _together(ledger, archive, places, _ANALYSTS, seconds)
                without.append(_part(alone, 0.99))
                with_them.append(_part(beside, 0.99))
                ages += answered
            facts, version = await ledger.log.last_seq(), ledger.log.server_version

    def line(
        what: str,
        unit: str,
        ours: list[float],
        floor: list[float],
        than: str,
        target: float | None = None,
    ) -> Result:
        return compared(
            WORKLOAD, what, unit, ours, floor, beside=than, better="lower", target=target,
            facts=facts, nats_server=version,
        )  # fmt: skip

    half, most = _part(ages, 0.5), _part(ages, 0.95)
    return [
        line("age of an answer, median", "s", [half], [1.5], "as wanted", 1.0),
        line("age of an answer, p95", "s", [most], [half], "the median"),
        line(
            "the archivist's transactions, p99", "ms", with_them, without, "without analysts", 2.0
        ),
    ]


async def _together(
    ledger: Ledger, archive: Path, places: Iterator[Place], analysts: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Milliseconds of the archivist's transactions, and the ages of all answers in seconds."""
    store = archive.parent / "store"
    async with _process("follow", store, archive) as follower:
        await _has_caught_up(ledger, archive)
        async with asyncio.TaskGroup() as tasks:
            asking = [
                tasks.create_task(_ended(_process("ask", archive / "lake", seconds)))
                for _ in range(analysts)
            ]
            await _append(ledger, places, seconds)
        follower.terminate()
        transactions = await _told(follower)
    return transactions, [age for one in asking for age in one.result()]


async def _append(ledger: Ledger, places: Iterator[Place], seconds: float) -> None:
    """2,000 facts in each second, evenly."""
    begun = time.monotonic()
    for step in range(int(seconds * _STEPS)):
        await asyncio.sleep(max(0.0, begun + step / _STEPS - time.monotonic()))
        step_of = itertools.islice(places, _RATE // _STEPS)
        await asyncio.gather(
            *(ledger.try_append(slot, ledger.with_envelope(event)) for slot, event in step_of)
        )
    late = time.monotonic() - begun - seconds
    if late > 1.0:
        raise AssertionError(f"{_RATE} facts a second were too many: {late:.1f} s late")


async def _has_caught_up(ledger: Ledger, archive: Path) -> None:
    end = await ledger.log.last_seq()
    async with asyncio.timeout(120):
        while True:
            with suppress(OSError, msgspec.MsgspecError):
                if (
                    msgspec.json.decode((archive / "lake" / "manifest.json").read_bytes())["until"]
                    >= end
                ):
                    return
            await asyncio.sleep(0.1)


# ------------------------------------------------------------------------------------ the processes


@asynccontextmanager
async def _process(*arguments: object) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, *map(str, arguments), stdout=PIPE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _ended(running: AbstractAsyncContextManager[Process]) -> list[float]:
    async with running as process:
        return await _told(process)


async def _told(process: Process) -> list[float]:
    said, _ = await process.communicate()
    if process.returncode != 0:
        raise AssertionError(f"a process of the measurement ended with {process.returncode}")
    return msgspec.json.decode(said, type=list[float])


class _Timed(LakeWriter):
    """An archive that records the milliseconds of each of its transactions."""

    transactions: list[float]

    def take(self, batch: Sequence[RawMessage]) -> None:
        begun = time.perf_counter()
        super().take(batch)
        self.transactions.append((time.perf_counter() - begun) * 1000)


async def _follow(store: Path, directory: Path) -> None:
    async with Ledger.connect(store, role="admin") as ledger:
        with _Timed.open(directory, "bench") as archive:
            archive.transactions = []
            writing = asyncio.ensure_future(
                write(ledger, archive, follow=True, wrote=lambda _seq: None)
            )
            try:
                await until_signalled(writing)
            finally:
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing
            print(msgspec.json.encode(archive.transactions).decode())


def _ask(lake: Path, seconds: float) -> None:
    ages = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
            for question in _QUESTIONS:
                rows = db.execute(question).fetchall()
        newest = rows[0][0].replace(tzinfo=UTC)
        ages.append((datetime.now(UTC) - newest).total_seconds())
    print(msgspec.json.encode(ages).decode())


def _part(values: list[float], part: float) -> float:
    """The quantile of the values: the smallest one that this part of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["follow", store, directory]:
            asyncio.run(_follow(Path(store), Path(directory)))
        case ["ask", lake, seconds]:
            _ask(Path(lake), float(seconds))
        case _:
            sys.exit("This is the child process of `python -m bench analysts`.")
