"""What OpenAI Chat Completions refuses.

The sources are OpenAI's API reference and the issues named:

1.  After an assistant message with tool calls comes one tool message for every call, before any
    other role.
2.  A tool message answers a call of the assistant message before it
    (microsoft/agent-framework#5600).
3.  A call is answered once.
4.  A tool call's id is text of 1 to 40 characters (camel-ai/camel#2215).
5.  Ids are unique within one assistant message. Across messages they may repeat, and in recorded
    GPT-4o conversations they do: a call pairs with the tool messages that follow it directly.
6.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
7.  Arguments are text. They need not be JSON: models write malformed ones, and get them back
    verbatim.
8.  Content is text, or at least one part of a type that the role may send; null only in an
    assistant message that has tool calls, a refusal or a sound.
9.  `tool_calls`, if present, is not empty.
10. There is a message, and each is an object with a role that exists.
11. An assistant message has at most 128 tool calls ("array too long", `tool_calls`).
12. An image is a link or a data URL of JPEG, PNG, GIF or WebP, with a detail that exists; a sound
    is WAV or MP3; a file is a PDF, or the id of an uploaded one (Images and vision, Audio, File
    inputs).
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import (
    FormatProblem,
    JsonObject,
    Payload,
    Problems,
    as_text,
    find_messages,
)
from ayes.projections.formats.openai_files import FILES, media_problem
from ayes.projections.formats.pairing import CallPairing, PairingRules
from ayes.schemas.limits import cited

MAX_ID: Final = 40
MAX_CALLS: Final = 128
_ROLES: Final = ("assistant", "developer", "system", "tool", "user")
#: The parts that a role's content may have. Those of the other roles are texts.
_PARTS: Final = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
#: Blocks that occur only in Anthropic's messages.
_ANTHROPIC: Final = (
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "image",
    "document",
)
_PAIRING: Final = PairingRules(
    missing=1,
    stray=2,
    twice=3,
    place="directly after it",
    follows="an assistant message with that call. Put it there",
)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the provider would refuse the payload, by message."""
    messages = find_messages(payload)
    found = CallPairing(_PAIRING)
    if not messages:
        found.add(10, "there is no message. Say something first.")
    for message in found.each(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            found.add(10, f"a message is an object with one of the roles {', '.join(_ROLES)}.")
            continue
        _check_content(message, found)
        if message["role"] == "tool":
            found.add_result(as_text(message.get("tool_call_id")))
            continue
        found.end_turn()
        if message["role"] == "assistant" and "tool_calls" in message:
            _check_calls(message["tool_calls"], found)
    found.end_turn()
    return found.in_order()


def _check_content(message: JsonObject, found: Problems) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if isinstance(content, list) and content:
        for part in content:
            if wrong := _part_problem(part, message["role"]):
                found.add(8, wrong)
            elif part["type"] in FILES and (wrong := media_problem(part)):
                found.add(12, f"{wrong} Send another form of it, or tell it in words.")
    elif content is not None or message["role"] != "assistant" or not _says_other(message):
        found.add(8, "the content must be text. Write an empty text where there is none.")


def _says_other(message: JsonObject) -> bool:
    """Whether an assistant message says something besides its content."""
    return (
        message.get("tool_calls") is not None
        or isinstance(message.get("refusal"), str)
        or isinstance(message.get("audio"), dict)
    )


def _part_problem(part: Any, role: str) -> str:
    """Why the role may not send the part; empty if it may."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _ANTHROPIC:
        return (
            f"a block of type {cited(kind)} is Anthropic's. "
            "Check these messages with `--format anthropic`."
        )
    kinds = _PARTS.get(role, ("text",))
    if kind not in kinds:
        return f"a part is of type {cited(kind)}. One of role {role} can be {', '.join(kinds)}."
    if kind in ("text", "refusal") and not isinstance(part.get(kind), str):
        return f"the {kind} of a part is not text. Write one, or leave the part out."
    return ""


def _check_calls(calls: Any, found: CallPairing) -> None:
    if not isinstance(calls, list) or not calls:
        found.add(9, "`tool_calls` is empty. Leave it out where nothing is called.")
        return
    if len(calls) > MAX_CALLS:
        wrong = f"there are {len(calls)} tool calls in one message, over the limit of {MAX_CALLS}."
        found.add(11, f"{wrong} Split them over several turns.")
    for call in calls:
        id_ = call.get("id") if isinstance(call, dict) else None
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        if not is_id(id_):
            wrong = f"the id {cited(id_)} is not text of 1 to {MAX_ID} characters."
            found.add(4, f"{wrong} Mint another.")
        if as_text(id_) in found.turn:
            wrong = f"{cited(id_)} is the id of two calls of this message."
            found.add(5, f"{wrong} Mint another for one.")
        found.check_tool_name(6, function.get("name"))
        if not isinstance(function.get("arguments"), str):
            wrong = f"the arguments of {cited(id_)} are not text."
            found.add(7, f"{wrong} Send the raw JSON text, not an object.")
        found.add_call(as_text(id_))


def is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID
