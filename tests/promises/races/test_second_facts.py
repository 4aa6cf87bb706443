"""A raw client fills slots again whose facts were packed and have left the stream: nothing that is
read, told or done changes by it (docs/decisions/0091).

Of two facts in one slot the first counts, by its number. The second is in the log, with its number,
and everybody who reads the log from one number to the next finds there that it is in no slot.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from lake_tables import read as tables_of
from lake_tables import rows
from msgspec.structs import replace
from packing import let_remove, refill, removed
from receivers import endpoint
from running import working
from stories import DECISIONS, REF, approval, life, question, request
from until import until

from ayes.consumers import doubt
from ayes.consumers.gate import Gate
from ayes.consumers.unstarted import Unstarted
from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.consumers.webhooks.worker import Webhooks
from ayes.consumers.webhooks.worker import replay as send_again
from ayes.consumers.worker import Worker
from ayes.interfaces.aap.deliveries import DecisionDeliveries
from ayes.interfaces.aap.instances import Instance, InstancesFile, Receiver
from ayes.interfaces.api import search, threads, windows
from ayes.interfaces.api.feed import Feed
from ayes.interfaces.cli.look import _append_events
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered, EventLog, RawMessage
from ayes.ledger.nats import refilled, streams
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.stops import stops_of
from ayes.ledger.subscriptions import DURABLES, LEDGER
from ayes.ops.actions.stops import account
from ayes.ops.audit.backtest import backtest_ledger
from ayes.ops.audit.replay import PROJECTIONS, replay
from ayes.ops.audit.verify import rebuild
from ayes.ops.inspection.monitor import _known
from ayes.projections.call_query import CallQuery
from ayes.projections.fold import ProjectionState
from ayes.projections.history import history
from ayes.projections.tally import FactCounts, is_decision
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import Slot, StopRef, ThreadRef, matches, policies, policy_slot

pytestmark = pytest.mark.log("memory", "jetstream")

OTHER = ThreadRef(REF.workspace, "t2")
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
FORGED = e.Wish(tool="refund", arguments='{"order":"forged"}')
RAN, DENIED = REF.wish(1, 0), OTHER.call("c1")
FOR = e.Voted(verdict="approve", digest=question(WISH).digest)
AGAINST = e.Voted(verdict="deny", digest=question(WISH).digest)


def with_vote(facts: list[tuple[Slot, Any]], slot: Slot, vote: e.Voted) -> list[tuple[Slot, Any]]:
    return [*facts[:2], (slot, vote), *facts[2:]]


STORY: list[tuple[Slot, Any]] = [
    (REF.opened, e.ThreadOpened(requester="rita", model="test:model")),
    (REF.said("m1"), e.Said(role="user", text="Refund it.")),
    (REF.asked(1, 1), e.ModelAsked(model="test:model")),
    (REF.replied(1), e.ModelReplied(parts=(e.Text("I will."), WISH))),
    *with_vote(life(RAN, WISH, "returned"), RAN.vote("ana"), FOR),
    (REF.asked(2, 1), e.ModelAsked(model="test:model")),
    (REF.replied(2), e.ModelReplied(parts=(e.Text("It is done."),))),
    *with_vote(life(DENIED, WISH, "denied"), DENIED.vote("ana"), AGAINST),
]
#: What a raw client puts into the slots of these facts, one after another.
FORGERIES: list[tuple[Slot, Any]] = [
    (RAN.requested, request(FORGED)),
    (DENIED.requested, request(FORGED)),
    (RAN.gated, question(FORGED)),
    (DENIED.gated, question(FORGED)),
    (RAN.vote("ana"), AGAINST),
    (DENIED.vote("ana"), FOR),
    (RAN.decided, DECISIONS["denied"]),
    (DENIED.decided, approval(WISH)),
    (RAN.claim(1), e.ToolStarted(digest="of other bytes", idempotency_key="k")),
    (RAN.finished, e.ToolFailed(error="It did not run.")),
    (DENIED.finished, e.ToolReturned(output="It ran.")),
    (REF.asked(1, 1), e.ModelAsked(model="forged:model")),
    (REF.replied(1), e.ModelReplied(parts=(WISH, FORGED), usage=e.Usage(10**6, 10**6))),
    (REF.said("m1"), e.Said(role="user", text="Do not refund it.")),
]
assert {slot for slot, _ in FORGERIES} < {slot for slot, _ in STORY}
ALLOWING = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
BLOCKING = '[[rule]]\nname = "none"\ntools = ["*"]\nthen = "block"\n'


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed here leaves the stream at once."""
    monkeypatch.setattr(refilled, "LOOKED_FOR", timedelta(0))


