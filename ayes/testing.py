"""A ledger in memory, for the tests of a service: no broker, no store, no other process.

    async with ledger(policy, workspace="shop") as desk:
        service = asyncio.create_task(give_back(desk, "A-17", 480))
        call = await asked(desk, "shop/order-A-17/refund-1")
        await desk.reviewer("ana").approve(call.ref)
        await service

It is the log and the gate that the tests of ayes run on (`ledger/in_memory.py` passes the same
tests as the log of a broker): policies, votes, digests and claims are the real ones. What a broker
adds is not there: nothing is durable or shared between processes, and every login may write all.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.tools import Tools
from ayes.consumers.worker import Worker
from ayes.ledger.call import Call
from ayes.ledger.clients.client import call_ref
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ops.broker.setup import apply_policy
from ayes.schemas.slots import CallRef


@asynccontextmanager
async def ledger(
    policy: str = "", *, workspace: str = "tests", tools: Tools | None = None
) -> AsyncGenerator[Ledger]:
    """An empty ledger on which a gate is at work, as a service sees it.

    Args:
        policy: the text of a policy file, in force in the workspace from the start. Without one,
            people are asked about every call.
        tools: are declared in the workspace, and run by an executor once they are approved.

    Raises:
        BadFile: the policy is wrong.
    """
    log = Memory()
    workers: list[Worker[Any, Any]] = [Worker(Ledger.on(log, "gate"), Gate())]
    if policy:
        await apply_policy(Ledger.on(log, "operator"), workspace, policy, "the policy of the test")
    if tools is not None:
        executor = Ledger.on(log, "executor")
        await tools.declare(executor, workspace)
        workers.append(Worker(executor, Executor(tools)))
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield Ledger.on(log, "service")
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)


async def asked(ledger: Ledger, call: CallRef | str, *, timeout_s: float = 10.0) -> Call:
    """The call, as soon as people are asked about it.

    Raises:
        TimeoutError: nobody was asked in time, for example since a rule allows the call.
    """
    ref = call_ref(call)
    async with asyncio.timeout(timeout_s), aclosing(ledger.watch(1, ref.gated.subject)) as facts:
        await anext(facts)
    return await ledger.call(ref)
