"""Facts that have left the stream of a log count as its facts (docs/decisions/0091)."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO
from pathlib import Path

import pytest
from brokers import running
from packing import in_stream, let_remove, pack, removed
from stories import CALL, REF, WISH, life

from ayes.interfaces.cli import check
from ayes.interfaces.cli import lake as cli_lake
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import LEDGER
from ayes.ops import supervisor
from ayes.ops.audit.verify import rebuild
from ayes.ops.inspection import watching, witness
from ayes.ops.inspection.checks import glance, overview
from ayes.ops.inspection.health import former_limit, takes_writes
from ayes.ops.inspection.metrics import Snapshot, values
from ayes.ops.lake.sync import identity_in, write
from ayes.ops.lake.writer import LakeWriter, read_manifest
from ayes.ops.sealing.copier import Copier
from ayes.ops.sealing.exports import export
from ayes.ops.sealing.files import SealFiles, make_key
from ayes.ops.sealing.sealer import Sealer
from ayes.ops.sealing.status import SealStatus
from ayes.ops.sealing.verify import difference
from ayes.schemas import events as e
from ayes.schemas.errors import LedgerFull, LogDamaged
from ayes.schemas.slots import Slot, ThreadRef

OTHER = ThreadRef("elsewhere", "t2")
OPEN = OTHER.call("open")
SAID = e.Said(role="user", text="?")
#: The facts of the log, and those of each thread that may be packed.
FACTS = 14
OF_REF, OF_OTHER = 6, 4


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Ledger]:
    """Two threads with settled calls, and one that is open, on an administrator's login."""
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        await let_remove(ledger.log)
        await streams.ensure(log_of(ledger).api)
        await ledger.append(REF.opened, e.ThreadOpened(requester="rita"))
        await ledger.append(REF.said("m1"), SAID)
        for slot, event in (
            *life(CALL, WISH, "returned"),
            *life(OPEN, WISH, "approved"),
            *life(OTHER.call("c1"), WISH, "denied"),
        ):
            await ledger.append(slot, event)
        assert await ledger.log.last_seq() == FACTS
        yield ledger


@pytest.fixture
def store(tmp_path: Path, told: Ledger) -> Path:
    return tmp_path / "store"


@pytest.fixture
def place(store: Path) -> str:
    return witness.place_of(store, None)


def log_of(ledger: Ledger) -> JetStream:
    assert isinstance(ledger.log, JetStream)
    return ledger.log


async def whole(log: JetStream) -> list[RawMessage]:
    async with aclosing(log.scan_leader(1)) as pages:
        return [one async for page in pages for one in page]


async def seen_now(log: JetStream, place: str, *, is_gate: bool = True) -> watching._Keeper:
    """What a gate, or another process, does when it begins to watch a log."""
    keeper = watching._Keeper(log, witness.Witness(log, place), is_gate=is_gate)
    await keeper.begin()
    await keeper.look()
    return keeper


async def lose(ledger: Ledger, slot: Slot) -> int:
    """Remove a fact that is in no pack; returns its number."""
    fact = await ledger.log.latest(slot.subject)
    assert fact is not None
    await log_of(ledger).api.call(f"STREAM.PURGE.{LEDGER}", {"filter": slot.subject})
    return fact.seq


# -------------------------------------------------------------------------------------- the witness


async def test_what_is_in_a_pack_is_not_lost(told: Ledger, place: str):
    """A log that nobody has seen is whole if what it lacks is in packs; what is in none is lost."""
    await removed(told, REF, OTHER)
    assert len(await in_stream(told.log)) == FACTS + 2 - OF_REF - OF_OTHER
    assert await witness.difference(log_of(told), place) is None
    counts = [await log_of(told).in_packs(1, FACTS + after) for after in range(3)]
    assert counts == [0, OF_REF, OF_REF + OF_OTHER]
    await lose(told, OPEN.decided)
    found = await witness.difference(log_of(told), place)
    assert found is not None
    assert found.startswith(f"it lacks 1 of its {FACTS + 2} facts")


