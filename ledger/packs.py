"""Packs: the settled facts of a thread, byte for byte in one fact of it (docs/decisions/0091).

Pure. Facts that stand in a pack may leave the stream, and readers put them back in their places:

    packable    which facts of a thread may be packed, those that belong together at a time
    packs_of    the packs that have them
    size_of     how many facts are in a pack
    unpacked    the facts of a pack, or some of them
    range_of    the numbers of the first and the last of them
    merged      the facts of threads as they were before
    PackedNames what is in the packs of a thread, for who fills a slot of it

A pack has all facts of a call, of a turn or of a message up to that moment or none of them, but for
those that stay in the stream. So a call whose request is still there is in no pack, unless it is
about to be removed. Facts that come later stay where they are. Each pack begins with the names of
all that was packed in its thread, so that who has a new slot to fill reads the newest one alone.

What stays is what is read over all threads, or lives as long as its thread: what opened it, keys
and forgetting, packs, and votes with a passkey. So does what is not part of its call (surplus).
"""

import base64
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from operator import attrgetter
from typing import Final, Self

import msgspec
from msgspec import Struct

from ayes.ledger.lifecycle import NOT_RUN, SETTLED
from ayes.ledger.log import RawMessage
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES, Fact, as_json, fact_of
from ayes.schemas.errors import BadSlot, LogDamaged, NewerLog
from ayes.schemas.slots import PACKED, ROOT, STOP, Slot, ThreadRef, matcher, matches

#: Of the facts in one pack, before they are compressed.
MOST_UNPACKED: Final = 8 * MAX_BYTES
#: The bytes of a pack that are left for its envelope: id, author, cause and trace.
_ENVELOPE: Final = 4096
#: The bytes of the name of a call, turn or message.
_NAME: Final = 8
#: A thread with more of them in its packs is packed no further: their names take half a fact.
MOST_NAMES: Final = MAX_BYTES // 2 * 3 // 4 // _NAME
#: For zlib: gzip, with its largest window.
_GZIP: Final = 31
#: The first token, behind the thread, of the slots whose facts may be in a pack.
_KINDS: Final = frozenset({"call", "turn", "said"})
#: The wildcards over the facts without which a call, turn or message is never packed. They leave
#: the stream last, so what has none there needs no further run.
HEADS: Final = (
    f"{ROOT}.*.*.call.*.requested",
    f"{ROOT}.*.*.turn.*.replied",
    f"{ROOT}.*.*.said.*",
)
_is_head: Final = matcher(HEADS)
#: The wildcard over the packs of all threads.
EVERY: Final = f"{ROOT}.*.*.{PACKED}.*"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Facts that are packed together or not at all, in the order of the log.
type Unit = tuple[RawMessage, ...]
#: Number, time in nanoseconds, subject behind that of the thread, and payload.
type _Row = tuple[int, int, str, bytes]


# ---------------------------------------------------------------------------------------- packing


def packable(ref: ThreadRef, facts: Iterable[RawMessage]) -> list[Unit]:
    """What may be packed of a thread: settled calls, complete turns and messages.

    Args:
        facts: what the stream has of the thread, its packs too, and all facts about the stops that
            hold in its workspace. By these is judged whether a call has run. The rest is skipped.

    Raises:
        LogDamaged: a pack among them cannot be read.
        NewerLog: a newer program made one.
    """
    units: dict[tuple[str, ...], list[tuple[RawMessage, Fact]]] = defaultdict(list)
    stopping, packs = list[Fact](), list[RawMessage]()
    for raw in sorted(facts, key=attrgetter("seq")):
        fact = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
        if fact.slot.tail[0] == STOP:
            stopping.append(fact)
        if (fact.slot.workspace, fact.slot.thread) != (ref.workspace, ref.thread):
            continue
        match fact.slot.tail:
            case (kind, name, *_) if kind in _KINDS:
                units[kind, name].append((raw, fact))
            case (kind, _) if kind == PACKED:
                packs.append(raw)
            case _:
                pass
    packed = PackedNames.in_pack(packs[-1]) if packs else NONE
    found = [
        tuple(raw for raw, fact in unit if not _stays(fact))
        for unit in units.values()
        if not packed.may_have(unit[0][1].slot)
        and _is_over(ref, [fact for _, fact in unit], stopping)
    ]
    return sorted(found, key=lambda unit: unit[0].seq)


