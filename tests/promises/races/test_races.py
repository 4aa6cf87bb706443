"""Every pair of endings at once, 20 times each on a real broker: one wins, the other is told,
everybody agrees. `make test-long` lets each pair meet 80 times and `make races` 200 times.

The real workers run, and a second gate beside the first that is handed all that the first one is:
the worst that a redelivery can do. Each person has their own credentials. The second word of each
pair comes a little before or after the first, from call to call at another moment; for the first
and the last tenth of the calls the order is arranged, so that each of the two wins.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg
from until import until

from ayes.consumers.executor import Executor, ExecutorState
from ayes.consumers.gate import Gate
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.tools import Registered, idempotency_key
from ayes.consumers.worker import Reaction, Worker
from ayes.ledger import clock, log
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe, describe_decision
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered, TimerFired
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream, _Delivery
from ayes.ledger.nats.protocol import settled as sent
from ayes.ledger.nats.streams import deliver_subject
from ayes.ledger.subscriptions import DURABLES
from ayes.ledger.validity import call_of
from ayes.ops.audit.verify import rebuild
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import working
from ayes.projections.pending import entry
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import AlreadyDecided, AlreadyFilled, DeadlinePassed, NotOpen, Refused
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, GrantRef, Slot, policy_slot
from ayes.schemas.tools import ToolSpec

#: How often each pair meets.
TIMES = int(os.environ.get("RACES", "20"))
#: How many calls at either end of a race are arranged.
ARRANGED = max(1, TIMES // 10)
#: How long after one call the next one begins.
EVERY_S = 0.006
#: When an approval is due, and how long before and after it most people vote. The broker hands out
#: what is due up to a quarter of a second late, and a busy machine is slower than that.
DUE_S, AROUND_S = 2.0, 0.5
#: How long anything here may take before it hangs.
PATIENCE_S = 60

SCHEMA = '{"type":"object","properties":{"order":{"type":"string"}},"required":["order"]}'
ALLOW = '[[rule]]\nname = "freely"\ntools = ["*"]\nthen = "allow"\n'
BLOCK = '[[rule]]\nname = "never"\ntools = ["*"]\nthen = "block"\nreason = "An incident."\n'
ASK = '[[rule]]\nname = "money"\ntools = ["refund"]\nthen = "ask"\nreason = "It moves money."\n'
ESCALATE = ASK + f'voters = ["ana"]\nexpires_in_s = {DUE_S}\non_timeout = "escalate"\n'
SUPERSEDE = 'while_pending = "supersede"\n'

#: How the model is told, and the sentence that no other ending has.
TOLD: dict[type[e.Event], tuple[str, str]] = {
    e.Denied: ("denied", "a person reviewed this call and said no"),
    e.Expired: ("expired", "nobody decided within"),
    e.Withdrawn: ("withdrawn", "the request was taken back before it was decided"),
    e.Superseded: ("superseded", "something newer came before it was decided"),
    e.Revoked: ("revoked", "a person took the approval back before it started"),
    e.Lapsed: ("lapsed", "before it began"),
}

# ---------------------------------------------------------------------------------------- the scene


def refund(number: int, workspace: str = "shop") -> CallRef:
    """The call of this number, in a thread of its own."""
    return CallRef(workspace, f"t{number}", "refund-1")


class Overhearing(JetStream):
    """A connection that is handed all that its rivals are, at the same time, and not its share."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        #: The durables whose deliveries it hears by now.
        self.heard: set[str] = set()

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator[log.Delivery]]:
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        consumer = DURABLES[durable]

        async def take(msg: Msg) -> None:
            if f".{consumer.stream}.{consumer.name}." in msg.reply:
                arrived.put_nowait(msg)

        async def hand_out() -> AsyncIterator[log.Delivery]:
            while True:
                msg = await arrived.get()
                yield _Delivery(self, (msg.subject.encode(), msg.reply.encode(), msg.data, b""))

        subscription = await self.connection.client.subscribe(deliver_subject(consumer), cb=take)
        await sent(self.connection.client)
        self.heard.add(durable)
        try:
            yield hand_out()
        finally:
            await subscription.unsubscribe()


@asynccontextmanager
async def overhearing(store: Path, role: str, reaction: Reaction[Any, Any]) -> AsyncIterator[None]:
    """A second worker of this role, in step with the first."""
    connection = Connection(Store(store).login(role))
    await connection.open(name=f"the other {role}")
    log = Overhearing(connection)
    await log.open()
    worker = Worker(Ledger(log, e.Author(kind=role, name=f"other {role}")), reaction)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: log.heard >= set(reaction.durables))
        yield
    finally:
        worker.stop()
        await asyncio.gather(running, return_exceptions=True)
        await connection.close()


