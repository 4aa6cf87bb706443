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
7.  Arguments are text. Whether they are JSON is not asked: models write malformed ones, and get
    them back verbatim.
8.  Content is text, or at least one part of a type that the role may send; null only in an
    assistant message that has tool calls.
9.  `tool_calls`, where it stands, is not empty.
10. There is a message, and each is an object with a role that exists.
"""

from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import TOOL_NAME, FormatProblem, JsonObject, Payload, find_messages

MAX_ID: Final = 40


_ROLES: Final = ("assistant", "developer", "system", "tool", "user")


#: The parts that a role's content may have. Those of the roles that are not here are texts.
_PARTS: Final = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}


#: Blocks by which Anthropic's messages are known.
_ANTHROPIC: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document")


def is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the messages; nothing, if it would take it."""
    messages = find_messages(payload)
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


def _check_content(at: int, message: JsonObject) -> list[FormatProblem]:
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
        if not is_id(id_):
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
