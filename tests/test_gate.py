"""The gate: what it says to a wish, and when it decides. Tables over values; nothing runs but `react`."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest
from stories import REF, START, Story, question, request

from consumers.gate import Case, Gate, InForce, verdict
from consumers.steps import Append, CancelTimer, LookAgain, SetTimer, Step
from ledger.client import Ledger
from ledger.lifecycle import Call, call_of
from ledger.memory import Memory
from ledger.port import Due, Handed
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.errors import Unavailable
from schemas.policy import Policy, read_policy
from schemas.slots import policy_slot
from schemas.tools import Tool, ToolSpec, declaration

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
DIGEST = request(WISH).digest
SCHEMA = '{"type":"object","properties":{"order":{"type":"string"}},"required":["order"],"additionalProperties":false}'
REFUND = Tool("refund", "v1", e.ToolDeclared(description="", schema=SCHEMA))

ALLOW = '[[rule]]\nname = "freely"\ntools = ["refund"]\nthen = "allow"\nreason = "It is small."\n'
ASK = '[[rule]]\nname = "money"\ntools = ["re*"]\nthen = "ask"\nreason = "It moves money."\nvoters = ["ana", "ops-*"]\nvotes_needed = 2\nexpires_in_s = 900\n'
ASK_TWO = (
    '[[rule]]\nname = "money"\ntools = ["*"]\nthen = "ask"\nvoters = ["ana", "rita"]\nvotes_needed = 2\n'
)
BLOCK = '[[rule]]\nname = "never"\ntools = ["*"]\nthen = "block"\nreason = "Not by a machine."\n'


def in_force(text: str, version: int = 3) -> InForce:
    return InForce(version, read_policy(text, "policy.toml"))


def told(*facts: tuple[object, e.AnyEvent], call=CALL) -> Call:
    story = Story()
    for slot, event in facts:
        story.tell(slot, event)  # type: ignore[arg-type]
    return call_of(call, tuple(story.facts))


def last(call: Call) -> Fact:
    every = [fact for fact in (call.requested, call.gated, *call.votes, call.withdrawn, call.decided) if fact]
    return max(every, key=lambda fact: fact.seq)


def reacts(
    call: Call, handed: Handed | None = None, *, policy: InForce | None = None, tool: Tool | None = REFUND
) -> Sequence[Step]:
    return Gate().react(Case(call, policy or InForce(0, Policy()), tool), handed or last(call))


def invalid(reason: str, rule: str = "freely") -> e.Denied:
    return e.Denied(ground="invalid", rule=rule, policy_version=3, reason=reason)


# ---------------------------------------------------------------------------------------------- the wish

ASKED = e.ApprovalRequested(
    digest=DIGEST,
    rule="money",
    policy_version=3,
    reason="It moves money.",
    voters=("ana", "ops-*"),
    excluded=("rita",),
    votes_needed=2,
    expires_in_s=900,
)
ASKED_BY_NO_RULE = e.ApprovalRequested(
    digest=DIGEST,
    rule="no rule",
    policy_version=3,
    reason="No rule of the policy covers this tool.",
    excluded=("rita",),
)
ASKED_TWO = e.ApprovalRequested(
    digest=DIGEST, rule="money", policy_version=3, voters=("ana", "rita"), votes_needed=2
)
MISFIT = e.Wish(tool="refund", arguments='{"order":17}')
BROKEN = e.Wish(tool="refund", arguments='{"order":')

#: The policy's text, the wish, the tool as it is declared, and what the gate says.
VERDICTS = [
    ("allowed", ALLOW, request(WISH), REFUND,
     e.Approved(digest=DIGEST, ground="policy", rule="freely", policy_version=3, reason="It is small.")),
    ("asked", ASK, request(WISH), REFUND, ASKED),
    ("asked of too few, since one of them asks", ASK_TWO, request(WISH), REFUND,
     e.Denied(ground="policy", rule="money", policy_version=3,
              reason="It needs 1 more who may vote: rita asked for it and does not count.")),
    ("asked of just enough", ASK_TWO, msgspec.structs.replace(request(WISH), requester="cy"), REFUND,
     msgspec.structs.replace(ASKED_TWO, excluded=("cy",))),
    ("asked, and a message supersedes it", f'while_pending = "supersede"\n{ASK}', request(WISH), REFUND,
     msgspec.structs.replace(ASKED, while_pending="supersede")),
    ("asked for ever, and a message supersedes it", 'while_pending = "supersede"', request(WISH), REFUND,
     msgspec.structs.replace(ASKED_BY_NO_RULE, while_pending="supersede")),
    ("asked, and nobody may speak", f'while_pending = "block"\n{ASK}', request(WISH), REFUND,
     msgspec.structs.replace(ASKED, while_pending="block")),
    ("asked for ever, and nobody may speak", 'while_pending = "block"', request(WISH), REFUND,
     msgspec.structs.replace(ASKED_BY_NO_RULE, while_pending="block")),
    ("allowed, whatever is said", f'while_pending = "supersede"\n{ALLOW}', request(WISH), REFUND,
     e.Approved(digest=DIGEST, ground="policy", rule="freely", policy_version=3, reason="It is small.")),
    ("blocked", BLOCK, request(WISH), REFUND,
     e.Denied(ground="policy", rule="never", policy_version=3, reason="Not by a machine.")),
    ("the strictest counts", ALLOW + ASK, request(WISH), REFUND, ASKED),
    ("the strictest of all", ALLOW + BLOCK + ASK, request(WISH), REFUND,
     e.Denied(ground="policy", rule="never", policy_version=3, reason="Not by a machine.")),
    ("no rule asks everybody", "", request(WISH), REFUND, ASKED_BY_NO_RULE),
    ("nobody excluded who is nobody", "", msgspec.structs.replace(request(WISH), requester=""), REFUND,
     msgspec.structs.replace(ASKED_BY_NO_RULE, excluded=())),
    ("an unknown tool, though allowed", ALLOW, request(WISH), None,
     invalid("There is no tool 'refund'. Only the tools that were offered can be called.")),
    ("a name out of the language", ALLOW, request(e.Wish(tool="constructor", arguments="{}")), None,
     invalid("There is no tool 'constructor'. Only the tools that were offered can be called.", "no rule")),
    ("misfit arguments, though asked", ASK, request(MISFIT), REFUND,
     invalid('The arguments of refund do not fit its schema: at /order, the value is not of type "string".', "money")),
    ("malformed arguments, though allowed", ALLOW, request(BROKEN), REFUND,
     invalid("The arguments of refund cannot be read: it is no JSON: Expecting value (at character 10).")),
    ("another digest, though allowed", ALLOW, msgspec.structs.replace(request(WISH), digest="0" * 64), REFUND,
     invalid("The request's digest is not that of its arguments.")),
    ("the digest of other arguments", ALLOW, msgspec.structs.replace(request(WISH), digest=request(MISFIT).digest), REFUND,
     invalid("The request's digest is not that of its arguments.")),
    ("invalid before blocked", BLOCK, request(BROKEN), REFUND,
     invalid("The arguments of refund cannot be read: it is no JSON: Expecting value (at character 10).", "never")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wish", "tool", "says"), [pytest.param(*row, id=name) for name, *row in VERDICTS]
)
def test_what_the_gate_says_to_a_wish(text: str, wish: e.ToolRequested, tool: Tool | None, says: e.Event):
    """What could never run is denied before anybody is asked; else the strictest rule counts (B66, I4, B64, B67, B25)."""
    call = told((CALL.requested, wish))
    assert verdict(call, in_force(text), tool) == says
    assert verdict(call, in_force(text), tool) == says  # judging has no side effects (B65)
    slot = CALL.gated if isinstance(says, e.ApprovalRequested) else CALL.decided
    more = isinstance(says, e.ApprovalRequested) and (says.expires_in_s or says.while_pending == "supersede")
    again = [LookAgain()] if more else []
    assert reacts(call, policy=in_force(text), tool=tool) == [Append(slot, says), *again]


def test_without_a_policy_everybody_is_asked():
    """A workspace that never applied a policy has version 0, which allows nothing (I4, B73)."""
    [step] = reacts(told((CALL.requested, request(WISH))))
    asked = msgspec.structs.replace(ASKED_BY_NO_RULE, policy_version=0)
    assert step == Append(CALL.gated, asked)


# ------------------------------------------------------------------------------------------- the decision

GATED = [(CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=900))]
DEADLINE = START + timedelta(seconds=2 + 900)
YES = e.Voted(verdict="approve", digest=DIGEST)
NO = e.Voted(verdict="deny", digest=DIGEST, reason="wrong order")
BACK = e.Withdrawn(reason="changed my mind")
NEWER = e.Superseded(reason="a new message")


def due(seconds_after: float = 0.0) -> Due:
    return Due(CALL, 7, DEADLINE + timedelta(seconds=seconds_after))


def by_people(**said: object) -> e.Approved:
    return e.Approved(digest=DIGEST, ground="people", rule="money", policy_version=1, voters=("ana",), **said)


DENIED = e.Denied(ground="people", rule="money", policy_version=1, reason="wrong order", voters=("ana",))
EXPIRED = e.Expired(rule="money", policy_version=1, after_s=900)
SET, CANCEL = SetTimer(CALL, DEADLINE), CancelTimer(CALL)
VOTED = [*GATED, (CALL.vote("ana"), YES)]

#: What stands, what was handed, and the steps that follow.
DECISIONS = [
    ("asked: the timer is set", GATED, None, [SET]),
    ("handed out again: and set again", GATED, None, [SET]),
    ("too few votes", [*GATED, (CALL.vote("rita"), YES)], None, [SET]),
    ("a vote decides", VOTED, None, [Append(CALL.decided, by_people()), CANCEL]),
    ("a no decides", [*GATED, (CALL.vote("ana"), NO)], None, [Append(CALL.decided, DENIED), CANCEL]),
    ("the hint came early", GATED, due(-0.01), [SET]),
    ("it is time", GATED, due(), [Append(CALL.decided, EXPIRED), CANCEL]),
    ("long since", GATED, due(86_400), [Append(CALL.decided, EXPIRED), CANCEL]),
    ("a vote in time beats the timer", VOTED, due(), [Append(CALL.decided, by_people()), CANCEL]),
    ("taken back", [*GATED, (CALL.withdrawn, BACK)], None, [Append(CALL.decided, BACK), CANCEL]),
    ("superseded", [*GATED, (CALL.withdrawn, NEWER)], None, [Append(CALL.decided, NEWER), CANCEL]),
    ("taken back, though voted on", [*VOTED, (CALL.withdrawn, BACK)], None, [Append(CALL.decided, BACK), CANCEL]),
    ("taken back before it was judged", [GATED[0], (CALL.withdrawn, BACK)], None, [Append(CALL.decided, BACK)]),
    ("decided: nothing but the timer's end", [*VOTED, (CALL.decided, by_people())], None, [CANCEL]),
    ("decided, and due", [*VOTED, (CALL.decided, by_people())], due(), [CANCEL]),
    ("decided, and a no after it", [*VOTED, (CALL.decided, by_people()), (CALL.vote("ben"), NO)], None, [CANCEL]),
    ("decided, and taken back after it", [*VOTED, (CALL.decided, by_people()), (CALL.withdrawn, BACK)], None, [CANCEL]),
    ("decided by policy: nothing", [GATED[0], (CALL.decided, by_people())], None, []),
    ("a vote on nothing", [(CALL.vote("ana"), YES)], None, []),
    ("a withdrawal of nothing", [(CALL.withdrawn, BACK)], None, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "handed", "follows"), [pytest.param(*row, id=name) for name, *row in DECISIONS]
)
def test_when_the_gate_decides(facts, handed: Handed | None, follows: Sequence[Step]):
    """Decided once, by people, the requester's side or the broker's clock; then never again (B27, B29, B36, B38, B46, I5)."""
    call = told(*facts)
    assert list(reacts(call, handed)) == list(follows)
    assert list(reacts(call, handed)) == list(follows)


def test_the_writers_clock_decides_nothing():
    """What the writers' clocks say about an expired call changes nothing: only when it was recorded counts (B36)."""
    voted = msgspec.structs.replace(YES, at=START)
    story = Story()
    for slot, event in GATED:
        story.tell(slot, event)
    story.facts.append(Fact(3, DEADLINE, CALL.vote("ana"), voted))
    call = call_of(CALL, tuple(story.facts))
    assert reacts(call) == [Append(CALL.decided, EXPIRED), CANCEL]


