"""The inbox: what waits for people, kept at hand by a service, as the bucket `pending` has it.

    async with Inbox(ledger) as inbox:
        for entry in inbox.oldest(50):
            ...

Entering it reads all that waits. From then on it is kept up by what changes, and answering takes no
request. While the broker is away it shows what was known last, and it is right again as soon as the
broker is back, for however long that was: a call that was decided meanwhile does not stay.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ayes.ledger.log import Change
from ayes.ledger.services import Ledger
from ayes.projections.pending import (
    NO_FILTER,
    BadEntry,
    Entry,
    Page,
    PageCursor,
    PendingFilter,
    PendingIndex,
)


class PendingView:
    """All that waits, oldest first, for as long as the block lasts.

    Raises:
        Unavailable: out of whatever is asked of it, once it can be kept up no longer: the bucket is
            gone, say.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._bucket = ledger.log.pending
        self._waiting = PendingIndex()
        self._coming = self._bucket.follow()
        self._revision = 0
        self._moved = asyncio.Event()
        self._keeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._take(await anext(self._coming))
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeping.cancel()
        [ended] = await asyncio.gather(self._keeping, return_exceptions=True)
        if problem is None and isinstance(ended, Exception):
            raise ended

    def oldest(self, most: int | None = None, chosen: PendingFilter = NO_FILTER) -> list[Entry]:
        """The entries that fit, oldest first: so many at most, or all of them."""
        self._check()
        return self._waiting.oldest(most, chosen)

    def __len__(self) -> int:
        """How many wait."""
        self._check()
        return len(self._waiting)

    def unreadable(self, chosen: PendingFilter = NO_FILTER) -> list[BadEntry]:
        """What stands in the bucket and is not an entry."""
        self._check()
        return self._waiting.unreadable(chosen)

    def page(
        self,
        most: int,
        room: int,
        chosen: PendingFilter = NO_FILTER,
        after: PageCursor | None = None,
    ) -> Page:
        """The oldest that fit: so many at most, behind that one, in so many bytes.

        Raises:
            TooLarge: not even the first of them has room.
        """
        self._check()
        return self._waiting.page(most, room, chosen, after)

    async def caught_up(self) -> None:
        """Wait until it shows all that was written before this was called: after a while without
        the broker, say.

        Raises:
            Unavailable: the broker does not tell what was written.
        """
        last = await self._bucket.last_revision()
        while self._revision < last:
            self._check()
            await self._moved.wait()

    async def lost(self) -> None:
        """Wait until it can be kept up no longer, and raise why."""
        await asyncio.wait({self._keeping})
        self._check()

    def _check(self) -> None:
        if self._keeping.done():
            self._keeping.result()

    async def _keep(self) -> None:
        try:
            async with aclosing(self._coming) as coming:
                async for change in coming:
                    self._take(change)
        finally:
            self._moved.set()

    def _take(self, change: Change) -> None:
        self._waiting.apply(change)
        self._revision = change.revision
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


async def changes(ledger: Ledger) -> AsyncGenerator[list[tuple[str, Entry | BadEntry | None]]]:
    """What waits, by key, and then what changes, for ever: None when a call waits no longer."""
    held = PendingIndex()
    async with aclosing(ledger.log.pending.follow()) as coming:
        async for change in coming:
            told = held.apply(change)
            if told or change.whole:
                yield told
