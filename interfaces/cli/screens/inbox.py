"""The inbox: pending calls beside what the chosen one would run, decided by the console's keys.

A key decides only the call that is shown, by its digest, and only after it has been shown for a
moment, so that a key pressed twice does not decide the next call as well. A call that is decided
meanwhile stays until another one is chosen, says so, and takes no key.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, HelpPanel, Input, OptionList, Static, TextArea

from ayes.consumers.pending_view import PendingView
from ayes.interfaces.cli.decide import how_decided, seen_for
from ayes.interfaces.cli.outcome import standing
from ayes.interfaces.cli.terminal.cards import INDENT, entry_lines
from ayes.interfaces.cli.terminal.layout import Layout
from ayes.interfaces.cli.terminal.output import styled
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.actions.votes import open_tally, seen_by_gate, vote_as_shown, wants_typed
from ayes.projections.call_query import CallQuery
from ayes.projections.display.values import in_brief
from ayes.projections.pending import Entry
from ayes.projections.views.secrets import Secrets
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.slots import CallRef
from ayes.schemas.visible import line

#: How long a call is shown before a key decides it; the console has the same.
SHOWN_FOR_S: Final = 0.35
EARLY: Final = "Too early: this call has just appeared. Press again."
#: Rows of the list; the others are counted.
_MAX_ROWS: Final = 500
#: What is asked below a call, by the key.
_ASKS: Final = {
    "deny": "Why not? The model reads it.",
    "answer": "What does the model read in place of the tool's output?",
    "typed": "Its rule wants the name of the tool typed:",
}


class Inbox(App[ApprovalsError]):
    """Ends with an error if the queue cannot be followed any more.

    Args:
        choose: makes a query of what is typed.
        clock: in seconds.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    OptionList { width: 2fr; border: none; text-wrap: nowrap; text-overflow: ellipsis; }
    #pane { width: 3fr; border-left: solid $primary; padding-left: 1; }
    TextArea { height: 6; }
    Input, TextArea { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "go(1)", "Next"),
        Binding("k", "go(-1)", "Before"),
        Binding("a", "approve", "Approve"),
        Binding("d", "ask('deny')", "Deny…"),
        Binding("r", "ask('answer')", "Answer…"),
        Binding("s", "go(1)", "Later"),
        Binding("ctrl+s,ctrl+enter", "send", "Send the text", key_display="^s"),
        Binding("escape", "close", "Close", show=False),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit"),
    ]

    def __init__(
        self,
        ledger: Ledger,
        view: PendingView,
        name: str,
        choose: Callable[[str], CallQuery],
        query: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._ledger, self._view, self._person, self._clock = ledger, view, name, clock
        self._choose, self._query, self._chosen = choose, query, choose(query)
        self._rows: list[Entry] = []
        self.shown: Entry | None = None
        self._since = 0.0
        #: Whether nothing of it is folded.
        self._is_whole = False
        #: How calls of the list were decided that wait no longer, and those voted on here.
        self._decided: dict[CallRef, str] = {}
        self._voted: set[CallRef] = set()
        #: What is asked below the call.
        self._asked = ""
        self._is_voting = False
        #: Of all calls that are listed.
        self._secrets = Secrets({})

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Input(self._query, "tool:refund amount>100 is:mine", select_on_focus=False)
        with Horizontal():
            yield OptionList()
            with Vertical(id="pane"):
                with VerticalScroll():
                    yield Static(id="card")
                yield TextArea()
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        """Show what waits, and each change."""
        revision = -1
        try:
            with _logging_to(self.say):
                while True:
                    revision = await self._view.moved(revision)
                    await self._refresh()
        except ApprovalsError as problem:
            self.exit(problem)

    async def _refresh(self) -> None:
        chosen = self._chosen
        try:
            index = self._view.entries
            seen = await seen_for(self._ledger, index.oldest(), chosen, self._person)
            secrets = await secrets_in(self._ledger, *index.oldest(), *self._rows)
        except ApprovalsError as problem:
            self.say(str(problem))
            return
        if chosen is not self._chosen:
            return  # another query came meanwhile
        self._secrets = secrets
        found = index.oldest(None, chosen, seen)
        for one in found:
            self._decided.pop(one.ref, None)
        of = f" · {chosen}" if chosen.words else ""
        self.query_one("#head", Static).update(
            styled((f"{len(found):,} waiting{of} · as {self._person}", "bold"))
        )
        rows, shown = found[:_MAX_ROWS], self.shown
        if shown is not None and shown.ref not in {one.ref for one in rows}:
            rows.insert(self._rows.index(shown), shown)
            if shown.ref not in {one.ref for one in index.oldest()}:
                self._decided.setdefault(shown.ref, "decided")
                self.run_worker(self._explain(shown.ref))
        self._list(rows)

    async def _explain(self, ref: CallRef) -> None:
        with suppress(ApprovalsError):
            self._decided[ref] = (await how_decided(self._ledger, str(ref))).strip() or "decided"
        self._render_card()

    def _list(self, rows: Sequence[Entry]) -> None:
        """Show these rows, of decided calls only the one that is shown."""
        self._rows = [one for one in rows if one.ref not in self._decided or one == self.shown]
        refs = [one.ref for one in self._rows]
        place = refs.index(self.shown.ref) if self.shown else 0
        listed = self.query_one(OptionList)
        listed.set_options(map(self._row, self._rows))
        listed.highlighted = place if refs else None
        self._show(self._rows[place] if refs else None)

    def _row(self, entry: Entry) -> Text:
        is_decided = entry.ref in self._decided
        state = "decided  " if is_decided else "voted  " if entry.ref in self._voted else ""
        what = entry.title or in_brief(self._secrets.arguments(entry.declaration, entry.arguments))
        return styled((state, "dim"), (f"{entry.tool}  ", "bold yellow"), (what, ""))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option is event.option_list.highlighted_option:  # else it was, a moment ago
            self._show(self._rows[event.option_index])

    def on_option_list_option_selected(self) -> None:
        self._is_whole = not self._is_whole
        self._render_card()

    def on_resize(self) -> None:
        self.call_after_refresh(self._render_card)

    def _show(self, entry: Entry | None) -> None:
        digests = [one and (one.ref, one.digest) for one in (self.shown, entry)]
        if digests[0] != digests[1]:
            self._since, self._is_whole = self._clock(), False
            self.action_close()
        self.shown = entry
        self._render_card()

    def _render_card(self) -> None:
        pane = self.query_one(VerticalScroll)
        width = pane.scrollable_content_region.width - len(INDENT)
        lines = [Text("Nothing waits for a decision.", "dim")]
        if self.shown is not None:
            layout = Layout(self.console, width, "" if self._is_whole else "Enter shows it")
            lines = [*entry_lines(self.shown, layout, self._secrets)]
            if how := self._decided.get(self.shown.ref):
                lines.insert(0, styled((how, "bold reverse")))
        self.query_one("#card", Static).update(Text("\n").join(lines))

    def say(self, text: str) -> None:
        """Show a message below everything."""
        self.query_one("#said", Static).update(Text(line(text), "bold"))

    # --------------------------------------------------------------------------------------- keys

    def action_go(self, steps: int) -> None:
        if self.shown is not None:
            place = self._rows.index(self.shown) + steps
            self._show(self._rows[min(max(place, 0), len(self._rows) - 1)])
            self._list(self._rows)

    def action_approve(self) -> None:
        if (entry := self._decidable()) is not None:
            self._start(entry, Ballot("approve"))

    def action_ask(self, what: str) -> None:
        if self._decidable() is not None:
            self._ask(what)

    def _ask(self, what: str) -> None:
        self._asked = what
        area = self.query_one(TextArea)
        area.border_title = f"{_ASKS[what]} Ctrl-S sends it, Escape closes."
        area.text, area.display = "", True
        area.focus()

    def action_send(self) -> None:
        text = self.query_one(TextArea).text.strip()
        if not self._asked or (entry := self._decidable()) is None:
            return
        match self._asked:
            case "answer" if not text:
                self.say("Type the answer first.")
            case "answer":
                self._start(entry, Ballot("answer", answer=text))
            case "deny":
                self._start(entry, Ballot("deny", text))
            case _:
                self._start(entry, Ballot("approve", typed=text))

    def action_close(self) -> None:
        """Close what is asked, and the search."""
        self._asked = ""
        self.query_one(TextArea).display = self.query_one(Input).display = False
        self.query_one(OptionList).focus()

    def action_search(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._chosen = self._choose(event.value)
        except ApprovalsError as problem:
            self.say(str(problem))
        else:
            self._show(None)
            await self._refresh()

    def action_keys(self) -> None:
        is_open = bool(self.screen.query(HelpPanel))
        (self.action_hide_help_panel if is_open else self.action_show_help_panel)()

    # -------------------------------------------------------------------------------------- votes

    def _decidable(self) -> Entry | None:
        """The call that is shown, if a key may decide it now; else it says why not."""
        if self.shown is None or self._is_voting:
            self.say("Wait for the last vote." if self._is_voting else "No call is shown.")
        elif how := self._decided.get(self.shown.ref):
            self.say(f"{self.shown.ref}: {how}. Nothing was recorded.")
        elif self._clock() - self._since < SHOWN_FOR_S:
            self.say(EARLY)
        else:
            return self.shown
        return None

    def _start(self, entry: Entry, ballot: Ballot) -> None:
        self._is_voting = True
        self.run_worker(self._vote(entry, ballot))

    async def _vote(self, entry: Entry, ballot: Ballot) -> None:
        try:
            known = await self._ledger.known_call(entry.ref)
            if wants_typed(known, ballot.verdict) and not ballot.typed:
                if entry == self.shown:
                    self._ask("typed")
                return
            known = await vote_as_shown(self._ledger, entry, self._person, ballot)
            self._voted.add(entry.ref)
            known = await seen_by_gate(self._ledger, known)
            self.say(standing(known, await open_tally(self._ledger, known), self._secrets))
        except ApprovalsError as problem:
            self.say(str(problem))
            return
        finally:
            self._is_voting = False
        if self.shown is not None and self.shown.ref == entry.ref:
            self.action_close()
            self.action_go(1)
        await self._refresh()


@contextmanager
def _logging_to(say: Callable[[str], None]) -> Iterator[None]:
    """What is logged meanwhile, such as that the broker is away, is said and not printed."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Saying(say)]
    try:
        yield
    finally:
        root.handlers = before


class _Saying(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        event: Any = record.msg
        self._say(event["event"] if isinstance(event, dict) else record.getMessage())
