"""Two policies over one wish, the organisation's and the workspace's: the stricter word counts, and
nothing weakens it.

First the rule as a table, then with a real gate on the log in memory and on a real broker. `Shop`
is what the tests of grants, limits and escalation begin with, too.
"""

from typing import Any

import pytest
from msgspec.structs import replace
from shop import FIRST, REFUND, SCHEMA, SECOND, THIRD, Shop, rule
from stories import REF, Story, request

from ayes.consumers.gate import Gate
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policies import (
    AppliedPolicy,
    Policies,
    PolicyDecision,
    about,
    evaluate,
    required,
)
from ayes.ledger.judging.verdict import Case, question
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, Slot
from ayes.schemas.tools import ToolSpec

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")


# ----------------------------------------------------------------------------------------- the rule

CALL = REF.call("c1")
WISH = request(e.Wish(tool="refund", arguments='{"amount":100}'))


def a_call() -> Call:
    story = Story()
    story.tell(CALL.requested, WISH)
    return call_of(CALL, tuple(story.facts))


def judged(own: str, over: str) -> tuple[Policies, PolicyDecision]:
    both = Policies(
        AppliedPolicy(3, read_policy(own, "workspace.toml")),
        AppliedPolicy(5, read_policy(over, "organisation.toml"), organisation=True),
    )
    return both, evaluate(both, about(a_call(), WISH.arguments))


HIGH = "priority = 1000"
#: What the workspace says, what the organisation says, and which word counts: whose, the rule, and
#: the word.
RULINGS = [
    ("nobody has a rule", "", "", ("workspace", "no rule", "ask")),
    ("the organisation has none for it", rule("own", "allow"), rule("over", "block", tools="wire"),
     ("workspace", "own", "allow")),
    ("the workspace has none for it", "", rule("over", "allow"), ("workspace", "no rule", "ask")),
    ("nor when it is asked about anyway", "", rule("over", "ask"), ("organisation", "over", "ask")),
    ("block beats allow", rule("own", "allow"), rule("over", "block"),
     ("organisation", "over", "block")),
    ("whatever the priority", rule("own", "allow", HIGH), rule("over", "block", "priority = -1000"),
     ("organisation", "over", "block")),
    ("block beats ask", rule("own", "ask", HIGH), rule("over", "block"),
     ("organisation", "over", "block")),
    ("ask beats allow", rule("own", "allow", HIGH), rule("over", "ask"),
     ("organisation", "over", "ask")),
    ("the workspace may be stricter: ask", rule("own", "ask"), rule("over", "allow", HIGH),
     ("workspace", "own", "ask")),
    ("the workspace may be stricter: block", rule("own", "block"), rule("over", "ask", HIGH),
     ("workspace", "own", "block")),
    ("both allow: the organisation's is cited", rule("own", "allow"), rule("over", "allow"),
     ("organisation", "over", "allow")),
    ("both ask: the organisation's is cited", rule("own", "ask"), rule("over", "ask"),
     ("organisation", "over", "ask")),
    ("both block: the organisation's is cited", rule("own", "block"), rule("over", "block"),
     ("organisation", "over", "block")),
    ("a condition of the organisation's that cannot be evaluated", rule("own", "allow", HIGH),
     rule("over", "block", 'when = "args.iban == 1"'), ("organisation", "over", "ask")),
    ("one that does not hold", rule("own", "allow"),
     rule("over", "block", 'when = "args.amount > 500"'), ("workspace", "own", "allow")),
    ("a rule of the organisation's without effect", rule("own", "allow"),
     rule("over", "block", "shadow = true"), ("workspace", "own", "allow")),
    ("a rule for other workspaces", rule("own", "allow"),
     rule("over", "block", 'workspaces = ["bank"]'), ("workspace", "own", "allow")),
    ("a rule for this workspace", rule("own", "allow"),
     rule("over", "block", 'workspaces = ["ac*"]'), ("organisation", "over", "block")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("own", "over", "counts"), [pytest.param(*row, id=name) for name, *row in RULINGS]
)
def test_the_stricter_word_counts(own: str, over: str, counts: tuple[str, str, str]):
    """A workspace can add to what the organisation says, and take nothing from it (B67, I3, I4)."""
    _, ruling = judged(own, over)
    whose = "organisation" if ruling.by.organisation else "workspace"
    assert (whose, ruling.judged.rule.name, ruling.judged.then) == counts
    assert ruling.by.version == {"organisation": 5, "workspace": 3}[whose]


LOST = 'class = "irreversible"'


@pytest.mark.parametrize(
    ("own", "over", "said"),
    [
        (rule("own", "allow"), rule("over", "block", LOST), ("allow", "block")),
        (rule("own", "block", LOST), rule("over", "allow"), ("ask", "block")),
        (rule("own", "allow", LOST, HIGH), rule("over", "ask", LOST), ("ask", "ask")),
        (rule("own", "allow", 'class = "reads"'), "", ("allow", "ask")),
        (rule("own", "allow"), rule("over", "allow", 'class = "reads"'), ("allow", "allow")),
    ],
)
def test_a_rule_of_either_policy_may_speak_of_classes(own: str, over: str, said: tuple[str, str]):
    """The stricter word counts, for what only reads and for what nothing undoes."""
    both, _ = judged(own, over)
    assert both.speak_of_classes
    for tool_class, word in zip(("reads", "irreversible"), said, strict=True):
        call = replace(a_call(), tool_class=tool_class)
        assert evaluate(both, about(call, WISH.arguments)).judged.then == word


def test_where_both_ask_both_must_be_satisfied():
    """Two sets of quorums, for the same votes; where only one policy asks, one set."""
    own = rule(
        "own", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2", 'also = [{voters = ["lea"]}]'
    )
    over = rule("over", "ask", 'voters = ["@security"]')
    both, ruling = judged(own, f'[groups]\nsecurity = ["sam"]\n{over}')
    assert required(both, ruling) == (
        (e.Quorum(("sam",), 1, "@security"),),
        (e.Quorum(("ana", "ben"), 2, "ana ben"), e.Quorum(("lea",), 1, "lea")),
    )
    for other in (rule("own", "allow"), ""):
        both, ruling = judged(other, f'[groups]\nsecurity = ["sam"]\n{over}')
        assert required(both, ruling) == ((e.Quorum(("sam",), 1, "@security"),),)


@pytest.mark.parametrize(
    ("voter", "kept"),
    [("ana", {}), ("ben*", {"benjamin": "ben"}), ("group:finance", {"benjamin": "ben"})],
)
def test_a_question_keeps_the_second_names_of_those_who_may_act(voter: str, kept: dict[str, str]):
    """Any name may turn out to be a member of a group."""
    own = rule("own", "ask", f'voters = ["{voter}"]')
    both, ruling = judged(f'[people]\nben = ["benjamin"]\n{own}', "")
    asking = question(both, ruling, digest=WISH.digest, requester="rita", agents=())
    assert asking.people == kept


def test_what_rules_without_effect_would_have_said_is_kept_of_both():
    """The organisation's first."""
    own = rule("own", "allow") + rule("own soon", "ask", "shadow = true")
    over = rule("over", "allow") + rule("over soon", "block", "shadow = true")
    _, ruling = judged(own, over)
    assert ruling.shadows == (e.Shadow("over soon", "block"), e.Shadow("own soon", "ask"))


def test_the_lower_limit_and_either_list_count():
    """Limits, tools that are never granted, and owners are of both policies together (B68, B76)."""
    both, _ = judged(
        'calls_per_thread = 9\nnever_grant = ["wire"]\n[owners]\n"desk-*" = ["olga"]\n',
        'calls_per_thread = 5\nquestions_per_thread = 2\nnever_grant = ["pay*"]\n[owners]\n"*" = '
        '["otto"]\n',
    )
    assert (both.limit("calls_per_thread"), both.limit("questions_per_thread")) == (5, 2)
    assert [both.grantable(tool) for tool in ("wire", "payout", "refund")] == [False, False, True]
    assert both.behind("desk-7") == ("otto", "olga")
    assert both.behind("") == ()


@pytest.mark.parametrize(
    ("own", "over", "counts"),
    [
        ("", "", 0),
        ("undo_s = 9", "", 9),
        ("", "undo_s = 5", 5),
        ("undo_s = 9", "undo_s = 5", 5),
        ("undo_s = 9", "undo_s = 0", 0),
        ("undo_s = 0", "undo_s = 5", 0),
    ],
)
def test_of_two_times_to_undo_a_vote_the_shorter_counts(own: str, over: str, counts: int):
    """So the organisation can set one for all workspaces, or forbid it with 0."""
    both, ruling = judged(own, f"{over}\n{rule('over', 'ask', 'reasons = ["Twice"]')}")
    asking = question(both, ruling, digest=WISH.digest, requester="rita", agents=())
    assert (asking.undo_s, asking.reasons) == (counts, ("Twice",))


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("may_revoke", ("otto", "ana")),
        ("may_stop", ("otto", "ana")),
        ("may_reconcile", ("otto",)),
        ("may_resume", ("otto",)),
    ],
)
def test_a_workspace_adds_people_only_for_what_makes_things_stricter(
    key: str, named: tuple[str, ...]
):
    """To those whom the organisation names; where it names nobody, the workspace may (I4)."""
    own, over = f'{key} = ["ana"]\n', f'{key} = ["otto"]\n'
    assert judged(own, over)[0].people(key) == named
    assert judged(own, "")[0].people(key) == ("ana",)
    assert judged("", over)[0].people(key) == ("otto",)