class Shop:
    """A workspace with one tool, those who have a word in it, and the log as it grows."""

    def __init__(
        self, desk: Ledger, admin: Ledger, people: dict[str, Ledger], spec: ToolSpec
    ) -> None:
        self.desk = desk
        self.admin = admin
        self.people = people
        self.spec = spec
        #: What ran: the call and the order, as the tool got them.
        self.ran: list[tuple[str, str]] = []
        #: What people were answered, by the slot of their word.
        self.answers: list[tuple[Slot, object]] = []
        self._there: dict[Slot, Fact] = {}
        self._awaited: dict[Slot, asyncio.Future[Fact]] = {}

    async def refund(self, order: str) -> str:
        self.ran.append((idempotency_key.get(), order))
        return f"refunded {order}"

    async def follow(self) -> None:
        async with aclosing(self.admin.watch()) as facts:
            async for fact in facts:
                self._there[fact.slot] = fact
                if awaited := self._awaited.pop(fact.slot, None):
                    awaited.set_result(fact)

    async def has(self, slot: Slot) -> Fact:
        """Wait until the slot is filled."""
        if slot in self._there:
            return self._there[slot]
        awaited = self._awaited.setdefault(slot, asyncio.get_running_loop().create_future())
        return await asyncio.shield(awaited)

    async def has_any(self, *slots: Slot) -> None:
        """Wait until one of the slots is filled."""
        waiting = [asyncio.ensure_future(self.has(slot)) for slot in slots]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    async def request(self, number: int, workspace: str = "shop") -> CallRef:
        """Ask for a refund, in a thread of its own."""
        ref = refund(number, workspace)
        await self.desk.request(ref, "refund", {"order": f"A-{number}"}, requester="rita")
        return ref

    async def ask(self, number: int) -> CallRef:
        """Ask for a refund, and wait until people are asked."""
        ref = await self.request(number)
        await self.has(ref.gated)
        return ref

    async def nearly_due(self, ref: CallRef, number: int) -> None:
        """Wait until a little before or after the call is due. The first of them do not wait, and
        nothing else goes on meanwhile (`each`): they are surely in time.
        """
        if is_first(number):
            return
        due = (await self.has(ref.gated)).recorded_at + timedelta(
            seconds=DUE_S + spread(number, AROUND_S)
        )
        await asyncio.sleep((due - clock.now()).total_seconds())

    async def hear(self, slot: Slot, saying: Awaitable[object]) -> object:
        """Say something; what was answered is kept."""
        try:
            answer: object = await saying
        except Refused as refused:
            answer = refused
        self.answers.append((slot, answer))
        return answer

    async def vote(self, name: str, ref: CallRef, verdict: e.Verdict, **more: Any) -> object:
        return await self.hear(
            ref.vote(name), self.people[name].reviewer(name).vote(ref, Ballot(verdict, **more))
        )

    async def call_out(self, name: str, ref: CallRef, verdict: e.Verdict, **more: Any) -> object:
        """Vote as a program would that checks nothing first."""
        call = await self.desk.call(ref)
        voted = e.Voted(verdict=verdict, digest=call.wish.digest, **more)
        return await self.hear(ref.vote(name), self.people[name].append(ref.vote(name), voted))

    async def withdraw(self, ref: CallRef) -> object:
        return await self.hear(ref.withdrawn, self.desk.withdraw(ref, "Changed their mind."))


@asynccontextmanager
async def open_shop(
    store: Path,
    policy: str,
    *names: str,
    run_by: str = "executor",
    executors: Callable[[dict[str, Registered]], Sequence[Executor]] = lambda tools: [
        Executor(tools)
    ],
) -> AsyncIterator[Shop]:
    """Two gates, the queue, and an executor at work; these people at their desks.

    Args:
        executors: the first is handed what is decided; the second, if there is one, is handed the
            same.
    """
    async with AsyncExitStack() as stack:
        people: dict[str, Ledger] = {}
        for name in names:
            await ensure_account(store, f"reviewer-{name}")
            people[name] = await stack.enter_async_context(
                Ledger.connect(store, role=f"reviewer-{name}")
            )
        desk = await stack.enter_async_context(Ledger.connect(store, name="desk"))
        admin = await stack.enter_async_context(Ledger.connect(store, role="admin"))
        shop = Shop(desk, admin, people, ToolSpec(name="refund", schema=SCHEMA, run_by=run_by))
        await set_up(shop, "shop", policy)
        first, *others = executors({"refund": Registered(shop.spec, shop.refund)})
        at_work: list[tuple[str, Reaction[Any, Any]]] = [
            ("gate", Gate()),
            ("queue", PendingProjector()),
            ("executor", first),
        ]
        await stack.enter_async_context(working(at_work, store=store))
        await stack.enter_async_context(overhearing(store, "gate", Gate()))
        for other in others:
            await stack.enter_async_context(overhearing(store, "executor", other))
        following = asyncio.create_task(shop.follow())
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield shop
        except TimeoutError:
            raise AssertionError(f"still waiting; given up on were {await parked(shop)}") from None
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def set_up(shop: Shop, workspace: str, policy: str) -> None:
    await shop.admin.append(policy_slot(workspace, 1), applied(policy))
    await shop.desk.declare(workspace, shop.spec)


