"""The whole chain, from what a user says to what the model reads in the end; nothing in it is made
up but the model.

The real gate, model worker, executor and queue run side by side, on the log in memory and on a real
broker; and on a log in memory whose replicas are behind, where each of them is another client
(docs/decisions/0026).
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from brokers import running as broker
from chain import (
    ASK,
    ASK_BRIEFLY,
    DONE,
    FIRST,
    OTHER,
    REFUND,
    SECOND,
    THREAD,
    Chain,
    Script,
    beside,
    kinds,
    talking,
)
from long import sampled
from running import working as in_this_loop

from ayes.consumers.executor import Executor, Registered
from ayes.consumers.gate import Gate
from ayes.consumers.model import ModelWorker
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.worker import Worker
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe
from ayes.ledger.in_memory import Lagging, Memory
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import working
from ayes.projections.history import Assistant, Outcome, User, history
from ayes.schemas import events as e
from ayes.schemas.errors import AlreadyDecided, DeadlinePassed
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot

ALLOW = '[[rule]]\nname = "freely"\ntools = ["*"]\nthen = "allow"\n'
BLOCK = '[[rule]]\nname = "never"\ntools = ["*"]\nthen = "block"\nreason = "Not by a machine."\n'


@pytest.fixture(params=sampled(("memory", "behind", "jetstream"), "memory", "behind"))
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    """The log, and a third time in memory as the clients of a cluster see it."""
    if request.param != "jetstream":
        log = Memory()
        yield (
            log
            if request.param == "memory"
            else Lagging(log, random.Random(request.node.name), late=0.3)
        )
        return
    async with (
        broker(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        yield ledger.log


# ----------------------------------------------------------------------------------------- approved


async def test_from_what_is_said_to_what_is_read(port: EventLog):
    """Said, asked, wished, gated, shown, voted on, decided, run once, told, and gone on from (B86,
    B43, B51, B53, B72, I1).
    """
    async with talking(port, [e.Text("Let me see."), REFUND], [DONE]) as chain:
        [entry] = await chain.shown()
        assert (
            entry.ref, entry.tool, entry.arguments, entry.requester,
        ) == (FIRST, "refund", REFUND.arguments, "rita")  # fmt: skip
        assert (entry.rule, entry.reason, entry.excluded) == ("money", "It moves money.", ("rita",))
        assert chain.ran == []
        await chain.ledger.reviewer("ana").approve(entry.ref, reason="fine")
        thread = await chain.answered(2)
    assert chain.ran == ["A-17"]
    assert await port.pending.entries() == {}
    assert await kinds(chain.ledger, FIRST) == [
        "ToolRequested", "ApprovalRequested", "Voted", "Approved", "ToolStarted", "ToolReturned"
    ]  # fmt: skip
    call = thread.call(FIRST)
    assert call.claims
    assert isinstance(call.decided.event, e.Approved)
    assert isinstance(call.claims[0].event, e.ToolStarted)
    assert call.decided.event.digest == call.claims[0].event.digest == entry.digest
    told = Outcome("1-0", "refund", "call_a", "returned", "refunded A-17", is_error=False)
    before = (User("refund A-17"), Assistant(1, (e.Text("Let me see."), REFUND)), told)
    assert chain.model.asked[1].history == before
    assert history(thread).entries == (*before, Assistant(2, (DONE,)))
    assert len(chain.model.asked) == 2


async def test_every_fact_names_the_one_that_caused_it(port: EventLog):
    """What a worker records names the fact of the thread that it reacted to, and its call (B22)."""
    async with talking(port, [REFUND], [DONE], policy=ALLOW) as chain:
        await chain.answered(2)
    seq_of: dict[str, int] = {}
    for fact in await chain.ledger.read(THREAD):
        event = fact.event
        assert isinstance(event, e.Event)
        assert isinstance(event.by, e.Author)
        if event.by.kind != "service":
            assert seq_of[event.cause] < fact.seq
        seq_of[event.id] = fact.seq
    assert len(seq_of) == 10


async def test_what_the_policy_allows_asks_nobody(port: EventLog):
    """It is decided by the rule alone, never shown, and runs."""
    async with talking(port, [REFUND], [DONE], policy=ALLOW) as chain:
        thread = await chain.answered(2)
    assert await kinds(chain.ledger, FIRST) == [
        "ToolRequested", "Approved", "ToolStarted", "ToolReturned",
    ]  # fmt: skip
    assert thread.call(FIRST).decided
    assert describe(thread.call(FIRST).decided).startswith("Approved by policy rule 'freely' at ")  # type: ignore[arg-type]
    assert chain.ran == ["A-17"]


async def test_an_edit_runs_and_is_told(port: EventLog):
    """The reviewer's bytes run, not the model's, and the model is told which (B61, I1)."""
    async with talking(port, [REFUND], [DONE]) as chain:
        await chain.shown()
        for name in ("ana", "cara"):  # whoever edits does not count
            await chain.ledger.reviewer(name).approve(FIRST, arguments='{"order":"A-18"}')
        await chain.answered(2)
    assert chain.ran == ["A-18"]
    [told] = chain.model.read(2)
    assert told.text == (
        "A reviewer changed the arguments of this call before it ran. "
        'It ran with: {"order":"A-18"}\n\nrefunded A-18'
    )


async def test_the_same_wish_again_is_asked_about_again(port: EventLog):
    """Same tool, same arguments, same provider id, another turn: another approval (B20, I6)."""
    async with talking(port, [REFUND], [REFUND], [DONE]) as chain:
        await chain.shown()
        await chain.ledger.reviewer("ana").approve(FIRST)
        await chain.until(lambda thread: thread.call(THREAD.wish(2, 0)).status is Status.PENDING)
        assert chain.ran == ["A-17"]
        await chain.ledger.reviewer("ana").deny(THREAD.wish(2, 0), reason="once is enough")
        await chain.answered(3)
    assert chain.ran == ["A-17"]
    assert [told.kind for told in chain.model.read(3)] == ["returned", "denied"]


async def test_a_tool_that_fails_has_failed(port: EventLog):
    """Approved, run, and gone wrong: a failure, never a no; and the model goes on (B34, B47)."""
    async with talking(port, [REFUND, OTHER], [DONE], policy=ALLOW, fails=True) as chain:
        await chain.answered(2)
    assert [(told.kind, told.text) for told in chain.model.read(2)] == [
        ("failed", "LookupError: no order A-17"),
        ("failed", "LookupError: no order B-40"),
    ]


# ------------------------------------------------------------------------------------- not approved


async def test_a_no_is_told_with_its_reason(port: EventLog):
    """The tool does not run; the model reads who said no and why, under the tool's own name, and
    answers (B2, B5, B32, B33).
    """
    async with talking(port, [REFUND], [DONE]) as chain:
        await chain.shown()
        await chain.ledger.reviewer("ana").deny(FIRST, reason="A-17 was refunded before.")
        await chain.answered(2)
    [told] = chain.model.read(2)
    assert (told.kind, told.tool) == ("denied", "refund")
    assert told.text == (
        "`refund` did not run: a person reviewed this call and said no. "
        "Their reason: A-17 was refunded before."
    )
    assert chain.ran == []
    assert await kinds(chain.ledger, FIRST) == [
        "ToolRequested", "ApprovalRequested", "Voted", "Denied", "ToolRefused",
    ]  # fmt: skip
    assert await port.pending.entries() == {}


async def test_a_no_that_halts_waits_for_the_user(port: EventLog):
    """Denied, and the model does not go on by itself, also when its worker comes back; with the
    user's next word it reads why (B32, B33, B53).
    """
    async with talking(port, [REFUND], [DONE]) as chain:
        await chain.shown()
        await chain.ledger.reviewer("ana").vote(
            FIRST, Ballot("deny", reason="Ask the customer first.", halt=True)
        )
        thread = await chain.until(lambda thread: thread.call(FIRST).finished)
        await asyncio.sleep(0.1)
    decided = thread.call(FIRST).decided
    assert isinstance(decided.event, e.Denied)
    assert decided.event.halt
    async with chain.at_work():
        await asyncio.sleep(0.1)
        assert len(chain.model.asked) == 1
        await chain.say("m2", "They want it.")
        await chain.answered(2)
    [told] = chain.model.read(2)
    assert told.text.endswith("Their reason: Ask the customer first.")
    assert chain.model.asked[1].history[-1] == User("They want it.")
    assert (chain.ran, len(chain.model.asked)) == ([], 2)


@pytest.mark.parametrize("is_error", [False, True], ids=["an answer", "an error"])
@pytest.mark.parametrize("approved", [False, True], ids=["at once", "after the approval"])
async def test_an_answer_takes_the_tools_place(port: EventLog, approved: bool, is_error: bool):
    """What a person answers is what the model reads, as an error too, without a sentence around it;
    nothing runs. As long as the call has not started, an answer takes its approval back.
    """
    async with talking(port, [REFUND], [DONE], kinds=("gate", "queue", "model")) as chain:
        await chain.shown()
        ana = chain.ledger.reviewer("ana")
        if approved:
            await ana.approve(FIRST)
            await chain.until(lambda thread: thread.call(FIRST).decided)
            await ana.revoke(FIRST, answer="I did it by hand.", is_error=is_error)
        else:
            await ana.vote(FIRST, Ballot("answer", answer="I did it by hand.", is_error=is_error))
    async with chain.at_work():
        await chain.answered(2)
    [told] = chain.model.read(2)
    kind = "answered_with_error" if is_error else "answered"
    assert (told.kind, told.text, told.is_error) == (kind, "I did it by hand.", is_error)
    assert chain.ran == []


async def test_nobody_answers_in_time(port: EventLog):
    """The broker's clock ends it, nobody being connected; the model hears that nobody said no; a
    late click is refused (B36, B37, B38, I4, I5).
    """
    async with talking(port, [REFUND], [DONE], policy=ASK_BRIEFLY) as chain:
        thread = await chain.answered(2)
        with pytest.raises(DeadlinePassed, match="shop/t1/1-0 is already decided: Expired at 20"):
            await chain.ledger.reviewer("ana").approve(FIRST)
    call = thread.call(FIRST)
    assert call.deadline
    assert call.decided.recorded_at >= call.deadline
    [told] = chain.model.read(2)
    assert told.kind == "expired"
    assert told.text.endswith("nobody decided within 0.4 seconds. Nobody said no either.")
    assert chain.ran == []
    assert await port.pending.entries() == {}


async def test_the_requester_takes_it_back(port: EventLog):
    """Withdrawn is not denied: the model is told so, and nothing runs (I5)."""
    async with talking(port, [REFUND], [DONE]) as chain:
        await chain.shown()
        await chain.ledger.withdraw(FIRST, "the customer changed their mind")
        await chain.answered(2)
        with pytest.raises(AlreadyDecided, match="Withdrawn by desk"):
            await chain.ledger.reviewer("ana").approve(FIRST)
    [told] = chain.model.read(2)
    assert (told.kind, chain.ran) == ("withdrawn", [])
    assert told.text.endswith("The reason: the customer changed their mind")


@pytest.mark.parametrize("run_by", ["executor", "client"])
async def test_an_approval_is_taken_back_before_it_runs(port: EventLog, run_by: str):
    """Neither an executor nor a client runs it; the model reads why, and goes on (B8, B33)."""
    chain = Chain(port, Script([REFUND], [DONE]), run_by=run_by)
    await chain.begin()
    async with chain.at_work("gate", "queue", "model"):
        await chain.shown()
        await chain.ledger.reviewer("ana").approve(FIRST)
        await chain.until(lambda thread: thread.call(FIRST).decided)
        if run_by == "executor":
            await chain.ledger.reviewer("ben").revoke(FIRST, reason="wrong customer")
        async with chain.at_work("executor"):
            if run_by == "client":
                # The executor has seen the approval already, and left it to the client.
                await chain.ledger.append(
                    SECOND.requested, e.ToolRequested(tool="refund", arguments="{}", digest="")
                )
                await chain.until(lambda thread: thread.call(SECOND).status is Status.REFUSED)
                await chain.ledger.reviewer("ben").revoke(FIRST, reason="wrong customer")
            await chain.answered(2)
    [told] = chain.model.read(2)
    assert (told.kind, chain.ran) == ("revoked", [])
    assert told.text.endswith(
        "took the approval back before it started. Their reason: wrong customer"
    )


async def test_a_tool_that_is_gone_is_told(port: EventLog):
    """Approved, but the executor does not have it any more: it declines, the model is told, and the
    turn goes on (B8, B9).
    """
    without = Executor({}, hand_on_for_s=0)
    bare = Worker(Ledger(beside(port), e.Author(kind="executor", name="bare")), without)
    others = talking(port, [REFUND], [DONE], policy=ALLOW, kinds=("gate", "queue", "model"))
    async with others as chain, in_this_loop(bare):
        await chain.answered(2)
    [told] = chain.model.read(2)
    assert (told.kind, told.text) == (
        "unknown_tool",
        "`refund` did not run: there is no such tool here any more.",
    )
    assert await kinds(chain.ledger, FIRST) == [
        "ToolRequested", "Approved", "Declined", "ToolRefused",
    ]  # fmt: skip


async def test_what_could_never_run_asks_nobody(port: EventLog):
    """An unknown tool, malformed and misfit arguments: denied in words at once, no person is
    bothered, the model goes on (B17, B25, B66, I4).
    """
    wishes = [
        e.Wish(tool="constructor", arguments="{}"),
        e.Wish(tool="refund", arguments='{"order":'),
        e.Wish(tool="refund", arguments='{"order":17}'),
        e.Wish(tool="refund", arguments='{"order":"A-17","order":"B-40"}'),
    ]
    async with talking(port, wishes, [DONE]) as chain:
        thread = await chain.answered(2)
    assert [told.kind for told in chain.model.read(2)] == [
        "unknown_tool", "denied", "denied", "denied",
    ]  # fmt: skip
    assert all(call.gated is None for call in thread.calls.values())
    assert chain.ran == []


async def test_what_the_policy_blocks_is_told(port: EventLog):
    """With the rule's name and words, and that no person was asked."""
    async with talking(port, [REFUND], [DONE], policy=BLOCK) as chain:
        await chain.answered(2)
    [told] = chain.model.read(2)
    assert told.text == (
        "`refund` did not run: rule 'never' of the policy does not allow this call. "
        "No person was asked. The rule says: Not by a machine."
    )


