"""What the formats have in common: payloads, problems, names and texts that every provider takes.

Everything is decided from left to right, so that a history which grows is written with the same
beginning: the provider's cache of the earlier part stays good.

An opaque part (`ayes.schemas.events.Opaque`) names its owner in `provider` and holds its content in
`data`, by one convention:

* `provider` is the wire form whose service takes the part back: `anthropic`, `openai-responses`,
  `gemini`. A service that has no form of its own here is named as pydantic-ai names it (`groq`,
  `bedrock`); `pydantic-ai` and `ai-sdk` stand for parts that do not name their service. Each
  service has one name, so a form's writer and a live model of the same service ask for the same.
* `data` is JSON as that form has it. The service compares it byte for byte, and it outlives any
  library. A part that pydantic-ai gave is therefore translated, but only where translating it back
  gives that very part. Otherwise it is kept as pydantic-ai's part, which has a `part_kind`: only
  pydantic-ai can send it again, and the form's own writer leaves it out.
* A part that belongs to a text or a wish (a thought signature, an item's id) stands directly
  before it.

The one translation between the two is in `pydantic_ai.opaque` (`recorded`, `responded`).
"""

import json
import re
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

from msgspec import Struct

from ayes.projections.history import Entry, System
from ayes.schemas import strict_json
from ayes.schemas.errors import BadInput

type JsonObject = dict[str, Any]

#: The part of a request's body that holds the history: `messages`, and the system text if the
#: provider keeps it elsewhere.
type Payload = JsonObject

#: The only field of arguments that are not an object, though they must be: their raw text.
MALFORMED: Final = "malformed_arguments"
#: In place of a text without a visible character.
BLANK: Final = "(no text)"
#: The user's side before a history that opens with the model.
OPENING: Final = "(The conversation begins.)"
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


class FormatProblem(Struct, frozen=True):
    """Why a provider would refuse a payload."""

    #: As numbered at the top of the format's `check`.
    rule: int
    #: Index into `messages`.
    message: int
    #: What is wrong, and what to do.
    sentence: str

    def __str__(self) -> str:
        return f"message {self.message}: {self.sentence} (rule {self.rule})"


class Problems(list[FormatProblem]):
    """What a checker has found so far. It adds to it as it goes through the messages."""

    def add(self, rule: int, message: int, sentence: str) -> None:
        self.append(FormatProblem(rule, message, sentence))

    def check_tool_name(self, rule: int, message: int, name: Any) -> None:
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            wrong = f"the tool name {name!r} is not 1 to 64 of A-Z a-z 0-9 _ -."
            self.add(rule, message, f"{wrong} Replace the rest.")

    def check_input(self, rule: int, message: int, call_id: Any, value: Any) -> None:
        if not isinstance(value, dict):
            wrong = f"the input of {call_id!r} is no object."
            self.add(rule, message, f"{wrong} Wrap it under a name that says so.")

    def check_new_id(self, rule: int, message: int, what: str, id_: str, used: set[str]) -> None:
        """The id of a call, or of `what` it is, is neither empty nor in `used`. Adds it there."""
        if not id_ or id_ in used:
            repeated = f"{id_!r} stands for an earlier {what} too"
            self.add(
                rule, message, f"{repeated if id_ else f"a {what}'s id is empty"}. Mint another."
            )
        used.add(id_)

    def in_order(self) -> list[FormatProblem]:
        """In the order of the messages, and of each message as they were found."""
        return sorted(self, key=lambda problem: problem.message)


# ---------------------------------------------------------------------------------------- payloads


def find_messages(payload: Any) -> list[Any]:
    """The messages of a payload, or of a bare list; empty if it is neither."""
    found = payload.get("messages") if isinstance(payload, dict) else payload
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str | bytes) else []


def messages_of(payload: Any) -> list[Any]:
    """The messages of a payload, or of a bare list.

    Raises:
        BadInput: it is neither.
    """
    found = payload.get("messages") if isinstance(payload, dict) else payload
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise BadInput("this is no list of messages, and no object that has one under 'messages'.")
    return find_messages(found)


def checked_messages(
    payload: Any, check: Callable[[list[Any]], list[FormatProblem]], rules: Container[int]
) -> list[Any]:
    """The messages of a payload that a reader can read without a guess.

    Args:
        payload: as `messages_of` takes it.
        check: the format's checker.
        rules: those that a payload must keep to be read. The others are about sending it.

    Raises:
        BadInput: it has no messages, or they break one of these rules; with the first problem.
    """
    messages = messages_of(payload)
    for problem in check(messages) if messages else ():
        if problem.rule in rules:
            raise BadInput(str(problem))
    return messages


def append_or_merge(messages: list[JsonObject], message: JsonObject, *, by: str, into: str) -> None:
    """Append a message, or merge it into the last one if that is of the same side.

    Args:
        by: the field that names the side.
        into: the field that holds the list to extend.
    """
    if messages and messages[-1][by] == message[by]:
        messages[-1][into] += message[into]
    else:
        messages.append(message)


def leading_system_count(entries: Sequence[Entry]) -> int:
    """How many system texts open the history."""
    return next(
        (at for at, entry in enumerate(entries) if not isinstance(entry, System)), len(entries)
    )


# ------------------------------------------------------------------------------------------- texts


def note_text(text: str, name: str = "") -> str:
    """A note where only the user's side can carry it: marked as a note."""
    return f"[Note from {name or 'the system'}] {text}"


def non_blank(text: str) -> str:
    """The text, or `BLANK` if it has no visible character."""
    return text if text.strip() else BLANK


def text_content(at: int, content: Any) -> str:
    """Content that can only be text: a string, or parts of type text, joined as a turn's texts are.

    Raises:
        BadInput: it holds something else; with the index of its message, `at`.
    """
    if isinstance(content, str):
        return content
    texts = [_part_text(at, part) for part in content] if isinstance(content, list) else []
    if not texts:
        raise unreadable(at, "the content is no text, and no list of texts.")
    return "\n\n".join(texts)


def _part_text(at: int, part: Any) -> str:
    match part:
        case {"type": "text", "text": str(found)}:
            return found
        case {"type": kind}:
            raise unreadable(at, f"a part of type {kind!r} cannot be kept: only text can.")
        case _:
            raise unreadable(at, "a part of the content is no object with a type.")


def unreadable(at: int, sentence: str) -> BadInput:
    """Why the message at that index cannot be read."""
    return BadInput(f"message {at}: {sentence}")


# ----------------------------------------------------------------------------- names and arguments


def tool_name(wished: str) -> str:
    """The tool's name as every provider takes it: a model's invention must not spoil the
    history.
    """
    return re.sub(r"[^a-zA-Z0-9_-]", "_", wished, flags=re.ASCII)[:64] or "nameless"


def arguments_object(arguments: str) -> JsonObject:
    """The arguments as an object; text that is not one, or is ambiguous, is wrapped whole."""
    if not arguments.strip():
        return {}
    value = parse_json(arguments)
    return value if isinstance(value, dict) else {MALFORMED: arguments}


def parse_json(text: str) -> Any:
    """The JSON value; `None` if the text is not JSON, or two readers could read it differently."""
    try:
        return strict_json.read(text)
    except strict_json.BadJson:
        return None


def parse_object(text: str) -> JsonObject:
    """The JSON object; an empty one if the text does not hold an object."""
    value = parse_json(text)
    return value if isinstance(value, dict) else {}


def json_text(value: Any) -> str:
    """The JSON text of a value, without blanks, its keys in their order.

    Raises:
        ValueError: readers would disagree on it: NaN, or half a surrogate pair.
        RecursionError: it is nested too deeply.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


def checked_json_text(at: int, value: Any) -> str:
    """The JSON text of a value of the message at that index.

    Raises:
        BadInput: `json_text` cannot write it.
    """
    try:
        return json_text(value)
    except (ValueError, RecursionError):
        raise unreadable(at, "it holds a value that is no JSON, or is nested too deeply.") from None
