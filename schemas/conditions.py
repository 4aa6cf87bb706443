"""Conditions of rules, in the Common Expression Language (https://cel.dev): `args.amount > 100 &&
agent == "desk"`.

A condition sees only the call that is judged: it has no side effects, no clock and no network, so
its result is always the same. The result is true, false, or an exception if it cannot be evaluated:
a missing key, a comparison of a number with a text. Callers must take the exception for "a person
should look at this", never for true or false.

Only `check`, `Scope` and `holds` use the library, so that it can be replaced. Two kinds of input
never reach it: whole numbers beyond 64 bits, which it rounds, and conditions that would take more
than `MAX_STEPS` with these arguments. It cannot be interrupted, so the steps are counted first
(`ayes.schemas.condition_cost`, docs/decisions/0018).

Two hints for authors: `size` of a text counts its bytes in UTF-8, not its characters; and a table
has no order, so a condition must not use the first of its keys.
"""

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, Final

from ayes.schemas import condition_cost as effort
from ayes.schemas.sealed import names_of, overlap
from ayes.schemas.strict_json import values_in

#: Of characters in a condition: one that nobody can read should be several rules.
MAX_LENGTH: Final = 2000
#: Of values in the arguments, for a condition that iterates over lists: its cost is quadratic.
MAX_VALUES: Final = 1000
#: Of one evaluation, which then takes less than 100 ms.
MAX_STEPS: Final = 1_500_000
#: Of all conditions that are evaluated for one call: those of a policy, or of the grants.
MAX_STEPS_TOGETHER: Final = 4 * MAX_STEPS

#: The names that a condition can use.
NAMES: Final = ("args", "tool", "agent", "requester", "workspace", "thread", "labels")

#: The functions of the library, and its types for `type(args.x) == int`.
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
#: An error of its parser: the place, the mistake, and what it expected instead.
_SYNTAX: Final = re.compile(
    r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*?)(?: expecting .*)?"
)
_NOTHING: Final[dict[str, Any]] = {"args": {}, "labels": {}} | dict.fromkeys(
    ("tool", "agent", "requester", "workspace", "thread"), ""
)


class BadCondition(ValueError):
    """The text is not a valid condition."""


class CannotSay(Exception):
    """The condition cannot be evaluated for this call. A person should look at it."""


