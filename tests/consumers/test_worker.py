"""The one loop: when it acknowledges, what it does about failures, and how workers die and live
side by side.

All of it on the log in memory, and much of it on the real one. `Watched` stands between loop and
log: it passes everything on, and notes the order.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Never

import pytest
from long import IN_MEMORY_FIRST
from running import working
from simulated_time import simulated
from until import recorded, until

from ayes.consumers import worker as worker_module
from ayes.consumers.effects import Append, Effect
from ayes.consumers.executor import Executor, Registered
from ayes.consumers.gate import Gate
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.worker import MAX_TRIES, Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import AppendResult, Delivered, Delivery, EventLog, Unconfirmed
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import CallRef, Slot, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = IN_MEMORY_FIRST
THREAD = ThreadRef("shop", "t1")
ONE, TWO = THREAD.call("one"), THREAD.call("two")


def tool(function: Callable[..., Any], *, repeatable: bool = False) -> Registered:
    schema = '{"type":"object"}'
    return Registered(
        ToolSpec(name="refund", schema=schema, run_by="executor", repeatable=repeatable), function
    )


def executor(
    function: Callable[..., Any], *, repeatable: bool = False, durable: str = "executor"
) -> Executor:
    return Executor({"refund": tool(function, repeatable=repeatable)}, durable=durable)


async def approve(
    ledger: Ledger, ref: CallRef, *, repeatable: bool = False, arguments: str = "{}"
) -> None:
    """A call that was asked for and approved."""
    declared = await ledger.declare("shop", tool(print, repeatable=repeatable).spec)
    version = declared.version
    digest = call_digest("refund", version, arguments)
    wish = e.ToolRequested(
        tool="refund", tool_version=version, arguments=arguments, digest=digest, run_by="executor"
    )
    await ledger.append(ref.requested, wish)
    await ledger.append(
        ref.decided, e.Approved(digest=digest, ground="policy", rule="freely", policy_version=1)
    )


def kinds(facts: Sequence[Fact]) -> list[str]:
    return [type(fact.event).__name__ for fact in facts]


#: A call that ran.
RAN = ["ToolRequested", "Approved", "ToolStarted", "ToolReturned"]


async def finished(ledger: Ledger, *refs: CallRef) -> list[e.Event]:
    """Wait until these calls are finished; hand back how."""
    ends = await recorded(ledger, *(ref.finished.subject for ref in refs), count=len(refs))
    by_ref = {fact.slot.call_ref: fact.event for fact in ends}
    return [by_ref[ref] for ref in refs]


class Watched:
    """A port that notes appends, deliveries and acknowledgements, and does what a test wants."""

    def __init__(self, port: EventLog) -> None:
        self._port = port
        self.log: list[str] = []
        self.before_append: Callable[[Slot], Awaitable[AppendResult | None]] = nothing
        self.in_progress: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        first = await self.before_append(slot)
        answer = first or await self._port.append(slot, raw, event_id, after)
        self.log.append(f"{type(answer).__name__} {_short(slot)}")
        return answer

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        try:
            async with self._port.deliveries(durable) as handed_out:
                yield self._hand_out(handed_out)
        finally:
            if durable in {"gate", "executor"}:
                self.log.append("closed")

    async def _hand_out(self, deliveries: AsyncIterator[Delivery]) -> AsyncIterator[Delivery]:
        async for delivery in deliveries:
            yield _WatchedDelivery(self, delivery)


class _WatchedDelivery:
    def __init__(self, port: Watched, delivery: Delivery) -> None:
        self._port, self._delivery = port, delivery
        self.handed, self.tries, self.number = delivery.handed, delivery.tries, delivery.number

    async def ack(self) -> None:
        self._port.log.append(f"ack {_place(self.handed)}")
        await self._delivery.ack()

    async def retry(self, after_s: float) -> None:
        self._port.log.append(f"retry {_place(self.handed)}")
        await self._delivery.retry(after_s)

    async def in_progress(self) -> None:
        if self._port.in_progress is not None:
            await self._port.in_progress()
        await self._delivery.in_progress()


async def nothing(_slot: Slot) -> None:
    return None


def _short(slot: Slot) -> str:
    """`one decided`, `one claim 1`."""
    return " ".join(slot.tail[1:])


def _place(handed: Delivered) -> str:
    return _short(handed.slot) if isinstance(handed, Fact) else "due"


@pytest.fixture
def watched(port: EventLog) -> Watched:
    return Watched(port)


def as_(name: str, port: EventLog | Watched) -> Ledger:
    return Ledger(port, e.Author(kind="executor", name=name))  # type: ignore[arg-type]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    monkeypatch.setattr(worker_module, "RETRIES", Backoff(0.01))


# ------------------------------------------------------------------------------------ acknowledging


@pytest.mark.log("memory", "jetstream")
async def test_it_acknowledges_when_all_is_written_down(watched: Watched, ledger: Ledger):
    """Claim, run, result, and only then the acknowledgement (I6, I7)."""
    await approve(ledger, ONE)

    def refund() -> str:
        watched.log.append("ran")
        return "done"

    async with working(Worker(as_("a", watched), executor(refund))):
        await finished(ledger, ONE)
        await until(lambda: "ack one decided" in watched.log)
    ours = [line for line in watched.log if line not in {"ack one claim 1", "closed"}]
    assert ours == ["Recorded one claim 1", "ran", "Recorded one finished", "ack one decided"]
    finish = (await ledger.read(ONE))[-1]
    decided = (await ledger.read(ONE))[1]
    assert isinstance(finish.event, e.ToolReturned)
    assert isinstance(decided.event, e.Approved)
    assert finish.event.cause == decided.event.id


async def test_without_an_outcome_nothing_is_acknowledged(watched, ledger, at_once):
    """Where nobody knows whether the claim stands, nothing runs; it is tried again (B56, I4)."""
    await approve(ledger, ONE)
    answers: list[AppendResult] = [Unconfirmed("no answer")] * 2

    async def silent_at_first(_slot: Slot) -> AppendResult | None:
        return answers.pop() if answers else None

    watched.before_append = silent_at_first
    notes = executor(lambda: watched.log.append("ran") or "done")
    async with working(Worker(as_("a", watched), notes)):
        await finished(ledger, ONE)
        await until(lambda: "ack one decided" in watched.log)
    ours = [line for line in watched.log if line not in {"ack one claim 1", "closed"}]
    unanswered = ["Unconfirmed one claim 1", "retry one decided"]
    assert ours == [
        *unanswered, *unanswered, "Recorded one claim 1", "ran", "Recorded one finished",
        "ack one decided",
    ]  # fmt: skip


async def test_a_result_is_written_down_however_long_it_takes(watched: Watched, ledger: Ledger):
    """The broker does not say whether it has the result: it is written again, and stands once; the
    tool ran once (I7).
    """
    await approve(ledger, ONE)
    silent = [Unconfirmed("no answer")]

    async def silent_about_results(slot: Slot) -> AppendResult | None:
        return silent.pop() if slot == ONE.finished and silent else None

    watched.before_append = silent_about_results
    notes = executor(lambda: watched.log.append("ran") or "done")
    async with working(Worker(as_("a", watched), notes)):
        await finished(ledger, ONE)
    assert watched.log.count("ran") == 1
    ends = ["Unconfirmed one finished", "Recorded one finished"]
    assert [line for line in watched.log if line in ends] == ends
    assert kinds(await ledger.read(ONE)) == RAN


async def test_a_late_result_is_kept_apart_however_long_it_takes(watched: Watched, ledger: Ledger):
    """Also the second slot of a result that lost the first one is written until it stands (I9)."""
    await approve(ledger, ONE)
    silent = [Unconfirmed("no answer")]

    async def silent_about_the_late(slot: Slot) -> AppendResult | None:
        return silent.pop() if slot == ONE.late(1) and silent else None

    async def refund() -> str:
        await ledger.append(ONE.finished, e.InDoubt(attempt=1, text="given up on"))
        return "done"

    watched.before_append = silent_about_the_late
    async with working(Worker(as_("a", watched), executor(refund))):
        await until(lambda: "ack one decided" in watched.log)
    assert kinds(await ledger.read(ONE))[-2:] == ["InDoubt", "ToolReturned"]
    assert (await ledger.call(ONE)).status is Status.IN_DOUBT


# ----------------------------------------------------------------------------------------- failures


class Stumbling:
    """Notes the calls that it is handed, and stumbles over one of them."""

    durables = ("gate",)
    replaces = False

    def __init__(self, over: CallRef, times: int = 10**6) -> None:
        self.over, self.left = over, times
        self.handed: list[CallRef] = []

    async def load(self, ledger: Ledger, handed: Delivered) -> CallRef:
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref
        self.handed.append(ref)
        return ref

    def decide(self, seen: CallRef, handed: Delivered) -> Sequence[Effect[Never]]:
        if seen == self.over and self.left:
            self.left -= 1
            raise LookupError("no such reason")
        is_ended = isinstance(handed, Fact) and isinstance(handed.event, e.Withdrawn)
        return [] if is_ended else [Append(seen.decided, e.Withdrawn())]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError


def requested(number: int) -> e.ToolRequested:
    return e.ToolRequested(tool="refund", arguments="{}", digest=str(number))


async def test_what_cannot_be_handled_is_parked_and_the_others_go_on(port, ledger, at_once):
    """Tried so often, then parked with its reason; what came after it did not wait (B55)."""
    calls = [THREAD.call(f"c{number}") for number in range(20)]
    for number, ref in enumerate(calls):
        await ledger.append(ref.requested, requested(number))
    stumbling = Stumbling(calls[0])
    async with working(Worker(ledger, stumbling, concurrency=1)):
        await recorded(ledger, calls[-1].decided.subject)
        await until(lambda: _is_parked(port, 1))
    [one] = await port.parked()
    assert (one.consumer, one.seq, one.subject) == ("gate", 1, calls[0].requested.subject)
    assert one.reason == "LookupError: no such reason"
    assert one.tries == MAX_TRIES == stumbling.handed.count(calls[0])
    assert kinds(await ledger.read(calls[0])) == ["ToolRequested"]
    assert stumbling.handed.count(calls[5]) == 1


async def test_no_worker_looks_at_surplus_handovers(port: EventLog, ledger: Ledger):
    """However many a login records, and whatever is in them, they are acknowledged at once."""
    notes = Stumbling(ONE, times=0)
    notes.durables = ("queue",)
    await port.append(ONE.handed_by("ana", 1_000), b'{"type":"Tomorrow","v":9}', "")
    await ledger.append(ONE.handed_by("ana", 1_001), e.HandedOver(to="ben"))
    await ledger.append(TWO.handed_by("ana", 1), e.HandedOver(to="ben"))
    async with working(Worker(ledger, notes)):
        await until(lambda: _stands(ledger, TWO.decided))
    assert (set(notes.handed), await port.parked()) == ({TWO}, [])


async def _is_parked(port: EventLog, count: int) -> bool:
    return len(await port.parked()) == count


async def test_a_stumble_is_tried_again(port: EventLog, ledger: Ledger, at_once: None):
    """What failed and then did not is settled like any other, and nothing is parked."""
    await ledger.append(ONE.requested, requested(1))
    stumbling = Stumbling(ONE, times=MAX_TRIES - 1)
    async with working(Worker(ledger, stumbling)):
        await until(lambda: _stands(ledger, ONE.decided))
    assert len(stumbling.handed) == MAX_TRIES
    assert await port.parked() == []


async def _stands(ledger: Ledger, slot: Slot) -> bool:
    return await ledger.log.latest(slot.subject) is not None


@pytest.mark.log("memory", "jetstream")
async def test_what_cannot_be_read_is_parked_at_once(port: EventLog, ledger: Ledger):
    """A fact from the future, one that stands where it cannot, and bytes that are none: parked,
    never guessed at (I12, B14).
    """
    foreign = {
        "future": b'{"type":"ToolRequested","v":99,"id":"x"}',
        "unknown": b'{"type":"Postponed","id":"x"}',
        "elsewhere": b'{"type":"Denied","id":"x","ground":"people","rule":"r","policy_version":1}',
        "bytes": b"\xff",
    }
    for name, raw in foreign.items():
        await port.append(THREAD.call(name).requested, raw, "x")
    await ledger.append(ONE.requested, requested(1))
    stumbling = Stumbling(ONE, times=0)
    async with working(Worker(ledger, stumbling)):
        await until(lambda: _is_parked(port, 4))
        await until(lambda: _stands(ledger, ONE.decided))
    assert stumbling.handed == [ONE]
    found = await port.parked()
    reasons = {one.subject.split(".")[4]: one.reason for one in found}
    assert reasons.pop("bytes").startswith("b'\\xff' is not a fact: ")
    assert reasons == {
        "future": "a ToolRequested of version 99 is newer than this program",
        "unknown": "a Postponed of version 1 is newer than this program",
        "elsewhere": "a Denied cannot be in ledger.shop.t1.call.elsewhere.requested",
    }
    assert {one.tries for one in found} == {1}


@pytest.mark.log("memory", "jetstream")
async def test_many_facts_that_cannot_be_read_hold_up_nothing(
    port: EventLog, ledger: Ledger, monkeypatch
):
    """Some are parked for the operator to see. More of them take no more places, and the others of
    their consumer are handled.
    """
    monkeypatch.setattr(worker_module, "_MAX_UNREADABLE", 2)
    for number in range(5):
        await port.append(THREAD.call(f"c{number}").requested, b"\xff", "x")
    await ledger.append(ONE.requested, requested(1))
    async with working(Worker(ledger, Stumbling(ONE, times=0))):
        await until(lambda: _stands(ledger, ONE.decided))
        await until(lambda: _is_acknowledged(port, "gate"))
    assert len(await port.parked()) == 2


async def _is_acknowledged(port: EventLog, durable: str) -> bool:
    found = await port.progress(durable)
    return found is not None and not found.waiting and not found.in_hand


class Replying(Stumbling):
    """Works on a reply until it may end."""

    durables = Gate.durables

    def __init__(self) -> None:
        super().__init__(TWO)
        self.may_end = asyncio.Event()

    async def load(self, ledger: Ledger, handed: Delivered) -> CallRef:
        if isinstance(handed, Fact) and handed.slot.call_ref is None:
            await self.may_end.wait()
            return ONE
        return await super().load(ledger, handed)

    def decide(self, seen: CallRef, handed: Delivered) -> Sequence[Effect[Never]]:
        return () if self.may_end.is_set() else super().decide(seen, handed)


async def test_no_call_waits_behind_what_a_model_replied(port: EventLog, ledger: Ledger):
    """Replies come by a consumer of their own, and take none of the room of others."""
    await ledger.append(THREAD.replied(1), e.ModelReplied(parts=()))
    await ledger.append(ONE.requested, requested(1))
    replying = Replying()
    async with working(Worker(ledger, replying, concurrency=1)):
        await until(lambda: _stands(ledger, ONE.decided))
        replying.may_end.set()
        await until(lambda: _is_acknowledged(port, "gate-replies"))


@pytest.mark.log("memory", "jetstream")
async def test_what_kills_its_worker_does_not_do_so_for_ever(port, ledger, at_once, monkeypatch):
    """Handed out too often without ever being settled, a delivery is parked untouched."""
    monkeypatch.setattr(worker_module, "MAX_DELIVERIES", 1)
    monkeypatch.setattr(worker_module, "MAX_TRIES", 10)
    await ledger.append(ONE.requested, requested(1))
    stumbling = Stumbling(ONE)
    async with working(Worker(ledger, stumbling)):
        await until(lambda: _is_parked(port, 1))
    assert len(stumbling.handed) == 1
    assert [one.reason for one in await port.parked()] == ["delivered 2 times, never settled"]


# ----------------------------------------------------------------------------------------- stopping


class Slow:
    """A tool that says when it has begun, and waits until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.runs = 0

    async def __call__(self) -> str:
        self.runs += 1
        self.begun.set()
        await self.may_end.wait()
        return "done"


