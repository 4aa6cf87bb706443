"""Histories for OpenAI Chat Completions, and for the many servers that speak it.

What it turns down (sources as collected in OpenAI's API reference and the issues named):

1.  After an assistant message with tool calls comes one tool message for every call, before any other role.
2.  A tool message answers a call of the assistant message before it (microsoft/agent-framework#5600).
3.  A call is answered once.
4.  A tool call's id is text of 1 to 40 characters (camel-ai/camel#2215).
5.  Ids are unique within one assistant message. Across messages they may repeat, and in recorded GPT-4o
    conversations they do: a call pairs with the tool messages that follow it directly.
6.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
7.  Arguments are text. Whether they are JSON is not asked: models write malformed ones, and get them back verbatim.
8.  Content is text, or at least one part of a type that the role may send; null only in an assistant message that
    has tool calls.
9.  `tool_calls`, where it stands, is not empty.
10. There is a message, and each is an object with a role that exists.

There is no flag for errors, so the outcome's text says what went wrong; and no place for opaque parts, so they are
left out. Notes are system messages, which a user cannot forge.

What is lost on the way out and in again: opaque parts; whether an outcome is an error; which system message was a
note; who spoke (`name`); the border between several texts of one turn, and their places among its wishes; in a tool's
name, all that the provider would not take.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats import reading
from ayes.projections.formats.common import (
    TOOL_NAME,
    FormatProblem,
    Paired,
    Payload,
    call_id,
    messages_of,
    paired,
    tool_name,
)
from ayes.projections.formats.conversation import ConversationStep, read_messages
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Text, Wish

MAX_ID: Final = 40

_ROLES: Final = ("assistant", "developer", "system", "tool", "user")
#: The parts that a role's content may have. Those of the roles that are not here are texts.
_PARTS: Final = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}
#: Blocks by which Anthropic's messages are known.
_ANTHROPIC: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document")


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`. A recorded conversation that became facts is written back as it was."""
    messages: list[dict[str, Any]] = []
    for step in paired(entries):
        match step:
            case System(text=text):
                messages.append({"role": "system", "content": text})
            case User(text=text, name=name):
                messages.append({"role": "user", **_named(name), "content": text})
            case Note(text=text, name=name):
                messages.append({"role": "system", **_named(name), "content": text})
            case Paired(assistant=assistant, outcomes=outcomes):
                messages += _turn(assistant, outcomes)
    return {"messages": messages}


def _turn(assistant: Assistant, outcomes: Sequence[tuple[Wish, Outcome]]) -> list[dict[str, Any]]:
    texts = [part.text for part in assistant.parts if isinstance(part, Text)]
    message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts)}
    if not outcomes:
        return [message]
    if not texts:
        message["content"] = None
    used: set[str] = set()
    ids = [call_id(outcome, used, _is_id) for _wish, outcome in outcomes]
    message["tool_calls"] = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": tool_name(wish.tool), "arguments": wish.arguments},
        }
        for id_, (wish, _outcome) in zip(ids, outcomes, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": id_, "name": tool_name(wish.tool), "content": outcome.text}
        for id_, (wish, outcome) in zip(ids, outcomes, strict=True)
    ]
    return [message, *results]