def test_what_never_expires_has_no_timer():
    """Without a deadline there is nothing to set and nothing to cancel: a slow person fails nothing (B45, B51)."""
    call = told(GATED[0], (CALL.gated, question(WISH)))
    assert reacts(call) == ()
    assert reacts(call, due(10**6)) == ()


def test_an_edit_must_fit_the_schema():
    """Edited arguments that fit are what is approved; misfit ones, or ones that nobody can check, are no vote (I4, B61)."""
    good, bad = '{"order":"A-18"}', '{"order":18}'
    edited = told(*GATED, (CALL.vote("ana"), msgspec.structs.replace(YES, arguments=good)))
    digest = call_digest("refund", "v1", good)
    approved = msgspec.structs.replace(by_people(), digest=digest, arguments=good)
    assert reacts(edited) == [Append(CALL.decided, approved), CANCEL]
    assert reacts(edited, tool=None) == [SET]
    misfit = told(*GATED, (CALL.vote("ana"), msgspec.structs.replace(YES, arguments=bad)))
    assert reacts(misfit) == [SET]


def test_a_later_policy_does_not_loosen_a_question():
    """Who may vote was frozen with the question: a policy that allows everything by now decides nothing (I3)."""
    assert reacts(told(*GATED), policy=in_force(ALLOW, version=9)) == [SET]


