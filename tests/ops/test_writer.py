"""The archive under everything that a machine does to it: killed, cut short, full, copied, opened
twice.

The process that writes is a child of the test, and dies at a moment that nobody chose; what it
leaves is looked at as the next start would, and as an analyst would who knows nothing of it.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from archive_log import LOG, START, facts
from long import sampled
from paths import ROOT, TESTS
from program import Started, python

from ayes.ledger.log import RawMessage
from ayes.ops.lake import writer
from ayes.ops.lake.writer import (
    LakeWriter,
    Segment,
    _compaction_candidates,
    digest_of,
    read_manifest,
)
from ayes.projections.lake import tables
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BadInput, Unavailable

#: How often a process is killed at a random moment, for each of two tests: `make kills` sets 100.
KILLS = int(os.environ.get("KILLS", "4"))
#: The process that is killed: it takes batches of any size, publishes now and then, and tells how
#: far it came.
CHILD = '''
import random, sys, time
from contextlib import contextmanager
from pathlib import Path

from archive_log import FACTS, LOG, facts
from ayes.ops.lake import writer
from ayes.ops.lake.writer import LakeWriter
from ayes.projections.lake import tables
import pyarrow  # so that its time is not the first batch's

directory, seed = Path(sys.argv[1]), int(sys.argv[4])
publishing, split = sys.argv[2] == "1", sys.argv[3] == "1"
chance = random.Random(seed)
writer.SMALL_FILES = 4

class Split(LakeWriter):
    @contextmanager
    def _transaction(self):
        yield  # each statement by itself: rows and checkpoint apart

class Held:
    """A connection that waits for its death before it writes one of its next checkpoints."""

    def __init__(self, db):
        self._db, self._left = db, chance.randint(0, 3)

    def execute(self, query, *values):
        if query.startswith("UPDATE checkpoint"):
            if not self._left:
                print("between", flush=True)
                time.sleep(600)
            self._left -= 1
        return self._db.execute(query, *values)

    def __getattr__(self, name):
        return getattr(self._db, name)

raws = facts(FACTS)
with (Split if split else LakeWriter).open(directory, LOG) as archive:
    if split:
        archive._db = Held(archive._db)
    print("open", archive.until, flush=True)
    while archive.until < len(raws):
        # As after a delivery that was not acknowledged: some of it was there before.
        start = max(0, archive.until - chance.randint(0, 50))
        archive.take(raws[start : start + chance.randint(60, 200)])
        if publishing:
            archive.publish(keep_s=3.0)
        print("went on", flush=True)
    archive.publish()
    print("done", archive.until, flush=True)
'''


def one(db: duckdb.DuckDBPyConnection, query: str):
    ((found,),) = db.execute(query).fetchall()
    return found


@contextmanager
def writing(directory: Path, *, publishing: bool, seed: int, split: bool = False):
    """A process that writes the archive, once it has opened it."""
    arguments = [str(directory), str(int(publishing)), str(int(split)), str(seed)]
    path = [str(TESTS / "support"), str(ROOT)]
    code = f"import sys; sys.path[:0] = {path!r}\n{CHILD}"
    with Started(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().startswith("open")
            yield process
        finally:
            process.kill()


def look_at(directory: Path) -> tuple[int, list[str]]:
    """How far it came, and what is wrong with it: of the working file and the lake together."""
    problems = []
    with LakeWriter.open(directory, LOG) as archive:
        until = archive.until
        files = [archive.lake / each.file for each in archive.segments if each.table == "events"]
        every = "SELECT seq FROM fresh"
        if files:
            every += f" UNION ALL SELECT seq FROM read_parquet({list(map(str, files))})"
        query = f"SELECT count(*), count(DISTINCT seq), coalesce(max(seq), 0) FROM ({every})"
        (counted,) = archive._db.execute(query).fetchall()
        if set(counted) != {until}:
            problems.append(f"rows, distinct, last: {counted}, and the checkpoint is {until}")
        archive.publish()
        manifest = read_manifest(archive.lake)
    problems += [
        f"{segment.file} is not what was entered"
        for segment in (*manifest.segments, manifest.open)
        if digest_of(directory / "lake" / segment.file) != segment.sha256
    ]
    if manifest.until != until or read_lake(directory / "lake") != (until,) * 3:
        problems.append("the lake has not what the working file has")
    with duckdb.connect(directory / "lake" / "catalog.duckdb", read_only=True) as lake:
        again = f"({tables.calls('events')})"
        for left, right in (("calls", again), (again, "calls")):
            if differing := one(
                lake, f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})"
            ):
                problems.append(f"{differing} calls differ from what the events say")
    return until, problems


def read_lake(lake: Path) -> tuple[int, int, int]:
    """What an analyst sees: rows, distinct, last."""
    with duckdb.connect(lake / "catalog.duckdb", read_only=True) as db:
        query = "SELECT count(*), count(DISTINCT seq), coalesce(max(seq), 0) FROM events"
        (counted,) = db.execute(query).fetchall()
        one(db, "SELECT count(*) FROM calls")
    return counted


def killed(directory: Path, chance: random.Random, *, publishing: bool) -> None:
    """Let it write a few batches, and kill it in the middle of one."""
    seed = chance.randrange(10**6)
    with writing(directory, publishing=publishing, seed=seed) as process:
        for _ in range(chance.randint(0, 6)):
            process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.03))
        process.kill()


# ----------------------------------------------------------------------------- killed at any moment


def test_all_that_is_written_is_its_owners_alone(tmp_path):
    """In a directory that everybody may read, too: the tables hold all arguments."""
    tmp_path.chmod(0o755)
    with LakeWriter.open(tmp_path, LOG) as archive:
        archive.take(facts(100))
        archive.publish()
        modes = {
            path.relative_to(tmp_path): path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")
        }
    assert len(modes) > 4
    assert {name for name, others in modes.items() if others} == set()


def test_killed_while_it_takes_batches_nothing_is_lost_or_doubled(tmp_path):
    """Rows, distinct rows and the checkpoint are one number after each kill."""
    chance = random.Random(1)
    reached = []
    for kill in range(KILLS):
        directory = tmp_path / str(kill // 10)
        killed(directory, chance, publishing=False)
        until, problems = look_at(directory)
        assert problems == [], f"after kill {kill}"
        reached.append(until)
    assert len(set(reached)) > KILLS // 4, "it was killed at work, not before or behind it"


def test_with_the_checkpoint_in_a_transaction_of_its_own_it_would_be(tmp_path):
    """So the test above can fail: rows double when a kill falls before the checkpoint."""
    for seed in range(KILLS):
        directory = tmp_path / str(seed)
        with writing(directory, publishing=False, split=True, seed=seed) as process:
            while process.stdout.readline() != "between\n":
                assert process.poll() is None
            process.kill()
        assert look_at(directory)[1], "nothing was doubled"


@pytest.mark.long
def test_killed_while_it_publishes_the_lake_can_be_read_all_the_time(tmp_path):
    """Each fact is found once, beside the writer and after its death; the rest is removed."""
    chance = random.Random(3)
    shown = 0
    for kill in range(KILLS):
        if kill % 10 == 0:
            directory, last = tmp_path / str(kill), 0
        with writing(directory, publishing=True, seed=kill) as process:
            for _ in range(chance.randint(0, 3)):
                process.stdout.readline()
            end = time.monotonic() + chance.uniform(0.0, 0.5)
            while time.monotonic() < end:
                if (directory / "lake" / "catalog.duckdb").exists():
                    assert_whole(directory, last)
                time.sleep(0.02)
            process.kill()
        if not (directory / "lake" / "catalog.duckdb").exists():
            continue
        last = assert_whole(directory, last)
        with LakeWriter.open(directory, LOG) as archive:
            known = {segment.file for segment in archive._listed()}
            retired = {
                file for (file,) in archive._db.execute("SELECT file FROM retired").fetchall()
            }
            assert {file.name for file in archive.lake.glob("*.parquet")} <= known | retired
            assert not list(archive.lake.glob("*.writing"))
        assert_whole(directory, last)
        # What was handed over, but not shown yet, is shown at the next opportunity, whether facts
        # come or not.
        until, problems = look_at(directory)
        assert problems == []
        last, shown = until, shown + 1
    assert shown > KILLS // 4


def assert_whole(directory: Path, last: int) -> int:
    rows, distinct, until = read_lake(directory / "lake")
    assert rows == distinct == until >= last
    return until


def test_stopped_between_handing_over_and_showing_it_shows_at_the_next_start(tmp_path, monkeypatch):
    """The catalog of before stays readable until then: the files that it names are kept."""
    raws = facts(2_000)
    with LakeWriter.open(tmp_path, LOG) as archive:
        archive.take(raws[:1_000])
        archive.publish()
    monkeypatch.setattr(writer, "SMALL_FILES", 2)
    with LakeWriter.open(tmp_path, LOG) as archive:
        archive.take(raws[1_000:2_000])
        with monkeypatch.context() as patch:
            patch.setattr(writer, "write_catalog", _dies)
            with pytest.raises(KeyboardInterrupt):
                archive.publish(keep_s=0.0)
    assert read_lake(tmp_path / "lake") == (1_000,) * 3
    with LakeWriter.open(tmp_path, LOG) as archive:
        assert read_lake(tmp_path / "lake") == (1_000,) * 3
        assert archive.fresh == 0
        assert archive.publish() == archive.until
        assert read_lake(tmp_path / "lake") == (archive.until,) * 3


@pytest.mark.parametrize("part", sampled((4, 1), 4))
def test_facts_as_large_as_they_may_be_are_handed_over_before_they_fill_the_memory(
    tmp_path, monkeypatch, part
):
    """So many bytes are enough for a file, however few facts; DuckDB has room for them."""
    monkeypatch.setattr(writer, "BYTES_A_FILE", writer.BYTES_A_FILE // part)
    chance = random.Random(5)
    raws = [
        RawMessage(
            seq,
            START,
            f"ledger.acme.t{seq}.said.m",
            encode(e.Said(role="user", text=chance.randbytes(250_000).hex())),
        )
        for seq in range(1, 160 // part + 1)
    ]
    with LakeWriter.open(tmp_path, LOG) as archive:
        for first in range(0, len(raws), 32):
            archive.take(raws[first : first + 32])
            if archive.full:
                archive.publish()
        assert archive.publish() == len(raws)
        assert [segment.rows for segment in archive.segments] == [128 // part, 32 // part]
    assert read_lake(tmp_path / "lake") == (len(raws),) * 3


def test_an_archive_that_was_moved_shows_its_files_where_they_are_now(tmp_path):
    """The views name whole paths; nothing new has to come for the catalog to be written anew."""
    with LakeWriter.open(tmp_path / "here", LOG) as archive:
        archive.take(facts(500))
        until = archive.publish()
    (tmp_path / "here").rename(tmp_path / "there")
    with LakeWriter.open(tmp_path / "there", LOG) as archive:
        assert archive.publish() == until
    assert read_lake(tmp_path / "there" / "lake") == (until,) * 3


def _dies(*_):
    raise KeyboardInterrupt


# ----------------------------------------------------------------------------------------- the lake


def test_of_small_files_one_is_made_and_who_has_the_old_catalog_open_keeps_reading(
    tmp_path, monkeypatch
):
    """A replaced file stays for `keep_s`, counted from when no catalog names it."""
    monkeypatch.setattr(writer, "SMALL_FILES", 4)
    raws = facts(400)
    with LakeWriter.open(tmp_path, LOG) as archive:
        parts = _parts(raws, writer.SMALL_FILES)
        for part in parts[:-1]:
            archive.take(part)
            archive.publish()
        assert _files(archive) == writer.SMALL_FILES - 1
        for file in archive.lake.glob("*.parquet"):
            _make_old(file)
        before = len(raws) - len(parts[-1])
        with duckdb.connect(archive.lake / "catalog.duckdb", read_only=True) as analyst:
            archive.take(parts[-1])
            archive.publish()
            assert _files(archive) == 1
            assert one(analyst, "SELECT count(*) FROM events") == before
            assert one(analyst, "SELECT count(*) FROM calls") > 0
        # Within one process DuckDB hands out what it has open, so only now is it the new one.
        assert read_lake(archive.lake) == (len(raws),) * 3
        more = RawMessage(len(raws) + 1, START, "ledger.acme.t1.said.more", b"{}")
        archive.take([more])
        archive.publish(keep_s=0.0)
        names = {file.name for file in archive.lake.glob("*.parquet")}
        manifest = read_manifest(archive.lake)
        assert names == {segment.file for segment in (*manifest.segments, manifest.open)}
        assert read_lake(archive.lake) == (len(raws) + 1,) * 3


def _parts(raws: list[RawMessage], count: int) -> list[list[RawMessage]]:
    size = -(-len(raws) // count)
    return [raws[start : start + size] for start in range(0, len(raws), size)]


def _files(archive: LakeWriter) -> int:
    return sum(segment.table == "events" for segment in archive.segments)


def _make_old(file: Path) -> None:
    os.utime(file, (0, 0))


def test_only_files_that_follow_each_other_are_put_compaction_candidates():
    """A large one between them stays where it is, so that the files are in the order of the log."""
    small = [Segment("events", f"s{n}", n, n, 10, 1, "") for n in range(40)]
    large = Segment("events", "large", 20, 20, writer.ROWS_A_FILE, 1, "")
    segments = [*small[:10], large, *small[11:40]]
    assert [each.first for each in _compaction_candidates(segments)] == list(
        range(11, 11 + writer.SMALL_FILES)
    )
    assert _compaction_candidates([*small[:10], large, *small[11:20]]) == ()
    halves = [
        Segment("calls", f"h{n}", n, n, writer.ROWS_A_FILE // 2 - 1, 1, "")
        for n in range(writer.SMALL_FILES)
    ]
    assert _compaction_candidates(halves) == halves[:2]


def test_what_others_put_into_the_lake_stays(tmp_path):
    """Half-written files of ours go; a notebook of somebody else's is none of our business."""
    with LakeWriter.open(tmp_path, LOG) as archive:
        archive.take(facts(200))
        archive.publish()
    lake = tmp_path / "lake"
    ours = ("events-000000000900-000000000901.parquet", "calls-1-2.writing", "manifest.writing")
    theirs = ("mine.parquet", "notes.txt", "events.parquet")
    for name in (*ours, *theirs):
        (lake / name).write_bytes(b"PAR1 half of it")
    with LakeWriter.open(tmp_path, LOG) as archive:
        assert not any((lake / name).exists() for name in ours)
        assert all((lake / name).exists() for name in theirs)
        assert read_lake(lake) == (archive.until,) * 3


def test_an_empty_log_has_a_lake_too(tmp_path):
    """Every table is there, with no rows and its columns."""
    with LakeWriter.open(tmp_path, LOG) as archive:
        assert archive.publish() == 0
        with duckdb.connect(archive.lake / "catalog.duckdb", read_only=True) as db:
            for table in ("events", "calls", "open_calls", *tables.VIEWS, "calls_until(5)"):
                assert db.execute(f"SELECT * FROM {table}").fetchall() == []
            assert len(db.execute("DESCRIBE events").fetchall()) == len(tables.EVENTS.split(", "))


def test_a_lake_is_read_from_wherever_one_stands(tmp_path, monkeypatch):
    """Views name their files by the whole path, however the archive was named."""
    monkeypatch.chdir(tmp_path)
    with LakeWriter.open(Path("here"), LOG) as archive:
        archive.take(facts(200))
        archive.publish()
    monkeypatch.chdir("/")
    assert read_lake(tmp_path / "here" / "lake")[0] >= 200


# ---------------------------------------------------------------------------------------- bad input


@pytest.fixture
def archive(tmp_path) -> Path:
    """An archive whose lake has all but the last facts."""
    raws = facts(600)
    with LakeWriter.open(tmp_path / "archive", LOG) as archive:
        archive.take(raws[:500])
        archive.publish()
        archive.take(raws[500:])
    return tmp_path / "archive"


