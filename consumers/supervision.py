"""Keeping a task running: a failure is logged, and the task is restarted with a growing pause."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ayes.schemas.errors import BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.supervision")

#: The pause before the first restart; each failure doubles it.
AGAIN_S: Final = 0.25
MAX_PAUSE_S: Final = 30.0


async def keep_running(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    ends: tuple[type[Exception], ...] = (BrokerRefused,),
) -> None:
    """Run it until it returns. Errors of the types in `ends` are raised: only an operator can fix
    them, so a restart would not help.
    """
    again_s = AGAIN_S
    clock = asyncio.get_running_loop()
    while True:
        begun = clock.time()
        try:
            return await run()
        except ends:
            raise
        except Exception as problem:  # noqa: BLE001 - the rest of the process goes on in any case
            if clock.time() - begun > MAX_PAUSE_S:
                again_s = AGAIN_S  # it has worked in between
            _log.error(
                "a task failed and is started again",
                task=name,
                problem=f"{type(problem).__name__}: {problem}",
                again_s=again_s,
            )
        await asyncio.sleep(again_s)
        again_s = min(again_s * 2, MAX_PAUSE_S)
