"""The contract of the log: what `ledger/log.py` promises, shown on JetStream, on its twin in
memory, and on the hostile broker of the simulation when nothing goes wrong.
"""

import asyncio
import itertools
import re
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from long import sampled
from msgspec import structs
from stories import told
from until import until

from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    EventLog,
    Mark,
    Overtaken,
    Parked,
    Progress,
    Recorded,
    SlotTaken,
    TimerFired,
)
from ayes.ledger.nats import group_commit, ordered_consumer
from ayes.ledger.nats.api import Api
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import NatsMessage, OnMessage
from ayes.ledger.nats.streams import ensure
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BadSlot, BrokerRefused, TooLarge
from ayes.schemas.slots import ROOT, CallRef, ThreadRef, policy_slot

pytestmark = pytest.mark.log("memory", "jetstream", "calm")

THREAD = ThreadRef("shop", "t1")
CALL = THREAD.call("refund-1")


def voted(reviewer: str = "ana") -> e.Voted:
    return e.Voted(verdict="approve", digest="d", reason=f"by {reviewer}")


async def test_an_empty_slot_takes_the_first_fact(ledger: Ledger):
    """The first append records; what is read back is that, with id, time and author."""
    cause = e.Withdrawn(id="c-1", trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    answer = await ledger.append(CALL.decided, e.Withdrawn(reason="changed my mind"), cause=cause)
    assert answer == Recorded(1)
    [fact] = await ledger.read(CALL)
    assert (fact.seq, fact.slot) == (1, CALL.decided)
    assert isinstance(fact.event, e.Withdrawn)
    assert fact.event.reason == "changed my mind"
    assert (fact.event.cause, fact.event.trace) == (cause.id, cause.trace)
    assert fact.event.by == e.Author(kind="service", name="tests")
    assert fact.event.id
    assert abs(fact.recorded_at - clock.now()) < timedelta(seconds=10)


async def test_a_taken_slot_answers_with_who_was_first(ledger: Ledger):
    """The second fact for a slot is not recorded, and its writer gets the first (B27, I6)."""
    await ledger.append(CALL.decided, e.Expired(rule="r", policy_version=1, after_s=60))
    answer = await ledger.append(CALL.decided, e.Withdrawn())
    assert isinstance(answer, SlotTaken)
    assert isinstance(answer.first.event, e.Expired)
    assert answer.first.seq == 1
    assert len(await ledger.read(CALL)) == 1


async def test_the_same_event_again_is_the_same_fact(ledger: Ledger):
    """A retry after a lost answer records nothing new, however late it comes (B48, B57)."""
    event = ledger.with_envelope(voted())
    assert await ledger.append(CALL.vote("ana"), event) == Recorded(1)
    assert await ledger.append(CALL.vote("ana"), event) == AlreadyRecorded(1)
    assert len(await ledger.read(CALL)) == 1


async def test_a_result_that_lost_goes_to_its_other_slot(ledger: Ledger):
    """What came late is kept apart, and the first result stays (I9)."""
    in_doubt = e.InDoubt(attempt=1, text="nobody knows")
    late = e.ToolReturned(output="done", attempt=1)
    await ledger.append(CALL.finished, in_doubt)
    answer = await ledger.append(CALL.finished, late, fallback_slot=CALL.late(1))
    assert isinstance(answer, SlotTaken)
    assert [type(fact.event) for fact in await ledger.read(CALL)] == [e.InDoubt, e.ToolReturned]


@pytest.mark.parametrize("others", [0, 30], ids=["alone", "in a batch"])
async def test_a_start_is_refused_behind_a_revocation_that_its_writer_has_not_seen(ledger, others):
    """The log itself compares, whatever a writer was told about a call. A retry of a start that was
    recorded is the same fact, and other facts make no difference (I1, I6).
    """
    approved = e.Approved(digest="d", ground="policy", rule="r", policy_version=1)
    started = ledger.with_envelope(e.ToolStarted(digest="d", idempotency_key="k"))
    places = itertools.count()

    async def start(after: int) -> AppendResult:
        said = e.Said(role="user", text="at the same time")
        beside = [ledger.append(THREAD.said(f"m{next(places)}"), said) for _ in range(others)]
        starting = ledger.append(CALL.client_claim(1), started, after=after)
        return (await asyncio.gather(starting, *beside))[0]

    decided = await ledger.append(CALL.decided, approved)
    assert isinstance(decided, Recorded)
    revoked = await ledger.append(CALL.revoked_by("ana"), e.Revoked(reviewer="ana"))
    assert isinstance(revoked, Recorded)
    for seen in (0, decided.seq, revoked.seq + 1, 0):
        assert await start(seen) == Overtaken()
    assert [fact.seq for fact in await ledger.read(CALL)] == [decided.seq, revoked.seq]
    for slot, event in (
        (THREAD.call("other").revoked_by("ana"), e.Revoked(reviewer="ana")),
        (CALL.vote("ana"), voted()),
    ):
        assert isinstance(await ledger.append(slot, event), Recorded)
    first = await start(revoked.seq)
    assert isinstance(first, Recorded)
    for seen in (revoked.seq, first.seq, 0):
        assert await start(seen) == AlreadyRecorded(first.seq)


@pytest.mark.parametrize("count", sampled((200, 1000), 200))
async def test_four_rivals_and_one_slot_many_times(ledger: Ledger, count: int):
    """Many slots, four rivals each: one winner, and every loser holds it (B27, B44, I6)."""
    slots = [THREAD.call(f"c{number}").claim(1) for number in range(count)]
    rivals = [e.ToolStarted(digest="d", idempotency_key=f"rival-{one}") for one in range(4)]
    answers = [
        four
        for some in itertools.batched(slots, 25)  # more at once, and a busy broker is silent
        for four in await asyncio.gather(
            *(asyncio.gather(*(ledger.append(slot, rival) for rival in rivals)) for slot in some)
        )
    ]
    for slot, four in zip(slots, answers, strict=True):
        [winner] = [answer for answer in four if isinstance(answer, Recorded)]
        losers = [answer for answer in four if isinstance(answer, SlotTaken)]
        assert len(losers) == 3
        assert {(loser.first.seq, loser.first.slot) for loser in losers} == {(winner.seq, slot)}
    assert await ledger.log.last_seq() == count


async def test_many_at_once_are_committed_together(ledger: Ledger):
    """Hundreds of appends at once: each has its own place, and one taken slot spoils no other."""
    await ledger.append(THREAD.said("m7"), e.Said(role="user", text="first"))
    answers = await asyncio.gather(
        *(ledger.append(THREAD.said(f"m{n}"), e.Said(role="user", text=str(n))) for n in range(300))
    )
    assert isinstance(answers[7], SlotTaken)
    seqs = [answer.seq for answer in answers if isinstance(answer, Recorded)]
    assert sorted(seqs) == list(range(2, 301))
    facts = await ledger.read(THREAD)
    by_seq = {fact.seq: fact for fact in facts}
    for number, answer in enumerate(answers):
        if isinstance(answer, Recorded):
            assert by_seq[answer.seq].slot == THREAD.said(f"m{number}")


@pytest.mark.parametrize("places", [(0, 19), (3, 4), (0, 1, 18, 19)])
async def test_a_slot_that_is_filled_twice_at_once_holds_up_nothing(ledger, places, monkeypatch):
    """As by the deliveries of two facts that cause the same one. nats-server 2.15 stores such a
    batch in part, and may never answer it.
    """
    monkeypatch.setattr(group_commit, "PATIENCE_S", 60.0)
    names = ["same" if n in places else f"m{n}" for n in range(20)]
    answers = await asyncio.gather(
        *(
            ledger.append(THREAD.said(name), e.Said(role="user", text=str(n)))
            for n, name in enumerate(names)
        )
    )
    [winner, *others] = [answers[place] for place in places]
    assert isinstance(winner, Recorded)
    assert all(isinstance(one, SlotTaken) and one.first.seq == winner.seq for one in others)
    assert sum(isinstance(one, Recorded) for one in answers) == 20 - len(others)


async def test_a_thread_with_more_facts_than_one_answer_holds(ledger: Ledger):
    """A thread of 1,500 facts is read whole, in the log's order (the broker's limit is 1,024)."""
    for start in range(0, 1500, 500):
        await asyncio.gather(
            *(
                ledger.append(THREAD.said(f"m{n}"), e.Said(role="user", text=str(n)))
                for n in range(start, start + 500)
            )
        )
    facts = await ledger.read(THREAD)
    assert [fact.seq for fact in facts] == list(range(1, 1501))


async def test_reading_what_is_not_there(ledger: Ledger):
    """A call that nobody asked for is empty, not an error."""
    assert await ledger.read(CALL) == ()
    assert await ledger.log.latest(CALL.decided.subject) is None


async def test_the_latest_of_several(ledger: Ledger):
    """`latest` takes a wildcard and gives the newest fact that matches."""
    for version in (1, 2, 3):
        await ledger.append(
            policy_slot("shop", version), e.PolicyApplied(text="", digest=str(version))
        )
    latest = await ledger.log.latest("ledger.shop._policy.*")
    assert latest.slot == policy_slot("shop", 3)


async def test_replay_gives_everything_once_in_order_and_ends(ledger: Ledger):
    """Replay ends at what is the end now; from a sequence, from a time, and with a filter (I11)."""
    assert [fact async for fact in ledger.replay()] == []
    for number in range(50):
        await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))
    whole = [fact async for fact in ledger.replay()]
    assert [fact.seq for fact in whole] == list(range(1, 51))
    assert [fact.seq async for fact in ledger.replay(41)] == list(range(41, 51))
    since = whole[30].recorded_at
    assert [fact.seq async for fact in ledger.replay(since)][-20:] == list(range(31, 51))
    assert [fact.seq async for fact in ledger.replay(1, THREAD.said("m3").subject)] == [4]
    assert [fact async for fact in ledger.replay(1, CALL.subjects)] == []
    assert [fact async for fact in ledger.replay(51)] == []


