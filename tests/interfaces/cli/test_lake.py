"""`ayes lake`: from a real broker into files, and back again to see that they are what the log
says.

The recorded conversations are rehearsed by the real program; what they must come to is counted from
their file.
"""

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from lakes import SMALL, rehearsed, synced
from long import sampled
from paths import DATA
from program import Started, approvals, at_a_terminal, last_seq, python, record, started, up
from stories import REF, life

from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.lake.writer import microseconds, read_manifest
from ayes.projections.formats.conversation import read_conversations
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    StopRef,
    account_slot,
    person_slot,
    policy_slot,
)
from bench.logs import mixed

WISH = e.Wish(tool="refund", arguments="{}")

#: What an analyst in another process does until its input ends: ask without pause, and tell what
#: went wrong.
ANALYST = """
import select, sys
import duckdb
catalog = sys.argv[1]
asked = last = 0
while not asked or not select.select([sys.stdin], [], [], 0)[0]:
    with duckdb.connect(catalog, read_only=True) as db:
        counted = db.execute("SELECT count(*), count(DISTINCT seq), max(seq) FROM events")
        rows, distinct, end = counted.fetchall()[0]
        assert rows == distinct == end >= last, (rows, distinct, end, last)
        db.execute(
            "SELECT tool, verdict, count(*), quantile_cont(epoch_ms(ended_at - requested_at), 0.9) "
            "FROM calls GROUP BY ALL"
        )
        db.fetchall()
    asked, last = asked + 1, end
print(asked)
"""


def verified(store: Path, *options: object):
    return approvals("lake", "verify", "--json", *options, store=store, timeout_s=110)


def asked(lake: Path, query: str) -> list[tuple]:
    with duckdb.connect(lake / "catalog.duckdb", read_only=True) as db:
        return db.execute(query).fetchall()


@pytest.fixture(scope="module", params=sampled(["small", "real"], "small"))
def recorded(request, tmp_path_factory) -> tuple[Path, Path, Path]:
    """The recorded file, the store of a running broker after the rehearsal, and its lake."""
    file = SMALL
    if request.param == "real":
        if not DATA.exists():
            pytest.skip("the recorded data is not here")
        # Every third conversation: all of them are rehearsed in test_rehearsal.py.
        file = tmp_path_factory.mktemp("real") / DATA.name
        file.write_text("".join(DATA.read_text().splitlines(keepends=True)[::3]))
    with up(tmp_path_factory.mktemp("lake") / "store") as ready:
        store = Path(ready["store"])
        rehearsed(store, file)
        told = synced(store)
        assert told["facts"] == told["until"] == last_seq(store)
        yield file, store, Path(told["lake"])


# ------------------------------------------------------------------------------- what was rehearsed


def test_each_recorded_call_is_a_row(recorded):
    """By tool and by verdict as many as counted straight from the file, and all of them ended."""
    file, _, lake = recorded
    tools = Counter(
        one["function"]["name"]
        for conversation in read_conversations(file)
        for message in conversation.messages
        for one in message.get("tool_calls") or ()
    )
    assert dict(asked(lake, "SELECT tool, count(*) FROM calls GROUP BY ALL")) == tools
    assert tools.total() > (200 if file != SMALL else 0)
    verdicts = dict(asked(lake, "SELECT verdict, count(*) FROM calls GROUP BY ALL"))
    assert verdicts == {"Approved": tools.total()}
    assert dict(asked(lake, "SELECT outcome, count(*) FROM calls GROUP BY ALL")) == {
        "returned": tools.total()
    }
    assert asked(lake, "SELECT count(*) FROM open_calls") == [(0,)]


def test_calls_are_what_the_events_say(recorded):
    """Every number in `calls` equals a recomputation."""
    _, _, lake = recorded
    whole = f"calls_until({2**40})"
    for left, right in (("calls", whole), (whole, "calls")):
        assert asked(lake, f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})") == [(0,)]


