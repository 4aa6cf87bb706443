"""Writes histories for Pydantic AI.

The output is that of the adapter's dump, without fields that have their default. So it has no
timestamps: the adapter fills in the time of loading, which is not sent to a model.

Requests hold prompts and returns; consecutive ones share a request. A denial has the outcome
`denied`, every other end without a result `failed`; an answer instead of the tool's output is a
`success`.

This form loses:

* ids that are empty or repeat, and tool names that rule 5 refuses;
* the speaker (`name`), and that a note is not the user's: it is a prompt marked as a note. (The
  library moves system prompts to the front for some providers, so a note made one would lose its
  place.)
* the names of files, and citations, which are told in words; that a text was a refusal;
* opaque parts that have no equivalent here: items of the services' own tools, OpenAI's reasoning
  with neither a summary nor its encrypted content, and broken data. The id of an item that resulted
  from such reasoning is lost too, and so is reasoning that resulted in such a tool's item, since
  OpenAI refuses either without the other;
* the id of an item that holds a call, if the call is written under another id than its own;
* of an item of OpenAI's, `status` and `caller`; the spelling of a thought signature's base64; and
  the `provider_name` of a text or a call without other provider fields.
"""

from collections.abc import Sequence

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    append_or_merge,
    content_items,
    fitting,
    non_blank,
    tool_name,
    user_text,
)
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.formats.pydantic_ai.media import item_of, takes
from ayes.projections.formats.pydantic_ai.opaque import responded
from ayes.projections.history import Entry, Outcome, System, User
from ayes.schemas.content import words
from ayes.schemas.events import Content, Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelRequests and ModelResponses. The adapter takes the list."""
    return {"messages": written(entries, set())}


def written(entries: Sequence[Entry], used: set[str]) -> list[JsonObject]:
    """The messages. The ids of their calls are added to `used`."""
    messages: list[JsonObject] = []
    for step in pair_turns(fitting(entries, in_messages=takes, in_results=takes)):
        match step:
            case System(text=text):
                _ask(messages, {"content": text, "part_kind": "system-prompt"})
            case PairedTurn(outcomes=outcomes, given=given):
                ids = step.mint_ids(used, bool)
                messages.append({"parts": responded(given, ids), "kind": "response"})
                for wish, outcome in outcomes:
                    _ask(messages, _return(ids[outcome.call], wish, outcome))
            case User(text=text):
                _ask(messages, {"content": items_of(text), "part_kind": "user-prompt"})
            case said:
                _ask(messages, {"content": user_text(said), "part_kind": "user-prompt"})
    return messages


def _ask(messages: list[JsonObject], part: JsonObject) -> None:
    """Add a part to the last request, or to a new one."""
    append_or_merge(messages, {"parts": [part], "kind": "request"}, by="kind", into="parts")


def items_of(content: Content) -> str | list[str | JsonObject]:
    """A content as a prompt or a return has it; its files must be taken (`fitting`)."""
    return content_items(content, item_of, str)


def _return(id_: str, wish: Wish, outcome: Outcome) -> JsonObject:
    ended, content = "success", items_of(outcome.text)
    if outcome.is_error:
        ended = "denied" if outcome.kind == "denied" else "failed"
        content = non_blank(words(outcome.text))
    part = {"tool_name": tool_name(wish.tool), "content": content, "tool_call_id": id_}
    return {**part, "outcome": ended, "part_kind": "tool-return"}
