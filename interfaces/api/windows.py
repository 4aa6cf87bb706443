"""Reading parts of the log in either direction, without reading all of it.

The broker reads forwards only. So newest first is a walk backwards in windows of sequences, each
read forwards: small ones at first, and larger ones where few facts are on the subjects.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from ayes.interfaces.api.scope import ScopedLog
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.jetstream import JetStream
from ayes.schemas.codec import Fact, fact_of

#: Sequences of the first window; each is at most `_WIDER` times as wide as the one before.
_WIDTH: Final = 1000
_WIDER: Final = 8
#: A window with fewer facts is followed by a wider one; one with more is narrowed.
_FEW: Final = 100
_MANY: Final = 4000


class Window(NamedTuple):
    """The facts of a part of the log, in the order of reading."""

    facts: list[Fact]
    #: How far it was read: later windows begin behind this sequence, or end before it.
    until: int


async def newest_first(
    log: JetStream | ScopedLog, subjects: str, begin: int, end: int
) -> AsyncGenerator[Window]:
    """The facts on these subjects from sequence `begin` to just before `end`."""
    width = _WIDTH
    while begin < end:
        start = max(begin, end - width)
        found = await _read(log, subjects, start, end)
        if len(found) > _MANY and width > _WIDTH:
            width = max(_WIDTH, width // _WIDER)
            continue
        yield Window([_fact(raw) for raw in reversed(found)], start)
        end = start
        if len(found) < _FEW:
            width *= _WIDER


async def oldest_first(
    log: JetStream | ScopedLog, subjects: str, begin: int, end: int
) -> AsyncGenerator[Window]:
    """As `newest_first`, in the order of the log."""
    async with aclosing(log.scan(begin, subjects, before=end)) as pages:
        async for page in pages:
            yield Window([_fact(raw) for raw in page], page[-1].seq)


async def _read(
    log: JetStream | ScopedLog, subjects: str, begin: int, end: int
) -> list[RawMessage]:
    """The messages of one window, or somewhat more than `_MANY`."""
    found: list[RawMessage] = []
    async with aclosing(log.scan(begin, subjects, before=end)) as pages:
        async for page in pages:
            found += page
            if len(found) > _MANY:
                break
    return found


def _fact(raw: RawMessage) -> Fact:
    return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data, raw.first)
