"""The worker `absence`: lets somebody else vote for people whose calendar says that they are away,
and records who is on call (schedules.py).

    an absence in the calendar          ──► a delegation, which ends with it
    not there any more, shorter, longer ──► that one ends, and another one begins
    a calendar that cannot be read      ──► nothing; `ayes status` and the log name it

The settings alone say whose calendars these are and who votes meanwhile, the first of the named who
is there. The facts are in slots of their own, so that the record says that the calendar, and not
the giver, gave the vote away (docs/decisions/0069).

Every worker derives the same names of delegations from a calendar, and compares with the log, so
any number of them may run, and a crash leaves nothing that the next look does not complete. A
delegation that its giver has ended stays ended for as long as the calendar says the same.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Annotated, Final, NamedTuple, Never

from pydantic import AfterValidator, BeforeValidator, Field

from ayes.consumers.absence.calendars import CalendarUnreadable, Read, reader
from ayes.consumers.absence.parser import AbsenceQuery, Period
from ayes.consumers.absence.schedules import (
    LASTS,
    CalendarPlace,
    Schedule,
    record_shifts,
)
from ayes.consumers.effects import Append, Effect
from ayes.consumers.notices.notifier import note_failing
from ayes.ledger.clients.services import CALENDAR, Ledger
from ayes.ledger.judging.grants import Delegation, delegations_of
from ayes.ledger.log import Delivered
from ayes.ledger.people import People, people_of
from ayes.schemas import events as e
from ayes.schemas.digest import text_digest
from ayes.schemas.logs import get_logger
from ayes.schemas.people import plain
from ayes.schemas.policy import ToolPatterns
from ayes.schemas.settings import named
from ayes.schemas.slots import DELEGATION, REMOVALS, ROOT, DelegationRef
from ayes.schemas.toml_files import checked_token, mistake

_log: Final = get_logger("ayes.consumers.absence.worker")

#: The pause between two looks at the calendars.
EVERY_S: Final = 300.0
#: Calendars that are read at the same time.
AT_ONCE: Final = 4
#: How far ahead absences are recorded. So a calendar may be away when an absence begins.
AHEAD: Final = timedelta(days=30)
_DELEGATIONS: Final = f"{ROOT}.*.{DELEGATION}.>"
#: The reasons in the facts. What the calendar says is nobody else's business.
_AWAY: Final = "Away, by the calendar."
_NOT_AWAY: Final = "Not away any more, by the calendar."


class Absence(CalendarPlace):
    """Where a person's absences are, and who votes for them meanwhile."""

    #: The first of them who is not absent votes.
    to: Annotated[
        tuple[Annotated[str, named("reviewer")], ...],
        BeforeValidator(lambda to: [to] if isinstance(to, str) else to),
        Field(strict=False, min_length=1),
    ]
    #: An event is an absence if its summary contains one of these, in any case; or if the calendar
    #: itself says "out of office".
    words: Annotated[tuple[str, ...], Field(strict=False)] = ("out of office",)
    #: Where they vote, and on which tools, as with a delegation by hand.
    workspaces: Annotated[
        tuple[Annotated[str, named("workspace")], ...], Field(strict=False, min_length=1)
    ] = ("default",)
    tools: ToolPatterns = ("*",)


def _are_of_others(people: dict[str, Absence]) -> dict[str, Absence]:
    for name, absence in people.items():
        checked_token("reviewer", name)
        if plain(name) in map(plain, absence.to):
            raise mistake(f"{name} is away then. Name somebody else.", name, "to")
    return people


#: The section `absence` of the settings: by person.
type AbsenceByPerson = Annotated[
    dict[str, Absence], Field(min_length=1), AfterValidator(_are_of_others)
]


class _Wanted(NamedTuple):
    """A delegation that the calendar gives."""

    workspace: str
    to: str
    start: datetime
    end: datetime
    tools: tuple[str, ...]

    def from_then_on(self, at: datetime) -> "_Wanted":
        """Equal for two that differ only in the past."""
        return self._replace(start=max(self.start, at))


