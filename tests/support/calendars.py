"""Calendars in the form of a file, as tests write them."""

from datetime import UTC, datetime


def calendar(*events: str, head: str = "") -> str:
    """A calendar of these events, whose lines are separated by blanks between `|`."""
    each = "".join(
        f"BEGIN:VEVENT\nUID:{number}@example.com\nDTSTAMP:20260101T000000Z\n"
        f"{one.replace('|', chr(10))}\nEND:VEVENT\n"
        for number, one in enumerate(events, 1)
    )
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//tests//EN\n{head}{each}END:VCALENDAR\n"
    return text.replace("\n", "\r\n")


def away(start: datetime, end: datetime, summary: str = "Out of office") -> str:
    """The lines of an event."""
    starts, ends = (f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}" for at in (start, end))
    return f"DTSTART:{starts}|DTEND:{ends}|SUMMARY:{summary}"
