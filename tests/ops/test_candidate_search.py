"""The candidate that fits decisions best, and what it must reach."""

import pytest
from made_up_reviewers import asked

from ayes.ops.audit.call_properties import Facts
from ayes.ops.audit.candidate_search import Demands, best
from ayes.ops.audit.rule_candidates import NumberBound, OneOf, Property, RuleCandidate

AMOUNT, CHANNEL = Property("args", ("amount",)), Property("labels", ("channel",))
DEMANDS = Demands(at_most=0.05, confidence=0.95, fewest_older=59, fewest_newer=59)


def decided(rule, *, newer=True, calls=600):
    """Facts of calls with amounts of 0 to 59, by two channels, every second of them newer."""
    found = [
        asked(number // 4 % 60, channel=("chat", "mail")[number // 2 % 2], thread=f"t{number}")
        for number in range(calls)
    ]
    against = [
        not rule(number // 4 % 60, ("chat", "mail")[number // 2 % 2]) for number in range(calls)
    ]
    return Facts(found, [not newer or number % 2 == 0 for number in range(calls)], against)


def found(facts, demands=DEMANDS, fresh=None, banned=()):
    one = best(facts, facts.older | facts.newer if fresh is None else fresh, demands, banned)
    return one and one[1]


@pytest.mark.parametrize(
    ("rule", "parts", "bound"),
    [
        (lambda amount, _: amount <= 33, (), (True, 33)),
        (lambda amount, _: amount >= 20, (), (False, 20)),
        (lambda amount, way: way == "mail" and amount <= 40, ("mail",), (True, 40)),
        (lambda _, way: way == "chat", ("chat",), (True, 59)),
        (lambda *_: True, (), (True, 59)),
    ],
)
def test_it_goes_as_far_as_people_approve(rule, parts, bound):
    """And no further, though the bound would leave room for it."""
    wanted = tuple(OneOf(CHANNEL, (value,)) for value in parts)
    assert found(decided(rule)) == RuleCandidate("refund", wanted, NumberBound(AMOUNT, *bound))


def test_it_must_have_enough_older_and_newer_calls():
    """Whatever was decided of the newer ones."""
    facts = decided(lambda amount, _: amount <= 33)
    covered = facts.covered(RuleCandidate("refund", (), NumberBound(AMOUNT, True, 33)))
    older = (covered & facts.older).bit_count()
    newer = (covered & facts.newer).bit_count()
    assert found(facts, Demands(0.05, 0.95, older, newer)) is not None
    assert found(facts, Demands(0.05, 0.95, older + 1, newer)) is None
    assert found(facts, Demands(0.05, 0.95, older, newer + 1)) is None
    assert found(decided(lambda *_: True, newer=False)) is None


def test_what_another_covers_makes_it_no_better():
    """The next one is chosen for the calls that are left."""
    facts = decided(lambda *_: True)
    chat = facts.calls_of(OneOf(CHANNEL, ("chat",)))
    rest = found(facts, fresh=facts.calls_of(OneOf(CHANNEL, ("mail",))))
    assert rest is not None
    assert facts.covered(rest) & ~chat
    assert found(facts, fresh=0) is None


def test_one_that_is_not_wanted_is_passed_over():
    """Then the next best counts."""
    facts = decided(lambda *_: True)
    first = found(facts)
    other = found(facts, banned={first})
    assert other not in (first, None)


def test_where_nothing_is_approved_nothing_fits():
    """Nor where it is approved by chance."""
    assert found(decided(lambda *_: False)) is None
    assert found(decided(lambda amount, way: (amount * 7 + len(way)) % 3 > 0)) is None


def test_what_was_decided_of_newer_calls_is_not_read():
    """So that it can be stated by them."""
    facts = decided(lambda amount, _: amount <= 33)
    assert facts.against & facts.newer == 0
    assert facts.older & facts.newer == 0
