"""What the Vercel AI SDK, or a provider behind it, refuses of a `ModelMessage` list.

The SDK stands before many providers, so rules 5, 8, 9 and 10 are those of the strictest behind it.
Sources are the SDK's own (`packages/ai/src`, version 6) unless named:

1.  Every call has its result in the tool messages directly after it; consecutive ones count as one
    message (`MissingToolResultsError` in `prompt/convert-to-language-model-prompt.ts`). The SDK
    would run a call that is approved and has no result. Nothing here is run because a payload says
    so, so such a call lacks its result.
2.  A result answers a call of the assistant message before it.
3.  A call is answered once.
4.  A `toolCallId` is text, not empty, and stands for one call of the whole list: the SDK looks
    calls up by it (`generate-text/collect-tool-approvals.ts`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
6.  A result has the name of its call's tool (`@ai-sdk/google` sends only the name).
7.  Content is of the shape for its role: text for system; text or parts for user and assistant;
    parts for tool (`prompt/message.ts`). Each part is of a type that may stand there, with its
    fields (`prompt/content-part.ts`).
8.  A text has a visible character, and a list of parts has a part: the SDK drops empty parts
    without a word.
9.  System messages open the list: later ones are refused by `@ai-sdk/google` (vercel/ai#2384) and
    others.
10. A call's `input` is an object, whatever the schema allows: Anthropic takes no other.
11. An output is text, json, execution-denied, error-text, error-json or content, with its fields,
    and an error text says something.
12. An approval is asked for a call that stands before it in the same message, under an id that is
    not used yet (`ToolCallNotFoundForApprovalError`; the SDK would take any order).
13. An approval is answered once, and only where it was asked (`InvalidToolApprovalError`).
14. No approval is left open.
15. There is a message (`prompt/standardize-prompt.ts`), and each is an object with a role that
    exists and without the fields of other forms (`tool_calls`, `tool_call_id`, `parts`), which the
    SDK drops without a word.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.projections.formats.common import TOOL_NAME, FormatProblem, JsonObject, Payload, find_messages

_FOREIGN: Final = ("tool_calls", "tool_call_id", "parts")


class _Seen(Struct):
    """What the messages so far hold. Grows while they are checked."""

    used: set[str] = msgspec.field(default_factory=set)
    #: Of the last assistant message: each call's tool.
    tools: dict[str, str] = msgspec.field(default_factory=dict)
    answered: set[str] = msgspec.field(default_factory=set)
    asked_at: int = 0
    #: By approval id: the message that asks.
    approvals: dict[str, int] = msgspec.field(default_factory=dict)
    responded: set[str] = msgspec.field(default_factory=set)
    #: Calls that the provider runs itself: their results are the assistant's.
    served: set[str] = msgspec.field(default_factory=set)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the SDK, or a provider behind it, would turn down, in the order of the messages."""
    messages = find_messages(payload)
    problems: list[FormatProblem] = []
    seen = _Seen()
    opening = True
    if not messages:
        problems.append(FormatProblem(15, 0, "there is no message. Say something first."))
    for at, message in enumerate(messages):
        wrong = _foreign(message)
        if wrong:
            problems.append(FormatProblem(15, at, wrong))
            continue
        role, content = message["role"], message.get("content")
        if role != "tool":
            problems += _unanswered(seen)
            seen.tools, seen.answered, seen.asked_at = {}, set(), at
        if role == "system" and not opening:
            problems.append(
                FormatProblem(
                    9, at, "a system message comes late. Put it first, or make it a user's that says so."
                )
            )
        opening = opening and role == "system"
        if isinstance(content, str) and role != "tool":
            problems += _check_text(at, content)
        elif isinstance(content, list) and role != "system":
            if not content:
                problems.append(FormatProblem(8, at, "the content is an empty list. Leave the message out."))
            for part in content:
                problems += _check_part(at, role, part, seen)
        else:
            shape = {"system": "text", "tool": "a list of parts"}.get(role, "text or a list of parts")
            problems.append(FormatProblem(7, at, f"the content of a {role} message is {shape}. Write it so."))
    problems += _unanswered(seen)
    problems += [
        FormatProblem(14, asked_at, f"the approval {id_!r} is open. Wait for it, and send the turn whole.")
        for id_, asked_at in seen.approvals.items()
        if id_ not in seen.responded
    ]
    return sorted(problems, key=lambda problem: problem.message)


