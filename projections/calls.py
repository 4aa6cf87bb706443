"""The status and decision of every call of a log.

A call is complete when it is settled. Later facts (a late result, a vote that lost) still belong to
it.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import Final

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import SETTLED
from ayes.ledger.validity import call_of
from ayes.projections.fold import Key, ProjectedRow, Projection
from ayes.projections.pending import key as name
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import Slot

#: The facts after which a call may be settled.
SETTLING: Final = (e.ToolReturned, e.ToolFailed, e.ToolRefused, e.Reconciled)


class CallFacts:
    """The facts of a call, in the order of the log."""

    def __init__(self, stops: Sequence[Fact] = ()) -> None:
        self._stops = stops
        self.facts: list[Fact] = []
        self.is_complete = False
        self._call: Call | None = None

    def apply(self, fact: Fact) -> None:
        self.facts.append(fact)
        self._call = None
        if isinstance(fact.event, SETTLING) and not self.is_complete:
            # An end that is void does not settle the call.
            self.is_complete = self.call.status in SETTLED

    @property
    def call(self) -> Call:
        """The call made of the facts."""
        if self._call is None:
            self._call = call_in(self.facts, self._stops)
        return self._call


def call_in(facts: list[Fact], stops: Sequence[Fact]) -> Call:
    """The call that these facts make."""
    ref = facts[0].slot.call_ref
    assert ref, "the key lets only facts about calls come here"
    return call_of(ref, (*facts, *stops))


def _key(slot: Slot) -> Key | None:
    return (slot.workspace, slot.thread, slot.tail[1]) if slot.tail[0] == "call" else None


def _row(wanted: CallFacts) -> ProjectedRow | None:
    call = wanted.call
    if call.requested is None:
        return None
    decision = call.decided
    value = {
        "call": str(call.ref),
        "tool": call.wish.tool,
        "status": str(call.status),
        "decision": type(decision.event).__name__ if decision else None,
        "rule": getattr(decision.event, "rule", "") if decision else "",
        "voters": getattr(decision.event, "voters", ()) if decision else (),
        "requested_at": call.requested.recorded_at.astimezone(UTC),
        "decided_at": decision and decision.recorded_at.astimezone(UTC),
        "finished_at": call.finished and call.finished.recorded_at.astimezone(UTC),
    }
    return ProjectedRow(name(call.ref), _encoder.encode(value))


_encoder: Final = msgspec.json.Encoder()

CALLS: Final = Projection[CallFacts](
    name="calls",
    key=_key,
    begin=CallFacts,
    begins=lambda slot: slot.tail[2] == "requested",
    resumes=lambda _slot: True,
    row=_row,
)
