"""The analysts' page and notebook: all that they show is run, on lakes with something in them.

One lake is of a town where all sorts of things happen, so that every example has an answer; the
other is what the real program left: a rehearsal of recorded conversations, and `ayes lake sync`.

What needs Polars or pandas is skipped where they are not installed, and says so.
"""

import ast
import json
import re
import shutil
import subprocess
import typing
from collections import defaultdict
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
from lakes import SMALL, rehearsed, synced
from long import sampled
from pages import Block, blocks, parse, piped
from paths import ROOT
from program import up
from stories import START, facts_of
from town import happened, written

from ayes.ledger.lifecycle import EVENTS_BY_PLACE
from ayes.ledger.log import RawMessage
from ayes.ops.lake.sql import _Request, checked
from ayes.ops.lake.writer import LakeWriter
from ayes.projections.formats.conversation import read_conversations
from ayes.projections.lake import tables
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.slots import BudgetRef, DelegationRef, Slot, ThreadRef

PAGE = ROOT / "docs" / "analysts.md"
NOTEBOOK = ROOT / "examples" / "analysts.ipynb"
TABLES = (
    "events", "calls", "votes", "grants", "delegations", "policies", "tools", "threads", "files",
    "budgets",
)  # fmt: skip
#: Not all of the examples' answers are the same for each lake; their columns are.
ANSWERS = {
    1: ("tool", "verdict", "calls"),
    2: ("ref", "tool", "question", "minutes"),
    3: ("tool", "decisions", "p50_p90_p99_ms"),
    4: ("reviewer", "verdict", "votes", "counted", "median_s"),
    5: ("tool", "calls", "amount", "highest"),
    6: ("verdict", "returned", "failed", "in_doubt", "reconciled", "denied", "expired", "open"),
    7: ("seq", "type", "which", "by_name", "after_s"),
    8: ("day", "asked", "denied_share", "denied_share_7_days"),
    9: ("workspace", "thread", "call", "tool", "said", "decided"),
    10: ("in_force", "cited", "calls"),
    11: ("day", "most"),
    12: ("tool", "verdict", "outcome", "calls"),
}


# ---------------------------------------------------------------------------------------- the lakes


def _more() -> list[tuple[Slot, e.AnyEvent]]:
    """What the town lacks: a tool, a delegation, labels, a file, a budget and a late result."""
    picture = e.Media("image/png", e.Stored("0" * 64, 12345), "receipt.png")
    ended = next(fact.slot.call_ref for fact in _recorded() if fact.slot.call_ref)
    away = e.Delegated(to="ben", starts_at=START, ends_at=START + timedelta(days=1))
    return [
        (
            Slot.parse("ledger.acme._tool.refund.v1"),
            e.ToolDeclared(description="pays back", schema="{}"),
        ),
        (DelegationRef("acme", "ana", "away").given, away),
        (
            ThreadRef("acme", "labelled").opened,
            e.ThreadOpened(requester="rita", labels={"desk": "Köln"}),
        ),
        (ThreadRef("acme", "labelled").said("m1"), e.Said(role="user", text=(picture,))),
        (BudgetRef("acme", "refunds", "0" * 32).used(1), e.BudgetUsed(str(ended), "12.50")),
        (ended.late(1), e.ToolReturned(output="too late")),
    ]


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    """A town, and behind it the recorded conversations."""
    town = happened(seed=5, calls=300)
    told = [(fact.slot, fact.event) for fact in _recorded()] + _more()
    last = town[-1].recorded_at
    return town + [
        Fact(len(town) + number, last + timedelta(seconds=number), *one)
        for number, one in enumerate(told, 1)
    ]


def _recorded() -> list[Fact]:
    return [
        fact
        for one in read_conversations(SMALL)
        for fact in facts_of(list(one.messages), ThreadRef("air", one.id))
        if not isinstance(fact.event, e.Carried)
    ]


