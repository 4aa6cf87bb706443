"""A ledger on three nodes: nobody is told that something is missing which was acknowledged
before.
"""

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster import cluster
from shop import rule

from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.tools import Tools
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info
from ayes.ops.workers import working
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

#: How many calls are asked for; `make cluster` takes more.
CALLS = int(os.environ.get("AYES_TEST_CALLS", "100"))
#: How many of them at once.
AT_ONCE = 32
POLICY = rule("freely", "allow", tools="auto") + rule("money", "ask", tools="pay")
SPECS = [
    ToolSpec(name=name, schema='{"type":"object","properties":{"n":{"type":"integer"}}}')
    for name in ("auto", "pay")
]


@pytest.mark.long
async def test_nobody_is_told_that_what_was_acknowledged_is_missing(tmp_path: Path):
    """Services on three nodes ask, wait and run at once, a reviewer votes on what another node
    shows: without a fault no call is unknown, none is pending for who was told that it is decided,
    and no entry is left in the queue (D1, D2, B46).
    """
    refs = [ThreadRef("load", f"t{number % 20}").call(f"c{number}") for number in range(CALLS)]
    problems: Counter[str] = Counter()
    async with cluster(tmp_path, "ana") as running, AsyncExitStack() as stack:
        stores = [node.store.path for node in running.nodes]
        services = [
            await stack.enter_async_context(
                Ledger.connect(store, name=f"desk{number}", timeout_s=60)
            )
            for number, store in enumerate(stores)
        ]
        ana = await stack.enter_async_context(
            Ledger.connect(stores[2], role="reviewer-ana", timeout_s=60)
        )
        operator = await stack.enter_async_context(
            Ledger.connect(stores[0], role="operator", timeout_s=60)
        )
        await operator.append(policy_slot("load", 1), applied(POLICY))
        for spec in SPECS:
            await services[0].declare("load", spec)
        at_work = [("gate", Gate()), ("queue", PendingProjector()), ("executor", Executor(Tools()))]
        for number, one in enumerate(at_work):
            await stack.enter_async_context(working([one], store=stores[number]))
        room = asyncio.Semaphore(AT_ONCE)
        voting = asyncio.create_task(vote(ana, len(refs) // 2, problems))
        async with asyncio.TaskGroup() as all_of_them:
            for number, ref in enumerate(refs):
                service = services[number % len(services)]
                all_of_them.create_task(
                    one_call(service, ref, SPECS[number % 2].name, room, problems)
                )
        await voting
        assert problems == {}
        calls = [await services[0].call(ref) for ref in refs]
        assert Counter(call.status for call in calls) == {"returned": len(refs)}
        async with asyncio.timeout(60):
            while await left(operator):  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.05)
        assert await operator.log.pending.entries() == {}


async def one_call(
    service: Ledger, ref: CallRef, tool: str, room: asyncio.Semaphore, problems: Counter[str]
) -> None:
    """What the README's service does: ask, wait, run."""
    async with room:
        try:
            await service.request(ref, tool, {"n": 1}, requester="rita")
            await service.decision(ref, timeout_s=60)
            await service.run(ref, lambda n: f"done {n}")
        except ApprovalsError as problem:
            problems[f"{type(problem).__name__}: {problem}"] += 1


async def vote(ana: Ledger, count: int, problems: Counter[str]) -> None:
    """Vote on each question as soon as it is recorded."""
    async with asyncio.TaskGroup() as votes:
        async for fact in ana.watch(1, "ledger.*.*.call.*.gated"):
            assert fact.slot.call_ref
            votes.create_task(one_vote(ana, fact.slot.call_ref, problems))
            count -= 1
            if not count:
                return


async def one_vote(ana: Ledger, ref: CallRef, problems: Counter[str]) -> None:
    try:
        await ana.reviewer("ana").approve(ref)
    except ApprovalsError as problem:
        problems[f"{type(problem).__name__}: {problem}"] += 1


async def left(operator: Ledger) -> int:
    """How much the queue has still to handle."""
    assert isinstance(operator.log, JetStream)
    consumer = await info(operator.log.api, "CONSUMER.INFO.LEDGER.queue")
    assert consumer
    return int(consumer["num_pending"]) + int(consumer["num_ack_pending"])