# ------------------------------------------------------------------------ siblings, and coming back


async def test_two_wishes_in_one_turn(port: EventLog):
    """One approved and one denied: neither touches the other, and the model goes on once, after
    both (B11, B12, B43, B44, B45).
    """
    async with talking(port, [REFUND, OTHER], [DONE]) as chain:
        assert [entry.ref for entry in await chain.shown(2)] == [FIRST, SECOND]
        await chain.ledger.reviewer("ana").approve(SECOND)
        await chain.until(lambda thread: thread.call(SECOND).finished)
        assert len(chain.model.asked) == 1
        await chain.say("m2", "are you there?")
        await chain.ledger.reviewer("ben").deny(FIRST, reason="not this one")
        thread = await chain.answered(2)
    assert chain.ran == ["B-40"]
    assert [(told.call, told.kind) for told in chain.model.read(2)] == [
        ("1-0", "denied"),
        ("1-1", "returned"),
    ]
    assert chain.model.asked[1].history[-1] == User("are you there?")
    assert len(thread.turns) == len(chain.model.asked) == 2


async def test_an_open_approval_outlives_every_worker(port: EventLog):
    """All is stopped while a call waits; it is voted on meanwhile; whoever comes next goes on from
    there (B46, B51, B53, I8).
    """
    async with talking(port, [REFUND], [DONE]) as chain:
        await chain.shown()
    assert list(await port.pending.entries()) == ["shop.t1.1-0"]
    assert (await chain.ledger.reviewer("ana").approve(FIRST)).status is Status.PENDING
    async with chain.at_work():
        await chain.answered(2)
    assert chain.ran == ["A-17"]
    assert len(chain.model.asked) == 2


