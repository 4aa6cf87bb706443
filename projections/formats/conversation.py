"""Recorded conversations: JSON Lines, one object with `id` and `messages` a line.

The messages are in OpenAI's Chat Completions form. An accepted conversation can be recorded and
written back message for message. So everything that would get lost is a mistake: unknown keys,
ambiguous JSON, outputs in another order than their calls, calls without an output.

A file is read whole before anything is returned. A bad conversation spoils the file, unless the
caller takes it out (`skipped`).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct
from pydantic import Field, ValidationError

from ayes.projections.formats.openai_files import read_media
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.content import content_of, parts_of
from ayes.schemas.errors import BadFile, BadId, BadInput
from ayes.schemas.ids import token
from ayes.schemas.toml_files import TomlModel, mistakes, read_text
from ayes.schemas.tool_names import tool_name


class Spoken(Struct, frozen=True):
    """A message to the model."""

    role: Literal["system", "user"]
    text: e.Content


class RecordedReply(Struct, frozen=True):
    """A reply of the model. The outputs of its wishes follow in their order."""

    #: No text if it only called tools. An empty text is a text.
    parts: tuple[e.Part, ...]

    @property
    def wishes(self) -> tuple[e.Wish, ...]:
        return tuple(part for part in self.parts if isinstance(part, e.Wish))


class Output(Struct, frozen=True):
    """A tool's output, for the first call without one in the reply before it."""

    provider_id: str
    tool: str
    text: e.Content


type ConversationStep = Spoken | RecordedReply | Output


class RecordedConversation(Struct, frozen=True):
    id: str
    #: Its place in the file: `line 7`.
    place: str
    #: As they are in the file, to compare with later.
    messages: list[dict[str, Any]]
    #: The same in our words, one for each message.
    steps: tuple[ConversationStep, ...]


def refused(wrong: BadFile) -> None:
    """Let one bad conversation spoil its file."""
    raise wrong from None


def read_conversations(
    path: str | Path, skipped: Callable[[BadFile], None] = refused
) -> list[RecordedConversation]:
    """Read a file of conversations.

    Args:
        skipped: given the mistake of each bad conversation, which is left out if it returns.

    Raises:
        BadFile: with the line, and the message within the conversation, of the first mistake.
    """
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise BadFile(str(path), "", "is empty. It needs one conversation on each line.")
    line_of: dict[str, int] = {}
    conversations = []
    for number, line in enumerate(lines, 1):
        place = f"line {number}"
        try:
            conversation = _conversation(line, number)
        except _Mistake as wrong:
            skipped(BadFile(str(path), f"{place}{wrong.where}", wrong.problem))
            continue
        if first := line_of.get(conversation.id):
            problem = f"the id {conversation.id!r} is already used on line {first}."
            skipped(BadFile(str(path), place, problem))
            continue
        line_of[conversation.id] = number
        conversations.append(conversation)
    return conversations


# ----------------------------------------------------------------------------- what a line may hold


class _Said(TomlModel):
    role: Literal["system", "user"]
    #: A text; with files, a list of parts (`_content`).
    content: Any


class _Function(TomlModel):
    name: str
    arguments: str


class _ToolCall(TomlModel):
    id: str = Field(min_length=1)
    type: Literal["function"]
    function: _Function


class _Replied(TomlModel):
    role: Literal["assistant"]
    content: str | None
    tool_calls: Annotated[tuple[_ToolCall, ...], Field(strict=False, min_length=1)] = ()
    refusal: Annotated[str, Field(min_length=1)] = ""
    annotations: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()


class _Returned(TomlModel):
    role: Literal["tool"]
    tool_call_id: str
    name: str
    content: str


type _Message = Annotated[_Said | _Replied | _Returned, Field(discriminator="role")]


type _AtLeastOne = Annotated[tuple[_Message, ...], Field(strict=False, min_length=1)]


class _Line(TomlModel):
    id: str
    messages: _AtLeastOne


# ----------------------------------------------------------------------------------- reading a line

#: The bytes of a fact in addition to its message: ids, times, a digest.
_ENVELOPE_BYTES: Final = 4096


class _Mistake(Exception):
    def __init__(self, problem: str, message: int | None = None) -> None:
        self.problem = problem
        #: Counted from 1.
        self.message = message
        self.where = "" if message is None else f", message {message}"


def _conversation(line: str, number: int) -> RecordedConversation:
    try:
        data = strict_json.read(line)
        if not isinstance(data, dict):
            raise _Mistake("a conversation is a JSON object with id and messages.")
        read = _Line.model_validate(data)
        token("conversation id", read.id)
    except strict_json.BadJson as wrong:
        raise _Mistake(f"{wrong}." if line.strip() else "the line is blank.") from None
    except ValidationError as wrong:
        place, problem = next(mistakes(wrong))
        match place:
            case ("messages", int(index), *_):
                raise _Mistake(problem, index + 1) from None
            case _:
                raise _Mistake(problem) from None
    except BadId as wrong:
        raise _Mistake(str(wrong)) from None
    steps = _steps(read.messages)
    for message, step in enumerate(steps, 1):
        size = size_of_step(step)
        if size > MAX_BYTES - _ENVELOPE_BYTES:
            raise _Mistake(f"it has {size:,} bytes, and one fact may have {MAX_BYTES:,}.", message)
        for wish in step.wishes if isinstance(step, RecordedReply) else ():
            try:
                tool_name(wish.tool)
            except BadId as wrong:
                raise _Mistake(str(wrong), message) from None
    return RecordedConversation(read.id, f"line {number}", data["messages"], steps)


