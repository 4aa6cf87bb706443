"""The gate: what it says to a wish, and when it decides. Tables over values; nothing runs but
`decide`.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from shop import FIRST, SECOND, rule
from stories import REF, START, Story, question, request

from ayes.consumers.effects import Append, CancelTimer, Effect, Reload, SetTimer
from ayes.consumers.gate import Gate
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import Grant, grants_of
from ayes.ledger.judging.policies import AppliedPolicy, Policies, ThreadUsage
from ayes.ledger.judging.verdict import Case, verdict
from ayes.ledger.log import Delivered, TimerFired
from ayes.ledger.objections import may_revoke
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import NotAllowed, Unavailable
from ayes.schemas.policy import Also, Policy, Rule, applied, read_policy
from ayes.schemas.quorums import met, needed
from ayes.schemas.slots import GrantRef, policy_slot
from ayes.schemas.tools import Tool, ToolSpec, declaration

pytestmark = pytest.mark.log("memory")
CALL = REF.wish(1, 0)
#: Asked by a gate of today: an editor does not count.
asking = partial(e.ApprovalRequested, editor_counts=False)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
DIGEST = request(WISH).digest
SCHEMA = (
    '{"type":"object","properties":{"order":{"type":"string"}},'
    '"required":["order"],"additionalProperties":false}'
)
REFUND = Tool("refund", "v1", e.ToolDeclared(description="", schema=SCHEMA))

ALLOW = '[[rule]]\nname = "freely"\ntools = ["refund"]\nthen = "allow"\nreason = "It is small."\n'
ASK = (
    '[[rule]]\nname = "money"\ntools = ["re*"]\nthen = "ask"\nreason = "It moves money."\n'
    'voters = ["ana", "ops-*"]\nvotes_needed = 2\nexpires_in_s = 900\n'
)
ASK_ALL = '[[rule]]\nname = "money"\ntools = ["*"]\nthen = "ask"\n'
ASK_TWO = ASK_ALL + 'voters = ["ana", "rita"]\nvotes_needed = 2\n'
BLOCK = '[[rule]]\nname = "never"\ntools = ["*"]\nthen = "block"\nreason = "Not by a machine."\n'


def in_force(text: str, version: int = 3) -> AppliedPolicy:
    return AppliedPolicy(version, read_policy(text, "policy.toml"))


def case(call: Call, policy: AppliedPolicy | None = None, tool: Tool | None = None, **more) -> Case:
    return Case(call, Policies(policy or AppliedPolicy()), tool, **more)


def told(*facts: tuple[object, e.AnyEvent], call=CALL) -> Call:
    story = Story()
    for slot, event in facts:
        story.tell(slot, event)  # type: ignore[arg-type]
    return call_of(call, tuple(story.facts))


def last(call: Call) -> Fact:
    every = [
        fact
        for fact in (call.requested, call.gated, *call.votes, call.withdrawn, call.decided)
        if fact
    ]
    return max(every, key=lambda fact: fact.seq)


def reacts(
    call: Call,
    handed: Delivered | None = None,
    *,
    policy: AppliedPolicy | None = None,
    tool: Tool | None = REFUND,
) -> Sequence[Effect]:
    return Gate().decide(case(call, policy, tool), handed or last(call))


def invalid(reason: str, rule: str = "freely") -> e.Denied:
    return e.Denied(ground="invalid", rule=rule, policy_version=3, reason=reason)


# ----------------------------------------------------------------------------------------- the wish

ASKED = asking(
    digest=DIGEST,
    rule="money",
    policy_version=3,
    reason="It moves money.",
    voters=("ana", "ops-*"),
    excluded=("rita",),
    votes_needed=2,
    expires_in_s=900,
)
ASKED_BY_NO_RULE = asking(
    digest=DIGEST,
    rule="no rule",
    policy_version=3,
    reason="No rule of the policy covers this tool.",
    excluded=("rita",),
)
ASKED_TWO = asking(
    digest=DIGEST, rule="money", policy_version=3, voters=("ana", "rita"), votes_needed=2
)
FREELY = e.Approved(
    digest=DIGEST, ground="policy", rule="freely", policy_version=3, reason="It is small."
)
MISFIT = e.Wish(tool="refund", arguments='{"order":17}')
BROKEN = e.Wish(tool="refund", arguments='{"order":')
NO_JSON = (
    "The arguments of refund cannot be read: it is no JSON: Expecting value (at character 10)."
)

#: The policy's text, the wish, the tool as it is declared, and what the gate says.
VERDICTS = [
    ("allowed", ALLOW, request(WISH), REFUND, FREELY),
    ("asked", ASK, request(WISH), REFUND, ASKED),
    ("asked of too few, since one of them asks", ASK_TWO, request(WISH), REFUND,
     e.Denied(ground="policy", rule="money", policy_version=3,
              reason="It needs 1 more who may vote and count: rita asked for it.")),
    ("asked of just enough", ASK_TWO, replace(request(WISH), requester="cy"), REFUND,
     replace(ASKED_TWO, excluded=("cy",))),
    ("asked, and a message supersedes it", f'while_pending = "supersede"\n{ASK}', request(WISH),
     REFUND, replace(ASKED, while_pending="supersede")),
    ("asked for ever, and a message supersedes it", 'while_pending = "supersede"', request(WISH),
     REFUND, replace(ASKED_BY_NO_RULE, while_pending="supersede")),
    ("asked, and nobody may speak", f'while_pending = "block"\n{ASK}', request(WISH), REFUND,
     replace(ASKED, while_pending="block")),
    ("asked for ever, and nobody may speak", 'while_pending = "block"', request(WISH), REFUND,
     replace(ASKED_BY_NO_RULE, while_pending="block")),
    ("asked, with time to undo a vote and reasons to choose",
     f'undo_s = 5\n{ASK}reasons = ["Duplicate"]\n', request(WISH), REFUND,
     replace(ASKED, undo_s=5, reasons=("Duplicate",))),
    ("allowed, whatever is said", f'while_pending = "supersede"\n{ALLOW}', request(WISH), REFUND,
     FREELY),
    ("blocked", BLOCK, request(WISH), REFUND,
     e.Denied(ground="policy", rule="never", policy_version=3, reason="Not by a machine.")),
    ("the strictest counts", ALLOW + ASK, request(WISH), REFUND, ASKED),
    ("the strictest of all", ALLOW + BLOCK + ASK, request(WISH), REFUND,
     e.Denied(ground="policy", rule="never", policy_version=3, reason="Not by a machine.")),
    ("no rule asks everybody", "", request(WISH), REFUND, ASKED_BY_NO_RULE),
    ("nobody excluded who is nobody", 'unmapped_requesters = "exclude_nobody"',
     replace(request(WISH), requester=""), REFUND,
     replace(ASKED_BY_NO_RULE, excluded=())),
    ("an unknown tool, though allowed", ALLOW, request(WISH), None,
     invalid("There is no tool 'refund'. Only the tools that were offered can be called.")),
    ("a name out of the language", ALLOW, request(e.Wish(tool="constructor", arguments="{}")), None,
     invalid("There is no tool 'constructor'. Only the tools that were offered can be called.",
             "no rule")),
    ("misfit arguments, though asked", ASK, request(MISFIT), REFUND,
     invalid('The arguments of refund do not fit its schema: '
             'at /order, the value is not of type "string".', "money")),
    ("malformed arguments, though allowed", ALLOW, request(BROKEN), REFUND, invalid(NO_JSON)),
    ("another digest, though allowed", ALLOW, replace(request(WISH), digest="0" * 64), REFUND,
     invalid("The request's digest is not that of its arguments.")),
    ("the digest of other arguments", ALLOW, replace(request(WISH), digest=request(MISFIT).digest),
     REFUND, invalid("The request's digest is not that of its arguments.")),
    ("invalid before blocked", BLOCK, request(BROKEN), REFUND, invalid(NO_JSON, "never")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wish", "tool", "says"), [pytest.param(*row, id=name) for name, *row in VERDICTS]
)
def test_what_the_gate_says_to_a_wish(text, wish, tool, says):
    """What could never run is denied first; else the strictest counts (B66, I4, B64, B67, B25)."""
    call = told((CALL.requested, wish))
    assert verdict(case(call, in_force(text), tool), call.requested.recorded_at) == says
    assert (
        verdict(case(call, in_force(text), tool), call.requested.recorded_at) == says
    )  # judging has no side effects (B65)
    slot = CALL.gated if isinstance(says, e.ApprovalRequested) else CALL.decided
    more = isinstance(says, e.ApprovalRequested) and (
        says.expires_in_s or says.while_pending == "supersede"
    )
    again = [Reload()] if more or isinstance(says, e.Approved) else []
    assert reacts(call, policy=in_force(text), tool=tool) == [Append(slot, says), *again]


# ---------------------------------------------------- its order: each step, and what it goes before

ASK_ONE = ASK_ALL + 'voters = ["ana", "ben"]\n'
FOUR_EYES = f"{ASK_ONE}votes_needed = 2\n"
ASK_ANA = ASK_ALL + 'voters = ["ana"]\n'
ASK_RITA = ASK_ALL + 'voters = ["rita"]\n'
THREE_CALLS = "calls_per_thread = 3\n"
THREE_QUESTIONS = "questions_per_thread = 3\n"
TO_LEADS = 'expires_in_s = 60\non_timeout = "escalate"\nstages = [{voters = ["lea"]}]\n'
GOVERNS = Tool("refund", "v1", replace(REFUND.declared, governs=True))
BY_DESK = replace(request(WISH), requester="cy", agent="desk-7")
NO_TO_IT = Fact(2, START, REF.wish(7, 1).decided, e.Denied(
    ground="people", rule="money", policy_version=1, reason="not this one", voters=("ana",),
))  # fmt: skip


def went(*, calls: int = 0, questions: int = 0, repeats: int | None = None) -> ThreadUsage:
    """What a thread went through; with `repeats`, people denied the very call."""
    return ThreadUsage(calls, questions, 0, None if repeats is None else NO_TO_IT, repeats or 0)


def a_grant(
    giver: str = "ana", tool: str = "refund", *, uses: int = 1, used: int = 0, **more
) -> Grant:
    """A grant that was given an hour before, for two."""
    story, ref = Story(), GrantRef("acme", giver, "g1")
    story.tell(ref.given, e.Granted(tool=tool, expires_in_s=7200, uses=uses, **more))
    for number in range(1, used + 1):
        story.tell(ref.used(number), e.GrantUsed(call=f"acme/t0/c{number}"))
    early = [replace(fact, recorded_at=START - timedelta(hours=1)) for fact in story.facts]
    [grant] = grants_of(early)
    return grant


def by_grants(*givers: str) -> e.Approved:
    names = tuple(f"{giver}/g1" for giver in givers)
    return e.Approved(
        digest=DIGEST, ground="grant", rule="money", policy_version=3, voters=givers, grants=names
    )


def refused(ground: e.Ground, reason: str, rule: str = "money") -> e.Denied:
    return e.Denied(ground=ground, rule=rule, policy_version=3, reason=reason)


AGAIN = refused("repeated", "This very call was denied before, as 7-1: not this one")
NOBODY_LEFT = refused("policy", "It needs 1 more who may vote and count: rita asked for it.")
TOO_MANY = "The policy lets a thread make 3 calls, and these were made."
TOO_MUCH = "The policy lets a thread put 3 calls to people, and these were put."
ASKED_ONE = asking(
    digest=DIGEST, rule="money", policy_version=3, voters=("ana", "ben"), excluded=("rita",)
)
BY_BOTH = replace(ASKED_ONE, votes_needed=2)
LOOKS = asking(
    digest=DIGEST, rule="freely", policy_version=3, excluded=("rita",),
    reason="It can change what is asked about, so a person must look.",
)  # fmt: skip

OWN = 'mode = "requester_confirms"\n'
ASKED_OWN = replace(ASKED_ONE, excluded=(), own=("rita",), mode="requester_confirms")
OTHERS = 'name = "others"\npriority = {}\n'

#: The step, the policy, the wish, the tool, the past, the grants, and what the gate says.
STEPS = [
    ("1 invalid, though the limit is reached", f"{THREE_CALLS}{ALLOW}", request(BROKEN), REFUND,
     went(calls=3), (), invalid(NO_JSON)),
    ("2 the limit is not reached", f"{THREE_CALLS}{BLOCK}", request(WISH), REFUND, went(calls=2),
     (), refused("policy", "Not by a machine.", "never")),
    ("2 it is, though allowed", f"{THREE_CALLS}{ALLOW}", request(WISH), REFUND, went(calls=3), (),
     refused("limit", TOO_MANY, "freely")),
    ("2 it is, though blocked", f"{THREE_CALLS}{BLOCK}", request(WISH), REFUND, went(calls=3), (),
     refused("limit", TOO_MANY, "never")),
    ("3 blocked, though granted", BLOCK, request(WISH), REFUND, went(), (a_grant(),),
     refused("policy", "Not by a machine.", "never")),
    ("3 blocked, though it was denied before", BLOCK, request(WISH), REFUND, went(repeats=0), (),
     refused("policy", "Not by a machine.", "never")),
    ("3 allowed, though it was denied before", ALLOW, request(WISH), REFUND, went(repeats=0), (),
     FREELY),
    ("3 a tool that governs is asked about, though allowed", ALLOW, request(WISH), GOVERNS, went(),
     (), LOOKS),
    ("3 and no grant covers it", ALLOW, request(WISH), GOVERNS, went(), (a_grant(),), LOOKS),
    ("3 nor where a rule asks", ASK_ONE, request(WISH), GOVERNS, went(), (a_grant(),), ASKED_ONE),
    ("3 and it is blocked where a rule blocks", BLOCK, request(WISH), GOVERNS, went(), (),
     refused("policy", "Not by a machine.", "never")),
    ("4 nobody is left, though granted", ASK_RITA, request(WISH), REFUND, went(),
     (a_grant("rita"),), NOBODY_LEFT),
    ("4 nobody is left, though it was denied before", ASK_RITA, request(WISH), REFUND,
     went(repeats=0), (), NOBODY_LEFT),
    ("4 nor is the agent's owner", f'owners = {{"desk-*" = ["ana"]}}\n{FOUR_EYES}', BY_DESK, REFUND,
     went(), (),
     refused("policy", "It needs 1 more who may vote and count: "
                       "cy asked for it and ana is behind desk-7.")),
    ("4 nor an owner who is a pattern", f'owners = {{"desk-*" = ["a*"]}}\n{FOUR_EYES}', BY_DESK,
     REFUND, went(), (),
     refused("policy", "It needs 1 more who may vote and count: "
                       "cy asked for it and a* is behind desk-7.")),
    ("4 the owner of another agent counts", f'owners = {{"shop-*" = ["ana"]}}\n{FOUR_EYES}',
     BY_DESK, REFUND, went(), (), replace(BY_BOTH, excluded=("cy",))),
    ("4 who else must agree is missing", ASK_ANA + 'also = [{voters = ["rita"]}]\n', request(WISH),
     REFUND, went(), (), NOBODY_LEFT),
    ("4 though a pattern stands beside it",
     'never_grant = ["*"]\n' + ASK + 'also = [{voters = ["rita"]}]\n', request(WISH), REFUND,
     went(), (), NOBODY_LEFT),
    ("4 those can who are asked later", ASK_RITA + TO_LEADS, request(WISH), REFUND, went(), (),
     replace(ASKED_ONE, voters=("rita",), expires_in_s=60, on_timeout="escalate",
             stages=(e.Stage(("lea",)),))),
    ("4 unless they do not count either", ASK_RITA + TO_LEADS.replace("lea", "rita"), request(WISH),
     REFUND, went(), (), NOBODY_LEFT),
    ("5 granted, though it was denied before: a grant that covers it came after the no", ASK_ONE,
     request(WISH), REFUND, went(repeats=0), (a_grant(),), by_grants("ana")),
    ("5 granted", ASK_ONE, request(WISH), REFUND, went(), (a_grant(),), by_grants("ana")),
    ("5 granted, though enough was asked", f"{THREE_QUESTIONS}{ASK_ONE}", request(WISH), REFUND,
     went(questions=9), (a_grant(),), by_grants("ana")),
    ("5 one of the two that it takes", FOUR_EYES, request(WISH), REFUND, went(), (a_grant(),),
     BY_BOTH),
    ("5 both", FOUR_EYES, request(WISH), REFUND, went(), (a_grant("ben"), a_grant("ana")),
     by_grants("ben", "ana")),
    ("5 no more are spent than it takes", ASK_ONE, request(WISH), REFUND, went(),
     (a_grant("ben"), a_grant("ana")), by_grants("ben")),
    ("5 not of somebody who was not asked", ASK_ANA, request(WISH), REFUND, went(),
     (a_grant("ben"),), replace(ASKED_ONE, voters=("ana",))),
    ("5 not the requester's", "", request(WISH), REFUND, went(), (a_grant("rita"),),
     ASKED_BY_NO_RULE),
    ("5 not the owner's", f'owners = {{"desk-*" = ["ana"]}}\n{ASK_ONE}', BY_DESK, REFUND, went(),
     (a_grant(),), replace(ASKED_ONE, excluded=("cy", "ana"))),
    ("5 not a pattern of owners'", f'owners = {{"desk-*" = ["a*"]}}\n{ASK_ONE}', BY_DESK, REFUND,
     went(), (a_grant(),), replace(ASKED_ONE, excluded=("cy", "a*"))),
    ("5 not what is never granted", f'never_grant = ["re*"]\n{ASK_ONE}', request(WISH), REFUND,
     went(), (a_grant(),), ASKED_ONE),
    ("5 not what is used up", ASK_ONE, request(WISH), REFUND, went(), (a_grant(uses=2, used=2),),
     ASKED_ONE),
    ("5 the last use", ASK_ONE, request(WISH), REFUND, went(), (a_grant(uses=2, used=1),),
     by_grants("ana")),
    ("5 not of another tool", ASK_ONE, request(WISH), REFUND, went(), (a_grant(tool="wire"),),
     ASKED_ONE),
    ("5 not where its condition cannot be evaluated", ASK_ONE, request(WISH), REFUND, went(),
     (a_grant(when="args.amount < 5"),), ASKED_ONE),
    ("5 not where its condition does not hold", ASK_ONE, request(WISH), REFUND, went(),
     (a_grant(when='args.order == "B"'),), ASKED_ONE),
    ("5 where it does", ASK_ONE, request(WISH), REFUND, went(),
     (a_grant(when='args.order == "A-17"'),), by_grants("ana")),
    ("5 where the rule's own condition cannot be evaluated, a grant of anybody who may vote",
     ASK_ONE + 'when = "args.amount < 5"\n', request(WISH), REFUND, went(), (a_grant(),),
     by_grants("ana")),
    ("6 denied before", ASK_ONE, request(WISH), REFUND, went(repeats=2), (), AGAIN),
    ("6 denied before, and a grant of one of the two", FOUR_EYES, request(WISH), REFUND,
     went(repeats=0), (a_grant(),), AGAIN),
    ("6 denied before, though enough was asked", f"{THREE_QUESTIONS}{ASK_ONE}", request(WISH),
     REFUND, went(repeats=0, questions=9), (), AGAIN),
    ("6 often enough", ASK_ONE, request(WISH), REFUND, went(repeats=3), (), ASKED_ONE),
    ("6 never", f"deny_repeats = 0\n{ASK_ONE}", request(WISH), REFUND, went(repeats=0), (),
     ASKED_ONE),
    ("7 enough was asked", f"{THREE_QUESTIONS}{ASK_ONE}", request(WISH), REFUND, went(questions=3),
     (), refused("limit", TOO_MUCH)),
    ("8 one more may be asked", f"{THREE_QUESTIONS}{ASK_ONE}", request(WISH), REFUND,
     went(questions=2), (), ASKED_ONE),
    ("who asks may confirm, if a rule says so", ASK_ONE + OWN, request(WISH), REFUND, went(), (),
     ASKED_OWN),
    ("also where nobody else is asked", ASK_RITA + OWN, request(WISH), REFUND, went(), (),
     replace(ASKED_OWN, voters=("rita",))),
    ("and so may who is behind the agent", f'owners = {{"desk-*" = ["a*"]}}\n{ASK_ONE}{OWN}',
     BY_DESK, REFUND, went(), (), replace(ASKED_OWN, own=("cy", "a*"))),
    ("who asks grants themselves nothing", ASK_ALL + OWN, request(WISH), REFUND, went(),
     (a_grant("rita"),), replace(ASKED_OWN, voters=("*",))),
    ("and others do", ASK_ONE + OWN, request(WISH), REFUND, went(), (a_grant("ana"),),
     by_grants("ana")),
    ("what governs takes four eyes", ASK_ONE + OWN, request(WISH), GOVERNS, went(), (), ASKED_ONE),
    ("or nobody is asked", ASK_RITA + OWN, request(WISH), GOVERNS, went(), (), NOBODY_LEFT),
    ("of two rules four eyes is stricter", ASK_ALL.replace('name = "money"\n', OTHERS.format(0))
     + OWN + ASK_ONE, request(WISH), REFUND, went(), (), ASKED_ONE),
    ("unless the other has priority", ASK_ONE + ASK_RITA.replace('name = "money"\n',
     OTHERS.format(1)) + OWN, request(WISH), REFUND, went(), (),
     replace(ASKED_OWN, rule="others", voters=("rita",))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wish", "tool", "past", "grants", "says"),
    [pytest.param(*row, id=name) for name, *row in STEPS],
)
def test_each_step_goes_before_the_next(text, wish, tool, past, grants, says):
    """The steps of `verdict`, by their numbers: the first that has a word has the last one (B66,
    B67, B68, B69, B76, I4).
    """
    call = told((CALL.requested, wish))
    seen = case(call, in_force(text), tool, past=past, grants=grants)
    assert verdict(seen, call.requested.recorded_at) == says
    assert verdict(seen, call.requested.recorded_at) == says


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (ASK_ONE + OWN + 'when = "args.amount < 5"\n', False),
        (ASK_ONE + OWN + 'when = "has(args.order)"\n', True),
        # Whether the condition of the rule for four eyes holds is unknown; it might.
        (ASK_ONE.replace("money", "few") + OWN + ASK_ONE + 'when = "args.amount > 5"\n', False),
        # And if it is the milder rule that nobody can evaluate, the certain one counts.
        (ASK_ONE.replace("money", "few") + OWN + 'when = "args.amount < 5"\n' + ASK_ONE, False),
    ],
)
def test_the_requester_confirms_nothing_because_a_condition_cannot_be_evaluated(text, own):
    """A milder mode never follows from what nobody knows (I4)."""
    call = told((CALL.requested, request(WISH)))
    said = verdict(case(call, in_force(text), REFUND, past=went()), call.requested.recorded_at)
    assert isinstance(said, e.ApprovalRequested)
    people = ((), ("rita",)) if own else (("rita",), ())
    assert (said.mode == "requester_confirms", said.excluded, said.own) == (own, *people)


@pytest.mark.parametrize(
    ("workspace", "organisation", "own"),
    [
        (ASK_ONE + OWN, ASK_ALL + OWN, True),
        (ASK_ONE + OWN, ASK_ALL, False),
        (ASK_ONE, ASK_ALL + OWN, False),
        (ALLOW, ASK_ALL + OWN, True),
        ("", ASK_ALL + OWN, True),
        (ASK_ONE + OWN, ALLOW, True),
    ],
)
def test_the_requester_confirms_only_where_each_rule_that_asks_says_so(
    workspace, organisation, own
):
    """Of the workspace's and the organisation's, if both ask: the stricter one counts."""
    over = AppliedPolicy(1, in_force(organisation).policy, organisation=True)
    call = told((CALL.requested, request(WISH)))
    seen = Case(call, Policies(in_force(workspace), over), REFUND, past=went())
    said = verdict(seen, call.requested.recorded_at)
    assert isinstance(said, e.ApprovalRequested)
    assert (said.mode == "requester_confirms", said.own == ("rita",)) == (own, own)


MINE = rule("mine", "ask", 'mode = "requester_confirms"', 'voters = ["rita", "ana"]')
OURS = rule("ours", "ask", 'voters = ["rita", "ana"]')


async def test_the_requester_confirms_their_own_request(shop):
    """In person, and the approval says so; that of somebody else is four eyes, under the same rule
    (B38, B40).
    """
    async with shop.at_work(MINE):
        assert (await shop.ask()).mode == "requester_confirms"
        rita = shop.ledger.reviewer("rita")
        for ballot in (Ballot("break_glass", "fire"), Ballot("approve", on_behalf_of="ana")):
            with pytest.raises(NotAllowed, match="does not count by delegation or by breaking"):
                await rita.vote(FIRST, ballot)
        await rita.approve(FIRST)
        decided = await shop.decided(e.Approved)
        assert (decided.voters, decided.mode) == (("rita",), "requester_confirms")
        await rita.revoke(FIRST)
        await shop.ask(SECOND)
        await shop.ledger.reviewer("ana").approve(SECOND)
        assert (await shop.decided(e.Approved, SECOND)).mode == "four_eyes"


async def test_without_such_a_rule_the_requester_does_not_count(shop):
    """Also where their vote is recorded past every client, and under another name of theirs (B40,
    I2).
    """
    async with shop.at_work('[people]\nrita = ["margarita"]\n' + OURS):
        await shop.ask()
        with pytest.raises(NotAllowed, match="asked for shop/t1/c1"):
            await shop.ledger.reviewer("rita").approve(FIRST)
        for name in ("rita", "margarita"):
            await shop.cast(name)
        await shop.cast("ana")
        decided = await shop.decided(e.Approved)
        assert (decided.voters, decided.mode) == (("ana",), "four_eyes")
        call = await shop.ledger.call(FIRST)
        assert [may_revoke(call, name) for name in ("rita", "margarita", "ana")] == [
            False, False, True,
        ]  # fmt: skip


def test_what_rules_without_effect_would_have_said_is_kept():
    """In the question, in the approval and in the denial, whichever comes; it changes none."""
    shadow = '[[rule]]\nname = "soon"\ntools = ["*"]\nthen = "block"\nshadow = true\n'
    call = told((CALL.requested, request(WISH)))
    for text in (ASK_ONE, ALLOW, BLOCK):
        plain = verdict(case(call, in_force(text), REFUND), call.requested.recorded_at)
        shadowed = verdict(case(call, in_force(text + shadow), REFUND), call.requested.recorded_at)
        assert shadowed == replace(plain, shadows=(e.Shadow("soon", "block"),))
    granted = case(call, in_force(ASK_ONE + shadow), REFUND, past=went(), grants=(a_grant(),))
    approved = replace(by_grants("ana"), shadows=(e.Shadow("soon", "block"),))
    assert verdict(granted, call.requested.recorded_at) == approved


def test_a_grant_is_spent_before_the_call_is_approved():
    """First a use is taken in the grant's slot; after a crash it takes no second (I6, B57)."""
    call = told((CALL.requested, request(WISH)))
    grant = a_grant(uses=3, used=1)
    seen = case(call, in_force(ASK_ONE), REFUND, past=went(), grants=(grant,))
    use = Append(grant.ref.used(2), e.GrantUsed(call=str(CALL)))
    assert Gate().decide(seen, last(call)) == [use, Reload()]
    taken = Fact(9, START, use.slot, use.event)
    spent = replace(grant, used=(*grant.used, taken))
    again = replace(seen, grants=(spent,))
    approved = [Append(CALL.decided, by_grants("ana")), Reload()]
    assert Gate().decide(again, last(call)) == approved
    last_use = replace(spent, given=replace(
        grant.given, event=replace(grant.granted, uses=2)))  # fmt: skip
    assert Gate().decide(replace(seen, grants=(last_use,)), last(call)) == approved