def check(condition: str) -> None:
    """Raise `BadCondition` with a sentence if this can never be evaluated."""
    if len(condition) > MAX_LENGTH:
        raise BadCondition(
            f"a condition may have {MAX_LENGTH:,} characters; this one has {len(condition):,}. "
            "Split it into several rules."
        )
    try:
        program = _compiled(condition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - a panic of its parser is not an Exception
        raise BadCondition(
            f"{_cited(condition)} is not a valid condition: {_syntax(condition, problem)}."
        ) from None
    if unknown := _unknown(condition, program):
        raise BadCondition(
            f"{_cited(condition)} has unknown names: {', '.join(unknown)}. "
            f"A condition can use {', '.join(NAMES)}, and the functions of CEL."
        )
    try:
        steps = _steps(condition, 2, 0)
    except effort.Unreadable as problem:
        raise BadCondition(f"{_cited(condition)} cannot be used: {problem}. Simplify it.") from None
    if steps > MAX_STEPS:
        raise BadCondition(
            f"{_cited(condition)} takes {_figure(steps)} steps by itself, over the limit of "
            f"{MAX_STEPS:,}. Nest fewer all(), exists() and map(), over shorter lists, or write "
            "several rules."
        )
    try:
        said = program.execute(_NOTHING)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - few conditions can be evaluated without arguments
        return
    if not isinstance(said, bool):
        raise BadCondition(
            f"{_cited(condition)} is {_kind(said)} and not true or false. Write a comparison."
        )


class Scope:
    """The data of one call that conditions see.

    The library copies it once for all conditions, since a copy costs fifty times an evaluation.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        """Keep the values of the `NAMES`."""
        self._about = about
        self._steps = 0.0

    def spend(self, steps: float) -> bool:
        """Deduct steps from the budget of all conditions; False if it is exceeded."""
        self._steps += steps
        return self._steps <= MAX_STEPS_TOGETHER

    @cached_property
    def context(self) -> Any:
        from cel import cel

        return cel.Context(variables=self._about)

    @cached_property
    def unfit(self) -> str:
        """Why the library would get the arguments wrong; empty if it would not."""
        return _beyond(self._about["args"])

    @cached_property
    def is_long(self) -> bool:
        """Whether there are more than `MAX_VALUES` values in the arguments."""
        return sum(1 for _ in values_in(self._about["args"])) > MAX_VALUES

    @cached_property
    def size(self) -> tuple[int, int]:
        """The numbers of values and of their characters, rounded up to a power of two.

        So the counted steps of a condition can be cached.
        """
        values = text = 0
        for value in values_in(self._about):
            values += 1
            if isinstance(value, str):
                text += len(value)
        return 1 << values.bit_length(), 1 << text.bit_length()


def holds(condition: str, about: Scope) -> bool:
    """Whether the condition is true for this call.

    Raises:
        CannotSay: with the problem.
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
            f"these arguments, over the limit of {MAX_STEPS:,}"
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
    except BaseException as problem:  # noqa: BLE001 - a panic of the library is not an Exception
        raise CannotSay(f"{_cited(condition)} cannot be evaluated: {_matter(problem)}") from None
    if not isinstance(said, bool):
        raise CannotSay(f"{_cited(condition)} is {_kind(said)} and not true or false")
    return said


def reads(condition: str, places: Iterable[str]) -> str:
    """The first of these places of the arguments (JSON pointers) that the condition may read; empty
    if it reads none of them.
    """
    found = effort.places_read(condition)
    return next((one for one in places if any(overlap(names_of(one), at) for at in found)), "")


def literal(value: Any) -> str:
    """A value of JSON as it stands in a condition.

    In a text, whatever is not ASCII and neither a letter nor a digit is spelled out, so that the
    text neither ends early nor hides anything from a reader of the condition.
    """
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if value >= 2**63:
            return f"{value}u"
        case str():
            return f'"{"".join(map(_spelled, value))}"'
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case dict():
            return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
        case _:
            return repr(value)


def _spelled(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    return one if one.isalnum() or " " <= one <= "~" else f"\\U{ord(one):08x}"


@lru_cache(maxsize=4096)
def _compiled(condition: str) -> Any:
    from cel import cel

    return cel.compile(condition)


@lru_cache(maxsize=4096)
def _read(condition: str) -> effort.Counted:
    return effort.read(condition)


@lru_cache(maxsize=16384)
def _steps(condition: str, values: int, text: int) -> float:
    """The steps of an evaluation if no name refers to a larger value than this."""
    size = effort.Size(values, text)
    return _read(condition)(dict.fromkeys(NAMES, size)).steps


def _figure(steps: float) -> str:
    return f"{steps:,.0f}" if steps < 10**12 else "more than 10^12"


def _unknown(condition: str, program: Any) -> list[str]:
    """The names and functions that do not exist, including those that evaluation may not reach."""
    known = {*NAMES, *_TYPES, *_BOUND.findall(condition)}
    names = [name for name in program.variables() if name not in known]
    # Operators are listed among the functions, as `_+_` or `@in`.
    functions = [
        f"{name}()" for name in program.functions() if name[0].isalpha() and name not in _FUNCTIONS
    ]
    return [*names, *functions]


def _beyond(args: Any) -> str:
    if any(isinstance(value, int) and not -(2**63) < value < 2**64 for value in values_in(args)):
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
    """The type of a value. The value itself may be secret, and a table has no order."""
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
            return "it combines two values of types that do not fit"
        case _:
            return _first_line(str(problem))


def _first_line(text: str) -> str:
    first = text.strip().partition("\n")[0].partition(". Check ")[0].rstrip(".")
    return first[:200] or "the library gives no reason"
