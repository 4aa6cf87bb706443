"""The form in which a reviewer edits arguments, made from the tool's JSON Schema.

A value that nobody touches keeps the bytes that it was written with, and a number stays as it is
typed. What the form cannot show as a control of its own (a value that does not have the type that
the schema names, a string with hidden characters, an object without named properties) is a text
field with its JSON.

A form is made anew from the same schema and arguments for each request, and then filled in with
what was submitted: `filled(form(schema, arguments), submitted)`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from ayes.projections.display import raw_json
from ayes.schemas import strict_json
from ayes.schemas.sealed import is_token, shown
from ayes.schemas.visible import spans, visible, visible_json

type Control = Literal["text", "number", "choice", "json", "group"]
#: What was typed, or why it cannot be sent, by JSON pointer (RFC 6901).
type ByPlace = Mapping[str, str]
type _Schema = dict[str, Any]

#: JSON's grammar of a number (RFC 8259, section 6).
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
#: How deep a value is made from a schema, which may refer to itself.
_DEPTH: Final = 5
#: The values for which a form has fields of their own.
_MAX_VALUES: Final = 2000


class Addition(NamedTuple):
    """A property or an item that the schema allows and the arguments do not have."""

    path: tuple[str, ...]
    label: str
    #: The value that it begins with.
    raw: str

    @property
    def pointer(self) -> str:
        return raw_json.pointer(self.path)


class Field(NamedTuple):
    path: tuple[str, ...]
    control: Control
    #: The value as it was before anybody typed.
    raw: str
    #: What the control holds; empty for a group.
    text: str = ""
    description: str = ""
    #: Of a choice: each possible value as raw JSON.
    options: tuple[str, ...] = ()
    #: Of a group: its fields, in the order of the arguments.
    fields: tuple["Field", ...] = ()
    additions: tuple[Addition, ...] = ()
    #: Whether the schema may do without it.
    optional: bool = False

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else "arguments"

    @property
    def pointer(self) -> str:
        return raw_json.pointer(self.path)

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """The options, each with its label: without quotes if all of them are strings."""
        labels = self.options
        if all(raw_json.kind_of(option) == "string" for option in labels):
            labels = tuple(visible(shown(raw_json.string(option))) for option in labels)
        return tuple(zip(self.options, labels, strict=True))

    @property
    def rows(self) -> int:
        """The lines that its control shows at once."""
        return min(12, max(self.text.count("\n") + 1, -(-len(self.text) // 80)))


def form(schema: str, arguments: str) -> Field:
    """The form for these arguments, which are JSON, by the tool's schema.

    Of very many values it is one text field.
    """
    if sum(1 for _ in strict_json.values_in(strict_json.read(arguments))) > _MAX_VALUES:
        return Field((), "json", arguments.strip(), visible_json(arguments.strip()))
    described = json.loads(schema)
    return _Form(described).field((), described, arguments.strip())


def filled(field: Field, typed: ByPlace) -> Field:
    """The form with what was typed. A place that was not submitted stays as it was."""
    if field.control == "group":
        return field._replace(fields=tuple(filled(one, typed) for one in field.fields))
    text = typed.get(field.pointer, field.text)
    # A browser ends each line of a text with CR LF (HTML standard, 4.10.21.4).
    return field._replace(text=text.replace("\r\n", "\n"))


def written(before: Field, after: Field) -> str:
    """The arguments with what was typed. A value that nobody touched keeps its bytes.

    Args:
        before: the form, as it was made.
        after: the same form, filled in and without `mistakes`.
    """
    if before == after or (after.control != "group" and _lf(before.text) == after.text):
        return before.raw
    match after.control:
        case "group":
            pairs = zip(before.fields, after.fields, strict=True)
            raws = {new.name: written(old, new) for old, new in pairs}
            known = raw_json.children(before.raw)
            return (
                before.raw if raws == known else raw_json.made(raw_json.kind_of(before.raw), raws)
            )
        case "text":
            ends = "\r\n" if "\r\n" in before.text else "\n"
            return raw_json.written(after.text.replace("\n", ends))
        case _:
            return after.text.strip()


def mistakes(field: Field) -> dict[str, str]:
    """What was typed that is not JSON, by place."""
    found: dict[str, str] = {}
    for one in each(field):
        text = one.text.strip()
        if one.control == "number" and not _NUMBER.fullmatch(text):
            found[one.pointer] = "This is not a number. Write digits, as in 12 or 12.50."
        elif one.control == "json" and not raw_json.is_readable(text):
            found[one.pointer] = 'This is not JSON. Write a text in quotes, as in "A-17".'
        elif one.control == "choice" and text not in one.options:
            found[one.pointer] = "This is not one of the values. Choose one of the list."
    return found


def each(field: Field) -> Iterator[Field]:
    """The field and those in it."""
    yield field
    for one in field.fields:
        yield from each(one)


def at_fields(field: Field, mistakes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Mistakes, given with their places, by the pointer of the field that has the place."""
    known = {one.pointer for one in each(field)}
    found: dict[str, list[str]] = {}
    for place, message in mistakes:
        nearest = place
        while nearest not in known:
            nearest = nearest.rpartition("/")[0]
        found.setdefault(nearest, []).append(message)
    return found


