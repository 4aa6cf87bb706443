"""Values of conditions as formulas: of each kind that a value may have, when it has it, and what it
is then. A value of no kind is an error: the condition cannot be evaluated.

The formulas are those of `cel` 0.10, with its own readings: whole numbers and decimals are compared
by value but not added, `true || error` is true, `true == 1` is false.
"""

import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

import z3
from msgspec import Struct

NULL: Final = "null"
BOOL: Final = "bool"
#: A whole number of 64 bits with a sign.
INT: Final = "int"
#: A whole number of 64 bits without one: in arguments, those from 2^63 on.
UINT: Final = "uint"
DOUBLE: Final = "double"
TEXT: Final = "text"
LIST: Final = "list"
TABLE: Final = "table"
#: Bytes, times, types, infinity: nothing is known of what is done with them.
OTHER: Final = "other"

KINDS: Final = (INT, TEXT, BOOL, NULL, DOUBLE, UINT, TABLE, LIST, OTHER)
JSON_KINDS: Final = KINDS[:-1]
NUMBERS: Final = (INT, UINT, DOUBLE)

type Formula = Any

YES: Final[Formula] = z3.BoolVal(True)
NO: Final[Formula] = z3.BoolVal(False)

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_HIGHEST_UNSIGNED: Final = 2**64 - 1
#: Whole numbers up to here are decimals too, exactly.
EXACT: Final = 2**53
#: The largest decimal, and the largest error of an operation on decimals: a share, and an amount.
LARGEST: Final = Fraction(sys.float_info.max)
_SHARE: Final = Fraction(1, 2**52)
_AMOUNT: Final = Fraction(1, 2**1070)
#: The last character that the solver has.
MAX_CHARACTER: Final = 0x2FFFF

_SORTS: Final[dict[str, Callable[[], Any]]] = {
    NULL: z3.IntSort,
    BOOL: z3.BoolSort,
    INT: z3.IntSort,
    UINT: z3.IntSort,
    DOUBLE: z3.RealSort,
    TEXT: z3.StringSort,
    LIST: z3.IntSort,
    TABLE: z3.IntSort,
    OTHER: z3.IntSort,
}


class Unwritable(Exception):
    """It cannot be written as a formula; the message says why."""


class Value(Struct):
    """When it has a kind, and what it is then."""

    kinds: dict[str, Formula] = {}
    values: dict[str, Formula] = {}

    def is_(self, kind: str) -> Formula:
        return self.kinds.get(kind, NO)

    @property
    def is_said(self) -> Formula:
        """Whether it is no error."""
        return either(self.kinds.values())

    @property
    def is_true(self) -> Formula:
        return both(self.is_(BOOL), self.values.get(BOOL, NO))

    @property
    def is_false(self) -> Formula:
        return both(self.is_(BOOL), no(self.values.get(BOOL, YES)))


def both(*given: Formula) -> Formula:
    found = [one for one in given if not z3.is_true(one)]
    if any(z3.is_false(one) for one in found):
        return NO
    return z3.And(*found) if len(found) > 1 else found[0] if found else YES


def either(given: Iterable[Formula]) -> Formula:
    found = [one for one in given if not z3.is_false(one)]
    if any(z3.is_true(one) for one in found):
        return YES
    return z3.Or(*found) if len(found) > 1 else found[0] if found else NO


def no(one: Formula) -> Formula:
    return NO if z3.is_true(one) else YES if z3.is_false(one) else z3.Not(one)


def of(kind: str, value: Formula, when: Formula = YES) -> Value:
    return Value({kind: when}, {kind: value})


def truth(yes: Formula, when: Formula = YES) -> Value:
    return of(BOOL, yes, when)


