"""Sealed values: in the place of a value that its tool seals, a request has a token.

    ayes:sealed:1:<key>:<nonce and ciphertext, base64url>

The key is named by the first 16 hex digits of its commitment. Digest, votes, log, lake, history and
webhooks see the token, which `ledger/sealed_values.py` makes and opens. A JSON pointer of a
declaration denotes one value, without wildcards, and that value is a text or a number: so a token
cannot hold more than the one value about which people were told that it is sealed.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ayes.schemas.strict_json import values_in

#: Stands on pages and in messages for a sealed value.
SEALED: Final = "(sealed)"
TOKEN: Final = re.compile(r"ayes:sealed:1:([0-9a-f]{16}):([A-Za-z0-9_-]{80,})")
#: The most sealed values of a tool.
MAX_PLACES: Final = 20
#: The types that a sealed value may have.
_TYPES: Final = ("string", "number", "integer")
#: The keywords of an object around a sealed value that do not look at its members' values.
_BLIND: Final = frozenset({
    "$schema", "$id", "$defs", "definitions", "type", "properties", "required",
    "additionalProperties", "minProperties", "maxProperties", "title", "description", "$comment",
})  # fmt: skip
#: A JSON pointer (RFC 6901) to a member of an object, in its one spelling and without `*`.
_POINTER: Final = re.compile(r"(/(?!\*(?:/|\Z))([^~/]|~[01])+)+")
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_token(value: object) -> bool:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def shown(text: str) -> str:
    """The text with `SEALED` in the place of each token."""
    return TOKEN.sub(SEALED, text) if "ayes:sealed:" in text else text


def names_of(pointer: str) -> tuple[str, ...]:
    """The keys of a JSON pointer (RFC 6901)."""
    return tuple(one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:])


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one of two places is in the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def bare(value: Any, pointers: Sequence[str]) -> Iterator[str]:
    """Those of the places in which there is a value that is not sealed."""
    for pointer in pointers:
        inner = value
        for name in names_of(pointer):
            inner = inner.get(name, _ABSENT) if isinstance(inner, dict) else _ABSENT
        if inner is not _ABSENT and not is_token(inner):
            yield pointer


_ABSENT: Final = object()


def stray(value: Any, pointers: Sequence[str], at: str = "") -> Iterator[str]:
    """The places (JSON pointers) outside of these in which there is a token, in a key or a text.

    Pages and messages show any token as `SEALED`, and it may hold what its author likes: so people
    would not see what they approve.
    """
    match value:
        case str() if at not in pointers and TOKEN.search(value):
            yield at
        case dict():
            for key, inner in value.items():
                if TOKEN.search(key):
                    yield at
                name = key.replace("~", "~0").replace("/", "~1")
                yield from stray(inner, pointers, f"{at}/{name}")
        case list():
            for index, inner in enumerate(value):
                yield from stray(inner, pointers, f"{at}/{index}")
        case _:
            pass


def raw_at(arguments: str, pointer: str) -> str | None:
    """The raw JSON of the value in a place of arguments, which are readable JSON; None: there is
    none.
    """
    raw = arguments.strip()
    for name in names_of(pointer):
        inner = _members.decode(raw) if raw[0] == "{" else {}
        if name not in inner:
            return None
        raw = bytes(inner[name]).decode().strip()
    return raw


def with_raw(arguments: str, pointer: str, raw: str) -> str:
    """The arguments with this raw JSON in a place that `raw_at` finds; all other values keep their
    bytes.
    """

    def put(around: str, names: Sequence[str]) -> str:
        if not names:
            return raw
        inner = _members.decode(around)
        made = put(bytes(inner[names[0]]).decode(), names[1:])
        return msgspec.json.encode(inner | {names[0]: msgspec.Raw(made.encode())}).decode()

    return put(arguments, names_of(pointer))


def sealed_schema(schema: str, pointers: Sequence[str]) -> str:
    """The JSON Schema of arguments whose values in these places are sealed.

    Raises:
        ValueError: one of them does not denote one value, there is no text or number there by the
            schema, or a keyword around it reads it; with a sentence.
    """
    if not pointers:
        return schema
    if len({*pointers}) < len(pointers) or len(pointers) > MAX_PLACES:
        raise ValueError(f"a tool seals up to {MAX_PLACES} different values.")
    whole = json.loads(schema)
    for pointer in pointers:
        if not _POINTER.fullmatch(pointer):
            raise ValueError(
                f"{pointer!r} does not denote one value. Write a slash before each key, as in "
                '"/customer/card", and no wildcard.'
            )
        if any(_refers_to_members(one) for one in values_in(whole)):
            raise ValueError(
                f'{pointer} cannot be judged: sealed, and a "$ref" to "#/properties" may name what '
                'is said of it. Write that out, or below "$defs".'
            )
        _seal(whole, pointer)
    return json.dumps(whole, ensure_ascii=False)


def _refers_to_members(schema: object) -> bool:
    return isinstance(schema, dict) and str(schema.get("$ref", "")).startswith("#/properties")


def _seal(whole: dict[str, Any], pointer: str) -> None:
    around, names = whole, names_of(pointer)
    for place, name in enumerate(names):
        if reading := sorted({*around} - _BLIND):
            raise ValueError(
                f"{pointer} cannot be judged: sealed, and {reading[0]!r} around it may read it. "
                "Write that without this keyword, or do not seal the value."
            )
        known = around.get("properties")
        assert known is None or isinstance(known, dict), "a checked schema"
        inner = known.get(name) if known else None
        is_last = place + 1 == len(names)
        if not isinstance(inner, dict) or (
            inner.get("type") not in _TYPES if is_last else inner.get("type") != "object"
        ):
            raise ValueError(
                f'{pointer} cannot be sealed: the schema must name it below "properties", with '
                f"the type {', '.join(_TYPES)}, and each object around it likewise."
            )
        if known and is_last:
            known[name] = {"type": "string"}
        around = inner
