"""Arguments as a page shows them: a tree of the values as they were written, in their order."""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from ayes.projections.display import raw_json
from ayes.projections.display.texts import HEAD_LINES, ShownText, plain, text_of
from ayes.schemas.sealed import SEALED, is_token, shown
from ayes.schemas.visible import visible

if TYPE_CHECKING:
    from ayes.projections.display.markdown import Block

#: Rows of a table before the rest is folded, and the most columns.
_HEAD_ROWS: Final = 20
_MAX_COLUMNS: Final = 8
#: Characters of arguments, besides pictures, whose code is coloured and whose Markdown is read.
_MAX_DRESSED: Final = 50_000
#: Bytes of a picture that is shown.
MAX_PICTURE: Final = 2 << 20
#: What a browser shows and cannot run: not SVG, which may hold scripts and links.
_PICTURE: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")
#: A date with its time and offset (RFC 3339, section 5.6).
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
#: Arguments in a line of a list, and characters of a text that is no JSON.
_SAID: Final = 6
_BRIEF: Final = 120
#: The longest value of an earlier call that stands beside the value now.
_SHORT: Final = 60
#: A change of more than so many percent is not a useful number.
_MAX_PERCENT: Final = 100_000


class Picture(NamedTuple):
    """A picture that is written as a `data:` link."""

    media_type: str
    size: int
    #: The SHA-256 of its bytes; empty: it is too large to be shown.
    digest: str


class Leaf(NamedTuple):
    """A string, number, boolean or null."""

    kind: raw_json.Kind
    text: ShownText
    #: The time that the string is.
    at: datetime | None = None
    picture: Picture | None = None
    #: Of Markdown, as it reads.
    blocks: tuple["Block", ...] = ()


class Member(NamedTuple):
    name: ShownText
    value: "Leaf | Group | Table"
    #: How it differs from the earlier call, such as `last time: 120 (+300 %)`; made visible.
    last_time: str
    #: What the schema says of it; None: nothing.
    note: ShownText | None = None


class Group(NamedTuple):
    """An object or an array; beyond 40 members the rest is folded."""

    kind: raw_json.Kind
    head: tuple[Member, ...]
    rest: tuple[Member, ...]

    @property
    def is_list(self) -> bool:
        """Whether it is an array of short values, which need no numbers."""
        members = (*self.head, *self.rest)
        return self.kind == "array" and all(
            isinstance(one.value, Leaf) and not one.value.text.is_block for one in members
        )


class Table(NamedTuple):
    """An array of objects that are alike: a column for each of their names."""

    columns: tuple[ShownText, ...]
    #: None: the object does not have it.
    head: tuple[tuple[Leaf | None, ...], ...]
    rest: tuple[tuple[Leaf | None, ...], ...]


def value_of(
    raw: str,
    *,
    earlier: str = "",
    was: str = "last time",
    notes: Mapping[str, str] = {},
    dressed: bool = False,
) -> Leaf | Group | Table | None:
    """The value of a raw JSON text, to compare with an earlier one.

    None if the text cannot be read, or if two readers could read it differently: then only the text
    itself can be shown.

    Args:
        was: what the earlier value is called.
        notes: what is said of a value, by its JSON pointer.
        dressed: whether code is coloured, and Markdown as it reads, unless there is very much text:
            of a hostile one that takes seconds.
    """
    if not raw_json.is_readable(raw):
        return None
    before = earlier if earlier and raw_json.is_readable(earlier) else None
    length = len(_PICTURE.sub("", raw.replace(r"\/", "/")))
    return _Tree(was, notes, dressed and length <= _MAX_DRESSED).value(raw.strip(), (), before)


def in_brief(raw: str) -> str:
    """The arguments in a line: their values by name, of a structure its size, and each text cut."""
    if not raw_json.is_readable(raw) or raw_json.kind_of(raw.strip()) != "object":
        return raw[:_BRIEF]
    said = [f"{name}: {_brief(value)}" for name, value in raw_json.members(raw.strip()).items()]
    more = f" · {len(said) - _SAID} more" if len(said) > _SAID else ""
    return " · ".join(said[:_SAID]) + more


def _brief(raw: str) -> str:
    kind = raw_json.kind_of(raw)
    if kind in ("object", "array"):
        count = len(raw_json.children(raw))
        return f"{count} {'field' if kind == 'object' else 'item'}{'' if count == 1 else 's'}"
    text = shown(raw_json.string(raw)).replace("\n", " ") if kind == "string" else raw
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}… ({len(text):,} characters)"


