"""Shared parts of the formats: payloads, problems, and names and texts that every provider takes.

Writers decide from left to right, so that a growing history is written with the same beginning and
the provider's cache of the earlier part stays valid.

An opaque part (`ayes.schemas.events.Opaque`) names its owner in `provider` and holds its content in
`data`:

* `provider` is the wire form of the service that takes the part back: `anthropic`,
  `openai-responses`, `gemini`. A service without a form here has its name in pydantic-ai (`groq`,
  `bedrock`); `pydantic-ai` and `ai-sdk` own the parts that do not name a service. Each service has
  one name, so a form's writer and a live model of the same service look for the same parts.
* `data` is JSON in that form. The service compares it byte for byte, and it outlives any library.
  A part from pydantic-ai is therefore translated, but only if the translation can be reversed
  exactly. Otherwise it stays pydantic-ai's part, with a `part_kind`: only pydantic-ai can send it
  again, and the form's own writer leaves it out.
* A part that belongs to a text or a wish (a thought signature, an item's id) comes directly before
  it.

`pydantic_ai.opaque` translates between the two (`recorded`, `responded`).
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from ayes.projections.history import Entry, Note, Outcome, System, User
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.content import described, problem_of, words
from ayes.schemas.errors import BadInput
from ayes.schemas.limits import cited

type JsonObject = dict[str, Any]

#: The part of a request's body that holds the history: the messages, and the system text if the
#: provider keeps it elsewhere.
type Payload = JsonObject

#: The field that wraps the raw text of arguments that are not an object.
MALFORMED: Final = "malformed_arguments"
#: Replaces a text without a visible character.
BLANK: Final = "(no text)"
#: The user's message before a history that opens with the model.
OPENING: Final = "(The conversation begins.)"
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]", re.ASCII)


class FormatProblem(Struct, frozen=True):
    """Why a provider would refuse a payload."""

    #: Its number at the top of the format's `check`.
    rule: int
    #: Index into `messages`.
    message: int
    #: What is wrong, and what to do.
    sentence: str

    def __str__(self) -> str:
        return f"message {self.message}: {self.sentence} (rule {self.rule})"


class Problems(list[FormatProblem]):
    """The problems that a checker has found so far."""

    #: The index of the message that is checked now.
    at: int = 0

    def each[T](self, messages: Iterable[T]) -> Iterator[T]:
        """Go through the messages, counting them in `at`."""
        for self.at, message in enumerate(messages):
            yield message

    def add(self, rule: int, sentence: str, at: int | None = None) -> None:
        """Add a problem, of this message unless it is of another one."""
        self.append(FormatProblem(rule, self.at if at is None else at, sentence))

    def check_tool_name(self, rule: int, name: Any) -> None:
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            wrong = f"the tool name {cited(name)} is not 1 to 64 of A-Z a-z 0-9 _ -."
            self.add(rule, f"{wrong} Replace the rest.")

    def check_input(self, rule: int, call_id: Any, value: Any) -> None:
        if not isinstance(value, dict):
            wrong = f"the input of {cited(call_id)} is not an object."
            self.add(rule, f"{wrong} Wrap it under a name that says so.")

    def check_new_id(self, rule: int, what: str, id_: str, used: set[str]) -> None:
        """Check that the id is neither empty nor in `used`, and add it there."""
        if not id_ or id_ in used:
            repeated = f"{id_!r} is the id of an earlier {what} too"
            wrong = repeated if id_ else f"a {what}'s id is empty"
            self.add(rule, f"{wrong}. Mint another.")
        used.add(id_)

    def in_order(self) -> list[FormatProblem]:
        """The problems by message; those of one message in the order in which they were found."""
        return sorted(self, key=lambda problem: problem.message)


# ---------------------------------------------------------------------------------------- payloads


def find_messages(
    payload: Any, field: str = "messages", from_text: Callable[[str], JsonObject] | None = None
) -> list[Any]:
    """The messages of a payload, or of a bare list; empty if it is neither.

    Args:
        field: the payload's field that holds them.
        from_text: makes a message of a text in this field, if the provider takes one there.
    """
    found = payload.get(field) if isinstance(payload, dict) else payload
    if from_text is not None and isinstance(payload, dict) and isinstance(found, str):
        return [from_text(found)]
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str | bytes) else []


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


def split_opening(entries: Sequence[Entry]) -> tuple[list[str], Sequence[Entry]]:
    """The system texts that open the history, and the entries after them."""
    texts: list[str] = []
    for entry in entries:
        if not isinstance(entry, System):
            break
        texts.append(entry.text)
    return texts, entries[len(texts) :]


def misfit(
    value: JsonObject, fields: Mapping[str, type | tuple[type, ...] | Callable[[Any], bool]]
) -> str:
    """The first field that is missing or has a value that does not fit; empty if all fit."""
    for field, fits in fields.items():
        if field not in value:
            return field
        found = value[field]
        if not (isinstance(found, fits) if isinstance(fits, type | tuple) else fits(found)):
            return field
    return ""


# ------------------------------------------------------------------------------------------- texts


def user_text(said: System | User | Note) -> str:
    """The text of a user's message. What the system says is marked as a note."""
    match said:
        case User(text=text):
            return words(text)
        case System(text=text):
            return note_text(text)
        case Note(text=text, name=name):
            return note_text(text, name)


def note_text(text: str, name: str = "") -> str:
    """A note marked as one, for a place where a user could have written it."""
    return f"[Note from {name or 'the system'}] {text}"


