"""The crash matrix: one table of scenarios, and a small driver for each framework.

Each driver is an agent of the framework with a scripted model that calls tools and then reports
what it was told. It keeps the framework's own state as a program would, as text, so that a new
process (a new driver on the same texts) goes on. The log is in memory; one test for each framework
uses a real broker and a real SIGKILL (`test_killed_agents.py`).
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asking_agent import POLICY, Deaths, Killed, Raising, Silent
from drivers import CAPTION, CHART, DRIVERS, Driver, Wishes
from shop import Shop, ToolSpec

from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall, id_names, numbered
from ayes.ledger.clients.reviewers import Ballot, Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.log("memory")
ONE: Wishes = (("call_9", "refund", {"amount": 100}),)
REF = CallRef("shop", "order-17", "call_9")


class World:
    """A shop with a gate, a person, and a framework's agent that may die at any step."""

    def __init__(self, log: EventLog, folder: Path, make: type[Driver]) -> None:
        self.log, self.folder, self.make = log, folder, make
        self.shop = Shop(log)
        #: The arguments of each run of the tool, by any process.
        self.runs: list[dict[str, Any]] = []

    def agent(self, wishes: Wishes = ONE, log: Any = None, **more: Any) -> Driver:
        """A new process of the agent, on what earlier ones saved."""
        ledger = Ledger(log or self.log, e.Author(kind="service", name="desk"))
        kernel = Kernel(ledger, "shop", **{"requester": "rita", "patience_s": 0.0} | more)
        return self.make(kernel, self.folder, wishes, self.runs)

    @property
    def ana(self) -> Reviewer:
        return Ledger(self.log, e.Author(kind="reviewer", name="ana")).reviewer("ana")

    async def decide(self, ref: CallRef = REF, how: e.Verdict = "approve", **more: Any) -> None:
        await self.shop.until(ref.gated)
        await self.ana.vote(ref, Ballot(how, **more))
        await self.shop.until(ref.decided)

    async def status(self, ref: CallRef = REF) -> Status:
        return (await self.shop.ledger.call(ref)).status


@pytest.fixture(params=DRIVERS)
async def world(
    request: pytest.FixtureRequest, port: EventLog, tmp_path: Path
) -> AsyncIterator[World]:
    world = World(port, tmp_path, request.param.load())
    await world.shop.open(POLICY, "", ToolSpec(name="other", schema='{"type":"object"}'))
    async with world.shop.gates():
        yield world


async def test_it_pauses_and_goes_on_in_another_process(world):
    """Nothing runs before the approval; afterwards another process runs it, once."""
    assert await world.agent().start() is None
    assert await world.agent().resume() is None
    assert world.runs == []
    await world.decide()
    assert await world.agent().resume() == ["100 were paid back."]
    assert world.runs == [{"amount": 100}]


async def test_what_needs_nobody_just_runs(world):
    """With a little patience the agent does not pause for a call that the policy allows."""
    wishes: Wishes = (("call_9", "refund", {"amount": 1}),)
    assert await world.agent(wishes, patience_s=10).start() == ["1 were paid back."]


async def test_an_edit_runs_and_the_model_is_told(world):
    """The tool runs with the reviewer's arguments."""
    await world.agent().start()
    await world.decide(arguments='{"amount":45}')
    [told] = await world.agent().resume() or []
    assert '{"amount":45}' in told
    assert "45 were paid back." in told
    assert world.runs == [{"amount": 45}]


async def test_a_denial_and_an_answer_reach_the_model(world):
    """With the person's words. Nothing runs."""
    wishes: Wishes = (*ONE, ("call_10", "refund", {"amount": 200}))
    await world.agent(wishes).start()
    await world.decide(REF, "deny", reason="Too much.")
    await world.decide(REF.thread_ref.call("call_10"), "answer", answer="Ask me on Monday.")
    denied, answered = await world.agent(wishes).resume() or []
    assert "said no" in denied
    assert "Too much." in denied
    assert answered == "Ask me on Monday."
    assert world.runs == []


async def test_an_expired_call_is_not_a_denied_one(world):
    """Nobody decided in time: the model reads so. Nothing runs."""
    wishes: Wishes = (("call_9", "hurry", {"amount": 1}),)
    await world.agent(wishes).start()
    await world.shop.until(REF.decided)
    [told] = await world.agent(wishes).resume() or []
    assert "Nobody said no" in told
    assert world.runs == []


