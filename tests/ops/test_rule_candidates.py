"""Candidates in words, and as rules of a policy file."""

import pytest

from ayes.ops.audit.rule_candidates import (
    NumberBound,
    OneOf,
    Property,
    RuleCandidate,
    RuleText,
    access,
    has,
    rule_toml,
)
from ayes.schemas.policy import read_policy

AMOUNT = Property("args", ("amount",))


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (RuleCandidate("refund"), "refund: any"),
        (RuleCandidate("refund", (), NumberBound(AMOUNT, True, 5)), "refund: amount up to 5"),
        (RuleCandidate("refund", (), NumberBound(AMOUNT, False, 0.5)), "refund: amount from 0.5"),
        (
            RuleCandidate(
                "refund",
                (
                    OneOf(Property("agent"), ("desk-1",)),
                    OneOf(Property("args", ("to", "known")), (True,)),
                ),
            ),
            "refund: agent desk-1, to.known true",
        ),
        (
            RuleCandidate("refund", (OneOf(Property("labels", ("channel",)), ("chat", "mail")),)),
            "refund: channel chat or mail",
        ),
    ],
)
def test_a_candidate_has_a_name_that_says_what_it_allows(candidate, words):
    """In the words of its arguments and labels."""
    assert str(candidate) == words


@pytest.mark.parametrize(
    ("path", "read", "asked"),
    [
        (("a", "b"), "args.a.b", "has(args.a.b)"),
        (("a-b",), 'args["a-b"]', '"a-b" in args'),
        (("a", "in"), 'args.a["in"]', '"in" in args.a'),
        (('"', "b"), r'args["\""].b', r'has(args["\""].b)'),
    ],
)
def test_a_place_is_read_as_the_language_of_conditions_has_it(path, read, asked):
    """Names that are no words of it, and reserved ones, stand in quotes."""
    assert (access("args", path), has("args", path)) == (read, asked)


@pytest.mark.parametrize(
    "condition", ["args.a <= 5", 'args.a == "b"', 'args.a == "it\'s"', r'args.a == "\\"']
)
def test_a_rule_is_read_as_it_was_meant(condition):
    """Whatever quotes its condition has."""
    text = RuleText('a "name"\n', ("reads", "reversible"), 7, "It's\nwhy.", shadow=False)
    (rule,) = read_policy(rule_toml(RuleCandidate("github/list"), condition, text), "a rule").rules
    assert (rule.name, rule.when, rule.priority) == (text.name, condition, 7)
    assert (rule.classes, rule.reason, rule.shadow) == (text.classes, text.reason, False)
    assert (rule.tools, rule.then) == (("github/list",), "allow")
