"""What Anthropic Messages refuses.

Rules 1 to 10 as platform.claude.com says ("Handle tool calls", the Messages reference) or as
the issue named reports:

1.  Every `tool_use` is answered by a `tool_result` in the very next user message, all of a turn in
    that one message (anthropics/claude-code#2697).
2.  There the results come first, text only after them.
3.  Exactly one result for each use (langchain-ai/langgraph#4397).
4.  No result without its use in the message before (anthropics/claude-code#18947).
5.  Ids of uses are unique over the whole request (anthropics/claude-code#28515) and made of A-Z a-z
    0-9 _ - (maximhq/bifrost#5097, QwenLM/qwen-code#8160).
6.  No text after a use in an assistant message (recorded fixture in opencode's `packages/llm`).
7.  No text block without a visible character, no message without content, except a final
    assistant's (anthropics/claude-code#23369, #62396).
8.  A result's content is no empty list, and says something when `is_error`
    (bytedance/trae-agent#231, jlevy/markform#153).
9.  Thinking stands in assistant messages, with the signature or the data that it came with.
10. A server tool's result stands after its `server_tool_use` (anthropics/claude-code#64383).
11. The first message is a user's, and there is one (Messages reference).
12. Roles alternate. The service itself joins neighbours; servers that copy its interface refuse
    them.
13. `input` is an object (Messages reference).
14. A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - (Messages reference).
15. A message is an object with role user or assistant, its content text or a list of blocks.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import TOOL_NAME, FormatProblem, JsonObject, Payload, find_messages

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)


def is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the messages; nothing, if it would take it."""
    messages = find_messages(payload)
    problems: list[FormatProblem] = []
    if not messages:
        problems.append(FormatProblem(11, 0, "there is no message. The first must be a user's."))
    role = ""
    waiting: list[str] = []  # uses of the message before, which this one must answer
    used: set[str] = set()
    served: set[str] = set()
    for at, message in enumerate(messages):
        blocks = blocks_of(message)
        if blocks is None:
            problems.append(FormatProblem(15, at, shape_problem(message)))
            continue
        before, role = role, message["role"]
        if at == 0 and role != "user":
            problems.append(FormatProblem(11, at, "the first message must be a user's. Put one before it."))
        if role == before:
            problems.append(
                FormatProblem(12, at, f"two messages of role {role} follow each other. Join their blocks.")
            )
        if not blocks and not (role == "assistant" and at == len(messages) - 1):
            problems.append(FormatProblem(7, at, "the message has no content. Leave it out."))
        results = [block for block in blocks if block["type"] == "tool_result"]
        problems += _check_results(at, results, waiting)
        problems += _check_order(at, role, blocks)
        for block in blocks:
            problems += _check_block(at, role, block, served)
        uses = [block for block in blocks if block["type"] == "tool_use"]
        problems += _check_uses(at, uses, used)
        waiting = [str(use.get("id")) for use in uses]
    last = len(messages) - 1
    problems += [_unanswered(last, id_) for id_ in waiting]
    return sorted(problems, key=lambda problem: problem.message)


