"""What left the stream, put in its place page by page: any threads, packs, removals and pages."""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.ledger.nats import removed as removed_module
from ayes.ledger.nats.removed import KnownPacks, Removed, in_their_places
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BrokerAway, LogDamaged
from ayes.schemas.slots import ThreadRef, matches

THREADS = [ThreadRef("shop", "t1"), ThreadRef("shop", "t2"), ThreadRef("bank", "t1")]
START = datetime(2026, 1, 1, tzinfo=UTC)
SAID = encode(e.Said(role="user", text="?"))


class World:
    """A log of messages, of which some are packed, and some of these removed."""

    def __init__(self, lot: random.Random, size: int) -> None:
        self.every, self.gone = list[RawMessage](), set[int]()
        #: The packs that were looked at, and the last number that was asked for.
        self.told, self.last = list[int](), 0
        self._packs = KnownPacks(self.in_stream, self.at)
        waiting: dict[ThreadRef, list[RawMessage]] = {one: [] for one in THREADS}
        last: dict[ThreadRef, tuple[int, e.Packed | None]] = dict.fromkeys(THREADS, (0, None))
        while len(self.every) < size:
            thread = lot.choice(THREADS)
            if lot.random() < 0.85:
                waiting[thread].append(self.add(thread.said(f"m{len(self.every)}").subject, SAID))
            elif waiting[thread]:
                some = lot.sample(waiting[thread], lot.randint(1, len(waiting[thread])))
                number, before = last[thread]
                units = [(one,) for one in sorted(some, key=lambda one: one.seq)]
                [pack] = packs.packs_of(units, before)
                self.add(thread.packed(number + 1).subject, encode(pack))
                last[thread] = number + 1, pack
                waiting[thread] = [one for one in waiting[thread] if one not in some]
                self.gone |= {one.seq for one in some if lot.random() < 0.8}

    def add(self, subject: str, data: bytes) -> RawMessage:
        seq = len(self.every) + 1
        self.every.append(RawMessage(seq, START + timedelta(seconds=seq), subject, data))
        return self.every[-1]

    def on(self, subjects: str, start: int = 1) -> list[RawMessage]:
        return [one for one in self.every[start - 1 :] if matches(subjects, one.subject)]

    async def in_stream(self, start: int, subjects: str) -> AsyncGenerator[list[RawMessage]]:
        found, size = [one for one in self.on(subjects, start) if one.seq not in self.gone], 1
        while found:
            page, found = found[:size], found[size:]
            self.told += [one.seq for one in page]
            yield page
            size *= 2

    def known(self) -> KnownPacks:
        return self._packs

    async def first_since(self, since: datetime, subjects: str) -> int:
        found = (one.seq for one in self.on(subjects) if one.recorded_at >= since)
        return next(found, len(self.every) + 1)

    async def at(self, seq: int) -> RawMessage | None:
        pack = self.every[seq - 1]
        assert packs.unpacked(pack)[0].seq <= self.last, "it is read before it is due"
        return pack


