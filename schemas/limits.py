"""Limits of people's texts, so that every fact made of them fits the limit of one fact.

A reason is joined with other reasons and copied into the decision and the model's history; an
answer and edited arguments are copied into the decision. Sizes are in bytes of JSON, as on the
wire. A longer text is refused before it is recorded (`check`). Other programs may record it all the
same, so a copy of a recorded text is cut, with a mark (`cut`).
"""

import reprlib
from typing import Final

import msgspec

from ayes.schemas.errors import TooLarge

#: The longest time after which something ends, a century: every deadline is a date.
MAX_INTERVAL_S: Final = 3_155_760_000
#: The longest time of a grant.
MAX_GRANT_S: Final = 366 * 86400.0
#: Of a reason.
MAX_REASON: Final = 16 * 1024
#: Of an answer instead of a tool's output, and of edited arguments.
MAX_TEXT: Final = 256 * 1024
_CUT: Final = "\N{HORIZONTAL ELLIPSIS} (cut)"


def check(what: str, text: str, most: int) -> None:
    """Refuse a text that is too long to be recorded.

    Raises:
        TooLarge: it exceeds the limit.
    """
    if not fits(text, most):
        raise TooLarge(
            f"{what} has {_size(text):,} bytes, over the limit of {most:,}. "
            "Shorten it, or write a reference."
        )


def fits(text: str, most: int) -> bool:
    """Whether a text is within a limit."""
    # A character has at most 6 bytes (as an escape), so short texts need not be encoded.
    return len(text) * 6 + 2 <= most or _size(text) <= most


def cut(text: str, most: int) -> str:
    """The text, or its beginning and a mark, within the limit."""
    if fits(text, most):
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle] + _CUT, most) else (low, middle - 1)
    return text[:low] + _CUT


def _size(text: str) -> int:
    # Half a surrogate pair cannot be encoded; the codec refuses it with its own message.
    return len(msgspec.json.encode(text.encode("utf-8", "replace").decode()))


def cited(value: object) -> str:
    """A value in a sentence; of one that is not text only the beginning, however deep it is."""
    return repr(value) if isinstance(value, str) else reprlib.repr(value)