async def test_draining_finishes_what_is_in_hand(watched: Watched, ledger: Ledger):
    """Told to stop, it takes nothing more, ends what it began, writes it down, then returns."""
    slow = Slow()
    await approve(ledger, ONE)
    worker = Worker(as_("a", watched), executor(slow))
    running = asyncio.create_task(worker.run())
    await slow.begun.wait()
    worker.stop()
    await until(lambda: "closed" in watched.log)
    await approve(ledger, TWO)
    assert not running.done()
    slow.may_end.set()
    await running
    assert kinds(await ledger.read(ONE)) == RAN
    assert kinds(await ledger.read(TWO)) == ["ToolRequested", "Approved"]
    assert "ack one decided" in watched.log
    async with working(Worker(as_("b", ledger.log), executor(slow))):
        await finished(ledger, TWO)
    assert slow.runs == 2


async def test_a_cancelled_worker_finishes_what_is_in_hand(ledger: Ledger):
    """Cancelled instead of told: the same, since the tool is running whatever happens to us."""
    slow = Slow()
    await approve(ledger, ONE)
    running = asyncio.create_task(Worker(as_("a", ledger.log), executor(slow)).run())
    await slow.begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    slow.may_end.set()
    with suppress(asyncio.CancelledError):
        await running
    assert kinds(await ledger.read(ONE)) == RAN


