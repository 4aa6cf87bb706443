"""Histories for OpenAI Responses: one flat list of items, in which nothing is nested in a message.

What it turns down, as the issues named report it or as OpenAI's own types (the `openai` package) say:

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
9.  An `id` begins as its kind does, `fc` for a function call, `rs` for reasoning, `msg` for a message
    (nodetool-ai/nodetool#4252 for the first).
10. A function's name is 1 to 128 characters of A-Z a-z 0-9 _ - . (The characters are certain, the length is what
    diegosouzapw/OmniRoute#4317 clamps to; 64 is documented for Chat Completions, and never exceeded here.)
11. Arguments are text. Whether they are JSON is not asked.
12. An output is text of at most 10,485,760 characters (OpenAI's reference), or a list of input_text, input_image
    and input_file.
13. A message's content is text, or parts of its role's kinds: output_text and refusal of an assistant, input_text,
    input_image and input_file of anyone else (jeremychone/rust-genai#119).
14. An `mcp_approval_response` answers an `mcp_approval_request` by that item's id. A decision about a tool of ours
    is no such response (microsoft/agent-framework#7452).
15. There is an item, and each is an object of a type that exists; a message is known by its role.

What is not judged: whether the provider still has an item that is only referred to. Beside `previous_response_id`
or `conversation`, an output may answer a call that the provider keeps, so rules 2 and 14 do not look for it.

What the ledger holds and this form cannot: an error flag, so the text says what went wrong; a user's name; which
of two turns a text belongs to when nothing stands between them. A note's name is put before its text. A `call_id` that
repeats, is empty or too long is minted again, and the item's own `id` is then left out: OpenAI finds the copy that it
keeps by that id, and the copy has the old `call_id`, so the output would not find its call. A made-up tool name is
spelled in characters that can be sent.

What this form holds and `read` cannot keep: `developer` becomes `system`, as `instructions` do; parts of a message
become messages; a refusal becomes text; annotations, and all but the text of an output, are left out. Images, files
and calls of tools that are no functions are refused, as they cannot be told in words.

Opaque parts go to no other provider. Ours (`Opaque.provider == "openai-responses"`) hold JSON: a whole item that
nobody else understands (`KEPT`), or, where it has no `type`, fields of the item directly after it (`FIELDS`).
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from ayes.projections.formats.common import (
    FormatProblem,
    Paired,
    Payload,
    call_id,
    compact,
    noted,
    paired,
    parsed_object,
    tool_name,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish

NAME: Final = "openai-responses"
MAX_ID: Final = 64
MAX_OUTPUT: Final = 10_485_760

#: Kept verbatim: reasoning, and what the provider's own tools did.
KEPT: Final = frozenset(
    {
        "reasoning",
        "compaction",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
    }
)
#: What an item may have beside that which the ledger has words for.
FIELDS: Final = {
    "message": ("id", "status", "phase"),
    "function_call": ("id", "status", "namespace", "caller"),
}

#: The output that each call waits for.
_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_KINDS: Final = frozenset(
    {
        "message",
        *KEPT,
        *_OUTPUTS,
        *_OUTPUTS.values(),
        "local_shell_call",
        "local_shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "item_reference",
    }
)
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_PREFIXES: Final = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
_SAID: Final = frozenset({"input_text", "input_image", "input_file"})
_REPLIED: Final = frozenset({"output_text", "refusal"})
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)

type Item = dict[str, Any]


def write(entries: Sequence[Entry]) -> Payload:
    """`{"input": [...]}`. System texts stay where they were said."""
    items: list[Item] = []
    call_ids: set[str] = set()
    item_ids: set[str] = set()
    for step in paired(entries):
        match step:
            case System(text=text):
                items.append(_message("system", text))
            case User(text=text):
                items.append(_message("user", text))
            case Note(text=text, name=name):
                items.append(_message("system", noted(text, name) if name else text))
            case Paired(outcomes=outcomes, given=given):
                items += _turn(given, [outcome for _wish, outcome in outcomes], call_ids, item_ids)
    return {"input": items}


def _message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": text}


def _turn(
    assistant: Assistant, outcomes: Sequence[Outcome], call_ids: set[str], item_ids: set[str]
) -> list[Item]:
    """A turn's items in the model's order, then its outputs in the order of the calls."""
    ids = {outcome.call: call_id(outcome, call_ids, _is_id) for outcome in outcomes}
    items: list[Item] = []
    before: list[Item] = []  # the reasoning that the next item came of
    fields: Item = {}
    index = -1
    for part in assistant.parts:
        match part:
            case Opaque(provider="openai-responses", data=data):
                kept = parsed_object(data)
                if "part_kind" in kept:
                    continue
                if "type" not in kept:
                    fields = kept
                    continue
                if kept["type"] == "reasoning":
                    before = [] if _reasoning_problem(kept) else [kept]
                    continue
                if _kind(kept) in KEPT and _takes(kept, item_ids):
                    _place(items, before, kept, item_ids)
            case Text(text=text):
                _place(items, before, _text(text, fields, item_ids), item_ids)
            case Wish():
                index += 1
                if id_ := ids.get(f"{assistant.turn}-{index}"):  # else what came before it goes with it
                    _place(items, before, _call(id_, part, fields, item_ids), item_ids)
            case Opaque():
                continue
        before, fields = [], {}
    outputs = [
        {"type": "function_call_output", "call_id": ids[outcome.call], "output": outcome.text}
        for outcome in outcomes
    ]
    return [*items, *outputs] or [_message("assistant", "")]


def _place(items: list[Item], before: list[Item], item: Item, item_ids: set[str]) -> None:
    """The item, behind the reasoning that it came of."""
    items += [kept for kept in before if _takes(kept, item_ids)]
    items.append(item)


def _text(text: str, fields: Item, item_ids: set[str]) -> Item:
    more = _more("message", fields, item_ids)
    if "id" not in more:
        phase = {"phase": more["phase"]} if "phase" in more else {}
        return {**_message("assistant", text), **phase}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", **more, "content": content}


def _call(id_: str, wish: Wish, fields: Item, item_ids: set[str]) -> Item:
    """The call. Its item's id goes only with the `call_id` it came with: the provider looks its own copy up by it."""
    kept = fields if id_ == wish.provider_id else {**fields, "id": None}
    return {
        "type": "function_call",
        **_more("function_call", kept, item_ids),
        "call_id": id_,
        "name": tool_name(wish.tool),
        "arguments": wish.arguments,
    }


