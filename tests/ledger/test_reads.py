"""Reads that may be behind: what a replica does not show is not taken for missing
(docs/decisions/0026).

`Lagging` is the log as a client of a cluster sees it, and `Oldest` the worst lot that it can draw:
each read shows no more than this client was told of before. `Answers` stands in front of a real
broker and gives what it answered earlier.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ayes.consumers.effects import Append, WritePending
from ayes.consumers.executor import Executor, Registered
from ayes.consumers.gate import Gate
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.tools import Tools
from ayes.consumers.worker import Worker
from ayes.ledger import patience
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Lagging, Memory
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import AppendResult, TimerFired, Unconfirmed
from ayes.ledger.nats import jetstream
from ayes.ledger.nats.api import NatsReply
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import DURABLES
from ayes.projections import pending
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.errors import (
    AlreadyFilled,
    BrokerAway,
    CallChanged,
    NotOpen,
    Unavailable,
    UnknownCall,
)
from ayes.schemas.slots import ORGANISATION, DelegationRef, Slot, StopRef, ThreadRef
from ayes.schemas.tools import ToolSpec

THREAD = ThreadRef("shop", "t1")
CALL = THREAD.call("refund-1")
SPEC = ToolSpec(name="refund", schema='{"type":"object"}')


class Oldest(random.Random):
    """The worst lot: what was drawn is always the least that could be."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


def ledger_on(port: Any, name: str = "desk") -> Ledger:
    return Ledger(port, e.Author(kind="service", name=name))


def refund() -> str:
    return "refunded"


# --------------------------------------------------------------- on a log whose replicas are behind

type Story = Callable[[Ledger, str], Awaitable[None]]


async def gate_asks(gate: Ledger, digest: str) -> None:
    asking = e.ApprovalRequested(digest=digest, rule="r", policy_version=1, voters=("ana",))
    await gate.append(CALL.gated, asking)


async def gate_approves(gate: Ledger, digest: str) -> None:
    approved = e.Approved(digest=digest, ground="policy", rule="freely", policy_version=1)
    await gate.append(CALL.decided, approved)


async def approved_and_started(gate: Ledger, digest: str) -> None:
    await gate_approves(gate, digest)
    await gate.append(CALL.client_claim(1), e.ToolStarted(digest=digest, idempotency_key=str(CALL)))


async def in_doubt(gate: Ledger, digest: str) -> None:
    await approved_and_started(gate, digest)
    await gate.append(CALL.client_finished, e.InDoubt(attempt=1, text="nobody knows"))


async def asked_and_ana_is_away(gate: Ledger, digest: str) -> None:
    await gate_asks(gate, digest)
    ref = DelegationRef("shop", "ana", "holiday")
    now = gate.now()
    given = e.Delegated(
        to="ben", starts_at=now, ends_at=now.replace(year=now.year + 1), tools=("*",)
    )
    await gate.append(ref.given, given)


#: What was recorded by others, and what is done then by a client that was told of the request
#: alone.
DONE: dict[str, tuple[Story, Callable[[Ledger], Awaitable[Any]]]] = {
    "start": (gate_approves, lambda desk: desk.start(CALL)),
    "run": (gate_approves, lambda desk: desk.run(CALL, refund)),
    "revoke": (gate_approves, lambda desk: desk.reviewer("ben").revoke(CALL)),
    "vote": (gate_asks, lambda desk: desk.reviewer("ana").approve(CALL)),
    "vote in another's place": (
        asked_and_ana_is_away,
        lambda desk: desk.reviewer("ben").approve(CALL),
    ),
    "finish": (approved_and_started, lambda desk: desk.finish(CALL, output="refunded")),
    "doubt": (approved_and_started, lambda desk: desk.doubt(CALL)),
    "reconcile": (
        in_doubt,
        lambda desk: desk.reviewer("ben").reconcile(CALL, happened=True, output="it did"),
    ),
}


@pytest.mark.parametrize("doing", DONE)
async def test_what_a_replica_does_not_show_is_not_refused(doing: str):
    """A refusal that rests on what is missing is decided as of what the leader has (D1, B46)."""
    others_do, do = DONE[doing]
    port = Lagging(Memory(), Oldest())
    desk, gate = ledger_on(port), ledger_on(port.beside(), "gate")
    await desk.declare("shop", SPEC)
    known = await desk.request(CALL, "refund", {}, requester="rita")
    await others_do(gate, known.wish.digest)
    assert (await desk.call(CALL)).status is Status.REQUESTED, "its replicas are behind"
    await do(desk)