# --------------------------------------------------------------------------------- with a real gate


async def test_a_workspace_cannot_allow_what_the_organisation_blocks(shop: Shop):
    """Of whatever priority; the decision names rule, version and whose policy it is (B67, I3)."""
    await shop.open(rule("own", "allow", HIGH), rule("old", "allow"))
    await shop.apply(rule("no refunds", "block", 'reason = "By law."'), ORGANISATION)
    async with shop.gates():
        denied = await shop.judged(e.Denied)
    assert (denied.ground, denied.rule, denied.reason) == ("policy", "no refunds", "By law.")
    assert (denied.policy_version, denied.organisation) == (2, True)
    assert (await shop.ledger.call(FIRST)).gated is None


@pytest.mark.log("memory", "jetstream")
async def test_both_are_satisfied_by_the_same_votes(shop: Shop):
    """Two of the workspace's people and one of security: who is both counts for both, and one set
    alone decides nothing (B39, B67).
    """
    own = rule("own", "ask", 'voters = ["ana", "ben", "sam"]', "votes_needed = 2")
    over = rule("over", "ask", 'voters = ["@security"]', 'reason = "It moves money."')
    async with shop.at_work(own, f'[groups]\nsecurity = ["sam", "sec-*"]\n{over}'):
        for ref in (FIRST, SECOND):
            asked = await shop.ask(ref)
            assert (asked.rule, asked.policy_version, asked.organisation) == ("over", 1, True)
            assert asked.voters == ("sam", "sec-*")
            assert asked.besides == (e.Quorum(("ana", "ben", "sam"), 2, "ana ben sam"),)
        await shop.ledger.reviewer("sam").approve(FIRST)
        await shop.ledger.reviewer("ana").approve(FIRST)
        approved = await shop.decided(e.Approved)
        await shop.ledger.reviewer("ana").approve(SECOND)
        call = await shop.ledger.reviewer("ben").approve(SECOND)
        stands = await shop.ledger.tally(call)
        assert (stands.approvals, stands.needed, stands.verdict) == (0, 1, None)
        await shop.ledger.reviewer("sec-1").approve(SECOND)
        assert (await shop.decided(e.Approved, SECOND)).voters == ("ana", "ben", "sec-1")
    assert (approved.ground, approved.voters, approved.rule) == ("people", ("sam", "ana"), "over")
    assert (approved.policy_version, approved.organisation) == (1, True)


async def test_an_organisation_without_a_rule_for_it_says_nothing(shop: Shop):
    """It does not ask about what it does not mention; the workspace's own policy decides (I3)."""
    async with shop.at_work(rule("freely", "allow"), rule("wires", "block", tools="wire")):
        approved = await shop.judged(e.Approved)
    assert (approved.rule, approved.policy_version, approved.organisation) == ("freely", 1, False)


async def test_an_organisations_policy_that_cannot_be_read_asks_about_everything(shop: Shop):
    """It may have said anything, so nobody is let through, and nobody is turned away (I4, B73)."""
    await shop.open(rule("freely", "allow", HIGH))
    await shop.apply('[[rule]]\nname = "half a', ORGANISATION)
    async with shop.gates():
        asked = await shop.ask()
        assert (asked.rule, asked.policy_version, asked.organisation) == ("unreadable", 0, True)
        assert (asked.reason, asked.voters) == (
            "The policy that was applied cannot be read, so people are asked about everything.",
            ("*",),
        )
        await shop.ledger.reviewer("ana").approve(FIRST)
        approved = await shop.decided(e.Approved)
    assert (approved.rule, approved.policy_version, approved.organisation) == (
        "unreadable",
        0,
        True,
    )


