"""Amounts: exact decimals of money, tokens or anything that a budget counts.

An amount is read from the raw JSON text, never through a float: as money 0.1 + 0.2 is 0.3. It is
not negative, and below 10**18 with at most 18 decimals, so every sum of them is exact too.
"""

import json
import re
from collections.abc import Iterable
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import reduce
from typing import Any, Final

#: A JSON number (RFC 8259), or the same as a text, as APIs of payments have it.
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_MAX_LENGTH: Final = 64
_BOUND: Final = Decimal(10) ** 18
_MAX_DECIMALS: Final = 18
#: Enough digits for the sum of any number of amounts that a log can hold.
_EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation])


def number(text: str) -> Decimal | None:
    """The number of that text, exactly; None if it is not one."""
    if len(text) > _MAX_LENGTH or not _NUMBER.fullmatch(text):
        return None
    return Decimal(text)


def amount(text: str) -> Decimal | None:
    """The amount of that text; None if it is not one."""
    if (value := number(text)) is None:
        return None
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if value < 0 or value >= _BOUND or exponent < -_MAX_DECIMALS:
        return None
    return abs(value)  # -0 is 0


def amount_at(arguments: str, pointer: str) -> Decimal | None:
    """The amount in that place of arguments (raw JSON text), a JSON pointer (RFC 6901); None if it
    is missing or is not an amount.
    """
    try:
        value = json.loads(arguments, parse_float=_Number, parse_int=_Number)
    except (ValueError, RecursionError):
        return None
    found = _at(value, [_unescaped(key) for key in pointer.split("/")[1:]])
    return amount(found) if isinstance(found, str) else None


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum."""
    return reduce(_EXACT.add, amounts, Decimal(0))


def written(value: Decimal) -> str:
    """An amount as text: `1000`, `12.50`."""
    return f"{value:f}"


class _Number(str):
    """The digits of a JSON number."""

    __slots__ = ()


def _at(value: Any, keys: list[str]) -> Any:
    for key in keys:
        match value:
            case dict():
                value = value.get(key)
            case list() if key.isascii() and key.isdecimal() and (key == "0" or key[0] != "0"):
                value = value[int(key)] if len(key) < 10 and int(key) < len(value) else None
            case _:
                return None
    return value


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
