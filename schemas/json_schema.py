"""The events as JSON Schema (2020-12), made from their classes.

A schema says what every reader of this version accepts, so fields that it does not name are
allowed: a newer version may add some. It says nothing of what may be in which slot, or follow what:
those are `slots.FILLED_BY` and `ledger/lifecycle.py`. The descriptions are the docstrings of the
classes and the comments before their fields.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
import msgspec.inspect as inspect_types

from ayes.schemas import events as e

_DEFS: Final = "#/$defs/"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: A line of a class: its head, the comment before a field, the field, or anything else.
_LINE: Final = re.compile(r"class (?P<kind>\w+)|    #: ?(?P<comment>.*)|    (?P<field>\w+):|.*")


#: Names that mean the same in every class, for fields without a comment of their own.
EVERYWHERE: Final = {
    "after": "The cursor: `next` of the page before.",
    "after_s": "After how many seconds.",
    "agent": "The agent that makes the call.",
    "agents": "Names, or patterns with `*`.",
    "allowed": "How many would run without a question.",
    "asked_at": "When people were asked.",
    "at": "When the broker recorded it.",
    "attempt": "The attempt, counted from 1.",
    "before": "The cursor: `next` or `previous` of another page.",
    "blocked": "How many the policy would deny.",
    "by": "The author, by its own account.",
    "call": "As `workspace/thread/call`.",
    "claimed_at": "When it was claimed.",
    "decided_at": "When it was decided; None: it is not.",
    "denials_needed": "How many denials deny it.",
    "description": "What it does, in the words of whoever declared it.",
    "digest": "The SHA-256 of the call: the tool, the tool's version and the arguments.",
    "due_at": "When more people are asked or it expires; None if neither happens.",
    "ends_at": "When it ends.",
    "error": "The error, as a text.",
    "excluded": "The people whose votes never count.",
    "expires_at": "When it expires; None: never.",
    "files": "The files in it that the ledger has.",
    "finished_at": "When its run ended; None: it has not.",
    "given_at": "When it was given.",
    "ground": "Why it was decided so: `policy`, `people`, `grant` and others.",
    "is_error": "Whether the model reads it as an error.",
    "kept": "Where the bytes are.",
    "kind": "What it is.",
    "labels": "Labels of the request, which rules may match.",
    "limit": "How many a page has at most.",
    "may_break_glass": "The people who may let it run alone: names, or patterns with `*`.",
    "media_type": "Such as `image/png` (RFC 6838).",
    "mode": "Whether the requester may vote too (`requester_confirms`) or not (`four_eyes`).",
    "model": "As `provider:name`.",
    "next": "The cursor of the next page; None on the last one.",
    "on_behalf_of": "In whose place some of the voters voted, by voter.",
    "order": "Which come first.",
    "organisation": "Whether rule and version are the organisation's, and not the workspace's.",
    "part": "What kind of part it is.",
    "policy_version": "The version of the policy.",
    "provider_id": "The provider's id of the call.",
    "reason": "Why, in its author's words; may be empty.",
    "recorded_at": "When the broker recorded it.",
    "requested_at": "When it was requested.",
    "requester": "The person on whose behalf it is.",
    "requesters": "Names, or patterns with `*`.",
    "reviewer": "The person who did it.",
    "rule": "The rule of the policy; empty if none is behind it.",
    "run_by": "The group of executors that runs it; `client` if the requesting program does.",
    "seq": "The position of its fact in the log.",
    "shadows": "The verdicts of rules without effect.",
    "since": "Since when.",
    "standing": "Its status.",
    "starts_at": "When it begins.",
    "status": "What became of the call so far.",
    "stream": "The name of the stream.",
    "subject": "The subject of the fact.",
    "text": "The text.",
    "thread": "The id of the thread in its workspace.",
    "tool": "The name of the tool.",
    "tool_version": "The version of the tool's declaration.",
    "tools": "Names, or patterns with `*`.",
    "turn": "The turn of the model, counted from 1.",
    "type": "The kind of the fact.",
    "verdict": "What the vote says.",
    "version": "The number of the version.",
    "void": "Why it does not count; empty if it does.",
    "voters": "The people on whose votes it rests.",
    "votes_needed": "How many of them must agree.",
    "workspace": "The name of the workspace.",
}


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
    found = schemas([e.AnyEvent.__value__], ref_template)
    return {name: _plain(schema) for name, schema in sorted(found.items())}


def schemas(types: Sequence[object], ref_template: str) -> dict[str, dict[str, Any]]:
    """The schema of each struct that these types are made of, by name."""
    _, found = msgspec.json.schema_components(types, ref_template=ref_template)
    for struct in _structs_in(inspect_types.multi_type_info(types), set()):
        schema = found[struct.cls.__name__]
        _mark_times(schema, struct)
        describe(schema, struct.cls)
    return found


def _mark_times(schema: dict[str, Any], struct: inspect_types.StructType) -> None:
    """Msgspec says only that times are texts."""
    for field in struct.fields:
        kind, known = field.type, schema["properties"][field.encode_name]
        kinds = kind.types if isinstance(kind, inspect_types.UnionType) else (kind,)
        if any(isinstance(one, inspect_types.DateTimeType) for one in kinds):
            for one in known.get("anyOf", [known]):
                if one.get("type") == "string":
                    one["format"] = "date-time"


def _structs_in(part: object, seen: set[int]) -> Iterator[inspect_types.StructType]:
    match part:
        case tuple():
            for one in part:
                yield from _structs_in(one, seen)
        case inspect_types.Type() | inspect_types.Field() if id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, inspect_types.StructType):
                yield part
            yield from _structs_in(msgspec.structs.astuple(part), seen)


def describe(schema: dict[str, Any], kind: type) -> None:
    """Add the comments before the fields of a class to its schema, as their descriptions."""
    properties, texts = schema.get("properties", {}), field_texts(kind)
    fields = getattr(kind, "__struct_encode_fields__", ()), getattr(kind, "__struct_fields__", ())
    named = dict(zip(*fields, strict=True))
    for field, known in properties.items():
        if text := texts.get(named.get(field, field)):
            properties[field] = _described(known, text)


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


def field_texts(kind: type) -> dict[str, str]:
    """What each field of a class is: the comment before it (`#: ...`), in the class or a base."""
    found: dict[str, str] = {**EVERYWHERE}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("ayes."):
            found |= _comments(base.__module__).get(base.__name__, {})
    return found


@cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    """The comments before fields, by class. They are read from the source: while a program runs,
    nobody needs them.
    """
    found: dict[str, dict[str, str]] = {}
    kind, said = "", list[str]()
    for line in inspect.getsource(sys.modules[module]).splitlines():
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