def _more(kind: str, fields: Item, item_ids: set[str]) -> Item:
    """Those of the fields that the item may have; its id only if it can stand, and then it is taken."""
    more = {name: fields[name] for name in FIELDS[kind] if fields.get(name) is not None}
    if "id" in more and not _takes({"type": kind, **more}, item_ids):
        del more["id"]
    return more


def _takes(item: Item, item_ids: set[str]) -> bool:
    """May the item have its id, as far as it has one? Then the id is taken."""
    id_ = item.get("id")
    if id_ is None:
        return True
    if not isinstance(id_, str) or id_ in item_ids or not id_.startswith(_PREFIXES.get(item["type"], "")):
        return False
    item_ids.add(id_)
    return True


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID


def _items(payload: object) -> list[Any]:
    """The items of a payload; a bare list is taken for them, and a bare text for what a user said."""
    found = payload.get("input") if isinstance(payload, dict) else payload
    if isinstance(payload, dict) and isinstance(found, str):
        return [_message("user", found)]
    return list(found) if isinstance(found, list | tuple) else []


def _kind(item: Any) -> str | None:
    """The item's type; None if there is no such type."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    if kind == "message" and not (isinstance(item.get("role"), str) and item["role"] in _ROLES):
        return None
    return kind


def _continued(payload: object) -> bool:
    """Does the provider keep a part of the conversation?"""
    return isinstance(payload, dict) and bool(
        payload.get("previous_response_id") or payload.get("conversation")
    )


# ------------------------------------------------------------------------------------------------------- checking


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the items; nothing, if it would take it."""
    items = _items(payload)
    elsewhere = _continued(payload)
    problems: list[FormatProblem] = []
    if not items:
        problems.append(FormatProblem(15, 0, "there is no item in `input`. Say something first."))
    asked: dict[str, tuple[int, str]] = {}  # by call_id: where, and the type of output that it waits for
    answered: set[str] = set()
    approvals: set[str] = set()
    item_ids: set[str] = set()
    for at, item in enumerate(items):
        kind = _kind(item)
        if kind is None:
            problems.append(
                FormatProblem(
                    15, at, "an item is an object of a known `type`, or a message with a known role."
                )
            )
            continue
        problems += _check_item_id(at, item, kind, item_ids)
        id_ = str(item.get("call_id"))
        if kind in _OUTPUTS:
            problems += _check_call(at, item, kind, asked)
            asked.setdefault(id_, (at, _OUTPUTS[kind]))
        elif kind in _OUTPUTS.values():
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


