"""Packing on a real broker: what was settled long ago leaves the stream and nothing else changes
(docs/decisions/0091).
"""

import asyncio
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from packing import in_stream, let_remove
from stories import CALL, REF, WISH, life, request
from structlog.testing import capture_logs
from until import until

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog, RawMessage
from ayes.ledger.nats import jetstream, streams
from ayes.ledger.nats.group_commit import AMONG
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.key_value import REPLACES
from ayes.ledger.subscriptions import DURABLES, LEDGER
from ayes.ops.actions import packing
from ayes.ops.actions.packing import REMOVED_AFTER, HeldBack, PackedThread, pack_log
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BadInput, BrokerAway, LogDamaged, OutcomeUnknown
from ayes.schemas.slots import Slot, ThreadRef, stops

pytestmark = pytest.mark.log("jetstream")

OTHER = ThreadRef("elsewhere", "t2")
OPEN = OTHER.call("open")
SAID = e.Said(role="user", text="?")
#: What a run does that removes what is settled of those that `told` tells.
REMOVED = [PackedThread(str(REF), removed=6), PackedThread(str(OTHER), removed=4)]
AT_ONCE = timedelta(0)
LATER = REMOVED_AFTER + timedelta(seconds=1)


@pytest.fixture
async def told(port: EventLog, ledger: Ledger) -> Ledger:
    """Two threads with settled calls, and one that is open."""
    await let_remove(port)
    await ledger.append(REF.opened, e.ThreadOpened(requester="rita"))
    await ledger.append(REF.said("m1"), SAID)
    for slot, event in (
        *life(CALL, WISH, "returned"),
        *life(OPEN, WISH, "approved"),
        *life(OTHER.call("c1"), WISH, "denied"),
    ):
        await ledger.append(slot, event)
    return ledger


async def ran(
    ledger: Ledger, later: timedelta = AT_ONCE, settled_for: timedelta = AT_ONCE
) -> list[PackedThread | HeldBack]:
    """What a run does that begins so much later."""
    now = await ledger.log.clock() + later
    async with aclosing(pack_log(ledger, settled_for=settled_for, now=now)) as done:
        return [one async for one in done]


async def whole(log: EventLog) -> list[RawMessage]:
    async with aclosing(log.raw(1, until_end=True)) as pages:
        return [one async for page in pages for one in page]


async def test_what_was_settled_long_ago_leaves_the_stream(told: Ledger):
    """Not before, and only some time after it was packed. All is read as before."""
    before = await whole(told.log)
    assert await ran(told, settled_for=timedelta(days=1)) == []
    assert await whole(told.log) == before
    assert await ran(told) == [PackedThread(one.thread, packed=one.removed) for one in REMOVED]
    assert [one.seq for one in await in_stream(told.log)] == [*range(1, len(before) + 3)]
    assert await ran(told, LATER) == REMOVED
    stayed = {one.subject for one in await in_stream(told.log)}
    assert {REF.opened.subject, OPEN.decided.subject, REF.packed(1).subject} < stayed
    assert not {CALL.decided.subject, REF.said("m1").subject} & stayed
    assert (await whole(told.log))[: len(before)] == before
    assert await ran(told, LATER) == []


async def test_what_comes_later_is_packed_later(told: Ledger):
    """Behind the last pack; a call that was open is packed once it is over."""
    await ran(told)
    for slot, event in life(OPEN, WISH, "returned"):
        await told.append(slot, event)
    await told.append(CALL.late(1), e.ToolReturned(output="late"))
    before = await whole(told.log)
    [done] = await ran(told)
    assert isinstance(done, PackedThread)
    assert (done.thread, done.removed) == (str(OTHER), 0)
    await ran(told, LATER)
    left = {one.subject for one in await in_stream(told.log)}
    assert OPEN.requested.subject not in left
    assert {CALL.late(1).subject, OTHER.packed(1).subject, OTHER.packed(2).subject} <= left
    assert (await whole(told.log))[: len(before)] == before


