"""Histories for Anthropic Messages.

What it turns down. Rules 1 to 10 as platform.claude.com says ("Handle tool calls", the Messages reference) or as
the issue named reports:

1.  Every `tool_use` is answered by a `tool_result` in the very next user message, all of a turn in that one
    message (anthropics/claude-code#2697).
2.  There the results come first, text only after them.
3.  Exactly one result for each use (langchain-ai/langgraph#4397).
4.  No result without its use in the message before (anthropics/claude-code#18947).
5.  Ids of uses are unique over the whole request (anthropics/claude-code#28515) and made of A-Z a-z 0-9 _ -
    (maximhq/bifrost#5097, QwenLM/qwen-code#8160).
6.  No text after a use in an assistant message (recorded fixture in opencode's `packages/llm`).
7.  No text block without a visible character, no message without content, except a final assistant's
    (anthropics/claude-code#23369, #62396).
8.  A result's content is no empty list, and says something when `is_error` (bytedance/trae-agent#231,
    jlevy/markform#153).
9.  Thinking stands in assistant messages, with the signature or the data that it came with.
10. A server tool's result stands after its `server_tool_use` (anthropics/claude-code#64383).
11. The first message is a user's, and there is one (Messages reference).
12. Roles alternate. The service itself joins neighbours; servers that copy its interface refuse them.
13. `input` is an object (Messages reference).
14. A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - (Messages reference).
15. A message is an object with role user or assistant, its content text or a list of blocks.

What the ledger holds and this form cannot is changed as little as it can be, and truthfully: arguments that are no
object, or could be read in two ways (a key twice), are wrapped whole (`MALFORMED`), a repeated or foreign id is minted
again, text after a use is put before it, text that is blank says so (`BLANK`). System text that opens the history is
the `system` of the request. What the system says later is a text of the user's side, marked as what it is.

Opaque parts go to no other provider. One of ours (`Opaque.provider == "anthropic"`) holds the JSON of its block.

What is lost on the way out and in again: whether the system or a note said what is marked as theirs; who spoke; the
border between system texts, and between two turns with nothing between them; the places of texts among the wishes;
blank texts, and the blanks of a result that has nothing else; ids that were minted, and in a tool's name and in
arguments what was changed. Of arguments that are an object, the spelling: their order stays. `cache_control` and
`caller` are about how a request is handled, and are not read.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ayes.projections.formats import reading
from ayes.projections.formats.common import (
    BLANK,
    OPENING,
    TOOL_NAME,
    FormatProblem,
    Paired,
    Payload,
    call_id,
    input_of,
    messages_of,
    noted,
    opening,
    paired,
    parsed,
    put,
    tool_name,
    visible,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
#: Blocks that are written from facts of their own, and never from an opaque part.
_OURS: Final = frozenset({"text", "tool_use", "tool_result"})

type Block = dict[str, Any]


def write(entries: Sequence[Entry]) -> Payload:
    """`{"system": ..., "messages": [...]}`, without `system` where the history opens with none."""
    first = opening(entries)
    system = [entry.text for entry in entries[:first] if isinstance(entry, System) and entry.text.strip()]
    messages: list[dict[str, Any]] = []
    used: set[str] = set()
    for step in paired(entries[first:]):
        match step:
            case User(text=text):
                _add(messages, "user", [_text(text)])
            case System(text=text):
                _add(messages, "user", [_text(noted(text))])
            case Note(text=text, name=name):
                _add(messages, "user", [_text(noted(text, name))])
            case Paired(assistant=assistant, outcomes=outcomes):
                ids = [call_id(outcome, used, _is_id) for _wish, outcome in outcomes]
                _add(messages, "assistant", _blocks(assistant, ids))
                if outcomes:
                    results = [_result(id_, one) for id_, (_, one) in zip(ids, outcomes, strict=True)]
                    _add(messages, "user", results)
    if not messages or messages[0]["role"] != "user":
        messages.insert(0, {"role": "user", "content": [_text(OPENING)]})
    return {"system": "\n\n".join(system), "messages": messages} if system else {"messages": messages}


def _add(messages: list[dict[str, Any]], role: str, blocks: list[Block]) -> None:
    put(messages, {"role": role, "content": blocks}, by="role", into="content")


def _text(text: str) -> Block:
    return {"type": "text", "text": visible(text)}


def _blocks(assistant: Assistant, ids: Iterable[str]) -> list[Block]:
    """A turn's blocks: texts that came after the first use are put before it, all else keeps its place."""
    minted = iter(ids)
    blocks: list[Block] = []
    first_use: int | None = None
    for part in assistant.parts:
        block = _block(part, minted)
        if block is None:
            continue
        if block["type"] == "text" and first_use is not None:
            blocks.insert(first_use, block)
            first_use += 1
            continue
        if block["type"] == "tool_use" and first_use is None:
            first_use = len(blocks)
        blocks.append(block)
    if any(block["type"] in {"text", "tool_use"} for block in blocks):
        return blocks
    return [*blocks, _text(BLANK)]


