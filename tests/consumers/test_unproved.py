"""What follows from nothing that anybody signed, by parts that have no signature of their own: whom
a stage asks, who is in a group or on call, the places of a budget, a claim that is there already.

With a real gate, on the log in memory. The votes are those of test_signed_votes.py.
"""

from datetime import timedelta

import pytest
from running import working
from shop import FIRST, REFUND, SECOND, THIRD, rule
from signed_site import ASK, Site

from ayes.consumers.delegator import Delegator, SubAgent, SubAgentRun, steps
from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Worker
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.budgets import sums_of
from ayes.ledger.log import EventLog
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import Signature, key_id
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, NotOpen
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import CallRef, GrantRef, account_slot, groups_slot

pytestmark = pytest.mark.log("memory")

VOTED = "the votes that count do not approve this"
STAGED = "others were asked whom its question does not ask, or not yet"
LATER = (
    'expires_in_s = 600\non_timeout = "escalate"\nstages = [{voters = ["cy"], expires_in_s = 60}]'
)


@pytest.fixture
def site(port: EventLog) -> Site:
    return Site(port)


@pytest.fixture
def judge(site: Site) -> Ledger:
    """Whoever starts calls; `site.begin` comes first."""
    return Ledger(site.log, e.Author("executor", "x"))


async def begun(site: Site, judge: Ledger, policy: str = ASK) -> None:
    await site.begin(policy, signed_since={"shop": 1})
    judge.trust = site.trust


async def why(judge: Ledger, ref: CallRef = FIRST) -> str:
    return await why_unproved(judge, await judge.call(ref), starts=True)


@pytest.mark.parametrize("rest", ["", LATER], ids=["no stage", "before it is due"])
async def test_a_stage_asks_whom_the_question_says_and_when(site: Site, judge: Ledger, rest: str):
    """Whoever has the gate's login has a friend with a key that counts."""
    await begun(site, judge, ASK + rest)
    async with site.gates():
        await site.ask()
        await site.ledger.append(FIRST.escalated(1), e.Escalated(voters=("cy",), expires_in_s=60.0))
        await site.ledger.append(FIRST.vote("cy"), await site.vote_of("cy"))
        assert (await site.decided(e.Approved)).voters == ("cy",)
    assert await why(judge) == STAGED


async def test_a_stage_that_was_due_asks(site: Site, judge: Ledger):
    await begun(site, judge, ASK + LATER.replace("600", "0.05"))
    async with site.gates():
        await site.ask()
        await site.until(FIRST.escalated(1))
        await site.ledger.append(FIRST.vote("cy"), await site.vote_of("cy"))
        assert (await site.decided(e.Approved)).voters == ("cy",)
    assert await why(judge) == ""


async def test_a_stage_may_begin_early_by_what_clocks_differ(site: Site, judge: Ledger):
    """One node fires the timer, and another one, whose clock is behind, records the stage."""
    await begun(site, judge, ASK + LATER.replace("600", "50"))
    async with site.gates():
        await site.ask()
        await site.ledger.append(FIRST.escalated(1), e.Escalated(voters=("cy",), expires_in_s=60.0))
        await site.ledger.append(FIRST.vote("cy"), await site.vote_of("cy"))
        await site.decided(e.Approved)
    assert await why(judge) == ""


@pytest.mark.parametrize("who", ["group:board", "oncall:desk"])
@pytest.mark.parametrize("how", ["rule", "all"])
def test_signed_votes_are_of_people_whom_the_policy_names(who: str, how: str):
    """What a provider says of a group, or a calendar of who is on call, is signed by nobody."""
    stage = f'\nexpires_in_s = 60\non_timeout = "escalate"\nstages = [{{voters = ["{who}"]}}]'
    asked = '["ana"]' + stage if who.startswith("oncall") else f'["{who}"]'
    wants = ("signed = true",) if how == "rule" else ()
    text = rule("money", "ask", f"voters = {asked}", *wants)
    with pytest.raises(BadInput, match=f"'{who}' cannot be asked for signed votes: nobody signs"):
        read_policy(text if how == "rule" else f"all_signed = true\n{text}", "x")


