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
