"""Who is the same person as whom: requesters, their accounts, two accounts of one reviewer, and
those who edit.
"""

import msgspec
import pytest
from shop import conclude

from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.judging import policy_proposals as proposals
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.judging.votes import counted
from ayes.ledger.lifecycle import Status
from ayes.ledger.objections import may_reconcile, may_revoke
from ayes.projections.refusal_texts import tool_not_run
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES, encode
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import BadFile, NotAllowed, TooLarge
from ayes.schemas.limits import MAX_REASON, MAX_TEXT, cut, fits
from ayes.schemas.people import is_excluded
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, GrantRef, policy_slot
from ayes.schemas.tools import ToolSpec

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")
SPEC = ToolSpec(name="refund", description="Pays back.", schema='{"type":"object"}')
CALL = CallRef.parse("shop/order-17/refund-1")
ASK = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\n'
PEOPLE = '[people]\nben = ["ben@corp.example", "slack:U17", "benjamin"]\n'


@pytest.mark.parametrize(
    ("name", "is_one"), [("ops[1]-night", True), ("ops1-night", False), ("ops[2]-night", False)]
)
def test_a_bracket_in_a_pattern_is_a_bracket(name, is_one):
    """An excluded `ops[1]-*` is no class of characters, which would exclude others."""
    assert is_excluded(name, ["ops[1]-*"]) is is_one


async def asked(
    ledger: Ledger, policy: str, *, requester: str = "rita", over: str = "", **more
) -> Call:
    """A call, as the gate has judged it."""
    for workspace, text in (("shop", policy), (ORGANISATION, over)):
        if text:
            await ledger.try_append(policy_slot(workspace, 1), applied(text))
    await ledger.declare("shop", SPEC)
    await ledger.request(CALL, "refund", '{"amount":1}', requester=requester, **more)
    return await settled(ledger)


async def voted(ledger: Ledger, name: str, verdict: str = "approve", **more) -> None:
    """Record a vote past the client, which asks whether it may."""
    digest = (await ledger.call(CALL)).approval_request.digest
    await ledger.try_append(CALL.vote(name), e.Voted(verdict=verdict, digest=digest, **more))


async def settled(ledger: Ledger, ref: CallRef = CALL) -> Call:
    await conclude(ledger, ref)
    return await ledger.call(ref)


# --------------------------------------------------------------------------------------- requesters


@pytest.mark.parametrize(
    "requester",
    ["ben", "Ben", "ben ", "ben@corp.example", "BEN@CORP.example", "slack:U17", "benjamin"],
)
async def test_no_account_of_the_requester_counts(ledger: Ledger, requester: str):
    """By any account of theirs: neither the person nor a second name of theirs (C5, R2, B40)."""
    call = await asked(ledger, PEOPLE + ASK, requester=requester)
    assert set(call.approval_request.excluded) >= {"ben", "benjamin"}
    assert call.approval_request.people == {"benjamin": "ben"}
    for name in ("ben", "BEN", "benjamin"):
        with pytest.raises(NotAllowed, match=f"{name} asked for"):
            await ledger.reviewer(name).approve(CALL)
        await voted(ledger, name)
    assert (await settled(ledger)).status is Status.PENDING
    await ledger.reviewer("ana").approve(CALL)
    assert (await settled(ledger)).status is Status.APPROVED


UNMAPPED = ["eve@corp.example", "user:ben", "a?a", "*", "[ab]*", "ben.smith"]


@pytest.mark.parametrize("requester", UNMAPPED)
@pytest.mark.parametrize("then", ["ask", "allow"])
async def test_a_requester_who_could_not_be_kept_from_voting_is_denied(ledger, requester, then):
    """Nobody knows whose the account is. A pattern is one such, and excludes nobody (C5, M5)."""
    call = await asked(ledger, PEOPLE + ASK.replace('"ask"', f'"{then}"'), requester=requester)
    assert isinstance(call.decided.event, e.Denied)
    assert call.decided.event.reason == (
        f"The requester {requester!r} could not be a reviewer, so nobody could be kept from "
        "approving their own "
        "request. Name a reviewer, or list the account below [people] in the policy, or write "
        "unmapped_requesters = "
        '"exclude_nobody" there.'
    )


