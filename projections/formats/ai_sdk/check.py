"""Checks `ModelMessage` lists by the rules of the Vercel AI SDK and the providers behind it.

Rules 5, 8, 9 and 10 are those of the strictest provider behind the SDK. Sources are the SDK's own
(`packages/ai/src`, version 6) unless named:

1.  Every call has its result in the tool messages directly after it; consecutive ones count as one
    message (`MissingToolResultsError` in `prompt/convert-to-language-model-prompt.ts`). The SDK
    would run a call that is approved and has no result. Here a payload is no reason to run a call,
    so it lacks its result.
2.  A result answers a call of the assistant message before it.
3.  A call is answered once.
4.  A `toolCallId` is text, not empty, and belongs to one call of the whole list: the SDK looks
    calls up by it (`generate-text/collect-tool-approvals.ts`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
6.  A result has the name of its call's tool (`@ai-sdk/google` sends only the name).
7.  Content is of the shape for its role: text for system; text or parts for user and assistant;
    parts for tool (`prompt/message.ts`). Each part is of a type for that role, with its fields
    (`prompt/content-part.ts`).
8.  A text has a visible character, and a list of parts has a part: the SDK drops empty parts
    silently.
9.  System messages are first in the list: `@ai-sdk/google` (vercel/ai#2384) and others refuse later
    ones.
10. A call's `input` is an object, whatever the schema allows: Anthropic accepts nothing else.
11. An output is text, json, execution-denied, error-text, error-json or content, with its fields,
    and an error text is not blank.
12. An approval request follows its call in the same message, under an id that is not used yet
    (`ToolCallNotFoundForApprovalError`; the SDK would accept any order).
13. An approval is answered once, and only if it was requested (`InvalidToolApprovalError`).
14. No approval is left open.
15. There is a message (`prompt/standardize-prompt.ts`), and each is an object with a role that
    exists and without the fields of other forms (`tool_calls`, `tool_call_id`, `parts`), which the
    SDK drops silently.
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

_PAIRING: Final = PairingRules(
    missing=1,
    stray=2,
    twice=3,
    place="directly after it",
    follows="an assistant message with that call. Put it there",
    name=6,
)
_FOREIGN: Final = ("tool_calls", "tool_call_id", "parts")


class _ModelMessages(CallPairing):
    """The state of a check: calls and approvals of the messages so far."""

    def __init__(self) -> None:
        super().__init__(_PAIRING)
        #: By approval id: the message that asks.
        self.approvals: dict[str, int] = {}
        self.responded: set[str] = set()
        #: Calls that the provider runs itself: their results are the assistant's.
        self.served: set[str] = set()


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the SDK or a provider would refuse the list, by message."""
    messages = find_messages(payload)
    found = _ModelMessages()
    opening = True
    if not messages:
        found.add(15, "there is no message. Add one.")
    for message in found.each(messages):
        if wrong := _foreign(message):
            found.add(15, wrong)
            continue
        role, content = message["role"], message.get("content")
        if role != "tool":
            found.end_turn()
        if role == "system" and not opening:
            wrong = "a system message comes late."
            found.add(9, f"{wrong} Put it first, or make it a user's that says so.")
        opening = opening and role == "system"
        if isinstance(content, str) and role != "tool":
            _check_text(content, found)
        elif isinstance(content, list) and role != "system":
            if not content:
                found.add(8, "the content is an empty list. Leave the message out.")
            for part in content:
                _check_part(role, part, found)
        else:
            shape = {"system": "text", "tool": "a list of parts"}.get(
                role, "text or a list of parts"
            )
            found.add(7, f"the content of a {role} message is {shape}. Write it so.")
    found.end_turn()
    for id_, asked_at in found.approvals.items():
        if id_ not in found.responded:
            wrong = f"the approval {id_!r} is open."
            found.add(14, f"{wrong} Wait for it, and send the turn whole.", asked_at)
    return found.in_order()


def _foreign(message: Any) -> str:
    """Why it is not a message; empty if it is."""
    if not isinstance(message, dict) or message.get("role") not in (
        "system",
        "user",
        "assistant",
        "tool",
    ):
        return "a message is an object with one of the roles system, user, assistant, tool."
    foreign = [field for field in _FOREIGN if field in message]
    return (
        f"`{foreign[0]}` is a field of another form. Write it as parts of the content."
        if foreign
        else ""
    )


