"""Facts that fill a slot for the second time, for who reads the log from one number to the next.

Only who writes past the condition of appends fills one so, once the first fact was packed and has
left the stream (docs/decisions/0091). So its thread has had a pack for two minutes at least. Which
threads have packs is read once, and again each minute; what is in the packs of one, when a fact of
it is met. Most threads have none.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final, Protocol

from msgspec.structs import replace

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas.errors import BadSlot
from ayes.schemas.slots import PACKED, Slot

#: How long after the last look for packs a fact may have been recorded. What is in a pack stays in
#: the stream for twice as long (`REMOVED_AFTER` in ops/actions/packing.py).
LOOKED_FOR: Final = timedelta(minutes=1)
#: Threads of which is remembered what is in their packs.
_MOST_NAMES: Final = 256


class LedgerStream(Protocol):
    """The part of `JetStream` that this needs."""

    @property
    def every_pack(self) -> tuple[str, ...]: ...

    async def clock(self) -> datetime: ...

    async def last_seq(self) -> int: ...

    async def counted(self, stream: str, subjects: str) -> list[str]: ...

    def in_stream(self, start: int, subjects: str) -> AsyncGenerator[list[RawMessage]]: ...

    async def read_from_leader(self, stream: str, *subjects: str) -> list[RawMessage]: ...


class Refilled:
    """What is known of the packs of a log, to find such facts."""

    def __init__(self, stream: LedgerStream) -> None:
        self._stream = stream
        #: By how the subjects of a thread begin: the number of its newest pack.
        self._newest: dict[str, int] = {}
        #: By wildcard over packs: the number behind the last fact that was looked at.
        self._behind: dict[str, int] = {}
        #: The last look, on the broker's clock.
        self._looked_at: datetime | None = None
        self._looking = asyncio.Lock()
        #: What is in the packs of threads, those that were asked for last.
        self._names: dict[str, packs.PackedNames] = {}

    async def noted(self, page: list[RawMessage]) -> list[RawMessage]:
        """Messages of the stream, each that fills a slot again with the number of the first.

        Raises:
            LogDamaged: a pack cannot be read.
            NewerLog: a newer program made one.
            Unavailable: the broker does not answer.
        """
        by_thread = defaultdict[str, list[RawMessage]](list)
        for raw in page:
            if thread := packs.thread_of(raw.subject):
                by_thread[thread].append(raw)
        if not by_thread:
            return page
        await self._look(max(map(attrgetter("recorded_at"), page)))
        first: dict[int, int] = {}
        for thread, some in by_thread.items():
            if thread in self._newest:
                first |= await self._firsts(thread, some)
        return [replace(one, first=first[one.seq]) if one.seq in first else one for one in page]

    async def _firsts(self, thread: str, some: list[RawMessage]) -> dict[int, int]:
        """By the number of each of these that fills its slot again, the number of the first."""
        names = await self._names_in(thread)
        if not (maybe := [raw for raw in some if _may_have(names, raw.subject)]):
            return {}
        found: dict[int, int] = {}
        for pack in await self._stream.read_from_leader(LEDGER, f"{thread}.{PACKED}.*"):
            inside = {one.subject: one.seq for one in packs.unpacked(pack)}
            for raw in maybe:
                if inside.get(raw.subject, raw.seq) < raw.seq:
                    found[raw.seq] = inside[raw.subject]
        return found

    async def _names_in(self, thread: str) -> packs.PackedNames:
        known, number = self._names.pop(thread, packs.NONE), self._newest[thread]
        if known.number < number:
            newest = await self._stream.read_from_leader(LEDGER, f"{thread}.{PACKED}.{number}")
            known = packs.PackedNames.in_pack(newest[0]) if newest else packs.NONE
        self._names[thread] = known
        if len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]
        return known

    async def _look(self, at: datetime) -> None:
        """Learn which threads had packs long enough before this time."""
        async with self._looking:
            if self._looked_at is not None and at < self._looked_at + LOOKED_FOR:
                return
            now = await self._stream.clock()
            if not self._behind:
                end, wildcards = await self._stream.last_seq(), self._stream.every_pack
                for wildcard in wildcards:
                    for subject in await self._stream.counted(LEDGER, wildcard):
                        self._add(subject)
                self._behind = dict.fromkeys(wildcards, end + 1)
            for wildcard, start in self._behind.items():
                async with aclosing(self._stream.in_stream(start, wildcard)) as pages:
                    async for page in pages:
                        for pack in page:
                            self._add(pack.subject)
                        self._behind[wildcard] = page[-1].seq + 1
            self._looked_at = now

    def _add(self, subject: str) -> None:
        thread, number = subject.rpartition(f".{PACKED}.")[0], packs.number_of(subject)
        self._newest[thread] = max(number, self._newest.get(thread, 0))


def _may_have(names: packs.PackedNames, subject: str) -> bool:
    try:
        return names.may_have(Slot.parse(subject))
    except BadSlot:
        return False
