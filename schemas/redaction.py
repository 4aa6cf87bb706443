"""Arguments without what their tool declares as secret."""

from collections.abc import Iterable
from typing import Any, Final

from ayes.schemas.sealed import SEALED, is_token

#: Replaces a value that the tool declares as secret.
REDACTED: Final = "(secret)"


def without(value: Any, secret: Iterable[str]) -> Any:
    """The value with `REDACTED`, or `SEALED`, in these places: JSON pointers (RFC 6901), in which
    `*` stands for every key or index; the empty one is the whole.
    """
    for pointer in secret:
        value = _without(value, [_unescaped(one) for one in pointer.split("/")[1:]])
    return value


def _without(value: Any, path: list[str]) -> Any:
    if not path:
        return SEALED if is_token(value) else REDACTED
    first, *rest = path
    match value:
        case dict():
            return {
                key: _without(inner, rest) if first in ("*", key) else inner
                for key, inner in value.items()
            }
        case list():
            return [
                _without(inner, rest) if first in ("*", str(index)) else inner
                for index, inner in enumerate(value)
            ]
        case _:
            return value


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