@pytest.mark.parametrize("is_gate", [True, False])
async def test_facts_that_leave_while_a_process_runs_do_not_end_it(
    told: Ledger, place: str, monkeypatch: pytest.MonkeyPatch, *, is_gate: bool
):
    """Unless one is in no pack. No pack is read a second time."""
    log, read = log_of(told), list[int]()
    message = log.leaders_message

    async def noted(stream: str, **which: str | int) -> RawMessage | None:
        found = await message(stream, **which)
        if found is not None and which.get("next_by_subj") == "ledger.*.*.packed.*":
            read.append(found.seq)
        return found

    keeper = await seen_now(log, place, is_gate=is_gate)
    await removed(told, REF)
    monkeypatch.setattr(log, "leaders_message", noted)
    await keeper.look()
    await told.append(REF.said("m2"), SAID)
    await removed(told, OTHER)
    for _ in range(2):
        await keeper.look()
    await told.append(REF.said("m3"), SAID)
    await keeper.look()
    assert keeper._seen.packed == OF_REF + OF_OTHER
    assert set(read) == {FACTS + 1, FACTS + 3}
    if not is_gate:
        assert len(read) == 4  # each once to count what is missing, and once to keep the sum
    await lose(told, OPEN.decided)
    with pytest.raises(LogDamaged, match=f"it lacks 1 of its {FACTS + 4} facts"):
        await keeper.look()


async def test_the_next_start_reads_the_packs_since_then(
    told: Ledger, place: str, monkeypatch: pytest.MonkeyPatch
):
    """How many facts are in those before is kept with what was seen."""
    log = log_of(told)
    await removed(told, REF)
    await seen_now(log, place)
    [seen] = await witness.Witness(log, place).known(await log.identity())
    assert (seen.seq, seen.packed) == (FACTS + 1, OF_REF)
    await removed(told, OTHER)
    count, asked = log.in_packs, list[int]()

    async def noted(start: int, last: int) -> int:
        asked.append(start)
        return await count(start, last)

    monkeypatch.setattr(log, "in_packs", noted)
    assert await witness.difference(log, place, deep=True) is None
    assert asked == [FACTS + 2]


async def test_what_was_seen_by_a_program_that_did_not_count_is_gone_on_with(
    told: Ledger, place: str
):
    log = log_of(told)
    await removed(told, REF)
    seen = witness.LastSeen(place, await log.identity())
    for raw in await whole(log):
        seen = seen.add(raw)
    assert seen.packed is None
    await witness.Witness(log, place).save(seen)
    assert await witness.difference(log, place) is None
    await told.append(REF.said("m2"), SAID)
    await seen_now(log, place)
    [found] = await witness.Witness(log, place).known(seen.log)
    assert (found.seq, found.packed) == (FACTS + 2, OF_REF)


async def test_what_is_lost_while_packed_facts_are_in_the_stream_is_found_by_reading(
    told: Ledger, place: str
):
    """A count does not show it, as it could be they that have left."""
    log = log_of(told)
    keeper = await seen_now(log, place)
    assert await pack(told, OTHER) == 1
    await keeper.look()
    lost = await lose(told, OPEN.decided)
    await told.append(REF.said("m2"), SAID)
    await keeper.look()
    with pytest.raises(LogDamaged, match=f"fact {lost} cannot be read"):
        await keeper.read_all()
    assert await witness.difference(log, place, deep=True) is not None


async def test_packs_in_a_log_whose_facts_stay_excuse_no_loss(told: Ledger, place: str):
    """No fact may leave the stream of a log of level 1, also if there is a pack with it."""
    await pack(told, OTHER)
    stream = await log_of(told).api.call(f"STREAM.INFO.{LEDGER}")
    stream["state"]["messages"] -= 1
    seen = witness.LastSeen(place)
    await witness.check_density(log_of(told), stream, None, seen)
    stream["config"]["metadata"]["ayes-level"] = "1"
    with pytest.raises(LogDamaged, match=f"it lacks 1 of its {FACTS + 1} facts"):
        await witness.check_density(log_of(told), stream, None, seen)


async def test_what_was_accepted_is_not_what_is_in_packs(told: Ledger, place: str):
    """A log that was accepted without a fact lacks that one, whatever leaves the stream later."""
    log = log_of(told)
    await removed(told, REF)
    await lose(told, OPEN.gated)
    organisation = Ledger(log, e.Author(kind="service", name="tests"))
    await witness.accept(log, place, organisation, "a test")
    assert await witness.difference(log, place) is None
    await removed(told, OTHER)
    assert await witness.difference(log, place) is None
    await lose(told, OPEN.requested)
    found = await witness.difference(log, place)
    assert found is not None
    assert found.startswith("it lacks 2 of its ")


# ------------------------------------------------------------------------------------ what is shown


