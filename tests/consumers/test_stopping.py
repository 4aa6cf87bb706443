"""A stop at work: nothing starts, nothing is allowed, no model is asked; and it goes on once."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from long import IN_MEMORY_FIRST
from running import working
from shop import FIRST, SCHEMA, SECOND, Shop, rule
from until import until

from ayes.consumers import gate, holding
from ayes.consumers.executor import Executor
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Worker
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.stops import Stop
from ayes.ledger.subscriptions import DURABLES
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import AlreadyFilled, BadInput, NotAllowed, NotOpen
from ayes.schemas.slots import ORGANISATION, GrantRef, StopRef, ThreadRef, person_slot
from ayes.schemas.tools import ToolSpec

# What is tested here is the workers'; what it rests on is the contract of the log, in test_log.py.
pytestmark = IN_MEMORY_FIRST
STOP = StopRef("shop", "ana", "s1")
START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
FREE, ASK = rule("free", "allow"), rule("money", "ask", 'voters = ["ana", "ben"]')
SPEC = ToolSpec(name="refund", schema=SCHEMA, run_by="executor")


def tools(ran: list[str]) -> dict[str, Registered]:
    def refund(amount: float = 0) -> str:
        ran.append(f"{amount}")
        return "paid"

    return {"refund": Registered(SPEC, refund)}


def executing(shop: Shop, executor: Executor) -> AbstractAsyncContextManager[object]:
    ledger = Ledger(shop.log, e.Author(kind="executor", name="executor"))
    return working(Worker(ledger, executor))


class Late(Executor):
    """A stop is given after it has read the call, the first time."""

    def __init__(self, shop: Shop, ran: list[str]) -> None:
        super().__init__(tools(ran))
        self.shop = shop

    async def load(self, ledger, handed):
        seen = await super().load(ledger, handed)
        if not await self.shop.ledger.read(STOP):
            await self.shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
        return seen


class Looks(Counter[type]):
    """How often gates, executors and models have looked at something."""

    async def again(self, kind: type) -> None:
        """Wait until this kind has looked twice from now on, at what has stood since."""
        seen = self[kind] + 1  # one look may be under way
        await until(lambda: self[kind] > seen + 1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What waits for the end of a stop looks again at once."""
    for name in ("_AFTER_S", "_AGAIN_S"):
        monkeypatch.setattr(holding, name, 0.05)
    for name in ("_LOOK_AFTER", "_LOOK_AGAIN"):
        monkeypatch.setattr(gate, name, timedelta(seconds=0.1))
    looks = Looks()
    for kind in (gate.Gate, Executor, ModelWorker):

        def load(self, ledger, handed, kind=kind, load=kind.load):
            looks[kind] += 1
            return load(self, ledger, handed)

        monkeypatch.setattr(kind, "load", load)
    return looks


@pytest.mark.parametrize(
    "stop", [STOP, StopRef(ORGANISATION, "ana", "s1")], ids=["workspace", "all workspaces"]
)
@pytest.mark.parametrize("how", ["by a rule", "by people", "by a grant"])
async def test_nothing_is_approved_until_it_is_resumed(shop, how, stop, looks):
    """Whatever would approve it: the approval is recorded after the end, once."""
    ana, ben = shop.ledger.reviewer("ana"), shop.ledger.reviewer("ben")
    async with shop.at_work(FREE if how == "by a rule" else ASK):
        if how == "by a grant":
            await ben.grant(GrantRef("shop", "ben", "g"), "refund", for_s=600)
        await ana.stop(stop, reason="A wrong account.")
        await shop.request()
        if how == "by people":
            await shop.asked()
            await ben.approve(FIRST)
        await looks.again(gate.Gate)
        assert (await shop.ledger.call(FIRST)).decided is None
        await ben.resume(stop)
        ended = (await shop.until(stop.ended)).event
        assert isinstance(ended, e.StopEnded)
        assert ended.resumed_by == ("ben",)
        await shop.decided(e.Approved)
    if how == "by a grant":
        [grant] = await shop.ledger.grants("shop")
        assert len(grant.used) == 1