def _check_item_id(at: int, item: Item, kind: str, item_ids: set[str]) -> list[FormatProblem]:
    """The item's own id, where it has one. Marks it as used; a reference is no second use."""
    id_ = item.get("id")
    if id_ is None or kind == "item_reference":
        return []
    problems: list[FormatProblem] = []
    if str(id_) in item_ids:
        problems.append(FormatProblem(8, at, f"an earlier item has the id {id_!r} too. Drop one of the two."))
    if not isinstance(id_, str) or not id_.startswith(_PREFIXES.get(kind, "")):
        problems.append(
            FormatProblem(
                9, at, f"the id {id_!r} does not begin with {_PREFIXES.get(kind, '')!r}. Leave the id out."
            )
        )
    item_ids.add(str(id_))
    return problems


def _check_call(at: int, call: Item, kind: str, asked: dict[str, tuple[int, str]]) -> list[FormatProblem]:
    id_ = call.get("call_id")
    problems: list[FormatProblem] = []
    if not _is_id(id_):
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


def _check_output(at: int, item: Item, kind: str) -> list[FormatProblem]:
    output = item.get("output")
    if kind != "function_call_output" or _is_text_or(_SAID, output):
        if isinstance(output, str) and len(output) > MAX_OUTPUT:
            return [FormatProblem(12, at, f"the output has more than {MAX_OUTPUT:,} characters. Shorten it.")]
        return []
    return [FormatProblem(12, at, "the output is neither text nor a list of input parts. Send it as text.")]


def _check_message(at: int, message: Item) -> list[FormatProblem]:
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


def _check_reasoning(at: int, item: Item, following: Any) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    if lacking := _reasoning_problem(item):
        problems.append(FormatProblem(7, at, f"{lacking} Send the item as it came, or drop it."))
    kind = _kind(following)
    came_of_it = kind in _OUTPUTS or (kind in KEPT and kind != "reasoning") or kind == "item_reference"
    if not came_of_it and not (kind == "message" and following["role"] == "assistant"):
        problems.append(
            FormatProblem(6, at, "what came of this reasoning does not follow it. Send both, or neither.")
        )
    return problems


def _reasoning_problem(item: Item) -> str:
    """What a reasoning item lacks, in words; nothing for one that is whole."""
    if not isinstance(item.get("id"), str):
        return "the reasoning has no id."
    if not isinstance(item.get("summary"), list):
        return "the reasoning has no list `summary`."
    return ""


