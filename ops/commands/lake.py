"""For analysts and whoever keeps the data: the log as files that anybody may read, and whether they
are what the log says.
"""

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.services import Ledger
from ayes.ops.broker.server import EmbeddedServer, is_running
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import JsonOption, StoreOption, ToOption, UrlOption
from ayes.ops.lake.writer import (
    LakeWriter,
    Manifest,
    digest_of,
    microseconds,
    quoted,
    read_manifest,
)
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.progress import bar
from ayes.ops.workers import until_signalled
from ayes.schemas.errors import BadInput, Unavailable

app: Final = commands()

if TYPE_CHECKING:
    import duckdb

#: Facts of one transaction, and their bytes; and how many bytes may wait while others are handed
#: over.
_BATCH: Final = 30_000
_BATCH_BYTES: Final = 16_000_000
_WAITING_BYTES: Final = 128_000_000
#: What a fact takes up beside its payload, about.
_FACT_BYTES: Final = 250
#: How long a thread may keep the interpreter while another waits for it: the one that writes needs
#: it for moments only.
_SWITCH_S: Final = 0.0005
#: How long what is fresh may wait for analysts, and how often somebody looks.
PUBLISH_S: Final = 0.6
#: So many differences are told at most.
_MOST_TOLD: Final = 5
_LOOK_S: Final = 0.05


