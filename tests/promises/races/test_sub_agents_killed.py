"""Agents that call agents that call agents, while every program is killed at random moments.

Programs are tasks that are cut off wherever they are, on the log in memory and on a real broker;
and processes that are killed. In CI a few threads; `make kills` has more (SUB_AGENTS).
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
from delegating import ACK_WAIT_S, AGENTS, DEPTH, KINDS, POLICY, REFUND, TillFile, programs
from paths import TESTS
from program import Started, environment
from until import recorded

from ayes.consumers import model, worker
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot

#: The number of root threads; every third is withdrawn.
THREADS = int(os.environ.get("SUB_AGENTS", "3"))

pytestmark = [
    pytest.mark.parametrize("ack_wait_s", [ACK_WAIT_S]),
    pytest.mark.timeout(3600 if THREADS > 10 else 300),
]


class Victim(Protocol):
    """A running program."""

    async def kill(self) -> None: ...


class Task:
    """A program that is a task of this process."""

    def __init__(self, port: EventLog, kind: str, till: TillFile) -> None:
        [(role, reaction)] = programs(kind, till)
        ledger = Ledger(port, e.Author(kind=role, name=kind))
        running = Worker(ledger, reaction, ack_wait_s=ACK_WAIT_S, drain_s=0).run()
        self._task = asyncio.create_task(running)

    async def kill(self) -> None:
        assert not self._task.done(), "it has ended by itself"
        self._task.cancel()
        await asyncio.wait([self._task])


class Process:
    """A program that is a process of its own, with the account of its role."""

    def __init__(self, kind: str, store: Path, till: Path) -> None:
        file = TESTS / "support" / "delegating.py"
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self._process = Started(
            [sys.executable, file, kind, store, till], env=environment(), stderr=None, **silent
        )

    async def kill(self) -> None:
        assert self._process.poll() is None, "it has ended by itself"
        self._process.kill()
        await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def mortal(
    start: Callable[[str], Victim], dice: random.Random, pause_s: float
) -> AsyncIterator[list[int]]:
    """Two programs of each kind, one of which is killed again and again, and started anew.

    Yields a list of one number: how often that happened.
    """
    running = [(kind, start(kind)) for kind in KINDS for _ in range(2)]
    kills, is_over = [0], asyncio.Event()

    async def kill() -> None:
        while not is_over.is_set():
            await asyncio.sleep(dice.uniform(0, pause_s))
            place = dice.randrange(len(running))
            kind, victim = running[place]
            await victim.kill()
            running[place] = kind, start(kind)
            kills[0] += 1

    killing = asyncio.create_task(kill())
    try:
        yield kills
    finally:
        is_over.set()
        await killing
        for _, victim in running:
            await victim.kill()


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
    await recorded(ledger, ref.replied(2).subject)
    return await read(ledger, ref)


@pytest.mark.log("memory", "jetstream")
async def test_killed_at_any_moment_each_run_resumes_once(
    port: EventLog, tmp_path: Path, ack_wait_s: float, monkeypatch: pytest.MonkeyPatch
):
    """Each call has one thread below it, one task and one result; the results come back through all
    levels; the chain is shown; the root's requester approves nothing (I1, I2, I7).
    """
    # However often a worker dies on a busy machine, its delivery is not parked, and its model is
    # asked again.
    monkeypatch.setattr(worker, "MAX_DELIVERIES", 100_000)
    monkeypatch.setattr(model, "MAX_ATTEMPTS", 100_000)
    till = TillFile(tmp_path / "till")
    pause_s = 0.05 if isinstance(port, JetStream) else 0.0005
    await _each_resumes_once(port, lambda kind: Task(port, kind, till), till, pause_s)


@pytest.mark.long
async def test_killed_processes_resume_each_run_once(
    store: Path, tmp_path: Path, ack_wait_s: float
):
    """The same with processes, each with the account of its role."""
    till = tmp_path / "till"
    async with Ledger.connect(store, role="admin") as admin:
        await _each_resumes_once(
            admin.log, lambda kind: Process(kind, store, till), TillFile(till), pause_s=0.15
        )


async def _each_resumes_once(
    port: EventLog, start: Callable[[str], Victim], till: TillFile, pause_s: float
) -> None:
    if isinstance(port, JetStream):
        await ensure(port.api, ack_wait_s=ACK_WAIT_S, also=("delegator", "executor"))
    ledger, dice = Ledger(port, e.Author(kind="service", name="desk")), random.Random(4)
    await ledger.append(policy_slot("shop", 1), applied(POLICY))
    for tool, agent in AGENTS.items():
        await ledger.declare("shop", agent.spec(tool))
    await ledger.declare("shop", REFUND)
    withdrawn = {f"root-{number}" for number in range(THREADS) if number % 3 == 2}
    deciding = asyncio.create_task(decide(ledger, withdrawn))
    try:
        async with mortal(start, dice, pause_s) as kills, asyncio.timeout(200 + 5 * THREADS):
            refs = []
            for number in range(THREADS):
                refs.append(await opened(ledger, number))
                await asyncio.sleep(dice.uniform(0, 4 * pause_s))
            roots = await asyncio.gather(*(ended(ledger, ref) for ref in refs))
            assert not deciding.done(), deciding.exception()
    finally:
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
    assert kills[0]
    print(f"{kills[0]} kills, {THREADS} threads of {DEPTH + 1} levels")  # noqa: T201 - for `-s`
    paid = set()
    for root in roots:
        thread, links = root, []
        # After a withdrawal the models below are not asked any more.
        status = Status.FAILED if root.ref.thread in withdrawn else Status.RETURNED
        for level in range(1, DEPTH + 1):
            [(name, call)] = thread.calls.items()
            assert (name, call.wish.tool) == ("1-0", f"ask_{level}")
            links.append(e.Link(str(call.ref), f"ask_{level}", f"level-{level - 1}"))
            assert call.status is status, [fact.event for fact in call.facts]
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