async def test_a_scan_gives_what_is_there_from_a_number_on(ledger: Ledger):
    """Also a single subject, or those that wildcards name."""
    for number in range(9):
        await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))

    async def scanned(start: int, subjects: str = "ledger.>") -> list[int]:
        return [raw.seq async for page in ledger.log.scan(start, subjects) for raw in page]

    assert await scanned(1) == [*range(1, 10)]
    assert await scanned(7, THREAD.subjects) == [7, 8, 9]
    assert await scanned(2, THREAD.said("m3").subject) == [4]
    assert await scanned(5, THREAD.said("m3").subject) == []


@pytest.mark.log("jetstream")
async def test_a_whole_log_is_asked_for_as_such(ledger: Ledger, monkeypatch):
    """After each page the server counts the rest: by any narrower wildcard one subject after the
    other, a million times.
    """
    await ledger.append(THREAD.said("m"), e.Said(role="user", text="hello"))
    asked: list[str] = []
    collect = Api.collect

    async def noted(self: Api, subject: str, body: bytes, *others: Any) -> Any:
        asked.append(msgspec.json.decode(body)["next_by_subj"])
        return await collect(self, subject, body, *others)

    monkeypatch.setattr(Api, "collect", noted)
    for subjects in ("ledger.>", THREAD.subjects):
        assert [raw.seq async for page in ledger.log.scan(1, subjects) for raw in page] == [1]
    assert asked == [">", THREAD.subjects]


