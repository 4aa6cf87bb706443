"""The kernel: a tool runs once, after an approval, whatever dies and whoever asks again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asking_agent import POLICY, Deaths, Killed, Raising, Silent
from pictures import png
from shop import REFUND, Shop

from ayes.adapters.kernel import Kernel, Raised, Ran
from ayes.adapters.names import AskedCall, id_names
from ayes.adapters.next_step import Answer, Run, Say, Wait, next_step
from ayes.ledger.clients.reviewers import Ballot, Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.tool_runner import EffectUnknown
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.errors import BadInput, NotOpen, Unavailable
from ayes.schemas.slots import CallRef, StopRef
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")
LARGE = '{"amount":100}'
SMALL = '{"amount":1}'
WIPE = ToolSpec(name="wipe", schema='{"type":"object"}')
HURRY = ToolSpec(name="hurry", schema='{"type":"object"}')


class Tool:
    """Counts its runs. `dies` ends the process in the middle of one."""

    def __init__(self, *, dies: bool = False, raises: Exception | None = None) -> None:
        self.runs: list[dict[str, Any]] = []
        self.dies, self.raises = dies, raises

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.runs.append(arguments)
        if self.dies:
            raise Killed
        if self.raises:
            raise self.raises
        return f"{arguments.get('amount')} were paid back."


class Desk:
    """Agents that ask, each over a connection of its own, and a person who answers."""

    def __init__(self, log: EventLog) -> None:
        self.log, self.shop = log, Shop(log)

    def kernel(self, log: Any = None, **more: Any) -> Kernel:
        ledger = Ledger(log or self.log, e.Author(kind="service", name="desk"))
        return Kernel(ledger, "shop", **{"requester": "rita"} | more)

    @property
    def ana(self) -> Reviewer:
        return Ledger(self.log, e.Author(kind="reviewer", name="ana")).reviewer("ana")

    async def asked(self, ref: CallRef) -> None:
        await self.shop.until(ref.gated)

    async def decide(self, ref: CallRef, how: e.Verdict = "approve", **more: Any) -> None:
        await self.asked(ref)
        await self.ana.vote(ref, Ballot(how, **more))
        await self.shop.until(ref.decided)

    async def approved(self, **more: Any) -> Tool:
        """A call that waited for people and may run by now, with its tool."""
        tool = Tool()
        await self.kernel().settle(asked(), REFUND, tool)
        await self.decide(REF, **more)
        return tool

    async def status(self, ref: CallRef) -> Status:
        return (await self.shop.ledger.call(ref)).status


@pytest.fixture
async def desk(port: EventLog) -> AsyncIterator[Desk]:
    desk = Desk(port)
    await desk.shop.open(POLICY, "", REFUND, WIPE, HURRY)
    async with desk.shop.gates():
        yield desk


def asked(
    arguments: str = LARGE, call_id: str = "call_9", tool: str = "refund", earlier: int | None = 0
) -> AskedCall:
    return AskedCall("order-17", call_id, tool, arguments, earlier)


REF = CallRef("shop", "order-17", "call_9")


async def test_what_the_policy_allows_runs_at_once(desk):
    """A call that needs nobody: requested, decided by the policy, run, recorded."""
    tool = Tool()
    settled = await desk.kernel().settle(asked(SMALL), REFUND, tool)
    assert settled == Ran("1 were paid back.")
    assert await desk.status(REF) is Status.RETURNED


async def test_a_tool_that_seals_is_refused(desk):
    """The name of a call may have a digest of its plain arguments, and a repeated one would not be
    known again: it would run twice.
    """
    sealing = ToolSpec(
        name="refund",
        schema='{"type":"object","properties":{"card":{"type":"string"}}}',
        sealed=("/card",),
    )
    tool = Tool()
    with pytest.raises(BadInput, match="refund seals /card, which no adapter can"):
        await desk.kernel().settle(asked('{"card":"4111"}'), sealing, tool)
    assert tool.runs == []
    assert await desk.status(REF) is Status.UNKNOWN


async def test_a_result_that_came_after_the_doubt_is_not_read_by_the_model(desk):
    """What is read first is what is read ever after: that nobody knows (B48)."""

    async def slow(_arguments: dict[str, Any]) -> str:
        await desk.shop.ledger.doubt(REF, "It was silent for too long.")
        return "1 were paid back."

    first = await desk.kernel().settle(asked(SMALL), REFUND, slow)
    assert isinstance(first, Say)
    assert "Do not repeat it" in first.text
    assert await desk.kernel().settle(asked(SMALL), REFUND, slow) == first


async def test_what_was_approved_for_another_declaration_does_not_run(desk):
    """A description that changed while people decided: the model is told to ask anew (I1)."""
    tool = await desk.approved()
    changed = REFUND.model_copy(update={"description": "Gives money to whoever asks."})
    settled = await desk.kernel().settle(asked(), changed, tool)
    assert isinstance(settled, Say)
    assert "has changed since it was asked for" in settled.text
    assert tool.runs == []


async def test_a_call_waits_and_runs_once_it_is_approved(desk):
    """Undecided it is `Wait`, and nothing runs; asked again after the approval it runs."""
    tool = Tool()
    assert await desk.kernel().settle(asked(), REFUND, tool) == Wait(REF)
    await desk.decide(REF)
    assert await desk.kernel().settle(asked(), REFUND, tool) == Ran("100 were paid back.")
    again = await desk.kernel().settle(asked(), REFUND, tool)
    assert again == Answer("100 were paid back.")
    assert tool.runs == [{"amount": 100}]


async def test_an_edit_is_what_runs_and_the_model_is_told(desk):
    """The tool runs with the reviewer's arguments; the first result reads as the recorded one."""
    tool = await desk.approved(arguments='{"amount":45}')
    first = await desk.kernel().settle(asked(), REFUND, tool)
    assert isinstance(first, Answer)
    assert '{"amount":45}' in first.text
    assert first.text.endswith("45 were paid back.")
    assert await desk.kernel().settle(asked(), REFUND, tool) == first
    assert tool.runs == [{"amount": 45}]


