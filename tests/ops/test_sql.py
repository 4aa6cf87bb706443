"""`ayes sql`: whatever is asked, it reads the lake and nothing else; and its rows in every form.

Each query runs in a process of its own, forked by `fork_server.py`. Of the many that are refused or
answered in the same manner, `make test` asks a sample so, and all of them in this process, with the
settings of that one.
"""

import csv
import io
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from long import sampled
from program import Started, approvals, at_a_terminal

from ayes.interfaces.cli.sql import bytes_of
from ayes.ledger.log import RawMessage
from ayes.ops.lake.sql import MEMORY, _connect, _Request, _translated, ask, checked
from ayes.ops.lake.writer import LakeWriter
from ayes.schemas.codec import encode
from ayes.schemas.errors import BadInput, NotAllowed, Unavailable, WaitTimedOut
from bench import logs

_T0 = datetime(2026, 3, 1, tzinfo=UTC)
_FACTS = [
    RawMessage(seq, _T0 + timedelta(seconds=seq), slot.subject, encode(event))
    for seq, (slot, event) in enumerate(logs.mixed(600, 4), 1)
]


def _put(archive: Path, facts: list[RawMessage]) -> None:
    with LakeWriter.open(archive, "a log") as writing:
        writing.take(facts)
        writing.publish()


@pytest.fixture(autouse=True)
def forked(monkeypatch) -> None:
    """Fork the processes of queries, which takes a tenth of starting them."""
    monkeypatch.setattr(subprocess, "Popen", Started)


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """An archive of some facts."""
    directory = tmp_path_factory.mktemp("archives") / "archive"
    _put(directory, _FACTS)
    return directory


def _state(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.parent.rglob("*") if file.is_file()}


def rows(archive: Path, query: str, **limits) -> list[dict]:
    with ask(archive / "lake", query, **limits) as answer:
        return [row for batch in answer.batches() for row in batch.to_pylist()]


def asked_here(archive: Path, query: str) -> list[tuple]:
    """The rows of a query that this process asks."""
    request = _Request(str(archive / "lake"), query, MEMORY)
    with _connect(request) as db, _translated(request):
        return db.sql(checked(db, request)).fetchall()


#: What is tried, and how it is turned down; LAKE and ARCHIVE stand for the directories.
ATTACKS = {
    "INSERT INTO calls VALUES (1)": NotAllowed,
    "DELETE FROM calls": NotAllowed,
    "CREATE TABLE mine (a INTEGER)": NotAllowed,
    "CREATE TEMP TABLE mine AS SELECT 1": NotAllowed,
    "DROP VIEW calls": NotAllowed,
    "WITH x AS (INSERT INTO calls VALUES (1) RETURNING *) SELECT * FROM x": BadInput,
    "WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x": NotAllowed,
    "WITH x AS (COPY (SELECT 1) TO 'LAKE/catalog.duckdb') SELECT 1": NotAllowed,
    # Without the check of the plan it overwrites a file of the lake, whatever DuckDB is locked to.
    "WITH x AS (COPY (SELECT 1) TO 'LAKE/x.parquet' (USE_TMP_FILE false)) SELECT 1": NotAllowed,
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT 1": NotAllowed,
    "SELECT * FROM query('WITH x AS (COPY (SELECT 1) TO ''LAKE/x.csv'') SELECT 1')": BadInput,
    "SELECT 1; SELECT 2": BadInput,
    "COMMIT; DROP VIEW calls": BadInput,
    "COMMIT": NotAllowed,
    "COPY calls TO 'LAKE/x.csv'": NotAllowed,
    "EXPLAIN COPY calls TO 'LAKE/x.csv'": NotAllowed,
    "EXPLAIN ANALYZE COPY calls TO 'LAKE/x.csv'": NotAllowed,
    "/* a */ EXPLAIN -- b\n ANALYZE COPY calls TO 'LAKE/x.csv'": BadInput,
    "EXPLAIN (ANALYZE) COPY calls TO 'LAKE/x.csv'": NotAllowed,
    "EXPLAIN ANALYZE DELETE FROM calls": NotAllowed,
    "SELECT * FROM read_csv('/etc/passwd')": NotAllowed,
    "SELECT * FROM read_text('/proc/self/environ')": NotAllowed,
    "SELECT * FROM read_text('LAKE/../working.duckdb')": NotAllowed,
    "SELECT * FROM read_duckdb('ARCHIVE/working.duckdb')": NotAllowed,
    "SELECT * FROM read_parquet('http://example.com/x.parquet')": NotAllowed,
    "SELECT * FROM '/etc/passwd'": BadInput,
    "SELECT * FROM glob('/etc/*')": NotAllowed,
    "SELECT * FROM sniff_csv('/etc/passwd')": NotAllowed,
    "ATTACH 'LAKE/x.duckdb'": NotAllowed,
    "SET memory_limit = '90GB'": NotAllowed,
    "USE memory": NotAllowed,
    "SELECT * FROM enable_logging()": BadInput,
    "SELECT * FROM query('DROP VIEW calls')": BadInput,
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))": NotAllowed,
    "SELECT nextval('s')": BadInput,
    "SELECT getenv('HOME')": BadInput,
    "CHECKPOINT": NotAllowed,
    "SELECT * FROM checkpoint()": NotAllowed,
    "INSTALL httpfs": NotAllowed,
    "LOAD httpfs": NotAllowed,
    "PRAGMA database_size": NotAllowed,
    "CALL pragma_version()": NotAllowed,
    "EXPORT DATABASE 'LAKE/x'": NotAllowed,
    "PREPARE x AS SELECT 1": NotAllowed,
    "VACUUM": NotAllowed,
    "SELECT * FROM archive": BadInput,
    "": BadInput,
}
#: They would take all memory of a process that has no limit.
LARGE = {
    "SELECT repeat('x', 3000000000)": BadInput,
    "SELECT list(range) FROM range(500000000)": BadInput,
}


