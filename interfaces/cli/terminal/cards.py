"""Pending calls, and the question of a vote, with what would run laid out below the title."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from ayes.interfaces.cli.terminal.layout import Layout
from ayes.interfaces.cli.terminal.output import styled
from ayes.ledger.call import Call
from ayes.ledger.descriptions import describe_chain, describe_undoing, mode_words
from ayes.projections.pending import Entry
from ayes.projections.views.call import SHORT, quorum_words, quorums_of
from ayes.projections.views.secrets import Secrets, declaration
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CallRef

INDENT: Final = "    "
#: A line for a program or a file is not broken.
_ENDLESS: Final = 1 << 24


def print_pending(entries: Sequence[Entry], console: Console, secrets: Secrets) -> None:
    """Print a card for each pending call."""
    for entry in entries:
        _print(console, entry_lines(entry, layout_for(console, entry.ref), secrets))


def print_question(
    call: Call, console: Console, secrets: Secrets, arguments: str | None = None
) -> None:
    """Print what a vote is about, as the log has it; with `arguments`, also how they change it."""
    _print(console, _question_lines(call, layout_for(console, call.ref), secrets, arguments))


def print_arguments(call: Call, console: Console, secrets: Secrets) -> None:
    """Print all that runs or would run, with nothing folded."""
    shown = secrets.call(call).arguments
    layout = layout_for(console, call.ref)._replace(whole="")
    _print(console, [styled((f"arguments  {call.digest[:SHORT]}", "dim"))])
    _print(console, _indented(layout.arguments(shown)))
    if shown != call.arguments:
        hint = f"{INDENT}what is secret: ayes show {call.ref} --secrets"
        _print(console, [styled((hint, "dim"))])


def layout_for(console: Console, ref: CallRef) -> Layout:
    width = console.width - len(INDENT) if console.is_terminal else _ENDLESS
    return Layout(console, width, f"ayes show {ref}")


def entry_lines(entry: Entry, layout: Layout, secrets: Secrets) -> Iterator[Text]:
    """The card of a pending call."""
    what = "expires" if entry.expires_at else "asks more people"
    until = f", {what} {entry.due_at:%m-%d %H:%M:%S}" if entry.due_at else ""
    asked = f"  asked {entry.gated_at:%m-%d %H:%M:%S}{until} (UTC)"
    yield _heading(entry.ref, entry.tool, asked, entry.digest)
    shown = secrets.arguments(entry.declaration, entry.arguments)
    yield from _what(entry.title or "", shown, layout)
    if problem := entry.flaw:
        yield styled((f"{INDENT}[{problem}]", "bold red"))
    who = ", and ".join(quorum_words(one) for one in quorums_of(entry))
    if entry.asked_as_well:
        who += f", and by now {', '.join(entry.asked_as_well)} as well"
    if entry.handed:
        by, to = [*entry.handed.items()][-1]
        who += f", handed to {to} by {by}"
    but = f", but not {', '.join(entry.excluded)}" if entry.excluded else ""
    own = ", ".join(entry.own or ()) or "who asked"
    but += f"; {own} may confirm it" if entry.mode else ""
    why = f"{entry.reason} " if entry.reason else ""
    yield styled((f"{INDENT}{why}(rule {entry.rule!r} asks {who}{but})", "dim"))
    yield from _context(entry.chain or (), entry.undoing or None)


def _question_lines(
    call: Call, layout: Layout, secrets: Secrets, arguments: str | None
) -> Iterator[Text]:
    asking, wish, shown = call.approval_request, call.wish, secrets.call(call).wish.arguments
    assert asking, "only a call that people were asked about is voted on"
    yield _heading(call.ref, wish.tool, "", asking.digest)
    yield from _what(asking.title, shown, layout)
    if mode := mode_words(asking.mode):
        yield styled((f"{INDENT}rule {asking.rule!r}{mode}", "dim"))
    yield from _context(asking.chain, asking.undoing)
    if arguments is not None:
        digest = call_digest(wish.tool, wish.tool_version, arguments)
        yield styled((f"{INDENT}edited, with the digest {digest[:SHORT]}:", "bold"))
        complete = layout._replace(whole="")  # no other command shows it
        yield from _indented(
            complete.changes(shown, secrets.arguments(declaration(call), arguments))
        )


def _heading(ref: CallRef, tool: str, asked: str, digest: str) -> Text:
    return styled(
        (f"{ref}  ", "bold"), (tool, "bold yellow"), (asked, "dim"), (f"  {digest[:SHORT]}", "dim")
    )


def _what(title: str, arguments: str, layout: Layout) -> Iterator[Text]:
    if title:
        yield styled((f"{INDENT}{title}", "bold"))
    yield from _indented(layout.arguments(arguments))


def _context(chain: Sequence[e.Link], undoing: e.Undoing | None) -> Iterator[Text]:
    if chain:
        yield styled((f"{INDENT}asked in the run of {describe_chain(chain)}", "dim"))
    if undoing is not None:
        yield styled((f"{INDENT}class: {describe_undoing(undoing)}", "dim"))


def _indented(lines: Iterable[Text]) -> Iterator[Text]:
    return (Text.assemble(INDENT, line) for line in lines)


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)