def opened(directory: Path, log: str = LOG) -> int:
    with LakeWriter.open(directory, log) as archive:
        return archive.until


def content(directory: Path) -> dict[str, str]:
    return {file.name: digest_of(file) for file in (directory / "lake").iterdir()}


@contextmanager
def refused(directory: Path, error: type[Exception], *words: str):
    """It says what is wrong, and leaves the lake as it was."""
    before = content(directory)
    with pytest.raises(error) as problem:
        yield
    for word in words:
        assert word in str(problem.value)
    assert str(problem.value).endswith(".")
    assert content(directory) == before


def test_a_working_file_that_was_cut_short(archive):
    """It says what to do, and the lake stays readable."""
    working = archive / "working.duckdb"
    data = working.read_bytes()
    for size in (0, 1, 4096, len(data) // 2):
        working.write_bytes(data[:size])
        with refused(archive, Unavailable, "working file", "sync again"):
            opened(archive)
    assert read_lake(archive / "lake") == (500,) * 3


def test_a_working_file_that_is_gone_does_not_take_the_lake_with_it(archive):
    """DuckDB makes a new one; the lake beside it is then not its own, and is kept."""
    (archive / "working.duckdb").unlink()
    with refused(archive, BadInput, "lake", "new directory"):
        opened(archive)


def test_an_older_copy_of_the_working_file(archive, tmp_path):
    """It does not know of files that the lake has; they are not rubbish."""
    raws = facts(800)
    shutil.copy(archive / "working.duckdb", tmp_path / "copy")
    with LakeWriter.open(archive, LOG) as newer:
        newer.take(raws[600:])
        newer.publish()
    shutil.copy(tmp_path / "copy", archive / "working.duckdb")
    with refused(archive, BadInput, "lake", "new directory"):
        opened(archive)


def test_a_byte_of_the_working_file_is_another(archive):
    """It says so, or DuckDB never reads that byte; no wrong page is taken for right."""
    working = archive / "working.duckdb"
    data = working.read_bytes()
    chance = random.Random(4)
    before = content(archive)
    for _ in range(12):
        place = chance.randrange(len(data))
        working.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        said = ""
        try:
            with LakeWriter.open(archive, LOG) as damaged:
                assert damaged.until >= 600
        except Unavailable as problem:
            said = str(problem)
        assert "another process" not in said
        assert not said or "sync" in said
        assert content(archive) == before
    working.write_bytes(data[:8] + b"XXXX" + data[12:])
    with refused(archive, Unavailable, "working file"):
        opened(archive)


def test_an_archive_of_another_log(archive):
    """A log created anew under the same name starts at 1; its facts never mix."""
    with refused(archive, BadInput, "another log", LOG, "20270101000000"):
        opened(archive, "20270101000000")


@pytest.mark.parametrize("newer", ["working file", "lake"])
def test_an_archive_of_a_newer_version(archive, newer):
    """It is left to the program that wrote it."""
    if newer == "lake":
        file = archive / "lake" / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"version": tables.VERSION + 1}))
        with refused(
            archive, BadInput, f"version {tables.VERSION + 1}", "Use the program that wrote it"
        ):
            read_manifest(archive / "lake")
    else:
        with duckdb.connect(archive / "working.duckdb") as db:
            db.execute(f"UPDATE checkpoint SET version = {tables.VERSION + 1}")
    with refused(archive, BadInput):
        opened(archive)


