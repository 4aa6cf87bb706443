"""Writes histories for OpenAI Responses.

This form loses the error flag (the text says what went wrong), a user's name, and the border
between two turns with nothing between them. A note's name is put before its text. A `call_id` that
repeats, is empty or too long is minted again, and the item's own `id` is then left out: OpenAI
finds its copy of the item by that id, and the copy has the old `call_id`, so the output would not
find its call. Characters that a tool name may not have are replaced. Images and files are in users'
messages and in outputs (`openai_files`); the model's own files, refusals without an item's id and
citations of other providers are text.

Opaque parts of other providers are left out. Ours (`Opaque.provider == "openai-responses"`) hold
JSON: a whole item that only OpenAI understands (`KEPT`), or, without a `type`, fields of the item
directly after it (`FIELDS`).
"""

from collections.abc import Sequence

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    content_items,
    fitting,
    note_text,
    parse_object,
    tool_name,
)
from ayes.projections.formats.openai_files import responses_part_of, responses_takes
from ayes.projections.formats.openai_responses.items import (
    FIELDS,
    KEPT,
    NAME,
    is_id,
    kind_of,
    message_item,
    reasoning_problem,
    takes,
)
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.history import Entry, Note, System, User
from ayes.schemas.content import spoken
from ayes.schemas.events import Content, Media, Opaque, Refusal, Text, Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"input": [...]}`. System texts keep their places."""
    items: list[JsonObject] = []
    call_ids: set[str] = set()
    item_ids: set[str] = set()
    for step in pair_turns(
        fitting(entries, in_messages=responses_takes, in_results=responses_takes)
    ):
        match step:
            case System(text=text):
                items.append(message_item("system", text))
            case User(text=text):
                items.append({"type": "message", "role": "user", "content": _content(text)})
            case Note(text=text, name=name):
                items.append(message_item("system", note_text(text, name) if name else text))
            case PairedTurn():
                items += _turn(step, call_ids, item_ids)
    return {"input": items}


def _turn(turn: PairedTurn, call_ids: set[str], item_ids: set[str]) -> list[JsonObject]:
    """A turn's items in the model's order, then its outputs in the order of the calls."""
    ids = turn.mint_ids(call_ids, is_id)
    items: list[JsonObject] = []
    before: list[JsonObject] = []  # the reasoning before the next item
    fields: JsonObject = {}
    index = -1
    for part in turn.given.parts:
        match part:
            case Opaque(provider="openai-responses", data=data):
                kept = parse_object(data)
                if "part_kind" in kept:
                    continue
                if "type" not in kept:
                    fields = kept
                    continue
                if kept["type"] == "reasoning":
                    before = [] if reasoning_problem(kept) else [kept]
                    continue
                if kind_of(kept) in KEPT and takes(kept, item_ids):
                    _place(items, before, kept, item_ids)
            case Text() | Refusal() | Media():
                _place(items, before, _said(part, fields, item_ids), item_ids)
            case Wish():
                index += 1
                # Without a result, the parts before the call are left out with it.
                if id_ := ids.get(f"{turn.given.turn}-{index}"):
                    _place(items, before, _call(id_, part, fields, item_ids), item_ids)
            case Opaque():
                continue
        before, fields = [], {}
    outputs = [
        {
            "type": "function_call_output",
            "call_id": ids[outcome.call],
            "output": _content(outcome.text),
        }
        for _wish, outcome in turn.outcomes
    ]
    return [*items, *outputs] or [message_item("assistant", "")]


def _place(
    items: list[JsonObject], before: list[JsonObject], item: JsonObject, item_ids: set[str]
) -> None:
    """Append the item after its reasoning."""
    items += [kept for kept in before if takes(kept, item_ids)]
    items.append(item)


def _content(content: Content) -> str | list[JsonObject]:
    return content_items(
        content, responses_part_of, lambda text: {"type": "input_text", "text": text}
    )


def _said(part: Text | Refusal | Media, fields: JsonObject, item_ids: set[str]) -> JsonObject:
    """A message of the model. Only one with its id has parts: a refusal, or a text's citations."""
    more = _more("message", fields, item_ids)
    if "id" not in more:
        phase = {"phase": more["phase"]} if "phase" in more else {}
        return {**message_item("assistant", spoken(part) or ""), **phase}
    match part:
        case Refusal(text=text):
            content: list[JsonObject] = [{"type": "refusal", "refusal": text}]
        case Text(text=text) if (cited := _annotations(part)) is not None:
            content = [{"type": "output_text", "text": text, "annotations": cited}]
        case _:
            content = [{"type": "output_text", "text": spoken(part) or "", "annotations": []}]
    return {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        **more,
        "content": content,
    }


def _annotations(text: Text) -> list[JsonObject] | None:
    """The citations as this provider has them; None if one is another's."""
    found = [parse_object(one.data) if one.provider == NAME else {} for one in text.citations]
    return found if all(isinstance(one.get("type"), str) for one in found) else None


def _call(id_: str, wish: Wish, fields: JsonObject, item_ids: set[str]) -> JsonObject:
    """The call. Its item's id is sent only with the `call_id` it came with."""
    kept = fields if id_ == wish.provider_id else {**fields, "id": None}
    return {
        "type": "function_call",
        **_more("function_call", kept, item_ids),
        "call_id": id_,
        "name": tool_name(wish.tool),
        "arguments": wish.arguments,
    }


def _more(kind: str, fields: JsonObject, item_ids: set[str]) -> JsonObject:
    """The fields of the item. Its id, if valid and unused, is added to `item_ids`."""
    more = {name: fields[name] for name in FIELDS[kind] if fields.get(name) is not None}
    if "id" in more and not takes({"type": kind, **more}, item_ids):
        del more["id"]
    return more
