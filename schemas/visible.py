r"""Text from others, made safe to display: it cannot control a terminal, and hides nothing.

Text from a fact, a bucket or a file passes through here before it reaches a terminal, a page or a
log. Two functions do it for terminals, and `line` combines them; pages use `spans`.

* `visible` spells characters that cannot be seen, or that reorder or rewrite others, as `\u202e` or
  `\U000e0041`. It can be applied twice without harm.
* `flags` returns warnings for the reader: hidden characters, whose spelling is easily overlooked,
  and words of mixed scripts, which look like other words. The rule is that of UTS #39, "highly
  restrictive": Latin with Chinese, Japanese or Korean is ordinary, Latin with Cyrillic in one word
  is not.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Final

#: Printable for Python, invisible on a screen: Unicode's Default_Ignorable_Code_Point, and the
#: Braille blank.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
#: An escape of JSON; its letters are not letters of the word around it.
_ESCAPE: Final = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|.)", re.DOTALL)
#: Layout characters. They are spelled out like the rest, but need no warning.
_LAYOUT: Final = frozenset("\t\n")
_CJK: Final = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})
_WIDTHS: Final = ("FULLWIDTH ", "HALFWIDTH ")


def visible(text: str) -> str:
    """The text, with every invisible or controlling character spelled out."""
    if _is_seen(text):
        return text
    return "".join(one if _is_seen(one) else _spelled(one) for one in text)


def flags(text: str) -> tuple[str, ...]:
    """Warnings for a reader of the text; none for ordinary text."""
    if text.isascii() and text.isprintable():
        return ()
    plain = text.replace("\r\n", "\n")
    hidden = any(
        not _is_seen(one) and one not in _LAYOUT and unicodedata.category(one) != "Zs"
        for one in set(plain)
    )
    mixed: set[str] = set()
    for scripts in map(_scripts, _words(_ESCAPE.sub(" ", plain))):
        if len(scripts) > 1 and not scripts <= {"LATIN", *_CJK} and not scripts <= _CJK:
            mixed |= scripts
    found = ("hidden characters",) if hidden else ()
    return (*found, f"mixed scripts: {', '.join(sorted(mixed))}") if mixed else found


def spans(text: str) -> Iterator[tuple[str, bool]]:
    """The text in runs, each with whether its characters are hidden; joined they are the text.

    Tabs and line breaks are not hidden.
    """
    if text.isascii() and text.isprintable():
        yield from ((text, False),) if text else ()
        return
    for hidden, run in groupby(text, _is_hidden):
        yield "".join(run), hidden


def line(text: str) -> str:
    """The text on one line, visible, followed by its warnings."""
    return visible(text) + warning(text)


def lines(text: str) -> str:
    """Text of several lines, made visible; lines after the first are indented, so that none can
    pass for a line of ours.
    """
    first, *rest = text.rstrip("\n").split("\n")
    return "\n".join((line(first), *(f"  {line(one)}" for one in rest)))


def warning(text: str) -> str:
    """The warnings at the end of a line; empty for ordinary text."""
    return "".join(f"  [{one}]" for one in flags(text))


def ascii_json(text: str) -> str:
    """The same JSON in ASCII only: other characters occur in strings alone, and become escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if " " <= one <= "~" or one == "\n" else _json_escape(one) for one in text)


def visible_json(text: str) -> str:
    """The same JSON, with an escape for every character of a string that is hidden."""
    return "".join(
        "".join(map(_json_escape, run)) if hidden and run.strip("\r") else run
        for run, hidden in spans(text)
    )


def _is_hidden(one: str) -> bool:
    return one not in _LAYOUT and not _is_seen(one)


def _is_seen(text: str) -> bool:
    return text.isprintable() and not _UNSEEN.search(text)


def _spelled(one: str) -> str:
    code = ord(one)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escape(one: str) -> str:
    pair = one.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[start : start + 4]}" for start in range(0, len(pair), 4))


def _words(text: str) -> set[str]:
    """Runs of letters, with their marks and the invisible characters between them."""
    # Each character of the text has its place in the table: `translate` is slow without one.
    apart = {ord(one): one if _is_of_word(one) else " " for one in set(text)}
    return set(text.translate(apart).split(" "))


def _is_of_word(one: str) -> bool:
    return one not in _LAYOUT and (unicodedata.category(one)[0] in "LM" or not _is_seen(one))


def _scripts(word: str) -> set[str]:
    return {script for one in set(word) if (script := _script(one))}


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """The script in a letter's Unicode name; empty for signs and marks, which every script uses."""
    name = unicodedata.name(letter, "")
    for width in _WIDTHS:
        name = name.removeprefix(width)
    first = name.partition(" ")[0].partition("-")[0]
    if unicodedata.category(letter)[0] != "L" or first == "MODIFIER":
        return ""
    return first if " LETTER " in f"{name} " or first in _CJK else ""
