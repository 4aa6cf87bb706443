"""The effects that a reaction may ask of its worker: values, so that a test can compare them.

A reaction does no I/O of its own. It decides on effects; the worker executes them in order.
"""

from datetime import datetime

from msgspec import Struct

from ayes.schemas.events import Event
from ayes.schemas.slots import CallRef, Slot


class Append(Struct, frozen=True):
    """Record a fact, in `fallback_slot` if its slot is taken."""

    slot: Slot
    event: Event
    fallback_slot: Slot | None = None
    #: As for `EventLog.append`.
    after: int | None = None


class Perform[W](Struct, frozen=True):
    """Do work outside of the ledger.

    With a claim it is done at most once: only the worker that fills the claim's slot does it.
    Without one it is done at least once, since a crash may come before its outcome is recorded; and
    several in a row are done at the same time, so that none waits for another.
    """

    claim: Append | None
    work: W


class GivenUp(Exception):
    """Raised by `execute`: the work was tried as often as it may be. The delivery is parked with
    this sentence as the reason.
    """


class SetTimer(Struct, frozen=True):
    call: CallRef
    at: datetime


class CancelTimer(Struct, frozen=True):
    call: CallRef


class WritePending(Struct, frozen=True):
    """Write a call's entry in the bucket; delete it if the value is empty."""

    key: str
    value: bytes
    #: The revision that was read before the call's facts.
    replaces: int


class Reload(Struct, frozen=True):
    """Load and decide again: the fact that was just appended may call for more."""


class HandOn(Struct, frozen=True):
    """Return the delivery for another process of this consumer, after a delay. Not a failure."""

    after_s: float
    why: str


class HandedOn(Exception):
    """Raised by `load` and `execute`: as the effect `HandOn`. What was claimed has not been done,
    and nothing is to be recorded.
    """

    def __init__(self, step: HandOn) -> None:
        super().__init__(step.why)
        self.after_s = step.after_s


type Effect[W] = Append | Perform[W] | SetTimer | CancelTimer | WritePending | Reload | HandOn
