"""Arguments without what their tool declares as secret."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from ayes.schemas.sealed import SEALED, is_token

#: Replaces a value that the tool declares as secret.
REDACTED: Final = "(secret)"


def without(value: Any, secret: Iterable[str]) -> Any:
    """The value with `REDACTED`, or `SEALED`, in these places: JSON pointers (RFC 6901), in which
    `*` stands for every key or index; the empty one is the whole. A text, number or array that
    stands where a pointer names what is around the value is replaced as a whole.
    """
    for pointer in secret:
        value = _without(value, [_unescaped(one) for one in pointer.split("/")[1:]])
    return value


def is_left_out(value: Any, secret: Iterable[str]) -> bool:
    """Whether `REDACTED` stands in one of these places."""
    paths = ([_unescaped(one) for one in pointer.split("/")[1:]] for pointer in secret)
    return any(REDACTED in _at(value, path) for path in paths)


def _at(value: Any, path: list[str]) -> list[Any]:
    """The values in this place."""
    if not path:
        return [value]
    first, *rest = path
    match value:
        case dict():
            inner = [one for key, one in value.items() if first in ("*", key)]
        case list():
            inner = [one for index, one in enumerate(value) if first in ("*", str(index))]
        case str():  # in the place of what is around it
            return [value]
        case _:
            inner = []
    return [found for one in inner for found in _at(one, rest)]


def is_index(key: str) -> bool:
    """Whether a key of a pointer may denote an item of an array."""
    return key == "*" or (key.isascii() and key.isdecimal())


def _without(value: Any, path: list[str], *, is_named: bool = True) -> Any:
    if not path:
        return SEALED if is_token(value) else REDACTED
    first, *rest = path
    hide = partial(_without, path=rest, is_named=first != "*")
    match value:
        case dict():
            return {
                key: hide(inner) if first in ("*", key) else inner for key, inner in value.items()
            }
        case list() if is_index(first) or not is_named:
            return [
                hide(inner) if first in ("*", str(index)) else inner
                for index, inner in enumerate(value)
            ]
        case None | bool():
            return value
        case _:
            return _without(value, []) if is_named else value


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