def is_first(number: int) -> bool:
    return number < ARRANGED


def is_last(number: int) -> bool:
    return number >= TIMES - ARRANGED


async def race(
    number: int,
    over_s: float,
    one: Callable[[], Awaitable[object]],
    other: Callable[[], Awaitable[object]],
) -> None:
    """Both at once, the other up to `over_s` seconds earlier or later. For the first calls the one
    comes first and for the last ones the other.
    """
    if is_first(number) or is_last(number):
        for doing in (one, other) if is_first(number) else (other, one):
            await doing()
        return
    lag_s = spread(number, over_s)

    async def late(doing: Callable[[], Awaitable[object]], by_s: float) -> None:
        await asyncio.sleep(max(0.0, by_s))
        await doing()

    async with asyncio.TaskGroup() as both:
        both.create_task(late(one, -lag_s))
        both.create_task(late(other, lag_s))


async def raced(
    shop: Shop,
    over_s: float,
    one: Callable[[CallRef], Awaitable[object]],
    other: Callable[[CallRef], Awaitable[object]],
) -> list[Call]:
    """Ask for each call, let both of them race about it, and wait for the ends."""

    async def pair(number: int) -> CallRef:
        ref = await shop.ask(number)
        await race(number, over_s, lambda: one(ref), lambda: other(ref))
        return ref

    return await settled(shop, await each(pair))


def spread(number: int, over_s: float) -> float:
    """The moment of this call's second word, around the first; most are close to it."""
    place = 2 * number / (TIMES - 1) - 1
    return over_s * place * abs(place)


async def each(one: Callable[[int], Awaitable[Any]], times: int = TIMES) -> list[Any]:
    """Do it for each call, one begun after the other: all at once would wait for this process, not
    for each other. The first ones are alone, so that nothing delays them.
    """
    first = [await one(number) for number in range(min(ARRANGED, times))]

    async def in_turn(number: int) -> Any:
        await asyncio.sleep(number * EVERY_S)
        return await one(number)

    return first + await asyncio.gather(*(in_turn(number) for number in range(len(first), times)))


# ----------------------------------------------------------------------------------- what must hold


async def _at_rest(shop: Shop) -> list[Fact]:
    """All facts, once none comes any more: a late result may follow the end of its call."""
    while True:
        facts = [fact async for fact in shop.admin.replay()]
        await asyncio.sleep(0.1)
        if await shop.admin.log.last_seq() == facts[-1].seq:
            return facts


async def settled(shop: Shop, refs: Sequence[CallRef]) -> list[Call]:
    """Wait for the end of these calls, and see that everybody tells the same about them.

    Every slot holds one fact (B27, I6); the log, folded from its first fact or in any order, what
    is read live, the queue (B35) and `ayes replay --verify` agree; and what ran, what was approved
    and what was told fit.
    """
    for ref in refs:
        await shop.has_any(ref.finished, ref.client_finished)
    facts = await _at_rest(shop)
    assert {number for _, number in Counter(fact.slot for fact in facts).items()} == {1}
    about: dict[CallRef, list[Fact]] = {}
    for fact in facts:
        if fact.slot.call_ref is not None:
            about.setdefault(fact.slot.call_ref, []).append(fact)
    assert set(about) == set(refs)
    calls = [call_of(ref, tuple(about[ref])) for ref in refs]
    live = await asyncio.gather(*(shop.desk.call(ref) for ref in refs))
    assert list(live) == calls
    dice = random.Random(7)
    for call in calls:
        shuffled = dice.sample(about[call.ref], len(about[call.ref]))
        assert call_of(call.ref, tuple(shuffled)) == call
        check_call(call)
    check_runs(shop, calls)
    by_ref = {call.ref: call for call in calls}
    for slot, answer in shop.answers:
        assert slot.call_ref
        check_answer(by_ref[slot.call_ref], slot, answer)
    rebuilt = await rebuild(shop.admin, verify=True)
    assert rebuilt.differences == ()
    assert (rebuilt.pending, await shop.admin.log.pending.entries()) == (0, {})
    assert rebuilt.calls == Counter(str(call.status) for call in calls)
    assert await parked(shop) == []
    return calls