def _told(archive: Path, query: str) -> str:
    return query.replace("LAKE", str(archive / "lake")).replace("ARCHIVE", str(archive))


@pytest.mark.parametrize(
    "query",
    [
        *sampled(
            ATTACKS,
            "DELETE FROM calls",
            "WITH x AS (COPY (SELECT 1) TO 'LAKE/x.parquet' (USE_TMP_FILE false)) SELECT 1",
            "EXPLAIN ANALYZE COPY calls TO 'LAKE/x.csv'",
            "SELECT * FROM read_text('/proc/self/environ')",
            "SET memory_limit = '90GB'",
            "SELECT 1; SELECT 2",
        ),
        *LARGE,
    ],
)
def test_a_query_that_does_more_than_read_is_refused(archive, query):
    """Each is turned down with a sentence, and no byte on disk is another."""
    before = _state(archive)
    with pytest.raises((ATTACKS | LARGE)[query], match=r"\w.*[.!?]$"):
        rows(archive, _told(archive, query), memory=300_000_000)
    assert _state(archive) == before


def test_each_is_refused_where_no_limit_of_the_process_would_stop_it(archive):
    """By the check of the plan, or by the settings of the connection."""
    before = _state(archive)
    for query, error in ATTACKS.items():
        with pytest.raises(error):
            raise AssertionError(query, asked_here(archive, _told(archive, query)))
        assert _state(archive) == before, query


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM range(100000000000) a, range(100000) b",
        "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
        "SELECT * FROM range(100000000) a, range(100000) b",
    ],
)
def test_a_query_that_runs_for_ever_is_stopped(archive, query):
    """Also one whose only step hears no interrupt, and one that gives rows without end."""
    with (
        pytest.raises(WaitTimedOut, match=r"longer than 0\.7 s"),
        ask(archive / "lake", query, timeout_s=0.7) as answer,
    ):
        sum(batch.num_rows for batch in answer.batches())
    assert rows(archive, "SELECT 1 AS one") == [{"one": 1}]


