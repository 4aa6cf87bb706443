"""Of two facts in one slot the first counts: who reads the log from one number to the next is told
which ones are the second (docs/decisions/0091).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from packing import in_stream, let_remove, pack, refill, removed
from stories import CALL, REF, WISH, life
from until import until

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog, RawMessage
from ayes.ledger.nats import refilled
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.refilled import LOOKED_FOR, Refilled
from ayes.ops.actions.packing import REMOVED_AFTER
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode, fact_of
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import Slot, ThreadRef

pytestmark = pytest.mark.log("memory", "jetstream")

OTHER = ThreadRef("elsewhere", "t2")
SAID = REF.said("m1"), e.Said(role="user", text="first")
REPLIED = REF.replied(1), e.ModelReplied(parts=(e.Text("first"),))
TOLD = (
    (REF.opened, e.ThreadOpened(requester="rita")),
    SAID,
    REPLIED,
    *life(CALL, WISH, "returned"),
    *life(OTHER.call("c1"), WISH, "denied"),
)
AGAIN = e.Said(role="user", text="again")
#: What fills the slots of packed facts again.
SECOND = (
    (CALL.decided, e.Denied(ground="people", rule="money", policy_version=1)),
    (REF.said("m1"), AGAIN),
    (OTHER.call("c1").finished, e.ToolReturned(output="it ran")),
    (REF.replied(1), e.ModelReplied(parts=(e.Text("again"),))),
)
PATTERNS = (
    (),
    ("ledger.>",),
    (REF.subjects,),
    ("ledger.*.*.call.*.decided", "ledger.*.*.said.*"),
    ("ledger.*.*.said.*", OTHER.subjects),
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed here leaves the stream at once."""
    monkeypatch.setattr(refilled, "LOOKED_FOR", timedelta(0))


@pytest.fixture
async def told(port: EventLog, ledger: Ledger) -> Ledger:
    await let_remove(port)
    for slot, event in TOLD:
        await ledger.append(slot, event)
    return ledger


async def whole(pages: AsyncGenerator[list[RawMessage]]) -> list[RawMessage]:
    async with aclosing(pages) as each:
        return [one async for page in each for one in page]


async def facts(log: EventLog, subjects: tuple[str, ...], start: int = 1) -> list[Fact]:
    async with aclosing(log.follow(subjects, start, until_end=True)) as batches:
        return [fact async for batch in batches for fact in batch]


async def filled_again(told: Ledger) -> dict[int, int]:
    """Fill all again; by the number of each of these facts, the number of the first."""
    first = {slot: fact.seq for slot, _ in SECOND for fact in await told.read(slot)}
    await removed(told, REF, OTHER)
    return {await refill(told.log, slot, event): first[slot] for slot, event in SECOND}


async def test_both_facts_are_there_and_the_second_is_in_no_slot(told: Ledger):
    """From wherever the log is read, and by whatever subjects."""
    before = await told.read(REF)
    again = await filled_again(told)
    log, last = told.log, await told.log.last_seq()
    every = await whole(log.raw(1, until_end=True))
    assert [one.seq for one in every] == [*range(1, last + 1)]
    assert {one.seq: one.first for one in every if one.first} == again
    by_seq = {one.seq: one for one in every}
    for (slot, event), seq in zip(SECOND, again, strict=True):
        assert by_seq[seq].subject == by_seq[again[seq]].subject == slot.subject
        plain = fact_of(seq, by_seq[seq].recorded_at, slot.subject, by_seq[seq].data)
        assert type(plain.event) is type(event)
        assert await log.at(seq) == by_seq[seq]
        assert await log.latest(slot.subject) == (await told.read(slot))[0]
    for subjects in PATTERNS:
        for start in (1, min(again), max(again)):
            found = await whole(log.raw(start, subjects, until_end=True))
            assert {one.seq: one.first for one in found if one.first}.items() <= again.items()
            assert all(one == by_seq[one.seq] for one in found)
            said = await facts(log, subjects, start)
            assert [one.seq for one in said] == [one.seq for one in found]
            assert [one.slot.subject for one in said] == [one.subject for one in found]
            for fact, raw in zip(said, found, strict=True):
                assert bool(raw.first) == (fact.slot == Slot.elsewhere(raw.subject))
                if raw.first:
                    assert isinstance(fact.event, e.Carried)
                    assert fact.event.raw == raw.data
                    assert fact.event.problem == (
                        f"its slot was filled before it, by fact {raw.first}"
                    )
            if len(subjects) == 1:
                assert await whole(log.scan(start, *subjects)) == found
    assert await told.read(REF) == before