async def parked(shop: Shop) -> list[log.Parked]:
    assert isinstance(shop.admin.log, JetStream)
    return await shop.admin.log.parked()


def check_call(call: Call) -> None:
    """One decision, one claim if it approves, one end and sentence that fit it (I1, I2, I4, I5)."""
    assert call.decided
    assert call.finished
    assert call.late == ()
    decision, end = call.decided.event, call.finished.event
    first = call.ref.client_claim(1) if call.is_clients else call.ref.claim(1)
    went_on = isinstance(decision, e.Approved)
    ended = call.revoked or call.lapsed
    assert [fact.slot for fact in call.claims] == ([first] if went_on and not ended else [])
    if isinstance(decision, e.Approved):
        [claim] = call.claims or [ended]
        assert claim
        assert call.decided.seq < claim.seq < call.finished.seq
        check_ground(call, decision)
        if isinstance(claim.event, e.ToolStarted):
            assert claim.event.digest == decision.digest == call.digest
            assert isinstance(end, e.ToolReturned)
            return
        decision = claim.event
    assert isinstance(end, e.ToolRefused)
    ending, sentence = TOLD[type(decision)]  # type: ignore[index]
    assert end.ending == ending
    assert [said for _, said in TOLD.values() if said in end.text] == [sentence]


def check_ground(call: Call, approved: e.Approved) -> None:
    """Where people approved it, each of them did, before, and saw these bytes (I2, I4)."""
    assert call.decided
    assert len(set(approved.voters)) == len(approved.voters)
    if approved.ground not in {"people", "broken_glass"}:
        return
    assert approved.voters
    for name in approved.voters:
        [vote] = [fact for fact in call.votes if fact.slot == call.ref.vote(name)]
        assert isinstance(vote.event, e.Voted)
        assert vote.event.verdict == ("approve" if approved.ground == "people" else "break_glass")
        assert vote.event.digest == approved.digest
        assert vote.seq < call.decided.seq


def check_runs(shop: Shop, calls: Sequence[Call]) -> None:
    """What ran is what returned, once each, and with the bytes that were approved (I1, I6)."""
    returned = {str(call.ref): call for call in calls if call.status is Status.RETURNED}
    assert Counter(key for key, _ in shop.ran) == dict.fromkeys(returned, 1)
    for key, order in shop.ran:
        call = returned[key]
        assert call.decided
        assert isinstance(call.decided.event, e.Approved)
        ran = msgspec.json.encode({"order": order}).decode()
        assert call_digest("refund", call.wish.tool_version, ran) == call.decided.event.digest


def check_answer(call: Call, slot: Slot, answer: object) -> None:
    """Who came too late is told who was first, and no other (B27, B28, B29, B30, B36)."""
    standing = next((fact for fact in call.facts if fact.slot == slot), None)
    match answer:
        case Refused() if slot.tail[2] == "revoked":
            assert call.starts, "a revocation is refused only where a start came before it"
            assert (standing is None) is isinstance(answer, NotOpen)
            told = ("was started before it", "had ended before it", "so it cannot be revoked")
            assert any(words in str(answer) for words in told)
        case DeadlinePassed() if standing is None and "expired at" in str(answer):
            assert call.deadline
            assert f"{call.deadline:%Y-%m-%d %H:%M:%S}" in str(answer)
        case AlreadyFilled():
            assert standing
            assert describe(standing) in str(answer)
        case Refused():
            assert standing is None
            assert call.decided
            assert describe_decision(call.decided, call.withdrawn) in str(answer)
        case Call():
            assert standing
            assert answer.decided in (None, call.decided)
            assert set(answer.claims) <= set(call.claims)
        case _:
            assert standing


def decisions(calls: Sequence[Call]) -> Counter[str]:
    return Counter(type(call.decided.event).__name__ for call in calls if call.decided)


def both(outcomes: Counter[Any], one: Any, other: Any) -> None:
    """Each was first at least where that was arranged, and nothing else came of it."""
    assert set(outcomes) == {one, other}, dict(outcomes)


# ------------------------------------------------------------------------------------- the decision


