"""Waiting for the end of a stop: deliveries that are handed on until it has ended."""

from datetime import datetime
from typing import Final

from ayes.consumers.effects import HandOn
from ayes.ledger.descriptions import describe_stop
from ayes.ledger.stops import Stop

#: How often a delivery comes again: at first, and later.
_AFTER_S: Final = 2.0
_AGAIN_S: Final = 60.0


def held(stop: Stop, now: datetime) -> HandOn:
    """The step while this stop is in force, at this time on the broker's clock."""
    stopped_s = (now - stop.given.recorded_at).total_seconds()
    left_s = (stop.ends_at - now).total_seconds() if stop.ends_at is not None else _AGAIN_S
    return HandOn(max(0.1, min(max(stopped_s, _AFTER_S), _AGAIN_S, left_s)), describe_stop(stop))