def unknown(name: str, kinds: Iterable[str] = KINDS) -> tuple[Value, list[Formula]]:
    """A value of any of these kinds, or none of them, and what is so of it."""
    kinds = tuple(kinds)
    found = Value(
        {kind: z3.Bool(f"{name} is {kind}") for kind in kinds},
        {kind: z3.Const(f"{name} as {kind}", _SORTS[kind]()) for kind in kinds},
    )
    facts = [z3.AtMost(*found.kinds.values(), 1)] if len(kinds) > 1 else []
    bounds: dict[str, tuple[int | Fraction, int | Fraction]] = {
        INT: (LOWEST, HIGHEST),
        UINT: (0, _HIGHEST_UNSIGNED),
        DOUBLE: (-LARGEST, LARGEST),
    }
    for kind, (low, high) in bounds.items():
        if kind in found.values:
            number = found.values[kind]
            facts.append(z3.And(number >= _numeral(low), number <= _numeral(high)))
    return found, facts


def of_json(value: Value) -> list[Formula]:
    """What is so of a value in arguments: a whole number is one without a sign only if it must be,
    and the lowest counts as beyond 64 bits.
    """
    found = []
    if INT in value.values:
        found.append(value.values[INT] > LOWEST)
    if UINT in value.values:
        found.append(value.values[UINT] > HIGHEST)
    return found


def constant(value: Any, *, unsigned: bool = False) -> Value:
    """A literal of a condition.

    Raises:
        Unwritable: it has a character that the solver lacks.
    """
    match value:
        case None:
            return of(NULL, z3.IntVal(0))
        case bool():
            return truth(YES if value else NO)
        case int():
            return of(UINT if unsigned else INT, z3.IntVal(value))
        case float():
            return of(DOUBLE, real(value))
        case _:
            return of(TEXT, text(value))


def real(value: float) -> Formula:
    if value in (float("inf"), float("-inf")) or value != value:  # noqa: PLR0124 - not a number
        raise Unwritable("a decimal is out of range")
    return _numeral(Fraction(value))


def _numeral(value: int | Fraction) -> Formula:
    if isinstance(value, int):
        return z3.IntVal(value)
    return z3.RealVal(f"{value.numerator}/{value.denominator}")


def text(value: str) -> Formula:
    """A text of the solver. It takes a backslash for the beginning of an escape."""
    if any(ord(one) > MAX_CHARACTER for one in value):
        raise Unwritable("a text has a character that the solver lacks")
    spelled = (
        one if " " <= one <= "~" and one != "\\" else f"\\u{{{ord(one):x}}}" for one in value
    )
    return z3.StringVal("".join(spelled))


def chosen(when: Formula, yes: Value, otherwise: Value) -> Value:
    """The one value or the other."""
    if z3.is_true(when) or z3.is_false(when):
        return yes if z3.is_true(when) else otherwise
    found = Value()
    for kind in dict.fromkeys((*yes.kinds, *otherwise.kinds)):
        found.kinds[kind] = either((both(when, yes.is_(kind)), both(no(when), otherwise.is_(kind))))
        one, other = yes.values.get(kind), otherwise.values.get(kind)
        if one is None or other is None:
            found.values[kind] = other if one is None else one
        else:
            found.values[kind] = z3.If(when, one, other)
    return found


# ------------------------------------------------------------------------------------------ logic


def conjunction(left: Value, right: Value) -> Value:
    true = both(left.is_true, right.is_true)
    return truth(true, either((true, left.is_false, right.is_false)))


def disjunction(left: Value, right: Value) -> Value:
    true = either((left.is_true, right.is_true))
    return truth(true, either((true, both(left.is_false, right.is_false))))


def negation(one: Value) -> Value:
    return truth(no(one.values.get(BOOL, NO)), one.is_(BOOL))


def negative(one: Value) -> Value:
    """`-one`. The library takes it for `!one` of a truth, and has no number above the highest."""
    found = negation(one) if BOOL in one.kinds else Value()
    if INT in one.kinds:
        number = one.values[INT]
        found.kinds[INT] = one.kinds[INT]
        found.values[INT] = z3.If(number == LOWEST, number, -number)
    if DOUBLE in one.kinds:
        found.kinds[DOUBLE], found.values[DOUBLE] = one.kinds[DOUBLE], -one.values[DOUBLE]
    return found


# ------------------------------------------------------------------------------------- comparisons