async def test_what_has_been_done_is_written_down_by_a_worker_out_of_time(watched, ledger):
    """Its time to drain is up while the result is on its way: it gets there (I7)."""
    await approve(ledger, ONE)
    writing, may_write = asyncio.Event(), asyncio.Event()

    async def slowly(slot: Slot) -> None:
        if slot == ONE.finished:
            writing.set()
            await may_write.wait()

    watched.before_append = slowly
    worker = Worker(as_("a", watched), executor(lambda: "done"), drain_s=0.01)
    running = asyncio.create_task(worker.run())
    await writing.wait()
    worker.stop()
    await until(lambda: any(task.cancelling() for task in worker._tasks))
    may_write.set()
    await running
    assert kinds(await ledger.read(ONE)) == RAN


@pytest.mark.log("memory", "jetstream")
async def test_what_was_handed_out_and_not_begun_goes_to_somebody_else(ledger: Ledger):
    """A worker that is busy stops: the rest of what it held is done by the next one, each once."""
    slow = Slow()
    calls = [THREAD.call(f"c{number}") for number in range(10)]
    for ref in calls:
        await approve(ledger, ref)
    async with working(Worker(as_("a", ledger.log), executor(slow), concurrency=1)):
        await slow.begun.wait()
        slow.may_end.set()
    async with working(Worker(as_("b", ledger.log), executor(slow))):
        ends = await finished(ledger, *calls)
    assert {type(end) for end in ends} == {e.ToolReturned}
    assert slow.runs == 10


