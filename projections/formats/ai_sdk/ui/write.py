"""Writes `UIMessage` lists for the Vercel AI SDK.

This form loses the same as `ai_sdk` of arguments, ids, names, blank texts and notes. Opaque parts
of other providers, also of `ai-sdk`, are for models and left out. Ours (`Opaque.provider ==
"ai-sdk-ui"`) hold the JSON of a `source-url`, `source-document` or `data-<name>` part, which is for
people alone.
"""

from collections.abc import Iterator, Sequence

from ayes.projections.formats.ai_sdk.media import takes_of_model, ui_part_of
from ayes.projections.formats.ai_sdk.ui.check import FOR_PEOPLE, is_sent, kind_of, lacks
from ayes.projections.formats.ai_sdk.write import numbered, output_of, spoken
from ayes.projections.formats.common import (
    BLANK,
    JsonObject,
    Payload,
    arguments_object,
    content_items,
    parse_json,
    text_item,
    tool_name,
)
from ayes.projections.formats.pairing import PairedTurn
from ayes.projections.history import Entry, Note, Outcome, System, User
from ayes.schemas.content import spoken as said_in
from ayes.schemas.events import Media, Opaque, Part, Refusal, Text, Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: UIMessages, numbered from m1. A call and its result are one part.

    A part has an `approval` only if the SDK requires one, in `output-denied`.
    """
    messages: list[JsonObject] = []
    for step, ids in numbered(entries):
        id_ = f"m{len(messages) + 1}"
        match step:
            case PairedTurn(assistant=assistant, outcomes=outcomes):
                calls = (
                    ended_part(wish, tool_call_id, end, f"approval_{end.call}")
                    for tool_call_id, (wish, end) in zip(ids, outcomes, strict=True)
                )
                messages.append(
                    {"id": id_, "role": "assistant", "parts": parts_of(assistant.parts, calls)}
                )
            case said:
                messages.append(spoken_message(id_, said, messages))
    return {"messages": messages}


def spoken_message(id_: str, said: System | User | Note, before: list[JsonObject]) -> JsonObject:
    if isinstance(said, User) and isinstance(said.text, tuple):
        return {"id": id_, "role": "user", "parts": content_items(said.text, ui_part_of)}
    role, text = spoken(said, opening=all(one["role"] == "system" for one in before))
    return {"id": id_, "role": role, "parts": [text_item(text)]}


def parts_of(given: Sequence[Part], calls: Iterator[JsonObject]) -> list[JsonObject]:
    parts = [part for one in given if (part := _part(one, calls)) is not None]
    return parts if any(is_sent(part) for part in parts) else [*parts, text_item(BLANK)]


def _part(part: Part, calls: Iterator[JsonObject]) -> JsonObject | None:
    match part:
        case Media() if takes_of_model(part):
            return ui_part_of(part)
        case Text() | Refusal() | Media():
            text = said_in(part) or ""
            return text_item(text) if text.strip() else None
        case Wish():
            return next(calls)
        case Opaque(provider="ai-sdk-ui", data=data):
            kept = parse_json(data)
            return kept if kind_of(kept) in FOR_PEOPLE and not lacks(kept) else None
        case Opaque():
            return None


def ended_part(wish: Wish, id_: str, end: Outcome, approval: str) -> JsonObject:
    """A call with its outcome in one part."""
    shown = call_part(wish.tool, wish.arguments, id_)
    match output_of(end):
        case {"type": "execution-denied", "reason": reason}:
            denial = {"id": approval, "approved": False, "reason": reason}
            return {**shown, "state": "output-denied", "approval": denial}
        case {"type": "error-text", "value": text}:
            return {**shown, "state": "output-error", "errorText": text}
        case output:
            return {**shown, "state": "output-available", "output": output["value"]}


def call_part(tool: str, arguments: str, id_: str) -> JsonObject:
    return {
        "type": "dynamic-tool",
        "toolName": tool_name(tool),
        "toolCallId": id_,
        "input": arguments_object(arguments),
    }
