"""Checks for messages that Pydantic AI refuses, or silently changes on the way to a model.

The sources are the library's own, version 2.68, in `messages.py` unless named:

1.  Every tool call has its return in a request before the next response. The library would make one
    up (`_repair_dangling_tool_calls`), or refuse a new prompt ("unprocessed tool calls",
    `_agent_graph.py`).
2.  A return answers a call of the response before it; others are dropped
    (`_drop_orphaned_tool_results`).
3.  A call is answered once.
4.  A `tool_call_id` is text, not empty, and belongs to one call of the whole list. If it is
    missing, the library generates a random one; if it repeats, the earlier call can no longer be
    answered (`_open_tool_calls`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - , as the providers behind it require.
6.  A return has the name of its call's tool (Gemini is sent only the name).
7.  Arguments are text, an object, or nothing.
8.  A part is of a kind that a request, or a response, may have, with its fields.
9.  A return's outcome is success, failed, denied, interrupted or retried, and all but success have
    a text that is not blank.
10. The list does not end with a response that is `suspended`, since the provider has not finished
    it (`_agent_graph.py`).
11. There is a message, and each is an object of kind request or response with a list of parts.
12. A timestamp, if present, is text.
13. A file in a prompt or a return is bytes in base64 with a media type, a URL, or a file of a
    provider that is known (`BinaryContent`, `UploadedFile`).

Citations, usage and provider details are left to the adapter.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import (
    FormatProblem,
    JsonObject,
    Payload,
    Problems,
    find_messages,
    misfit,
)
from ayes.projections.formats.pairing import CallPairing, PairingRules
from ayes.projections.formats.pydantic_ai.media import is_file, item_problem

#: The required fields of each kind of part.
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
RESPONSE_PARTS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "text": {"content": str},
    "tool-call": {"tool_name": str},
    "thinking": {"content": str},
    "compaction": {},
    "file": {"content": dict},
    "speech": {"speaker": str},
    "builtin-tool-call": {"tool_name": str},
    "builtin-tool-return": {"tool_name": str, "content": object},
}
_PAIRING: Final = PairingRules(
    missing=1,
    stray=2,
    twice=3,
    place="before the next response",
    follows="a response with that call. Put it there",
    name=6,
    result="return",
)
_OUTCOMES: Final = ("success", "failed", "denied", "interrupted", "retried")


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the library would refuse or silently change the list, in its order."""
    messages = find_messages(payload)
    found = CallPairing(_PAIRING)
    if not messages:
        found.add(11, "there is no message. Add one.")
    for message in found.each(messages):
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind not in ("request", "response") or not isinstance(message.get("parts"), list):
            wrong = "a message is an object of kind request or response with a list of parts."
            found.add(11, wrong)
            continue
        if kind == "response":
            found.end_turn()
            if message.get("state") == "suspended" and found.at == len(messages) - 1:
                found.add(10, "the provider still works on it. Wait for the response.")
        _check_time(message, found)
        known = RESPONSE_PARTS if kind == "response" else _REQUEST_PARTS
        for part in message["parts"]:
            if wrong := shape_problem(part, known):
                found.add(8, f"in a {kind}, {wrong}")
                continue
            _check_time(part, found)
            _check_files(part, found)
            if part["part_kind"] == "tool-call":
                _check_call(part, found)
            elif is_answer(part):
                _check_outcome(part, found)
                found.add_result(call_id_of(part), tool=part["tool_name"])
    found.end_turn()
    return found.in_order()


def shape_problem(part: Any, known: dict[str, dict[str, type | tuple[type, ...]]]) -> str:
    """Why it is not a valid part there; empty if it is."""
    kind = part.get("part_kind") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in known:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        return f"the kind of a part is one of {', '.join(known)}; this one {other}."
    if lacking := misfit(part, known[kind]):
        return f"a {kind} part needs `{lacking}`. Write it, or leave the part out."
    if (
        kind == "user-prompt"
        and isinstance(part["content"], list)
        and not all(map(_is_item, part["content"]))
    ):
        return (
            "a prompt lists something that is neither text nor an object with a kind. Leave it out."
        )
    return ""


def _check_files(part: JsonObject, found: Problems) -> None:
    content = part.get("content")
    if part["part_kind"] not in ("user-prompt", "tool-return") or not isinstance(content, list):
        return
    for item in filter(is_file, content):
        if wrong := item_problem(item):
            found.add(13, f"{wrong} Send another form of it, or tell it in words.")


def _is_item(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and isinstance(item.get("kind"), str))


def is_answer(part: JsonObject) -> bool:
    """Whether it is a return, or a retry prompt with a tool's name, the older form of one."""
    return part["part_kind"] == "tool-return" or (
        part["part_kind"] == "retry-prompt" and part.get("tool_name") is not None
    )


def call_id_of(part: JsonObject) -> str:
    """The call's id; empty if it is missing or not text."""
    id_ = part.get("tool_call_id")
    return id_ if isinstance(id_, str) else ""


def _check_time(stamped: JsonObject, found: Problems) -> None:
    # A message may say that it has none, a part may not.
    nothing = stamped.get("timestamp") is None and ("timestamp" not in stamped or "kind" in stamped)
    if not nothing and not isinstance(stamped["timestamp"], str):
        found.add(12, "a timestamp is not text. Write it as ISO 8601, or leave it out.")


def _check_call(call: JsonObject, found: CallPairing) -> None:
    id_, tool = call_id_of(call), call["tool_name"]
    if not id_:
        found.add(4, "the id of a call is not text, or empty. Mint one.")
    elif id_ in found.used:
        found.add(4, f"{id_!r} is the id of an earlier call too. Mint another.")
    found.check_tool_name(5, tool)
    if not isinstance(call.get("args"), str | dict | None):
        wrong = f"the arguments of {id_!r} are neither text nor an object."
        found.add(7, f"{wrong} Send the raw text.")
    found.add_call(id_, tool)


def _check_outcome(part: JsonObject, found: Problems) -> None:
    if part["part_kind"] != "tool-return":
        return
    id_, outcome, content = call_id_of(part), part.get("outcome", "success"), part["content"]
    if outcome not in _OUTCOMES:
        found.add(9, f"the outcome of {id_!r} is none of {', '.join(_OUTCOMES)}.")
    elif outcome != "success" and isinstance(content, str) and not content.strip():
        found.add(9, f"{id_!r} is {outcome} and says nothing. Say what went wrong.")