#: A whole number beyond 2^53 as a decimal: the nearest, which the solver does not know.
_nearest: Final = z3.Function("nearest", z3.IntSort(), z3.RealSort())
#: The same among the values of a list, where it need not be equal to any decimal.
_counted: Final = z3.Function("counted", z3.IntSort(), z3.RealSort())
_same: Final = z3.Function("same", z3.IntSort(), z3.IntSort(), z3.BoolSort())


def as_decimal(kind: str, number: Formula, *, beyond: Any = _nearest) -> Formula:
    if kind == DOUBLE:
        return number
    if z3.is_int_value(number) and (abs(number.as_long()) <= EXACT or beyond is _nearest):
        return real(float(number.as_long()))
    exact, found = z3.ToReal(number), beyond(number)
    size = z3.If(exact < 0, -exact, exact) * _numeral(_SHARE)
    near = z3.If(
        found < exact - size, exact - size, z3.If(found > exact + size, exact + size, found)
    )
    return z3.If(z3.And(number >= -EXACT, number <= EXACT), exact, near)


def _numbers(left: Value, right: Value) -> Iterable[tuple[Formula, Formula, Formula]]:
    """For each two kinds of numbers, when they are these, and both in one form."""
    for one in NUMBERS:
        for other in NUMBERS:
            when = both(left.is_(one), right.is_(other))
            if z3.is_false(when):
                continue
            pair = left.values[one], right.values[other]
            if DOUBLE in (one, other):
                pair = as_decimal(one, pair[0]), as_decimal(other, pair[1])
            yield when, *pair


def equal(left: Value, right: Value) -> Value:
    """`left == right`, which is false of different kinds."""
    said = [both(when, one == other) for when, one, other in _numbers(left, right)]
    for kind in (NULL, BOOL, TEXT, LIST, TABLE):
        when = both(left.is_(kind), right.is_(kind))
        if not z3.is_false(when):
            said.append(both(when, _equal(kind, left.values[kind], right.values[kind])))
    return truth(either(said), both(left.is_said, right.is_said))


def _equal(kind: str, one: Formula, other: Formula) -> Formula:
    if kind == NULL:
        return YES
    if kind not in {LIST, TABLE}:
        return one == other
    # What is in them is not known here, only that it is the same each time.
    return z3.Or(one == other, z3.If(one <= other, _same(one, other), _same(other, one)))


def ordered(sign: str, left: Value, right: Value) -> Value:
    """`left < right` and its kin, which is an error of different kinds."""
    said, when_said = [], []
    for when, one, other in _numbers(left, right):
        said.append(both(when, _ORDERS[sign](one, other)))
        when_said.append(when)
    if not z3.is_false(when := both(left.is_(TEXT), right.is_(TEXT))):
        said.append(both(when, _in_order(sign, left.values[TEXT], right.values[TEXT])))
        when_said.append(when)
    if not z3.is_false(when := both(left.is_(BOOL), right.is_(BOOL))):
        one, other = (z3.If(side.values[BOOL], 1, 0) for side in (left, right))
        said.append(both(when, _ORDERS[sign](one, other)))
        when_said.append(when)
    return truth(either(said), either(when_said))


