"""Counting votes: tables of who said what, and what it comes to."""

from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stories import REF, START, Story, question, request

from ayes.ledger.call import Call
from ayes.ledger.judging.votes import (
    Tally,
    asked,
    can_help,
    count_votes,
    counted,
    empty_seats,
)
from ayes.ledger.objections import may_revoke, refused_vote
from ayes.ledger.people import people_of
from ayes.ledger.validity import call_of, voids
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.events import Quorum, Stage
from ayes.schemas.limits import MAX_TEXT
from ayes.schemas.quorums import filled, met
from ayes.schemas.slots import account_slot, groups_slot, person_slot

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
ASKED = request(WISH)
EDIT, OTHER_EDIT, MISFIT = '{"order":"A-18"}', '{"order": "A-18"}', '{"order":18}'


def fits(arguments: str):
    """Nobody else must agree to an edit; but one may not run."""
    return None if arguments == MISFIT else ()


def vote(verdict: str = "approve", **rest: object) -> e.Voted:
    return msgspec.convert(
        {"type": "Voted", "verdict": verdict, "digest": ASKED.digest, **rest}, e.Voted
    )


def approved(*voters: str, arguments: str | None = None, reason: str = "") -> e.Approved:
    runs = WISH.arguments if arguments is None else arguments
    digest = call_digest("refund", "v1", runs)
    return e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1,
        voters=voters, arguments=arguments, reason=reason,
    )  # fmt: skip


def denied(*voters: str, reason: str = "") -> e.Denied:
    return e.Denied(ground="people", rule="money", policy_version=1, reason=reason, voters=voters)


def answered(*voters: str, answer: str, is_error: bool = False) -> e.Answered:
    return e.Answered(
        answer=answer, is_error=is_error, rule="money", policy_version=1, voters=voters
    )


def waiting(
    *votes: tuple[str, e.Voted],
    needed: int = 1,
    voters: tuple[str, ...] = ("*",),
    after_s: float = 0,
) -> Call:
    """A call with these votes; rita asked for it. `after_s`: how long the first one waited."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    asking = replace(question(WISH, expires_in_s=60), votes_needed=needed, voters=voters)
    gated = story.tell(CALL.gated, asking)
    for number, (reviewer, voted) in enumerate(votes):
        at = gated.recorded_at + timedelta(seconds=after_s + number)
        story.facts.append(Fact(gated.seq + 1 + number, at, CALL.vote(reviewer), voted))
    return call_of(CALL, tuple(story.facts))


def told(asking: dict[str, object], *steps: tuple[str, e.Voted] | e.Escalated) -> Call:
    """A call with this question, and what happened then, a second apart."""
    story, stage = Story(), 0
    story.tell(CALL.requested, ASKED)
    story.tell(CALL.gated, replace(question(WISH), **asking))
    for step in steps:
        if isinstance(step, e.Escalated):
            stage += 1
            story.tell(CALL.escalated(stage), step)
        else:
            story.tell(CALL.vote(step[0]), step[1])
    return call_of(CALL, tuple(story.facts))


def everything(call: Call) -> tuple[Fact, ...]:
    return tuple(
        fact for fact in (call.requested, call.gated, *call.votes, *call.escalated) if fact
    )


YES, NO = vote(reason="fine"), vote("deny", reason="wrong order")

#: Votes in the order in which they were recorded, how many are needed, and what they come to.
TALLIES = [
    ("nobody", [], 1, Tally(0, 1, None)),
    ("one of one", [("ana", YES)], 1, Tally(1, 1, approved("ana", reason="fine"), ("ana",))),
    ("one of two", [("ana", YES)], 2, Tally(1, 2, None, ("ana",))),
    ("two of two", [("ana", YES), ("ben", vote())], 2,
     Tally(2, 2, approved("ana", "ben", reason="fine"), ("ana", "ben"))),
    ("the requester does not count", [("rita", YES)], 1, Tally(0, 1, None)),
    ("nor towards two", [("rita", YES), ("ana", YES)], 2, Tally(1, 2, None, ("ana",))),
    ("not even to say no", [("rita", NO)], 1, Tally(0, 1, None)),
    ("who comes after the quorum is not named", [("ana", YES), ("ben", YES)], 1,
     Tally(1, 1, approved("ana", reason="fine"), ("ana",))),
    ("one no is enough", [("ana", YES), ("ben", NO)], 2,
     Tally(1, 2, denied("ben", reason="wrong order"), ("ana",))),
    ("a no after the quorum is too late", [("ana", YES), ("ben", NO)], 1,
     Tally(1, 1, approved("ana", reason="fine"), ("ana",))),
    ("about other bytes", [("ana", vote(digest="0" * 64))], 1, Tally(0, 1, None)),
    ("a no about other bytes", [("ana", vote("deny", digest="0" * 64))], 1, Tally(0, 1, None)),
    ("an edit", [("ana", vote(arguments=EDIT))], 1,
     Tally(1, 1, approved("ana", arguments=EDIT), ("ana",))),
    ("two agree on an edit", [("ana", vote(arguments=EDIT)), ("ben", vote(arguments=EDIT))], 2,
     Tally(2, 2, approved("ana", "ben", arguments=EDIT), ("ana", "ben"))),
    ("an edit and none are two things", [("ana", vote(arguments=EDIT)), ("ben", YES)], 2,
     Tally(1, 2, None, ("ben",))),
    ("two spellings of one edit are two things",
     [("ana", vote(arguments=EDIT)), ("ben", vote(arguments=OTHER_EDIT))], 2,
     Tally(1, 2, None, ("ben",))),
    ("handing back the same bytes is no edit",
     [("ana", vote(arguments=WISH.arguments)), ("ben", YES)], 2,
     Tally(2, 2, approved("ana", "ben"), ("ana", "ben"))),
    ("a misfit edit does not count", [("ana", vote(arguments=MISFIT))], 1, Tally(0, 1, None)),
    ("and spoils nothing", [("ana", vote(arguments=MISFIT)), ("ben", YES)], 1,
     Tally(1, 1, approved("ben", reason="fine"), ("ben",))),
    ("an edit that is too long does not count",
     [("ana", vote(arguments=f'"{"x" * MAX_TEXT}"'))], 1, Tally(0, 1, None)),
    ("a no with a misfit edit is still a no", [("ana", vote("deny", arguments=MISFIT))], 1,
     Tally(0, 1, denied("ana"))),
    ("an answer", [("ana", vote("answer", answer="It left."))], 1,
     Tally(1, 1, answered("ana", answer="It left."), ("ana",))),
    ("an empty answer", [("ana", vote("answer"))], 1,
     Tally(1, 1, answered("ana", answer=""), ("ana",))),
    ("an answer that is an error", [("ana", vote("answer", answer="no", is_error=True))], 1,
     Tally(1, 1, answered("ana", answer="no", is_error=True), ("ana",))),
    ("the same text, once as an error",
     [("ana", vote("answer", answer="no", is_error=True)), ("ben", vote("answer", answer="no"))],
     2, Tally(1, 2, None, ("ben",))),
    ("two answers", [("ana", vote("answer", answer="yes")), ("ben", vote("answer", answer="no"))],
     2, Tally(1, 2, None, ("ben",))),
    ("an answer is no approval", [("ana", vote("answer")), ("ben", YES)], 2,
     Tally(1, 2, None, ("ben",))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "needed", "comes_to"), [pytest.param(*row, id=name) for name, *row in TALLIES]
)
def test_what_votes_come_to(votes: list[tuple[str, e.Voted]], needed: int, comes_to: Tally):
    """Distinct people, asked, about these bytes; one denial decides (B39, B61, B68, I2, B32)."""
    assert count_votes(waiting(*votes, needed=needed), fits) == comes_to


def test_only_those_asked_count():
    """A vote that somebody else got recorded, by whatever way, is not counted (B40)."""
    votes = [("ben", YES), ("ops-7", YES), ("ops", YES), ("ana", YES)]
    assert [one.reviewer for one in counted(waiting(*votes, voters=("ana", "ops-*")))] == [
        "ops-7",
        "ana",
    ]


@pytest.mark.parametrize(("after_s", "names"), [(59.9, ["ana"]), (60, []), (61, [])])
def test_a_vote_after_the_deadline_does_not_count(after_s: float, names: list[str]):
    """Expired means expired, though the expiry itself is not recorded; to the microsecond (B36)."""
    assert [one.reviewer for one in counted(waiting(("ana", YES), after_s=after_s))] == names


def test_a_vote_before_the_question_does_not_count():
    """Who voted before it was known what is asked, and of whom, has not voted (B31)."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    story.tell(CALL.vote("ana"), YES)
    story.tell(CALL.gated, question(WISH))
    story.tell(CALL.vote("ben"), YES)
    assert count_votes(call_of(CALL, tuple(story.facts))).verdict == approved("ben", reason="fine")


@given(
    st.permutations(["ana", "ben", "cy", "rita"]),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_the_count_does_not_depend_on_the_order_of_delivery(names: list[str], needed: int, random):
    """Votes are counted in the order of the log, however they are delivered (I13)."""
    call = waiting(*((name, YES) for name in names), needed=needed)
    facts = [fact for fact in (call.requested, call.gated, *call.votes) if fact]
    random.shuffle(facts)
    assert count_votes(call_of(CALL, tuple(facts))) == count_votes(call)
    assert (count_votes(call).verdict is None) is (needed == 4)


def test_edited_bytes_are_what_is_approved():
    """The digest is over what will run, and the call then runs with exactly that (B61, I1)."""
    call = waiting(("ana", vote(arguments=EDIT)))
    verdict = count_votes(call, fits).verdict
    assert isinstance(verdict, e.Approved)
    decided = call_of(CALL, (call.requested, call.gated, Fact(9, START, CALL.decided, verdict)))  # type: ignore[arg-type]
    assert decided.arguments == EDIT
    assert verdict.digest == call_digest("refund", "v1", decided.arguments) != ASKED.digest


# --------------------------------------------------------------------------- several who must agree

PEERS = ("ana", "ben", "sam")
#: Two of three, and one of security.
BOTH = {"voters": PEERS, "votes_needed": 2, "also": (Quorum(("sam", "sec-*"), 1, "@security"),)}
#: The organisation asks one of security, the workspace two peers: the same votes count for both.
BESIDES = {
    "voters": ("sam", "sue"),
    "besides": (Quorum(("ana", "ben", "sam"), 2),),
    "organisation": True,
}
#: Ben has two accounts, of which one is asked for the second seat.
ACCOUNTS = {
    "voters": ("ana", "ben", "benjamin"),
    "also": (Quorum(("ben", "cai"), 1, "@security"),),
    "people": {"benjamin": "ben"},
}

AGREEING = [
    ("two peers lack security", BOTH, ["ana", "ben"], (2, 3), None),
    ("sam is one person", BOTH, ["ana", "sam"], (2, 3), None),
    ("two peers and security", BOTH, ["ana", "ben", "sec-1"], (3, 3), ("ana", "ben", "sec-1")),
    ("sam as security, wherever he came", BOTH, ["sam", "ana", "ben"], (3, 3),
     ("sam", "ana", "ben")),
    ("sam as a peer, then security", BOTH, ["sam", "ana", "sec-1"], (3, 3),
     ("sam", "ana", "sec-1")),
    ("two of security are not two peers", BOTH, ["sec-1", "sec-2", "ana"], (2, 3), None),
    ("strangers do not count", BOTH, ["ana", "eve", "ben"], (2, 3), None),
    # That the two are one person may be a workspace's word: a table alone fills no seat.
    ("an account of ben's for ben", ACCOUNTS, ["ana", "benjamin"], (1, 2), None),
    ("each for himself", ACCOUNTS, ["benjamin", "cai"], (2, 2), ("benjamin", "cai")),
    ("both of ben's accounts for one", ACCOUNTS, ["ben", "benjamin"], (1, 2), None),
    ("the organisation alone", BESIDES, ["sue"], (0, 2), None),
    ("the workspace alone", BESIDES, ["ana", "ben"], (0, 1), None),
    ("sam for both, and a peer", BESIDES, ["sam", "ana"], (1, 1), ("sam", "ana")),
    ("sue for one, peers for the other", BESIDES, ["sue", "ana", "ben"], (1, 1),
     ("sue", "ana", "ben")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "people", "stands", "voters"),
    [pytest.param(*row, id=name) for name, *row in AGREEING],
)
def test_every_group_must_agree(asking, people, stands, voters):
    """Two of three and one of security are three people; both count the same votes (B39)."""
    found = count_votes(told(asking, *((name, YES) for name in people)))
    assert (found.approvals, found.needed) == stands
    assert (found.verdict.voters if found.verdict else None) == voters
    if isinstance(found.verdict, e.Approved):
        assert found.verdict.organisation is bool(asking.get("organisation"))


DENYING = [
    ("one of two", {"denials_needed": 2}, [("ana", NO)], None),
    ("two of two", {"denials_needed": 2}, [("ana", NO), ("ben", vote("deny", reason="too dear"))],
     ("ana", "ben")),
    ("the requester's no is none", {"denials_needed": 2}, [("rita", NO), ("ana", NO)], None),
    ("a stranger's neither", {"denials_needed": 2, "voters": ("ana", "b*")},
     [("eve", NO), ("ana", NO)], None),
    ("a yes in time", {"denials_needed": 2}, [("ana", NO), ("ben", YES)], ("ben",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "votes", "voters"), [pytest.param(*row, id=name) for name, *row in DENYING]
)
def test_as_many_must_say_no_as_the_rule_says(asking, votes, voters):
    """A denial is as many people's as the rule needs, with all their reasons (B32, B39)."""
    verdict = count_votes(told(asking, *votes)).verdict
    assert (verdict.voters if verdict else None) == voters
    if isinstance(verdict, e.Denied):
        assert verdict.reason == "wrong order; too dear"


def test_the_same_reason_is_told_once():
    """What two people say in the same words, the model reads once."""
    call = told({"denials_needed": 3}, ("ana", NO), ("ben", NO), ("cy", vote("deny")))
    verdict = count_votes(call).verdict
    assert verdict == denied("ana", "ben", "cy", reason="wrong order")


@pytest.mark.parametrize("halts", [(), ("ana",), ("ben",), ("ana", "ben")])
def test_whoever_denies_may_halt_the_model(halts):
    """One of them is enough for the model not to go on by itself (B33)."""
    votes = [(name, vote("deny", halt=name in halts)) for name in ("ana", "ben")]
    verdict = count_votes(told({"denials_needed": 2}, *votes)).verdict
    assert isinstance(verdict, e.Denied)
    assert verdict.halt is bool(halts)


@pytest.mark.parametrize("halts", [(), ("ana",), ("ben",), ("ana", "ben")])
def test_whoever_answers_may_halt_the_model(halts):
    """An answer, or an error in place of the tool, may wait for the user (B33)."""
    votes = [(name, vote("answer", answer="no", halt=name in halts)) for name in ("ana", "ben")]
    verdict = count_votes(told({"votes_needed": 2}, *votes)).verdict
    assert isinstance(verdict, e.Answered)
    assert verdict.halt is bool(halts)


MISFITS = [
    vote("approve", answer="use 42 instead"),
    vote("approve", is_error=True),
    vote("approve", halt=True),
    vote("break_glass", reason="fire", arguments=EDIT),
    vote("break_glass", reason="fire", halt=True),
]


@pytest.mark.parametrize("misfit", MISFITS, ids=lambda one: str(one.verdict))
def test_a_vote_that_says_two_things_does_not_count(misfit):
    """Whoever records it past our client: an instruction that its verdict does not use is not
    dropped, and nothing runs on it (B27, B40).
    """
    call = told({"may_break_glass": ("ana",)}, ("ana", misfit))
    assert count_votes(call).verdict is None
    assert [one.why for one in voids(call)] == [
        "it holds an instruction that its verdict does not use"
    ]


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("benjamin", vote("deny")),
        ("benjamin", vote(digest="0" * 64)),
        ("zoe", vote("deny", on_behalf_of="benjamin")),
    ],
)
def test_a_person_has_said_it_by_any_of_their_accounts(who, said):
    """Ben's other account is no further voter, so nobody waits for him: it is denied (B39, B40)."""
    asking = {
        "voters": ("ana", "ben", "benjamin"),
        "votes_needed": 2,
        "denials_needed": 2,
        "people": {"benjamin": "ben"},
    }
    verdict = count_votes(told(asking, (who, said)), delegated=lambda _: True).verdict
    assert isinstance(verdict, e.Denied)