@pytest.fixture
async def settled(port: EventLog, ledger: Ledger) -> Ledger:
    """Two calls that ended long ago, of which the stream has nothing any more."""
    await let_remove(port)
    for slot, event in STORY:
        await ledger.append(slot, event)
    await removed(ledger, REF, OTHER)
    return ledger


# ------------------------------------------------------------------------------- what is read of it

_numbers = count(1)


async def whole(log: EventLog) -> list[RawMessage]:
    async with aclosing(log.raw(1, until_end=True)) as pages:
        return [one async for page in pages for one in page]


async def by_name(ledger: Ledger, _folder: Path) -> Any:
    facts = await ledger.read(REF)
    return (
        facts,
        [await ledger.call(ref) for ref in (RAN, DENIED)],
        history(thread_of(REF, facts)),
        [await ledger.log.latest(slot.subject) for slot, _ in FORGERIES],
    )


async def replayed(ledger: Ledger, _folder: Path) -> Any:
    """With all in memory, and with everything that is complete evicted at once."""
    found = []
    for kept in (100, 0):
        folds = [replace(one, keep_complete=kept) for one in PROJECTIONS.values()]
        state = ProjectionState(*folds)
        gaps = await replay(ledger, state)
        found.append((gaps, {fold.name: list(state.rows(fold)) for fold in folds}))
    return found


async def rebuilt(ledger: Ledger, _folder: Path) -> Any:
    found = await rebuild(ledger)
    return found.calls, found.pending, found.threads, found.differences


async def counted(ledger: Ledger, _folder: Path) -> Any:
    """As the monitor counts for metrics."""
    tally = FactCounts()
    async with aclosing(ledger.log.follow((), 1, until_end=True)) as batches:
        async for facts in batches:
            known = await _known(ledger, filter(is_decision, facts))
            for fact in facts:
                tally.apply(fact, known[fact.slot.call_ref])
    kinds = {kind: number for kind, number in tally.facts.items() if kind != "unknown"}
    return tally.decisions, {asked: one.counts for asked, one in tally.durations.items()}, kinds


async def tried_on(ledger: Ledger, _folder: Path) -> Any:
    found, _unreadable = await backtest_ledger(ledger, read_policy(ALLOWING, "policy.toml"))
    return found


async def unstarted(ledger: Ledger, _folder: Path) -> Any:
    """What a gate finds approved and not started when a policy blocks it."""
    number = len(await ledger.log.read(policies(REF.workspace))) + 1
    slot = policy_slot(REF.workspace, number)
    await ledger.append(slot, applied(BLOCKING))
    [policy] = await ledger.log.read(slot.subject)
    return await Unstarted().before(ledger, policy, REF.workspace)


async def in_doubt(ledger: Ledger, _folder: Path) -> Any:
    await doubt.update_index(ledger)
    return await doubt.in_doubt(ledger), await doubt.void_runs(ledger)


async def stopped(ledger: Ledger, _folder: Path) -> Any:
    ref = StopRef(REF.workspace, "ana", f"s{next(_numbers)}")
    await ledger.append(ref.given, e.Stopped(reason="why"))
    [stop] = stops_of(await ledger.log.read(ref.subjects))
    found = await account(ledger, stop)
    return found.running, found.in_doubt, found.held, found.pending