def picture_in(raw: str, digest: str) -> tuple[str, bytes] | None:
    """The type and the bytes of the picture with this digest in a raw JSON text."""
    for found in _PICTURE.finditer(raw.replace(r"\/", "/")):
        picture = _picture(found[0])
        if picture and picture[0].digest == digest:
            return picture[0].media_type, picture[1]
    return None


def _picture(text: str) -> tuple[Picture, bytes] | None:
    found = _PICTURE.fullmatch(text)
    if not found or len(found[2]) % 4:
        return None
    size = len(found[2]) * 3 // 4 - found[2].count("=")
    if size > MAX_PICTURE:
        return Picture(found[1], size, ""), b""
    data = base64.b64decode(found[2])
    return Picture(found[1], size, sha256(data).hexdigest()), data


def _time(text: str) -> datetime | None:
    try:
        return (
            datetime.fromisoformat(text.upper()).astimezone(UTC) if _DATE.fullmatch(text) else None
        )
    except (ValueError, OverflowError):
        return None


class _Tree(NamedTuple):
    """The making of a tree."""

    was: str
    notes: Mapping[str, str]
    dressed: bool

    def value(self, raw: str, path: tuple[str, ...], earlier: str | None) -> Leaf | Group | Table:
        kind = raw_json.kind_of(raw)
        if kind not in ("object", "array"):
            return _leaf(raw, path[-1] if path else "", dressed=self.dressed)
        known = raw_json.children(earlier.strip()) if earlier else {}
        inner = raw_json.children(raw)
        if kind == "array" and (table := _table([*inner.values()])) is not None:
            return table
        members = tuple(
            Member(
                plain(name) if kind == "array" else text_of(name),
                self.value(value, (*path, name), known.get(name)),
                last_time(value, known, name, self.was),
                text_of(note)
                if (note := self.notes.get(raw_json.pointer((*path, name))))
                else None,
            )
            for name, value in inner.items()
        )
        return Group(kind, members[:HEAD_LINES], members[HEAD_LINES:])


def _leaf(raw: str, name: str, *, dressed: bool = False) -> Leaf:
    kind = raw_json.kind_of(raw)
    if kind != "string":
        return Leaf(kind, plain(raw))
    text = raw_json.string(raw)
    if is_token(text):
        return Leaf("null", plain(SEALED))  # no text, so it stands in no quotes
    picture = _picture(text) if text.startswith("data:") else None
    shown = text_of(text, name, coloured=dressed)
    blocks = _blocks(text) if dressed and shown.kind == "markdown" else ()
    return Leaf(kind, shown, _time(text), picture and picture[0], blocks)


def _blocks(text: str) -> tuple["Block", ...]:
    # It takes as long to load as all the rest, and a terminal does without it.
    from ayes.projections.display.markdown import blocks_of

    return blocks_of(text)


def _table(items: list[str]) -> Table | None:
    """The objects as rows, if they have much the same names, and short values only."""
    if len(items) < 2 or any(raw_json.kind_of(one) != "object" for one in items):
        return None
    rows = [raw_json.members(one) for one in items]
    names = [*dict.fromkeys(name for row in rows for name in row)]
    if not names or len(names) > _MAX_COLUMNS or 2 * sum(map(len, rows)) < len(names) * len(rows):
        return None
    if any(raw_json.kind_of(one) in ("object", "array") for row in rows for one in row.values()):
        return None
    cells = tuple(
        tuple(_leaf(row[name], name) if name in row else None for name in names) for row in rows
    )
    if any(cell and cell.text.is_block for row in cells for cell in row):
        return None
    return Table(tuple(map(text_of, names)), cells[:_HEAD_ROWS], cells[_HEAD_ROWS:])


def last_time(raw: str, earlier: dict[str, str], name: str, was: str = "last time") -> str:
    """How a short value differs from that of an earlier call; empty if it does not."""
    before = earlier.get(name)
    if before is None or before == raw or len(before) > _SHORT:
        return ""
    kinds = {raw_json.kind_of(raw), raw_json.kind_of(before)}
    if kinds & {"object", "array"}:
        return ""
    shown = raw_json.string(before) if raw_json.kind_of(before) == "string" else before
    return f"{was}: {visible(shown)}{_percent(before, raw) if kinds == {'number'} else ''}"


def _percent(before: str, after: str) -> str:
    try:
        was, now = Decimal(before), Decimal(after)
        change = (now - was) / abs(was) * 100
    except ArithmeticError:
        return ""
    if abs(change) > _MAX_PERCENT or not change:
        return ""
    return f" ({change:+,.0f} %)" if abs(change) >= 1 else f" ({change:+.2f} %)"
