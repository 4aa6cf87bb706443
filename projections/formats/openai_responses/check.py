"""Checks payloads by the rules of OpenAI Responses.

The sources are the issues named, or OpenAI's own types (the `openai` package):

1.  Every call has its output later in the input: "No tool output found for function call"
    (openai/openai-agents-js#1435). The same goes for custom, computer, shell and patch calls.
2.  An output follows its call: "No tool call found for function call output" (the same issue). A
    search of tools by the client may be answered by a function's output.
3.  A call is answered once (NousResearch/hermes-agent#111443).
4.  A `call_id` is text of 1 to 64 characters (decolua/9router#393).
5.  No two calls of the input have the same `call_id` (earendil-works/pi#9057).
6.  A reasoning item is directly before the item that it led to, which is not reasoning itself
    (vercel/ai#7099, UKGovernmentBEIS/inspect_ai#1990).
7.  A reasoning item has the id and the list `summary` that it came with (OpenAI's types).
8.  No two items have the same `id` (vercel/ai#7883).
9.  An `id` has the prefix of its kind: `fc` for a function call, `rs` for reasoning, `msg` for a
    message (nodetool-ai/nodetool#4252 for the first).
    Rules 6 and 9 are not those of other services with this interface, whose reasoning shows its
    thoughts: they take two in a row, and have ids of their own.
10. A function's name is 1 to 128 characters of A-Z a-z 0-9 _ - . (The length is that of
    diegosouzapw/OmniRoute#4317; 64 is documented for Chat Completions, and never exceeded here.)
11. Arguments are text. They need not be JSON.
12. An output is text of at most 10,485,760 characters (OpenAI's reference), or a list of
    input_text, input_image and input_file.
13. A message's content is text, or parts of its role's kinds: output_text and refusal of an
    assistant, input_text, input_image and input_file of anyone else (jeremychone/rust-genai#119).
14. An `mcp_approval_response` answers an `mcp_approval_request` by that item's id. A decision about
    a tool of ours is not such a response (microsoft/agent-framework#7452).
15. There is an item, and each is an object of a type that exists; a message is known by its role.
16. A file in a message or an output is what Responses takes: one of a link, an id, or a data URL of
    JPEG, PNG, GIF, WebP or a document that it reads; its detail exists (Images and vision, File
    inputs).

Not checked: whether the provider still has a referenced item. With `previous_response_id` or
`conversation`, an output may answer a call that the provider keeps, so rules 2 and 14 accept it.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import FormatProblem, JsonObject, Payload, Problems, as_text
from ayes.projections.formats.openai_files import RESPONSES_FILES, responses_problem
from ayes.projections.formats.openai_responses.items import (
    ID_PREFIXES,
    KEPT,
    MAX_ID,
    OUTPUT_TYPES,
    is_continued,
    is_id,
    is_of_others,
    items_of,
    kind_of,
    reasoning_problem,
)
from ayes.projections.formats.pairing import CallPairing, PairingRules
from ayes.schemas.limits import cited

MAX_OUTPUT: Final = 10_485_760
_SAID: Final = frozenset({"input_text", "input_image", "input_file"})
_REPLIED: Final = frozenset({"output_text", "refusal"})
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_PAIRING: Final = PairingRules(
    missing=1,
    stray=2,
    twice=3,
    place="after it",
    follows="its call. Put it there",
    result="output",
)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the provider would refuse the payload, by item."""
    items = items_of(payload)
    elsewhere = is_continued(payload)
    # The whole input is one turn, as an output may be anywhere after its call. A call's tool is the
    # type of its output.
    found = CallPairing(_PAIRING)
    if not items:
        found.add(15, "there is no item in `input`. Add one.")
    approvals, searches, item_ids = set[str](), set[str](), set[str]()
    for item, following in zip(found.each(items), [*items[1:], None], strict=False):
        kind = kind_of(item)
        if kind is None:
            found.add(15, "an item is an object of a known `type`, or a message with a known role.")
            continue
        _check_item_id(item, kind, item_ids, found)
        if kind in OUTPUT_TYPES:
            _check_call(item, kind, found)
        elif kind in OUTPUT_TYPES.values():
            _check_output(item, kind, found)
            id_ = as_text(item.get("call_id"))
            found.add_result(id_, tool=kind, elsewhere=elsewhere or id_ in searches)
        elif kind == "message":
            _check_message(item, found)
        elif kind == "reasoning":
            _check_reasoning(item, following, found)
        elif kind == "tool_search_call" and item.get("call_id"):
            searches.add(as_text(item["call_id"]))
        elif kind == "mcp_approval_request":
            approvals.add(as_text(item.get("id")))
        elif kind == "mcp_approval_response":
            _check_approval(item, None if elsewhere else approvals, found)
    found.end_turn()
    return found.in_order()


