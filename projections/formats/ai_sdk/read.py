"""Reads `ModelMessage` lists of the Vercel AI SDK.

Not read at all: `providerOptions` of messages, texts, calls and results. What a provider ran itself
(`providerExecuted`) is refused, not skipped. A file of the model with `providerOptions` is kept as
it is, as an opaque part.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.ai_sdk.check import check
from ayes.projections.formats.ai_sdk.media import media_in, read_media
from ayes.projections.formats.ai_sdk.write import PROVIDER
from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    arguments_text,
    checked_json_text,
    checked_messages,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.pairing import PairedSteps
from ayes.schemas.content import content_of
from ayes.schemas.events import Content, Opaque, Part, Text, Wish

#: The rules that a readable payload keeps. The others are about sending it.
_UNREADABLE: Final = frozenset({1, 2, 3, 6, 7, 11, 12, 13, 14, 15})


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of a `ModelMessage` list.

    Raises:
        BadInput: a message cannot be read unambiguously; names it.
    """
    steps = PairedSteps()
    for at, message in enumerate(checked_messages(payload, check, _UNREADABLE)):
        role, content = message["role"], message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "tool":
            for part in parts:
                if part["type"] == "tool-result":
                    steps.add_output(_read_output(at, part))
        elif role == "assistant":
            said = [part for part in parts if part["type"] != "tool-approval-request"]
            steps.add_reply(at, RecordedReply(tuple(_read_part(at, part) for part in said)))
        else:
            steps.add_said(Spoken(role, read_content(at, parts)))
    return steps.finish()


def read_content(at: int, parts: list[JsonObject]) -> Content:
    """Texts, joined as paragraphs; or texts and files in their order."""
    if all(part["type"] == "text" for part in parts):
        return read_texts(at, parts)
    return content_of(
        Text(part["text"]) if part["type"] == "text" else read_media(at, part) for part in parts
    )


def read_texts(at: int, parts: list[JsonObject]) -> str:
    """The texts of one speaker, joined as paragraphs."""
    for part in parts:
        if part["type"] != "text":
            wrong = f"a part of type {part['type']!r} is not text, and only texts are read."
            raise unreadable(at, wrong)
    return "\n\n".join(part["text"] for part in parts)


def _read_part(at: int, part: JsonObject) -> Part:
    match part:
        case {"type": "text", "text": text}:
            return Text(text)
        case {"type": "tool-call", "toolCallId": id_, "toolName": tool} if not part.get(
            "providerExecuted"
        ):
            return Wish(tool, read_input(at, part.get("input", {})), id_)
        case {"type": "file"} if (media := media_in(at, part)) is not None:
            return media
        case {"type": "reasoning" | "file"}:
            return Opaque(PROVIDER, checked_json_text(at, part))
        case _:
            raise unreadable(at, f"a {part['type']} that the provider ran itself cannot be read.")


def read_input(at: int, value: Any) -> str:
    # The SDK keeps the text of arguments that it could not parse.
    return value if isinstance(value, str) else arguments_text(at, value)


def _read_output(at: int, part: JsonObject) -> Output:
    id_, tool = part["toolCallId"], part["toolName"]
    match part["output"]:
        case {"type": "text", "value": text}:
            return Output(id_, tool, text)
        case {"type": "error-text", "value": text}:
            return Output(id_, tool, text, is_error=True)
        case {"type": "json", "value": value}:
            return Output(id_, tool, checked_json_text(at, value))
        case {"type": "error-json", "value": value}:
            return Output(id_, tool, checked_json_text(at, value), is_error=True)
        case {"type": "content", "value": items}:
            return Output(id_, tool, read_content(at, items))
        case {"reason": str(reason)} if reason.strip():
            return Output(id_, tool, reason, is_error=True)
        case _:
            return Output(id_, tool, f"`{tool}` did not run: it was denied.", is_error=True)
