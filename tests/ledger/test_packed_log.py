"""A log whose settled threads are packed and removed reads as before: on JetStream, in memory."""

import random
from pathlib import Path
from typing import Any

import pytest
from packing import in_stream, let_remove, pack, removed
from stories import CALL, REF, WISH, life

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Lagging, Memory
from ayes.ledger.log import EventLog, RawMessage
from ayes.ledger.nats.api import NatsReply
from ayes.ledger.nats.jetstream import JetStream
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, BrokerRefused, LogDamaged
from ayes.schemas.slots import ThreadRef

pytestmark = pytest.mark.log("memory", "jetstream", "stream")

OPEN = REF.call("open")
SIGNED = e.Voted(verdict="deny", digest="d", signature="webauthn.1.0123456789abcdef.0.a.b.c")


@pytest.fixture
async def told(port: EventLog, ledger: Ledger) -> Ledger:
    """A thread with a settled call, an open one, messages and a turn; and another thread."""
    await let_remove(port)
    await ledger.append(REF.opened, e.ThreadOpened(requester="rita"))
    await ledger.append(REF.said("m1"), e.Said(role="user", text="Grüße"))
    await ledger.append(CALL.vote("ben"), SIGNED)
    for slot, event in (
        *life(CALL, WISH, "happened"),
        *life(OPEN, WISH, "approved"),
        (REF.asked(1, 1), e.ModelAsked(model="m")),
        (REF.replied(1), e.ModelReplied(parts=(e.Text("hello"),))),
        *life(ThreadRef(REF.workspace, "other").call("c1"), WISH, "denied"),
    ):
        await ledger.append(slot, event)
    return ledger


READ = (
    (REF.subjects,),
    (CALL.subjects,),
    (OPEN.subjects,),
    (CALL.decided.subject,),
    (CALL.subjects, REF.said("m1").subject, REF.opened.subject),
    (REF.call("none").subjects,),
    (f"ledger.{REF.workspace}.{REF.thread}.turn.>", f"ledger.{REF.workspace}.other.>"),
    (f"ledger.{REF.workspace}.{REF.thread}.call.*.requested",),
)
LATEST = (
    REF.subjects,
    CALL.subjects,
    CALL.finished.subject,
    CALL.late(2).subject,
    CALL.vote("ben").subject,
    f"ledger.{REF.workspace}.{REF.thread}.said.*",
    OPEN.subjects,
    CALL.revocations,
)


async def reading(log: EventLog, last: int) -> dict[str, object]:
    """What all reads within one thread say."""

    def in_order(found: list[RawMessage] | None) -> list[RawMessage]:
        assert found is not None
        return sorted(found, key=lambda one: one.seq)

    return {
        "read": [await log.read(*subjects) for subjects in READ],
        "few": [in_order(await log.read_few(*subjects)) for subjects in READ],
        "latest": [await log.latest(subjects) for subjects in LATEST],
        "at": [await log.at(seq) for seq in range(1, last + 1)],
    }


async def test_a_packed_thread_reads_as_before(told: Ledger):
    """With what is packed still in the stream, and without; numbers, times and bytes are the same,
    to the nanosecond.
    """
    port = told.log
    last = await port.last_seq()
    before = await reading(port, last)
    assert await pack(told, REF) == 1
    assert await reading(port, last) == before
    stream = await in_stream(port)
    await port.remove(REF, 1)
    assert await reading(port, last) == before
    left = await in_stream(port)
    gone = {one.subject for one in stream} - {one.subject for one in left}
    packed = [REF.said("m1"), REF.asked(1, 1), REF.replied(1)]
    packed += [slot for slot, _ in life(CALL, WISH, "happened")]
    assert gone == {slot.subject for slot in packed}
    assert await port.last_seq() == last + 1
    assert [one.subject for one in await port.read_few(REF.packs) or ()] == [REF.packed(1).subject]
    assert await port.at(last + 2) is None
    if isinstance(port, Memory):
        for seed in range(20):
            behind = Lagging(port, random.Random(seed))
            await behind.last_seq()
            assert [await behind.read(*subjects) for subjects in READ] == before["read"]


async def test_what_is_packed_later_is_in_the_next_pack(told: Ledger):
    port = told.log
    await pack(told, REF)
    await port.remove(REF, 1)
    for slot, event in life(REF.call("c2"), WISH, "failed"):
        await told.append(slot, event)
    last = await port.last_seq()
    before = await reading(port, last)
    assert await pack(told, REF) == 2
    for number in (2, 1, 2):
        await port.remove(REF, number)
        assert await reading(port, last) == before
    assert await pack(told, REF) == 2