@pytest.mark.parametrize(
    ("how", "more", "kind", "words"),
    [
        ("deny", {"reason": "Too much."}, Say, "Too much."),
        ("answer", {"answer": "Ask me on Monday."}, Answer, "Ask me on Monday."),
    ],
)
async def test_what_a_person_says_instead_reaches_the_model(desk, how, more, kind, words):
    """A denial is an error with its reason, an answer is a result. Nothing runs."""
    tool = Tool()
    await desk.kernel().settle(asked(), REFUND, tool)
    await desk.decide(REF, how, **more)
    settled = await desk.kernel().settle(asked(), REFUND, tool)
    assert isinstance(settled, kind)
    assert words in settled.text
    assert tool.runs == []


async def test_what_the_policy_blocks_and_what_expires_never_runs(desk):
    """Both are told apart from a person's no."""
    tool, patient = Tool(), desk.kernel(patience_s=10)
    blocked = await patient.settle(asked("{}", "c1", "wipe"), WIPE, tool)
    assert isinstance(blocked, Say)
    assert "Not from here." in blocked.text
    expired = await patient.settle(asked("{}", "c2", "hurry"), HURRY, tool)
    assert isinstance(expired, Say)
    assert "Nobody said no" in expired.text
    assert tool.runs == []


async def test_arguments_that_break_the_schema_are_told_to_the_model(desk):
    """Nobody is asked about them, and nothing is requested."""
    tool = Tool()
    settled = await desk.kernel().settle(asked('{"amount":"much"}'), REFUND, tool)
    assert isinstance(settled, Say)
    assert "/amount" in settled.text
    assert await desk.status(REF) is Status.UNKNOWN