async def test_an_approval_and_the_deadline(store: Path):
    """A vote that was recorded in time counts, one that came later does not, and neither is taken
    for the other (B27, B36, B37, B38, I4, I5).
    """
    async with open_shop(store, ASK + f"expires_in_s = {DUE_S}\n", "ana") as shop:

        async def one(number: int) -> CallRef:
            ref = await shop.ask(number)
            await (shop.has(ref.decided) if is_last(number) else shop.nearly_due(ref, number))
            # The one asks whether it is too late; the other just says it, and it may come too late.
            await (shop.vote if number % 2 else shop.call_out)("ana", ref, "approve")
            return ref

        calls = await settled(shop, await each(one))
    for call in calls:
        assert call.decided
        assert call.deadline
        in_time = any(vote.recorded_at < call.deadline for vote in call.votes)
        assert isinstance(call.decided.event, e.Approved if in_time else e.Expired)
        assert in_time or call.decided.recorded_at >= call.deadline
    both(decisions(calls), "Approved", "Expired")


async def test_an_approval_and_a_withdrawal(store: Path):
    """The one or the other; who takes back too late is told that it runs (B27, B30, I5)."""
    async with open_shop(store, ASK, "ana") as shop:

        async def one(number: int) -> CallRef:
            ref = await shop.ask(number)
            if not is_last(number):
                await race(
                    number,
                    0.1,
                    lambda: shop.withdraw(ref),
                    lambda: shop.vote("ana", ref, "approve"),
                )
            else:  # surely too late, however long the gates take
                await shop.vote("ana", ref, "approve")
                await shop.has(ref.decided)
                await shop.withdraw(ref)
            return ref

        calls = await settled(shop, await each(one))
    for call in calls:
        # Whoever reads both takes it back; so a yes that came second is never the decision.
        if call.votes and call.withdrawn and call.withdrawn.seq < call.votes[0].seq:
            assert call.status is Status.REFUSED
    both(decisions(calls), "Approved", "Withdrawn")


async def test_a_yes_and_a_no(store: Path):
    """Whoever is recorded first decides; the other is told or not counted (B27, B28, B29, B35)."""
    async with open_shop(store, ASK, "ana", "ben") as shop:
        calls = await raced(
            shop,
            0.1,
            lambda ref: shop.vote("ana", ref, "approve"),
            lambda ref: shop.vote("ben", ref, "deny", reason="Not this one."),
        )
    for call in calls:
        first = call.votes[0].slot.tail[3]
        assert call.decided
        assert isinstance(call.decided.event, e.Approved | e.Denied)
        assert call.decided.event.voters == (first,)
        assert isinstance(call.decided.event, e.Approved if first == "ana" else e.Denied)
    both(decisions(calls), "Approved", "Denied")


async def test_the_two_votes_of_a_quorum(store: Path):
    """Ana from two windows at once, and Ben: one approval names both, each once (B27, B39, I2)."""
    async with open_shop(store, ASK + "votes_needed = 2\n", "ana", "ben") as shop:
        calls = await raced(
            shop,
            1.0,
            lambda ref: asyncio.gather(*(shop.vote("ana", ref, "approve") for _ in range(2))),
            lambda ref: shop.vote("ben", ref, "approve"),
        )
    orders: Counter[tuple[str, ...]] = Counter()
    for call in calls:
        assert call.decided
        assert isinstance(call.decided.event, e.Approved)
        assert len(call.votes) == 2
        assert call.decided.seq > max(vote.seq for vote in call.votes)
        orders[call.decided.event.voters] += 1
    both(orders, ("ana", "ben"), ("ben", "ana"))
    doubles = [answer for slot, answer in shop.answers if isinstance(answer, Refused)]
    assert len(doubles) == TIMES


async def test_an_approval_and_a_users_message(store: Path):
    """Under `supersede` the first in the log decides, whoever of the gates saw what (B27, I5)."""
    async with open_shop(store, SUPERSEDE + ASK, "ana") as shop:
        calls = await raced(
            shop,
            0.4,
            lambda ref: shop.vote("ana", ref, "approve"),
            lambda ref: shop.desk.say(ref.thread_ref, "Stop, I meant B-40.", message="m1"),
        )
        for call in calls:
            said = await shop.has(call.ref.thread_ref.said("m1"))
            first = bool(call.votes) and call.votes[0].seq < said.seq
            assert call.decided
            assert isinstance(call.decided.event, e.Approved if first else e.Superseded)
    both(decisions(calls), "Approved", "Superseded")


# ---------------------------------------------------------------- more people, and one person alone


