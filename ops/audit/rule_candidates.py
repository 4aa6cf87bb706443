"""Rules that could have made the decisions that people made: small ones, that a person can read.

A candidate is about one tool. It has at most one bound of a number, and at most two properties with
one or several values: arguments, labels of the call, or its agent. Never who asked, nor who voted.

`call_properties.py` finds what calls have, `candidate_search.py` the candidate that fits best.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ayes.schemas.conditions import literal
from ayes.schemas.events import ToolClass

type Value = str | bool
type Number = int | float

#: The identifiers of CEL that are not reserved words.
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RESERVED: Final = frozenset({
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in",
    "let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while",
})  # fmt: skip
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Property(NamedTuple):
    """Where a value is: in the arguments, the labels, or it is the agent."""

    source: Literal["args", "labels", "agent"]
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a condition reads it."""
        return access(self.source, self.path)


class OneOf(NamedTuple):
    """A property that has one of these values."""

    where: Property
    values: tuple[Value, ...]


class NumberBound(NamedTuple):
    """A number that is not beyond this one."""

    where: Property
    is_most: bool
    value: Number


class RuleCandidate(NamedTuple):
    """What a rule asks of a call of one tool."""

    tool: str
    parts: tuple[OneOf, ...] = ()
    bound: NumberBound | None = None

    def __str__(self) -> str:
        """In short, as the name of a rule."""
        parts = [
            f"{_short(one.where)} {' or '.join(map(_plain, one.values))}" for one in self.parts
        ]
        if (bound := self.bound) is not None:
            side = "up to" if bound.is_most else "from"
            parts.append(f"{_short(bound.where)} {side} {bound.value}")
        return f"{self.tool}: {', '.join(parts) or 'any'}"


class RuleText(NamedTuple):
    """What the rule of a candidate has beside it."""

    name: str
    classes: tuple[ToolClass, ...]
    priority: int = 0
    reason: str = ""
    shadow: bool = True


def rule_toml(candidate: RuleCandidate, condition: str, text: RuleText) -> str:
    """A candidate as a rule of a policy file."""
    lines = [
        "[[rule]]",
        f"name = {literal(text.name)}",
        f"tools = [{literal(candidate.tool)}]",
        'then = "allow"',
    ]
    for key, one in ((key_of(one), one) for one in candidate.parts):
        if key == "agents":
            lines.append(f"agents = [{', '.join(map(literal, one.values))}]")
    labels = [one for one in candidate.parts if key_of(one) == "labels"]
    if labels:
        pairs = (f"{_toml_key(one.where.path[0])} = {literal(one.values[0])}" for one in labels)
        lines.append(f"labels = {{{', '.join(pairs)}}}")
    if condition:
        lines.append(f"when = {_quoted(condition)}")
    lines.append(f"class = [{', '.join(map(literal, text.classes))}]")
    if text.priority:
        lines.append(f"priority = {text.priority}")
    if text.shadow:
        lines.append("shadow = true")
    if text.reason:
        lines.append(f"reason = {literal(text.reason)}")
    return "".join(f"{line}\n" for line in lines)


def key_of(one: OneOf) -> Literal["agents", "labels", ""]:
    """The key that a rule has for a property; empty: it is part of the condition."""
    if one.where.source == "agent":
        return "agents"
    value = one.values[0]
    if one.where.source == "labels" and len(one.values) == 1 and isinstance(value, str):
        return "" if "*" in value or "?" in value else "labels"
    return ""


def _quoted(condition: str) -> str:
    """A text of TOML, without escapes where that is possible."""
    if condition.isascii() and condition.isprintable() and "'" not in condition:
        quote = "'" if '"' in condition or "\\" in condition else '"'
        return f"{quote}{condition}{quote}"
    return literal(condition)


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else literal(name)


def access(source: str, path: Sequence[str]) -> str:
    """How a condition reads what is there."""
    return source + "".join(f".{name}" if _is_word(name) else f"[{literal(name)}]" for name in path)


def has(source: str, path: Sequence[str]) -> str:
    """How a condition asks whether there is anything."""
    *around, name = path
    if _is_word(name):
        return f"has({access(source, path)})"
    return f"{literal(name)} in {access(source, around)}"


def _is_word(name: str) -> bool:
    return _WORD.fullmatch(name) is not None and name not in _RESERVED


def _short(where: Property) -> str:
    return "agent" if where.source == "agent" else ".".join(where.path)


def _plain(value: Value) -> str:
    return value if isinstance(value, str) else literal(value)
