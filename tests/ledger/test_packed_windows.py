"""A packed log is read backwards in windows, and by numbers, with the packs of those alone."""

from collections import Counter
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from packing import let_remove, refill, removed
from stories import WISH, life

from ayes.interfaces.api import windows
from ayes.interfaces.api.windows import newest_first
from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.log import EventLog, RawMessage
from ayes.ledger.nats import jetstream, refilled
from ayes.ledger.nats.api import NatsReply
from ayes.ledger.nats.jetstream import JetStream
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import LogDamaged
from ayes.schemas.slots import ThreadRef

pytestmark = pytest.mark.log("memory", "jetstream", "stream")

THREADS = [ThreadRef("shop", f"t{number}") for number in range(20)]
PATTERNS = ("ledger.>", "ledger.shop.>", "ledger.*.*.call.*.decided", THREADS[3].subjects)
AGAIN = e.Said(role="user", text="again")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows have the same width, and the log many of them. What is packed leaves at once."""
    monkeypatch.setattr(windows, "_WIDTH", 20)
    monkeypatch.setattr(jetstream, "_PART", 1)
    monkeypatch.setattr(windows, "_FEW", 0)
    monkeypatch.setattr(refilled, "LOOKED_FOR", timedelta(0))


async def grown(ledger: Ledger, *, at_once: bool = False) -> None:
    """Twenty threads of two packs each, recorded when each of them ends, or all at the end."""
    if at_once:
        for part in "xy":
            for thread in THREADS:
                await tell_settled(ledger, thread, part)
            await removed(ledger, *THREADS)
        return
    for thread in THREADS:
        for part in "xy":
            await tell_settled(ledger, thread, part)
            await removed(ledger, thread)


async def tell_settled(ledger: Ledger, thread: ThreadRef, part: str) -> None:
    for slot, event in (*life(thread.call(part), WISH, "denied"), (thread.said(part), AGAIN)):
        await ledger.append(slot, event)


async def backwards(log: EventLog, subjects: str, end: int) -> list[Fact]:
    """The facts before a number, the newest first."""
    assert isinstance(log, JetStream | Memory)
    found = list[Fact]()
    async with aclosing(newest_first(log, subjects, 1, end)) as each:  # type: ignore[arg-type]
        async for facts, _ in each:
            found += facts
    return found


async def forwards(log: EventLog, subjects: str, end: int) -> list[Fact]:
    async with aclosing(log.raw(1, (subjects,), until_end=True)) as pages:
        found = [one async for page in pages for one in page if one.seq < end]
    return [fact_of(one.seq, one.recorded_at, one.subject, one.data, one.first) for one in found]


@pytest.fixture
def received(port: EventLog, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the client received each pack, by its number."""
    found = Counter[int]()
    if isinstance(port, JetStream):
        get, message = port._get, port.leaders_message

        async def noted(*args: Any, **which: Any) -> Any:
            some, last = await get(*args, **which)
            found.update(raw.seq for raw in some if packs.number_of(raw.subject))
            return some, last

        async def noted_one(*args: Any, **which: Any) -> Any:
            if (raw := await message(*args, **which)) and packs.number_of(raw.subject):
                found[raw.seq] += 1
            return raw

        monkeypatch.setattr(port, "_get", noted)
        monkeypatch.setattr(port, "leaders_message", noted_one)
    return found


@pytest.fixture
async def packable(port: EventLog, ledger: Ledger) -> Ledger:
    await let_remove(port)
    return ledger


at_the_end = pytest.mark.parametrize("at_once", [False, True], ids=["as they end", "at the end"])


@at_the_end
async def test_windows_backwards_have_what_the_log_has(packable: Ledger, at_once: bool):
    """Of all subjects and of some; again once the packs are known; with what came meanwhile, and
    with what fills a slot again.
    """
    await grown(packable, at_once=at_once)
    log, [first] = packable.log, await packable.read(THREADS[5].said("x"))
    again = await refill(log, first.slot, AGAIN)
    assert [one.first for one in [await log.at(again)] if one] == [first.seq]
    for _ in range(2):
        end = await log.last_seq() + 1
        for subjects in PATTERNS:
            for until in (end, end - 30):
                expected = await forwards(log, subjects, until)
                assert await backwards(log, subjects, until) == expected[::-1]
        assert len(await forwards(log, "ledger.>", end)) == end - 1
        await tell_settled(packable, THREADS[3], "later")
        await removed(packable, THREADS[3])


@pytest.mark.log("jetstream", "stream")
@at_the_end
@pytest.mark.parametrize("subjects", PATTERNS[:3])
async def test_who_reads_backwards_reads_each_pack_a_few_times(
    packable: Ledger, received: Counter[int], subjects: str, at_once: bool
):
    """However many windows and packs there are."""
    await grown(packable, at_once=at_once)
    end = await packable.log.last_seq() + 1
    received.clear()
    assert len(await backwards(packable.log, subjects, end)) >= 40
    assert len(received) == 40
    assert received.total() <= 4 * 40


@pytest.mark.log("jetstream", "stream")
@at_the_end
@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
async def test_who_asks_for_numbers_reads_each_pack_a_few_times(
    packable: Ledger, received: Counter[int], step: int, at_once: bool
):
    await grown(packable, at_once=at_once)
    end = await packable.log.last_seq() + 1
    received.clear()
    found = [await packable.log.at(seq) for seq in range(1, end)[::step]]
    assert [one.seq for one in found if one] == [*range(1, end)[::step]]
    assert received.total() <= 4 * 40


