"""The facts that have left the stream, for who reads the log from one number to the next.

They stand in packs of their threads, which come after them in the log (docs/decisions/0091). A
fact leaves the stream two minutes after its pack was recorded. So for each page of the stream that
was read, the packs that are there afterwards have all that was missing in it.

A pack may stand far behind its facts. So a client keeps which numbers may be in the packs that it
has met, and of those behind a part of the log reads the ones that may have something of it.
"""

import heapq
import sys
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from operator import attrgetter
from typing import Final

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.schemas.errors import LogDamaged
from ayes.schemas.slots import matcher

#: Of the packs that were read last, the bytes that are kept.
_KEPT_BYTES: Final = 16 * 1024 * 1024
#: Facts that are asked for at a time, about: some packs have many.
_MOST: Final = 1000
#: Wildcards of which is remembered which packs are on them.
_MOST_WILDCARDS: Final = 256


class KnownPacks:
    """The packs that a client has met: of each its number and those of its first and last fact, 24
    bytes; and those that were read last. A pack never changes.

    Args:
        pages: the messages on a wildcard from a number on, to the end of the stream.
        at: the message of a number.
    """

    def __init__(
        self,
        pages: Callable[[int, str], AsyncGenerator[list[RawMessage]]],
        at: Callable[[int], Awaitable[RawMessage | None]],
    ) -> None:
        self._pages, self._at = pages, at
        self._ranges: dict[str, _Ranges] = {}
        self._kept: dict[int, RawMessage] = {}
        self._kept_bytes = 0

    async def behind(
        self, start: int, wildcard: str, first: int, last: int
    ) -> AsyncGenerator[tuple[int, list[tuple[int, int, int]]]]:
        """The packs on a wildcard from a number to the end of the stream that may have a fact from
        one number to another: their first fact, last fact and number. In parts, each with the
        number behind it; a part of the log is read once.

        Raises:
            LogDamaged: a pack cannot be read.
            NewerLog: a newer program made one.
        """
        known = self._ranges.pop(wildcard, None) or _Ranges()
        self._ranges[wildcard] = known
        if len(self._ranges) > _MOST_WILDCARDS:
            del self._ranges[next(iter(self._ranges))]
        while True:
            if end := known.end_of(start):
                yield end, known.within(start, end, first, last)
                start = end
            begin = known.begin_for(start)
            async with aclosing(self._pages(begin, wildcard)) as pages:
                async for page in pages:
                    end = page[-1].seq + 1
                    known.add(begin, end, [(*packs.range_of(one), one.seq) for one in page])
                    for one in page:
                        self._keep(one)
                    begin = end
                    if end > start:
                        yield end, known.within(start, end, first, last)
                        start = end
                    if known.end_of(start):
                        break
                else:
                    return

    async def pack(self, number: int) -> RawMessage:
        """The pack of that number.

        Raises:
            LogDamaged: it is not there any more.
        """
        if (found := self._kept.get(number) or await self._at(number)) is None:
            raise LogDamaged(f"fact {number:,}, a pack, cannot be read any more")
        self._keep(found)
        return found

    def _keep(self, pack: RawMessage) -> None:
        if self._kept.pop(pack.seq, None) is None:
            self._kept_bytes += len(pack.data)
        self._kept[pack.seq] = pack
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))).data)


class _Ranges:
    """Which numbers may be in the packs on a wildcard, as far as it was read."""

    def __init__(self) -> None:
        #: The parts of the log that were read, apart and in order: their begin, and number behind.
        self._parts: list[tuple[int, int]] = []
        #: Of each pack, by number: the first fact, the last one, and its number.
        self._columns = array("Q"), array("Q"), array("Q")

    def end_of(self, start: int) -> int:
        """The number behind the part that was read in which this number is; 0: in none."""
        return next((end for begin, end in self._parts if begin <= start < end), 0)

    def begin_for(self, start: int) -> int:
        """Where to begin to read from this number on: earlier by the length of the next part, so
        that who walks backwards meets the beginning of a part a few times only.
        """
        begin, end = next((one for one in self._parts if one[0] > start), (start, start))
        return max(1, start - (end - begin))

    def add(self, start: int, end: int, each: list[tuple[int, int, int]]) -> None:
        """All packs from one number to just before another."""
        place = self._place(start, end)
        for column, new in zip(self._columns, zip(*each, strict=True), strict=True):
            column[place] = array("Q", new)
        near = [one for one in self._parts if start <= one[1] and one[0] <= end]
        begins, ends = zip((start, end), *near, strict=True)
        apart = {*self._parts}.difference(near)
        self._parts = sorted([*apart, (min(begins), max(ends))])

    def within(self, start: int, end: int, first: int, last: int) -> list[tuple[int, int, int]]:
        """Of the packs from one number to just before another, those with a fact in a range."""
        place = self._place(start, end)
        each = zip(*(column[place] for column in self._columns), strict=True)
        return [(a, b, number) for a, b, number in each if a <= last and b >= first]

    def _place(self, start: int, end: int) -> slice:
        numbers = self._columns[2]
        return slice(bisect_left(numbers, start), bisect_left(numbers, end))


