"""What the readers have in common.

A reader takes a provider's conversation and tells it in our words (`ayes.projections.formats.conversation`), so that it can become
facts. It may be any program's, so nothing in it is passed over: what cannot be kept is refused, with its index.
"""

import json
from collections.abc import Sequence
from typing import Any

from ayes.schemas.errors import BadInput


def listed(payload: Any, key: str) -> list[Any]:
    """The messages of a payload, or of a bare list.

    Raises:
        BadInput: it is neither.
    """
    found = payload.get(key) if isinstance(payload, dict) else payload
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise BadInput(f"this is no list of messages, and no object that has one under {key!r}.")
    return list(found)


def text(at: int, content: Any) -> str:
    """Content that can only be text: one, or several parts of type text, which are joined as a turn's texts are."""
    if isinstance(content, str):
        return content
    texts = [_part_text(at, part) for part in content] if isinstance(content, list) else []
    if not texts:
        raise refusal(at, "the content is no text, and no list of texts.")
    return "\n\n".join(texts)


def _part_text(at: int, part: Any) -> str:
    match part:
        case {"type": "text", "text": str(found)}:
            return found
        case {"type": kind}:
            raise refusal(at, f"a part of type {kind!r} cannot be kept: only text can.")
        case _:
            raise refusal(at, "a part of the content is no object with a type.")


def raw(at: int, value: Any) -> str:
    """The JSON text of a value, without blanks, its keys in their order.

    Raises:
        BadInput: no two readers would agree on it: NaN, half a surrogate pair, or too deep.
    """
    try:
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        written.encode()
    except (ValueError, RecursionError):
        raise refusal(at, "it holds a value that is no JSON, or is nested too deeply.") from None
    return written


def refusal(at: int, sentence: str) -> BadInput:
    return BadInput(f"message {at}: {sentence}")
