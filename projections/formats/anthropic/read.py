"""Reads conversations of Anthropic Messages.

Writing a history and reading it again loses: whether the system or a note said what is marked as
theirs; names of speakers; the border between system texts, and between two turns with nothing
between them; the places of texts among the wishes; blank texts, and the blanks of a result that has
nothing else; ids that were minted, and changes in a tool's name and in arguments. Arguments that
are an object lose their spelling and keep their order. `cache_control` and `caller` are about the
handling of a request, and are not read; nor are `tool_addition` and `tool_removal`, which change
its tools.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.anthropic.check import blocks_of, check
from ayes.projections.formats.anthropic.media import PROVIDER, read_media
from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    arguments_text,
    checked_json_text,
    checked_messages,
    text_content,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.pairing import PairedSteps
from ayes.schemas.content import content_of, words
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Citation, Content, Media, Opaque, Part, Text, Wish

#: The rules that a readable payload keeps. The others are about sending it.
_UNREADABLE: Final = frozenset({1, 2, 3, 4, 15})


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of a payload, or of a list of messages, which has no `system`.

    Raises:
        BadInput: a message cannot be read unambiguously; names it.
    """
    steps = PairedSteps(Spoken("system", text) for text in _system(payload))
    tools: dict[str, str] = {}
    for at, message in enumerate(checked_messages(payload, check, _UNREADABLE)):
        blocks = blocks_of(message)
        assert blocks is not None, "rule 15"
        _only(at, "the message", message, ("role", "content"))
        if message["role"] == "assistant":
            reply = RecordedReply(tuple(_read_part(at, block) for block in blocks))
            steps.add_reply(at, reply)
            tools = {wish.provider_id: wish.tool for wish in reply.wishes}
            continue
        for block in blocks:
            if message["role"] == "system":
                if block["type"] not in _OF_THE_TOOLS:
                    steps.add_said(Spoken("system", _read_text(at, block)))
            elif block["type"] == "tool_result":
                steps.add_output(_read_result(at, block, tools))
            else:
                steps.add_said(Spoken("user", _read_content(at, block)))
    return steps.finish()


def _system(payload: Payload | Sequence[Any]) -> list[str]:
    match payload:
        case {"system": str(text)}:
            return [text]
        case {"system": [*blocks]} if all(_is_text(block) for block in blocks):
            return [block["text"] for block in blocks]
        case {"system": other} if other is not None:
            raise BadInput("the system is neither text nor a list of text blocks.")
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
        case {"type": "text", "citations": [_, *_] as citations, **rest}:
            text = _read_text(at, {"type": "text", **rest})
            return Text(text, tuple(_read_citation(at, one) for one in citations))
        case {"type": "text"}:
            return Text(_read_text(at, block))
        case {"type": "tool_use", "id": str(id_), "name": str(name), "input": dict(given)}:
            _only(at, "a tool_use", block, ("type", "id", "name", "input", *_NOT_READ))
            return Wish(name, arguments_text(at, given), id_)
        case {"type": "tool_use"}:
            raise unreadable(
                at, "a tool_use is an id and a name, which are texts, and an input object."
            )
        case {"type": kind} if kind in _KEPT or kind.endswith("_tool_result"):
            return Opaque("anthropic", checked_json_text(at, block))
        case {"type": "tool_result"}:
            wrong = "a result is in the model's message. Put it into the user's after it."
            raise unreadable(at, wrong)
        case _:
            raise unreadable(
                at, f"a block of type {block['type']!r} in the model's message is not known."
            )


#: Blocks of the model that are kept and sent back unchanged.
_KEPT: Final = (
    *("thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_listing"),
    *("compaction", "container_upload", "fallback"),
)
_OF_THE_TOOLS: Final = ("tool_addition", "tool_removal")
_NOT_READ: Final = ("cache_control", "caller")


def _read_text(at: int, block: JsonObject) -> str:
    if block["type"] == "text":
        _only(at, "a text", block, ("type", "text", *_NOT_READ))
    return text_content(at, [block])


def _read_content(at: int, block: JsonObject) -> Content:
    """A text, or a file."""
    if block["type"] not in ("image", "document"):
        return _read_text(at, block)
    _only(at, f"a block of type {block['type']!r}", block, _OF_A_FILE)
    return (read_media(at, block),)


#: Whether texts may cite a document is a setting of the request.
_OF_A_FILE: Final = ("type", "source", "title", "citations", *_NOT_READ)


def _read_citation(at: int, citation: Any) -> Citation:
    match citation:
        case {"type": str()}:
            texts = {
                name: value
                for name, key in (("url", "url"), ("title", "title"), ("quote", "cited_text"))
                if isinstance(value := citation.get(key), str)
            }
            if isinstance(title := citation.get("document_title"), str):
                texts["title"] = title
            return Citation(**texts, provider=PROVIDER, data=checked_json_text(at, citation))
        case _:
            raise unreadable(at, "a citation is not an object with a type.")


def _read_result(at: int, block: JsonObject, tools: dict[str, str]) -> Output:
    """A result of one of the uses of the message before, whose tools are in `tools`."""
    _only(at, "a result", block, ("type", "tool_use_id", "content", "is_error", *_NOT_READ))
    id_ = block.get("tool_use_id")
    if not isinstance(id_, str):
        raise unreadable(at, "a result does not say of which use it is: it has no tool_use_id.")
    is_error = block.get("is_error")
    if not isinstance(is_error, bool | None):
        raise unreadable(at, "is_error is neither true nor false.")
    content = block.get("content")
    found = _read_output(at, content)
    return Output(id_, tools[id_], words(found) if is_error else found, bool(is_error))


def _read_output(at: int, content: Any) -> Content:
    if content is None or content == []:
        return ""
    if not isinstance(content, list) or not any(map(_is_file, content)):
        return text_content(at, content)
    parts: list[Text | Media] = []
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise unreadable(at, "a part of the content is not an object with a type.")
        read = _read_content(at, block)
        parts += [Text(read)] if isinstance(read, str) else read
    return content_of(parts)


def _is_file(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("image", "document")


def _only(at: int, what: str, found: JsonObject, keys: Sequence[str]) -> None:
    """Refuse a field that would get lost, unless it is empty."""
    if more := [key for key in found if key not in keys and found[key] not in (None, [])]:
        raise unreadable(at, f"{what} has {more[0]!r}, which cannot be kept.")