# ------------------------------------------------------------------------------- what it looks at


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Memory(), e.Author(kind="service", name="tests"))


async def asked_for(ledger: Ledger, wish: e.ToolRequested) -> Fact:
    await ledger.append(CALL.requested, wish)
    [fact] = await ledger.read(CALL)
    return fact


async def test_it_sees_the_newest_policy_and_the_very_version_of_the_tool(ledger: Ledger):
    """The policy in force is the newest; the schema is the one that the wish names, not a newer one."""
    spec = ToolSpec(name="refund", schema=SCHEMA)
    declared = await ledger.declare("acme", spec)
    await ledger.declare("acme", ToolSpec(name="refund", schema='{"type":"object"}'))
    for version, text in ((1, BLOCK), (2, ALLOW)):
        await ledger.append(policy_slot("acme", version), e.PolicyApplied(text=text, digest=""))
    case = await Gate().look(ledger, await asked_for(ledger, request(WISH, declared.version)))
    assert case.in_force == in_force(ALLOW, version=2)
    assert case.tool is not None
    assert case.tool.version == declaration(spec)[0]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(e.PolicyApplied(text="[[rule]]\nname = ", digest=""), id="cut off"),
        pytest.param(
            e.PolicyApplied(text='[[rule]]\nname="x"\ntools=["*"]\nthen="maybe"\n', digest=""), id="wrong"
        ),
    ],
)
async def test_a_policy_that_cannot_be_read_asks_everybody(ledger: Ledger, policy: e.PolicyApplied):
    """Not even what the policy before it allowed is allowed (I4)."""
    await ledger.append(policy_slot("acme", 1), e.PolicyApplied(text=ALLOW, digest=""))
    await ledger.append(policy_slot("acme", 2), policy)
    declared = await ledger.declare("acme", ToolSpec(name="refund", schema=SCHEMA))
    handed = await asked_for(ledger, request(WISH, declared.version))
    gate = Gate()
    case = await gate.look(ledger, handed)
    assert case.in_force == InForce(2, Policy())
    [step] = gate.react(case, handed)
    assert isinstance(step, Append)
    assert step.slot == CALL.gated


@pytest.mark.parametrize("name", ["refund", "functions.refund", "re fund", "_policy", "", "*", "a" * 80])
async def test_a_tool_that_nobody_declared_is_none(ledger: Ledger, name: str):
    """Whatever a model or a service calls a tool, even what no tool can be called, is denied in words (I4, B17)."""
    handed = await asked_for(ledger, request(e.Wish(tool=name, arguments="{}"), "v1"))
    gate = Gate()
    [step] = gate.react(await gate.look(ledger, handed), handed)
    assert isinstance(step, Append)
    assert step.slot == CALL.decided
    assert isinstance(step.event, e.Denied)
    assert step.event.reason == f"There is no tool {name!r}. Only the tools that were offered can be called."


async def test_a_deadline_waits_for_its_question(ledger: Ledger):
    """A hint that comes before its question can be read is not dropped; it is handed out again (B37, B46)."""
    await ledger.append(CALL.requested, request(WISH))
    with pytest.raises(Unavailable, match="the question of acme/t1/1-0 cannot be read yet"):
        await Gate().look(ledger, due())
