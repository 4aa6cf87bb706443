r"""The cost of a regular expression, estimated from its text.

The engines behind JSON Schema and conditions limit backtracking, but compile a repeated group once
for each repetition: `(\p{L}{1,100}){1,100}` becomes a program of megabytes.
"""

import re
from functools import lru_cache
from typing import Final

#: The weight of a character class of all alphabets, which is a table of ranges.
_TABLE: Final = 40
_PIECE: Final = re.compile(
    r"""
    (?P<table>\\[pP]\{[^}]*\}|\\[pPwWdDsS]|\.)
    |(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    |(?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<\w+>|[a-zA-Z-]+:?))?)
    |(?P<close>\))
    |(?P<count>\{(?P<least>\d+)(?:,(?P<most>\d*))?\})
    |(?P<atom>\\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LOOKS: Final = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9]|\\k<|[*+?}]\+")


@lru_cache(maxsize=4096)
def weight(pattern: str) -> int:
    """The size of the compiled pattern, roughly the microseconds to compile it."""
    groups: list[list[int]] = [[]]
    for found in _PIECE.finditer(pattern):
        last = groups[-1]
        match found.lastgroup:
            case "open":
                groups.append([])
            case "close" if len(groups) > 1:
                closed = sum(groups.pop()) + 1
                groups[-1].append(closed)
            case "count" | "least" | "most" if last:
                last[-1] *= max(int(found["least"][:6]), int((found["most"] or "0")[:6]), 1)
            case "table":
                last.append(_table(found.group()))
            case "set":
                tables = _PIECE.finditer(found.group()[1:-1])
                last.append(
                    2 + sum(_table(one.group()) for one in tables if one.lastgroup == "table")
                )
            case _:
                last.append(1)
    return sum(map(sum, groups))


def _table(text: str) -> int:
    return 5 * _TABLE if text[1:2] in {"p", "P"} else _TABLE if text[1:2] in {"w", "W"} else 5


@lru_cache(maxsize=4096)
def backtracks(pattern: str) -> bool:
    """Whether look-around or references may make a match quadratic in the text's length."""
    return _LOOKS.search(pattern) is not None
