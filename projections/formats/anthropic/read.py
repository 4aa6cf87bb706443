"""Reads conversations of Anthropic Messages.

What is lost when a history is written and read again: whether the system or a note said what is
marked as theirs; who spoke; the border between system texts, and between two turns with nothing
between them; the places of texts among the wishes; blank texts, and the blanks of a result that has
nothing else; ids that were minted, and in a tool's name and in arguments what was changed. Of
arguments that are an object, the spelling: their order stays. `cache_control` and `caller` are
about how a request is handled, and are not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ayes.projections.formats.anthropic.check import blocks_of, shape_problem
from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    checked_json_text,
    messages_of,
    parse_json,
    text_content,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.pairing import PairedSteps, repeated_id
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of a payload, or of a list of messages, which has no `system`.

    Raises:
        BadInput: with the index of the first message that cannot be read without guessing.
    """
    tools: dict[str, str] = {}  # of the message before, which this one must answer
    steps = PairedSteps(Spoken("system", text) for text in _system(payload))
    messages = messages_of(payload)
    for at, message in enumerate(messages):
        blocks = blocks_of(message)
        if blocks is None:
            raise unreadable(at, shape_problem(message))
        _only(at, "the message", message, ("role", "content"))
        if message["role"] == "assistant":
            _all_answered(at, steps)
            reply = RecordedReply(tuple(_read_part(at, block) for block in blocks))
            if (id_ := repeated_id(reply.wishes)) is not None:
                wrong = f"{id_!r} stands for two uses, and nobody knows which result is whose."
                raise unreadable(at, wrong)
            steps.add_reply(reply)
            tools = {wish.provider_id: wish.tool for wish in reply.wishes}
            continue
        results = [block for block in blocks if block["type"] == "tool_result"]
        for block in results:
            steps.add_output(_read_result(at, block, tools, steps.waiting))
        _all_answered(at, steps)
        if blocks[: len(results)] != results:
            raise unreadable(at, "a result comes after something else. Put the results first.")
        tools = {}
        for block in blocks[len(results) :]:
            steps.add_said(Spoken("user", _read_text(at, block)))
    _all_answered(len(messages), steps)
    return steps.finish()


def _system(payload: Payload | Sequence[Any]) -> list[str]:
    match payload:
        case {"system": str(text)}:
            return [text]
        case {"system": [*blocks]} if all(_is_text(block) for block in blocks):
            return [block["text"] for block in blocks]
        case {"system": other} if other is not None:
            raise BadInput("the system is no text, and no list of text blocks.")
        case _:
            return []


def _is_text(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    )


def _read_part(at: int, block: JsonObject) -> Part:
    match block:
        case {"type": "text"}:
            return Text(_read_text(at, block))
        case {"type": "tool_use", "id": str(id_), "name": str(name), "input": dict(given)}:
            _only(at, "a tool_use", block, ("type", "id", "name", "input", *_NOT_READ))
            return Wish(name, _arguments(at, given), id_)
        case {"type": "tool_use"}:
            raise unreadable(
                at, "a tool_use is an id and a name, which are texts, and an input object."
            )
        case {"type": kind} if kind in _KEPT or kind.endswith("_tool_result"):
            return Opaque("anthropic", checked_json_text(at, block))
        case {"type": "tool_result"}:
            raise unreadable(
                at, "a result stands in the model's message. Put it into the user's after it."
            )
        case _:
            raise unreadable(
                at, f"a block of type {block['type']!r} in the model's message is not known."
            )


#: Blocks of the model that are kept as they came, and go back so.
_KEPT: Final = ("thinking", "redacted_thinking", "server_tool_use")
_NOT_READ: Final = ("cache_control", "caller")


def _read_text(at: int, block: JsonObject) -> str:
    if block["type"] == "text":
        _only(at, "a text", block, ("type", "text", *_NOT_READ))
    return text_content(at, [block])


def _arguments(at: int, given: JsonObject) -> str:
    """The raw text of a wish: unwrapped if `write` wrapped it, otherwise written as JSON."""
    match given:
        case {"malformed_arguments": str(text)} if len(given) == 1 and text.strip():
            if not isinstance(parse_json(text), dict):
                return text
    return checked_json_text(at, given)


def _read_result(
    at: int, block: JsonObject, tools: Mapping[str, str], waiting: Sequence[Wish]
) -> Output:
    """A result of one of the uses of the message before.

    Args:
        at: the index of the result's message.
        tools: the tool of each of these uses, by its id.
        waiting: those that have no result yet.
    """
    _only(at, "a result", block, ("type", "tool_use_id", "content", "is_error", *_NOT_READ))
    match block:
        case {"tool_use_id": str(id_)} if id_ in tools:
            pass
        case {"tool_use_id": other}:
            raise unreadable(at, f"the result of {other!r} does not follow its use.")
        case _:
            raise unreadable(at, "a result does not say of which use it is: it has no tool_use_id.")
    if all(wish.provider_id != id_ for wish in waiting):
        raise unreadable(at, f"{id_!r} is answered twice. Keep one result.")
    is_error = block.get("is_error")
    if not isinstance(is_error, bool | None):
        raise unreadable(at, "is_error is neither true nor false.")
    content = block.get("content")
    text = "" if content is None or content == [] else text_content(at, content)
    return Output(id_, tools[id_], text, bool(is_error))


def _all_answered(at: int, steps: PairedSteps) -> None:
    """Refuse a turn before that message of which a use has no result."""
    if waiting := steps.waiting:
        id_ = waiting[0].provider_id
        wrong = f"{id_!r} has no result in the next message. Half a pair cannot be kept."
        raise unreadable(at - 1, wrong)


def _only(at: int, what: str, found: JsonObject, keys: Sequence[str]) -> None:
    """Refuse what would get lost. A field that is there and empty says nothing."""
    if more := [key for key in found if key not in keys and found[key] not in (None, [])]:
        raise unreadable(at, f"{what} has {more[0]!r}, which cannot be kept.")
