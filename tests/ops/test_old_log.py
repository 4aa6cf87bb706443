"""A log of the version before facts counted only for what they rest on: it is read as that version
read it.

`old_log/log.jsonl` holds the messages of that version's log, in which calls have every status, run
by clients and by executors; `old_log/said.json` is what that version said of them. Then a reviewer
revoked in an executor's slot (`claim.1`), a client claimed and finished in an executor's slots, and
`reconciled` did not name the reviewer.
"""

import json
from datetime import datetime

import msgspec
import pytest
from anything import fact
from lake_tables import judged_by, read, rows
from paths import TESTS
from workers import tell

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import RawMessage
from ayes.ledger.nats import streams
from ayes.ledger.nats.streams import ensure, info
from ayes.ledger.subscriptions import DURABLES, LEDGER
from ayes.ledger.validity import call_of, voids
from ayes.ops.audit.verify import rebuild
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.workers import reactions, working
from ayes.projections.fold import ProjectionState
from ayes.projections.history import digest, history
from ayes.projections.lake import tables
from ayes.projections.pending import OPEN_APPROVALS
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef, ThreadRef

OLD = TESTS / "old_log"
SAID = json.loads((OLD / "said.json").read_text())


def raws() -> list[RawMessage]:
    lines = map(json.loads, (OLD / "log.jsonl").read_text().splitlines())
    return [
        RawMessage(
            one["seq"], datetime.fromisoformat(one["time"]), one["subject"], one["payload"].encode()
        )
        for one in lines
    ]


RAWS = raws()
FACTS: list[Fact] = [fact(raw) for raw in RAWS]


def calls() -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = {}
    for one in FACTS:
        if one.slot.thread and one.slot.call_ref:
            found.setdefault(str(one.slot.call_ref), []).append(one)
    return found


def test_every_status_is_the_same():
    """A call stands as it stood, whoever ran it and however it was taken back or reconciled."""
    found = {name: call_of(CallRef.parse(name), facts) for name, facts in calls().items()}
    assert {name: str(call.status) for name, call in found.items()} == SAID["statuses"]
    assert set(SAID["statuses"].values()) == {str(one) for one in Status} - {"unknown", "lapsed"}
    assert {call.wish.run_by for call in found.values()} == {"client", "payments"}


def test_nothing_of_it_is_void():
    """No fact that counted then has lost its effect."""
    assert [
        one for name, facts in calls().items() for one in voids(call_of(CallRef.parse(name), facts))
    ] == []


def test_every_history_is_the_same():
    """What a model would be sent has the same digest, and what each was sent can still be
    proved.
    """
    for name, known in SAID["histories"].items():
        ref = ThreadRef.parse(name)
        thread = thread_of(ref, [one for one in FACTS if one.slot.thread == ref.thread])
        assert digest(history(thread).entries) == known
        for number, turn in thread.turns.items():
            if turn.reply is not None:
                assert (
                    digest(history(thread, before_turn=number).entries) == turn.reply.history_digest
                )


def test_the_queue_is_the_same():
    """Byte for byte, but for fields that were added since."""
    folding = ProjectionState(OPEN_APPROVALS)
    for one in FACTS:
        folding.apply(one)
    found = {row.key: json.loads(row.value) for row in folding.rows(OPEN_APPROVALS)}
    then = {key: json.loads(value) for key, value in SAID["pending"].items()}
    assert {key: {name: found[key][name] for name in entry} for key, entry in then.items()} == then
    assert found.keys() == then.keys()


def test_the_tables_are_the_same():
    """Each row of `calls`, in each column that there was."""
    db = read(RAWS)
    found = rows(db, "SELECT * FROM calls ORDER BY first_seq")
    plain = [
        {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in found
    ]
    then = SAID["calls"]
    assert [{name: row[name] for name in one} for row, one in zip(plain, then, strict=True)] == then
    assert {why for _, why in judged_by(db).values()} == {None}
    assert set(then[0]) | {"revoked_by", "valid_until"} == {
        "workspace",
        "thread",
        "call",
        *(name for name, _ in tables.CALLS),
    }
    assert {row["revoked_by"] for row in found if row["outcome"] == "revoked"} == {"ben"}


@pytest.fixture
async def old(tmp_path, monkeypatch):
    """A broker with that log, and with the consumers of then."""
    before = {
        "gate": tuple(one for one in DURABLES["gate"].subjects if "replied" not in one),
        "executor": ("ledger.*.*.call.*.decided", "ledger.*.*.call.*.claim.*"),
    }
    async with EmbeddedServer(tmp_path / "store") as server:
        async with Ledger.connect(server.store.path, role="admin") as ledger:
            with monkeypatch.context() as patch:
                older = {
                    name: msgspec.structs.replace(one, subjects=before.get(name, one.subjects))
                    for name, one in DURABLES.items()
                }
                patch.setattr(streams, "DURABLES", older)
                await ensure(ledger.log.api, also=("executor",))
            for raw in RAWS:
                await ledger.log.api.ask(raw.subject, raw.data)
        yield server.store.path


async def test_workers_go_on_with_it(old):
    """The consumers get their new subjects, the log is verified, and a call that waited can be
    decided.
    """
    async with Ledger.connect(old, role="admin") as admin:
        assert await admin.log.last_seq() == len(RAWS)
        await ensure(admin.log.api, also=("executor",))
        for name in ("gate", "executor"):
            there = await info(admin.log.api, f"CONSUMER.INFO.{LEDGER}.{name}")
            assert set(there["config"]["filter_subjects"]) == set(DURABLES[name].subjects)
        async with working(reactions(("queue",)), store=old):
            rebuilt = await rebuild(admin, verify=True)
            assert rebuilt.calls == SAID["counted"]
            assert rebuilt.void == ()
            # That tool was not declared repeatable, and was started twice; so said the version of
            # then.
            assert [one.partition(": ")[2] for one in rebuilt.differences] == SAID["verified"]
        waiting = next(
            name
            for name, status in SAID["statuses"].items()
            if status == "approved" and "payments" in name
        )
        call = await admin.call(CallRef.parse(waiting))
        start = e.ToolStarted(digest=call.digest, idempotency_key=waiting)
        await tell(admin, [(call.claim_slot, start)])
        call = await admin.call(call.ref)
        await tell(admin, [(call.end_slot, e.ToolReturned(output="done", attempt=call.attempt))])
        assert (await admin.call(call.ref)).status is Status.RETURNED