# -------------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation in our words, outputs in the order of their calls.

    Raises:
        BadInput: something cannot be read without guessing; with the item.
    """
    if _continued(payload):
        raise BadInput("a part of the conversation is with the provider. Read an input that holds all of it.")
    steps: list[ConversationStep] = []
    if isinstance(payload, dict) and payload.get("instructions") is not None:
        if not isinstance(payload["instructions"], str):
            raise BadInput("`instructions` are no text. Put them into the input as messages.")
        steps.append(Spoken("system", payload["instructions"]))
    items = _items(payload)
    if not items:
        raise BadInput("there is no item in `input`: a payload is {'input': [...]}, or the list itself.")
    parts: list[Part] = []  # of the reply that is being read
    waiting: list[Wish] = []  # calls whose outputs must come next
    for at, item in enumerate(items):
        kind = _readable(at, item)
        if waiting and kind != "function_call_output":
            raise _mistake(at, f"the call {waiting[0].provider_id!r} has no output before this item.")
        if kind == "function_call_output":
            if parts:
                waiting = _closed(steps, parts)
            steps.append(_output(at, item, waiting))
        elif kind == "function_call" or kind in KEPT:
            parts += _wished(at, item, parts) if kind == "function_call" else [_opaque(item)]
        elif item["role"] == "assistant":
            parts += _replied(at, item)
        else:
            if parts and (waiting := _closed(steps, parts)):
                raise _mistake(at, f"the call {waiting[0].provider_id!r} has no output before this item.")
            role: Literal["user", "system"] = "user" if item["role"] == "user" else "system"
            steps += [Spoken(role, text) for text in _texts(at, item)]
    if parts:
        waiting = _closed(steps, parts)
    if waiting:
        raise _mistake(len(items) - 1, f"the call {waiting[0].provider_id!r} has no output.")
    return tuple(steps)


def _mistake(at: int, sentence: str) -> BadInput:
    return BadInput(f"item {at}: {sentence}")


def _readable(at: int, item: Any) -> str:
    """The kind of an item that has a meaning here."""
    kind = _kind(item)
    if kind is None:
        raise _mistake(at, "it is no item of this provider: an object of a known `type`, or a message.")
    if kind not in {"message", "function_call", "function_call_output", *KEPT}:
        raise _mistake(
            at, f"an item of type {kind} cannot be told in words. Leave it out, with what belongs to it."
        )
    try:
        json.dumps(item, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise _mistake(at, "it cannot be written as JSON in Unicode.") from None
    return kind


def _closed(steps: list[ConversationStep], parts: list[Part]) -> list[Wish]:
    """Make the parts a reply. Gives the calls that it made."""
    reply = RecordedReply(tuple(parts))
    parts.clear()
    steps.append(reply)
    return list(reply.wishes)


def _output(at: int, item: Item, waiting: list[Wish]) -> Output:
    """The output of the first call that waits, which then no longer does."""
    id_ = item.get("call_id")
    if not waiting or all(wish.provider_id != id_ for wish in waiting):
        raise _mistake(at, f"the output of {id_!r} does not follow its call, or is its second.")
    wish = waiting.pop(0)
    if wish.provider_id != id_:
        raise _mistake(
            at, f"{id_!r} is answered before {wish.provider_id!r}. Sort the outputs as their calls."
        )
    output = item.get("output")
    if isinstance(output, str):
        return Output(wish.provider_id, wish.tool, output)
    return Output(wish.provider_id, wish.tool, "\n\n".join(_part_texts(at, output, "input_text")))


def _wished(at: int, item: Item, parts: list[Part]) -> Iterator[Part]:
    id_, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not (isinstance(id_, str) and id_ and isinstance(name, str) and isinstance(arguments, str)):
        raise _mistake(at, "a call needs a call_id, a name and arguments, each of them text.")
    if any(isinstance(part, Wish) and part.provider_id == id_ for part in parts):
        raise _mistake(at, f"two calls of one reply have the call_id {id_!r}.")
    yield from _fields(item, "function_call")
    yield Wish(name, arguments, id_)


def _replied(at: int, item: Item) -> Iterator[Part]:
    yield from _fields(item, "message")
    yield from (Text(text) for text in _texts(at, item))


def _fields(item: Item, kind: str) -> Iterator[Opaque]:
    if more := {name: item[name] for name in FIELDS[kind] if item.get(name) is not None}:
        yield _opaque(more)


def _opaque(kept: Item) -> Opaque:
    return Opaque(NAME, compact(kept))


def _texts(at: int, message: Item) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    kinds = ("output_text", "refusal") if message["role"] == "assistant" else ("input_text",)
    return _part_texts(at, content, *kinds)


def _part_texts(at: int, content: Any, *kinds: str) -> list[str]:
    """The texts of a list of parts, of which there is at least one."""
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(text, str):
            raise _mistake(at, f"only text can be read: a part of type {' or '.join(kinds)}.")
        texts.append(text)
    if not texts:
        raise _mistake(at, "there is no text in it, and no list of parts with text.")
    return texts
