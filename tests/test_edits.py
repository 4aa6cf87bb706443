"""An approval with other arguments is judged again: by the tool's schema, and by the policy that is in force by then."""

import pytest
from stories import request

from consumers.gate import Gate
from consumers.steps import Append
from ledger.client import Ledger
from ledger.judging import edit_problem
from ledger.lifecycle import Status
from schemas import events as e
from schemas.digest import text_digest
from schemas.errors import BadArguments, NotAllowed
from schemas.policy import read_policy
from schemas.slots import CallRef, policy_slot
from schemas.tools import ToolSpec

POLICY = """
[[rule]]
name = "large refunds"
tools = ["refund"]
when = "args.amount > 500"
then = "ask"
votes_needed = 2

[[rule]]
name = "huge refunds"
tools = ["refund"]
when = "args.amount > 5000"
then = "block"

[[rule]]
name = "refunds"
tools = ["refund"]
then = "ask"
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
    await ledger.fill(policy_slot("shop", 1), e.PolicyApplied(text=POLICY, digest=text_digest(POLICY)))
    await ledger.declare("shop", REFUND)
    await ledger.request(CALL, "refund", {"amount": 100}, requester="rita")
    await settled(ledger)
    assert (await ledger.call(CALL)).status is Status.PENDING
    return ledger


async def settled(ledger: Ledger) -> None:
    """Let a gate conclude all that follows from what there is."""
    gate = Gate()
    before = -1
    while before != (before := await ledger.port.last_seq()):
        for fact in await ledger.read(CALL):
            if fact.slot.tail[2] in {"requested", "vote"}:
                steps = gate.react(await gate.look(ledger, fact), fact)
                for step in steps:
                    if isinstance(step, Append):
                        await ledger.append(step.slot, step.event)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"amount":600}', "rule 'large refunds' asks for 2 votes, and 1 were asked for"),
        ('{"amount":6000}', "rule 'huge refunds' of the policy blocks refund with these arguments"),
    ],
)
async def test_an_edit_that_the_policy_would_not_let_run_is_refused_at_once(asked, arguments, problem):
    """One yes to a small refund is none to a large one, and nothing is recorded of it (B61, I1, I3)."""
    before = await asked.port.last_seq()
    with pytest.raises(NotAllowed, match=problem):
        await asked.vote(CALL, "ana", "approve", arguments=arguments)
    assert await asked.port.last_seq() == before


async def test_an_edit_that_breaks_the_schema_is_refused_at_once(asked):
    """The schema comes first (B66)."""
    with pytest.raises(BadArguments):
        await asked.vote(CALL, "ana", "approve", arguments='{"amount":"much"}')


async def test_an_edit_within_what_was_asked_is_approved(asked):
    """The bytes of the edit are what is approved."""
    await asked.vote(CALL, "ana", "approve", arguments='{"amount":90}')
    await settled(asked)
    call = await asked.call(CALL)
    assert call.status is Status.APPROVED
    assert call.arguments == '{"amount":90}'


@pytest.mark.parametrize("arguments", ['{"amount":600}', '{"amount":6000}', '{"amount":"much"}'])
async def test_the_gate_does_not_count_a_vote_that_nobody_checked(asked, arguments):
    """A client in another language votes as it likes: the gate judges the edit itself, and goes on waiting (B61, B62, I4)."""
    known = await asked.call(CALL)
    vote = e.Voted(verdict="approve", digest=known.asking.digest, arguments=arguments)
    await asked.fill(CALL.vote("ana"), vote)
    await settled(asked)
    assert (await asked.call(CALL)).status is Status.PENDING
    await asked.vote(CALL, "ben", "approve")
    await settled(asked)
    call = await asked.call(CALL)
    assert call.status is Status.APPROVED
    assert call.arguments == '{"amount":100}'


async def test_a_policy_that_came_later_only_tightens(asked):
    """What was asked about before the policy forbade it cannot be edited into what it forbids, nor is it loosened (I3)."""
    tighter = '[[rule]]\nname = "no more"\ntools = ["*"]\nthen = "block"\n'
    await asked.fill(policy_slot("shop", 2), e.PolicyApplied(text=tighter, digest=text_digest(tighter)))
    with pytest.raises(NotAllowed, match="rule 'no more' of the policy blocks"):
        await asked.vote(CALL, "ana", "approve", arguments='{"amount":90}')


def test_an_edit_is_judged_with_whose_it_is():
    """The rule looks at the edited arguments, and at everything else as it was."""
    from stories import START

    from ledger.lifecycle import call_of
    from schemas.codec import Fact

    wish = e.Wish(tool="refund", arguments='{"amount":100}')
    call = call_of(CALL, (Fact(1, START, CALL.requested, request(wish)),))
    policy = read_policy(POLICY, "policy.toml")
    assert edit_problem(policy, call, '{"amount":100}') is None
    assert "blocks refund" in (edit_problem(policy, call, '{"amount":5001}') or "")
