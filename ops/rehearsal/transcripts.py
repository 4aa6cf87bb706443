"""Transcripts: conversations as other systems keep them, in any form that
`ayes.projections.formats` reads.

A file is JSON Lines, a conversation a line, or one JSON document with one conversation in it. A
conversation is the provider's payload, or its list of messages alone. It is called by the `id` that
it has; without one by its line (`line-7`), or, in a document, by the file's name.

* What was said is read by the form's reader, or refused. Nothing is guessed, and nothing that
  somebody said is passed over: what would say something in another form (`SAYING`) may not stand
  beside the messages in this one.
* How a model was to be asked (its name, its tools, its settings) is not what was said, and is not
  read.
* A file is read whole before anything is returned, so nothing is ever recorded from a bad one.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ayes.projections.formats import FORMATS, Payload, format_named
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Kind, Outcome, System, User
from ayes.schemas import strict_json
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.errors import BadFile, BadId, BadInput
from ayes.schemas.ids import token
from ayes.schemas.toml_files import read_text

_MESSAGES: Final = frozenset({"messages"})
#: What the readers of some forms read of a payload. The others read `messages` alone.
READ: Final[dict[str, frozenset[str]]] = {
    "openai-responses": frozenset({"input", "instructions"}),
    "anthropic": _MESSAGES | {"system"},
    "gemini": frozenset({"contents", "systemInstruction", "system_instruction"}),
}
#: Where something is said, in one form or another: in requests, and in the answers that are logged
#: beside them.
SAYING: Final = _MESSAGES.union(*READ.values()) | {
    *("prompt", "history", "response", "responses", "output", "choices", "candidates", "completion")
}
_LISTS: Final = ("messages", "input", "contents")
#: What a fact needs beside the step that it holds: ids, times, a digest.
_ENVELOPE_BYTES: Final = 4096


class Transcript(Struct, frozen=True):
    id: str
    #: Where it stands in its file: `line 7`, or nothing in a document.
    place: str
    steps: tuple[ConversationStep, ...]


def read_transcripts(path: str | Path, form: str) -> list[Transcript]:
    """Read a file of conversations in that form.

    Raises:
        BadInput: there is no such form.
        BadFile: with the line of the first mistake, and where the reader knows it the message,
            counted from 0.
    """
    format_named(form)
    place_of: dict[str, str] = {}
    transcripts = []
    for place, name, text in _texts(str(path), read_text(path)):
        try:
            transcript = _transcript(place, name, text, form)
        except strict_json.BadJson as wrong:
            problem = f"{wrong}." if text.strip() else "the line is blank."
            raise BadFile(str(path), place, problem) from None
        except BadInput as wrong:
            raise BadFile(str(path), place, str(wrong)) from None
        if transcript.id in place_of:
            first = place_of[transcript.id]
            raise BadFile(str(path), place, f"the id {transcript.id!r} stands on {first} already.")
        place_of[transcript.id] = place
        transcripts.append(transcript)
    return transcripts


def entries_of(steps: Sequence[ConversationStep]) -> tuple[Entry, ...]:
    """The history that the steps are, as if every fact had been recorded and nothing had come in
    between.
    """
    entries: list[Entry] = []
    turn = index = 0
    for step in steps:
        match step:
            case Spoken("system", text):
                entries.append(System(text))
            case Spoken("user", text):
                entries.append(User(text))
            case RecordedReply(parts):
                turn, index = turn + 1, 0
                entries.append(Assistant(turn, parts))
            case Output(id_, tool, text, is_error):
                kind: Kind = "failed" if is_error else "returned"
                entries.append(Outcome(f"{turn}-{index}", tool, id_, kind, text, is_error))
                index += 1
    return tuple(entries)


# ----------------------------------------------------------------------------------------- the file


class _Text(NamedTuple):
    """A conversation's JSON: where it stands, and its name if it has none of its own."""

    place: str
    name: str
    text: str


def _texts(path: str, text: str) -> Iterator[_Text]:
    if not text.strip():
        raise BadFile(path, "", "is empty. It needs one conversation a line.")
    if _is_document(path, text):
        yield _Text("", Path(path).stem, text)
        return
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    yield from (_Text(f"line {at}", f"line-{at}", line) for at, line in enumerate(lines, 1))


def _is_document(path: str, text: str) -> bool:
    """One JSON text, over several lines or in a file that says so by its name."""
    named = Path(path).suffix == ".json"
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return named and problem.msg != "Extra data"
    except (ValueError, RecursionError):  # told by whoever reads the value
        return named
    return named or "\n" in text.rstrip("\n")


def _transcript(place: str, name: str, text: str, form: str) -> Transcript:
    value = strict_json.read(text)
    if isinstance(value, list) and value and all(map(_is_conversation, value)):
        raise BadInput("this is a list of conversations. Write each on a line of its own.")
    steps = _steps(value, form)
    if isinstance(value, dict) and value.get("id") is not None:
        name = value["id"]
    token("conversation id", name)
    _check_steps(steps)
    return Transcript(name, place, steps)


def _is_conversation(value: Any) -> bool:
    if isinstance(value, dict):
        return any(key in value for key in _LISTS) and not {"role", "type", "kind"} & set(value)
    return isinstance(value, list)


# --------------------------------------------------------------------------------- the conversation


def _steps(value: Any, form: str) -> tuple[ConversationStep, ...]:
    """The steps of a payload.

    Raises:
        BadInput: says which forms would read it, if others do.
    """
    try:
        return _read(value, form)
    except BadInput as wrong:
        others = [other for other in FORMATS if other != form and _reads(value, other)]
        advice = f" It can be read with --form {' or '.join(others)}." if others else ""
        raise BadInput(f"{wrong}{advice}") from None


def _reads(value: Any, form: str) -> bool:
    try:
        _read(value, form)
    except BadInput:
        return False
    return True


def _read(value: Any, form: str) -> tuple[ConversationStep, ...]:
    steps = FORMATS[form].read(value)
    if not steps:
        raise BadInput("there is no message in it.")
    beside = value if isinstance(value, dict) else {}
    for key in sorted((SAYING - READ.get(form, _MESSAGES)) & beside.keys()):
        if beside[key] not in (None, "", [], {}):
            raise BadInput(
                f"{key!r} beside the messages is not read in this form. Put it among them."
            )
    return steps


def _check_steps(steps: Sequence[ConversationStep]) -> None:
    """Refuse what no fact could hold: the ledger would, but in the midst of it.

    Raises:
        BadInput: a step is too large, or a tool's name cannot be one here.
    """
    for number, step in enumerate(steps, 1):
        size = len(msgspec.json.encode(step))
        if size > MAX_BYTES - _ENVELOPE_BYTES:
            raise BadInput(
                f"{_described(step)}, step {number} of the conversation, has {size:,} bytes, "
                f"and one fact may have {MAX_BYTES:,}."
            )
        for wish in step.wishes if isinstance(step, RecordedReply) else ():
            try:
                token("tool", wish.tool)
            except BadId as wrong:
                raise BadInput(f"step {number} of the conversation: {wrong}") from None


def _described(step: ConversationStep) -> str:
    match step:
        case Spoken(role):
            return f"what the {role} says"
        case RecordedReply():
            return "what the model replies"
        case Output(tool=tool):
            return f"the output of {tool}"


def payload_of(steps: Sequence[ConversationStep], form: str) -> Payload:
    """The steps as the form's writer writes them: what a history that went as they did is written
    as.
    """
    return FORMATS[form].write(entries_of(steps))