GONE, BACK = e.PersonRemoved(), e.PersonAdded()
#: Of the call's workspace alone, of it and others, and of others.
HERE, MORE, THERE = (e.PersonAdded(workspaces=one) for one in (("acme",), ("hr", "acme"), ("hr",)))
KEPT, SENT = (e.WorkspacesSet(one) for one in (("acme",), ("hr",)))


@pytest.mark.parametrize(
    ("who", "said", "changes", "why"),
    [
        ("ana", YES, {("ana", 3): GONE}, "ana was removed before it"),
        ("ana", vote("break_glass", reason="fire"), {("ana", 3): GONE},
         "ana was removed before it"),
        ("ana", NO, {("ana", 3): GONE}, "ana was removed before it"),
        ("ANA", YES, {("ana", 3): GONE}, "ANA was removed before it"),
        ("zoe", vote(on_behalf_of="ana"), {("zoe", 3): GONE}, "zoe was removed before it"),
        ("zoe", vote(on_behalf_of="ana"), {("ana", 3): GONE}, "ana was removed before it"),
        ("ana", YES, {("ana", 2): BACK, ("ana", 3): GONE}, "ana was removed before it"),
        ("ana", YES, {("ana", 2): GONE, ("ana", 3): BACK}, ""),
        ("ana", YES, {("ana", 5): GONE}, ""),
        ("ana", YES, {("ben", 3): GONE}, ""),
        ("ana", YES, {("ana", 3): THERE}, "ana was not of acme then"),
        ("Ana", vote("break_glass", reason="fire"), {("ana", 3): THERE},
         "Ana was not of acme then"),
        ("ana", NO, {("ana", 3): THERE}, "ana was not of acme then"),
        ("zoe", vote(on_behalf_of="ana"), {("zoe", 3): THERE}, "zoe was not of acme then"),
        ("zoe", vote(on_behalf_of="ana"), {("ana", 3): THERE}, "ana was not of acme then"),
        ("ana", YES, {("ana", 2): HERE, ("ana", 3): THERE}, "ana was not of acme then"),
        ("ana", YES, {("ana", 2): THERE, ("ana", 3): GONE}, "ana was removed before it"),
        ("ana", YES, {("ana", 2): THERE, ("ana", 3): MORE}, ""),
        ("ana", YES, {("ana", 2): THERE, ("ana", 3): BACK}, ""),
        ("ana", YES, {("ana", 3): HERE}, ""),
        ("ana", YES, {("ana", 5): THERE}, ""),
        ("ana", YES, {("ana", 3): SENT}, "ana was not of acme then"),
        ("ana", YES, {("ana", 2): THERE, ("ana", 3): KEPT}, ""),
        ("ana", YES, {("ana", 2): GONE, ("ana", 3): KEPT}, "ana was removed before it"),
        ("ana", YES, {("ana", 5): SENT}, ""),
    ],
)  # fmt: skip
def test_no_vote_counts_of_who_was_removed_or_is_of_other_workspaces(who, said, changes, why):
    """By the order of the log: earlier votes count, and later ones until the name is added again,
    whoever still knows the password (B40).
    """
    asking = replace(question(WISH), voters=("*",), may_break_glass=("*",))
    told = [(CALL.requested, ASKED), (CALL.gated, asking), (CALL.vote(who), said)]
    facts = [
        Fact(seq, START, slot, event) for seq, (slot, event) in zip((1, 2, 4), told, strict=True)
    ]
    people = people_of(
        Fact(seq, START, person_slot(name, number), event)
        for number, ((name, seq), event) in enumerate(changes.items(), 1)
    )
    call = replace(call_of(CALL, facts), people=people)
    assert [one.why for one in voids(call)] == ([why] if why else [])
    assert (count_votes(call, delegated=lambda _: True).verdict is None) is bool(why)


ISSUER = "https://login.example"
ANA = e.AccountBound(account=f"openid:{ISSUER}#1")


def read(*groups: str, subject: str = "1", at: float = 0, lasts: float = 900, problem: str = ""):
    """What a provider said of somebody's groups, so many seconds before or after `START`."""
    read_at = START + timedelta(seconds=at)
    until = read_at + timedelta(seconds=lasts)
    return e.GroupsRead(ISSUER, subject, groups, read_at, until, problem)


def known(*facts: tuple[int, str, e.Event]):
    """The people by these facts, each with its number in the log and the name in its slot."""
    return people_of(
        Fact(seq, START, _slot_about(name, seq, event), event) for seq, name, event in facts
    )