@pytest.mark.log("jetstream")
async def test_a_call_of_a_packed_thread_is_read_without_packs(
    told: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Once it is known what they have, until there is one more."""
    await removed(told, REF)
    later, *rest = life(REF.call("later"), WISH, "failed")
    await told.append(*later)
    async with Ledger.connect(tmp_path / "store", role="admin") as another:
        log, got = another.log, list[str]()
        assert isinstance(log, JetStream)
        get, message = log._get, log.leaders_message

        async def noted(*args: Any, **which: Any) -> Any:
            found, last = await get(*args, **which)
            got.extend(raw.subject for raw in found)
            return found, last

        async def noted_one(*args: Any, **which: Any) -> Any:
            if (found := await message(*args, **which)) is not None:
                got.append(found.subject)
            return found

        monkeypatch.setattr(log, "_get", noted)
        monkeypatch.setattr(log, "leaders_message", noted_one)

        async def looked() -> list[str]:
            """What is asked for to read the call, and a slot of it that is not filled."""
            got.clear()
            call = REF.call("later")
            assert [fact.slot for fact in await log.read(call.subjects)] == [later[0]]
            assert await log.latest(call.finished.subject) is None
            return [one for one in got if packs.number_of(one)]

        assert await looked() == [REF.packed(1).subject]
        assert await looked() == []
        await told.append(REF.said("m9"), e.Said(role="user", text="more"))
        await removed(told, REF)
        assert {*await looked()} == {REF.packed(1).subject, REF.packed(2).subject}
        assert await looked() == []
        before = [later, *rest]
        for slot, event in rest:
            await told.append(slot, event)
        await removed(told, REF)
        assert [fact.slot for fact in await log.read(REF.call("later").subjects)] == [
            slot for slot, _ in before
        ]
        assert await log.latest(REF.call("later").finished.subject)


async def test_more_facts_than_one_answer_holds(told: Ledger):
    """The facts are read in pages, and what left the stream is in its place."""
    port = told.log
    before = len(await port.read(REF.subjects))
    await pack(told, REF)
    await port.remove(REF, 1)
    for number in range(1100):
        await told.append(REF.said(f"n{number}"), e.Said(role="user", text=str(number)))
    facts = await port.read(REF.subjects)
    assert [fact.seq for fact in facts] == sorted({fact.seq for fact in facts})
    assert len(facts) == 1100 + before
    assert await port.read_few(REF.subjects) is None


@pytest.mark.log("jetstream")
@pytest.mark.parametrize("others", [0, 1100], ids=["by the leader", "in pages"])
async def test_what_leaves_the_stream_while_it_is_read_is_found(told: Ledger, monkeypatch, others):
    """Between the moment at which the leader counts the facts and that at which they are read. A
    fact that is counted and cannot be read is damage only while it is counted.
    """
    port = told.log
    assert isinstance(port, JetStream)
    counted, get = port.counted, port._get
    for number in range(others):
        await told.append(REF.said(f"n{number}"), e.Said(role="user", text=str(number)))
    before = await port.read(REF.subjects)
    last = packs.packs_of(packs.packable(REF, [*await in_stream(port)]))
    for number, one in enumerate(last, 1):
        await told.append(REF.packed(number), one)
    asked = list[str]()

    async def then_removed(stream: str, subjects: str) -> list[str]:
        found = await counted(stream, subjects)
        if not asked:
            for number in range(1, len(last) + 1):
                await port.remove(REF, number)
        asked.append(subjects)
        return found

    async def behind(stream: str, subjects: tuple[str, ...], **which: Any) -> Any:
        """The answer of a replica that has nothing of it yet."""
        if "multi_last" in which and not others:
            return [], NatsReply(b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
        return await get(stream, subjects, **which)

    monkeypatch.setattr(port, "counted", then_removed)
    monkeypatch.setattr(port, "_get", behind)
    assert await port.read(REF.subjects) == before
    assert asked[0] == REF.subjects


@pytest.mark.log("jetstream")
async def test_a_replica_that_has_packs_alone_is_not_believed_that_there_is_nothing_else(
    told: Ledger, monkeypatch
):
    """What it lacks is read from the leader, in the stream or in a pack."""
    port, said = told.log, REF.said("later")
    assert isinstance(port, JetStream)
    await removed(told, REF)
    await told.append(said, e.Said(role="user", text="?"))
    facts, get = await port.read(said.subject), port._get

    async def behind(stream: str, subjects: tuple[str, ...], **which: Any) -> Any:
        found, last = await get(stream, subjects, **which)
        return [one for one in found if one.seq < facts[0].seq], last

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(port, "_get", behind)
            port._known_seq = 0
            assert await port.read(said.subject) == facts
            port._known_seq = 0
            assert await port.read_few(said.subject)
            assert await port.read(REF.said("never").subject) == ()
        await removed(told, REF)


async def test_only_what_is_in_a_pack_can_be_removed(told: Ledger):
    with pytest.raises(BadInput, match="has no pack 1"):
        await told.log.remove(REF, 1)
    await pack(told, REF)
    with pytest.raises(BadInput, match="has no pack 2"):
        await told.log.remove(REF, 2)


async def test_a_missing_pack_is_damage(told: Ledger):
    """Nobody takes a thread for whole whose first pack cannot be read."""
    await told.append(REF.packed(2), e.Packed(names="", facts="", size=0))
    for read in (told.log.read, told.log.read_few):
        with pytest.raises(LogDamaged, match=r"packed\.1 is missing"):
            await read(CALL.subjects)


@pytest.mark.log("jetstream")
async def test_a_log_as_it_is_set_up_lets_nobody_remove_anything(ledger: Ledger):
    """Until its stream is made for it."""
    await ledger.append(REF.said("m1"), e.Said(role="user", text="?"))
    await pack(ledger, REF)
    assert isinstance(ledger.log, JetStream)
    with pytest.raises(BrokerRefused):
        await ledger.log.remove(REF, 1)
