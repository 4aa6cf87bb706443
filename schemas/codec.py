"""Facts to bytes and back.

What comes off the stream may be older than this program, newer, or foreign:

* older: lifted to today's version, step by step (`UPCASTS`), so nothing else ever sees an old
  shape;
* newer, or of an unknown type: `Carried`, byte for byte. A fold skips it; nobody drops it;
* no fact at all: `BadFact`, loudly. An undecodable history must not look like an empty one. In the
  midst of the log such bytes are `Carried` with a `problem`, so that one foreign message does not
  hide all that come after it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.schemas.errors import BadFact, BadSlot, TooLarge
from ayes.schemas.events import TYPES, VERSION, AnyEvent, Carried, Event
from ayes.schemas.slots import Slot, read

#: One fact on the wire. Above it a payload would stop fitting beside its protocol overhead in NATS'
#: 1 MiB.
MAX_BYTES: Final = 512 * 1024

type Upcast = Callable[[dict[str, Any]], dict[str, Any]]

#: (type, version) to the function that lifts a payload of that version to the next one.
UPCASTS: Final[dict[tuple[str, int], Upcast]] = {}


class Fact(Struct, frozen=True, gc=False):
    """An event that the broker has recorded: what, where, as which number, when.

    Facts hold nothing that could hold them, so the garbage collector need not look at the many that
    a fold keeps.
    """

    #: Position in the stream, from 1.
    seq: int
    #: The broker's clock, UTC. Deadlines and durations are counted on it.
    recorded_at: datetime
    slot: Slot
    event: AnyEvent | Carried


def fact_of(seq: int, recorded_at: datetime, subject: str, raw: bytes) -> Fact:
    """What stands in the log at `seq`. Never raises: foreign bytes are carried too, with what is
    wrong with them.
    """
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
        problem = f"a {type(event).__name__} cannot stand in {subject}"
        return Fact(seq, recorded_at, slot, Carried(type="", raw=raw, problem=problem))
    return Fact(seq, recorded_at, slot, event)


def encode(event: Event | Carried) -> bytes:
    """The bytes of an event that is to be recorded.

    Raises:
        TooLarge: more than `MAX_BYTES`.
        BadFact: a text in it is no Unicode (half a surrogate pair).
    """
    kind = event.type if isinstance(event, Carried) else type(event).__name__
    try:
        raw = as_json(event)
    except UnicodeEncodeError as problem:
        raise BadFact(
            f"a {kind} holds text that is no Unicode: {problem}. Replace it before recording."
        ) from None
    if len(raw) > MAX_BYTES:
        raise TooLarge(
            f"a {kind} of {len(raw):,} bytes is over the limit of {MAX_BYTES:,}. "
            "Store the content elsewhere and hand on a reference to it."
        )
    return raw


def as_json(event: Event | Carried) -> bytes:
    """The bytes of an event that stands in the log, where it may be larger than what this program
    records.
    """
    return event.raw if isinstance(event, Carried) else _encoder.encode(event)


def decode(raw: bytes) -> AnyEvent | Carried:
    """Read an event, whatever its age.

    Raises:
        BadFact: the bytes are no event.
    """
    try:
        event = _decoder.decode(raw)
    except _UNREADABLE as problem:
        return _decode_other(raw, problem)
    return event if event.v == VERSION[type(event).__name__] else _decode_other(raw, None)


class _Head(Struct):
    type: str
    id: str = ""
    v: int = 1


def _decode_other(raw: bytes, problem: Exception | None) -> AnyEvent | Carried:
    """Something that is not of today's shape: older, newer, or broken."""
    try:
        head = _head.decode(raw)
    except _UNREADABLE as no_head:
        raise BadFact(f"{raw[:80]!r} is no fact: {no_head}") from None
    current = VERSION.get(head.type)
    if current is None or head.v > current:
        try:
            raw.decode()  # a decoder passes over the text of fields that it does not know
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
            f"a {head.type} (version {head.v}, lifted to {current}) is malformed: {still}"
        ) from None


#: What a decoder raises about bytes that are not what it expects; the last for brackets nested by
#: the thousand.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[AnyEvent]] = msgspec.json.Decoder(AnyEvent.__value__)
_head: Final = msgspec.json.Decoder(_Head)