# -------------------------------------------------------------------------------- dying, and rivals


async def die(mortal: Worker[Any, Any], begun: asyncio.Event) -> None:
    """As if killed: what it does is cut off, nothing is drained."""
    running = asyncio.create_task(mortal.run())
    await begun.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.log("memory", "jetstream")
@pytest.mark.parametrize("ack_wait_s", [0.5])
async def test_a_crash_between_claim_and_result_is_in_doubt(ledger: Ledger, ack_wait_s: float):
    """Whoever comes next does not run it again: a person says what happened (I7, B49, B34)."""
    slow = Slow()
    await approve(ledger, ONE)
    mortal = Worker(as_("a", ledger.log), executor(slow), ack_wait_s=ack_wait_s, drain_s=0)
    await die(mortal, slow.begun)
    assert (await ledger.call(ONE)).status is Status.RUNNING
    async with working(Worker(as_("b", ledger.log), executor(slow), ack_wait_s=ack_wait_s)):
        [end] = await finished(ledger, ONE)
    assert isinstance(end, e.InDoubt)
    assert slow.runs == 1
    call = await ledger.reviewer("ana").reconcile(ONE, happened=True, output="It was refunded.")
    assert call.status is Status.RECONCILED


class AsDelivered:
    """A replica that lacks what was recorded after the delivered fact."""

    def __init__(self, port: EventLog, seq: int = 0) -> None:
        self._port, self._seq = port, seq

    def as_of(self, seq: int) -> "AsDelivered":
        return AsDelivered(self._port, seq)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return tuple(one for one in await self._port.read(*subjects) if one.seq <= self._seq)

    async def latest(self, subjects: str) -> Fact | None:
        return next(reversed(await self.read(subjects)), None)