async def test_people_may_still_deny(shop):
    async with shop.at_work(ASK):
        await shop.ask()
        await shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
        await shop.ledger.reviewer("ben").deny(FIRST)
        await shop.decided(e.Denied)


@pytest.mark.log("memory", "jetstream")
async def test_an_approved_call_starts_once_it_is_resumed(shop, looks):
    """An executor that receives it while it is stopped does not claim it, and then runs it once."""
    ran: list[str] = []
    async with shop.at_work(FREE, "", SPEC):
        await shop.judged(e.Approved, run_by="executor")
        await shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
        async with executing(shop, Executor(tools(ran))):
            await looks.again(Executor)
            call = await shop.ledger.call(FIRST)
            assert (call.status, call.claims, call.void, ran) == (Status.APPROVED, (), (), [])
            await shop.ledger.reviewer("ben").resume(STOP)
            await shop.until(FIRST.finished)
    assert ran == ["100"]
    assert len((await shop.ledger.call(FIRST)).starts) == 1


async def test_a_stop_between_reading_and_claiming_holds(shop, looks):
    """The claim is recorded after the stop: the tool does not run, and later it does, once."""
    ran: list[str] = []
    async with shop.at_work(FREE, "", SPEC):
        await shop.judged(e.Approved, run_by="executor")
        async with executing(shop, Late(shop, ran)):
            await shop.until(FIRST.claim(1))
            await looks.again(Executor)
            call = await shop.ledger.call(FIRST)
            assert (call.status, ran, len(call.void)) == (Status.APPROVED, [], 1)
            await shop.ledger.reviewer("ben").resume(STOP)
            await shop.until(FIRST.finished)
    call = await shop.ledger.call(FIRST)
    assert (call.status, ran, call.attempt) == (Status.RETURNED, ["100"], 2)


async def test_a_stop_that_ends_right_after_the_claim_is_waited_for(shop, looks):
    """Nothing is stopped any more when the executor looks, and yet its claim does not count. The
    call is started again, and only then the tool runs.
    """
    ran: list[str] = []

    class Waiting(Late):
        async def execute(self, ledger, work):
            if work.attempt == 1:
                await shop.ledger.reviewer("ben").resume(STOP)
                await shop.until(STOP.ended)
            return await super().execute(ledger, work)

    async with shop.at_work(FREE, "", SPEC):
        await shop.judged(e.Approved, run_by="executor")
        async with executing(shop, Waiting(shop, ran)):
            await shop.until(FIRST.finished)
    call = await shop.ledger.call(FIRST)
    assert (call.status, ran, call.attempt) == (Status.RETURNED, ["100"], 2)


async def test_a_client_starts_nothing(shop):
    """It reads why, before it claims and after; and goes on when it is resumed."""
    async with shop.at_work(FREE):
        await shop.judged(e.Approved)
        await shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
        with pytest.raises(NotOpen, match="may not start: stopped in workspace shop by ana"):
            await shop.ledger.start(FIRST)
        # A client that does not look first.
        known = await shop.ledger.call(FIRST)
        started = e.ToolStarted(digest=known.digest, idempotency_key=str(FIRST))
        await shop.ledger.append(FIRST.client_claim(1), started)
        assert (await shop.ledger.call(FIRST)).status is Status.APPROVED
        with pytest.raises(NotOpen):
            await shop.ledger.finish(FIRST, output="paid")
        await shop.ledger.reviewer("ben").resume(STOP)
        await shop.until(STOP.ended)
        assert (await shop.ledger.start(FIRST)).status is Status.RUNNING


