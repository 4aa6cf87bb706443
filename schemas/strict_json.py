"""Raw JSON texts, read so that no two readers could disagree about what they say.

RFC 8259 leaves some texts to the reader's taste: which of two equal keys counts, whether `NaN` is a
number, what a number beyond every float is. A reviewer's screen and an executor may then see
different calls under one digest. So such a text is no JSON here.
"""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

#: Deeper than this no honest call is, and some readers' stacks are not made for it.
MAX_DEPTH: Final = 100


class BadJson(ValueError):
    """The text is not JSON, or two readers may read it differently. The message is a clause."""


def read(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        BadJson: malformed (with the character), a key twice in one object, NaN or Infinity, a
            number out of range, half a surrogate pair, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value = _reader.decode(text)
        if "\\u" in text or not text.isascii():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        raise BadJson(f"it is no JSON: {problem.msg} (at character {problem.pos + 1})") from None
    except UnicodeEncodeError:
        raise BadJson("it holds half a surrogate pair, which is not valid Unicode") from None
    except RecursionError:
        raise BadJson(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper_than(MAX_DEPTH, value):
        raise BadJson(_TOO_DEEP)
    return value


def rounded(text: str) -> str:
    """The first number of a JSON text that a double cannot hold exactly; empty if there is none."""
    found = []

    def number(digits: str) -> float:
        if Decimal(digits) != Decimal(repr(float(digits))):
            found.append(digits)
        return 0.0

    json.loads(text, parse_float=number, parse_int=number)
    return found[0] if found else ""


def values_in(value: Any) -> Iterator[Any]:
    """The value and all values in it; the keys of objects are not among them."""
    waiting = [value]
    while waiting:
        yield (one := waiting.pop())
        match one:
            case dict():
                waiting += one.values()
            case list():
                waiting += one
            case _:
                pass


_TOO_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadJson(f"the key {json.dumps(twice)} stands twice in one object")
    return members


def _constant(word: str) -> Any:
    raise BadJson(f"{word} is no JSON number")


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise BadJson(f"the number {digits[:20]} is out of range")
    return number


def _int(digits: str) -> int:
    if len(digits) > 300:  # other readers have infinity there; Python stops at 4,300 digits
        raise BadJson(f"a number of {len(digits)} digits is out of range")
    return int(digits)


#: `json.loads` makes one each time, which takes longer than reading the arguments of a usual call.
_reader: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
)


def _deeper_than(depth: int, value: Any) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(inner, dict | list) for inner in level)
