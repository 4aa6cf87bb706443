"""The absences, or all events, in an iCalendar file (RFC 5545).

`calendars.py` runs this as a program, with limits of time and memory: a rule of ten words can have
more recurrences than any machine has memory. So it imports little.
"""

import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

#: In the time that is looked at.
MAX_ABSENCES: Final = 200
_MAX_MEMORY: Final = 1_000_000_000


class Period(NamedTuple):
    start: datetime
    end: datetime
    #: Who attends and has not declined, by address, and the summary; of absences nothing.
    attendees: tuple[str, ...] = ()
    summary: str = ""


class AbsenceQuery(msgspec.Struct, frozen=True):
    """What is asked about a calendar: the absences that overlap with this time."""

    start: datetime
    end: datetime
    #: In the summaries of absences, as casefolded text. None: every event is asked about.
    words: tuple[str, ...] | None
    #: Of days and times without a zone, in a calendar that has none.
    time_zone: str = "UTC"


def absences(text: str, asked: AbsenceQuery) -> Iterator[Period]:
    """The absences in an iCalendar file, in no order. It may take any time and memory.

    Raises:
        Exception: of any kind: something in it is wrong.
    """
    import recurring_ical_events
    from icalendar import Calendar

    calendar = Calendar.from_ical(text)
    zone = ZoneInfo(str(calendar.get("X-WR-TIMEZONE", asked.time_zone)))
    events = calendar.walk("VEVENT")
    # An exception of a series may be an absence where the others are none, and the reverse.
    series = {one.get("UID") for one in events if _is_absence(one, asked.words)}
    calendar.subcomponents = [
        one for one in calendar.subcomponents if one.name != "VEVENT" or one.get("UID") in series
    ]
    # The library skips a line that it cannot read; a time that it cannot read is an error below.
    if any(name is None for one in events for name, _ in one.errors):
        raise ValueError("an event has a line that cannot be read")
    day = timedelta(days=1)  # a day without a zone is one of another zone's
    between = asked.start - day, asked.end + day
    for one in recurring_ical_events.of(calendar).between(*between):
        if _is_absence(one, asked.words):
            start, end = (_moment(one[name].dt, zone) for name in ("DTSTART", "DTEND"))
            found = Period(start, end, *(_who(one) if asked.words is None else ()))
            if found.start < found.end and found.start < asked.end and asked.start < found.end:
                yield found


def _is_absence(event: Any, words: Sequence[str] | None) -> bool:
    if str(event.get("STATUS", "")).upper() == "CANCELLED":
        return False
    if words is None:
        return True
    summary = str(event.get("SUMMARY", "")).casefold()
    busy = str(event.get("X-MICROSOFT-CDO-BUSYSTATUS", "")).upper()
    return busy == "OOF" or any(word in summary for word in words)


def _who(event: Any) -> tuple[tuple[str, ...], str]:
    found = event.get("ATTENDEE", [])
    attendees = tuple(
        str(one).casefold().removeprefix("mailto:")
        for one in (found if isinstance(found, list) else [found])
        if str(one.params.get("PARTSTAT", "")).upper() != "DECLINED"
    )
    return attendees, str(event.get("SUMMARY", ""))


def _moment(at: date, zone: ZoneInfo) -> datetime:
    if not isinstance(at, datetime):
        at = datetime(at.year, at.month, at.day, tzinfo=zone)
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)


def _answer() -> None:
    """Reads the file at standard input, and writes what was asked."""
    with suppress(ValueError, OSError):  # not on each system
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    asked = msgspec.json.decode(sys.argv[1], type=AbsenceQuery)
    found = absences(sys.stdin.buffer.read().decode(), asked)
    sys.stdout.buffer.write(msgspec.json.encode([*islice(found, MAX_ABSENCES + 1)]))


if __name__ == "__main__":
    _answer()