LEGAL = [
    "SELECT * FROM events",
    "FROM calls",
    "TABLE votes",
    "VALUES (1)",
    "(SELECT 1)",
    "SELECT 1; -- the end",
    "WITH asked AS (FROM calls WHERE asked) SELECT tool, count(*) FROM asked GROUP BY ALL",
    "WITH RECURSIVE t AS (SELECT 1 n UNION ALL SELECT n + 1 FROM t WHERE n < 5) FROM t",
    "SELECT seq, row_number() OVER (PARTITION BY thread ORDER BY seq) FROM events QUALIFY true",
    "FROM events_until(100)",
    "FROM calls_until(100)",
    "DESCRIBE calls",
    "SHOW TABLES",
    "SUMMARIZE SELECT tool FROM calls",
    "EXPLAIN SELECT count(*) FROM calls",
    "EXPLAIN ANALYZE SELECT count(*) FROM calls",
    "explain (format json) FROM calls",
    "PIVOT calls ON verdict IN ('Approved', 'Denied') USING count(*) GROUP BY tool",
    "FROM calls ANTI JOIN votes USING (workspace, thread, call) UNION ALL FROM calls LIMIT 1",
    (
        "FROM calls ASOF JOIN votes ON calls.first_seq >= votes.seq "
        "UNION FROM calls ASOF JOIN votes ON calls.first_seq < votes.seq"
    ),
    "SELECT DISTINCT ON (tool) * FROM calls ORDER BY tool LIMIT 100%",
    "SELECT count(*) FROM calls GROUP BY ROLLUP (tool, verdict)",
    "FROM calls WHERE call IN (SELECT call FROM votes WHERE votes.thread = calls.thread)",
    "FROM events USING SAMPLE 5",
    "SELECT unnest([1, 2])",
    "SELECT count(*) FROM range(10)",
    "SELECT tool FROM calls EXCEPT SELECT 'x'",
    "SELECT content FROM read_text('LAKE/manifest.json')",
    "SELECT count(*) FROM read_parquet('LAKE/events-*.parquet')",
    "SELECT table_name FROM information_schema.tables",
]


@pytest.mark.parametrize(
    "query",
    sampled(
        LEGAL,
        "FROM calls",
        "SELECT 1; -- the end",
        "EXPLAIN ANALYZE SELECT count(*) FROM calls",
        "SELECT count(*) FROM read_parquet('LAKE/events-*.parquet')",
    ),
)
def test_a_query_that_reads_is_answered(archive, query):
    """Whatever belongs to a SELECT works, and changes nothing either."""
    before = _state(archive)
    assert rows(archive, _told(archive, query)) or "ASOF" in query
    assert _state(archive) == before


def test_nothing_that_reads_is_refused(archive):
    """All of them, and they find something."""
    for query in LEGAL:
        assert asked_here(archive, _told(archive, query)) or "ASOF" in query, query


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT nope FROM calls", "line 1, column 8: "),
        ("SELECT 1,\n  'é', nope FROM calls", "line 2, column 8: "),
        ("EXPLAIN SELECT nope FROM calls", "line 1, column 16: "),
        ("SELEC 1", "line 1, column 1: "),
    ],
)
def test_an_error_names_its_place(archive, query, said):
    """Line and column of the query as it was typed."""
    with pytest.raises(BadInput) as problem:
        rows(archive, query)
    assert str(problem.value).startswith(said)
    assert "\n" not in str(problem.value)


def test_a_csv_runs_nothing_in_a_spreadsheet(archive, within):
    """Would-be formulas have an apostrophe, numbers are numbers, --raw is exact (M7)."""
    query = "SELECT '=1+1' AS text, -1 AS number, 'a=1' AS other"
    as_csv = within("sql", "--to", archive, "--csv", query)
    assert as_csv.out == "text,number,other\n'=1+1,-1,a=1\n"
    as_csv = within("sql", "--to", archive, "--csv", "--raw", query)
    assert as_csv.out == "text,number,other\n=1+1,-1,a=1\n"
    refused = within("sql", "--to", archive, "--raw", query)
    assert (refused.code, "--raw goes with --csv." in refused.err) == (2, True)


