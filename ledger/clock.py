"""The one place that reads the clock."""

from collections.abc import Callable
from datetime import UTC, datetime

type Clock = Callable[[], datetime]


def now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)
