"""Who is on call when a stage begins, by what the worker `absence` has recorded of calendars.

The fact that begins the stage has their names, so whoever counts votes later asks nothing else
(docs/decisions/0073). What is not sure asks nobody: a stage that has nobody else is over at once.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from ayes.ledger.call import Call
from ayes.ledger.objections import VoteFlaw, objection_to_voter
from ayes.ledger.people import LONGEST
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.quorums import ON_CALL
from ayes.schemas.slots import ONCALL, REMOVALS, on_call_slot

_BARRED: Final[dict[VoteFlaw, str]] = {
    "excluded": "asked for the call, or is behind its agent",
    "removed": "was removed",
    "elsewhere": "is not of this workspace",
}


def schedules(voters: Iterable[str]) -> Iterator[str]:
    """The schedules among these voters."""
    return (one.removeprefix(ON_CALL) for one in voters if one.startswith(ON_CALL))


def on_call_to_read(voters: Iterable[str], at: datetime) -> tuple[str, ...]:
    """The wildcards to read for who of these voters is on call at that time, and may vote."""
    days = (at, at - timedelta(days=1))
    slots = (on_call_slot(one, day, 1) for one in schedules(voters) for day in days)
    return (*(one.subject.removesuffix("1") + "*" for one in slots), REMOVALS)


def last_read(facts: Iterable[Fact], schedule: str, at: datetime) -> e.OnCallRead | None:
    """What was recorded last of a schedule by then."""
    of = [one for one in facts if one.slot.tail[:2] == (ONCALL, schedule) and one.recorded_at <= at]
    return of[-1].event if of and isinstance(of[-1].event, e.OnCallRead) else None


def begun(call: Call, stage: e.Stage, facts: Iterable[Fact], now: datetime) -> e.Escalated:
    """The beginning of a stage, with those who are on call now by name."""
    facts = tuple(facts)
    on_call = tuple(_on_call(call, one, facts, now) for one in schedules(stage.voters))
    named = (one for one in stage.voters if not one.startswith(ON_CALL))
    voters = tuple(dict.fromkeys((*named, *(name for one in on_call for name in one.people))))
    return e.Escalated(voters, stage.expires_in_s if voters else 0.0, on_call)


def unsure(read: e.OnCallRead | None, now: datetime) -> str:
    """Why what was recorded last of a schedule says nothing about now; empty if it does."""
    if read is None:
        return "nothing is recorded of its calendar"
    return "that is too long ago" if now >= min(read.until, read.read_at + LONGEST) else ""


def _on_call(call: Call, schedule: str, facts: Iterable[Fact], now: datetime) -> e.OnCall:
    read = last_read(facts, schedule, now)
    problem = unsure(read, now)
    if read is None or problem:
        return e.OnCall(schedule, read_at=read.read_at if read else None, problem=problem)
    there = dict.fromkeys(one.person for one in read.shifts if one.starts_at <= now < one.ends_at)
    barred = {one: why for one in there if (why := _why_barred(call, one, now))}
    return e.OnCall(
        schedule,
        tuple(one for one in there if one not in barred),
        read.read_at,
        "; ".join(f"{one} {why}" for one, why in barred.items()),
    )


def _why_barred(call: Call, name: str, now: datetime) -> str:
    """Why no vote of this person's counts, whoever is asked; empty if it may."""
    found = objection_to_voter(call, e.Voted(verdict="approve", digest=""), name, now)
    return _BARRED.get(found.flaw, "") if found is not None else ""
