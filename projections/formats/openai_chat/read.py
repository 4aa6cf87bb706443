"""Reads conversations of OpenAI Chat Completions.

Writing a history and reading it again loses: opaque parts; whether an outcome is an error; which
system message was a note; names of speakers (`name`); the border between several texts of one turn,
and their places among its wishes and refusals; and the characters of a tool's name that the
provider does not take. The thoughts that other services add (`reasoning`, `reasoning_content`,
`reasoning_details`) are left out. Annotations of a reply are read as citations, and written in
words.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import JsonObject, Payload, messages_of, text_content
from ayes.projections.formats.conversation import ConversationStep, read_messages
from ayes.projections.formats.openai_files import FILES
from ayes.schemas.errors import BadInput


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation, as `ayes.projections.formats.conversation` reads one from a recording.

    A recording has one spelling, and the provider several. These are rewritten first: content in
    text parts, results in another order or without a name, a developer for the system, empty
    fields.

    Raises:
        BadInput: a message cannot be read unambiguously; names it.
    """
    messages = [_plain(at, message) for at, message in enumerate(messages_of(payload))]
    return read_messages(_in_call_order(messages)) if messages else ()


_THOUGHTS: Final = frozenset({"reasoning", "reasoning_content", "reasoning_details"})


def _plain(at: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    # The provider's SDK writes absent fields as null. An empty `tool_calls` is a mistake, though.
    plain = {
        key: value
        for key, value in message.items()
        if value is not None and (key, value) != ("annotations", []) and key not in _THOUGHTS
    }
    if role != "tool":
        plain.pop("name", None)
    if role == "developer":
        plain["role"] = "system"
    content = message.get("content")
    if isinstance(content, list) and role == "assistant":
        refusals = [one["refusal"] for one in content if _is_refusal(one)]
        content = [one for one in content if not _is_refusal(one)] or None
        if refusals:
            plain["refusal"] = "\n\n".join(refusals)
    if isinstance(content, list) and not (role == "user" and any(map(_is_file, content))):
        content = text_content(at, content)
    if not plain.get("refusal", "no"):
        del plain["refusal"]
    if "content" in message or role == "assistant":
        plain["content"] = content
    return plain


def _is_refusal(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") == "refusal"
        and isinstance(part.get("refusal"), str)
    )


def _is_file(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in FILES


def _in_call_order(messages: Sequence[Any]) -> list[Any]:
    """The messages, each turn's results in the order of its calls and with their tools' names."""
    found: list[Any] = []
    at = 0
    while at < len(messages):
        names = _called(messages[at])
        end = at + 1
        while (
            end < len(messages)
            and isinstance(messages[end], dict)
            and messages[end].get("role") == "tool"
        ):
            end += 1
        results = [_with_name(message, names) for message in messages[at + 1 : end]]
        answered = [message.get("tool_call_id") for message in results]
        if lacking := [id_ for id_ in names if id_ not in answered]:
            raise BadInput(
                f"message {at}: {lacking[0]!r} has no result directly after it. Half a pair "
                "cannot be kept."
            )
        if len(names) == len(answered):
            results.sort(key=lambda message: list(names).index(message["tool_call_id"]))
        found += [messages[at], *results]
        at = end
    return found


def _called(message: Any) -> dict[str, str]:
    """The tool of each call of an assistant message; empty if it has another shape."""
    match message:
        case {"role": "assistant", "tool_calls": [*calls]}:
            return {
                id_: name
                for call in calls
                if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
                if isinstance(id_ := call.get("id"), str)
                and isinstance(name := function.get("name"), str)
            }
        case _:
            return {}


def _with_name(message: JsonObject, names: dict[str, str]) -> JsonObject:
    """The result with the name of its tool; an empty one without a call is refused later."""
    id_ = message.get("tool_call_id")
    return {"name": names.get(id_, "") if isinstance(id_, str) else "", **message}
