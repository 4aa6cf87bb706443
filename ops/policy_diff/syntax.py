"""Conditions as trees, by CEL's grammar, since the library that evaluates them exposes none.

What the tree does not spell out (macros, functions) is a `Part`: its text, and nothing more.
"""

from functools import lru_cache
from typing import Any, Final

from cel import cel
from msgspec import Struct

from ayes.schemas.condition_cost import Unreadable, tokens

_MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})
_COMPARISONS: Final = ("<", ">", "<=", ">=", "==", "!=", "in")


class Constant(Struct, frozen=True):
    """A literal; of a whole number with `u`, `unsigned`."""

    value: Any
    unsigned: bool = False


class Variable(Struct, frozen=True):
    """One of the names that a condition can use."""

    name: str


class Lookup(Struct, frozen=True):
    """`of.key`, `of["key"]` or `of[0]`; with `tests`, the `has(of.key)`."""

    of: "Tree"
    key: str | int
    text: str
    tests: bool = False


class Unary(Struct, frozen=True):
    """`!of` or `-of`."""

    sign: str
    of: "Tree"
    text: str


class Binary(Struct, frozen=True):
    """An operator between two."""

    sign: str
    left: "Tree"
    right: "Tree"
    text: str


class Choice(Struct, frozen=True):
    """`of ? yes : no`."""

    of: "Tree"
    yes: "Tree"
    no: "Tree"


class Items(Struct, frozen=True):
    """A list that is written out."""

    items: "tuple[Tree, ...]"
    text: str


class Called(Struct, frozen=True):
    """A function of these values, the one that it is a method of first."""

    function: str
    given: "tuple[Tree, ...]"
    text: str


class Part(Struct, frozen=True):
    """What is not taken apart."""

    text: str
    why: str


type Tree = Constant | Variable | Lookup | Unary | Binary | Choice | Items | Called | Part


@lru_cache(maxsize=4096)
def tree_of(condition: str) -> Tree:
    """The tree of a condition; a `Part` if it cannot be read."""
    try:
        return _TreeParser(condition).whole()
    except (Unreadable, RecursionError):
        return Part(condition, "its text cannot be taken apart")


class _TreeParser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0

    def whole(self) -> Tree:
        """The tree of all that was given."""
        found = self.expression()
        if self._sign():
            raise Unreadable(f"{self._sign()!r} is not expected there")
        return found

    def _sign(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def _kind(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _take(self, *signs: str) -> str:
        sign = self._sign()
        if not sign or sign not in signs or self._kind() not in {"sign", "name"}:
            return ""
        self._at += 1
        return sign

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise Unreadable(f"{sign!r} is missing")

    def _text(self, start: int) -> str:
        """What was read since, in one spelling."""
        return " ".join(text for _, text in self._tokens[start : self._at])

    def expression(self) -> Tree:
        first = self._either()
        if not self._take("?"):
            return first
        yes = self._either()
        self._need(":")
        return Choice(first, yes, self.expression())

    def _either(self) -> Tree:
        return self._joined(("||",), self._both)

    def _both(self) -> Tree:
        return self._joined(("&&",), self._compared)

    def _compared(self) -> Tree:
        return self._joined(_COMPARISONS, self._sum)

    def _sum(self) -> Tree:
        return self._joined(("+", "-"), self._product)

    def _product(self) -> Tree:
        return self._joined(("*", "/", "%"), self._signed)

    def _joined(self, signs: tuple[str, ...], part: Any) -> Tree:
        start = self._at
        found: Tree = part()
        while sign := self._take(*signs):
            right = part()
            found = Binary(sign, found, right, self._text(start))
        return found

    def _signed(self) -> Tree:
        start = self._at
        sign = self._take("!", "-")
        if not sign:
            return self._member()
        if sign == "-" and self._kind() == "number" and self._sign(1) not in (".", "["):
            return self._number(self._next()[1], minus=True)
        times = 1
        while self._take(sign):
            times += 1
        # Even, they say nothing at all, also of what they could not be applied to.
        of = self._member()
        return Unary(sign, of, self._text(start)) if times % 2 else of

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise Unreadable("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _member(self) -> Tree:
        start = self._at
        found = self._primary()
        while sign := self._take(".", "["):
            if self._sign() == "?":
                raise Unreadable("an optional place")
            if sign == "[":
                key = self.expression()
                self._need("]")
                found = _looked_up(found, key, self._text(start))
                continue
            kind, name = self._next()
            if kind != "name":
                raise Unreadable("a name is missing")
            if self._take("("):
                found = self._method(found, name, start)
            else:
                found = Lookup(found, name.strip("`"), self._text(start))
        return found

    def _method(self, on: Tree, name: str, start: int) -> Tree:
        if name not in _MACROS:
            given = self._list(")")
            return Called(name, (on, *given), self._text(start))
        self._skip()
        return Part(self._text(start), f"it has {name}()")

    def _skip(self) -> None:
        """Go on behind the bracket that is open."""
        depth = 1
        while depth:
            _, text = self._next()
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))

    def _primary(self) -> Tree:
        start = self._at
        kind, word = self._next()
        match kind, word:
            case "sign", "(":
                found = self.expression()
                self._need(")")
                return found
            case "sign", "[":
                items = self._list("]")
                return Items(tuple(items), self._text(start))
            case "sign", "{":
                self._skip()
                return Part(self._text(start), "it has a table as a value")
            case "text" | "raw" | "short", _:
                return _literal(word)
            case "number", _:
                return self._number(word)
            case "name", "true" | "false" | "null":
                return Constant({"true": True, "false": False, "null": None}[word])
            case "name", "has" if self._take("("):
                place = self.expression()
                self._need(")")
                if not isinstance(place, Lookup) or place.tests:
                    raise Unreadable("has() is about a place")
                return Lookup(place.of, place.key, self._text(start), tests=True)
            case "name", _ if self._take("("):
                given = self._list(")")
                return Called(word, tuple(given), self._text(start))
            case "name", _:
                return Variable(word)
            case _:
                raise Unreadable(f"{word!r} is not expected there")

    def _number(self, word: str, *, minus: bool = False) -> Tree:
        return _literal(f"-{word}" if minus else word, unsigned=word[-1] in "uU")

    def _list(self, end: str) -> list[Tree]:
        found: list[Tree] = []
        while not self._take(end):
            found.append(self.expression())
            if not self._take(",") and self._sign() != end:
                raise Unreadable(f"{end!r} is missing")
        return found


def _looked_up(of: Tree, key: Tree, text: str) -> Tree:
    match key:
        case Constant(str() as name):
            return Lookup(of, name, text)
        case Constant(bool()):
            pass
        case Constant(int() as index, unsigned=False) if 0 <= index <= 20:
            return Lookup(of, index, text)
        case _:
            pass
    return Called("[]", (of, key), text)


def _literal(text: str, *, unsigned: bool = False) -> Tree:
    """A literal as the library reads it."""
    try:
        value = cel.compile(text).execute({})
    except (ValueError, RuntimeError, TypeError, OverflowError) as problem:
        raise Unreadable(str(problem)) from None
    if not isinstance(value, str | int | float):
        return Part(text, "it has bytes")
    return Constant(value, unsigned)
