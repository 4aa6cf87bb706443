"""`ayes ready`, and a stall as `status`, `ready` and the monitor see it."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from functools import partial

import pytest
import structlog
from long import sampled
from program import approvals, started, up
from stories import CALL, REF, WISH, request
from structlog.testing import capture_logs
from until import recorded, until

from ayes.interfaces.cli import ready as ready_command
from ayes.interfaces.cli import setup as setup_command
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import jetstream
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import DURABLES, LEDGER
from ayes.ops.broker.setup import declare_streams
from ayes.ops.inspection import progress as progress_module
from ayes.ops.inspection.checks import glance
from ayes.ops.inspection.guard import create_missing
from ayes.ops.inspection.progress import ConsumerStatus
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput

APPROVED = e.Approved(digest="d", ground="policy", rule="freely", policy_version=1)
NOT_READY = 75


@pytest.fixture
def ready(store, capsys):
    async def asked(*roles):
        wanted = ready_command.WantedOptions(list(roles))
        code = await ready_command.ready(wanted, Session(store, json=True))
        return code, json.loads(capsys.readouterr().out)["why"]

    return asked


async def progress(log: JetStream, name: str) -> ConsumerStatus:
    return next(one for one in (await glance(log)).consumers if one.name == name)


# ----------------------------------------------------------------------------------------- a stall


def test_a_stall_is_seen_within_five_seconds():
    """By whoever looks each second (D18)."""
    assert progress_module.STALLED_S + 1 <= 5


@pytest.mark.parametrize(
    ("consumer", "slot", "event"),
    [
        ("gate", CALL.requested, request(WISH)),
        ("executor", CALL.decided, APPROVED),
    ],
    ids=["gate", "executor"],
)
async def test_a_long_tool_is_no_stall(store, admin, monkeypatch, consumer, slot, event):
    """A delivery that is not acknowledged is a stall of the gate, which needs milliseconds, but not
    of an executor, whose tool may run for an hour. An idle consumer is not stalled, nor is one that
    receives its first work after a long time (D18).
    """
    monkeypatch.setattr(progress_module, "STALLED_S", 1.0)
    async with admin.log.deliveries(consumer) as deliveries:
        await asyncio.sleep(1.1)
        assert not (await progress(admin.log, consumer)).frozen
        begin = time.monotonic()
        await admin.try_append(slot, event)
        delivery = await anext(deliveries)
        frozen = (await progress(admin.log, consumer)).frozen
        # On a busy machine the second may have passed.
        assert not frozen or time.monotonic() - begin > 1
        await asyncio.sleep(1.1)
        found = await progress(admin.log, consumer)
        assert (found.in_hand, found.frozen) == (1, consumer == "gate")
        await delivery.ack()
        async with asyncio.timeout(60):
            while (await progress(admin.log, consumer)).in_hand:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not (await progress(admin.log, consumer)).frozen


async def test_a_flow_of_new_facts_hides_no_stall(store, admin, monkeypatch):
    """Each second another fact is delivered to a gate that handles none: the oldest counts."""
    monkeypatch.setattr(progress_module, "STALLED_S", 0.5)
    async with admin.log.deliveries("gate") as deliveries:
        for number in range(3):
            await admin.try_append(REF.call(f"c{number}").requested, request(WISH))
            await anext(deliveries)
            await asyncio.sleep(0.3)
        found = await progress(admin.log, "gate")
        assert (found.in_hand, found.frozen) == (3, True)


async def test_what_no_worker_ever_took_is_no_stall(store, admin, monkeypatch):
    """Facts for models wait for ever where services ask their own models (D17)."""
    monkeypatch.setattr(progress_module, "STALLED_S", 0.1)
    await admin.try_append(REF.said("m1"), e.Said(role="user", text="Hello"))
    await asyncio.sleep(0.2)
    for name in ("model", "model-recorded"):
        found = await progress(admin.log, name)
        assert (found.waiting, found.used, found.frozen) == (1, False, False)


# ------------------------------------------------------------------------------------ as a command


async def test_ready_is_when_gate_and_queue_run(store, admin, ready):
    """Nobody is at work, then one of two, then both; an executor is asked for only by name."""
    assert await ready() == (NOT_READY, "no gate is at work. Start one: `ayes work gate`.")
    async with working(reactions(["gate"]), store=store):
        await until_ready(ready, (NOT_READY, "no queue is at work. Start one: `ayes work queue`."))
        assert await ready("gate") == (0, "")
        async with working(reactions(["queue"]), store=store):
            await until_ready(ready, (0, ""))
            why = "no executor is at work. Start one: `ayes work executor`."
            assert await ready("executor") == (NOT_READY, why)
    with pytest.raises(BadInput, match="there is no worker gates"):
        await ready("gates")


async def until_ready(ready, answer):
    async with asyncio.timeout(60):
        while await ready() != answer:  # noqa: ASYNC110 - nobody reports a subscription
            await asyncio.sleep(0.02)


async def test_a_workers_own_login_is_enough_to_ask_for_it(store, capsys):
    """A probe next to a worker needs no other password than the worker's."""
    login = Store(store).login("gate")
    url = login.url.replace("//", f"//{login.user}:{login.password}@")
    async with working(reactions(["gate"]), store=store), asyncio.timeout(60):
        wanted = ready_command.WantedOptions(["gate"])
        while await ready_command.ready(wanted, Session(None, url)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert capsys.readouterr().err.endswith("ready\n")


def test_nobody_is_ready_without_a_broker(tmp_path):
    """Exit 75 for a probe, which tries again, with the reason."""
    ended = approvals("ready", "--url", "nats://127.0.0.1:9", "--json")
    assert ended.code == NOT_READY
    assert "127.0.0.1:9" in ended.one["why"]


def test_a_stopped_gate_is_seen(tmp_path):
    """A gate that is stopped (SIGSTOP) still receives what is requested, and handles nothing: after
    less than five seconds `status` says so and the probes fail, by exit code and over HTTP. Once it
    goes on, all is well (D18).
    """
    store = tmp_path / "store"
    with (
        up(store, "--workers", "queue", "--monitor", "0") as ready,
        started("work", "gate", "--store", store, "--json") as gate,
    ):
        gate.stdout.readline()
        url = ready["monitor"]
        eventually(lambda: get(f"{url}/readyz"), (200, "ok\n"))
        os.kill(gate.pid, signal.SIGSTOP)
        try:
            asyncio.run(requested(store))
            while get(f"{url}/readyz")[0] == 200:
                time.sleep(0.1)
            status, why = get(f"{url}/readyz")
            assert (status, why.partition(":")[0]) == (503, "the workers of gate stand still")
            assert 'ayes_consumer_frozen{consumer="gate"} 1.0\n' in get(f"{url}/metrics")[1]
            ended = approvals("ready", store=store)
            assert (ended.code, ended.out) == (NOT_READY, "")
            assert "gate stand still: 1 delivery is not handled" in ended.err
            seen = approvals("status", "--json", store=store).one
            [gates] = [one for one in seen["consumers"] if one["name"] == "gate"]
            assert (gates["frozen"], gates["listening"], gates["in_hand"]) == (True, True, 1)
            assert "frozen: nothing was done for" in approvals("status", store=store).out
            assert get(f"{url}/livez") == (200, "ok\n")
        finally:
            os.kill(gate.pid, signal.SIGCONT)
        eventually(lambda: get(f"{url}/readyz"), (200, "ok\n"))


async def requested(store):
    async with Ledger.connect(store, role="admin") as admin:
        await admin.try_append(CALL.requested, request(WISH))


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def eventually(look, answer):
    begin = time.monotonic()
    while look() != answer:
        assert time.monotonic() - begin < 60
        time.sleep(0.05)


# ------------------------------------------------------------------------- what is no longer there


async def delete(admin, name):
    durable = DURABLES[name]
    await admin.log.api.call(f"CONSUMER.DELETE.{durable.stream}.{name}")


async def pause(admin, name, until="2199-01-01T00:00:00Z"):
    body = {"pause_until": until}
    await admin.log.api.call(f"CONSUMER.PAUSE.{DURABLES[name].stream}.{name}", body)


async def listened_to(admin, name):
    durable = DURABLES[name]
    found = await info(admin.log.api, f"CONSUMER.INFO.{durable.stream}.{name}")
    return found is not None and found.get("push_bound", False)


async def test_each_deleted_durable_is_created_again_while_its_worker_runs(
    store, admin, monkeypatch
):
    """A worker whose durable an administrator deletes would wait for ever for deliveries: one that
    receives nothing looks whether it is there, of every kind, those for parked deliveries too.
    """
    monkeypatch.setattr(jetstream, "SILENCE_S", 0.2)
    declare = partial(declare_streams, store, also=tuple(DURABLES))

    async def take(name):
        async with JetStream.connect(store, role=DURABLES[name].role) as log:
            log.declare = declare
            async with log.deliveries(name) as deliveries:
                async for _ in deliveries:
                    pass

    async with asyncio.TaskGroup() as group:
        taking = [group.create_task(take(name)) for name in DURABLES]
        for wait in (True, False):
            for name in DURABLES:
                await until(partial(listened_to, admin, name))
            if wait:
                for name in DURABLES:
                    await delete(admin, name)
        for one in taking:
            one.cancel()


@pytest.mark.parametrize(
    "name", sampled(["gate", "gate-timers", "queue", "executor"], "gate-timers", "executor")
)
async def test_ready_asks_for_every_consumer_of_a_role(
    store, admin, ready, monkeypatch, capsys, name
):
    """One of a role's two durables does not speak for the other, and one that was created and is
    gone is missed, also if not every ledger has it. Its worker may not create it, and says so
    once; when it is there again, the worker goes on, and what was requested meanwhile is judged.
    """
    monkeypatch.setattr(jetstream, "SILENCE_S", 0.2)
    kinds = ["gate", "queue", "executor"]
    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(jetstream, "_log", heard)
    async with working(reactions(kinds), store=store):
        await until_ready(ready, (0, ""))
        with capture_logs() as logs:
            await delete(admin, name)
            why = f"the consumer {name} is missing. `ayes setup` creates it."
            assert await ready() == (NOT_READY, why)
            role = DURABLES[name].role
            assert await ready(role) == (NOT_READY, why)
            await admin.try_append(CALL.requested, request(WISH))
            if name != "executor":  # which has no worker with tools here
                await until(lambda: any(one.get("consumer") == name for one in logs))
            await asyncio.sleep(1)
        if name != "executor":
            [said] = [one for one in logs if one.get("consumer") == name]
            assert "was deleted, so this worker receives nothing" in said["event"]
        await setup_command.setup(session=Session(store, json=True))
        capsys.readouterr()
        await until_ready(ready, (0, ""))
        await recorded(admin, CALL.decided.subject)


async def test_up_creates_what_was_deleted_for_workers_elsewhere(store, admin):
    """An executor on another machine may not create its durable: the guard of `up` does."""
    await delete(admin, "executor")
    await delete(admin, "notifier-later")
    await create_missing(admin.log.api)
    assert (await progress(admin.log, "executor")).exists
    assert (await progress(admin.log, "notifier-later")).exists


async def test_a_consumer_that_is_not_used_any_more_is_not_missed(store, admin, ready, capsys):
    """An administrator takes back an optional one; one that every ledger has stays."""
    assert await setup_command.setup(without=["slack"], session=Session(store, json=True)) == 0
    assert "slack" not in json.loads(capsys.readouterr().out)["consumers"]
    assert await info(admin.log.api, f"CONSUMER.INFO.{LEDGER}.slack") is None
    await create_missing(admin.log.api)
    assert await info(admin.log.api, f"CONSUMER.INFO.{LEDGER}.slack") is None
    with pytest.raises(BadInput, match="there is no optional consumer gate"):
        await setup_command.setup(without=["gate"], session=Session(store, json=True))


async def test_a_paused_consumer_is_named_and_set_going(store, admin, ready, capsys):
    """`ready` and `status` name it, and `setup --upgrade` ends it."""
    async with working(reactions(["gate", "queue"]), store=store):
        await until_ready(ready, (0, ""))
        await pause(admin, "gate")
        until_then = "is paused until 2199-01-01T00:00:00Z"
        remedy = "`ayes setup --upgrade` sets it going"
        assert await ready() == (NOT_READY, f"the consumer gate {until_then}. {remedy}.")
        assert (await progress(admin.log, "gate")).problem == "paused until 2199-01-01T00:00:00Z"
        await setup_command.setup(session=Session(store, json=True))
        assert json.loads(capsys.readouterr().out)["differing"] == [
            f"consumer gate {until_then}; {remedy}"
        ]
        await setup_command.setup(do_upgrade=True, yes=True, session=Session(store, json=True))
        assert "differing" not in json.loads(capsys.readouterr().out)
        await until_ready(ready, (0, ""))
        await pause(admin, "gate", "1999-01-01T00:00:00Z")
        assert await ready() == (0, "")
