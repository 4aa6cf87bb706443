"""Durations and times in options: `90s`, `15m`, `8h`, `7d`, and ISO times.

A number alone is seconds, and a time without an offset is UTC; anything else is refused.
"""

import re
from datetime import UTC, datetime
from typing import Final

from ayes.schemas.errors import BadInput
from ayes.schemas.limits import MAX_GRANT_S

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Of a sequence number that the broker can count to.
_MAX_DIGITS: Final = 18
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", re.ASCII)


def seconds(text: str) -> float | None:
    """The seconds of a duration with its unit, such as `30s` or `24h`; None if it is not one."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def parse_duration(option: str, text: str, *, least: float = 0, most: float | None = None) -> float:
    """A duration in seconds; `option` is named in errors.

    Raises:
        BadInput: it is not a duration, or not within the limits.
    """
    duration = seconds(text if text[-1:] in _UNITS else f"{text}s")
    if duration is None:
        raise BadInput(
            f"{option} {text!r} is not a valid duration. Write a number and its unit, as in 90s, "
            "15m, 8h or 7d; a number alone is seconds."
        )
    if duration < least:
        raise BadInput(f"{option} {text!r} is too short: {least:g}s at least.")
    if most is not None and duration > most:
        raise BadInput(f"{option} {text!r} is too long: {most / _UNITS['d']:g}d at most.")
    return duration


def lasting_s(option: str, text: str) -> float:
    """How long a grant or a stop is to last, in seconds. It needs a unit: nobody means 8 seconds
    by 8.

    Raises:
        BadInput: it has none, or is not a duration within the limits.
    """
    if seconds(f"{text}s") is not None:
        raise BadInput(f"{option} {text} has no unit. Write {text}h, or another of s, m and d.")
    return parse_duration(option, text, least=1, most=MAX_GRANT_S)


def parse_time(option: str, text: str) -> datetime:
    """A time, in UTC unless it names another offset; `option` is named in errors.

    Raises:
        BadInput: it is not a time.
    """
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{option} {text!r} is not a valid time. Write it as in 2026-11-21T08:50, in UTC, or "
            "with an offset as in 2026-11-21T08:50+01:00."
        ) from None


def parse_position(option: str, text: str) -> int | datetime:
    """A place in the log: a sequence number or a time; `option` is named in errors.

    Raises:
        BadInput: it is neither.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    try:
        return parse_time(option, text)
    except BadInput:
        raise BadInput(
            f"{option} {text!r} is neither a sequence number nor an ISO time such as "
            "2026-11-21T08:50:00."
        ) from None