class Absences:
    """No delivery ever comes: it looks at the calendars from time to time (`keep`).

    Raises:
        BadInput: the packages for it are not installed.
    """

    durables: tuple[str, ...] = ()
    replaces = False

    def __init__(
        self,
        people: Mapping[str, Absence],
        read: Read | None = None,
        schedules: Mapping[str, Schedule] | None = None,
    ) -> None:
        self._people = people
        self._schedules = schedules or {}
        self._read = read or reader()
        self._room = asyncio.Semaphore(AT_ONCE)
        #: By calendar, what was last noted of it; empty: it can be read.
        self._noted: dict[str, str] = {}

    async def load(self, ledger: Ledger, handed: Delivered) -> None: ...

    def decide(self, seen: None, handed: Delivered) -> Sequence[Effect[Never]]:
        return ()

    async def execute(self, ledger: Ledger, work: Never) -> Append | None: ...

    async def keep(self, ledger: Ledger) -> None:
        while True:
            await self.look(ledger)
            await asyncio.sleep(EVERY_S)

    async def look(self, ledger: Ledger) -> None:
        """Read every calendar, and record what has changed."""
        now = await ledger.log.clock()
        await asyncio.gather(*(self._look_on_call(ledger, one, now) for one in self._schedules))
        read = await asyncio.gather(*(self._absences(ledger, name, now) for name in self._people))
        found = dict(zip(self._people, read, strict=True))
        facts = await ledger.read(_DELEGATIONS, REMOVALS)
        every, people = delegations_of(facts), people_of(facts)
        given = [one for one in every if one.by_calendar and one.delegated.ends_at > now]
        away = {name: periods or () for name, periods in found.items()}
        for one in given:  # also of somebody whose calendar cannot be read
            if found.get(one.ref.giver, ()) is None and one.ended is None:
                period = Period(one.delegated.starts_at, one.delegated.ends_at)
                away[one.ref.giver] = (*away[one.ref.giver], period)
        for name, periods in found.items():
            if periods is not None and not people.is_removed(name):
                wanted = self._wanted(name, periods, away, people, now)
                recorded = [one for one in given if one.ref.giver == name]
                await _record(ledger, name, set(wanted), recorded, now)

    async def _absences(
        self, ledger: Ledger, name: str, now: datetime
    ) -> tuple[Period, ...] | None:
        """The person's absences; None if they are not known."""
        absence = self._people[name]
        words = tuple(one.casefold() for one in absence.words)
        asked = AbsenceQuery(now, now + AHEAD, words, absence.timezone)
        return await self._events(ledger, name, absence, asked)

    async def _look_on_call(self, ledger: Ledger, name: str, now: datetime) -> None:
        schedule = self._schedules[name]
        asked = AbsenceQuery(now, now + LASTS, None, schedule.timezone)
        found = await self._events(ledger, f"oncall.{name}", schedule, asked)
        if found is not None:
            await record_shifts(ledger, name, schedule.shifts(found), now)

    async def _events(
        self, ledger: Ledger, key: str, place: Absence | Schedule, asked: AbsenceQuery
    ) -> tuple[Period, ...] | None:
        """What was asked about a calendar; None if it is not known."""
        why, found = "", None
        try:
            async with self._room:
                found = await self._read(place.calendar, asked, place.allow_private)
                why = place.unknown(found) if isinstance(place, Schedule) else ""
        except CalendarUnreadable as problem:
            why = str(problem)
        if why:
            what = "cannot be read" if found is None else "names people who are not known"
            _log.warning(f"a calendar {what}", calendar=key, problem=why)
        if self._noted.get(key) != why:
            await note_failing(ledger, CALENDAR + key, why)
            self._noted[key] = why
        return found

    def _wanted(
        self,
        name: str,
        periods: Sequence[Period],
        away: Mapping[str, Sequence[Period]],
        people: People,
        now: datetime,
    ) -> Iterator[_Wanted]:
        """The delegations that should be in force, now or later."""
        absence = self._people[name]
        for workspace in absence.workspaces:
            able = [
                one
                for one in absence.to
                if not people.is_removed(one)
                and workspace in (people.workspaces(one) or (workspace,))
            ]
            for period in periods:
                for to, part in in_their_place(period, able, away):
                    if part.end > now:
                        yield _Wanted(workspace, to, part.start, part.end, absence.tools)


def in_their_place(
    absence: Period, to: Sequence[str], away: Mapping[str, Sequence[Period]]
) -> Iterator[tuple[str, Period]]:
    """Who votes during an absence, and when: the first of these who is not away as well."""
    cuts = {at for one in to for period in away.get(one, ()) for at in period[:2]}
    times = sorted({*absence[:2], *(at for at in cuts if absence.start < at < absence.end)})

    def is_there(name: str, part: tuple[datetime, datetime]) -> bool:
        return not any(one.start < part[1] and part[0] < one.end for one in away.get(name, ()))

    def first(part: tuple[datetime, datetime]) -> str:
        return next((one for one in to if is_there(one, part)), "")

    for name, group in groupby(pairwise(times), first):
        parts = [*group]
        if name:
            yield name, Period(parts[0][0], parts[-1][1])


async def _record(
    ledger: Ledger, name: str, wanted: set[_Wanted], recorded: Sequence[Delegation], now: datetime
) -> None:
    """Record the delegations that are missing, then end those that are not wanted any more."""
    missing = {one.from_then_on(now): one for one in sorted(wanted)}
    too_many = list[DelegationRef]()
    for given in recorded:
        ref, said, ended = given.ref, given.delegated, given.ended
        if ended is None or ended.slot != ref.absent_ended:
            one = _Wanted(ref.workspace, said.to, said.starts_at, said.ends_at, said.tools)
            if missing.pop(one.from_then_on(now), None) is None and ended is None:
                too_many.append(ref)
    for one in missing.values():
        stem = f"absent-{text_digest(str(one))[:12]}"
        before = [given for given in recorded if given.ref.name.startswith(stem)]
        ref = DelegationRef(one.workspace, name, f"{stem}-{len(before) + 1}")
        said = e.Delegated(
            to=one.to, starts_at=one.start, ends_at=one.end, tools=one.tools, reason=_AWAY
        )
        await ledger.try_append(ref.absent, said)
        _log.info("an absence is recorded", delegation=str(ref), to=one.to)
    for ref in too_many:
        await ledger.try_append(ref.absent_ended, e.DelegationEnded(reason=_NOT_AWAY))
        _log.info("an absence is over", delegation=str(ref))