def test_other_workspaces_leave_a_person_their_accounts_and_groups():
    """They are the same person, unlike after an addition or a removal (B40)."""
    said = [(1, "ana", ANA), (2, "ana", read("finance"))]
    for after, is_kept in ((SENT, True), (THERE, False), (GONE, False)):
        people = known(*said, (3, "ana", after))
        assert people.is_removed("ana") is (after is GONE)
        assert people.of("ana") == ((ANA.account,) if is_kept else ())
        assert people.groups("ana", START) == ({"group:finance"} if is_kept else set())


def _slot_about(name: str, seq: int, event: e.Event):
    match event:
        case e.GroupsRead():
            return groups_slot(name, event.read_at, seq)
        case e.AccountBound():
            return account_slot(name, seq)
        case _:
            return person_slot(name, seq)


#: What was recorded before, between and after the question (2) and the vote (10) of ana, who was
#: asked as a member of finance; and whether her vote counts.
MEMBERS = [
    ("nothing is known", [], "ana", False),
    ("named", [(1, "ana", ANA), (3, "ana", read("finance", "leads"))], "ana", True),
    ("named before the question", [(1, "ana", ANA), (1, "ana", read("finance"))], "ana", True),
    ("another group", [(1, "ana", ANA), (3, "ana", read("financiers"))], "ana", False),
    ("in other letters", [(1, "ana", ANA), (3, "ana", read("Finance"))], "ana", False),
    ("in another spelling", [(1, "Ana", ANA), (3, "ana", read("finance"))], "ANA", True),
    ("removed between", [(1, "ana", ANA), (3, "ana", read("finance")), (4, "ana", read())], "ana",
     False),
    ("removed after", [(1, "ana", ANA), (3, "ana", read("finance")), (11, "ana", read())], "ana",
     True),
    ("added after", [(1, "ana", ANA), (11, "ana", read("finance"))], "ana", False),
    ("claim missing", [(1, "ana", ANA), (3, "ana", read("finance")),
                       (4, "ana", read(problem="no claim"))], "ana", False),
    ("too long ago", [(1, "ana", ANA), (3, "ana", read("finance", at=-901))], "ana", False),
    ("at its end", [(1, "ana", ANA), (3, "ana", read("finance", at=-900))], "ana", False),
    ("just before it", [(1, "ana", ANA), (3, "ana", read("finance", at=-899))], "ana", True),
    ("longer than a day", [(1, "ana", ANA), (3, "ana", read("finance", at=-86400, lasts=1e6))],
     "ana", False),
    ("of nobody's account", [(3, "ana", read("finance"))], "ana", False),
    ("of another's account", [(1, "eva", ANA), (3, "ana", read("finance"))], "ana", False),
    ("of another account", [(1, "ana", ANA), (3, "ana", read("finance", subject="2"))], "ana",
     False),
    ("one account, two names", [(1, "ana", ANA), (2, "eva", ANA), (3, "eva", read("finance"))],
     "eva", False),
    ("of another name", [(1, "ana", ANA), (3, "ana", read("finance"))], "eva", False),
    ("released since", [(1, "ana", ANA), (3, "ana", read("finance")), (4, "ana", BACK)], "ana",
     False),
    ("released after", [(1, "ana", ANA), (3, "ana", read("finance")), (11, "ana", BACK)], "ana",
     True),
    ("removed as a person", [(1, "ana", ANA), (3, "ana", read("finance")), (4, "ana", GONE)], "ana",
     False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "who", "counts"), [pytest.param(*row, id=name) for name, *row in MEMBERS]
)
@pytest.mark.parametrize("said", [YES, vote("break_glass", reason="fire")], ids=["yes", "glass"])
def test_a_vote_counts_for_a_group_by_what_its_provider_said_last(facts, who, counts, said):
    """Before the vote, in the order of the log, of the account that its person has bound."""
    asking = replace(
        question(WISH), voters=("group:finance",), may_break_glass=("zoe", "group:finance")
    )
    told = [(1, CALL.requested, ASKED), (2, CALL.gated, asking), (10, CALL.vote(who), said)]
    call = call_of(CALL, [Fact(seq, START, slot, event) for seq, slot, event in told])
    assert voids(call) == ()  # of the call's facts alone nobody can say
    call = replace(call, people=known(*facts))
    verdict = count_votes(call).verdict
    assert (verdict is not None) is counts
    assert len(voids(call)) == (not counts)
    if verdict is not None:
        read_at = next(one.read_at for _, _, one in facts if isinstance(one, e.GroupsRead))
        assert verdict.memberships == (e.Membership(who, ("finance",), ISSUER, "1", read_at),)


def test_who_is_no_member_is_told_what_is_known_of_their_groups():
    """And nobody else, whose groups make no difference."""
    said = str(refused_vote(told({"voters": ("group:finance",)}), YES, "ana", START))
    unread = "In which groups ana is has not been read: sign in to the console."
    assert said.endswith(f"Rule 'money' asks group:finance. {unread}")
    assert str(refused_vote(told({"voters": ("ben",)}), YES, "ana", START)).endswith("asks ben.")


def test_members_fill_the_seats_of_their_groups_and_each_fills_one():
    """Also of a group that an escalation adds, which counts wherever a vote is lacking."""
    both = [(1, "ana", ANA), (2, "ana", read("finance", "leads"))]
    ben = [(3, "ben", e.AccountBound(account=f"openid:{ISSUER}#2")),
           (3, "ben", read("leads", subject="2"))]  # fmt: skip
    asking = {"voters": ("group:finance",), "also": (Quorum(("group:leads", "lea")),)}

    def counted_by(*steps, **more):
        call = told(asking | more, *steps)
        return count_votes(replace(call, people=known(*both, *ben)))

    assert counted_by(("ana", YES)).verdict is None
    assert counted_by(("ana", YES), ("eva", YES)).verdict is None
    assert counted_by(("ben", YES), ("lea", YES)).verdict is None
    found = counted_by(("ana", YES), ("lea", YES)).verdict
    assert [one.person for one in found.memberships] == ["ana"]
    found = counted_by(("ana", YES), ("ben", YES))
    assert isinstance(found.verdict, e.Approved)
    assert found.members == {"group:finance": ("ana",), "group:leads": ("ana", "ben")}
    late = e.Escalated(voters=("group:leads",))
    nobody = {"on_timeout": "escalate", "voters": ("eva",), "also": ()}
    assert isinstance(counted_by(late, ("ben", YES), **nobody).verdict, e.Approved)
    assert counted_by(late, ("kim", YES), **nobody).verdict is None


def test_two_accounts_of_a_member_are_one_voter():
    """The organisation says that benjamin is ben, and both names are read as members."""
    ben = [(1, "ben", ANA), (2, "ben", read("finance")),
           (3, "benjamin", e.AccountBound(account=f"openid:{ISSUER}#2")),
           (3, "benjamin", read("finance", subject="2"))]  # fmt: skip
    asking = {"voters": ("group:finance",), "votes_needed": 2, "people": {"benjamin": "ben"}}
    call = told(asking, ("ben", YES), ("benjamin", YES))
    assert count_votes(replace(call, people=known(*ben))).verdict is None
    call = told(asking | {"people": {}}, ("ben", YES), ("benjamin", YES))
    assert count_votes(replace(call, people=known(*ben))).verdict is not None