async def up_to(removed: Removed, last: int) -> list[RawMessage]:
    """All of them, however many are given at a time."""
    found, until = list[RawMessage](), 0
    while until < last:
        some, until = await removed.up_to(last)
        assert all(one.seq <= until for one in some)
        found += some
    assert until == last
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("subjects", ["ledger.>", "ledger.shop.>", "ledger.*.t1.said.*"])
async def test_any_pages_of_any_log(subjects: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Each fact once, in order, whatever the pages are, and wherever they begin, and however many
    are given at a time; whoever skips some is given none of these.
    """
    lot = random.Random(seed)
    monkeypatch.setattr(removed_module, "_MOST", lot.choice([1, 3, 1000]))
    world = World(lot, lot.randint(1, 80))
    start = lot.choice([1, lot.randint(1, 80)])
    removed = Removed(world.known, world.first_since, (subjects,), start)
    left = [one for one in world.on(subjects, start) if one.seq not in world.gone]
    found, skipped = list[RawMessage](), 0
    while left:
        size = lot.randint(1, 5)
        page, left = left[:size], left[size:]
        world.last = last = page[-1].seq
        if lot.random() < 0.2:
            removed.skip(last)
            found, skipped, world.told = [], last, []
        else:
            found += in_their_places(page, await up_to(removed, last))
            expected = world.on(subjects, max(start, skipped + 1))
            assert found == [one for one in expected if one.seq <= last]
        assert min(world.told, default=last) >= max(skipped, start - 1)
        assert len(world.told) == len(set(world.told)), "a pack is looked at twice"
    world.last = len(world.every)
    found += await up_to(removed, len(world.every))
    assert found == world.on(subjects, max(start, skipped + 1))
    assert await up_to(removed, len(world.every)) == []


async def test_from_a_time_on():
    """No pack of before is read."""
    world = World(random.Random(7), 60)
    since = world.every[30].recorded_at
    world.last = len(world.every)
    removed = Removed(world.known, world.first_since, ("ledger.>",), since)
    found = await up_to(removed, len(world.every))
    assert found
    assert {one.seq for one in found} >= {seq for seq in world.gone if seq > 30}
    assert min(one.recorded_at for one in found) >= since
    assert min(world.told) > 30


async def test_a_pack_that_is_gone_is_damage():
    """It was there a moment ago."""
    world = World(random.Random(7), 60)

    async def nothing(_seq: int) -> None:
        return None

    removed = Removed(
        lambda: KnownPacks(world.in_stream, nothing), world.first_since, ("ledger.>",), 1
    )
    with pytest.raises(LogDamaged, match="a pack, cannot be read any more"):
        await up_to(removed, len(world.every))


async def test_nothing_is_left_out_after_a_pack_could_not_be_read():
    """A second call of `up_to` has the facts of the pack that the first one could not read."""
    world = World(random.Random(7), 60)
    world.last = len(world.every)
    answers = iter([False, True, False])

    async def at(seq: int) -> RawMessage | None:
        if not next(answers, True):
            raise BrokerAway("nobody is there")
        return await world.at(seq)

    removed = Removed(lambda: KnownPacks(world.in_stream, at), world.first_since, ("ledger.>",), 1)
    for _ in range(2):
        with pytest.raises(BrokerAway):
            await up_to(removed, len(world.every))
    assert {one.seq for one in await up_to(removed, len(world.every))} >= world.gone


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("subjects", ["ledger.>", "ledger.shop.>", "ledger.*.t1.said.*"])
async def test_any_windows_of_any_log(subjects: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Whatever is known of packs by then."""
    lot = random.Random(seed)
    monkeypatch.setattr(removed_module, "_MOST", lot.choice([1, 3, 1000]))
    world = World(lot, lot.randint(1, 80))
    world.last = len(world.every)
    for _ in range(20):
        first, last = sorted(lot.choices(range(1, len(world.every) + 1), k=2))
        removed = Removed(world.known, world.first_since, (subjects,), first, last)
        found = {one.seq for one in await up_to(removed, last)}
        expected = {one.seq for one in world.on(subjects) if first <= one.seq <= last}
        assert expected & world.gone <= found <= expected


async def test_of_packs_three_numbers_are_kept(monkeypatch: pytest.MonkeyPatch):
    """And those that were read last, up to a number of bytes; and of some wildcards."""
    world = World(random.Random(7), 400)
    world.last = len(world.every)
    packed = [one for one in world.every if packs.number_of(one.subject)]
    most = 3 * max(len(one.data) for one in packed)
    monkeypatch.setattr(removed_module, "_KEPT_BYTES", most)
    monkeypatch.setattr(removed_module, "_MOST_WILDCARDS", 2)
    known = world.known()
    for wildcard in ("ledger.*.*.packed.*", "ledger.shop.*.packed.*", "ledger.bank.*.packed.*"):
        parts = known.behind(1, wildcard, 1, len(world.every))
        async with aclosing(parts) as each:
            found = [one async for _, some in each for one in some]
        assert found == [
            (*packs.range_of(one), one.seq) for one in packed if matches(wildcard, one.subject)
        ]
        kept = known._kept.values()
        assert sum(len(one.data) for one in kept) == known._kept_bytes <= most
    assert [*known._ranges] == ["ledger.shop.*.packed.*", "ledger.bank.*.packed.*"]
    for ranges in known._ranges.values():
        assert len(ranges._parts) == 1
        assert {column.itemsize for column in ranges._columns} == {8}


async def test_many_are_given_in_parts():
    """A page of the stream may lie beside any number of facts that have left it."""
    thread = THREADS[0]
    world = World(random.Random(1), 0)
    last = None
    for number in range(1, 9):
        some = [(world.add(thread.said(f"m{number}-{i}").subject, SAID),) for i in range(500)]
        [last] = packs.packs_of(some, last)
        world.add(thread.packed(number).subject, encode(last))
        world.gone |= {one.seq for (one,) in some}
    world.last = len(world.every)
    removed = Removed(world.known, world.first_since, ("ledger.>",), 1)
    sizes, until = list[int](), 0
    while until < len(world.every):
        some, until = await removed.up_to(len(world.every))
        sizes.append(len(some))
    assert sizes == [1000] * 4
