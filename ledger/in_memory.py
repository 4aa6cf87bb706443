"""The port in memory: the same answers without a broker, for tests and for trying things out.

It is held to the tests of the real one (`tests/test_port.py`). What it cannot be is durable, or
shared between processes.

`Lagging` is the same log as the client of a cluster sees it: each read may be answered by a replica
that is behind.
"""

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime

from msgspec import structs

from ayes.ledger import clock, subscriptions
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    Change,
    Delivered,
    Mark,
    Parked,
    Pending,
    Progress,
    RawMessage,
    Recorded,
    SlotTaken,
    TimerFired,
)
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import CallRef, Slot, matches

#: More than a broker answers at once (ADR-31).
_FEW = 1000


class Memory:
    def __init__(
        self, *, now: clock.Clock = clock.now, ack_wait_s: float = subscriptions.ACK_WAIT_S
    ) -> None:
        self._now = now
        self._ack_wait_s = ack_wait_s
        self._created = clock.now().isoformat()
        self._facts: list[Fact] = []
        self._raw: list[RawMessage] = []
        self._by_subject: dict[str, Fact] = {}
        self._grown = asyncio.Condition()
        self._durables: dict[str, _Durable] = {
            name: _Durable(self, one) for name, one in subscriptions.DURABLES.items()
        }
        self._timers: dict[CallRef, asyncio.TimerHandle] = {}
        self._due = itertools.count(1)
        self._parked: dict[str, Parked] = {}
        self._marks: dict[int, Mark] = {}
        self._numbers = itertools.count(1)
        self.pending: Pending = _Bucket()

    async def append(self, slot: Slot, raw: bytes, event_id: str) -> AppendResult:
        if (standing := self._by_subject.get(slot.subject)) is not None:
            return (
                AlreadyRecorded(standing.seq)
                if standing.event.id == event_id
                else SlotTaken(standing)
            )
        fact = fact_of(len(self._facts) + 1, self._now(), slot.subject, raw)
        self._facts.append(fact)
        self._raw.append(RawMessage(fact.seq, fact.recorded_at, slot.subject, raw))
        self._by_subject[slot.subject] = fact
        for durable in self._durables.values():
            durable.offer(slot.subject, fact)
        async with self._grown:
            self._grown.notify_all()
        return Recorded(fact.seq)

    async def latest(self, subjects: str) -> Fact | None:
        both = zip(reversed(self._facts), reversed(self._raw), strict=True)
        return next((fact for fact, raw in both if matches(subjects, raw.subject)), None)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        # By the subject as it came: a fact that stands in no slot of the ledger is found as well.
        both = zip(self._facts, self._raw, strict=True)
        return tuple(fact for fact, raw in both if _any(subjects, raw.subject))

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        found = [raw for raw in self._raw if _any(subjects, raw.subject)]
        return found if len(found) <= _FEW else None

    async def at(self, seq: int) -> RawMessage | None:
        return self._raw[seq - 1] if 0 < seq <= len(self._raw) else None

    async def last_seq(self) -> int:
        return len(self._facts)

    async def created(self) -> str:
        return self._created

    async def progress(self, durable: str) -> Progress | None:
        known = self._durables.get(durable)
        return None if known is None else known.progress()

    async def clock(self) -> datetime:
        return self._now()

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(self._come(until_end=until_end)) as places:
            async for come in places:
                wanted = [
                    fact
                    for fact in self._facts[come]
                    if _has_begun(fact, start)
                    and (not subjects or _any(subjects, fact.slot.subject))
                ]
                if wanted:
                    yield wanted

    async def raw(self, start: int, *, until_end: bool) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(self._come(until_end=until_end)) as places:
            async for come in places:
                if wanted := [raw for raw in self._raw[come] if raw.seq >= start]:
                    yield wanted

    async def _come(self, *, until_end: bool) -> AsyncGenerator[slice]:
        """Where those stand that have come."""
        place = 0
        while True:
            come, place = slice(place, len(self._facts)), len(self._facts)
            yield come
            if until_end:
                return
            async with self._grown:
                await self._grown.wait_for(lambda place=place: len(self._facts) > place)  # type: ignore[misc]

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator["_MemoryDelivery"]]:
        yield self._durables[durable].hand_out()

    async def set_timer(self, call: CallRef, at: datetime) -> None:
        await self.cancel_timer(call)
        wait_s = max(0.0, (at - self._now()).total_seconds())
        self._timers[call] = asyncio.get_running_loop().call_later(wait_s, self._fire, call)

    async def cancel_timer(self, call: CallRef) -> None:
        if timer := self._timers.pop(call, None):
            timer.cancel()

    def _fire(self, call: CallRef) -> None:
        subject = f"timer.due.{call.workspace}.{call.thread}.{call.call}"
        for durable in self._durables.values():
            durable.offer(subject, TimerFired(call, next(self._due), self._now()))

    async def park(self, parked: Parked) -> bool:
        subject = (
            f"parked.{subscriptions.DURABLES[parked.consumer].role}.{parked.consumer}.{parked.seq}"
        )
        standing = self._parked.pop(subject, None)
        if parked.number and (standing is None or standing.number != parked.number):
            if standing is not None:
                self._parked[subject] = standing
            return False
        numbered = self._parked[subject] = structs.replace(parked, number=next(self._numbers))
        for durable in self._durables.values():
            durable.offer(subject, numbered)
        return True

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[Parked]:
        every = (
            structs.replace(one, mark=self._marks.get(one.number)) for one in self._parked.values()
        )
        return [one for one in every if (whole or one.is_open) and consumer in {"*", one.consumer}]

    async def parked_at(self, number: int) -> Parked | None:
        return next((one for one in self._parked.values() if one.number == number), None)

    async def mark(self, mark: Mark) -> None:
        self._marks[mark.number] = mark
        for durable in self._durables.values():
            durable.offer(f"parked.{subscriptions.OPERATOR}.{mark.consumer}.{mark.number}", mark)

    async def ask(self, subject: str, body: bytes, patience_s: float) -> bytes:
        raise BrokerAway(f"nobody is there who would answer {subject}.")


