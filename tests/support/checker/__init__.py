"""A checker apart from the code it checks: reads a finished log and a journal, and judges both.

    PYTHONPATH=tests/support python -m checker LOG JOURNAL

It decodes facts by itself and applies its own small rules; it shares nothing with
`ayes.ledger.lifecycle` or the projections. Both files are JSON lines. The log is a dump in the
order of the stream:

    {"seq": 1, "subject": "ledger.shop.t1.said.m1", "time": "2026-03-01T09:00:00+00:00",
     "headers": {}, "data": "<the payload as text>"}

The journal says what programs were told and what tools did. `process` is the name that the program
has as the author of its facts, another one after each start. Times are ISO 8601, of a clock that
agrees with the broker's; `at` is when the program had the answer, `began` when it asked.

    {"kind": "acknowledged", "at", "process", "slot": subject, "id": event id, "seq",
     "sha256": of the payload, or missing}
    {"kind": "told", "at", "began", "process", "did": "request", "call": "shop/t1/c1",
     "status": "pending", "decision": id of the decision's event or ""}
    {"kind": "refused", "at", "began", "process", "did": "vote", "call", "error": "NotOpen"}
    {"kind": "tool", "at", "process", "did": "started" | "ended", "call", "tool", "arguments": {}}
    {"kind": "model", "at", "thread": "shop/t1", "turn": 2, "shown": {"1-0": text of the outcome}}
    {"kind": "died", "at", "process"}                     somebody killed it
    {"kind": "ended", "at", "process", "why"}             it ended by itself, which is a fault
    {"kind": "end", "at", "queue": ["shop.t1.c1"], "parked": [text]}

The last line is written when everything is well again and nothing moves any more. Without it
nothing is said about calls that are not at their end.

A violation names the invariant of `I1` to `I14` that it breaks:

    I1   no result without a start on an approval of the same bytes
    I2   a decision is about a call and its bytes, and the same for everybody
    I3   the question to people is frozen; later policies only tighten it
    I4   no approval on uncertainty: unknown tools, malformed arguments, too few votes
    I5   expired, denied, withdrawn and superseded are different, and each has its cause
    I6   an approval is used once; a slot has one fact
    I7   a claim whose runner died is in doubt, unless its tool may run again
    I8   what is acknowledged stays; nobody is told an older state than before
    I9   a late result is not shown
    I10  a turn begins when all calls of the turn before have their end
    I11  what is told of a call is what its facts make
    I12  facts stay byte for byte, those of newer programs too
    I13  the queue is what the facts make, whatever came twice or late
    I14  while a stop covers it nothing is approved and no model asked; those who may end it do
"""

from collections.abc import Iterable
from typing import Any

from checker import rules
from checker.facts import Log
from checker.rules import Violation

__all__ = ["Violation", "check"]


def check(log: Iterable[dict[str, Any]], journal: Iterable[dict[str, Any]]) -> list[Violation]:
    """All violations, in the order of the rules."""
    read, lines = Log(log), list(journal)
    return [found for rule in rules.ALL for found in rule(read, lines)]
