"""Writes histories for OpenAI Chat Completions.

There is no flag for errors, so the outcome's text says what went wrong; and no place for opaque
parts, so they are left out. Notes are system messages, which a user cannot forge.
"""

from collections.abc import Sequence

from ayes.projections.formats.common import TOOL_NAME, JsonObject, Payload, tool_name
from ayes.projections.formats.openai_chat.check import is_id
from ayes.projections.formats.pairing import PairedTurn, call_id, pair_turns
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.events import Text, Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`. A conversation recorded as facts is written back unchanged."""
    messages: list[JsonObject] = []
    for step in pair_turns(entries):
        match step:
            case System(text=text):
                messages.append({"role": "system", "content": text})
            case User(text=text, name=name):
                messages.append({"role": "user", **_named(name), "content": text})
            case Note(text=text, name=name):
                messages.append({"role": "system", **_named(name), "content": text})
            case PairedTurn(assistant=assistant, outcomes=outcomes):
                messages += _turn(assistant, outcomes)
    return {"messages": messages}


def _turn(assistant: Assistant, outcomes: Sequence[tuple[Wish, Outcome]]) -> list[JsonObject]:
    texts = [part.text for part in assistant.parts if isinstance(part, Text)]
    message: JsonObject = {"role": "assistant", "content": "\n\n".join(texts)}
    if not outcomes:
        return [message]
    if not texts:
        message["content"] = None
    used: set[str] = set()
    ids = [call_id(outcome, used, is_id) for _wish, outcome in outcomes]
    message["tool_calls"] = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": tool_name(wish.tool), "arguments": wish.arguments},
        }
        for id_, (wish, _outcome) in zip(ids, outcomes, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": id_, "name": tool_name(wish.tool), "content": outcome.text}
        for id_, (wish, outcome) in zip(ids, outcomes, strict=True)
    ]
    return [message, *results]


def _named(name: str) -> dict[str, str]:
    """Who speaks, where the name is one that the provider takes."""
    return {"name": name} if TOOL_NAME.fullmatch(name) else {}
