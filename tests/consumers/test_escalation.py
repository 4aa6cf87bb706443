"""When those who were asked do not answer, or others answer for them: deadlines, stages,
delegation, and broken glass.

With a real gate, on the log in memory, mostly in simulated time, and on a real broker.
"""

import asyncio
import itertools
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import running
from chain import DONE, REFUND, kinds, talking
from chain import FIRST as WISHED
from long import IN_MEMORY_FIRST
from shop import FIRST, SECOND, THIRD, Shop, rule
from shop import REFUND as TOOL
from simulated_time import simulated
from stories import told

from ayes.consumers.effects import Append, SetTimer
from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.interfaces.cli.policy import explanation
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog, TimerFired
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import working
from ayes.projections import pending
from ayes.schemas import events as e
from ayes.schemas.errors import (
    AlreadyFilled,
    BadId,
    BadInput,
    BrokerRefused,
    DeadlinePassed,
    NotAllowed,
    Refused,
)
from ayes.schemas.policy import applied
from ayes.schemas.slots import DelegationRef, person_slot, policy_slot

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")

SOON = 0.3


def asking(*more: str, voters: str = '"ana"') -> str:
    return rule("money", "ask", f"voters = [{voters}]", *more)


def stages(*times: float | None, first_s: float = SOON) -> str:
    """Stage after stage the lead, the head, and the board are asked as well."""
    each = [
        f'{{voters = ["{name}"]{f", expires_in_s = {time}" if time else ""}}}'
        for name, time in zip(("lea", "hal", "bo"), times, strict=False)
    ]
    return f'expires_in_s = {first_s}\non_timeout = "escalate"\nstages = [{", ".join(each)}]'


async def entries(shop: Shop) -> list[pending.Entry]:
    return [pending.decode(value) for value in (await shop.log.pending.entries()).values()]


# ---------------------------------------------------------------------------------------- deadlines


@simulated
async def test_deny_it_expires(shop: Shop):
    """The broker's clock ends it: expired, no no, and a late vote hears so (B36, B37, B87, I5)."""
    async with shop.at_work(asking(f"expires_in_s = {SOON}")):
        expired = await shop.judged(e.Expired)
    assert (expired.rule, expired.policy_version, expired.after_s) == ("money", 1, SOON)
    with pytest.raises(DeadlinePassed, match="is already decided: Expired"):
        await shop.ledger.reviewer("ana").approve(FIRST)


@pytest.mark.log("memory", "jetstream")
async def test_it_expires_when_the_requester_waits_no_longer(shop: Shop):
    """Nobody else is asked, the queue shows the deadline, a late vote is told so (B36, B37, I5)."""
    async with shop.at_work(asking(stages(60)), queue=True):
        expired = await shop.judged(e.Expired, expires_in_s=SOON / 2)
    assert 0 <= expired.after_s <= SOON / 2
    with pytest.raises(DeadlinePassed, match="is already decided: Expired"):
        await shop.ledger.reviewer("ana").approve(FIRST)


# ----------------------------------------------------------------------------------------- validity


@pytest.mark.log("memory", "jetstream")
@pytest.mark.parametrize("then", ["ask", "allow"])
async def test_an_approval_lapses_and_nothing_starts(shop: Shop, then: str):
    """By people or by the policy: at the end of its validity the gate records it, nobody can start
    the call any more, and the model reads why (B37, I1, I5).
    """
    await shop.open(rule("money", then, f"valid_for_s = {SOON}"))
    async with shop.gates(), running.working(Worker(shop.ledger, Executor({}, durable="closer"))):
        await shop.request()
        if then == "ask":
            await shop.asked()
            await shop.ledger.reviewer("ana").approve(FIRST)
        approved = await shop.decided(e.Approved)
        assert approved.valid_for_s == SOON
        lapsed = await shop.until(FIRST.lapsed)
        refused = await shop.until(FIRST.finished)
    call = await shop.ledger.call(FIRST)
    assert lapsed.recorded_at >= call.valid_until
    assert refused.event.ending == "lapsed"
    assert "its approval was valid for 0.3 seconds" in refused.event.text
    with pytest.raises(Refused):
        await shop.ledger.start(FIRST)
    assert not (await shop.ledger.call(FIRST)).starts


@simulated
async def test_a_gate_that_is_away_lets_nothing_start_too_late(shop: Shop):
    """Nobody has recorded the end yet, and the broker's clock is enough: the claim is refused, and
    one that is recorded all the same is void. The next gate records the end (I1, I5).
    """
    async with shop.at_work(rule("money", "allow", f"valid_for_s = {SOON}")):
        await shop.judged(e.Approved)
    await asyncio.sleep(SOON)
    with pytest.raises(DeadlinePassed, match="was not started by then"):
        await shop.ledger.start(FIRST)
    call = await shop.ledger.call(FIRST)
    raw = e.ToolStarted(digest=call.digest, idempotency_key="k")
    await shop.ledger.append(FIRST.client_claim(1), raw)
    assert (await shop.ledger.call(FIRST)).status is Status.APPROVED
    async with shop.gates():
        await shop.until(FIRST.lapsed)
    assert (await shop.ledger.call(FIRST)).status is Status.LAPSED


async def test_the_shorter_validity_of_two_policies_counts(shop: Shop):
    """The organisation's is a bound for every workspace's."""
    organisation = rule("all money", "ask", "valid_for_s = 60")
    async with shop.at_work(rule("money", "ask", "valid_for_s = 3600"), organisation):
        assert (await shop.ask()).valid_for_s == 60


# ----------------------------------------------------------------------------------------- stages


@simulated
async def test_stay_it_goes_on_waiting(shop: Shop):
    """Its time is over, and it is still asked; the vote that comes after counts (B45, B51, B73)."""
    async with shop.at_work(asking(f"expires_in_s = {SOON}", 'on_timeout = "stay"'), queue=True):
        await shop.ask()
        await asyncio.sleep(2 * SOON)
        assert (await shop.ledger.call(FIRST)).status is Status.PENDING
        [entry] = await entries(shop)
        assert (entry.expires_at, entry.due_at) == (None, None)
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.decided(e.Approved)


@pytest.mark.log("memory", "jetstream")
async def test_escalate_more_people_are_asked(shop: Shop):
    """That the lead is asked too is recorded and shown; the lead's vote decides (B36, B39, B54)."""
    async with shop.at_work(asking(stages(60)), queue=True):
        await shop.ask()
        escalated = await shop.until(FIRST.escalated(1))
        assert isinstance(escalated.event, e.Escalated)
        assert (escalated.event.voters, escalated.event.expires_in_s) == (("lea",), 60)
        call = await shop.ledger.call(FIRST)
        assert escalated.recorded_at >= call.gated.recorded_at + timedelta(seconds=SOON)
        async with asyncio.timeout(60), aclosing(told(shop.log.pending)) as changes:
            async for _, value in changes:
                if value and (entry := pending.decode(value)).asked_as_well:
                    break
        assert (entry.asked_as_well, entry.voters) == (("lea",), ("ana",))
        assert entry.due_at == entry.expires_at == escalated.recorded_at + timedelta(seconds=60)
        await shop.ledger.reviewer("lea").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("lea",)


@simulated
async def test_who_was_asked_first_still_counts(shop: Shop):
    """Together with the lead, who fills whichever place is lacking (B39)."""
    async with shop.at_work(asking("votes_needed = 2", stages(60), voters='"ana", "ben"')):
        await shop.ask()
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.until(FIRST.escalated(1))
        await shop.ledger.reviewer("lea").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("ana", "lea")


@simulated
async def test_the_lead_is_not_asked_before_their_time(shop: Shop):
    """They cannot vote yet, and a vote that was recorded for them all the same does not count, not
    even later (B40).
    """
    async with shop.at_work(asking(stages(SOON))):
        await shop.ask()
        with pytest.raises(NotAllowed, match="lea is none of those who may vote on shop/t1/c1"):
            await shop.ledger.reviewer("lea").approve(FIRST)
        await shop.cast("lea")
        await shop.decided(e.Expired)


@simulated
async def test_stage_after_stage_and_then_it_expires(shop: Shop):
    """The timer is set again for each stage; when the last is over the call expires, with all the
    time it took (B36, B37, I5).
    """
    async with shop.at_work(asking(stages(SOON, SOON))):
        expired = await shop.judged(e.Expired)
    call = await shop.ledger.call(FIRST)
    assert call.gated
    assert call.decided
    assert [
        fact.event.voters for fact in call.escalated if isinstance(fact.event, e.Escalated)
    ] == [
        ("lea",),
        ("hal",),
    ]
    times = [call.gated, *call.escalated, call.decided]
    for before, after in itertools.pairwise(times):
        assert after.recorded_at - before.recorded_at >= timedelta(seconds=SOON)
    last_due = call.escalated[-1].recorded_at + timedelta(seconds=SOON)
    assert expired.after_s == (last_due - call.gated.recorded_at).total_seconds()
    assert await kinds(shop.ledger, FIRST) == [
        "ToolRequested", "ApprovalRequested", "Escalated", "Escalated", "Expired"
    ]  # fmt: skip


@simulated
async def test_a_last_stage_without_an_end_goes_on_waiting(shop: Shop):
    """Everybody was asked, and somebody has to say something (B45)."""
    async with shop.at_work(asking(stages(None))):
        await shop.request()
        await shop.until(FIRST.escalated(1))
        await asyncio.sleep(2 * SOON)
        await shop.ledger.reviewer("ana").deny(FIRST)
        await shop.decided(e.Denied)


@pytest.mark.parametrize("then", ["deny", "escalate"])
@simulated
async def test_what_fell_due_while_no_gate_ran_happens_when_one_comes(shop: Shop, then: str):
    """The broker keeps the time, not the gate: no deadline is missed (B37, B53)."""
    at_its_end = f"expires_in_s = {SOON}" if then == "deny" else stages(60, first_s=SOON)
    async with shop.at_work(asking(at_its_end)):
        await shop.ask()
    await asyncio.sleep(SOON)
    assert (await shop.ledger.call(FIRST)).status is Status.PENDING
    assert not (await shop.ledger.call(FIRST)).escalated
    async with shop.gates():
        if then == "deny":
            await shop.decided(e.Expired)
        else:
            await shop.until(FIRST.escalated(1))
            await shop.ledger.reviewer("lea").approve(FIRST)
            await shop.decided(e.Approved)


async def test_a_gate_that_died_before_it_set_the_timer(shop: Shop):
    """It recorded the question alone: who gets the wish again sets the timer (B37, B46)."""
    await shop.open(asking(stages(60)))
    await shop.request()
    [handed] = await shop.ledger.read(FIRST.requested)
    gate = Gate()
    question, _again = gate.decide(await gate.load(shop.ledger, handed), handed)
    assert isinstance(question, Append)
    await shop.ledger.append(question.slot, question.event)
    async with shop.gates():
        await shop.until(FIRST.escalated(1))


@simulated
async def test_a_gate_that_died_after_it_escalated(shop: Shop):
    """The hint comes again: nobody is asked twice, and the next stage gets its timer (B37, I13)."""
    async with shop.at_work(asking(stages(SOON, 60))):
        await shop.ask()
        await asyncio.sleep(SOON / 3)
    call = await shop.ledger.call(FIRST)
    assert call.due
    due = TimerFired(FIRST, 1, call.due)
    while await shop.ledger.log.clock() < call.due:  # noqa: ASYNC110 - a clock reports nothing
        await asyncio.sleep(SOON / 10)
    gate = Gate()
    escalated, _again = gate.decide(await gate.load(shop.ledger, due), due)
    assert isinstance(escalated, Append)
    await shop.ledger.append(escalated.slot, escalated.event)
    async with shop.gates(2):
        await shop.until(FIRST.escalated(2))
    assert len((await shop.ledger.call(FIRST)).escalated) == 2


