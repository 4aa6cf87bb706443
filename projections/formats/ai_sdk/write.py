"""Writes `ModelMessage` lists for the Vercel AI SDK.

A settled call is written as call and result, without approval parts. A denial is
`execution-denied`; every other end without a result is an `error-text`, so that a denial differs
from an expiry.

This form loses:

* the spelling of arguments: their value is kept, but texts that are not an object or are ambiguous
  (a key twice) are wrapped (`MALFORMED`), and blank ones become `{}`;
* ids that are empty or repeat, and tool names that rule 5 refuses;
* texts without a visible character, unless they are alone in a turn and become `BLANK`;
* the speaker (`name`), and the role of notes and of later system texts, which become user messages
  marked as notes;
* how closely a model looks at an image, uploaded files and citations, which are told in words, and
  that a text was a refusal;
* opaque parts of other providers. Ours (`Opaque.provider == "ai-sdk"`) hold the JSON of a
  `reasoning` or `file` part.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ayes.projections.formats.ai_sdk.check import lacks
from ayes.projections.formats.ai_sdk.media import item_of, part_of, takes, takes_of_model
from ayes.projections.formats.common import (
    BLANK,
    JsonObject,
    Payload,
    Takes,
    arguments_object,
    content_items,
    fitting,
    non_blank,
    nothing,
    parse_json,
    text_item,
    tool_name,
    user_text,
)
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.content import spoken as said_in
from ayes.schemas.content import words
from ayes.schemas.events import Media, Opaque, Part, Refusal, Text, Wish

PROVIDER: Final = "ai-sdk"
_OPAQUE: Final = ("reasoning", "file")


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelMessages."""
    messages: list[JsonObject] = []
    for step, ids in numbered(entries, in_results=takes):
        match step:
            case PairedTurn(assistant=assistant, outcomes=outcomes):
                messages.append({"role": "assistant", "content": _said(assistant, ids)})
                if outcomes:
                    results = [_result(id_, *pair) for id_, pair in zip(ids, outcomes, strict=True)]
                    messages.append({"role": "tool", "content": results})
            case User(text=tuple(content)):
                messages.append({"role": "user", "content": content_items(content, part_of)})
            case said:
                role, text = spoken(said, opening=all(one["role"] == "system" for one in messages))
                messages.append({"role": role, "content": text})
    return {"messages": messages}


def numbered(
    entries: Sequence[Entry], in_results: Takes = nothing
) -> Iterator[tuple[System | User | Note | PairedTurn, list[str]]]:
    """The entries in pairs, each turn with the ids of its calls.

    Args:
        in_results: the files that are kept in results.
    """
    used: set[str] = set()
    for step in pair_turns(fitting(entries, in_messages=takes, in_results=in_results)):
        ids = step.mint_ids(used, bool) if isinstance(step, PairedTurn) else {}
        yield step, list(ids.values())


def spoken(step: System | User | Note, *, opening: bool) -> tuple[str, str]:
    """Role and text."""
    if isinstance(step, System) and opening:
        return "system", non_blank(step.text)
    return "user", non_blank(user_text(step))


def _said(assistant: Assistant, ids: Iterable[str]) -> list[JsonObject]:
    minted = iter(ids)
    parts = [part for one in assistant.parts if (part := _part(one, minted)) is not None]
    return parts or [text_item(BLANK)]


def _part(part: Part, ids: Iterator[str]) -> JsonObject | None:
    match part:
        case Media() if takes_of_model(part):
            return part_of(part)
        case Text() | Refusal() | Media():
            text = said_in(part) or ""
            return text_item(text) if text.strip() else None
        case Wish(tool=tool, arguments=arguments):
            return {
                "type": "tool-call",
                "toolCallId": next(ids),
                "toolName": tool_name(tool),
                "input": arguments_object(arguments),
            }
        case Opaque(provider="ai-sdk", data=data):
            kept = parse_json(data)
            fits = isinstance(kept, dict) and kept.get("type") in _OPAQUE and not lacks(kept)
            return kept if fits else None
        case Opaque():
            return None


def _result(id_: str, wish: Wish, outcome: Outcome) -> JsonObject:
    return {
        "type": "tool-result",
        "toolCallId": id_,
        "toolName": tool_name(wish.tool),
        "output": output_of(outcome),
    }


def output_of(outcome: Outcome) -> JsonObject:
    """A denial, an error for any other ending without a result, or the result."""
    if outcome.kind == "denied":
        return {"type": "execution-denied", "reason": non_blank(words(outcome.text))}
    if outcome.is_error:
        return {"type": "error-text", "value": non_blank(words(outcome.text))}
    if isinstance(outcome.text, tuple):
        return {"type": "content", "value": content_items(outcome.text, item_of)}
    return {"type": "text", "value": outcome.text}