def _check_approval(item: JsonObject, approvals: set[str] | None, found: Problems) -> None:
    """Check that an approval answers one of these requests; `None` allows any."""
    known = approvals is None or as_text(item.get("approval_request_id")) in approvals
    if not known or not isinstance(item.get("approve"), bool):
        wrong = "the approval answers no `mcp_approval_request` before it with true or false."
        found.add(14, f"{wrong} Decisions about other tools are sent as the call's output.")


def _check_item_id(item: JsonObject, kind: str, item_ids: set[str], found: Problems) -> None:
    """Check the item's own id, and add it to `item_ids`. A reference is not a second use."""
    id_ = item.get("id")
    if id_ is None or kind == "item_reference":
        return
    if as_text(id_) in item_ids:
        found.add(8, f"an earlier item has the id {cited(id_)} too. Drop one of the two.")
    prefix = ID_PREFIXES.get(kind, "")
    known = kind == "reasoning" and is_of_others(item)
    if not isinstance(id_, str) or not (known or id_.startswith(prefix)):
        found.add(9, f"the id {cited(id_)} does not begin with {prefix!r}. Leave the id out.")
    item_ids.add(as_text(id_))


def _check_call(call: JsonObject, kind: str, found: CallPairing) -> None:
    id_, name = call.get("call_id"), call.get("name")
    if not is_id(id_):
        wrong = f"the call_id {cited(id_)} is not text of 1 to {MAX_ID} characters."
        found.add(4, f"{wrong} Mint another.")
    if as_text(id_) in found.used:
        found.add(5, f"{cited(id_)} is the id of an earlier call too. Mint another.")
    found.add_call(as_text(id_), OUTPUT_TYPES[kind])
    if kind != "function_call":
        return
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wrong = f"the name {cited(name)} is not 1 to 128 of A-Z a-z 0-9 _ -."
        found.add(10, f"{wrong} Replace the rest.")
    if not isinstance(call.get("arguments"), str):
        wrong = f"the arguments of {cited(id_)} are not text."
        found.add(11, f"{wrong} Send the raw JSON text, not an object.")


def _check_output(item: JsonObject, kind: str, found: Problems) -> None:
    output = item.get("output")
    if kind == "function_call_output" and not _is_text_or(_SAID, output):
        found.add(12, "the output is neither text nor a list of input parts. Send it as text.")
    elif isinstance(output, str) and len(output) > MAX_OUTPUT:
        found.add(12, f"the output has more than {MAX_OUTPUT:,} characters. Shorten it.")
    if kind == "function_call_output":
        _check_files(output, found)


def _check_files(content: Any, found: Problems) -> None:
    for part in content if isinstance(content, list) else ():
        is_file = isinstance(part, dict) and part.get("type") in RESPONSES_FILES
        if is_file and (wrong := responses_problem(part)):
            found.add(16, f"{wrong} Send another form of it, or tell it in words.")


def _check_message(message: JsonObject, found: Problems) -> None:
    kinds = _REPLIED if message["role"] == "assistant" else _SAID
    content = message.get("content")
    if not _is_text_or(kinds, content) or content == []:
        known = f"text, or parts of type {', '.join(sorted(kinds))}"
        found.add(13, f"the content of role {message['role']} is {known}.")
    _check_files(content, found)


def _is_text_or(kinds: frozenset[str], content: Any) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and part["type"] in kinds
        and (
            part["type"] in RESPONSES_FILES
            or isinstance(part.get("refusal" if part["type"] == "refusal" else "text"), str)
        )
        for part in content
    )


def _check_reasoning(item: JsonObject, following: Any, found: Problems) -> None:
    if lacking := reasoning_problem(item):
        found.add(7, f"{lacking} Send the item as it came, or drop it.")
    if is_of_others(item):
        return
    kind = kind_of(following)
    came_of_it = (
        kind in OUTPUT_TYPES or (kind in KEPT and kind != "reasoning") or kind == "item_reference"
    )
    if not came_of_it and not (kind == "message" and following["role"] == "assistant"):
        wrong = "the item that this reasoning led to does not follow it."
        found.add(6, f"{wrong} Send both, or neither.")