@pytest.fixture(scope="module")
def town(facts, tmp_path_factory) -> Path:
    """The archive of the town; `lake` is in it."""
    return written(tmp_path_factory.mktemp("town") / "archive", facts).parent


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory) -> Path:
    """The archive that the real program wrote of its own gate, reviewers and executors."""
    with up(tmp_path_factory.mktemp("rehearsal") / "store") as ready:
        store = Path(ready["store"])
        rehearsed(store, SMALL)
        return Path(synced(store)["lake"]).parent


@pytest.fixture(params=sampled(["town", "rehearsal"], "town"))
def archive(request, monkeypatch) -> Path:
    """One after the other, where the page and the notebook look."""
    directory = request.getfixturevalue(request.param)
    monkeypatch.setenv("AYES_ARCHIVE", str(directory))
    return directory


@pytest.fixture
def db(archive):
    with opened(archive) as db:
        yield db


def opened(archive: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(archive / "lake" / "catalog.duckdb"), read_only=True)


# ----------------------------------------------------------------------------- tables of the tables


class Column(NamedTuple):
    name: str
    type: str
    meaning: str


def _told(table: str) -> list[Column]:
    """The columns of a table, as the page has them."""
    _, _, rest = PAGE.read_text().partition(f"\n### `{table}`\n")
    rows = re.findall(
        r"^\| `(\w+)` \| `(.+?)` \| (.+) \|$",
        re.split(r"^##", rest, flags=re.MULTILINE)[0],
        re.MULTILINE,
    )
    return [Column(*row) for row in rows]


def _meaning(table: str, column: str) -> str:
    (found,) = (one.meaning for one in _told(table) if one.name == column)
    return found


@pytest.mark.parametrize("table", [*TABLES, "open_calls", "events_until(9)", "calls_until(9)"])
def test_the_columns_are_as_documented(db, table):
    """Names, types and their order, of each table and lake; what is like another is said to be."""
    like = {"open_calls": "calls", "events_until(9)": "events", "calls_until(9)": "calls"}
    described = [(name, kind) for name, kind, *_ in db.execute(f"DESCRIBE FROM {table}").fetchall()]
    assert [(one.name, one.type) for one in _told(like.get(table, table))] == described


def test_the_tables_are_as_documented(db):
    """Each view of the catalog has a row; one with a section of its own is in the test above."""
    _, _, rest = PAGE.read_text().partition("| table | a row is |")
    listed = re.findall(r"^\| `(\w+)` \|", rest.split("\n\n", 1)[0], re.MULTILINE)
    views = db.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    assert sorted(listed) == sorted(name for (name,) in views)
    assert re.findall(r"^### `(\w+)`$", PAGE.read_text(), re.MULTILINE) == list(TABLES)


def _defaults() -> dict[str, set[str]]:
    """What facts leave out and means something, by the column of `events` that is NULL then."""
    found = defaultdict(set)
    columns = {path: column for column, path, _ in tables.FIELDS}
    for name, kind in e.TYPES.items():
        nested = {"usage": e.Usage} if "usage" in kind.__struct_fields__ else {}
        for prefix, struct in {"": kind, **nested}.items():
            defaults = struct.__struct_defaults__
            for field, default in zip(
                struct.__struct_fields__[-len(defaults) :], defaults, strict=True
            ):
                path = f"{prefix}.{field}" if prefix else field
                # An empty text or list, and None, are NULL for what they are.
                if (
                    path in columns
                    and isinstance(default, str | int | tuple)
                    and default not in ("", ())
                ):
                    found[columns[path]].add((json.dumps(default), name))
    return found


def test_what_is_left_out_is_as_documented():
    """Every default of every field that is a column: NULL stands for it, and the page says so."""
    _, _, rest = PAGE.read_text().partition("| column of `events` | NULL is |")
    told = {}
    for names, value in re.findall(
        r"^\| (.+) \| `(.+)` \|$", rest.split("\n\n", 1)[0], re.MULTILINE
    ):
        columns, _, kind = names.partition(" of a")
        for column in re.findall(r"`(\w+)`", columns):
            told[column] = (value, re.findall(r"`(\w+)`", kind))
    found = _defaults()
    assert told.keys() == found.keys()
    for column, (value, kinds) in told.items():
        assert {default for default, _ in found[column]} == {value}, column
        if kinds:
            assert {kind for _, kind in found[column]} == set(kinds), column