async def test_status_doctor_and_metrics_count_what_has_left(
    told: Ledger, store: Path, place: str, capsys: pytest.CaptureFixture[str]
):
    """The subjects are those that the broker has in its memory."""
    log = log_of(told)
    await removed(told, REF, OTHER)
    look = await glance(log)
    assert (look.facts, look.last_seq) == (FACTS + 2, FACTS + 2)
    assert look.subjects == len(await in_stream(log))
    status = await overview(log, Store(store), place)
    assert (status.facts, status.unlike) == (FACTS + 2, "")
    seen = Snapshot(await log.clock(), "", look=look)
    assert ("ayes_log_facts", (), FACTS + 2) in list(values(seen))
    capsys.readouterr()
    await check.status(session=Session(store, json=True))
    assert json.loads(capsys.readouterr().out)["facts"] == FACTS + 2
    await check.doctor(session=Session(store, json=True))
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    found = {one["check"]: one for one in lines}
    assert (found["log"]["ok"], found["promises"]["ok"]) == (True, True)


async def test_a_replay_counts_what_has_left(told: Ledger):
    before = await rebuild(told, until=FACTS, verify=True)
    await removed(told, REF, OTHER)
    after = await rebuild(told, until=FACTS, verify=True)
    assert (after.facts, after.until, after.calls) == (FACTS, FACTS, before.calls)
    assert after.differences == before.differences == ()


# ------------------------------------------------------------------------- sealed, copied, archived


async def test_a_seal_goes_on_over_what_has_left(told: Ledger, store: Path, tmp_path: Path):
    """So do its verification, exports, and copies."""
    log, before = log_of(told), await whole(log_of(told))
    key = make_key(Store(store), f"approvals.example.com/{await log.identity()}")
    files = SealFiles(Store(store))
    sealer = Sealer(log, files, key)
    async with files.alone():
        await sealer.begin()
        await sealer.seal(FACTS - 2)
        await removed(told, REF, OTHER)
        await sealer.seal(FACTS)
        again = Sealer(log, files, key)
        await again.begin()
        await again.seal(FACTS + 2)
    sealed = files.checkpoint(key.public)
    assert sealed is not None
    assert sealed.size == FACTS + 2
    async with aclosing(log.scan_leader(1)) as pages:
        assert await difference(pages, sealed, files.tile) is None
    status = await SealStatus.of(Store(store), log, FACTS + 2)
    assert status is not None
    assert (status.sealed, status.alarms) == (FACTS + 2, [])
    assert await export(log, files.note(), tmp_path / "export") == FACTS + 2
    _head, *lines = (tmp_path / "export").read_bytes().splitlines(keepends=True)
    content = BytesIO()
    copier = Copier(log, files, key.public, None, 1.0)  # type: ignore[arg-type]
    await copier._read(before[0], FACTS + 2, content)
    assert content.getvalue() == b"".join(lines)
    assert len(lines) == FACTS + 2


async def test_a_lake_goes_on_over_what_has_left(told: Ledger, tmp_path: Path):
    """It has each fact once, and verifies."""
    identity = await identity_in(told)

    async def synced() -> list[str]:
        with LakeWriter.open(tmp_path / "archive", identity) as archive:
            await write(told, archive, follow=False, wrote=lambda _seq: None)
            assert archive.publish() == archive.facts == await told.log.last_seq()
            lake = archive.lake
        return await cli_lake._of_rows(told, lake, read_manifest(lake))

    assert await synced() == []
    await removed(told, REF)
    await told.append(OTHER.said("m1"), SAID)
    await removed(told, OTHER)
    assert await synced() == []


# ------------------------------------------------------------------------------- the limit of bytes


async def test_a_log_that_became_smaller_is_closed_and_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """While the disk is nearly full no fact takes the room of those that left the stream; and the
    limit of before comes back.
    """
    free = 0
    monkeypatch.setattr(supervisor, "free_bytes", lambda _path: free)
    monkeypatch.setattr(supervisor, "floor_of", lambda _path: 100)
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        log = log_of(ledger)
        await let_remove(log)
        for number in range(50):
            await ledger.append(REF.said(f"m{number}"), SAID)
        assert await pack(ledger, REF) == 1
        config = (await log.api.call(f"STREAM.INFO.{LEDGER}"))["config"]
        watched = supervisor.Supervisor(server, log)
        try:
            await watched.check_disk()
            await log.remove(REF, 1)
            stream = await log.api.call(f"STREAM.INFO.{LEDGER}")
            assert stream["state"]["bytes"] < stream["config"]["max_bytes"]
            assert former_limit(stream) == config["max_bytes"]
            assert "nearly full" in (await takes_writes(log)).why
            await watched.check_disk()
            with pytest.raises(LedgerFull):
                await ledger.append(REF.said("more"), SAID)
            free = 1_000
            await watched.check_disk()
            assert (await log.api.call(f"STREAM.INFO.{LEDGER}"))["config"] == config
            await ledger.append(REF.said("more"), SAID)
        finally:
            await watched.end()
