"""The facts about a call as a page lists them: who, what, and how long after the one before."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from ayes.projections.display.texts import ShownText, text_of
from ayes.projections.views.fact import RecordedFact
from ayes.schemas.content import words
from ayes.schemas.events import Content

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


class Row(NamedTuple):
    seq: int
    recorded_at: datetime
    #: The kind of the event, such as `Voted`.
    kind: str
    by: str
    sentence: ShownText
    #: Since the fact before it, such as `4 min 10 s`; empty for the first.
    after: str
    #: Why it does not count; empty if it does.
    void: str
    #: The event as JSON.
    raw: ShownText


def timeline(facts: Sequence[RecordedFact]) -> tuple[Row, ...]:
    """A row for each fact, in the order of the log."""
    times = [fact.recorded_at for fact in facts]
    after = ["", *(duration((now - then).total_seconds()) for then, now in pairwise(times))]
    return tuple(_row(*pair) for pair in zip(facts, after, strict=False))


def _row(fact: RecordedFact, after: str) -> Row:
    event = fact.event or {}
    raw = fact.raw or msgspec.json.encode(fact.event).decode()
    return Row(
        seq=fact.seq,
        recorded_at=fact.recorded_at,
        kind=str(event.get("type", "?")),
        by=fact.by,
        sentence=text_of(fact.sentence),
        after=after,
        void=fact.void or fact.problem,
        raw=text_of(raw),
    )


class FinalText(NamedTuple):
    """What the model reads about a call that has ended."""

    label: str
    text: ShownText


#: By the kind of the fact: what it says, and where.
_RESULTS: Final = {
    "ToolReturned": ("Output", "output"),
    "ToolFailed": ("Error", "error"),
    "ToolRefused": ("Told to the model", "text"),
    "Answered": ("Answer", "answer"),
    "InDoubt": ("In doubt", "text"),
    "Reconciled": ("Found out", "output"),
}


def result_of(facts: Sequence[RecordedFact]) -> FinalText | None:
    """The result; None if there is none yet. Late ones are in the timeline only."""
    for fact in reversed(facts):
        event = fact.event or {}
        label, name = _RESULTS.get(str(event.get("type")), ("", ""))
        if label and not fact.void and ".late." not in fact.subject:
            return FinalText(label, text_of(_words(event.get(name) or ""), name))
    return None


def _words(value: object) -> str:
    """A field of an event for readers of text: a text, or parts as JSON has them."""
    return words(msgspec.convert(value, Content))


def duration(seconds: float) -> str:
    """The two largest units of a duration, as in `4 min 10 s`; under a second in milliseconds."""
    if seconds < 1:
        return f"{max(0, seconds) * 1000:.0f} ms"
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)