@pytest.mark.parametrize(
    ("table", "column", "known"),
    [
        ("calls", "verdict", [kind.__name__ for kind in EVENTS_BY_PLACE["decided"]]),
        ("calls", "ground", typing.get_args(e.Ground.__value__)),
        ("calls", "mode", typing.get_args(e.Mode.__value__)),
        ("calls", "outcome",
         ["returned", "failed", "in_doubt", "reconciled", *typing.get_args(e.Ending.__value__)]),
        ("votes", "verdict", typing.get_args(e.Verdict.__value__)),
        ("events", "verdict", typing.get_args(e.Verdict.__value__)),
        ("events", "role", ["system", "user", "note"]),
    ],
)  # fmt: skip
def test_values_are_as_documented(town, table, column, known):
    """What may stand in a column is listed whole, and what stands there is among it."""
    assert sorted(re.findall(r"`(\w+)`", _meaning(table, column))) == sorted(known)
    with opened(town) as db:
        rows = db.execute(
            f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL"
        ).fetchall()
    assert rows
    assert {value for (value,) in rows} <= set(known)


# ----------------------------------------------------------------------------------------- the page


def _examples() -> dict[int, Block]:
    """The numbered examples."""
    numbers = (
        re.findall(r"^\*\*(\d+)\. ", one.before, re.MULTILINE) for one in blocks(PAGE, "sql")
    )
    return {
        int(found[-1]): one
        for one, found in zip(blocks(PAGE, "sql"), numbers, strict=True)
        if found
    }


@pytest.mark.parametrize("block", blocks(PAGE, "sql"), ids=str)
def test_each_query_runs(archive, block):
    """On both lakes, and `ayes sql` takes it too."""
    with opened(archive) as db:
        db.execute(block.text).fetchall()
        query = block.text.strip().removesuffix(";")
        assert checked(db, _Request(str(archive / "lake"), query, 1)) == query


@pytest.mark.parametrize("number", ANSWERS)
def test_each_example_has_an_answer(town, number):
    """Rows with these columns; where everything happens, no example is empty."""
    with opened(town) as db:
        answer = db.execute(_examples()[number].text)
        assert tuple(column for column, *_ in answer.description) == ANSWERS[number]
        assert answer.fetchall()


def test_each_example_is_looked_at():
    """They are numbered from 1, without a gap."""
    assert list(_examples()) == list(ANSWERS) == list(range(1, len(ANSWERS) + 1))
    assert len(ANSWERS) >= 10


def test_examples_agree_with_the_tables(db):
    """Every call is in one row of an example that counts them, and no question is lost."""

    def total(number: int, what: str) -> int:
        query = _examples()[number].text.strip().removesuffix(";")
        return db.execute(f"SELECT coalesce(sum({what}), 0) FROM ({query})").fetchall()[0][0]

    def count(where: str) -> int:
        return db.execute(f"SELECT count(*) FROM calls WHERE {where}").fetchall()[0][0]

    assert total(1, "calls") == total(10, "calls") == count("true")
    assert total(2, "1") == count("asked AND verdict IS NULL")
    assert total(3, "decisions") == count(
        "asked AND (ground IN ('people', 'broken_glass') OR verdict = 'Answered')"
    )
    assert total(4, "votes") == db.execute("SELECT count(*) FROM votes").fetchall()[0][0]
    assert total(6, "returned") == count("outcome = 'returned'")
    assert total(8, "asked") == count("asked")