class Removed:
    """The facts on some subjects, in packs, in the order of the log.

    The facts of a pack are kept only from the first of them that is asked for to the last.

    Args:
        known: the packs of this log that the client has met.
        first_since: the number from which on the stream has what was recorded on a wildcard at a
            time or later.
        subjects: those of the facts, with wildcards.
        start: the number or time of the first one.
        last: the highest number that will be asked for.
    """

    def __init__(
        self,
        known: Callable[[], KnownPacks],
        first_since: Callable[[datetime, str], Awaitable[int]],
        subjects: tuple[str, ...],
        start: int | datetime,
        last: int = sys.maxsize,
    ) -> None:
        self._known, self._first_since = known, first_since
        self._is_asked, self._last = matcher(subjects), last
        self._since = start if isinstance(start, datetime) else None
        #: The first number that was not asked for yet.
        self._next = 1 if isinstance(start, datetime) else start
        #: By wildcard over packs, the number behind the last one that was read.
        self._behind = dict.fromkeys(packs.packs_over(subjects), self._next)
        #: Whether no packs are looked for that are older than the first fact.
        self._is_placed = self._since is None
        #: Packs whose facts are not read yet: their first fact, last fact and number.
        self._later: list[tuple[int, int, int]] = []
        #: Facts that come next, by number.
        self._facts: dict[int, RawMessage] = {}
        #: The number up to which they were asked for in the last look for packs.
        self._looked_for = 0

    @property
    def packs(self) -> tuple[str, ...]:
        """The wildcards over the packs in which such facts may be."""
        return tuple(self._behind)

    async def up_to(self, last: int) -> tuple[list[RawMessage], int]:
        """Those after the last ones that were asked for, up to this number, in all packs that are
        recorded by now. If they are many, the first of them, up to the number beside them: ask for
        the others then. Some of them may still be in the stream. If it fails, ask again.

        Raises:
            LogDamaged: a pack cannot be read.
            NewerLog: a newer program made one.
        """
        if last > self._looked_for:
            await self._look()
            self._looked_for = last
        enough = _MOST
        while self._later and self._later[0][0] <= last:
            first, end, number = self._later[0]
            if len(self._facts) >= enough:
                if sum(seq < first for seq in self._facts) >= _MOST:
                    last = first - 1
                    break
                enough = len(self._facts) + _MOST
            wanted = self._wanted(await self._known().pack(number)) if end >= self._next else []
            heapq.heappop(self._later)
            self._facts |= {one.seq: one for one in wanted}
        found = [self._facts[seq] for seq in sorted(self._facts) if seq <= last]
        self.skip(last)
        return found, last

    async def _look(self) -> None:
        """Learn of the packs that are recorded by now."""
        await self._place()
        for wildcard, start in self._behind.items():
            parts = self._known().behind(start, wildcard, self._next, self._last)
            async with aclosing(parts) as each:
                async for end, some in each:
                    self._behind[wildcard] = end
                    for one in some:
                        heapq.heappush(self._later, one)

    async def _place(self) -> None:
        """Begin at the first packs that may have facts of that time: a pack is recorded after the
        facts in it.
        """
        if self._since is not None and not self._is_placed:
            for wildcard, behind in self._behind.items():
                first = await self._first_since(self._since, wildcard)
                self._behind[wildcard] = max(behind, first)
            self._is_placed = True

    def skip(self, last: int) -> None:
        """Ask for none up to this number."""
        self._next = max(self._next, last + 1)
        self._facts = {seq: one for seq, one in self._facts.items() if seq >= self._next}
        for wildcard, behind in self._behind.items():
            self._behind[wildcard] = max(behind, self._next)

    def _wanted(self, pack: RawMessage) -> list[RawMessage]:
        return [
            one
            for one in packs.unpacked(pack, self._is_asked)
            if self._next <= one.seq <= self._last
            and (self._since is None or one.recorded_at >= self._since)
        ]


def in_their_places(page: list[RawMessage], removed: list[RawMessage]) -> list[RawMessage]:
    """A page of the stream with these facts, each once."""
    each = {one.seq: one for one in (*removed, *page)}
    return sorted(each.values(), key=attrgetter("seq"))
