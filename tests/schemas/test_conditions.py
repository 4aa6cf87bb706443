"""Conditions: true, false, impossible to evaluate, and not valid."""

import copy
import subprocess
import sys
import time

import pytest
from expressions import EXPRESSIONS
from hypothesis import given
from hypothesis import strategies as st

from ayes.ledger.judging.policy_rules import About, judge
from ayes.schemas.conditions import (
    MAX_LENGTH,
    MAX_VALUES,
    NAMES,
    BadCondition,
    CannotSay,
    check,
    holds,
    literal,
)
from ayes.schemas.policy import Policy


def scope(args=None, **rest):
    return About(tool="refund", args={} if args is None else args, agent="desk-1", **rest).scope


# ------------------------------------------------------------------------------ yes, no, cannot say

LINES = {"lines": [{"sku": "a", "count": 2}, {"sku": "b", "count": 9}], "tags": [["x"], []]}
SAID = [
    ("args.amount > 100", {"amount": 150}, True),
    ("args.amount > 100", {"amount": 100}, False),
    ("args.amount > 100", {"amount": 100.5}, True),
    ("args.amount > 100", {"amount": 2**64 - 1}, True),
    ("args.amount > 100", {"amount": 1e308}, True),
    ("args.amount == 1", {"amount": 1.0}, True),
    ('args["amount"] > 100', {"amount": 150}, True),
    ('args.name == "Größe 🙂"', {"name": "Größe 🙂"}, True),
    ('args.name.startsWith("Gr") && args.name.contains("ß")', {"name": "Größe"}, True),
    ("size(args.name) == 7", {"name": "Größe"}, True),  # bytes, as the module says
    ("args.note == null", {"note": None}, True),
    ("args.note == null", {"note": ""}, False),
    ("has(args.note)", {}, False),
    ("has(args.note)", {"note": None}, True),
    ("has(args.amount) && args.amount > 100", {}, False),
    ("args.lines.exists(line, line.count > 5)", LINES, True),
    ("args.lines.all(line, line.count > 5)", LINES, False),
    ("args.tags[0][0] == 'x' && size(args.tags[1]) == 0", LINES, True),
    ('"b" in args.lines.map(line, line.sku)', LINES, True),
    ("type(args.amount) == int", {"amount": 1}, True),
    ("type(args.amount) == int", {"amount": "1"}, False),
    ("args.urgent", {"urgent": True}, True),
    ('tool == "refund" && agent == "desk-1" && labels == {}', {}, True),
    # What decides is there, whatever else is not.
    ("true || args.amount > 100", {}, True),
    ("args.amount > 100 && false", {}, False),
    ('args.order.matches("^A-[0-9]+$")', {"order": "A-17"}, True),
]


@pytest.mark.parametrize(("condition", "args", "said"), SAID)
def test_a_condition_holds_or_does_not(condition, args, said):
    """What can be said is said, and as often as it is asked the same (B64, B65)."""
    before = copy.deepcopy(args)
    check(condition)
    assert [holds(condition, scope(args)) for _ in range(3)] == [said] * 3
    assert args == before


UNSAID = [
    ("args.amount > 100", {}, "there is no 'amount'"),
    ("args.a.b.c > 1", {"a": {"b": {}}}, "there is no 'c'"),
    ("args.constructor == 1", {}, "there is no 'constructor'"),
    ("args.__class__ == 1", {}, "there is no '__class__'"),
    ("args.amount > 100", {"amount": "150"}, "of types that do not fit"),
    ("args.amount > 100", {"amount": None}, "of types that do not fit"),
    ("args.amount > 100", {"amount": True}, "of types that do not fit"),
    ("args.amount > 100", {"amount": [150]}, "of types that do not fit"),
    ("args.amount > 100", {"amount": {"amount": 150}}, "of types that do not fit"),
    ("args.lines.exists(line, line > 3)", {"lines": [1, [2], 5]}, "of types that do not fit"),
    ("args.amount > 100", None, "of types that do not fit"),
    ("args.lines[7] == 1", {"lines": [1]}, "out of bounds"),
    ("args.lines[-1] == 1", {"lines": [1]}, "out of bounds"),
    ("args.a / args.b > 1", {"a": 1, "b": 0}, "division by zero"),
    ("args.a % args.b > 1", {"a": 1, "b": 0}, "by zero"),
    ("args.a + 1 > 1", {"a": 2**63 - 1}, "overflow"),
    ("args.a * 2 > 1", {"a": 2**62}, "overflow"),
    ("args.a <= 18446744073709551615u", {"a": 2**64}, "beyond 64 bits"),
    ("args.a == args.b", {"a": 10**40, "b": 10**40 + 1}, "beyond 64 bits"),
    ("args.a > 1", {"a": 10**400}, "beyond 64 bits"),
    ("-args.a > 1", {"a": -(2**63)}, "beyond 64 bits"),
    ("args.a > 1", {"a": 2, "deep": [{"b": [-(10**20)]}]}, "beyond 64 bits"),
    ("int(args.a) > 1", {"a": "9" * 30}, "too large"),
    ("int(args.a) > 1", {"a": 1e300}, "overflow"),
    ("uint(args.a) > 1u", {"a": -1}, "overflow"),
    ('timestamp(args.a) > timestamp("2026-01-01T00:00:00Z")', {"a": "soon"}, "timestamp"),
    ("args.amount", {"amount": 1}, "is a number and not true or false"),
    ("args.amount", {"amount": "true"}, "is a text and not true or false"),
    ("args.amount", {"amount": None}, "is null and not true or false"),
    ("args.amount", {"amount": []}, "is a list and not true or false"),
    ("args.amount ? true : false", {"amount": 1}, "of types that do not fit"),
    ("args.text.matches(args.pattern)", {"text": "a", "pattern": "("}, "not a valid regex"),
    ("args.text.matches(args.pattern)", {"text": "a", "pattern": "a{1000}{1000}{1000}"},
     "not a valid regex"),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "args", "words"), UNSAID)
def test_what_cannot_be_said_is_neither_yes_nor_no(condition, args, words):
    """What goes wrong in a condition says which and why, and people are asked (B64, I4)."""
    check(condition)
    about = About(tool="refund", args=args)
    for _ in range(2):
        with pytest.raises(CannotSay) as raised:
            holds(condition, about.scope)
        assert str(raised.value).startswith(f"'{condition}' ")
        assert words in str(raised.value)
    rule = {"name": "small", "tools": ["refund"], "then": "allow", "when": condition}
    judged = judge(Policy.model_validate({"rule": [rule]}), about)
    assert (judged.then, judged.rule.name) == ("ask", "small")
    assert words in judged.reason


