"""A part of the log in memory, as of the latest fact that was heard: so whoever is handed a fact
need not read what led to it.

A mirror follows the whole log and keeps those parts of it that somebody asked for: a thread, or the
policies, the tools, the grants or the delegations of a workspace. A part is read from the broker
once, when it is first asked for, and from then on the log itself says what is new in it. No fact
ever changes and no slot empties, so the two need only be put together.

* Whoever was handed a fact, or has just recorded one, waits until the mirror has heard it too
  (`as_of`). Then it shows that fact, all that was recorded before it, and maybe more: what it does
  not show was not there when that fact was recorded.
* It may be behind the broker. So it is no place to look for what happened since: whether a claim's
  maker still lives, who was quicker, what stands in an entry that one replaces.
  `consumers/worker.py` says when it is looked at.
* Where it cannot answer (too much for one part, not heard of yet), it asks the broker, as everybody
  else does.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from operator import attrgetter
from typing import Final

from ayes.ledger.log import EventLog, FactReader, RawMessage
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import BrokerRefused, Unavailable
from ayes.schemas.slots import ROOT, matches

#: How long a fact is waited for that was handed over: it is under way at the same time, as another
#: message.
_BEHIND_S: Final = 0.5
#: So much of the log is kept, by the size of its facts there; the parts that nobody has asked for
#: longest are let go of. Small facts, once they are read, take three to four times that of memory:
#: 60 MB.
MOST_BYTES: Final = 16 * 1024 * 1024
#: So many parts, whatever their size. Those that are too large for one answer are remembered as
#: such.
MOST_PARTS: Final = 20_000


class ReadReplica:
    """Answers `read` and `latest` as the port does, while somebody lets it `run`."""

    def __init__(
        self,
        port: EventLog,
        *,
        most_bytes: int = MOST_BYTES,
        most_parts: int = MOST_PARTS,
        each: Callable[[list[RawMessage]], None] = lambda _facts: None,
    ) -> None:
        self._port = port
        self._each = each
        self._most_bytes = most_bytes
        self._most_parts = most_parts
        self._bytes = 0
        #: By how their subjects begin, those that were asked for last at the end.
        self._parts: OrderedDict[str, _Partition] = OrderedDict()
        #: The last message that was heard. Nothing is known before the first one came.
        self._heard: RawMessage | None = None
        #: What was waited for in vain. Until that is heard, nobody waits again.
        self._missed = 0
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._tickets = itertools.count()

    async def run(self) -> None:
        """Follow the log, for ever. It begins with what is its last message now.

        Raises:
            BrokerRefused: these credentials may not follow the log.
        """
        try:
            async with aclosing(self._port.raw(await self._begin(), until_end=False)) as batches:
                async for batch in batches:
                    self._take(batch)
        finally:
            self._heard = None
            self._parts.clear()
            self._bytes = 0

    async def _begin(self) -> int:
        while True:
            try:
                return await self._port.last_seq()
            except BrokerRefused:
                raise
            except Unavailable:
                await asyncio.sleep(0.25)

    async def has(self, seq: int) -> bool:
        """Has it heard the log up to there? Waits for a moment; False if it is further behind than
        that.
        """
        if self._heard is None:
            return False
        if self._heard.seq >= seq:
            return True
        if self._heard.seq < self._missed:
            return False
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (seq, next(self._tickets), heard))
        try:
            async with asyncio.timeout(_BEHIND_S):
                return await heard
        except TimeoutError:
            self._missed = max(self._missed, seq)
            return False

    def as_of(self, seq: int) -> FactReader:
        """What was heard, once that is at least up to there; the broker's word where it does not
        come to that in time.
        """
        return _AsOf(self, self._port, seq)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        """Every fact on the subjects (wildcards allowed), in the order of the log, as of the same
        moment.
        """
        parts = [await self._part(_beginning(subject)) for subject in subjects]
        found: list[Fact] = []
        for part, subject in zip(parts, subjects, strict=True):
            # One that had to be read may have taken another one's place meanwhile; that one hears
            # nothing any more.
            if part is None or self._parts.get(part.name) is not part:
                return await self._port.read(*subjects)
            found += part.facts(subject)
        once = found if len(parts) == 1 else {fact.seq: fact for fact in found}.values()
        return tuple(sorted(once, key=attrgetter("seq")))

    async def latest(self, subjects: str) -> Fact | None:
        """The newest fact on a subject, or on any that a wildcard matches."""
        part = await self._part(_beginning(subjects))
        if part is None:
            return await self._port.latest(subjects)
        newest = max(part.matching(subjects), key=part.seq, default=None)
        return None if newest is None else part.fact(newest)

    def _take(self, batch: list[RawMessage]) -> None:
        for raw in batch:
            part = self._parts.get(_beginning(raw.subject))
            if part is not None:
                self._bytes += part.add(raw)
        self._heard = batch[-1]
        self._each(batch)
        while self._waiting and self._waiting[0][0] <= self._heard.seq:
            _, _, heard = heapq.heappop(self._waiting)
            if not heard.done():
                heard.set_result(True)
        self._let_go()

    async def _part(self, name: str) -> "_Partition | None":
        """The part of this name, read if nobody asked for it before. None: ask the broker
        instead.
        """
        if self._heard is None or "*" in name or ">" in name:
            return None
        part = self._parts.get(name)
        if part is not None:
            self._parts.move_to_end(name)
            return part if part.whole else None
        part = self._parts[name] = _Partition(name)
        try:
            await self._fill(part, self._heard)
        finally:
            # Where it could not be read, the next one who asks tries again; who asks meanwhile asks
            # the broker.
            if part.whole is None and self._parts.get(name) is part:
                self._drop(name)
        return part if part.whole else None

    async def _fill(self, part: "_Partition", heard: RawMessage) -> None:
        """Read all that the broker has of a part; what comes from now on it is told."""
        there = await self._port.read_few(f"{part.name}.>", part.name, heard.subject)
        if self._parts.get(part.name) is not part:
            return  # let go of meanwhile, so it has not heard what came
        if there is None:
            part.whole = False
            self._bytes -= part.forget()
        elif any(raw.seq == heard.seq for raw in there):
            # Else a replica answered that is behind what was heard.
            own = (raw for raw in there if _beginning(raw.subject) == part.name)
            self._bytes += sum(map(part.add, own))
            part.whole = True
            self._let_go()

    def _let_go(self) -> None:
        while self._parts and (
            self._bytes > self._most_bytes or len(self._parts) > self._most_parts
        ):
            self._drop(next(iter(self._parts)))

    def _drop(self, name: str) -> None:
        self._bytes -= self._parts.pop(name).forget()


class _AsOf:
    def __init__(self, mirror: ReadReplica, port: EventLog, seq: int) -> None:
        self._mirror, self._port, self._seq = mirror, port, seq

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return await (await self._source()).read(*subjects)

    async def latest(self, subjects: str) -> Fact | None:
        return await (await self._source()).latest(subjects)

    async def _source(self) -> FactReader:
        return self._mirror if await self._mirror.has(self._seq) else self._port


class _Partition:
    """The facts whose subjects begin so, read when they are asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Is all of it here? None: it is being read. False: it is too large to be kept.
        self.whole: bool | None = None
        self._bytes = 0
        self._facts: dict[str, Fact] = {}
        #: What nobody has asked for yet.
        self._unread: dict[str, RawMessage] = {}
        #: The subjects of each call.
        self._calls: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, raw: RawMessage) -> int:
        """Keep a fact; answers by how many bytes that makes it larger."""
        if self.whole is False or raw.subject in self:
            return 0
        self._unread[raw.subject] = raw
        match raw.subject[len(self.name) + 1 :].split(".", 2):
            case ["call", call, _]:
                self._calls[call].append(raw.subject)
            case _:
                pass
        self._bytes += len(raw.data)
        return len(raw.data)

    def forget(self) -> int:
        """Keep nothing; answers how many bytes that were."""
        gone, self._bytes = self._bytes, 0
        self._facts.clear()
        self._unread.clear()
        self._calls.clear()
        return gone

    def __contains__(self, subject: str) -> bool:
        return subject in self._facts or subject in self._unread

    def facts(self, pattern: str) -> Iterable[Fact]:
        """The facts on the subjects that a pattern matches."""
        if pattern != f"{self.name}.>":
            return map(self.fact, self.matching(pattern))
        for subject in list(self._unread):
            self.fact(subject)
        return [fact for subject, fact in self._facts.items() if subject != self.name]

    def matching(self, pattern: str) -> Iterable[str]:
        """The subjects that a pattern matches, where a fact stands."""
        match pattern[len(self.name) + 1 :].split("."):
            case ["call", call, ">"] if call != "*":
                return self._calls.get(call, ())
            case ["call", "*", place] if place not in {"*", ">"}:
                each = (f"{self.name}.call.{call}.{place}" for call in self._calls)
                return [subject for subject in each if subject in self]
            case rest if "*" in rest or ">" in rest:
                return [
                    subject
                    for subject in (*self._facts, *self._unread)
                    if matches(pattern, subject)
                ]
            case _:
                return (pattern,) if pattern in self else ()

    def seq(self, subject: str) -> int:
        return (self._facts.get(subject) or self._unread[subject]).seq

    def fact(self, subject: str) -> Fact:
        if (raw := self._unread.pop(subject, None)) is not None:
            self._facts[subject] = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
        return self._facts[subject]


def _beginning(subject: str) -> str:
    """The first three tokens: a thread's subjects begin alike, and so do those of a workspace's
    policies, tools, grants.
    """
    second = subject.find(".", len(ROOT) + 1)
    third = subject.find(".", second + 1)
    return subject if second < 0 or third < 0 else subject[:third]