class Lagging:
    """One client's port on a log in memory, whose reads are answered by replicas that may be
    behind.

    A read is as of any moment between what this client was told of last and now; which one is drawn
    by lot. What the leader answers is current: appends, `latest`, `last_seq`, the bucket, and that
    a read finds nothing. Each client needs one of its own.

    Args:
        lot: decides what each read gets, so that a test can repeat it.
        late: how often (0 to 1) a read waits while others go on.
        fails: how often a read is not answered at all.
    """

    def __init__(
        self, log: Memory, lot: random.Random, *, late: float = 0.2, fails: float = 0.0
    ) -> None:
        self.log = log
        self.pending = log.pending
        self._lot, self._late, self._fails = lot, late, fails
        self._told = 0

    def beside(self) -> "Lagging":
        """The port of another client on the same log."""
        return Lagging(self.log, self._lot, late=self._late, fails=self._fails)

    def _hear(self, seq: int) -> None:
        self._told = max(self._told, seq)

    async def append(self, slot: Slot, raw: bytes, event_id: str) -> AppendResult:
        answer = await self.log.append(slot, raw, event_id)
        match answer:
            case Recorded(seq) | AlreadyRecorded(seq):
                self._hear(seq)
            case SlotTaken(first):
                self._hear(first.seq)
            case _:
                pass
        return answer

    async def latest(self, subjects: str) -> Fact | None:
        fact = await self.log.latest(subjects)
        self._hear(fact.seq if fact else 0)
        return fact

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        last = await self._replicas_last()
        there = await self.log.read(*subjects)
        # That nothing is there is the leader's word.
        found = tuple(fact for fact in there if fact.seq <= last) or there
        self._hear(max((fact.seq for fact in found), default=0))
        return found

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        last = await self._replicas_last()
        found = await self.log.read_few(*subjects)
        return found if found is None else [raw for raw in found if raw.seq <= last]

    async def _replicas_last(self) -> int:
        """The last fact of the replica that answers."""
        last = self._lot.randint(self._told, await self.log.last_seq())
        if self._lot.random() < self._late:
            for _ in range(self._lot.randint(1, 20)):
                await asyncio.sleep(0)
        if self._lot.random() < self._fails:
            raise BrokerAway("the replica that was asked is away.")
        return last

    async def last_seq(self) -> int:
        last = await self.log.last_seq()
        self._hear(last)
        return last

    async def created(self) -> str:
        return await self.log.created()

    async def progress(self, durable: str) -> Progress | None:
        return await self.log.progress(durable)

    async def clock(self) -> datetime:
        return await self.log.clock()

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(self.log.follow(subjects, start, until_end=until_end)) as batches:
            async for batch in batches:
                self._hear(batch[-1].seq)
                yield batch

    async def raw(self, start: int, *, until_end: bool) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(self.log.raw(start, until_end=until_end)) as batches:
            async for batch in batches:
                self._hear(batch[-1].seq)
                yield batch

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator["_MemoryDelivery"]]:
        async def hand_out() -> AsyncIterator[_MemoryDelivery]:
            async for delivery in given:
                if isinstance(delivery.handed, Fact):
                    self._hear(delivery.handed.seq)
                yield delivery

        async with self.log.deliveries(durable) as given:
            yield hand_out()

    async def set_timer(self, call: CallRef, at: datetime) -> None:
        await self.log.set_timer(call, at)

    async def cancel_timer(self, call: CallRef) -> None:
        await self.log.cancel_timer(call)

    async def park(self, parked: Parked) -> None:
        await self.log.park(parked)

    async def parked(self) -> list[Parked]:
        return await self.log.parked()

    async def ask(self, subject: str, body: bytes, patience_s: float) -> bytes:
        return await self.log.ask(subject, body, patience_s)


