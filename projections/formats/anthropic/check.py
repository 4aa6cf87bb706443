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
8.  A result's content is not an empty list, and not blank with `is_error`
    (bytedance/trae-agent#231, jlevy/markform#153).
9.  Thinking is in assistant messages, with the signature or the data that it came with.
10. A server tool's result comes after its `server_tool_use` (anthropics/claude-code#64383), one of
    the MCP connector after its `mcp_tool_use`.
11. The first message is a user's, and there is one (Messages reference).
12. Roles alternate, apart from system messages. The service itself joins neighbours; servers that
    copy its interface refuse them.
13. `input` is an object (Messages reference).
14. A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - (Messages reference).
15. A message is an object with role user, assistant or, after the first one, system, its content
    text or a list of blocks.
16. A final assistant message, which the model is to continue, does not end in white space ("final
    assistant content cannot end with trailing whitespace", Messages API).
17. An image is JPEG, PNG, GIF or WebP, a document a PDF or text, each by its bytes in base64, by a
    link of https, or as an uploaded file (Vision, PDF support, Files API). An image has at most 10
    MiB of base64 ("image exceeds 10 MB maximum"), the title of a document 1 to 500 characters.
18. Images and documents are in users' messages and in results (Messages reference).
19. A citation is an object with a type, in a text of the assistant (Citations).
20. A result's content is text, or blocks of text, images, documents, search results and references
    to tools (Messages reference); with `is_error` texts alone ("all content must be type `text` if
    `is_error` is true").
21. A request has at most 600 images, and 32 MiB (Vision). Fewer for some models, and elsewhere than
    at Anthropic's own.

Not checked: the dimensions of an image, and the pages of a PDF.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.anthropic.media import MAX_REQUEST, source_problem
from ayes.projections.formats.common import (
    FormatProblem,
    JsonObject,
    Payload,
    Problems,
    as_text,
    find_messages,
)
from ayes.projections.formats.pairing import CallPairing, PairingRules
from ayes.schemas.limits import cited

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
#: The most images of a request.
MAX_IMAGES: Final = 600
_PAIRING: Final = PairingRules(
    missing=1,
    stray=4,
    twice=3,
    place="in the next message",
    follows="its use. Put it directly after",
)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the provider would refuse the payload, by message."""
    messages = find_messages(payload)
    found = CallPairing(_PAIRING)
    if not messages:
        found.add(11, "there is no message. The first must be a user's.")
    role = ""
    served: set[str] = set()
    for message in found.each(messages):
        blocks, is_first = blocks_of(message), found.at == 0
        if blocks is None or (is_first and message["role"] == "system"):
            found.add(15, shape_problem(message))
            continue
        before, role = role, message["role"]
        if is_first and role != "user":
            found.add(11, "the first message must be a user's. Put one before it.")
        if role == before != "system":
            found.add(12, f"two messages of role {role} follow each other. Join their blocks.")
        if not blocks and not (role == "assistant" and found.at == len(messages) - 1):
            found.add(7, "the message has no content. Leave it out.")
        for block in blocks:
            if block["type"] == "tool_result":
                found.add_result(as_text(block.get("tool_use_id")))
        found.end_turn()
        _check_order(role, blocks, found)
        for block in blocks:
            _check_block(role, block, served, found)
        for block in blocks:
            if block["type"] == "tool_use":
                _check_use(block, found)
    found.end_turn()
    _check_last(messages, found)
    _check_whole(messages, found)
    return found.in_order()


def _check_last(messages: Sequence[Any], found: Problems) -> None:
    blocks = blocks_of(messages[-1]) if messages else None
    if not blocks or messages[-1]["role"] != "assistant" or blocks[-1]["type"] != "text":
        return
    text = as_text(blocks[-1].get("text", ""))
    if text != text.rstrip():
        wrong = "the last message is the assistant's and ends in white space."
        found.add(16, f"{wrong} Strip it, or say something after it.")


def _check_whole(messages: Sequence[Any], found: Problems) -> None:
    """Check how many images the messages have, and how many bytes of files."""
    files = [
        block
        for message in messages
        for outer in blocks_of(message) or ()
        for block in (outer, *_inside(outer))
        if block.get("type") in ("image", "document")
    ]
    images = sum(block["type"] == "image" for block in files)
    size = sum(len(as_text(_data_of(block))) for block in files)
    if images > MAX_IMAGES or size >= MAX_REQUEST:
        wrong = f"the request has {images:,} images, and {size:,} characters of files."
        most = f"{MAX_IMAGES} and {MAX_REQUEST:,}"
        found.add(21, f"{wrong} At most {most}: leave old ones out.")


def _inside(block: JsonObject) -> list[JsonObject]:
    content = block.get("content") if block["type"] == "tool_result" else None
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _data_of(block: JsonObject) -> Any:
    source = block.get("source")
    return source.get("data", "") if isinstance(source, dict) else ""


def blocks_of(message: Any) -> list[JsonObject] | None:
    """The message's blocks; `None` if it is of no known shape."""
    if (
        not isinstance(message, dict)
        or message.get("role") not in ("user", "assistant", "system")
        or "tool_calls" in message
    ):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        return None
    known = all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
    return content if known else None


def shape_problem(message: Any) -> str:
    if isinstance(message, dict) and (
        message.get("role") in ("system", "developer", "tool") or "tool_calls" in message
    ):
        return (
            "this is a message for OpenAI Chat Completions. "
            "Check these with `--format openai-chat`."
        )
    return "a message is a role, user or assistant, and text or a list of blocks."


def _check_order(role: str, blocks: list[JsonObject], found: Problems) -> None:
    kinds = [block["type"] for block in blocks]
    results = kinds.count("tool_result")
    if role == "user" and kinds[:results] != ["tool_result"] * results:
        found.add(2, "a result comes after something else. Put the results first.")
    if role == "assistant" and "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]:
        found.add(6, "text comes after a tool use. Put the text before it.")


def _check_use(use: JsonObject, found: CallPairing) -> None:
    id_ = use.get("id")
    if not is_id(id_):
        found.add(5, f"the id {cited(id_)} is not made of A-Z a-z 0-9 _ -. Mint another.")
    elif id_ in found.used:
        found.add(5, f"{cited(id_)} is the id of an earlier use too. Mint another.")
    found.add_call(as_text(id_))
    found.check_input(13, id_, use.get("input"))
    found.check_tool_name(14, use.get("name"))


def _check_block(role: str, block: JsonObject, served: set[str], found: Problems) -> None:
    """Check one block, and add the provider's own tool uses to `served`."""
    match block["type"]:
        case "image" | "document" if role != "user":
            wrong = f"a block of type {block['type']!r} is in the assistant's message."
            found.add(18, f"{wrong} Tell the model about it in words.")
        case "image" | "document" if wrong := source_problem(block):
            found.add(17, f"{wrong} Send another form of it, or tell the model in words.")
        case "tool_result" if wrong := _blocks_problem(block):
            found.add(20, wrong)
        case "tool_result" if wrong := _files_problem(block.get("content")):
            found.add(17, f"in a result: {wrong} Send another form, or tell it in words.")
        case "text" if wrong := _citations_problem(role, block):
            found.add(19, wrong)
        case "text" if not as_text(block.get("text", "")).strip():
            found.add(7, "a text block has no visible character. Leave it out.")
        case "tool_result" if block.get("content") == []:
            found.add(8, "a result's content is an empty list. Leave the field out.")
        case "tool_result" if block.get("is_error") and not _says_something(block.get("content")):
            found.add(8, "a result that is an error says nothing. Say what went wrong.")
        case "thinking" | "redacted_thinking" if role != "assistant":
            found.add(9, "thinking is in a user's message. It is the model's: drop it.")
        case "thinking" | "redacted_thinking" if lacking := thinking_problem(block):
            found.add(9, f"{lacking} Send the block as it came, or drop it.")
        case "server_tool_use" | "mcp_tool_use":
            served.add(as_text(block.get("id")))
        case kind if kind.endswith("_tool_result"):
            id_ = block.get("tool_use_id")
            if as_text(id_) not in served:
                use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
                wrong = f"the {kind} of {cited(id_)} lacks its {use}."
                found.add(10, f"{wrong} Send both, or neither.")


def _blocks_problem(result: JsonObject) -> str:
    """Why the provider would refuse the blocks of a result; empty if it would not."""
    content = result.get("content")
    kinds = [
        one.get("type") if isinstance(one, dict) else None
        for one in (content if isinstance(content, list) else ())
    ]
    if strange := [kind for kind in kinds if kind not in _IN_RESULTS]:
        known = ", ".join(_IN_RESULTS)
        return f"a result has a block of type {cited(strange[0])}. It can be {known}."
    if result.get("is_error") and set(kinds) - {"text"}:
        return "a result that is an error has more than texts. Tell the rest in words."
    return ""


_IN_RESULTS: Final = ("text", "image", "document", "search_result", "tool_reference")


def _files_problem(content: Any) -> str:
    """Why the provider would refuse a file in a result; empty if it would not."""
    for one in content if isinstance(content, list) else ():
        is_file = isinstance(one, dict) and one.get("type") in ("image", "document")
        if is_file and (wrong := source_problem(one)):
            return wrong
    return ""


def _citations_problem(role: str, block: JsonObject) -> str:
    given = block.get("citations")
    if given is None or given == []:
        return ""
    if role != "assistant":
        return "a user's text has citations. They are the assistant's: leave them out."
    if not isinstance(given, list) or not all(map(is_citation, given)):
        return "a citation is not an object with a type. Send it as it came, or leave it out."
    return ""


def is_citation(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _says_something(content: Any) -> bool:
    if isinstance(content, list):
        return any(
            not isinstance(one, dict) or as_text(one.get("text", "?")).strip() for one in content
        )
    return isinstance(content, str) and bool(content.strip())


def thinking_problem(block: JsonObject) -> str:
    """The field that a thinking block lacks, in a sentence; empty for any other block."""
    needed = {"thinking": "signature", "redacted_thinking": "data"}.get(block["type"])
    if not needed or block.get(needed):
        return ""
    return f"a {block['type']} block lacks its {needed}."


def is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None