async def test_watch_goes_on_with_what_comes(ledger: Ledger):
    """Watching gives what is there and then what comes, each once."""
    await ledger.append(THREAD.said("m0"), e.Said(role="user", text="0"))
    seen: list[int] = []
    async with aclosing(ledger.watch()) as facts:
        async for fact in facts:
            seen.append(fact.seq)
            if len(seen) == 5:
                break
            await ledger.append(THREAD.said(f"m{len(seen)}"), e.Said(role="user", text="next"))
    assert seen == [1, 2, 3, 4, 5]


async def test_what_came_together_is_handed_on_together(ledger: Ledger):
    """A follower of the port gets lists, never an empty one, and all of them together are the log;
    a filter that lets everything through changes nothing (I11).
    """
    await asyncio.gather(
        *(ledger.append(THREAD.said(f"m{n}"), e.Said(role="user", text=str(n))) for n in range(700))
    )
    for subjects in ((), (f"{ROOT}.>",)):
        lists = [facts async for facts in ledger.log.follow(subjects, 1, until_end=True)]
        assert [fact.seq for facts in lists for fact in facts] == list(range(1, 701))
        assert min(map(len, lists)) > 0
        assert len(lists) < 350
    assert [facts async for facts in ledger.log.follow((CALL.subjects,), 1, until_end=True)] == []