async def test_what_nobody_recorded_is_refused_all_the_same():
    """What the leader does not have either is missing (D1)."""
    port = Lagging(Memory(), Oldest())
    desk = ledger_on(port)
    with pytest.raises(UnknownCall, match=r"was never requested"):
        await desk.start(CALL)
    await desk.declare("shop", SPEC)
    await desk.request(CALL, "refund", {}, requester="rita")
    with pytest.raises(NotOpen, match=r"is requested, so it cannot be started"):
        await desk.start(CALL)


async def test_a_call_that_another_client_asked_for_is_not_unknown():
    """Who is told of a call by other means than the ledger finds it (D1)."""
    port = Lagging(Memory(), Oldest())
    desk = ledger_on(port)
    await desk.declare("shop", SPEC)
    await desk.request(CALL, "refund", {}, requester="rita")
    assert (await ledger_on(port.beside()).known_call(CALL)).status is Status.REQUESTED


async def test_a_call_with_a_void_fact_before_its_request_is_not_unknown():
    """A replica that has a void claim, and not yet the request after it, is asked again (D1)."""
    log = Memory()
    desk, other = ledger_on(Lagging(log, Oldest())), ledger_on(Lagging(log, Oldest()), "other")
    await desk.declare("shop", SPEC)
    claim = e.ToolStarted(digest="d", idempotency_key=str(CALL))
    await other.append(CALL.client_claim(1), claim)
    await desk.request(CALL, "refund", {}, requester="rita")
    assert (await other.known_call(CALL)).status is Status.REQUESTED


@pytest.mark.parametrize("where", ["shop", ORGANISATION])
async def test_a_call_in_a_workspace_with_a_stop_is_not_unknown(where: str):
    """A replica that has the stop, and not yet the request after it, is asked again (D1)."""
    log = Memory()
    desk, other = ledger_on(Lagging(log, Oldest())), ledger_on(Lagging(log, Oldest()), "other")
    await desk.declare("shop", SPEC)
    await other.append(StopRef(where, "ana", "s").given, e.Stopped(reason="A wrong account."))
    await desk.request(CALL, "refund", {}, requester="rita")
    assert (await other.known_call(CALL)).status is Status.REQUESTED


@pytest.mark.parametrize("wrong_by_h", [-1, 1])
async def test_a_stop_ends_by_itself_on_the_brokers_clock(wrong_by_h: int):
    """A program with a wrong clock claims nothing before the end, and starts the call after it."""
    times = [datetime(2026, 3, 2, 9, 30, tzinfo=UTC)]
    desk = ledger_on(Memory(now=lambda: times[-1]))
    desk.now = lambda: times[-1] + timedelta(hours=wrong_by_h)
    await desk.declare("shop", SPEC)
    known = await desk.request(CALL, "refund", {}, requester="rita")
    await gate_approves(desk, known.wish.digest)
    stopped = e.Stopped(reason="A wrong account.", expires_in_s=60)
    await desk.append(StopRef("shop", "ana", "s").given, stopped)
    with pytest.raises(NotOpen, match="may not start: stopped"):
        await desk.start(CALL)
    assert (await desk.call(CALL)).void == ()
    times.append(times[-1] + timedelta(seconds=60))
    assert (await desk.start(CALL)).status is Status.RUNNING


async def test_what_people_decided_in_time_does_not_expire():
    """A gate whose replica lacks a vote does not let the call expire (D1, B38)."""
    log = Memory()
    desk, gate = ledger_on(Lagging(log, Oldest())), ledger_on(Lagging(log, Oldest()), "gate")
    await desk.declare("shop", SPEC)
    known = await desk.request(CALL, "refund", {}, requester="rita")
    asking = e.ApprovalRequested(
        digest=known.wish.digest, rule="r", policy_version=1, voters=("ana",), expires_in_s=60
    )
    await gate.append(CALL.gated, asking)
    await desk.reviewer("ana").approve(CALL)
    assert (await gate.call(CALL)).votes == (), "its replica is behind"
    due = (await gate.call(CALL)).due
    assert due
    timer = TimerFired(CALL, 1, due)
    [step, *_] = Gate().decide(await Gate().load(gate, timer), timer)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.Approved)


