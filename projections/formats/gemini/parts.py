"""The contents and parts of Gemini's `generateContent`, in one spelling."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

from ayes.projections.formats.common import JsonObject, find_messages

NAME: Final = "gemini"
#: In place of a signature, on calls that another model made (ai.google.dev, "Thought signatures").
FOREIGN: Final = "skip_thought_signature_validator"
#: The data fields, of which a part has one.
DATA: Final = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
#: Parts that are kept unchanged, in addition to thoughts.
KEPT: Final = frozenset({"executableCode", "codeExecutionResult", "toolCall", "toolResponse"})
_SPELLINGS: Final = {
    "inline_data": "inlineData",
    "file_data": "fileData",
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "tool_call": "toolCall",
    "tool_response": "toolResponse",
    "thought_signature": "thoughtSignature",
}
FUNCTION_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", re.ASCII)


def is_kept(part: JsonObject) -> bool:
    """Whether it is a thought or from the provider's own tools: only the provider can use it."""
    data = [name for name in DATA if name in part]
    if data == ["text"]:
        return (
            part.get("thought") is True
            and isinstance(part["text"], str)
            and not is_empty_text(part)
        )
    return len(data) == 1 and data[0] in KEPT and isinstance(part[data[0]], dict)


def is_empty_text(part: JsonObject) -> bool:
    return part["text"] == "" and not part.get("thoughtSignature")


def is_base64(value: object) -> bool:
    """Base64 in either alphabet, with or without padding, as Google's JSON readers take it."""
    if not isinstance(value, str) or not value or not value.isascii():
        return False
    try:
        base64.b64decode(standard(value), validate=True)
    except binascii.Error:
        return False
    return True


def standard(value: str) -> str:
    """Base64 in the standard alphabet, with padding."""
    bare = value.rstrip("=").replace("-", "+").replace("_", "/")
    return bare + "=" * (-len(bare) % 4)


def contents_of(payload: object) -> list[Any]:
    """The contents of a payload, or of a bare list; a text there is a user's content."""
    return find_messages(
        payload, "contents", lambda text: {"role": "user", "parts": [{"text": text}]}
    )


def system_of(payload: object) -> Any:
    """The system instruction; None if there is none."""
    if not isinstance(payload, dict):
        return None
    found = payload.get("systemInstruction")
    return payload.get("system_instruction") if found is None else found


def parts_of(content: Any, roles: Sequence[str | None]) -> list[JsonObject] | None:
    """The content's parts in one spelling; None if it is of no known shape."""
    if not isinstance(content, dict) or content.get("role") not in roles:
        return None
    parts = content.get("parts")
    if (
        not isinstance(parts, list)
        or not parts
        or not all(isinstance(part, dict) for part in parts)
    ):
        return None
    return [_spelled(part) for part in parts]


def _spelled(part: JsonObject) -> JsonObject:
    return {_SPELLINGS.get(name, name): value for name, value in part.items() if value is not None}


def inner(part: JsonObject, field: str) -> JsonObject:
    """The object under that field, without its null values; empty if it is not an object."""
    found = part[field]
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if value is not None}
