"""The lake writer: writes the log into tables that analysts read without our programs.

    the log ──► working.duckdb    fresh facts, open calls and the checkpoint; private; one
                     │            transaction a batch
                     │ publish
                     ▼
    lake/  events-*.parquet  calls-*.parquet  open-*.parquet    renamed when complete, then constant
           manifest.json     the files, up to which fact they go, and their digests
           catalog.duckdb    views over these files; replaced by rename

Rows and checkpoint are written in one transaction, so a crash loses none and doubles none. The
working file also lists the files of the lake: one that was written but not listed is removed at the
next start, and one that was replaced stays while a reader may have a catalog open that names it.
All of it can be rebuilt from the log.

Only the lake writer opens the working file. DuckDB locks it against all others, and a lock that an
analyst held would stop the writing; so analysts get files that nobody writes to.
"""

import hashlib
import os
import re
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from msgspec import Struct

from ayes.ledger.log import RawMessage
from ayes.projections.lake import tables
from ayes.projections.lake.counting import Judge, Judged
from ayes.schemas.errors import BadInput, Unavailable
from ayes.schemas.files import move_into_place

if TYPE_CHECKING:
    import duckdb


#: The most rows of a compacted file; a file of half that is not compacted. Larger files are hardly
#: read faster (0.2 ms a file), and are held in memory while they are written.
ROWS_A_FILE: Final = 250_000
#: The same in bytes, for large facts.
BYTES_A_FILE: Final = 128_000_000
#: The number of small files that are compacted into one.
SMALL_FILES: Final = 16
#: How long a file that was replaced stays for its readers.
KEEP_S: Final = 60.0

#: The default checkpoint after 16 MB rewrites the last row group each time: up to fifteen times
#: slower at the worst moment. One thread: a second hardly helps, and each holds rows in memory.
_SETTINGS: Final = {"wal_autocheckpoint": "256MB", "threads": "1", "memory_limit": "2GB"}
#: The tables with segments, in the order of the log: events, and calls by the fact that ended them.
_TABLES: Final = ("events", "calls")
#: The names of our files in the lake; any other file there is left alone.
_OURS: Final = re.compile(
    r"(events|calls|open)-[0-9-]+[.](parquet|writing)|(manifest|catalog[.][0-9]+)[.]writing([.]wal)?"
)


class Segment(Struct, frozen=True):
    """A file of the lake: rows of one table, in the order of the log."""

    table: str
    file: str
    #: The first and last fact of its rows; a call's is the fact that ended it.
    first: int
    last: int
    rows: int
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True):
    version: int
    #: The identity of the log.
    log: str
    #: The last fact in it.
    until: int
    segments: tuple[Segment, ...]
    #: The calls that are open at that fact.
    open: Segment
    #: The workspaces whose facts are in it, with the organisation's policies and stops; none: all
    #: facts.
    workspaces: tuple[str, ...] = ()


