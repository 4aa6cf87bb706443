"""Histories for Pydantic AI: the JSON of its `ModelMessage` list, as `ModelMessagesTypeAdapter` takes it.

The library itself is not needed here. What would be turned down by it, or silently changed on the way to a model
(sources are the library's own, version 2.68, in `messages.py` unless named):

1.  Every tool call has its return in a request before the next response. The library would make one up
    (`_repair_dangling_tool_calls`), or refuse a new prompt ("unprocessed tool calls", `_agent_graph.py`).
2.  A return answers a call of the response before it; others are dropped (`_drop_orphaned_tool_results`).
3.  A call is answered once.
4.  A `tool_call_id` is text, not empty, and stands for one call of the whole list. Where it is left out, the library
    mints a random one; where it repeats, the earlier call can no longer be answered (`_open_tool_calls`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - , as the providers behind it want it.
6.  A return has the name of its call's tool (Gemini is sent only the name).
7.  Arguments are text, an object, or nothing.
8.  A part is of a kind that stands in a request, or in a response, with its fields.
9.  A return's outcome is success, failed, denied, interrupted or retried, and all but success say something.
10. The list does not end with a response that is `suspended`: the provider still works on it (`_agent_graph.py`).
11. There is a message, and each is an object of kind request or response with a list of parts.
12. A timestamp, where it stands, is text.

More than these is left to the adapter: what stands in pictures, citations, usage and provider details.

What is written is as the adapter would dump it, without the fields that have their default. That goes for the
timestamps too: none is made up here, and the adapter fills in the time of loading. No model is sent it.

Requests hold what was said and the returns; what follows directly goes into the same request. A denial has the
outcome `denied`, every other ending without a result `failed`; an answer in place of the tool is a `success`.

What the form cannot carry, and is lost from entries to steps:

* ids that are empty or stand for two calls, and tool names that rule 5 refuses;
* who speaks (`name`), and that a note is not the user's: it is a prompt that says so in words. (The library hoists
  system prompts to the front for some providers, so a note made one would lose its place.)
* opaque parts of others. One of ours (`Opaque.provider == "pydantic-ai"`) holds the JSON of a response's part;
* that an outcome was a denial: `read` has one word, `is_error`, so a second writing has `failed` there.

Not read: timestamps, usage, models, run ids and metadata, which say nothing to a model. `instructions` are read as
a system text where they begin or change. Prompts with pictures and files are refused, not skipped, as is feedback
that answers no call.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from projections.history import Assistant, Entry, Note, Outcome, System, User
from projections.providers import reading
from projections.providers.common import (
    BLANK,
    TOOL_NAME,
    Paired,
    Payload,
    Problem,
    call_id,
    messages_of,
    paired,
    tool_name,
)
from schemas import jsontext
from schemas.conversations import Output, Reply, Spoken, Step
from schemas.errors import BadInput
from schemas.events import Opaque, Part, Text, Wish

PROVIDER: Final = "pydantic-ai"

type Json = dict[str, Any]

#: What a part of a kind must have, and of which type.
_REQUEST_PARTS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "system-prompt": {"content": str},
    "user-prompt": {"content": (str, list)},
    "tool-return": {"tool_name": str, "content": object},
    "retry-prompt": {"content": (str, list)},
    "retry-feedback": {"content": (str, list)},
    "speech": {"speaker": str},
    "compaction": {},
    "tool-availability-delta": {},
    "capability-load-delta": {},
    "model-settings-delta": {},
    "instruction-delta": {},
    "instruction-baseline": {},
}
_RESPONSE_PARTS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "text": {"content": str},
    "tool-call": {"tool_name": str},
    "thinking": {"content": str},
    "compaction": {},
    "file": {"content": dict},
    "speech": {"speaker": str},
    "builtin-tool-call": {"tool_name": str},
    "builtin-tool-return": {"tool_name": str, "content": object},
}
_OUTCOMES: Final = ("success", "failed", "denied", "interrupted", "retried")
#: What a reader cannot get past without a guess. The other rules are about sending, not about what was meant.
_UNREADABLE: Final = frozenset({1, 2, 3, 6, 7, 8, 9, 10, 11})


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelRequests and ModelResponses. The list alone is what the adapter takes."""
    messages: list[Json] = []
    used: set[str] = set()
    for step in paired(entries):
        match step:
            case System(text=text):
                _ask(messages, {"content": text, "part_kind": "system-prompt"})
            case User(text=text):
                _ask(messages, {"content": text, "part_kind": "user-prompt"})
            case Note(text=text, name=name):
                noted = f"[Note from {name or 'the system'}] {text}"
                _ask(messages, {"content": noted, "part_kind": "user-prompt"})
            case Paired(assistant=assistant, outcomes=outcomes):
                ids = [call_id(outcome, used, _is_id) for _wish, outcome in outcomes]
                messages.append({"parts": _said(assistant, ids), "kind": "response"})
                for id_, (wish, outcome) in zip(ids, outcomes, strict=True):
                    _ask(messages, _return(id_, wish, outcome))
    return {"messages": messages}