_ORDERS: Final[dict[str, Callable[[Any, Any], Formula]]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _in_order(sign: str, one: Formula, other: Formula) -> Formula:
    if sign[0] == ">":
        one, other = other, one
    return one < other if len(sign) == 1 else one <= other


# ------------------------------------------------------------------------------------- arithmetic


def calculated(sign: str, left: Value, right: Value) -> tuple[Value, list[Formula]]:
    """`left sign right` of whole numbers, decimals and texts, and what is so of it. Beyond 64 bits
    it is an error.
    """
    found, facts = Value(), []
    for kind, low, high in ((INT, LOWEST, HIGHEST), (UINT, 0, _HIGHEST_UNSIGNED)):
        when = both(left.is_(kind), right.is_(kind))
        if not z3.is_false(when):
            number, possible = _whole(sign, left.values[kind], right.values[kind])
            found.values[kind] = number
            found.kinds[kind] = both(when, possible, number >= low, number <= high)
    when = both(left.is_(DOUBLE), right.is_(DOUBLE))
    if not z3.is_false(when) and sign != "%":
        number, odd, said = _decimal(sign, left.values[DOUBLE], right.values[DOUBLE])
        found.kinds |= {DOUBLE: both(when, no(odd)), OTHER: both(when, odd)}
        found.values |= {DOUBLE: number, OTHER: z3.IntVal(0)}
        facts += said
    when = both(left.is_(TEXT), right.is_(TEXT))
    if not z3.is_false(when) and sign == "+":
        found.kinds[TEXT] = when
        found.values[TEXT] = z3.Concat(left.values[TEXT], right.values[TEXT])
    return found, facts


def _whole(sign: str, one: Formula, other: Formula) -> tuple[Formula, Formula]:
    """The number, and whether there is one. Division rounds towards zero."""
    match sign:
        case "+":
            return one + other, YES
        case "-":
            return one - other, YES
        case "*":
            return one * other, YES
    size, by = z3.If(one < 0, -one, one), z3.If(other < 0, -other, other)
    possible = z3.And(other != 0, z3.Not(z3.And(one == LOWEST, other == -1)))
    if sign == "/":
        ratio = size / by
        return z3.If((one < 0) == (other < 0), ratio, -ratio), possible
    rest = size % by
    return z3.If(one < 0, -rest, rest), possible


_FUNCTIONS: Final = {
    sign: (
        z3.Function(f"decimal {sign}", z3.RealSort(), z3.RealSort(), z3.RealSort()),
        z3.Function(f"decimal {sign} is odd", z3.RealSort(), z3.RealSort(), z3.BoolSort()),
    )
    for sign in "+-*/"
}


def _decimal(sign: str, one: Formula, other: Formula) -> tuple[Formula, Formula, list[Formula]]:
    """The result, whether it is out of range, and what is so of them: it is rounded, and the same
    each time.
    """
    function, odd = _FUNCTIONS[sign]
    number, is_odd = function(one, other), odd(one, other)
    exact = {"+": one + other, "-": one - other}.get(sign)
    if sign == "*" and (z3.is_rational_value(one) or z3.is_rational_value(other)):
        exact = one * other
    if sign == "/" and z3.is_rational_value(other) and other.as_fraction():
        exact = one / other
    if exact is None:
        return number, is_odd, []
    size = z3.If(exact < 0, -exact, exact)
    error = size * _numeral(_SHARE) + _numeral(_AMOUNT)
    near = z3.And(number >= exact - error, number <= exact + error)
    return number, is_odd, [z3.If(size < _numeral(LARGEST / 2), z3.And(near, z3.Not(is_odd)), True)]


# ------------------------------------------------------------------------------------- membership

_HAS: Final = {
    kind: z3.Function(f"has {kind}", z3.IntSort(), sort(), z3.BoolSort())
    for kind, sort in ((BOOL, z3.BoolSort), (TEXT, z3.StringSort), (LIST, z3.IntSort),
                       (TABLE, z3.IntSort), (NULL, z3.IntSort), (DOUBLE, z3.RealSort))
}  # fmt: skip


class ListQuestion(Struct, frozen=True):
    """Whether a list whose contents are not known has a value: a question to the solver."""

    of: Formula
    kind: str
    value: Formula
    #: When the value is of this kind.
    when: Formula
    said: Formula


def memberships(list_: Formula, one: Value) -> list[ListQuestion]:
    """What is asked of a list by `one in list`; equal numbers are one value."""
    found = []
    for kind, when in one.kinds.items():
        if kind == OTHER:
            continue
        value = one.values[kind]
        if kind in NUMBERS:
            value = as_decimal(kind, value, beyond=_counted)
        form = DOUBLE if kind in NUMBERS else kind
        value = z3.IntVal(0) if kind == NULL else value
        found.append(ListQuestion(list_, kind, value, when, _HAS[form](list_, value)))
    return found
