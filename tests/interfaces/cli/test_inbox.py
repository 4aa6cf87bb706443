"""The inbox: calls are decided by keys, one at a time, each with the digest that was shown."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from functools import partial

import program
import pytest
from program import ask, at_a_terminal, until_listed, up
from shop import rule
from textual.widgets import TextArea

from ayes.consumers.pending_view import PendingView
from ayes.interfaces.cli import inbox as command
from ayes.interfaces.cli.decide import chosen_calls
from ayes.interfaces.cli.screens.inbox import EARLY, SHOWN_FOR_S, Inbox
from ayes.ledger.clients.services import Ledger
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

HOSTILE = "\u202eeve\x1b[2J\x1b]8;;http://evil\x07yako\u3164"
POLICY = rule("typed", "ask", 'confirm = "typed"', tools="wire") + rule("money", "ask")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with program.shop(tmp_path_factory.mktemp("inbox"), POLICY, ("pay", "wire")) as store:
        yield store


@pytest.fixture
def thread(request):
    return CallRef("shop", request.node.name, "c").thread_ref


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self):
        return self.now


class Screen:
    """The inbox of ana, and what she sees."""

    def __init__(self, app, pilot, clock):
        self.app, self.pilot, self.clock = app, pilot, clock

    def seen(self, part):
        return str(self.app.query_one(f"#{part}").render())

    @property
    def asked(self):
        return self.app.query_one(TextArea).border_title or ""

    async def until(self, condition):
        try:
            async with asyncio.timeout(60):
                while not condition():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError([self.seen(one) for one in ("head", "card", "said")]) from None

    async def says(self, text):
        await self.until(lambda: text in self.seen("said"))

    async def press(self, *keys):
        """Press keys once the call has been shown for long enough."""
        self.clock.now += 2 * SHOWN_FOR_S
        await self.pilot.press(*keys)

    async def showing(self, call):
        await self.until(lambda: self.app.shown is not None and self.app.shown.ref == call)


@asynccontextmanager
async def opened(store, query):
    clock = Clock()
    async with (
        Ledger.connect(store, role="reviewer-ana") as ledger,
        PendingView(ledger) as view,
    ):
        choose = partial(chosen_calls, workspace="shop")
        app = Inbox(ledger, view, "ana", choose, query, clock)
        async with app.run_test(size=(120, 40)) as pilot:
            yield Screen(app, pilot, clock)


@pytest.fixture
def accounts(shop, within):
    """The people have accounts, which a first command makes."""
    for name in ("ana", "ben"):
        within("deny", "shop/nothing/c", "--as", name, "--yes", store=shop)


async def votes_on(store, call):
    async with Ledger.connect(store, role="observer") as ledger:
        known = await ledger.call(call)
    return [(one.slot.tail[3], one.event.verdict, one.event.digest) for one in known.votes]


def waiting(store, thread, names, **more):
    calls = [thread.call(name) for name in names]
    for call in calls:
        ask(store, call, **more)
        until_listed(store, call)
    return calls


async def test_calls_are_decided_by_keys(shop, thread, accounts):
    """Approve, deny and answer with their texts, later, and the name of a tool that a rule wants
    typed; each vote has the digest that was shown, and the next call is shown.
    """
    calls = await asyncio.to_thread(waiting, shop, thread, "abcd")
    calls += await asyncio.to_thread(waiting, shop, thread, "e", tool="wire")
    async with opened(shop, f"thread:{thread}") as screen:
        await screen.showing(calls[0])
        assert "5 waiting" in screen.seen("head")
        shown = {}

        async def decide(call, *keys):
            await screen.showing(call)
            assert "amount  5" in screen.seen("card")
            shown[call] = screen.app.shown.digest
            assert shown[call][:12] in screen.seen("card")
            await screen.press(*keys)

        await screen.press("s")
        await decide(calls[1], "a")
        await decide(calls[2], "d", *"no", "ctrl+s")
        await decide(calls[3], "r", *"done", "ctrl+s")
        await decide(calls[4], "a")
        await screen.until(lambda: "name of the tool" in screen.asked)
        await screen.press(*"wire", "ctrl+s")
        await screen.says(f"{calls[4]}: Approved by ana")
        await screen.until(lambda: "1 waiting" in screen.seen("head"))
        await screen.press("k")
        await decide(calls[0], "a")
        await screen.says(f"{calls[0]}: Approved by ana")
    verdicts = ["approve", "approve", "deny", "answer", "approve"]
    for call, verdict in zip(calls, verdicts, strict=True):
        assert await votes_on(shop, call) == [("ana", verdict, shown[call])]


async def test_a_key_takes_a_moment_and_a_call_that_is_shown(shop, thread, accounts):
    """A key in the first moment records nothing, and no key decides a call that was decided
    elsewhere meanwhile: it stays, and says by whom.
    """
    first, second = await asyncio.to_thread(waiting, shop, thread, "ab")
    async with opened(shop, f"thread:{thread}") as screen:
        await screen.showing(first)
        await screen.pilot.press("a")
        await screen.says(EARLY)
        await screen.press("d", *"no")
        async with Ledger.connect(shop, role="reviewer-ben") as ledger:
            await ledger.reviewer("ben").approve(first)
        await screen.until(lambda: "Approved by ben" in screen.seen("card"))
        assert screen.app.shown.ref == first
        for keys in (("ctrl+s",), ("escape", "a")):
            await screen.press(*keys)
            await screen.says("Nothing was recorded.")
        await screen.press("j")
        await screen.showing(second)
        await screen.pilot.press("a")
        await screen.says(EARLY)
    assert [one[:2] for one in await votes_on(shop, first)] == [("ben", "approve")]
    assert await votes_on(shop, second) == []


async def test_calls_are_searched(shop, thread, accounts):
    """A query selects; one that makes no sense is said, and the list stays."""
    first, second = await asyncio.to_thread(waiting, shop, thread, "ab")
    async with opened(shop, f"thread:{thread}") as screen:
        await screen.showing(first)
        await screen.press("slash", *" call:b", "enter")
        await screen.showing(second)
        assert "1 waiting" in screen.seen("head")
        await screen.press("slash", *" due:", "enter")
        await screen.says("has no value")
        assert screen.app.shown.ref == second


def declare_any(store):
    async def declared():
        async with Ledger.connect(store) as ledger:
            await ledger.declare("shop", ToolSpec(name="pay", schema='{"type":"object"}'))

    asyncio.run(declared())


def test_a_hostile_text_and_a_broker_that_goes_away(tmp_path):
    """Nothing of a call acts on the terminal. While the broker is away the inbox says so."""
    call = CallRef("shop", "t", "c")
    with up(tmp_path / "store") as ready:
        store = tmp_path / "store"
        declare_any(store)
        ask(store, call, arguments=json.dumps({"note": HOSTILE}))
        until_listed(store, call)
        size = {"COLUMNS": "120", "LINES": "40"}
        with at_a_terminal("inbox", "--as", "ana", store=store, **size) as terminal:
            terminal.read_until("<U+202E>")
            os.kill(ready["up"], signal.SIGTERM)
            terminal.read_until("the broker is away")
            terminal.type("q")
            assert terminal.ended() == 0
    for one in ("\x1b[2J\x1b]8", "\x1b]8", "\u202e", "\u3164"):
        assert one not in terminal.told


def test_what_the_inbox_needs_is_said(shop, within, monkeypatch):
    """A terminal, and the extra."""
    refused = within("inbox", "--as", "ana", store=shop)
    assert (refused.code, "needs a terminal" in refused.err) == (2, True)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    refused = within("inbox", "--as", "ana", store=shop)
    assert (refused.code, refused.err) == (
        2, "error: the inbox is not installed: pip install 'ayes[inbox]'.\n"
    )  # fmt: skip
