"""Tools: their declarations, and the check of arguments against a schema.

A declaration is recorded under its version, a digest of everything in it. So a changed contract is
another version, and the same contract declared twice is one fact.

The schema is JSON Schema, of draft-04 to 2020-12 (`drafts.py`), and is kept as raw text. References
in it are never fetched.
"""

import hashlib
import heapq
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

import jsonschema_rs
import msgspec
from pydantic import (
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import GenerateJsonSchema

from ayes.schemas import sealed, strict_json
from ayes.schemas.drafts import Draft, drafts_of
from ayes.schemas.errors import BadFact, BadInput
from ayes.schemas.events import JudgedClass, ToolClass, ToolDeclared
from ayes.schemas.redaction import REDACTED, is_left_out
from ayes.schemas.schema_cost import MAX_STEPS, MAX_STEPS_EXPLAINED, SchemaCost
from ayes.schemas.toml_files import (
    Interval,
    TomlModel,
    check_names_differ,
    checked_token,
    checked_tool_name,
    mistakes,
    read_toml,
)

MAX_PROBLEMS: Final = 3
#: The classes, from the lowest to the highest.
CLASSES: Final[tuple[ToolClass, ...]] = (
    "reads",
    "reversible",
    "reversible_outside",
    "irreversible",
)
_UNDOABLE: Final = ("reversible", "reversible_outside")
_MAX_PROBLEM_CHARACTERS: Final = 200
#: Characters of a title, and of a value in it.
MAX_TITLE: Final = 200
_MAX_VALUE: Final = 40
#: Stands in the place of a value that is missing.
NO_VALUE: Final = "\N{EM DASH}"
_PLACE: Final = re.compile(r"\{([^{}\n]+)\}")
_WORD: Final = re.compile(r"[\w.,:@#+-]+")
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


class ToolSpec(TomlModel):
    """A tool as a service or a file declares it."""

    name: str
    description: str = ""
    #: JSON Schema of the arguments, raw text. A TOML table is converted to text.
    schema_text: str = Field(alias="schema")
    #: Whether it may run again after a crash, under the same idempotency key.
    repeatable: bool = False
    #: The group of executors that runs it; `client` if the requesting program does.
    run_by: str = "client"
    #: Whether it can change a policy or a grant; people are asked about each call then.
    governs: bool = False
    #: The arguments that no notice shows, as JSON pointers (RFC 6901) in which `*` stands for every
    #: key or index: `/password`, `/headers/*`.
    secret: Annotated[tuple[str, ...], Field(strict=False)] = ()
    #: The arguments that are sealed before they are requested: JSON pointers without wildcards, to
    #: one text or number each (`ayes.schemas.sealed`).
    sealed: Annotated[tuple[str, ...], Field(strict=False)] = ()
    #: What it does that is to be undone. None: it counts as irreversible.
    tool_class: ToolClass | None = Field(default=None, alias="class")
    #: The name of the tool that undoes what it did.
    undo: str = ""
    #: For how long it can be undone, from when it returned. None: no end is known.
    undo_within_s: Interval | None = None
    #: What a call does in one line, for people who decide: `Refund {amount} for {order}`. A name in
    #: braces is the place of an argument, as in `{customer/name}`.
    title: Annotated[str, Field(max_length=MAX_TITLE)] = ""

    @field_validator("title")
    @classmethod
    def _is_a_line(cls, title: str) -> str:
        if set("{}\n") & set(_PLACE.sub("", title)):
            raise ValueError(
                "it is one line, and each place of an argument in it stands between braces, as in "
                '"Refund {amount} for {customer/name}".'
            )
        return title

    @field_validator("undo", "undo_within_s")
    @classmethod
    def _can_be_undone[T](cls, value: T, info: ValidationInfo) -> T:
        declared = info.data.get("tool_class")
        if value and "tool_class" in info.data and declared not in _UNDOABLE:
            has = "none is declared" if declared is None else f"here it is {declared!r}"
            raise ValueError(
                'only a tool with class = "reversible" or "reversible_outside" has this key; '
                f"{has}."
            )
        return value

    @field_validator("undo")
    @classmethod
    def _is_another_tool(cls, value: str) -> str:
        return checked_tool_name(value) if value else value

    @field_validator("secret")
    @classmethod
    def _are_pointers(cls, secret: tuple[str, ...]) -> tuple[str, ...]:
        for one in secret:
            if one and not one.startswith("/"):
                raise ValueError(
                    f"{one!r} is not a JSON pointer. Write a slash before each key, as in "
                    f"{'/' + one!r}."
                )
        return secret

    @field_validator("sealed")
    @classmethod
    def _can_be_sealed(cls, pointers: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "schema_text" in info.data:
            _compiled(sealed.sealed_schema(info.data["schema_text"], pointers))
        return pointers

    @field_validator("name")
    @classmethod
    def _is_tool_name(cls, value: str) -> str:
        return checked_tool_name(value)

    @field_validator("run_by")
    @classmethod
    def _is_token(cls, value: str) -> str:
        return checked_token("name", value)

    @field_validator("schema_text", mode="before")
    @classmethod
    def _as_text(cls, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        try:
            return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as problem:
            raise ValueError(f"the schema cannot be written as JSON: {problem}.") from None

    @field_validator("schema_text")
    @classmethod
    def _is_schema(cls, text: str) -> str:
        _compiled(text)
        return text


class _Tools(TomlModel):
    tools: Annotated[tuple[ToolSpec, ...], Field(strict=False, alias="tool")] = ()

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        check_names_differ("tool", tools)
        return tools


def _is_key(pattern: str, key: str) -> bool:
    return pattern in ("*", key)


class Mistake(NamedTuple):
    """One value that does not fit a schema."""

    #: Its place as a JSON pointer (RFC 6901); empty: the whole.
    pointer: str
    message: str


def judged_class(tool: "Tool | None") -> JudgedClass:
    """The class that a tool declares."""
    return (tool and tool.declared.tool_class) or "undeclared"


def highest_class(classes: Iterable[JudgedClass | None]) -> ToolClass:
    """The highest of these classes; one that is not known counts as irreversible."""
    known: Iterable[ToolClass] = (
        "irreversible" if one is None or one == "undeclared" else one for one in classes
    )
    return max(known, key=CLASSES.index)


class Tool:
    """A recorded declaration with a compiled schema."""

    def __init__(self, name: str, version: str, declared: ToolDeclared) -> None:
        """Compile the schema.

        Raises:
            BadFact: the recorded schema is not a valid schema, or it takes too many steps.
        """
        self.name, self.version, self.declared = name, version, declared
        try:
            self._opened = self._validator, self._effort = _compiled(declared.schema)
            if declared.sealed:
                schema = sealed.sealed_schema(declared.schema, declared.sealed)
                self._validator, self._effort = _compiled(schema)
        except ValueError as problem:
            raise BadFact(
                f"tool {name} was declared (version {version}) with a bad schema: {problem}"
            ) from None

    @property
    def hidden(self) -> tuple[str, ...]:
        """The places that no notice shows: those that are secret, or sealed."""
        return (*self.declared.secret, *self.declared.sealed)

    def hides(self, pointer: str) -> bool:
        """Whether the argument in this place (a JSON pointer) is hidden, or in one that is."""
        keys = pointer.split("/")
        return any(
            len(hidden) <= len(keys) and all(map(_is_key, hidden, keys))
            for hidden in (one.split("/") for one in self.hidden)
        )

    def misfits_opened(self, arguments: str) -> list[str]:
        """The places in which arguments that were opened do not fit the schema, as JSON pointers;
        no value is cited. Empty: they fit.
        """
        validator, effort = self._opened
        try:
            value = strict_json.read(arguments)
        except strict_json.BadJson:
            return [""]
        if effort.steps(value) > MAX_STEPS:
            return [""]
        if validator.is_valid(value):
            return []
        places = {_pointer(error.instance_path) for error in validator.iter_errors(value)}
        return sorted(places)[:MAX_PROBLEMS]

    def seal_problem(self, before: str, after: str) -> str:
        """Why an edit of arguments is refused: it changes what is sealed, or nobody can tell; or it
        was made of arguments without what is secret.

        Args:
            before: as they were requested, by anybody, so they may be unreadable.
            after: an edit that fits.
        """
        if self.declared.sealed and self.problems(before):
            return f"What was requested of {self.name} does not fit it, so nobody can edit it."
        if is_left_out(strict_json.read(after), self.declared.secret):
            return (
                f"In these arguments of {self.name} a value that is secret was left out, and "
                f"{REDACTED} stands in its place. Make the edit of the whole arguments."
            )
        for pointer in self.declared.sealed:
            if sealed.raw_at(before, pointer) != sealed.raw_at(after, pointer):
                return (
                    f"{pointer} of {self.name} is sealed, so nobody can edit it. Leave it as it "
                    "is, or deny the call and say what it should be."
                )
        return ""

    def title(self, arguments: str) -> str:
        """What a call with these arguments does, in one line; empty if the tool has no title, or
        they cannot be read.

        A text that is more than a word stands in quotes, so that it cannot pass for words of the
        title.
        """
        with suppress(strict_json.BadJson):
            strict_json.read(arguments)
            said = _PLACE.sub(lambda place: self._said(arguments, place[1]), self.declared.title)
            return _shortened(said)
        return ""

    def _said(self, arguments: str, place: str) -> str:
        if self.hides(f"/{place}"):
            return REDACTED
        raw = arguments.strip()
        for key in place.split("/"):
            name = key.replace("~1", "/").replace("~0", "~")
            inner: dict[str, msgspec.Raw] = {}
            if raw[0] == "{":
                inner = _members.decode(raw)
            elif raw[0] == "[":
                inner = {str(place): one for place, one in enumerate(_items.decode(raw))}
            if name not in inner:
                return NO_VALUE
            raw = bytes(inner[name]).decode().strip()
        if raw[0] in "{[":
            return "{…}" if raw[0] == "{" else "[…]"
        text = sealed.shown(json.loads(raw) if raw[0] == '"' else raw)
        short = text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
        return short if _WORD.fullmatch(text) else json.dumps(short, ensure_ascii=False)

    def problems(self, arguments: str) -> str | None:
        """Why the arguments are not valid, for people and models; None if they are.

        Values are not cited: they may be long, or secret.
        """
        found = self._checked(arguments)
        if not found:
            return None
        if isinstance(found, str):
            return found
        # Sorted, since the validator does not promise an order.
        said = {(f"at {one.pointer or 'the top'},", one.message) for one in found}
        first = [
            f"{where} {_shortened(message)}"
            for where, message in heapq.nsmallest(MAX_PROBLEMS, said)
        ]
        more = len(said) - len(first)
        return (
            f"The arguments of {self.name} do not fit its schema: {'; '.join(first)}"
            f"{f'; and {more} more' if more else ''}."
        )

    def mistakes(self, arguments: str) -> list[Mistake]:
        """As `problems`, each with its place: for a form. Empty if they are valid."""
        found = self._checked(arguments)
        if isinstance(found, str):
            return [Mistake("", found)]
        return sorted({Mistake(one.pointer, _shortened(one.message)) for one in found})

    def _checked(self, arguments: str) -> str | list[Mistake]:
        """What does not fit the schema; a sentence if nobody can say what."""
        try:
            value = strict_json.read(arguments)
        except strict_json.BadJson as problem:
            return f"The arguments of {self.name} cannot be read: {problem}."
        if open_to_all := [*sealed.bare(value, self.declared.sealed)]:
            return [Mistake(one, _NOT_SEALED) for one in open_to_all]
        if ("ayes:sealed:" in arguments or "\\u" in arguments) and (
            elsewhere := [*sealed.stray(value, self.declared.sealed)]
        ):
            return [Mistake(one, _ELSEWHERE) for one in elsewhere]
        if (steps := self._effort.steps(value)) > MAX_STEPS:
            return (
                f"The arguments of {self.name} are too large for its schema: to check them would "
                f"take more than {MAX_STEPS:,} steps. Give fewer values in one call."
            )
        if self._validator.is_valid(value):
            return []
        if min(steps, self._effort.counted(value)) > MAX_STEPS_EXPLAINED:
            return (
                f"The arguments of {self.name} do not fit its schema, and they are too large to "
                "find out where. Give fewer values in one call."
            )
        errors = self._validator.iter_errors(value)
        return [Mistake(_pointer(error.instance_path), error.message) for error in errors]


_NOT_SEALED: Final = (
    "the value is sealed by this tool, and this one is not: request it with a client that has keys"
)
_ELSEWHERE: Final = "there is the text of a sealed value, and this tool seals nothing here"


def declaration(spec: ToolSpec) -> tuple[str, ToolDeclared]:
    """The version of a tool and the fact that declares it."""
    declared = ToolDeclared(
        description=spec.description,
        schema=spec.schema_text,
        repeatable=spec.repeatable,
        run_by=spec.run_by,
        governs=spec.governs,
        secret=spec.secret,
        sealed=spec.sealed,
        tool_class=spec.tool_class,
        undo=spec.undo,
        undo_within_s=spec.undo_within_s,
        title=spec.title,
    )
    return version_of(spec.name, declared), declared


def version_of(name: str, declared: ToolDeclared) -> str:
    """The version of a declaration, under which it is recorded.

    The first 16 hex digits of SHA-256 over `<length>:<text>` of the name, description, schema,
    `yes` or `no` for `repeatable`, `run_by`, `governs` if it is true, `class=`, `undo=`,
    `undo_within_s=` and `title=` with the values of those that are declared (the seconds as
    `3600.0`), `sealed=` with each place that is sealed, and the places that are secret, each after
    a `/` of its own; so no two declarations have the same encoding.
    """
    repeatable = "yes" if declared.repeatable else "no"
    contract = [name, declared.description, declared.schema, repeatable, declared.run_by]
    if declared.governs:
        contract.append("governs")
    if declared.tool_class is not None:
        contract.append(f"class={declared.tool_class}")
    if declared.undo:
        contract.append(f"undo={declared.undo}")
    if declared.undo_within_s is not None:
        contract.append(f"undo_within_s={declared.undo_within_s!r}")
    if declared.title:
        contract.append(f"title={declared.title}")
    contract += [f"sealed={pointer}" for pointer in declared.sealed]
    contract += [f"/{pointer}" for pointer in declared.secret]
    encoded = b"".join(b"%d:%s" % (len(raw), raw) for raw in (part.encode() for part in contract))
    return hashlib.sha256(encoded).hexdigest()[:16]


def read_tools(text: str, path: str) -> tuple[ToolSpec, ...]:
    """Read the text of a TOML file of `[[tool]]` tables; `path` is only used in errors.

    A tool's `schema` is a table or a string of JSON.

    Raises:
        BadFile: with the line and the tool of each mistake.
    """
    return read_toml(_Tools, text, path).tools


def spec_of(
    function: Callable[..., Any],
    *,
    name: str = "",
    repeatable: bool = False,
    run_by: str = "client",
    governs: bool = False,
    secret: Sequence[str] = (),
    sealed: Sequence[str] = (),
    tool_class: ToolClass | None = None,
    undo: str = "",
    undo_within_s: float | None = None,
    title: str = "",
) -> ToolSpec:
    """Declare a Python function: its name, its docstring and the schema of its parameters.

    Raises:
        BadInput: no schema can be made of its parameters, or a key of its declaration is not valid.
    """
    name = name or getattr(function, "__name__", "")
    declared = {
        "name": name,
        "description": inspect.getdoc(function) or "",
        "schema": schema_of(function),
        "repeatable": repeatable,
        "governs": governs,
        "run_by": run_by,
        "secret": tuple(secret),
        "sealed": tuple(sealed),
        "class": tool_class,
        "undo": undo,
        "undo_within_s": undo_within_s,
        "title": title,
    }
    try:
        return ToolSpec.model_validate(declared)
    except ValidationError as problem:
        raise BadInput(
            f"tool {name!r}: {' '.join(said for _, said in mistakes(problem))}"
        ) from None


def schema_of(function: Callable[..., Any]) -> str:
    """The JSON Schema of a function's parameters, raw text.

    Raises:
        BadInput: a parameter has no annotation, cannot be given by name, or has a type that has no
            JSON form.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        return _schema_of(function, name)
    except (PydanticUserError, NameError, TypeError, ValueError) as problem:
        raise BadInput(
            f"{name}: no JSON Schema can be made of its parameters: {str(problem).splitlines()[0]}"
        ) from None


def _schema_of(function: Callable[..., Any], name: str) -> str:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadInput(
                f"{name}: parameter {str(parameter).partition(':')[0]!r} cannot be given by name. "
                "Name each parameter of a tool."
            )
        if parameter.annotation is parameter.empty:
            raise BadInput(
                f"{name}: parameter {parameter.name!r} has no type. Annotate it, as in "
                f"{parameter.name}: str; the model's schema is made of the annotations."
            )
    # Pydantic accepts functions too, which its annotations omit.
    adapter: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]
    schema = adapter.json_schema(schema_generator=_Untitled)
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


class _Untitled(GenerateJsonSchema):
    """Omits titles, which only repeat the names and cost the model tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Drop the warning that a default without a JSON form is omitted."""


#: A pattern that backtracks more does not match. The library's 1,000,000 would take 2 ms a text.
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)


class _Described:
    """A keyword that only describes."""

    def __init__(self, *_keyword: object) -> None:
        """There is nothing to remember."""

    def validate(self, _value: object) -> None:
        """Every value fits."""


_DESCRIBED: Final = dict.fromkeys(("contentEncoding", "contentMediaType"), _Described)


def _compiled(text: str) -> tuple[jsonschema_rs.Validator, SchemaCost]:
    """The validator of a schema and its cost; ValueError has the problem as its message."""
    schema = strict_json.read(text)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError('the schema must describe an object: write "type": "object".')
    first, *others = drafts_of(schema)
    try:
        return _compiled_as(first, schema)
    except ValueError:
        for draft in others:
            with suppress(ValueError):
                return _compiled_as(draft, schema)
        raise


def _compiled_as(
    draft: Draft, schema: dict[str, Any]
) -> tuple[jsonschema_rs.Validator, SchemaCost]:
    effort = SchemaCost(schema, draft)  # first, since compiling takes time too
    try:
        validator = draft.validator(
            {key: value for key, value in schema.items() if key != "$schema"},
            mask="the value",
            offline=True,
            pattern_options=_PATTERNS,
            validate_formats=False,
            keywords=_DESCRIBED,
        )
    except jsonschema_rs.ValidationError as problem:
        message = problem.message.replace("the value", json.dumps(problem.instance)[:60], 1)
        raise ValueError(
            f"this is not a valid JSON Schema (draft {draft.name.removeprefix('draft-')}): "
            f"at {_pointer(problem.instance_path) or 'the top'}, {message}."
        ) from None
    return validator, effort


def _pointer(path: list[str | int]) -> str:
    """The place as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def _shortened(message: str) -> str:
    if len(message) <= _MAX_PROBLEM_CHARACTERS:
        return message
    return message[: _MAX_PROBLEM_CHARACTERS - 1] + "…"
