"""Reads conversations of Pydantic AI.

Not read: timestamps, usage, models, run ids and metadata, which say nothing to a model.
`instructions` are read as a system text where they begin or change. Feedback that answers no call
is refused, not skipped.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    checked_json_text,
    checked_messages,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.pairing import PairedSteps
from ayes.projections.formats.pydantic_ai.check import call_id_of, check, is_answer
from ayes.projections.formats.pydantic_ai.media import is_file, read_media
from ayes.projections.formats.pydantic_ai.opaque import recorded
from ayes.schemas.content import content_of
from ayes.schemas.events import Content, Media, Text

#: The rules that a readable payload keeps. The others are about sending it.
_UNREADABLE: Final = frozenset({1, 2, 3, 6, 7, 8, 9, 10, 11})


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of the messages.

    Raises:
        BadInput: a message cannot be read unambiguously; names it.
    """
    steps = PairedSteps()
    instructions: str | None = None
    for at, message in enumerate(checked_messages(payload, check, _UNREADABLE)):
        if message["kind"] == "response":
            service = message.get("provider_name")
            parts = recorded(message["parts"], partial(_whose, default=service), at)
            steps.add_reply(at, RecordedReply(parts))
            continue
        told = message.get("instructions")
        if isinstance(told, str) and told != instructions:
            instructions = told
            steps.add_said(Spoken("system", told))
        for part in message["parts"]:
            if is_answer(part):
                steps.add_output(_read_output(at, part))
            else:
                steps.add_said(_read_spoken(at, part))
    return steps.finish()


def _whose(part: JsonObject, default: Any) -> str:
    """The service that made the part, if the part or its response names it."""
    return next(
        (name for name in (part.get("provider_name"), default) if isinstance(name, str)), ""
    )


def _read_spoken(at: int, part: JsonObject) -> Spoken:
    match part:
        case {"part_kind": "system-prompt", "content": text}:
            return Spoken("system", text)
        case {"part_kind": "user-prompt", "content": str(text)}:
            return Spoken("user", text)
        case {"part_kind": "user-prompt", "content": list(items)} if all(
            isinstance(one, str) for one in items
        ):
            return Spoken("user", "\n\n".join(items))
        case {"part_kind": "user-prompt", "content": items}:
            return Spoken("user", _read_items(at, items))
        case _:
            wrong = f"a {part['part_kind']} is not text and answers no call."
            raise unreadable(at, f"{wrong} It cannot be read.")


def _read_output(at: int, part: JsonObject) -> Output:
    content = part["content"]
    is_error = part["part_kind"] != "tool-return" or part.get("outcome", "success") != "success"
    if isinstance(content, str):
        read: Content = content
    elif not is_error and isinstance(content, list) and any(map(is_file, content)):
        read = _read_items(at, content)
    else:
        read = checked_json_text(at, content)
    return Output(call_id_of(part), part["tool_name"], read, is_error=is_error)


def _read_items(at: int, items: list[Any]) -> Content:
    """Texts and files in their order."""
    parts: list[Text | Media] = []
    for item in items:
        if isinstance(item, str):
            parts.append(Text(item))
        elif is_file(item):
            parts.append(read_media(at, item))
        else:
            raise unreadable(at, "it lists something that is neither text nor a file.")
    return content_of(parts)