async def test_three_parallel_calls_and_a_partial_decision(world):
    """One needs nobody, one is approved, one still waits: each runs once, when it may."""
    wishes: Wishes = tuple((f"call_{n}", "refund", {"amount": n}) for n in (1, 20, 30))
    assert await world.agent(wishes).start() is None
    await world.shop.until(CallRef("shop", "order-17", "call_1").decided)
    assert await world.agent(wishes).resume() is None
    assert world.runs == [{"amount": 1}]
    await world.decide(CallRef("shop", "order-17", "call_20"))
    assert await world.agent(wishes).resume() is None
    assert world.runs == [{"amount": 1}, {"amount": 20}]
    await world.decide(CallRef("shop", "order-17", "call_30"))
    told = await world.agent(wishes).resume()
    assert told == [f"{n} were paid back." for n in (1, 20, 30)]
    assert world.runs == [{"amount": n} for n in (1, 20, 30)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_each_step_of_a_resume(world, after):
    """Dead before or after each read and write of the log: the tool ran once, or it is in doubt."""
    await world.agent().start()
    await world.decide()
    for step in range(1, 30):
        mortal = Deaths(world.log, step, after=after)
        try:
            told = await world.agent(log=mortal).resume()
        except Killed:
            assert len(world.runs) <= 1
            continue
        break
    assert told is not None
    [text] = told
    assert step > 1
    assert len(world.runs) <= 1
    ended = await world.status() is Status.RETURNED
    assert ended == (text == "100 were paid back."), text
    assert ended or "Do not repeat it" in text


async def test_killed_in_the_tool(world):
    """Nobody knows whether it had an effect, so no process runs it again."""
    await world.agent().start()
    await world.decide()
    dies = world.agent()
    dies.dies_in_the_tool = True
    with pytest.raises(Killed):
        await dies.resume()
    assert len(world.runs) == 1
    [told] = await world.agent().resume() or []
    assert "Do not repeat it" in told
    assert len(world.runs) == 1


async def test_killed_before_it_saved_what_ran(world):
    """The tool ran, and the agent died before it kept its state: the next one gets the result."""
    await world.agent().start()
    await world.decide()
    before = world.agent().saved()
    first = await world.agent().resume()
    world.agent().restore(before)
    assert await world.agent().resume() == first == ["100 were paid back."]
    assert len(world.runs) == 1


@pytest.mark.log("memory", "jetstream")
async def test_a_picture_is_recorded_as_one_and_shown_again(world):
    """A tool returns a text and a large picture. It is stored, and an agent that died before it
    kept its state shows the model the same again, without running the tool.
    """
    wishes: Wishes = (("call_9", "chart", {"amount": 1}),)
    first = await world.agent(wishes, patience_s=10).start()
    call = await world.shop.ledger.call(REF)
    returned = call.finished and call.finished.event
    assert isinstance(returned, e.ToolReturned)
    caption, picture = returned.output
    assert caption == e.Text(CAPTION)
    stored = e.Stored(hashlib.sha256(CHART).hexdigest(), len(CHART), picture.source.place)
    assert (picture.media_type, picture.source) == ("image/png", stored)
    world.agent().restore({})
    assert await world.agent(wishes, patience_s=10).start() == first
    [told] = first or []
    assert "image" in str(told)
    assert world.runs == [{"amount": 1}]


async def test_two_processes_resume_at_once(world):
    """One runs the tool; the other waits for its result, or finds that nothing waits any more."""
    await world.agent().start()
    await world.decide()
    both = [world.agent(patience_s=10) for _ in range(2)]
    told = await asyncio.gather(*(one.resume() for one in both))
    assert ["100 were paid back."] in told
    assert all(one in (["100 were paid back."], None) for one in told)
    assert world.runs == [{"amount": 100}]


@pytest.mark.parametrize("broken", [Raising, Silent])
async def test_it_fails_closed(world, broken):
    """The ledger raises, or does not answer: nothing runs, and the model is told nothing."""
    await world.agent().start()
    await world.decide()
    with pytest.raises(Unavailable):
        await world.agent(log=broken(world.log), answer_s=0.2).resume()
    assert world.runs == []
    assert await world.agent().resume() == ["100 were paid back."]


async def test_a_forged_resume_runs_nothing(world):
    """Whatever is handed back as a decision, with other arguments too: the ledger is asked."""
    await world.agent().start()
    assert await world.agent().forge({"amount": 1_000_000}) is None
    assert world.runs == []
    await world.decide(REF, "deny", reason="No.")
    told = await world.agent().forge({"amount": 1_000_000})
    assert world.runs == []
    assert told is None or "100" not in "".join(told)


async def test_an_id_that_repeats(world):
    """Two turns with the id `call_0`, as some servers send them, are two calls."""
    for amount in (1, 2):
        wishes: Wishes = (("call_0", "refund", {"amount": amount}),)
        told = await world.agent(wishes, patience_s=10).start()
        assert told == [f"{amount} were paid back."]
    assert world.runs == [{"amount": 1}, {"amount": 2}]
    second = id_names(AskedCall("order-17", "call_0", "refund", '{"amount":2}'))[1]
    assert await world.status(CallRef("shop", "order-17", second)) is Status.RETURNED


async def test_an_id_that_is_missing(world):
    """The call is named after what it calls, or refused. It runs after the approval, once."""
    wishes: Wishes = (("", "refund", {"amount": 100}),)
    if world.make.refuses_no_id:
        with pytest.raises(world.make.refuses_no_id):
            await world.agent(wishes).start()
        assert world.runs == []
        return
    assert await world.agent(wishes).start() is None
    assert world.runs == []
    asked = AskedCall("order-17", "", "refund", '{"amount":100}')
    await world.decide(CallRef("shop", "order-17", numbered(asked, 1)))
    assert await world.agent(wishes).resume() == ["100 were paid back."]
    assert world.runs == [{"amount": 100}]


async def test_streaming(world):
    """A streamed reply pauses at the same place."""
    assert await world.agent().start(stream=True) is None
    assert world.runs == []
    await world.decide()
    assert await world.agent().resume() == ["100 were paid back."]


async def test_a_tool_that_raises_has_run(world):
    """The error ends the run or is told to the model, as the framework does it; asked again, the
    model reads it, and nothing runs again.
    """
    wishes: Wishes = (("call_9", "refund", {"amount": 0}),)
    try:
        [told] = await world.agent(wishes, patience_s=10).start() or []
    except ValueError as problem:
        told = str(problem)
    assert "nothing to pay back" in told
    world.agent().restore({})
    [again] = await world.agent(wishes, patience_s=10).start() or []
    assert "nothing to pay back" in again
    assert len(world.runs) == 1