class _Form:
    """The making of a form: the whole schema is needed to follow its references."""

    def __init__(self, whole: _Schema) -> None:
        self._whole = whole

    def field(
        self, path: tuple[str, ...], schema: object, raw: str, *, optional: bool = False
    ) -> Field:
        kind = raw_json.kind_of(raw)
        known = self._branch(schema, raw)
        described = _described(known, path)
        if (options := _options(known, raw)) is not None:
            return Field(path, "choice", raw, raw, described, options, optional=optional)
        if kind == "object" and isinstance(known.get("properties"), dict):
            return self._object(path, known, raw)._replace(optional=optional)
        if kind == "array" and isinstance(known.get("items"), dict):
            return self._array(path, known, raw)._replace(optional=optional)
        types = _types(known)
        if kind == "string" and "string" in types and _is_plain(text := raw_json.string(raw)):
            return Field(path, "text", raw, text, described, optional=optional)
        if kind == "number" and types & {"integer", "number"}:
            return Field(path, "number", raw, raw, described, optional=optional)
        return Field(path, "json", raw, visible_json(raw), described, optional=optional)

    def _object(self, path: tuple[str, ...], schema: _Schema, raw: str) -> Field:
        named, required = schema["properties"], schema.get("required", [])
        members = raw_json.members(raw)
        fields = tuple(
            self.field((*path, name), named.get(name), value, optional=name not in required)
            for name, value in members.items()
        )
        additions = tuple(
            Addition((*path, name), name, self._made(inner))
            for name, inner in named.items()
            if name not in members
        )
        described = _described(schema, path) if path else ""
        return Field(path, "group", raw, "", described, (), fields, additions)

    def _array(self, path: tuple[str, ...], schema: _Schema, raw: str) -> Field:
        inner, items = schema["items"], raw_json.items(raw)
        fields = tuple(
            self.field((*path, str(index)), inner, value, optional=True)
            for index, value in enumerate(items)
        )
        another = Addition((*path, str(len(items))), "another item", self._made(inner))
        described = _described(schema, path)
        return Field(path, "group", raw, "", described, (), fields, (another,))

    def _branch(self, schema: object, raw: str) -> _Schema:
        """The schema that describes this value: references followed, alternatives by its type."""
        known = self._followed(schema)
        alternatives = known.get("anyOf", known.get("oneOf"))
        if not isinstance(alternatives, list):
            return known
        outer = {name: known[name] for name in _SAID if name in known}
        fitting = (self._followed(one) for one in alternatives)
        kind = raw_json.kind_of(raw)
        return next((one | outer for one in fitting if _allows(one, kind)), outer)

    def _followed(self, schema: object) -> _Schema:
        """The schema behind a reference within the document (`#/$defs/...`)."""
        for _ in range(_DEPTH):
            if not isinstance(schema, dict):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._whole
            for name in reference.removeprefix("#").split("/")[1:]:
                key = name.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, dict) else None
        return {}

    def _made(self, schema: object, depth: int = 0) -> str:
        """A first value of this schema, which a person then fills in."""
        known = self._followed(schema)
        if (options := _options(known, "")) is not None:
            return options[0]
        alternatives = known.get("anyOf", known.get("oneOf"))
        if isinstance(alternatives, list) and alternatives and depth < _DEPTH:
            return self._made(alternatives[0], depth + 1)
        types = _types(known)
        if "object" in types and depth < _DEPTH:
            named = known.get("properties")
            wanted = named if isinstance(named, dict) else {}
            required = [name for name in known.get("required", ()) if name in wanted]
            inner = {name: self._made(wanted[name], depth + 1) for name in required}
            return raw_json.made("object", inner)
        return next((_FIRST[kind] for kind in _FIRST if kind in types), "null")


def _described(schema: _Schema, path: tuple[str, ...]) -> str:
    """What the schema says of a value beside its name: title, description and format."""
    said = {key: str(schema[key]) for key in _SAID if schema.get(key)}
    if path and said.get("title", "").replace(" ", "_").casefold() == path[-1].casefold():
        del said["title"]  # it says nothing
    return " · ".join(said.values())


def _options(schema: _Schema, raw: str) -> tuple[str, ...] | None:
    """The values of a choice between scalars, the present one among them; None if it is none."""
    if raw and raw_json.kind_of(raw) in ("object", "array"):
        return None
    if raw and raw_json.kind_of(raw) == "string" and is_token(raw_json.string(raw)):
        return (raw,)  # it stays as it is
    values = schema.get("enum")
    if values is None and _types(schema) == {"boolean"}:
        values = [True, False]
    if not isinstance(values, list) or not all(_is_scalar(one) for one in values):
        return None
    options = tuple(json.dumps(one, ensure_ascii=False) for one in values)
    return (raw, *options) if raw and raw not in options else options or None


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _types(schema: _Schema) -> frozenset[str]:
    named = schema.get("type", ())
    return frozenset([named] if isinstance(named, str) else map(str, named))


def _allows(schema: _Schema, kind: raw_json.Kind) -> bool:
    types = _types(schema)
    return kind in types or (kind == "number" and "integer" in types) or "enum" in schema


def _is_plain(text: str) -> bool:
    """Whether a text field shows all of it: nothing hidden, and only one kind of line end."""
    ends = text.replace("\r\n", "\n")
    is_mixed = "\r\n" in text and "\n" in text.replace("\r\n", "")
    return not is_mixed and not any(hidden for _, hidden in spans(ends))


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


_SAID: Final[tuple[str, ...]] = ("title", "description", "format")
_FIRST: Final = {
    "string": '""',
    "integer": "0",
    "number": "0",
    "boolean": "false",
    "array": "[]",
    "object": "{}",
}
