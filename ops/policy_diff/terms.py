"""The one call of which two policies may say different things, as formulas, and the conditions of
their rules about it.

Whatever is not written exactly (a regular expression, a function, a macro) is an unknown value that
is the same wherever the same text stands. Such a formula allows more than there is: what it rules
out is proved, and what it finds is only a candidate.
"""

from typing import Any, Final, NamedTuple

import z3
from msgspec import Struct

from ayes.ops.policy_diff import values as v
from ayes.ops.policy_diff.syntax import (
    Binary,
    Called,
    Choice,
    Constant,
    Items,
    Lookup,
    Part,
    Tree,
    Unary,
    Variable,
    tree_of,
)
from ayes.ops.policy_diff.values import Formula, Value

#: Texts of a call that a condition sees, beside its tool.
_TEXTS: Final = ("agent", "requester", "workspace", "thread")
_ANY_TEXT: Final = z3.Full(z3.ReSort(z3.StringSort()))
_ANY_CHARACTER: Final = z3.AllChar(z3.ReSort(z3.StringSort()))
#: What these functions give, whatever they are given; anything else is of any kind.
_RESULTS: Final = {
    "size": (v.INT,),
    "contains": (v.BOOL,),
    "startsWith": (v.BOOL,),
    "endsWith": (v.BOOL,),
    "matches": (v.BOOL,),
    "int": (v.INT,),
    "string": (v.TEXT,),
    "double": (v.DOUBLE, v.OTHER),
}

_LETTERS: Final = z3.Union(z3.Range("a", "z"), z3.Range("A", "Z"), z3.Range("0", "9"), z3.Re("-"))
#: As `ids.is_token`.
TOKEN: Final = z3.Concat(_LETTERS, z3.Loop(z3.Union(_LETTERS, z3.Re("_")), 0, 63))
#: As `tool_names.is_tool_name`.
TOOL: Final = z3.Loop(z3.Union(_LETTERS, z3.Re("_"), z3.Re("."), z3.Re("/")), 1, 128)
_ASCII: Final = z3.Star(z3.Range(chr(0), chr(127)))


class ArgumentPlace(Struct):
    """A place of the arguments or labels, and the places below it that conditions name."""

    name: str
    value: Value
    below: dict[str | int, "ArgumentPlace"] = {}

    @property
    def all(self) -> "list[ArgumentPlace]":
        """It and those below it."""
        return [self, *(one for each in self.below.values() for one in each.all)]


class Evaluated(NamedTuple):
    """The value of a part of a condition, and its place if it is one of the call's."""

    value: Value
    place: ArgumentPlace | None = None


class ConditionSays(NamedTuple):
    """When a condition is true, and when it cannot be evaluated."""

    true: Formula
    unsaid: Formula