async def test_an_unmapped_requester_may_exclude_nobody(ledger: Ledger):
    """Where requesters are customers, who are never reviewers, the policy says so."""
    call = await asked(ledger, 'unmapped_requesters = "exclude_nobody"\n' + ASK, requester="*")
    assert call.approval_request.excluded == ()
    await ledger.reviewer("ana").approve(CALL)
    assert (await settled(ledger)).status is Status.APPROVED


async def test_the_organisations_word_on_accounts_beats_the_workspaces(ledger: Ledger):
    """Where both name a person for an account, neither counts; a workspace lets nobody through."""
    own = 'unmapped_requesters = "exclude_nobody"\n[people]\nana = ["x@corp.example"]\n' + ASK
    over = 'unmapped_requesters = "deny"\n[people]\nben = ["x@corp.example"]\n'
    call = await asked(ledger, own, over=over, requester="x@corp.example")
    assert call.approval_request.excluded == ("ben", "ana")
    both = Policies(
        AppliedPolicy(1, read_policy(own, "own")),
        AppliedPolicy(1, read_policy(over, "over"), organisation=True),
    )
    assert not both.is_known("y@corp.example")
    assert Policies(both.workspace).is_known("y@corp.example")


async def test_whose_seat_an_account_fills_the_organisation_says(ledger: Ledger):
    """A workspace that gives the account to somebody else moves no vote to them."""
    own = '[people]\nana = ["shared"]\n' + ASK
    call = await asked(ledger, own, over='[people]\nben = ["shared"]\n')
    assert call.approval_request.people == {"shared": "ben"}


