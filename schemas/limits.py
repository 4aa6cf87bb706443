"""Limits of what people write, so that every fact which follows from it fits the limit of one fact.

A reason is copied into the decision, into what the model reads, and joined with the reasons of
others; an answer and edited arguments are copied into the decision. Sizes are those on the wire, in
bytes of JSON. A longer text is refused where it is written (`check`). Programs that write facts by
themselves are not stopped by that, so what is copied from a recorded text is cut (`cut`), and says
so.
"""

from typing import Final

import msgspec

from ayes.schemas.errors import TooLarge

#: Of a reason.
MAX_REASON: Final = 16 * 1024
#: Of an answer in place of a tool's output, and of edited arguments.
MAX_TEXT: Final = 256 * 1024
_CUT: Final = "\N{HORIZONTAL ELLIPSIS} (cut)"


def check(what: str, text: str, most: int) -> None:
    """Refuse a text that is too long to be recorded.

    Raises:
        TooLarge: it is over the limit.
    """
    if not fits(text, most):
        raise TooLarge(
            f"{what} has {_size(text):,} bytes, over the limit of {most:,}. Write less, or a "
            "reference to it."
        )


def fits(text: str, most: int) -> bool:
    """Whether a text is within a limit."""
    # A character has at most 6 bytes (as an escape), so short texts need not be written out.
    return len(text) * 6 + 2 <= most or _size(text) <= most


def cut(text: str, most: int) -> str:
    """The text, or as much of its beginning as the limit allows with a mark that says so."""
    if fits(text, most):
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle] + _CUT, most) else (low, middle - 1)
    return text[:low] + _CUT


def _size(text: str) -> int:
    # Half a surrogate pair cannot be encoded; the codec refuses it in words of its own.
    return len(msgspec.json.encode(text.encode("utf-8", "replace").decode()))
