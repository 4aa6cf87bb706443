"""What would run, laid out in lines: what `projections/display` made of it, with every mark.

A field stands below the other, objects that are alike are a table, and each line of a longer text
has a bar before it, so that none can pass for a line of ours. Lines that are wider than the
terminal are broken here, for the same reason. Hidden characters are their code points, as in
`<U+202E>`, and no other character that acts is left.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from ayes.projections.display.changes import ChangedValue, changes
from ayes.projections.display.texts import Mark, MarkedRun, ShownText, joined, text_of
from ayes.projections.display.values import Group, Leaf, Picture, Table, value_of
from ayes.schemas.visible import visible

#: The widest name that the values of the other names are aligned with.
_MAX_NAME: Final = 24
#: Characters of a line that are left for a value, however narrow the terminal is.
_MIN_ROOM: Final = 20
_BAR: Final = "│ "
_STYLES: Final[dict[Mark, str]] = {"added": "green", "removed": "red"}
_SIGNS: Final[dict[Mark, str]] = {"added": "+ ", "removed": "- "}
#: A name that needs no quotes.
_WORD: Final = re.compile(r"[\w./-]+")


class Layout(NamedTuple):
    """Lays out values for a terminal of some width."""

    console: Console
    width: int
    #: How to see what is folded; empty: nothing is folded.
    whole: str = ""

    def arguments(self, raw: str) -> Iterator[Text]:
        """Arguments, which are a raw JSON text; as they are if readers could disagree about it."""
        found = value_of(raw)
        return self._text(text_of(raw)) if found is None else self.value(found)

    def changes(self, before: str, after: str) -> Iterator[Text]:
        """What an edit changes; all of it if the values are the same, written differently."""
        found = changes(before, after)
        for one in found:
            yield from self._change(one)
        if not found:
            yield from self.arguments(after)

    def value(self, one: Leaf | Group | Table) -> Iterator[Text]:
        """A value, each line of it behind nothing."""
        match one:
            case Table():
                yield from self._table(one)
            case Group(head=()):
                yield Text("{}" if one.kind == "object" else "[]")
            case Group():
                yield from self._members(one)
            case Leaf() if one.text.is_block:
                yield from self._text(one.text)
            case Leaf():
                yield _short(one)

    def _members(self, group: Group) -> Iterator[Text]:
        shown = group.head if self.whole else (*group.head, *group.rest)
        names = [Text("-") if group.is_list else _name(one.name) for one in shown]
        wide = max((one.cell_len for one in names if one.cell_len <= _MAX_NAME), default=0)
        within = self._replace(width=self.width - 2)
        for name, one in zip(names, shown, strict=True):
            lines = within.value(one.value)
            if _is_short(one.value):
                name.pad_right(max(wide - name.cell_len, 0))
                yield from self._hanging(name.append("  "), next(lines))
            else:
                yield name.append(_about(one.value))
                yield from (Text.assemble("  ", line) for line in lines)
        yield from self._more(f"{len(group.rest)} more" if group.rest else "")

    def _table(self, table: Table) -> Iterator[Text]:
        shown = table.head if self.whole else (*table.head, *table.rest)
        names = [Text("#"), *map(_name, table.columns)]
        rows = [[Text(f"{number}"), *map(_cell, row)] for number, row in enumerate(shown, 1)]
        numeric = [True, *(cell is not None and cell.kind == "number" for cell in shown[0])]
        columns = zip(names, *rows, strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        if sum(widths) + 2 * len(widths) > self.width:
            for number, *cells in rows:
                pairs = zip(names[1:], cells, strict=True)
                said = Text(", ").join(Text.assemble(name, " ", cell) for name, cell in pairs)
                yield from self._hanging(number.append("  "), said)
        else:
            for row in (names, *rows):
                for cell, width, is_number in zip(row, widths, numeric, strict=True):
                    pad = cell.pad_left if is_number else cell.pad_right
                    pad(width - cell.cell_len)
                yield Text("  ").join(row)
        yield from self._more(f"{len(table.rest)} more rows" if table.rest else "")

    def _text(self, text: ShownText) -> Iterator[Text]:
        yield from self._bars(text.head if self.whole else (*text.head, *text.rest))
        yield from self._more(text.more)

    def _bars(self, runs: Iterable[MarkedRun], bar: str = _BAR) -> Iterator[Text]:
        for line in _styled(runs).split("\n"):
            yield from self._hanging(Text(bar, "dim"), line, bar)

    def _change(self, one: ChangedValue) -> Iterator[Text]:
        place = _name(one.place)
        if one.lines:
            yield place
            for run in one.lines:
                yield from self._bars([run], _SIGNS.get(run.mark, _BAR))
            return
        before, after = (_said(text) for text in (one.before, one.after))
        yield from self._hanging(place.append("  "), Text.assemble(before, " → ", after))

    def _hanging(self, first: Text, said: Text, rest: str = "") -> Iterator[Text]:
        """A text behind another one; its lines after the first are behind `rest`, or as deep."""
        room = max(self.width - first.cell_len, _MIN_ROOM)
        rest = rest or " " * first.cell_len
        for number, part in enumerate(said.wrap(self.console, room, overflow="fold")):
            yield Text.assemble((rest, "dim") if number else first, part)

    def _more(self, said: str) -> Iterator[Text]:
        if said and self.whole:
            yield Text(f"… {said}: {self.whole}", "dim")


def _is_short(one: Leaf | Group | Table) -> bool:
    return not one.text.is_block if isinstance(one, Leaf) else not one.head


def _about(one: Leaf | Group | Table) -> Text:
    """What stands behind a name above its value."""
    match one:
        case Table():
            return Text(f"  {len(one.head) + len(one.rest)} rows", "dim")
        case Leaf(picture=Picture() as picture):
            return Text(f"  {picture.media_type}, {picture.size:,} bytes", "dim")
        case Leaf():
            kind = f"  {one.text.kind}" if one.text.kind else ""
            return Text(kind, "dim").append(_flags(one.text))
        case _:
            return Text()


def _short(one: Leaf) -> Text:
    quote = '"' if one.kind == "string" else ""
    return Text.assemble(quote, _styled(one.text.head, visible), quote, _flags(one.text))


def _cell(one: Leaf | None) -> Text:
    return Text("(none)", "dim") if one is None else _short(one)


def _said(text: ShownText | None) -> Text:
    if text is None:
        return Text("(none)", "dim")
    return _styled((*text.head, *text.rest), visible).append(_flags(text))


def _name(text: ShownText) -> Text:
    quote = "" if _WORD.fullmatch(joined(text)) else '"'
    named = _styled((*text.head, *text.rest), visible)
    return Text.assemble(quote, named, quote, _flags(text), style="cyan")


def _flags(text: ShownText) -> Text:
    return Text("".join(f"  [{one}]" for one in text.flags), "bold red")


def _styled(runs: Iterable[MarkedRun], spelled: Callable[[str], str] = str) -> Text:
    """A text with its marks.

    Args:
        spelled: what is made of line feeds and tabs.
    """
    found = Text()
    for run in runs:
        for piece in run.pieces:
            if piece.hidden:
                found.append(f"<{piece.shown}>", "bold red reverse")
            else:
                style = f"{_STYLES.get(run.mark, '')} {'bold' if piece.host else ''}"
                found.append(spelled(piece.text), style.strip())
    return found
