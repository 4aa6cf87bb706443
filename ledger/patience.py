"""Waiting for a broker that is away or has no leader."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerAway, BrokerRefused, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.patience")

#: Short, since a cluster mostly has a new leader within some seconds.
PAUSES: Final = Backoff(0.1, 2.0)
#: Waiting longer than this is logged, once.
QUIET_S: Final = 2.5


async def while_away[T](
    attempt: Callable[[], Awaitable[T]],
    *,
    timeout_s: float | None = None,
    unless: asyncio.Future[None] | None = None,
    of: type[Unavailable] | tuple[type[Unavailable], ...] = BrokerAway,
) -> T:
    """Repeat an attempt while it fails with one of these errors, and return its result.

    An attempt bounds itself; none is begun once the time is up.

    Args:
        timeout_s: None: as long as it takes.
        unless: fails if there will be no broker.

    Raises:
        BrokerRefused: these credentials may not do it, and never will.
        Unavailable: the last attempt's, after `timeout_s`.
        Exception: that of `unless`, once an attempt has failed.
    """
    now = asyncio.get_running_loop().time
    begun, pauses, is_logged = now(), PAUSES.pauses(), False
    while True:
        try:
            return await attempt()
        except BrokerRefused:
            raise
        except of as away:
            if unless is not None and unless.done():
                unless.result()
            left_s = None if timeout_s is None else begun + timeout_s - now()
            if left_s is not None and left_s <= 0:
                raise
            if not is_logged and now() - begun > QUIET_S:
                is_logged = True
                _log.warning("waiting for the broker", problem=str(away))
        pause_s = next(pauses)
        await asyncio.sleep(pause_s if left_s is None else min(pause_s, left_s))
