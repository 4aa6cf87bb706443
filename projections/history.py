"""What a model goes on from: a thread as one list of entries that belongs to no provider.

    system, user, note, ...  ─► assistant ─► outcome, outcome ─► user, ... ─► assistant ─► ...
                                (turn 1)     one for each wish                (turn 2)

The rules:

1. A turn was asked with what had been said before its *cut*, the broker's sequence of its first
   claim. What was said later stands after the turn and its outcomes, because that is what the model
   really saw. So whoever asks a model claims the turn first, and makes the history from a thread
   read as of the claim.
2. A turn is one `Assistant` and, directly after it, exactly one `Outcome` for each wish, in the
   order of the wishes, whatever else was recorded in between.
3. A turn with a call that is not settled is not sent: the history stops before it and says at which
   call. No provider takes a call without its result, and a made-up result could never be taken
   back.
4. A model that failed leaves nothing. A model that answered with nothing leaves a turn.
5. A result that came after its call was closed (`late`) is kept in the ledger and never shown.
6. A pending turn is closed by facts alone: people's, a deadline's, or (`while_pending =
   "supersede"`) the gate's when the user says something new. Never by the writing of a history.
7. Where the thread declares a `history_limit`, the oldest part is left out (`compacted`), and never
   half a pair.

The same facts give the same bytes, so `digest` tells anyone later what a model was sent.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ayes.ledger.lifecycle import Call
from ayes.projections import refusal_texts
from ayes.projections.thread import Thread, is_settled, is_spoiled
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import Defect
from ayes.schemas.slots import CallRef

#: How a wish ended: it ran, or it is one of the ways in which it did not.
type Kind = Literal["returned", "failed", "reconciled"] | e.Ending


class System(Struct, frozen=True, tag_field="entry", tag="system"):
    text: str


class User(Struct, frozen=True, tag_field="entry", tag="user"):
    text: str
    name: str = ""


class Note(Struct, frozen=True, tag_field="entry", tag="note"):
    """From the system, in the midst of things."""

    text: str
    name: str = ""


class Assistant(Struct, frozen=True, tag_field="entry", tag="assistant"):
    """What the model answered in one turn, in its order."""

    turn: int
    parts: tuple[e.Part, ...]


class Outcome(Struct, frozen=True, tag_field="entry", tag="outcome"):
    """How one wish ended, as the model reads it."""

    #: The call's id, unique in the thread: `<turn>-<index>`.
    call: str
    tool: str
    #: As the provider gave it: perhaps empty, perhaps the same as another's.
    provider_id: str
    kind: Kind
    #: Empty only when a tool returned nothing.
    text: str
    is_error: bool


type Entry = System | User | Note | Assistant | Outcome


class History(Struct, frozen=True):
    entries: tuple[Entry, ...]
    #: The first call that is not settled, before whose turn the history stops. None: it is whole.
    stopped_at: CallRef | None = None


def history(thread: Thread, before_turn: int | None = None) -> History:
    """The thread as a model reads it; `before_turn=n` is what turn n is, or was, asked with."""
    opened = thread.opened.event if thread.opened else None
    limit = opened.history_limit if isinstance(opened, e.ThreadOpened) else 0
    entries, stopped_at = _entries(thread, before_turn)
    return History(compacted(entries, limit), stopped_at)


def compacted(entries: Sequence[Entry], limit: int) -> tuple[Entry, ...]:
    """About the newest `limit` entries; 0: all of them.

    What the system said stays. A turn and its outcomes stay together or go together, and the last
    turn always stays. What is kept begins with a user's message: the last one before it, where the
    cut falls behind. (Whoever cuts a list by other means is safe too: `providers.common.paired`
    makes a note of an outcome whose call is gone.)
    """
    if limit <= 0 or len(entries) <= limit:
        return tuple(entries)
    cut = _cut(entries, limit)
    before, kept = entries[:cut], entries[cut:]
    stays: list[Entry] = [entry for entry in before if isinstance(entry, System)]
    asked = [entry for entry in before if isinstance(entry, User)]
    begins = next((entry for entry in kept if not isinstance(entry, System)), None)
    if asked and not isinstance(begins, User):
        stays.append(asked[-1])
    return (*stays, *kept)


def _cut(entries: Sequence[Entry], limit: int) -> int:
    """The first place behind which at most `limit` entries stand and that parts no turn from its
    outcomes.
    """
    cut = len(entries) - limit
    while cut < len(entries) and isinstance(entries[cut], Outcome):
        cut += 1
    if cut < len(entries):
        return cut
    while isinstance(entries[cut - 1], Outcome):  # the last turn alone is longer than that
        cut -= 1
    return cut - 1


def _entries(thread: Thread, before_turn: int | None) -> tuple[list[Entry], CallRef | None]:
    """All entries, and the call before whose turn they stop."""
    entries: list[Entry] = []
    heard = 0
    for number, turn in thread.turns.items():
        if turn.reply is None or (before_turn is not None and number >= before_turn):
            continue
        until = _said_before(thread, turn.cut)
        entries += [_entry(fact) for fact in thread.said[heard:until]]
        heard = max(heard, until)
        calls = [(thread.call(ref), wish) for ref, wish in thread.wishes(number)]
        if waiting := next((call.ref for call, _wish in calls if not is_settled(call)), None):
            return entries, waiting
        entries.append(Assistant(number, turn.reply.parts))
        entries += [outcome(call, wish) for call, wish in calls]
    asking = None if before_turn is None else thread.turns.get(before_turn)
    until = _said_before(thread, asking.cut if asking else None)
    return [*entries, *(_entry(fact) for fact in thread.said[heard:until])], None


def encode(entries: Sequence[Entry]) -> bytes:
    """The canonical bytes: JSON, without blanks, the fields in the order of their classes."""
    return _encoder.encode(entries)


def decode(raw: bytes) -> tuple[Entry, ...]:
    return _decoder.decode(raw)


def digest(entries: Sequence[Entry]) -> str:
    """SHA-256 over the canonical bytes: what `ModelReplied.history_digest` holds."""
    return text_digest(encode(entries).decode())


def _said_before(thread: Thread, cut: int | None) -> int:
    """How many of the things said came before this cut; all of them, if there is none."""
    return (
        len(thread.said)
        if cut is None
        else bisect_left(thread.said, cut, key=lambda fact: fact.seq)
    )


def _entry(fact: Fact) -> Entry:
    match fact.event:
        case e.Said(role="system", text=text):
            return System(text)
        case e.Said(role="user", text=text, name=name):
            return User(text, name)
        case e.Said(role="note", text=text, name=name):
            return Note(text, name)
        case e.Carried():
            return Note(refusal_texts.unreadable(fact.slot.tail[1]))
        case other:
            raise Defect(f"{fact.slot.subject} holds {other!r}, which nobody can have said.")


def outcome(call: Call, wish: e.Wish) -> Outcome:
    """How a settled call ended."""
    last = call.reconciled or call.finished
    match last and last.event:
        case e.ToolReturned(output=output):
            return _ended(call, wish, "returned", _as_it_ran(call, wish, output))
        case e.ToolFailed(error=error):
            what = error if error.strip() else refusal_texts.failed_in_silence(wish.tool)
            return _ended(call, wish, "failed", _as_it_ran(call, wish, what), is_error=True)
        case e.ToolRefused(ending=ending, text=text):
            what = text if text.strip() else refusal_texts.refused_in_silence(wish.tool)
            return _ended(call, wish, ending, what, is_error=ending != "answered")
        case e.Reconciled(happened=happened, output=output):
            what = (
                output
                if output.strip()
                else refusal_texts.reconciled_in_silence(wish.tool, happened)
            )
            what = _as_it_ran(call, wish, what) if happened else what
            return _ended(call, wish, "reconciled", what, is_error=not happened)
        case None if is_spoiled(call):
            return _ended(call, wish, "denied", refusal_texts.spoiled(wish.tool), is_error=True)
        case other:
            raise Defect(f"{call.ref} is {call.status} and cannot be told to a model: {other!r}.")


def _ended(call: Call, wish: e.Wish, kind: Kind, text: str, *, is_error: bool = False) -> Outcome:
    return Outcome(call.ref.call, wish.tool, wish.provider_id, kind, text, is_error)


def _as_it_ran(call: Call, wish: e.Wish, text: str) -> str:
    """The output verbatim; where a reviewer changed the arguments, that is said first."""
    decision = call.decided.event if call.decided else None
    edited = decision.arguments if isinstance(decision, e.Approved) else None
    if edited is None or edited == wish.arguments:
        return text
    return (
        f"{refusal_texts.arguments_changed(edited)}\n\n{text}"
        if text
        else refusal_texts.arguments_changed(edited)
    )


_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[tuple[Entry, ...]]] = msgspec.json.Decoder(
    tuple[System | User | Note | Assistant | Outcome, ...]
)