def _ask(messages: list[Json], part: Json) -> None:
    """One more request, or more of the last one."""
    if messages and messages[-1]["kind"] == "request":
        messages[-1]["parts"].append(part)
    else:
        messages.append({"parts": [part], "kind": "request"})


def _said(assistant: Assistant, ids: Sequence[str]) -> list[Json]:
    minted = iter(ids)
    parts: list[Json] = []
    for part in assistant.parts:
        match part:
            case Text(text=text):
                parts.append({"content": text, "part_kind": "text"})
            case Wish(tool=tool, arguments=arguments):
                call = {"tool_name": tool_name(tool), "args": arguments, "tool_call_id": next(minted)}
                parts.append({**call, "part_kind": "tool-call"})
            case Opaque(provider="pydantic-ai", data=data) if (kept := _kept(data)) is not None:
                parts.append(kept)
            case Opaque():
                pass
    return parts


def _kept(data: str) -> Json | None:
    """The part that an opaque one holds, if a response may have it and no fact of its own says it."""
    try:
        part = jsontext.read(data)
    except jsontext.BadJson:
        return None
    if not isinstance(part, dict) or part.get("part_kind") in ("text", "tool-call"):
        return None
    return None if _shape_problem(part, _RESPONSE_PARTS) else part


def _return(id_: str, wish: Wish, outcome: Outcome) -> Json:
    ended, text = "success", outcome.text
    if outcome.is_error:
        ended = "denied" if outcome.kind == "denied" else "failed"
        text = text if text.strip() else BLANK
    part = {"tool_name": tool_name(wish.tool), "content": text, "tool_call_id": id_}
    return {**part, "outcome": ended, "part_kind": "tool-return"}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


# ---------------------------------------------------------------------------------------------------- checking


class _Seen(Struct):
    """What the messages so far hold. Grows while they are checked."""

    used: set[str] = msgspec.field(default_factory=set)
    #: Of the last response: each call's tool.
    tools: dict[str, str] = msgspec.field(default_factory=dict)
    answered: set[str] = msgspec.field(default_factory=set)
    asked_at: int = 0


def check(payload: Payload | Sequence[Any]) -> list[Problem]:
    """What the library would turn down or silently change, in the order of the messages."""
    messages = messages_of(payload)
    problems: list[Problem] = []
    seen = _Seen()
    if not messages:
        problems.append(Problem(11, 0, "there is no message. Say something first."))
    for at, message in enumerate(messages):
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind not in ("request", "response") or not isinstance(message.get("parts"), list):
            problems.append(
                Problem(11, at, "a message is an object of kind request or response with a list of parts.")
            )
            continue
        if kind == "response":
            problems += _unanswered(seen)
            seen.tools, seen.answered, seen.asked_at = {}, set(), at
            if message.get("state") == "suspended" and at == len(messages) - 1:
                problems.append(Problem(10, at, "the provider still works on it. Wait for the response."))
        problems += _check_time(at, message)
        known = _RESPONSE_PARTS if kind == "response" else _REQUEST_PARTS
        for part in message["parts"]:
            if wrong := _shape_problem(part, known):
                problems.append(Problem(8, at, f"in a {kind}, {wrong}"))
                continue
            problems += _check_time(at, part)
            if part["part_kind"] == "tool-call":
                problems += _check_call(at, part, seen)
            elif _answers(part):
                problems += _check_return(at, part, seen)
    return sorted([*problems, *_unanswered(seen)], key=lambda problem: problem.message)


def _shape_problem(part: Any, known: dict[str, dict[str, type | tuple[type, ...]]]) -> str:
    """What keeps it from being a part there; nothing, if it is one."""
    kind = part.get("part_kind") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in known:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        return f"the kind of a part is one of {', '.join(known)}; this one {other}."
    for field, fits in known[kind].items():
        if field not in part or not isinstance(part[field], fits):
            return f"a {kind} part needs `{field}`. Write it, or leave the part out."
    if (
        kind == "user-prompt"
        and isinstance(part["content"], list)
        and not all(map(_is_item, part["content"]))
    ):
        return "a prompt lists something that is neither text nor an object with a kind. Leave it out."
    return ""


def _is_item(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and isinstance(item.get("kind"), str))


def _answers(part: Json) -> bool:
    """A return, or the older form of one that asks to try again; without a tool's name that is a prompt."""
    return part["part_kind"] == "tool-return" or (
        part["part_kind"] == "retry-prompt" and part.get("tool_name") is not None
    )


def _id(part: Json) -> str:
    """Empty where there is none, or none that is text."""
    id_ = part.get("tool_call_id")
    return id_ if isinstance(id_, str) else ""


def _check_time(at: int, stamped: Json) -> list[Problem]:
    # A message may say that it has none, a part may not.
    nothing = stamped.get("timestamp") is None and ("timestamp" not in stamped or "kind" in stamped)
    if nothing or isinstance(stamped["timestamp"], str):
        return []
    return [Problem(12, at, "a timestamp is no text. Write it as ISO 8601, or leave it out.")]


