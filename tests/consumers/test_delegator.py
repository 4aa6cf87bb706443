"""The delegator alone, with a gate: which calls it takes, and what it goes on with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from running import working
from shop import FIRST, SECOND, THREAD, Shop, rule
from simulated_time import simulated
from stories import DECISIONS, Story, request

from ayes.consumers.delegator import TASK, Delegator, SubAgent, outcome, task_of
from ayes.consumers.effects import Append, HandOn
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")

HELPER = SubAgent(agent="helper", model="test:m")
FREELY = rule("freely", "allow", tools="ask_*")


async def opened(shop: Shop, policy: str = FREELY) -> None:
    await shop.open(policy, "", HELPER.spec("ask_helper"))
    event = e.ThreadOpened(requester="rita", agent="desk")
    await shop.ledger.append(THREAD.opened, event)


@asynccontextmanager
async def delegating(shop: Shop, agent: SubAgent = HELPER) -> AsyncIterator[None]:
    ledger = Ledger(shop.log, e.Author(kind="service", name="delegator"))
    async with working(Worker(ledger, Delegator({"ask_helper": agent}))):
        yield


async def ask(shop: Shop, ref: CallRef = FIRST) -> None:
    await shop.ledger.request(ref, "ask_helper", {"task": "Look it up."})


async def reply(shop: Shop, ref: CallRef = FIRST) -> None:
    await shop.ledger.append(ref.below.replied(1), e.ModelReplied(parts=(e.Text("Found."),)))


async def test_the_last_reply_is_the_result(shop: Shop):
    await opened(shop)
    async with shop.gates(), delegating(shop):
        await ask(shop)
        said = (await shop.until(FIRST.below.said(TASK))).event
        assert isinstance(said, e.Said)
        assert said.text == "Look it up."
        await reply(shop)
        ended = (await shop.until(FIRST.client_finished)).event
    assert isinstance(ended, e.ToolReturned)
    assert ended.output == "Found."


async def test_a_run_goes_on_with_the_agent_that_it_began_with(shop: Shop):
    """A sub-agent waits for people for days, and its file gets another model meanwhile: what runs
    is not lost by that (I7).
    """
    await opened(shop)
    async with shop.gates(), delegating(shop):
        await ask(shop)
        await shop.until(FIRST.below.said(TASK))
    other = SubAgent(agent="helper-2", model="test:newer", max_turns=3)
    async with shop.gates(), delegating(shop, other):
        await reply(shop)
        ended = (await shop.until(FIRST.client_finished)).event
        await ask(shop, SECOND)
        began = (await shop.until(SECOND.below.opened)).event
    assert isinstance(ended, e.ToolReturned)
    assert isinstance(began, e.ThreadOpened)
    assert (began.agent, began.model) == ("helper-2", "test:newer")


@pytest.mark.parametrize(
    "event",
    [
        e.ThreadOpened(requester="ben", agent="helper", model="test:m", parent=str(FIRST)),
        e.ThreadOpened(requester="rita", agent="helper", model="test:m"),
        e.ThreadOpened(requester="rita", agent="helper", parent=str(FIRST)),
    ],
)
async def test_a_thread_that_is_not_its_own_ends_the_call(shop: Shop, event: e.ThreadOpened):
    """For another requester, not for this call, or without a model, so that no reply would come."""
    await opened(shop)
    await shop.ledger.append(FIRST.below.opened, event)
    async with shop.gates(), delegating(shop):
        await ask(shop)
        ended = (await shop.until(FIRST.client_finished)).event
    assert isinstance(ended, e.ToolFailed)
    assert ended.error == f"{FIRST.below} was opened by another program, and not for this call."


def reply_of(*parts: e.Part) -> e.ModelReplied:
    return e.ModelReplied(parts=parts)


WISH = e.Wish("refund", "{}")
STOPPED = "The sub-agent did not finish. "


@pytest.mark.parametrize(
    ("turns", "more", "ended"),
    [
        ([reply_of(e.Text("Found."))], "", e.ToolReturned("Found.")),
        ([reply_of(e.Text("No."), e.Refusal("I may not."))], "",
         e.ToolReturned((e.Text("No."), e.Text("I may not.")))),
        ([], "", None),
        ([], "asked", None),
        ([reply_of(WISH)], "", None),
        ([reply_of(e.Text("Found."))], "said", None),
        ([e.ModelFailed(error="overloaded")], "",
         e.ToolFailed("The sub-agent's model failed: overloaded")),
        ([e.ModelFailed(error="overloaded")], "said", None),
        ([reply_of(WISH)], "halted",
         e.ToolFailed(f"{STOPPED}A person stopped it.")),
        ([reply_of(WISH)], "denied", None),
        ([reply_of(WISH)] * 2, "",
         e.ToolFailed(f"{STOPPED}It has taken its 2 turns and still wants tools.")),
        ([reply_of(WISH), reply_of(e.Text("Found."))], "", e.ToolReturned("Found.")),
    ],
)  # fmt: skip
def test_how_a_run_ends(turns: list[e.AnyEvent], more: str, ended: e.Event | None):
    """With the last reply, or with why there is none; not while anything is still to come."""
    below = FIRST.below
    story = Story(below)
    opening = e.ThreadOpened(requester="rita", model="test:m", max_turns=2, parent=str(FIRST))
    story.tell(below.opened, opening)
    story.say("Look it up.")
    for number, replied in enumerate(turns, 1):
        story.tell(below.asked(number, 1), e.ModelAsked(model="test:m"))
        story.tell(below.replied(number), replied)
        for ref in [below.wish(number, 0)] if WISH in getattr(replied, "parts", ()) else []:
            story.tell(ref.requested, request(WISH))
            if number < len(turns):
                story.tell(ref.decided, DECISIONS["denied by policy"])
                story.tell(ref.finished, e.ToolRefused(ending="denied", text="no"))
    if more in ("halted", "denied"):
        denied = e.Denied(ground="people", rule="r", policy_version=1, halt=more == "halted")
        story.tell(below.wish(1, 0).decided, denied)
    if more == "said":
        story.say("And one more thing.")
    if more == "asked":
        story.tell(below.asked(1, 1), e.ModelAsked(model="test:m"))
    assert outcome(thread_of(below, story.facts), 1) == ended


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        ('{"task":"Look it up."}', "Look it up."),
        ('{"task":""}', '{"task":""}'),
        ('{"task":"Look it up.","order":7}', '{"task":"Look it up.","order":7}'),
        ('{"order":7}', '{"order":7}'),
    ],
)
def test_the_task_is_all_that_was_approved(arguments: str, task: str):
    """In words if there is nothing else; no argument is left out."""
    assert task_of(arguments) == task


async def test_an_approval_that_people_were_asked_past_is_not_claimed(shop: Shop):
    """Two gates with two policies: one asked people, and the other one approved afterwards."""
    await opened(shop)
    await ask(shop)
    wish = (await shop.ledger.call(FIRST)).wish
    asking = e.ApprovalRequested(digest=wish.digest, rule="r", policy_version=1)
    approved = e.Approved(digest=wish.digest, ground="policy", rule="r", policy_version=1)
    await shop.ledger.append(FIRST.gated, asking)
    await shop.ledger.append(FIRST.decided, approved)
    async with shop.gates(), delegating(shop):
        await ask(shop, SECOND)
        await shop.until(SECOND.below.said(TASK))
    call = await shop.ledger.call(FIRST)
    assert (call.status, call.claims, call.void) == (Status.APPROVED, (), ())


async def test_a_tool_of_the_same_name_elsewhere_is_left_alone(shop: Shop):
    """A delegator has the credentials of a service, and so receives the calls of all workspaces.
    Those in which its sub-agent is not declared have tools of their own (I6).
    """
    await opened(shop)
    theirs = CallRef("bank", "t1", "c1")
    await shop.ledger.append(policy_slot("bank", 1), applied(FREELY))
    await shop.ledger.declare("bank", ToolSpec(name="ask_helper", schema='{"type":"object"}'))
    async with shop.gates(), delegating(shop):
        await shop.ledger.request(theirs, "ask_helper", {"task": "Count it."}, requester="rita")
        await shop.ledger.decision(theirs, timeout_s=60)
        await shop.ledger.start(theirs)
        await ask(shop)
        await shop.until(FIRST.below.said(TASK))
    assert (await shop.ledger.call(theirs)).status is Status.RUNNING
    assert await shop.ledger.read(theirs.below) == ()


@simulated
async def test_an_approval_that_is_valid_no_longer_is_not_claimed(shop: Shop):
    """Nobody has recorded that it has lapsed. A claim would be void, and so would the next one."""
    await opened(shop, rule("freely", "allow", "valid_for_s = 0.2", tools="ask_*"))
    async with shop.gates():
        await ask(shop)
        await shop.until(FIRST.decided)
    await asyncio.sleep(0.3)
    async with delegating(shop):
        await asyncio.sleep(0.3)
    call = await shop.ledger.call(FIRST)
    assert (call.status, call.void) == (Status.APPROVED, ())


async def test_a_call_with_a_fact_of_a_newer_program_is_left_to_a_newer_program(shop: Shop):
    """Nobody here knows what that fact says, and nothing else would be delivered (I12)."""
    await opened(shop)
    async with shop.gates():
        await ask(shop)
        decided = await shop.until(FIRST.decided)
    newer = b'{"type":"Held","v":9,"id":"x"}'
    await shop.log.append(FIRST.revoked_by("carl"), newer, "x")
    delegator = Delegator({"ask_helper": HELPER})
    for _ in range(2):
        [step] = delegator.decide(await delegator.load(shop.ledger, decided), decided)
        assert isinstance(step, HandOn)
        event = e.ToolStarted(digest=(await shop.ledger.call(FIRST)).digest, idempotency_key="x")
        await shop.ledger.append(FIRST.client_claim(1), event)


class Stale:
    """A reader that has the log up to a number, as a replica that is behind."""

    def __init__(self, port: EventLog, seq: int) -> None:
        self._port, self._seq = port, seq

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return tuple(fact for fact in await self._port.read(*subjects) if fact.seq <= self._seq)

    async def latest(self, subjects: str) -> Fact | None:
        return await self._port.latest(subjects)


@simulated
async def test_a_claim_in_time_is_gone_on_with_after_the_time(shop: Shop):
    """Whoever goes on reads a replica that lacks the claim, and nothing else would be delivered."""
    await opened(shop, rule("freely", "allow", "valid_for_s = 0.2", tools="ask_*"))
    async with shop.gates():
        await ask(shop)
        decided = await shop.until(FIRST.decided)
    await shop.ledger.start(FIRST)
    await asyncio.sleep(0.3)
    behind = shop.ledger.reading_from(Stale(shop.log, decided.seq))
    delegator = Delegator({"ask_helper": HELPER})
    began, _again = delegator.decide(await delegator.load(behind, decided), decided)
    assert isinstance(began, Append)
    assert began.slot == FIRST.below.opened