def test_nothing_is_needed_of_a_member_whose_group_has_decided():
    ben = e.AccountBound(account=f"openid:{ISSUER}#2")
    people = known((1, "ana", ANA), (1, "ana", read("finance")),
                   (1, "ben", ben), (2, "ben", read("finance", subject="2")))  # fmt: skip
    asking = {"voters": ("group:finance",), "also": (Quorum(("lea",)),)}
    for said, helps in ((), True), ((("ben", YES),), False):
        call = replace(told(asking, *said), people=people)
        assert can_help(call, "ana", START) is helps


def test_who_can_help_by_a_group_that_was_read_long_ago_is_told():
    asking = {"voters": ("group:finance",)}
    people = known((1, "ana", ANA), (2, "ana", read("finance", at=-86400)), (3, "ana", read()))
    for groups, helps in ((people, False), (replace(people, forgives=True), False)):
        assert can_help(replace(told(asking), people=groups), "ana", START) is helps
    people = known((1, "ana", ANA), (2, "ana", read("finance", at=-86400)),
                   (3, "ana", read(problem="away")))  # fmt: skip
    for groups, helps in ((people, False), (replace(people, forgives=True), True)):
        assert can_help(replace(told(asking), people=groups), "ana", START) is helps


@pytest.mark.parametrize(
    ("later", "empty"),
    [((), 1), (("rita",), 1), (("lea",), 0), (("l*",), 0), (("group:leads",), 0)],
)
def test_a_seat_that_a_later_stage_may_fill_is_not_empty(later: tuple[str, ...], empty: int):
    """By somebody who is named, or whom nobody can name beforehand."""
    stages = (Stage(later),) if later else ()
    assert empty_seats(((Quorum(("rita",)),),), stages, ("rita",)) == empty


@pytest.mark.parametrize(
    ("voters", "may"),
    [(("benjamin",), ["benjamin"]), (("ben",), ["ben", "benjamin"]), (("*",), ["ben", "benjamin"])],
)
def test_who_was_asked_may_revoke_by_the_name_that_was_asked(voters, may):
    """And by each other name of theirs, but no more than that name may by itself."""
    asking = replace(question(WISH), voters=voters, people={"benjamin": "ben", "rita2": "rita"})
    call = call_of(CALL, Story().tell_all([
        (CALL.requested, ASKED), (CALL.gated, asking), (CALL.decided, approved("lea")),
    ]).facts)  # fmt: skip
    assert [one for one in ("ben", "benjamin", "rita", "rita2") if may_revoke(call, one)] == may


OWN = {
    "mode": "requester_confirms",
    "excluded": (),
    "own": ("rita", "margarita", "olga-*"),
    "people": {"margarita": "rita"},
    "may_break_glass": ("rita", "sam"),
    "editor_counts": False,
}
BREAKS = vote("break_glass", reason="fire")
#: What was said in a question that the requester may confirm, who then decided, and how.
CONFIRMED = [
    ("who asked", [("rita", YES)], {}, ("rita",), "requester_confirms"),
    ("by another name of theirs", [("margarita", YES)], {}, ("margarita",), "requester_confirms"),
    ("who is behind the agent", [("olga-2", YES)], {}, ("olga-2",), "requester_confirms"),
    ("somebody else", [("ana", YES)], {}, ("ana",), "four_eyes"),
    ("who comes first", [("ana", YES), ("rita", YES)], {}, ("ana",), "four_eyes"),
    ("not who was not asked", [("rita", YES)], {"voters": ("ana",)}, (), ""),
    ("not in another's place", [("rita", vote(on_behalf_of="ana"))], {}, (), ""),
    ("nor another in theirs", [("zoe", vote(on_behalf_of="rita"))], {}, (), ""),
    ("nor in another name's", [("zoe", vote(on_behalf_of="margarita"))], {}, (), ""),
    ("a delegate of somebody else", [("zoe", vote(on_behalf_of="ana"))], {}, ("zoe",), "four_eyes"),
    ("the glass is not theirs", [("rita", BREAKS)], {}, (), ""),
    ("but others'", [("sam", BREAKS)], {}, ("sam",), "four_eyes"),
    ("an edit of theirs takes another", [("rita", vote(arguments=EDIT))], {}, (), ""),
    ("who agrees to it", [("rita", vote(arguments=EDIT)), ("ana", vote(arguments=EDIT))], {},
     ("rita", "ana"), "requester_confirms"),
    ("or whose edit they confirm", [("ana", vote(arguments=EDIT)), ("rita", vote(arguments=EDIT))],
     {}, ("ana", "rita"), "requester_confirms"),
    ("an edit of theirs, if editors count", [("rita", vote(arguments=EDIT))],
     {"editor_counts": True}, ("rita",), "requester_confirms"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "more", "voters", "mode"), [pytest.param(*row, id=name) for name, *row in CONFIRMED]
)
def test_who_may_confirm_their_own_request(votes, more, voters, mode):
    """In person, where the question says so; the approval is theirs, or of four eyes (B40)."""
    said = count_votes(told(OWN | more, *votes), fits, lambda _: True).verdict
    assert (said and said.voters, said and said.mode) == ((voters, mode) if mode else (None, None))


@pytest.mark.parametrize(("said", "kind"), [(NO, e.Denied), (vote("answer"), e.Answered)])
def test_who_may_confirm_may_also_say_no(said, kind):
    """And answer in the tool's place: nothing runs on either."""
    assert isinstance(count_votes(told(OWN, ("rita", said))).verdict, kind)


