"""Writes histories for Pydantic AI.

What is written is as the adapter would dump it, without the fields that have their default. That
goes for the timestamps too: none is made up here, and the adapter fills in the time of loading. No
model is sent it.

Requests hold what was said and the returns; what follows directly goes into the same request. A
denial has the outcome `denied`, every other ending without a result `failed`; an answer in place of
the tool is a `success`.

What the form cannot carry, and is lost from entries to steps:

* ids that are empty or stand for two calls, and tool names that rule 5 refuses;
* who speaks (`name`), and that a note is not the user's: it is a prompt that says so in words. (The
  library hoists system prompts to the front for some providers, so a note made one would lose its
  place.)
* opaque parts that this form has no part for: of the services' own tools as their wire forms have
  them, OpenAI's reasoning without a summary and without its encrypted content, any data that is
  broken. The id of the item that came of such reasoning goes with it, and so does reasoning that
  such a tool's item came of: OpenAI takes neither alone;
* the id of an item that holds a call, where the call goes under another id than its own;
* of an item of OpenAI's, `status` and `caller`; the spelling of a thought signature's base64; and a
  `provider_name` of a text or a call that has nothing else to be named for;
* that an outcome was a denial: `read` has one word, `is_error`, so a second writing has `failed`
  there.
"""

from collections.abc import Sequence

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    append_or_merge,
    non_blank,
    tool_name,
    user_text,
)
from ayes.projections.formats.pairing import PairedTurn, pair_turns
from ayes.projections.formats.pydantic_ai.opaque import responded
from ayes.projections.history import Entry, Outcome, System
from ayes.schemas.events import Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelRequests and ModelResponses. The adapter takes the list."""
    return {"messages": written(entries, set())}


def written(entries: Sequence[Entry], used: set[str]) -> list[JsonObject]:
    """The messages. The ids of their calls are in `used` then."""
    messages: list[JsonObject] = []
    for step in pair_turns(entries):
        match step:
            case System(text=text):
                _ask(messages, {"content": text, "part_kind": "system-prompt"})
            case PairedTurn(outcomes=outcomes, given=given):
                ids = step.mint_ids(used, bool)
                messages.append({"parts": responded(given, ids), "kind": "response"})
                for wish, outcome in outcomes:
                    _ask(messages, _return(ids[outcome.call], wish, outcome))
            case said:
                _ask(messages, {"content": user_text(said), "part_kind": "user-prompt"})
    return messages


def _ask(messages: list[JsonObject], part: JsonObject) -> None:
    """One more request, or more of the last one."""
    append_or_merge(messages, {"parts": [part], "kind": "request"}, by="kind", into="parts")


def _return(id_: str, wish: Wish, outcome: Outcome) -> JsonObject:
    ended, text = "success", outcome.text
    if outcome.is_error:
        ended = "denied" if outcome.kind == "denied" else "failed"
        text = non_blank(text)
    part = {"tool_name": tool_name(wish.tool), "content": text, "tool_call_id": id_}
    return {**part, "outcome": ended, "part_kind": "tool-return"}
