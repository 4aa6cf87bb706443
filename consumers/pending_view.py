"""An in-memory view of the bucket `pending`: the approval requests that wait for people.

    async with PendingView(ledger) as view:
        for entry in view.entries.oldest(50):
            ...

Entering it reads the whole bucket; from then on it follows the changes, and answering takes no
request. While the broker is away it shows the last known state, and it is right again as soon as
the broker is back, however long that took: a call that was decided meanwhile does not stay.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Change
from ayes.projections.pending import BadEntry, Entry, PendingIndex


class PendingView:
    """The pending approvals, oldest first, for as long as the block lasts.

    Raises:
        Unavailable: from every method, once the view cannot follow the bucket any more.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._index = PendingIndex()
        self._coming = ledger.log.pending.follow()
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

    @property
    def entries(self) -> PendingIndex:
        """The entries as they are now."""
        self._check()
        return self._index

    async def lost(self) -> None:
        """Wait until the view cannot follow the bucket any more, and raise the reason."""
        await asyncio.wait({self._keeping})
        self._check()

    async def moved(self, since: int) -> int:
        """Wait until it shows another revision than this one, and return it."""
        while self._revision == since:
            await self._moved.wait()
            self._check()
        return self._revision

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
        self._index.apply(change)
        self._revision = change.revision
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


async def changes(ledger: Ledger) -> AsyncGenerator[list[tuple[str, Entry | BadEntry | None]]]:
    """Yield the pending entries with their keys, then each change, without end.

    `None` in place of an entry means that the call is no longer pending.
    """
    index = PendingIndex()
    async with aclosing(ledger.log.pending.follow()) as coming:
        async for change in coming:
            changed = index.apply(change)
            if changed or change.whole:
                yield changed
