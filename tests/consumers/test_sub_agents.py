"""Sub-agents: what is asked in the run of a call is asked in the name of whoever asked at the root,
shows who asked whom, and ends with what it was asked for.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from long import IN_MEMORY_FIRST
from msgspec import structs
from running import working
from shop import FIRST, SECOND, THREAD, Shop, rule

from ayes.consumers.executor import Executor
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.worker import Worker
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.chain import MAX_DEPTH, Chain, thread_below
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.errors import AlreadyDecided, NotAllowed
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import CallRef, DelegationRef, GrantRef, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = IN_MEMORY_FIRST

ANY = '{"type":"object"}'
DELEGATE = ToolSpec(name="delegate", schema=ANY)
REFUND = ToolSpec(name="refund", schema=ANY)
#: Delegating is free; the owner of the agent `desk` is Dora.
POLICY = "\n".join(
    (
        '[owners]\ndesk = ["dora"]\n',
        rule("freely", "allow", tools="delegate"),
        rule("money", "ask", 'voters = ["*"]'),
    )
)


@asynccontextmanager
async def opened(shop: Shop, policy: str = POLICY, requester: str = "rita") -> AsyncIterator[None]:
    """A thread in a shop, and its gate."""
    await shop.open(policy, "", DELEGATE, REFUND)
    event = e.ThreadOpened(requester=requester, agent="desk")
    await shop.ledger.append(THREAD.opened, event)
    async with shop.gates():
        yield


async def started(shop: Shop, ref: CallRef = FIRST) -> Call:
    """A call that is approved by the policy, and runs."""
    await shop.ledger.request(ref, "delegate", {})
    await shop.ledger.decision(ref, timeout_s=60)
    return await shop.ledger.start(ref)


async def delegated(shop: Shop, ref: CallRef, agent: str = "helper") -> ThreadRef:
    """Make a call and open a thread in its run."""
    thread, event = thread_below(await started(shop, ref), agent=agent)
    await shop.ledger.append(thread.opened, event)
    return thread


async def levels(shop: Shop, count: int) -> list[ThreadRef]:
    """Threads below each other, the first below `FIRST`."""
    threads = [await delegated(shop, FIRST, "level-1")]
    for number in range(2, count + 1):
        threads.append(await delegated(shop, threads[-1].call("next"), f"level-{number}"))
    return threads


async def ask(shop: Shop, ref: CallRef) -> CallRef:
    await shop.ledger.request(ref, "refund", {"amount": 1})
    return ref


async def test_what_is_asked_three_levels_deep_shows_the_whole_chain(shop: Shop):
    """Nobody of the chain may vote: neither who asked first nor who is behind an agent (I2)."""
    async with opened(shop):
        threads = await levels(shop, 3)
        ref = await ask(shop, threads[-1].call("pay"))
        asked = await shop.asked(ref)
        assert asked.chain == (
            e.Link("shop/t1/c1", "delegate", "desk"),
            e.Link(f"{threads[0]}/next", "delegate", "level-1"),
            e.Link(f"{threads[1]}/next", "delegate", "level-2"),
        )
        assert asked.excluded == ("rita", "dora")
        await shop.cast("rita", ref)
        await shop.cast("dora", ref)
        await shop.cast("ana", ref)
        assert (await shop.decided(e.Approved, ref)).voters == ("ana",)


def of_class(name: str, declared: e.ToolClass) -> ToolSpec:
    return ToolSpec.model_validate({"name": name, "schema": ANY, "class": declared})


OF_CLASSES = (of_class("look", "reads"), of_class("order", "irreversible"), DELEGATE)
FREE = rule("freely", "allow", tools="*")
LOST = rule("lost", "ask", 'class = "irreversible"', tools="refund")


@asynccontextmanager
async def with_classes(shop: Shop, policy: str) -> AsyncIterator[None]:
    """As `opened`, with tools of several classes."""
    await shop.open(policy, "", *OF_CLASSES, of_class("refund", "reads"))
    await shop.ledger.append(THREAD.opened, e.ThreadOpened(requester="rita", agent="desk"))
    async with shop.gates():
        yield


async def below(shop: Shop, *tools: str) -> ThreadRef:
    """The thread below calls of these tools, each in the run of the one before."""
    thread = THREAD
    for tool in tools:
        ref = thread.call(tool)
        await shop.ledger.request(ref, tool, {})
        await shop.ledger.decision(ref, timeout_s=60)
        thread, event = thread_below(await shop.ledger.start(ref), agent=f"of-{tool}")
        await shop.ledger.append(thread.opened, event)
    return thread


@pytest.mark.parametrize(
    ("middle", "declared"),
    [("look", "reads"), ("order", "irreversible"), ("delegate", "undeclared")],
)
async def test_a_call_is_judged_by_the_highest_class_of_its_chain(
    shop: Shop, middle: str, declared: str
):
    """The question says which call of the chain has it; one that declares none counts as
    irreversible (I4).
    """
    async with with_classes(shop, FREE + LOST):
        ref = await ask(shop, (await below(shop, "look", middle, "look")).call("pay"))
        if declared == "reads":
            allowed = await shop.decided(e.Approved, ref)
            assert (allowed.rule, allowed.undoing) == ("freely", e.Undoing("reads"))
            return
        asked = await shop.asked(ref)
    assert (asked.rule, asked.undoing) == ("lost", e.Undoing("reads"))
    classes = [(one.tool, one.tool_class) for one in asked.chain]
    assert classes == [("look", "reads"), (middle, declared), ("look", "reads")]


@pytest.mark.log("memory", "jetstream")
async def test_what_people_approve_is_judged_by_the_classes_of_its_chain_too(shop: Shop):
    """Also if no policy spoke of classes when they were asked."""
    async with with_classes(shop, FREE + rule("money", "ask", "priority = 1")):
        refs = [
            await ask(shop, (await below(shop, tool)).call("pay")) for tool in ("look", "order")
        ]
        for ref in refs:
            asked = await shop.asked(ref)
            assert [one.tool_class for one in asked.chain] == [None]
        await shop.apply(FREE + rule("never", "block", 'class = "irreversible"', tools="refund"))
        for ref in refs:
            await shop.cast("ana", ref)
        assert (await shop.decided(e.Approved, refs[0])).ground == "people"
        denied = await shop.decided(e.Denied, refs[1])
    assert (denied.ground, denied.rule) == ("policy", "never")


async def test_nothing_more_is_read_unless_a_policy_speaks_of_classes(shop: Shop):
    """A cycle of ordinary calls costs what it did."""
    chain = Chain((e.Link(str(FIRST), "delegate", "desk"),))
    speaks = Policies(AppliedPolicy(1, read_policy(LOST, "policy.toml")))
    for policies, above in ((Policies(), chain), (speaks, Chain())):
        assert await shop.ledger.with_classes(above, policies) is above
    [link] = (await shop.ledger.with_classes(chain, speaks)).links
    assert link.tool_class == "undeclared"  # there is no such call


async def test_no_way_leads_from_the_root_to_a_yes(shop: Shop):
    """Not by another spelling, a grant, a delegation in either direction or a broken glass; nor may
    whoever asked at the root say how the call ended (I2).
    """
    ways = 'voters = ["*"]\nbreak_glass = ["*"]\n'
    policy = POLICY.replace('voters = ["*"]\n', ways)
    assert ways in policy
    await shop.open(policy, "", DELEGATE, REFUND)
    await shop.ledger.append(THREAD.opened, e.ThreadOpened(requester="Rita", agent="desk"))
    given = e.Granted(tool="refund", expires_in_s=60, uses=5)
    for giver in ("rita", "dora", "RITA"):
        await shop.ledger.append(GrantRef("shop", giver, "g").given, given)
    now = await shop.log.clock()
    for giver, to in (("rita", "cai"), ("dora", "eve"), ("ana", "rita")):
        ends = now + timedelta(hours=1)
        delegated = e.Delegated(to=to, starts_at=now - timedelta(hours=1), ends_at=ends)
        await shop.ledger.append(DelegationRef("shop", giver, "d").given, delegated)
    async with shop.gates():
        threads = await levels(shop, 2)
        ref = await ask(shop, threads[-1].call("pay"))
        for name, behalf in (
            ("RITA", ""), ("Dora", ""), ("rita", "ana"), ("cai", "rita"), ("eve", "dora"),
        ):  # fmt: skip
            await shop.cast(name, ref, on_behalf_of=behalf)
        for name in ("rITA", "DORA"):
            await shop.cast(name, ref, "break_glass", reason="It is urgent.")
        await shop.cast("ana", ref)
        assert (await shop.decided(e.Approved, ref)).voters == ("ana",)
    await shop.ledger.start(ref)
    await shop.ledger.doubt(ref)
    word = e.Reconciled(happened=False, output="Nothing happened.")
    for name in ("rita", "Dora"):
        await shop.ledger.append(ref.reconciled_by(name), word)
    assert (await shop.ledger.call(ref)).status is Status.IN_DOUBT


async def test_nobody_of_the_chain_settles_what_was_allowed_below(shop: Shop):
    """Nobody is asked, so the decision says who may not revoke or reconcile it: as above (I2)."""
    freely = POLICY.replace('"ask"', '"allow"').replace('voters = ["*"]', "")
    async with opened(shop, freely):
        [thread] = await levels(shop, 1)
        ref = await ask(shop, thread.call("pay"))
        await shop.decided(e.Approved, ref)
    for name in ("rita", "dora"):
        with pytest.raises(NotAllowed, match="is behind the agent that did"):
            await shop.ledger.reviewer(name).revoke(ref)
        await shop.ledger.append(ref.revoked_by(name), e.Revoked(reviewer=name))
    assert (await shop.ledger.call(ref)).status is Status.APPROVED
    assert (await shop.ledger.reviewer("ana").revoke(ref)).status is Status.REVOKED


async def test_what_a_request_leaves_to_its_thread_is_that_of_the_thread(shop: Shop):
    """Requester and agent of the call above, as everywhere (I2)."""
    async with opened(shop):
        await shop.request(FIRST, "{}", "delegate", requester="")
        await shop.ledger.decision(FIRST, timeout_s=60)
        await shop.ledger.start(FIRST)
        event = e.ThreadOpened(requester="rita", agent="helper", parent=str(FIRST))
        await shop.ledger.append(FIRST.below.opened, event)
        asked = await shop.asked(await ask(shop, FIRST.below.call("pay")))
    assert asked.chain == (e.Link(str(FIRST), "delegate", "desk"),)
    assert asked.excluded == ("rita", "dora")


@pytest.mark.log("memory", "jetstream")
async def test_a_withdrawal_withdraws_what_was_asked_below_at_any_depth(shop: Shop):
    """The call itself goes on to its end, and so does what was approved before."""
    async with opened(shop):
        threads = await levels(shop, 3)
        pending = [await ask(shop, thread.call("pay")) for thread in threads]
        beside = await ask(shop, SECOND)
        for ref in (*pending, beside):
            await shop.asked(ref)
        call = await shop.ledger.withdraw(FIRST, "not needed any more")
        assert call.status is Status.RUNNING
        for ref in pending:
            withdrawn = await shop.decided(e.Withdrawn, ref)
            assert withdrawn.reason == "shop/t1/c1, for whose run it was asked, was withdrawn."
        assert (await shop.ledger.call(beside)).status is Status.PENDING
        late = await ask(shop, threads[1].call("late"))
        assert (await shop.decided(e.Withdrawn, late)).reason.startswith("shop/t1/c1, for whose")
        assert (await shop.ledger.call(late)).gated is None
        assert (await shop.ledger.finish(FIRST, output="stopped")).status is Status.RETURNED


async def test_a_withdrawal_in_the_middle_leaves_what_is_above(shop: Shop):
    async with opened(shop):
        threads = await levels(shop, 3)
        above, below = [await ask(shop, threads[place].call("pay")) for place in (0, 2)]
        await shop.asked(above)
        await shop.asked(below)
        middle = threads[0].call("next")
        await shop.ledger.withdraw(middle)
        await shop.decided(e.Withdrawn, below)
        assert (await shop.ledger.call(above)).status is Status.PENDING
        late = await ask(shop, threads[2].call("late"))
        why = f"{middle}, for whose run it was asked, was withdrawn."
        assert (await shop.decided(e.Withdrawn, late)).reason == why
        # If several are over, the outermost is the reason.
        await shop.ledger.withdraw(FIRST)
        later = await ask(shop, threads[2].call("later"))
        assert (await shop.decided(e.Withdrawn, later)).reason.startswith("shop/t1/c1, for whose")


class Restless:
    """A model that asks for money until it is stopped."""

    def __init__(self) -> None:
        self.asked = 0

    async def reply(self, question: ModelRequest) -> ModelReply:
        self.asked += 1
        return ModelReply((e.Wish("refund", '{"amount":1}'),))


async def test_after_a_withdrawal_the_model_of_a_sub_agent_is_not_asked(shop: Shop):
    """What it asks for would be withdrawn, turn after turn, and each turn costs tokens."""
    model = Restless()
    asking = Worker(
        Ledger(shop.log, e.Author(kind="model", name="m")), ModelWorker({"test": model})
    )
    closing = Worker(
        Ledger(shop.log, e.Author(kind="executor", name="closer")),
        Executor({}, group="", durable="closer"),
    )
    async with opened(shop), working(asking, closing):
        call = await started(shop)
        thread, event = thread_below(call, agent="helper", model="test:m")
        refund = (await shop.ledger.tool("shop", "refund")).version
        tools = (e.ToolRef("refund", refund),)
        await shop.ledger.append(thread.opened, structs.replace(event, tools=tools))
        await shop.ledger.say(thread, "Pay it back.", message="task")
        await shop.asked(thread.wish(1, 0))
        await shop.ledger.withdraw(FIRST)
        failed = (await shop.until(thread.replied(2))).event
    assert isinstance(failed, e.ModelFailed)
    assert failed.error == "shop/t1/c1, for whose run it was asked, was withdrawn."
    assert model.asked == 1


async def test_a_thread_that_only_has_the_name_of_one_below_is_left_alone(shop: Shop):
    """It was opened by itself, so nothing was asked there in the run of the call."""
    async with opened(shop):
        await shop.ledger.append(FIRST.below.opened, e.ThreadOpened(requester="rita"))
        await started(shop)
        ref = await ask(shop, FIRST.below.call("pay"))
        await shop.asked(ref)
        await shop.ledger.withdraw(FIRST)
        await shop.asked(await ask(shop, FIRST.below.call("next")))
        await shop.ledger.reviewer("ana").approve(ref)
        await shop.decided(e.Approved, ref)


async def test_nobody_approves_for_a_run_that_has_ended(shop: Shop):
    """Nobody waits for it: what people approve then is withdrawn, and nothing new is asked."""
    async with opened(shop):
        [thread] = await levels(shop, 1)
        ref = await ask(shop, thread.call("pay"))
        await shop.asked(ref)
        await shop.ledger.finish(FIRST, output="done without it")
        await shop.cast("ana", ref)
        ended = "shop/t1/c1, for whose run it was asked, has ended."
        assert (await shop.decided(e.Withdrawn, ref)).reason == ended
        late = await ask(shop, thread.call("late"))
        assert (await shop.decided(e.Withdrawn, late)).reason == ended


async def test_a_call_that_runs_and_has_nothing_below_is_not_withdrawn(shop: Shop):
    async with opened(shop):
        await started(shop)
        with pytest.raises(AlreadyDecided, match="no sub-agent asks in its run"):
            await shop.ledger.withdraw(FIRST)
        assert (await shop.ledger.call(FIRST)).withdrawn is None


# ----------------------------------------------------------------------------------- forged parents


async def forged(shop: Shop, thread: ThreadRef, parent: str, requester: str = "rita") -> str:
    """The reason why a call in a thread with this parent is denied."""
    event = e.ThreadOpened(requester=requester, agent="forger", parent=parent)
    await shop.ledger.append(thread.opened, event)
    ref = await ask(shop, thread.call("pay"))
    denied = await shop.decided(e.Denied, ref)
    assert denied.ground == "invalid"
    return denied.reason


async def test_a_parent_is_not_believed(shop: Shop):
    """A raw client that opens threads below whatever it likes gets nothing approved (I13)."""
    async with opened(shop):
        await shop.ledger.request(FIRST, "delegate", {})
        await shop.ledger.decision(FIRST, timeout_s=60)
        below = FIRST.below
        # Not a call; another workspace's; not the thread that belongs to the call.
        assert "is not a call" in await forged(shop, ThreadRef("shop", "f1"), "shop/t1")
        assert "is not a call" in await forged(shop, ThreadRef("shop", "f2"), "no words")
        assert "is not the thread below" in await forged(
            shop, ThreadRef("shop", "f3"), "other/t1/c1"
        )
        assert "is not the thread below" in await forged(
            shop, ThreadRef("shop", "f4"), "shop/t1/c1"
        )
        itself = ThreadRef("shop", "f5")
        assert "is not the thread below" in await forged(shop, itself, f"{itself}/pay")
        # Approved, and not started; nothing at all.
        assert "did not run when" in await forged(shop, below, str(FIRST))
        nothing = ThreadRef("shop", "t9").call("none")
        assert "did not run when" in await forged(shop, nothing.below, str(nothing))


async def test_a_thread_that_was_opened_before_the_call_ran_is_not_below_it(shop: Shop):
    """Whoever opens it in advance cannot have been told to."""
    async with opened(shop):
        await shop.ledger.request(FIRST, "delegate", {})
        await shop.ledger.decision(FIRST, timeout_s=60)
        event = e.ThreadOpened(requester="rita", agent="helper", parent=str(FIRST))
        await shop.ledger.append(FIRST.below.opened, event)
        await shop.ledger.start(FIRST)
        ref = await ask(shop, FIRST.below.call("pay"))
        assert "did not run when" in (await shop.decided(e.Denied, ref)).reason


async def test_a_sub_agent_cannot_ask_in_another_name(shop: Shop):
    """Else whoever asked at the root could approve it: Rita asks, in Ben's name, and votes."""
    async with opened(shop):
        await started(shop)
        why = await forged(shop, FIRST.below, str(FIRST), requester="ben")
        assert why.endswith("was opened for 'ben', and shop/t1/c1 was requested for 'rita'.")


@pytest.mark.log("memory")
async def test_a_chain_has_an_end(shop: Shop):
    async with opened(shop):
        threads = await levels(shop, MAX_DEPTH)
        await shop.asked(await ask(shop, threads[-1].call("pay")))
        deepest = threads[-1].call("next")
        await started(shop, deepest)
        assert "more than 16 calls" in await forged(shop, deepest.below, str(deepest))
