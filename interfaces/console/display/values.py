"""Arguments as a page shows them: a tree of the values as they were written, in their order."""

from decimal import Decimal
from typing import Final, NamedTuple

from ayes.interfaces.console.display import raw_json
from ayes.interfaces.console.display.texts import HEAD_LINES, ShownText, plain, text_of
from ayes.schemas.visible import visible

#: The longest value of an earlier call that stands beside the value now.
_SHORT: Final = 60
#: A change of more than so many percent is not a useful number.
_MAX_PERCENT: Final = 100_000


class Leaf(NamedTuple):
    """A string, number, boolean or null."""

    kind: raw_json.Kind
    text: ShownText


class Member(NamedTuple):
    name: ShownText
    value: "Leaf | Group"
    #: How it differs from the earlier call, such as `last time: 120 (+300 %)`; made visible.
    last_time: str


class Group(NamedTuple):
    """An object or an array; beyond 40 members the rest is folded."""

    kind: raw_json.Kind
    head: tuple[Member, ...]
    rest: tuple[Member, ...]


def value_of(raw: str, *, earlier: str = "") -> Leaf | Group | None:
    """The value of a raw JSON text, to compare with an earlier one.

    None if the text cannot be read, or if two readers could read it differently: then only the text
    itself can be shown.
    """
    if not raw_json.is_readable(raw):
        return None
    return _value(raw.strip(), "", earlier if earlier and raw_json.is_readable(earlier) else None)


def _value(raw: str, name: str, earlier: str | None) -> Leaf | Group:
    kind = raw_json.kind_of(raw)
    if kind == "string":
        return Leaf(kind, text_of(raw_json.string(raw), name))
    if kind not in ("object", "array"):
        return Leaf(kind, plain(raw))
    known = raw_json.children(earlier.strip()) if earlier else {}
    members = tuple(
        Member(
            plain(inner) if kind == "array" else text_of(inner),
            _value(value, inner, known.get(inner)),
            last_time(value, known, inner),
        )
        for inner, value in raw_json.children(raw).items()
    )
    return Group(kind, members[:HEAD_LINES], members[HEAD_LINES:])


def last_time(raw: str, earlier: dict[str, str], name: str) -> str:
    """How a short value differs from that of an earlier call; empty if it does not."""
    before = earlier.get(name)
    if before is None or before == raw or len(before) > _SHORT:
        return ""
    kinds = {raw_json.kind_of(raw), raw_json.kind_of(before)}
    if kinds & {"object", "array"}:
        return ""
    shown = raw_json.string(before) if raw_json.kind_of(before) == "string" else before
    return f"last time: {visible(shown)}{_percent(before, raw) if kinds == {'number'} else ''}"


def _percent(before: str, after: str) -> str:
    try:
        was, now = Decimal(before), Decimal(after)
        change = (now - was) / abs(was) * 100
    except ArithmeticError:
        return ""
    if abs(change) > _MAX_PERCENT or not change:
        return ""
    return f" ({change:+,.0f} %)" if abs(change) >= 1 else f" ({change:+.2f} %)"
