"""The events as JSON Schema (2020-12), made from their classes.

A schema says what every reader of this version accepts, so fields that it does not name are
allowed: a newer version may add some. It says nothing of what may be in which slot, or follow what:
those are `slots.FILLED_BY` and `ledger/lifecycle.py`. The descriptions are the docstrings of the
classes and the comments before their fields.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ayes.schemas import events as e

_DEFS: Final = "#/$defs/"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: A line of a class: its head, the comment before a field, the field, or anything else.
_LINE: Final = re.compile(r"class (?P<kind>\w+)|    #: ?(?P<comment>.*)|    (?P<field>\w+):|.*")


def document(*names: str) -> dict[str, Any]:
    """One schema for any of these events, by default for all: exactly one fits, by its `type`."""
    any_of = {
        "$schema": DIALECT,
        "$id": "urn:ayes:events",
        "title": ", ".join(names) or "Any event of the ledger",
        "type": "object",
        "oneOf": [{"$ref": f"{_DEFS}{name}"} for name in names or e.TYPES],
    }
    return standalone(any_of, components(f"{_DEFS}{{name}}"), _DEFS)


def standalone(schema: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A schema with everything that it refers to in `$defs`.

    Args:
        known: the schemas that it may refer to, by name.
        prefix: of references to them, before the name.
    """
    found: dict[str, Any] = {}

    def moved(part: Any) -> Any:
        match part:
            case {"$ref": str(ref)} if ref.startswith(prefix):
                name = ref.removeprefix(prefix)
                if name not in found:
                    found[name] = {}  # it may refer to itself
                    found[name] = moved(known[name])
                return {**part, "$ref": f"{_DEFS}{name}"}
            case dict():
                return {key: moved(value) for key, value in part.items()}
            case list():
                return [moved(one) for one in part]
            case _:
                return part

    made = moved(dict(schema))
    defs = {"$defs": dict(sorted(found.items()))} if found else {}
    plain: dict[str, Any] = _plain(made | defs)
    return plain


def components(ref_template: str) -> dict[str, dict[str, Any]]:
    """The schema of each event, and of each class that they are made of, by name.

    Args:
        ref_template: how schemas refer to each other, with `{name}`.
    """
    _, found = msgspec.json.schema_components([e.AnyEvent.__value__], ref_template=ref_template)
    comments = _comments()
    for name, schema in found.items():
        described = comments.get("Event", {}) if name in e.TYPES else {}
        for field, text in (described | comments.get(name, {})).items():
            if (known := schema.get("properties", {}).get(field)) is not None:
                schema["properties"][field] = _described(known, text)
    return {name: _plain(schema) for name, schema in sorted(found.items())}


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    # A sibling of `$ref` would be ignored before 2019-09.
    described = {"allOf": [schema]} if "$ref" in schema else schema
    return {"description": text, **described}


def _plain(part: Any) -> Any:
    """Without `discriminator`, which is OpenAPI's: each alternative has its own tag."""
    match part:
        case dict():
            return {key: _plain(value) for key, value in part.items() if key != "discriminator"}
        case list():
            return [_plain(one) for one in part]
        case _:
            return part


def _comments() -> dict[str, dict[str, str]]:
    """The comment of each field, by class."""
    found: dict[str, dict[str, str]] = {}
    kind, said = "", list[str]()
    for line in inspect.getsource(e).splitlines():
        match = _LINE.match(line)
        assert match is not None, "every line matches"
        if match["kind"]:
            kind, said = match["kind"], []
        elif match["comment"] is not None:
            said.append(match["comment"])
        else:
            if match["field"] and said:
                found.setdefault(kind, {})[match["field"]] = " ".join(said)
            said = []
    return found
