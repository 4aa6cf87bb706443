"""An approval with other arguments is judged again: by the tool's schema, and by the policy that is
in force by then.
"""

import pytest
from shop import conclude
from stories import START, request

from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policies import AppliedPolicy, Policies, of_edit
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadArguments, NotAllowed
from ayes.schemas.events import Quorum
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import CallRef, policy_slot
from ayes.schemas.tools import Tool, ToolSpec, declaration

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")

POLICY = """
[[rule]]
name = "large refunds"
tools = ["refund"]
when = "args.amount > 500"
then = "ask"
votes_needed = 2
editor_counts = true

[[rule]]
name = "huge refunds"
tools = ["refund"]
when = "args.amount > 5000"
then = "block"

[[rule]]
name = "refunds"
tools = ["refund"]
then = "ask"
editor_counts = true
"""
REFUND = ToolSpec(
    name="refund",
    description="Pays money back.",
    schema='{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]}',
)
CALL = CallRef.parse("shop/order-17/refund-1")


@pytest.fixture
async def asked(ledger: Ledger):
    """A refund of 100 that one person was asked about."""
    await ledger.try_append(policy_slot("shop", 1), applied(POLICY))
    await ledger.declare("shop", REFUND)
    await ledger.request(CALL, "refund", {"amount": 100}, requester="rita")
    await conclude(ledger, CALL)
    assert (await ledger.call(CALL)).status is Status.PENDING
    return ledger


async def test_an_edit_that_the_policy_blocks_is_refused_at_once(asked):
    """No yes lets run what no yes could, and nothing is recorded of it (B61, B67, I3)."""
    before = await asked.log.last_seq()
    with pytest.raises(NotAllowed) as raised:
        await asked.reviewer("ana").approve(CALL, arguments='{"amount":6000}')
    assert str(raised.value) == (
        "shop/order-17/refund-1 cannot run so: the policy in force blocks refund with these "
        "arguments. Nothing was recorded."
    )
    assert await asked.log.last_seq() == before


async def test_an_edit_that_takes_more_people_needs_those_too(asked):
    """A yes to a small refund is none to a large one: its own rule asks for more (B61, I1, I3)."""
    await asked.reviewer("ana").approve(CALL, arguments='{"amount":600}')
    await conclude(asked, CALL)
    assert (await asked.call(CALL)).status is Status.PENDING
    await asked.reviewer("ben").approve(CALL, arguments='{"amount":600}')
    await conclude(asked, CALL)
    call = await asked.call(CALL)
    assert (call.status, call.arguments) == (Status.APPROVED, '{"amount":600}')
    assert isinstance(call.decided.event, e.Approved)
    assert call.decided.event.voters == ("ana", "ben")


async def test_an_edit_that_breaks_the_schema_is_refused_at_once(asked):
    """The schema comes first (B66)."""
    with pytest.raises(BadArguments):
        await asked.reviewer("ana").approve(CALL, arguments='{"amount":"much"}')


@pytest.mark.log("memory", "jetstream")
async def test_an_edit_within_what_was_asked_is_approved(asked):
    """The bytes of the edit are what is approved."""
    await asked.reviewer("ana").approve(CALL, arguments='{"amount":90}')
    await conclude(asked, CALL)
    call = await asked.call(CALL)
    assert call.status is Status.APPROVED
    assert call.arguments == '{"amount":90}'


@pytest.mark.parametrize("arguments", ['{"amount":600}', '{"amount":6000}', '{"amount":"much"}'])
async def test_the_gate_judges_an_edit_that_nobody_checked(asked, arguments):
    """A client in another language votes as it likes: the gate judges the edit itself, and goes on
    waiting (B61, B62, I4).
    """
    known = await asked.call(CALL)
    vote = e.Voted(verdict="approve", digest=known.approval_request.digest, arguments=arguments)
    await asked.try_append(CALL.vote("ana"), vote)
    await conclude(asked, CALL)
    assert (await asked.call(CALL)).status is Status.PENDING
    await asked.reviewer("ben").approve(CALL)
    await conclude(asked, CALL)
    call = await asked.call(CALL)
    assert call.status is Status.APPROVED
    assert call.arguments == '{"amount":100}'


async def test_a_policy_that_came_later_only_tightens(asked):
    """What was asked about before cannot be edited into what is forbidden, nor loosened (I3)."""
    tighter = '[[rule]]\nname = "no more"\ntools = ["*"]\nthen = "block"\n'
    await asked.try_append(policy_slot("shop", 2), applied(tighter))
    with pytest.raises(NotAllowed, match="the policy in force blocks refund with these arguments"):
        await asked.reviewer("ana").approve(CALL, arguments='{"amount":90}')