@pytest.mark.parametrize("ack_wait_s", [0.5])
async def test_what_is_delivered_again_is_not_read_from_a_replica(ledger: Ledger, ack_wait_s):
    """It may lack what the dead worker began, whose claim would be taken for a living rival's."""
    slow = Slow()
    await approve(ledger, ONE)
    mortal = Worker(as_("a", ledger.log), executor(slow), ack_wait_s=ack_wait_s, drain_s=0)
    await die(mortal, slow.begun)
    replica: Any = AsDelivered(ledger.log)
    heir = Worker(as_("b", ledger.log), executor(slow), replica=replica, ack_wait_s=ack_wait_s)
    async with working(heir):
        [end] = await finished(ledger, ONE)
    assert isinstance(end, e.InDoubt)


@pytest.mark.parametrize("ack_wait_s", [0.5])
async def test_a_crash_of_a_repeatable_tool_is_its_next_attempt(ledger: Ledger, ack_wait_s: float):
    """Declared repeatable, it runs again, with its own claim and the same key (I7, B49)."""
    slow = Slow()
    await approve(ledger, ONE, repeatable=True)
    mortal = Worker(
        as_("a", ledger.log), executor(slow, repeatable=True), ack_wait_s=ack_wait_s, drain_s=0
    )
    await die(mortal, slow.begun)
    slow.may_end.set()
    async with working(
        Worker(as_("b", ledger.log), executor(slow, repeatable=True), ack_wait_s=ack_wait_s)
    ):
        [end] = await finished(ledger, ONE)
    assert isinstance(end, e.ToolReturned)
    assert end.attempt == slow.runs == 2
    assert kinds(await ledger.read(ONE))[2:] == ["ToolStarted", "ToolStarted", "ToolReturned"]


