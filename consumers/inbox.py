"""The inbox: what waits for people, kept at hand by a service, as the bucket `pending` has it.

    async with Inbox(ledger) as inbox:
        for entry in inbox.oldest(50):
            ...

Entering it reads all that waits. From then on it is kept up by what changes, and answering takes no request. While the
broker is away it shows what was known last, and it is right again as soon as the broker is back, for however long that
was: a call that was decided meanwhile does not stay.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ledger.client import Ledger
from projections.pending import EVERY, Chosen, Entry, Waiting


class Inbox:
    """All that waits, oldest first, for as long as the block lasts.

    Raises:
        Unavailable: out of whatever is asked of it, once it can be kept up no longer: the bucket is gone, say.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._waiting = Waiting()
        self._changes = changes(ledger, self._waiting)
        self._keeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await anext(self._changes)
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeping.cancel()
        [ended] = await asyncio.gather(self._keeping, return_exceptions=True)
        if problem is None and isinstance(ended, Exception):
            raise ended

    def oldest(self, most: int | None = None, chosen: Chosen = EVERY) -> list[Entry]:
        """The entries that fit, oldest first: so many at most, or all of them."""
        self._check()
        return self._waiting.oldest(most, chosen)

    def __len__(self) -> int:
        """How many wait."""
        self._check()
        return len(self._waiting)

    def _check(self) -> None:
        if self._keeping.done():
            self._keeping.result()

    async def _keep(self) -> None:
        async with aclosing(self._changes) as coming:
            async for _ in coming:
                pass


async def changes(
    ledger: Ledger, waiting: Waiting | None = None
) -> AsyncGenerator[list[tuple[str, Entry | None]]]:
    """What waits, by key, and then what changes, for ever: None when a call waits no longer.

    Args:
        waiting: kept as the bucket is, and always as far as what was told last.
    """
    held = Waiting() if waiting is None else waiting
    async with aclosing(ledger.port.pending.follow()) as coming:
        async for change in coming:
            told = held.take(change)
            if told or change.whole:
                yield told
