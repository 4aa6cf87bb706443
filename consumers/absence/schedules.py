"""Who is on call, by calendars that the settings name: read and recorded by the worker `absence`.

    an event now or within the hour that names people     ──► they are on call for as long
    the same as recorded, which counts for half its time  ──► nothing
    a calendar that cannot be read, an unknown name       ──► nothing; `ayes status` and the log say

What is recorded counts for an hour, so that nobody is asked whom the calendar does not name any
more. A gate reads it when a stage of a question begins (ledger/judging/on_call.py).
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from ayes.consumers.absence.parser import Period
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.on_call import last_read, on_call_to_read
from ayes.schemas import events as e
from ayes.schemas.limits import cited, cut
from ayes.schemas.quorums import ON_CALL
from ayes.schemas.routes import Zone
from ayes.schemas.settings import FreshSecret, named
from ayes.schemas.slots import on_call_slot
from ayes.schemas.toml_files import TomlModel

#: How long a reading counts.
LASTS: Final = timedelta(hours=1)
#: Of the names that are reported, in characters.
_MAX_NAMES: Final = 200


def _is_somewhere(calendar: str) -> str:
    if not calendar.startswith(("https://", "http://", "webcal://", "file:")):
        raise ValueError('it is not a URL, such as "https://…". It can be in "env:…" or "file:…".')
    return calendar


class CalendarPlace(TomlModel):
    """Where a calendar is."""

    #: Its URL; or `file:` and a file that has the calendar or its URL.
    calendar: Annotated[FreshSecret, AfterValidator(_is_somewhere)]
    #: Of days and times without a zone, in a calendar that has none.
    timezone: Zone = "UTC"
    allow_private: bool = False


class Schedule(CalendarPlace):
    """Where it is said who is on call, and of whom it speaks."""

    #: By address of an attendee, or name in a summary: the reviewer.
    people: Annotated[dict[str, Annotated[str, named("reviewer")]], Field(min_length=1)]

    def named_by(self, event: Period) -> set[str]:
        """Whom an event names: those who attend it, or else the one person in its summary."""
        table = {key.casefold(): person for key, person in self.people.items()}
        if event.attendees:
            return {table[one] for one in event.attendees if one in table}
        said = {who for key, who in table.items() if _has(event.summary.casefold(), key)}
        return said if len(said) == 1 else set()

    def unknown(self, events: Iterable[Period]) -> str:
        """A clause about the events that name nobody for sure; empty: each names somebody."""
        said = (", ".join(one.attendees) or one.summary for one in events if not self.named_by(one))
        names = cut(", ".join(map(cited, dict.fromkeys(said))), _MAX_NAMES)
        return f"it names {names}, which is not one person of its table" if names else ""

    def shifts(self, events: Iterable[Period]) -> tuple[e.Shift, ...]:
        """The shifts that these events are."""
        named = {(one.start, one.end, who) for one in events for who in self.named_by(one)}
        return tuple(e.Shift(who, start, end) for start, end, who in sorted(named))


#: The section `oncall` of the settings: by schedule.
type OnCallBySchedule = Annotated[
    dict[Annotated[str, named("schedule")], Schedule], Field(min_length=1)
]


async def record_shifts(
    ledger: Ledger, name: str, shifts: tuple[e.Shift, ...], now: datetime
) -> None:
    """Record who is on call, unless that is recorded and counts for half of its time yet.

    Another worker that is faster takes the slot, and the next look compares with what it recorded.
    """
    facts = await ledger.read(*on_call_to_read([ON_CALL + name], now))
    last = last_read(facts, name, now + LASTS)  # also what another worker has recorded since
    if last is None or last.shifts != shifts or now >= last.until - LASTS / 2:
        day = on_call_slot(name, now, 1).tail[:-1]
        number = 1 + sum(fact.slot.tail[:-1] == day for fact in facts)
        said = e.OnCallRead(shifts, read_at=now, until=now + LASTS)
        await ledger.try_append(on_call_slot(name, now, number), said)


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