@pytest.mark.parametrize("lost", [{1}, {5}, {2, 3, 9}, {10}])
async def test_what_is_lost_on_its_way_is_read_again(store, monkeypatch, lost):
    """Messages that never arrive, in the midst of others or as the last one: the follower misses
    none and sees none twice (B53, I11).
    """
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT_S", 0.2)
    delivered = 0
    async with Ledger.connect(store, role="admin") as ledger:
        for number in range(10):
            await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))
        assert isinstance(ledger.log, JetStream)
        straight = ledger.log.api.straight

        def lossy(subject: str, take: OnMessage) -> AbstractAsyncContextManager[None]:
            def take_some(message: NatsMessage) -> None:
                nonlocal delivered
                if message[0].startswith(ROOT.encode()):
                    delivered += 1
                    if delivered in lost:
                        return
                take(message)

            return straight(subject, take_some)

        monkeypatch.setattr(ledger.log.api, "straight", lossy)
        async with asyncio.timeout(60):
            assert [fact.seq async for fact in ledger.replay()] == list(range(1, 11))
    assert delivered > 10


@pytest.mark.parametrize("left", [0, 2])
async def test_a_log_that_was_made_anew_is_not_followed_on(store, monkeypatch, left):
    """Its sequences mean something else by now; who went on behind them would miss what is recorded
    until then.

    One fact less than was read is enough.
    """
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT_S", 0.2)
    async with Ledger.connect(store, role="admin") as ledger, aclosing(ledger.watch()) as facts:
        assert isinstance(ledger.log, JetStream)
        for number in range(3):
            await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))
            await anext(facts)
        await ledger.log.api.ask(f"$JS.API.STREAM.DELETE.{LEDGER}", b"")
        await ensure(ledger.log.api)
        for number in range(left):
            await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))
        with pytest.raises(
            BrokerRefused, match=f"LEDGER ends at {left}, and 3 was read from it before"
        ):
            async with asyncio.timeout(60):
                await anext(facts)


async def test_a_consumer_is_handed_what_concerns_it(port: EventLog, ledger: Ledger):
    """A durable gets the facts on its subjects only, each until it is acknowledged."""
    await ledger.append(CALL.requested, e.ToolRequested(tool="t", arguments="{}", digest="d"))
    await ledger.append(CALL.gated, e.ApprovalRequested(digest="d", rule="r", policy_version=1))
    await ledger.append(CALL.vote("ana"), voted())
    async with port.deliveries("gate") as deliveries:
        first = await anext(deliveries)
        second = await anext(deliveries)
        assert [first.handed.seq, second.handed.seq] == [1, 3]
        assert (first.tries, second.tries) == (1, 1)
        await first.ack()
        await second.retry(0.05)
        again = await anext(deliveries)
        assert (again.handed.seq, again.tries) == (3, 2)
        await again.ack()