def test_the_rows_come_in_every_form(archive, tmp_path, within):
    """JSON, CSV and Parquet have all rows; a table has the first ones, and says so."""
    query = "SELECT seq, recorded_at, voters, payload FROM events ORDER BY seq"
    asked = ("--to", archive, query)
    as_json = within("sql", "--json", *asked).lines
    as_csv = list(csv.DictReader(io.StringIO(within("sql", "--csv", *asked).out)))
    file = tmp_path / "rows.parquet"
    assert within("sql", "--parquet", file, *asked).code == 0
    as_parquet = pq.read_table(file).to_pylist()
    assert [row["seq"] for row in as_json] == [fact.seq for fact in _FACTS]
    assert [int(row["seq"]) for row in as_csv] == [fact.seq for fact in _FACTS]
    assert [row["payload"] for row in as_parquet] == [fact.data for fact in _FACTS]
    assert [row["payload"] for row in as_json] == [fact.data.decode() for fact in _FACTS]
    assert as_json[0]["recorded_at"] == "2026-03-01T00:00:01"
    assert {"ana"} == {one for row in as_json for one in row["voters"] or ()}
    table = within("sql", *asked)
    assert len(table.out.splitlines()) == 201
    assert f"{len(_FACTS):,} rows in" in table.err
    assert "--json, --csv and --parquet FILE give all" in table.err
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_is_lost_in_json(archive, within):
    """Columns of one name, bytes not text, large numbers, maps, lists and intervals."""
    query = (
        r"SELECT 1 AS a, 2 AS a, '\xff'::BLOB AS b, 170141183460469231731687303715884105727 AS h, "
        "MAP {'k': [1]} AS m, INTERVAL 3 DAY AS i"
    )
    done = within("sql", "--json", "--to", archive, query)
    assert done.one == {
        "a": 1,
        "a_2": 2,
        "b": {"base64": "/w=="},
        "h": 170141183460469231731687303715884105727,
        "m": {"k": [1]},
        "i": {"months": 0, "days": 3, "nanoseconds": 0},
    }


#: A time that DuckDB has and Python has not, in each type and place, and its text.
FAR = {
    "'infinity'::TIMESTAMPTZ": "infinity",
    "'-infinity'::TIMESTAMP": "-infinity",
    "'infinity'::DATE": "infinity",
    "'200000-01-02'::DATE": "200000-01-02",
    "'9999-12-31 23:59:59.5-14'::TIMESTAMPTZ AT TIME ZONE 'UTC'": "10000-01-01 13:59:59.500000",
    "'0001-01-01 00:00:00+14'::TIMESTAMPTZ": "0000-12-31 10:00:00+00:00",
    "'290000-02-29 11:12:13'::TIMESTAMP_S": "290000-02-29 11:12:13",
    "['infinity'::TIMESTAMP, '2026-11-25'::TIMESTAMP]": ["infinity", "2026-11-25T00:00:00"],
    "{'at': '4000-01-01 (BC)'::DATE, 'n': 1}": {"at": "-3999-01-01", "n": 1},
    "MAP {'infinity'::DATE: 1}": {"infinity": 1},
}


def test_one_odd_time_stops_nobody(archive, within):
    """Anybody may record such a time: its row is shown in every form, and those beside it."""
    names = {f"c{number}": value for number, value in enumerate(FAR)}
    columns = ", ".join(f"{value} AS {name}" for name, value in names.items())
    query = f"SELECT {columns} UNION ALL SELECT {', '.join('NULL' for _ in names)}"
    found, empty = within("sql", "--json", "--to", archive, query).lines
    assert found == dict(zip(names, FAR.values(), strict=True))
    assert set(empty.values()) == {None}
    for form in ((), ("--csv",)):
        done = within("sql", *form, "--to", archive, query)
        assert (done.code, "infinity" in done.out) == (0, True)


def test_a_parquet_file_is_whole_or_not_there(archive, tmp_path, within):
    """Out of time, what was there before stays; and no file is ever written into the archive."""
    file = tmp_path / "rows.parquet"
    file.write_text("before")
    endless = "SELECT * FROM range(100000000) a, range(100000) b"
    done = within("sql", "--to", archive, "--parquet", file, "--timeout", "0.7s", endless)
    assert done.code == 3
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"rows.parquet": "before"}
    done = within("sql", "--to", archive, "--parquet", archive / "lake" / "x.parquet", "SELECT 1")
    assert (done.code, "in the archive" in done.err) == (2, True)