@pytest.mark.parametrize("rule_says", ["expires_in_s = 60", stages(60, 60)], ids=["ends", "stages"])
async def test_a_timer_of_a_clock_that_is_ahead_ends_nothing(shop: Shop, rule_says: str):
    """Another node leads the timers than the log, and its clock is an hour ahead: by the log's own
    clock, people have the time that they were given (B36). The timer is set again on the clock that
    fires it, so that it does not fire at once, again and again.
    """
    async with shop.at_work(asking(rule_says)):
        await shop.ask()
    call = await shop.ledger.call(FIRST)
    assert call.due
    hour = timedelta(hours=1)
    early = TimerFired(FIRST, 1, await shop.ledger.log.clock() + hour)
    gate = Gate()
    (again,) = gate.decide(await gate.load(shop.ledger, early), early)
    assert isinstance(again, SetTimer)
    assert hour - timedelta(seconds=30) < again.at - call.due <= hour


# --------------------------------------------------------------------------------------- delegation

ANAS = DelegationRef("shop", "ana", "leave")


async def delegate(
    shop: Shop, ref: DelegationRef | str = ANAS, to: str = "ben", **more: Any
) -> None:
    now = shop.ledger.now()
    times = {"starts_at": now - timedelta(hours=1), "ends_at": now + timedelta(hours=1)} | more
    given = DelegationRef.parse(ref) if isinstance(ref, str) else ref
    await shop.ledger.reviewer(given.giver).delegate(given, to, **times)


async def test_ben_votes_for_ana(shop: Shop):
    """He was not asked; she gave him her vote: it counts as hers, and is called hers (B39, B40)."""
    await shop.open(asking())
    await delegate(shop)
    async with shop.gates():
        await shop.ask()
        voted = await shop.ledger.reviewer("ben").approve(FIRST)
        assert (await shop.ledger.tally(voted)).people == ("ana",)
        approved = await shop.decided(e.Approved)
        assert (approved.voters, approved.on_behalf_of) == (("ben",), {"ben": "ana"})
        decided = (await shop.ledger.call(FIRST)).decided
        assert decided
        assert describe(decided).startswith("Approved by ben for ana at ")
        await shop.ask(SECOND)
        await shop.ledger.reviewer("ben").vote(SECOND, Ballot("deny", on_behalf_of="ana"))
        denied = await shop.decided(e.Denied, SECOND)
        assert (denied.voters, denied.on_behalf_of) == (("ben",), {"ben": "ana"})


#: What was given, and in which words a vote for Ana is refused.
NO_WORD: list[tuple[str, dict[str, Any]]] = [
    ("before its time", {"starts_at": 1, "ends_at": 2}),
    ("of other tools", {"tools": ("wire", "pay*")}),
    ("to somebody else", {"to": "cy"}),
]


@pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in NO_WORD])
async def test_a_word_that_does_not_hold_gives_no_vote(shop: Shop, given: dict[str, Any]):
    """Refused where somebody asks, and not counted where another program records it (B40, B62)."""
    await shop.open(asking())
    hours = {"starts_at", "ends_at"} & set(given)
    more = given | {name: shop.ledger.now() + timedelta(hours=given[name]) for name in hours}
    await delegate(shop, **more)
    await _gives_no_vote(shop)


async def _gives_no_vote(shop: Shop) -> None:
    async with shop.gates():
        await shop.ask()
        with pytest.raises(NotAllowed, match="ana gave ben no vote on refund that holds now"):
            await shop.ledger.reviewer("ben").vote(FIRST, Ballot("approve", on_behalf_of="ana"))
        with pytest.raises(NotAllowed, match="ben is none of those who may vote"):
            await shop.ledger.reviewer("ben").approve(FIRST)
        await shop.cast("ben", on_behalf_of="ana")
        await shop.ledger.reviewer("ana").deny(FIRST, reason="I am here")
        denied = await shop.decided(e.Denied)
    assert (denied.voters, denied.on_behalf_of) == (("ana",), {})


@simulated
async def test_a_word_that_is_over_gives_no_vote(shop: Shop):
    """Its time was over when he voted (B36)."""
    await shop.open(asking())
    now = await shop.log.clock()
    word = e.Delegated(to="ben", starts_at=now, ends_at=now + timedelta(seconds=SOON))
    await shop.ledger.append(ANAS.given, word)
    await asyncio.sleep(SOON)
    await _gives_no_vote(shop)