def _check_text(text: str, found: Problems) -> None:
    if not text.strip():
        found.add(8, "a text has no visible character. Leave it out.")


def _check_part(role: str, part: Any, found: _ModelMessages) -> None:
    """Check one part of a message, and note its call, result or approval."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PARTS[role]:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        known = f"one of {', '.join(_PARTS[role])} for role {role}"
        found.add(7, f"the type of a part is {known}; this one {other}.")
    elif lacking := lacks(part):
        found.add(7, f"a {kind} part needs `{lacking}`. Write it, or leave the part out.")
    elif kind == "text":
        _check_text(part["text"], found)
    elif kind == "tool-call":
        _check_call(part, found)
    elif kind == "tool-result":
        _check_result(role, part, found)
    elif kind == "tool-approval-request":
        _check_request(part, found)
    elif kind == "tool-approval-response":
        _check_response(part["approvalId"], found)


def _check_call(call: JsonObject, found: _ModelMessages) -> None:
    id_, tool = call["toolCallId"], call["toolName"]
    found.check_new_id(4, "call", id_, found.used)
    found.check_tool_name(5, tool)
    found.check_input(10, id_, call.get("input"))
    if call.get("providerExecuted") is True:
        found.served.add(id_)
    else:
        found.add_call(id_, tool)


def _check_result(role: str, result: JsonObject, found: _ModelMessages) -> None:
    """Check a result. An assistant message has only those of tools that the provider ran."""
    id_ = result["toolCallId"]
    if role == "assistant" and id_ not in found.served:
        wrong = f"the result of {id_!r} is in an assistant message, but no provider ran it."
        found.add(2, f"{wrong} Put it into a tool message.")
        return
    if wrong := _output_problem(result["output"]):
        found.add(11, wrong)
    if role == "tool":
        found.add_result(id_, tool=result["toolName"])


def _output_problem(output: Any) -> str:
    """Why it is not a valid output; empty if it is."""
    match output:
        case {"type": "text", "value": str()} | {"type": "json" | "error-json", "value": _}:
            return ""
        case {"type": "error-text", "value": str(text)}:
            return "" if text.strip() else "an error says nothing. Say what went wrong."
        case {"type": "execution-denied", **rest} if isinstance(rest.get("reason", ""), str):
            return ""
        case {"type": "content", "value": list(items)} if all(_is_item(item) for item in items):
            return ""
        case _:
            return (
                "an output is an object of type text, json, execution-denied, error-text, "
                "error-json or content, with its value. Write one of these."
            )


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


def _check_request(request: JsonObject, found: _ModelMessages) -> None:
    id_, call = request["approvalId"], request["toolCallId"]
    if call not in found.turn and call not in found.served:
        wrong = f"the approval {id_!r} is for {call!r}, no call before it here."
        found.add(12, f"{wrong} Put it after.")
    elif not id_ or id_ in found.approvals:
        found.add(12, f"the approval id {id_!r} is empty or used already. Mint another.")
    else:
        found.approvals[id_] = found.at


def _check_response(id_: str, found: _ModelMessages) -> None:
    if id_ not in found.approvals:
        wrong = f"nobody asked for the approval {id_!r}."
        found.add(13, f"{wrong} Put the request before, or drop it.")
    elif id_ in found.responded:
        found.add(13, f"the approval {id_!r} is answered twice. Keep one answer.")
    found.responded.add(id_)


_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "user": ("text", "image", "file"),
    "assistant": ("text", "file", "reasoning", "tool-call", "tool-result", "tool-approval-request"),
    "tool": ("tool-result", "tool-approval-response"),
}
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "text": {"text": str},
    "reasoning": {"text": str},
    "image": {"image": str},
    "file": {"data": str, "mediaType": str},
    "tool-call": {"toolCallId": str, "toolName": str},
    "tool-result": {"toolCallId": str, "toolName": str, "output": object},
    "tool-approval-request": {"approvalId": str, "toolCallId": str},
    "tool-approval-response": {"approvalId": str, "approved": bool},
}


def lacks(part: JsonObject) -> str:
    """The first field that a part of its type lacks; empty if it has all."""
    return misfit(part, _FIELDS[part["type"]])