#: No longer can enough people say the same.
DISAGREE = "Those who were asked do not agree, and too few are left who have not voted."
TWO_OF_TWO = {"voters": ("ana", "ben"), "votes_needed": 2, "denials_needed": 2}
ANSWER = vote("answer", answer="It left.")
LATE = {"on_timeout": "escalate", "expires_in_s": 60.0, "stages": (Stage(("lea",)),)}
HOPELESS = [
    ("one says no", TWO_OF_TWO, [("ana", YES), ("ben", NO)], ("ben",)),
    ("and the other way round", TWO_OF_TWO, [("ben", NO)], ("ben",)),
    ("two things", TWO_OF_TWO, [("ana", YES), ("ben", vote(arguments=EDIT))], ()),
    ("an answer and a yes", TWO_OF_TWO, [("ana", ANSWER), ("ben", YES)], ()),
    ("a vote that does not count is spent", TWO_OF_TWO,
     [("ana", YES), ("ben", vote(arguments=MISFIT))], ()),
    ("about other bytes too", TWO_OF_TWO, [("ana", YES), ("ben", vote(digest="0" * 64))], ()),
    ("two of three can still agree", TWO_OF_TWO | {"voters": PEERS},
     [("ana", YES), ("ben", NO)], None),
    ("until the third says another thing", TWO_OF_TWO | {"voters": PEERS},
     [("ana", YES), ("ben", NO), ("sam", ANSWER)], ("ben",)),
    ("strangers may come", TWO_OF_TWO | {"voters": ("ana", "*")},
     [("ana", YES), ("ben", NO)], None),
    ("but not for security", {"denials_needed": 2, "also": (Quorum(("sam",)),)},
     [("ana", YES), ("sam", NO)], ("sam",)),
    ("nor for the workspace", {"denials_needed": 2, "besides": (Quorum(("sam",)),)},
     [("sam", NO)], ("sam",)),
    ("the excluded are not left", TWO_OF_TWO | {"voters": ("ana", "ben", "rita")},
     [("ana", YES), ("ben", NO)], ("ben",)),
    ("nor those of a pattern", TWO_OF_TWO | {"voters": PEERS, "excluded": ("s*",)},
     [("ana", YES), ("ben", NO)], ("ben",)),
    ("more may be asked", TWO_OF_TWO | LATE, [("ana", YES), ("ben", NO)], None),
    ("and be asked already", TWO_OF_TWO | LATE,
     [("ana", YES), ("ben", NO), e.Escalated(voters=("lea",))], None),
    ("anybody then", TWO_OF_TWO | LATE,
     [("ana", YES), ("ben", NO), e.Escalated(voters=("l*",)), ("lea", NO)], ("ben", "lea")),
    ("and no more", TWO_OF_TWO | LATE | {"denials_needed": 3},
     [("ana", YES), ("ben", NO), e.Escalated(voters=("lea",)), ("lea", NO)], ("ben", "lea")),
    ("unless a pattern stays", TWO_OF_TWO | LATE | {"denials_needed": 3},
     [("ana", YES), ("ben", NO), e.Escalated(voters=("l*",)), ("lea", NO)], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "steps", "voters"), [pytest.param(*row, id=name) for name, *row in HOPELESS]
)
def test_disagreement_without_hope_is_a_denial(asking, steps, voters):
    """What nobody can agree on any more does not wait for ever; it is no approval (B73, I4)."""
    verdict = count_votes(told(asking, *steps), fits).verdict
    assert verdict is None or isinstance(verdict, e.Denied)
    assert (verdict.voters if verdict else None) == voters
    if verdict and not any(name in voters for name in ("ben", "sam", "lea")):
        assert verdict.reason == DISAGREE


def test_a_vote_after_the_deadline_does_not_make_it_hopeless():
    """What was late changes nothing: the call expires, and is not denied (B36, I5)."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    gated = story.tell(CALL.gated, replace(question(WISH, 60), **TWO_OF_TWO))
    late = gated.recorded_at + timedelta(seconds=60)
    story.facts.append(Fact(3, late, CALL.vote("ana"), NO))
    assert count_votes(call_of(CALL, tuple(story.facts))) == Tally(0, 2, None)


# ---------------------------------------------------------------------------------- in an emergency

GLASS = BOTH | {"may_break_glass": ("sam", "fire-*"), "denials_needed": 3}
BREAK = vote("break_glass", reason="the shop burns")
BROKEN = e.Approved(
    digest=ASKED.digest, ground="broken_glass", rule="money", policy_version=1,
    voters=("sam",), reason="the shop burns",
)  # fmt: skip
BREAKING = [
    ("alone", [("sam", BREAK)], BROKEN),
    ("who is no voter", [("fire-1", BREAK)], replace(BROKEN, voters=("fire-1",))),
    ("over a no", [("ana", NO), ("sam", BREAK)], BROKEN),
    ("not with an edit: what would run is not what was meant",
     [("sam", vote("break_glass", reason="x", arguments=EDIT))], None),
    ("nor with the bytes that wait",
     [("sam", vote("break_glass", reason="x", arguments=WISH.arguments))], None),
    ("a voter may not", [("ana", BREAK)], None),
    ("a stranger may not", [("eve", BREAK)], None),
    ("not without a reason", [("sam", vote("break_glass"))], None),
    ("nor with a blank one", [("sam", vote("break_glass", reason=" \n"))], None),
    ("not about other bytes", [("sam", vote("break_glass", reason="x", digest="0" * 64))], None),
    ("not in another's place",
     [("ana", vote("break_glass", reason="x", on_behalf_of="sam"))], None),
    ("nor with another's word",
     [("sam", vote("break_glass", reason="x", on_behalf_of="fire-1"))], None),
    ("whoever may break the glass has no vote by that",
     [("fire-1", YES), ("ana", YES), ("ben", YES)], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "verdict"), [pytest.param(*row, id=name) for name, *row in BREAKING]
)
def test_who_may_break_the_glass_decides_alone(votes, verdict):
    """Only those who are named, in person, with a reason, about these bytes (B40, B61)."""
    assert count_votes(told(GLASS, *votes), fits, lambda _vote: True).verdict == verdict


def test_the_requester_never_breaks_the_glass():
    """Who asked for it does not let it run alone, nor does whoever owns the agent (B68)."""
    for excluded in (("sam",), ("rita", "s*")):
        call = told(GLASS | {"excluded": excluded}, ("sam", BREAK))
        assert count_votes(call).verdict is None


# ------------------------------------------------------------------------------- in another's place


def held(*pairs: tuple[str, str]):
    """The delegations that hold, from whom and to whom."""
    return lambda fact: (fact.event.on_behalf_of, fact.slot.tail[3]) in pairs


FOR_ANA, NO_FOR_ANA = vote(on_behalf_of="ana"), vote("deny", on_behalf_of="ana")
ANA_ZOE = held(("ana", "zoe"))
DELEGATED = [
    ("zoe for ana", {"voters": ("ana",)}, [("zoe", FOR_ANA)], ANA_ZOE, ("zoe",)),
    ("zoe for herself was not asked", {"voters": ("ana",)}, [("zoe", YES)], ANA_ZOE, None),
    ("without ana's word", {"voters": ("ana",)}, [("zoe", FOR_ANA)], held(), None),
    ("with somebody else's word", {"voters": ("ana",)}, [("zoe", FOR_ANA)],
     held(("ben", "zoe")), None),
    ("ana was not asked", {"voters": ("ben",)}, [("zoe", FOR_ANA)], ANA_ZOE, None),
    ("ana asked for it", {"excluded": ("ana",)}, [("zoe", FOR_ANA)], ANA_ZOE, None),
    ("zoe asked for it", {"excluded": ("zoe",)}, [("zoe", FOR_ANA)], ANA_ZOE, None),
    ("zoe is behind the agent", {"excluded": ("rita", "z*")}, [("zoe", FOR_ANA)], ANA_ZOE, None),
    ("both votes are used up: ana's", {"votes_needed": 2}, [("zoe", FOR_ANA), ("ana", YES)],
     ANA_ZOE, None),
    ("both votes are used up: the other order", {"votes_needed": 2},
     [("ana", YES), ("zoe", FOR_ANA)], ANA_ZOE, None),
    ("both votes are used up: ben's", {"votes_needed": 2, "voters": ("ana", "ben")},
     [("ben", FOR_ANA)], held(("ana", "ben")), ()),
    ("two for ana are one", {"votes_needed": 2}, [("zoe", FOR_ANA), ("ben", FOR_ANA)],
     held(("ana", "zoe"), ("ana", "ben")), None),
    ("a vote that did not count uses up nothing of ana's", {"votes_needed": 2},
     [("eve", FOR_ANA), ("ana", YES), ("ben", YES)], held(), ("ana", "ben")),
    ("zoe for ana, and ben", {"votes_needed": 2}, [("zoe", FOR_ANA), ("ben", YES)],
     ANA_ZOE, ("zoe", "ben")),
    ("ana's seat, not zoe's", {"voters": ("zoe",), "also": (Quorum(("ana",)),)}, [("zoe", FOR_ANA)],
     ANA_ZOE, ()),
    ("two no's for ana are one", {"denials_needed": 2}, [("zoe", NO_FOR_ANA), ("ben", NO_FOR_ANA)],
     held(("ana", "zoe"), ("ana", "ben")), None),
    ("ana's own no and zoe's for her are one", {"denials_needed": 2},
     [("ana", NO), ("zoe", NO_FOR_ANA)], ANA_ZOE, None),
    ("who votes for another has no vote to give away", {"votes_needed": 2},
     [("ben", FOR_ANA), ("zoe", vote(on_behalf_of="ben"))],
     held(("ana", "ben"), ("ben", "zoe")), None),
    ("nor a vote for another whose own was given", {"votes_needed": 2},
     [("zoe", vote(on_behalf_of="ben")), ("ben", FOR_ANA)],
     held(("ana", "ben"), ("ben", "zoe")), None),
    ("nor by another account of theirs", {"votes_needed": 2, "people": {"benjamin": "ben"}},
     [("ben", YES), ("benjamin", FOR_ANA)], held(("ana", "benjamin")), None),
    ("for oneself is nothing special", {"voters": ("ana",)}, [("ana", FOR_ANA)], held(), ("ana",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "votes", "delegated", "voters"),
    [pytest.param(*row, id=name) for name, *row in DELEGATED],
)
def test_a_vote_in_another_s_place(asking, votes, delegated, voters):
    """That person's vote, by who had their word, uses up both; excluded stays (B39, B40, B68)."""
    verdict = count_votes(told(asking, *votes), fits, delegated).verdict
    assert (verdict.voters if verdict else None) == voters