@pytest.mark.parametrize("seed", range(20))
async def test_ask_wait_and_run_whatever_replicas_answer(seed: int):
    """Whichever replicas answer, in whatever order: asked for, decided, and run once (D1)."""
    port = Lagging(Memory(), random.Random(seed), late=0.5)
    desk, gate = ledger_on(port), ledger_on(port.beside(), "gate")
    await desk.declare("shop", SPEC)
    ran: list[int] = []
    for number in range(10):
        ref = THREAD.call(f"c{number}")
        known = await desk.request(ref, "refund", {}, requester="rita")
        deciding = gate.append(
            ref.decided,
            e.Approved(digest=known.wish.digest, ground="policy", rule="r", policy_version=1),
        )
        _, decided = await asyncio.gather(deciding, desk.decision(ref, timeout_s=60))
        assert decided.status is Status.APPROVED
        await desk.run(ref, lambda number=number: ran.append(number))
    assert ran == list(range(10))


# ---------------------------------------------------------------------------------------- the queue


async def test_an_entry_that_is_put_late_is_refused():
    """The queue puts an entry for what was decided and handled meanwhile, and its replica is
    behind: the entry, which never was, is deleted already, so it cannot be put (D2, I13).
    """
    port = Lagging(Memory(), Oldest())
    slow, other, desk = (ledger_on(port.beside(), name) for name in ("slow", "other", "desk"))
    await desk.declare("shop", SPEC)
    known = await desk.request(CALL, "refund", {}, requester="rita")
    await gate_asks(desk, known.wish.digest)
    gated = (await desk.call(CALL)).gated
    assert gated
    [put] = PendingProjector().decide(await PendingProjector().load(slow, gated), gated)
    await gate_approves(desk, known.wish.digest)
    decided = (await desk.call(CALL)).decided
    assert decided
    [gone] = PendingProjector().decide(await PendingProjector().load(other, decided), decided)
    assert isinstance(gone, WritePending)
    assert await port.pending.delete(gone.key, gone.replaces)
    assert isinstance(put, WritePending)
    assert not await port.pending.put(put.key, put.value, put.replaces)
    assert PendingProjector().decide(await PendingProjector().load(slow, gated), gated) == ()
    assert await port.pending.entries() == {}


# -------------------------------------------------------------------------- a claim and its reading


class Flaky(Memory):
    """A log of which some reads are not answered, or are late."""

    def __init__(self) -> None:
        super().__init__()
        self.fail = 0
        self.late: asyncio.Event | None = None

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        if self.late is not None and CALL.client_claim(1).subject in self._by_subject:
            await self.late.wait()
        if self.fail and any(".claim." in subject for subject in self._by_subject):
            self.fail -= 1
            raise BrokerAway("nobody answers.")
        return await super().read(*subjects)


async def approved(log: Memory, *, run_by: str = "client") -> Ledger:
    desk = ledger_on(log)
    spec = SPEC.model_copy(update={"run_by": run_by})
    await desk.declare("shop", spec)
    known = await desk.request(CALL, "refund", {}, requester="rita")
    await gate_approves(desk, known.wish.digest)
    return desk


async def test_a_claim_whose_reading_fails_is_gone_on_with():
    """A claim that could not be read back runs it when it is called again, once (D3)."""
    log = Flaky()
    desk, ran = await approved(log), []
    log.fail = 1
    with pytest.raises(BrokerAway):
        await desk.run(CALL, lambda: ran.append(1))
    assert ran == []
    assert isinstance(await desk.run(CALL, lambda: ran.append(1)), e.ToolReturned)
    assert ran == [1]
    with pytest.raises((AlreadyFilled, NotOpen)):
        await desk.run(CALL, lambda: ran.append(1))
    assert ran == [1]


class Omitting(Memory):
    """A log whose answers leave a revocation out, as if another program gave them."""

    def __init__(self) -> None:
        super().__init__()
        self.omits = 0

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        facts = await super().read(*subjects)
        if self.omits and any("revoked" in fact.slot.tail for fact in facts):
            self.omits -= 1
            return tuple(fact for fact in facts if "revoked" not in fact.slot.tail)
        return facts