class Deaf:
    """A model that does not answer the first time."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun = asyncio.Event()

    async def reply(self, question: ModelRequest) -> ModelReply:
        self.asked += 1
        self.begun.set()
        if self.asked == 1:
            await asyncio.Event().wait()
        return ModelReply((e.Text("Hi!"),))


@pytest.mark.parametrize("ack_wait_s", [0.5])
async def test_a_crash_while_the_model_is_asked_is_its_next_attempt(ledger, ack_wait_s):
    """Asking twice harms nobody: the next worker asks again, and one answer stands (I8)."""
    deaf = Deaf()
    await ledger.append(THREAD.opened, e.ThreadOpened(requester="rita", model="test:m"))
    await ledger.append(THREAD.said("m1"), e.Said(role="user", text="hello"))
    mortal = Worker(ledger, ModelWorker({"test": deaf}), ack_wait_s=ack_wait_s, drain_s=0)
    await die(mortal, deaf.begun)
    async with working(Worker(ledger, ModelWorker({"test": deaf}), ack_wait_s=ack_wait_s)):
        await until(lambda: _stands(ledger, THREAD.replied(1)))
    assert kinds(await ledger.read(THREAD)) == [
        "ThreadOpened", "Said", "ModelAsked", "ModelAsked", "ModelReplied",
    ]  # fmt: skip
    assert deaf.asked == 2


@pytest.mark.log("memory", "jetstream")
async def test_two_copies_of_a_worker_do_each_thing_once(ledger: Ledger):
    """Sixty calls, two workers: each call runs once, and both had their share (I6, B57)."""
    ran: list[str] = []

    async def refund(order: str) -> str:
        ran.append(order)
        await asyncio.sleep(0)
        return order

    calls = [THREAD.call(f"c{number}") for number in range(60)]
    for ref in calls:
        await approve(ledger, ref, arguments=f'{{"order":"{ref.call}"}}')
    pair = [Worker(as_(name, ledger.log), executor(refund), concurrency=4) for name in ("a", "b")]
    async with working(*pair):
        ends = await finished(ledger, *calls)
    assert {type(end) for end in ends} == {e.ToolReturned}
    assert sorted(ran) == sorted(ref.call for ref in calls)


class AtOnce(Executor):
    """Two executors that have both looked before either goes on."""

    def __init__(
        self, function: Callable[..., Any], durable: str, barrier: asyncio.Barrier
    ) -> None:
        super().__init__({"refund": tool(function)}, durable=durable)
        self._barrier = barrier

    async def load(self, ledger: Ledger, handed: Delivered) -> Any:
        seen = await super().load(ledger, handed)
        if isinstance(handed, Fact) and handed.slot.tail[2] == "decided":
            await self._barrier.wait()
        return seen


async def test_who_loses_a_claim_leaves_the_work_to_its_rival(ledger: Ledger):
    """Both saw it approved, one claimed it: the other neither runs it nor calls it in doubt, since
    the winner lives (I6, I7, B27).
    """
    slow, barrier = Slow(), asyncio.Barrier(2)
    await approve(ledger, ONE)
    # Two durables are handed the same fact, as two workers are when the first was too slow to say
    # that it lives.
    pair = [
        Worker(as_(durable, ledger.log), AtOnce(slow, durable, barrier))
        for durable in ("executor", "executor-recorded")
    ]
    async with working(*pair):
        await slow.begun.wait()
        await until(lambda: sum(bool(worker._held) for worker in pair) == 1)
        slow.may_end.set()
        [end] = await finished(ledger, ONE)
    assert isinstance(end, e.ToolReturned)
    assert kinds(await ledger.read(ONE)) == RAN
    assert slow.runs == 1


@pytest.mark.log("memory", "jetstream")
@pytest.mark.parametrize("ack_wait_s", [0.6])
async def test_a_worker_that_was_silent_does_not_begin_what_it_held(watched, ledger, ack_wait_s):
    """Paused for too long, its work is with another by now; it lets go of that (I6, I7)."""
    slow, go = Slow(), asyncio.Event()
    pausing = asyncio.Event()

    async def pause() -> str:
        pausing.set()
        await go.wait()
        time.sleep(1.0)  # the whole process stands still  # noqa: ASYNC251
        return "done"

    await approve(ledger, ONE)
    await approve(ledger, TWO)
    paused = Worker(as_("a", watched), executor(pause), concurrency=1, ack_wait_s=ack_wait_s)
    other = Worker(as_("b", ledger.log), executor(slow), ack_wait_s=ack_wait_s)
    running = asyncio.create_task(paused.run())
    await pausing.wait()
    await until(lambda: len(paused._tasks) >= 2)
    paused.stop()
    await until(lambda: "closed" in watched.log)
    async with working(other):
        go.set()
        await running
        await slow.begun.wait()
        slow.may_end.set()
        [end] = await finished(ledger, TWO)
    assert isinstance(end, e.ToolReturned)
    facts = await ledger.read(TWO)
    assert kinds(facts) == RAN
    assert [fact.event.by.name for fact in facts[2:]] == ["b", "b"]  # type: ignore[union-attr]


@pytest.mark.parametrize("ack_wait_s", [0.6])
async def test_a_worker_that_is_not_heard_does_not_begin_what_it_held(watched, ledger, ack_wait_s):
    """Cut off from the broker, it is not heard, so it does not count on what it says (I6, I7)."""
    slow = Slow()

    async def cut_off() -> None:
        raise BrokerAway("cut off")

    watched.in_progress = cut_off
    await approve(ledger, ONE)
    await approve(ledger, TWO)
    worker = Worker(as_("a", watched), executor(slow), concurrency=1, ack_wait_s=ack_wait_s)
    running = asyncio.create_task(worker.run())
    await slow.begun.wait()
    await until(lambda: len(worker._tasks) >= 2)
    worker.stop()
    await until(lambda: all(worker._lost(place) for place in worker._held))
    slow.may_end.set()
    await running
    assert kinds(await ledger.read(ONE))[-1] == "ToolReturned"
    assert kinds(await ledger.read(TWO)) == ["ToolRequested", "Approved"]
    async with working(Worker(as_("b", ledger.log), executor(slow), ack_wait_s=ack_wait_s)):
        await finished(ledger, TWO)
    assert slow.runs == 2


class WaitingToRead(Executor):
    """Says when it is about to read an approved call, and waits until it may."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__({"refund": tool(function)})
        self.begun, self.may_read = asyncio.Event(), asyncio.Event()

    async def load(self, ledger: Ledger, handed: Delivered) -> Any:
        if isinstance(handed, Fact) and handed.slot == ONE.decided:
            self.begun.set()
            await self.may_read.wait()
        return await super().load(ledger, handed)


