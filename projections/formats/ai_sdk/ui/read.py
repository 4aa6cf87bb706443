"""Reads `UIMessage` lists of the Vercel AI SDK.

Reading loses ids and `metadata` of messages, and which turns were in one message (a `step-start`
ends a turn; each turn is written as a message); the state of texts; `title`, `toolMetadata` and
whether a tool was static or dynamic; and approvals of ended calls, since a payload decides nothing
here. An output that is not text becomes its JSON. `providerMetadata` of texts and calls is not
read; a `reasoning` part keeps its own, as does a `file`, as an opaque part of `ai-sdk`. Calls that
a provider ran itself, and data of users, are refused, not skipped.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ayes.projections.formats.ai_sdk.media import media_in
from ayes.projections.formats.ai_sdk.read import read as read_model_messages
from ayes.projections.formats.ai_sdk.read import read_content, read_input
from ayes.projections.formats.ai_sdk.ui.check import (
    CALLS,
    check,
    input_sent,
    is_sent,
    is_ui,
    kind_of,
    tool_of,
)
from ayes.projections.formats.ai_sdk.write import PROVIDER as MODEL_PROVIDER
from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    checked_json_text,
    checked_messages,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.schemas.events import Opaque, Part, Text, Wish

PROVIDER: Final = "ai-sdk-ui"
#: Rules that must hold to read a payload. The others are about sending it.
_UNREADABLE: Final = frozenset({21, 23, 24, 26, 27, 28, 29})


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of a `UIMessage` list: a reply for each turn of a message, then its outputs.

    Raises:
        BadInput: a message cannot be read unambiguously, or has an open call; names it.
    """
    messages = checked_messages(payload, check, _UNREADABLE)
    return tuple(step for at, message in enumerate(messages) for step in _read_message(at, message))


def read_either(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """Read a list of either form.

    Raises:
        BadInput: as `read` of that form.
    """
    return read(payload) if is_ui(payload) else read_model_messages(payload)


def _read_message(at: int, message: JsonObject) -> Iterator[ConversationStep]:
    match message:
        case {"role": "system", "parts": parts}:
            # The SDK sends them as one text, without a separator.
            yield Spoken("system", "".join(part["text"] for part in parts))
        case {"role": "user", "parts": parts}:
            yield Spoken("user", read_content(at, parts))
        case {"parts": parts}:
            for turn in _turns(parts):
                yield RecordedReply(tuple(_read_part(at, part) for part in turn))
                yield from (_read_output(at, part) for part in turn if kind_of(part) in CALLS)


def _turns(parts: list[JsonObject]) -> list[list[JsonObject]]:
    """The parts between step-starts. Parts that are only for people are not a turn."""
    turns: list[list[JsonObject]] = [[]]
    for part in parts:
        if part["type"] != "step-start":
            turns[-1].append(part)
        elif any(is_sent(one) for one in turns[-1]):
            turns.append([])
    if len(turns) > 1 and not any(is_sent(one) for one in turns[-1]):
        rest = turns.pop()
        turns[-1] += rest
    return turns


def _read_part(at: int, part: JsonObject) -> Part:
    match part:
        case {"type": "text", "text": text}:
            return Text(text)
        case {"type": "reasoning", "text": text}:
            return Opaque(
                MODEL_PROVIDER,
                checked_json_text(at, {"type": "reasoning", "text": text, **_options(part)}),
            )
        case {"type": "file"} if (media := media_in(at, part)) is not None:
            return media
        case {"type": "file", "url": url, "mediaType": media_type}:
            name = {"filename": part["filename"]} if "filename" in part else {}
            return Opaque(
                MODEL_PROVIDER,
                checked_json_text(
                    at,
                    {
                        "type": "file",
                        "data": url,
                        "mediaType": media_type,
                        **name,
                        **_options(part),
                    },
                ),
            )
        case _ if kind_of(part) not in CALLS:
            return Opaque(PROVIDER, checked_json_text(at, part))
        case {"providerExecuted": True}:
            raise unreadable(at, "a call that the provider ran itself cannot be read.")
        case _ if (
            part["state"] == "output-error" and "input" not in part and "rawInput" not in part
        ):
            raise unreadable(at, f"{part['toolCallId']!r} has no input.")
        case _:
            return Wish(tool_of(part), read_input(at, input_sent(part)), part["toolCallId"])


def _options(part: JsonObject) -> JsonObject:
    """The provider metadata, under the name that the SDK sends it with."""
    return {"providerOptions": part["providerMetadata"]} if "providerMetadata" in part else {}


def _read_output(at: int, part: JsonObject) -> Output:
    id_, tool = part["toolCallId"], tool_of(part)
    match part:
        case {"state": "output-available", "output": str(text)}:
            return Output(id_, tool, text)
        case {"state": "output-available", "output": value}:
            return Output(id_, tool, checked_json_text(at, value))
        case {"state": "output-error", "errorText": text}:
            return Output(id_, tool, text, is_error=True)
        case {"approval": {"reason": str(reason)}} if reason.strip():
            return Output(id_, tool, reason, is_error=True)
        case _:
            return Output(id_, tool, f"`{tool}` did not run: it was denied.", is_error=True)