def test_a_manifest_that_is_broken_is_written_anew(archive):
    """Which files there are stands in the working file too."""
    for damage in (b"", b"{", b'{"version": 1}', b"\xff\xfe"):
        (archive / "lake" / "manifest.json").write_bytes(damage)
        with pytest.raises(BadInput, match=r"cannot be read.*sync"):
            read_manifest(archive / "lake")
        with LakeWriter.open(archive, LOG) as healed:
            until = healed.publish()
        assert read_manifest(archive / "lake").until == until, damage
        assert read_lake(archive / "lake") == (until,) * 3, damage


def test_no_lake_yet(tmp_path):
    """It says how one is made."""
    with pytest.raises(BadInput, match="lake sync"):
        read_manifest(tmp_path / "lake")


FULL = """
import resource, sys
from pathlib import Path
from archive_log import LOG, facts
from ayes.ops.lake.writer import LakeWriter
from ayes.schemas.errors import Unavailable

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    with LakeWriter.open(Path(sys.argv[1]), LOG) as archive:
        raws = facts(20_000)
        while archive.until < len(raws):
            archive.take(raws[archive.until : archive.until + 1_000])
            archive.publish()
except Unavailable as problem:
    print(problem)
    sys.exit(1)
"""


@pytest.mark.parametrize("most", sampled((300_000, 1_000_000), 300_000))
def test_a_full_disk(tmp_path, most):
    """One clear sentence; with more room it goes on, and nothing is lost or doubled."""
    path = [str(TESTS / "support"), str(ROOT)]
    code = f"import sys; sys.path[:0] = {path!r}\n{FULL}"
    done = python(code, tmp_path / "archive", most)
    assert done.code == 1, done.err
    assert "cannot be written" in done.out or "cannot be opened" in done.out
    assert "sync again" in done.out
    assert "Traceback" not in done.err
    _, problems = look_at(tmp_path / "archive")
    assert problems == []
    raws = facts(4_000)
    with LakeWriter.open(tmp_path / "archive", LOG) as archive:
        archive.take(raws)
        until = archive.publish()
        assert read_lake(archive.lake) == (until,) * 3
        assert until >= len(raws)


def test_two_processes_do_not_write_one_archive(tmp_path):
    """The second is told that there is a first, and what to do."""
    with (
        writing(tmp_path, publishing=False, seed=5),
        pytest.raises(Unavailable, match="another process writes the archive"),
    ):
        opened(tmp_path)