@simulated
async def test_a_worker_that_fell_silent_while_it_read_takes_nobody_for_dead(
    watched: Watched, ledger: Ledger, ack_wait_s: float
):
    """What it reads at last shows the claim of the worker that has the call by now: that one lives,
    so the call is not in doubt (I6, I7).
    """
    slow = Slow()
    waiting = WaitingToRead(slow)

    async def cut_off() -> None:
        raise BrokerAway("cut off")

    watched.in_progress = cut_off
    await approve(ledger, ONE)
    silent = Worker(as_("a", watched), waiting, ack_wait_s=ack_wait_s)
    other = Worker(as_("b", ledger.log), executor(slow), ack_wait_s=ack_wait_s)
    async with working(silent):
        await waiting.begun.wait()
        async with working(other):
            await slow.begun.wait()
            await until(lambda: all(silent._lost(place) for place in silent._held))
            waiting.may_read.set()
            await until(lambda: not silent._held)
            slow.may_end.set()
            [end] = await finished(ledger, ONE)
    assert isinstance(end, e.ToolReturned)
    assert kinds(await ledger.read(ONE)) == RAN


@simulated
async def test_a_slow_tool_is_not_taken_for_dead(ledger: Ledger, ack_wait_s: float):
    """A tool may take longer than a silent worker is waited for: its worker says that it lives."""
    slow = Slow()
    await approve(ledger, ONE)
    pair = [
        Worker(as_(name, ledger.log), executor(slow), ack_wait_s=ack_wait_s) for name in ("a", "b")
    ]
    async with working(*pair):
        await slow.begun.wait()
        await asyncio.sleep(2.5 * ack_wait_s)
        slow.may_end.set()
        [end] = await finished(ledger, ONE)
    assert isinstance(end, e.ToolReturned)
    assert slow.runs == 1