@pytest.mark.parametrize("ack_wait_s", [1.5])
async def test_a_silent_consumer_is_taken_for_dead(port, ledger, ack_wait_s):
    """What is neither acknowledged nor reported on comes again; what is reported on does not."""
    await ledger.append(CALL.requested, e.ToolRequested(tool="t", arguments="{}", digest="d"))
    other = THREAD.call("other")
    await ledger.append(other.requested, e.ToolRequested(tool="t", arguments="{}", digest="d"))
    async with port.deliveries("gate") as deliveries:
        silent, busy = await anext(deliveries), await anext(deliveries)

        async def report() -> None:
            while True:
                await asyncio.sleep(0.05)
                await busy.in_progress()

        reporting = asyncio.create_task(report())
        again = await anext(deliveries)
        assert again.handed.seq == silent.handed.seq
        assert again.tries == 2
        reporting.cancel()
        await again.ack()
        await busy.ack()


async def test_a_deadline_is_handed_out_when_it_is_due(port: EventLog):
    """A timer fires once, at its time; setting it again moves it; cancelling it silences it."""
    other, third = THREAD.call("other"), THREAD.call("third")
    # Overdue, as after a day of downtime.
    await port.set_timer(third, clock.now() - timedelta(hours=1))
    await port.set_timer(CALL, clock.now() + timedelta(hours=1))
    at = clock.now() + timedelta(seconds=1)
    await port.set_timer(other, at)
    await port.cancel_timer(other)
    await port.set_timer(CALL, at)
    async with port.deliveries("gate-timers") as deliveries:
        overdue = await anext(deliveries)
        due = await anext(deliveries)
        assert isinstance(overdue.handed, TimerFired)
        assert isinstance(due.handed, TimerFired)
        assert (overdue.handed.call, due.handed.call) == (third, CALL)
        assert due.handed.recorded_at >= at - timedelta(milliseconds=50)
        await overdue.ack()
        await due.ack()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(deliveries)


async def test_the_queue_is_written_by_revision(port: EventLog):
    """A write with an older revision loses, so an older view never overwrites a newer one (I13)."""
    pending = port.pending
    assert await pending.get("shop.t1.c1") == (b"", 0)
    assert await pending.put("shop.t1.c1", b"one", 0)
    value, revision = await pending.get("shop.t1.c1")
    assert value == b"one"
    assert not await pending.put("shop.t1.c1", b"stale", 0)
    assert await pending.put("shop.t1.c1", b"two", revision)
    assert not await pending.delete("shop.t1.c1", revision)
    assert await pending.entries() == {"shop.t1.c1": b"two"}
    assert await pending.delete("shop.t1.c1", (await pending.get("shop.t1.c1"))[1])
    assert await pending.entries() == {}


async def test_the_queue_can_be_watched(port: EventLog):
    """A watcher gets what is open, then every change; an entry that went is told as empty."""
    await port.pending.put("shop.t1.c1", b"one", 0)
    changes: list[tuple[str, bytes]] = []
    async with aclosing(told(port.pending)) as watching:
        async for change in watching:
            changes.append(change)
            if len(changes) == 1:
                await port.pending.put("shop.t1.c2", b"two", 0)
            elif len(changes) == 2:
                _, revision = await port.pending.get("shop.t1.c1")
                await port.pending.delete("shop.t1.c1", revision)
            else:
                break
    assert changes == [("shop.t1.c1", b"one"), ("shop.t1.c2", b"two"), ("shop.t1.c1", b"")]


async def test_what_cannot_be_handled_is_parked(port: EventLog):
    """Parking keeps the reason, and which fact it was."""
    now = clock.now()
    other = Parked("gate-timers", 7, str(CALL), "no time", 5, now)
    assert await port.park(Parked("gate", 7, CALL.requested.subject, "no sense", 5, now))
    assert await port.park(other)
    first, second = await port.parked()
    assert first == Parked(
        "gate", 7, CALL.requested.subject, "no sense", 5, now, number=first.number, word=first.word
    )
    assert second == structs.replace(other, number=second.number, word=second.word)
    assert 0 < first.number < second.number
    assert await port.parked_at(first.number) == first
    assert await port.parked("gate-timers") == [second]


