"""Counting how people decide: tables of questions and votes, and what they come to."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import START

from projections.reviewers import LEAST_S, Counting, Reviewer, reading_time, reviewers
from schemas import events as e
from schemas.codec import Fact
from schemas.slots import CallRef, ThreadRef

THREAD = ThreadRef("shop", "t")
#: What takes ten seconds to read: 250 characters.
LONG = '{"text":"' + "x" * 239 + '"}'


def at(seconds: float):
    return START + timedelta(seconds=seconds)


class Log:
    """A log that is told second by second."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def tell(self, seconds: float, slot, event) -> None:
        self.facts.append(Fact(len(self.facts) + 1, at(seconds), slot, event))

    def ask(self, seconds: float, call: str, arguments: str = "{}", voters: tuple[str, ...] = ("*",), **rest):
        ref = THREAD.call(call)
        self.tell(seconds, ref.requested, e.ToolRequested(tool="pay", arguments=arguments, digest="d"))
        asking = e.ApprovalRequested(digest="d", rule="r", policy_version=1, voters=voters, **rest)
        self.tell(seconds, ref.gated, asking)

    def vote(self, seconds: float, call: str, reviewer: str = "ana", verdict="approve", behalf: str = ""):
        voted = e.Voted(verdict=verdict, digest="d", on_behalf_of=behalf)
        self.tell(seconds, THREAD.call(call).vote(reviewer), voted)

    def decide(self, seconds: float, call: str):
        denied = e.Denied(ground="people", rule="r", policy_version=1)
        self.tell(seconds, THREAD.call(call).decided, denied)

    @property
    def one(self) -> Reviewer:
        (found,) = reviewers(self.facts)
        return found


def test_reading_takes_as_long_as_the_question():
    """25 characters a second over arguments and reason, and never less than two seconds."""
    assert reading_time("x" * 100, "y" * 150) == timedelta(seconds=10)
    assert reading_time("{}", "") == timedelta(seconds=LEAST_S)


@pytest.mark.parametrize(
    ("after_s", "arguments", "reason", "faster"),
    [
        (1.9, "{}", "", 1),
        (2.0, "{}", "", 0),
        (9.9, LONG, "", 1),
        (10.0, LONG, "", 0),
        (11.9, LONG, "y" * 50, 1),
        (12.0, LONG, "y" * 50, 0),
    ],
)
def test_a_vote_is_faster_than_reading(after_s, arguments, reason, faster):
    """A vote before its question could be read to the end counts as such; one at that moment does not."""
    log = Log()
    log.ask(0, "c", arguments, reason=reason)
    log.vote(after_s, "c")
    assert log.one.faster == faster


def test_nobody_reads_two_at_once():
    """Ten questions wait for ten seconds and are voted on within one: five of them could have been read."""
    log = Log()
    for number in range(10):
        log.ask(0, f"c{number}")
    for number in range(10):
        log.vote(10 + number / 10, f"c{number}")
    assert (log.one.votes, log.one.faster, log.one.share_faster) == (10, 5, 0.5)


def test_who_read_them_all_first_is_not_called_fast():
    """Questions that waited for as long as it takes to read all of them may be voted on in one go."""
    log = Log()
    for number in range(10):
        log.ask(0, f"c{number}")
    for number in range(10):
        log.vote(20 + number / 10, f"c{number}")
    assert log.one.faster == 0


def test_one_fast_vote_is_no_debt():
    """Who did not read one question may still read the next."""
    log = Log()
    log.ask(0, "first", LONG)
    log.vote(1, "first")
    log.ask(1, "second")
    log.vote(3, "second")
    assert (log.one.votes, log.one.faster) == (2, 1)


def test_time_counts_from_when_somebody_was_asked():
    """Who is asked as well an hour later has not been reading for an hour."""
    log = Log()
    log.ask(0, "c", voters=("ana",))
    log.tell(3600, THREAD.call("c").escalated(1), e.Escalated(voters=("lea",)))
    log.vote(3601, "c", "lea")
    assert log.one == Reviewer("lea", 1, {"approve": 1}, hours=1, faster=1)
    log.vote(3601, "c", "ben", behalf="lea")
    assert {one.name: one.faster for one in reviewers(log.facts)} == {"lea": 1, "ben": 1}


def test_a_vote_in_anothers_place_counts_for_who_voted():
    """Ben votes for ana: it is his, since he looked."""
    log = Log()
    log.ask(0, "c", voters=("ana",))
    log.vote(60, "c", "ben", "deny", behalf="ana")
    assert log.one == Reviewer("ben", 1, {"deny": 1}, on_behalf=1, hours=1)


def test_nights_make_nobody_slow():
    """Votes an hour are per hour of the clock in which somebody voted."""
    log = Log()
    for number, hour in enumerate((0, 0, 0, 1, 30)):
        log.ask(hour * 3600 + number, f"c{number}")
        log.vote(hour * 3600 + number + 5, f"c{number}")
    assert (log.one.hours, log.one.votes_an_hour) == (3, 5 / 3)


def test_what_answers_no_open_question_is_no_vote():
    """A vote before the question or after the decision decided nothing, and nobody read anything for it."""
    log = Log()
    log.vote(0, "c")
    log.ask(1, "c")
    log.decide(2, "c")
    log.vote(60, "c", "ben")
    assert reviewers(log.facts) == ()


def test_the_busiest_comes_first():
    """Then by name, so that the order never depends on chance."""
    log = Log()
    for call, reviewer in (("a", "cy"), ("b", "ben"), ("c", "ben"), ("d", "ana")):
        log.ask(0, call)
        log.vote(60, call, reviewer)
    assert [one.name for one in reviewers(log.facts)] == ["ben", "ana", "cy"]


def test_decided_questions_are_forgotten():
    """Memory grows with what is open, not with the log."""
    counting = Counting()
    log = Log()
    for number in range(100):
        log.ask(number, f"c{number}")
        log.decide(number, f"c{number}")
        unasked = THREAD.call(f"unasked{number}")
        log.tell(number, unasked.requested, e.ToolRequested(tool="look", arguments="{}", digest="d"))
        log.decide(number, f"unasked{number}")
    for fact in log.facts:
        counting.take(fact)
    assert not counting._questions
    assert not counting._wishes


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["ana", "ben"]), st.floats(0, 30), st.booleans()),
        max_size=30,
    )
)
def test_counts_add_up(told):
    """Whatever happens, nobody is faster more often than they voted, and every vote on an open question is somebody's."""
    log, clock, expected = Log(), 0.0, 0
    opened, decided = set(), set()
    for call, reviewer, after_s, ends in told:
        clock += after_s
        if call not in opened:
            log.ask(clock, call)
            opened.add(call)
        elif ends:
            log.decide(clock, call)
            decided.add(call)
        else:
            log.vote(clock, call, reviewer)
            expected += call not in decided
    found = reviewers(log.facts)
    assert sum(one.votes for one in found) == expected
    for one in found:
        assert 0 <= one.faster <= one.votes == sum(one.by_verdict.values())
        assert 1 <= one.hours <= one.votes
    assert reviewers(log.facts) == found


def test_a_fact_about_no_call_is_passed_over():
    """What is said in a thread is nobody's vote."""
    log = Log()
    log.tell(0, THREAD.said("1"), e.Said(role="user", text="hello"))
    log.tell(1, CallRef("shop", "t", "c").vote("ana"), e.Voted(verdict="approve", digest="d"))
    assert reviewers(log.facts) == ()