def _foreign(message: Any) -> str:
    """What keeps it from being a message at all; nothing, if it is one."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant", "tool"):
        return "a message is an object with one of the roles system, user, assistant, tool."
    foreign = [field for field in _FOREIGN if field in message]
    return f"`{foreign[0]}` is a field of another form. Write it as parts of the content." if foreign else ""


def _unanswered(seen: _Seen) -> list[FormatProblem]:
    return [
        FormatProblem(
            1,
            seen.asked_at,
            f"{id_!r} has no result directly after it. Wait for it, and send the turn whole.",
        )
        for id_ in seen.tools
        if id_ not in seen.answered
    ]


def _check_text(at: int, text: str) -> list[FormatProblem]:
    return [] if text.strip() else [FormatProblem(8, at, "a text has no visible character. Leave it out.")]


def _check_part(at: int, role: str, part: Any, seen: _Seen) -> list[FormatProblem]:
    """One part of a message. Marks what it asks and answers."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PARTS[role]:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        known = ", ".join(_PARTS[role])
        return [
            FormatProblem(7, at, f"the type of a part is one of {known} for role {role}; this one {other}.")
        ]
    if lacking := lacks(part):
        return [FormatProblem(7, at, f"a {kind} part needs {lacking}. Write it, or leave the part out.")]
    match kind:
        case "text":
            return _check_text(at, part["text"])
        case "tool-call":
            return _check_call(at, part, seen)
        case "tool-result" if role == "assistant":
            return _check_served(at, part, seen)
        case "tool-result":
            return _check_result(at, part, seen)
        case "tool-approval-request":
            return _check_request(at, part, seen)
        case "tool-approval-response":
            return _check_response(at, part, seen)
        case _:
            return []


def _check_call(at: int, call: JsonObject, seen: _Seen) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    id_, tool = call["toolCallId"], call["toolName"]
    if not id_ or id_ in seen.used:
        what = f"{id_!r} stands for an earlier call too" if id_ else "a call's id is empty"
        problems.append(FormatProblem(4, at, f"{what}. Mint another."))
    if not TOOL_NAME.fullmatch(tool):
        problems.append(
            FormatProblem(
                5, at, f"the tool name {tool!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest."
            )
        )
    if not isinstance(call.get("input"), dict):
        problems.append(
            FormatProblem(10, at, f"the input of {id_!r} is no object. Wrap it under a name that says so.")
        )
    seen.used.add(id_)
    if call.get("providerExecuted") is True:
        seen.served.add(id_)
    else:
        seen.tools[id_] = tool
    return problems


def _check_served(at: int, result: JsonObject, seen: _Seen) -> list[FormatProblem]:
    """A result in the assistant's own message: of a tool that the provider ran."""
    id_ = result["toolCallId"]
    if id_ not in seen.served:
        return [FormatProblem(2, at, f"the result of {id_!r} stands with the assistant, which did not run it. Put it into a tool message.")]  # fmt: skip
    return _check_output(at, result["output"])


