"""Writes histories for OpenAI Chat Completions.

There is no flag for errors, so the outcome's text says what went wrong. Opaque parts are left out:
the form has no place for them. Notes are system messages, which a user cannot forge. Files are in
users' messages (`openai_files`); a tool's message is text, so that they are told there in words, as
citations are.
"""

from collections.abc import Sequence

from ayes.projections.formats.common import (
    TOOL_NAME,
    JsonObject,
    Payload,
    content_items,
    fitting,
    tool_name,
)
from ayes.projections.formats.openai_chat.check import is_id
from ayes.projections.formats.openai_files import part_of, takes
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.history import Entry, Note, System, User
from ayes.schemas.content import spoken, words
from ayes.schemas.events import Refusal


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`. A conversation recorded as facts is written back unchanged."""
    messages: list[JsonObject] = []
    for step in pair_turns(fitting(entries, in_messages=takes)):
        match step:
            case System(text=text):
                messages.append({"role": "system", "content": text})
            case User(text=text, name=name):
                messages.append(
                    {"role": "user", **_named(name), "content": content_items(text, part_of)}
                )
            case Note(text=text, name=name):
                messages.append({"role": "system", **_named(name), "content": text})
            case PairedTurn():
                messages += _turn(step)
    return {"messages": messages}


def _turn(turn: PairedTurn) -> list[JsonObject]:
    parts = turn.assistant.parts
    refusals = [part.text for part in parts if isinstance(part, Refusal) and part.text]
    said = (spoken(part) for part in parts if not isinstance(part, Refusal))
    texts = [text for text in said if text is not None]
    message: JsonObject = {"role": "assistant", "content": "\n\n".join(texts)}
    if refusals:
        message["refusal"] = "\n\n".join(refusals)
    if not texts and (turn.outcomes or refusals):
        message["content"] = None
    if not turn.outcomes:
        return [message]
    ids = turn.mint_ids(set(), is_id)
    message["tool_calls"] = [
        {
            "id": ids[outcome.call],
            "type": "function",
            "function": {"name": tool_name(wish.tool), "arguments": wish.arguments},
        }
        for wish, outcome in turn.outcomes
    ]
    results = [
        {
            "role": "tool",
            "tool_call_id": ids[outcome.call],
            "name": tool_name(wish.tool),
            "content": words(outcome.text),
        }
        for wish, outcome in turn.outcomes
    ]
    return [message, *results]


def _named(name: str) -> dict[str, str]:
    """The speaker's name, if the provider takes it."""
    return {"name": name} if TOOL_NAME.fullmatch(name) else {}
