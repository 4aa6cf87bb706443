"""Raw JSON, taken apart one level at a time: every value keeps the bytes of its writer."""

import json
from typing import Final, Literal

import msgspec

from ayes.schemas import strict_json

type Kind = Literal["object", "array", "string", "number", "boolean", "null"]


def is_readable(text: str) -> bool:
    """Whether it is JSON that all readers read alike (`schemas/strict_json.py`)."""
    try:
        strict_json.read(text)
    except strict_json.BadJson:
        return False
    return True


def kind_of(raw: str) -> Kind:
    return _KINDS.get(raw[0], "number")


def members(raw: str) -> dict[str, str]:
    """The members of an object, in its order."""
    return {name: _text(value) for name, value in _object.decode(raw).items()}


def items(raw: str) -> list[str]:
    """The items of an array."""
    return [_text(value) for value in _array.decode(raw)]


def children(raw: str) -> dict[str, str]:
    """Members by name, items by index; none of any other value."""
    match kind_of(raw):
        case "object":
            return members(raw)
        case "array":
            return {str(index): item for index, item in enumerate(items(raw))}
        case _:
            return {}


def string(raw: str) -> str:
    """The value of a string."""
    value: str = json.loads(raw)
    return value


def written(text: str) -> str:
    """A string as JSON."""
    return json.dumps(text, ensure_ascii=False)


def made(kind: Kind, children: dict[str, str]) -> str:
    """An object or an array of these raw values, without blanks."""
    if kind == "array":
        return f"[{','.join(children.values())}]"
    return "{" + ",".join(f"{written(name)}:{raw}" for name, raw in children.items()) + "}"


def replaced(raw: str, path: tuple[str, ...], value: str | None) -> str:
    """The text with another value at a path, or without it if the value is None.

    An item after the last one is appended.
    """
    if not path:
        assert value is not None, "the whole cannot be removed"
        return value
    within, (name, *rest) = children(raw), path
    if rest:
        within[name] = replaced(within[name], tuple(rest), value)
    elif value is None:
        del within[name]
    else:
        within[name] = value
    return made(kind_of(raw), within)


def pointer(path: tuple[str, ...]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def _text(value: msgspec.Raw) -> str:
    return bytes(value).decode().strip()


_KINDS: Final[dict[str, Kind]] = {
    "{": "object",
    "[": "array",
    '"': "string",
    "t": "boolean",
    "f": "boolean",
    "n": "null",
}
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
