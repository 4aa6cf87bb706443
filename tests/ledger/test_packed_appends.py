"""What left the stream is still taken: appends into threads with packs (docs/decisions/0091)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import SIZES, sized
from packing import in_stream, let_remove, removed
from stories import CALL, REF, WISH, life

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AlreadyRecorded, EventLog, Recorded, SlotTaken
from ayes.ledger.nats import jetstream
from ayes.ledger.nats.jetstream import JetStream
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import AlreadyFilled, LogDamaged
from ayes.schemas.slots import Slot, ThreadRef

pytestmark = pytest.mark.log("memory", "jetstream")

SAID = (REF.said("m1"), e.Said(role="user", text="first"))
REPLIED = (REF.replied(1), e.ModelReplied(parts=(e.Text("first"),)))
TOLD = (SAID, (REF.asked(1, 1), e.ModelAsked(model="m")), REPLIED, *life(CALL, WISH, "returned"))
AGAIN = e.Said(role="user", text="again")


@pytest.fixture
async def told(port: EventLog, ledger: Ledger) -> Ledger:
    await let_remove(port)
    for slot, event in TOLD:
        await ledger.append(slot, event)
    return ledger


@pytest.fixture
async def stranger(port: EventLog, ledger: Ledger, tmp_path: Path) -> AsyncIterator[Ledger]:
    """Another program, that knows nothing of the log."""
    if not isinstance(port, JetStream):
        yield ledger
        return
    async with Ledger.connect(tmp_path / "store", role="admin") as another:
        yield another


async def as_recorded(ledger: Ledger) -> dict[Slot, int]:
    return {fact.slot: fact.seq for fact in await ledger.read(REF)}


async def test_a_used_name_stays_refused(told: Ledger, stranger: Ledger):
    """To who wrote before it was packed, and to who knows nothing of packs; and it is found out
    that a fact was recorded before it was packed.
    """
    known = {fact.slot: fact for fact in await told.read(REF)}
    await removed(told, REF)
    for ledger in (told, stranger):
        for slot, event in TOLD:
            answer = await ledger.append(slot, event)
            assert answer == SlotTaken(known[slot])
            own = known[slot]
            raw = encode(own.event) if isinstance(own.event, e.Event) else b""
            assert await ledger.log.append(slot, raw, own.event.id) == AlreadyRecorded(own.seq)
    assert not {one.subject for one in await in_stream(told.log)} & {one.subject for one in known}


async def test_a_new_name_is_free_in_a_thread_with_packs(told: Ledger, stranger: Ledger):
    """So is a new slot of a packed call; what is not packed is as ever."""
    for number, ledger in enumerate((told, stranger), 2):
        await removed(told, REF)
        for slot, event in (
            (CALL.late(number), e.ToolReturned(output="late")),
            (REF.said(f"m{number}"), AGAIN),
            (REF.replied(number), REPLIED[1]),
            *life(REF.call(f"c{number}"), WISH, "denied"),
        ):
            assert isinstance(await ledger.append(slot, event), Recorded)
            assert isinstance(await ledger.append(slot, event), SlotTaken)
    opened = e.ThreadOpened(requester="rita")
    assert isinstance(await told.append(REF.opened, opened), Recorded)
    assert isinstance(await stranger.append(REF.opened, opened), SlotTaken)


@pytest.mark.parametrize("others", [0, 30], ids=["alone", "in a batch"])
async def test_a_used_name_is_refused_among_others(told: Ledger, stranger: Ledger, others: int):
    """Many appends at once have an answer each, whether their writer knows the packs or not."""
    await removed(told, REF)
    for ledger, name in ((told, "told"), (stranger, "stranger")):
        fresh = [REF.said(f"{name}{number}") for number in range(others)]
        beside = [ThreadRef(REF.workspace, name).said(f"m{number}") for number in range(others)]
        used = [REF.said("m1"), CALL.requested]
        taken: list[e.Event] = [AGAIN, TOLD[3][1]]
        appends = [ledger.append(slot, event) for slot, event in zip(used, taken, strict=True)]
        appends += [ledger.append(slot, AGAIN) for slot in (*fresh, *beside)]
        answers = await asyncio.gather(*appends)
        assert [type(one) for one in answers] == [SlotTaken] * 2 + [Recorded] * 2 * others


@pytest.mark.log("jetstream")
@pytest.mark.parametrize("knows", [False, True], ids=["of no pack", "of the pack before"])
async def test_what_is_packed_and_removed_while_it_is_written_is_refused(
    told: Ledger, stranger: Ledger, monkeypatch, knows: bool
):
    """Whatever the writer saw before: the broker compares."""
    slots = [SAID[0], CALL.requested, CALL.decided]
    if knows:
        await removed(told, REF)
        assert isinstance(await stranger.append(SAID[0], AGAIN), SlotTaken)
        await told.append(REF.said("m2"), AGAIN)
        for slot, event in life(REF.call("c2"), WISH, "denied"):
            await told.append(slot, event)
        slots = [REF.said("m2"), REF.call("c2").requested, REF.call("c2").decided]
    before = await as_recorded(told)
    log = stranger.log
    assert isinstance(log, JetStream)
    publish, is_packed = log._commits.publish, []

    async def then(*args: Any) -> Any:
        if not is_packed:
            is_packed.append(True)
            await removed(told, REF)
        return await publish(*args)

    monkeypatch.setattr(log._commits, "publish", then)
    for slot in slots:
        event: e.Event = AGAIN if slot.tail[0] == "said" else e.Withdrawn()
        if slot.tail[-1] == "requested":
            event = TOLD[3][1]
        answer = await stranger.append(slot, event)
        assert isinstance(answer, SlotTaken)
        assert answer.first.seq == before[slot]
    assert is_packed
    assert await as_recorded(told) == before


@pytest.mark.log("jetstream")
async def test_who_knows_the_last_pack_needs_one_request(told: Ledger, monkeypatch):
    """And who does not, learns it from the newest pack alone, however many there are."""
    for number in range(3):
        await removed(told, REF)
        await told.append(REF.said(f"n{number}"), AGAIN)
    await removed(told, REF)
    assert isinstance(told.log, JetStream)
    asked = list[str]()
    api, publish = told.log.api, told.log._commits.publish
    call, collect = api.call, api.collect

    async def one_call(what: str, *args: Any, **options: Any) -> Any:
        asked.append(what.partition(".LEDGER")[0])
        return await call(what, *args, **options)

    async def one_collect(what: str, *args: Any) -> Any:
        asked.append("DIRECT.GET")
        return await collect(what, *args)

    async def one_publish(*args: Any) -> Any:
        asked.append("publish")
        return await publish(*args)

    monkeypatch.setattr(api, "call", one_call)
    monkeypatch.setattr(api, "collect", one_collect)

    async def paused(_pause_s: float) -> float:
        raise AssertionError("there is nothing to wait for")

    monkeypatch.setattr(told.log._commits, "publish", one_publish)
    monkeypatch.setattr(jetstream, "_paused", paused)
    told.log._packed.clear()
    assert isinstance(await told.append(REF.said("new"), AGAIN), Recorded)
    # Refused: the slot, what is counted there, the newest pack, that it is the newest. Then again.
    reads = ["STREAM.MSG.GET", "STREAM.INFO", "STREAM.MSG.GET", "STREAM.INFO"]
    assert asked == ["publish", *reads, "publish"]
    asked.clear()
    assert isinstance(await told.append(REF.call("new").requested, TOLD[3][1]), Recorded)
    assert asked == ["publish"]


@pytest.mark.log("jetstream")
async def test_a_log_whose_facts_stay_has_no_conditions(ledger: Ledger, monkeypatch):
    """They would be stored with each fact, and on three nodes one appends at a time with them."""
    assert isinstance(ledger.log, JetStream)
    given, publish = [], ledger.log._commits.publish

    async def one_publish(subject: str, raw: bytes, headers: dict[str, str]) -> Any:
        given.append(headers)
        return await publish(subject, raw, headers)

    monkeypatch.setattr(ledger.log._commits, "publish", one_publish)
    await ledger.append(*SAID)
    await ledger.append(*SAID)
    assert given == [{"Ayes": "1"}] * 2
    assert ledger.log._packed == {}


@pytest.mark.log("jetstream")
async def test_who_connects_again_looks_whether_facts_may_have_left(
    port: JetStream, ledger: Ledger, stranger: Ledger
):
    """Another log may have been restored meanwhile: that program was there before it."""
    await stranger.append(*SAID)
    await let_remove(port)
    await ledger.append(*SAID)
    await removed(ledger, REF)
    assert isinstance(stranger.log, JetStream)
    await stranger.log.connection.client.force_reconnect()
    assert isinstance(await stranger.append(SAID[0], AGAIN), SlotTaken)
    assert [fact.slot for fact in await stranger.read(REF)] == [SAID[0]]


@pytest.mark.log("jetstream")
async def test_who_connects_again_forgets_the_packs_of_before(
    port: JetStream, told: Ledger, stranger: Ledger
):
    """Those of a log that was restored meanwhile have the same numbers, and other names."""
    await removed(told, REF)
    assert isinstance(await stranger.append(SAID[0], AGAIN), SlotTaken)
    await let_remove(port)
    others = [REF.said(f"other{number}") for number in range(20)]  # a longer log
    for other in others:
        await told.append(other, SAID[1])
    await removed(told, REF)
    assert isinstance(stranger.log, JetStream)
    await stranger.log.connection.client.force_reconnect()
    assert isinstance(await stranger.append(others[0], AGAIN), SlotTaken)
    assert [fact.slot for fact in await stranger.read(REF)] == others


async def test_a_start_in_a_slot_that_left_the_stream_is_believed_by_nobody(told: Ledger):
    """It has another condition. So it may be recorded, and is not the first there (I1)."""
    await removed(told, REF)
    claim = CALL.claim(1)
    first = (await as_recorded(told))[claim]
    if isinstance(told.log, JetStream):
        told.log._packed.clear()  # a writer that has read nothing
    started = told.with_envelope(e.ToolStarted(digest="d", idempotency_key="k"))
    answer = await told.log.append(claim, encode(started), started.id, after=0)
    assert isinstance(answer, Recorded if isinstance(told.log, JetStream) else SlotTaken)
    assert (await as_recorded(told))[claim] == first
    with pytest.raises(AlreadyFilled):
        await told.fill(CALL, claim, started, after=0)


@pytest.mark.log("jetstream")
async def test_a_newest_pack_that_is_missing_is_damage(told: Ledger, monkeypatch):
    """Nobody goes by the one before it."""
    await removed(told, REF)
    await told.append(REF.said("m2"), AGAIN)
    await removed(told, REF)
    log = told.log
    assert isinstance(log, JetStream)
    log._packed.clear()
    message, hidden = log.leaders_message, REF.packed(2).subject

    async def without(stream: str, **which: Any) -> Any:
        if which.get("last_by_subj") == hidden:
            return None
        found = await message(stream, **which)
        if found is not None and found.subject == hidden:
            return await message(stream, last_by_subj=REF.packed(1).subject)
        return found

    monkeypatch.setattr(log, "leaders_message", without)
    with pytest.raises(LogDamaged, match=r"packed\.2 is counted there"):
        await told.append(REF.said("m3"), AGAIN)


@pytest.mark.log("jetstream")
async def test_what_a_client_remembers_of_packs_is_bounded(told: Ledger, monkeypatch):
    monkeypatch.setattr("ayes.ledger.nats.jetstream._MOST_PACKED", 2)
    threads = [ThreadRef(REF.workspace, f"t{number}") for number in range(4)]
    for thread in threads:
        await told.append(thread.said("m1"), AGAIN)
        await removed(told, thread)
    for thread in (*threads, *threads):
        assert isinstance(await told.append(thread.said("m1"), AGAIN), SlotTaken)
    assert isinstance(told.log, JetStream)
    assert [*told.log._packed] == [f"ledger.{one.workspace}.{one.thread}" for one in threads[2:]]


@pytest.mark.log("jetstream")
async def test_many_writers_of_a_thread_find_out_once_what_is_in_its_packs(
    told: Ledger, stranger: Ledger, monkeypatch
):
    """All are refused at once, and one of them reads for all."""
    await removed(told, REF)
    assert isinstance(stranger.log, JetStream)
    newest, asked = stranger.log._newest, list[str]()

    async def noted(stream: str, subjects: str) -> Any:
        asked.append(subjects)
        return await newest(stream, subjects)

    monkeypatch.setattr(stranger.log, "_newest", noted)
    names = [REF.said(f"new-{number}") for number in range(30)]
    answers = await asyncio.gather(*(stranger.append(name, AGAIN) for name in names))
    assert [type(one) for one in answers] == [Recorded] * len(names)
    assert asked.count(REF.packs) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_programs_that_write_into_one_thread_at_once(size, tmp_path, monkeypatch):
    """All write at once, and each name is used once. On three nodes one such fact is in process at
    a time; a batch counts as one.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(sized(size, tmp_path / "store"))
        each = [
            await stack.enter_async_context(Ledger.connect(store.path, role="admin"))
            for _ in range(4)
        ]
        await let_remove(each[0].log)
        for one in each:
            one.log._is_packed = None
        pauses, paused = [], jetstream._paused

        async def counted(pause_s: float) -> float:
            pauses.append(pause_s)
            return await paused(pause_s)

        monkeypatch.setattr(jetstream, "_paused", counted)
        alone = [REF.said(f"alone-{number}") for number in range(10)]
        await asyncio.gather(*(each[0].append(name, AGAIN) for name in alone))
        assert pauses == []
        for turn in range(5):
            names = [REF.said(f"{turn}-{number}") for number in range(10)]
            appends = [one.append(name, AGAIN) for name in names for one in each]
            answers = await asyncio.gather(*appends)
            assert [type(one) for one in answers].count(Recorded) == len(names)
            assert [type(one) for one in answers].count(SlotTaken) == 3 * len(names)
            await removed(each[turn % 4], REF)
        facts = await each[0].read(REF)
        assert len({fact.slot for fact in facts}) == len(facts) == 5 * len(names) + len(alone)


def test_only_what_may_be_packed_has_a_condition():
    for slot in (REF.opened, REF.keyed, REF.forgotten, REF.packed(1)):
        assert not packs.is_packable(slot)
    for slot in (SAID[0], REPLIED[0], CALL.vote("ana")):
        assert packs.is_packable(slot)
