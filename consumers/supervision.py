"""Keeping a task running: one that fails is told of in a sentence and started again, later each
time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ayes.schemas.errors import BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.supervision")

#: The pause before the first new start; each failure doubles it.
AGAIN_S: Final = 0.25
AT_LAST_S: Final = 30.0


async def kept(
    what: str,
    run: Callable[[], Awaitable[None]],
    *,
    ends: tuple[type[Exception], ...] = (BrokerRefused,),
) -> None:
    """Run it until it returns. An error of `ends` is raised: a new start does not help, only an
    operator does.
    """
    again_s = AGAIN_S
    clock = asyncio.get_running_loop()
    while True:
        begun = clock.time()
        try:
            return await run()
        except ends:
            raise
        except Exception as problem:  # noqa: BLE001 - whatever it is, the rest of the process goes on
            if clock.time() - begun > AT_LAST_S:
                again_s = AGAIN_S  # it has worked in between
            _log.error(
                "a task failed and is started again",
                task=what,
                problem=f"{type(problem).__name__}: {problem}",
                again_s=again_s,
            )
        await asyncio.sleep(again_s)
        again_s = min(again_s * 2, AT_LAST_S)