async def test_killed_between_any_two_requests(told: Ledger, monkeypatch):
    """The next run finishes it. Whatever was reached, all is read as before."""
    before = await whole(told.log)
    assert isinstance(told.log, JetStream)
    call, publish = told.log.api.call, told.log._commits.publish
    left = 0

    def once(name: str) -> None:
        nonlocal left
        if name.startswith(("STREAM.PURGE", "ledger.")):
            left -= 1
            if left < 0:
                raise BrokerAway("killed")

    async def then_killed(what: str, *args: Any, **options: Any) -> Any:
        once(what)
        return await call(what, *args, **options)

    async def then_killed_too(subject: str, *args: Any) -> Any:
        once(subject)
        return await publish(subject, *args)

    monkeypatch.setattr(told.log.api, "call", then_killed)
    monkeypatch.setattr(told.log._commits, "publish", then_killed_too)
    monkeypatch.setattr("ayes.ledger.nats.jetstream.APPEND_PATIENCE_S", 0.1)
    tries = 0
    while len(await in_stream(told.log)) > len(before) + 2 - 10:
        left, tries = tries, tries + 1
        assert tries < 100
        with suppress(BrokerAway, OutcomeUnknown):
            await ran(told, LATER)
        assert (await whole(told.log))[: len(before)] == before
    assert tries > 5
    left = 0
    assert await ran(told, LATER) == []


async def test_two_runs_at_once_are_as_one(told: Ledger, tmp_path: Path):
    """Each fact is in one pack, and packs are numbered without a hole."""
    async with Ledger.connect(tmp_path / "store", role="admin") as another:
        for turn in range(5):
            for thread in (REF, OTHER):
                for number in range(3):
                    await told.append(thread.said(f"{turn}-{number}"), SAID)
            await asyncio.gather(ran(told), ran(another), ran(told, LATER), ran(another, LATER))
    every = [one for one in await in_stream(told.log) if packs.number_of(one.subject)]
    for thread in (REF, OTHER):
        own = [one for one in every if one.subject.startswith(thread.subjects[:-1])]
        assert [packs.number_of(one.subject) for one in own] == [*range(1, len(own) + 1)]
    facts = [one.seq for pack in every for one in packs.unpacked(pack)]
    assert len(facts) == len(set(facts))
    assert [one.seq for one in await whole(told.log)] == [*range(1, await told.log.last_seq() + 1)]


async def test_who_is_second_begins_anew(told: Ledger, tmp_path: Path, monkeypatch):
    """It packs what the other run has not packed, behind that, but not what came after it began:
    the stops by which that is judged were read before.
    """
    assert isinstance(told.log, JetStream)
    append, others, at = told.log.append, list[Any](), await told.log.clock()
    await told.append(REF.said("m2"), SAID)
    async with Ledger.connect(tmp_path / "store", role="admin") as another:

        async def after_another(slot: Slot, *args: Any) -> Any:
            if not others:
                async with aclosing(pack_log(another, settled_for=AT_ONCE, now=at)) as done:
                    others.extend([one async for one in done])
                await told.append(REF.said("m3"), SAID)
            return await append(slot, *args)

        monkeypatch.setattr(told.log, "append", after_another)
        own = await ran(told, REMOVED_AFTER / 2)
    assert [one.packed for one in others] == [6, 4]
    assert own == [PackedThread(str(REF), packed=1)]
    packed = [one for one in await in_stream(told.log) if packs.number_of(one.subject)]
    facts = [one.seq for pack in packed for one in packs.unpacked(pack)]
    assert len(facts) == len(set(facts)) == 11


async def test_nothing_is_removed_that_differs_from_its_pack(told: Ledger):
    """By a byte, or by its time: whoever made such a pack."""
    found = {one.subject: one for one in await in_stream(told.log)}
    one = found[REF.said("m1").subject]
    other = RawMessage(one.seq, one.recorded_at, one.subject, one.data + b" ", one.nanoseconds)
    [pack] = packs.packs_of([(other,)])
    event = told.with_envelope(pack)
    await told.log.append(REF.packed(1), encode(event), event.id)
    await ran(told)
    why = str(LogDamaged(f"{REF.packed(1).subject} has another fact 2 than the stream"))
    assert await ran(told, LATER) == [
        PackedThread(str(REF), removed=5, problem=why),
        PackedThread(str(OTHER), removed=4),
    ]
    assert REF.said("m1").subject in {one.subject for one in await in_stream(told.log)}


async def test_a_thread_that_cannot_be_packed_stays_and_no_other(told: Ledger):
    """Nor one that has no valid name."""
    assert isinstance(told.log, JetStream)
    await told.append(REF.packed(1), e.Packed(names="?", facts="", size=1))
    await told.log.api.publish("ledger.acme.a!b.said.m1", b"{}")
    for others in (
        [PackedThread(str(OTHER), packed=4)],
        [PackedThread(str(OTHER), removed=4)],
        [],
    ):
        wrong, *rest = await ran(told, LATER)
        assert isinstance(wrong, PackedThread)
        assert wrong.thread == str(REF)
        assert f"{REF.packed(1).subject} cannot be read" in wrong.problem
        assert rest == others