async def test_no_model_is_asked(shop, looks):
    """Of a thread whose agent is stopped, until it is resumed; of others meanwhile."""
    asked: list[str] = []

    class Script:
        async def reply(self, question: ModelRequest) -> ModelReply:
            asked.append(question.thread.thread)
            return ModelReply((e.Text("Done."),))

    await shop.open(FREE)
    stopping = {"reason": "It writes nonsense.", "agents": ("desk",)}
    await shop.ledger.reviewer("ana").stop(STOP, **stopping)
    model = Ledger(shop.log, e.Author(kind="model", name="model"))
    async with shop.gates(), working(Worker(model, ModelWorker({"script": Script()}))):
        for thread, agent in (("t1", "desk"), ("t2", "other")):
            ref = ThreadRef("shop", thread)
            opened = e.ThreadOpened(requester="rita", model="script:1", agent=agent)
            await shop.ledger.append(ref.opened, opened)
            await shop.ledger.say(ref, "Hello.", message="m1")
        await shop.until(ThreadRef("shop", "t2").replied(1))
        await looks.again(ModelWorker)
        assert asked == ["t2"]
        await shop.ledger.reviewer("ben").resume(STOP)
        await shop.until(ThreadRef("shop", "t1").replied(1))
    assert asked == ["t2", "t1"]


MAY = 'may_stop = ["oncall"]\nmay_resume = ["lead-*"]\nresumes_needed = 2\n'


async def test_two_accounts_of_one_person_resume_once(shop):
    """Two accounts of one person count as one of the two people who must resume (B39)."""
    async with shop.at_work('resumes_needed = 2\n[people]\nben = ["benjamin"]\n' + ASK):
        await shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
        for name in ("benjamin", "ben", "cy"):
            await shop.ledger.reviewer(name).resume(STOP)
        ended = (await shop.until(STOP.ended)).event
    assert ended.resumed_by == ("benjamin", "cy")


async def test_who_may_stop_and_resume(shop):
    """By the policy in force; two different people must resume (I8)."""
    async with shop.at_work(MAY + ASK):
        with pytest.raises(NotAllowed, match="ana may not stop shop: may_stop"):
            await shop.ledger.reviewer("ana").stop(STOP, reason="No.")
        oncall = StopRef("shop", "oncall", "s1")
        with pytest.raises(NotAllowed, match="only oncall can give"):
            await shop.ledger.reviewer("ana").stop(oncall, reason="No.")
        found = await shop.ledger.reviewer("oncall").stop(oncall, reason="A wrong account.")
        assert found.stopped.resumes_needed == 2
        with pytest.raises(NotAllowed, match="oncall may not resume shop"):
            await shop.ledger.reviewer("oncall").resume(oncall)
        await shop.ledger.reviewer("lead-1").resume(oncall)
        with pytest.raises(AlreadyFilled):
            await shop.ledger.reviewer("lead-1").resume(oncall)
        await shop.ledger.reviewer("lead-2").resume(oncall, reason="Mended.")
        ended = (await shop.until(oncall.ended)).event
        assert isinstance(ended, e.StopEnded)
        assert (ended.resumed_by, ended.reason) == (("lead-1", "lead-2"), "Mended.")
        with pytest.raises(AlreadyFilled, match="has ended"):
            await shop.ledger.reviewer("lead-1").resume(oncall)


@pytest.mark.log("memory", "jetstream")
async def test_who_may_not_is_ended_by_the_gate(shop):
    """A raw client with a person's credentials stops for a moment; his resumption ends nothing."""
    forged = StopRef("shop", "eve", "s1")
    async with shop.at_work(MAY + ASK):
        await shop.ledger.append(forged.given, e.Stopped(reason="Mine."))
        ended = (await shop.until(forged.ended)).event
        assert isinstance(ended, e.StopEnded)
        assert (ended.resumed_by, ended.reason) == ((), "eve may not stop shop.")
        real = StopRef("shop", "oncall", "s1")
        await shop.ledger.reviewer("oncall").stop(real, reason="A wrong account.")
        for name in ("eve", "mallory"):
            await shop.ledger.append(real.resumed_by(name), e.Resumed())
        await shop.ask(SECOND)  # the gate has seen these by then
        assert await shop.ledger.read(real.ended) == ()