def _is_over(ref: ThreadRef, unit: Sequence[Fact], stopping: Sequence[Fact]) -> bool:
    """Whether nothing more is expected of facts that belong together, and all can be judged."""
    if any(isinstance(one.event, e.Carried) and not one.event.problem for one in unit):
        return False  # of a newer program
    match unit[0].slot.tail:
        case ("call", name, *_):
            call = call_of(ref.call(name), (*unit, *stopping))
            return call.requested is not None and call.status in SETTLED | NOT_RUN
        case ("turn", *_):
            return any(one.slot.tail[2] == "replied" for one in unit)
        case _:
            return True


def _stays(fact: Fact) -> bool:
    """Whether it stays in the stream when the call that it is about is packed."""
    event = fact.event
    with_passkey = isinstance(event, e.Voted) and event.signature.startswith("webauthn.")
    return with_passkey or fact.slot.is_surplus


def packs_of(units: Sequence[Unit], last: e.Packed | None = None) -> list[e.Packed]:
    """The packs that have these facts, in the order in which they are to be recorded. What is too
    large for one pack is in none.

    Args:
        last: the newest pack of the thread; None if it has none.
    """
    names = base64.b64decode(last.names) if last else b""
    return _packs_of(units, names) if units else []


def _packs_of(units: Sequence[Unit], names: bytes) -> list[e.Packed]:
    if (pack := _pack(units, names)) is not None:
        return [pack]
    if len(units) == 1 or len(names) >= MOST_NAMES * _NAME:
        return []
    middle = len(units) // 2
    first = _packs_of(units[:middle], names)
    return first + _packs_of(units[middle:], base64.b64decode(first[-1].names) if first else names)


def _pack(units: Sequence[Unit], names: bytes) -> e.Packed | None:
    """The pack of all of these; None if it is too large."""
    names += b"".join(_name(Slot.parse(unit[0].subject)) for unit in units)
    facts = sorted((raw for unit in units for raw in unit), key=attrgetter("seq"))
    rows = [(one.seq, one.at_ns, _tail(one.subject), one.data) for one in facts]
    content = msgspec.msgpack.encode(rows)
    if len(content) > MOST_UNPACKED or len(names) > MOST_NAMES * _NAME:
        return None
    pack = e.Packed(
        names=_base64(names), facts=_base64(zlib.compress(content, wbits=_GZIP)), size=len(facts)
    )
    return pack if len(as_json(pack)) + _ENVELOPE <= MAX_BYTES else None


def _tail(subject: str) -> str:
    return subject.split(".", 3)[3]


def _name(slot: Slot) -> bytes:
    """The name of the call, turn or message that has this slot."""
    return _hashed(*slot.tail[:2])


def _hashed(kind: str, name: str) -> bytes:
    return sha256(f"{kind}.{name}".encode()).digest()[:_NAME]


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# ---------------------------------------------------------------------------------------- reading


def number_of(subject: str) -> int:
    """The number of the pack on this subject; 0 if it is none."""
    head, _, number = subject.rpartition(f".{PACKED}.")
    is_one = head.count(".") == 2 and "._" not in head
    return int(number) if is_one and number.isascii() and number.isdigit() else 0


def size_of(raw: RawMessage) -> int:
    """How many facts are in a pack; 0 of what is none, or cannot be read."""
    if not number_of(raw.subject):
        return 0
    event = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data).event
    return event.size if isinstance(event, e.Packed) else 0


def pack_in(raw: RawMessage) -> e.Packed:
    """The pack in a message.

    Raises:
        LogDamaged: it is none.
        NewerLog: a newer program made it.
    """
    event = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data).event
    if isinstance(event, e.Carried) and not event.problem:
        raise NewerLog(f"a newer program made {raw.subject}: update this one.")
    if not isinstance(event, e.Packed):
        raise LogDamaged(f"{raw.subject} cannot be read")
    return event


