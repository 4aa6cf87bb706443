"""Checks `UIMessage` lists by the rules of the Vercel AI SDK and the providers behind it.

A call and its end are one part here. The fields of the part depend on its state:

    state                 input   output   errorText   approval
    input-streaming       may     no       no          no              ┐
    input-available       yes     no       no          no              │ open: somebody must
    approval-requested    yes     no       no          open            │ continue it
    approval-responded    yes     no       no          answered        ┘
    output-available      yes     yes      no          may: approved   ┐
    output-error          may     no       yes         may: approved   │ ended
    output-denied         yes     no       no          denied          ┘

The list is checked as if it were sent now. The numbers continue those of `ai_sdk`, because
`--format ai-sdk` accepts both forms and a number must have one meaning. Sources are the SDK's own
(`packages/ai/src`, version 6) unless named. Rules 25 and 30 to 34 are those of the strictest
provider behind the SDK:

21. There is a message, and each is an object with a text `id`, a role of system, user or assistant,
    and a list of `parts` (`ui/validate-ui-messages.ts`), without the fields of other forms
    (`content`, `toolInvocations`, `tool_calls`, `tool_call_id`), which the SDK drops silently.
22. An `id` is not empty and belongs to one message: the chat looks messages up by it
    (`ui/chat.ts`).
23. A part is of a type that exists (text, reasoning, file, source-url, source-document, step-start,
    data-<name>, tool-<name>, dynamic-tool) and has its fields (`ui/validate-ui-messages.ts`).
24. A part fits the role: text for system; text, file and data-<name> for user; calls and the rest
    only for assistant. The SDK drops others silently (`ui/convert-to-model-messages.ts`).
25. A message has a part that is sent (text, reasoning, file or a call), and a text has a visible
    character: the SDK drops other messages silently.
26. A call has a known `state`, and the fields that its state needs and none that it forbids, as in
    the table (`ui/validate-ui-messages.ts`).
27. A call has ended (`MissingToolResultsError` in `prompt/convert-to-language-model-prompt.ts`; the
    SDK drops one that is still streamed, and sends a preliminary output as if it were the last).
    The SDK would run a call that is approved and has no output. Here a payload is no reason to run
    a call, so it counts as open. A provider's own call may have no output.
28. No approval is left open.
29. An approval's `id` is not empty and belongs to one approval
    (`generate-text/collect-tool-approvals.ts`).
30. A `toolCallId` is not empty and belongs to one call of the whole list (the same file).
31. A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
32. A call's `input` is an object; without one in output-error, its `rawInput` is sent.
33. An `errorText`, or the reason of a denial, has a visible character.
34. System messages are first in the list (vercel/ai#2384).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ayes.projections.formats.ai_sdk.check import check as check_model_messages
from ayes.projections.formats.common import (
    FormatProblem,
    JsonObject,
    Payload,
    Problems,
    find_messages,
    misfit,
)

type _Fields = Mapping[str, type | Callable[[Any], bool]]

_FOREIGN: Final = ("content", "toolInvocations", "tool_calls", "tool_call_id")


def is_sent(part: JsonObject) -> bool:
    """Whether the part is sent to the model."""
    return kind_of(part) in ("text", "reasoning", "file", *CALLS)


class _UIMessages(Problems):
    """The state of a check: ids of the messages so far."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: set[str] = set()
        self.calls: set[str] = set()
        self.approvals: set[str] = set()
        self.opening = True


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the SDK or a provider would refuse the list, by message."""
    messages = find_messages(payload)
    found = _UIMessages()
    if not messages:
        found.add(21, "there is no message. Add one.")
    for message in found.each(messages):
        if wrong := _misshapen(message):
            found.add(21, wrong)
        else:
            _check_message(message, found)
    return found


def check_either(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """Check a list of either form by the rules of that form."""
    return check(payload) if is_ui(payload) else check_model_messages(payload)


def is_ui(payload: Payload | Sequence[Any]) -> bool:
    """Whether the first message with `parts` or `content` has `parts`, as UIMessages have."""
    for message in find_messages(payload):
        if isinstance(message, dict) and ("parts" in message or "content" in message):
            return "parts" in message
    return False


def _misshapen(message: Any) -> str:
    """Why it is not a message; empty if it is."""
    match message:
        case {"id": str(), "role": "system" | "user" | "assistant", "parts": list()}:
            foreign = [field for field in _FOREIGN if field in message]
            return (
                f"`{foreign[0]}` is a field of another form. Write it as parts." if foreign else ""
            )
        case _:
            return (
                "a message is an object with a text `id`, one of the roles system, user, "
                "assistant, and a list of `parts`. Write it so."
            )


def _check_message(message: JsonObject, found: _UIMessages) -> None:
    role, parts = message["role"], message["parts"]
    found.check_new_id(22, "message", message["id"], found.messages)
    if role == "system" and not found.opening:
        found.add(34, "a system message comes late. Put it first, or make it a user's message.")
    found.opening = found.opening and role == "system"
    before = len(found)
    for part in parts:
        _check_part(role, part, found)
    if len(found) == before and not any(is_sent(part) for part in parts):
        found.add(25, "no part of it is for the model. Remove the message.")


def _check_part(role: str, part: Any, found: _UIMessages) -> None:
    """Check one part of a message, and note its ids."""
    kind = kind_of(part)
    if not kind:
        wrong = f"the type of a part is one of {', '.join(_FIELDS)}."
        found.add(23, f"{wrong} Use one of these.")
    elif lacking := lacks(part):
        found.add(23, f"a {kind} part needs {lacking}. Add it, or remove the part.")
    elif kind not in _ROLES.get(role, _FIELDS):
        wrong = f"a {kind} part has role {role}, for which the SDK does not send it."
        found.add(24, f"{wrong} Remove it, or move it to the right message.")
    elif kind == "text" and not part["text"].strip():
        found.add(25, "a text has no visible character. Remove it.")
    elif kind in CALLS:
        _check_call(part, found)


def _check_call(part: JsonObject, found: _UIMessages) -> None:
    id_ = part["toolCallId"]
    found.check_new_id(30, "call", id_, found.calls)
    found.check_tool_name(31, tool_of(part))
    if wrong := _misfit(part):
        found.add(26, f"{id_!r} {wrong}")
        return
    if "approval" in part:
        approval = part["approval"]["id"]
        if not approval or approval in found.approvals:
            wrong = f"the approval id {approval!r} is empty or used already."
            found.add(29, f"{wrong} Use another.")
        found.approvals.add(approval)
    _check_end(part, found)


def _check_end(part: JsonObject, found: Problems) -> None:
    """Check that the call has ended, and how."""
    id_, state = part["toolCallId"], part["state"]
    served = part.get("providerExecuted") is True
    waits = ("input-available", "approval-responded")
    if state == "approval-requested":
        wrong = f"the approval of {id_!r} is open."
        found.add(28, f"{wrong} Wait for it, and send the message whole.")
    elif state == "input-streaming" or (not served and state in waits):
        wrong = f"{id_!r} is still in {state}."
        found.add(27, f"{wrong} Wait for its result, and send the message whole.")
    elif part.get("preliminary") is True:
        wrong = f"the output of {id_!r} is preliminary."
        found.add(27, f"{wrong} Wait for the last, and send the message whole.")
    else:
        found.check_input(32, id_, input_sent(part))
        match part:
            case {"errorText": said} | {"state": "output-denied", "approval": {"reason": said}} if (
                not said.strip()
            ):
                found.add(33, f"the end of {id_!r} has no text. Describe the error.")


def _misfit(part: JsonObject) -> str:
    """Why a call's fields do not fit its state; empty if they do."""
    state = part["state"]
    if not isinstance(state, str) or state not in _STATES:
        return f"is in a state that is none of {', '.join(_STATES)}. Use one of these."
    needs, may = _STATES[state]
    for field in needs:
        if field not in part:
            return f"is in {state} and has no `{field}`. Add it, or correct the state."
    for field in ("output", "errorText", "approval"):
        if field in part and field not in (*needs, *may):
            wrong = f"is in {state}, which has no `{field}`."
            return f"{wrong} Remove it, or correct the state."
    if field := misfit(part, _only_given(part, _STATE_FIELDS.get(state, {}))):
        return f"has a `{field}` that does not fit {state}. Correct it."
    if "approval" in part and not _fits(part["approval"], state):
        return f"has an approval that does not fit {state}. Write its `id` and the answer."
    return ""