def test_events_are_a_plain_replay(recorded):
    """Row by row: number, time, subject, kind, and the payload byte for byte."""
    _, store, lake = recorded

    async def replayed():
        async with Ledger.connect(store, role="observer") as ledger:
            raws = [raw async for batch in ledger.log.raw(1, until_end=True) for raw in batch]
            facts = [fact async for fact in ledger.replay(1)]
        return raws, facts

    raws, facts = asyncio.run(replayed())
    columns = "seq, epoch_us(recorded_at), subject, payload, type, workspace, thread, call"
    rows = asked(lake, f"SELECT {columns} FROM events ORDER BY seq")
    assert len(rows) == len(raws) == len(facts)
    for row, raw, fact in zip(rows, raws, facts, strict=True):
        slot = fact.slot
        call = slot.call_ref.call if slot.thread and slot.call_ref else None
        kind = type(fact.event).__name__
        place = (kind, slot.workspace, slot.thread or None, call)
        assert row == (raw.seq, microseconds(raw.recorded_at), raw.subject, raw.data, *place)


def test_a_lake_that_is_whole_is_verified(recorded):
    """Every file is what was written, and every row what the log has."""
    _, store, lake = recorded
    ended = verified(store)
    assert ended.code == 0
    assert ended.one["problems"] == []
    assert ended.one["until"] == read_manifest(lake).until == last_seq(store)


# ---------------------------------------------------------------------------------------- verifying


@contextmanager
def _running(path: Path):
    """The store of a running broker, with some facts."""
    with up(path / "store", "--workers", "none") as ready:
        store = Path(ready["store"])
        record(store, *life(REF.wish(1, 0), WISH, "edited"), *life(REF.wish(1, 1), WISH, "running"))
        yield store


