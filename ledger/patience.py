"""Waiting for a broker that is away or has no leader."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ayes.schemas.errors import BrokerAway
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.patience")

#: The pause after the first attempt; each one doubles it.
AGAIN_S: Final = 0.1
#: Short, since a cluster mostly has a new leader within some seconds.
MAX_PAUSE_S: Final = 2.0
#: Waiting longer than this is logged, once.
QUIET_S: Final = 2.5


async def while_away[T](
    attempt: Callable[[], Awaitable[T]],
    *,
    timeout_s: float | None = None,
    unless: asyncio.Future[None] | None = None,
) -> T:
    """Repeat an attempt while it fails with `BrokerAway`, and return its result.

    An attempt bounds itself; none is begun once the time is up.

    Args:
        timeout_s: None: as long as it takes.
        unless: fails if there will be no broker.

    Raises:
        BrokerAway: the last attempt's, after `timeout_s`.
        Exception: that of `unless`, once an attempt has failed.
    """
    now = asyncio.get_running_loop().time
    begun, pause_s, is_logged = now(), AGAIN_S, False
    while True:
        try:
            return await attempt()
        except BrokerAway as away:
            if unless is not None and unless.done():
                unless.result()
            left_s = None if timeout_s is None else begun + timeout_s - now()
            if left_s is not None and left_s <= 0:
                raise
            if not is_logged and now() - begun > QUIET_S:
                is_logged = True
                _log.warning("waiting for the broker", problem=str(away))
        await asyncio.sleep(pause_s if left_s is None else min(pause_s, left_s))
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