class LakeWriter:
    """A directory with a working file and a lake. One process at a time may write to it."""

    def __init__(self, directory: Path, db: "duckdb.DuckDBPyConnection", log: str) -> None:
        self.directory = directory
        self.log = log
        self._db = db
        self._judge = Judge()
        #: Those whose facts it has; none: all facts.
        self.workspaces: tuple[str, ...] = ()

    @classmethod
    @contextmanager
    def open(cls, directory: Path, log: str, workspaces: tuple[str, ...] = ()) -> Generator[Self]:
        """Open the archive of this log, or create one.

        Args:
            log: its identity.
            workspaces: those whose facts it has; none: all.

        Raises:
            BadInput: the archive is of another log, version or set of workspaces.
            Unavailable: another process has it open, or its working file is broken.
        """
        import duckdb

        directory = directory.resolve()  # views name the files by their absolute path
        path = directory / "working.duckdb"
        # All files that are written here, also by DuckDB, are readable by their owner alone.
        before = os.umask(0o077)
        archive = None
        try:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                archive = cls(directory, duckdb.connect(str(path), config=dict(_SETTINGS)), log)
                path.chmod(0o600)
                archive._begin(workspaces)
            except (duckdb.Error, OSError) as problem:
                raise _cannot_open(path, problem) from None
            yield archive
        finally:
            if archive is not None:
                with suppress(duckdb.Error):  # a failure to write was reported already
                    archive._db.close()
            os.umask(before)

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def until(self) -> int:
        """The last fact in the archive, or 0."""
        return int(self._one("SELECT seq FROM checkpoint"))

    @property
    def facts(self) -> int:
        """The number of facts in the archive."""
        return self.fresh + sum(one.rows for one in self.segments if one.table == "events")

    @property
    def fresh(self) -> int:
        """The number of facts that are not published yet."""
        return int(self._one("SELECT count(*) FROM fresh"))

    @property
    def full(self) -> bool:
        """Whether the fresh facts are enough for a file that need not be compacted."""
        query = "SELECT count(*), coalesce(sum(octet_length(payload)), 0) FROM fresh"
        ((rows, size),) = self._db.execute(query).fetchall()
        return _is_large(rows, size)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files of the lake, by table and in the order of the log."""
        return tuple(one for one in self._listed() if one.table in _TABLES)

    def take(self, batch: Sequence[RawMessage]) -> None:
        """Write the next facts of the log and the checkpoint, skipping facts already written.

        Args:
            batch: in the order of the log.
        """
        until = self.until
        new = [raw for raw in batch if raw.seq > until]
        if not new:
            return
        with self._writing():
            known = len(self._judge.odd)
            try:
                judged = self._judge.judge(new, self._recorded)
                odd = list(self._judge.odd)[known:]
                self._db.register("arrived", _arrow(new, judged))
                with self._transaction():
                    # The payloads are parsed later, once for all facts of a file.
                    self._db.execute("INSERT INTO fresh SELECT * FROM arrived")
                    if odd:
                        self._db.execute("INSERT INTO odd_calls SELECT unnest(?)", [odd])
                    self._db.execute("UPDATE checkpoint SET seq = ?", [new[-1].seq])
            except BaseException:
                self._judge = self._new_judge()
                raise
            finally:
                self._db.unregister("arrived")

    def _recorded(self, calls: Collection[str]) -> list[RawMessage]:
        """The facts of these calls in the archive, in the order of the log."""
        wanted = "SELECT unnest(?) AS call"
        subject = "array_to_string(string_split(subject, '.')[:5], '.')"
        sources = ["fresh"]
        if files := [one.file for one in self._listed() if one.table == "events"]:
            sources.append(
                f"read_parquet([{', '.join(quoted(self.lake / file) for file in files)}])"
            )
        found: list[RawMessage] = []
        for source in reversed(sources):
            # They are found without reading the payloads, which are most of a file.
            seqs = self._db.execute(
                f"SELECT seq FROM {source} WHERE {subject} IN ({wanted})", [list(calls)]
            ).fetchall()
            if seqs:
                rows = self._db.execute(
                    f"SELECT seq, recorded_at, subject, payload FROM {source} "
                    "WHERE seq IN (SELECT unnest(?)) ORDER BY seq",
                    [[seq for (seq,) in seqs]],
                ).fetchall()
                found += [
                    RawMessage(seq, at.replace(tzinfo=UTC), where, data)
                    for seq, at, where, data in rows
                ]
        return found

    def _new_judge(self) -> Judge:
        return Judge(call for (call,) in self._db.execute("SELECT call FROM odd_calls").fetchall())

    def publish(self, *, keep_s: float = KEEP_S) -> int:
        """Move the fresh facts to the lake. Returns the last fact that the lake has then."""
        with self._writing():
            until = self.until
            if self.fresh or not self._is_published():
                self.lake.mkdir(exist_ok=True)
                self._flush()
                while small := _compaction_candidates(self.segments):
                    self._compact(small)
                self._write_catalog(until)
                self._sweep(keep_s)
            return until

    def _flush(self) -> None:
        """Write the fresh facts and the calls that ended with them to files, in one transaction."""
        with self._transaction():
            ((first, last, rows),) = self._db.execute(
                "SELECT min(seq), max(seq), count(*) FROM fresh"
            ).fetchall()
            if rows:
                events = self._export("events", tables.READ, first, last, rows)
                self._enter(events)
                self._end_calls(f"read_parquet({quoted(self.lake / events.file)})", first)
                self._db.execute("DELETE FROM fresh")

    def _end_calls(self, events: str, first: int) -> None:
        """Write the calls that ended with these events to a file, and keep the events of open ones.

        This is done once for all batches of a file: done for each, it cost more than writing them.
        """
        key = "workspace, thread, call"
        self._db.execute(
            f"CREATE TEMP TABLE story AS SELECT {', '.join(tables.OF_CALLS)} FROM {events} WHERE "
            "stands_as IS NOT NULL"
        )
        # Of the calls that were open, only those that ended are read.
        self._db.execute(
            "INSERT INTO story SELECT * FROM open_events "
            f"SEMI JOIN (SELECT {key} FROM story WHERE {tables.ENDS}) USING ({key})"
        )
        self._db.execute(
            f"CREATE TEMP TABLE calls AS SELECT * FROM ({tables.calls('story')}) "
            "WHERE ended_at IS NOT NULL ORDER BY last_seq"
        )
        ((begin, end, rows),) = self._db.execute(
            "SELECT min(last_seq), max(last_seq), count(*) FROM calls"
        ).fetchall()
        if rows:
            self._enter(self._export("calls", "FROM calls", begin, end, rows))
        self._db.execute(f"DELETE FROM open_events WHERE ({key}) IN (SELECT ({key}) FROM calls)")
        self._db.execute(
            f"INSERT INTO open_events SELECT * FROM story ANTI JOIN calls USING ({key}) WHERE seq "
            f">= {first}"
        )
        self._db.execute("DROP TABLE story")
        self._db.execute("DROP TABLE calls")

    # ----------------------------------------------------------------------------- the working file

    def _begin(self, workspaces: tuple[str, ...]) -> None:
        with self._transaction():
            self._db.execute(f"CREATE TABLE IF NOT EXISTS fresh ({tables.RAW})")
            # The events of open calls.
            columns = [
                one for one in tables.COLUMNS.split(", ") if one.split()[0] in tables.OF_CALLS
            ]
            self._db.execute(f"CREATE TABLE IF NOT EXISTS open_events ({', '.join(columns)})")
            # The calls that only the lifecycle can judge; see projections/lake/counting.py.
            self._db.execute("CREATE TABLE IF NOT EXISTS odd_calls (call VARCHAR)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS segments (kind VARCHAR, file VARCHAR, first UBIGINT, "
                "last UBIGINT, rows UBIGINT, bytes UBIGINT, sha256 VARCHAR)"
            )
            # Replaced files, and since when no catalog names them (NULL while one does).
            self._db.execute("CREATE TABLE IF NOT EXISTS retired (file VARCHAR, since DOUBLE)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS checkpoint "
                "(seq UBIGINT, log VARCHAR, version INTEGER, shown_in VARCHAR)"
            )
            self._db.execute(
                "ALTER TABLE checkpoint ADD COLUMN IF NOT EXISTS workspaces VARCHAR DEFAULT ''"
            )
            if not self._one("SELECT count(*) FROM checkpoint"):
                begun = [self.log, tables.VERSION, " ".join(workspaces)]
                self._db.execute("INSERT INTO checkpoint VALUES (0, ?, ?, NULL, ?)", begun)
        log, version = self._db.execute("SELECT log, version FROM checkpoint").fetchall()[0]
        if version != tables.VERSION:
            raise BadInput(
                f"the archive in {self.directory} is of version {version}, and this program "
                f"writes version {tables.VERSION}. Sync into a new directory: all of it is in the "
                "log."
            )
        self.workspaces = tuple(self._one("SELECT workspaces FROM checkpoint").split())
        if workspaces != self.workspaces:
            has = f"the workspaces {','.join(self.workspaces)}" if self.workspaces else "all"
            raise BadInput(
                f"the archive in {self.directory} was begun for {has}. Name the same ones, or sync "
                "into another directory."
            )
        if not log or not self.until:  # begun before the first fact, so that it has no identity yet
            self._db.execute("UPDATE checkpoint SET log = ?", [self.log])
        elif log != self.log:
            raise BadInput(
                f"the archive in {self.directory} is of another log than the one that runs "
                f"({log}, not {self.log}). Sync this one into a directory of its own; if the other "
                "log is gone, the archive is the only copy of it."
            )
        self.workspaces = tuple(self._one("SELECT workspaces FROM checkpoint").split())
        self._judge = self._new_judge()
        self._check_lake()
        self._sweep(KEEP_S)

    def _check_lake(self) -> None:
        """Refuse to overwrite the lake of another working file."""
        found = _read_manifest(self.lake)
        if isinstance(found, Manifest):
            is_named = found.log in {"", self.log} or not found.until
            ours = is_named and found.version == tables.VERSION and found.until <= self.until
        else:
            # The working file lists the files, so it can restore a manifest that is lost or broken.
            ours = isinstance(found, FileNotFoundError) or bool(self._listed())
        if not ours:
            raise BadInput(
                f"the lake in {self.lake} was not written by the working file next to it, which "
                f"goes to fact {self.until:,}. Move both away, or sync into a new directory: all "
                "of it is in the log."
            )

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._db.execute("BEGIN TRANSACTION")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            import duckdb

            with suppress(duckdb.Error):  # DuckDB may have rolled back already
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Report failures of DuckDB or the disk as `Unavailable`."""
        import duckdb

        try:
            yield
        except (duckdb.Error, OSError) as problem:
            raise Unavailable(
                f"the archive in {self.directory} cannot be written: {_first_line(problem)} The "
                "archive is intact, and the rest is in the log. Make room, or check the disk, and "
                "sync again; if that does not help, sync into a new directory."
            ) from None

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchall()[0][0]

    # ------------------------------------------------------------------------------------- the lake

    def _export(self, table: str, query: str, first: int, last: int, rows: int) -> Segment:
        """Write rows of a table, in the order of the log, to a file of the lake."""
        file = self.lake / f"{table}-{first:012d}-{last:012d}.parquet"
        digest = self._write(file, query)
        return Segment(table, file.name, first, last, rows, file.stat().st_size, digest)

    def _write(self, file: Path, query: str) -> str:
        """Write a file atomically, and return its digest."""
        temporary = file.with_suffix(".writing")
        self._db.execute(
            f"COPY ({query}) TO {quoted(temporary)} "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
        digest = digest_of(temporary)
        move_into_place(temporary, file)
        return digest

    def _listed(self) -> tuple[Segment, ...]:
        rows = self._db.execute("SELECT * FROM segments ORDER BY kind, first").fetchall()
        return tuple(Segment(*row) for row in rows)

    def _enter(self, segment: Segment, *, instead_of: Iterable[Segment] = ()) -> None:
        for one in instead_of:
            self._db.execute("DELETE FROM segments WHERE file = ?", [one.file])
            self._db.execute("INSERT INTO retired VALUES (?, NULL)", [one.file])
        self._db.execute(
            "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
            list(msgspec.structs.astuple(segment)),
        )

    def _compact(self, small: Sequence[Segment]) -> None:
        """Write consecutive small files as one."""
        files = ", ".join(quoted(self.lake / one.file) for one in small)
        first, last, rows = small[0].first, small[-1].last, sum(one.rows for one in small)
        whole = self._export(small[0].table, f"FROM read_parquet([{files}])", first, last, rows)
        with self._transaction():
            self._enter(whole, instead_of=small)

    def _write_catalog(self, until: int) -> None:
        """Publish the present state: the catalog of views, and then the manifest, which marks the
        end.
        """
        file = self.lake / f"open-{until:012d}.parquet"
        digest = self._write(file, tables.calls("open_events"))
        rows = int(self._one(f"SELECT count(*) FROM read_parquet({quoted(file)})"))
        before = [one for one in self._listed() if one.table not in _TABLES]
        with self._transaction():
            open_ = Segment("open_calls", file.name, 0, until, rows, file.stat().st_size, digest)
            self._enter(open_, instead_of=before)
        manifest = self._manifest()
        write_catalog(self._db, self.lake, manifest)
        temporary = self.lake / "manifest.writing"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        move_into_place(temporary, self.lake / "manifest.json")
        self._db.execute("UPDATE retired SET since = ? WHERE since IS NULL", [time.time()])
        self._db.execute("UPDATE checkpoint SET shown_in = ?", [str(self.lake)])

    def _manifest(self) -> Manifest:
        (open_calls,) = (one for one in self._listed() if one.table not in _TABLES)
        return Manifest(
            tables.VERSION, self.log, open_calls.last, self.segments, open_calls, self.workspaces
        )

    def _is_published(self) -> bool:
        """Whether catalog and manifest are up to date, which an interruption may have prevented."""
        found = _read_manifest(self.lake)
        return (
            isinstance(found, Manifest)
            and (self.lake / "catalog.duckdb").exists()
            # Its views name absolute paths, so after a move it must be written again.
            and self._one("SELECT shown_in FROM checkpoint") == str(self.lake)
            and found.until == self.until
            and found == self._manifest()
        )

    def _sweep(self, keep_s: float) -> None:
        """Remove half-written files, and files that were replaced some time ago."""
        self._db.execute("DELETE FROM retired WHERE since <= ?", [time.time() - keep_s])
        if not self.lake.is_dir():
            return
        retired = self._db.execute("SELECT file FROM retired").fetchall()
        known = {one.file for one in self._listed()} | {file for (file,) in retired}
        for file in self.lake.iterdir():
            if _OURS.fullmatch(file.name) and file.name not in known:
                file.unlink(missing_ok=True)


def read_manifest(lake: Path) -> Manifest:
    """The manifest of a lake.

    Raises:
        BadInput: there is none, it cannot be read, or it is of another version.
    """
    manifest = _read_manifest(lake)
    if isinstance(manifest, FileNotFoundError):
        raise BadInput(f"there is no lake in {lake}. `ayes lake sync` makes one.")
    if isinstance(manifest, Exception):
        raise BadInput(
            f"{lake / 'manifest.json'} cannot be read: {manifest}. `ayes lake sync` rewrites it."
        )
    if manifest.version != tables.VERSION:
        raise BadInput(
            f"the lake in {lake} is of version {manifest.version}, and this program reads version "
            f"{tables.VERSION}. Use the program that wrote it, or sync into a new directory."
        )
    return manifest


def _read_manifest(lake: Path) -> Manifest | Exception:
    """The manifest of a lake, or why it cannot be read."""
    try:
        return msgspec.json.decode((lake / "manifest.json").read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return problem


def write_catalog(db: "duckdb.DuckDBPyConnection", lake: Path, manifest: Manifest) -> None:
    """Write a DuckDB file with views of the lake's files, replaced by rename, so that readers keep
    the one they opened.
    """
    import duckdb

    temporary = lake / f"catalog.{os.getpid()}.writing"
    temporary.unlink(missing_ok=True)
    # Attached to the open connection, since a new one takes twice as long to start. The storage
    # version is for readers with an older DuckDB.
    db.execute(f"ATTACH {quoted(temporary)} AS catalog (STORAGE_VERSION 'v1.2.0')")
    try:
        db.execute("USE catalog")
        db.execute("BEGIN TRANSACTION")
        db.execute(f"CREATE VIEW events AS {_reading(lake, manifest, 'events')}")
        db.execute(
            "CREATE VIEW open_calls AS SELECT * FROM "
            f"read_parquet({quoted(lake / manifest.open.file)})"
        )
        ended = _reading(lake, manifest, "calls")
        db.execute(f"CREATE VIEW calls AS ({ended}) UNION ALL SELECT * FROM open_calls")
        for name, query in tables.VIEWS.items():
            db.execute(f"CREATE VIEW {name} AS {query}")
        for name, query in tables.MACROS.items():
            db.execute(f"CREATE MACRO {name} AS TABLE {query}")
        db.execute("COMMIT")
    finally:
        with suppress(duckdb.Error):  # the first failure is reported already
            db.rollback()
        with suppress(duckdb.Error):
            db.execute("USE working")
            db.execute("DETACH catalog")
    move_into_place(temporary, lake / "catalog.duckdb")


def _reading(lake: Path, manifest: Manifest, table: str) -> str:
    """The query for the rows of a table in files, also if there is no file yet."""
    files = ", ".join(quoted(lake / one.file) for one in manifest.segments if one.table == table)
    if files:
        return f"SELECT * FROM read_parquet([{files}])"
    if table == "calls":
        return "SELECT * FROM open_calls LIMIT 0"
    columns = (
        column.split(maxsplit=1) for column in tables.EVENTS.replace(" NOT NULL", "").split(", ")
    )
    return (
        f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {name}' for name, kind in columns)} LIMIT 0"
    )


def _compaction_candidates(segments: Iterable[Segment]) -> Sequence[Segment]:
    """Adjacent small segments to compact: `SMALL_FILES`, or enough rows for a large file."""
    for table in _TABLES:
        found: list[Segment] = []
        for segment in segments:
            if segment.table != table:
                continue
            if _is_large(segment.rows, segment.bytes):
                found.clear()  # only adjacent segments are compacted
                continue
            found.append(segment)
            enough = _is_large(sum(one.rows for one in found), sum(one.bytes for one in found))
            if len(found) == SMALL_FILES or (enough and len(found) > 1):
                return found
    return ()


def _is_large(rows: int, size: int) -> bool:
    return rows * 2 >= ROWS_A_FILE or size * 2 >= BYTES_A_FILE


def _arrow(batch: Sequence[RawMessage], judged: Judged) -> Any:
    import pyarrow as pa

    # A fact with a place in its call's row counts; `others` has the exceptions.
    counts = [place is not None for place in judged.stands_as]
    void = pa.nulls(len(batch), pa.string())
    if judged.others:
        for index, one in judged.others.items():
            counts[index] = one.counts
        whys = {index: one.void for index, one in judged.others.items()}
        void = pa.array([whys.get(index) for index in range(len(batch))], pa.string())
    return pa.table(
        {
            "seq": pa.array([one.seq for one in batch], pa.uint64()),
            "recorded_at": pa.array([one.recorded_at for one in batch], pa.timestamp("us")),
            "subject": pa.array([one.subject for one in batch], pa.string()),
            "payload": pa.array([one.data for one in batch], pa.binary()),
            "counts": pa.array(counts, pa.bool_()),
            "stands_as": pa.array(judged.stands_as, pa.string()),
            "void": void,
        }
    )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _cannot_open(path: Path, problem: Exception) -> Unavailable:
    said = _first_line(problem)
    if "Could not set lock" in said:
        return Unavailable(
            f"another process writes the archive in {path.parent}. Only one may; stop that one "
            "first."
        )
    return Unavailable(
        f"the working file {path} cannot be opened: {said} If the disk is full, make room; if the "
        f"file is broken, move it and {path.parent / 'lake'} away, and sync again: all of it is "
        "in the log."
    )


def _first_line(problem: Exception) -> str:
    said = str(problem).partition("\n")[0].rstrip(".")
    return f"{said}."


def quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def digest_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
