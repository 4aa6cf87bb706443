"""Encodes and decodes facts.

Bytes from the stream may be older than this program, newer, or foreign:

* Older ones are converted to the current version, step by step (`UPCASTS`), so no other module sees
  an old shape.
* Newer ones, or those of an unknown type, are `Carried` byte for byte. Folds skip them, and nothing
  drops them.
* Bytes that are not a fact raise `BadFact`, since an undecodable history must not look like an
  empty one. Within the log they are `Carried` with a `problem`, so that one foreign message does
  not hide the facts after it.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.schemas.errors import BadFact, BadSlot, TooLarge
from ayes.schemas.events import (
    TYPES,
    VERSION,
    AnyEvent,
    ApprovalRequested,
    Carried,
    Event,
    ToolRequested,
)
from ayes.schemas.slots import Slot, read

#: Of one fact on the wire. A larger payload and its protocol overhead may exceed NATS' 1 MiB.
MAX_BYTES: Final = 512 * 1024

type Upcast = Callable[[dict[str, Any]], dict[str, Any]]

#: By (type, version): the function that converts a payload of that version to the next one.
UPCASTS: Final[dict[tuple[str, int], Upcast]] = {
    # A value was added.
    ("Declined", 1): lambda old: old,
    ("ToolRefused", 1): lambda old: old,
    ("Declined", 2): lambda old: old,
    ("ToolRefused", 2): lambda old: old,
}


class Fact(Struct, frozen=True, gc=False):
    """An event that the broker has recorded, with its sequence, time and slot.

    A fact cannot be part of a reference cycle, so the garbage collector does not track it.
    """

    #: Position in the stream, from 1.
    seq: int
    #: On the broker's clock, UTC, by which deadlines and durations are measured.
    recorded_at: datetime
    slot: Slot
    event: AnyEvent | Carried
    #: A request's or question's bytes as the log has them, since signed votes are bound to them.
    raw: bytes = b""

    @property
    def digest(self) -> str:
        """The SHA-256 of a request or question, in hex; empty for another fact."""
        return hashlib.sha256(self.raw).hexdigest() if self.raw else ""


def fact_of(seq: int, recorded_at: datetime, subject: str, raw: bytes, first: int = 0) -> Fact:
    """The fact at `seq`. Never raises: foreign bytes are `Carried` with their problem.

    Args:
        first: the number of the fact that filled its slot before it; 0: none did. Of two facts in
            one slot the first counts, so the second is `Carried` and in no slot.
    """
    if first:
        problem = filled_before(first)
        return Fact(
            seq, recorded_at, Slot.elsewhere(subject), Carried(type="", raw=raw, problem=problem)
        )
    try:
        slot, kinds = read(subject)
    except BadSlot as bad:
        return Fact(
            seq, recorded_at, Slot.elsewhere(subject), Carried(type="", raw=raw, problem=str(bad))
        )
    try:
        event = decode(raw)
    except BadFact as bad:
        return Fact(seq, recorded_at, slot, Carried(type="", raw=raw, problem=str(bad)))
    if type(event) not in kinds and not isinstance(event, Carried):
        problem = f"a {type(event).__name__} cannot be in {subject}"
        return Fact(seq, recorded_at, slot, Carried(type="", raw=raw, problem=problem))
    return Fact(seq, recorded_at, slot, event, raw if type(event) in _SIGNED_ABOUT else b"")


#: The beginning of what `filled_before` says.
FILLED_BEFORE: Final = "its slot was filled before it, by fact"


def filled_before(first: int) -> str:
    """Why a fact in a slot that an earlier one has filled does not count."""
    return f"{FILLED_BEFORE} {first}"


def encode(event: Event | Carried) -> bytes:
    """The bytes of an event to record.

    Raises:
        TooLarge: more than `MAX_BYTES`.
        BadFact: a text in it is not valid Unicode (half a surrogate pair).
    """
    kind = event.type if isinstance(event, Carried) else type(event).__name__
    try:
        raw = as_json(event)
    except UnicodeEncodeError as problem:
        raise BadFact(
            f"a {kind} has a text that is not valid Unicode: {problem}. Replace it."
        ) from None
    if len(raw) > MAX_BYTES:
        raise TooLarge(
            f"a {kind} of {len(raw):,} bytes is over the limit of {MAX_BYTES:,}. "
            "Store the content elsewhere and record a reference to it."
        )
    return raw


def as_json(event: Event | Carried) -> bytes:
    """The bytes of a recorded event, which may be larger than `MAX_BYTES`."""
    return event.raw if isinstance(event, Carried) else _encoder.encode(event)


def fact_json(fact: Fact, void: str = "") -> str:
    """A fact as one line for programs: its place, its event byte for byte as in the log, and why it
    is void, if it is.
    """
    place = {"seq": fact.seq, "recorded_at": fact.recorded_at, "subject": fact.slot.subject}
    head = _encoder.encode(place).decode()
    if isinstance(fact.event, Carried) and fact.event.problem:
        rest = f'"problem":{json.dumps(fact.event.problem)}'
    else:
        rest = f'"event":{as_json(fact.event).decode()}'
    rest += f',"void":{json.dumps(void)}' if void else ""
    return f"{head[:-1]},{rest}}}"


def decode(raw: bytes) -> AnyEvent | Carried:
    """Read an event of any version.

    Raises:
        BadFact: the bytes are not an event.
    """
    try:
        event = _decoder.decode(raw)
        if not raw.isascii():
            raw.decode()  # a decoder does not check the texts of unknown fields
    except _UNREADABLE as problem:
        return _decode_other(raw, problem)
    return event if event.v == VERSION[type(event).__name__] else _decode_other(raw, None)


class _Head(Struct):
    type: str
    id: str = ""
    v: int = 1


def _decode_other(raw: bytes, problem: Exception | None) -> AnyEvent | Carried:
    """Decode bytes that are not of the current version: older, newer, or broken."""
    try:
        head = _head.decode(raw)
    except _UNREADABLE as no_head:
        raise BadFact(f"{raw[:80]!r} is not a fact: {no_head}") from None
    current = VERSION.get(head.type)
    if current is None or head.v > current:
        try:
            raw.decode()  # as above
        except UnicodeDecodeError as not_text:
            raise BadFact(f"a {head.type} (version {head.v}) is not UTF-8: {not_text}") from None
        return Carried(type=head.type, raw=raw, id=head.id, v=head.v)
    if head.v == current or head.v < 1:
        raise BadFact(f"a {head.type} (version {head.v}) is malformed: {problem}")
    try:
        lifted = msgspec.json.decode(raw)
        for version in range(head.v, current):
            lifted = UPCASTS[head.type, version](lifted) | {"v": version + 1}
        return msgspec.convert(lifted, TYPES[head.type])  # type: ignore[return-value]
    except (*_UNREADABLE, KeyError) as still:
        raise BadFact(
            f"a {head.type} (version {head.v}, converted to {current}) is malformed: {still}"
        ) from None


#: The facts that signed votes are bound to.
_SIGNED_ABOUT: Final = frozenset({ToolRequested, ApprovalRequested})
#: The errors of a decoder about bytes; the last one for brackets nested by the thousand.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[AnyEvent]] = msgspec.json.Decoder(AnyEvent.__value__)
_head: Final = msgspec.json.Decoder(_Head)
