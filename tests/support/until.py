"""Waiting for what nobody announces."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


async def until(look: Callable[[], Awaitable[Any] | Any]) -> Any:
    """The first thing seen that is true.

    Raises:
        TimeoutError: after a minute, which bounds a hang on a busy machine.
    """
    async with asyncio.timeout(60):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
            await asyncio.sleep(0.02)