async def test_who_follows_is_told_which_is_the_second(told: Ledger):
    """Also who began before anything was packed, by subjects too."""
    log = told.log
    found: list[list[RawMessage]] = [[] for _ in PATTERNS]

    async def follow(number: int) -> None:
        async with aclosing(log.raw(1, PATTERNS[number], until_end=False)) as batches:
            async for batch in batches:
                found[number] += batch

    following = [asyncio.create_task(follow(number)) for number in range(len(PATTERNS))]
    try:
        await until(lambda: all(found) or any(task.done() for task in following))
        again = await filled_again(told)
        await told.append(REF.said("end"), AGAIN)
        end = REF.said("end").subject
        await until(
            lambda: (
                all(one[-1].subject == end for one in found)
                or any(task.done() for task in following)
            )
        )
        assert not any(task.done() for task in following)
        for subjects, each in zip(PATTERNS, found, strict=True):
            expected = await whole(log.raw(1, subjects, until_end=True))
            assert [one for one in each if ".packed." not in one.subject] == [
                one for one in expected if ".packed." not in one.subject
            ]
            assert {one.first for one in each} - {0} <= set(again.values())
            assert any(one.first for one in each)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def test_what_is_first_in_its_slot_is_itself(told: Ledger):
    """What is packed and still in the stream; what comes later, in other slots of packed calls and
    in threads with packs.
    """
    for thread in (REF, OTHER):
        await pack(told, thread)
    later = [
        (CALL.late(1), e.ToolReturned(output="late")),
        (REF.said("m2"), AGAIN),
        (REF.replied(2), REPLIED[1]),
        *life(OTHER.call("c2"), WISH, "approved"),
    ]
    for slot, event in later[:2]:
        await told.append(slot, event)
    assert not any(one.first for one in await whole(told.log.raw(1, until_end=True)))
    await removed(told, REF, OTHER)
    for slot, event in later[2:]:
        await told.append(slot, event)
    every = await whole(told.log.raw(1, until_end=True))
    assert not any(one.first for one in every)
    assert {slot.subject for slot, _ in later} < {one.subject for one in every}
    assert len(await in_stream(told.log)) < len(every)


async def test_the_second_is_found_whichever_pack_has_the_first(told: Ledger, monkeypatch):
    """In one of several packs of a thread, also if little is remembered of packs."""
    monkeypatch.setattr(refilled, "_MOST_NAMES", 1)
    again = dict[int, int]()
    for number in range(2, 5):
        for thread in (REF, OTHER):
            await told.append(thread.said(f"m{number}"), AGAIN)
        await removed(told, REF, OTHER)
    for thread in (REF, OTHER):
        for number in range(2, 5):
            [first] = await told.read(thread.said(f"m{number}"))
            again[await refill(told.log, thread.said(f"m{number}"), AGAIN)] = first.seq
    found = {one.seq: one.first for one in await whole(told.log.raw(1, until_end=True))}
    assert {seq: first for seq, first in found.items() if first} == again
    for subjects in (REF.subjects, OTHER.subjects):
        some = await whole(told.log.raw(min(again), (subjects,), until_end=True))
        assert {one.seq: one.first for one in some}.items() <= again.items()


@pytest.mark.log("jetstream")
async def test_a_log_whose_facts_stay_is_asked_nothing(ledger: Ledger, monkeypatch):
    async def noted(_self: object, _page: list[RawMessage]) -> list[RawMessage]:
        raise AssertionError

    monkeypatch.setattr(Refilled, "noted", noted)
    for slot, event in TOLD:
        await ledger.append(slot, event)
    log = ledger.log
    assert len(await whole(log.raw(1, until_end=True))) == len(TOLD)
    assert len(await whole(log.scan(1))) == len(TOLD)
    assert await log.at(2)
    assert await log.latest(SAID[0].subject)


async def test_what_was_packed_since_the_last_look_is_found(told: Ledger):
    """The names in a thread's packs are read again once it has a newer pack."""
    await filled_again(told)
    assert any(one.first for one in await whole(told.log.raw(1, until_end=True)))
    slot = REF.said("m2")
    await told.append(slot, AGAIN)
    [first] = await told.read(slot)
    await removed(told, REF)
    second = await refill(told.log, slot, AGAIN)
    found = {one.seq: one.first for one in await whole(told.log.raw(1, until_end=True))}
    assert found[second] == first.seq


@pytest.mark.log("jetstream")
async def test_who_follows_waits_for_a_broker_that_is_away(told: Ledger, monkeypatch):
    """A reader that stops at the end of the log gets the error."""
    again = await filled_again(told)
    log = told.log
    assert isinstance(log, JetStream)
    clock, asked = log.clock, list[str]()

    async def away() -> datetime:
        asked.append("asked")
        if len(asked) < 3:
            raise BrokerAway("nobody is there")
        return await clock()

    monkeypatch.setattr(log, "clock", away)
    found = list[RawMessage]()
    async with aclosing(log.raw(min(again), until_end=False)) as batches:
        async for batch in batches:
            found += batch
            if len(found) == len(again):
                break
    assert {one.seq: one.first for one in found} == again
    asked.clear()
    log._is_packed = None
    with pytest.raises(BrokerAway):
        await whole(log.raw(min(again), until_end=True))