_people = st.sampled_from(["ana", "ben", "cy", "sam", "rita"])
_voters = st.lists(_people | st.sampled_from(["*", "?a*", "s*"]), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(_voters, st.integers(1, 2)), min_size=1, max_size=3),
    st.lists(_people, unique=True),
)
def test_grants_do_just_what_votes_would(quorums: list[tuple[list[str], int]], givers: list[str]):
    """Together they let a call run exactly where the votes of the same people would, and none is
    spent for nothing (B39, B68).
    """
    sets = tuple(e.Quorum(tuple(voters), needed) for voters, needed in quorums)
    (own, *also), call = sets, told((CALL.requested, request(WISH)))
    rule = Rule.model_construct(
        name="money", tools=("*",), then="ask", voters=own.voters, votes_needed=own.votes_needed,
        also=tuple(
            Also.model_construct(voters=one.voters, votes_needed=one.votes_needed) for one in also
        ),
    )  # fmt: skip
    policy = AppliedPolicy(3, Policy.model_construct(rules=(rule,)))
    grants = tuple(a_grant(giver) for giver in givers)
    says = verdict(
        case(call, policy, REFUND, past=went(), grants=grants), call.requested.recorded_at
    )
    count = [giver for giver in givers if giver != "rita"]
    assert isinstance(says, e.Approved) is met(sets, count)
    if isinstance(says, e.Approved):
        assert set(says.voters) <= set(count)
        assert len(says.voters) == len(says.grants) == needed(sets)
        assert met(sets, says.voters)


