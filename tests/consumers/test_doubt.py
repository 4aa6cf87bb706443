"""Which calls are in doubt: as their facts and leases have it, with an index or without."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from long import IN_MEMORY_FIRST
from program import started
from until import until

from ayes.consumers import doubt
from ayes.consumers.doubt import in_doubt, update_index, void_runs
from ayes.ledger.clients.services import CHANNEL, LEASE_S, RENEWED, Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.workers import reactions, working
from ayes.projections.doubt import doubt_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput, BrokerRefused
from ayes.schemas.slots import CallRef, Slot, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = IN_MEMORY_FIRST
THREAD = ThreadRef("shop", "t1")
PAY = ToolSpec(name="pay", schema='{"type":"object"}')
WIRE = ToolSpec(name="wire", schema='{"type":"object"}', run_by="executor")


@pytest.fixture
async def desk(ledger: Ledger) -> Ledger:
    """A service, in a workspace with a tool of its own and one of an executor."""
    await ledger.declare("shop", PAY)
    await ledger.declare("shop", WIRE)
    return ledger


async def approved(desk: Ledger, name: str, tool: str = "pay") -> CallRef:
    ref = THREAD.call(name)
    digest = (await desk.request(ref, tool, {}, requester="rita")).wish.digest
    yes = e.Approved(digest=digest, ground="people", rule="money", policy_version=1)
    assert await desk.try_append(ref.decided, yes) is None
    return ref


async def claimed(desk: Ledger, name: str, lease_s: float = 0, tool: str = "pay") -> CallRef:
    """A call whose runner is not there any more."""
    ref = await approved(desk, name, tool)
    slot = ref.client_claim(1) if tool == "pay" else ref.claim(1)
    digest = (await desk.call(ref)).digest
    started = e.ToolStarted(digest=digest, idempotency_key=str(ref), lease_s=lease_s)
    assert await desk.try_append(slot, started) is None
    return ref


async def doubted(desk: Ledger, slot: Slot, attempt: int = 1) -> None:
    assert await desk.try_append(slot, e.InDoubt(attempt=attempt, text="Nobody knows.")) is None


async def names(ledger: Ledger) -> list[str]:
    return [one.call for one in await in_doubt(ledger)]


async def _none(ledger: Ledger) -> bool:
    return not await names(ledger)


@pytest.fixture(params=["no index", "an index"])
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test of the result runs without an index, and with one that every fact is in."""
    monkeypatch.setattr(doubt, "RENEW_AFTER_S", -1)
    return bool(request.param == "an index")


async def indexed(ledger: Ledger, *, index: bool) -> None:
    if index:
        await update_index(ledger)


async def test_a_recorded_doubt_is_listed_until_somebody_reconciles_it(desk, index):
    """With the call, its tool, since when, and who claimed it. (D15, I7)"""
    first = await claimed(desk, "first", tool="wire")
    await doubted(desk, first.finished)
    second = await claimed(desk, "second")
    await doubted(desk, second.client_finished)
    await claimed(desk, "runs")
    await indexed(desk, index=index)
    found = await in_doubt(desk)
    facts = await desk.call(first)
    assert (found[0].workspace, found[0].thread, found[0].call) == ("shop", "t1", "first")
    assert (found[0].tool, found[0].claimed_by) == ("wire", desk.author.name)
    assert (found[0].claimed_at, found[0].since) == (
        facts.starts[0].recorded_at,
        facts.finished.recorded_at,
    )
    assert [(one.call, one.recorded) for one in found] == [("first", True), ("second", True)]
    await desk.try_append(
        second.reconciled_by("ana"), e.Reconciled(happened=True, output="paid", reviewer="ana")
    )
    assert await names(desk) == ["first"]
    await indexed(desk, index=index)
    assert await names(desk) == ["first"]
    assert await in_doubt(desk, "other") == []


