"""Calls that a visitor has put aside until a time. For nobody else anything changes."""

from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import AwareDatetime

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.kept import keep, kept_for
from ayes.interfaces.api.queries import Named
from ayes.projections import pending
from ayes.projections.kept import Kept
from ayes.projections.pending import Entry
from ayes.projections.snoozes import NOTHING, Snoozed, latest, with_snooze
from ayes.schemas.errors import ApprovalsError, BadInput, NotAllowed
from ayes.schemas.slots import CallRef

router: Final = ApiRouter(tags=["calls"])


class SnoozeState(Struct, frozen=True):
    """Whether the visitor has put a pending call aside."""

    #: When it comes back; None: it is not put aside.
    until: datetime | None
    #: The latest time at which it may come back; None: any, since it has no deadline.
    latest: datetime | None


class PutAside(Struct, frozen=True):
    #: By call, when each comes back.
    calls: dict[str, datetime]


@router.get("/snoozed")
async def put_aside(visit: Reading) -> PutAside:
    """The pending calls that the visitor has put aside."""
    snoozed = await _snoozed(visit)
    every = ((one, snoozed.until(one)) for one in visit.waiting.oldest())
    return PutAside(calls={str(one.ref): until for one, until in every if until is not None})


@router.get("/calls/{workspace}/{thread}/{call}/snooze")
async def snooze(ref: Named, visit: Reading) -> SnoozeState:
    """Until when the visitor has put a pending call aside, and could."""
    entry = await _entry(visit, ref)
    return SnoozeState((await _snoozed(visit)).until(entry), latest(entry, visit.reading.now()))


class NewSnooze(ApiModel):
    """When a call is to come back."""

    model_config = example(until="2026-11-28T09:00:00+01:00")

    #: At the latest when a quarter of the time until its deadline is left.
    until: AwareDatetime


@router.put("/calls/{workspace}/{thread}/{call}/snooze")
async def put(ref: Named, new: NewSnooze, visit: Reading) -> SnoozeState:
    """Put a pending call aside: until a time it is in none of the visitor's lists and numbers. For
    nobody else anything changes. It comes back sooner once more people are asked, or it is handed
    to the visitor.
    """
    entry, now = await _entry(visit, ref), visit.reading.now()
    waiting = {str(one.ref) for one in visit.backend.waiting.oldest()} | {str(ref)}

    def changed(kept: Kept) -> Kept:
        snoozes = with_snooze(
            kept.snoozes, entry, _person(visit), new.until, now=now, waiting=waiting
        )
        return replace(kept, snoozes=snoozes)

    await keep(visit, _person(visit), changed)
    return SnoozeState(new.until, latest(entry, now))


@router.delete("/calls/{workspace}/{thread}/{call}/snooze")
async def wake(ref: Named, visit: Reading) -> SnoozeState:
    """Bring a call back that the visitor has put aside. Repeating it is safe."""
    entry = await _entry(visit, ref)

    def changed(kept: Kept) -> Kept:
        return replace(kept, snoozes=tuple(one for one in kept.snoozes if one.call != str(ref)))

    await keep(visit, _person(visit), changed)
    return SnoozeState(None, latest(entry, visit.reading.now()))


async def snoozed_of(visit: Visit, *, is_needed: bool = False) -> Snoozed:
    """What the visitor has put aside.

    Args:
        is_needed: whether an error is raised; else lists are shown with everything if it cannot be
            read.
    """
    try:
        return await _snoozed(visit)
    except ApprovalsError:
        if is_needed:
            raise
        return NOTHING


async def _snoozed(visit: Visit) -> Snoozed:
    person = visit.visitor.person
    kept = await kept_for(visit, person) if person else None
    return Snoozed(kept.snoozes if kept else (), person, visit.reading.now())


async def _entry(visit: Visit, ref: CallRef) -> Entry:
    """The call as it stands in the list.

    Raises:
        BadInput: it does not wait for people.
    """
    found = pending.entry(await visit.reading.known_call(ref))
    if found is None:
        raise BadInput(f"{ref} does not wait for people, so nobody needs to put it aside.")
    return found


def _person(visit: Visit) -> str:
    person = visit.visitor.person
    if not person:
        raise NotAllowed("people put calls aside, and nobody vouches for the name of this visitor.")
    return person
