"""For analysts and whoever keeps the data: the log as files that anybody may read, and whether they are what the log says."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from consumers.archivist import Archive, Manifest, digest_of, microseconds, quoted, read_manifest
from ledger.address import Store
from ledger.client import Ledger
from ledger.jetstream import JetStream
from ledger.port import Raw
from ops.output import out, say
from ops.replay import log_of
from ops.server import EmbeddedServer, is_running

#: Facts of one transaction, and how many may wait for the next one.
_BATCH: Final = 10_000
_WAITING: Final = 5 * _BATCH
#: How long what is fresh may wait for analysts, and how often somebody looks.
PUBLISH_S: Final = 1.0
#: So many differences are told at most.
_MOST_TOLD: Final = 5
_LOOK_S: Final = 0.05


async def sync(
    *,
    to: Path | None,
    follow: bool,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    """Bring the archive up to the log; with `follow`, keep it there until stopped."""
    async with _connected(store, url) as ledger:
        directory = to or default(store)
        log = (await log_of(ledger)).id
        begun = time.monotonic()
        with Archive.open(directory, log) as archive:
            before = archive.until
            end = await ledger.port.last_seq()
            try:
                await _write(ledger, archive, follow=follow, wrote=lambda done: progress(done, end))
            finally:
                until = archive.publish()
        spent = time.monotonic() - begun
    if json:
        told = {
            "lake": str(directory / "lake"),
            "until": until,
            "facts": until - before,
            "seconds": round(spent, 3),
        }
        out(msgspec.json.encode(told).decode())
    else:
        say(
            f"{until - before:,} facts more in {spent:.1f} s: the lake in {directory / 'lake'} has the log up to {until:,}"
        )
        say('Next: approvals sql "SELECT tool, verdict, count(*) FROM calls GROUP BY ALL"')


def default(store: Path | None) -> Path:
    """Where the archive of a store is kept when nobody says so."""
    return Store(store).path / "archive"


@asynccontextmanager
async def _connected(store: Path | None, url: str | None) -> AsyncGenerator[Ledger]:
    """A ledger that runs; a store that nobody has open is opened for as long as it takes."""
    async with AsyncExitStack() as stack:
        if url is None and not await is_running(Store(store)):
            await stack.enter_async_context(EmbeddedServer(store))
        yield await stack.enter_async_context(Ledger.connect(store, url=url, role="observer"))


async def _write(ledger: Ledger, archive: Archive, *, follow: bool, wrote: Callable[[int], None]) -> None:
    """Read and write at the same time: DuckDB works in a thread, so that the reading never waits for it."""
    waiting: list[Raw] = []
    reading = asyncio.create_task(_read(ledger, archive.until + 1, waiting, until_end=not follow))
    published = time.monotonic()
    try:
        while waiting or not reading.done():
            if waiting:
                batch = waiting[:_BATCH]
                del waiting[:_BATCH]
                await asyncio.to_thread(archive.take, batch)
                wrote(batch[-1].seq)
            else:
                await asyncio.sleep(_LOOK_S)
            if follow and time.monotonic() - published > PUBLISH_S:
                await asyncio.to_thread(archive.publish)
                published = time.monotonic()
        await reading
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(ledger: Ledger, start: int, waiting: list[Raw], *, until_end: bool) -> None:
    assert isinstance(ledger.port, JetStream)
    async with aclosing(ledger.port.raw(start, until_end=until_end)) as batches:
        async for batch in batches:
            waiting.extend(batch)
            while len(waiting) > _WAITING:  # noqa: ASYNC110 - it is a list, and who empties it is a thread away
                await asyncio.sleep(_LOOK_S)


async def verify(*, to: Path | None, store: Path | None, url: str | None, json: bool) -> int:
    """Compare every file with its digest, and every row of `events` with the log; 1 if anything differs."""
    lake = (to or default(store)) / "lake"
    manifest = read_manifest(lake)
    problems = _of_files(lake, manifest)
    async with _connected(store, url) as ledger:
        log = (await log_of(ledger)).id
        if log != manifest.log:
            problems.append(
                f"the lake is of another log (created {manifest.log}) than the one that runs ({log})"
            )
        elif not problems:
            problems += await _of_rows(ledger, lake, manifest)
    if json:
        out(
            msgspec.json.encode(
                {"until": manifest.until, "files": len(manifest.segments) + 1, "problems": problems}
            ).decode()
        )
    else:
        for problem in problems:
            out(f"differs: {problem}")
        if not problems:
            out(
                f"verified: {len(manifest.segments) + 1:,} files, and their events are the log up to {manifest.until:,}"
            )
    return 1 if problems else 0


def _of_files(lake: Path, manifest: Manifest) -> list[str]:
    found = []
    for segment in (*manifest.segments, manifest.open):
        file = lake / segment.file
        if not file.is_file():
            found.append(f"{segment.file} is missing")
        elif digest_of(file) != segment.sha256:
            found.append(f"{segment.file} is not what was written: its digest is another")
    return found


async def _of_rows(ledger: Ledger, lake: Path, manifest: Manifest) -> list[str]:
    """Where the rows of `events` are not the messages of the log; no more than the first few."""
    import duckdb

    assert isinstance(ledger.port, JetStream)
    files = ", ".join(quoted(lake / one.file) for one in manifest.segments if one.table == "events")
    if not files:
        return []
    found: list[str] = []
    with duckdb.connect() as db:
        columns = "seq, epoch_us(recorded_at), subject, payload"
        rows = db.execute(  # names of our own files
            f"SELECT {columns} FROM read_parquet([{files}]) ORDER BY seq"  # noqa: S608
        )
        held: list[tuple[int, int, str, bytes]] = []
        async with aclosing(ledger.port.raw(1, until_end=True)) as batches:
            async for batch in batches:
                for one in batch:
                    if one.seq > manifest.until:
                        break
                    held = held or list(reversed(rows.fetchmany(_BATCH)))
                    there = held.pop() if held else None
                    if there != (one.seq, microseconds(one.recorded_at), one.subject, one.data):
                        found.append(
                            f"fact {one.seq:,} of the log ({one.subject}) is not what stands in its row"
                        )
                    if len(found) == _MOST_TOLD:
                        return found
        if held or rows.fetchone() is not None:
            found.append("there are rows in `events` that are in no log")
    return found