def test_a_panic_of_the_library_is_neither_yes_nor_no(monkeypatch):
    """What is no Exception of Python's cannot say either; only a stop from outside does (B64)."""

    class Panic(BaseException):
        """As PyO3's PanicException is."""

    class Broken:
        problem: BaseException = Panic("index out of bounds")

        def execute(self, _about):
            raise self.problem

    monkeypatch.setattr("ayes.schemas.conditions._compiled", lambda _condition: Broken())
    with pytest.raises(CannotSay, match="index out of bounds"):
        holds("true", scope())
    monkeypatch.setattr(Broken, "problem", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        holds("true", scope())


def test_a_panic_of_its_parser_is_no_condition(monkeypatch):
    """A text at which the library gives up altogether is refused like any other."""

    class Panic(BaseException):
        """As PyO3's PanicException is."""

    def broken(_condition):
        raise Panic("unreachable code")

    monkeypatch.setattr("ayes.schemas.conditions._compiled", broken)
    with pytest.raises(BadCondition, match="unreachable code"):
        check("true")


# ------------------------------------------------------------------------------------- for how long


@pytest.mark.timeout(20)
def test_a_pattern_does_not_blow_up():
    """A regular expression that takes others for ever is answered in time linear in the text."""
    start = time.process_time()
    assert holds('args.text.matches("^(a+)+$")', scope({"text": "a" * 100_000 + "b"})) is False
    assert time.process_time() - start < 5


@pytest.mark.timeout(20)
def test_long_lists_are_for_people_to_look_at():
    """Lists cost the square of their length: a long one cannot be said; other conditions go on."""
    lines = {"lines": list(range(MAX_VALUES + 1)), "amount": 7}
    long = scope({"lines": list(range(100_000)), "amount": 7})
    for condition in (
        "args.lines.map(x, x + 1).size() > 0",
        "args.lines.all(x, x >= 0)",
        "args . lines . exists ( x , x == 3 )",
    ):
        with pytest.raises(CannotSay, match="more than 1,000 values"):
            holds(condition, scope(lines))
        with pytest.raises(CannotSay, match="more than 1,000 values"):
            holds(condition, long)
        assert holds(condition, scope({"lines": list(range(MAX_VALUES - 10))})) is True
    assert holds("args.amount > 1 && size(args.lines) > 1000", long) is True


def test_deep_arguments_are_read():
    """As deep as arguments may be (`ayes.schemas.strict_json`), nothing breaks."""
    deep: object = 1
    for _ in range(99):
        deep = [deep]
    assert holds("args.deep == args.deep", scope({"deep": deep})) is True


# -------------------------------------------------------------------------- conditions not valid


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (" ", "is not a valid condition: at character 2"),
        ("args.amount >", "is not a valid condition: at character 14, mismatched input '<EOF>'."),
        ("args.amount > 100 & true", "at character 19"),
        ("args.amount >\n  100 &&\n", "at line 3 of it, character 1"),
        ("args.amount = 3", "at character 13"),
        ("(", "is not a valid condition"),
        ("'abc", "is not a valid condition"),
        ("args.amount > 99999999999999999999", "invalid int literal"),
        ("import os", "reserved identifier"),
        ("argsä == 1", "at character 5"),
        ("\x00", "is not a valid condition"),
        ("[" * 999 + "]" * 999, "is not a valid condition"),
        ("nope > 1", "has unknown names: nope. A condition can use args, tool, agent"),
        ("arg.amount > 1 || amount > 1", "has unknown names: amount, arg."),
        # Also where it would not be looked at.
        ("false && nope", "has unknown names: nope."),
        ("true || nope", "has unknown names: nope."),
        ("has(args.x) && nope == 1", "has unknown names: nope."),
        ("args.x > 1 ? nope : true", "has unknown names: nope."),
        ("args.l.exists(x, x == y)", "has unknown names: y."),
        ("args.x.nope()", "has unknown names: nope()."),
        ("has(args.x) && args.x.lowerAscii() == 'a'", "has unknown names: lowerAscii()."),
        ("now() > timestamp(args.at)", "has unknown names: now()."),
        ("optional.of(1) == optional.of(1)", "has unknown names: optional, of()."),
        ("1", "is a number and not true or false. Write a comparison."),
        ("size(args)", "is a number and not true or false"),
        ("labels", "is a table and not true or false"),
        ("tool", "is a text and not true or false"),
    ],
)
def test_what_could_never_be_evaluated_is_refused(condition, words):
    """A text that is not a valid condition is refused with the problem and its place."""
    with pytest.raises(BadCondition) as raised:
        check(condition)
    assert words in str(raised.value)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_known(name):
    """What a condition is said to know, it knows, and it can be asked about."""
    check(f"{name} == {name}")
    assert holds(f"{name} == {name}", scope()) is True


def test_a_condition_has_a_length_that_can_be_read():
    """At the limit it is read; one character over it, it is refused."""
    longest = "args.x == 1 " + " " * (MAX_LENGTH - 12)
    check(longest)
    with pytest.raises(
        BadCondition, match=r"2,000 characters; this one has 2,001\. Split it into several rules\."
    ):
        check(longest + " ")