async def test_a_word_that_was_ended_gives_no_vote(shop: Shop):
    """Before its time, once; what was voted by then stays what it is (B29)."""
    await shop.open(asking())
    await delegate(shop)
    async with shop.gates():
        await shop.ask(SECOND)
    await shop.ledger.reviewer("ben").approve(SECOND)
    ended = await shop.ledger.reviewer("ana").end_delegation(ANAS, reason="back again")
    assert ended.ended
    with pytest.raises(
        AlreadyFilled, match=r"ana/leave is already ended: DelegationEnded by desk at 20"
    ):
        await shop.ledger.reviewer("ana").end_delegation(ANAS)
    await _gives_no_vote(shop)
    assert (await shop.decided(e.Approved, SECOND)).on_behalf_of == {"ben": "ana"}


@IN_MEMORY_FIRST
@pytest.mark.parametrize("is_given_before", [True, False])
@pytest.mark.parametrize(
    ("bar", "why"),
    [
        (e.PersonRemoved(), "ana was removed before it"),
        (e.PersonAdded(workspaces=("hr",)), "ana was not of shop then"),
    ],
)
async def test_who_may_decide_nothing_here_has_no_word_to_give(
    shop: Shop, bar: e.Event, why: str, is_given_before: bool
):
    """Neither does Ben vote for Ana on what she said before she was removed, or became a person of
    other workspaces, nor after it (B40).
    """
    await shop.open(asking(voters='"ana", "cy"'))
    if is_given_before:
        await delegate(shop)
    await shop.ledger.record_person(partial(person_slot, "ana"), bar)
    if not is_given_before:
        await delegate(shop)
    async with shop.gates():
        await shop.ask()
        await shop.cast("ana")
        await shop.cast("ben", on_behalf_of="ana")
        await shop.ledger.reviewer("cy").vote(FIRST, Ballot("deny"))
        assert (await shop.decided(e.Denied)).voters == ("cy",)
    assert [one.flaw for one in (await explanation(shop.ledger, FIRST)).votes] == [
        why,
        why,
        "",
    ]


async def test_a_word_given_after_the_vote_gives_none(shop: Shop):
    """What he recorded before she gave it was not hers to give then (B40)."""
    async with shop.at_work(asking()):
        await shop.ask()
    await shop.cast("ben", on_behalf_of="ana")
    await delegate(shop)
    async with shop.gates():
        await shop.ledger.reviewer("ana").deny(FIRST)
        assert (await shop.decided(e.Denied)).voters == ("ana",)


async def test_a_word_is_not_passed_on(shop: Shop):
    """Ana gave Ben her vote, and Ben gives Cy his: Cy has no vote of Ana's (B40)."""
    await shop.open(asking())
    await delegate(shop)
    await delegate(shop, "shop/ben/leave", "cy")
    async with shop.gates():
        await shop.ask()
        for behalf, sentence in (
            ("ana", "ana gave cy no vote on refund"),
            ("ben", "ben is none of those"),
            ("", "cy is none of"),
        ):
            with pytest.raises(NotAllowed, match=sentence):
                await shop.ledger.reviewer("cy").vote(FIRST, Ballot("approve", on_behalf_of=behalf))
        await shop.cast("cy", on_behalf_of="ana")
        await shop.ledger.reviewer("ana").deny(FIRST)
        assert (await shop.decided(e.Denied)).voters == ("ana",)


async def test_nobody_counts_twice_by_a_word(shop: Shop):
    """Ben has his own vote and Ana's in hand: he is one person, and the rule takes two (B39)."""
    await shop.open(asking("votes_needed = 2", voters='"ana", "ben", "cy"'))
    await delegate(shop)
    async with shop.gates():
        await shop.ask()
        await shop.ledger.reviewer("ben").vote(FIRST, Ballot("approve", on_behalf_of="ana"))
        with pytest.raises(
            AlreadyFilled, match=r"ben has already voted on .*: Voted by ben for ana at"
        ):
            await shop.ledger.reviewer("ben").approve(FIRST)
        await shop.ledger.reviewer("cy").approve(FIRST)
        approved = await shop.decided(e.Approved)
    assert (approved.voters, approved.on_behalf_of) == (("ben", "cy"), {"ben": "ana"})


