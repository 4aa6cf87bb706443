"""The log that the test and its child processes archive."""

from datetime import UTC, datetime, timedelta

from ayes.ledger.log import RawMessage
from ayes.schemas.codec import encode
from bench.logs import mixed

LOG = "20260301090000"
START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
FACTS = 12_000


def facts(count: int) -> list[RawMessage]:
    """A log of made-up conversations."""
    return [
        RawMessage(seq, START + timedelta(milliseconds=seq), slot.subject, encode(event))
        for seq, (slot, event) in enumerate(mixed(count, 20), 1)
    ]