async def test_what_a_worker_has_not_seen_to_stays(told: Ledger):
    """A delivery may come again until it is acknowledged."""
    assert isinstance(told.log, JetStream)
    await ran(told)
    await declare(told.log, "all")
    message = (await in_stream(told.log))[1]
    assert message.subject == REF.said("m1").subject
    assert await ran(told, LATER) == [
        HeldBack("gate", 0, "Start `ayes work gate`.", message.recorded_at)
    ]
    await told.log.api.call(f"CONSUMER.DELETE.{LEDGER}.gate", {})
    [decided] = await told.log.read(CALL.decided.subject)
    await declare(told.log, "by_start_sequence", opt_start_seq=decided.seq)
    [held] = await ran(told, LATER)
    assert isinstance(held, HeldBack)
    assert held.acknowledged == decided.seq - 1
    await told.log.api.call(f"CONSUMER.DELETE.{LEDGER}.gate", {})
    await declare(told.log, "new")
    at = await told.log.clock()
    await told.append(OTHER.said("later"), SAID)
    waiting = await told.log.progress("gate")
    assert waiting is not None
    assert waiting.waiting == 1
    run = pack_log(told, settled_for=LATER, now=at + LATER)
    async with aclosing(run) as done:
        assert [one async for one in done] == REMOVED


async def test_the_workers_are_asked_about_once_in_a_run(told: Ledger, monkeypatch):
    """And not for each pack; and the log is read no further than facts are old enough."""
    assert isinstance(told.log, JetStream)
    await ran(told)
    at = await told.log.clock()
    for number in range(3):
        await told.append(ThreadRef("third", f"t{number}").said("m1"), SAID)
    asked, described = list[str](), streams.described

    async def counted(*args: Any) -> streams.Described:
        asked.append("described")
        return await described(*args)

    monkeypatch.setattr(streams, "described", counted)
    visited, visit = list[ThreadRef](), packing._Run.visit

    async def noted(run: packing._Run, thread: ThreadRef) -> PackedThread:
        visited.append(thread)
        return await visit(run, thread)

    monkeypatch.setattr(packing._Run, "visit", noted)
    run = pack_log(told, settled_for=LATER, now=at + LATER)
    async with aclosing(run) as done:
        assert [one async for one in done] == REMOVED
    assert visited == [REF, OTHER]
    assert asked == ["described"]


async def test_a_thread_in_which_all_is_packed_costs_no_request(told: Ledger, monkeypatch):
    """Also if something of it stays in the stream. One with an open call is counted, its facts are
    read with one request to any node, its newest pack is, and the stops of a workspace once.
    """
    assert isinstance(told.log, JetStream)
    vote = e.Voted(verdict="approve", digest=request(WISH).digest, signature="webauthn.x")
    await told.append(CALL.vote("ana"), vote)
    await told.append(OTHER.call("open2").requested, request(WISH))
    await ran(told)
    await ran(told, LATER)
    assert CALL.vote("ana").subject in {one.subject for one in await in_stream(told.log)}
    asked, call = list[str](), told.log.api.call

    async def noted(what: str, body: Any = None, **options: Any) -> Any:
        asked.extend(str(one) for one in (body or {}).values() if "ledger." in str(one))
        return await call(what, body, **options)

    monkeypatch.setattr(told.log.api, "call", noted)
    assert await ran(told, LATER) == []
    consumer, *rest = asked
    assert "'headers_only': True" in consumer
    names = [OTHER.subjects, OTHER.packed(1).subject, *stops(OTHER.workspace)]
    assert sorted(rest) == sorted(names)


async def test_decisions_leave_first_and_requests_last(told: Ledger, monkeypatch):
    """Who sees a decision after a claim of its own knows that the claims of before were there. By
    the request a run finds what another has begun to remove.
    """
    assert isinstance(told.log, JetStream)
    await ran(told)
    before = {one.subject for one in await in_stream(told.log)}
    call, seen = told.log.api.call, list[set[str]]()

    async def watched(what: str, *args: Any, **options: Any) -> Any:
        answer = await call(what, *args, **options)
        if what.startswith("STREAM.PURGE"):
            seen.append({one.subject for one in await in_stream(told.log)})
        return answer

    monkeypatch.setattr(told.log.api, "call", watched)
    await ran(told, LATER)
    assert len(seen) == 10
    for decided in (CALL.decided, OTHER.call("c1").decided):
        own = {one for one in before if one.startswith(decided.subject.removesuffix("decided"))}
        assert len(own) > 2
        requested = decided.subject.removesuffix("decided") + "requested"
        assert all(requested in there for there in seen if own & there)
        assert any(decided.subject not in one and own - one != own for one in seen)
        assert all(own <= there for there in seen if decided.subject in there)