@pytest.mark.log("memory", "jetstream")
async def test_who_is_of_other_workspaces_stops_nothing_here(shop):
    """Nor all workspaces; nobody is named in the policy, so all others may (B40)."""
    for name in ("ana", "ben"):
        one_of_hr = e.PersonAdded(workspaces=("hr",))
        await shop.ledger.record_person(partial(person_slot, name), one_of_hr)
    async with shop.at_work(ASK):
        for where, named in (("shop", "shop"), (ORGANISATION, "all workspaces")):
            with pytest.raises(NotAllowed, match="or is of other workspaces"):
                await shop.ledger.reviewer("ana").stop(StopRef(where, "ana", "s1"), reason="No.")
            forged = StopRef(where, "ana", "s2")
            await shop.ledger.append(forged.given, e.Stopped(reason="Mine."))
            ended = (await shop.until(forged.ended)).event
            assert ended.reason == f"ana may not stop {named}."
        real = StopRef("shop", "oncall", "s1")
        await shop.ledger.reviewer("oncall").stop(real, reason="A wrong account.")
        await shop.ledger.append(real.resumed_by("ben"), e.Resumed())
        await shop.ledger.reviewer("cy").resume(real)
        assert (await shop.until(real.ended)).event.resumed_by == ("cy",)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reason": " "}, "a stop needs a reason"),
        ({"reason": "x", "for_s": 0}, "the stop would last 0 seconds"),
        ({"reason": "x", "for_s": float("nan")}, "the stop would last nan seconds"),
    ],
)
async def test_bad_input_is_refused(shop, fields, says):
    await shop.open(ASK)
    with pytest.raises(BadInput, match=says):
        await shop.ledger.reviewer("ana").stop(STOP, **fields)
    with pytest.raises(BadInput, match="there is no stop shop/ana/s1"):
        await shop.ledger.reviewer("ana").resume(STOP)
    assert await shop.ledger.read(STOP) == ()


async def test_the_same_stop_is_safe_to_repeat(shop):
    await shop.open(ASK)
    ana = shop.ledger.reviewer("ana")
    first = await ana.stop(STOP, reason="A wrong account.")
    assert await ana.stop(STOP, reason="A wrong account.") == first
    with pytest.raises(AlreadyFilled, match="there is another stop"):
        await ana.stop(STOP, reason="Another reason.")


@pytest.mark.parametrize("durable", ["executor", "delegator", "model"])
def test_what_waits_is_not_given_up_for_days(durable):
    """Each delivery that is handed on counts, and comes again each minute at most."""
    assert DURABLES[durable].max_deliveries * holding._AGAIN_S > 3 * 86_400


def test_a_deadline_that_has_passed_brings_no_look_at_once():
    """A call that its votes approve while it is stopped is judged again after a while, and not over
    and over because it was due.
    """
    ref, now = ThreadRef("shop", "t1").call("c1"), START + timedelta(hours=1)
    asking = e.ApprovalRequested(
        digest="d", rule="r", policy_version=1, expires_in_s=60.0, on_timeout="deny"
    )
    call = Call(ref, gated=Fact(1, START, ref.gated, asking))
    stop = Stop(STOP, Fact(2, START + timedelta(seconds=30), STOP.given, e.Stopped(reason="x")))
    assert call.due
    assert call.due < now
    assert gate._looked_at(call, stop, now) == now + timedelta(seconds=30)
    early = START + timedelta(seconds=50)
    assert gate._looked_at(call, stop, early) == early + timedelta(seconds=5)
    assert gate._looked_at(call, stop, call.due - timedelta(seconds=1)) == call.due