async def test_an_approval_and_an_escalation(store: Path):
    """It is approved, and a vote that came in time asks nobody more (B27, B36)."""
    policy = ESCALATE + 'stages = [{voters = ["lea"]}]\n'
    async with open_shop(store, policy, "ana") as shop:

        async def one(number: int) -> CallRef:
            ref = await shop.ask(number)
            # The last of them see that more people are asked, however late that is.
            await (shop.has(ref.escalated(1)) if is_last(number) else shop.nearly_due(ref, number))
            await shop.vote("ana", ref, "approve")
            return ref

        calls = await settled(shop, await each(one))
    for call in calls:
        assert call.gated
        assert call.decided
        assert isinstance(call.decided.event, e.Approved)
        waited_s = (call.votes[0].recorded_at - call.gated.recorded_at).total_seconds()
        assert not call.escalated or waited_s >= DUE_S
    asked_more = Counter(bool(call.escalated) for call in calls)
    both(asked_more, True, False)


async def test_whoever_is_asked_as_well_and_the_escalation(store: Path):
    """A vote before the question never counts, one after it does (B27, B36, I4, I5)."""
    policy = ESCALATE + f'stages = [{{voters = ["lea"], expires_in_s = {DUE_S}}}]\n'
    async with open_shop(store, policy, "lea") as shop:

        async def one(number: int) -> CallRef:
            ref = await shop.ask(number)
            # The last of them see that more people are asked, however late that is.
            await (shop.has(ref.escalated(1)) if is_last(number) else shop.nearly_due(ref, number))
            await shop.call_out("lea", ref, "approve")
            return ref

        calls = await settled(shop, await each(one))
    for call in calls:
        [more], [vote] = call.escalated, call.votes
        assert call.decided
        assert call.deadline
        counts = more.seq < vote.seq and vote.recorded_at < call.deadline
        assert isinstance(call.decided.event, e.Approved if counts else e.Expired)
    both(decisions(calls), "Approved", "Expired")


async def test_broken_glass_and_a_no(store: Path):
    """The first in the log wins, and only what won is announced (B27, B28, I5)."""
    policy = ASK + 'votes_needed = 2\nbreak_glass = ["ana"]\n'
    async with open_shop(store, policy, "ana", "ben") as shop:
        calls = await raced(
            shop,
            0.1,
            lambda ref: shop.vote("ana", ref, "break_glass", reason="The shop is on fire."),
            lambda ref: shop.vote("ben", ref, "deny"),
        )
    for call in calls:
        first = call.votes[0].slot.tail[3]
        assert call.decided
        assert isinstance(call.decided.event, e.Approved if first == "ana" else e.Denied)
        if isinstance(call.decided.event, e.Approved):
            assert call.decided.event.ground == "broken_glass"
            assert call.announced
            assert call.announced.seq < call.decided.seq
        else:
            assert call.announced is None
    both(decisions(calls), "Approved", "Denied")