class AnyCall:
    """A call of which only the tool may be known."""

    def __init__(self, tool: str | None) -> None:
        """Args:
        tool: None: any that `facts` say.
        """
        #: What is so of every call.
        self.facts: list[Formula] = []
        #: The texts of the call that the rules and conditions speak of.
        self.texts: dict[str, Formula] = {}
        self.tool = z3.String("tool") if tool is None else v.text(tool)
        self.tool_class = z3.Int("class")
        self.args = ArgumentPlace("args", v.of(v.TABLE, z3.Int("args as table")))
        self.labels = ArgumentPlace("labels", v.of(v.TABLE, z3.Int("labels as table")))
        #: Whether a whole number in it is beyond 64 bits: then no condition can be evaluated.
        self.is_beyond = z3.Bool("beyond 64 bits")
        self.memberships: list[v.ListQuestion] = []
        #: By the text of what is not written exactly, why.
        self.inexact: dict[str, str] = {}
        self._parts: dict[str, Value] = {}
        self._conditions: dict[str, ConditionSays] = {}
        self._inexact_of: dict[str, dict[str, str]] = {}

    def said(self, condition: str) -> ConditionSays:
        """What a condition says of the call."""
        if condition not in self._conditions:
            before, self.inexact = self.inexact, {}
            found = self._seen(tree_of(condition)).value
            self._inexact_of[condition] = self.inexact
            self.inexact = before | self.inexact
            can = v.no(self.is_beyond)
            true, false = v.both(can, found.is_true), v.both(can, found.is_false)
            self._conditions[condition] = ConditionSays(true, v.no(v.either((true, false))))
        return self._conditions[condition]

    def why_inexact(self, condition: str) -> list[str]:
        """Why a condition is not written exactly; empty if it is."""
        return list(dict.fromkeys(self._inexact_of.get(condition, {}).values()))

    # ------------------------------------------------------------------------------------ places

    def text(self, name: str) -> Formula:
        """A text of the call: its agent, requester, workspace or thread."""
        if name not in self.texts:
            self.texts[name] = z3.String(name)
            if name in {"workspace", "thread"}:
                self.facts.append(z3.InRe(self.texts[name], TOKEN))
        return self.texts[name]

    def below(self, place: ArgumentPlace, key: str | int) -> ArgumentPlace:
        """The place at a key; of a list, at an index."""
        if key in place.below:
            return place.below[key]
        follows = isinstance(key, int) and key > 0
        before = self.below(place, int(key) - 1).value.is_said if follows else v.YES
        name = f"{place.name}[{key!r}]"
        kinds = (v.TEXT,) if place is self.labels else v.JSON_KINDS
        value, facts = v.unknown(name, kinds)
        facts += v.of_json(value)
        kind = v.LIST if isinstance(key, int) else v.TABLE
        self.facts += [*facts, z3.Implies(value.is_said, v.both(place.value.is_(kind), before))]
        if isinstance(key, int) and v.LIST in place.value.values:
            for one in v.memberships(place.value.values[v.LIST], value):
                self.facts.append(z3.Implies(one.when, one.said))
        found = place.below[key] = ArgumentPlace(name, value)
        return found

    def label(self, name: str) -> Value:
        return self.below(self.labels, name).value

    # ------------------------------------------------------------------------------- expressions

    def _part(self, text: str, why: str, kinds: tuple[str, ...] = v.KINDS) -> Value:
        """What is not written exactly: the same value for the same text."""
        self.inexact[text] = why
        if text not in self._parts:
            self._parts[text], facts = v.unknown(f"part {text}", kinds)
            self.facts += facts
        return self._parts[text]

    def _value(self, tree: Tree) -> Value:
        return self._seen(tree).value

    def _seen(self, tree: Tree) -> Evaluated:
        try:
            return self._written(tree)
        except v.Unwritable as why:
            return Evaluated(self._part(repr(tree), str(why)))

    def _written(self, tree: Tree) -> Evaluated:
        match tree:
            case Constant(value, unsigned):
                return Evaluated(v.constant(value, unsigned=unsigned))
            case Variable(name):
                return self._named(name)
            case Lookup():
                return self._field(tree)
            case Choice(of, yes, otherwise):
                said = self._value(of)
                chosen = v.chosen(said.is_true, self._value(yes), self._value(otherwise))
                return Evaluated(v.chosen(v.either((said.is_true, said.is_false)), chosen, Value()))
            case Unary("!", of):
                return Evaluated(v.negation(self._value(of)))
            case Unary(_, of):
                return Evaluated(v.negative(self._value(of)))
            case Binary():
                return Evaluated(self._binary(tree))
            case Items(items, text):
                said = v.both(*(self._value(one).is_said for one in items))
                part = self._part(text, "it has a list as a value", (v.LIST,))
                return Evaluated(v.of(v.LIST, part.values[v.LIST], said))
            case Called():
                return Evaluated(self._called(tree))
            case Part(text, why):
                return Evaluated(self._part(text, why))

    def _named(self, name: str) -> Evaluated:
        match name:
            case "args":
                return Evaluated(self.args.value, self.args)
            case "labels":
                return Evaluated(self.labels.value, self.labels)
            case "tool":
                return Evaluated(v.of(v.TEXT, self.tool))
            case _ if name in _TEXTS:
                return Evaluated(v.of(v.TEXT, self.text(name)))
            case _:
                return Evaluated(self._part(name, "it names a type"))

    def _field(self, tree: Lookup) -> Evaluated:
        value, place = self._seen(tree.of)
        if place is None:
            may_have = (v.TABLE, v.LIST, v.OTHER)
            within = v.either(value.is_(kind) for kind in may_have)
            if z3.is_false(within):
                return Evaluated(Value())
            part = self._part(tree.text, "it looks into what it has calculated")
            return Evaluated(v.chosen(within, part, Value()))
        found = self.below(place, tree.key)
        if not tree.tests:
            return Evaluated(found.value, found)
        return Evaluated(v.truth(found.value.is_said, place.value.is_(v.TABLE)))

    def _binary(self, tree: Binary) -> Value:
        sign = tree.sign
        if sign == "in":
            return self._member(tree)
        left, right = self._value(tree.left), self._value(tree.right)
        match sign:
            case "&&":
                return v.conjunction(left, right)
            case "||":
                return v.disjunction(left, right)
            case "==":
                found = v.equal(left, right)
            case "!=":
                found = v.negation(v.equal(left, right))
            case "<" | ">" | "<=" | ">=":
                found = v.ordered(sign, left, right)
            case _:
                found, facts = v.calculated(sign, left, right)
                self.facts += facts
                if v.DOUBLE in found.kinds:
                    self.inexact[tree.text] = "it calculates with decimals"
        if sign == "+" and not z3.is_false(joins := _joins(left, right)):
            part = self._part(tree.text, "it joins lists", (v.LIST,))
            found.kinds[v.LIST], found.values[v.LIST] = joins, part.values[v.LIST]
        return self._or_part(v.either((left.is_(v.OTHER), right.is_(v.OTHER))), tree, found)

    def _or_part(self, when: Formula, tree: Binary, found: Value) -> Value:
        """The value, except when nothing is known of it."""
        if z3.is_false(when):
            return found
        why = "it calculates with what is neither a number nor a text"
        return v.chosen(when, self._part(f"of others: {tree.text}", why), found)

    def _member(self, tree: Binary) -> Value:
        left = self._value(tree.left)
        if isinstance(tree.right, Items):
            items = [self._value(one) for one in tree.right.items]
            said = v.both(left.is_said, *(one.is_said for one in items))
            found = v.truth(v.either(v.equal(left, one).is_true for one in items), said)
            odd = v.either(one.is_(v.OTHER) for one in (left, *items))
            return self._or_part(odd, tree, found)
        right, place = self._seen(tree.right)
        found = Value()
        if not z3.is_false(when := right.is_(v.LIST)):
            asked = v.memberships(right.values[v.LIST], left)
            self.memberships += asked
            yes = v.either(v.both(one.when, one.said) for one in asked)
            found = v.truth(yes, v.both(when, left.is_said))
        if not z3.is_false(when := right.is_(v.TABLE)):
            found = v.chosen(when, self._key(tree, left, place), found)
        return self._or_part(v.either((left.is_(v.OTHER), right.is_(v.OTHER))), tree, found)

    def _key(self, tree: Binary, left: Value, place: ArgumentPlace | None) -> Value:
        """Whether a table has a key. A key of JSON is a text; some kinds are none at all."""
        never = v.either(left.is_(kind) for kind in (v.INT, v.UINT, v.BOOL))
        said = v.truth(v.NO, never)
        if v.TEXT in left.kinds:
            key = tree.left.value if isinstance(tree.left, Constant) else None
            if isinstance(key, str) and place is not None:
                has = v.truth(self.below(place, key).value.is_said)
            else:
                has = self._part(tree.text, "it looks for a key that it has calculated", (v.BOOL,))
            said = v.chosen(left.is_(v.TEXT), has, said)
        return said

    def _called(self, tree: Called) -> Value:
        given = [self._value(one) for one in tree.given]
        match tree.function, given:
            case "startsWith" | "endsWith" | "contains", [one, other]:
                return self._searched(tree, one, other)
            case "size", [one]:
                return self._size(tree, one)
            case _:
                pass
        return v.chosen(v.both(*(one.is_said for one in given)), self._function(tree), Value())

    def _size(self, tree: Called, one: Value) -> Value:
        """Of a text, the number of its bytes."""
        number = self._function(tree)
        if v.TEXT in one.kinds:
            length, bytes_ = z3.Length(one.values[v.TEXT]), number.values[v.INT]
            is_ascii = z3.InRe(one.values[v.TEXT], _ASCII)
            sized = z3.And(
                bytes_ >= length, bytes_ <= 4 * length, z3.Implies(is_ascii, bytes_ == length)
            )
            self.facts.append(z3.Implies(one.is_(v.TEXT), z3.And(number.is_(v.INT), sized)))
        has_one = v.either(one.is_(kind) for kind in (v.TEXT, v.LIST, v.TABLE, v.OTHER))
        return v.chosen(has_one, number, Value())

    def _searched(self, tree: Called, one: Value, other: Value) -> Value:
        found, when = Value(), v.both(one.is_(v.TEXT), other.is_(v.TEXT))
        if not z3.is_false(when):
            texts = one.values[v.TEXT], other.values[v.TEXT]
            found = v.truth(_SEARCHES[tree.function](*texts), when)
        kinds = (v.OTHER, v.LIST, v.TABLE) if tree.function == "contains" else (v.OTHER,)
        odd = v.either((other.is_(v.OTHER), *(one.is_(kind) for kind in kinds)))
        if z3.is_false(odd):
            return found
        odd = v.both(odd, one.is_said, other.is_said)
        return v.chosen(odd, self._function(tree), found)

    def _function(self, tree: Called) -> Value:
        named = f"{tree.function}()" if tree.function != "[]" else "a key that it has calculated"
        return self._part(tree.text, f"it has {named}", _RESULTS.get(tree.function, v.KINDS))


_SEARCHES: Final[dict[str, Any]] = {
    "startsWith": lambda one, other: z3.PrefixOf(other, one),
    "endsWith": lambda one, other: z3.SuffixOf(other, one),
    "contains": z3.Contains,
}


def _joins(left: Value, right: Value) -> Formula:
    """When the library joins two into a list."""
    return v.both(left.is_(v.LIST), v.either((right.is_(v.LIST), right.is_(v.TABLE))))


def like(text: Formula, pattern: str) -> Formula:
    """Whether a text matches a pattern with `*` and `?`."""
    if pattern == "*":
        return v.YES
    if "*" not in pattern and "?" not in pattern:
        return text == v.text(pattern)
    parts = [
        _ANY_TEXT if one == "*" else _ANY_CHARACTER if one == "?" else z3.Re(v.text(one))
        for one in pattern
    ]
    return z3.InRe(text, z3.Concat(*parts) if len(parts) > 1 else parts[0])