def blocks_of(message: Any) -> list[JsonObject] | None:
    """The message's blocks; None if it is of no known shape."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant") or _is_chat(message):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        return None
    known = all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
    return content if known else None


def _is_chat(message: JsonObject) -> bool:
    return message.get("role") in ("system", "developer", "tool") or "tool_calls" in message


def shape_problem(message: Any) -> str:
    if isinstance(message, dict) and _is_chat(message):
        return "this is a message for OpenAI Chat Completions. Check these with `--for openai-chat`."
    return "a message is a role, user or assistant, and text or a list of blocks."


def _check_results(at: int, results: list[JsonObject], waiting: list[str]) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    answered: set[str] = set()
    for result in results:
        id_ = str(result.get("tool_use_id"))
        if id_ not in waiting:
            problems.append(
                FormatProblem(
                    4,
                    at,
                    f"the result of {id_!r} does not follow its use. Put it directly after, or drop it.",
                )
            )
        elif id_ in answered:
            problems.append(FormatProblem(3, at, f"{id_!r} is answered twice. Keep one result."))
        answered.add(id_)
    # Named at the message that holds the use.
    return problems + [_unanswered(at - 1, id_) for id_ in dict.fromkeys(waiting) if id_ not in answered]


def _unanswered(at: int, id_: str) -> FormatProblem:
    return FormatProblem(
        1, at, f"{id_!r} has no result in the next message. Wait for it, and send the turn whole."
    )


def _check_order(at: int, role: str, blocks: list[JsonObject]) -> list[FormatProblem]:
    kinds = [block["type"] for block in blocks]
    results = kinds.count("tool_result")
    if role == "user" and kinds[:results] != ["tool_result"] * results:
        return [FormatProblem(2, at, "a result comes after something else. Put the results first.")]
    if role == "assistant" and "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]:
        return [FormatProblem(6, at, "text comes after a tool use. Put the text before it.")]
    return []


def _check_uses(at: int, uses: list[JsonObject], used: set[str]) -> list[FormatProblem]:
    """The uses of a message. Marks their ids as used."""
    problems: list[FormatProblem] = []
    for use in uses:
        id_ = use.get("id")
        if not is_id(id_):
            problems.append(
                FormatProblem(5, at, f"the id {id_!r} is not made of A-Z a-z 0-9 _ -. Mint another.")
            )
        elif id_ in used:
            problems.append(FormatProblem(5, at, f"{id_!r} stands for an earlier use too. Mint another."))
        used.add(str(id_))
        if not isinstance(use.get("input"), dict):
            problems.append(
                FormatProblem(
                    13, at, f"the input of {id_!r} is no object. Wrap it under a name that says so."
                )
            )
        if not TOOL_NAME.fullmatch(str(use.get("name", ""))):
            problems.append(
                FormatProblem(
                    14,
                    at,
                    f"the tool name {use.get('name')!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest.",
                )
            )
    return problems


def _check_block(at: int, role: str, block: JsonObject, served: set[str]) -> list[FormatProblem]:
    """One block by itself. Marks server tools as used."""
    match block["type"]:
        case "text" if not str(block.get("text", "")).strip():
            return [FormatProblem(7, at, "a text block has no visible character. Leave it out.")]
        case "tool_result" if block.get("content") == []:
            return [FormatProblem(8, at, "a result's content is an empty list. Leave the field out.")]
        case "tool_result" if block.get("is_error") and not _says_something(block.get("content")):
            return [FormatProblem(8, at, "a result that is an error says nothing. Say what went wrong.")]
        case "thinking" | "redacted_thinking" if role != "assistant":
            return [FormatProblem(9, at, "thinking stands in a user's message. It is the model's: drop it.")]
        case "thinking" | "redacted_thinking" if lacking := thinking_problem(block):
            return [FormatProblem(9, at, f"{lacking} Send the block as it came, or drop it.")]
        case "server_tool_use":
            served.add(str(block.get("id")))
        case kind if kind.endswith("_tool_result") and str(block.get("tool_use_id")) not in served:
            return [
                FormatProblem(
                    10,
                    at,
                    f"the {kind} of {block.get('tool_use_id')!r} lacks its server_tool_use. Send both, or neither.",
                )
            ]
    return []


def _says_something(content: Any) -> bool:
    if isinstance(content, list):
        return any(not isinstance(one, dict) or str(one.get("text", "?")).strip() for one in content)
    return isinstance(content, str) and bool(content.strip())


def thinking_problem(block: JsonObject) -> str:
    """What a thinking block lacks, in words; nothing for one that is whole, or for any other block."""
    needed = {"thinking": "signature", "redacted_thinking": "data"}.get(block["type"])
    if needed and not block.get(needed):
        return f"a {block['type']} block lacks its {needed}."
    return ""
