"""What an edit changes: values by their place, and long texts by their lines."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from ayes.projections.display import raw_json
from ayes.projections.display.texts import MarkedRun, ShownText, lines, run_of, text_of

#: Strings longer than this, or of several lines, are compared by lines.
_LONG: Final = 100
#: Texts of more lines are not compared by lines, since that may take seconds.
_MAX_LINES: Final = 5000


class ChangedValue(NamedTuple):
    """One value that was changed, added or removed."""

    #: The place, as in `order.lines.0`.
    place: ShownText
    #: None: it was not there before, or is not there any more.
    before: ShownText | None
    after: ShownText | None
    #: Instead of both, the lines of a long text.
    lines: tuple[MarkedRun, ...] = ()


def changes(before: str, after: str) -> tuple[ChangedValue, ...]:
    """The differences between two raw JSON texts, in the order of the second.

    Empty if the values are the same, even if they are written differently.
    """
    if not (raw_json.is_readable(before) and raw_json.is_readable(after)):
        return (_change((), before, after),) if before != after else ()
    return tuple(_changes((), before.strip(), after.strip()))


def _changes(path: tuple[str, ...], before: str, after: str) -> Iterator[ChangedValue]:
    if before == after:
        return
    kind = raw_json.kind_of(after)
    if kind not in ("object", "array") or raw_json.kind_of(before) != kind:
        texts = _texts(before, after)
        if texts[0] != texts[1]:
            yield _change(path, before, after)
        return
    old, new = raw_json.children(before), raw_json.children(after)
    for name in dict.fromkeys((*new, *old)):
        place = (*path, name)
        if name in old and name in new:
            yield from _changes(place, old[name], new[name])
        else:
            yield _change(place, old.get(name), new.get(name))


def _change(path: tuple[str, ...], before: str | None, after: str | None) -> ChangedValue:
    place, name = text_of(".".join(path) or "arguments"), path[-1] if path else ""
    old, new = _texts(before, after)
    if before is not None and after is not None and (is_long(old) or is_long(new)):
        return ChangedValue(place, None, None, line_diff(old, new))
    return ChangedValue(
        place,
        None if before is None else text_of(old, name),
        None if after is None else text_of(new, name),
    )


def _texts(before: str | None, after: str | None) -> tuple[str, str]:
    """Two values to compare: what strings say; as JSON if only one of them is a string."""
    given = [raw for raw in (before, after) if raw is not None]
    if all(raw.startswith('"') and raw_json.is_readable(raw) for raw in given):
        return _string(before), _string(after)
    return before or "", after or ""


def _string(raw: str | None) -> str:
    return "" if raw is None else raw_json.string(raw)


def is_long(text: str) -> bool:
    """Whether a text is better compared by its lines."""
    return "\n" in text or len(text) > _LONG


def line_diff(before: str, after: str) -> tuple[MarkedRun, ...]:
    """The lines of both texts: without those added they are the first, without those removed the
    second.
    """
    old, new = lines(before), lines(after)
    if max(len(old), len(new)) > _MAX_LINES:
        return run_of(before, "removed"), run_of(after, "added")
    found: list[MarkedRun] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new).get_opcodes():
        if tag == "equal":
            found.append(run_of("".join(old[i:j])))
        else:
            found += [run_of("".join(old[i:j]), "removed"), run_of("".join(new[k:m]), "added")]
    return tuple(run for run in found if run.pieces)