def test_broken_glass_is_announced_once_and_before_it_is_decided():
    """After a crash between the two only the decision is missing: no second announcement."""
    asking = replace(question(WISH, expires_in_s=900), may_break_glass=("sam",))
    vote = e.Voted(verdict="break_glass", digest=DIGEST, reason="the shop burns")
    facts = [GATED[0], (CALL.gated, asking), (CALL.vote("sam"), vote)]
    announced = e.GlassBroken(reviewer="sam", reason="the shop burns")
    decided = Append(CALL.decided, replace(
        by_people(), ground="broken_glass", voters=("sam",), reason="the shop burns"))  # fmt: skip
    assert reacts(told(*facts)) == [Append(CALL.announced, announced), decided, Reload()]
    assert reacts(told(*facts, (CALL.announced, announced)), Fact(3, START, *facts[2])) == [
        decided,
        Reload(),
    ]


def test_without_a_policy_everybody_is_asked():
    """A workspace that never applied a policy has version 0, which allows nothing (I4, B73)."""
    [step] = reacts(told((CALL.requested, request(WISH))))
    asked = replace(ASKED_BY_NO_RULE, policy_version=0)
    assert step == Append(CALL.gated, asked)


# ------------------------------------------------------------------------------------- the decision

GATED = [(CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=900))]
DEADLINE = START + timedelta(seconds=2 + 900)
YES = e.Voted(verdict="approve", digest=DIGEST)
NO = e.Voted(verdict="deny", digest=DIGEST, reason="wrong order")
BACK = e.Withdrawn(reason="changed my mind")
NEWER = e.Superseded(reason="a new message")


