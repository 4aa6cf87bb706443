"""TOML files that people write, and their mistakes: the line, the entry, and what is allowed.

A file is read whole or not at all. An unknown key is a mistake, since its author meant something.
"""

import bisect
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from ayes.schemas.errors import BadFile, BadId
from ayes.schemas.ids import token
from ayes.schemas.limits import MAX_INTERVAL_S, cited
from ayes.schemas.tool_names import tool_name

#: The type of an error that says only that nobody wants the value.
NOT_WANTED: Final = "not_wanted"
#: The number of mistakes that are reported at once.
MAX_MISTAKES: Final = 5

type Place = tuple[str | int, ...]
type Interval = Annotated[float, Field(gt=0, le=MAX_INTERVAL_S, allow_inf_nan=False)]


class TomlModel(BaseModel):
    """One table of a file: frozen, and strict about its keys and the types of their values."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    #: What its fields are, in messages.
    kind: ClassVar = "key"

    @model_validator(mode="before")
    @classmethod
    def _every_key_known(cls, data: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data if isinstance(data, dict) else ():
            if key not in known:
                said = f"unknown {cls.kind} {key!r}. The {cls.kind}s are: {', '.join(known)}."
                raise mistake(said, key)
        return data


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        BadFile: it cannot be read, or is not UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
        return raw.decode()
    except OSError as problem:
        raise BadFile(str(path), "", f"cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise BadFile(
            str(path), f"line {line}", f"not UTF-8: byte {raw[problem.start]:#04x}."
        ) from None


def read_toml[M: TomlModel](model: type[M], text: str, path: str, context: object = None) -> M:
    """Read a TOML file into `model`; its validators get the context.

    Raises:
        BadFile: with the line of the first mistake; the others follow in the message.
    """
    try:
        data = tomllib.loads(text)
    # ValueError: also an integer of over 4,300 digits
    except (ValueError, RecursionError) as problem:
        raise BadFile(path, *_syntax_mistake(text, problem)) from None
    try:
        return model.model_validate(data, context=context)
    except ValidationError as problem:
        found = list(mistakes(problem))
    told = [
        (f"line {line_of(text, at)}{_entry(data, at)}", said) for at, said in found[:MAX_MISTAKES]
    ]
    where, first = told[0]
    also = [f"Also, {place}: {said}" for place, said in told[1:]]
    if len(found) > len(told):
        also.append(f"And {len(found) - len(told)} more.")
    raise BadFile(path, where, " ".join((first, *also)))


def mistake(sentence: str, *at: str | int) -> PydanticCustomError:
    """A mistake to raise in a validator, `at` a place below the value that is being validated."""
    return PydanticCustomError("mistake", "{sentence}", {"sentence": sentence, "at": at})


def checked_token(what: str, value: str) -> str:
    """Return a token of subjects; in a validator, report any other text as a mistake."""
    try:
        return token(what, value)
    except BadId as problem:
        raise ValueError(str(problem)) from None


def checked_tool_name(value: str) -> str:
    """Return a tool's name; in a validator, report any other text as a mistake."""
    try:
        return tool_name(value)
    except BadId as problem:
        raise ValueError(str(problem)) from None


def check_names_differ(kind: str, named: Iterable[Any]) -> None:
    """Report the first of these entries of a file that has the name of an earlier one."""
    seen: set[str] = set()
    for index, one in enumerate(named):
        if one.name in seen:
            raise mistake(f"another {kind} has the name {one.name!r} already.", index, "name")
        seen.add(one.name)


def mistakes(problem: ValidationError) -> Iterator[tuple[Place, str]]:
    """Each mistake that pydantic found: its place, and a sentence that says what to write."""
    for error in problem.errors(include_url=False):
        if error["type"] == "too_short" and error["input"]:
            continue  # only because the items it had are wrong, and they were reported
        if error["type"] == NOT_WANTED:
            continue
        context = error.get("ctx", {})
        yield (*error["loc"], *context.get("at", ())), _sentence(error, context)


