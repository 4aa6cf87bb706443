"""Counting votes: tables of who said what, and what it comes to."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import REF, START, Story, question, request

from ledger.lifecycle import Call, call_of
from ledger.votes import Tally, counted, tally
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
ASKED = request(WISH)
EDIT, OTHER_EDIT, MISFIT = '{"order":"A-18"}', '{"order": "A-18"}', '{"order":18}'


def fits(arguments: str) -> bool:
    return arguments != MISFIT


def vote(verdict: str = "approve", **rest: object) -> e.Voted:
    return msgspec.convert({"type": "Voted", "verdict": verdict, "digest": ASKED.digest, **rest}, e.Voted)


def approved(*voters: str, arguments: str | None = None, reason: str = "") -> e.Approved:
    runs = WISH.arguments if arguments is None else arguments
    digest = call_digest("refund", "v1", runs)
    return e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1, voters=voters, arguments=arguments, reason=reason
    )  # fmt: skip


def denied(voter: str, reason: str = "") -> e.Denied:
    return e.Denied(ground="people", rule="money", policy_version=1, reason=reason, voters=(voter,))


def answered(*voters: str, answer: str) -> e.Answered:
    return e.Answered(answer=answer, rule="money", policy_version=1, voters=voters)


def asked(
    *votes: tuple[str, e.Voted], needed: int = 1, voters: tuple[str, ...] = ("*",), after_s: float = 0
) -> Call:
    """A call of which these votes were given; rita asked for it. `after_s`: how long the first one waited."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    asking = msgspec.structs.replace(question(WISH, expires_in_s=60), votes_needed=needed, voters=voters)
    gated = story.tell(CALL.gated, asking)
    for number, (reviewer, voted) in enumerate(votes):
        at = gated.recorded_at + timedelta(seconds=after_s + number)
        story.facts.append(Fact(gated.seq + 1 + number, at, CALL.vote(reviewer), voted))
    return call_of(CALL, tuple(story.facts))


YES, NO = vote(reason="fine"), vote("deny", reason="wrong order")