def due(seconds_after: float = 0.0) -> TimerFired:
    return TimerFired(CALL, 7, DEADLINE + timedelta(seconds=seconds_after))


def by_people(**said: object) -> e.Approved:
    return e.Approved(
        digest=DIGEST, ground="people", rule="money", policy_version=1, voters=("ana",), **said
    )


DENIED = e.Denied(
    ground="people", rule="money", policy_version=1, reason="wrong order", voters=("ana",)
)
EXPIRED = e.Expired(rule="money", policy_version=1, after_s=900)
SET, CANCEL = SetTimer(CALL, DEADLINE), CancelTimer(CALL)
VOTED = [*GATED, (CALL.vote("ana"), YES)]

#: What stands, what was handed, and the steps that follow.
DECISIONS = [
    ("asked: the timer is set", GATED, None, [SET]),
    ("handed out again: and set again", GATED, None, [SET]),
    ("too few votes", [*GATED, (CALL.vote("rita"), YES)], None, [SET]),
    ("a vote decides", VOTED, None, [Append(CALL.decided, by_people()), Reload()]),
    ("a no decides", [*GATED, (CALL.vote("ana"), NO)], None,
     [Append(CALL.decided, DENIED), CANCEL]),
    ("the hint came early", GATED, due(-0.01), [SET]),
    ("it is time", GATED, due(), [Append(CALL.decided, EXPIRED), CANCEL]),
    ("long since", GATED, due(86_400), [Append(CALL.decided, EXPIRED), CANCEL]),
    ("a vote in time beats the timer", VOTED, due(), [Append(CALL.decided, by_people()), Reload()]),
    ("taken back", [*GATED, (CALL.withdrawn, BACK)], None, [Append(CALL.decided, BACK), CANCEL]),
    ("superseded", [*GATED, (CALL.withdrawn, NEWER)], None, [Append(CALL.decided, NEWER), CANCEL]),
    ("taken back, though voted on", [*VOTED, (CALL.withdrawn, BACK)], None,
     [Append(CALL.decided, BACK), CANCEL]),
    ("taken back before it was judged", [GATED[0], (CALL.withdrawn, BACK)], None,
     [Append(CALL.decided, BACK)]),
    ("decided: nothing but the timer's end", [*VOTED, (CALL.decided, by_people())], None, [CANCEL]),
    ("decided, and due", [*VOTED, (CALL.decided, by_people())], due(), [CANCEL]),
    ("decided, and a no after it", [*VOTED, (CALL.decided, by_people()), (CALL.vote("ben"), NO)],
     None, [CANCEL]),
    ("decided, and taken back after it",
     [*VOTED, (CALL.decided, by_people()), (CALL.withdrawn, BACK)], None, [CANCEL]),
    ("decided by policy: nothing", [GATED[0], (CALL.decided, by_people())], None, []),
    ("a vote on nothing", [(CALL.vote("ana"), YES)], None, []),
    ("a withdrawal of nothing", [(CALL.withdrawn, BACK)], None, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "handed", "follows"), [pytest.param(*row, id=name) for name, *row in DECISIONS]
)
def test_when_the_gate_decides(facts, handed: Delivered | None, follows: Sequence[Effect]):
    """Decided once, by people, the requester's side or the broker's clock; then never again (B27,
    B29, B36, B38, B46, I5).
    """
    call = told(*facts)
    assert list(reacts(call, handed)) == list(follows)
    assert list(reacts(call, handed)) == list(follows)


