"""What a reaction may ask of the loop: values, so that a test can compare them.

A reaction never does anything itself. It looks at facts and answers with steps; the loop takes
them, in order.
"""

from datetime import datetime

from msgspec import Struct

from ayes.schemas.events import Event
from ayes.schemas.slots import CallRef, Slot


class Append(Struct, frozen=True):
    """This fact should exist. `fallback_slot`: where it goes when another one took its slot."""

    slot: Slot
    event: Event
    fallback_slot: Slot | None = None


class Perform[W](Struct, frozen=True):
    """Something outside of the ledger should happen, once: only whoever fills the claim's slot does
    the work.
    """

    claim: Append
    work: W


class SetTimer(Struct, frozen=True):
    call: CallRef
    at: datetime


class CancelTimer(Struct, frozen=True):
    call: CallRef


class WritePending(Struct, frozen=True):
    """The queue's entry for a call should be this; empty: there should be none."""

    key: str
    value: bytes
    #: The revision that was there when the call was read.
    replaces: int


class Reload(Struct, frozen=True):
    """What was just appended calls for more: look at the facts once again."""


class HandOn(Struct, frozen=True):
    """Another process of this consumer should see to it: it is handed out again, after so long. No
    failure.
    """

    after_s: float
    why: str


type Effect[W] = Append | Perform[W] | SetTimer | CancelTimer | WritePending | Reload | HandOn