async def test_two_of_everything(port: EventLog):
    """Two copies of every worker: each thing still happens once (B43, B57, I6)."""
    wishes = [e.Wish(tool="refund", arguments=f'{{"order":"A-{number}"}}') for number in range(20)]
    chain = Chain(port, Script(wishes, [DONE]))
    await chain.begin(ALLOW)
    async with chain.at_work(), chain.at_work():
        thread = await chain.answered(2)
    assert sorted(chain.ran) == sorted(f"A-{number}" for number in range(20))
    assert len(chain.model.asked) == 2
    assert {call.status for call in thread.calls.values()} == {Status.RETURNED}
    tails = [fact.slot.tail for fact in await chain.ledger.read(THREAD)]
    assert [tail[-1] for tail in tails if tail[0] == "turn"] == ["1", "replied", "1", "replied"]


# ------------------------------------------------------------------------- on the real broker alone


async def test_under_each_roles_own_credentials(store: Path):
    """Every worker signed on as itself, with its rights only, a reviewer as herself (B40, B68)."""
    await ensure_account(store, "reviewer-ana")
    async with (
        Ledger.connect(store, role="service", name="desk") as service,
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store, role="reviewer-ana") as ana,
    ):
        chain = Chain(service.log, Script([REFUND], [DONE]))
        chain.ledger = service
        await operator.append(policy_slot("shop", 1), applied(ASK + "expires_in_s = 60\n"))
        ref = await service.declare("shop", chain.spec)
        await service.append(
            THREAD.opened, e.ThreadOpened(requester="rita", model="test:m", tools=(ref,))
        )
        await chain.say("m1", "refund A-17")
        executor = Executor({"refund": Registered(chain.spec, chain.refund)})
        asker = ModelWorker({"test": chain.model})
        started = [
            ("gate", Gate()),
            ("queue", PendingProjector()),
            ("model", asker),
            ("executor", executor),
        ]
        async with working(started, store=store):
            [entry] = await chain.shown()
            await ana.reviewer("ana").approve(entry.ref)
            thread = await chain.answered(2)
    assert chain.ran == ["A-17"]
    [vote] = thread.call(FIRST).votes
    assert isinstance(vote.event, e.Event)
    assert vote.event.by == e.Author(kind="reviewer", name="ana")