def test_the_command_ends_as_scripts_expect(archive, tmp_path, within):
    """Exit codes and JSON errors, a query from stdin, and options that cannot be."""
    assert approvals("sql", "--to", archive, typed="SELECT 42 AS n").out.split() == ["n", "42"]
    refused = within("sql", "--to", archive, "--json", "DROP VIEW calls")
    assert (refused.code, refused.problem["error"]) == (4, "NotAllowed")
    assert within("sql", "--to", archive, "SELECT nope").code == 2
    assert within("sql", "--to", archive, "--json", "--csv", "SELECT 1").code == 2
    assert "lake sync" in within("sql", "--to", tmp_path, "SELECT 1").err


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2GB", 2_000_000_000),
        ("500 mb", 500_000_000),
        ("1GiB", 2**30),
        ("1KB", None),
        ("2", None),
        ("1MB", None),
    ],
)
def test_an_amount_of_memory_has_a_unit(text, amount):
    """And is enough for DuckDB to start."""
    if amount is None:
        with pytest.raises(BadInput, match="--memory"):
            bytes_of("--memory", text)
    else:
        assert bytes_of("--memory", text) == amount


def test_a_lake_whose_files_are_gone_says_so(tmp_path):
    """A sentence that says what to do, and not an empty answer."""
    _put(tmp_path / "archive", _FACTS)
    for file in (tmp_path / "archive" / "lake").glob("events-*.parquet"):
        file.unlink()
    with pytest.raises(Unavailable, match="lake verify"):
        rows(tmp_path / "archive", "FROM events")


def test_queries_run_while_the_lake_is_published(tmp_path):
    """Each answer is of one moment of the log, never of an earlier one; the last has all."""
    directory = tmp_path / "archive"
    problems: list[Exception] = []

    def write() -> None:
        try:
            with LakeWriter.open(directory, "a log") as archive:
                for start in range(100, len(_FACTS), 125):
                    archive.take(_FACTS[start : start + 125])
                    archive.publish()
        except Exception as problem:  # noqa: BLE001 - told by the test
            problems.append(problem)

    _put(directory, _FACTS[:100])
    writing = threading.Thread(target=write)
    writing.start()
    seen = [0]
    while writing.is_alive() or seen[-1] != len(_FACTS):
        assert not problems
        [row] = rows(directory, "SELECT count(*) AS count, max(seq) AS last FROM events")
        assert row["count"] == row["last"] >= seen[-1]
        seen.append(row["count"])
    writing.join()
    assert not problems


def test_without_a_query_somebody_at_a_terminal_is_told_what_to_do(archive, tmp_path):
    """One sentence, and the exit code of what cannot be asked; nobody is left waiting."""
    with at_a_terminal("sql", "--to", archive, store=tmp_path) as terminal:
        assert terminal.ended() == 2
    said = 'error: name a query, as in ayes sql "FROM calls", or send one to stdin.'
    assert terminal.told.split() == said.split()


def test_ctrl_c_stops_a_query(archive, tmp_path):
    """The program ends as one that was interrupted, and its query with it."""
    endless = "SELECT count(*) FROM range(100000000000) a, range(100000) b"
    with at_a_terminal("sql", "--to", archive, endless, store=tmp_path) as terminal:
        while not (children := _children(terminal.process.pid)):
            time.sleep(0.1)
        time.sleep(0.5)  # its rows are waited for by now
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
    assert "Traceback" not in terminal.told
    assert not any(map(_runs, children))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found += map(int, file.read_text().split())
    return found


def test_a_query_ends_with_whoever_asked(archive):
    """Killed without a word, a program leaves no query behind that runs for ever."""
    command = [sys.executable, "-c", _ASKING, str(archive / "lake")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        child = int(asking.stdout.readline())
        asking.kill()
    while _runs(child):
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    """Is it at work? Nobody may have fetched what became of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


_ASKING = """
import sys
from pathlib import Path
from ayes.ops.lake.sql import MEMORY, _connect, _Request, _translated, ask, checked
query = "SELECT count(*) FROM range(100000000000) a, range(100000) b"
with ask(Path(sys.argv[1]), query, begun=lambda answer: print(answer._process.pid, flush=True)):
    pass
"""