async def test_a_result_that_came_late_is_shown(desk, index):
    """The worker was slow, and not dead. Of two different results none is offered. (D15)"""
    call = await claimed(desk, "c1", tool="wire")
    await doubted(desk, call.finished)
    await indexed(desk, index=index)
    assert [one.late for one in await in_doubt(desk)] == [None]
    await desk.try_append(call.late(1), e.ToolReturned(output="paid"))
    [found] = await in_doubt(desk)
    assert isinstance(found.late, e.ToolReturned)
    assert found.late.output == "paid"
    await desk.try_append(call.late(2), e.ToolReturned(output="paid"))
    assert [one.late for one in await in_doubt(desk)] == [found.late]
    await desk.try_append(call.late(3), e.ToolFailed(error="no money"))
    assert [one.late for one in await in_doubt(desk)] == [None]


async def test_a_doubt_behind_a_void_fact_is_listed(desk, index):
    """`finished` holds a fact that does not count, so the doubt is in `late`."""
    call = await approved(desk, "c1", "wire")
    await doubted(desk, call.finished, attempt=7)
    digest = (await desk.call(call)).digest
    await desk.try_append(call.claim(1), e.ToolStarted(digest=digest, idempotency_key=str(call)))
    assert await names(desk) == []
    await doubted(desk, call.late(1))
    await indexed(desk, index=index)
    assert await names(desk) == ["c1"]


@pytest.mark.log("memory", "jetstream")
async def test_a_service_that_renews_its_claim_is_alive_however_long_it_runs(desk, index):
    """Its tool runs for longer than the lease, and is in doubt only while it is cut off. (D15)"""
    call, goes_on = await approved(desk, "slow"), asyncio.Event()

    async def pay() -> str:
        await goes_on.wait()
        return "paid"

    running = asyncio.create_task(desk.run(call, pay, lease_s=0.6))
    await until(lambda: _is_renewed_after(desk, call, 0.6))
    await indexed(desk, index=index)
    await until(lambda: _none(desk))  # a busy machine may renew it too late
    goes_on.set()
    assert isinstance(await running, e.ToolReturned)
    assert await names(desk) == []
    await update_index(desk)
    assert set(await desk.log.running.entries()) == {"_upto"}


async def _is_renewed_after(desk: Ledger, call: CallRef, lease_s: float) -> bool:
    starts = (await desk.call(call)).starts
    entry = (await desk.log.running.written()).get("_renewed.shop.t1.slow")
    return bool(
        starts and entry and entry.at > starts[0].recorded_at + timedelta(seconds=2 * lease_s)
    )


async def test_a_short_run_writes_nothing_besides_its_facts(desk):
    """No renewal, and no entry in the index."""
    call = await approved(desk, "short")
    await desk.run(call, lambda: "paid")
    assert await desk.log.running.written() == {}
    await claimed(desk, "young", LEASE_S)
    before = await desk.log.last_seq()
    await update_index(desk)
    assert set(await desk.log.running.entries()) == {"_upto"}
    upto = (await desk.log.running.entries())["_upto"]
    assert int(upto) == before - 1, "the young call is examined again"


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), float("inf")])
async def test_a_lease_is_a_time(desk, lease_s):
    """Anything else is refused before anything is recorded."""
    call = await approved(desk, "c1")
    with pytest.raises(BadInput, match="give a number of seconds over 0"):
        await desk.run(call, lambda: "paid", lease_s=lease_s)
    assert (await desk.call(call)).starts == ()


async def test_a_lease_that_ended_is_no_fact(desk, index):
    """A renewal after it shows that the service lives; only `doubt` records the doubt."""
    call = await claimed(desk, "c1", lease_s=0.001)
    await indexed(desk, index=index)
    found = await until(lambda: in_doubt(desk))
    assert [(one.call, one.recorded, one.since) for one in found] == [
        ("c1", False, (await desk.call(call)).starts[0].recorded_at)
    ]
    await desk.doubt(call)
    assert [one.recorded for one in await in_doubt(desk)] == [True]