class Posts(Sender):
    """Takes all that is sent."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []

    async def post(self, _to: Any, _id: str, body: str, *_: Any) -> HttpAnswer:
        self.posts.append(json.loads(body))
        return HttpAnswer(200)


async def sent(ledger: Ledger, _folder: Path) -> Any:
    """What an endpoint is sent of these threads."""
    sender = Posts()
    async with aclosing(
        send_again(ledger, sender, endpoint("https://x.example"), 1, None, ())
    ) as each:
        assert not [one.why async for one in each if one.why]
    return sender.posts


async def on_screens(ledger: Ledger, _folder: Path) -> Any:
    feed = Feed(ledger)
    following = asyncio.create_task(feed.run())
    try:
        last = await ledger.log.last_seq()
        await until(lambda: feed.seq == last or following.done())
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [one.seq for one in feed._events] == [*range(1, last + 1)]
    return [one for one in feed._events if one.thread]


async def in_windows(ledger: Ledger, _folder: Path) -> Any:
    log, end = cast(JetStream, ledger.log), await ledger.log.last_seq() + 1
    found = []
    for reading in (windows.newest_first, windows.oldest_first):
        async with aclosing(reading(log, "ledger.>", 1, end)) as each:
            found.append([one async for facts, _ in each for one in facts if one.slot.thread])
    return found


async def by_activity(ledger: Ledger, _folder: Path) -> Any:
    log, end = cast(JetStream, ledger.log), await ledger.log.last_seq() + 1
    first, _ = await threads._newest(log, "ledger.*.*.>", end, 50, is_first=True)
    later, _ = await threads._newest(log, "ledger.*.*.>", end, 50, is_first=False)
    return first, later


async def found(ledger: Ledger, folder: Path) -> Any:
    """The decided calls; the console reads brokers only."""
    if not isinstance(ledger.log, JetStream):
        return None
    newest = await search.search(ledger, folder / "none", CallQuery.of())
    oldest = await search.search(ledger, folder / "none", CallQuery.of(), "oldest")
    return newest, oldest


async def in_lake(ledger: Ledger, _folder: Path) -> Any:
    db = tables_of(await whole(ledger.log))
    places = "seq, workspace, thread, place, call, turn, counts, stands_as"
    return [
        rows(db, f"SELECT {what} ORDER BY ALL")
        for what in (
            "* FROM calls", "* FROM votes", "* FROM threads",
            f"{places} FROM events WHERE workspace IS NOT NULL",
        )
    ]  # fmt: skip


async def of_security(ledger: Ledger, folder: Path) -> Any:
    """The events of OCSF that are no findings."""
    path = folder / f"events-{next(_numbers)}.jsonl"
    await _append_events(ledger, path, 1, until_now=True)
    events = [json.loads(one) for one in path.read_text().splitlines()]
    return [one for one in events if one["class_uid"] != 2004]


READERS: list[Callable[[Ledger, Path], Awaitable[Any]]] = [
    by_name, replayed, rebuilt, counted, tried_on, unstarted, in_doubt, stopped, sent, on_screens,
    in_windows, by_activity, found, in_lake, of_security,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.__name__)
async def test_whoever_reads_finds_what_was_there_before(
    settled: Ledger, tmp_path: Path, reader: Callable[[Ledger, Path], Awaitable[Any]]
):
    """After each of the second facts."""
    before = await reader(settled, tmp_path)
    for slot, event in FORGERIES:
        await refill(settled.log, slot, event)
        assert await reader(settled, tmp_path) == before, slot.subject


async def test_who_checks_the_log_is_told(settled: Ledger):
    """With the numbers of both."""
    first = {slot.subject: (await settled.read(slot))[0].seq for slot, _ in FORGERIES}
    before = (await rebuild(settled)).void
    for slot, event in FORGERIES:
        await refill(settled.log, slot, event)
    await settled.append(RAN.late(1), e.ToolReturned(output="late"))
    void = (await rebuild(settled)).void[len(before) :]
    assert [(one.subject, one.why) for one in void] == [
        (slot.subject, f"its slot was filled before it, by fact {first[slot.subject]}")
        for slot, _ in FORGERIES
    ]
    db = tables_of(await whole(settled.log))
    found = rows(db, "SELECT * FROM events WHERE workspace IS NULL ORDER BY seq")
    assert [(one["subject"], one["void"]) for one in found] == [
        (one.subject, one.why) for one in void
    ]
    assert not any(one["counts"] for one in found)


async def test_a_receiver_is_told_once_that_a_request_is_decided(settled: Ledger, tmp_path: Path):
    """And again when another request is decided, whatever else was recorded in between."""
    file, now = InstancesFile(tmp_path / "instances.json"), clock.now()
    receiver = Receiver("webhook", "https://x.example", "r", "whsec_" + "A" * 43 + "=")
    bot = Instance("i", "bot", "rita", "", "", now, now + timedelta(days=1), 0, receiver)
    file.add(bot, frozenset())
    sender = Posts()
    deliveries = DecisionDeliveries(file, settled, sender, lambda _name: OTHER)
    telling = asyncio.create_task(deliveries._tell("i"))
    try:
        await until(lambda: sender.posts or telling.done())
        for slot, event in FORGERIES:
            await refill(settled.log, slot, event)
        if isinstance(settled.log, JetStream):
            no_call = f"{OTHER.subjects.removesuffix('>')}call.$.decided"
            assert (await settled.log.api.publish(no_call, b"{}")).error is None
        for slot, event in life(OTHER.call("c2"), WISH, "denied"):
            await settled.append(slot, event)
        await until(lambda: len(sender.posts) > 1 or telling.done())
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    assert [one["request_id"] for one in sender.posts] == ["c1", "c2"]


# ------------------------------------------------------------------------------------- who works


class Handed:
    """Does nothing, and notes what it is handed."""

    replaces = False

    def __init__(self, durable: str) -> None:
        self.durables = (durable,)
        self.seqs: list[int] = []

    async def load(self, _ledger: Ledger, handed: Delivered) -> None:
        self.seqs.append(handed.seq)

    def decide(self, _seen: None, _handed: Delivered) -> list[Any]:
        return []

    async def execute(self, _ledger: Ledger, _work: Any) -> None:
        raise AssertionError


#: The subscriptions to facts, but for those of rehearsals.
WORKERS = [
    name
    for name, one in DURABLES.items()
    if one.stream == LEDGER and not one.only_again and not name.endswith("-recorded")
]


async def employed(log: EventLog, *durables: str) -> None:
    if isinstance(log, JetStream):
        await streams.ensure_consumers(log.api, also=durables)


async def all_handled(log: EventLog, durable: str) -> None:
    async def is_done() -> bool:
        at = await log.progress(durable)
        return at is not None and not (at.waiting or at.in_hand)

    await until(is_done)


@pytest.mark.parametrize("durable", WORKERS)
async def test_no_worker_is_handed_the_second(settled: Ledger, durable: str):
    """It is parked, says why, and holds up nothing; also once it is tried again."""
    seconds = {await refill(settled.log, *one): one[0].subject for one in FORGERIES}
    await settled.append(OTHER.replied(1), e.ModelReplied(parts=(e.Text("last"),)))
    for slot, event in life(OTHER.call("c2"), WISH, "revoked"):
        await settled.append(slot, event)
    await employed(settled.log, durable)
    reaction = Handed(durable)
    async with working(Worker(settled, reaction)):
        await all_handled(settled.log, durable)
    assert reaction.seqs
    assert not seconds.keys() & {*reaction.seqs}
    parked = await settled.log.parked(durable)
    mine = DURABLES[durable].subjects
    assert {one.seq for one in parked} == {
        seq for seq, subject in seconds.items() if any(matches(one, subject) for one in mine)
    }
    for one in parked:
        assert one.reason.startswith("its slot was filled before it, by fact ")
        original = await Worker(settled, reaction)._original(one)
        assert isinstance(original, Fact)
        assert isinstance(original.event, e.Carried)


async def test_the_gate_requests_nothing_of_a_second_reply(settled: Ledger):
    """Nor does it ask anybody, or decide."""
    await settled.append(policy_slot(REF.workspace, 1), applied(ALLOWING))
    for slot, event in FORGERIES:
        await refill(settled.log, slot, event)
    last = await settled.log.last_seq()
    await employed(settled.log)
    async with working(Worker(settled, Gate())):
        await all_handled(settled.log, "gate")
        await all_handled(settled.log, "gate-replies")
    assert await settled.log.last_seq() == last
    statuses = [(await settled.call(ref)).status for ref in (RAN, DENIED, REF.wish(1, 1))]
    assert statuses == [Status.RETURNED, Status.REFUSED, Status.UNKNOWN]


async def test_an_endpoint_is_sent_nothing_of_the_second(settled: Ledger, tmp_path: Path):
    """As it follows the log."""
    file = EndpointFile(tmp_path / "webhooks.json")
    file.add(endpoint("https://x.example", "crm"))
    file.verify("crm", clock.now())
    sender = Posts()
    webhooks = Webhooks(file, sender)
    sending = asyncio.create_task(webhooks.send(settled))
    try:
        for slot, event in FORGERIES:
            await refill(settled.log, slot, event)
        await settled.append(OTHER.said("end"), e.Said(role="user", text="end"))
        await until(lambda: sender.posts or sending.done())
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert [one["subject"] for one in sender.posts] == [OTHER.said("end").subject]
