"""Which decisions of the past rules can be learned from."""

from datetime import timedelta

import pytest
from made_up_reviewers import SCHEMA, START, asked, policies
from shop import rule

from ayes.ops.audit.counted_decisions import WEEK, CountedDecisions, Decisions
from ayes.ops.audit.past_calls import Said


def counted(*calls, own="", organisation=""):
    return CountedDecisions(calls, policies(own, organisation))


@pytest.mark.parametrize(
    ("said", "against"),
    [("approved", 0), ("denied", 1), ("edited", 1), ("answered", 1), ("revoked", 1)],
)
def test_what_people_decided_counts_for_a_rule_or_against_it(said: Said, against):
    """Approved with other arguments is not approved as it was asked for."""
    past = counted(asked(5, said))
    assert past.decisions(past.against) == Decisions(1, 1 - against)
    assert not past.left_out


@pytest.mark.parametrize("said", ["quick", "confirmed", "glass_broken", "undecided"])
def test_what_nobody_else_decided_with_a_look_does_not_count(said: Said):
    """Neither for a rule, nor against it."""
    past = counted(asked(5, said), asked(6, "unasked"))
    assert (past.against, past.left_out, past.questions) == ({}, {said: 1}, [0])


@pytest.mark.parametrize(
    ("call", "own", "organisation", "why"),
    [
        (asked(5, tool_class="irreversible"), "", "", "irreversible"),
        (asked(5, governs=True), "", "", "governs"),
        (asked(5), 'never_grant = ["re*"]\n', "", "never_grant"),
        (asked(5), "", 'never_grant = ["refund"]\n', "never_grant"),
        (asked(5), rule("r", "allow"), "", "not_asked_now"),
        (asked(5), rule("r", "block"), "", "not_asked_now"),
        (asked(5), rule("r", "allow", 'when = "args.amount < 9"'), "", "not_asked_now"),
        (asked(50), rule("r", "allow", 'when = "args.amount < 9"'), "", None),
        (asked('"5"'), rule("r", "allow", 'when = "args.amount < 9"'), "", "not_asked_now"),
        (asked(5), "", rule("r", "ask"), "organisation"),
        (asked(5), rule("r", "ask"), rule("r", "ask"), "organisation"),
        (asked(5), rule("r", "ask"), "", None),
        (asked(5), "", "", None),
        (asked(5, schema=None, hidden=None), "", "", "schema"),
    ],
)
def test_what_no_rule_of_the_workspace_could_spare_does_not_count(call, own, organisation, why):
    """Or may not: what cannot be undone, what governs, what no grant may cover."""
    past = counted(call, own=own, organisation=organisation)
    assert past.left_out == ({} if why is None else {why: 1})
    assert len(past.against) == (why is None)


def test_a_tool_that_is_irreversible_by_now_has_no_decisions():
    """Whatever it declared before."""
    past = counted(asked(5), asked(6, "unasked", tool_class="irreversible"))
    assert past.left_out == {"irreversible": 1}


def test_a_call_under_another_schema_does_not_count():
    """The amount may be in cents now. The same schema in other words is the same."""
    other = '{"type":"object","properties":{"amount":{"description":"in cents"}}}'
    same = SCHEMA.replace(":", " : ")
    past = counted(asked(5, schema=other), asked(6, schema=same), asked(7, "unasked"))
    assert (past.left_out, list(past.against)) == ({"schema": 1}, [1])


@pytest.mark.parametrize(
    ("said", "against"),
    [
        (("approved", "approved"), False),
        (("denied", "approved"), True),
        (("approved", "denied", "approved"), True),
    ],
)
def test_retries_of_one_wish_count_once(said, against):
    """In one conversation; not approved, if any was not."""
    past = counted(*(asked(5, one) for one in said))
    assert past.against == {0: against}
    assert past.left_out == {"retry": len(said) - 1}


def test_only_equal_calls_of_one_conversation_are_retries():
    """Another amount, another conversation: another wish. What does not count is no first one."""
    past = counted(asked(5), asked(6), asked(5, thread="t2"))
    assert len(past.against) == 3
    past = counted(asked(5, "quick"), asked(5, "approved"))
    assert (past.against, past.left_out) == ({1: False}, {"quick": 1})


def spread(*weeks: float):
    return [asked(number, at=START + one * WEEK) for number, one in enumerate(weeks)]


def test_older_and_newer_decisions_meet_between_two_weeks():
    """Where there are about as many on both sides; weeks end with the newest decision."""
    past = counted(*spread(0, 1, 2, 3, 4, 5, 6))
    assert past.newer_from == START + 4 * WEEK
    assert [past.is_older(place) for place in range(7)] == [True] * 4 + [False] * 3
    assert past.counts("refund") == (4, 3)


def test_in_less_than_two_weeks_they_meet_in_the_middle():
    """And where the weeks are too different."""
    past = counted(*spread(0, 0.1, 0.2, 0.3))
    assert past.newer_from == START + 0.2 * WEEK
    crowded = counted(*spread(0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 6))
    assert crowded.newer_from == START + 5.4 * WEEK


def test_what_cannot_be_divided_is_newer():
    """Nothing is chosen by it then."""
    for past in (counted(), counted(asked(5)), counted(*spread(0, 0))):
        assert past.newer_from is None
        assert not any(past.is_older(place) for place in past.against)
    assert timedelta(days=7) == WEEK
