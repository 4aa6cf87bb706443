"""Reading the absences in a calendar of somebody else's making: an iCalendar file (RFC 5545).

Only what is sure is an answer. A calendar that cannot be had, is too large, takes too long or has a
mistake in an absence is unreadable as a whole, since an absence that is overlooked would end.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from ayes.consumers.absence import parser
from ayes.consumers.absence.parser import MAX_ABSENCES, AbsenceQuery, Period
from ayes.consumers.webhooks.endpoints import Endpoint
from ayes.consumers.webhooks.requests import Sender
from ayes.schemas.errors import BadInput
from ayes.schemas.settings import FILE

MAX_BYTES: Final = 10_000_000
#: For the request, and for taking the file apart.
TIMEOUT_S: Final = 20.0
_BEGINNING: Final = "BEGIN:VCALENDAR"


class CalendarUnreadable(Exception):
    """The absences in a calendar are not known. The message is a clause that says why, without the
    address and the contents of the calendar.
    """


#: Reads the absences in a calendar, or raises `CalendarUnreadable`. It is at a URL, in this network
#: only if the last argument says so; or `file:` and a path are given: that file has it, or its URL.
type Read = Callable[[str, AbsenceQuery, bool], Awaitable[tuple[Period, ...]]]


def reader(sender: Sender | None = None) -> Read:
    """What reads calendars.

    Raises:
        BadInput: the packages for it are not installed.
    """
    if find_spec("recurring_ical_events") is None or find_spec("httpx") is None:
        raise BadInput("calendars are not installed. Install them: `pip install ayes[absence]`.")
    return partial(_read, sender or Sender())


async def _read(
    sender: Sender, source: str, asked: AbsenceQuery, allow_private: bool
) -> tuple[Period, ...]:
    text = source
    if source.startswith(FILE):
        try:
            text = await asyncio.to_thread(_contents, Path(source.removeprefix(FILE)))
        except (OSError, UnicodeDecodeError) as problem:
            raise CalendarUnreadable(f"its file cannot be read: {type(problem).__name__}") from None
    if not (text := text.lstrip("\ufeff \r\n")).startswith(_BEGINNING):
        url = text.strip().replace("webcal://", "https://", 1)
        place = Endpoint(
            name="", url=url, secret="", origin="", allow_private=allow_private, timeout_s=TIMEOUT_S
        )
        answer = await sender.get(place, MAX_BYTES)
        if answer.why:
            why = answer.why.replace("--allow-private", "allow_private = true")
            raise CalendarUnreadable(why.replace(url, "its URL"))
        text = answer.text if not answer.is_cut else " " * (MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise CalendarUnreadable(f"it is larger than {MAX_BYTES / 1e6:g} MB")
    return await _parse(text, asked)


def _contents(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        return file.read(MAX_BYTES + 1)


async def _parse(text: str, asked: AbsenceQuery) -> tuple[Period, ...]:
    """The absences in it, by a process with limits of its own."""
    question = msgspec.json.encode(asked).decode()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", parser.__name__, question),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, _ = await child.communicate(text.encode())
    except TimeoutError:
        raise CalendarUnreadable(f"it is not understood within {TIMEOUT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if child.returncode:
        raise CalendarUnreadable("it is not an iCalendar file, or a date or a rule in it is wrong")
    found = msgspec.json.decode(said, type=tuple[Period, ...])
    if len(found) > MAX_ABSENCES:
        days = (asked.end - asked.start).days
        raise CalendarUnreadable(f"it has more than {MAX_ABSENCES} absences within {days} days")
    return found