VALID = by_people(valid_for_s=60.0)
APPROVED = [*VOTED, (CALL.decided, VALID)]
#: The approval is the fourth fact, a minute is its validity.
UNTIL = START + timedelta(seconds=4 + 60)
START_IT = (CALL.claim(1), e.ToolStarted(digest=DIGEST, idempotency_key="k"))
LAPSE = Append(CALL.lapsed, e.Lapsed(after_s=60.0))


def over(seconds_after: float = 0.0) -> TimerFired:
    return TimerFired(CALL, 7, UNTIL + timedelta(seconds=seconds_after))


VALIDITY = [
    ("asked with an end: it is in the approval",
     [GATED[0], (CALL.gated, replace(GATED[1][1], valid_for_s=60.0)), (CALL.vote("ana"), YES)],
     None,
     [Append(CALL.decided, VALID), Reload()]),
    ("approved: the timer is set", APPROVED, None, [SetTimer(CALL, UNTIL)]),
    ("the question's timer comes after it", APPROVED, over(-30), [SetTimer(CALL, UNTIL)]),
    ("it is time", APPROVED, over(), [LAPSE]),
    ("long since", APPROVED, over(86_400), [LAPSE]),
    ("by a policy, without a question", [GATED[0], (CALL.decided, VALID)],
     TimerFired(CALL, 7, UNTIL), [LAPSE]),
    ("started in time", [*APPROVED, START_IT], over(), [CANCEL]),
    ("revoked in time", [*APPROVED, (CALL.revoked_by("ana"), e.Revoked())], over(), [CANCEL]),
    ("declined in time", [*APPROVED, (CALL.claim(1), e.Declined(why="unknown_tool"))], over(),
     [CANCEL]),
    ("lapsed already", [*APPROVED, (CALL.lapsed, e.Lapsed(after_s=60.0))], over(), [CANCEL]),
    ("without an end", [*VOTED, (CALL.decided, by_people())], over(), [CANCEL]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "handed", "follows"), [pytest.param(*row, id=name) for name, *row in VALIDITY]
)
def test_when_an_approval_lapses(facts, handed: Delivered | None, follows: Sequence[Effect]):
    """When its validity has ended, and nobody has started the call or stopped it (B37, I5)."""
    call = told(*facts)
    assert list(reacts(call, handed)) == list(follows)