async def test_a_tool_that_raises_has_run(desk):
    """Its error is recorded, handed over once as it was raised, and never tried again."""
    tool = Tool(raises=OSError("the bank is closed"))
    patient = desk.kernel(patience_s=10)
    settled = await patient.settle(asked(SMALL), REFUND, tool)
    assert isinstance(settled, Raised)
    assert settled.problem is tool.raises
    again = await desk.kernel().settle(asked(SMALL), REFUND, tool)
    assert again == Say("OSError: the bank is closed")
    assert len(tool.runs) == 1


async def test_a_tool_that_lost_its_connection_leaves_the_call_in_doubt(desk):
    """It says that nobody knows; a person finds out, and the model reads no failure (I1)."""
    tool = Tool(raises=EffectUnknown("the bank did not answer"))
    for _ in range(2):
        settled = await desk.kernel(patience_s=10).settle(asked(SMALL), REFUND, tool)
        assert isinstance(settled, Say)
        assert "may have taken effect" in settled.text
    call = await desk.shop.ledger.call(REF)
    assert call.status is Status.IN_DOUBT
    assert call.finished.event.text == "the bank did not answer"
    assert len(tool.runs) == 1


async def test_a_process_that_dies_in_the_tool_leaves_a_call_that_nobody_repeats(desk):
    """It is running, as far as anybody knows; later it is in doubt. No process runs it again."""
    dies, tool = Tool(dies=True), Tool()
    with pytest.raises(Killed):
        await desk.kernel(patience_s=10).settle(asked(SMALL), REFUND, dies)
    elsewhere = await desk.kernel().settle(asked(SMALL), REFUND, tool)
    assert isinstance(elsewhere, Say)
    assert "started by another process" in elsewhere.text
    await desk.shop.ledger.doubt(REF)
    doubtful = await desk.kernel().settle(asked(SMALL), REFUND, tool)
    assert isinstance(doubtful, Say)
    assert "a person has to find out" in doubtful.text
    assert tool.runs == []


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_step_it_runs_once_or_is_in_doubt(desk, after):
    """Killed before or after each read and write of the log, then asked again by a new process."""
    tool, whole = Tool(), Deaths(desk.log)
    await desk.kernel(whole, patience_s=10).settle(asked(SMALL, "whole"), REFUND, tool)
    assert whole.steps > 4
    # Polls for the decision make the number of steps vary, so the last ones may be missed.
    for step in range(1, whole.steps + 1):
        tool, name = Tool(), f"died-{after}-at-{step}-"
        call = asked(SMALL, name)
        try:
            mortal = Deaths(desk.log, step, after=after)
            await desk.kernel(mortal, patience_s=10).settle(call, REFUND, tool)
        except Killed:
            ran_before = len(tool.runs)
            settled = await desk.kernel(patience_s=0.5).settle(call, REFUND, tool)
            ran = settled == Ran("1 were paid back.")
            assert len(tool.runs) == ran_before + ran <= 1, (step, settled)
            assert ran or isinstance(settled, Say | Answer)
        else:
            assert len(tool.runs) == 1


async def test_two_processes_at_once_run_it_once(desk):
    """One runs it; the other waits for its result, or says that it was started elsewhere."""
    tool = await desk.approved()
    several = [desk.kernel(patience_s=60) for _ in range(4)]
    several.append(several[0])  # and twice in one process
    settled = await asyncio.gather(*(one.settle(asked(), REFUND, tool) for one in several))
    assert tool.runs == [{"amount": 100}]
    assert settled.count(Ran("100 were paid back.")) == 1
    assert settled.count(Answer("100 were paid back.")) == 4


@pytest.mark.parametrize("broken", [Raising, Silent])
async def test_it_fails_closed_without_a_ledger(desk, broken):
    """Whatever is approved: when the ledger raises or does not answer, nothing runs."""
    tool = await desk.approved()
    with pytest.raises(Unavailable):
        await desk.kernel(broken(desk.log), answer_s=0.2).settle(asked(), REFUND, tool)
    assert tool.runs == []