def test_the_most_that_were_open_at_once(town, facts):
    """The example with the running sum finds what plain Python finds, fact by fact."""
    at = {(fact.slot.call_ref, fact.slot.tail[-1]): fact.recorded_at for fact in facts}
    waiting, most = set(), defaultdict(int)
    for fact in facts:
        ref, place, day = fact.slot.call_ref, fact.slot.tail[-1], fact.recorded_at.date()
        gated, decided = at.get((ref, "gated")), at.get((ref, "decided"))
        if (
            place not in {"gated", "decided"}
            or gated is None
            or (decided is not None and decided < gated)
        ):
            continue
        waiting ^= {ref}
        most[day] = max(most[day], len(waiting))
    assert len(most) > 1
    with opened(town) as db:
        assert dict(db.execute(_examples()[11].text).fetchall()) == most


def test_what_was_then_is_what_it_says(town, facts):
    """The number of the last fact before a time, and as many events as that."""
    with opened(town) as db:
        (number,) = (one for one in blocks(PAGE, "sql") if " AS then" in one.text)
        now, then = db.execute(number.text).fetchall()[0]
        (at,) = re.findall(r"TIMESTAMP '(.+)'", number.text)
        before = [fact for fact in facts if f"{fact.recorded_at:%Y-%m-%d %H:%M:%S}" < at]
        assert (now, then) == (len(facts), len(before))
        assert 0 < then < now
        assert db.execute(f"SELECT count(*) FROM events_until({then})").fetchall() == [(then,)]


def _packages(block: Block) -> list[str]:
    """What a block needs that none of our extras brings."""
    named = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    return sorted(named & {"polars", "pandas"})


def _run_page(*packages: str) -> dict:
    """From top to bottom; of the blocks that need more, only those that need these packages."""
    names: dict = {}
    for block in blocks(PAGE, "python"):
        if set(_packages(block)) <= set(packages):
            exec(compile(block.text, str(block), "exec"), names)
    return names


@pytest.fixture
def run_page(archive):
    """Runs the page; closes what it opens."""
    opened_by_it = []

    def run(*packages: str) -> dict:
        names = _run_page(*packages)
        opened_by_it.append(names["db"])
        return names

    yield run
    for one in opened_by_it:
        one.close()


def _count(archive: Path, query: str) -> int:
    with opened(archive) as db:
        return db.execute(query).fetchall()[0][0]


def test_the_page_runs(archive, run_page, capsys):
    """DuckDB and PyArrow, from the catalog and from the files: the same counts."""
    names = run_page()
    assert "calls" in capsys.readouterr().out
    assert names["events"].num_rows == _count(archive, "SELECT count(*) FROM events")
    assert names["ended"].shape[0] == _count(
        archive, "SELECT count(*) FROM calls WHERE ended_at IS NOT NULL"
    )
    assert len(names["rows"]) == _count(archive, "SELECT count(*) FROM calls WHERE tool = 'refund'")
    (newest,) = names["ask"]("SELECT max(seq) AS seq FROM events").to_pylist()
    assert newest["seq"] == names["events"].num_rows


@pytest.mark.skipif(
    find_spec("polars") is None, reason="polars is not installed: the page's Polars is not run"
)
def test_polars_counts_the_same(archive, run_page, db, town):
    """By tool as many as DuckDB has, from the files and from its answer; JSON is text."""
    names = run_page("polars")
    query = (
        "SELECT tool, count(*)::UINTEGER AS calls, count_if(asked)::UINTEGER AS asked "
        "FROM calls GROUP BY tool ORDER BY tool"
    )
    assert names["by_tool"].rows() == db.sql(query).fetchall()
    assert db.sql(query).pl().rows() == names["by_tool"].rows()
    found = db.sql("SELECT seq, CAST(labels AS VARCHAR) FROM events ORDER BY seq").fetchall()
    assert sorted(names["labels"].rows()) == found
    assert archive != town or '{"desk":"Köln"}' in [labels for _, labels in found]