async def test_who_asks_does_not_vote_in_anybodys_place(shop: Shop):
    """Neither the requester for Ana, nor Ben for the requester (B68)."""
    await shop.open(asking(voters='"ana", "rita"'))
    await delegate(shop, to="rita")
    await delegate(shop, "shop/rita/leave", "ben")
    async with shop.gates():
        await shop.ask()
        for name, behalf in (("rita", "ana"), ("ben", "rita")):
            with pytest.raises(
                NotAllowed, match="rita asked for shop/t1/c1, or is behind the agent that did"
            ):
                await shop.ledger.reviewer(name).vote(FIRST, Ballot("approve", on_behalf_of=behalf))


async def test_a_delegation_that_should_not_be_given_is_refused(shop: Shop):
    """To oneself, to nobody, backwards, over, at no time: in words, and nothing is recorded."""
    await shop.open(asking())
    now = shop.ledger.now()
    before = await shop.log.last_seq()
    for more, sentence in (
        ({"to": "ana"}, "ana has their own vote already. Name somebody else."),
        (
            {"ends_at": now - timedelta(hours=2)},
            r"it ends \(20.* UTC\) before it starts \(20.* UTC\)\.",
        ),
        ({"ends_at": now - timedelta(minutes=1)}, r"it was over at 20.* UTC\. Give a later end\."),
    ):
        with pytest.raises(BadInput, match=sentence):
            await delegate(shop, **more)
    with pytest.raises(BadInput, match="a delegation's times need a time zone"):
        await delegate(shop, ends_at=now.replace(tzinfo=None))
    with pytest.raises(BadId, match="reviewer 'b en' cannot be used"):
        await delegate(shop, to="b en")
    with pytest.raises(BadInput, match="there is no delegation shop/ana/leave"):
        await shop.ledger.reviewer("ana").end_delegation(ANAS)
    assert await shop.log.last_seq() == before
    times = {"starts_at": now, "ends_at": now + timedelta(hours=1)}
    first, again = [
        await shop.ledger.reviewer("ana").delegate(ANAS, "ben", **times) for _ in range(2)
    ]
    assert first.given.seq == again.given.seq
    with pytest.raises(
        AlreadyFilled, match="there is another delegation shop/ana/leave: Delegated by desk"
    ):
        await shop.ledger.reviewer("ana").delegate(ANAS, "cy", **times)


# ------------------------------------------------------------------------------------- broken glass

GLASS = rule("money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2", 'break_glass = ["sam"]')


async def test_glass_is_broken_and_the_tool_runs(port: EventLog):
    """One person lets it run, with a reason: that is announced, then decided, then run, and told
    like any result (B86, I1).
    """
    async with talking(port, [REFUND], [DONE], policy=GLASS) as chain:
        await chain.shown()
        with pytest.raises(NotAllowed, match="who breaks the glass for shop/t1/1-0 must say why"):
            await chain.ledger.reviewer("sam").vote(WISHED, Ballot("break_glass", reason=" "))
        await chain.ledger.reviewer("sam").vote(
            WISHED, Ballot("break_glass", reason="the shop burns")
        )
        thread = await chain.answered(2)
    call = thread.call(WISHED)
    assert isinstance(call.decided.event, e.Approved)
    approved = call.decided.event
    assert (approved.ground, approved.voters, approved.reason) == (
        "broken_glass",
        ("sam",),
        "the shop burns",
    )
    assert describe(call.decided).startswith("Approved by sam, who broke the glass at ")
    assert await kinds(chain.ledger, WISHED) == [
        "ToolRequested", "ApprovalRequested", "Voted", "GlassBroken", "Approved",
        "ToolStarted", "ToolReturned",
    ]  # fmt: skip
    [told] = chain.model.read(2)
    assert (chain.ran, told.kind) == (["A-17"], "returned")
    assert await port.pending.entries() == {}


async def test_a_gate_that_died_after_the_announcement(shop: Shop):
    """Announced, not decided: the next gate decides and announces nothing twice (B56, I13)."""
    async with shop.at_work(GLASS):
        await shop.ask()
    await shop.ledger.reviewer("sam").vote(FIRST, Ballot("break_glass", reason="the shop burns"))
    await shop.ledger.append(
        FIRST.announced, e.GlassBroken(reviewer="sam", reason="the shop burns")
    )
    async with shop.gates(2):
        assert (await shop.decided(e.Approved)).ground == "broken_glass"
    assert await shop.log.parked() == []