class _Durable:
    def __init__(self, memory: Memory, declared: subscriptions.Durable) -> None:
        self.memory, self.declared = memory, declared
        self.waiting: asyncio.Queue[_Unsettled] = asyncio.Queue()
        self.numbers = itertools.count(1)
        #: What was offered and is not acknowledged, by number; and the last number of all.
        self.unsettled: dict[int, _Unsettled] = {}
        self.last = 0

    def progress(self) -> Progress:
        in_hand = sum(one.is_in_hand for one in self.unsettled.values())
        return Progress(
            acknowledged=min(self.unsettled, default=self.last + 1) - 1,
            waiting=len(self.unsettled) - in_hand,
            in_hand=in_hand,
        )

    def offer(self, subject: str, handed: Delivered | Parked | Mark) -> None:
        if _any(self.declared.subjects, subject):
            unsettled = _Unsettled(self, handed)
            self.unsettled[unsettled.number] = unsettled
            self.last = unsettled.number
            self.waiting.put_nowait(unsettled)

    async def hand_out(self) -> AsyncIterator["_MemoryDelivery"]:
        while True:
            unsettled = await self.waiting.get()
            if not unsettled.acked:
                yield unsettled.hand_out()


class _Unsettled:
    """One thing to be handed out until it is acknowledged, by whomever it was handed to."""

    def __init__(self, durable: _Durable, handed: Delivered | Parked | Mark) -> None:
        self.handed = handed
        self.number = next(durable.numbers) if isinstance(handed, Parked | Mark) else handed.seq
        self.acked = False
        self._durable = durable
        self._tries = 0
        self._timer: asyncio.TimerHandle | None = None

    def hand_out(self) -> "_MemoryDelivery":
        self._tries += 1
        self.again_after()
        return _MemoryDelivery(self, self._tries)

    def again_after(self, wait_s: float | None = None) -> None:
        self._hush()
        patience_s = self._durable.memory._ack_wait_s if wait_s is None else wait_s  # noqa: SLF001 - one object in four parts
        self._timer = asyncio.get_running_loop().call_later(
            patience_s, self._durable.waiting.put_nowait, self
        )

    @property
    def is_in_hand(self) -> bool:
        return self._tries > 0

    def settle(self) -> None:
        self.acked = True
        self._durable.unsettled.pop(self.number, None)
        self._hush()

    def _hush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _MemoryDelivery:
    def __init__(self, unsettled: _Unsettled, tries: int) -> None:
        self._unsettled = unsettled
        self.handed = unsettled.handed
        self.number = unsettled.number
        self.tries = tries

    async def ack(self) -> None:
        self._unsettled.settle()

    async def retry(self, after_s: float) -> None:
        if not self._unsettled.acked:
            self._unsettled.again_after(after_s)

    async def in_progress(self) -> None:
        if not self._unsettled.acked:
            self._unsettled.again_after()


class _Bucket:
    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, int]] = {}
        self._last = 0
        self._numbers = itertools.count()
        self._watchers: defaultdict[int, asyncio.Queue[Change]] = defaultdict(asyncio.Queue)

    async def get(self, key: str) -> tuple[bytes, int]:
        return self._values.get(key, (b"", 0))

    async def put(self, key: str, value: bytes, replaces: int) -> bool:
        if self._values.get(key, (b"", 0))[1] != replaces:
            return False
        self._last += 1
        self._values[key] = (value, self._last)
        for watcher in self._watchers.values():
            watcher.put_nowait(Change({key: value}, whole=False, revision=self._last))
        return True

    async def delete(self, key: str, replaces: int) -> bool:
        return await self.put(key, b"", replaces)

    async def entries(self) -> dict[str, bytes]:
        return {key: value for key, (value, _) in self._values.items() if value}

    async def last_revision(self) -> int:
        return self._last

    async def follow(self) -> AsyncGenerator[Change]:
        number = next(self._numbers)
        changes = self._watchers[number]
        try:
            yield Change(await self.entries(), whole=True, revision=self._last)
            while True:
                yield await changes.get()
        finally:
            del self._watchers[number]


def _has_begun(fact: Fact, start: int | datetime) -> bool:
    return fact.recorded_at >= start if isinstance(start, datetime) else fact.seq >= start


def _any(patterns: Iterable[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)
