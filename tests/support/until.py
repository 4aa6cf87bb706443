"""Waiting for what nobody announces."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.schemas.codec import Fact
from ayes.schemas.slots import ThreadRef

#: Bounds a hang. On a busy machine a program may take most of a minute to start.
BOUND_S: Final = 150


async def until(look: Callable[[], Awaitable[Any] | Any]) -> Any:
    """The first thing seen that is true.

    Raises:
        TimeoutError: after `BOUND_S`.
    """
    async with asyncio.timeout(BOUND_S):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
            await asyncio.sleep(0.02)


async def recorded(ledger: Ledger, *subjects: str, count: int = 1) -> list[Fact]:
    """The first N facts on these subjects, as soon as they stand.

    Raises:
        TimeoutError: after `BOUND_S`.
    """
    async with asyncio.timeout(BOUND_S), aclosing(ledger.watch(1, *subjects)) as facts:
        return [await anext(facts) for _ in range(count)]


async def question(ledger: Ledger, thread: ThreadRef) -> Call:
    """The one call of a thread that people are asked about, once they are."""
    [call] = await until(lambda: ledger.open_questions(thread))
    return await ledger.call(call.ref)