async def test_glass_cannot_be_broken_against_a_block(shop: Shop):
    """What the policy blocks by now nobody lets run, in no emergency (I3, B67)."""
    async with shop.at_work(GLASS):
        await shop.ask()
        await shop.apply(rule("closed", "block"))
        await shop.ledger.reviewer("sam").vote(
            FIRST, Ballot("break_glass", reason="the shop burns")
        )
        assert (await shop.decided(e.Denied)).ground == "policy"
    assert (await shop.ledger.call(FIRST)).announced is None


async def test_who_may_not_break_it_breaks_nothing(shop: Shop):
    """Who is not named, who asks, and who gives no reason, whatever another program records; nor in
    another's place (B40, B68).
    """
    await shop.open(GLASS.replace('["sam"]', '["sam", "rita", "tom"]'))
    await delegate(shop, "shop/sam/leave", "cy")
    async with shop.gates():
        await shop.ask()
        for name, behalf, reason in (
            ("dan", "", "fire"),
            ("cy", "sam", "fire"),
            ("rita", "", "fire"),
            ("tom", "", ""),
        ):
            with pytest.raises(NotAllowed):
                await shop.ledger.reviewer(name).vote(
                    FIRST, Ballot("break_glass", reason=reason, on_behalf_of=behalf)
                )
            await shop.cast(name, FIRST, "break_glass", reason=reason, on_behalf_of=behalf)
        await shop.ledger.reviewer("ben").deny(FIRST)
        assert (await shop.decided(e.Denied)).voters == ("ben",)


async def test_glass_is_not_broken_for_other_arguments(shop: Shop):
    """Another program records an edit with it: what would run is not what this person meant, so it
    counts for nothing (B61, I1).
    """
    async with shop.at_work(GLASS):
        await shop.ask()
        await shop.cast("sam", FIRST, "break_glass", reason="fire", arguments='{"amount":1}')
        await shop.ledger.reviewer("ben").deny(FIRST)
        await shop.decided(e.Denied)


# ------------------------------------------------------------------------- on the real broker alone


async def test_everybody_under_their_own_credentials(store: Path):
    """Ana alone gives her vote away, Ben alone uses it, the gate alone escalates (B40, B68)."""
    for name in ("ana", "ben", "sam"):
        await ensure_account(store, f"reviewer-{name}")
    async with (
        Ledger.connect(store, role="service", name="desk") as service,
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store, role="reviewer-ana") as ana,
        Ledger.connect(store, role="reviewer-ben") as ben,
        Ledger.connect(store, role="reviewer-sam") as sam,
    ):
        text = asking(stages(60), 'break_glass = ["sam"]')
        await operator.append(policy_slot("shop", 1), applied(text))
        await service.declare("shop", TOOL)
        now = service.now()
        times = {"starts_at": now, "ends_at": now + timedelta(hours=1)}
        with pytest.raises(BrokerRefused):
            await ben.reviewer("ana").delegate(ANAS, "ben", **times)
        await ana.reviewer("ana").delegate(ANAS, "ben", **times)
        with pytest.raises(BrokerRefused):
            await sam.append(FIRST.announced, e.GlassBroken(reviewer="sam", reason="fire"))
        with pytest.raises(BrokerRefused):
            await ana.append(FIRST.escalated(1), e.Escalated(voters=("ben",)))
        shop = Shop(service.log)
        async with working([("gate", Gate())], store=store):
            for ref in (FIRST, SECOND):
                await service.request(ref, "refund", {"amount": 1}, requester="rita")
                await shop.asked(ref)
            await ben.reviewer("ben").approve(FIRST)
            await sam.reviewer("sam").vote(SECOND, Ballot("break_glass", reason="fire"))
            assert (await shop.decided(e.Approved)).on_behalf_of == {"ben": "ana"}
            assert (await shop.decided(e.Approved, SECOND)).ground == "broken_glass"
            await service.request(THIRD, "refund", {"amount": 1}, requester="rita")
            await shop.until(THIRD.escalated(1))
