"""Times after which something ends. Seconds come from facts that anybody may have recorded."""

from datetime import datetime, timedelta


def after(at: datetime, seconds: float | None) -> datetime | None:
    """So many seconds later; None: never, or later than the last date that Python knows."""
    try:
        return None if seconds is None else at + timedelta(seconds=seconds)
    except OverflowError:
        return None


def earliest(*times: datetime | None) -> datetime | None:
    """The first of these times; None is never."""
    return min(filter(None, times), default=None)


def duration(seconds: float) -> str:
    """A time in words, in the largest unit that divides it: `15 minutes`."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"
