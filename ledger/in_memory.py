"""The log in memory: the same behaviour without a broker, for tests and for trying things out.

It passes the same tests as `JetStream` (`tests/ledger/test_log.py`), but is neither durable nor
shared between processes. `Lagging` is the same log as seen by the client of a cluster: a replica
that is behind may answer each read.
"""

import asyncio
import functools
import itertools
import random
import re
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime

from msgspec import structs

from ayes.ledger import clock, packs, subscriptions
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    Bucket,
    Change,
    Delivered,
    LiveMessages,
    Mark,
    Overtaken,
    Parked,
    Progress,
    RawMessage,
    Recorded,
    SlotTaken,
    TimerFired,
    Written,
    identity_of,
)
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import BadInput, BrokerAway, LedgerFull
from ayes.schemas.slots import PACKED, ROOT, CallRef, Slot, ThreadRef

#: The largest answer of a broker (ADR-31).
_FEW = 1000


class Memory:
    def __init__(
        self, *, now: clock.Clock = clock.now, ack_wait_s: float = subscriptions.ACK_WAIT_S
    ) -> None:
        self._now = now
        self._ack_wait_s = ack_wait_s
        self._facts: list[Fact] = []
        self._raw: list[RawMessage] = []
        self._by_subject: dict[str, Fact] = {}
        #: The numbers of those that were removed.
        self._removed: set[int] = set()
        #: The indices of the facts by the first three tokens of their subjects.
        self._by_head: defaultdict[str, list[int]] = defaultdict(list)
        self._grown = asyncio.Condition()
        #: The subscribers of live subjects.
        self._live: defaultdict[str, list[LiveMessages]] = defaultdict(list)
        self._durables: dict[str, _Durable] = {
            name: _Durable(self, one) for name, one in subscriptions.DURABLES.items()
        }
        self._timers: dict[CallRef, asyncio.TimerHandle] = {}
        self._due = itertools.count(1)
        self._parked: dict[str, Parked] = {}
        self._marks: dict[int, Mark] = {}
        self._numbers = itertools.count(1)
        self._pieces: dict[str, bytes] = {}
        self.pending: Bucket = _Bucket(now)
        self.running: Bucket = _Bucket(now)

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        if (standing := self._first(slot)) is not None:
            same = standing.event.id == event_id
            return AlreadyRecorded(standing.seq) if same else SlotTaken(standing)
        if after is not None and slot.call_ref:
            newest = await self.latest(slot.call_ref.revocations)
            if (newest.seq if newest else 0) != after:
                return Overtaken()
        return Recorded(await self._record(slot.subject, raw))

    async def _record(self, subject: str, raw: bytes) -> int:
        fact = self._store(subject, raw)
        for durable in self._durables.values():
            durable.offer(subject, fact)
        async with self._grown:
            self._grown.notify_all()
        return fact.seq

    def _first(self, slot: Slot) -> Fact | None:
        """The fact in this slot, wherever it is."""
        if packs.is_packable(slot) and slot.thread_ref.packed(1).subject in self._by_subject:
            return next(map(self._fact, self._found(slot.subject)), None)
        return self._by_subject.get(slot.subject)

    def _store(self, subject: str, raw: bytes) -> Fact:
        known = self._by_subject
        # Only who writes past the condition of appends fills a slot again.
        has_packs = f"{packs.thread_of(subject)}.{PACKED}.1" in known
        before = self._found(subject) if has_packs else []
        first = before[0].seq if before else 0
        fact = fact_of(len(self._facts) + 1, self._now(), subject, raw, first)
        self._by_head[_head(subject)].append(len(self._facts))
        self._facts.append(fact)
        self._raw.append(RawMessage(fact.seq, fact.recorded_at, subject, raw, first=first))
        known[subject] = fact
        return fact

    async def remove(self, thread: ThreadRef, number: int) -> None:
        if (pack := self._by_subject.get(thread.packed(number).subject)) is None:
            raise BadInput(f"{thread} has no pack {number}.")
        for one in packs.unpacked(self._raw[pack.seq - 1]):
            self._purge(one.subject, one.seq)

    def _purge(self, subject: str, seq: int) -> None:
        """Remove what is on the subject up to that number."""
        standing = self._by_subject.get(subject)
        if standing is not None and standing.seq <= seq:
            del self._by_subject[subject]
            self._removed.add(standing.seq)
            self._by_head[_head(subject)].remove(standing.seq - 1)

    async def latest(self, subjects: str) -> Fact | None:
        found = self._found(subjects)
        return self._fact(found[-1]) if found else None

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return tuple(map(self._fact, self._found(*subjects)))

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        found = self._found(*subjects)
        return found if len(found) <= _FEW else None

    def _found(self, *subjects: str) -> list[RawMessage]:
        places = self._places(*subjects, *packs.packs_for(subjects))
        return packs.as_before([self._raw[place] for place in places], subjects)

    def _fact(self, raw: RawMessage) -> Fact:
        if raw.seq in self._removed:
            return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
        return self._facts[raw.seq - 1]

    def _places(self, *subjects: str) -> list[int]:
        """The indices of the facts on these subjects, in the order of the log.

        By the raw subject, so that messages on subjects that are not slots are found as well.
        """
        heads = {_head(pattern) for pattern in subjects}
        if any("*" in head or ">" in head for head in heads):
            among: Iterable[int] = range(len(self._raw))
        else:
            among = sorted(place for head in heads for place in self._by_head.get(head, ()))
        fits = _compiled(subjects).fullmatch
        return [
            place
            for place in among
            if place + 1 not in self._removed and fits(self._raw[place].subject)
        ]

    async def at(self, seq: int) -> RawMessage | None:
        if seq in self._removed:
            each = (self._raw[place] for place in self._places(packs.EVERY))
            return next(one for pack in each for one in packs.unpacked(pack) if one.seq == seq)
        return self._raw[seq - 1] if 0 < seq <= len(self._raw) else None

    async def last_seq(self) -> int:
        return len(self._facts)

    async def identity(self) -> str:
        return identity_of(self._raw[0]) if self._raw else ""

    async def progress(self, durable: str) -> Progress | None:
        known = self._durables.get(durable)
        return None if known is None else known.progress()

    @property
    def server_version(self) -> str:
        return "in memory"

    async def clock(self) -> datetime:
        return self._now()

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(self._new(until_end=until_end)) as ranges:
            async for new in ranges:
                wanted = [
                    fact
                    for fact in self._facts[new]
                    if _has_begun(fact, start)
                    and (not subjects or _any(subjects, fact.slot.subject))
                ]
                if wanted:
                    yield wanted

    async def scan(
        self, start: int, subjects: str = f"{ROOT}.>", *, before: int = sys.maxsize
    ) -> AsyncGenerator[list[RawMessage]]:
        every = self._raw[max(start, 1) - 1 : before - 1]
        if found := [one for one in every if _any((subjects,), one.subject)]:
            yield found

    async def raw(
        self, start: int, subjects: tuple[str, ...] = (), *, until_end: bool
    ) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(self._new(until_end=until_end)) as ranges:
            async for new in ranges:
                if wanted := [
                    raw
                    for raw in self._raw[new]
                    if raw.seq >= start and (not subjects or _any(subjects, raw.subject))
                ]:
                    yield wanted

    async def _new(self, *, until_end: bool) -> AsyncGenerator[slice]:
        """The indices of the facts that are new since the last ones."""
        place = 0
        while True:
            new, place = slice(place, len(self._facts)), len(self._facts)
            yield new
            if until_end:
                return
            async with self._grown:
                await self._grown.wait_for(lambda place=place: len(self._facts) > place)  # type: ignore[misc]

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator["_MemoryDelivery"]]:
        yield self._durables[durable].deliver()

    async def set_timer(self, call: CallRef, at: datetime, trace: str = "") -> None:
        await self.cancel_timer(call)
        wait_s = max(0.0, (at - self._now()).total_seconds())
        self._timers[call] = asyncio.get_running_loop().call_later(wait_s, self._fire, call, trace)

    async def cancel_timer(self, call: CallRef) -> None:
        if timer := self._timers.pop(call, None):
            timer.cancel()

    def _fire(self, call: CallRef, trace: str) -> None:
        subject = f"timer.due.{call.workspace}.{call.thread}.{call.call}"
        for durable in self._durables.values():
            durable.offer(subject, TimerFired(call, next(self._due), self._now(), trace))

    async def park(self, parked: Parked) -> bool:
        role, word = subscriptions.DURABLES[parked.consumer].role, f"{parked.seq}"
        subject = f"parked.{role}.{parked.consumer}.{word}{'-later' if parked.known else ''}"
        standing = self._parked.pop(subject, None)
        if parked.number and (standing is None or standing.number != parked.number):
            if standing is not None:
                self._parked[subject] = standing
            return False
        most = subscriptions.MAX_PARKED
        is_full = len(self._parked) >= most and len(await self.parked(parked.consumer)) >= most
        if standing is None and is_full:
            raise LedgerFull(f"{parked.consumer} has as many parked deliveries as it may.")
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

    def file_place(self, digest: str) -> str:
        return f"service.{digest[:32]}"

    async def keep_piece(self, subject: str, piece: bytes) -> bool:
        is_new = subject not in self._pieces
        self._pieces.setdefault(subject, piece)
        return is_new

    async def piece(self, subject: str) -> bytes | None:
        return self._pieces.get(subject)

    async def publish_live(self, subject: str, body: bytes) -> None:
        for messages in self._live[subject]:
            messages.put(body)

    @asynccontextmanager
    async def subscribe_live(self, subject: str) -> AsyncGenerator[LiveMessages]:
        messages = LiveMessages()
        self._live[subject].append(messages)
        try:
            yield messages
        finally:
            self._live[subject].remove(messages)


