"""How much there is to do: what the header of every page shows."""

import asyncio
import time
from datetime import datetime
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Struct

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.mine import mine_of
from ayes.interfaces.api.queries import within
from ayes.interfaces.api.snoozes import snoozed_of
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.stops import stops_in
from ayes.projections.call_query import MINE, Seen
from ayes.schemas.slots import ORGANISATION, POLICY, ROOT

router: Final = ApiRouter(tags=["calls"])

#: For how long the slower of the numbers are not read again.
_KEPT_S: Final = 3.0


class HeaderCounts(Struct, frozen=True):
    """Numbers of calls, in one workspace or in all."""

    #: Calls that wait for people, without those that the visitor has put aside.
    waiting: int = 0
    #: Those of them that the visitor may decide.
    mine: int = 0
    #: Calls of which nobody knows whether they took effect.
    doubt: int = 0
    #: The workspaces in which a stop is in force; `_organisation` is one of all workspaces.
    stopped: tuple[str, ...] = ()
    #: When all of these stops will have ended by themselves; None: one lasts until people resume.
    stopped_until: datetime | None = None
    #: The names of all workspaces that have a policy.
    workspaces: tuple[str, ...] = ()


class _Read(NamedTuple):
    at_s: float
    doubt: int
    workspaces: tuple[str, ...]


_read: Final[WeakKeyDictionary[Ledger, dict[str, _Read]]] = WeakKeyDictionary()


@router.get("/counts")
async def counts(visit: Reading, workspace: str = "") -> HeaderCounts:
    """How many calls wait, how many of them the visitor may decide, and how many are in doubt."""
    reading = visit.reading
    mine, snoozed, slower, stops, now = await asyncio.gather(
        mine_of(visit),
        snoozed_of(visit),
        _slower(reading, workspace),
        stops_in(reading, workspace),
        reading.log.clock(),
    )
    seen = Seen(now, mine, snoozed.holds)
    chosen = snoozed.left_out_of(within(workspace))
    # Of the same moment: nobody has more to decide than there is.
    every = visit.waiting.page(0, 0, chosen, seen=seen)
    own = visit.waiting.page(0, 0, chosen & MINE, seen=seen)
    holding = [one for one in stops if one.holds(now)]
    ends = [one.ends_at for one in holding if one.ends_at is not None]
    return HeaderCounts(
        waiting=every.waiting,
        mine=own.waiting,
        doubt=slower.doubt,
        stopped=tuple(sorted({one.ref.workspace for one in holding})),
        stopped_until=max(ends) if ends and len(ends) == len(holding) else None,
        workspaces=slower.workspaces,
    )


def forget(reading: Ledger) -> None:
    """Read the slower of the numbers again: somebody has just changed one."""
    _read.pop(reading, None)


async def _slower(reading: Ledger, workspace: str) -> _Read:
    now, kept = time.monotonic(), _read.setdefault(reading, {})
    if workspace not in kept or now - kept[workspace].at_s >= _KEPT_S:
        policies = await reading.read(f"{ROOT}.*.{POLICY}.*")
        names = {one.slot.workspace for one in policies} - {"", ORGANISATION}
        doubts = await in_doubt(reading, workspace)
        kept[workspace] = _Read(now, len(doubts), tuple(sorted(names)))
    return kept[workspace]
