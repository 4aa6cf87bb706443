"""Writes histories for Anthropic Messages.

Entries that this form cannot hold are changed as little as possible: arguments that are not an
object, or are ambiguous (a key twice), are wrapped (`MALFORMED`), a repeated or foreign id is
minted again, text after a use is moved before it, a blank text becomes `BLANK`, and white space at
the end of a history that ends with the model's text is left out. System text that
opens the history is the `system` of the request. Later system texts are a user's texts, marked as
notes.

Images and documents are blocks in users' messages and results (`media`); in the model's own
messages, and where the provider does not take them, they are told in words. Refusals are texts.

Opaque parts of other providers are left out. One of ours (`Opaque.provider == "anthropic"`) holds
the JSON of its block.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ayes.projections.formats.anthropic.check import is_citation, is_id, thinking_problem
from ayes.projections.formats.anthropic.media import PROVIDER, block_of, takes
from ayes.projections.formats.common import (
    BLANK,
    OPENING,
    JsonObject,
    Payload,
    append_or_merge,
    arguments_object,
    fitting,
    non_blank,
    parse_json,
    split_opening,
    tool_name,
    user_text,
)
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.history import Assistant, Entry, Outcome, User
from ayes.schemas.content import described, with_sources
from ayes.schemas.events import Media, Opaque, Part, Refusal, Text, Wish

#: Blocks that are written from facts of their own, and never from an opaque part.
_OURS: Final = frozenset({"text", "tool_use", "tool_result"})


def write(entries: Sequence[Entry]) -> Payload:
    """`{"system": ..., "messages": [...]}`, without `system` where the history opens with none."""
    opening, rest = split_opening(entries)
    system = [text for text in opening if text.strip()]
    messages: list[JsonObject] = []
    used: set[str] = set()
    for step in pair_turns(fitting(rest, in_messages=takes, in_results=takes)):
        match step:
            case PairedTurn(assistant=assistant, outcomes=outcomes):
                ids = step.mint_ids(used, is_id)
                _add(messages, "assistant", _blocks(assistant, ids.values()))
                if outcomes:
                    results = [_result(ids[outcome.call], outcome) for _wish, outcome in outcomes]
                    _add(messages, "user", results)
            case User(text=tuple(content)):
                _add(messages, "user", content_blocks(content))
            case said:
                _add(messages, "user", [_text(user_text(said))])
    if not messages or messages[0]["role"] != "user":
        messages.insert(0, {"role": "user", "content": [_text(OPENING)]})
    _strip_end(messages[-1])
    return {**({"system": "\n\n".join(system)} if system else {}), "messages": messages}


def _add(messages: list[JsonObject], role: str, blocks: list[JsonObject]) -> None:
    append_or_merge(messages, {"role": role, "content": blocks}, by="role", into="content")


def _strip_end(last: JsonObject) -> None:
    """Strip the end of a history that ends with the model's text, which it could not continue."""
    if last["role"] == "assistant" and (block := last["content"][-1])["type"] == "text":
        last["content"][-1] = {**block, "text": block["text"].rstrip()}


def content_blocks(content: Iterable[Text | Media]) -> list[JsonObject]:
    """The blocks of texts and of files that the provider takes, for a message or a result."""
    return [block_of(part) if isinstance(part, Media) else _text(part.text) for part in content]


def _cited_text(text: Text) -> JsonObject | None:
    """A text with its citations if all are this provider's, else with words for them."""
    if not text.text.strip() and not text.citations:
        return None
    raw = [parse_json(one.data) if one.provider == PROVIDER else None for one in text.citations]
    if raw and text.text.strip() and all(is_citation(one) for one in raw):
        return {**_text(text.text), "citations": raw}
    return _text(with_sources(text))


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": non_blank(text)}


def _blocks(assistant: Assistant, ids: Iterable[str]) -> list[JsonObject]:
    """A turn's blocks in their order, but texts after the first use are moved before it."""
    minted = iter(ids)
    blocks: list[JsonObject] = []
    first_use: int | None = None
    for part in assistant.parts:
        block = _block(part, minted)
        if block is None:
            continue
        if block["type"] == "text" and first_use is not None:
            blocks.insert(first_use, block)
            first_use += 1
            continue
        if block["type"] == "tool_use" and first_use is None:
            first_use = len(blocks)
        blocks.append(block)
    if any(block["type"] in {"text", "tool_use"} for block in blocks):
        return blocks
    return [*blocks, _text(BLANK)]


def _block(part: Part, ids: Iterable[str]) -> JsonObject | None:
    match part:
        case Text():
            return _cited_text(part)
        case Refusal(text=text):
            return _text(text) if text.strip() else None
        case Media():
            return _text(described(part))
        case Wish(tool=tool, arguments=arguments):
            return {
                "type": "tool_use",
                "id": next(iter(ids)),
                "name": tool_name(tool),
                "input": arguments_object(arguments),
            }
        case Opaque(provider="anthropic", data=data):
            block = parse_json(data)
            return block if isinstance(block, dict) and _is_opaque(block) else None
        case Opaque():
            return None


def _is_opaque(block: JsonObject) -> bool:
    """A block that the provider may have sent and will take back."""
    kind = block.get("type")
    return isinstance(kind, str) and kind not in _OURS and not thinking_problem(block)


def _result(id_: str, outcome: Outcome) -> JsonObject:
    block: JsonObject = {"type": "tool_result", "tool_use_id": id_}
    if isinstance(outcome.text, tuple):
        block["content"] = content_blocks(outcome.text)
    elif outcome.text.strip():
        block["content"] = outcome.text
    elif outcome.is_error:
        block["content"] = BLANK
    if outcome.is_error:
        block["is_error"] = True
    return block