def test_without_being_told_of_delegations_none_counts():
    """Uncertainty is no vote (I4, B40)."""
    call = told({"voters": ("ana",)}, ("zoe", FOR_ANA))
    assert counted(call) == []
    assert count_votes(call).verdict is None


@pytest.mark.parametrize("verdict", ["approve", "deny", "answer"])
def test_the_decision_says_who_voted_in_whose_place(verdict):
    """Zoe for Ana is told as that, whatever it was that she said (B27)."""
    votes = [("zoe", vote(verdict, on_behalf_of="ana")), ("ben", vote(verdict))]
    found = count_votes(told({"votes_needed": 2, "denials_needed": 2}, *votes), fits, ANA_ZOE)
    assert found.verdict.voters == ("zoe", "ben")
    assert found.verdict.on_behalf_of == {"zoe": "ana"}
    assert found.people == (() if verdict == "deny" else ("ana", "ben"))


def test_an_excluded_pattern_excludes_everybody_it_means():
    """Where an agent's owners are a pattern, none of them counts (B68)."""
    call = told(
        {"excluded": ("rita", "ops-*"), "votes_needed": 2},
        ("ops-1", YES),
        ("ana", YES),
        ("ben", YES),
    )
    assert [one.reviewer for one in counted(call)] == ["ana", "ben"]


# ----------------------------------------------------------------------------- until when, and then