@command(app)
async def sync(
    to: ToOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as facts come, until Ctrl-C.")
    ] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Bring the tables up to the log: from a running broker, or from a store that nobody has
    open.
    """
    async with _connected(store, url) as ledger:
        directory = to or default(store)
        log = await _log_of(ledger)
        begun = time.monotonic()
        with LakeWriter.open(directory, log) as archive:
            before, end = archive.until, await ledger.log.last_seq()
            if end < before:
                raise BadInput(
                    f"the archive in {directory} has facts up to {before:,}, and the log ends at "
                    f"{end:,}: it is an older copy of "
                    "itself. Sync into a new directory; what the archive has beyond that stands "
                    "nowhere else."
                )
            try:
                whole = await _written(ledger, archive, end, follow=follow)
            except BaseException:
                # What came before that may be read; what went wrong is told, not that this went
                # wrong too.
                with suppress(Unavailable):
                    archive.publish()
                raise
            until = archive.publish()
        spent = time.monotonic() - begun
    if json:
        told = {
            "lake": str(directory / "lake"),
            "until": until,
            "facts": until - before,
            "seconds": round(spent, 3),
        }
        print_data(msgspec.json.encode(told).decode())
    else:
        print_message(
            f"{until - before:,} facts more in {spent:.1f} s: the lake in {directory / 'lake'} "
            f"has the log up to {until:,}"
        )
    if not whole and not follow:
        print_message("Stopped. Start it again to go on where it stood.")
        return 130
    if not json:
        print_message('Next: ayes sql "SELECT tool, verdict, count(*) FROM calls GROUP BY ALL"')
    return 0


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


async def _log_of(ledger: Ledger) -> str:
    """The log that this ledger reads, named by when the broker created it: no two have the same."""
    return re.sub("[^0-9]", "", await ledger.log.created())


async def _written(ledger: Ledger, archive: LakeWriter, end: int, *, follow: bool) -> bool:
    """Write until the end, or until somebody stops it; was it the end?"""
    done = archive.until
    with bar(end - done) as progress:
        task = progress.add_task("archiving", total=end - done)

        def wrote(seq: int) -> None:
            progress.update(task, completed=seq - done, total=max(end, seq) - done)

        writing = asyncio.ensure_future(_write(ledger, archive, follow=follow, wrote=wrote))
        try:
            await until_signalled(writing)
            return writing.done()
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing


class _Waiting:
    """What was read and not written yet."""

    def __init__(self) -> None:
        self._facts: deque[RawMessage] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._facts)

    def put(self, facts: list[RawMessage]) -> None:
        self._facts.extend(facts)
        self.bytes += sum(map(_size, facts))

    def next(self) -> list[RawMessage]:
        """As many facts as one transaction takes, at least one."""
        batch, size = list[RawMessage](), 0
        while self._facts and len(batch) < _BATCH and size < _BATCH_BYTES:
            batch.append(self._facts.popleft())
            size += _size(batch[-1])
        self.bytes -= size
        return batch


def _size(fact: RawMessage) -> int:
    return len(fact.data) + _FACT_BYTES


async def _write(
    ledger: Ledger, archive: LakeWriter, *, follow: bool, wrote: Callable[[int], None]
) -> None:
    """Read and write at the same time: DuckDB works in a thread, so that the reading never waits
    for it.
    """
    waiting = _Waiting()
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    reading = asyncio.create_task(_read(ledger, archive.until + 1, waiting, until_end=not follow))
    published = time.monotonic()
    try:
        while waiting or not reading.done():
            full = False
            if waiting:
                batch = waiting.next()
                await _beside(archive.take, batch)
                wrote(batch[-1].seq)
                full = archive.full
            else:
                await asyncio.sleep(_LOOK_S)
            if full or (follow and time.monotonic() - published > PUBLISH_S):
                await _beside(archive.publish)
                published = time.monotonic()
        await reading
    finally:
        sys.setswitchinterval(before)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _beside[**P, T](work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Work in a thread. Whoever is stopped meanwhile waits for it: two may not use a connection of
    DuckDB at once.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


async def _read(ledger: Ledger, start: int, waiting: _Waiting, *, until_end: bool) -> None:
    async with aclosing(ledger.log.raw(start, until_end=until_end)) as batches:
        async for batch in batches:
            waiting.put(batch)
            while waiting.bytes > _WAITING_BYTES:  # noqa: ASYNC110 - who empties it is a thread away
                await asyncio.sleep(_LOOK_S)


@command(app)
async def verify(
    to: ToOption = None, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> int:
    """Is every file what was written, and every row what the log has? Exit 1 if not."""
    lake = (to or default(store)) / "lake"
    manifest = read_manifest(lake)
    problems = _of_files(lake, manifest)
    async with _connected(store, url) as ledger:
        log = await _log_of(ledger)
        if log != manifest.log:
            problems.append(
                f"the lake is of another log (created {manifest.log}) than the one that runs "
                f"({log})"
            )
        elif not problems:
            problems += await _of_rows(ledger, lake, manifest)
    if json:
        print_data(
            msgspec.json.encode(
                {"until": manifest.until, "files": len(manifest.segments) + 1, "problems": problems}
            ).decode()
        )
    else:
        for problem in problems:
            print_line(f"differs: {problem}")
        if not problems:
            print_line(
                f"verified: {len(manifest.segments) + 1:,} files, and their events are the log up "
                f"to {manifest.until:,}"
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

    files = ", ".join(quoted(lake / one.file) for one in manifest.segments if one.table == "events")
    if not files:
        return []
    found: list[str] = []
    with duckdb.connect() as db:
        columns = "seq, epoch_us(recorded_at), subject, payload"
        db.execute(  # names of our own files
            f"SELECT {columns} FROM read_parquet([{files}]) ORDER BY seq"  # noqa: S608
        )
        rows = _one_by_one(db)
        row = next(rows, None)
        async with aclosing(ledger.log.raw(1, until_end=True)) as batches:
            async for batch in batches:
                for one in batch:
                    if one.seq > manifest.until or len(found) >= _MOST_TOLD:
                        break
                    while row is not None and row[0] < one.seq:
                        found.append(f"row {row[0]:,} of `events` is no fact of the log")
                        row = next(rows, None)
                    if row is None or row[0] > one.seq:
                        found.append(f"fact {one.seq:,} of the log ({one.subject}) has no row")
                        continue
                    if row != (one.seq, microseconds(one.recorded_at), one.subject, one.data):
                        found.append(
                            f"fact {one.seq:,} of the log ({one.subject}) is not what stands in "
                            "its row"
                        )
                    row = next(rows, None)
                else:
                    continue
                break
        if row is not None and len(found) < _MOST_TOLD:
            found.append(f"row {row[0]:,} of `events` is no fact of the log")
    return found[:_MOST_TOLD]


def _one_by_one(db: "duckdb.DuckDBPyConnection") -> Iterator[tuple[int, int, str, bytes]]:
    while some := db.fetchmany(_BATCH):
        yield from some
