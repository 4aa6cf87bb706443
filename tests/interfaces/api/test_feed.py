"""The events for screens: which fact makes which event, and what each client receives."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import REF, SETTLED, UNSETTLED, Story, life, question

from ayes.interfaces.api.feed import EventFilter, Feed, FeedEvent, Heartbeat, Reset, events_of
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.slots import GrantRef, ThreadRef

CALL = REF.call("refund-1")
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
#: Before the end, of a call that people decided.
ASKED = ["requested", "waiting", "decided"]
KINDS = {
    "returned": [*ASKED, "started", "finished"],
    "edited": [*ASKED, "started", "finished"],
    "failed": [*ASKED, "started", "finished"],
    "denied": [*ASKED, "finished"],
    "expired": [*ASKED, "finished"],
    "answered": [*ASKED, "finished"],
    "revoked": [*ASKED, "decided", "finished"],
    "unknown_tool": [*ASKED, "changed", "finished"],
    "in doubt": [*ASKED, "started", "finished", "changed"],
    "happened": [*ASKED, "started", "finished", "changed", "finished"],
}


def lived(ending, *others):
    """The facts of a call with this ending; each other one comes before the fact of that number."""
    story = Story()
    for number, (slot, event) in enumerate(life(CALL, WISH, ending)):
        for before, other in others:
            if before == number:
                story.tell(*other)
        story.tell(slot, event)
    return story.facts


@pytest.mark.parametrize("ending", KINDS)
def test_each_fact_is_an_event(ending):
    """In the order of the log, each with the status after it (B79)."""
    facts = lived(ending)
    events = events_of(facts, facts)
    assert [one.type for one in events] == KINDS[ending]
    assert [one.seq for one in events] == [fact.seq for fact in facts]
    for event in events:
        now = call_of(CALL, facts[: event.seq])
        assert event == FeedEvent(
            event.seq, event.type, "acme/t1/refund-1", "acme", "t1", "refund", now.status,
            event.by, event.as_of,
        )  # fmt: skip


def test_a_call_that_nobody_is_asked_about_begins_once():
    """It is requested, decided and started, each exactly once and in this order (B78)."""
    facts = [fact for fact in lived("returned") if fact.slot != CALL.gated]
    assert [one.type for one in events_of(facts, facts)] == [
        "requested", "decided", "started", "finished",
    ]  # fmt: skip


def test_who_is_behind_an_event():
    facts = lived("revoked", (2, (CALL.vote("ana"), vote())))
    assert [(one.type, one.by) for one in events_of(facts, facts)][2:5] == [
        ("voted", "ana"), ("decided", "ana"), ("decided", "ben"),
    ]  # fmt: skip


def test_a_void_fact_is_no_state():
    """A vote of the requester, a second start and a late denial change nothing (B29, B77)."""
    plain = lived("returned")
    start = e.ToolStarted(digest="of other bytes", idempotency_key=str(CALL))
    facts = lived(
        "returned",
        (2, (CALL.vote("rita"), vote())),
        (2, (CALL.claim(7), start)),
        (4, (CALL.vote("ben"), vote("deny"))),
    )
    events = events_of(facts, facts)
    assert [one.type for one in events if one.type != "changed"] == KINDS["returned"]
    changed = [(one.status, one.as_of) for one in events if one.type == "changed"]
    assert changed == [("pending", 2), ("pending", 2), ("running", 6)]
    assert events[-1].status == events_of(plain, plain)[-1].status


def test_an_event_is_small():
    """Whatever names programs and models make up: the console holds thousands of events."""
    story = Story()
    name = "x" * 100_000
    author = e.Author(kind="service", name=name)
    wished = e.ToolRequested(tool=name, arguments="{}", digest="d", by=author)
    story.tell(CALL.requested, wished)
    [event] = events_of(story.facts, story.facts)
    assert len(event.tool) == len(event.by) <= 200


def vote(verdict="approve"):
    return e.Voted(verdict=verdict, digest=question(WISH).digest)


#: Facts that do not count, wherever they are.
VOID = (
    (CALL.vote("rita"), vote()),
    (CALL.claim(8), e.ToolStarted(digest="other bytes", idempotency_key="k")),
    (CALL.late(9), e.ToolReturned(output="forged", attempt=9)),
    (CALL.reconciled_by("rita"), e.Reconciled(happened=True, output="forged")),
)


@given(st.data())
def test_a_late_event_moves_no_state_backwards(data):
    """Delivered in any order, some twice, and made of batches of any size: a client that keeps the
    state with the greatest `as_of` has that of the call (I11, I13, B77, B81).
    """
    ending = data.draw(st.sampled_from((*SETTLED, *UNSETTLED)))
    others = [(data.draw(st.integers(0, 5)), one) for one in VOID]
    facts = lived(ending, *others)
    cut = data.draw(st.integers(0, len(facts)))
    events = events_of(facts, facts)
    assert events_of(facts[:cut], facts[:cut]) + events_of(facts[cut:], facts) == events
    again = data.draw(st.lists(st.sampled_from(events), max_size=5))
    newest = 0
    shown = ""
    for event in data.draw(st.permutations([*events, *again])):
        if event.as_of >= newest:
            newest, shown = event.as_of, event.status
    assert shown == call_of(CALL, facts).status


def test_what_is_not_about_a_call_is_a_change():
    """Also bytes that are no fact have an event, so that no number is missing (B14)."""
    story = Story().say("hello")
    story.tell(GrantRef("acme", "ana", "g1").revoked_by("ana"), e.GrantRevoked(reviewer="ana"))
    story.tell(CALL.requested, e.Carried(type="", raw=b"{", problem="not JSON"))
    events = events_of(story.facts, story.facts)
    assert [(one.type, one.workspace, one.thread, one.call) for one in events] == [
        ("changed", "acme", "t1", ""),
        ("changed", "acme", "", ""),
        ("changed", "acme", "t1", "acme/t1/refund-1"),
    ]
    assert (events[2].status, events[2].as_of) == ("unknown", 0)


# ------------------------------------------------------------------------------ what clients get


class Room:
    """A log in memory, and its feed."""

    def __init__(self, kept):
        self.ledger = Ledger(Memory(), e.Author(kind="service", name="desk"))
        self.feed = Feed(self.ledger, kept)
        self.said = 0

    async def say(self, count, thread="t1"):
        for _ in range(count):
            self.said += 1
            slot = ThreadRef("shop", thread).said(f"m{self.said}")
            await self.ledger.append(slot, e.Said(role="user", text="hello"))

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def received(client, until):
    """The sequences that a client receives, up to one; a reset as negative number."""
    found = []
    async with asyncio.timeout(60):
        async for together in client:
            found += [
                one.seq if isinstance(one, FeedEvent) else -one.seq
                for one in together
                if isinstance(one, FeedEvent | Reset)
            ]
            if found and abs(found[-1]) >= until:
                return found
    raise AssertionError("the stream ended")


async def test_clients_catch_up_and_follow():
    """From where they were, or with what is new; each its own selection."""
    room = Room(kept=100)
    await room.say(5)
    feed = room.feed
    async with (
        room.running(),
        aclosing(feed.events(after=2)) as behind,
        aclosing(feed.events()) as new,
        aclosing(feed.events(EventFilter(thread="shop/t2"), after=0)) as other,
    ):
        assert await received(behind, 5) == [3, 4, 5]
        assert await anext(new) == [Heartbeat("up", 5)]
        await room.say(2, "t2")
        await room.say(1)
        assert await received(behind, 8) == [6, 7, 8]
        assert await received(new, 8) == [6, 7, 8]
        assert await received(other, 7) == [6, 7]
        assert feed.clients == 3
    assert feed.clients == 0


async def test_a_client_that_was_away_for_too_long_reads_anew():
    """Events that nobody keeps any more, or of another log, are not passed over in silence."""
    room = Room(kept=4)
    await room.say(20)
    async with room.running():
        for after, expected in ((17, [18, 19, 20]), (3, [-20]), (400, [-20])):
            async with aclosing(room.feed.events(after=after)) as client:
                assert await received(client, 20) == expected


async def test_a_slow_client_costs_nobody_anything():
    """It is told to read anew; others have everything, and the console holds no more."""
    room = Room(kept=4)
    await room.say(1)
    async with (
        room.running(),
        aclosing(room.feed.events(after=0)) as slow,
        aclosing(room.feed.events(after=0)) as quick,
    ):
        assert await received(slow, 1) == await received(quick, 1) == [1]
        for last in range(2, 42):
            await room.say(1)
            assert await received(quick, last) == [last]
            assert len(room.feed._events) <= 2 * 4
        assert (await received(slow, 41))[0] == -41
        await room.say(1)
        assert await received(slow, 42) == [42]


async def test_a_feed_that_starts_again_misses_and_doubles_nothing():
    room = Room(kept=100)
    await room.say(3)
    async with aclosing(room.feed.events(after=0)) as client:
        async with room.running():
            assert await received(client, 3) == [1, 2, 3]
        await room.say(2)
        async with room.running():
            assert await received(client, 5) == [4, 5]


async def test_streams_end_with_the_console():
    room = Room(kept=4)
    async with room.running(), aclosing(room.feed.events()) as client:
        await anext(client)
        room.feed.close()
        assert [one async for one in client] == []