@pytest.fixture
def broker(tmp_path):
    with _running(tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One whose log stays as it is: each test has an archive of its own."""
    with _running(tmp_path_factory.mktemp("kept")) as store:
        yield store


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "archive"


def _events_file(lake: Path) -> Path:
    (file,) = lake.glob("events-*.parquet")
    return file


def test_a_byte_that_was_changed_is_found(kept, archive):
    """In any file of the lake; back as it was, it is verified again."""
    lake = Path(synced(kept, "--to", archive)["lake"])
    assert verified(kept, "--to", archive).code == 0
    for file in lake.glob("*.parquet"):
        data = file.read_bytes()
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        ended = verified(kept, "--to", archive)
        assert ended.code == 1
        assert file.name in ended.one["problems"][0]
        if file == _events_file(lake):
            for_people = approvals("lake", "verify", "--to", archive, store=kept)
            assert for_people.code == 1
            assert f"differs: {ended.one['problems'][0]}" in for_people.out
        file.unlink()
        assert verified(kept, "--to", archive).one["problems"] == [f"{file.name} is missing"]
        file.write_bytes(data)
    assert verified(kept, "--to", archive).code == 0


CHANGES = {
    "removed": ("SELECT * FROM old WHERE seq <> 3", "fact 3 of the log"),
    "added": (
        "FROM old UNION ALL SELECT * REPLACE (99::UBIGINT AS seq) FROM old WHERE seq = 3",
        "row 99 of `events` is not a fact",
    ),
    "doubled": ("FROM old UNION ALL FROM old WHERE seq = 3", "row 3 of `events` is not a fact"),
    "changed": (
        "SELECT * REPLACE (CASE seq WHEN 3 THEN '{}'::BLOB ELSE payload END AS payload) FROM old",
        "fact 3 of the log",
    ),
    "moved": (
        (
            "SELECT * REPLACE (recorded_at + to_microseconds(seq::BIGINT // 9) AS recorded_at) "
            "FROM old"
        ),
        "fact 9 of the log",
    ),
}


@pytest.mark.parametrize("change", sampled(CHANGES, "removed", "changed"))
def test_a_row_that_is_not_the_logs_is_found(kept, archive, change):
    """Even if whoever changed the file wrote its new digest into the manifest."""
    lake = Path(synced(kept, "--to", archive)["lake"])
    file, (query, words) = _events_file(lake), CHANGES[change]
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE old AS SELECT * FROM read_parquet('{file}')")
        db.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")
    manifest = lake / "manifest.json"
    told = json.loads(manifest.read_text())
    for segment in told["segments"]:
        if segment["table"] == "events":
            segment["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(told))
    ended = verified(kept, "--to", archive)
    assert ended.code == 1
    assert any(words in problem for problem in ended.one["problems"]), ended.one
    assert len(ended.one["problems"]) == 1


def test_without_a_lake_it_says_how_one_is_made(kept, archive):
    """Nothing to verify is no success."""
    ended = verified(kept, "--to", archive)
    assert (ended.code, ended.problem["error"]) == (2, "BadInput")
    assert "lake sync" in ended.problem["message"]


# ------------------------------------------------------------------------------------------ syncing


def test_synced_twice_nothing_is_new(broker):
    """And what came since is all that is read."""
    first = synced(broker)
    before = {file.name: file.stat().st_mtime_ns for file in Path(first["lake"]).iterdir()}
    again = synced(broker)
    assert (again["facts"], again["until"]) == (0, first["until"])
    assert {file.name: file.stat().st_mtime_ns for file in Path(first["lake"]).iterdir()} == before
    record(broker, *life(REF.wish(2, 0), WISH, "denied"))
    more = synced(broker)
    assert (
        more["facts"] == more["until"] - first["until"] == len(life(REF.wish(2, 0), WISH, "denied"))
    )
    assert asked(Path(more["lake"]), "SELECT count(*) FROM calls") == [(3,)]
    assert verified(broker).code == 0


def test_a_lake_of_some_workspaces_has_only_their_facts(broker, archive):
    """And of the organisation its policies and stops. It goes on as it was begun, and says what it
    does not show (I7, I9).
    """
    there = CallRef("hr", "t1", "c1")
    record(
        broker,
        *life(there, WISH, "denied"),
        (policy_slot("hr", 1), applied("")),
        (policy_slot(ORGANISATION, 1), applied("")),
        (StopRef(ORGANISATION, "ana", "s1").given, e.Stopped(reason="An incident.")),
        (person_slot("ana", 1), e.PersonAdded(workspaces=("hr",))),
        (account_slot("ana", 1), e.AccountBound(account="slack:T/U")),
    )
    told = synced(broker, "--to", archive, "--workspaces", "hr, it")
    theirs = len(life(there, WISH, "denied")) + 3
    assert (told["facts"], told["workspaces"]) == (theirs, ["hr", "it"])
    lake = archive / "lake"
    assert asked(lake, "SELECT DISTINCT workspace FROM events ORDER BY 1") == [
        ("_organisation",), ("hr",)
    ]  # fmt: skip
    assert asked(lake, "SELECT call, verdict FROM calls") == [("c1", "Denied")]
    query = ("sql", "SELECT count(*) AS n FROM events", "--json")
    assert approvals(*query, "--to", archive, store=broker).one == {"n": theirs}
    # What came since, and nothing else.
    record(
        broker,
        *life(REF.wish(2, 0), WISH, "denied"),
        *life(CallRef("hr", "t1", "c2"), WISH, "denied"),
    )
    again = synced(broker, "--to", archive, "--workspaces", "it,hr")
    assert (again["facts"], again["workspaces"]) == (theirs - 3, ["hr", "it"])
    checked = verified(broker, "--to", archive)
    assert (checked.code, checked.one["workspaces"]) == (0, ["hr", "it"])
    said = approvals("lake", "verify", "--to", archive, store=broker)
    assert "their events are what the log has of hr, it up to" in said.out
    assert "does not show that the log is whole" in said.err
    for options, why in (
        (("--to", archive, "--workspaces", "hr"), "was begun for the workspaces hr,it"),
        (("--to", archive), "was begun for the workspaces hr,it"),
        (("--workspaces", "hr"), "Name one with --to"),
        (("--to", archive, "--workspaces", "_organisation"), "'_organisation'"),
    ):
        ended = approvals("lake", "sync", "--json", *options, store=broker)
        assert (ended.code, why in ended.problem["message"]) == (2, True), ended.err
    # One of all of them has the rest, and is not made less.
    whole = synced(broker, "--to", archive / "whole")
    assert whole["facts"] == whole["until"] == last_seq(broker)
    ended = approvals(
        *("lake", "sync", "--json", "--to", archive / "whole", "--workspaces", "hr"), store=broker
    )
    assert "was begun for all" in ended.problem["message"]


@pytest.mark.long
def test_a_login_of_some_workspaces_makes_a_lake_of_its_own(broker, archive, tmp_path):
    """And verifies and asks it with that login alone; it has nothing to say of another one (I9)."""
    there = life(CallRef("hr", "t1", "c1"), WISH, "denied")
    record(broker, *there)
    whole = tmp_path / "whole"
    synced(broker, "--to", whole)
    file = tmp_path / "hr.login"
    added = ("hr-lake", "--role", "observer", "--workspaces", "hr", "--out", file)
    assert approvals("auth", "add", *added, store=broker).code == 0

    def ayes(*words: object):
        return approvals(*words, "--json", "--url", file, timeout_s=110)

    told = ayes("lake", "sync", "--to", archive).one
    assert (told["facts"], told["workspaces"]) == (len(there), ["hr"])
    assert asked(archive / "lake", "SELECT DISTINCT workspace FROM events") == [("hr",)]
    assert ayes("lake", "verify", "--to", archive).code == 0
    assert ayes("lake", "sync", "--to", archive).one["facts"] == 0
    beyond = ayes("lake", "verify", "--to", whole)
    assert (beyond.code, "reads hr alone" in beyond.problem["message"]) == (2, True)
    others = ayes("lake", "sync", "--to", tmp_path / "no", "--workspaces", REF.workspace)
    assert "may read the workspaces hr alone" in others.problem["message"]


def test_a_lake_is_verified_as_of_the_workspaces_that_it_names(kept, archive):
    """Whoever writes others into the manifest makes another lake of it."""
    synced(kept, "--to", archive, "--workspaces", REF.workspace)
    manifest = archive / "lake" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"{REF.workspace}"', '"hr"'))
    found = verified(kept, "--to", archive)
    assert (found.code, "is of another log" in found.one["problems"][0]) == (1, True)
    manifest.write_text(text)
    assert verified(kept, "--to", archive).code == 0


def test_a_store_that_nobody_has_open_is_opened_for_it(tmp_path):
    """For as long as it takes; elsewhere than in the store if one says so."""
    with up(tmp_path / "store", "--workers", "none") as ready:
        store = Path(ready["store"])
        record(store, *life(REF.wish(1, 0), WISH, "returned"))
        until = last_seq(store)
    told = synced(store, "--to", tmp_path / "elsewhere")
    assert (told["until"], told["lake"]) == (until, str(tmp_path / "elsewhere" / "lake"))
    assert verified(store, "--to", tmp_path / "elsewhere").code == 0
    asyncio.run(_opens(store))


async def _opens(store: Path) -> None:
    async with EmbeddedServer(store):
        pass


def test_the_log_of_another_store_does_not_get_into_it(kept, archive, tmp_path):
    """A log that was created anew is another log; `verify` says so too."""
    synced(kept, "--to", archive)
    with up(tmp_path / "other", "--workers", "none") as ready:
        other = Path(ready["store"])
        ended = approvals("lake", "sync", "--json", "--to", archive, store=other)
        assert (ended.code, ended.problem["error"]) == (2, "BadInput")
        assert "another log" in ended.problem["message"]
        found = verified(other, "--to", archive)
        assert found.code == 1
        assert "another log" in found.one["problems"][0]
    assert verified(kept, "--to", archive).code == 0


@pytest.mark.parametrize("damage", sampled(["cut short", "newer", "gone"], "cut short"))
def test_an_archive_that_cannot_go_on_says_so(kept, archive, damage):
    """One sentence and an exit code, and the lake stays as it was."""
    synced(kept, "--to", archive)
    working = archive / "working.duckdb"
    match damage:
        case "cut short":
            working.write_bytes(working.read_bytes()[:5000])
        case "newer":
            with duckdb.connect(working) as db:
                db.execute("UPDATE checkpoint SET version = 9")
        case "gone":
            working.unlink()
    ended = approvals("lake", "sync", "--json", "--to", archive, store=kept)
    assert ended.code == {"cut short": 1, "newer": 2, "gone": 2}[damage]
    assert "sync" in ended.problem["message"].lower()
    assert verified(kept, "--to", archive).code == 0


def test_at_a_terminal_one_sees_how_far_it_is(kept, archive):
    """With how many a second and the time left."""
    with at_a_terminal("lake", "sync", "--to", archive, store=kept) as terminal:
        assert terminal.ended() == 0
    assert "archiving" in terminal.told
    assert "the lake in" in terminal.told


# ---------------------------------------------------------------------------------------- following


@contextmanager
def following(store: Path, *options: object):
    with started("lake", "sync", "--follow", "--store", store, "--json", *options) as process:
        yield process


def _until_shown(lake: Path, seq: int) -> None:
    """Wait until it is in the catalog; the test's own time limit ends this."""
    query = "SELECT max(seq) FROM events"
    while not (lake / "catalog.duckdb").exists() or asked(lake, query)[0][0] != seq:
        time.sleep(0.1)


def test_what_is_recorded_is_in_the_catalog_soon(broker):
    """Ctrl-C ends it with what it has published, and the next one goes on there."""
    lake = broker / "archive" / "lake"
    with following(broker) as process:
        _until_shown(lake, last_seq(broker))
        for turn in range(2, 4):
            record(
                broker,
                (REF.wish(turn, 0).requested, life(REF.wish(turn, 0), WISH, "returned")[0][1]),
            )
            _until_shown(lake, last_seq(broker))
        assert asked(lake, "SELECT count(*) FROM open_calls") == [(3,)]
        # The second is told that there is a first.
        ended = approvals("lake", "sync", "--json", store=broker)
        assert (ended.code, ended.problem["error"]) == (1, "Unavailable")
        assert "another process" in ended.problem["message"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert json.loads(out)["until"] == last_seq(broker)
        assert "Traceback" not in err
    assert synced(broker)["facts"] == 0
    assert verified(broker).code == 0


def test_stopped_in_the_midst_of_it_nothing_is_lost(broker):
    """A stop waits for what is being written; the next one goes on there."""
    _fill(broker, 3_000)
    for wait_s in (0.9, 1.3):
        with following(broker) as process:
            time.sleep(wait_s)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert "Traceback" not in err
    assert synced(broker)["until"] == last_seq(broker)
    assert verified(broker).code == 0


def _fill(store: Path, count: int) -> None:
    async def filled():
        async with Ledger.connect(store, role="admin") as ledger:
            slots = list(mixed(count, 20))
            for start in range(0, len(slots), 500):
                await asyncio.gather(
                    *(ledger.try_append(*one) for one in slots[start : start + 500])
                )

    asyncio.run(filled())


@pytest.mark.long
def test_analysts_ask_without_pause_while_facts_come_in(broker):
    """Two of them in processes of their own: no error on either side, and each answer is whole."""
    lake = broker / "archive" / "lake"
    with following(broker) as process:
        _until_shown(lake, last_seq(broker))
        analysts = [
            Started(
                [sys.executable, "-c", ANALYST, str(lake / "catalog.duckdb")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        _fill(broker, 1_000)
        _until_shown(lake, last_seq(broker))
        for analyst in analysts:
            out, err = analyst.communicate(timeout=60)
            assert analyst.returncode == 0, err
            assert int(out) > 0
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert verified(broker).code == 0


# -------------------------------------------------------------------------------------- a full disk


def test_a_full_disk_is_said_in_a_sentence(broker, archive):
    """Here no file may grow beyond so many bytes; with room it goes on, and nothing is missing."""
    _fill(broker, 3_000)
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from ayes.interfaces.cli.main import main; main()"
    )
    options = ("lake", "sync", "--json", "--to", str(archive))
    ended = python(limited, *options, AYES_STORE=str(broker))
    assert ended.code == 1, ended.err
    assert ended.problem["error"] == "Unavailable"
    assert "make room" in ended.problem["message"].lower()
    assert synced(broker, "--to", archive)["until"] == last_seq(broker)
    assert verified(broker, "--to", archive).code == 0