def test_the_end_of_a_grant_ends_what_it_approved():
    """The approval rests on the vote that was given early; one by people, or by another grant,
    does not (I4).
    """
    facts = [GATED[0], (CALL.decided, by_grants("ana"))]
    revoked = Fact(
        9, START + timedelta(seconds=9), a_grant().ref.revoked, e.GrantRevoked(reason="No.")
    )
    of_ana = replace(a_grant(), revoked=revoked)
    seen = case(told(*facts), grants=(of_ana,))
    lapsed = e.Lapsed(after_s=7.0, grants=("ana/g1",), reason="No.")
    assert Gate().decide(seen, revoked) == [Append(CALL.lapsed, lapsed)]
    for held, decided in (
        (a_grant(), by_grants("ana")),
        (replace(a_grant("ben"), revoked=revoked), by_grants("ana")),
        (of_ana, by_people()),
    ):
        others = case(told(GATED[0], (CALL.decided, decided)), grants=(held,))
        assert not Gate().decide(others, revoked)
    started = case(told(*facts, START_IT), grants=(of_ana,))
    assert not Gate().decide(started, revoked)


OVER_TEN = '[[rule]]\nname = "big"\ntools = ["*"]\nthen = "block"\nwhen = "args.order == \'B-2\'"\n'
EDIT = '{"order":"B-2"}'
EDITED = replace(by_people(), arguments=EDIT, digest=call_digest("refund", "v1", EDIT))
#: A policy of now, the approval, and whether the approval lapses.
BLOCKS = [
    ("it blocks", BLOCK, by_people(), "never"),
    ("it asks", ASK_ONE, by_people(), ""),
    ("it would block", BLOCK + "shadow = true\n", by_people(), ""),
    ("it blocks another tool", BLOCK.replace('"*"', '"transfer"'), by_people(), ""),
    ("it blocks other arguments", OVER_TEN, by_people(), ""),
    ("it blocks what a reviewer wrote", OVER_TEN, EDITED, "big"),
]


