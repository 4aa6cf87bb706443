"""Whether calls get decided at the moment: a look at the broker, and what speaks against it.

`look` asks, `obstacle` judges what it found. `ayes ready` does both once, the monitor
(ops/monitor/) all the time.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct

from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import check_level, info, kept
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED
from ayes.ops.inspection.health import Health
from ayes.ops.inspection.progress import ESSENTIAL, ConsumerStatus, progress

#: Deliveries of one consumer that may wait. The gate handles some 500 calls a second.
MOST_WAITING: Final = 10_000


class Wanted(NamedTuple):
    """What must be so."""

    #: These workers are at work; none: those without which no call is decided.
    roles: Sequence[str] = ()
    #: No consumer has more waiting deliveries, unless its work may take long.
    most_waiting: int = MOST_WAITING


class Look(Struct, frozen=True):
    """The log and its consumers at one moment."""

    #: The number of facts, that of the last one, and when it was recorded (None: never).
    facts: int
    last_seq: int
    last_at: datetime | None
    bytes: int
    #: The log refuses facts beyond this many bytes; None: it has no limit.
    limit_bytes: int | None
    #: Those of the roles that were asked for, without those of parked deliveries.
    consumers: tuple[ConsumerStatus, ...]


async def look(log: JetStream, roles: Sequence[str] = ()) -> Look | None:
    """Look at the broker; None if it has no log.

    Args:
        log: on the login of the operator; that of a worker can look at its own role.
        roles: only the consumers of these workers.

    Raises:
        Unavailable: the broker does not answer, or refuses.
    """
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    if stream is None:
        return None
    check_level(stream)
    state, most = stream["state"], stream["config"]["max_bytes"]
    here = kept(stream)
    names = [
        name
        for name, durable in DURABLES.items()
        if durable.stream != PARKED and (not roles or durable.role in roles)
    ]
    return Look(
        facts=state["messages"],
        last_seq=state["last_seq"],
        last_at=datetime.fromisoformat(state["last_ts"]) if state["messages"] else None,
        bytes=state["bytes"],
        limit_bytes=most if most > 0 else None,
        consumers=tuple(await asyncio.gather(*(progress(log, name, here) for name in names))),
    )


def obstacle(seen: Look | None, health: Health, wanted: Wanted) -> str:
    """Why calls do not get decided, in one sentence; empty if they do."""
    if seen is None:
        return f"there is no stream {LEDGER} here. `ayes up` or `ayes setup` creates it."
    if not health.ok:
        return health.why
    for one in seen.consumers:
        if one.is_missing:
            return f"the consumer {one.name} is missing. `ayes setup` creates it."
        if one.paused_until and one.used:
            return (
                f"the consumer {one.name} is paused until {one.paused_until}. "
                "`ayes setup --upgrade` sets it going."
            )
    working = {DURABLES[one.name].role for one in seen.consumers if one.listening} - {
        DURABLES[one.name].role
        for one in seen.consumers
        if not one.listening and not DURABLES[one.name].optional
    }
    if missing := [role for role in wanted.roles or ESSENTIAL if role not in working]:
        return f"no {missing[0]} is at work. Start one: `ayes work {missing[0]}`."
    # A consumer without a worker belongs to another kind of the same role.
    for one in seen.consumers:
        if one.frozen and one.listening:
            left = one.waiting + one.in_hand
            return (
                f"the workers of {one.name} stand still: "
                f"{'1 delivery is' if left == 1 else f'{left:,} deliveries are'} not handled, and "
                f"nothing was done for {one.quiet_s:,.0f} s."
            )
    for one in seen.consumers:
        if one.listening and not DURABLES[one.name].slow and one.waiting > wanted.most_waiting:
            return (
                f"the workers of {one.name} are behind: {one.waiting:,} deliveries wait, and "
                f"{wanted.most_waiting:,} may. They catch up by themselves; if it lasts, look at "
                "`ayes status`."
            )
    return ""