def line_of(text: str, place: Place) -> int:
    """The line on which a key or table of a TOML text begins, counted from 1.

    Whole statements of TOML are themselves TOML. So a key begins behind the longest run of lines
    that can be read and does not hold it yet; `tomllib` is asked, and no second TOML reader needed.
    """
    lines = text.replace("\r\n", "\n").split("\n")

    def readable(count: int) -> tuple[int, Any]:
        while True:
            try:
                return count, tomllib.loads("\n".join(lines[:count]))
            except ValueError:
                count -= 1

    _, whole = readable(len(lines))
    while place and not _holds(whole, place):  # a key that is missing: the table it is missing in
        place = place[:-1]
    if not place:
        return 1
    last = bisect.bisect_left(
        range(len(lines)), True, key=lambda count: _holds(readable(count)[1], place)
    )
    return readable(last - 1)[0] + 1


def _holds(data: Any, place: Place) -> bool:
    try:
        for key in place:
            data = data[key]
    except (LookupError, TypeError):
        return False
    return True


# Python 3.14 has the line as an attribute; before, it stands only in the message.
_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def _syntax_mistake(text: str, problem: Exception) -> tuple[str, str]:
    if isinstance(problem, RecursionError):
        return "", "nested too deeply."
    if not isinstance(problem, tomllib.TOMLDecodeError):
        return "", "a number in it has too many digits."
    said = _AT.search(str(problem))
    line = int(said[1]) if said and said[1] else text.rstrip("\n").count("\n") + 1
    return f"line {line}" if said else "", f"this is no TOML: {_AT.sub('', str(problem))}."


def _entry(data: Any, place: Place) -> str:
    """Its table, as in `, [mcp]`, and which of several entries, as in `, rule 'refunds'`: by number
    where it has no name.
    """
    tables: list[str] = []
    entry = ""
    for at, key in enumerate(place):
        match data.get(key), place[at + 1 : at + 2]:
            case dict() as data, (_,):
                tables.append(str(key))
            case list() as entries, (int(index),) if not isinstance(entries[index], str):
                one = entries[index]
                name = one.get("name") if isinstance(one, dict) else None
                is_named = isinstance(name, str) and name
                entry = f", {key} {name!r}" if is_named else f", {key} {index + 1}"
                break
            case _:
                break
    return (f", [{'.'.join(tables)}]" if tables else "") + entry


def _sentence(error: ErrorDetails, context: dict[str, Any]) -> str:
    place = error["loc"]
    if place and place[-1] == "[key]":  # a key of a table is wrong: report the table
        place = place[:-2]
    key = next((repr(part) for part in reversed(place) if isinstance(part, str)), "the file")
    if place and isinstance(place[-1], int):
        key += f", item {place[-1] + 1}"
    match error["type"]:
        case "mistake":
            return error["msg"]
        case "missing":
            return f"{key} is missing."
        case "literal_error":
            return f"{key} is {cited(error['input'])}. It can be {context['expected']}."
        case "union_tag_not_found":
            return f"{context['discriminator']} is missing."
        case "union_tag_invalid":
            tag = f"{context['discriminator']} is {context['tag']!r}"
            return f"{tag}. It can be {context['expected_tags']}."
        case "too_short":
            return f"{key} is empty."
        case "too_long" if context.get("actual_length"):
            has = f"{key} has {context['actual_length']:,} entries"
            return f"{has}. It can have {context['max_length']:,} at most."
        case "model_type" | "dict_type":
            return f"{key} should be a table."
        case "tuple_type" if len(place) == 1 and isinstance(error["input"], dict):
            begins = f"In TOML each begins with [[{place[0]}]], in double brackets."
            return f"{key} should be a list. {begins}"
        case "value_error":
            return f"{key}: {context['error']}"
        case _:
            said = error["msg"].replace("Input should", "should")
            return f"{key} {said.replace('valid tuple', 'list').replace('valid list', 'list')}."