class Lagging:
    """One client's view of a log in memory whose replicas may be behind. Each client needs its own.

    A read is as of a random moment between the last fact that this client knows of and now. The
    leader's answers are current: appends, `latest`, `last_seq`, the bucket, and empty reads.

    Args:
        lot: chooses the moments, so that a test can repeat them.
        late: the share (0 to 1) of reads that wait while others go on.
        fails: the share of reads without an answer.
    """

    def __init__(
        self, log: Memory, lot: random.Random, *, late: float = 0.2, fails: float = 0.0
    ) -> None:
        self.log = log
        self.pending, self.running = log.pending, log.running
        self._lot, self._late, self._fails = lot, late, fails
        self._known_seq = 0
        self.identity, self.progress, self.clock = log.identity, log.progress, log.clock
        self.set_timer, self.cancel_timer = log.set_timer, log.cancel_timer
        self.park, self.parked = log.park, log.parked
        self.keep_piece, self.piece = log.keep_piece, log.piece
        self.remove = log.remove
        self.file_place = log.file_place
        self.publish_live, self.subscribe_live = log.publish_live, log.subscribe_live

    def beside(self) -> "Lagging":
        """Another client on the same log."""
        return Lagging(self.log, self._lot, late=self._late, fails=self._fails)

    def _advance(self, seq: int) -> None:
        self._known_seq = max(self._known_seq, seq)

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        answer = await self.log.append(slot, raw, event_id, after)
        match answer:
            case Recorded(seq) | AlreadyRecorded(seq):
                self._advance(seq)
            case SlotTaken(first):
                self._advance(first.seq)
            case Overtaken():
                await self.last_seq()
            case _:
                pass
        return answer

    async def latest(self, subjects: str) -> Fact | None:
        fact = await self.log.latest(subjects)
        self._advance(fact.seq if fact else 0)
        return fact

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        last = await self._replicas_last()
        there = await self.log.read(*subjects)
        # The leader answers that there is nothing.
        found = tuple(fact for fact in there if fact.seq <= last) or there
        self._advance(max((fact.seq for fact in found), default=0))
        return found

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        last = await self._replicas_last()
        found = await self.log.read_few(*subjects)
        return found if found is None else [raw for raw in found if raw.seq <= last]

    async def _replicas_last(self) -> int:
        """The last fact of the replica that answers."""
        last = self._lot.randint(self._known_seq, await self.log.last_seq())
        if self._lot.random() < self._late:
            for _ in range(self._lot.randint(1, 20)):
                await asyncio.sleep(0)
        if self._lot.random() < self._fails:
            raise BrokerAway("the replica is away.")
        return last

    async def last_seq(self) -> int:
        last = await self.log.last_seq()
        self._advance(last)
        return last

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(self.log.follow(subjects, start, until_end=until_end)) as batches:
            async for batch in batches:
                self._advance(batch[-1].seq)
                yield batch

    async def scan(
        self, start: int, subjects: str = f"{ROOT}.>", *, before: int = sys.maxsize
    ) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(self.log.scan(start, subjects, before=before)) as pages:
            async for page in pages:
                self._advance(page[-1].seq)
                yield page

    async def raw(
        self, start: int, subjects: tuple[str, ...] = (), *, until_end: bool
    ) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(self.log.raw(start, subjects, until_end=until_end)) as batches:
            async for batch in batches:
                self._advance(batch[-1].seq)
                yield batch

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator["_MemoryDelivery"]]:
        async def deliver() -> AsyncIterator[_MemoryDelivery]:
            async for delivery in given:
                if isinstance(delivery.handed, Fact):
                    self._advance(delivery.handed.seq)
                yield delivery

        async with self.log.deliveries(durable) as given:
            yield deliver()


