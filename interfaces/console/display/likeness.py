"""The calls that are like one: each argument the same, at most the same, or any."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple

from ayes.schemas import strict_json
from ayes.schemas.conditions import literal

type Like = Literal["exactly", "at most", "any"]

#: What cannot be mistaken for a value or a choice.
_WORD: Final = re.compile(r"(?!(?:any|at|true|false|null)$)[A-Za-z][\w-]*", re.ASCII)


class Argument(NamedTuple):
    """An argument of the call, and how another call may differ in it."""

    name: str
    value: Any
    #: The first is proposed.
    choices: tuple[Like, ...]

    @property
    def text(self) -> str:
        return _said(self.value)

    def words(self, like: Like) -> str:
        """The condition, for a reader; a text that is more than a word stands in quotes."""
        match like:
            case "any":
                said = "any" if len(self.choices) > 1 else "any, since it is secret"
            case "at most":
                said = f"{'0 to' if self.value >= 0 else 'at most'} {self.text}"
            case _:
                said = self.text
        return f"{_said(self.name)} {said}"

    def condition(self, like: Like) -> str:
        """The condition in CEL; empty: none."""
        place, value = f"args[{literal(self.name)}]", literal(self.value)
        match like:
            case "any":
                return ""
            case "at most":
                # Nobody means a negative amount by a small one.
                return f"{'0 <= ' + place + ' && ' if self.value >= 0 else ''}{place} <= {value}"
            case _:
                return f"{place} == {value}"


def arguments_of(text: str, secret: Collection[str]) -> tuple[Argument, ...] | None:
    """The arguments of a call; None: they are not a JSON object.

    Args:
        secret: the places (JSON pointers) with which no condition may be made.
    """
    try:
        members = strict_json.read(text)
    except strict_json.BadJson:
        return None
    if not isinstance(members, dict):
        return None
    hidden = {one.split("/")[1] if one else "*" for one in secret}
    return tuple(
        Argument(name, value, _choices(value, secret=not hidden.isdisjoint({"*", _key(name)})))
        for name, value in members.items()
    )


def _key(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _choices(value: object, *, secret: bool) -> tuple[Like, ...]:
    if secret:
        return ("any",)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("at most", "exactly", "any") if is_number else ("exactly", "any")


def condition(arguments: Sequence[Argument], likes: Sequence[Like], *, others: bool) -> str:
    """The condition that holds for calls that are like this.

    Args:
        others: whether they may have arguments that this call has not.
    """
    parts = [one.condition(like) for one, like in zip(arguments, likes, strict=True)]
    if not others:
        parts.append(f"args.all(name, name in {literal([one.name for one in arguments])})")
    return " && ".join(filter(None, parts))


def _said(value: object) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