@pytest.mark.skipif(
    find_spec("pandas") is None, reason="pandas is not installed: the page's pandas is not run"
)
def test_pandas_counts_the_same(archive, run_page, db):
    """By tool as many as DuckDB has, and whole numbers are whole; so are the medians."""
    names = run_page("pandas")
    frame = names["frame"]
    found = dict(db.sql("SELECT tool, count(*) FROM calls GROUP BY tool").fetchall())
    assert frame.groupby("tool").size().to_dict() == found
    assert len(db.sql("FROM calls").df()) == len(frame)
    assert str(frame["policy_version"].dtype).startswith("int32")
    query = (
        "SELECT tool, median(epoch_us(decided_at) - epoch_us(gated_at)) FROM calls GROUP BY tool"
    )
    medians = {tool: took for tool, took in db.sql(query).fetchall() if took is not None}
    waited = {tool: one.total_seconds() * 1e6 for tool, one in names["waited"].dropna().items()}
    assert waited == pytest.approx(medians, abs=1)


def test_blocks_are_run_by_some_test():
    """Each Python block needs nothing else, or one of the two that have a test of their own."""
    needed = [_packages(block) for block in blocks(PAGE, "python")]
    assert needed.count([]) >= 4
    assert sorted(one for one in needed if one) == [["pandas"], ["polars"]]


def test_commands_are_as_shown(town, monkeypatch):
    """Those of ours exist with their options; `jq` is run; what is not ours is not."""
    monkeypatch.chdir(town.parent)
    for line in "\n".join(block.text for block in blocks(PAGE, "sh")).split("\n"):
        if not line:
            continue
        match [words[0] for words in piped(line)]:
            case ["ayes"]:
                parse(piped(line)[0][1:])
            case ["jq"]:
                if shutil.which("jq") is None:
                    pytest.skip("jq is not installed")
                said = subprocess.run(
                    ["sh", "-c", line], capture_output=True, text=True, check=True
                ).stdout
                assert said.split() == [
                    file.name for file in sorted((town / "lake").glob("events-*.parquet"))
                ]
            case [name]:
                assert name in {"duckdb", "pip", "jupyter"}
                assert "ipynb" not in line or (ROOT / line.split()[-1]).is_file()


# --------------------------------------------------------------------------------- what it warns of


def test_an_open_catalog_stays_and_then_its_files_go(facts, tmp_path):
    """No new facts, not even for a second connection; then this error; then all of them."""
    raws = [
        RawMessage(one.seq, one.recorded_at, one.slot.subject, encode(one.event)) for one in facts
    ]
    with LakeWriter.open(tmp_path, "a log") as archive:
        archive.take(raws[:900])
        archive.publish()
        db = opened(tmp_path)
        assert db.execute("SELECT count(*) FROM events").fetchall() == [(900,)]
        archive.take(raws[900:])
        archive.publish()
        assert db.execute("SELECT count(*) FROM events").fetchall() == [(900,)]
        assert _count(tmp_path, "SELECT count(*) FROM events") == 900
        archive.take([RawMessage(len(raws) + 1, raws[-1].recorded_at, "ledger.a.b.said.c", b"{}")])
        archive.publish(keep_s=0)
        with pytest.raises(duckdb.IOException, match="No files found that match the pattern"):
            db.execute("SELECT count(*) FROM calls")
        db.close()
        assert _count(tmp_path, "SELECT count(*) FROM events") == len(raws) + 1


def test_only_the_catalog_is_read_only(town, tmp_path):
    """As the page says: the catalog takes nothing, and a query may still write other files."""
    with opened(town) as db:
        with pytest.raises(duckdb.InvalidInputException, match="read-only"):
            db.execute("CREATE TABLE mine (a INTEGER)")
        db.execute(f"COPY (SELECT 1 AS a) TO '{tmp_path / 'a.csv'}'")
    assert (tmp_path / "a.csv").read_text().split() == ["a", "1"]


