"""Conditions of rules, in the Common Expression Language (https://cel.dev): `args.amount > 100 &&
agent == "desk"`.

A condition sees what is judged and nothing else: it has no side effects, no clock and no network,
so it may be evaluated as often as anybody likes and always says the same. It says yes, or no, or it
cannot say: a key that is not there, a comparison of a number with a text. Whoever asks must take
the last for "a person should look at this", never for yes or no; hence it is an exception.

The library stands behind `check`, `Scope` and `holds` alone, so that another one can take its
place. What it would answer wrongly or too slowly is held back from it: whole numbers beyond 64
bits, which it rounds, and conditions that would take more than `MAX_STEPS` with these arguments. It
cannot be interrupted, so the steps are counted first (`ayes.schemas.condition_cost`,
docs/decisions/0018).

Two things to know when writing one: `size` of a text counts its bytes in UTF-8, as this library
does it, not its characters; and a table has no order, so a condition must not ask for the first of
its keys.
"""

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, Final

from ayes.schemas import condition_cost as effort

#: So long may a condition be: one that nobody can read should be several rules.
MAX_LENGTH: Final = 2000
#: So many values may be in what is judged by a condition that goes through lists: it takes their
#: square.
MAX_VALUES: Final = 1000
#: How many steps an evaluation may take: less than 100 ms.
MAX_STEPS: Final = 1_500_000
#: How many steps all conditions together may take that are held against one call: of a policy, or
#: of the grants.
MAX_STEPS_TOGETHER: Final = 4 * MAX_STEPS

#: What a condition can name.
NAMES: Final = ("args", "tool", "agent", "requester", "workspace", "thread", "labels")

#: What the library knows beside: functions, and types for `type(args.x) == int`.
_FUNCTIONS: Final = frozenset({
    "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string",
    "bytes", "timestamp", "duration", "type", "dyn", "getFullYear", "getMonth", "getDate",
    "getDayOfMonth",
    "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
})  # fmt: skip
_TYPES: Final = frozenset({
    "int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type",
})  # fmt: skip
#: The `x` of `args.lines.all(x, x.count > 0)`.
_BOUND: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w+)\s*,")
#: How its parser tells a mistake: where, what, and what it had expected instead.
_SYNTAX: Final = re.compile(
    r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*?)(?: expecting .*)?"
)
_NOTHING: Final[dict[str, Any]] = {"args": {}, "labels": {}} | dict.fromkeys(
    ("tool", "agent", "requester", "workspace", "thread"), ""
)


class BadCondition(ValueError):
    """It is no condition."""


class CannotSay(Exception):
    """The condition does not fit what is judged. A person should look at it."""