@pytest.mark.parametrize(("omits", "told"), [(1, NotOpen), (3, NotOpen), (1000, CallChanged)])
@pytest.mark.parametrize("claim_id", ["", "0199e4a0-0000-7000-8000-000000000001"])
async def test_a_service_that_is_not_shown_a_revocation_starts_nothing(omits, told, claim_id):
    """The broker refuses its claim behind a fact that it has not read, so it reads again; if it
    never reads it, nothing runs and nothing is recorded either (I1, I6, B61).
    """
    log = Omitting()
    desk, ran = await approved(log), []
    await desk.append(CALL.revoked_by("ana"), e.Revoked(reviewer="ana"))
    log.omits = omits
    for _ in range(2):
        with pytest.raises(told):
            await desk.start(CALL, claim_id=claim_id)
        with pytest.raises(told):
            await desk.run(CALL, lambda: ran.append(1))
    log.omits = 0
    call = await desk.call(CALL)
    assert (ran, call.status, call.claims, call.void) == ([], Status.REVOKED, (), ())
    with pytest.raises(NotOpen):
        await desk.run(CALL, lambda: ran.append(1))


async def test_a_claim_whose_reading_is_late_is_run_once():
    """While a program waits to read its claim, a second try of its own starts nothing (D3)."""
    log = Flaky()
    desk, ran = await approved(log), []
    log.late = asyncio.Event()
    first = asyncio.create_task(desk.run(CALL, lambda: ran.append(1)))
    while CALL.client_claim(1).subject not in log._by_subject:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(AlreadyFilled, match="is being claimed by this program already"):
        await desk.run(CALL, lambda: ran.append(2))
    log.late.set()
    assert isinstance(await first, e.ToolReturned)
    assert ran == [1]


async def test_a_claim_whose_program_died_waits_for_a_person():
    """A program that died between claim and run leaves a call that nobody runs again: somebody says
    that it is in doubt (D3, I7).
    """
    log = Flaky()
    desk, ran = await approved(log), []
    log.fail = 1
    with pytest.raises(BrokerAway):
        await desk.run(CALL, lambda: ran.append(1))
    started_anew = ledger_on(log, "desk started anew")
    with pytest.raises((AlreadyFilled, NotOpen)):
        await started_anew.run(CALL, lambda: ran.append(2))
    assert (await started_anew.doubt(CALL)).status is Status.IN_DOUBT
    assert ran == []


async def test_an_executor_reads_its_claim_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch):
    """Reads that fail after an executor's claim delay it, and leave no claim without a run (D3)."""
    monkeypatch.setattr(patience, "PAUSES", Backoff(0))
    log = Flaky()
    desk = await approved(log, run_by="executor")
    log.fail = 5
    ran: list[int] = []
    spec = SPEC.model_copy(update={"run_by": "executor"})
    worker = Worker(desk, Executor({"refund": Registered(spec, lambda: ran.append(1))}))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        async for _ in desk.watch(1, CALL.finished.subject):
            break
    worker.stop()
    await running
    assert (ran, log.fail) == ([1], 0)


# --------------------------------------------------------------------- tools at an executor's start


class Unsure(Memory):
    """A log that does not say for a while what became of a declaration."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        answer = await super().append(slot, raw, event_id, after)
        if self.times:
            self.times -= 1
            return Unconfirmed("maximum messages per subject exceeded")
        return answer


async def test_tools_are_declared_until_it_is_known(monkeypatch: pytest.MonkeyPatch):
    """An executor does not end while the broker cannot say whether its tools are declared (D11)."""
    monkeypatch.setattr(patience, "PAUSES", Backoff(0))
    registry = Tools()
    registry.add(name="refund")(refund)
    desk = ledger_on(Unsure(3))
    [ref] = await registry.declare(desk, "shop")
    assert (await desk.tool("shop", "refund")).version == ref.version
    with pytest.raises(
        Unavailable, match=r"it is not known whether tool refund is declared in shop: .* safe"
    ):
        await registry.declare(ledger_on(Unsure(3)), "shop", patience_s=0)


# --------------------------------------------------------------------------------- on a real broker


class Answers:
    """Keeps a broker's answers to reads and repeats them, as a replica that heard nothing since."""

    def __init__(self, port: JetStream) -> None:
        self._collect = port.api.collect
        self._kept: dict[bytes, tuple[list[NatsReply], NatsReply]] = {}
        self.stale = 0
        port.api.collect = self.collect  # type: ignore[method-assign]

    async def collect(
        self, subject: str, payload: bytes, patience_s: float = 5.0
    ) -> tuple[list[NatsReply], NatsReply]:
        if self.stale and payload in self._kept:
            self.stale -= 1
            return self._kept[payload]
        self._kept[payload] = answer = await self._collect(subject, payload, patience_s)
        return answer


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("before", [0, 1, 3])
async def test_an_answer_from_before_what_was_acknowledged_is_not_taken(
    store: Path, monkeypatch: pytest.MonkeyPatch, before: int, *, paged: bool
):
    """A replica that has not heard of what this client was told is asked again, until one has: none
    there, some, pages (D1).
    """
    if paged:
        monkeypatch.setattr(jetstream, "_PAGE", 2)
    async with Ledger.connect(store) as desk:
        assert isinstance(desk.log, JetStream)
        answers = Answers(desk.log)
        for number in range(before):
            await desk.append(THREAD.said(f"m{number}"), e.Said(role="user", text="x"))
        assert len(await desk.read(THREAD)) == before
        await desk.append(THREAD.said("new"), e.Said(role="user", text="x"))
        answers.stale = 3
        assert [fact.slot.tail[1] for fact in await desk.read(THREAD)][-1] == "new"
        # Of what a replica lacks wholly the leader itself is asked.
        assert answers.stale == (0 if before else 2)