def removals(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of removals from here on."""
    assert isinstance(ledger.log, JetStream)
    call, asked = ledger.log.api.call, list[str]()

    async def noted(what: str, body: Any = None, **options: Any) -> Any:
        if what.startswith("STREAM.PURGE"):
            asked.append(body["filter"])
        return await call(what, body, **options)

    monkeypatch.setattr(ledger.log.api, "call", noted)
    return asked


async def test_facts_that_are_far_apart_leave_each_by_itself(told: Ledger, monkeypatch):
    """A request for all of them would have the server read the log between them."""
    monkeypatch.setattr(jetstream, "_TOGETHER_WITHIN", 4)
    far, near = (ThreadRef("elsewhere", name) for name in ("t3", "t4"))
    for thread, others in ((far, 1), (near, 0)):
        for number in range(2):
            await told.append(thread.said(f"m{number}"), e.Said("user", "Hello."))
            for other in range(4 * others):
                await told.append(OTHER.said(f"n{number}-{other}"), e.Said("user", "And here."))
    await ran(told)
    asked = removals(told, monkeypatch)
    await ran(told, LATER)
    assert _tails(asked, far) == ["said.m0", "said.m1"]
    assert _tails(asked, near) == ["said.*"]


async def test_where_the_list_of_facts_may_be_incomplete_each_leaves_by_itself(
    told: Ledger, monkeypatch
):
    """A list in several answers may lack one that changed its place between two of them."""
    assert isinstance(told.log, JetStream)
    monkeypatch.setattr(packing, "COUNTED_AT_ONCE", 4)
    await ran(told)
    asked = removals(told, monkeypatch)
    assert await ran(told, LATER) == REMOVED
    assert len(asked) == 10
    assert not [one for one in asked if "*" in one]


async def test_facts_that_are_alike_leave_together(told: Ledger, monkeypatch):
    """The finishes of a thread with one request, and so on: up to the first that is in no pack, and
    each by itself from there on. What is on a subject that is no slot stays as well.
    """
    assert isinstance(told.log, JetStream)
    alone, odd = ThreadRef("elsewhere", "t3"), ThreadRef("elsewhere", "t4")
    no_slot = odd.call("c").requested.subject.replace(".c.", ".\u00f6.")
    assert (await told.log.api.publish(no_slot, b"{}", {})).error is None
    for thread in (alone, odd):
        for number in range(5):
            for slot, event in life(thread.call(f"c{number}"), WISH, "denied"):
                await told.append(slot, event)
    await ran(told)
    for slot, event in life(alone.call("c6"), WISH, "denied"):
        await told.append(slot, event)
    asked = removals(told, monkeypatch)
    await ran(told, LATER)
    kinds = {slot.tail[2:] for slot, _ in life(alone.call("c6"), WISH, "denied")}
    alike = {".".join(("call", "*", *one)) for one in kinds}
    each = {f"call.c{number}.requested" for number in range(5)}
    assert _tails(asked, alone) == sorted(alike)
    assert _tails(asked, odd) == sorted(alike - {"call.*.requested"} | each)
    assert set(_tails(asked, OTHER)) & alike == {"call.*.finished"}  # the open call has none
    left = [one.subject for one in await in_stream(told.log)]
    assert set(_tails(left, alone)) == {
        "packed.1",
        "packed.2",
        *(".".join(slot.tail) for slot, _ in life(alone.call("c6"), WISH, "denied")),
    }
    assert no_slot.encode().decode("ascii", "backslashreplace") in left
    assert {one.subject for one in (OPEN.requested, OPEN.gated, OPEN.decided)} < set(left)


def _tails(subjects: list[str], thread: ThreadRef) -> list[str]:
    head = thread.subjects.removesuffix(">")
    return sorted(one.removeprefix(head) for one in subjects if one.startswith(head))


async def test_a_plain_client_that_claims_what_has_left_finds_no_approval_beside_it(
    told: Ledger,
):
    """The broker takes the slot for free, and the condition on revocations holds."""
    assert isinstance(told.log, JetStream)
    await ran(told)
    await ran(told, LATER)
    claim = CALL.client_claim(1).subject
    started = e.ToolStarted(digest=request(WISH).digest, idempotency_key=str(CALL))
    headers = {REPLACES: "0", AMONG: CALL.revocations}
    ack = await told.log.api.publish(claim, encode(told.with_envelope(started)), headers)
    assert ack.error is None
    found = [one async for page in told.log.in_stream(1, CALL.subjects) for one in page]
    assert [one.subject for one in found] == [claim]


async def test_what_is_settled_is_packed_hourly(told: Ledger, tmp_path: Path, monkeypatch):
    """Beside the workers; a run that fails is begun again."""
    monkeypatch.setattr(packing, "EVERY_S", 0.01)
    monkeypatch.setattr(packing, "REMOVED_AFTER", AT_ONCE)
    failed, run = list[str](), packing.pack_log

    def failing(*args: Any, **options: Any) -> Any:
        if not failed:
            failed.append("once")
            raise BrokerAway("away")
        return run(*args, **options)

    monkeypatch.setattr(packing, "pack_log", failing)

    async def has_left() -> bool:
        return CALL.decided.subject not in {one.subject for one in await in_stream(told.log)}

    async with packing.packing(None, store=tmp_path / "store"):
        assert not failed
    async with packing.packing(AT_ONCE, store=tmp_path / "store"):
        await until(has_left)
        await told.append(REF.said("m2"), SAID)

        async def is_packed() -> bool:
            return await told.log.read(REF.packed(2).subject) != ()

        await until(is_packed)
    assert failed


async def test_who_holds_facts_back_is_logged_once(told: Ledger, tmp_path: Path, monkeypatch):
    """And again if it begins anew. A thread that cannot be packed is an error beside it."""
    assert isinstance(told.log, JetStream)
    monkeypatch.setattr(packing, "EVERY_S", 0.01)
    monkeypatch.setattr(packing, "REMOVED_AFTER", AT_ONCE)
    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(packing, "_log", heard)
    begun, run = list[Any](), packing.pack_log

    def counted(*args: Any, **options: Any) -> Any:
        begun.append(options)
        return run(*args, **options)

    async def has_left() -> bool:
        return not await log.counted(LEDGER, CALL.requested.subject)

    def named() -> list[str]:
        return [one["problem"] for one in logs if one["log_level"] == "warning"]

    monkeypatch.setattr(packing, "pack_log", counted)
    await told.append(OTHER.packed(1), e.Packed(names="?", facts="", size=1))
    await declare(log := told.log, "all")
    with capture_logs() as logs:
        async with packing.packing(AT_ONCE, store=tmp_path / "store"):
            await until(lambda: len(named()) == 1)
            so_far = len(begun)
            await until(lambda: len(begun) > so_far + 3)
            assert len(named()) == 1
            await log.api.call(f"CONSUMER.DELETE.{LEDGER}.gate", {})
            await until(has_left)
            await declare(log, "all")
            await told.append(REF.said("m2"), SAID)
            await until(lambda: len(named()) == 2)
    assert all("the consumer gate has not acknowledged" in one for one in named())
    assert {one["thread"] for one in logs if one["log_level"] == "error"} == {str(OTHER)}


@pytest.mark.parametrize(
    ("name", "worker", "remedy"),
    [
        ("model", "model", "."),
        ("gate-replies", "gate", "."),
        ("executor", "executor", "; if none is to run any more: `ayes setup --without executor`."),
        (
            "notifier-later",
            "notifier",
            "; if none is to run any more: `ayes setup --without notifier-later`.",
        ),
        (
            "delegator",
            "delegator",
            "; if none is to run any more: `ayes setup --without delegator`.",
        ),
        (
            "shop@executor",
            "executor",
            " with the login shop; if it is gone: `ayes auth revoke shop`.",
        ),
    ],
)
def test_what_to_do_about_a_consumer_without_a_worker(name: str, worker: str, remedy: str):
    login, _, kind = name.rpartition("@")
    durable = DURABLES[kind].of(login, ("acme",) if login else ())
    expected = f"Start `ayes work {worker}`{remedy}"
    assert packing._remedy(durable, has_worker=False) == expected
    assert "`ayes status`" in packing._remedy(durable, has_worker=True)


async def declare(log: JetStream, policy: str, **options: Any) -> None:
    """A durable of the gate's name, for all facts from there on."""
    config = {"durable_name": "gate", "ack_policy": "explicit", "filter_subject": "ledger.>"}
    body = {"stream_name": LEDGER, "config": config | {"deliver_policy": policy} | options}
    await log.api.call(f"CONSUMER.CREATE.{LEDGER}.gate.ledger.>", body)


async def test_a_log_whose_facts_stay_is_not_packed(ledger: Ledger):
    await ledger.append(REF.said("m1"), SAID)
    with pytest.raises(BadInput, match="it is at level 1, and not at 2"):
        await ran(ledger)
    assert await ledger.log.last_seq() == 1


def test_a_pack_waits_longer_than_a_node_may_be_deposed():
    """Such a node may answer that there is no new pack."""
    assert timedelta(seconds=2 * jetstream._DEPOSED_S) < REMOVED_AFTER