def check(condition: str) -> None:
    """Raise `BadCondition` with a sentence if this can never be evaluated."""
    if len(condition) > MAX_LENGTH:
        raise BadCondition(
            f"a condition may have {MAX_LENGTH:,} characters; this one has {len(condition):,}. "
            "Make it several rules."
        )
    try:
        program = _compiled(condition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - a panic of its parser is no Exception
        raise BadCondition(
            f"{_cited(condition)} is no condition: {_syntax(condition, problem)}."
        ) from None
    if unknown := _unknown(condition, program):
        raise BadCondition(
            f"{_cited(condition)} names what is not there: {', '.join(unknown)}. "
            f"A condition knows {', '.join(NAMES)}, and the functions of CEL."
        )
    try:
        steps = _steps(condition, 2, 0)
    except effort.Unreadable as problem:
        raise BadCondition(
            f"{_cited(condition)} cannot be used: {problem}. Write it more simply."
        ) from None
    if steps > MAX_STEPS:
        raise BadCondition(
            f"{_cited(condition)} takes {_figure(steps)} steps by itself, and {MAX_STEPS:,} is "
            "the limit. Nest fewer all(), exists() and map(), over shorter lists, or write several "
            "rules."
        )
    try:
        said = program.execute(_NOTHING)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - empty arguments fit few conditions
        return
    if not isinstance(said, bool):
        raise BadCondition(
            f"{_cited(condition)} is neither true nor false but {_kind(said)}. Write a comparison."
        )


class Scope:
    """What conditions see of one call. The library copies it, which costs fifty times what a
    condition does: so, once.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        """Take what the `NAMES` stand for."""
        self._about = about
        self._steps = 0.0

    def spend(self, steps: float) -> bool:
        """Take so many steps of those that all conditions have together; False where so many are
        not left.
        """
        self._steps += steps
        return self._steps <= MAX_STEPS_TOGETHER

    @cached_property
    def context(self) -> Any:
        from cel import cel

        return cel.Context(variables=self._about)

    @cached_property
    def unfit(self) -> str:
        """What about the arguments the library would get wrong."""
        return _beyond(self._about["args"])

    @cached_property
    def is_long(self) -> bool:
        """Are there more values than a condition may go through?"""
        return sum(1 for _ in _values(self._about["args"])) > MAX_VALUES

    @cached_property
    def size(self) -> tuple[int, int]:
        """How many values it has, and how many characters are in them; both rounded up to a power
        of two.

        So the steps of a condition need not be counted for each call.
        """
        values = text = 0
        for value in _values(self._about):
            values += 1
            if isinstance(value, str):
                text += len(value)
        return 1 << values.bit_length(), 1 << text.bit_length()


def holds(condition: str, about: Scope) -> bool:
    """Does it hold for this?

    Raises:
        CannotSay: with what is the matter.
    """
    too_long = about.is_long and _BOUND.search(condition)
    if unfit := about.unfit or (
        too_long and f"there are more than {MAX_VALUES:,} values in the arguments"
    ):
        raise CannotSay(f"{_cited(condition)} cannot be evaluated: {unfit}")
    try:
        steps = _steps(condition, *about.size)
    except effort.Unreadable as problem:
        raise CannotSay(f"{_cited(condition)} cannot be evaluated: {problem}") from None
    if steps > MAX_STEPS:
        raise CannotSay(
            f"{_cited(condition)} cannot be evaluated: it would take {_figure(steps)} steps with "
            f"these arguments, and {MAX_STEPS:,} is the limit"
        )
    if not about.spend(steps):
        raise CannotSay(
            f"{_cited(condition)} cannot be evaluated: with the conditions before it, it would "
            f"take more than {MAX_STEPS_TOGETHER:,} steps"
        )
    try:
        said = _compiled(condition).execute(about.context)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - a panic of the library is no Exception, and no yes either
        raise CannotSay(f"{_cited(condition)} cannot be evaluated: {_matter(problem)}") from None
    if not isinstance(said, bool):
        raise CannotSay(f"{_cited(condition)} is neither true nor false but {_kind(said)}")
    return said


@lru_cache(maxsize=4096)
def _compiled(condition: str) -> Any:
    from cel import cel

    return cel.compile(condition)


@lru_cache(maxsize=4096)
def _read(condition: str) -> effort.Counted:
    return effort.read(condition)


@lru_cache(maxsize=16384)
def _steps(condition: str, values: int, text: int) -> float:
    """What an evaluation takes where each name stands for no more than this."""
    size = effort.Size(values, text)
    return _read(condition)(dict.fromkeys(NAMES, size)).steps


def _figure(steps: float) -> str:
    return f"{steps:,.0f}" if steps < 10**12 else "more than 10^12"


def _unknown(condition: str, program: Any) -> list[str]:
    """Names and functions that nothing could ever be behind, also where an evaluation would not get
    to them.
    """
    known = {*NAMES, *_TYPES, *_BOUND.findall(condition)}
    names = [name for name in program.variables() if name not in known]
    # Operators are listed among the functions, as `_+_` or `@in`.
    functions = [
        f"{name}()" for name in program.functions() if name[0].isalpha() and name not in _FUNCTIONS
    ]
    return [*names, *functions]


def _values(args: Any) -> Iterator[Any]:
    waiting = [args]
    while waiting:
        yield (value := waiting.pop())
        match value:
            case dict():
                waiting += value.values()
            case list():
                waiting += value
            case _:
                pass


def _beyond(args: Any) -> str:
    if any(isinstance(value, int) and not -(2**63) < value < 2**64 for value in _values(args)):
        return "a whole number in the arguments is beyond 64 bits"
    return ""


def _cited(condition: str) -> str:
    return repr(condition) if len(condition) <= 200 else f"{condition[:200]!r}..."


def _syntax(condition: str, problem: BaseException) -> str:
    first = _first_line(str(problem).removeprefix(f"Failed to parse expression '{condition}': "))
    if found := _SYNTAX.fullmatch(first):
        line, column, what = found.groups()
        where = f"character {column}" if line == "1" else f"line {line} of it, character {column}"
        return f"at {where}, {what}"
    return first


def _kind(value: object) -> str:
    """What it is, and not which: the library hands tables back in any order, and a value may be a
    secret.
    """
    kinds = {
        dict: "a table",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return kinds.get(type(value), "something else")


def _matter(problem: BaseException) -> str:
    match problem:
        case KeyError(args=(str(key),)):
            return f"there is no {key!r}"
        case TypeError() if "overload" in str(problem):
            return "two values in it are of kinds that do not go together"
        case _:
            return _first_line(str(problem))


def _first_line(text: str) -> str:
    first = text.strip().partition("\n")[0].partition(". Check ")[0].rstrip(".")
    return first[:200] or "it says nothing more"