#: Votes in the order in which they were recorded, how many are needed, and what they come to.
TALLIES = [
    ("nobody", [], 1, Tally(0, 1, None)),
    ("one of one", [("ana", YES)], 1, Tally(1, 1, approved("ana", reason="fine"))),
    ("one of two", [("ana", YES)], 2, Tally(1, 2, None)),
    ("two of two", [("ana", YES), ("ben", vote())], 2, Tally(2, 2, approved("ana", "ben", reason="fine"))),
    ("the requester does not count", [("rita", YES)], 1, Tally(0, 1, None)),
    ("nor towards two", [("rita", YES), ("ana", YES)], 2, Tally(1, 2, None)),
    ("not even to say no", [("rita", NO)], 1, Tally(0, 1, None)),
    ("who comes after the quorum is not named", [("ana", YES), ("ben", YES)], 1, Tally(1, 1, approved("ana", reason="fine"))),
    ("one no is enough", [("ana", YES), ("ben", NO)], 2, Tally(0, 2, denied("ben", "wrong order"))),
    ("a no after the quorum is too late", [("ana", YES), ("ben", NO)], 1, Tally(1, 1, approved("ana", reason="fine"))),
    ("about other bytes", [("ana", vote(digest="0" * 64))], 1, Tally(0, 1, None)),
    ("a no about other bytes", [("ana", vote("deny", digest="0" * 64))], 1, Tally(0, 1, None)),
    ("an edit", [("ana", vote(arguments=EDIT))], 1, Tally(1, 1, approved("ana", arguments=EDIT))),
    ("two agree on an edit", [("ana", vote(arguments=EDIT)), ("ben", vote(arguments=EDIT))], 2,
     Tally(2, 2, approved("ana", "ben", arguments=EDIT))),
    ("an edit and none are two things", [("ana", vote(arguments=EDIT)), ("ben", YES)], 2, Tally(1, 2, None)),
    ("two spellings of one edit are two things", [("ana", vote(arguments=EDIT)), ("ben", vote(arguments=OTHER_EDIT))], 2,
     Tally(1, 2, None)),
    ("handing back the same bytes is no edit", [("ana", vote(arguments=WISH.arguments)), ("ben", YES)], 2,
     Tally(2, 2, approved("ana", "ben"))),
    ("a misfit edit does not count", [("ana", vote(arguments=MISFIT))], 1, Tally(0, 1, None)),
    ("and spoils nothing", [("ana", vote(arguments=MISFIT)), ("ben", YES)], 1, Tally(1, 1, approved("ben", reason="fine"))),
    ("a no with a misfit edit is still a no", [("ana", vote("deny", arguments=MISFIT))], 1, Tally(0, 1, denied("ana"))),
    ("an answer", [("ana", vote("answer", answer="It left."))], 1, Tally(1, 1, answered("ana", answer="It left."))),
    ("an empty answer", [("ana", vote("answer"))], 1, Tally(1, 1, answered("ana", answer=""))),
    ("two answers", [("ana", vote("answer", answer="yes")), ("ben", vote("answer", answer="no"))], 2, Tally(1, 2, None)),
    ("an answer is no approval", [("ana", vote("answer")), ("ben", YES)], 2, Tally(1, 2, None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "needed", "comes_to"), [pytest.param(*row, id=name) for name, *row in TALLIES]
)
def test_what_votes_come_to(votes: list[tuple[str, e.Voted]], needed: int, comes_to: Tally):
    """Distinct people, who were asked, about these bytes; one denial decides (B39, B61, B68, I2, B32)."""
    assert tally(asked(*votes, needed=needed), fits) == comes_to


def test_only_those_asked_count():
    """A vote that somebody else got recorded, by whatever way, is not counted (B40)."""
    votes = [("ben", YES), ("ops-7", YES), ("ops", YES), ("ana", YES)]
    assert [name for name, _ in counted(asked(*votes, voters=("ana", "ops-*")))] == ["ops-7", "ana"]


@pytest.mark.parametrize(("after_s", "names"), [(59.9, ["ana"]), (60, []), (61, [])])
def test_a_vote_after_the_deadline_does_not_count(after_s: float, names: list[str]):
    """Expired means expired, though the expiry itself is not recorded yet; to the microsecond (B36)."""
    assert [name for name, _ in counted(asked(("ana", YES), after_s=after_s))] == names


def test_a_vote_before_the_question_does_not_count():
    """Who voted before it was known what is asked, and of whom, has not voted (B31)."""
    story = Story()
    story.tell(CALL.requested, ASKED)
    story.tell(CALL.vote("ana"), YES)
    story.tell(CALL.gated, question(WISH))
    story.tell(CALL.vote("ben"), YES)
    assert tally(call_of(CALL, tuple(story.facts))).verdict == approved("ben", reason="fine")


@given(st.permutations(["ana", "ben", "cy", "rita"]), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_count_does_not_depend_on_the_order_of_delivery(names: list[str], needed: int, random):
    """Votes are counted in the order of the log, however they are delivered (I13)."""
    call = asked(*((name, YES) for name in names), needed=needed)
    facts = [fact for fact in (call.requested, call.gated, *call.votes) if fact]
    random.shuffle(facts)
    assert tally(call_of(CALL, tuple(facts))) == tally(call)
    assert (tally(call).verdict is None) is (needed == 4)


def test_edited_bytes_are_what_is_approved():
    """The digest is over what will run, and the call then runs with exactly that (B61, I1)."""
    call = asked(("ana", vote(arguments=EDIT)))
    verdict = tally(call, fits).verdict
    assert isinstance(verdict, e.Approved)
    decided = call_of(CALL, (call.requested, call.gated, Fact(9, START, CALL.decided, verdict)))  # type: ignore[arg-type]
    assert decided.arguments == EDIT
    assert verdict.digest == call_digest("refund", "v1", decided.arguments) != ASKED.digest