async def test_what_comes_again_while_it_is_in_hand_is_begun_once(port: EventLog, ledger: Ledger):
    """The heartbeat came too late, and the broker delivers it to the same worker again."""
    begun, again = asyncio.Event(), asyncio.Event()

    class Twice(Watched):
        async def _hand_out(self, deliveries: AsyncIterator[Delivery]) -> AsyncIterator[Delivery]:
            async for delivery in deliveries:
                yield delivery
                if isinstance(delivery.handed, Fact) and delivery.handed.slot == ONE.decided:
                    await begun.wait()
                    yield delivery
                    again.set()

    async def slow() -> str:
        begun.set()
        await again.wait()
        return "done"

    loaded = []

    class Counting(Executor):
        async def load(self, ledger: Ledger, handed: Delivered) -> Any:
            loaded.append(handed)
            return await super().load(ledger, handed)

    await approve(ledger, ONE)
    worker = Worker(as_("a", Twice(port)), Counting({"refund": tool(slow)}))
    async with working(worker):
        await finished(ledger, ONE)
    assert [one.slot for one in loaded].count(ONE.decided) == 1
    assert kinds(await ledger.read(ONE)) == RAN


@simulated
async def test_what_was_settled_is_not_held_for_ever(watched, ledger, ack_wait_s):
    """A sign of life that was on its way while the work ended holds on to nothing."""
    slow = Slow()
    saying, said = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        saying.set()
        await said.wait()

    watched.in_progress = slowly
    await approve(ledger, ONE)
    worker = Worker(as_("a", watched), executor(slow), ack_wait_s=ack_wait_s)
    async with working(worker):
        await slow.begun.wait()
        await saying.wait()
        slow.may_end.set()
        await until(lambda: "ack one decided" in watched.log)
        said.set()
        await asyncio.sleep(ack_wait_s)  # it gets through, and the next one would be due
        assert worker._held == {}