def test_packs_are_looked_for_before_anything_in_them_may_leave():
    assert 2 * LOOKED_FOR <= REMOVED_AFTER


# ---------------------------------------------------------------------------- what it asks a broker

AT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


class FakeStream:
    """A stream of which is noted what it is asked."""

    def __init__(self, packs: list[RawMessage]) -> None:
        self.packs, self.asked, self.now = packs, list[str](), AT
        self.every_pack = ("ledger.*.*.packed.*",)

    async def clock(self) -> datetime:
        return self.now

    async def last_seq(self) -> int:
        return max((one.seq for one in self.packs), default=0)

    async def counted(self, _stream: str, _subjects: str) -> list[str]:
        self.asked.append("counted")
        return [one.subject for one in self.packs]

    async def in_stream(self, start: int, _subjects: str) -> AsyncGenerator[list[RawMessage]]:
        self.asked.append("new packs")
        if found := [one for one in self.packs if one.seq >= start]:
            yield found

    async def read_from_leader(self, _stream: str, *subjects: str) -> list[RawMessage]:
        self.asked += subjects
        return [
            one
            for one in self.packs
            if one.subject in subjects or f"{one.subject.rpartition('.')[0]}.*" in subjects
        ]


async def packed(*subjects: str) -> list[RawMessage]:
    """Packs of these messages, each in one of its own."""
    found, last = list[RawMessage](), dict[str, e.Packed]()
    for number, subject in enumerate(subjects, 1):
        thread = subject.rsplit(".", 2)[0]
        unit = (RawMessage(number, AT, subject, encode(AGAIN)),)
        [new] = packs.packs_of([unit], last.get(thread))
        last[thread] = new
        before = sum(one.subject.startswith(f"{thread}.packed.") for one in found)
        place = f"{thread}.packed.{before + 1}"
        found.append(RawMessage(100 + number, AT, place, encode(new)))
    return found


def message(seq: int, slot: Slot, after: timedelta = timedelta(0)) -> RawMessage:
    return RawMessage(seq, AT + after, slot.subject, encode(AGAIN))


async def firsts(one: Refilled, *page: RawMessage) -> list[int]:
    found = await one.noted([*page])
    assert [raw.seq for raw in found] == [raw.seq for raw in page]
    return [raw.first for raw in found]


async def test_threads_without_packs_cost_nothing(monkeypatch):
    """Which threads have packs is asked once, and what is new each minute; what cannot be in a pack
    asks nothing.
    """
    monkeypatch.setattr(refilled, "LOOKED_FOR", LOOKED_FOR)
    stream = FakeStream(await packed(OTHER.said("m1").subject))
    one = Refilled(stream)
    assert await firsts(one, message(200, REF.opened), message(201, REF.packed(1))) == [0, 0]
    assert stream.asked == []
    for seq in range(202, 210):
        assert await firsts(one, message(seq, REF.said(f"m{seq}")), message(300, CALL.gated)) == [
            0, 0,
        ]  # fmt: skip
    assert stream.asked == ["counted", "new packs"]
    stream.asked.clear()
    stream.packs += [
        raw for raw in await packed("ledger.a.b.said.c", REF.said("m1").subject)
        if raw.subject == REF.packed(1).subject
    ]  # fmt: skip
    just_before = LOOKED_FOR - timedelta(microseconds=1)
    assert await firsts(one, message(310, REF.said("m1"), just_before)) == [0]
    assert stream.asked == []
    stream.now += LOOKED_FOR
    assert await firsts(one, message(311, REF.said("m1"), LOOKED_FOR)) == [2]
    assert stream.asked == ["new packs", REF.packed(1).subject, REF.packs]
    stream.asked.clear()
    assert await firsts(one, message(312, REF.said("m2"), LOOKED_FOR)) == [0]
    assert stream.asked == []


async def test_the_packs_of_a_thread_are_read_for_a_name_in_them(monkeypatch):
    """And the names themselves once for each pack."""
    monkeypatch.setattr(refilled, "LOOKED_FOR", LOOKED_FOR)
    stream = FakeStream(await packed(*(REF.said(f"m{number}").subject for number in (1, 2))))
    one = Refilled(stream)
    assert await firsts(one, *(message(200 + n, REF.said(f"n{n}")) for n in range(9))) == [0] * 9
    assert stream.asked == ["counted", "new packs", REF.packed(2).subject]
    stream.asked.clear()
    page = message(300, REF.said("m2")), message(301, REF.said("new")), message(302, REF.said("m1"))
    assert await firsts(one, *page) == [2, 0, 1]
    assert stream.asked == [REF.packs]


@pytest.mark.parametrize(
    "subject", ["ledger.acme.t1.said.$", "other.acme.t1.said.m1", "ledger.acme.t1.said", "ledger"]
)
async def test_what_is_no_slot_is_left_alone(subject: str):
    one = Refilled(FakeStream(await packed(REF.said("m1").subject)))
    assert await firsts(one, RawMessage(200, AT, subject, b"{}")) == [0]
