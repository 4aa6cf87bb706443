"""Keeping a task running: a failure is logged, and the task is restarted with a growing pause."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.supervision")

#: The pauses before a restart.
PAUSES: Final = Backoff(0.25, 30.0)


async def keep_running(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    ends: tuple[type[Exception], ...] = (BrokerRefused,),
) -> None:
    """Run it until it returns. Errors of the types in `ends` are raised: only an operator can fix
    them, so a restart would not help.
    """
    pauses = PAUSES.pauses()
    clock = asyncio.get_running_loop()
    while True:
        begun = clock.time()
        try:
            return await run()
        except ends:
            raise
        except Exception as problem:  # noqa: BLE001 - the rest of the process goes on in any case
            if clock.time() - begun > PAUSES.most_s:
                pauses = PAUSES.pauses()  # it has worked in between
            again_s = next(pauses)
            _log.error(
                "a task failed and is started again",
                task=name,
                problem=f"{type(problem).__name__}: {problem}",
                again_s=again_s,
            )
        await asyncio.sleep(again_s)


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Do this for as long as the block lasts."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
