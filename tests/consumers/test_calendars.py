"""The absences in a calendar: which events they are, when, and what is not a calendar.

From real files, and from a real HTTP server.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from calendars import calendar
from receivers import Receiver, receiving

from ayes.consumers.absence import calendars
from ayes.consumers.absence.calendars import CalendarUnreadable, reader
from ayes.consumers.absence.parser import AbsenceQuery, absences
from ayes.consumers.webhooks.requests import Sender

START = datetime(2026, 3, 20, tzinfo=UTC)
ASKED = AbsenceQuery(START, START + timedelta(days=30), ("out of office", "urlaub"))
OOF = "SUMMARY:Out of office"
WINDOWS = "W. Europe Standard Time"
#: As Outlook writes it: a zone by the name of Windows, with its rules beside it.
OUTLOOK = """\
BEGIN:VTIMEZONE
TZID:W. Europe Standard Time
BEGIN:STANDARD
DTSTART:16010101T030000
TZOFFSETFROM:+0200
TZOFFSETTO:+0100
RRULE:FREQ=YEARLY;BYDAY=-1SU;BYMONTH=10
END:STANDARD
BEGIN:DAYLIGHT
DTSTART:16010101T020000
TZOFFSETFROM:+0100
TZOFFSETTO:+0200
RRULE:FREQ=YEARLY;BYDAY=-1SU;BYMONTH=3
END:DAYLIGHT
END:VTIMEZONE
"""


def times(text: str, asked: AbsenceQuery = ASKED) -> list[str]:
    """The absences of a file as `day hour:minute, day hour:minute` of UTC, in order."""
    return [f"{one.start:%d %H:%M}, {one.end:%d %H:%M}" for one in sorted(absences(text, asked))]


FRIDAY = "DTSTART;TZID=Europe/Berlin:20260102T120000"
FRIDAYS = [
    *("20 11:00, 20 17:00", "27 11:00, 27 17:00"),
    *("10 10:00, 10 16:00", "17 10:00, 17 16:00"),
]
ONE = "DTSTART:20260323T090000Z|DTEND:20260323T170000Z|"
FOUND = ["23 09:00, 23 17:00"]


@pytest.mark.parametrize(
    ("event", "is_absence"),
    [
        (f"{ONE}{OOF}", True),
        (f"{ONE}SUMMARY:Ana: OUT OF OFFICE (back on Tuesday)", True),
        (f"{ONE}SUMMARY:Urlaub", True),
        (f"{ONE}SUMMARY:Kur|X-MICROSOFT-CDO-BUSYSTATUS:OOF", True),
        (f"{ONE}X-MICROSOFT-CDO-BUSYSTATUS:OOF", True),
        (f"{ONE}SUMMARY:Meeting about the office|X-MICROSOFT-CDO-BUSYSTATUS:BUSY", False),
        (f"{ONE}DESCRIPTION:out of office", False),
        (f"{ONE}{OOF}|STATUS:CANCELLED", False),
        (ONE.rstrip("|"), False),
    ],
)
def test_which_events_are_absences(event, is_absence):
    """By what the calendar itself says, or by a word of its summary."""
    assert times(calendar(event)) == (FOUND if is_absence else [])


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ("DTSTART:20260323T090000Z|DURATION:PT8H", FOUND),
        ("DTSTART:20260323T090000Z|DTEND:20260323T090000Z", []),
        # Whole days, of the zone that the settings name; the last one is not part of it.
        ("DTSTART;VALUE=DATE:20260323|DTEND;VALUE=DATE:20260325", ["22 23:00, 24 23:00"]),
        ("DTSTART;VALUE=DATE:20260323", ["22 23:00, 23 23:00"]),
        # The clocks change on the 29th.
        ("DTSTART;VALUE=DATE:20260328|DTEND;VALUE=DATE:20260331", ["27 23:00, 30 22:00"]),
        ("DTSTART:20260323T090000|DTEND:20260323T170000", ["23 08:00, 23 16:00"]),
        (
            f"DTSTART;TZID={WINDOWS}:20260327T080000|DTEND;TZID={WINDOWS}:20260330T080000",
            ["27 07:00, 30 06:00"],
        ),
        (
            "DTSTART;TZID=America/New_York:20260323T090000|DTEND;TZID=America/New_York:20260323T170000",
            ["23 13:00, 23 21:00"],
        ),
        # It began before, or ends after the time that is looked at: all of it.
        ("DTSTART:20260301T090000Z|DTEND:20260323T170000Z", ["01 09:00, 23 17:00"]),
        ("DTSTART:20260323T090000Z|DTEND:20270323T170000Z", ["23 09:00, 23 17:00"]),
        ("DTSTART:20260319T090000Z|DTEND:20260320T000000Z", []),
        ("DTSTART:20260419T000000Z|DTEND:20260420T000000Z", []),
        # Each Friday, at the same time of the clock on the wall; not on Good Friday.
        (
            f"{FRIDAY}|DURATION:PT6H|RRULE:FREQ=WEEKLY|EXDATE;TZID=Europe/Berlin:20260403T120000",
            FRIDAYS,
        ),
        (
            "DTSTART;VALUE=DATE:20260320|RDATE;VALUE=DATE:20260401",
            ["19 23:00, 20 23:00", "31 22:00, 01 22:00"],
        ),
    ],
)
def test_when_they_are(event, found):
    """Days, zones, the change of the clocks, and recurring events."""
    asked = AbsenceQuery(ASKED.start, ASKED.end, ASKED.words, "Europe/Berlin")
    got = times(calendar(f"{event}|{OOF}", head=OUTLOOK), asked)
    assert got == found


@pytest.mark.parametrize(
    "event",
    [
        f"{ONE}EXDATE:garbage|RRULE:FREQ=DAILY",
        f"{ONE}RDATE:garbage",
        f"{ONE}RECURRENCE-ID:garbage",
        f"{ONE}RRULE:FREQ=DAILY;COUNT=x",
        "DTSTART:20260323T090000Z|DTEND:tomorrow|",
        "DTSTART:20260323T090000Z|DURATION:long|",
    ],
)
def test_a_time_that_cannot_be_read_is_a_mistake(event):
    """Of an absence; another event may have one."""
    with pytest.raises(Exception, match=r"garbage|broken|parameter"):
        times(calendar(f"{event}|{OOF}"))
    assert times(calendar(f"{ONE}{OOF}", f"{event}|SUMMARY:Lunch")) == FOUND


@pytest.mark.parametrize(
    ("day", "zone", "found"),
    [
        ("20260319", "America/Los_Angeles", ["19 07:00, 20 07:00"]),
        ("20260419", "Asia/Tokyo", ["18 15:00, 19 15:00"]),
        ("20260319", "UTC", []),
        ("20260419", "UTC", []),
    ],
)
def test_a_day_at_an_end_of_the_time_is_one_of_its_zone(day, zone, found):
    """Which may overlap with the time that is looked at where the same day of UTC does not."""
    asked = AbsenceQuery(ASKED.start, ASKED.end, ASKED.words, zone)
    assert times(calendar(f"DTSTART;VALUE=DATE:{day}|{OOF}"), asked) == found


def test_the_calendars_own_zone_counts_first():
    """As Google writes it for days and times without a zone."""
    text = calendar(f"DTSTART;VALUE=DATE:20260323|{OOF}", head="X-WR-TIMEZONE:America/New_York\n")
    assert times(text) == ["23 04:00, 24 04:00"]


def test_an_exception_of_a_series_is_what_it_says_itself():
    """One is moved, one is no absence any more, and one of another series has become one."""
    series = f"DTSTART:20260323T090000Z|DTEND:20260323T100000Z|RRULE:FREQ=DAILY;COUNT=4|{OOF}"
    moved = f"RECURRENCE-ID:20260324T090000Z|DTSTART:20260324T150000Z|DTEND:20260324T160000Z|{OOF}"
    here = "RECURRENCE-ID:20260325T090000Z|DTSTART:20260325T090000Z|DTEND:20260325T100000Z"
    text = calendar(series, moved, f"{here}|SUMMARY:At my desk").replace("2@", "1@")
    text = text.replace("3@", "1@")
    assert times(text) == ["23 09:00, 23 10:00", "24 15:00, 24 16:00", "26 09:00, 26 10:00"]
    text = calendar(series.replace(OOF, "SUMMARY:Standup"), moved).replace("2@", "1@")
    assert times(text) == ["24 15:00, 24 16:00"]


# --------------------------------------------------------------------------------- where it is from


@pytest.fixture
async def server():
    async with receiving() as receiver:
        receiver.body = calendar(f"{ONE}{OOF}").encode()
        receiver.answer = lambda _request: (200, {"content-type": "text/calendar"})
        yield receiver


async def read(source: str, sender: Sender | None = None, *, allow_private: bool = True):
    found = await reader(sender)(source, ASKED, allow_private)
    return [f"{one.start:%d %H:%M}, {one.end:%d %H:%M}" for one in found]


async def why(source: str, *args, **more) -> str:
    with pytest.raises(CalendarUnreadable) as problem:
        await read(source, *args, **more)
    return str(problem.value)


async def test_from_a_server_and_from_a_file(server: Receiver, tmp_path: Path):
    """The file has the calendar, or its URL; it is read anew each time."""
    assert await read(server.url) == FOUND
    file = tmp_path / "ana"
    file.write_text(server.url + "\n")
    assert await read(f"file:{file}") == FOUND
    file.write_text("\ufeff" + calendar(f"{ONE}{OOF}"), newline="")
    assert await read(f"file:{file}") == FOUND
    assert {one.method for one in server.requests} == {"GET"}


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (404, {}, "it answered 404"),
        (500, {}, "it answered 500"),
        (302, {"location": "http://10.0.0.1/ana.ics"}, "redirects are not followed"),
    ],
)
async def test_only_a_calendar_that_is_given_is_one(server: Receiver, status, headers, says):
    """Whatever the body of another answer is."""
    server.answer = lambda _request: (status, headers)
    assert says in await why(server.url)


async def test_it_is_not_read_from_where_nothing_may_be_read(server: Receiver):
    """This machine and its network only where the settings say so; others with TLS only."""
    said = await why(server.url, allow_private=False)
    assert "127.0.0.1 is at a private address" in said
    assert "Allow it with allow_private = true." in said
    assert server.connections == 0

    async def outside(host: str, port: int) -> list[str]:
        return ["1.1.1.1"]

    assert "needs https://" in await why("http://x.example/c", Sender(resolve=outside))


async def test_what_is_no_calendar_is_unreadable(server: Receiver, tmp_path: Path):
    """Empty, cut, another format, a wrong date: nothing in it counts, and no message cites it."""
    file = tmp_path / "ana.ics"
    whole = calendar(f"{ONE}{OOF}", f"{ONE}SUMMARY:Secret operation")
    for text in (
        *("", "<html>secret</html>", "BEGIN:VCALENDAR", whole[:-30], whole[: len(whole) // 2]),
        calendar(f"DTSTART:yesterday|{OOF}"),
        calendar(f"{ONE}RRULE:FREQ=SOMETIMES|{OOF}"),
        calendar(f"{ONE}secret line without a colon|{OOF}"),
        calendar(f"{ONE}{OOF}", head="X-WR-TIMEZONE:secret/zone\n"),
    ):
        server.body = text.encode()
        said = await why(server.url)
        assert said == "it is not an iCalendar file, or a date or a rule in it is wrong", text
        file.write_text(text)
        assert "secret" not in await why(f"file:{file}")
    assert await why(f"file:{tmp_path}/none") == "its file cannot be read: FileNotFoundError"
    file.write_bytes(b"BEGIN:VCALENDAR\xff")
    assert await why(f"file:{file}") == "its file cannot be read: UnicodeDecodeError"


async def test_what_is_too_much_is_unreadable(server: Receiver, tmp_path: Path, monkeypatch):
    """Bytes, time, memory, absences; whether a server sends them or a file has them."""
    text = calendar(f"{ONE}RRULE:FREQ=HOURLY|{OOF}")
    server.body = text.encode()
    assert await why(server.url) == "it has more than 200 absences within 30 days"
    monkeypatch.setattr(calendars, "MAX_BYTES", 2000)
    server.body = text.encode() + b" " * 2000
    file = tmp_path / "ana.ics"
    file.write_bytes(server.body)
    for source in (server.url, f"file:{file}"):
        assert await why(source) == "it is larger than 0.002 MB"
    monkeypatch.setattr(calendars, "TIMEOUT_S", 0.3)
    server.answer = lambda _request: None
    assert await why(server.url) == "no answer within 0.3 s"
    # More recurrences than there is time for.
    file.write_text(calendar(*[f"DTSTART:00010101T000000Z|RRULE:FREQ=SECONDLY|{OOF}"] * 5))
    assert await why(f"file:{file}") == "it is not understood within 0.3 s"
    assert not _children()


def _children() -> list[str]:
    """The processes of this one that are left."""
    return [
        one.name
        for one in Path(f"/proc/{os.getpid()}/task/{os.getpid()}").glob("children")
        if b"absence.parser" in b"".join(_command(pid) for pid in one.read_text().split())
    ]


def _command(pid: str) -> bytes:
    place = Path(f"/proc/{pid}/cmdline")
    return place.read_bytes() if place.exists() else b""
