"""The lake: the log as files for analysts, and their verification."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import ToOption, option
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.interfaces.cli.terminal.progress import bar
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import ADDRESS, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.server import EmbeddedServer, is_running
from ayes.ops.lake.sync import (
    BATCH,
    default_directory,
    identity_in,
    subjects_of,
    until_end_or_signal,
)
from ayes.ops.lake.writer import (
    LakeWriter,
    Manifest,
    digest_of,
    microseconds,
    quoted,
    read_manifest,
)
from ayes.schemas.errors import BadInput, Unavailable
from ayes.schemas.ids import token

app: Final = commands()

if TYPE_CHECKING:
    import duckdb

#: Differences that are reported at most.
_MAX_REPORTED: Final = 5


@command(app, examples="ayes lake sync --follow")
async def sync(
    to: ToOption = None,
    follow: Annotated[bool, option("--follow", "Continue with new facts, until Ctrl-C.")] = False,
    workspaces: Annotated[
        str,
        option(
            "--workspaces",
            "NAMES",
            "Only their facts, and the organisation's policies and stops; comma-separated. By "
            "default those of the login, or all.",
        ),
    ] = "",
    *,
    session: Session,
) -> int:
    """Bring the tables up to the log, of a running broker or of a store without one."""
    store, url, json = session
    one_by_one = workspaces.split(",") if workspaces else ()
    named = tuple(sorted({token("workspace", one.strip()) for one in one_by_one}))
    if named and to is None:
        raise BadInput(
            "a lake of some workspaces is in a directory of its own, since the console reads the "
            "store's. Name one with --to."
        )
    async with _connected(store, url) as ledger:
        named = named or tuple(sorted(_own(ledger)))
        directory = to or default_directory(store)
        lake = directory / "lake"
        log = await identity_in(ledger, named)
        begun = time.monotonic()
        with LakeWriter.open(directory, log, named) as archive:
            before, end, had = archive.until, await ledger.log.last_seq(), archive.facts
            if end < before:
                raise BadInput(
                    f"the archive in {directory} has facts up to {before:,}, and the log ends at "
                    f"{end:,}: it is an older copy of itself. Sync into a new directory; the later "
                    "facts exist only in the archive."
                )
            try:
                with bar(end - before) as progress:
                    task = progress.add_task("archiving", total=end - before)

                    def wrote(seq: int) -> None:
                        total = max(end, seq) - before
                        progress.update(task, completed=seq - before, total=total)

                    whole = await until_end_or_signal(ledger, archive, follow=follow, wrote=wrote)
            except BaseException:
                # Publish what was written before the error, which is reported instead of a second
                # one here.
                with suppress(Unavailable):
                    archive.publish()
                raise
            until, facts = archive.publish(), archive.facts - had
        spent = time.monotonic() - begun
    found = {"lake": str(lake), "until": until, "facts": facts, "seconds": round(spent, 3)}
    what = f"what the log has of {', '.join(named)}" if named else "the log"
    session.print(
        found | ({"workspaces": named} if named else {}),
        f"{facts:,} new facts in {spent:.1f} s: the lake in {lake} has {what} up to {until:,}",
    )
    if not whole and not follow:
        print_message("Stopped. Start it again to continue.")
        return 130
    if not json:
        print_message('Next: ayes sql "SELECT tool, verdict, count(*) FROM calls GROUP BY ALL"')
    return 0


def _own(ledger: Ledger) -> tuple[str, ...]:
    """The workspaces of the login; none: all."""
    assert isinstance(ledger.log, JetStream), "it is connected to a broker"
    return ledger.log.connection.login.workspaces


@asynccontextmanager
async def _connected(store: Path | None, url: str | None) -> AsyncGenerator[Ledger]:
    """Connect to the broker; a store without one gets a broker for the duration of the block.

    Raises:
        BadInput: there is no store.
    """
    async with AsyncExitStack() as stack:
        if url is None and not await is_running(Store(store)):
            if not (path := Store(store).path / ADDRESS).exists():
                raise BadInput(f"there is no store in {path.parent}. Name another with --store.")
            await stack.enter_async_context(EmbeddedServer(store))
        yield await stack.enter_async_context(Ledger.connect(store, url=url, role="observer"))


@command(app)
async def verify(to: ToOption = None, *, session: Session) -> int:
    """Check that every file is unchanged, and every row is what the log has. Exit 1 if not.

    A lake of some workspaces shows nothing about the rest of the log.
    """
    store, url, json = session
    lake = (to or default_directory(store)) / "lake"
    manifest = read_manifest(lake)
    problems = _of_files(lake, manifest)
    async with _connected(store, url) as ledger:
        if (own := _own(ledger)) and not {*own}.issuperset(manifest.workspaces or ("*",)):
            raise BadInput(
                f"this login reads {', '.join(own)} alone, and the lake in {lake} has more. Verify "
                "it with a login that reads all of that."
            )
        log = await identity_in(ledger, manifest.workspaces)
        if manifest.until and manifest.log not in {"", log}:
            problems.append(
                f"the lake is of another log ({manifest.log}) than the one that runs ({log})"
            )
        elif not problems:
            problems += await _of_rows(ledger, lake, manifest)
    if json:
        files = len(manifest.segments) + 1
        some = {"workspaces": manifest.workspaces} if manifest.workspaces else {}
        print_json({"until": manifest.until, "files": files, "problems": problems} | some)
    else:
        for problem in problems:
            print_line(f"differs: {problem}")
        if not problems:
            theirs = ", ".join(manifest.workspaces)
            what = f"what the log has of {theirs}" if theirs else "the log"
            print_line(
                f"verified: {len(manifest.segments) + 1:,} files, and their events are {what} up "
                f"to {manifest.until:,}"
            )
            if theirs:
                print_message(
                    "It has no other facts. So it does not show that the log is whole, nor what a "
                    "witness or a backup says of it: a digest is over all facts."
                )
    return 1 if problems else 0


def _of_files(lake: Path, manifest: Manifest) -> list[str]:
    found = []
    for segment in (*manifest.segments, manifest.open):
        file = lake / segment.file
        if not file.is_file():
            found.append(f"{segment.file} is missing")
        elif digest_of(file) != segment.sha256:
            found.append(f"{segment.file} has changed: its digest is another")
    return found


async def _of_rows(ledger: Ledger, lake: Path, manifest: Manifest) -> list[str]:
    """The first differences between the rows of `events` and the messages of the log."""
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
        subjects = subjects_of(manifest.workspaces)
        async with aclosing(ledger.log.raw(1, subjects, until_end=True)) as batches:
            async for batch in batches:
                for one in batch:
                    if one.seq > manifest.until or len(found) >= _MAX_REPORTED:
                        break
                    while row is not None and row[0] < one.seq:
                        found.append(f"row {row[0]:,} of `events` is not a fact of the log")
                        row = next(rows, None)
                    if row is None or row[0] > one.seq:
                        found.append(f"fact {one.seq:,} of the log ({one.subject}) has no row")
                        continue
                    if row != (one.seq, microseconds(one.recorded_at), one.subject, one.data):
                        found.append(
                            f"fact {one.seq:,} of the log ({one.subject}) differs from its row"
                        )
                    row = next(rows, None)
                else:
                    continue
                break
        if row is not None and len(found) < _MAX_REPORTED:
            found.append(f"row {row[0]:,} of `events` is not a fact of the log")
    return found[:_MAX_REPORTED]


def _one_by_one(db: "duckdb.DuckDBPyConnection") -> Iterator[tuple[int, int, str, bytes]]:
    while some := db.fetchmany(BATCH):
        yield from some
