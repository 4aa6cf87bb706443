"""Work that many visitors ask for, done once at a time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any

from ayes.schemas.errors import NotOpen


class Fresh[T]:
    """An answer that is the same for everybody, and asked for anew when it is too old."""

    def __init__(self, ask: Callable[[], Awaitable[T]], for_s: float) -> None:
        """Remember what to ask.

        Args:
            for_s: how old an answer may be, in seconds.
        """
        self._ask = ask
        self._for_s = for_s
        self._asking = asyncio.Lock()
        self._known: tuple[float, T] | None = None

    async def __call__(self) -> T:
        """The answer; concurrent callers wait for the same one. Errors are not remembered."""
        async with self._asking:
            if self._known is None or time.monotonic() - self._known[0] > self._for_s:
                answer = await self._ask()
                self._known = time.monotonic(), answer
            return self._known[1]


class Busy:
    """What is being done, so that nobody begins the same twice."""

    def __init__(self) -> None:
        self._begun: set[Hashable] = set()

    @asynccontextmanager
    async def once(self, what: Hashable, refusal: str) -> AsyncGenerator[None]:
        """For as long as the block lasts, refuse another one.

        Raises:
            NotOpen: it is being done; with this sentence.
        """
        if what in self._begun:
            raise NotOpen(refusal)
        self._begun.add(what)
        try:
            yield
        finally:
            self._begun.discard(what)


async def in_thread[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run long work in a thread with an event loop of its own, so that other requests go on.

    A caller that is cancelled cancels the work, and waits for its end.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    running = asyncio.create_task(asyncio.to_thread(_run, loop, task))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait({running})
        raise


def _run[T](loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    try:
        return loop.run_until_complete(task)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