def test_an_attached_catalog(town, monkeypatch):
    """Every table by its name behind the catalog's; the macros once it is in use."""
    monkeypatch.chdir(town.parent)
    (attach,) = re.findall(r"`(ATTACH .+?)`", PAGE.read_text())
    with duckdb.connect() as db:
        db.execute(attach)
        for table in (*TABLES, "open_calls"):
            assert db.execute(f"SELECT count(*) FROM lake.{table}").fetchall()[0][0] > 0, table
        with pytest.raises(duckdb.CatalogException, match="events"):
            db.execute("FROM lake.calls_until(500)")
        db.execute("USE lake")
        assert db.execute("SELECT count(*) FROM calls_until(500)").fetchall()[0][0] > 0


def test_the_traps_are_there(town):
    """No JSON ends a query, except with `try`; a person is in quotes; `now()` is not ours."""
    with opened(town) as db:
        with pytest.raises(duckdb.InvalidInputException, match="Malformed JSON"):
            db.execute("SELECT arguments ->> '$.amount' FROM calls").fetchall()
        query = "SELECT sum(try_cast(try(arguments ->> '$.amount') AS DOUBLE)) FROM calls"
        assert db.execute(query).fetchall()[0][0] > 0
        behalf = (
            "SELECT DISTINCT CAST(on_behalf_of AS VARCHAR), on_behalf_of ->> '$' "
            "FROM events WHERE place = 'vote'"
        )
        assert ('"olga"', "olga") in db.execute(behalf).fetchall()
        doubted = db.execute("SELECT DISTINCT outcome FROM calls WHERE ended_at IS NULL").fetchall()
        assert set(doubted) == {(None,), ("in_doubt",)}
        late = (
            "SELECT count(*) FROM events JOIN calls USING (workspace, thread, call) "
            "WHERE counts AND seq > last_seq"
        )
        assert db.execute(late).fetchall()[0][0] > 0
        zone = (
            "SELECT (TIMESTAMP '2026-03-01 23:30:00' AT TIME ZONE 'UTC') "
            "AT TIME ZONE 'Europe/Vienna'"
        )
        assert str(db.execute(zone).fetchall()[0][0]) == "2026-03-02 00:30:00"
        assert db.execute("SELECT CAST('12.50' AS JSON) -> '$'").fetchall() == [("12.5",)]
        parts = "SELECT count(try(decode(payload) -> '$.parts')) FROM events"
        replies = db.execute("SELECT count(*) FROM events WHERE type = 'ModelReplied'").fetchall()
        assert db.execute(parts).fetchall() == replies != [(0,)]
        assert db.execute("SELECT count(*) FROM events WHERE rule = ''").fetchall() != [(0,)]


# ------------------------------------------------------------------------------------- the notebook


def test_the_notebook_runs(archive, capsys):
    """Its cells in their order, and what each would show."""
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict = {}
    shown = [
        _run_cell("".join(cell["source"]), cell["id"], names)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    facts = _count(archive, "SELECT count(*) FROM events")
    assert str(facts) in shown[0]
    assert f"at fact {facts // 2}: calls" in capsys.readouterr().out
    assert sum(bool(one) for one in shown) >= 5


def test_the_notebook_finds_the_lake_below_the_store(town, monkeypatch):
    """Where nothing says where the archive is."""
    monkeypatch.delenv("AYES_ARCHIVE", raising=False)
    monkeypatch.setenv("AYES_STORE", str(town.parent))
    names: dict = {}
    first = next(
        one for one in json.loads(NOTEBOOK.read_text())["cells"] if one["cell_type"] == "code"
    )
    assert _run_cell("".join(first["source"]), first["id"], names)
    names["db"].close()


def _run_cell(source: str, name: str, names: dict) -> str:
    """Run a cell; answers with the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    return "" if value is None else str(value.to_dict() if hasattr(value, "to_dict") else value)


def test_the_notebook_is_clean():
    """Format 4 with ids, no outputs, no counters, and no place on anybody's machine."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
        for link in re.findall(r"\]\(([^)#]+)\)", "".join(cell["source"])):
            assert (NOTEBOOK.parent / link).exists(), link
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text())