def _fits(approval: Any, state: str) -> bool:
    match approval:
        case {"id": str(), "signature": signature} if not isinstance(signature, str):
            return False
        case {"id": str()} if state == "approval-requested":
            return "approved" not in approval and "reason" not in approval
        case {"id": str(), "approved": bool(approved)} if isinstance(
            approval.get("reason", ""), str
        ):
            return state == "approval-responded" or approved is (state != "output-denied")
        case _:
            return False


def kind_of(part: Any) -> str:
    """The part's type as in the tables; empty if it is not known."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return ""
    for prefix in ("data-", "tool-"):
        if kind.startswith(prefix):
            return f"{prefix}<name>"
    return kind if kind in _FIELDS else ""


def lacks(part: JsonObject) -> str:
    """The first field that is missing or has a value that does not fit; empty if all fit."""
    must, may = _FIELDS[kind_of(part)]
    if lacking := misfit(part, must):
        return f"`{lacking}`"
    wrong = misfit(part, _only_given(part, may))
    return f"another `{wrong}`, or none" if wrong else ""


def _only_given(part: JsonObject, fields: _Fields) -> _Fields:
    return {field: fits for field, fits in fields.items() if field in part}


def tool_of(part: JsonObject) -> str:
    name: str = (
        part["toolName"] if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")
    )
    return name


def input_sent(part: JsonObject) -> Any:
    """The value that the SDK sends as the call's input."""
    kept = part.get("input")
    return part.get("rawInput") if kept is None and part["state"] == "output-error" else kept


