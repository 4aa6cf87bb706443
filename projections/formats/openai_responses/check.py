"""What OpenAI Responses refuses.

As the issues named report it, or as OpenAI's own types (the `openai` package) say:

1.  Every call has its output later in the input: "No tool output found for function call"
    (openai/openai-agents-js#1435). The same goes for custom, computer, shell and patch calls.
2.  An output follows its call: "No tool call found for function call output" (the same issue).
3.  A call is answered once (NousResearch/hermes-agent#111443).
4.  A `call_id` is text of 1 to 64 characters (decolua/9router#393).
5.  No two calls of the input have the same `call_id` (earendil-works/pi#9057).
6.  A reasoning item stands directly before the item that came of it, and that is no reasoning again
    (vercel/ai#7099, UKGovernmentBEIS/inspect_ai#1990).
7.  A reasoning item has the id and the list `summary` that it came with (OpenAI's types).
8.  No two items have the same `id` (vercel/ai#7883).
9.  An `id` begins as its kind does, `fc` for a function call, `rs` for reasoning, `msg` for a
    message (nodetool-ai/nodetool#4252 for the first).
10. A function's name is 1 to 128 characters of A-Z a-z 0-9 _ - . (The characters are certain, the
    length is what diegosouzapw/OmniRoute#4317 clamps to; 64 is documented for Chat Completions, and
    never exceeded here.)
11. Arguments are text. Whether they are JSON is not asked.
12. An output is text of at most 10,485,760 characters (OpenAI's reference), or a list of
    input_text, input_image and input_file.
13. A message's content is text, or parts of its role's kinds: output_text and refusal of an
    assistant, input_text, input_image and input_file of anyone else (jeremychone/rust-genai#119).
14. An `mcp_approval_response` answers an `mcp_approval_request` by that item's id. A decision about
    a tool of ours is no such response (microsoft/agent-framework#7452).
15. There is an item, and each is an object of a type that exists; a message is known by its role.

What is not judged: whether the provider still has an item that is only referred to. Beside
`previous_response_id` or `conversation`, an output may answer a call that the provider keeps, so
rules 2 and 14 do not look for it.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import FormatProblem, JsonObject, Payload
from ayes.projections.formats.openai_responses.items import (
    ID_PREFIXES,
    KEPT,
    MAX_ID,
    OUTPUT_TYPES,
    is_continued,
    is_id,
    items_of,
    kind_of,
    reasoning_problem,
)

MAX_OUTPUT: Final = 10_485_760


_SAID: Final = frozenset({"input_text", "input_image", "input_file"})


_REPLIED: Final = frozenset({"output_text", "refusal"})


_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the items; nothing, if it would take it."""
    items = items_of(payload)
    elsewhere = is_continued(payload)
    problems: list[FormatProblem] = []
    if not items:
        problems.append(FormatProblem(15, 0, "there is no item in `input`. Say something first."))
    asked: dict[str, tuple[int, str]] = {}  # by call_id: where, and the type of output that it waits for
    answered: set[str] = set()
    approvals: set[str] = set()
    item_ids: set[str] = set()
    for at, item in enumerate(items):
        kind = kind_of(item)
        if kind is None:
            problems.append(
                FormatProblem(
                    15, at, "an item is an object of a known `type`, or a message with a known role."
                )
            )
            continue
        problems += _check_item_id(at, item, kind, item_ids)
        id_ = str(item.get("call_id"))
        if kind in OUTPUT_TYPES:
            problems += _check_call(at, item, kind, asked)
            asked.setdefault(id_, (at, OUTPUT_TYPES[kind]))
        elif kind in OUTPUT_TYPES.values():
            problems += _check_output(at, item, kind)
            if id_ in answered:
                problems.append(FormatProblem(3, at, f"{id_!r} is answered twice. Keep one output."))
            elif asked.get(id_, (0, ""))[1] != kind and not (elsewhere and id_ not in asked):
                problems.append(
                    FormatProblem(
                        2, at, f"the output of {id_!r} does not follow its call. Put it there, or drop it."
                    )
                )
            answered.add(id_)
        elif kind == "message":
            problems += _check_message(at, item)
        elif kind == "reasoning":
            problems += _check_reasoning(at, item, items[at + 1] if at + 1 < len(items) else None)
        elif kind == "mcp_approval_request":
            approvals.add(str(item.get("id")))
        elif kind == "mcp_approval_response":
            known = elsewhere or str(item.get("approval_request_id")) in approvals
            if not known or not isinstance(item.get("approve"), bool):
                problems.append(
                    FormatProblem(
                        14,
                        at,
                        "the approval answers no `mcp_approval_request` before it with true or false. "
                        "Decisions about other tools are told by the call's output.",
                    )
                )
    problems += [
        FormatProblem(1, at, f"{id_!r} has no output after it. Wait for it, and send the turn whole.")
        for id_, (at, _) in asked.items()
        if id_ not in answered
    ]
    return sorted(problems, key=lambda problem: problem.message)


