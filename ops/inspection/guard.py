"""While the broker runs: alarms for settings that changed and bounds that are nearly reached, and
deleted consumers are created again.
"""

import asyncio
from typing import Final

from msgspec.structs import replace

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.drift import differences
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import described, dismiss_abandoned, ensure_consumers, undeclared
from ayes.ops.inspection.checks import GUARD, glance, problems
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.inspection.guard")
EVERY_S: Final = 60.0


async def alarms(log: JetStream) -> list[str]:
    """What an administrator should look at: one sentence each."""
    readers = [*map(str, await undeclared(log.api))]
    return problems(replace(await glance(log), readers=readers), GUARD)


async def create_missing(requests: Api) -> None:
    """Create the consumers that an administrator deleted, also those of workers elsewhere."""
    found = differences(await described(requests))
    missing = [one for one in found if one.consumer and not one.key]
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
            now = {*await alarms(log)}
            for alarm in sorted(now - known):
                _log.error("the broker is not as it should be", alarm=alarm)
            known = now
        except Unavailable as problem:
            _log.debug("the broker cannot be checked now", problem=str(problem))
        await asyncio.sleep(every_s)