def _is_metadata(value: Any) -> bool:
    """Whether it is an object of objects, by provider."""
    return isinstance(value, dict) and all(isinstance(inner, dict) for inner in value.values())


CALLS: Final = ("tool-<name>", "dynamic-tool")
FOR_PEOPLE: Final = ("source-url", "source-document", "data-<name>")
_OF_TEXT: Final[_Fields] = {
    "state": lambda value: value in ("streaming", "done"),
    "providerMetadata": _is_metadata,
}
_OF_CALL: Final[_Fields] = {
    "providerExecuted": bool,
    "toolMetadata": dict,
    "callProviderMetadata": _is_metadata,
}
#: By type: the required and the optional fields of a part.
_FIELDS: Final[dict[str, tuple[_Fields, _Fields]]] = {
    "text": ({"text": str}, _OF_TEXT),
    "reasoning": ({"text": str}, {"id": str, **_OF_TEXT}),
    "file": (
        {"mediaType": str, "url": str},
        {"filename": str, "providerMetadata": _is_metadata},
    ),
    "source-url": (
        {"sourceId": str, "url": str},
        {"title": str, "providerMetadata": _is_metadata},
    ),
    "source-document": (
        {"sourceId": str, "mediaType": str, "title": str},
        {"filename": str, "providerMetadata": _is_metadata},
    ),
    "step-start": ({}, {}),
    "data-<name>": ({"data": object}, {"id": str}),
    "tool-<name>": ({"toolCallId": str, "state": object}, _OF_CALL),
    "dynamic-tool": (
        {"toolName": str, "toolCallId": str, "state": object},
        {"dynamic": lambda value: value is False, **_OF_CALL},
    ),
}
#: The types of parts for the roles that cannot have all of them.
_ROLES: Final = {"system": ("text",), "user": ("text", "file", "data-<name>")}
#: By state: the fields that a call needs, and those that it may have.
_STATES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "input-streaming": ((), ()),
    "input-available": (("input",), ()),
    "approval-requested": (("input", "approval"), ()),
    "approval-responded": (("input", "approval"), ()),
    "output-available": (("input", "output"), ("approval",)),
    "output-error": (("errorText",), ("approval",)),
    "output-denied": (("input", "approval"), ()),
}
#: By state: fields that are checked only there.
_STATE_FIELDS: Final[dict[str, _Fields]] = {
    "input-streaming": {
        "rawInput": str,
        "inputEncoding": lambda value: value in ("json", "text"),
    },
    "output-available": {"preliminary": bool, "resultProviderMetadata": _is_metadata},
    "output-error": {"errorText": str, "resultProviderMetadata": _is_metadata},
}