async def test_what_the_organisation_blocks_by_now_is_denied_after_all(shop: Shop):
    """Asked under the workspace's rule, approved by people, blocked by the organisation (I3)."""
    async with shop.at_work(rule("own", "ask")):
        asked = await shop.ask()
        assert (asked.rule, asked.organisation) == ("own", False)
        await shop.apply(rule("closed", "block", 'reason = "Closed."'), ORGANISATION)
        await shop.ledger.reviewer("ana").approve(FIRST)
        denied = await shop.decided(e.Denied)
    assert (denied.ground, denied.rule) == ("policy", "closed")
    assert (denied.policy_version, denied.organisation) == (1, True)
    assert denied.reason == "Approved by people, and blocked by now: Closed."


async def test_an_edit_is_judged_by_both(shop: Shop):
    """What people change it into may take the organisation's people as well (B61, I3)."""
    over = rule("large", "ask", 'when = "args.amount > 500"', 'voters = ["sam"]')
    async with shop.at_work(rule("own", "ask", 'voters = ["ana", "sam"]'), over):
        await shop.request()
        assert (await shop.asked()).organisation is False
        await shop.ledger.reviewer("ana").approve(FIRST, arguments='{"amount":501}')
        await shop.ledger.reviewer("sam").approve(FIRST, arguments='{"amount":501}')
        approved = await shop.decided(e.Approved)
    assert (approved.voters, approved.arguments) == (("ana", "sam"), '{"amount":501}')


async def test_who_owns_the_agent_does_not_count(shop: Shop):
    """Neither who asks nor who is behind the agent; for these alone nobody is asked (B67, B68)."""
    owners = '[owners]\n"desk-*" = ["olga"]\n'
    async with shop.at_work(owners + rule("own", "ask", 'voters = ["ana", "olga", "rita"]')):
        assert (await shop.ask(agent="desk-7")).excluded == ("rita", "olga")
        for name in ("olga", "rita"):
            await shop.cast(name)
        await shop.ledger.reviewer("ana").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("ana",)
        await shop.apply(owners + rule("own", "ask", 'voters = ["olga", "rita"]'))
        denied = await shop.judged(e.Denied, SECOND, agent="desk-7")
        assert (await shop.ask(THIRD, agent="shop-1")).excluded == ("rita",)
    assert denied.ground == "policy"
    assert denied.reason.startswith(
        "It needs 1 more who may vote and count: rita asked for it and olga is behind desk-7."
    )
    assert (await shop.ledger.call(SECOND)).gated is None
    assert (await shop.ledger.call(THIRD)).status is Status.PENDING


async def test_owners_may_be_patterns(shop: Shop):
    """A group has patterns in it, and so may owners: whoever they match does not count (B68)."""
    groups = '[groups]\nteam = ["olga", "dev-*"]\n[owners]\n"desk-*" = ["@team"]\n'
    async with shop.at_work(groups + rule("own", "ask")):
        assert (await shop.ask(agent="desk-7")).excluded == ("rita", "olga", "dev-*")
        await shop.cast("dev-1")
        await shop.ledger.reviewer("ana").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("ana",)


@pytest.mark.parametrize("then", ["allow", "ask"])
async def test_a_tool_that_governs_is_looked_at_each_time(shop: Shop, then: str):
    """It can change what is asked about: no rule lets it run, and no grant covers it (B69)."""
    governing = ToolSpec(name="apply_policy", schema=SCHEMA, governs=True)
    await shop.open(rule("all", then, tools="*"), "", REFUND, governing)
    # Recorded by a program that does not ask the ledger first.
    await shop.ledger.append(
        Slot("shop", "", ("_grant", "ana", "g1", "given")),
        e.Granted(tool="apply_policy", expires_in_s=60),
    )
    async with shop.gates():
        asked = await shop.ask(FIRST, tool="apply_policy")
        assert (asked.rule, asked.voters, asked.votes_needed) == ("all", ("*",), 1)
        await shop.ledger.reviewer("ana").approve(FIRST)
        assert (await shop.decided(e.Approved)).ground == "people"
        await shop.apply(rule("none", "block", tools="*"))
        assert (await shop.judged(e.Denied, SECOND, tool="apply_policy")).ground == "policy"


