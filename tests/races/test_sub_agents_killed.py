"""Agents that call agents that call agents, while every program is killed at random moments.

Programs are tasks that are cut off wherever they are, on the log in memory and on a real broker. In
CI a few threads; `make kills` has more (SUB_AGENTS).
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from ayes.consumers.delegator import Delegator, SubAgent
from ayes.consumers.executor import Executor, Registered
from ayes.consumers.gate import Gate
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.worker import Reaction, Worker
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure
from ayes.ledger.services import Ledger
from ayes.ledger.tool_runner import idempotency_key
from ayes.projections.history import Outcome
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

#: The number of root threads; every third is withdrawn.
THREADS = int(os.environ.get("SUB_AGENTS", "3"))
ACK_WAIT_S = 0.4
DEPTH = 3
POLICY = """
[[rule]]
name = "freely"
tools = ["ask_*"]
then = "allow"

[[rule]]
name = "money"
tools = ["refund"]
then = "ask"
voters = ["*"]
"""
AGENTS = {
    f"ask_{level}": SubAgent(
        agent=f"level-{level}",
        model=f"script:{level}",
        instructions="You are asked by an agent.",
        tools=(f"ask_{level + 1}",) if level < DEPTH else ("refund",),
    )
    for level in range(1, DEPTH + 1)
}

pytestmark = [
    pytest.mark.log("memory", "jetstream"),
    pytest.mark.parametrize("ack_wait_s", [ACK_WAIT_S]),
    pytest.mark.timeout(3600 if THREADS > 10 else 240),
]


class Script:
    """The models: each passes the task to the agent below it, and the last one asks for money."""

    async def reply(self, question: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        level = question.model.removeprefix("script:")
        told = [words(one.text) for one in question.history if isinstance(one, Outcome)]
        if told:
            return ModelReply((e.Text(f"{level}({told[0]})"),))
        below = f"ask_{int(level) + 1}"
        if below in AGENTS:
            return ModelReply((e.Wish(below, '{"task":"Refund it."}'),))
        return ModelReply((e.Wish("refund", '{"amount":1}'),))


class Till:
    """What was refunded, by idempotency key."""

    def __init__(self) -> None:
        self.refunded: set[str] = set()

    def refund(self, amount: int) -> str:
        self.refunded.add(idempotency_key.get())
        return f"refunded {amount}"


@asynccontextmanager
async def mortal(port: EventLog, dice: random.Random, till: Till) -> AsyncIterator[list[int]]:
    """Two programs of each kind, one of which is cut off again and again, and started anew.

    Yields a list of one number: how often that happened.
    """
    spec = ToolSpec(name="refund", schema='{"type":"object"}', run_by="executor", repeatable=True)
    kinds: dict[str, Callable[[], Reaction[Any, Any]]] = {
        "gate": Gate,
        "model": lambda: ModelWorker({"script": Script()}),
        "service": lambda: Delegator(AGENTS),
        "executor": lambda: Executor({"refund": Registered(spec, till.refund)}),
    }

    def start(kind: str) -> asyncio.Task[None]:
        ledger = Ledger(port, e.Author(kind=kind, name=kind))
        worker = Worker(ledger, kinds[kind](), ack_wait_s=ACK_WAIT_S, drain_s=0)
        return asyncio.create_task(worker.run())

    # Slower than a broker delivers, or every delivery dies until it is parked.
    pause_s = 0.05 if isinstance(port, JetStream) else 0.0005
    running = [(kind, start(kind)) for kind in kinds for _ in range(2)]
    kills = [0]

    async def kill() -> None:
        while True:
            await asyncio.sleep(dice.uniform(0, pause_s))
            place = dice.randrange(len(running))
            kind, victim = running[place]
            victim.cancel()
            await asyncio.wait([victim])
            running[place] = kind, start(kind)
            kills[0] += 1

    killing = asyncio.create_task(kill())
    try:
        yield kills
    finally:
        assert not killing.done(), killing.exception()
        for task in (killing, *(one for _, one in running)):
            task.cancel()
        await asyncio.gather(killing, *(one for _, one in running), return_exceptions=True)


async def opened(ledger: Ledger, number: int) -> ThreadRef:
    ref = ThreadRef("shop", f"root-{number}")
    tool = await ledger.tool("shop", "ask_1")
    event = e.ThreadOpened(
        requester="rita",
        agent="level-0",
        model="script:0",
        tools=(e.ToolRef(tool.name, tool.version, tool.declared.run_by),),
    )
    await ledger.append(ref.opened, event)
    await ledger.say(ref, "Please refund it.", message="m1")
    return ref


async def decide(ledger: Ledger, withdrawn: set[str]) -> None:
    """For each question: whoever asked at the root votes, then Ana; or it is withdrawn there."""
    async with aclosing(ledger.watch(1, "ledger.shop.*.call.*.gated")) as facts:
        async for fact in facts:
            ref, asked = fact.slot.call_ref, fact.event
            assert ref
            assert isinstance(asked, e.ApprovalRequested)
            root = CallRef.parse(asked.chain[0].call)
            if root.thread in withdrawn:
                await ledger.withdraw(root, "it is not needed")
                continue
            for reviewer in ("rita", "ana"):
                vote = e.Voted(verdict="approve", digest=asked.digest)
                await ledger.append(ref.vote(reviewer), vote)


async def read(ledger: Ledger, ref: ThreadRef) -> Thread:
    return thread_of(ref, await ledger.read(ref))


async def ended(ledger: Ledger, ref: ThreadRef) -> Thread:
    async with aclosing(ledger.watch(1, ref.replied(2).subject)) as facts:
        async for _ in facts:
            return await read(ledger, ref)
    raise AssertionError


async def test_killed_at_any_moment_each_run_resumes_once(port: EventLog, ack_wait_s: float):
    """Each call has one thread below it, one task and one result; the results come back through all
    levels; the chain is shown; the root's requester approves nothing (I1, I2, I7).
    """
    if isinstance(port, JetStream):
        await ensure(port.api, ack_wait_s=ack_wait_s, also=("delegator", "executor"))
    ledger, till, dice = (
        Ledger(port, e.Author(kind="service", name="desk")),
        Till(),
        random.Random(4),
    )
    await ledger.append(policy_slot("shop", 1), applied(POLICY))
    for tool, agent in AGENTS.items():
        await ledger.declare("shop", agent.spec(tool))
    await ledger.declare(
        "shop",
        ToolSpec(name="refund", schema='{"type":"object"}', run_by="executor", repeatable=True),
    )
    withdrawn = {f"root-{number}" for number in range(THREADS) if number % 3 == 2}
    deciding = asyncio.create_task(decide(ledger, withdrawn))
    try:
        async with mortal(port, dice, till) as kills, asyncio.timeout(50 + 5 * THREADS):
            refs = [await opened(ledger, number) for number in range(THREADS)]
            roots = await asyncio.gather(*(ended(ledger, ref) for ref in refs))
            assert not deciding.done(), deciding.exception()
    finally:
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
    print(f"{kills[0]} kills, {THREADS} threads of {DEPTH + 1} levels")  # noqa: T201 - for `-s`
    paid = set()
    for root in roots:
        thread, links = root, []
        for level in range(1, DEPTH + 1):
            [(name, call)] = thread.calls.items()
            assert (name, call.wish.tool) == ("1-0", f"ask_{level}")
            links.append(e.Link(str(call.ref), f"ask_{level}", f"level-{level - 1}"))
            assert call.status is Status.RETURNED
            assert (len(call.starts), call.late) == (1, ())
            thread = await read(ledger, call.ref.below)
            assert [fact.slot.tail[1] for fact in thread.said] == ["instructions", "task"]
            assert len(thread.turns) == 2
        [(name, call)] = thread.calls.items()
        assert call.approval_request
        assert call.approval_request.chain == tuple(links)
        assert call.decided
        final = words(tuple(part for part in root.turns[2].reply.parts if isinstance(part, e.Text)))
        if root.ref.thread in withdrawn:
            assert isinstance(call.decided.event, e.Withdrawn)
            assert call.status is Status.REFUSED
            assert "withdrawn" in final
        else:
            assert isinstance(call.decided.event, e.Approved)
            assert call.decided.event.voters == ("ana",)
            assert final == "0(1(2(3(refunded 1))))"
            paid.add(str(call.ref))
    assert till.refunded == paid