class _Durable:
    def __init__(self, memory: Memory, declared: subscriptions.Durable) -> None:
        self.memory, self.declared = memory, declared
        self.ack_wait_s = declared.ack_wait_s(memory._ack_wait_s)  # noqa: SLF001 - one object in four parts
        self.waiting: asyncio.Queue[_Unsettled] = asyncio.Queue()
        self.numbers = itertools.count(1)
        #: Offered and not acknowledged, by number; and the last number of all.
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

    async def deliver(self) -> AsyncIterator["_MemoryDelivery"]:
        while True:
            unsettled = await self.waiting.get()
            if not unsettled.acked:
                yield unsettled.deliver()


class _Unsettled:
    """One thing that is delivered again and again until any receiver acknowledges it."""

    def __init__(self, durable: _Durable, handed: Delivered | Parked | Mark) -> None:
        self.handed = handed
        self.number = next(durable.numbers) if isinstance(handed, Parked | Mark) else handed.seq
        self.acked = False
        self._durable = durable
        self._tries = 0
        self._timer: asyncio.TimerHandle | None = None

    def deliver(self) -> "_MemoryDelivery":
        self._tries += 1
        self.again_after()
        return _MemoryDelivery(self, self._tries)

    def again_after(self, wait_s: float | None = None) -> None:
        self._stop_timer()
        patience_s = self._durable.ack_wait_s if wait_s is None else wait_s
        self._timer = asyncio.get_running_loop().call_later(
            patience_s, self._durable.waiting.put_nowait, self
        )

    @property
    def is_in_hand(self) -> bool:
        return self._tries > 0

    def settle(self) -> None:
        self.acked = True
        self._durable.unsettled.pop(self.number, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
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
    def __init__(self, now: clock.Clock) -> None:
        self._now = now
        self._values: dict[str, Written] = {}
        self._last = 0
        self._numbers = itertools.count()
        self._watchers: defaultdict[int, asyncio.Queue[Change]] = defaultdict(asyncio.Queue)

    async def get(self, key: str) -> tuple[bytes, int]:
        one = self._values.get(key)
        return (one.value, one.revision) if one else (b"", 0)

    async def put(self, key: str, value: bytes, replaces: int) -> bool:
        if (await self.get(key))[1] != replaces:
            return False
        await self.overwrite(key, value)
        return True

    async def overwrite(self, key: str, value: bytes) -> None:
        self._last += 1
        self._values[key] = Written(value, self._last, self._now())
        for watcher in self._watchers.values():
            watcher.put_nowait(Change({key: value}, whole=False, revision=self._last))

    async def delete(self, key: str, replaces: int) -> bool:
        return await self.put(key, b"", replaces)

    async def entries(self) -> dict[str, bytes]:
        return {key: one.value for key, one in (await self.written()).items()}

    async def written(self) -> dict[str, Written]:
        return {key: one for key, one in self._values.items() if one.value}

    async def follow(self) -> AsyncGenerator[Change]:
        number = next(self._numbers)
        changes = self._watchers[number]
        try:
            yield Change(await self.entries(), whole=True, revision=self._last)
            while True:
                yield await changes.get()
        finally:
            del self._watchers[number]


def _head(subject: str) -> str:
    return ".".join(subject.split(".", 3)[:3])


def _has_begun(fact: Fact, start: int | datetime) -> bool:
    return fact.recorded_at >= start if isinstance(start, datetime) else fact.seq >= start


def _any(patterns: tuple[str, ...], subject: str) -> bool:
    return _compiled(patterns).fullmatch(subject) is not None


@functools.lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """The patterns as one regular expression: matching is most of the work of this log."""
    each = (re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+") for pattern in patterns)
    return re.compile("|".join(each), re.DOTALL)