def _named(name: str) -> dict[str, str]:
    """Who speaks, where the name is one that the provider takes."""
    return {"name": name} if TOOL_NAME.fullmatch(name) else {}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the messages; nothing, if it would take it."""
    messages = messages_of(payload)
    problems: list[FormatProblem] = []
    if not messages:
        problems.append(FormatProblem(10, 0, "there is no message. Say something first."))
    open_ids: dict[str, bool] = {}  # of the last assistant message, and whether each is answered
    asked_at = 0
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            problems.append(
                FormatProblem(10, at, f"a message is an object with one of the roles {', '.join(_ROLES)}.")
            )
            continue
        problems += _check_content(at, message)
        if message["role"] == "tool":
            problems += _check_answer(at, str(message.get("tool_call_id")), open_ids)
            continue
        problems += _unanswered(asked_at, open_ids)
        open_ids, asked_at = {}, at
        if message["role"] == "assistant" and "tool_calls" in message:
            calls, found = _check_calls(at, message["tool_calls"])
            open_ids = dict.fromkeys(calls, False)
            problems += found
    return sorted([*problems, *_unanswered(asked_at, open_ids)], key=lambda problem: problem.message)


def _check_content(at: int, message: dict[str, Any]) -> list[FormatProblem]:
    content = message.get("content")
    if isinstance(content, str):
        return []
    if isinstance(content, list) and content:
        wrong = (sentence for part in content if (sentence := _part_problem(part, message["role"])))
        return [FormatProblem(8, at, sentence) for sentence in wrong]
    if content is None and message["role"] == "assistant" and message.get("tool_calls") is not None:
        return []
    return [FormatProblem(8, at, "the content must be text. Write an empty text where there is none.")]


def _part_problem(part: Any, role: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _ANTHROPIC:
        return f"a block of type {kind!r} is Anthropic's. Check these messages with `--for anthropic`."
    kinds = _PARTS.get(role, ("text",))
    if kind not in kinds:
        return f"a part is of type {kind!r}. One of role {role} can be {', '.join(kinds)}."
    if kind == "text" and not isinstance(part.get("text"), str):
        return "the text of a part is no text. Write one, or leave the part out."
    return ""


def _check_answer(at: int, id_: str, open_ids: dict[str, bool]) -> list[FormatProblem]:
    """One tool message. Marks the call as answered."""
    if id_ not in open_ids:
        return [
            FormatProblem(
                2,
                at,
                f"the result of {id_!r} does not follow an assistant message with that call. Put it there, or drop it.",
            )
        ]
    if open_ids[id_]:
        return [FormatProblem(3, at, f"{id_!r} is answered twice. Keep one result.")]
    open_ids[id_] = True
    return []


def _unanswered(at: int, open_ids: dict[str, bool]) -> list[FormatProblem]:
    return [
        FormatProblem(
            1, at, f"{id_!r} has no result directly after it. Wait for it, and send the turn whole."
        )
        for id_, answered in open_ids.items()
        if not answered
    ]


def _check_calls(at: int, calls: Any) -> tuple[list[str], list[FormatProblem]]:
    """The ids of an assistant message's calls, and what is wrong with the calls."""
    if not isinstance(calls, list) or not calls:
        return [], [FormatProblem(9, at, "`tool_calls` is empty. Leave it out where nothing is called.")]
    ids: list[str] = []
    problems: list[FormatProblem] = []
    for call in calls:
        id_ = call.get("id") if isinstance(call, dict) else None
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        if not _is_id(id_):
            problems.append(
                FormatProblem(4, at, f"the id {id_!r} is not text of 1 to {MAX_ID} characters. Mint another.")
            )
        if str(id_) in ids:
            problems.append(
                FormatProblem(5, at, f"{id_!r} stands for two calls of this message. Mint another for one.")
            )
        if not TOOL_NAME.fullmatch(str(function.get("name", ""))):
            problems.append(
                FormatProblem(
                    6,
                    at,
                    f"the tool name {function.get('name')!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest.",
                )
            )
        if not isinstance(function.get("arguments"), str):
            problems.append(
                FormatProblem(
                    7, at, f"the arguments of {id_!r} are no text. Send the raw JSON text, not an object."
                )
            )
        ids.append(str(id_))
    return ids, problems


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """A conversation in our words, as `ayes.projections.formats.conversation` reads one from a recording.

    A recording has one way to say a thing, and the provider several. So what is said in another way is first said in
    that one: content in text parts, results in another order or without a name, a developer for the system, fields
    that are there and empty.

    Raises:
        BadInput: with the index of the first message that cannot be read without guessing.
    """
    messages = [_plain(at, message) for at, message in enumerate(reading.listed(payload, "messages"))]
    return read_messages(_in_call_order(messages)) if messages else ()


def _plain(at: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    # The provider's SDK writes what is not there so. An empty `tool_calls` is a mistake, though.
    plain = {
        key: value
        for key, value in message.items()
        if value is not None and (key, value) != ("annotations", [])
    }
    if role != "tool":
        plain.pop("name", None)
    if role == "developer":
        plain["role"] = "system"
    content = message.get("content")
    if "content" in message or role == "assistant":
        plain["content"] = reading.text(at, content) if isinstance(content, list) else content
    return plain


def _in_call_order(messages: Sequence[Any]) -> list[Any]:
    """Each turn's results in the order of its calls, and under the names of their tools."""
    found: list[Any] = []
    at = 0
    while at < len(messages):
        names = _called(messages[at])
        end = at + 1
        while end < len(messages) and isinstance(messages[end], dict) and messages[end].get("role") == "tool":
            end += 1
        results = [_with_name(message, names) for message in messages[at + 1 : end]]
        answered = [message.get("tool_call_id") for message in results]
        if lacking := [id_ for id_ in names if id_ not in answered]:
            raise BadInput(
                f"message {at}: {lacking[0]!r} has no result directly after it. Half a pair cannot be kept."
            )
        if len(names) == len(answered):
            results.sort(key=lambda message: list(names).index(message["tool_call_id"]))
        found += [messages[at], *results]
        at = end
    return found


def _called(message: Any) -> dict[str, str]:
    """The calls of an assistant message, id to tool; none where it has another shape, which is told later."""
    match message:
        case {"role": "assistant", "tool_calls": [*calls]}:
            return {
                id_: name
                for call in calls
                if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
                if isinstance(id_ := call.get("id"), str) and isinstance(name := function.get("name"), str)
            }
        case _:
            return {}


def _with_name(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A result without the name of its tool gets it; one without a call is refused later, and gets none."""
    id_ = message.get("tool_call_id")
    return {"name": names.get(id_, "") if isinstance(id_, str) else "", **message}