# ------------------------------------------------------------------------------------------- files


type Takes = Callable[[e.Media], bool]


def nothing(_media: e.Media) -> bool:
    """For a provider that takes no files there."""
    return False


def fitting(
    entries: Sequence[Entry], *, in_messages: Takes = nothing, in_results: Takes = nothing
) -> list[Entry]:
    """The history with the files that the provider takes; the others are told in words.

    What is left is a text, or texts that can be seen and at least one file. The bytes of stored
    files must be in the history (`ayes.consumers.model.with_bytes`).

    Args:
        in_messages: whether it takes a file in a user's message.
        in_results: whether it takes a file in a tool's result.
    """
    return [_fitting(entry, in_messages, in_results) for entry in entries]


def _fitting(entry: Entry, in_messages: Takes, in_results: Takes) -> Entry:
    match entry:
        case User(text=tuple(content)):
            return structs.replace(entry, text=fitting_content(content, in_messages))
        case Outcome(text=tuple(content)):
            return structs.replace(entry, text=fitting_content(content, in_results))
        case _:
            return entry


def fitting_content(content: e.Content, takes: Takes) -> e.Content:
    """A content with the files that are taken, as in `fitting`."""
    if isinstance(content, str):
        return content
    parts = tuple(
        e.Text(described(part)) if isinstance(part, e.Media) and not is_taken(part, takes) else part
        for part in content
        if isinstance(part, e.Media) or part.text.strip()
    )
    return parts if any(isinstance(part, e.Media) for part in parts) else words(parts)


def is_taken(media: e.Media, takes: Takes) -> bool:
    """Whether a file is sound, is not one whose bytes are only in our store, and is taken."""
    match media.source:
        case e.Stored() | e.Inline(data=""):
            return False
        case _:
            return not problem_of(media) and takes(media)


def text_item(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def content_items(
    content: e.Content,
    of_file: Callable[[e.Media], JsonObject],
    of_text: Callable[[str], Any] = text_item,
) -> str | list[Any]:
    """A content as a provider has it: a text as it is, else an item for each text and file."""
    if isinstance(content, str):
        return content
    return [of_file(one) if isinstance(one, e.Media) else of_text(one.text) for one in content]


def data_url(media: e.Media) -> str:
    """The file as a URL (RFC 2397)."""
    assert isinstance(media.source, e.Inline)
    return f"data:{media.media_type};base64,{media.source.data}"


def from_data_url(url: str, what: str = "file") -> e.Media:
    """The file in a data URL, or the link to it.

    Raises:
        BadInput: it is a data URL that is not of base64.
    """
    if not url.startswith("data:"):
        return e.Media(f"{what}/*" if what in _KINDS else UNKNOWN_TYPE, e.Linked(url))
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, _, coding = head.partition(";")
    media = e.Media(media_type, e.Inline(data))
    if not comma or coding != "base64" or (problem := problem_of(media)):
        why = problem if comma and coding == "base64" else "it is not of the form data:…;base64,…"
        raise BadInput(f"the data URL of the {what} cannot be kept: {why}")
    return media


#: The media type of a file of which nothing is known.
UNKNOWN_TYPE: Final = "application/octet-stream"
_KINDS: Final = ("image", "audio", "video")


def non_blank(text: str) -> str:
    """The text, or `BLANK` if it has no visible character."""
    return text if text.strip() else BLANK


def as_text(value: Any) -> str:
    """A text as it is, and any other value as in a sentence."""
    return value if isinstance(value, str) else cited(value)


# ----------------------------------------------------------------------------- names and arguments


def tool_name(wished: str) -> str:
    """The tool's name in characters that every provider takes, also for a name a model made up.

    A name that some provider refuses gets a part of its digest, so that two of them never become
    the same: `github/create_issue` is `github_create_issue-` and 16 characters.
    """
    if TOOL_NAME.fullmatch(wished):
        return wished
    digest = hashlib.sha256(wished.encode("utf-8", "surrogatepass")).digest()
    readable = _REFUSED.sub("_", wished)[:47] or "nameless"
    return f"{readable}-{base64.b32encode(digest[:10]).decode().lower()}"


def named_tools(names: Iterable[str]) -> dict[str, str]:
    """The tools to offer to a model, by the names under which it knows them: the way back.

    A tool that was declared under the very name made for another one is left out.
    """
    own_last = sorted(names, key=lambda name: tool_name(name) == name, reverse=True)
    return {tool_name(name): name for name in own_last}


def arguments_object(arguments: str) -> JsonObject:
    """The arguments as an object; text that is not one, or is ambiguous, is wrapped."""
    if not arguments.strip():
        return {}
    value = parse_json(arguments)
    return value if isinstance(value, dict) else {MALFORMED: arguments}


def parse_json(text: str) -> Any:
    """The JSON value; `None` if the text is not JSON, or is ambiguous (a key twice)."""
    try:
        return strict_json.read(text)
    except strict_json.BadJson:
        return None


def parse_object(text: str) -> JsonObject:
    """The JSON object; an empty one if the text does not hold an object."""
    value = parse_json(text)
    return value if isinstance(value, dict) else {}


def checked_json_text(value: Any) -> str:
    """The JSON text of a value, without blanks, its keys in their order.

    Raises:
        BadInput: it cannot be written as JSON: it is of another type or nested too deeply, or
            readers would disagree on it (NaN, half a surrogate pair).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        raise BadInput(
            "it cannot be written as JSON: it holds another value, or is nested too deeply."
        ) from None
    return text