class Paused:
    """A gate that has looked at what it was handed, and acts only when it is told to."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._gate = Gate()
        self._worker = Worker(ledger, self._gate)

    async def load(self, handed: Delivered) -> Callable[[], Awaitable[Ledger | None]]:
        steps = self._gate.decide(await self._gate.load(self.ledger, handed), handed)
        return lambda: self._worker._carry_out(steps, handed)

    async def settle(self, slot: Slot) -> None:
        """What another gate does meanwhile, from its first look to its last."""
        [fact] = await self.ledger.read(slot)
        while await (await self.load(fact))() is not None:
            pass


async def asked_in(ledger: Ledger, policy: str) -> tuple[Paused, CallRef]:
    ref = CallRef("shop", "t1", "refund-1")
    await ledger.append(policy_slot("shop", 1), applied(policy))
    await ledger.declare("shop", ToolSpec(name="refund", schema=SCHEMA))
    await ledger.request(ref, "refund", {"order": "A-1"}, requester="rita")
    gate = Paused(ledger)
    await gate.settle(ref.requested)
    return gate, ref


async def test_glass_that_is_announced_late_changes_nothing(ledger: Ledger):
    """Taken back as a gate lets one person decide alone: what was decided stands (B27, B28)."""
    gate, ref = await asked_in(ledger, ASK + 'votes_needed = 2\nbreak_glass = ["ana"]\n')
    await ledger.reviewer("ana").vote(ref, Ballot("break_glass", reason="The shop is on fire."))
    [vote] = await ledger.read(ref.vote("ana"))
    act = await gate.load(vote)
    await ledger.withdraw(ref)
    await gate.settle(ref.withdrawn)
    await act()
    call = await ledger.call(ref)
    assert call.status is Status.WITHDRAWN
    assert (
        call.announced is not None
    )  # it says what ana said, and the decision says what came of it
    assert call.announced.seq > call.decided.seq


async def test_nobody_more_is_asked_once_it_is_decided(ledger: Ledger):
    """Approved while a gate is about to ask more people: recorded; nobody is asked (B27, B31)."""
    policy = (
        ASK + 'voters = ["ana"]\nexpires_in_s = 0.05\non_timeout = "escalate"\nstages = [{voters = '
        '["lea"]}]\n'
    )
    gate, ref = await asked_in(ledger, policy)
    await asyncio.sleep(0.1)
    act = await gate.load(TimerFired(ref, 1, clock.now()))
    await ledger.reviewer("ana").approve(ref)
    await gate.settle(ref.vote("ana"))
    await act()
    call = await ledger.call(ref)
    assert call.status is Status.APPROVED
    assert len(call.escalated) == 1
    assert entry(call) is None
    with pytest.raises(AlreadyDecided):
        await ledger.reviewer("lea").deny(ref)


#: How many calls want the same grant at once.
RIVALS = 8


async def test_the_last_use_of_a_grant(store: Path):
    """Eight calls at once under a grant for fewer: so many are approved by it, each by a use of its
    own; people are asked about the others (B27, I1, I4, I6).
    """
    policy = ASK + "expires_in_s = 0.5\n"
    async with open_shop(store, policy, "ana") as shop:

        async def one(number: int) -> list[CallRef]:
            workspace = f"shop{number}"
            await set_up(shop, workspace, policy)
            given = GrantRef(workspace, "ana", "early")
            await (
                shop.people["ana"]
                .reviewer("ana")
                .grant(given, "refund", for_s=3600, uses=1 + number % 3)
            )
            return await asyncio.gather(
                *(shop.request(rival, workspace) for rival in range(RIVALS))
            )

        groups = await each(one, times=TIMES // RIVALS)
        calls = await settled(shop, [ref for refs in groups for ref in refs])
        lucky: Counter[str] = Counter()
        for number in range(TIMES // RIVALS):
            [grant] = await shop.desk.grants(f"shop{number}")
            here = {str(call.ref): call for call in calls if call.ref.workspace == f"shop{number}"}
            approved = {ref: call for ref, call in here.items() if call.status is Status.RETURNED}
            assert len(approved) == len(grant.used) == grant.granted.uses
            for use in grant.used:
                assert isinstance(use.event, e.GrantUsed)
                decided = approved[use.event.call].decided
                assert decided
                assert isinstance(decided.event, e.Approved)
                assert (decided.event.ground, decided.event.grants) == ("grant", ("ana/early",))
                assert use.seq < decided.seq
                lucky[approved[use.event.call].ref.thread] += 1
            for ref in set(here) - set(approved):
                assert here[ref].gated
                assert isinstance(here[ref].decided.event, e.Expired)
    assert len(lucky) > 1, f"{dict(lucky)}: request them at more different moments"


# ---------------------------------------------------------------------------------------- the claim


class Unhurried(Executor):
    """An executor that waits between seeing an approval and starting, for calls that are held."""

    def __init__(self, tools: dict[str, Registered], held: dict[CallRef, asyncio.Event]) -> None:
        super().__init__(tools)
        self._held = held

    async def load(self, ledger: Ledger, handed: Delivered) -> ExecutorState:
        seen = await super().load(ledger, handed)
        held = self._held.get(seen.call.ref)
        await (held.wait() if held else asyncio.sleep(0.05))
        return seen


async def test_a_start_and_an_approval_taken_back(store: Path):
    """It ran, or it never will, and who takes it back knows which (B27, B28, B30, I1, I6)."""
    held = {refund(number): asyncio.Event() for number in range(ARRANGED)}
    async with open_shop(
        store, ALLOW, "ana", executors=lambda tools: [Unhurried(tools, held)]
    ) as shop:
        ana = shop.people["ana"]

        async def one(number: int) -> CallRef:
            ref = await shop.request(number)
            await shop.has(ref.decided)
            # Around the moment in which the executor starts it; the first ones before that, the
            # last ones after it.
            if is_last(number):
                await shop.has(ref.claim(1))
            elif not is_first(number):
                await asyncio.sleep(0.1 * number / TIMES)
            await shop.hear(ref.revoked_by("ana"), ana.reviewer("ana").revoke(ref, reason="Wait."))
            if is_first(number):
                held[ref].set()
            return ref

        calls = await settled(shop, await each(one))
    assert all(bool(call.starts) is not bool(call.revoked) for call in calls)
    ends = Counter("ToolStarted" if call.starts else "Revoked" for call in calls)
    both(ends, "ToolStarted", "Revoked")
    told = Counter(
        isinstance(answer, Call)
        for slot, answer in shop.answers
        if isinstance(answer, Call | Refused)
    )
    both(told, True, False)


@pytest.mark.parametrize("by_grant", [False, True], ids=["a policy", "a grant"])
async def test_a_start_and_the_end_of_what_approved_it(store: Path, by_grant: bool):
    """A policy that blocks it, or the end of the grant: it ran, or its approval lapsed, and the
    record says which (B27, B30, I1, I6).
    """
    policy = ASK if by_grant else ALLOW
    calls_of = {number: refund(number, f"shop{number}") for number in range(TIMES)}
    held = {calls_of[number]: asyncio.Event() for number in range(ARRANGED)}
    async with open_shop(
        store, policy, "ana", executors=lambda tools: [Unhurried(tools, held)]
    ) as shop:
        ana = shop.people["ana"].reviewer("ana")

        async def end_it(workspace: str) -> None:
            if by_grant:
                await ana.revoke_grant(GrantRef(workspace, "ana", "early"), reason="No more.")
            else:
                await shop.admin.append(policy_slot(workspace, 2), applied(BLOCK))

        async def one(number: int) -> CallRef:
            ref = calls_of[number]
            await set_up(shop, ref.workspace, policy)
            if by_grant:
                given = GrantRef(ref.workspace, "ana", "early")
                await ana.grant(given, "refund", for_s=3600)
            await shop.request(number, ref.workspace)
            await shop.has(ref.decided)
            # As above: the first ones before the executor starts them, the last ones after it.
            if is_last(number):
                await shop.has(ref.claim(1))
            elif not is_first(number):
                await asyncio.sleep(0.1 * number / TIMES)
            await end_it(ref.workspace)
            if is_first(number):
                await shop.has(ref.lapsed)
                held[ref].set()
            return ref

        calls = await settled(shop, await each(one))
    for call in calls:
        if call.lapsed is not None:
            assert isinstance(call.lapsed.event, e.Lapsed)
            says = call.lapsed.event
            assert (says.grants, says.policy_version) == (
                (("ana/early",), None) if by_grant else ((), 2)
            )
    assert all(bool(call.starts) is not bool(call.lapsed) for call in calls)
    ends = Counter("ToolStarted" if call.starts else "Lapsed" for call in calls)
    both(ends, "ToolStarted", "Lapsed")


class Abreast(Executor):
    """An executor that, having seen an approved call, waits until its rival has too."""

    def __init__(self, tools: dict[str, Registered], seen: dict[CallRef, asyncio.Event]) -> None:
        super().__init__(tools)
        self._seen = seen

    async def load(self, ledger: Ledger, handed: Delivered) -> ExecutorState:
        sight = await super().load(ledger, handed)
        call = sight.call
        if call.status is Status.APPROVED:
            if call.ref in self._seen:
                self._seen[call.ref].set()
            await self._seen.setdefault(call.ref, asyncio.Event()).wait()
        return sight


async def test_two_executors(store: Path):
    """Both saw the same approval, and that nobody started it: one does, once (B27, I1, I6)."""
    seen: dict[CallRef, asyncio.Event] = {}

    def two(tools: dict[str, Registered]) -> list[Executor]:
        return [Abreast(tools, seen), Abreast(tools, seen)]

    async with open_shop(store, ALLOW, executors=two) as shop:
        calls = await settled(shop, await each(shop.request))
    starters = Counter(call.claims[0].event.by.name for call in calls)
    assert {call.status for call in calls} == {Status.RETURNED}
    assert starters.total() == len(seen) == TIMES


async def test_two_services_that_run_it_themselves(store: Path):
    """Both are told of the approval: one runs it, the other knows (B27, B30, I1, I6)."""
    async with (
        open_shop(store, ALLOW, run_by="client") as shop,
        Ledger.connect(store, name="other desk") as other,
    ):

        async def one(number: int) -> CallRef:
            ref = await shop.request(number)
            await shop.has(ref.decided)
            await race(
                number,
                0.4,
                lambda: shop.hear(ref.client_claim(1), shop.desk.run(ref, shop.refund)),
                lambda: shop.hear(ref.client_claim(1), other.run(ref, shop.refund)),
            )
            return ref

        calls = await settled(shop, await each(one))
    starters = Counter(call.claims[0].event.by.name for call in calls)
    both(starters, "desk", "other desk")
    assert Counter(isinstance(answer, Refused) for _, answer in shop.answers) == {
        True: TIMES,
        False: TIMES,
    }