async def test_what_is_parked_changes_by_its_number(port: EventLog):
    """Who names a number that has changed loses; what is settled or dropped is kept (D12)."""
    now = clock.now()
    await port.park(Parked("gate", 7, CALL.requested.subject, "no sense", 5, now))
    await port.park(Parked("gate", 8, CALL.requested.subject, "no sense", 5, now))
    seven, eight = await port.parked()
    assert await port.park(structs.replace(seven, state="again"))
    assert not await port.park(structs.replace(seven, state="again"))
    assert await port.parked_at(seven.number) is None
    [_, again] = await port.parked()
    assert (again.seq, again.state) == (7, "again")
    assert await port.park(structs.replace(again, state="settled"))
    assert await port.parked() == [eight]
    dropped = Mark("gate", eight.number, "drop", now, "seen")
    await port.mark(dropped)
    assert await port.parked() == []
    whole = await port.parked(whole=True)
    assert [(one.seq, one.state, one.mark) for one in whole] == [
        (8, "parked", dropped),
        (7, "settled", None),
    ]


async def test_what_cannot_stand_there_is_refused_before_it_is_sent(ledger: Ledger):
    """A fact in a slot of another kind, and one that is too large, record nothing."""
    with pytest.raises(
        BadSlot, match=r"a Voted cannot be in ledger\.shop\.t1\.call\.refund-1\.decided"
    ):
        await ledger.append(CALL.decided, voted())
    with pytest.raises(TooLarge, match=r"a Said of 600,\d+ bytes is over the limit of 524,288"):
        await ledger.append(THREAD.said("m1"), e.Said(role="user", text="x" * 600_000))
    assert await ledger.log.last_seq() == 0


async def test_foreign_bytes_do_not_hide_what_comes_after_them(port: EventLog, ledger: Ledger):
    """Bytes that are no fact are carried with why; replay goes on behind them (B14, I12)."""
    await port.append(THREAD.said("m1"), b"\xff not a fact", "x")
    await port.append(THREAD.said("m2"), b'{"type":"FromTheFuture","v":9,"id":"y"}', "y")
    await port.append(
        THREAD.said("m3"), encode(ledger.with_envelope(e.Said(role="user", text="hello"))), "z"
    )
    foreign, future, fact = [one.event async for one in ledger.replay()]
    assert isinstance(foreign, e.Carried)
    assert "is not a fact" in foreign.problem
    assert future == e.Carried(
        type="FromTheFuture", raw=b'{"type":"FromTheFuture","v":9,"id":"y"}', id="y", v=9
    )
    assert isinstance(fact, e.Said)


def test_a_call_is_written_the_way_it_is_read():
    """`workspace/thread/call` round-trips (B24)."""
    assert CallRef.parse(str(CALL)) == CALL


async def test_a_log_says_which_it_is_and_how_far_its_readers_are(port: EventLog, ledger: Ledger):
    """What is waiting, in hand and acknowledged of a subscription; its first fact names the log."""

    async def is_at(acknowledged: int, in_hand: int) -> bool:
        there = Progress(acknowledged=acknowledged, waiting=0, in_hand=in_hand)
        return await port.progress("gate") == there

    assert await port.identity() == ""
    assert await port.progress("nobody") is None
    assert await port.progress("gate") == Progress(acknowledged=0, waiting=0, in_hand=0)
    for ref in (CALL, CallRef("shop", "t1", "other")):
        await ledger.append(ref.vote("ana"), voted())
        assert re.fullmatch("[0-9a-f]{32}", identity := await port.identity())
    assert await port.identity() == identity
    async with port.deliveries("gate") as deliveries:
        first, _second = await anext(deliveries), await anext(deliveries)
        await until(lambda: is_at(acknowledged=0, in_hand=2))
        await first.ack()
        await until(lambda: is_at(acknowledged=1, in_hand=1))