def size_of_step(step: ConversationStep) -> int:
    """The bytes of a step in a fact: without those of its files, of which large ones are stored."""
    parts = step.parts if isinstance(step, RecordedReply) else parts_of(step.text)
    held = [part.source for part in parts if isinstance(part, e.Media)]
    files = sum(len(one.data) for one in held if isinstance(one, e.Inline))
    return len(msgspec.json.encode(step)) - files


def _steps(messages: Sequence[_Said | _Replied | _Returned]) -> tuple[ConversationStep, ...]:
    """The messages in our words. Each call must have its output before anything else is said."""
    steps: list[ConversationStep] = []
    wishes: tuple[e.Wish, ...] = ()
    answered = 0
    for number, message in enumerate(messages, 1):
        if isinstance(message, _Returned):
            _check_output(message, wishes, answered, number)
            answered += 1
            steps.append(Output(message.tool_call_id, message.name, message.content))
            continue
        if answered < len(wishes):
            raise _Mistake(
                f"{_call(wishes[answered])} has no tool message before this one.", number
            )
        wishes, answered = (), 0
        if isinstance(message, _Said):
            steps.append(Spoken(message.role, _content(message, number)))
        else:
            wishes = _wishes(message, number)
            cited = tuple(_citation(one) for one in message.annotations)
            text = () if message.content is None else (e.Text(message.content, cited),)
            refused = (e.Refusal(message.refusal),) if message.refusal else ()
            steps.append(RecordedReply((*text, *refused, *wishes)))
    if answered < len(wishes):
        raise _Mistake(f"{_call(wishes[answered])} has no tool message.", len(messages))
    return tuple(steps)


def _content(message: _Said, number: int) -> e.Content:
    """A text, or texts and files in their order."""
    if isinstance(message.content, str):
        return message.content
    if not isinstance(message.content, list):
        raise _Mistake("'content' should be a valid string, or a list of parts.", number)
    try:
        parts = [_part(part) for part in message.content]
    except BadInput as wrong:
        raise _Mistake(str(wrong), number) from None
    if message.role != "user" or not any(isinstance(part, e.Media) for part in parts):
        raise _Mistake("content in parts is a user's, with a file. Write a text as it is.", number)
    return content_of(parts)


def _part(part: Any) -> e.Text | e.Media:
    match part:
        case {"type": "text", "text": str(text), **rest} if not rest:
            return e.Text(text)
        case {"type": str()}:
            return read_media(part)
        case _:
            raise BadInput("a part of the content is not an object with a type.")


def _citation(annotation: dict[str, Any]) -> e.Citation:
    """An annotation of a reply (`url_citation`)."""
    about = annotation.get("url_citation")
    texts = {
        name: value
        for name in ("url", "title")
        if isinstance(about, dict) and isinstance(value := about.get(name), str)
    }
    data = json.dumps(annotation, ensure_ascii=False, separators=(",", ":"))
    return e.Citation(**texts, provider="openai-chat", data=data)


def _wishes(message: _Replied, number: int) -> tuple[e.Wish, ...]:
    calls = message.tool_calls
    if message.content is None and not calls and not message.refusal:
        raise _Mistake("an assistant message needs content or tool_calls.", number)
    ids = [call.id for call in calls]
    if len(set(ids)) != len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise _Mistake(f"two calls in one message have the id {twice!r}.", number)
    return tuple(e.Wish(call.function.name, call.function.arguments, call.id) for call in calls)


def _check_output(
    message: _Returned, wishes: tuple[e.Wish, ...], answered: int, number: int
) -> None:
    asked = [wish.provider_id for wish in wishes]
    if message.tool_call_id not in asked:
        wrong = f"tool_call_id {message.tool_call_id!r} is not a call"
        raise _Mistake(f"{wrong} of the assistant message before it.", number)
    wish = wishes[asked.index(message.tool_call_id)]
    if wish in wishes[:answered]:
        raise _Mistake(f"{_call(wish)} was answered already.", number)
    if wish != wishes[answered]:
        raise _Mistake(
            f"{_call(wish)} is answered before {_call(wishes[answered])}. "
            "A history writes outputs in the order of the calls; sort them.",
            number,
        )
    if message.name != wish.tool:
        raise _Mistake(f"{_call(wish)} is answered under the name {message.name!r}.", number)


def _call(wish: e.Wish) -> str:
    return f"call {wish.provider_id!r} of {wish.tool}"