def test_a_long_condition_is_not_cited_whole():
    """What is wrong with it can still be read."""
    with pytest.raises(BadCondition) as raised:
        check("args.x == 1 && " * 100)
    assert len(str(raised.value)) < 400


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_is_refused(text):
    """No text gets past `check` as anything but a condition or a sentence."""
    try:
        check(text)
    except BadCondition as problem:
        assert len(str(problem)) < 600  # noqa: PT017


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(EXPRESSIONS, ARGUMENTS)
def test_any_condition_says_yes_or_no_or_cannot(condition, args):
    """Whatever the condition and arguments: a boolean or CannotSay, twice the same (B64, B65)."""
    before = copy.deepcopy(args)
    answers = []
    for _ in range(2):
        try:
            answers.append(holds(condition, scope(args)))
        except CannotSay:
            answers.append(None)
    assert answers[0] is answers[1]
    assert answers[0] in (True, False, None)
    assert args == before


# --------------------------------------------------------------------------- and what a policy does


RULES = st.lists(
    st.fixed_dictionaries(
        {
            "tools": st.just(["refund"]),
            "then": st.sampled_from(["allow", "ask", "block"]),
            "when": st.sampled_from(
                [
                    "",
                    "args.a > 1",
                    "args.a / args.b > 1",
                    "args.a",
                    "args.a == 'x'",
                    "has(args.a)",
                    "args.c.all(x, x)",
                ]
            ),
            "priority": st.integers(-1, 1),
            "shadow": st.booleans(),
        }
    ),
    max_size=6,
)  # fmt: skip


def policy(rules):
    """The rules, those left out that contradict an earlier one."""
    kept, said = [], {}
    for number, rule in enumerate(rules):
        about = (rule["when"], rule["priority"], rule["shadow"])
        if said.setdefault(about, rule["then"]) == rule["then"]:
            kept.append({"name": f"r{number}", **rule})
    return Policy.model_validate({"rule": kept})


def says(rule, about):
    """yes, no, or None where it cannot say."""
    try:
        return not rule.when or holds(rule.when, about.scope)
    except CannotSay:
        return None


@given(RULES, ARGUMENTS | st.none())
def test_uncertainty_is_never_a_yes(rules, args):
    """A policy allows only by a rule that says so for certain, and that nothing uncertain could
    overrule (B64, I4, B73).
    """
    made, about = policy(rules), About(tool="refund", args=args)
    judged = judge(made, about)
    effective = [(rule, says(rule, about)) for rule in made.rules if not rule.shadow]
    if judged.then == "allow":
        assert says(judged.rule, about) is True
        assert judged.rule.then == "allow"
        assert not judged.rule.shadow
        for rule, said in effective:
            if said is None:
                assert rule.priority < judged.rule.priority
            if said and rule.then != "allow":
                assert rule.priority < judged.rule.priority
    if judged.then == "block":
        assert says(judged.rule, about) is True
    if not any(said for _, said in effective):
        assert judged.then == "ask"
    assert judge(made, about) == judged


TEXTS = st.text() | st.text(st.sampled_from("a\"'\\`{}()[].&|=\n\r\0\u2028\u202e\u200b😀é$"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**63, 2**64 - 1) | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(TEXTS, VALUES, VALUES)
def test_a_value_written_into_a_condition_is_that_value(name, value, other):
    """It never ends early, and matches no other value."""
    condition = f"args[{literal(name)}] == {literal(value)}"
    if len(condition) <= MAX_LENGTH:
        check(condition)
        assert holds(condition, scope({name: value}))
        if repr(other) != repr(value) and other != value:
            assert not holds(condition, scope({name: other}))


def test_the_library_is_loaded_only_for_a_condition():
    """A command that judges nothing does not wait for it."""
    code = (
        "import ayes.schemas.policy, sys; "
        "assert not any(name.split('.')[0] == 'cel' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