@pytest.mark.parametrize(
    ("text", "decided", "rule"), [pytest.param(*row, id=name) for name, *row in BLOCKS]
)
def test_a_policy_ends_the_approvals_that_it_blocks(text, decided, rule):
    """Of what has not started, by the arguments that would run (I4; OWASP AISVS 9.5.6)."""
    call = told(GATED[0], GATED[1], (CALL.vote("ana"), YES), (CALL.decided, decided))
    steps = reacts(call, policy=in_force(text, version=4))
    ended = [step.event for step in steps if isinstance(step, Append)]
    assert [(one.rule, one.policy_version) for one in ended] == ([(rule, 4)] if rule else [])
    started = told(GATED[0], GATED[1], (CALL.vote("ana"), YES), (CALL.decided, decided), (
        CALL.claim(1), e.ToolStarted(digest=decided.digest, idempotency_key="k")))  # fmt: skip
    assert reacts(started, policy=in_force(text, version=4)) == [CANCEL]


@pytest.mark.parametrize(
    ("facts", "until", "then"),
    [(GATED, DEADLINE, Append(CALL.decided, EXPIRED)), (APPROVED, UNTIL, LAPSE)],
    ids=["a question", "an approval"],
)
def test_what_ends_ends_by_the_clock_of_the_log(facts, until, then):
    """A timer may come from a node whose clock is ahead: until the log's own clock has reached the
    deadline, the timer is set again, by as much later as that clock is ahead (B36).
    """
    hour, second = timedelta(hours=1), timedelta(seconds=1)
    early = TimerFired(CALL, 7, until - second + hour)
    seen = replace(case(told(*facts)), now=until - second)
    assert Gate().decide(seen, early) == [SetTimer(CALL, until + hour)]
    assert Gate().decide(replace(seen, now=until), early)[0] == then


#: Seconds that the requester waits, and how long that is after the question.
WAITS = [(61, 60), (9999, 900), (0.5, 0)]


