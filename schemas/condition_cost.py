"""The cost of a condition in steps, estimated from its text before it is evaluated.

The library that evaluates conditions exposes no syntax tree and cannot be interrupted. So this
module parses the text by CEL's grammar, and follows the sizes of values through it: of the lists it
iterates over (`all`, `map`), and of values that it joins (`+`), compares and searches. The estimate
is an upper bound.

A step takes the library 55 ns or less (docs/decisions/0018).
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from ayes.schemas import regex_cost

#: The depth of macros in macros.
MAX_NESTED: Final = 5
_MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})
#: The engine refuses heavier patterns.
_HEAVIEST_PATTERN: Final = 50_000

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>\s+|//[^\n]*)
    |(?P<text>[rRbB]{0,2}(?:\"{3}.*?\"{3}|'{3}.*?'{3}))
    |(?P<raw>(?:[rR][bB]?|[bB][rR])(?:"[^"\n]*"|'[^'\n]*'))
    |(?P<short>[bB]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?[uU]?)
    |(?P<name>\w+|`[^`]*`)
    |(?P<sign>&&|\|\||[<>=!]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Size(NamedTuple):
    """The size of a value: the number of values in it, itself included, and of characters."""

    values: float = 1
    text: float = 0

    @property
    def steps(self) -> float:
        """The cost of one pass over the value."""
        return self.values + self.text / 100

    def with_(self, other: "Size") -> "Size":
        return Size(self.values + other.values, self.text + other.text)


class ConditionCost(NamedTuple):
    steps: float
    size: Size


type _Scope = dict[str, Size]
#: The cost of an expression, given the sizes of the values that names refer to.
type Counted = Callable[[_Scope], ConditionCost]


class Unreadable(ValueError):
    """The text is not CEL that is understood here; the message is part of a sentence."""


def tokens(text: str) -> list[tuple[str, str]]:
    """The tokens of a condition without blanks and comments, each with its kind: `text`, `raw` and
    `short` are texts.
    """
    return [
        (str(one.lastgroup), one.group())
        for one in _TOKEN.finditer(text)
        if one.lastgroup != "blank"
    ]


def read(text: str) -> Counted:
    """The cost of a condition as a function of the sizes of its names. An unknown name is data.

    Raises:
        Unreadable: with the problem.
    """
    try:
        parser = _Parser(text)
        found = parser.expression()
    except RecursionError:
        raise Unreadable("its brackets are nested too deep") from None
    if parser.sign():
        raise Unreadable(f"{parser.sign()!r} is not expected there")
    return found


def places_read(text: str) -> set[tuple[str, ...]]:
    """The places of the arguments that a condition may read, as the keys that lead there. Of what
    it reaches in another way than by names, the place around it; so it reads nothing else.
    """
    found = tokens(text)
    return {
        _path(found, at + 1)
        for at, (kind, word) in enumerate(found)
        if kind == "name" and word.strip("`") == "args"
    }


def _path(tokens: list[tuple[str, str]], at: int) -> tuple[str, ...]:
    path = []
    while True:
        match [word for _, word in tokens[at : at + 4]]:
            case [".", "?", name, *rest] if tokens[at + 2][0] == "name" and rest[:1] != ["("]:
                path.append(name.strip("`"))
                at += 3
            case [".", name, *rest] if tokens[at + 1][0] == "name" and rest[:1] != ["("]:
                path.append(name.strip("`"))
                at += 2
            case ["[", text, "]", *_] if tokens[at + 1][0] == "short" and "\\" not in text:
                path.append(text[1:-1])
                at += 3
            case _:
                return tuple(path)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._nested = 0

    def sign(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *signs: str) -> str:
        """The next token, if it is one of these."""
        sign = self.sign()
        if not sign or sign not in signs:
            return ""
        self._at += 1
        return sign

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise Unreadable(f"{sign!r} is missing")

    def expression(self) -> Counted:
        first = self._compared()
        while self._take("&&", "||"):
            first = _both(first, self._compared())
        if not self._take("?"):
            return first
        one = self.expression()
        self._need(":")
        return _joined([first, one, self.expression()], copies=False)

    def _compared(self) -> Counted:
        first = self._calculated()
        while self._take("<", ">", "<=", ">=", "==", "!=", "in"):
            first = _both(first, self._calculated())
        return first

    def _calculated(self) -> Counted:
        parts = [self._signed()]
        while self._take("+", "-", "*", "/", "%"):
            parts.append(self._signed())
        return parts[0] if len(parts) == 1 else _joined(parts, copies=True)

    def _signed(self) -> Counted:
        while self._take("!", "-"):
            pass
        found = self._primary()
        while sign := self._take(".", "[", "{"):
            if sign == ".":
                self._take("?")
                _, name = self._next()
                found = self._method(found, name) if self._take("(") else found
            elif sign == "[":
                self._take("?")
                found = _looked_up(found, self.expression())
                self._need("]")
            else:
                found = _joined([found, *self._list("}")], copies=False)
        return found

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise Unreadable("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _primary(self) -> Counted:
        kind, token = self._next()
        match kind, token:
            case "sign", "(":
                found = self.expression()
                self._need(")")
                return found
            case "sign", "[":
                return _joined([_literal(0), *self._list("]")], copies=False)
            case "sign", "{":
                return _joined([_literal(0), *self._list("}")], copies=False)
            case "sign", ".":
                return self._primary()
            case "text" | "raw" | "short", _:
                return _TextLiteral(token)
            case "number", _:
                return _literal(0)
            case "name", _:
                if self._take("("):
                    return _called(self._list(")"))
                return _named(token)
            case _:
                raise Unreadable(f"{token!r} is not expected there")

    def _list(self, end: str) -> list[Counted]:
        found = []
        while not self._take(end):
            self._take("?")
            found.append(self.expression())
            if not self._take(",", ":") and self.sign() != end:
                raise Unreadable(f"{end!r} is missing")
        return found

    def _method(self, on: Counted, name: str) -> Counted:
        after = self._tokens[self._at : self._at + 2]
        if name in _MACROS and len(after) == 2 and after[0][0] == "name" and after[1][1] == ",":
            self._at += 2
            self._nested += 1
            if self._nested > MAX_NESTED:
                raise Unreadable(f"it iterates over lists in more than {MAX_NESTED} levels")
            bodies = self._list(")")
            self._nested -= 1
            return _gone_through(on, name, after[0][1], _joined(bodies, copies=False))
        given = self._list(")")
        if name == "matches" and len(given) == 1:
            return _matched(on, given[0])
        return _called([on, *given])


class _TextLiteral:
    """A text in the condition."""

    def __init__(self, token: str) -> None:
        self.text = _unescaped(token)
        self._effort = ConditionCost(1, Size(1, len(token)))

    def __call__(self, scope: _Scope) -> ConditionCost:
        return self._effort


def _unescaped(token: str) -> str:
    marks, text = re.split(r"(?=[\"'])", token, maxsplit=1)
    ends = 3 if text[:3] in ('"""', "'''") else 1
    text = text[ends:-ends]
    if "r" in marks.lower():
        return text
    try:
        return text.encode("ascii", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        raise Unreadable(f"{token[:60]} has a wrong escape") from None


def _literal(text: int) -> Counted:
    effort = ConditionCost(1, Size(1, text))
    return lambda _: effort


def _named(name: str) -> Counted:
    return lambda scope: ConditionCost(1, scope.get(name, Size()))


def _both(one: Counted, other: Counted) -> Counted:
    """The cost of a comparison or a logical operator, whose value is a boolean."""

    def count(scope: _Scope) -> ConditionCost:
        first, second = one(scope), other(scope)
        looked = first.size.with_(second.size).steps
        return ConditionCost(first.steps + second.steps + looked, Size())

    return count


def _joined(parts: list[Counted], *, copies: bool) -> Counted:
    """The cost of one value made of the parts. With `copies`, each part copies those before it."""

    def count(scope: _Scope) -> ConditionCost:
        steps, size = 0.0, Size(0, 0)
        for part in parts:
            effort = part(scope)
            size = size.with_(effort.size)
            steps += effort.steps + (size.steps if copies else 0)
        return ConditionCost(steps + 1, size)

    return count


def _called(given: list[Counted]) -> Counted:
    def count(scope: _Scope) -> ConditionCost:
        efforts = [one(scope) for one in given]
        steps = sum(effort.steps + effort.size.steps for effort in efforts)
        text = sum(effort.size.text for effort in efforts)
        return ConditionCost(
            steps + 1, Size(1 + sum(one.size.values for one in efforts), text + 30)
        )

    return count


def _looked_up(on: Counted, key: Counted) -> Counted:
    def count(scope: _Scope) -> ConditionCost:
        table, found = on(scope), key(scope)
        return ConditionCost(table.steps + found.steps + 1, table.size)

    return count


def _matched(on: Counted, pattern: Counted) -> Counted:
    """The cost of a match: the pattern is compiled each time, and each part of it searches."""
    known = isinstance(pattern, _TextLiteral)
    weight = (
        regex_cost.weight(pattern.text) if isinstance(pattern, _TextLiteral) else _HEAVIEST_PATTERN
    )
    weight = min(weight, _HEAVIEST_PATTERN)

    def count(scope: _Scope) -> ConditionCost:
        text, given = on(scope), pattern(scope)
        compiled = weight * 6
        searched = text.size.text * (weight + (0 if known else given.size.text)) / 30
        return ConditionCost(text.steps + given.steps + compiled + searched, Size())

    return count


def _gone_through(on: Counted, macro: str, name: str, body: Counted) -> Counted:
    """The cost of a macro.

    The body's cost grows at least linearly with its value. So all elements together cost at most as
    much as one element of the list's size, plus the fixed part of the body for each element.
    """

    def count(scope: _Scope) -> ConditionCost:
        through = on(scope)
        times = through.size.values
        least, most = body(scope | {name: Size(0, 0)}), body(scope | {name: through.size})
        steps = through.steps + times * (least.steps + 1) + (most.steps - least.steps)
        if macro == "filter":
            return ConditionCost(steps, through.size)
        if macro != "map":
            return ConditionCost(steps, Size())
        # The library adds each element to a copy of the list so far.
        small, large = least.size, most.size
        made = Size(
            1 + times * small.values + large.values - small.values,
            times * small.text + large.text - small.text,
        )
        return ConditionCost(steps + made.steps, made)

    return count
