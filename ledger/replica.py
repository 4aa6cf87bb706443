"""An in-memory read replica of parts of the log: a worker need not ask the broker for a call.

The replica follows the whole log and keeps the parts that were requested: a thread, or the
policies, tools, grants or delegations of a workspace. A part is read from the broker on its first
request; from then on the log brings its new facts. Facts never change, and of two in one slot the
first counts, so the two only need to be merged.

* A worker that received fact N, or has just recorded it, waits until the replica has caught up with
  it (`as_of`). Then the replica has that fact, all earlier ones, and perhaps later ones: the log
  up to some fact, and nothing behind it.
* It may be behind the broker. So it cannot answer what happened since: whether the owner of a claim
  is alive, which writer was first, which entry a write replaces. `consumers/worker.py` says when it
  is used.
* If it cannot answer (a part is too large, or not caught up), it asks the broker.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from operator import attrgetter
from typing import Final

from ayes.ledger import packs
from ayes.ledger.log import EventLog, FactReader, RawMessage
from ayes.ledger.patience import while_away
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import LogDamaged
from ayes.schemas.slots import ROOT, matches

#: How long to wait for a fact that was delivered: the replica receives it in another message.
_BEHIND_S: Final = 0.5
#: Beyond this size in the log, the least recently used parts are evicted. Small facts, once
#: decoded, take three to four times as much memory: 60 MB.
MAX_BYTES: Final = 16 * 1024 * 1024
#: The same as a number of parts, including those that are marked as too large.
MAX_PARTS: Final = 20_000


class ReadReplica:
    """Answers `read` and `latest` as the log does, while `run` is running."""

    def __init__(
        self,
        port: EventLog,
        *,
        most_bytes: int = MAX_BYTES,
        most_parts: int = MAX_PARTS,
        each: Callable[[list[RawMessage]], None] = lambda _facts: None,
    ) -> None:
        self._port = port
        self._each = each
        self._most_bytes = most_bytes
        self._most_parts = most_parts
        self._bytes = 0
        #: By the beginning of their subjects, the most recently used last.
        self._parts: OrderedDict[str, _Partition] = OrderedDict()
        #: The last message that was received. Nothing is known before the first one.
        self._last: RawMessage | None = None
        #: The highest sequence that was waited for in vain. Until it arrives, nobody waits.
        self._gave_up_at = 0
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._tickets = itertools.count()

    async def run(self) -> None:
        """Follow the log for ever, from its current last message on.

        Raises:
            BrokerRefused: these credentials may not follow the log.
            LogDamaged: the broker passes over a fact.
        """
        begin = await while_away(self._port.last_seq)
        try:
            async with aclosing(self._port.raw(begin, until_end=False)) as batches:
                async for batch in batches:
                    self._take(batch)
        finally:
            self._last = None
            self._parts.clear()
            self._bytes = 0

    async def has(self, seq: int) -> bool:
        """Whether it has the log up to `seq`, after waiting for a moment if necessary."""
        if self._last is None:
            return False
        if self._last.seq >= seq:
            return True
        if self._last.seq < self._gave_up_at:
            return False
        caught_up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (seq, next(self._tickets), caught_up))
        try:
            async with asyncio.timeout(_BEHIND_S):
                return await caught_up
        except TimeoutError:
            self._gave_up_at = max(self._gave_up_at, seq)
            return False

    def as_of(self, seq: int) -> FactReader:
        """A reader of the replica once it has caught up to `seq`; else of the broker."""
        return _AsOf(self, self._port, seq)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        """As `EventLog.read`."""
        parts = [await self._part(_beginning(subject)) for subject in subjects]
        found: list[Fact] = []
        are_of_one = True
        for part, subject in zip(parts, subjects, strict=True):
            # Reading one part may have evicted another, which then receives no more facts.
            if part is None or self._parts.get(part.name) is not part:
                return await self._port.read(*subjects)
            more = list(part.facts(subject))
            are_of_one = are_of_one and not (found and more)
            found += more
        once = found if are_of_one else {fact.seq: fact for fact in found}.values()
        return tuple(sorted(once, key=attrgetter("seq")))

    async def latest(self, subjects: str) -> Fact | None:
        """As `EventLog.latest`."""
        part = await self._part(_beginning(subjects))
        if part is None:
            return await self._port.latest(subjects)
        newest = max(part.matching(subjects), key=part.seq, default=None)
        return None if newest is None else part.fact(newest)

    def _take(self, batch: list[RawMessage]) -> None:
        for raw in batch:
            if self._last is not None and raw.seq != self._last.seq + 1:
                raise LogDamaged(f"fact {self._last.seq + 1:,} is not delivered")
            self._last = raw
            part = self._parts.get(_beginning(raw.subject))
            if part is not None and not packs.number_of(raw.subject):
                self._bytes += part.add(raw)
        self._each(batch)
        while self._waiting and self._waiting[0][0] <= batch[-1].seq:
            _, _, caught_up = heapq.heappop(self._waiting)
            if not caught_up.done():
                caught_up.set_result(True)
        self._evict()

    async def _part(self, name: str) -> "_Partition | None":
        """The part of this name, read on its first request; None if the broker must be asked."""
        if self._last is None or "*" in name or ">" in name:
            return None
        part = self._parts.get(name)
        if part is not None:
            self._parts.move_to_end(name)
            return part if part.whole else None
        part = self._parts[name] = _Partition(name)
        try:
            await self._fill(part, self._last)
        finally:
            # If it could not be read, the next request tries again.
            if part.whole is None and self._parts.get(name) is part:
                self._drop(name)
        return part if part.whole else None

    async def _fill(self, part: "_Partition", last: RawMessage) -> None:
        """Read a part from the broker; later facts come by following the log."""
        there = await self._port.read_few(f"{part.name}.>", part.name, last.subject)
        if self._parts.get(part.name) is not part:
            return  # evicted meanwhile, so it has missed facts
        if there is None:
            part.whole = False
            self._bytes -= part.forget()
        elif any(raw.seq == last.seq for raw in there):
            # Otherwise the broker's replica that answered is behind this one. What is ahead of the
            # other parts comes by following: a start without the stop before it would count.
            own = (raw for raw in there if _beginning(raw.subject) == part.name)
            end = (self._last or last).seq
            self._bytes += sum(part.add(raw) for raw in own if raw.seq <= end)
            part.whole = True
            self._evict()

    def _evict(self) -> None:
        while self._parts and (
            self._bytes > self._most_bytes or len(self._parts) > self._most_parts
        ):
            self._drop(next(iter(self._parts)))

    def _drop(self, name: str) -> None:
        self._bytes -= self._parts.pop(name).forget()


class _AsOf:
    def __init__(self, replica: ReadReplica, port: EventLog, seq: int) -> None:
        self._replica, self._port, self._seq = replica, port, seq

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return await (await self._source()).read(*subjects)

    async def latest(self, subjects: str) -> Fact | None:
        return await (await self._source()).latest(subjects)

    async def _source(self) -> FactReader:
        return self._replica if await self._replica.has(self._seq) else self._port


class _Partition:
    """The facts whose subjects begin with `name`, decoded when they are requested."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether it is complete. None: it is being read. False: it is too large to be kept.
        self.whole: bool | None = None
        self._bytes = 0
        self._facts: dict[str, Fact] = {}
        #: Not decoded yet.
        self._unread: dict[str, RawMessage] = {}
        #: The subjects of each call.
        self._calls: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, raw: RawMessage) -> int:
        """Keep a fact, the first one in its slot; returns the number of bytes added."""
        if self.whole is False:
            return 0
        is_new = raw.subject not in self
        if not is_new and self.seq(raw.subject) <= raw.seq:
            return 0
        self._facts.pop(raw.subject, None)
        self._unread[raw.subject] = raw
        if not is_new:
            return 0
        match raw.subject[len(self.name) + 1 :].split(".", 2):
            case ["call", call, _]:
                self._calls[call].append(raw.subject)
            case _:
                pass
        self._bytes += len(raw.data)
        return len(raw.data)

    def forget(self) -> int:
        """Remove all facts; returns the number of bytes freed."""
        gone, self._bytes = self._bytes, 0
        self._facts.clear()
        self._unread.clear()
        self._calls.clear()
        return gone

    def __contains__(self, subject: str) -> bool:
        return subject in self._facts or subject in self._unread

    def facts(self, pattern: str) -> Iterable[Fact]:
        """The facts on the subjects that match a pattern."""
        if pattern != f"{self.name}.>":
            return map(self.fact, self.matching(pattern))
        for subject in list(self._unread):
            self.fact(subject)
        return [fact for subject, fact in self._facts.items() if subject != self.name]

    def matching(self, pattern: str) -> Iterable[str]:
        """The subjects with a fact that match a pattern."""
        match pattern[len(self.name) + 1 :].split("."):
            case ["call", call, ">"] if call != "*":
                return self._calls.get(call, ())
            case ["call", "*", place] if place not in {"*", ">"}:
                each = (f"{self.name}.call.{call}.{place}" for call in self._calls)
                return [subject for subject in each if subject in self]
            case rest if "*" in rest or ">" in rest:
                every = (*self._facts, *self._unread)
                return [subject for subject in every if matches(pattern, subject)]
            case _:
                return (pattern,) if pattern in self else ()

    def seq(self, subject: str) -> int:
        return (self._facts.get(subject) or self._unread[subject]).seq

    def fact(self, subject: str) -> Fact:
        if (raw := self._unread.pop(subject, None)) is not None:
            self._facts[subject] = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
        return self._facts[subject]


def _beginning(subject: str) -> str:
    """The first three tokens, which a thread or a workspace's policies have in common."""
    second = subject.find(".", len(ROOT) + 1)
    third = subject.find(".", second + 1)
    return subject if second < 0 or third < 0 else subject[:third]