def _check_result(at: int, result: JsonObject, seen: _Seen) -> list[FormatProblem]:
    id_, tool = result["toolCallId"], result["toolName"]
    problems = _check_output(at, result["output"])
    if id_ not in seen.tools:
        return [
            *problems,
            FormatProblem(
                2,
                at,
                f"the result of {id_!r} does not follow an assistant message with that call. Put it there, or drop it.",
            ),
        ]
    if id_ in seen.answered:
        problems.append(FormatProblem(3, at, f"{id_!r} is answered twice. Keep one result."))
    if tool != seen.tools[id_]:
        problems.append(
            FormatProblem(
                6, at, f"{id_!r} calls {seen.tools[id_]!r} and is answered as {tool!r}. Use one name."
            )
        )
    seen.answered.add(id_)
    return problems


def _check_output(at: int, output: Any) -> list[FormatProblem]:
    match output:
        case {"type": "text", "value": str()} | {"type": "json" | "error-json", "value": _}:
            return []
        case {"type": "error-text", "value": str(text)} if text.strip():
            return []
        case {"type": "error-text", "value": str()}:
            return [FormatProblem(11, at, "an error says nothing. Say what went wrong.")]
        case {"type": "execution-denied", **rest} if isinstance(rest.get("reason", ""), str):
            return []
        case {"type": "content", "value": list(items)} if all(_is_item(item) for item in items):
            return []
        case _:
            return [
                FormatProblem(
                    11,
                    at,
                    "an output is an object of type text, json, execution-denied, error-text, error-json or content, "
                    "with its value. Write one of these.",
                )
            ]


def _is_item(item: Any) -> bool:
    match item:
        case {"type": "text", "text": str()} | {"type": "custom"}:
            return True
        case {"type": "media" | "file-data" | "image-data", "data": str(), "mediaType": str()}:
            return True
        case {"type": "file-url" | "image-url", "url": str()}:
            return True
        case {"type": "file-id" | "image-file-id", "fileId": str() | dict()}:
            return True
        case _:
            return False


def _check_request(at: int, request: JsonObject, seen: _Seen) -> list[FormatProblem]:
    id_, call = request["approvalId"], request["toolCallId"]
    if call not in seen.tools and call not in seen.served:
        return [
            FormatProblem(
                12, at, f"the approval {id_!r} is for {call!r}, no call before it here. Put it after."
            )
        ]
    if not id_ or id_ in seen.approvals:
        return [FormatProblem(12, at, f"the approval id {id_!r} is empty or used already. Mint another.")]
    seen.approvals[id_] = at
    return []


def _check_response(at: int, response: JsonObject, seen: _Seen) -> list[FormatProblem]:
    id_ = response["approvalId"]
    if id_ not in seen.approvals:
        return [FormatProblem(13, at, f"nobody asked for the approval {id_!r}. Put the request before, or drop it.")]  # fmt: skip
    if id_ in seen.responded:
        return [FormatProblem(13, at, f"the approval {id_!r} is answered twice. Keep one answer.")]
    seen.responded.add(id_)
    return []


_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "user": ("text", "image", "file"),
    "assistant": ("text", "file", "reasoning", "tool-call", "tool-result", "tool-approval-request"),
    "tool": ("tool-result", "tool-approval-response"),
}


_is_text: Final[Callable[[Any], bool]] = lambda value: isinstance(value, str)  # noqa: E731


_FIELDS: Final[dict[str, dict[str, Callable[[Any], bool]]]] = {
    "text": {"text": _is_text},
    "reasoning": {"text": _is_text},
    "image": {"image": _is_text},
    "file": {"data": _is_text, "mediaType": _is_text},
    "tool-call": {"toolCallId": _is_text, "toolName": _is_text},
    "tool-result": {"toolCallId": _is_text, "toolName": _is_text, "output": lambda _: True},
    "tool-approval-request": {"approvalId": _is_text, "toolCallId": _is_text},
    "tool-approval-response": {"approvalId": _is_text, "approved": lambda value: isinstance(value, bool)},
}


def lacks(part: JsonObject) -> str:
    """The first field that a part of its type must have and has not."""
    for field, fits in _FIELDS[part["type"]].items():
        if field not in part or not fits(part[field]):
            return f"`{field}`"
    return ""
