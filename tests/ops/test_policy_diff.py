"""What a change of a policy opens: held against brute force over a small world, row by row, and on
the project's own policies.
"""

import json
import sys

import msgspec
import pytest
from long import sampled
from own_policies import own_policies, variants
from small_policies import judged

from ayes.ops.audit.backtest import CandidateCall, backtest
from ayes.ops.policy_diff.difference import (
    Coverage,
    OpenedCall,
    PolicyDifference,
    coverage,
    sentences,
    trial_command,
)
from ayes.ops.policy_diff.versions import difference
from ayes.schemas.errors import BadInput
from ayes.schemas.policy import Policy, read_policy

#: Pairs of policies in one test.
PAIRS = 20


def policy(text: str) -> Policy:
    return read_policy(text, "it")


def rule(name="it", tools='["pay"]', then="allow", when="", more="") -> str:
    condition = f"when = {json.dumps(when)}\n" if when else ""
    return f'[[rule]]\nname = "{name}"\ntools = {tools}\nthen = "{then}"\n{condition}{more}\n'


def opened(old: str, new: str, beside: str | None = None) -> PolicyDifference:
    return difference(policy(old), policy(new), None if beside is None else policy(beside))


# -------------------------------------------------------------------------------------- brute force


@pytest.mark.parametrize("batch", sampled(range(125), 0, 1, 2))
def test_no_pair_of_small_policies_shows_it_wrong(batch):
    """Every call that it names is one and the smallest; where it names none, none is found."""
    answers = [judged(seed) for seed in range(batch * PAIRS, batch * PAIRS + PAIRS)]
    assert [wrong for _, wrong in answers if wrong] == []
    assert [answer for answer, _ in answers].count("cannot_be_proved") <= PAIRS // 3


# ---------------------------------------------------------------------------------------- the rows

ASK = rule("all", '["*"]', "ask")

#: A condition before and after of a rule that allows, and the smallest arguments that are opened;
#: None: nothing is.
ROWS = [
    ("args.amount <= 50", "args.amount <= 100", {"amount": 51}),
    ("args.amount <= 100", "args.amount <= 50", None),
    ("args.amount < 3", "args.amount <= 3", {"amount": 3}),
    # Between two whole numbers is a decimal.
    ("args.amount < 3", "args.amount < 4 && args.amount != 3", {"amount": 3.5}),
    # A key that is missing is an error and asks; `has` is none.
    ("args.a == 1", "!has(args.a) || args.a == 1", {}),
    ("!has(args.a) || args.a == 1", "args.a == 1", None),
    ("args.a == 1 || args.b == 1", "args.b == 1 || args.a == 1", None),
    # An error beside `true` in `||` is none, in both orders.
    ("args.a == 1", "args.a == 1 || args.b > 2", {"b": 3}),
    ("args.b > 2 || args.a == 1", "args.a == 1", None),
    # A text is no number, and a number is equal to the same decimal.
    ('args.a == "1"', "args.a == 1", {"a": 1}),
    ("args.a == 1", "args.a == 1.0", None),
    ("args.a == 1.0", "args.a in [1]", None),
    ('args.a > "b"', 'args.a >= "b"', {"a": "b"}),
    ("args.a > 1", "!(args.a <= 1)", None),
    ("args.a > 1", 'args.a != "x" && args.a > 0', {"a": 1}),
    # Of two truths, the one is less than the other.
    ("args.a == true", "args.a >= false && args.a != true", {"a": False}),
    ("args.a == null", "args.a == null || args.a == 0", {"a": 0}),
    # Whole numbers and decimals are compared and not added; beyond 64 bits nothing is.
    ("args.a + 1 > 5", "args.a + 1 > 4", {"a": 4}),
    ("args.a > 4", "args.a + 1 > 5", None),
    ("args.a + 1 > 5", "args.a > 4", {"a": 5.0}),
    ("args.a / 2 == 1", "args.a / 2 == 1 || args.a == -3", {"a": -3}),
    ("args.a / 2 == -1", "args.a == -3", {"a": -3.0}),
    ("args.a % 2 == -1", "args.a % -2 == -1", None),
    ("args.a * args.b > 100", "args.a * args.b >= 100", {"a": 1, "b": 100}),
    ("-args.a < 0", "args.a > 0", {"a": 2**63}),
    ("-args.a < 0", "args.a > 0 && args.a < 5", None),
    # Texts.
    ('args.a == "xy"', 'args.a.startsWith("x")', {"a": "x"}),
    ('args.a.contains("y")', 'args.a.endsWith("y")', None),
    ('args.a == "x" + args.b', 'args.a == "xy" && args.b == "y"', None),
    ("size(args.a) > 3", "size(args.a) > 2 && args.a != [1]", {"a": "aaa"}),
    # Lists and tables.
    ('args.a in ["x", "y"]', 'args.a in ["x", "y", "z"]', {"a": "z"}),
    ('"x" in args.a', '"x" in args.a || "y" in args.a', {"a": ["y"]}),
    ('"x" in args.a && "y" in args.a', '"x" in args.a', {"a": {"x": 0}}),
    ("args.a[0] == 1", "args.a[1] == 1", {"a": [0, 1]}),
    ("args.a.b.c == 1", "has(args.a.b) && args.a.b.c == 1", None),
    ("args.a.b.c == 1", "has(args.a.b)", {"a": {"b": 0}}),
    ('args["a b"] == 1', 'args["a b"] >= 1', {"a b": 2}),
    ('"x" in args', "has(args.x)", None),
    # What is not written exactly is the same wherever it stands.
    ('args.a.matches("^x+$") && args.b < 2', 'args.a.matches("^x+$") && args.b < 1', None),
    ("args.l.all(x, x > 1) && args.b < 2", "args.b < 2 && args.l.all(x, x > 1)", None),
    ("args.a * 1.5 > 10.0", "args.a * 1.5 > 10.0 && has(args.a)", None),
    ("args.a * 1.5 > 10.0", "args.a * 1.5 > 9.0", {"a": 6.5}),
    # Each of the call's texts.
    ('agent == "x"', 'agent == "x" || tool == "pay"', {}),
    ("labels.a == args.a", "has(labels.a) && labels.a == args.a", None),
    # Odd, and as the library has it: an even number of signs says nothing.
    ("args.a == true", "!!args.a", None),
    ("-args.a", "!args.a", None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "arguments"), ROWS)
def test_a_condition_that_changes_opens_this(before, after, arguments):
    """Proved, or with the fewest and smallest arguments."""
    found = opened(
        ASK + rule(when=before, more="priority = 1"), ASK + rule(when=after, more="priority = 1")
    )
    if arguments is None:
        assert (found.answer, found.call) == ("nothing_opened", None)
    else:
        assert found.call is not None, found
        assert (found.answer, found.call.arguments) == ("opened", arguments)
        assert [type(one) for one in found.call.arguments.values()] == [
            type(one) for one in arguments.values()
        ]


NARROW = rule(more='agents = ["desk-*"]')

#: A policy before and after, and the smallest call that is opened, without its rules.
POLICIES = [
    (ASK, rule(), {"tool": "pay", "arguments": {}, "before": "asked"}),
    (rule(then="block"), rule(), {"tool": "pay", "arguments": {}, "before": "blocked"}),
    (rule(), ASK, None),
    (rule(), rule(tools='["pay", "pay_*"]'), {"tool": "pay_", "arguments": {}, "before": "asked"}),
    (rule(tools='["*"]'), rule(tools='["p*", "?"]'), None),
    (rule(tools='["p*"]'), rule(tools='["*"]'), {"tool": "a", "arguments": {}, "before": "asked"}),
    # A condition that speaks of the tool.
    (rule(tools='["*"]', when='tool == "dropper"'),
     rule(tools='["*"]', when='tool.startsWith("drop")'),
     {"tool": "drop", "arguments": {}, "before": "asked"}),
    (rule(tools='["*"]', when='tool != "a"'), rule(tools='["b*"]', when='tool != "b"'), None),
    (NARROW, rule(), {"tool": "pay", "arguments": {}, "before": "asked"}),
    (rule(more='agents = ["desk-1"]'), NARROW,
     {"tool": "pay", "arguments": {}, "agent": "desk-", "before": "asked"}),
    (rule(more='labels = {a = "x"}'), rule(more='labels = {a = "*"}'),
     {"tool": "pay", "arguments": {}, "labels": {"a": ""}, "before": "asked"}),
    (rule(more='labels = {a = "[x]"}'), rule(more='labels = {a = "[x]*"}'),
     {"tool": "pay", "arguments": {}, "labels": {"a": "[x]!"}, "before": "asked"}),
    (rule(more='workspaces = ["shop"]'), rule(more='workspaces = ["shop*"]'),
     {"tool": "pay", "arguments": {}, "workspace": "shopa", "before": "asked"}),
    (rule(more='class = "reads"'), rule(more='class = ["reads", "reversible"]'),
     {"tool": "pay", "arguments": {}, "class": "reversible", "before": "asked"}),
    # A rule without effect has none.
    (ASK, rule(more="shadow = true") + ASK, None),
    (rule(then="block", more="shadow = true") + rule("2"), rule(), None),
    # A priority beats a stricter rule, also where it cannot be evaluated.
    (rule("2", then="block", more="priority = 1") + rule(),
     rule("2", then="block") + rule(more="priority = 1"),
     {"tool": "pay", "arguments": {}, "before": "blocked"}),
    (rule("2", then="block", when="args.a > 1") + rule(),
     rule("2", then="block", when="args.a > 2") + rule(),
     {"tool": "pay", "arguments": {"a": 2}, "before": "blocked"}),
    (rule("2", then="block", when="args.a > 1") + rule(more="priority = 1"),
     rule("2", then="block", when="args.a > 1") + rule(), None),
    (rule("2", then="ask", when="args.a > 1") + rule(), rule(when="!has(args.a)") + ASK, None),
    # Whole numbers beyond 64 bits: no condition can be evaluated.
    (rule(when="has(args.a) || !has(args.a)"), rule(),
     {"tool": "pay", "arguments": {"n": 2**64}, "before": "asked"}),
    # Who asks.
    ("[people]\nben = []\n" + rule(), '[people]\nben = ["b@x"]\n' + rule(),
     {"tool": "pay", "arguments": {}, "requester": "b@x", "before": "invalid"}),
    (rule(), 'unmapped_requesters = "exclude_nobody"\n' + rule(),
     {"tool": "pay", "arguments": {}, "requester": "?", "before": "invalid"}),
    ('unmapped_requesters = "exclude_nobody"\n' + rule(), rule(), None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "call"), POLICIES)
def test_a_policy_that_changes_opens_this(before, after, call):
    """As the gate judges it: by priority, strictness, patterns, labels, class and requester."""
    found = opened(before, after)
    said = None if found.call is None else msgspec.to_builtins(found.call)
    bare = (
        None
        if said is None
        else {k: v for k, v in said.items() if k not in {"rule", "before_rule"}}
    )
    assert bare == call
    assert found.answer == ("nothing_opened" if call is None else "opened")


def test_the_organisation_may_keep_it_closed():
    """What the organisation's policy blocks both times is not opened; what it does not name is."""
    assert opened(ASK, rule(), rule("no", then="block")).answer == "nothing_opened"
    assert opened(ASK, rule(), rule("no", '["other"]', "block")).answer == "opened"
    assert opened(ASK, rule(), rule("no", then="ask", when="args.a > 1")).call == OpenedCall(
        tool="pay", arguments={"a": 0}, rule="it", before="asked", before_rule="all"
    )


def test_a_policy_of_the_organisation_is_compared_for_any_workspace():
    """Beside a workspace that allows everything, a rule that goes opens what it kept closed."""
    before, after = rule("no", then="block"), rule("no", then="block", when="args.a > 1")
    found = difference(policy(before), policy(after), organisation=True)
    assert (found.call.arguments, found.call.before_rule) == ({"a": 0}, "no")
    assert difference(policy(after), policy(before), organisation=True).answer == "nothing_opened"


def test_what_is_not_written_exactly_is_not_guessed():
    """The answer names the rule and the reason; what does not depend on it is still found."""
    before, after = rule(when="args.a > 1"), rule(when='args.b.matches("^[0-9]{9}$")')
    found = opened(before, after)
    assert (found.answer, found.call) == ("cannot_be_proved", None)
    said = "\n".join(sentences(found, "the old", "the new"))
    assert (
        said
        == "It cannot be proved that the new opens nothing:\n  'it' of the new: it has matches()."
    )
    other = opened(before, after + rule("b", '["b"]'))
    assert other.call is not None
    assert other.call.tool == "b"


def test_a_reader_of_patterns_may_give_up():
    """So many patterns that they can be combined in too many ways are not tried."""
    many = [f"*{one}*{other}*" for one in "abcdef" for other in "ghijkl"]
    found = opened(rule(tools=json.dumps(many)), rule(tools=json.dumps([*many, "*z"])))
    assert found.answer == "cannot_be_proved"
    assert "combined in more ways" in sentences(found, "old", "new")[1]


# ------------------------------------------------------------------------------------- what is left


def test_what_is_not_compared_is_named():
    """Who decides, how long an approval holds, and settings for all rules."""
    before = rule(then="ask", more="votes_needed = 2")
    after = 'never_grant = ["x"]\n' + rule(
        then="ask", more='voters = ["ana"]\nexpires_in_s = 9\nreason = "r"'
    )
    found = opened(before, after)
    assert found == PolicyDifference(
        "nothing_opened",
        rules={"it": ("voters", "votes_needed", "expires_in_s")},
        settings=("never_grant",),
    )
    differ = "'it' (voters, votes_needed, expires_in_s); the settings never_grant"
    assert sentences(found, "version 3", "new.toml") == [
        "Nothing is opened: whatever new.toml lets through, version 3 lets through too.",
        f"Not compared, see the lines that differ: {differ}.",
    ]


def test_a_call_is_shown_with_the_command_that_tries_it():
    """With all that it depends on, quoted for a shell."""
    call = OpenedCall(
        tool="pay",
        arguments={"a": "it's"},
        rule="r",
        before="asked",
        before_rule="all",
        agent="desk",
        requester="b@x",
        workspace="shop",
        labels={"channel": "chat"},
        tool_class="reads",
    )
    assert trial_command(call, "new.toml") == (
        'ayes policy test new.toml --tool pay --arguments \'{"a":"it\'"\'"\'s"}\' --agent desk '
        "--requester b@x --label channel=chat --class reads -w shop"
    )
    first, described = sentences(PolicyDifference("opened", call), "old", "new")
    assert first == "Opened: new lets this call through ('r'), and old asks people ('all'):"
    assert json.loads(described) == {
        "tool": "pay",
        "arguments": {"a": "it's"},
        "agent": "desk",
        "requester": "b@x",
        "workspace": "shop",
        "labels": {"channel": "chat"},
        "class": "reads",
    }


def test_coverage_is_of_the_calls_that_are_judged():
    """Calls whose arguments are not valid are none of them."""
    calls = [
        CandidateCall("pay", "{}", requester="ana"),
        CandidateCall("look", "{}", requester="ana"),
        CandidateCall("pay", "{}", requester="ana", fits=False),
    ]
    found = coverage(backtest(policy(rule()), calls))
    assert (found, found.share) == (Coverage(named=1, calls=2), "50.0%")
    assert coverage(backtest(policy(rule()), [])).share == "none"


def test_without_the_solver_it_says_what_to_install(monkeypatch):
    """One sentence, and no traceback."""
    monkeypatch.delitem(sys.modules, "ayes.ops.policy_diff.compare", raising=False)
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(BadInput, match=r"is not installed: pip install 'ayes\[prove\]'"):
        opened(ASK, ASK)


# --------------------------------------------------------------------------------- our own policies


def test_our_own_policies_can_be_compared():
    """At least 95% of them, each with itself and with one number changed."""
    undecided, compared = [], 0
    for text, path in own_policies().items():
        pairs = [text, *list(variants(text))[:1]]
        for other in pairs:
            compared += 1
            found = opened(text, other)
            if found.answer == "cannot_be_proved":
                undecided.append((path, found.unproved))
            if other == text:
                assert found.answer != "opened", path
    assert compared > 90
    assert len(undecided) <= compared * 0.05, undecided
