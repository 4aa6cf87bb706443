"""Filling the lake from the log, compared with DuckDB and the broker alone; and querying it.

Ours does everything: staging, decoding, calls, Parquet, manifest, catalog. The floor of writing is
the bare `json_transform` insert of the same messages into a file with the same settings and
columns, without a checkpoint row or calls. The floor of reading and writing is nats-py's reading
alone.

A rebuild is `ayes lake sync` into an empty directory, in its own process: its rate, and its memory.
The saved questions run on the complete lake; their floor is counting the calls.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import duckdb
from msgspec import Struct

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ops.lake.sync import write
from ayes.ops.lake.writer import _SETTINGS, LakeWriter, _arrow, quoted
from ayes.projections.lake import tables
from ayes.projections.lake.counting import Judged
from ayes.projections.lake.queries import QUESTIONS
from bench.logs import Log
from bench.replay import counted, own_peak_mb
from bench.results import Better, Result, compared, in_turns

WORKLOAD: Final = "lake"
#: Facts of one transaction, of ours and of the floor.
_BATCH: Final = 10_000
#: So many messages are held in memory at most, to be written without a broker.
_AT_HAND: Final = 300_000
#: A log of this size or more is read once and not in rounds.
_LONG: Final = 1_000_000
#: How often a question is asked.
_ASKED: Final = 5


class Run(Struct, frozen=True):
    """The result of a process that reads the whole log: facts a second, and its peak memory."""

    rate: float
    peak_mb: float


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Facts a second into the lake, from messages at hand and from the broker; sizes, memory, and
    times of questions.
    """
    async with Ledger.connect(log.store, role="admin") as ledger:
        version = ledger.log.server_version

        def line(
            what: str, unit: str, ours: list[float], floor: list[float], beside: str,
            better: Better, target: float | None = None,
        ) -> Result:  # fmt: skip
            return compared(
                WORKLOAD, what, unit, ours, floor, beside=beside, better=better,
                target=target, facts=log.facts, nats_server=version,
            )  # fmt: skip

        found = await _ingested(log, ledger, rounds, scratch, line)
    return found + await _from_the_broker(log, rounds, scratch, line)


type Line = Callable[..., Result]


# ---------------------------------------------------------------------------- from messages at hand


async def _ingested(
    log: Log, ledger: Ledger, rounds: int, scratch: Path, line: Line
) -> list[Result]:
    raws = await _read_all(ledger, min(log.facts, _AT_HAND))
    payloads = sum(len(one.data) for one in raws) / len(raws)
    at, beside = scratch / "ours", scratch / "floor"

    taken: list[float] = []

    async def ours() -> float:
        shutil.rmtree(at, ignore_errors=True)
        begun, taking = time.perf_counter(), 0.0
        with LakeWriter.open(at, "bench") as archive:
            for first in range(0, len(raws), _BATCH):
                batch_begun = time.perf_counter()
                archive.take(raws[first : first + _BATCH])
                taking += time.perf_counter() - batch_begun
                if archive.full:
                    archive.publish()
            if archive.publish() != raws[-1].seq:
                raise AssertionError(f"{archive.until} of {len(raws)} facts were taken")
        taken.append(len(raws) / taking)
        return len(raws) / (time.perf_counter() - begun)

    async def floor() -> float:
        return _inserted(beside, raws)

    rates, floors = await in_turns(rounds, ours, floor)
    copied = _copied(at, beside)
    parquet = sum(one.stat().st_size for one in (at / "lake").glob("*.parquet")) / len(raws)
    insert = "bare json_transform insert"
    return [
        line("facts into the lake", "facts/s", rates, floors, insert, "higher", 0.8),
        line("facts made durable, for that", "facts/s", taken, floors, insert, "higher"),
        line("facts into the lake, again", "facts/s", rates, [copied], "bare copy of the events "
                                                                       "to Parquet", "higher"),
        line("Parquet a fact", "bytes", [parquet], [payloads], "payload of a fact", "lower"),
    ]  # fmt: skip


async def _read_all(ledger: Ledger, facts: int) -> list[RawMessage]:
    """The messages of the log; other workloads may have added to it."""
    found: list[RawMessage] = []
    async with aclosing(ledger.log.raw(1, until_end=True)) as batches:
        async for batch in batches:
            found.extend(batch)
            if len(found) >= facts:
                break
    return found[:facts]