@pytest.mark.parametrize(
    ("lease_s", "renewed_s", "now_s", "is_in_doubt"),
    [
        (30, None, 30, False),
        (30, None, 30.1, True),
        (30, 25, 55, False),
        (30, 25, 55.1, True),
        (30, -5, 30.1, True),
        (0, None, 1e9, False),
        (1e300, None, 1e9, False),
        (-1, None, 1e9, False),
    ],
)
async def test_when_a_lease_ends(desk, lease_s, renewed_s, now_s, is_in_doubt):
    """By the broker's clock, from the claim or its last renewal; a claim without one never ends."""
    call = await desk.call(await claimed(desk, "c1", lease_s))
    begin = call.starts[0].recorded_at
    renewed = None if renewed_s is None else begin + timedelta(seconds=renewed_s)
    found = doubt_of(call, renewed, begin + timedelta(seconds=now_s))
    assert (found is not None) == is_in_doubt


@pytest.mark.log("memory", "jetstream")
async def test_the_index_is_made_anew_for_a_log_that_lost_its_end(desk, monkeypatch):
    """Its position is behind the end, so it belongs to another log."""
    monkeypatch.setattr(doubt, "RENEW_AFTER_S", -1)
    call = await claimed(desk, "c1", tool="wire")
    await doubted(desk, call.finished)
    for nonsense in (b"1000000", b"-3", b"soon"):
        await desk.log.running.overwrite("_upto", nonsense)
        await desk.log.running.overwrite("not-a-call", b"found")
        assert await names(desk) == ["c1"]
    await update_index(desk)
    assert int((await desk.log.running.entries())["_upto"]) == await desk.log.last_seq()


class Behind(Memory):
    """A log whose followers are answered by a replica that has only its beginning."""

    upto = 0

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async for facts in super().follow(subjects, start, until_end=until_end):
            if there := [fact for fact in facts if fact.seq <= self.upto]:
                yield there


async def test_a_replica_that_is_behind_hides_no_doubt_for_ever(monkeypatch):
    """The index does not pass facts that the replica did not have. (D15)"""
    monkeypatch.setattr(doubt, "RENEW_AFTER_S", -1)
    log = Behind()
    desk = Ledger(log, e.Author(kind="service", name="tests"))
    await desk.declare("shop", WIRE)
    call = await claimed(desk, "c1", tool="wire")
    log.upto = await log.last_seq()
    await doubted(desk, call.finished)
    await desk.say(THREAD, "Hello?", message="m1")
    await update_index(desk)
    log.upto = await log.last_seq()
    assert await names(desk) == ["c1"]
    await update_index(desk)
    assert int((await log.running.entries())["_upto"]) == log.upto


SERVICE = """
import asyncio, sys, time
from ayes import Ledger

async def main():
    async with Ledger.connect(sys.argv[1], name="billing") as ledger:
        await ledger.run("shop/t1/killed", pay, lease_s=1)

def pay():
    print("runs", flush=True)
    time.sleep(600)

asyncio.run(main())
"""


async def test_a_service_that_is_killed_is_noticed(store, admin):
    """After kill -9 in the middle of `run` the call is in doubt. (D15, I7)"""
    await admin.declare("shop", PAY)
    await approved(admin, "killed")
    await _run_and_kill(admin, store)
    [found] = await until(lambda: in_doubt(admin))
    assert (found.call, found.claimed_by, found.recorded) == ("killed", "billing", False)


async def _run_and_kill(desk: Ledger, store: Path) -> None:
    """Kill the service once it has renewed its claim, with the credentials of its role."""
    with started("-c", SERVICE, store, program=(sys.executable,)) as service:
        assert await asyncio.to_thread(service.stdout.readline) == "runs\n"
        await _written(desk, "_renewed.shop.t1.killed")
        service.kill()


async def test_a_broker_of_an_older_version_is_named(admin):
    """Without the bucket nothing is said about doubts, rather than that there are none."""
    assert isinstance(admin.log, JetStream)
    await admin.log.api.ask("$JS.API.STREAM.DELETE.KV_running", b"")
    with pytest.raises(BrokerRefused, match="KV_running"):
        await in_doubt(admin)