async def test_what_people_approve_after_it_was_blocked_is_denied(asked):
    """A policy between question and yes blocks it: it wins over people, and says so (I3, B67)."""
    tighter = '[[rule]]\nname = "no more"\ntools = ["*"]\nthen = "block"\nreason = "Closed."\n'
    await asked.try_append(policy_slot("shop", 2), applied(tighter))
    await asked.reviewer("ana").approve(CALL)
    await conclude(asked, CALL)
    decided = (await asked.call(CALL)).decided
    assert isinstance(decided.event, e.Denied)
    assert (decided.event.ground, decided.event.rule, decided.event.policy_version) == (
        "policy",
        "no more",
        2,
    )
    assert decided.event.reason == "Approved by people, and blocked by now: Closed."


async def test_a_policy_that_came_later_does_not_loosen(asked):
    """By now the policy allows it freely; the question stands as it was asked, and nothing runs
    before somebody says yes (I3).
    """
    looser = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
    await asked.try_append(policy_slot("shop", 2), applied(looser))
    await conclude(asked, CALL)
    assert (await asked.call(CALL)).status is Status.PENDING
    await asked.reviewer("ana").deny(CALL)
    await conclude(asked, CALL)
    assert (await asked.call(CALL)).status is Status.DENIED


async def test_an_edit_that_asks_others_is_refused_at_once(asked):
    """Nobody whom its rule asks was asked about this call, so it could never run so (B67, I3)."""
    others = (
        POLICY
        + '[[rule]]\nname = "hers"\ntools = ["*"]\nwhen = "args.amount == 7"\npriority = 9\nthen '
        '= "ask"\nvoters = ["rita"]\n'
    )
    await asked.try_append(policy_slot("shop", 2), applied(others))
    with pytest.raises(NotAllowed, match="asks others than those who were asked"):
        await asked.reviewer("ana").approve(CALL, arguments='{"amount":7}')
    assert (await asked.call(CALL)).votes == ()


def test_an_edit_is_judged_with_whose_it_is():
    """The rule looks at the edited arguments, and at everything else as it was."""
    wish = e.Wish(tool="refund", arguments='{"amount":100}')
    call = call_of(CALL, (Fact(1, START, CALL.requested, request(wish)),))
    policy = read_policy(POLICY, "policy.toml")
    policies = Policies(AppliedPolicy(1, policy))
    tool = Tool(REFUND.name, *declaration(REFUND))
    one, two = (Quorum(("*",), needed, "*") for needed in (1, 2))
    assert of_edit(policies, tool, call, '{"amount":100}') == ((one,),)
    assert of_edit(policies, tool, call, '{"amount":501}') == ((two,),)
    assert of_edit(policies, tool, call, '{"amount":5001}') is None


async def test_no_edit_leaves_what_the_requester_may_confirm(asked):
    """Else one could request little, and confirm much: what takes four eyes is requested anew, also
    if somebody else edits (I3).
    """
    own = (
        '[[rule]]\nname = "little"\ntools = ["*"]\nwhen = "args.amount <= 500"\nthen = "ask"\n'
        'mode = "requester_confirms"\neditor_counts = true\n'
    )
    much = '[[rule]]\nname = "much"\ntools = ["*"]\nwhen = "args.amount > 500"\nthen = "ask"\n'
    await asked.try_append(policy_slot("shop", 2), applied(own + much))
    ref = CALL.thread_ref.call("little")
    version = (await asked.tool("shop", "refund")).version
    wish = e.Wish(tool="refund", arguments='{"amount":100}')
    await asked.try_append(ref.requested, request(wish, version))
    await conclude(asked, ref)
    for name in ("rita", "ana"):
        with pytest.raises(NotAllowed, match="blocks, or takes four eyes for, refund"):
            await asked.reviewer(name).approve(ref, arguments='{"amount":900}')
    digest = (await asked.call(ref)).approval_request.digest
    vote = e.Voted(verdict="approve", digest=digest, arguments='{"amount":900}')
    await asked.append(ref.vote("rita"), vote)
    await conclude(asked, ref)
    assert (await asked.call(ref)).status is Status.PENDING
    await asked.reviewer("ana").approve(ref, arguments='{"amount":90}')
    await conclude(asked, ref)
    decided = (await asked.call(ref)).approval
    assert (decided.arguments, decided.mode) == ('{"amount":90}', "four_eyes")
