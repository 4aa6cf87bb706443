"""What facts add up to."""

from collections import Counter, defaultdict
from datetime import timedelta

import msgspec
import pytest
from stories import REF, Story, approval, life, question, request

from ayes.projections.tally import (
    BOUNDS_S,
    MAX_RULES,
    NO_RULE,
    OTHER,
    UNKNOWN,
    FactCounts,
    Histogram,
    is_decision,
)
from ayes.schemas import events as e

WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")
CALL = REF.call("c1")


def tallied(facts, begin=0):
    """The facts after a place, as a follower counts them."""
    tally, calls = FactCounts(begin), defaultdict(list)
    for fact in facts:
        calls[fact.slot.call_ref].append(fact)
    for fact in facts[begin:]:
        tally.apply(fact, calls[fact.slot.call_ref] if is_decision(fact) else ())
    return tally


def told(*places):
    return Story().tell_all(places).facts


@pytest.mark.parametrize(
    ("ending", "decision"),
    [
        ("approved", ("approved", "money")),
        ("revoked", ("approved", "money")),
        ("returned", ("approved", "money")),
        ("denied", ("denied", "money")),
        ("denied by policy", ("denied", "no-refunds")),
        ("invalid", ("denied", "money")),
        ("answered", ("answered", "money")),
        ("expired", ("expired", "money")),
        # The decision names no rule; the question does.
        ("withdrawn", ("withdrawn", "money")),
        ("superseded", ("superseded", "money")),
    ],
)
def test_a_decision_is_counted_by_verdict_and_rule(ending, decision):
    """Each once, with the time since the request: the facts are a second apart."""
    facts = told(*life(CALL, WISH, ending))
    tally = tallied(facts)
    assert tally.decisions == Counter({decision: 1})
    assert tally.durations["people"].sum_s == 2
    assert tally.durations["nobody"].sum_s == 0
    assert +tally.facts == Counter(type(one.event).__name__ for one in facts)
    assert tally.seq == len(facts)


@pytest.mark.parametrize(
    ("ground", "mode", "verdict"),
    [
        ("people", "requester_confirms", "confirmed"),
        ("people", "four_eyes", "approved"),
        ("broken_glass", "four_eyes", "approved"),
        ("policy", "four_eyes", "approved"),
    ],
)
def test_what_the_requester_confirmed_is_counted_apart(ground, mode, verdict):
    """A number of approvals is one of four eyes, or of nobody's."""
    decided = msgspec.structs.replace(approval(WISH), ground=ground, mode=mode)
    tally = tallied(told((CALL.requested, request(WISH)), (CALL.decided, decided)))
    assert tally.decisions == Counter({(verdict, "money"): 1})


def test_a_policys_own_decision_is_counted_apart():
    """Nobody was asked, so people's time is not in it; no rule is named where none was involved."""
    invalid = e.Denied(ground="invalid", rule="", policy_version=1)
    tally = tallied(told((CALL.requested, request(WISH)), (CALL.decided, invalid)))
    assert tally.decisions == Counter({("denied", NO_RULE): 1})
    assert (sum(tally.durations["nobody"].counts), tally.durations["nobody"].sum_s) == (1, 1.0)
    assert not any(tally.durations["people"].counts)


def test_a_question_after_the_decision_is_no_question():
    """Two gates may know different policies; the decision came first."""
    allowed = e.Approved(digest="d", ground="policy", rule="freely", policy_version=1)
    asked = (CALL.gated, question(WISH))
    facts = told((CALL.requested, request(WISH)), (CALL.decided, allowed), asked)
    assert tallied(facts).decisions == Counter({("approved", "freely"): 1})
    assert sum(tallied(facts).durations["nobody"].counts) == 1


def test_a_call_that_waited_before_the_counting_began_counts_in_full():
    """Its request and question are older than the counter, which counts the decision alone."""
    facts = told(*life(CALL, WISH, "approved"))
    late = msgspec.structs.replace(facts[2], recorded_at=facts[0].recorded_at + timedelta(days=3))
    tally = tallied([*facts[:2], late], begin=2)
    assert +tally.facts == Counter({"Approved": 1})
    assert tally.durations["people"].sum_s == 3 * 24 * 3600


def test_a_decision_about_a_call_that_nobody_requested_is_void():
    """It is a fact, and not a decision."""
    allowed = e.Approved(digest="d", ground="policy", rule="freely", policy_version=1)
    tally = tallied(told((CALL.decided, allowed)))
    assert tally.facts["Approved"] == 1
    assert not tally.decisions


def test_what_cannot_be_read_is_counted_as_unknown():
    """Facts of a newer program, and bytes that are no facts, also in the place of a decision."""
    newer = e.Carried(type="Postponed", raw=b"{}")
    broken = e.Carried(type="", raw=b"\xff", problem="not JSON")
    tally = tallied(
        told((CALL.requested, request(WISH)), (CALL.decided, newer), (CALL.gated, broken))
    )
    assert tally.facts[UNKNOWN] == 2
    assert not tally.decisions


def test_the_number_of_rules_is_bounded():
    """Policies may have any number of rules with names of any length: the first hundred are told
    apart, and no decision is lost.
    """
    places = []
    for number in range(3 * MAX_RULES):
        call = REF.call(f"c{number}")
        rule = f"{number % (2 * MAX_RULES)}-{'x' * 10_000}"
        places.append((call.requested, request(WISH)))
        denied = e.Denied(ground="policy", rule=rule, policy_version=1)
        places.append((call.decided, denied))
    decisions = tallied(told(*places)).decisions
    assert len(decisions) == MAX_RULES + 1
    assert decisions.total() == 3 * MAX_RULES
    assert decisions["denied", OTHER] == MAX_RULES
    assert max(len(rule) for _, rule in decisions) <= 100


@pytest.mark.parametrize("tool", ["refund", "wished-for-by-a-model"])
def test_tools_are_not_told_apart(tool):
    """A model may wish for tools of any name."""
    wish = e.Wish(tool=tool, arguments="{}", provider_id="c")
    tally = tallied(told(*life(CALL, wish, "denied")))
    assert tally.decisions == Counter({("denied", "money"): 1})


def test_each_duration_is_in_one_bucket():
    """A bound is in the bucket below it, as Prometheus' `le` says; the last one has no end."""
    histogram = Histogram()
    for duration_s in (0.0, *BOUNDS_S, 1e9):
        histogram.add(duration_s)
    assert histogram.counts == [2, *([1] * (len(BOUNDS_S) - 1)), 1]
    assert histogram.sum_s == sum(BOUNDS_S) + 1e9
