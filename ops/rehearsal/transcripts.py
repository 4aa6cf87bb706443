"""Transcripts: conversations of other systems, in any form that `ayes.projections.formats` reads.

A file is JSON Lines with a conversation on each line, or one JSON document with one conversation. A
conversation is the provider's payload, or its list of messages alone. Its name is its `id`, or else
its line (`line-7`) or, in a document, the file's name.

* The messages are read by the form's reader, or refused. Nothing is guessed and no message is
  skipped: keys that hold messages in another form (`SAYING`) are not allowed in addition to those
  of this one.
* Parameters of the request to the model (its name, its tools, its settings) are not messages, and
  are not read.
* A file is read whole before anything is returned. A bad conversation spoils the file, unless the
  caller takes it out (`skipped`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ayes.projections.formats import FORMATS, Payload, format_named
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedReply,
    Spoken,
    refused,
    size_of_step,
)
from ayes.projections.history import Assistant, Entry, Kind, Outcome, System, User
from ayes.schemas import strict_json
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.content import words
from ayes.schemas.errors import BadFile, BadId, BadInput
from ayes.schemas.ids import token
from ayes.schemas.toml_files import read_text
from ayes.schemas.tool_names import tool_name

_MESSAGES: Final = frozenset({"messages"})
#: The keys of a payload that the readers of some forms read. The others read `messages` alone.
READ: Final[dict[str, frozenset[str]]] = {
    "openai-responses": frozenset({"input", "instructions"}),
    "anthropic": _MESSAGES | {"system"},
    "gemini": frozenset({"contents", "systemInstruction", "system_instruction"}),
}
#: The keys that hold messages in any form: in requests, and in responses that are logged with them.
SAYING: Final = _MESSAGES.union(*READ.values()) | {
    *("prompt", "history", "response", "responses", "output", "choices", "candidates", "completion")
}
_LISTS: Final = ("messages", "input", "contents")
#: Bytes of a fact around the step that it holds: ids, times, a digest.
_ENVELOPE_BYTES: Final = 4096


class Transcript(Struct, frozen=True):
    id: str
    #: Its place in the file: `line 7`, or empty in a document.
    place: str
    steps: tuple[ConversationStep, ...]


def read_transcripts(
    path: str | Path, form: str, skipped: Callable[[BadFile], None] = refused
) -> list[Transcript]:
    """Read a file of conversations in that form.

    Args:
        skipped: given the mistake of each bad conversation, which is left out if it returns.

    Raises:
        BadInput: there is no such form.
        BadFile: with the line of the first mistake, and if the reader knows it the message, counted
            from 0.
    """
    format_named(form)
    place_of: dict[str, str] = {}
    transcripts = []
    for place, name, text in _sources(str(path), read_text(path)):
        try:
            transcript = _transcript(place, name, text, form)
        except strict_json.BadJson as wrong:
            problem = f"{wrong}." if text.strip() else "the line is blank."
            skipped(BadFile(str(path), place, problem))
            continue
        except BadInput as wrong:
            skipped(BadFile(str(path), place, str(wrong)))
            continue
        if first := place_of.get(transcript.id):
            problem = f"the id {transcript.id!r} is already used on {first}."
            skipped(BadFile(str(path), place, problem))
            continue
        place_of[transcript.id] = place
        transcripts.append(transcript)
    return transcripts


def entries_of(steps: Sequence[ConversationStep]) -> tuple[Entry, ...]:
    """The history of these steps, as if they alone had been recorded."""
    entries: list[Entry] = []
    turn = index = 0
    for step in steps:
        match step:
            case Spoken("system", text):
                entries.append(System(words(text)))
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


class _Source(NamedTuple):
    """A conversation's JSON, its place, and its name if it has no id."""

    place: str
    name: str
    text: str


def _sources(path: str, text: str) -> Iterator[_Source]:
    if not text.strip():
        raise BadFile(path, "", "is empty. It needs one conversation on each line.")
    if _is_document(path, text):
        yield _Source("", Path(path).stem, text)
        return
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    yield from (_Source(f"line {at}", f"line-{at}", line) for at, line in enumerate(lines, 1))


def _is_document(path: str, text: str) -> bool:
    """Whether the file is one JSON text: by its name, or since it goes over several lines."""
    named = Path(path).suffix == ".json"
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return named and problem.msg != "Extra data"
    except (ValueError, RecursionError):  # reported when the value is read
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
        BadInput: with the forms that could read it, if there are others.
    """
    try:
        return _read(value, form)
    except BadInput as wrong:
        others = [other for other in FORMATS if other != form and _reads(value, other)]
        advice = f" It can be read with --format {' or '.join(others)}." if others else ""
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
        raise BadInput("it has no messages.")
    payload = value if isinstance(value, dict) else {}
    for key in sorted((SAYING - READ.get(form, _MESSAGES)) & payload.keys()):
        if payload[key] not in (None, "", [], {}):
            raise BadInput(f"{key!r} is not read in this form. Put it among the messages.")
    return steps


def _check_steps(steps: Sequence[ConversationStep]) -> None:
    """Refuse steps that no fact could hold, before the first one is recorded.

    Raises:
        BadInput: a step is too large, or a tool's name is not valid here.
    """
    for number, step in enumerate(steps, 1):
        size = size_of_step(step)
        if size > MAX_BYTES - _ENVELOPE_BYTES:
            raise BadInput(
                f"{_described(step)}, step {number} of the conversation, has {size:,} bytes, "
                f"and one fact may have {MAX_BYTES:,}."
            )
        for wish in step.wishes if isinstance(step, RecordedReply) else ():
            try:
                tool_name(wish.tool)
            except BadId as wrong:
                raise BadInput(f"step {number} of the conversation: {wrong}") from None


def _described(step: ConversationStep) -> str:
    match step:
        case Spoken(role):
            return f"the {role}'s message"
        case RecordedReply():
            return "the model's reply"
        case Output(tool=tool):
            return f"the output of {tool}"


def payload_of(steps: Sequence[ConversationStep], form: str) -> Payload:
    """The steps as written by the form's writer."""
    return FORMATS[form].write(entries_of(steps))
