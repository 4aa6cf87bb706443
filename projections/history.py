"""The history that a model continues from: a thread as one list of entries for any provider.

    system, user, note, ...  ─► assistant ─► outcome, outcome ─► user, ... ─► assistant ─► ...
                                (turn 1)     one for each wish                (turn 2)

The rules:

1. The model was sent the messages before a turn's *cut*, the broker's sequence of its first claim.
   Later messages come after the turn and its outcomes, because the model did not see them. So a
   caller claims the turn first, and makes the history from a thread read as of the claim.
2. A turn is one `Assistant` and, directly after it, exactly one `Outcome` for each wish, in the
   order of the wishes, whatever else was recorded in between.
3. A turn with a call that is not settled is not sent: the history stops before it and names the
   call. No provider takes a call without its result, and a made-up result could never be taken
   back.
4. A model that failed leaves nothing. A model with an empty reply leaves a turn.
5. A result that came after its call was closed (`late`) is kept in the ledger and never shown.
6. Only facts close a pending turn: people's, a deadline's, or (`while_pending = "supersede"`) the
   gate's when the user says something new. Writing a history never does.
7. If the thread declares a `history_limit`, the oldest part is left out (`compacted`), never half a
   pair.

The same facts give the same bytes, so `digest` proves later what a model was sent.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import NOT_RUN, SETTLED
from ayes.projections import refusal_texts
from ayes.projections.thread import Thread, is_settled, is_spoiled
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import MAX_FILE_BYTES, is_sound, parts_of, words
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import Defect
from ayes.schemas.slots import CallRef

#: How a wish ended: it ran, or one of the reasons why it did not.
type Kind = Literal["returned", "failed", "reconciled"] | e.Ending


class System(Struct, frozen=True, tag_field="entry", tag="system"):
    text: str


class User(Struct, frozen=True, tag_field="entry", tag="user"):
    text: e.Content
    name: str = ""


class Note(Struct, frozen=True, tag_field="entry", tag="note"):
    """A message of the system during the conversation."""

    text: str
    name: str = ""


class Assistant(Struct, frozen=True, tag_field="entry", tag="assistant"):
    """The model's reply in one turn, its parts in order."""

    turn: int
    parts: tuple[e.Part, ...]


class Outcome(Struct, frozen=True, tag_field="entry", tag="outcome"):
    """How one wish ended, as the model reads it."""

    #: The call's id, unique in the thread: `<turn>-<index>`.
    call: str
    tool: str
    #: The provider's id: may be empty, and may repeat.
    provider_id: str
    kind: Kind
    #: Empty only when a tool returned nothing.
    text: e.Content
    is_error: bool


type Entry = System | User | Note | Assistant | Outcome


class History(Struct, frozen=True):
    entries: tuple[Entry, ...]
    #: The first call that is not settled: the history stops before its turn. None if complete.
    stopped_at: CallRef | None = None


def history(thread: Thread, before_turn: int | None = None) -> History:
    """The thread as a model reads it, whole or up to the request of turn `before_turn`."""
    opened = thread.opened.event if thread.opened else None
    limit = opened.history_limit if isinstance(opened, e.ThreadOpened) else 0
    entries, stopped_at = _entries(thread, before_turn)
    return History(compacted(entries, limit), stopped_at)