async def test_it_fails_closed_when_the_claim_is_not_answered(desk):
    """The approval was read, and then the ledger is silent: nothing runs. Later it does, once."""
    tool = await desk.approved()
    kernel = desk.kernel(answer_s=0.5)

    class SilentAboutClaims(Silent):
        def __getattr__(self, name: str) -> Any:
            hangs = super().__getattr__(name)
            if name != "append":
                return getattr(desk.log, name)

            async def append(slot: Any, *rest: Any) -> Any:
                return await (hangs if "claim" in slot.tail else desk.log.append)(slot, *rest)

            return append

    kernel.ledger.log = SilentAboutClaims(desk.log)
    with pytest.raises(Unavailable, match="Nothing has run"):
        await kernel.settle(asked(), REFUND, tool)
    assert tool.runs == []
    kernel.ledger.log = desk.log
    assert await kernel.settle(asked(), REFUND, tool) == Ran("100 were paid back.")


async def test_a_revocation_before_the_claim_stops_it(desk):
    """Approved, then taken back: the model is told so, and nothing runs."""
    tool = await desk.approved()
    await desk.ana.revoke(REF, reason="I read it again.")
    settled = await desk.kernel().settle(asked(), REFUND, tool)
    assert isinstance(settled, Say)
    assert "I read it again." in settled.text
    assert tool.runs == []


async def test_repeated_and_missing_ids(desk):
    """`call_0` with other arguments is another call; without an id, equal calls are one for now."""
    tool, patient = Tool(), desk.kernel(patience_s=10)
    for amount in (1, 2, 3):
        settled = await patient.settle(asked(f'{{"amount":{amount}}}', "call_0"), REFUND, tool)
        assert settled == Ran(f"{amount} were paid back.")
    third = id_names(asked('{"amount":3}', "call_0"))[1]
    assert await desk.status(CallRef("shop", "order-17", third)) is Status.RETURNED
    tool.runs.clear()
    unnamed = asked(LARGE, "")
    first = await desk.kernel().settle(unnamed, REFUND, tool)
    assert isinstance(first, Wait)
    assert await desk.kernel().settle(unnamed, REFUND, tool) == first
    await desk.decide(first.ref)
    assert await desk.kernel().settle(unnamed, REFUND, tool) == Ran("100 were paid back.")
    second = await desk.kernel().settle(unnamed, REFUND, tool)
    assert second == Wait(CallRef("shop", "order-17", f"{first.ref.call}-2"))
    assert tool.runs == [{"amount": 100}]


async def test_a_changed_contract_does_not_make_a_call_that_ran_another_one(desk):
    """A new release changes the tool's description; the call that ran gives its result."""
    tool, patient = Tool(), desk.kernel(patience_s=10)
    await patient.settle(asked(SMALL), REFUND, tool)
    changed = REFUND.model_copy(update={"description": "Pays money back."})
    assert await patient.settle(asked(SMALL), changed, tool) == Answer("1 were paid back.")
    assert len(tool.runs) == 1


async def test_a_call_stays_that_of_its_first_requester(desk):
    """The same call from an agent of somebody else, as after a handover of the conversation, is not
    asked for again: it runs once, as it was requested and approved.
    """
    tool, others = Tool(), desk.kernel(requester="ben", agent="other", labels={"release": "2"})
    assert await desk.kernel().settle(asked(), REFUND, tool) == Wait(REF)
    assert await others.settle(asked(), REFUND, tool) == Wait(REF)
    await desk.decide(REF)
    assert await others.settle(asked(), REFUND, tool) == Ran("100 were paid back.")
    assert (await desk.shop.ledger.call(REF)).wish.requester == "rita"
    assert await desk.kernel().settle(asked(), REFUND, tool) == Answer("100 were paid back.")
    assert len(tool.runs) == 1