@at_the_end
async def test_what_is_packed_between_two_windows_is_found(packable: Ledger, at_once: bool):
    """And by its number, whatever is known of the packs of before."""
    log = packable.log
    await grown(packable, at_once=at_once)
    for thread in THREADS:
        await tell_settled(packable, thread, "late")
    end = await log.last_seq() + 1
    expected = (await forwards(log, "ledger.>", end))[::-1]
    assert isinstance(log, JetStream | Memory)
    found = list[Fact]()
    async with aclosing(newest_first(log, "ledger.>", 1, end)) as each:  # type: ignore[arg-type]
        async for facts, until in each:
            found += facts
            if until in range(end - 60, end - 20):
                await removed(packable, *THREADS)
    assert found == expected
    assert [one.seq for seq in range(1, end) if (one := await log.at(seq))] == [*range(1, end)]


@pytest.mark.log("jetstream")
async def test_who_connects_again_forgets_which_packs_there_were(
    packable: Ledger, port: JetStream, tmp_path: Path
):
    """Another log may have been restored, with other packs at the same numbers."""
    await grown(packable)
    async with Ledger.connect(tmp_path / "store", role="admin") as another:
        log = another.log
        assert isinstance(log, JetStream)
        end = await log.last_seq() + 1
        assert len(await backwards(log, "ledger.>", end)) == end - 1
        await let_remove(port)
        port._known_seq = 0
        for part in "xy":
            await tell_settled(packable, ThreadRef("shop", "first"), part)
        await grown(packable, at_once=True)
        await log.connection.client.force_reconnect()
        assert await log.last_seq() > end
        found = await backwards(log, "ledger.>", end)
        assert found == (await forwards(port, "ledger.>", end))[::-1]
        assert len(found) == end - 1
        assert await log.at(1) == await port.at(1)


@pytest.mark.log("jetstream", "stream")
async def test_a_replica_that_is_behind_has_not_all_packs(
    packable: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """What it lacks is asked for again until another one answers."""
    log = packable.log
    assert isinstance(log, JetStream)
    await grown(packable, at_once=True)
    end = await log.last_seq() + 1
    get, asked = log._get, list[int]()

    async def behind(*args: Any, **which: Any) -> tuple[list[RawMessage], NatsReply]:
        found, last = await get(*args, **which)
        asked.append(len(found))
        if len(asked) % 2:
            kept = [one for one in found if one.seq <= end - 10]
            if len(kept) < len(found):
                return kept, NatsReply(b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
        return found, last

    monkeypatch.setattr(log, "_get", behind)
    for subjects in PATTERNS:
        found = await backwards(log, subjects, end)
        with monkeypatch.context() as patch:
            patch.setattr(log, "_get", get)
            assert found == (await forwards(log, subjects, end))[::-1]
    log._known_packs = log._no_packs()
    assert [one.seq for seq in range(1, end) if (one := await log.at(seq))] == [*range(1, end)]


@pytest.mark.log("jetstream", "stream")
async def test_a_pack_that_a_replica_could_not_read_is_looked_for_again(
    packable: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """Of the whole log it shows that a number is missing; so it does of a number."""
    log = packable.log
    assert isinstance(log, JetStream)
    await grown(packable)
    end, [first] = await log.last_seq() + 1, await packable.read(THREADS[7].said("x"))
    get, hidden = log._get, THREADS[7].packed(1).subject

    async def without(*args: Any, **which: Any) -> tuple[list[RawMessage], NatsReply]:
        found, last = await get(*args, **which)
        if [one.subject for one in found] == [hidden]:
            found, last = await get(*args, **which | {"seq": found[0].seq + 1})
        return [one for one in found if one.subject != hidden], last

    async def walked() -> list[int]:
        return [one.seq for one in await backwards(log, "ledger.>", end)][::-1]

    async def asked() -> list[int]:
        return [one.seq for one in [await log.at(first.seq)] if one]

    for read, whole in ((walked, [*range(1, end)]), (asked, [first.seq])):
        log._known_packs = log._no_packs()
        with monkeypatch.context() as patch:
            patch.setattr(log, "_get", without)
            assert len(await read()) < len(whole)
        assert await read() == whole


async def test_a_pack_that_cannot_be_read_is_damage_to_what_may_be_in_it(packable: Ledger):
    """Nobody takes a part of the log before it for whole; behind it all is as ever."""
    log = packable.log
    await tell_settled(packable, THREADS[0], "x")
    await removed(packable, THREADS[0])
    bad = await log.last_seq() + 1
    empty = e.Packed(names="", facts="", size=0)
    await packable.append(THREADS[1].packed(1), empty)
    await tell_settled(packable, THREADS[2], "x")
    end = await log.last_seq() + 1
    if isinstance(log, JetStream):
        for _ in range(2):
            with pytest.raises(LogDamaged, match=r"packed\.1 cannot be read"):
                await backwards(log, "ledger.shop.>", end)
            async with aclosing(log.scan(bad + 1, "ledger.shop.>", before=end)) as pages:
                found = [one.seq async for page in pages for one in page]
            assert found == [*range(bad + 1, end)]
    assert [one.seq for seq in range(1, bad) if (one := await log.at(seq))] == [*range(1, bad)]