def _check_item_id(at: int, item: JsonObject, kind: str, item_ids: set[str]) -> list[FormatProblem]:
    """The item's own id, where it has one. Marks it as used; a reference is no second use."""
    id_ = item.get("id")
    if id_ is None or kind == "item_reference":
        return []
    problems: list[FormatProblem] = []
    if str(id_) in item_ids:
        problems.append(FormatProblem(8, at, f"an earlier item has the id {id_!r} too. Drop one of the two."))
    if not isinstance(id_, str) or not id_.startswith(ID_PREFIXES.get(kind, "")):
        problems.append(
            FormatProblem(
                9, at, f"the id {id_!r} does not begin with {ID_PREFIXES.get(kind, '')!r}. Leave the id out."
            )
        )
    item_ids.add(str(id_))
    return problems


def _check_call(
    at: int, call: JsonObject, kind: str, asked: dict[str, tuple[int, str]]
) -> list[FormatProblem]:
    id_ = call.get("call_id")
    problems: list[FormatProblem] = []
    if not is_id(id_):
        problems.append(
            FormatProblem(
                4, at, f"the call_id {id_!r} is not text of 1 to {MAX_ID} characters. Mint another."
            )
        )
    if str(id_) in asked:
        problems.append(FormatProblem(5, at, f"{id_!r} stands for an earlier call too. Mint another."))
    if kind != "function_call":
        return problems
    name = call.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(
            FormatProblem(10, at, f"the name {name!r} is not 1 to 128 of A-Z a-z 0-9 _ -. Replace the rest.")
        )
    if not isinstance(call.get("arguments"), str):
        problems.append(
            FormatProblem(
                11, at, f"the arguments of {id_!r} are no text. Send the raw JSON text, not an object."
            )
        )
    return problems


def _check_output(at: int, item: JsonObject, kind: str) -> list[FormatProblem]:
    output = item.get("output")
    if kind != "function_call_output" or _is_text_or(_SAID, output):
        if isinstance(output, str) and len(output) > MAX_OUTPUT:
            return [FormatProblem(12, at, f"the output has more than {MAX_OUTPUT:,} characters. Shorten it.")]
        return []
    return [FormatProblem(12, at, "the output is neither text nor a list of input parts. Send it as text.")]


def _check_message(at: int, message: JsonObject) -> list[FormatProblem]:
    kinds = _REPLIED if message["role"] == "assistant" else _SAID
    content = message.get("content")
    if _is_text_or(kinds, content) and content != []:
        return []
    return [
        FormatProblem(
            13,
            at,
            f"the content of role {message['role']} is text, or parts of type {', '.join(sorted(kinds))}.",
        )
    ]


def _is_text_or(kinds: frozenset[str], content: Any) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in kinds
        for part in content
    )


def _check_reasoning(at: int, item: JsonObject, following: Any) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    if lacking := reasoning_problem(item):
        problems.append(FormatProblem(7, at, f"{lacking} Send the item as it came, or drop it."))
    kind = kind_of(following)
    came_of_it = kind in OUTPUT_TYPES or (kind in KEPT and kind != "reasoning") or kind == "item_reference"
    if not came_of_it and not (kind == "message" and following["role"] == "assistant"):
        problems.append(
            FormatProblem(6, at, "what came of this reasoning does not follow it. Send both, or neither.")
        )
    return problems