def _unanswered(seen: _Seen) -> list[Problem]:
    return [
        Problem(
            1, seen.asked_at, f"{id_!r} has no return before the next response. Wait for it, and send the turn whole."
        )
        for id_ in seen.tools
        if id_ not in seen.answered
    ]  # fmt: skip


def _check_call(at: int, call: Json, seen: _Seen) -> list[Problem]:
    problems: list[Problem] = []
    id_, tool = _id(call), call["tool_name"]
    if not id_:
        problems.append(Problem(4, at, "the id of a call is no text, or empty. Mint one."))
    elif id_ in seen.used:
        problems.append(Problem(4, at, f"{id_!r} stands for an earlier call too. Mint another."))
    if not TOOL_NAME.fullmatch(tool):
        problems.append(
            Problem(5, at, f"the tool name {tool!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest.")
        )
    if not isinstance(call.get("args"), str | dict | None):
        problems.append(
            Problem(7, at, f"the arguments of {id_!r} are no text and no object. Send the raw text.")
        )
    seen.used.add(id_)
    seen.tools[id_] = tool
    return problems


def _check_return(at: int, part: Json, seen: _Seen) -> list[Problem]:
    id_, outcome = _id(part), part.get("outcome", "success")
    problems: list[Problem] = []
    if part["part_kind"] == "tool-return":
        content = part["content"]
        if outcome not in _OUTCOMES:
            problems.append(Problem(9, at, f"the outcome of {id_!r} is none of {', '.join(_OUTCOMES)}."))
        elif outcome != "success" and isinstance(content, str) and not content.strip():
            problems.append(Problem(9, at, f"{id_!r} is {outcome} and says nothing. Say what went wrong."))
    if id_ not in seen.tools:
        drop = "Put it there, or drop it."
        return [*problems, Problem(2, at, f"the return of {id_!r} does not follow a response with that call. {drop}")]  # fmt: skip
    if id_ in seen.answered:
        problems.append(Problem(3, at, f"{id_!r} is answered twice. Keep one return."))
    if part["tool_name"] != seen.tools[id_]:
        names = f"{seen.tools[id_]!r} and is answered as {part['tool_name']!r}"
        problems.append(Problem(6, at, f"{id_!r} calls {names}. Use one name."))
    seen.answered.add(id_)
    return problems


# ----------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[Step, ...]:
    """The messages in our words: the outputs of a reply directly after it, in the order of its calls.

    Raises:
        BadInput: something cannot be read without a guess; says at which message.
    """
    messages = reading.listed(payload, "messages")
    for problem in check(messages) if messages else ():
        if problem.rule in _UNREADABLE:
            raise BadInput(str(problem))
    steps: list[Step] = []
    spoken: list[Spoken] = []
    outputs: dict[str, Output] = {}
    waiting: tuple[Wish, ...] = ()
    instructions: str | None = None
    for at, message in enumerate(messages):
        if message["kind"] == "response":
            steps += [*(outputs[wish.provider_id] for wish in waiting), *spoken]
            spoken, outputs = [], {}
            reply = Reply(tuple(_read_part(at, part) for part in message["parts"]))
            waiting = reply.wishes
            if len({wish.provider_id for wish in waiting}) < len(waiting):
                raise reading.refusal(at, "two calls have one id. Whose return is whose is not said.")
            steps.append(reply)
            continue
        told = message.get("instructions")
        if isinstance(told, str) and told != instructions:
            instructions = told
            spoken.append(Spoken("system", told))
        for part in message["parts"]:
            if _answers(part):
                output = _read_output(at, part)
                outputs[output.provider_id] = output
            else:
                spoken.append(_read_spoken(at, part))
    return (*steps, *(outputs[wish.provider_id] for wish in waiting), *spoken)


def _read_part(at: int, part: Json) -> Part:
    match part:
        case {"part_kind": "text", "content": text}:
            return Text(text)
        case {"part_kind": "tool-call", "tool_name": tool}:
            return Wish(tool, _read_arguments(at, part.get("args")), _id(part))
        case _:
            return Opaque(PROVIDER, reading.raw(at, part))


def _read_arguments(at: int, args: Any) -> str:
    if args is None:
        return "{}"
    return args if isinstance(args, str) else reading.raw(at, args)


def _read_spoken(at: int, part: Json) -> Spoken:
    match part:
        case {"part_kind": "system-prompt", "content": text}:
            return Spoken("system", text)
        case {"part_kind": "user-prompt", "content": str(text)}:
            return Spoken("user", text)
        case {"part_kind": "user-prompt", "content": list(items)} if all(
            isinstance(one, str) for one in items
        ):
            return Spoken("user", "\n\n".join(items))
        case {"part_kind": "user-prompt"}:
            raise reading.refusal(at, "a prompt holds more than text, and only texts are read.")
        case _:
            raise reading.refusal(
                at, f"a {part['part_kind']} is no text and answers no call. It cannot be read."
            )


def _read_output(at: int, part: Json) -> Output:
    content = part["content"]
    text = content if isinstance(content, str) else reading.raw(at, content)
    is_error = part["part_kind"] != "tool-return" or part.get("outcome", "success") != "success"
    return Output(_id(part), part["tool_name"], text, is_error=is_error)