def _block(part: Part, ids: Iterable[str]) -> Block | None:
    match part:
        case Text(text=text):
            return _text(text) if text.strip() else None
        case Wish(tool=tool, arguments=arguments):
            return {
                "type": "tool_use",
                "id": next(iter(ids)),
                "name": tool_name(tool),
                "input": input_of(arguments),
            }
        case Opaque(provider="anthropic", data=data):
            block = parsed(data)
            return block if isinstance(block, dict) and _is_opaque(block) else None
        case Opaque():
            return None


def _is_opaque(block: Block) -> bool:
    """A block that the provider may have sent and will take back."""
    kind = block.get("type")
    return isinstance(kind, str) and kind not in _OURS and not _thinking_problem(block)


def _result(id_: str, outcome: Outcome) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": id_}
    if outcome.text.strip():
        block["content"] = outcome.text
    elif outcome.is_error:
        block["content"] = BLANK
    if outcome.is_error:
        block["is_error"] = True
    return block


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the messages; nothing, if it would take it."""
    messages = messages_of(payload)
    problems: list[FormatProblem] = []
    if not messages:
        problems.append(FormatProblem(11, 0, "there is no message. The first must be a user's."))
    role = ""
    waiting: list[str] = []  # uses of the message before, which this one must answer
    used: set[str] = set()
    served: set[str] = set()
    for at, message in enumerate(messages):
        blocks = _content(message)
        if blocks is None:
            problems.append(FormatProblem(15, at, _shape_problem(message)))
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


def _content(message: Any) -> list[Block] | None:
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


def _is_chat(message: dict[str, Any]) -> bool:
    return message.get("role") in ("system", "developer", "tool") or "tool_calls" in message


def _shape_problem(message: Any) -> str:
    if isinstance(message, dict) and _is_chat(message):
        return "this is a message for OpenAI Chat Completions. Check these with `--for openai-chat`."
    return "a message is a role, user or assistant, and text or a list of blocks."


def _check_results(at: int, results: list[Block], waiting: list[str]) -> list[FormatProblem]:
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


def _check_order(at: int, role: str, blocks: list[Block]) -> list[FormatProblem]:
    kinds = [block["type"] for block in blocks]
    results = kinds.count("tool_result")
    if role == "user" and kinds[:results] != ["tool_result"] * results:
        return [FormatProblem(2, at, "a result comes after something else. Put the results first.")]
    if role == "assistant" and "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]:
        return [FormatProblem(6, at, "text comes after a tool use. Put the text before it.")]
    return []


def _check_uses(at: int, uses: list[Block], used: set[str]) -> list[FormatProblem]:
    """The uses of a message. Marks their ids as used."""
    problems: list[FormatProblem] = []
    for use in uses:
        id_ = use.get("id")
        if not _is_id(id_):
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


def _check_block(at: int, role: str, block: Block, served: set[str]) -> list[FormatProblem]:
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
        case "thinking" | "redacted_thinking" if lacking := _thinking_problem(block):
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


def _thinking_problem(block: Block) -> str:
    """What a thinking block lacks, in words; nothing for one that is whole, or for any other block."""
    needed = {"thinking": "signature", "redacted_thinking": "data"}.get(block["type"])
    if needed and not block.get(needed):
        return f"a {block['type']} block lacks its {needed}."
    return ""


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """A conversation in our words. A list and a payload are read alike; only a payload has a `system`.

    Raises:
        BadInput: with the index of the first message that cannot be read without guessing.
    """
    steps: list[ConversationStep] = [Spoken("system", text) for text in _system(payload)]
    waiting: tuple[Wish, ...] = ()  # of the message before, which this one must answer
    messages = reading.listed(payload, "messages")
    for at, message in enumerate(messages):
        blocks = _content(message)
        if blocks is None:
            raise reading.refusal(at, _shape_problem(message))
        _only(at, "the message", message, ("role", "content"))
        if message["role"] == "assistant":
            if waiting:
                raise _half(at - 1, waiting[0].provider_id)
            reply = RecordedReply(tuple(_read_part(at, block) for block in blocks))
            waiting = reply.wishes
            _once(at, [wish.provider_id for wish in waiting])
            steps.append(reply)
            continue
        results = [block for block in blocks if block["type"] == "tool_result"]
        steps += _read_results(at, results, waiting)
        if blocks[: len(results)] != results:
            raise reading.refusal(at, "a result comes after something else. Put the results first.")
        waiting = ()
        steps += [Spoken("user", _read_text(at, block)) for block in blocks[len(results) :]]
    if waiting:
        raise _half(len(messages) - 1, waiting[0].provider_id)
    return tuple(steps)


def _system(payload: Payload | Sequence[Any]) -> list[str]:
    match payload:
        case {"system": str(text)}:
            return [text]
        case {"system": [*blocks]} if all(_is_text(block) for block in blocks):
            return [block["text"] for block in blocks]
        case {"system": other} if other is not None:
            raise BadInput("the system is no text, and no list of text blocks.")
        case _:
            return []


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _read_part(at: int, block: Block) -> Part:
    match block:
        case {"type": "text"}:
            return Text(_read_text(at, block))
        case {"type": "tool_use", "id": str(id_), "name": str(name), "input": dict(given)}:
            _only(at, "a tool_use", block, ("type", "id", "name", "input", *_NOT_READ))
            return Wish(name, _arguments(at, given), id_)
        case {"type": "tool_use"}:
            raise reading.refusal(at, "a tool_use is an id and a name, which are texts, and an input object.")
        case {"type": kind} if kind in _KEPT or kind.endswith("_tool_result"):
            return Opaque("anthropic", reading.raw(at, block))
        case {"type": "tool_result"}:
            raise reading.refusal(
                at, "a result stands in the model's message. Put it into the user's after it."
            )
        case _:
            raise reading.refusal(
                at, f"a block of type {block['type']!r} in the model's message is not known."
            )


#: Blocks of the model that are kept as they came, and go back so.
_KEPT: Final = ("thinking", "redacted_thinking", "server_tool_use")
_NOT_READ: Final = ("cache_control", "caller")


def _read_text(at: int, block: Block) -> str:
    if block["type"] == "text":
        _only(at, "a text", block, ("type", "text", *_NOT_READ))
    return reading.text(at, [block])


def _arguments(at: int, given: Block) -> str:
    """The raw text of a wish: what `write` wrapped is taken out again, all else is written as JSON."""
    match given:
        case {"malformed_arguments": str(text)} if len(given) == 1 and text.strip():
            if not isinstance(parsed(text), dict):
                return text
    return reading.raw(at, given)


def _read_results(at: int, results: Sequence[Block], waiting: Sequence[Wish]) -> list[ConversationStep]:
    """The outputs in the order of the wishes."""
    asked = {wish.provider_id: wish for wish in waiting}
    outputs: dict[str, Output] = {}
    for block in results:
        _only(at, "a result", block, ("type", "tool_use_id", "content", "is_error", *_NOT_READ))
        match block:
            case {"tool_use_id": str(id_)} if id_ in asked:
                pass
            case {"tool_use_id": other}:
                raise reading.refusal(at, f"the result of {other!r} does not follow its use.")
            case _:
                raise reading.refusal(at, "a result does not say of which use it is: it has no tool_use_id.")
        if id_ in outputs:
            raise reading.refusal(at, f"{id_!r} is answered twice. Keep one result.")
        is_error = block.get("is_error")
        if not isinstance(is_error, bool | None):
            raise reading.refusal(at, "is_error is neither true nor false.")
        content = block.get("content")
        text = "" if content is None or content == [] else reading.text(at, content)
        outputs[id_] = Output(id_, asked[id_].tool, text, bool(is_error))
    if lacking := [id_ for id_ in asked if id_ not in outputs]:
        raise _half(at - 1, lacking[0])
    return [outputs[id_] for id_ in asked]


def _half(at: int, id_: str) -> BadInput:
    return reading.refusal(at, f"{id_!r} has no result in the next message. Half a pair cannot be kept.")


def _once(at: int, ids: list[str]) -> None:
    if twice := [id_ for id_ in ids if ids.count(id_) > 1]:
        raise reading.refusal(
            at, f"{twice[0]!r} stands for two uses, and nobody knows which result is whose."
        )


def _only(at: int, what: str, found: dict[str, Any], keys: Sequence[str]) -> None:
    """Refuse what would get lost. A field that is there and empty says nothing."""
    if more := [key for key in found if key not in keys and found[key] not in (None, [])]:
        raise reading.refusal(at, f"{what} has {more[0]!r}, which cannot be kept.")
