"""Wake-ups: each paused conversation goes on when its call is decided, and none is missed."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from asking_agent import POLICY
from shop import REFUND, Shop
from until import until

from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Wait
from ayes.adapters.states import Saved, StateFiles
from ayes.adapters.wake import resume_decided, wake
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BrokerAway
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.log("memory")


class Paused:
    """Conversations that wait for one call each, and a record of those that were resumed."""

    def __init__(self, port: EventLog, folder: Path) -> None:
        self.shop, self.states = Shop(port), StateFiles(folder)
        self.kernel = Kernel(self.shop.ledger, "shop", requester="rita")
        self.ana = Ledger(port, e.Author(kind="reviewer", name="ana")).reviewer("ana")
        self.resumed: list[str] = []
        self.fails: list[Exception] = []

    async def pause(self, thread: str) -> CallRef:
        asked = AskedCall(thread, "c1", "refund", '{"amount":100}')
        call = await self.kernel.request(asked, REFUND)
        await self.states.save(Saved(thread, (str(call.ref),), "the state"))
        await self.shop.until(call.ref.gated)
        return call.ref

    async def approve(self, ref: CallRef) -> None:
        await self.ana.approve(ref)
        await self.shop.until(ref.decided)

    async def resume(self, saved: Saved) -> None:
        if self.fails:
            self.resumed.append(saved.thread)
            raise self.fails.pop()
        await self.states.remove(saved.thread)
        self.resumed.append(saved.thread)

    async def until(self, *threads: str) -> None:
        await until(lambda: sorted(self.resumed) == sorted(threads))


@pytest.fixture
async def paused(port, tmp_path):
    paused = Paused(port, tmp_path)
    await paused.shop.open(POLICY)
    async with paused.shop.gates():
        yield paused


async def test_the_scan_resumes_what_was_decided_while_nobody_was_there(paused):
    """One is decided and goes on, one waits and stays."""
    first, _second = await paused.pause("t1"), await paused.pause("t2")
    await paused.approve(first)
    assert await resume_decided(paused.kernel, paused.states, paused.resume) == 1
    assert paused.resumed == ["t1"]
    assert [one.thread for one in await paused.states.saved()] == ["t2"]


async def test_the_worker_scans_and_then_hears_decisions(paused):
    """Decided before it starts, or while it runs: each conversation goes on once."""
    first, second = await paused.pause("t1"), await paused.pause("t2")
    await paused.approve(first)
    worker = asyncio.create_task(wake(paused.kernel, paused.states, paused.resume))
    await paused.until("t1")
    await paused.approve(second)
    await paused.until("t1", "t2")
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    assert list(await paused.states.saved()) == []


async def test_a_resume_that_fails_does_not_end_the_worker(paused):
    """Without a broker it is tried again; another error leaves the conversation paused."""
    paused.fails = [ValueError("the agent is broken"), BrokerAway("no broker answered")]
    first, second = await paused.pause("t1"), await paused.pause("t2")
    await paused.approve(first)
    worker = asyncio.create_task(wake(paused.kernel, paused.states, paused.resume))
    await paused.until("t1", "t1")
    await paused.approve(second)
    await paused.until("t1", "t1", "t2")
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    assert [one.thread for one in await paused.states.saved()] == ["t1"]


async def test_a_file_that_is_no_state_is_named(tmp_path):
    """A sentence says which file, and what to do with it."""
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(BadFile, match="not a saved state"):
        await StateFiles(tmp_path).saved()


async def test_a_decision_is_no_part_of_a_saved_state(paused):
    """Whatever a state says, the verdict is the ledger's."""
    ref = await paused.pause("t1")
    await paused.states.save(Saved("t1", (str(ref),), '{"approved": true}'))
    asked = AskedCall("t1", "c1", "refund", '{"amount":100}')
    assert await paused.kernel.next_step(asked, REFUND) == (ref, Wait(ref))
