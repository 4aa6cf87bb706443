"""A text as a page shows it: complete, with hidden characters marked, folded where it is long.

The pieces of a text, joined in their order, are the text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise
from typing import Final, Literal, NamedTuple

from ayes.projections.display import raw_json
from ayes.schemas.visible import flags, spans

#: How a text is best read.
type Kind = Literal["", "url", "diff", "shell", "sql", "python", "json", "markdown"]
#: Why pieces stand out: lines of a diff, words of code, words of Markdown.
type Mark = Literal["", "added", "removed", "keyword", "string", "comment", "em", "strong", "code"]

#: What a page shows before the rest is folded.
HEAD_LINES: Final = 40
HEAD_CHARACTERS: Final = 4000
#: The longest text within a line of others.
_INLINE: Final = 120


class TextSpan(NamedTuple):
    text: str
    #: Whether its characters cannot be seen, or reorder others.
    hidden: bool = False
    #: Whether it is the host of a link.
    host: bool = False

    @property
    def shown(self) -> str:
        """The text; of hidden characters their code points, as in `U+202E`."""
        return " ".join(map(_code_point, groupby(self.text))) if self.hidden else self.text


class MarkedRun(NamedTuple):
    """Pieces that are marked together, such as the added lines of a diff."""

    pieces: tuple[TextSpan, ...]
    mark: Mark = ""


class ShownText(NamedTuple):
    kind: Kind
    head: tuple[MarkedRun, ...]
    #: The part that is folded; empty for a short text.
    rest: tuple[MarkedRun, ...]
    #: Of the folded part, such as `160 more lines`.
    more: str
    #: Warnings for the reader (`visible.flags`).
    flags: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(joined(self))

    @property
    def is_block(self) -> bool:
        """Whether it needs lines of its own."""
        pieces = [piece.text for run in self.head for piece in run.pieces]
        return (
            self.more != "" or sum(map(len, pieces)) > _INLINE or any("\n" in one for one in pieces)
        )


def text_of(text: str, name: str = "", *, coloured: bool = False) -> ShownText:
    """A text as a page shows it.

    Args:
        name: the name of the argument, which may tell its kind.
        coloured: whether the words of code stand out, which takes some milliseconds.
    """
    kind, end = kind_of(text, name), _fold(text)
    # Only the beginning is coloured: code must not seem to be a comment, read from its middle on.
    head = runs(text[:end], kind if kind == "diff" or coloured else "")
    rest = runs(text[end:], kind if kind == "diff" else "")
    return ShownText(kind, head, rest, _more(text[end:]), flags(text))


def plain(text: str) -> ShownText:
    """As `text_of`, of a short text that needs no look: a number, a word of JSON."""
    return ShownText("", (MarkedRun((TextSpan(text),)),), (), "", ())


def run_of(text: str, mark: Mark = "") -> MarkedRun:
    return next(runs_of([(text, mark)]))


def runs(text: str, kind: Kind) -> tuple[MarkedRun, ...]:
    marked: Iterable[tuple[str, Mark]]
    if kind == "diff":
        marked = [("".join(some), mark) for mark, some in groupby(lines(text), _sign)]
    else:
        marked = _words_of_code(text, kind) if kind in _CODE else [(text, "")]
    return tuple(runs_of(marked)) if text else ()


def runs_of(parts: Iterable[tuple[str, Mark]]) -> Iterator[MarkedRun]:
    """Parts of one text. The hosts of its links stand out, also of a link in several parts."""
    parts = list(parts)
    bounds = [
        place for one in _LINK.finditer("".join(part for part, _ in parts)) for place in one.span(1)
    ]
    at = 0
    for part, mark in parts:
        first, last = bisect_right(bounds, at), bisect_left(bounds, at + len(part))
        cuts = (0, *(bound - at for bound in bounds[first:last]), len(part))
        pieces = (
            TextSpan(text, hidden, number % 2 == 1)
            for number, (begin, end) in enumerate(pairwise(cuts), first)
            for text, hidden in spans(part[begin:end])
        )
        yield MarkedRun(tuple(pieces), mark)
        at += len(part)


def _words_of_code(text: str, kind: Kind) -> Iterable[tuple[str, Mark]]:
    from ayes.projections.display.code import words_of_code

    return words_of_code(text, kind)


def _sign(line: str) -> Mark:
    return _SIGNS.get(line[0], "")


def lines(text: str) -> list[str]:
    """The lines with their ends. Only a line feed ends a line, as in an editor of code."""
    return _LINES.findall(text)


def kind_of(text: str, name: str = "") -> Kind:
    """How a text is best read; empty if nothing is known."""
    if _URL.fullmatch(text):
        return "url"
    if name.lower() in _DIFFS or text.startswith("diff --git ") or _DIFF.match(text):
        return "diff"
    if name.lower() in _SHELLS or text.startswith("#!"):
        return "shell"
    if name.lower() == "sql" or _SQL.match(text):
        return "sql"
    if name.lower() in _PYTHONS or _PYTHON.search(text):
        return "python"
    if text.lstrip()[:1] in ("{", "[") and raw_json.is_readable(text):
        return "json"
    return "markdown" if name.lower() in _MARKDOWNS or _MARKDOWN.search(text) else ""


def _fold(text: str) -> int:
    """Where the folded part begins."""
    return sum(map(len, lines(text[:HEAD_CHARACTERS])[:HEAD_LINES]))


def _more(rest: str) -> str:
    if not rest:
        return ""
    count = len(lines(rest))
    size = f"{len(rest):,} characters"
    return f"{size} more" if count == 1 else f"{count:,} more lines, {size}"


def _code_point(same: tuple[str, Iterator[str]]) -> str:
    one, run = same
    count = sum(1 for _ in run)
    return f"U+{ord(one):04X}" + (f" \u00d7 {count:,}" if count > 1 else "")


def joined(text: ShownText) -> str:
    """The text that was given."""
    return "".join(piece.text for run in chain(text.head, text.rest) for piece in run.pieces)


_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
#: Scheme and user, host, the rest. A backslash or a blank makes readers disagree about the host
#: (RFC 3986 and the URL standard of browsers), so such a text is not shown as a URL.
_URL: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://(?:[^\s\\/?#@]*@)?)([^\s\\/?#@:]+|\[[0-9A-Fa-f:.]+\])"
    r"((?::[0-9]*)?(?:[/?#][^\s\\]*)?)"
)
#: A link within a text; its host is the group. Nothing is tried again from the middle of a word,
#: so that the time grows with the text.
_LINK: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*+://(?:[^\s\\/?#@]*+@)?+"
    r"([^\s\\/?#@:<>\"'`()\[\],;{}|]++|\[[0-9A-Fa-f:.]+\])(?![\\@])"
)
_CODE: Final[tuple[Kind, ...]] = ("shell", "sql", "python", "json")
_SIGNS: Final[dict[str, Mark]] = {"+": "added", "-": "removed"}
_DIFF: Final = re.compile(r"--- [^\n]*\n\+\+\+ |@@ -[0-9]")
_SQL: Final = re.compile(
    r"\s*+(?:--[^\n]*\n\s*+)*+"  # comments
    r"(?:select\s.*\sfrom|insert\s+into|update\s.*\sset|delete\s+from|with\s.*\sas\s*\("
    r"|(?:create|alter|drop|truncate)\s+table)\s",
    re.IGNORECASE | re.DOTALL,
)
_PYTHON: Final = re.compile(
    r"^(?:(?:async )?def \w+\(|class \w+[:(]|from [\w.]+ import |import [\w.]+$)", re.MULTILINE
)
_MARKDOWN: Final = re.compile(r"^(?:#{1,6} |```)", re.MULTILINE)
_DIFFS: Final = frozenset({"diff", "patch"})
_SHELLS: Final = frozenset({"command", "cmd", "shell", "bash", "script"})
_PYTHONS: Final = frozenset({"python", "py"})
_MARKDOWNS: Final = frozenset({"markdown", "md"})