#: The organisation's rule, the workspace's, and whose time and stages stand in the question.
LEADS = 'groups = {leads = ["lea"]}\n'
HOURS = ("expires_in_s = 3600", 'on_timeout = "escalate"', 'stages = [{voters = ["@leads"]}]')
TIMES = [
    ("the organisation's, where it has one", ("expires_in_s = 60",), HOURS, (60, "deny", ())),
    ("else the workspace's, with its own groups", (), HOURS,
     (3600, "escalate", (e.Stage(("lea",)),))),
    ("with the organisation's groups", HOURS, ("expires_in_s = 60",),
     (3600, "escalate", (e.Stage(("lou",)),))),
    ("none of them has one", (), (), (None, "deny", ())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("over", "own", "time"), [pytest.param(*row, id=name) for name, *row in TIMES]
)
async def test_whose_time_counts_where_both_ask(port, over, own, time):
    """One of the two deadlines is the question's, with what happens then (B36, B37)."""
    shop = Shop(port)
    await shop.open(
        LEADS + rule("own", "ask", *own),
        LEADS.replace('"lea"', '"lou"') + rule("over", "ask", *over),
    )
    async with shop.gates():
        asked = await shop.ask()
    assert (asked.expires_in_s, asked.on_timeout, asked.stages) == time


@pytest.mark.parametrize(("over", "own", "needed"), [(3, 2, 2), (2, 3, 2), (1, 2, 1), (2, 1, 1)])
async def test_the_fewer_noes_end_it_where_both_ask(port, over, own, needed):
    """Whichever of the two would be satisfied with a no ends it: a no is the stricter word (I4)."""
    shop = Shop(port)
    await shop.open(
        rule("own", "ask", f"denials_needed = {own}"),
        rule("over", "ask", f"denials_needed = {over}"),
    )
    async with shop.gates():
        assert (await shop.ask()).denials_needed == needed


@pytest.mark.parametrize(("over", "own"), [(True, True), (True, False), (False, True)])
async def test_the_editor_counts_only_where_each_rule_that_asks_says_so(port, over, own):
    """An edit takes somebody else as soon as one of the two rules wants that (I4)."""
    editing = "editor_counts = true"
    shop = Shop(port)
    await shop.open(
        rule("own", "ask", editing if own else ""), rule("over", "ask", editing if over else "")
    )
    async with shop.gates():
        assert (await shop.ask()).editor_counts is (over and own)


async def test_grants_must_satisfy_both(shop: Shop):
    """The workspace's Ana does not do for the organisation's security; both do (B39, B67)."""
    await shop.open(rule("own", "ask", 'voters = ["ana"]'), rule("over", "ask", 'voters = ["sam"]'))
    await shop.ledger.reviewer("ana").grant("shop/ana/g1", "refund", for_s=60)
    async with shop.gates():
        await shop.ask()
        await shop.ledger.reviewer("sam").grant("shop/sam/g1", "refund", for_s=60)
        approved = await shop.judged(e.Approved, SECOND)
    assert approved.grants == ("ana/g1", "sam/g1")
    assert (approved.rule, approved.organisation) == ("over", True)


async def test_only_the_organisations_glass_can_be_broken_where_its_rule_asks(shop: Shop):
    """A workspace that has a glass to break does not weaken what the organisation asks (B67)."""
    await shop.open(
        rule("own", "ask", 'break_glass = ["wim"]'), rule("over", "ask", 'break_glass = ["sam"]')
    )
    async with shop.gates():
        assert (await shop.ask()).may_break_glass == ("sam",)


async def test_no_policy_is_older_than_what_is_judged_by_it(shop: Shop):
    """A policy applied just after the call was read is seen: a later vote may have been read."""

    class Late(Ledger):
        async def read(self, *refs: Any, must_include: Slot | None = None) -> tuple[Fact, ...]:
            found = await super().read(*refs, must_include=must_include)
            await shop.apply('[[rule]]\nname = "no"\ntools = ["refund"]\nthen = "block"')
            return found

    await shop.open('[[rule]]\nname = "yes"\ntools = ["refund"]\nthen = "allow"')
    await shop.request()
    (wish,) = await shop.ledger.read(FIRST)
    seen = await Gate().load(Late(shop.log, e.Author(kind="gate", name="gate")), wish)
    assert isinstance(seen, Case)
    assert seen.policies.workspace.version == 2