def compacted(entries: Sequence[Entry], limit: int) -> tuple[Entry, ...]:
    """About the newest `limit` entries, or all if it is 0.

    System texts stay. A turn and its outcomes stay or go together, and the last turn always stays.
    The rest begins with a user's message: if the cut falls behind it, the last one before the cut
    is kept. (A list that was cut by other means is safe too: `formats.pairing.pair_turns` makes a
    note of an outcome without its call.)
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
    """The first index that keeps at most `limit` entries and every turn with its outcomes."""
    cut = len(entries) - limit
    while cut < len(entries) and isinstance(entries[cut], Outcome):
        cut += 1
    if cut < len(entries):
        return cut
    while isinstance(entries[cut - 1], Outcome):  # the last turn alone is longer than that
        cut -= 1
    return cut - 1


def _entries(thread: Thread, before_turn: int | None) -> tuple[list[Entry], CallRef | None]:
    """All entries, and the unsettled call that they stop before."""
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


#: Bytes of stored files that are sent with a history. Providers take 20 to 50 MB in a request.
MAX_SENT_BYTES: Final = MAX_FILE_BYTES


def files_in(entries: Sequence[Entry]) -> tuple[e.Media, ...]:
    """The files of a history, in their order."""
    return tuple(
        part for entry in entries for part in _parts_of(entry) if isinstance(part, e.Media)
    )


def are_sent(files: Sequence[e.Media]) -> list[bool]:
    """Which files of a history a provider is sent: of stored ones the newest, up to
    `MAX_SENT_BYTES`. It reads the others in words.

    A message may refer to a stored file again at no cost, and each place is sent its bytes. What no
    stored file can be is read in words too: a raw client may record any size.
    """
    left, sent = MAX_SENT_BYTES, list[bool]()
    for media in reversed(files):
        match media.source:
            case e.Stored(size=size) as stored:
                sent.append(is_sound(stored) and size <= left)
                left -= size if sent[-1] else 0
            case _:
                sent.append(True)
    return sent[::-1]


def with_files(entries: Sequence[Entry], files: Iterable[e.Media]) -> tuple[Entry, ...]:
    """The history with other files in the places of its own (`files_in`), such as the stored ones
    with their bytes.
    """
    following = iter(files)
    return tuple(_with_files(entry, following) for entry in entries)


def _parts_of(entry: Entry) -> Sequence[e.Part]:
    match entry:
        case User(text=content) | Outcome(text=content):
            return parts_of(content)
        case Assistant(parts=parts):
            return parts
        case System() | Note():
            return ()


def _with_files(entry: Entry, following: Iterator[e.Media]) -> Entry:
    def mapped[P: e.Part](parts: tuple[P | e.Media, ...]) -> tuple[P | e.Media, ...]:
        return tuple(next(following) if isinstance(one, e.Media) else one for one in parts)

    match entry:
        case User(text=tuple(content)) | Outcome(text=tuple(content)):
            return structs.replace(entry, text=mapped(content))
        case Assistant(parts=parts):
            return structs.replace(entry, parts=mapped(parts))
        case _:
            return entry


def encode(entries: Sequence[Entry]) -> bytes:
    """The canonical bytes: JSON, without blanks, the fields in the order of their classes."""
    return _encoder.encode(entries)


def decode(raw: bytes) -> tuple[Entry, ...]:
    return _decoder.decode(raw)


def digest(entries: Sequence[Entry]) -> str:
    """SHA-256 over the canonical bytes, as in `ModelReplied.history_digest`."""
    return text_digest(encode(entries).decode())


def _said_before(thread: Thread, cut: int | None) -> int:
    """The number of messages before this cut; all, if there is none."""
    if cut is None:
        return len(thread.said)
    return bisect_left(thread.said, cut, key=lambda fact: fact.seq)


def _entry(fact: Fact) -> Entry:
    match fact.event:
        case e.Said(role="system", text=text):
            return System(words(text))
        case e.Said(role="user", text=text, name=name):
            return User(text, name)
        case e.Said(role="note", text=text, name=name):
            return Note(words(text), name)
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
            silent = refusal_texts.reconciled_in_silence(wish.tool, happened)
            found = output if words(output).strip() else silent
            read = _as_it_ran(call, wish, found) if happened else found
            return _ended(call, wish, "reconciled", read, is_error=not happened)
        case None if is_spoiled(call):
            return _ended(call, wish, "denied", refusal_texts.spoiled(wish.tool), is_error=True)
        case other:
            raise Defect(f"{call.ref} is {call.status} and cannot be told to a model: {other!r}.")


def told(call: Call, wish: e.Wish) -> Outcome | None:
    """What the model reads about a call that has ended or will not run; None while it may run."""
    if call.status in SETTLED:
        return outcome(call, wish)
    if call.status not in NOT_RUN:
        return None
    refused = refusal_texts.tool_not_run(call)
    is_error = refused.ending != "answered"
    return _ended(call, wish, refused.ending, refused.text, is_error=is_error)


def _ended(
    call: Call, wish: e.Wish, kind: Kind, text: e.Content, *, is_error: bool = False
) -> Outcome:
    return Outcome(call.ref.call, wish.tool, wish.provider_id, kind, text, is_error)


def _as_it_ran(call: Call, wish: e.Wish, output: e.Content) -> e.Content:
    """The output verbatim, after a sentence on the arguments if a reviewer changed them."""
    decision = call.decided.event if call.decided else None
    edited = decision.arguments if isinstance(decision, e.Approved) else None
    if edited is None or edited == wish.arguments:
        return output
    changed = refusal_texts.arguments_changed(edited)
    if not output:
        return changed
    if isinstance(output, str):
        return f"{changed}\n\n{output}"
    return (e.Text(changed), *output)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[tuple[Entry, ...]]] = msgspec.json.Decoder(
    tuple[System | User | Note | Assistant | Outcome, ...]
)
