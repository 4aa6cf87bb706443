"""Judging has a bound: what a schema, a pattern and a condition may take is counted before they are
used.
"""

import json
from datetime import UTC, datetime

import pytest
from expressions import EXPRESSIONS
from hypothesis import given

from ayes.ledger.judging.grants import Grant, covering
from ayes.ledger.judging.policy_rules import About, judge
from ayes.schemas import condition_cost, conditions
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import GrantRef
from ayes.schemas.tools import Tool, ToolSpec, declaration


def tool(schema):
    try:
        return Tool("slow", *declaration(ToolSpec(name="slow", schema=json.dumps(schema))))
    except ValueError as problem:
        raise BadInput(str(problem)) from None


def doubled(levels, kind="allOf"):
    """The reviewer's schema: each level refers to the next one twice."""
    defs = {f"d{n}": {kind: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {
        "type": "object",
        "$ref": "#/$defs/d0",
        "$defs": defs | {f"d{levels}": {"type": "object"}},
    }


def nested_unevaluated(levels):
    schema: dict[str, object] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"anyOf": [schema], "unevaluatedProperties": {"type": "integer"}}
    return {"type": "object"} | schema


DRAFTS = {
    "draft-04": "http://json-schema.org/draft-04/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}
REFUSED = [
    pytest.param(doubled(40), "steps for a single value", id="allOf"),
    pytest.param(doubled(40, "anyOf"), "steps for a single value", id="anyOf"),
    pytest.param(doubled(40, "oneOf"), "steps for a single value", id="oneOf"),
    pytest.param(nested_unevaluated(16), "steps for a single value", id="unevaluated"),
    pytest.param({"type": "object", "enum": [{"a": n} for n in range(20_000)]}, "steps for a",
                 id="enum"),
    pytest.param(
        {"type": "object", "allOf": [{"$ref": "#"}]},
        "refers to itself at the same value",
        id="self",
    ),
    pytest.param({"type": "object", "properties": {f"a{n}": {} for n in range(3_000)}},
                 "3,000 subschemas", id="many"),
    pytest.param({"type": "object", "properties": {"a": {"pattern": "(a{1000}){1000}"}}},
                 "too many counted repetitions", id="pattern"),
    pytest.param(
        {"$schema": DRAFTS["2019-09"], "type": "object", "allOf": [{"$recursiveRef": "#"}]},
        "refers to itself at the same value",
        id="recursive",
    ),
    pytest.param(doubled(40) | {"$schema": DRAFTS["draft-07"]}, "steps for a single value",
                 id="draft-07"),
    pytest.param(doubled(40) | {"$schema": DRAFTS["draft-04"]}, "steps for a single value",
                 id="draft-04"),
    pytest.param({"type": "object", "$ref": "https://a.example/b"},
                 "can only refer to a place in itself", id="foreign"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_a_schema_beyond_the_limit_is_refused(schema, words):
    """At its declaration, in a sentence that says what, how much and what to do (C3)."""
    with pytest.raises(BadInput, match=words):
        tool(schema)


#: Each word of any draft that applies a subschema, with that subschema in its place; and arguments
#: that it applies to.
APPLIED = {
    "items": lambda one: {"items": one},
    "a list of items": lambda one: {"items": [one]},
    "additionalItems": lambda one: {"items": [], "additionalItems": one},
    "prefixItems": lambda one: {"prefixItems": [one]},
    "contains": lambda one: {"contains": one},
    "unevaluatedItems": lambda one: {"unevaluatedItems": one},
    "allOf": lambda one: {"allOf": [one]},
    "anyOf": lambda one: {"anyOf": [one]},
    "oneOf": lambda one: {"oneOf": [one]},
    "not": lambda one: {"not": one},
    "if": lambda one: {"if": one, "else": False, "then": False},
    "then": lambda one: {"if": {}, "then": one},
    "else": lambda one: {"if": {"not": {}}, "else": one},
    "properties": lambda one: {"properties": {"b": one}},
    "patternProperties": lambda one: {"patternProperties": {"b": one}},
    "additionalProperties": lambda one: {"additionalProperties": one},
    "propertyNames": lambda one: {"propertyNames": one},
    "unevaluatedProperties": lambda one: {"unevaluatedProperties": one},
    "dependencies": lambda one: {"dependencies": {"b": one}},
    "dependentSchemas": lambda one: {"dependentSchemas": {"b": one}},
    "$ref": lambda one: {"$ref": "#/definitions/one", "definitions": {"one": one}},
    "$ref to an anchor": lambda one: {
        "$ref": "#one",
        "definitions": {"one": {"id": "#one", "$anchor": "one", **one}},
    },
    "$ref to an $id": lambda one: {"$ref": "#one", "definitions": {"one": {"$id": "#one", **one}}},
    "$dynamicRef": lambda one: {"$dynamicRef": "#/definitions/one", "definitions": {"one": one}},
    "extends": lambda one: {"extends": one},
    "disallow": lambda one: {"disallow": [one]},
    "contentSchema": lambda one: {
        "contentMediaType": "application/json",
        "contentSchema": one,
    },
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("word", APPLIED)
def test_whatever_a_draft_applies_is_counted(draft: str, word: str):
    """Whatever the validator of any draft looks at is within the limits (C3): a subschema beyond
    them is refused in each place that matters, and nowhere else is it noticed.
    """

    def judged(one: dict[str, object], arguments: str) -> str | None:
        inner = {"properties": {"a": APPLIED[word](one)}}
        return tool({"$schema": DRAFTS[draft], "type": "object", **inner}).problems(arguments)

    arguments = ('{"a": [1]}', '{"a": {"b": 1}}', '{"a": "[1]"}')
    try:
        some = [judged({}, one) for one in arguments]
        none = [judged({"not": {}}, one) for one in arguments]
    except BadInput:
        return  # a word, or a form of it, that the draft does not have
    if some != none:
        with pytest.raises(BadInput, match="steps for a"):
            judged({"enum": [*range(20_001)]}, "{}")


RECURSIVE = {
    "$schema": DRAFTS["2019-09"],
    "type": "object",
    "properties": {"a": {"allOf": [{"$recursiveRef": "#"}] * 2}},
}
TWICE = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
DYNAMIC = {
    "type": "object",
    "$dynamicAnchor": "node",
    "properties": {"a": {"allOf": [{"$dynamicRef": "#node"}] * 2}},
}


@pytest.mark.parametrize("schema", [TWICE, DYNAMIC, RECURSIVE])
def test_deep_arguments_of_a_recursive_schema_have_a_bound(schema):
    """Twice the work with each level of the arguments: few are checked, many not valid (C3)."""
    recursive = tool(schema)
    assert recursive.problems('{"a":' * 5 + "{}" + "}" * 5) is None
    problem = recursive.problems('{"a":' * 90 + "{}" + "}" * 90)
    assert problem is not None
    assert "are too large for its schema" in problem


def test_a_recursive_schema_of_honest_use_is_accepted():
    """A list of linked entries, as deep as arguments may be."""
    linked = tool({"type": "object", "properties": {"next": {"$ref": "#"}}})
    assert linked.problems('{"next":' * 90 + "{}" + "}" * 90) is None


def test_a_pattern_that_looks_around_reads_no_long_text():
    """It may take the square of the text's length."""
    looks = tool({"type": "object", "properties": {"a": {"pattern": "(?=a.*b)a.*c"}}})
    assert looks.problems(json.dumps({"a": "abc"})) is None
    assert "are too large" in str(looks.problems(json.dumps({"a": "a" * 50_000})))


def test_many_errors_are_not_listed():
    """Each costs a hundred times a check, so only few values are told apart."""
    texts = tool({"type": "object", "properties": {"a": {"items": {"type": "string"}}}})
    assert "at /a/0" in str(texts.problems(json.dumps({"a": [1] * 100})))
    assert "too large to find out where" in str(texts.problems(json.dumps({"a": [1] * 20_000})))


def nest(levels, over="[1,1,1,1,1,1,1,1,1,1]"):
    body = "true"
    for level in range(levels):
        body = f"{over}.all(x{level}, {body})"
    return body


DOUBLING = '["ab"]' + ".map(x,x+x+x+x)" * 40
WHEN = [
    pytest.param(nest(9), id="literal lists in literal lists (C3)"),
    pytest.param(nest(5, "[" + ",".join("1" * 60) + "]"), id="longer ones"),
    pytest.param(f"size({DOUBLING}[0]) > 0", id="a text doubled again and again"),
    pytest.param(
        " || ".join([r'tool.matches("(\\w{1000}){1000}")'] * 6), id="patterns that repeat"
    ),
    pytest.param(" || ".join([r'tool.matches(r"(\w{1000}){1000}")'] * 6), id="the same in raw"),
]


@pytest.mark.parametrize("when", WHEN)
def test_a_condition_beyond_the_limit_is_refused_and_covers_nothing(when):
    """In `check`, so in policies; and a recorded grant with it covers nothing (C3)."""
    with pytest.raises(conditions.BadCondition):
        conditions.check(when)
    scope = About(tool="pay", args={}).scope
    with pytest.raises(conditions.CannotSay):
        conditions.holds(when, scope)
    ref = GrantRef("shop", "ana", "g1")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    grant = Grant(ref, Fact(1, now, ref.given, e.Granted(tool="pay", expires_in_s=60, when=when)))
    assert covering([grant], About(tool="pay", args={}), now) == ()
    assert grant.standing(now) == "void"


#: Allowed with 200 values, of which it takes half of the steps that there may be.
HEAVY = "args.l.all(a, args.l.all(b, a != b + 1))"


def test_many_conditions_take_no_more_together_than_a_few():
    """What is too much is not evaluated: a rule asks people, a grant covers nothing (C3)."""
    args = {"l": [1] * 200}
    about = About(tool="pay", args=args)
    rule = f'\n[[rule]]\nname = "r%d"\ntools = ["pay"]\nthen = "%s"\nwhen = "{HEAVY}"\n'
    allowing = [rule % (number, "allow") for number in range(200)]
    few, many = (read_policy("".join(allowing[:number]), "p.toml") for number in (2, 200))
    assert judge(few, about).then == "allow"
    judged = judge(many, about)
    assert judged.then == "ask"
    assert "with the conditions before it" in judged.reason
    now = datetime(2026, 1, 1, tzinfo=UTC)
    refs = [GrantRef("shop", "ana", f"g{number}") for number in range(200)]
    granted = e.Granted(tool="pay", expires_in_s=60, when=HEAVY)
    grants = [Grant(ref, Fact(seq, now, ref.given, granted)) for seq, ref in enumerate(refs, 1)]
    covers = covering(grants, about, now)
    assert 2 <= len(covers) < 100
    assert list(covers) == grants[: len(covers)]


def test_a_recorded_grant_without_an_end_covers_nothing():
    """A time beyond every date is neither a traceback nor a yes."""
    ref, now = GrantRef("shop", "ana", "g1"), datetime(2026, 1, 1, tzinfo=UTC)
    grant = Grant(ref, Fact(1, now, ref.given, e.Granted(tool="pay", expires_in_s=1e300)))
    assert covering([grant], About(tool="pay", args={}), now) == ()


@pytest.mark.parametrize(
    ("when", "args"),
    [
        ("args.l.all(a, args.l.all(b, args.l.all(c, true)))", {"l": [1] * 900}),
        ("args.l.all(a, args.big.matches('^(a+)+$'))", {"l": [1] * 900, "big": "a" * 100_000}),
        ("+".join(["args.big"] * 200) + " == ''", {"big": "a" * 500_000}),
        ("args.big.matches(args.pattern)", {"big": "a" * 10_000, "pattern": "[01]{800}"}),
    ],
)
def test_a_condition_says_nothing_where_the_arguments_make_it_long(when, args):
    """The steps depend on the arguments: a person looks at those that would take too many (C3)."""
    conditions.check(when)
    with pytest.raises(conditions.CannotSay, match="over the limit"):
        conditions.holds(when, About(tool="pay", args=args).scope)


def test_what_is_gone_through_once_is_counted_once():
    """A list in each entry of a list is as long as its own entries, not as all of them."""
    args = {"lines": [{"tags": ["x"] * 5}] * 100}
    scope = About(tool="pay", args=args).scope
    assert conditions.holds("args.lines.all(l, l.tags.all(t, t != ''))", scope) is True


@given(EXPRESSIONS)
def test_every_condition_that_can_be_compiled_can_be_counted(condition):
    """The count reads CEL as the library does: it refuses nothing of what that takes."""
    try:
        conditions._compiled(condition)
    except ValueError:
        return
    assert condition_cost.read(condition)({}).steps > 0