STAGED = BOTH | {
    "on_timeout": "escalate",
    "expires_in_s": 60.0,
    "stages": (Stage(("lea", "sec-9"), 60.0), Stage(("max",))),
}
MORE = e.Escalated(voters=("lea", "sec-9"), expires_in_s=60.0)
LAST = e.Escalated(voters=("max",))
ESCALATED = [
    ("not before she was asked", [("lea", YES), MORE, ("ana", YES), ("ben", YES)], None),
    ("nor to say no", [("lea", NO), MORE, ("ana", YES)], None),
    ("for security", [("ana", YES), ("ben", YES), MORE, ("lea", YES)], ("ana", "ben", "lea")),
    ("for a peer", [("ana", YES), MORE, ("lea", YES), ("sec-1", YES)], ("ana", "lea", "sec-1")),
    ("for one seat only", [("ana", YES), MORE, ("lea", YES)], None),
    ("who was asked before counts where she was asked",
     [("sec-9", YES), MORE, ("ana", YES), ("sec-1", YES)], None),
    ("stage after stage", [MORE, ("lea", YES), LAST, ("max", YES), ("ana", YES)],
     ("lea", "max", "ana")),
    ("those asked first still count", [MORE, LAST, ("ana", YES), ("ben", YES), ("sam", YES)],
     ("ana", "ben", "sam")),
    ("and may say no", [("ana", YES), MORE, ("lea", NO)], ("lea",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "voters"), [pytest.param(*row, id=name) for name, *row in ESCALATED]
)
def test_who_is_asked_as_well_counts_wherever_a_vote_is_lacking(steps, voters):
    """Only from when they were asked, and never twice (B39, B40)."""
    verdict = count_votes(told(STAGED, *steps)).verdict
    assert (verdict.voters if verdict else None) == voters


def test_in_whose_place_it_is_decides_where_a_vote_counts():
    """Zoe for Lea, who was asked as well, sits anywhere; Lea for Zoe does not."""
    for_lea, for_zoe = vote(on_behalf_of="lea"), vote(on_behalf_of="zoe")
    steps = [("ana", YES), ("ben", YES), MORE]
    in_leas_place = told(STAGED, *steps, ("zoe", for_lea))
    assert count_votes(in_leas_place, fits, held(("lea", "zoe"))).verdict is not None
    in_zoes_place = told(STAGED, *steps, ("lea", for_zoe))
    assert count_votes(in_zoes_place, fits, held(("zoe", "lea"))).verdict is None


@pytest.mark.parametrize(
    ("asking", "after_s", "counts"),
    [
        ({"expires_in_s": 60.0}, 59.9, True),
        ({"expires_in_s": 60.0}, 60, False),
        ({"expires_in_s": 60.0, "on_timeout": "stay"}, 86400, True),
        ({"expires_in_s": None}, 86400, True),
        # More people are asked at the end of the time, so it is open until they are, and then until
        # their time is over.
        ({"expires_in_s": 60.0, "on_timeout": "escalate", "stages": (Stage(("lea",), 60.0),)}, 61,
         True),
    ],
)  # fmt: skip
def test_until_when_a_vote_counts(asking, after_s, counts):
    """Expired means expired; to stay is never to expire, and another stage keeps it open (B36)."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    gated = story.tell(CALL.gated, replace(question(WISH), **asking))
    story.facts.append(
        Fact(3, gated.recorded_at + timedelta(seconds=after_s), CALL.vote("ana"), YES)
    )
    assert (count_votes(call_of(CALL, tuple(story.facts))).verdict is not None) is counts


@pytest.mark.parametrize(("after_s", "counts"), [(119.9, True), (120, False)])
def test_the_last_stage_s_time_counts_from_when_they_were_asked(after_s, counts):
    """A late escalation gives its people all their time (B36)."""
    asking = {"expires_in_s": 60.0, "on_timeout": "escalate", "stages": (Stage(("lea",), 60.0),)}
    story = Story()
    story.tell(CALL.requested, ASKED)
    gated = story.tell(CALL.gated, replace(question(WISH), **asking))
    at = gated.recorded_at + timedelta(seconds=60)
    story.facts.append(
        Fact(3, at, CALL.escalated(1), e.Escalated(voters=("lea",), expires_in_s=60.0))
    )
    story.facts.append(
        Fact(4, gated.recorded_at + timedelta(seconds=after_s), CALL.vote("lea"), YES)
    )
    assert (count_votes(call_of(CALL, tuple(story.facts))).verdict is not None) is counts


# -------------------------------------------------------------------------------------------- edits

#: What the policy in force says to an edit: who must agree beyond those who were asked.
DEARER = {EDIT: ((Quorum(("sam",), 1, "@security"),),), OTHER_EDIT: ()}


@pytest.mark.parametrize(
    ("votes", "stands", "voters"),
    [
        ([("ana", vote(arguments=EDIT))], (0, 1), None),
        ([("ana", vote(arguments=EDIT)), ("sam", YES)], (1, 1), ("sam",)),
        ([("ana", vote(arguments=EDIT)), ("sam", vote(arguments=EDIT))], (1, 1), ("ana", "sam")),
        ([("sam", vote(arguments=EDIT))], (1, 1), ("sam",)),
        ([("ana", vote(arguments=OTHER_EDIT))], (1, 1), ("ana",)),
        ([("ana", vote(arguments=MISFIT)), ("ben", YES)], (1, 1), ("ben",)),
        ([("ana", vote("answer", arguments=EDIT))], (1, 1), ("ana",)),  # an answer runs nothing
    ],
)
def test_an_edit_is_judged_again(votes, stands, voters):
    """Who must agree to what would run as edited agrees too, or it does not run so (B61, I1)."""
    found = count_votes(told({}, *votes), DEARER.get)
    assert (found.approvals, found.needed) == stands
    assert (found.verdict.voters if found.verdict else None) == voters


# --------------------------------------------------------------------------------- whatever happens

VOTES = st.lists(
    st.tuples(
        st.sampled_from(["ana", "ben", "sam", "sec-1", "zoe", "lea", "rita"]),
        st.builds(
            vote,
            st.sampled_from(["approve", "approve", "approve", "deny", "answer", "break_glass"]),
            arguments=st.sampled_from([None, None, EDIT, MISFIT]),
            reason=st.sampled_from(["", "so"]),
            on_behalf_of=st.sampled_from(["", "", "", "ana", "ben"]),
            digest=st.sampled_from([ASKED.digest] * 5 + ["0" * 64]),
        ),
    ),
    unique_by=lambda one: one[0],
    max_size=7,
)
QUESTIONS = st.fixed_dictionaries(
    {
        "voters": st.sampled_from([("*",), ("ana", "ben", "sam"), ("ana", "ben")]),
        "votes_needed": st.integers(1, 3),
        "denials_needed": st.integers(1, 3),
        "also": st.sampled_from(
            [(), (Quorum(("sam",)),), (Quorum(("sam", "sec-*")), Quorum(("lea",)))]
        ),
        "besides": st.sampled_from([(), (Quorum(("ana", "sec-*"), 2),)]),
        "may_break_glass": st.sampled_from([(), ("lea",)]),
        "excluded": st.sampled_from([("rita",), ("rita", "b*")]),
    }
)
STAGES = st.sampled_from(
    [{}, {"on_timeout": "escalate", "expires_in_s": 60.0, "stages": (Stage(("lea", "zoe")),)}]
)


def steps_of(votes, staged, at):
    return [*votes[:at], *([e.Escalated(voters=("lea", "zoe"))] if staged else []), *votes[at:]]


@given(QUESTIONS, STAGES, VOTES, st.integers(0, 7), st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_tally(asking, staged, votes, at, random):
    """However they are delivered, and however often they are counted (I13, I11)."""
    call = told(asking | staged, *steps_of(votes, staged, at))
    facts = [*everything(call), *everything(call)]
    random.shuffle(facts)
    found = count_votes(call, fits, ANA_ZOE)
    assert count_votes(call_of(CALL, tuple(facts)), fits, ANA_ZOE) == found


@given(QUESTIONS, STAGES, VOTES, st.integers(0, 7))
def test_a_verdict_stands_whatever_comes_later(asking, staged, votes, at):
    """Once the votes come to a verdict, no later vote makes it another one (B27, B29)."""
    steps = steps_of(votes, staged, at)
    first = at + 1 if staged else 0
    tallies = [
        count_votes(told(asking | staged, *steps[:end]), fits, ANA_ZOE)
        for end in range(first, len(steps) + 1)
    ]
    for before, after in pairwise(tallies):
        if before.verdict is not None:
            assert after == before


@given(QUESTIONS, STAGES, VOTES, st.integers(0, 7))
def test_nothing_is_approved_that_not_all_agreed_to(asking, staged, votes, at):
    """An approval has distinct, eligible people behind it, who said the same (B39, B40, I4)."""
    call = told(asking | staged, *steps_of(votes, staged, at))
    found = count_votes(call, fits, ANA_ZOE)
    ballots = {one.reviewer: one for one in counted(call, ANA_ZOE)}
    people = [one.person for one in ballots.values()] + [
        one.reviewer for one in ballots.values() if one.reviewer != one.person
    ]
    assert len(people) == len(set(people))
    assert not {"rita"} & set(people)
    if found.verdict is None:
        return
    behind = [ballots[name] for name in found.verdict.voters]
    if isinstance(found.verdict, e.Denied):
        assert all(one.vote.verdict == "deny" for one in behind)
    elif isinstance(found.verdict, e.Approved) and found.verdict.ground == "broken_glass":
        assert [(one.reviewer, one.vote.verdict) for one in behind] == [("lea", "break_glass")]
    else:
        # What goes with another verdict says nothing here.
        edits = {one.vote.arguments if one.vote.verdict == "approve" else None for one in behind}
        assert (len({one.vote.verdict for one in behind}), len(edits)) == (1, 1)
        anywhere = {one.person for one in behind if staged and one.person in ("lea", "zoe")}
        for quorums in asked(call.approval_request):
            assert met(quorums, [one.person for one in behind], anywhere)
            assert filled(quorums, [one.person for one in behind[:-1]], anywhere) <= filled(
                quorums, [one.person for one in behind], anywhere
            )