def unpacked(
    raw: RawMessage, is_wanted: Callable[[str], bool] = lambda _subject: True
) -> list[RawMessage]:
    """The facts in a pack, in the order of the log.

    Args:
        is_wanted: by subject, which of them. Only these are checked to be facts of this pack.

    Raises:
        LogDamaged: it cannot be read, or it has what no pack may have.
        NewerLog: a newer program made it.
    """
    packed = pack_in(raw)
    thread = raw.subject.rsplit(".", 2)[0]
    with _readable(raw):
        found = [
            RawMessage(seq, _EPOCH + timedelta(microseconds=ns // 1000), subject, data, ns % 1000)
            for seq, ns, tail, data in _rows_in(raw, packed)
            if is_wanted(subject := f"{thread}.{tail}")
        ]
        names = _names(packed.names)
        each = frozenset(names[at : at + _NAME] for at in range(0, len(names), _NAME))
        for one in found:
            slot = Slot.parse(one.subject)
            if not is_packable(slot) or _name(slot) not in each:
                raise ValueError(f"it has {one.subject}")
    return found


def range_of(raw: RawMessage) -> tuple[int, int]:
    """The numbers of the first and the last fact in a pack. Errors as of `unpacked`."""
    packed = pack_in(raw)
    with _readable(raw):
        rows = _rows_in(raw, packed) or [(raw.seq, 0, "", b"")]
    return rows[0][0], rows[-1][0]


@contextmanager
def _readable(raw: RawMessage) -> Generator[None]:
    """Raise `LogDamaged` for what is found in a pack that no pack may have."""
    try:
        yield
    except (ValueError, OverflowError, zlib.error, msgspec.MsgspecError, BadSlot) as problem:
        raise LogDamaged(f"{raw.subject} cannot be read ({problem})") from None


def _rows_in(raw: RawMessage, packed: e.Packed) -> list[_Row]:
    """The facts in a pack, as they are stored."""
    rows = _rows.decode(_decompressed(base64.b64decode(packed.facts, validate=True)))
    numbers = [0, *(row[0] for row in rows), raw.seq]
    if any(one >= after for one, after in pairwise(numbers)):
        raise ValueError("its facts are not in the order of the log")
    if len(rows) != packed.size:
        raise ValueError(f"it has {len(rows)} facts in place of {packed.size}")
    return rows


def _decompressed(raw: bytes) -> bytes:
    """What is in gzip, all of it; else it raises a ValueError or a zlib.error."""
    reader = zlib.decompressobj(wbits=_GZIP)
    content = reader.decompress(raw, MOST_UNPACKED + 1)
    if len(content) > MOST_UNPACKED:
        raise ValueError("it is too large")
    if not reader.eof or reader.unused_data:
        raise ValueError("it is cut off, or something comes after it")
    return content


def _names(text: str) -> bytes:
    """The names in a pack; a ValueError if they are none."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) % _NAME:
        raise ValueError("its names are cut off")
    return raw


class PackedNames(Struct, frozen=True):
    """What is in the packs of a thread up to one of them."""

    #: The number of that pack; 0 if none is known.
    number: int = 0
    #: Of the calls, turns and messages in those packs, eight bytes of a hash each. A match that
    #: spans two of them is a false one, and costs one read.
    names: bytes = b""

    @classmethod
    def in_pack(cls, newest: RawMessage) -> Self:
        """What is in this pack and in all before it.

        Raises:
            LogDamaged: the pack cannot be read.
            NewerLog: a newer program made it.
        """
        try:
            return cls(number_of(newest.subject), _names(pack_in(newest).names))
        except ValueError as problem:
            raise LogDamaged(f"{newest.subject} cannot be read ({problem})") from None

    def may_have(self, slot: Slot) -> bool:
        """Whether a fact of this slot may be in one of these packs."""
        return bool(self.names) and is_packable(slot) and _name(slot) in self.names

    def may_match(self, subjects: str) -> bool:
        """Whether a fact of the thread on this subject, with wildcards, may be in one of them."""
        kind, name = (*subjects.split(".")[3:5], "", "")[:2]
        if kind not in _KINDS or name in {"", "*", ">"}:
            return bool(self.names) and kind in _KINDS | {"*", ">"}
        return _hashed(kind, name) in self.names


#: Of a thread without packs.
NONE: Final = PackedNames()


def is_head(subject: str) -> bool:
    """Whether it is of one of `HEADS`."""
    return bool(thread_of(subject)) and _is_head(subject)


def is_packable(slot: Slot) -> bool:
    """Whether facts of this slot are ever in a pack."""
    return slot.tail[0] in _KINDS


def thread_of(subject: str) -> str:
    """How the subjects of the thread begin whose packs may have a fact on this subject; empty: no
    pack may.
    """
    root, *place, kind = (*subject.split(".", 4), "", "", "", "")[:4]
    is_one = root == ROOT and kind in _KINDS and place[1][:1] not in {"_", ""}
    return f"{root}.{'.'.join(place)}" if is_one else ""


def merged(
    live: Iterable[RawMessage],
    packs: Iterable[RawMessage],
    is_wanted: Callable[[str], bool] = lambda _subject: True,
) -> list[RawMessage]:
    """The facts of threads as if nothing had been packed, in the order of the log. Of two facts in
    one slot the first counts, wherever it stands.

    Args:
        live: what is in the stream, without those packs.
        packs: all packs of those threads; they themselves are no facts of the result.
        is_wanted: by subject, what is taken out of the packs.

    Raises:
        LogDamaged: a pack is missing, or cannot be read.
        NewerLog: a newer program made one.
    """
    each = list(packs)
    _check_numbers(each)
    every = {one.seq: one for one in live}
    every |= {one.seq: one for pack in each for one in unpacked(pack, is_wanted)}
    first: dict[str, RawMessage] = {}
    for seq in sorted(every):
        first.setdefault(every[seq].subject, every[seq])
    return list(first.values())


@lru_cache(maxsize=1024)
def packs_for(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """The wildcards over the packs in which facts on these subjects (wildcards allowed) may be, of
    subjects within one thread each.
    """
    found = dict[str, None]()
    for one in subjects:
        root, *place, kind = (*one.split("."), "", "", "")[:4]
        is_one = root == ROOT and "*" not in place and place[1][:1] not in {"_", ">", ""}
        if is_one and kind in _KINDS | {"*", ">"}:
            found[f"{root}.{'.'.join(place)}.{PACKED}.*"] = None
    return tuple(found)


@lru_cache(maxsize=1024)
def packs_over(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """As `packs_for`, of subjects that may be in several threads."""
    found = dict[str, None]()
    for one in subjects:
        tokens = one.split(".")
        if tokens[-1] == ">":
            tokens[-1:] = ["*"] * max(4 - len(tokens[:-1]), 1)
        root, workspace, thread, kind = (*tokens, "", "", "", "")[:4]
        if root in {ROOT, "*"} and thread[:1] not in {"_", ""} and kind in _KINDS | {"*"}:
            found[f"{ROOT}.{workspace}.{thread}.{PACKED}.*"] = None
    return (EVERY,) if EVERY in found else tuple(found)


def followed_with(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """The wildcards of `packs_over` that are to be followed beside these subjects, which cover the
    others. None may overlap, as nats-server refuses such filters; else it is all subjects.
    """
    beside = tuple(
        one for one in packs_over(subjects) if not any(matches(own, one) for own in subjects)
    )
    are_apart = not any(_overlap(own, one) for own in subjects for one in beside)
    return (*subjects, *beside) if are_apart else (f"{ROOT}.>",)


def _overlap(one: str, other: str) -> bool:
    """Whether a subject matches both of these wildcards."""
    ones, others = one.split("."), other.split(".")
    for a, b in zip(ones, others, strict=False):
        if ">" in (a, b):
            return True
        if "*" not in (a, b) and a != b:
            return False
    return len(ones) == len(others)


def as_before(found: list[RawMessage], subjects: tuple[str, ...]) -> list[RawMessage]:
    """What was found on these subjects and those of `packs_for`, as if nothing had been packed. A
    pack itself is in it where the subjects name packs.

    Raises:
        LogDamaged: a pack is missing, or cannot be read.
        NewerLog: a newer program made one.
    """
    inside = packs_for(subjects)
    is_inside = matcher(inside)
    packs = {one.seq: one for one in found if number_of(one.subject) and is_inside(one.subject)}
    if not packs:
        return found
    by_name = matcher(one for one in subjects if one.split(".")[3:4] == [PACKED])
    rest = (one for one in found if one.seq not in packs or by_name(one.subject))
    return merged(rest, packs.values(), matcher(subjects))


def _check_numbers(packs: Iterable[RawMessage]) -> None:
    """Raise `LogDamaged` if a pack of these threads is missing before the last one."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for pack in packs:
        numbers[pack.subject.rpartition(".")[0]].append(number_of(pack.subject))
    for thread, found in numbers.items():
        for wanted, number in enumerate(sorted(found), 1):
            if number != wanted:
                raise LogDamaged(f"{thread}.{wanted} is missing")


_rows: Final = msgspec.msgpack.Decoder(list[_Row])