async def test_nobody_votes_as_a_member_of_a_group(site: Site, judge: Ledger):
    """Also where the trust file alone wants signed votes: a question that only a group could answer
    is put to nobody, and one with others to these.
    """
    await begun(site, judge, rule("money", "ask", 'voters = ["group:board"]'))
    async with site.gates():
        denied = await site.judged(e.Denied)
        assert denied.reason == "It needs 1 more who may vote and count: rita asked for it."
    now = site.ledger.now()
    until = now + timedelta(hours=1)
    bound = e.AccountBound(account="openid:https://idp.example#cy")
    await site.ledger.append(account_slot("cy", 1), bound)
    read = e.GroupsRead("https://idp.example", "cy", ("board",), read_at=now, until=until)
    await site.ledger.append(groups_slot("cy", now, 1), read)
    digest = (await site.ledger.call(FIRST)).wish.digest
    await site.request(SECOND)
    asked = e.ApprovalRequested(
        digest=digest, rule="money", policy_version=1, voters=("group:board",), signed=True
    )
    await site.ledger.append(SECOND.gated, asked)
    called = await judge.call(SECOND)
    vote = e.Voted(verdict="approve", digest=called.wish.digest)
    vote = await site.at("cy").reviewer("cy")._signed(called, vote)
    await site.ledger.append(SECOND.vote("cy"), vote)
    known, _ = await judge.with_given(await judge.call(SECOND))
    assert known.people.groups("cy", now) == frozenset()


async def test_a_claim_makes_no_approval_of_one_that_follows_from_nothing(
    site: Site, judge: Ledger
):
    """With the gate's login and that of another executor: the honest one does not start it again,
    although its tool may be repeated.
    """
    ran = list[float]()

    def run(amount: float) -> None:
        ran.append(amount)

    tool = REFUND.model_copy(update={"run_by": "executor", "repeatable": True})
    await begun(site, judge)
    await site.ledger.declare("shop", tool)
    async with site.gates():
        await site.ask(run_by="executor")
    digest = (await site.ledger.call(FIRST)).wish.digest
    said = e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",)
    )
    await site.ledger.append(FIRST.decided, said)
    claim = e.ToolStarted(digest=digest, idempotency_key=str(FIRST))
    await site.ledger.append(FIRST.claim(1), claim)
    async with working(Worker(judge, Executor({"refund": Registered(tool, run)}))):
        end = (await site.until(FIRST.finished)).event
    assert isinstance(end, e.InDoubt)
    assert f"It is not started again, since {VOTED}." in end.text
    assert ran == []


async def test_a_claim_hides_no_key_that_has_ended(site: Site, judge: Ledger):
    await begun(site, judge)
    async with site.gates():
        await site.ask()
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
    await site.revoke("ana")
    digest = (await site.ledger.call(FIRST)).wish.digest
    claim = e.ToolStarted(digest=digest, idempotency_key=str(FIRST))
    await site.ledger.append(FIRST.client_claim(1), claim)
    assert await why(judge) == VOTED
    # To an auditor it was started while the key counted.
    assert await why_unproved(judge, await judge.call(FIRST)) == ""


async def test_a_budget_is_counted_in_the_order_of_the_log(site: Site, judge: Ledger):
    """Its places are filled from behind by whoever has the gate's login."""
    budget = '[[budget]]\nname = "day"\ntools = ["refund"]\namount = "/amount"\nlimit = 150\n'
    await begun(site, judge, f'{budget}then = "block"\n\n' + rule("money", "allow"))
    calls = (FIRST, SECOND, THIRD)
    for number, ref in zip((3, 2, 1), calls, strict=True):
        await site.request(ref)
        call = await judge.call(ref)
        [one] = sums_of(await judge.policies("shop"), call)
        await site.ledger.append(one.ref.used(number), one.use(ref, call.wish.arguments))
        said = e.Approved(digest=call.wish.digest, ground="policy", rule="money", policy_version=1)
        await site.ledger.append(ref.decided, said)
    no = "no policy that was in force allowed it"
    assert [await why(judge, ref) for ref in calls] == ["", no, no]