async def test_a_result_that_has_no_json_or_is_too_long_is_summarised(desk):
    """The tool ran, so it must not be recorded as failed; this process gets the result itself."""
    patient = desk.kernel(patience_s=10)

    async def long(arguments: dict[str, Any]) -> str:
        return "x" * 3_000_000

    settled = await patient.settle(asked(SMALL, "long"), REFUND, long)
    assert settled == Ran("x" * 3_000_000)
    again = await patient.settle(asked(SMALL, "long"), REFUND, long)
    assert isinstance(again, Answer)
    assert '"bytes":3000000' in again.text

    async def odd(arguments: dict[str, Any]) -> str:
        return "half \ud800 a pair"

    await patient.settle(asked(SMALL, "odd"), REFUND, odd)
    again = await patient.settle(asked(SMALL, "odd"), REFUND, odd)
    assert again == Answer("half ? a pair")


async def test_an_agent_that_is_cancelled_while_a_file_is_stored_records_the_result(desk):
    """The tool has run, so its result is written down first."""
    storing = asyncio.Event()

    class Slow(Deaths):
        def __getattr__(self, name: str) -> Any:
            if name != "keep_piece" or storing.is_set():
                return getattr(self._log, name)

            async def hangs(*args: Any) -> Any:
                storing.set()
                await asyncio.Event().wait()

            return hangs

    picture = attached(png(160, 160, level=0), "image/png")

    async def draws(arguments: dict[str, Any]) -> Any:
        return picture

    def output(value: Any) -> e.Content:
        return (value,)

    kernel = desk.kernel(Slow(desk.log), patience_s=10)
    running = asyncio.create_task(kernel.settle(asked(SMALL), REFUND, draws, output=output))
    await storing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await desk.kernel().settle(asked(SMALL), REFUND, draws, output=output)
    assert again == Answer((picture,))


async def test_odd_numbers_are_refused(desk):
    """A kernel that could never get an answer, or wait less than no time, is a mistake."""
    for more in ({"patience_s": -1}, {"answer_s": 0}, {"lease_s": 0}):
        with pytest.raises(BadInput, match=next(iter(more))):
            desk.kernel(**more)


async def test_every_status_has_a_verdict(desk):
    """Only an approved call without flaw may be run."""
    await desk.kernel().settle(asked(), REFUND, Tool())
    await desk.asked(REF)
    assert next_step(await desk.shop.ledger.call(REF)) == Wait(REF)
    await desk.decide(REF)
    assert next_step(await desk.shop.ledger.call(REF)) == Run(LARGE)


async def test_what_is_stopped_waits_and_runs_once_it_is_resumed(desk):
    """Approved before the stop: the agent pauses as for an approval, and nothing runs (I1)."""
    tool, stop = await desk.approved(), StopRef("shop", "ana", "s1")
    await desk.ana.stop(stop, reason="A wrong account.")
    assert await desk.kernel().settle(asked(), REFUND, tool) == Wait(REF)
    assert tool.runs == []
    waiting = asyncio.create_task(desk.kernel(patience_s=60.0).settle(asked(), REFUND, tool))
    await desk.ana.resume(stop)
    assert await waiting == Ran("100 were paid back.")
    assert len(tool.runs) == 1


async def test_a_stop_just_before_the_claim_makes_it_wait(desk):
    """The agent has read that it may run, and claims after the stop (I1)."""
    tool, stop = await desk.approved(), StopRef("shop", "ana", "s1")
    kernel = desk.kernel()
    read = await kernel.look(REF)
    await desk.ana.stop(stop, reason="A wrong account.")
    with pytest.raises(NotOpen, match="stopped in workspace shop by ana"):
        await kernel.run(read, tool)
    assert (tool.runs, await desk.status(REF)) == ([], Status.APPROVED)
