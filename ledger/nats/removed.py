"""The facts that have left the stream, for who reads the log from one number to the next.

They stand in packs of their threads, which come after them in the log (docs/decisions/0091). A
fact leaves the stream two minutes after its pack was recorded. So for each page of the stream that
was read, the packs that are there afterwards have all that was missing in it.
"""

import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from operator import attrgetter

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.schemas.errors import LogDamaged
from ayes.schemas.slots import matches


class Removed:
    """The facts on some subjects, in packs, in the order of the log.

    Of each pack that was read its place is kept, and its facts only from the first of them that is
    asked for to the last.

    Args:
        pages: the messages on a wildcard from a number on, to the end of the stream.
        at: the message of a number.
        first_since: the number from which on the stream has what was recorded on a wildcard at a
            time or later.
        subjects: those of the facts, with wildcards.
        start: the number or time of the first one.
    """

    def __init__(
        self,
        pages: Callable[[int, str], AsyncGenerator[list[RawMessage]]],
        at: Callable[[int], Awaitable[RawMessage | None]],
        first_since: Callable[[datetime, str], Awaitable[int]],
        subjects: tuple[str, ...],
        start: int | datetime,
    ) -> None:
        self._pages, self._at, self._first_since = pages, at, first_since
        self._subjects = subjects
        self._since = start if isinstance(start, datetime) else None
        #: The first number that was not asked for yet.
        self._next = 1 if isinstance(start, datetime) else start
        #: By wildcard over packs, the number behind the last one that was read.
        self._behind = dict.fromkeys(packs.packs_over(subjects), self._next)
        #: Whether no packs are looked for that are older than the first fact.
        self._is_placed = self._since is None
        #: Of packs whose facts are not read yet: the number of the first fact, and of the pack.
        self._later: list[tuple[int, int]] = []
        #: Facts that come next, by number.
        self._facts: dict[int, RawMessage] = {}

    @property
    def packs(self) -> tuple[str, ...]:
        """The wildcards over the packs in which such facts may be."""
        return tuple(self._behind)

    async def up_to(self, last: int) -> list[RawMessage]:
        """Those after the last ones that were asked for, up to this number, in all packs that are
        recorded by now. Some of them may still be in the stream. If it fails, ask again.

        Raises:
            LogDamaged: a pack cannot be read.
            NewerLog: a newer program made one.
        """
        await self._place()
        for wildcard, start in self._behind.items():
            async with aclosing(self._pages(start, wildcard)) as pages:
                async for page in pages:
                    self._behind[wildcard] = page[-1].seq + 1
                    for pack in page:
                        if numbers := [one.seq for one in self._wanted(pack)]:
                            heapq.heappush(self._later, (numbers[0], pack.seq))
        while self._later and self._later[0][0] <= last:
            number = self._later[0][1]
            if (found := await self._at(number)) is None:
                raise LogDamaged(f"fact {number:,}, a pack, cannot be read any more")
            heapq.heappop(self._later)
            self._facts |= {one.seq: one for one in self._wanted(found)}
        each = [self._facts[seq] for seq in sorted(self._facts) if seq <= last]
        self.skip(last)
        return each

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
            for one in packs.unpacked(pack)
            if one.seq >= self._next
            and (self._since is None or one.recorded_at >= self._since)
            and any(matches(wildcard, one.subject) for wildcard in self._subjects)
        ]


def in_their_places(page: list[RawMessage], removed: list[RawMessage]) -> list[RawMessage]:
    """A page of the stream with these facts, each once."""
    each = {one.seq: one for one in (*removed, *page)}
    return sorted(each.values(), key=attrgetter("seq"))