def _inserted(directory: Path, raws: list[RawMessage]) -> float:
    """Facts a second of the insert alone, in batches as large as ours."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    shape: dict[str, Any] = {}
    for _, path, kind in tables.FIELDS:
        *outer, last = path.split(".")
        place = shape
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = [kind.removesuffix("[]")] if kind.endswith("[]") else kind
    fields = ", ".join(f"fields.{path}" for _, path, _ in tables.FIELDS)
    insert = f"""
        INSERT INTO events
        SELECT seq, recorded_at, subject, s[2], s[3], s[4], s[5], try_cast(s[5] AS INTEGER), s[6],
            {fields}, s[4] = 'call', NULL, NULL, payload
        FROM (
            SELECT *, string_split(subject, '.') AS s,
                json_transform(decode(payload), '{json.dumps(shape)}') AS fields
            FROM arrived
        )
    """  # noqa: S608 - names of our own columns
    with duckdb.connect(str(directory / "working.duckdb"), config=dict(_SETTINGS)) as db:
        db.execute(f"CREATE TABLE events ({tables.EVENTS})")
        begun = time.perf_counter()
        for first in range(0, len(raws), _BATCH):
            batch = raws[first : first + _BATCH]
            db.register("arrived", _arrow(batch, Judged([None] * len(batch), {})))
            db.execute(insert)
            db.unregister("arrived")
        spent = time.perf_counter() - begun
        (rows,) = db.execute("SELECT count(*) FROM events").fetchall()[0]
    if rows != len(raws):
        raise AssertionError(f"{rows} of {len(raws)} facts were inserted")
    return len(raws) / spent


def _copied(ours: Path, floor: Path) -> float:
    """Facts a second into a file of the same events, of ours, by DuckDB alone."""
    lake = quoted(ours / "lake" / "catalog.duckdb")
    with duckdb.connect(str(floor / "copied.duckdb"), config=dict(_SETTINGS)) as db:
        db.execute(f"ATTACH {lake} AS lake (READ_ONLY)")
        db.execute("CREATE TABLE events AS SELECT * FROM lake.events")
        (rows,) = db.execute("SELECT count(*) FROM events").fetchall()[0]
        begun = time.perf_counter()
        db.execute(
            f"COPY events TO {quoted(floor / 'copied.parquet')} (FORMAT parquet, COMPRESSION zstd)"
        )
        return float(rows) / (time.perf_counter() - begun)


def _asked(lake: Path, line: Line) -> list[Result]:
    """Milliseconds for each of the saved questions."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:

        def times(query: str) -> list[float]:
            found = []
            for _ in range(_ASKED):
                begun = time.perf_counter()
                db.execute(query).fetchall()
                found.append((time.perf_counter() - begun) * 1000)
            return found

        counting = times("SELECT count(*) FROM calls")
        (calls,) = db.execute("SELECT count(*) FROM calls").fetchall()[0]
        if not calls:
            raise AssertionError("the lake has no calls")
        asked = sorted((times(one.sql), name) for name, one in QUESTIONS.items())
    middle, slowest = asked[len(asked) // 2], asked[-1]
    return [
        line(
            f"question in the middle: {middle[1]}",
            "ms",
            middle[0],
            counting,
            "counting the calls",
            "lower",
        ),
        line(
            f"slowest question: {slowest[1]}",
            "ms",
            slowest[0],
            counting,
            "counting the calls",
            "lower",
        ),
    ]


# ---------------------------------------------------------------------------------- from the broker


async def _from_the_broker(log: Log, rounds: int, scratch: Path, line: Line) -> list[Result]:
    """Measure each in its own process, for its own peak memory."""
    rebuilt, reading, counting = list[Run](), list[Run](), list[float]()
    for _ in range(rounds if log.facts < _LONG else 1):
        shutil.rmtree(scratch / "whole", ignore_errors=True)
        counting.append(await counted(log.store, log.facts))
        reading.append(await _alone(log, None))
        rebuilt.append(await _alone(log, scratch / "whole"))
    rates, memory = [one.rate for one in rebuilt], [one.peak_mb for one in rebuilt]
    ours, beside = "our own reader, and nothing done", "nats-py ordered consumer, counting"
    return [
        line("from the broker into the lake", "facts/s", rates, counting, beside, "higher", 0.7),
        line("the same", "facts/s", rates, [one.rate for one in reading], ours, "higher"),
        line("peak memory of that", "MB", memory, [one.peak_mb for one in reading], ours, "lower"),
        *_asked(scratch / "whole" / "lake", line),
    ]


async def _written(ledger: Ledger, directory: Path, facts: int) -> float:
    """Facts a second from the log into the lake, read and written as `ayes lake sync` does."""
    with LakeWriter.open(directory, "bench") as archive:
        begun = time.perf_counter()
        await write(ledger, archive, follow=False, wrote=lambda _seq: None)
        until = archive.publish()
        if until < facts:
            raise AssertionError(f"the archive came to {until} of {facts} facts")
        return until / (time.perf_counter() - begun)


async def _only_read(ledger: Ledger, facts: int) -> float:
    count = 0
    begun = time.perf_counter()
    async with aclosing(ledger.log.raw(1, until_end=True)) as batches:
        async for batch in batches:
            count += len(batch)
    if count < facts:
        raise AssertionError(f"{count} of {facts} facts were read")
    return count / (time.perf_counter() - begun)


async def _alone(log: Log, directory: Path | None) -> Run:
    to = [] if directory is None else [str(directory)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name, str(log.store), str(log.facts), *to),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await child.communicate()
    if child.returncode != 0:
        raise AssertionError(f"the process that reads the whole log ended with {child.returncode}")
    rate, peak_mb = map(float, said.split())
    return Run(rate, peak_mb)


async def _alone_once(store: Path, facts: int, directory: Path | None) -> float:
    async with Ledger.connect(store, role="admin") as ledger:
        if directory is None:
            return await _only_read(ledger, facts)
        return await _written(ledger, directory, facts)


if __name__ == "__main__":
    # The child process of `python -m bench lake`: its own memory is measured.
    to = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    print(asyncio.run(_alone_once(Path(sys.argv[1]), int(sys.argv[2]), to)), own_peak_mb())
