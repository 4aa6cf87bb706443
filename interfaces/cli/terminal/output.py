"""Facts, calls and the queue, for people and as JSON for programs.

The JSON is a promise; the text for people may change. All output goes through these functions,
which make text from facts safe to display (`schemas/visible.py`):

* `print_data`: a line of data on stdout; ASCII only at a terminal, else byte for byte;
* `print_line` on stdout and `print_message` on stderr: a line for people;
* `console`: for columns and styles.
"""

import json as jsonlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ayes.projections.doubt import CallInDoubt
from ayes.projections.views.fact import Wishes, _short, fact_row, late_words, voids_of, wishes_of
from ayes.projections.views.secrets import Secrets
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef
from ayes.schemas.visible import ascii_json, line, lines, visible, warning


def print_data(line: str) -> None:
    """A line of data for programs; at a terminal in ASCII, with JSON's own escapes."""
    sys.stdout.write((ascii_json(line) if sys.stdout.isatty() else line) + "\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """A value as one line of JSON."""
    print_data(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    """One line for people on stdout."""
    sys.stdout.write(line(text) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """A part of a text on stdout. Its line feeds are kept, every other control character is spelled
    out; a warning about the text is printed after its last part.
    """
    sys.stdout.write("\n".join(map(visible, text.split("\n"))))
    sys.stdout.flush()


def print_message(text: str = "") -> None:
    """One line for people on stderr."""
    sys.stderr.write(line(text) + "\n")
    sys.stderr.flush()


def print_result(data: object, *sentences: str, json: bool) -> None:
    """A result: as JSON on stdout, or for people, a line for each sentence on stderr."""
    if json:
        print_json(data)
    for one in () if json else sentences:
        print_message(one)


def print_error(problem: Exception) -> None:
    """An error on stderr. It may quote a broker or a database, in several lines."""
    sys.stderr.write(lines(f"error: {problem}") + "\n")
    sys.stderr.flush()


def print_error_json(kind: str, message: str, exit_code: int) -> None:
    """An error as one line of JSON on stderr."""
    print_message(jsonlib.dumps({"error": kind, "message": message, "exit_code": exit_code}))


def print_facts(
    facts: Sequence[Fact],
    console: Console,
    secrets: Secrets,
    *,
    full: bool = False,
    wishes: Wishes | None = None,
    voids: Mapping[int, str] | None = None,
) -> None:
    """Print a line for each fact, in aligned columns; a line too long for the terminal wraps.

    Args:
        full: print the whole subject, for facts of different threads.
        wishes: the requests, to show what an edit changed; by default those among the facts.
        voids: why a fact does not count, by sequence; by default derived from the facts.
    """
    why = voids_of(facts) if voids is None else voids
    known = wishes_of(facts) if wishes is None else wishes
    rows = [fact_row(fact, secrets, full=full, wishes=known) for fact in facts]
    # Wide enough for most, so that facts printed one by one are aligned too.
    slots = max(22, *(len(row.slot) for row in rows), 0)
    kinds = max(17, *(len(visible(row.kind)) for row in rows), 0)
    for row in rows:
        styled_line(
            console,
            (f"{row.seq:>6}  {row.time}  {row.slot:<{slots}}  ", "dim"),
            (f"{row.kind:<{kinds}}  ", _STYLE.get(row.kind, "bold")),
            (row.what, ""),
            (f"  ({row.by})" if row.by else "", "dim"),
            (f"  VOID: {why[row.seq]}" if row.seq in why else "", "bold red"),
        )


def styled_line(console: Console, *parts: tuple[str, str]) -> None:
    """Print one line of several styles."""
    console.print(styled(*parts), soft_wrap=True)


def styled(*parts: tuple[str, str]) -> Text:
    """One line of several styles, with warnings about its characters at the end."""
    whole = Text()
    for text, style in parts:
        whole.append(visible(text), style)
    return whole.append(warning("".join(text for text, _ in parts)), "bold red")


_STYLE = {
    "ApprovalRequested": "yellow",
    "Escalated": "yellow",
    "GlassBroken": "red",
    "Approved": "green",
    "Answered": "green",
    "ToolReturned": "green",
    "Denied": "red",
    "Expired": "red",
    "ToolFailed": "red",
    "ToolRefused": "red",
    "InDoubt": "red",
}


def print_in_doubt(found: Sequence[CallInDoubt], console: Console) -> None:
    """Print each call in doubt: since when, who claimed it, and the next command."""
    for one in found:
        ref = CallRef(one.workspace, one.thread, one.call)
        styled_line(console, (str(ref), "bold"), (f"  {one.tool}", ""))
        how = "in doubt" if one.recorded else "no sign of life"
        claimed = (
            f"claimed by {one.claimed_by or 'nobody named'} at {one.claimed_at:%m-%d %H:%M:%S}"
        )
        styled_line(console, (f"    {how} since {one.since:%m-%d %H:%M:%S}, {claimed} (UTC)", ""))
        if one.reason:
            styled_line(console, (f"    {_short(one.reason)}", ""))
        option = ""
        if one.late is not None:
            styled_line(console, (f"    {late_words(one.late)}", "yellow"))
            option = " --late"
        settle = f"ayes reconcile {ref} --as NAME{option}"
        step = settle if one.recorded else f"ayes doubt {ref}, and then {settle}"
        styled_line(console, (f"    Next: {step}", "dim"))


class _Console(Console):
    """A console that makes every character of every text visible, so that only styles act."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = "\n".join(map(visible, segment.text.split("\n")))
                yield Segment(text, segment.style)


def console(*, stderr: bool = False) -> Console:
    # https://no-color.org: rich alone would keep bold and dim.
    plain = bool(os.environ.get("NO_COLOR"))
    # Text from facts is not markup.
    return _Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )
