"""What calls have, and the rules of candidates: whatever the arguments look like, a rule allows the
calls that its candidate covers, and no others.
"""

import json
from itertools import combinations

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_reviewers import asked

from ayes.ledger.judging.policy_rules import About, judge
from ayes.ops.audit.call_properties import Facts, args_of
from ayes.ops.audit.rule_candidates import (
    NumberBound,
    OneOf,
    Property,
    RuleCandidate,
    RuleText,
    rule_toml,
)
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.redaction import REDACTED

AMOUNT, CHANNEL = Property("args", ("amount",)), Property("labels", ("channel",))
TOKEN = f"ayes:sealed:1:{'0' * 16}:{'A' * 90}"


def call(arguments, **more):
    return asked(None, arguments=json.dumps(arguments), **more)


def facts(*calls):
    return Facts(calls, [True] * len(calls), [False] * len(calls))


def toml(found, candidate, name="r"):
    condition = found.condition(candidate)
    return rule_toml(candidate, condition, RuleText(name, ("reversible",), shadow=False))


def allowed(text, calls):
    """The calls that the rule allows, by the gate's own evaluation; none of them is in doubt."""
    policy = Policy().with_rule(read_policy(text, "a rule").rules[0])
    found = []
    for one in calls:
        wished = one.wished
        about = About(
            wished.tool,
            json.loads(wished.arguments),
            agent=wished.agent,
            labels=wished.labels,
            tool_class="reversible",
        )
        match = judge(policy, about)
        assert "cannot be evaluated" not in match.reason, match.reason
        found.append(match.then == "allow")
    return found


# ------------------------------------------------------------------------------ candidates as rules

names = st.sampled_from(["amount", "in", "a-b", "größe", 'q"uote', "x1", "type"])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-5, 5),
    st.sampled_from([2**53 + 1, 2**70, 1e300, "EUR", "5", "", 'a"b\\', "\u202ex", REDACTED]),
    st.lists(st.integers(0, 2), max_size=2),
)
inner = st.dictionaries(names, leaves, max_size=2)
tables = st.dictionaries(names, st.one_of(leaves, inner), max_size=4)
labels = st.sampled_from(["chat", "m*il", "a[b]", ""])
made_calls = st.builds(
    call,
    tables,
    agent=st.sampled_from(["", "desk-1", "desk-2", "not a token"]),
    labels=st.dictionaries(st.sampled_from(["channel", "a.b", "in"]), labels, max_size=2),
)


@given(st.lists(made_calls, min_size=1, max_size=12), st.data())
@settings(max_examples=examples(1200), deadline=None)
def test_a_rule_allows_what_its_candidate_covers(calls, data):
    """Missing, nested and odd arguments, of several types: no condition is in doubt for what it was
    made of.
    """
    found = facts(*calls)
    parts = [
        OneOf(where, tuple(values))
        for where, sets in found.values.items()
        for values in ([one] for one in sets)
    ]
    parts += [OneOf(where, tuple(sets)) for where, sets in found.values.items()]
    bounds = [
        NumberBound(where, is_most, value)
        for where, numbers in found.numbers.items()
        for is_most in (True, False)
        for value, _ in numbers
    ]
    pairs = [pair for pair in combinations(parts, 2) if pair[0].where != pair[1].where]
    chosen = data.draw(st.sampled_from([(), *((one,) for one in parts), *pairs]))
    candidate = RuleCandidate("refund", chosen, data.draw(st.sampled_from([None, *bounds])))
    # The gate asks people about a whole number beyond 64 bits, whatever the condition.
    readable = [one for one in calls if str(2**70) not in one.wished.arguments]
    flags = found.flags(found.covered(candidate))
    wanted = [bool(flag) for one, flag in zip(calls, flags, strict=True) if one in readable]
    assert allowed(toml(found, candidate, str(candidate) or "r"), readable) == wanted


@pytest.mark.parametrize(
    ("calls", "candidate", "lines"),
    [
        (
            [call({"amount": 5})],
            RuleCandidate("refund", (), NumberBound(AMOUNT, True, 5)),
            ['when = "args.amount <= 5"'],
        ),
        (
            [call({"amount": 5.5}), call({})],
            RuleCandidate("refund", (), NumberBound(AMOUNT, False, 5.5)),
            ['when = "has(args.amount) && args.amount >= 5.5"'],
        ),
        (
            [call({"amount": 5}), call({"amount": "5"})],
            RuleCandidate("refund", (), NumberBound(AMOUNT, True, 5)),
            ['when = "type(args.amount) in [int, double] && args.amount <= 5"'],
        ),
        (
            [call({"to": {"bank-id": "x"}}), call({})],
            RuleCandidate("refund", (OneOf(Property("args", ("to", "bank-id")), ("x",)),)),
            ['when = \'has(args.to) && args.to["bank-id"] == "x"\''],
        ),
        (
            [call({}, labels={"channel": "chat"}), call({}, labels={"channel": "mail"})],
            RuleCandidate("refund", (OneOf(CHANNEL, ("chat", "mail")),)),
            ['when = \'has(labels.channel) && labels.channel in ["chat", "mail"]\''],
        ),
        (
            [call({"loud": True}, labels={"channel": "chat"})],
            RuleCandidate(
                "refund",
                (OneOf(CHANNEL, ("chat",)), OneOf(Property("args", ("loud",)), (True,))),
            ),
            ['labels = {channel = "chat"}', 'when = "args.loud == true"'],
        ),
        (
            [call({}, agent="desk-1"), call({}, agent="desk-2")],
            RuleCandidate("refund", (OneOf(Property("agent"), ("desk-1", "desk-2")),)),
            ['agents = ["desk-1", "desk-2"]'],
        ),
    ],
)
def test_a_candidate_is_written_as_people_write_rules(calls, candidate, lines):
    """With the keys that rules have, and no more in the condition than what was seen needs."""
    text = toml(facts(*calls), candidate)
    own = ("when", "labels", "agents")
    assert [line for line in text.splitlines() if line.startswith(own)] == lines
    assert 'class = ["reversible"]' in text


# ----------------------------------------------------------------------------------- what is hidden


@pytest.mark.parametrize(
    ("arguments", "hidden"),
    [
        ({"card": "4111"}, ("/card",)),
        ({"card": {"kind": "visa", "number": 5}}, ("/card",)),
        ({"card": {"kind": "visa"}}, ("/card/kind",)),
        ({"card": "visa", "amount": 5}, ("",)),
        ({"card": TOKEN}, ()),
        ({"cards": {"a": "visa"}}, ("/cards/*",)),
    ],
)
def test_what_is_secret_or_sealed_is_no_property(arguments, hidden):
    """Neither by itself, nor with what is in it."""
    found = facts(*[call(arguments, hidden=hidden)] * 3)
    assert [where for where in (*found.values, *found.numbers) if where.source == "args"] == []


def test_what_another_version_hides_is_hidden_of_each_call():
    """A value that was public before may be in a call that came first."""
    open_, closed = call({"card": "visa", "amount": 1}), call({"card": "visa"}, hidden=("/card",))
    assert list(facts(open_, closed).numbers) == [AMOUNT]
    assert all(where.source != "args" for where in facts(open_, closed).values)
    assert args_of(call({"amount": 1}, hidden=None), ()) is None


def test_texts_of_their_own_are_no_properties():
    """More values than anybody lists, and long ones; numbers in texts are texts."""
    many = [call({"order": f"A-{number}", "kind": str(number % 2)}) for number in range(20)]
    found = facts(*many)
    assert Property("args", ("order",)) not in found.values
    assert set(found.values[Property("args", ("kind",))]) == {"0", "1"}
    assert not found.numbers
    assert all(where.source != "args" for where in facts(call({"text": "x" * 61})).values)


def test_a_place_that_is_now_a_table_and_now_a_value_is_no_property():
    """Nor is what is in it, nor a list."""
    found = facts(call({"to": {"n": 1}}), call({"to": 5}), call({"all": [1, 2]}))
    assert list(found.numbers) == []