async def test_void_starts_and_results_are_found_for_a_week(desk, monkeypatch):
    """What somebody ran without leave, or made up, is the trace of an attack: it is found among the
    facts that the index examines anyway, and the alarm ends by itself. Runs that count and late
    results are none (I1).
    """
    good = await claimed(desk, "good")
    assert await desk.try_append(good.client_finished, e.ToolReturned(output="1")) is None
    started, forged, late = (THREAD.call(name) for name in ("started", "forged", "late"))
    for ref in (started, forged):
        await desk.request(ref, "wire", {}, requester="rita")
    digest = (await desk.call(started)).digest
    early = e.ToolStarted(digest=digest, idempotency_key="k")
    assert await desk.try_append(started.claim(1), early) is None
    assert await desk.try_append(forged.finished, e.ToolReturned(output="paid")) is None
    late = await claimed(desk, "late")
    await doubted(desk, late.client_finished)
    assert await desk.try_append(late.client_late(1), e.ToolReturned(output="1")) is None
    assert await void_runs(desk) == {}
    for _ in range(2):
        await update_index(desk)
        assert await void_runs(desk) == {
            str(started): "the call was not decided before it",
            str(forged): "attempt 1 was not started before it",
        }
        assert await names(desk) == ["late"]
    again = THREAD.call("again")
    await desk.request(again, "wire", {}, requester="rita")
    assert await desk.try_append(again.finished, e.ToolFailed(error="no")) is None
    monkeypatch.setattr(doubt, "VOID_S", -1)
    await update_index(desk)
    await desk.request(THREAD.call("other"), "wire", {}, requester="rita")
    await update_index(desk)
    assert await void_runs(desk) == {}


async def _written(desk: Ledger, key: str) -> None:
    async def stands() -> bool:
        return key in await desk.log.running.entries()

    await until(stands)


async def test_the_queues_worker_keeps_the_index(store, admin, monkeypatch):
    """With the credentials of its role; a reader without any rights to write finds the same."""
    monkeypatch.setattr(doubt, "RENEW_AFTER_S", -1)
    await admin.declare("shop", PAY)
    call = await claimed(admin, "c1")
    await doubted(admin, call.client_finished)
    async with working(reactions(["queue"]), store=store):
        await _written(admin, "shop.t1.c1")
        await _written(admin, "_upto")
    async with Ledger.connect(store, role="observer") as observer:
        assert await names(observer) == ["c1"]


async def test_a_role_cannot_empty_the_bucket_with_a_rollup(store):
    """A service or the notifier writes keys of its own there. No header on them removes others'
    (I9): neither a rollup of the whole stream nor one of the key.
    """
    async with (
        Ledger.connect(store, role="queue") as queue,
        Ledger.connect(store, role="service") as service,
        Ledger.connect(store, role="notifier") as notifier,
    ):
        await queue.log.running.overwrite("_upto", b"17")
        await queue.log.running.overwrite("shop.t1.c1", b"claimed")
        await service.log.running.overwrite(f"{RENEWED}shop.t1.c1", b"renewed")
        await notifier.log.running.overwrite(f"{CHANNEL}mail", b"{}")
        before = await queue.log.running.written()
        for ledger, key in ((service, f"{RENEWED}shop.t1.c2"), (notifier, f"{CHANNEL}chat")):
            assert isinstance(ledger.log, JetStream)
            for how in ("all", "sub"):
                ack = await ledger.log.api.publish(
                    f"$KV.running.{key}", b"x", {"Nats-Rollup": how}, 5.0
                )
                assert ack.error is not None, (key, how)
        assert await queue.log.running.written() == before
        revision = before[f"{CHANNEL}mail"].revision
        assert await notifier.log.running.delete(f"{CHANNEL}mail", revision)
        assert set(await queue.log.running.entries()) == set(before) - {f"{CHANNEL}mail"}
