"""A cluster without a leader: what runs waits and goes on by itself, what starts says so."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from cluster import cluster

from ayes.consumers.pending_view import PendingView
from ayes.consumers.tools import Tools
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ops.workers import reactions, working
from ayes.schemas.errors import Unavailable
from ayes.schemas.policy import applied
from ayes.schemas.slots import ThreadRef, policy_slot

#: How long two of three nodes are away; the broker says that it has no leader after 14 s.
OUTAGE_S = float(os.environ.get("AYES_TEST_OUTAGE_S", "1"))
THREAD = ThreadRef("shop", "t1")
POLICY = '[[rule]]\nname = "money"\ntools = ["pay"]\nthen = "ask"\n'


def tools() -> Tools:
    registry = Tools()

    @registry.add()
    def pay() -> str:
        """Pay."""
        return "paid"

    return registry


@pytest.mark.long
async def test_workers_and_readers_outlive_the_loss_of_two_nodes(tmp_path: Path):
    """Two of three nodes are killed and come back: no worker ends, and whoever waits for a
    decision, watches the log or shows the queue goes on by itself (D4, B53).
    """
    async with (
        cluster(tmp_path, "ana") as running,
        AsyncExitStack() as stack,
        asyncio.timeout(110),
    ):
        stores = [node.store.path for node in running.nodes]
        enter = stack.enter_async_context
        desk = await enter(Ledger.connect(stores[0], timeout_s=60))
        operator = await enter(Ledger.connect(stores[0], role="operator", timeout_s=60))
        await operator.append(policy_slot("shop", 1), applied(POLICY))
        registry = tools()
        await registry.declare(await enter(Ledger.connect(stores[0], role="executor")), "shop")
        ended = [
            await enter(working(reactions(["gate"]), store=stores[0])),
            await enter(working(reactions(["queue"]), store=stores[1])),
            await enter(working(reactions(["executor"], tools=registry), store=stores[2])),
        ]
        view = await enter(PendingView(desk))
        facts = await enter(aclosing(desk.watch(1, "ledger.*.*.call.*.finished")))
        first, second = THREAD.call("c1"), THREAD.call("c2")
        await desk.request(first, "pay", {}, requester="rita")
        deciding = asyncio.create_task(desk.decision(first))
        finished = asyncio.create_task(anext(facts))
        await shows(view, [str(first)])
        for node in running.nodes[1:]:
            os.kill(node.pid, signal.SIGKILL)
        await asyncio.sleep(OUTAGE_S)
        await asyncio.gather(*(node.restart() for node in running.nodes[1:]))
        ana = await enter(Ledger.connect(stores[0], role="reviewer-ana", timeout_s=60))
        await patiently(lambda: ana.reviewer("ana").approve(first))
        assert (await deciding).status in {Status.APPROVED, Status.RUNNING, Status.RETURNED}
        assert (await finished).slot.call_ref == first
        await patiently(lambda: desk.request(second, "pay", {}, requester="rita"))
        await shows(view, [str(second)])
        assert [one.done() for one in ended] == [False, False, False]


@pytest.mark.long
async def test_a_node_that_is_silently_away_keeps_nobody_from_reading(tmp_path: Path):
    """One of three nodes is stopped, so that its connections stay: for minutes the others give new
    consumers to it. What reads whole buckets needs none, and what follows the log asks again.
    """
    async with cluster(tmp_path) as running, asyncio.timeout(110):
        node, *_, silent = running.nodes
        async with Ledger.connect(node.store.path, role="admin", timeout_s=60) as admin:
            for key in ("a", "b"):
                await admin.log.pending.overwrite(key, key.encode())
            await admin.append(policy_slot("shop", 1), applied(POLICY))
            os.kill(silent.pid, signal.SIGSTOP)
            try:
                pending, running_ = admin.log.pending, admin.log.running
                # It may have led any of them.
                for asked in (admin.log.last_seq, pending.entries, running_.entries):
                    await patiently(asked)
                for _ in range(20):
                    assert await admin.log.pending.entries() == {"a": b"a", "b": b"b"}
                    assert await admin.log.running.entries() == {}
                for _ in range(3):
                    async with aclosing(admin.watch(1)) as facts:
                        assert (await anext(facts)).seq == 1
            finally:
                os.kill(silent.pid, signal.SIGCONT)


async def patiently(attempt):
    """What people and services do: the same again, while there is no leader yet."""
    while True:
        try:
            return await attempt()
        except Unavailable:
            await asyncio.sleep(0.1)


async def shows(view: PendingView, calls: list[str]) -> None:
    while [str(one.ref) for one in view.entries.oldest()] != calls:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)