WRONG = [
    ('[people]\n"a.b" = ["x"]\n', "a.b"),
    ('[people]\nben = ["x@y"]\nana = ["X@y"]\n', "belongs to 'ben' too"),
    ('[people]\nben = ["ana"]\nana = ["x"]\n', "belongs to 'ana' too"),
    ('[people]\nben = ["x"]\nBen = ["y"]\n', "are the same name"),
    ('[people]\nben = [" "]\n', "an account needs a name"),
    ('may_revoke = ["@nobody"]\n', "there is no group 'nobody'"),
    ('[[rule]]\nname = "a"\ntools = ["*"]\nthen = "allow"\neditor_counts = true\n',
     "only a rule with then"),
    ('unmapped_requesters = "allow"\n', "unmapped_requesters"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_wrong_table_of_people_is_refused(text: str, sentence: str):
    """With the line and what is wrong."""
    with pytest.raises(BadFile) as raised:
        read_policy(text, "policy.toml")
    assert sentence in str(raised.value)


async def test_two_accounts_of_one_person_count_once(ledger: Ledger):
    """Votes of ben and benjamin are one person's, in whichever order (B39)."""
    call = await asked(ledger, PEOPLE + ASK + "votes_needed = 2\n")
    assert call.approval_request is not None
    for name in ("benjamin", "ben"):
        await voted(ledger, name)
    call = await settled(ledger)
    assert call.status is Status.PENDING
    assert (await ledger.tally(call)).approvals == 1
    await ledger.reviewer("ana").approve(CALL)
    assert (await settled(ledger)).status is Status.APPROVED


@pytest.mark.parametrize("order", [("ben", "benjamin"), ("benjamin", "ben")])
async def test_one_person_denies_once_by_whichever_accounts(ledger: Ledger, order):
    """Where two must deny, both of one person's accounts are one of them (B39)."""
    call = await asked(ledger, PEOPLE + ASK + "denials_needed = 2\n")
    for name in order:
        await voted(ledger, name, "deny")
    call = await settled(ledger)
    assert [one.reviewer for one in counted(call)] == [order[0]]
    assert call.status is Status.PENDING
    await ledger.reviewer("ana").deny(CALL)
    assert (await settled(ledger)).status is Status.DENIED


@pytest.mark.parametrize("own", ["", '[people]\nana = ["carl"]\n'])
async def test_a_workspaces_table_fills_nobodys_seat(ledger: Ledger, own: str):
    """I7: it says that carl is ana, so that ana could sit where the organisation asks carl. His
    seat is filled by his own vote alone; that the two are one may only exclude.
    """
    over = (
        '[[rule]]\nname = "both"\ntools = ["*"]\nthen = "ask"\nvoters = ["ana", "ben"]\n'
        '[[rule.also]]\nvoters = ["carl"]\n'
    )
    await asked(ledger, own, over=over)
    for name in ("ana", "ben"):
        await voted(ledger, name)
    assert (await settled(ledger)).status is not Status.APPROVED
    if not own:
        await ledger.reviewer("carl").approve(CALL)
        assert (await settled(ledger)).status is Status.APPROVED


async def test_a_workspaces_table_lets_nobody_reconcile(ledger: Ledger):
    """I7: its operator says that his account is ana's. He may not say what became of a call that
    the organisation asked ana about. To revoke it only makes things stricter.
    """
    own = '[people]\nana = ["eve"]\n'
    over = 'may_revoke = ["eve"]\n' + ASK + 'voters = ["ana", "ben"]\n'
    await asked(ledger, own, over=over)
    await ledger.reviewer("ben").approve(CALL)
    call = await settled(ledger)
    assert not may_reconcile(call, "eve")
    assert may_reconcile(call, "ana")
    assert may_revoke(call, "eve")


async def test_the_organisations_deny_is_lifted_by_its_own_table_alone(ledger: Ledger):
    """I7: it wants to know each requester. A workspace that says that the account is some person's
    makes nobody known to the organisation.
    """
    own = '[people]\nzoe = ["mallory@corp.example"]\n' + ASK
    over = 'unmapped_requesters = "deny"\n'
    call = await asked(ledger, own, over=over, requester="mallory@corp.example")
    assert isinstance(call.decided.event, e.Denied)


async def test_a_question_that_one_person_would_have_to_answer_twice_is_not_asked(ledger: Ledger):
    """Two accounts of one person are no two voters (B39, B34)."""
    call = await asked(ledger, PEOPLE + ASK + 'voters = ["ben", "benjamin"]\nvotes_needed = 2\n')
    assert isinstance(call.decided.event, e.Denied)
    assert call.decided.event.reason.startswith("It needs 1 more who may vote and count")


async def test_the_requesters_own_grant_lets_nothing_run(ledger: Ledger):
    """Given under another of their names, and spelled otherwise (C5, B40)."""
    await ledger.declare("shop", SPEC)
    for giver in ("Benjamin", "BEN"):
        granted = e.Granted(tool="refund", expires_in_s=3600, uses=5)
        await ledger.try_append(GrantRef("shop", giver, "mine").given, granted)
    call = await asked(ledger, PEOPLE + ASK, requester="ben@corp.example")
    assert call.status is Status.PENDING


async def test_who_may_revoke_and_reconcile_is_frozen(ledger: Ledger):
    """In the question; and where nobody is asked, in the approval, with all who asked (R3, M3)."""
    keys = 'may_revoke = ["sam"]\nmay_reconcile = ["sue"]\n'
    call = await asked(ledger, keys + PEOPLE + ASK)
    question = call.approval_request
    assert (question.may_revoke, question.may_reconcile) == (("sam",), ("sue",))
    allowed = Ledger(Memory(), ledger.author)
    policy = f'{keys}{PEOPLE}[owners]\n"desk" = ["olga"]\n' + ASK.replace('"ask"', '"allow"')
    call = await asked(allowed, policy, requester="slack:U17", agent="desk")
    approved = call.decided.event
    assert isinstance(approved, e.Approved)
    assert (approved.may_revoke, approved.may_reconcile) == (("sam",), ("sue",))
    assert approved.excluded == ("ben", "benjamin", "olga")


# ------------------------------------------------------------------------------------------ editors

EDIT = '{"amount":1000000}'


async def test_whoever_edits_is_not_the_only_vote_for_it(ledger: Ledger):
    """One reviewer turned 1 into 1,000,000 and approved it alone, and it ran. Somebody else must
    agree to exactly these bytes (H7).
    """
    await asked(ledger, ASK)
    call = await ledger.reviewer("ana").approve(CALL, arguments=EDIT)
    assert (await settled(ledger)).status is Status.PENDING
    stands = await ledger.tally(call)
    assert (stands.approvals, stands.needed, stands.edits) == (0, 1, {EDIT: "ana"})
    await ledger.reviewer("ben").approve(CALL, arguments=EDIT + " ")
    assert (await settled(ledger)).status is Status.PENDING
    await ledger.reviewer("cara").approve(CALL, arguments=EDIT)
    call = await settled(ledger)
    assert (call.status, call.arguments) == (Status.APPROVED, EDIT)


async def test_the_call_as_it_was_asked_can_still_be_approved(ledger: Ledger):
    """An edit to which nobody agrees keeps nobody from approving what was asked for."""
    await asked(ledger, ASK)
    await ledger.reviewer("ana").approve(CALL, arguments=EDIT)
    await ledger.reviewer("ben").approve(CALL)
    call = await settled(ledger)
    assert (call.status, call.arguments) == (Status.APPROVED, '{"amount":1}')


async def test_an_edit_that_nobody_could_agree_to_is_refused(ledger: Ledger):
    """Where the editor is the only voter; recorded all the same, it ends with a no (H7, B37)."""
    call = await asked(ledger, ASK + 'voters = ["ana"]\n')
    with pytest.raises(NotAllowed, match="the person who edits does not count, and too few others"):
        await ledger.reviewer("ana").approve(CALL, arguments=EDIT)
    assert call.approval_request is not None
    await voted(ledger, "ana", arguments=EDIT)
    assert (await settled(ledger)).status is Status.DENIED


async def test_a_rule_may_let_the_editor_count(ledger: Ledger):
    """`editor_counts = true`; and a question of an earlier gate, which did not say, stays."""
    await asked(ledger, ASK + "editor_counts = true\n")
    await ledger.reviewer("ana").approve(CALL, arguments=EDIT)
    assert (await settled(ledger)).status is Status.APPROVED
    assert msgspec.json.decode(
        b'{"type":"ApprovalRequested","digest":"d","rule":"r","policy_version":1}',
        type=e.ApprovalRequested,
    ).editor_counts


# ------------------------------------------------------------------------------------------- limits

LONG = "x" * 200_000


async def test_reasons_that_are_joined_stay_within_one_fact(ledger: Ledger):
    """Three denials of 200 KB from other programs: recorded, and said to be cut (R12, B47)."""
    call = await asked(ledger, ASK + "denials_needed = 3\n")
    assert call.approval_request is not None
    for name in ("ana", "ben", "cara"):
        await voted(ledger, name, "deny", reason=f"{name} {LONG}")
    call = await settled(ledger)
    assert isinstance(call.decided.event, e.Denied)
    assert call.decided.event.reason.endswith("… (cut)")
    assert len(encode(tool_not_run(call))) < MAX_BYTES


async def test_a_long_withdrawal_ends_the_call(ledger: Ledger):
    """512 KB of reason, by another program, is copied as far as it fits (R12)."""
    await asked(ledger, ASK)
    await ledger.try_append(CALL.withdrawn, e.Withdrawn(reason="y" * 523_900))
    call = await settled(ledger)
    assert call.status is Status.WITHDRAWN
    assert len(encode(tool_not_run(call))) < MAX_BYTES


async def test_a_long_answer_ends_the_call_and_a_long_edit_does_not_count(ledger: Ledger):
    """A model's answer is cut and says so; bytes that would run are never cut (R12, I3)."""
    call = await asked(ledger, ASK + "editor_counts = true\n")
    assert call.approval_request is not None
    edit = f'{{"a":"{"x" * 523_700}"}}'
    await voted(ledger, "ana", arguments=edit)
    assert (await settled(ledger)).status is Status.PENDING
    await voted(ledger, "ben", "answer", answer="z" * 523_900)
    call = await settled(ledger)
    assert call.status is Status.ANSWERED
    assert tool_not_run(call).text.endswith("… (cut)")


async def test_what_is_too_long_is_refused_where_it_is_written(ledger: Ledger):
    """In a sentence that names the limit; nothing is recorded."""
    await asked(ledger, ASK)
    before = await ledger.log.last_seq()
    long, longer = "x" * MAX_REASON, "x" * MAX_TEXT
    for what, verdict, more in (
        ("the reason", "deny", {"reason": long}),
        ("the answer", "answer", {"answer": longer}),
        ("the edited arguments", "approve", {"arguments": longer}),
    ):
        with pytest.raises(TooLarge, match=f"{what} has [0-9,]+ bytes, over the limit"):
            await ledger.reviewer("ana").vote(CALL, Ballot(verdict, **more))
    with pytest.raises(TooLarge, match="the reason has"):
        await ledger.withdraw(CALL, long)
    assert await ledger.log.last_seq() == before


@pytest.mark.parametrize(
    "text", ["x" * 50_000, "\x00" * 9_000, "ü" * 9_000, "\ud800" * 30_000, '"' * 9_000]
)
def test_a_cut_text_is_as_long_as_the_limit_lets_it(text: str):
    """Counted in bytes on the wire."""
    short = cut(text, MAX_REASON)
    assert fits(short, MAX_REASON)
    assert short.endswith("… (cut)")
    assert not fits(text[: len(short)] + "……………… (cut)", MAX_REASON)


# ---------------------------------------------------------------------------------------- proposals

OTHER = ASK.replace('"ask"', '"allow"')


async def proposed(ledger: Ledger, *, requester: str = "rita", base: int = 0) -> CallRef:
    await ledger.declare("shop", proposals.APPLY)
    ref = proposals.proposal_ref("shop", base, text_digest(OTHER))
    await ledger.request(
        ref, proposals.APPLY.name, proposals.arguments(OTHER, base), requester=requester
    )
    await settled(ledger, ref)
    return ref


async def test_a_version_counts_only_as_it_was_approved(ledger: Ledger):
    """By somebody else, before it was applied, with this very text, as this very version (H7)."""
    await ledger.try_append(policy_slot("shop", 1), applied(OTHER))
    ref = await proposed(ledger, base=1)
    named = msgspec.structs.replace(applied(OTHER), proposal=str(ref))

    async def verdict(version: int, event: e.PolicyApplied) -> str | None:
        slot = policy_slot("shop", version)
        await ledger.try_append(slot, event)
        [fact] = await ledger.read(slot)
        proposal = proposals.named_proposal(fact)
        return proposals.problem(fact, await ledger.call(proposal) if proposal else None)

    assert (await ledger.call(ref)).status is Status.PENDING, (
        "a rule that allows everything lets no policy through"
    )
    [first] = await ledger.read(policy_slot("shop", 1))
    assert proposals.problem(first, None) == "no proposal is named that was ever requested"
    [early] = [msgspec.structs.replace(first, event=named, slot=policy_slot("shop", 2))]
    assert proposals.problem(early, await ledger.call(ref)) == f"{ref} was not approved before it"
    await ledger.reviewer("ana").approve(ref)
    await settled(ledger, ref)
    assert await verdict(2, named) is None
    assert await verdict(3, named) == f"{ref} proposes another version"
    changed = msgspec.structs.replace(named, text=ASK)
    assert await verdict(4, changed) == f"{ref} proposes another text"
    assert await verdict(5, msgspec.structs.replace(named, proposal="shop/t/no")) is not None


async def test_an_organisation_can_require_that_policies_are_approved(ledger: Ledger):
    """What an operator applies alone is void from then on, what was applied before stays, and an
    approved one counts (H7).
    """
    await ledger.try_append(policy_slot("shop", 1), applied(ASK))
    await ledger.try_append(
        policy_slot(ORGANISATION, 1), applied("policies_need_approval = true\n")
    )
    assert (await ledger.policies("shop")).workspace.version == 1, (
        "it was applied before approval was required"
    )
    await ledger.try_append(policy_slot("shop", 2), applied(OTHER))
    assert (await ledger.policies("shop")).workspace.version == 1
    [alarm] = await ledger.alarms()
    assert (alarm.subject, "no proposal is named" in alarm.why) == ("ledger.shop._policy.2", True)
    ref = await proposed(ledger, base=2)
    third = msgspec.structs.replace(applied(OTHER), proposal=str(ref))
    await ledger.reviewer("ana").approve(ref)
    await settled(ledger, ref)
    await ledger.try_append(policy_slot("shop", 3), third)
    assert (await ledger.policies("shop")).workspace.version == 3
    assert await ledger.alarms() == ()
    # A later policy of the organisation makes nothing count that was void when it was applied.
    await ledger.try_append(policy_slot("shop", 4), applied(ASK))
    await ledger.try_append(policy_slot(ORGANISATION, 2), applied(""))
    again = Ledger(ledger.log, ledger.author)
    assert (await again.policies("shop")).workspace.version == 3
