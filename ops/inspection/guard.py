"""While the broker runs: alarms for settings that changed and bounds that are nearly reached, and
deleted consumers are created again.
"""

import asyncio
from typing import Final

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.drift import differences, drift
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import dismiss_abandoned, ensure_consumers, undeclared, uses
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.inspection.guard")
EVERY_S: Final = 60.0


async def alarms(requests: Api) -> list[str]:
    """Differences from the declared settings, and bounds that are 80 % reached: one sentence each.

    Needs an operator's rights only. `readers` needs an administrator's.
    """
    return [*await drift(requests), *(str(one) for one in await uses(requests) if one.is_alarming)]


async def readers(requests: Api) -> list[str]:
    """The undeclared consumers that outlive their readers, for an administrator."""
    return [str(one) for one in await undeclared(requests)]


async def create_missing(requests: Api) -> None:
    """Create the consumers that an administrator deleted, also those of workers elsewhere."""
    missing = [one for one in await differences(requests) if one.consumer and not one.key]
    if missing:
        await ensure_consumers(requests)
    for one in missing:
        _log.error("a consumer was deleted and is created again", consumer=one.consumer)


async def guard(log: JetStream, every_s: float = EVERY_S) -> None:
    """Check the broker each minute, as an administrator: log new alarms, create consumers that were
    deleted, and delete abandoned ones.
    """
    requests = log.api
    known: set[str] = set()
    while True:
        try:
            for one in await dismiss_abandoned(requests):
                _log.error("an undeclared consumer was deleted", consumer=str(one))
            await create_missing(requests)
            now = {*await alarms(requests), *await readers(requests)}
            for alarm in sorted(now - known):
                _log.error("the broker is not as it should be", alarm=alarm)
            known = now
        except Unavailable as problem:
            _log.debug("the broker cannot be checked now", problem=str(problem))
        await asyncio.sleep(every_s)