async def test_what_was_withdrawn_is_not_approved(site: Site, judge: Ledger):
    await begun(site, judge)
    async with site.gates():
        await site.ask()
    await site.at("ana").reviewer("ana").approve(FIRST)
    await site.ledger.append(FIRST.withdrawn, e.Withdrawn(reason="a mistake"))
    digest = (await site.ledger.call(FIRST)).wish.digest
    said = e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",)
    )
    await site.ledger.append(FIRST.decided, said)
    with pytest.raises(NotOpen, match="shop/t1/c1: it was withdrawn before, and votes are signed"):
        await judge.start(FIRST)


async def test_a_delegation_ends_with_the_key_that_has_signed_it(site: Site, judge: Ledger):
    """As the votes of that key do: nothing is started on them any more."""
    await begun(site, judge)
    dan = SignerKey(f"dan/{await site.log.identity()}", bytes([7] * 32))
    await site.add(dan, "dan")
    site.keys["dan"] = dan
    now, hour = site.ledger.now(), timedelta(hours=1)
    reviewer = site.at("ana").reviewer("ana")
    await reviewer.delegate("shop/ana/leave", "dan", starts_at=now - hour, ends_at=now + hour)
    async with site.gates():
        await site.ask()
        await site.ledger.append(FIRST.vote("dan"), await site.vote_of("dan", on_behalf_of="ana"))
        await site.decided(e.Approved)
    assert await why(judge) == ""
    await site.revoke("ana")
    assert await why(judge) == VOTED


@pytest.mark.parametrize(
    "text",
    [
        f"ed25519.1.{{key}}.{10**400}.{'A' * 86}",
        f"ed25519.1.{{key}}.{10**12}.{'A' * 86}",
        "ed25519.1.{key}.0.AAAA",
        f"ed25519.1.{{key}}.00.{'A' * 86}",
        f"ed25519.1.x.0.{'A' * 86}",
        f"ed25519.2.{{key}}.0.{'A' * 86}",
    ],
)
async def test_what_is_no_signature_holds_nothing_up(site: Site, judge: Ledger, text: str):
    """Neither the call that somebody votes on so, nor what others request after such a grant."""
    await begun(site, judge)
    written = text.format(key=key_id(site.keys["ana"].public))
    assert Signature.parse(written) is None
    async with site.gates():
        digest = (await site.ask()).digest
    vote = e.Voted(verdict="approve", digest=digest, signature=written)
    await site.ledger.append(FIRST.vote("ana"), vote)
    given = e.Granted(tool="other", expires_in_s=60.0, signature=written)
    await site.ledger.append(GrantRef("shop", "ana", "x").given, given)
    gate = Gate()
    [handed] = await judge.read(FIRST.vote("ana"))
    assert gate.decide(await gate.load(judge, handed), handed) == ()
    async with site.gates():
        await site.ask(SECOND)


async def test_a_delegator_starts_nothing_that_follows_from_nothing(site: Site, judge: Ledger):
    agent = SubAgent(agent="desk", model="m")
    await begun(site, judge)
    async with site.gates():
        await site.ask()
    await site.ledger.declare("shop", agent.spec("refund"))
    digest = (await site.ledger.call(FIRST)).wish.digest
    said = e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",)
    )
    await site.ledger.append(FIRST.decided, said)
    call = await judge.call(FIRST)
    assert call.decided is not None
    below = thread_of(FIRST.below, ())
    [run] = await Delegator({"refund": agent}).load(judge, call.decided)
    assert run.unproved == VOTED
    assert steps(run) == ()
    assert steps(SubAgentRun(call, agent, below))