@pytest.mark.parametrize(("waits_s", "after_s"), WAITS)
def test_the_requester_may_wait_for_less(waits_s, after_s):
    """Then the timer is set for the end of their wait, a vote that comes after it does not count,
    and the call expires; a policy's own time is never exceeded (B36, I5).
    """
    asked = [(CALL.requested, replace(request(WISH), expires_in_s=waits_s)), GATED[1]]
    ends = START + timedelta(seconds=min(1 + waits_s, 902))
    expired = [Append(CALL.decided, replace(EXPIRED, after_s=after_s)), CANCEL]
    assert reacts(told(*asked)) == ([SetTimer(CALL, ends)] if after_s else expired)
    assert reacts(told(*asked), TimerFired(CALL, 7, ends)) == expired
    story = Story().tell_all(asked)
    story.facts.append(Fact(3, ends + timedelta(milliseconds=1), CALL.vote("ana"), YES))
    assert reacts(call_of(CALL, story.facts)) == expired


def test_a_wait_alone_sets_a_timer():
    """Also where the policy has none: the question is followed by a look at its deadline."""
    wish = replace(request(WISH), expires_in_s=60)
    asked, again = reacts(told((CALL.requested, wish)), policy=in_force(ASK_ALL, version=1))
    assert isinstance(asked, Append)
    assert asked.event.expires_in_s is None
    assert again == Reload()


def test_the_writers_clock_decides_nothing():
    """What the writers' clocks say about an expired call changes nothing (B36)."""
    voted = replace(YES, at=START)
    story = Story().tell_all(GATED)
    story.facts.append(Fact(3, DEADLINE, CALL.vote("ana"), voted))
    call = call_of(CALL, tuple(story.facts))
    assert reacts(call) == [Append(CALL.decided, EXPIRED), CANCEL]


def test_what_never_expires_has_no_timer():
    """Without a deadline nothing is set or cancelled: a slow person fails nothing (B45, B51)."""
    call = told(GATED[0], (CALL.gated, question(WISH)))
    assert reacts(call) == ()
    assert reacts(call, due(10**6)) == ()


def test_an_edit_must_fit_the_schema():
    """Edited arguments that fit are approved; misfit or unchecked ones are no vote (I4, B61)."""
    good, bad = '{"order":"A-18"}', '{"order":18}'
    edited = told(*GATED, (CALL.vote("ana"), replace(YES, arguments=good)))
    digest = call_digest("refund", "v1", good)
    approved = replace(by_people(), digest=digest, arguments=good)
    assert reacts(edited) == [Append(CALL.decided, approved), Reload()]
    assert reacts(edited, tool=None) == [SET]
    misfit = told(*GATED, (CALL.vote("ana"), replace(YES, arguments=bad)))
    assert reacts(misfit) == [SET]


def test_a_later_policy_does_not_loosen_a_question():
    """Who may vote was frozen with the question: a laxer policy decides nothing (I3)."""
    assert reacts(told(*GATED), policy=in_force(ALLOW, version=9)) == [SET]


# ------------------------------------------------------------------------------- what it looks at


async def asked_for(ledger: Ledger, wish: e.ToolRequested) -> Fact:
    await ledger.append(CALL.requested, wish)
    [fact] = await ledger.read(CALL)
    return fact


async def test_it_sees_the_newest_policy_and_the_very_version_of_the_tool(ledger: Ledger):
    """The policy in force is the newest; the schema is the one that the wish names, not a newer."""
    spec = ToolSpec(name="refund", schema=SCHEMA)
    declared = await ledger.declare("acme", spec)
    await ledger.declare("acme", ToolSpec(name="refund", schema='{"type":"object"}'))
    for version, text in ((1, BLOCK), (2, ALLOW)):
        await ledger.append(policy_slot("acme", version), applied(text))
    seen = await Gate().load(ledger, await asked_for(ledger, request(WISH, declared.version)))
    assert seen.policies.workspace == in_force(ALLOW, version=2)
    assert seen.tool.version == declaration(spec)[0]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(applied("[[rule]]\nname = "), id="cut off"),
        pytest.param(applied('[[rule]]\nname="x"\ntools=["*"]\nthen="maybe"\n'), id="wrong"),
    ],
)
async def test_a_policy_that_could_never_be_read_asks_everybody(ledger, policy):
    """Where what was applied cannot be read, people are asked about everything (H5, I4)."""
    await ledger.append(policy_slot("acme", 1), policy)
    declared = await ledger.declare("acme", ToolSpec(name="refund", schema=SCHEMA))
    handed = await asked_for(ledger, request(WISH, declared.version))
    gate = Gate()
    seen = await gate.load(ledger, handed)
    assert isinstance(seen, Case)
    assert seen.policies.workspace.version == 0
    [step] = gate.decide(seen, handed)
    assert isinstance(step, Append)
    assert step.slot == CALL.gated


@pytest.mark.parametrize(
    "name", ["refund", "functions.refund", "re fund", "_policy", "", "*", "a" * 80]
)
async def test_a_tool_that_nobody_declared_is_none(ledger: Ledger, name: str):
    """Whatever a model or a service calls a tool, is denied in words (I4, B17)."""
    handed = await asked_for(ledger, request(e.Wish(tool=name, arguments="{}"), "v1"))
    gate = Gate()
    [step] = gate.decide(await gate.load(ledger, handed), handed)
    assert isinstance(step, Append)
    assert step.slot == CALL.decided
    assert isinstance(step.event, e.Denied)
    assert (
        step.event.reason
        == f"There is no tool {name!r}. Only the tools that were offered can be called."
    )


async def test_a_deadline_waits_for_its_question(ledger: Ledger):
    """A hint that comes before its question is not dropped; it is handed out again (B37, B46)."""
    await ledger.append(CALL.requested, request(WISH))
    with pytest.raises(Unavailable, match="what acme/t1/1-0 waits for cannot be read yet"):
        await Gate().load(ledger, due())