async def test_an_entry_is_read_from_the_leader(store: Path):
    """What stands in the bucket is asked of the leader: no direct get from a replica (D2)."""
    async with Ledger.connect(store, role="queue") as queue:
        assert isinstance(queue.log, JetStream)
        asked: list[str] = []
        ask = queue.log.api.ask

        async def noted(subject: str, *args: Any, **kwargs: Any) -> NatsReply:
            asked.append(subject)
            return await ask(subject, *args, **kwargs)

        queue.log.api.ask = noted  # type: ignore[method-assign]
        key = pending.key(CALL)
        assert await queue.log.pending.get(key) == (b"", 0)
        assert await queue.log.pending.put(key, b"one", 0)
        assert await queue.log.pending.get(key) == (b"one", 1)
        assert await queue.log.pending.delete(key, 1)
        assert await queue.log.pending.get(key) == (b"", 2)
        assert set(asked) == {"$JS.API.STREAM.MSG.GET.KV_pending"}


async def test_a_read_that_is_not_answered_is_asked_again(store: Path):
    """A read whose request was lost is sent again, and the first answer counts (D10)."""
    async with Ledger.connect(store) as desk:
        assert isinstance(desk.log, JetStream)
        requests = desk.log.api
        await desk.append(THREAD.said("m1"), e.Said(role="user", text="x"))
        publish, lost = requests._publish, []

        async def lossy(subject: str, *args: Any, **kwargs: Any) -> None:
            if len(lost) < 2:
                lost.append(subject)
            else:
                await publish(subject, *args, **kwargs)

        requests._publish = lossy  # type: ignore[method-assign]
        assert len(await desk.read(THREAD)) == 1
        lost.clear()
        assert await desk.log.latest(THREAD.said("m1").subject)
        assert lost == ["$JS.API.STREAM.MSG.GET.LEDGER"] * 2
        await asyncio.sleep(0)
        assert not requests._waiting
        assert not requests._streams


async def test_the_operator_follows_the_log_without_a_consumer(store: Path):
    """Who may read the durables' secret creates no consumer beside them: it reads the log in pages,
    in order, to the end and on from there (B62, B68).
    """
    thread = ThreadRef("shop", "followed")
    said = [thread.said(f"m{number}") for number in range(1200)]
    other = ThreadRef("shop", "other").said("m")
    async with (
        Ledger.connect(store, role="admin") as admin,
        Ledger.connect(store, role="service") as service,
        Ledger.connect(store, role="operator") as operator,
    ):
        message = e.Said(role="user", text="hello")
        await asyncio.gather(*(service.append(slot, message) for slot in (*said[:-1], other)))
        assert len([fact async for fact in operator.replay(1)]) == len(said)
        found = [fact async for fact in operator.replay(1, thread.subjects)]
        assert {fact.slot for fact in found} == {*said[:-1]}
        assert [fact.seq for fact in found] == sorted(fact.seq for fact in found)
        async with (
            aclosing(operator.watch(found[-1].seq, thread.subjects)) as facts,
            asyncio.timeout(60),
        ):
            assert await anext(facts) == found[-1]
            await service.append(said[-1], message)
            assert (await anext(facts)).slot == said[-1]
            answer = await admin.log.api.call("CONSUMER.LIST.LEDGER", {"offset": 0})
        assert {one["name"] for one in answer["consumers"]} <= {*DURABLES}
