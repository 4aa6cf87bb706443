"""Which values a tool can seal, and which conditions read them."""

import pytest

from ayes.schemas import conditions, sealed
from ayes.schemas.errors import BadFact, BadInput
from ayes.schemas.events import ToolDeclared
from ayes.schemas.tools import Tool, ToolSpec, declaration, spec_of
from ayes.schemas.visible import visible

OBJECT = '{"type":"object","properties":{%s}}'
CARD = OBJECT % '"card":{"type":"string"}'
NESTED = OBJECT % '"customer":{"type":"object","properties":{"card":{"type":"string"}}}'
TOKEN = f"ayes:sealed:1:{'0' * 16}:{'A' * 80}"


def tool(schema: str, *places: str) -> Tool:
    spec = ToolSpec(name="pay", schema=schema, sealed=places)
    return Tool("pay", *declaration(spec))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (CARD, "card"),
        (CARD, ""),
        (CARD, "/*"),
        (CARD, "/"),
        (OBJECT % '"a~b":{"type":"string"}', "/a~b"),
        (CARD, "/number"),
        (NESTED, "/customer"),
        (NESTED, "/customer/*"),
        (OBJECT % '"card":{}', "/card"),
        (OBJECT % '"card":true', "/card"),
        (OBJECT % '"card":{"type":["string","object"]}', "/card"),
        (OBJECT % '"card":{"type":"object"}', "/card"),
        (OBJECT % '"card":{"type":"array","items":{"type":"string"}}', "/card"),
        (OBJECT % '"cards":{"type":"array","items":{"type":"string"}}', "/cards/0"),
        ('{"$defs":{"any":{}},' + OBJECT[1:] % '"card":{"$ref":"#/$defs/any"}', "/card"),
        (CARD[:-1] + ',"if":{"properties":{"card":{"const":"4"}}},"then":{}}', "/card"),
        (CARD[:-1] + ',"anyOf":[{}]}', "/card"),
        (CARD[:-1] + ',"patternProperties":{"^c":{"minLength":3}}}', "/card"),
        (CARD[:-1] + ',"dependentSchemas":{}}', "/card"),
        (NESTED[:-1] + ',"not":{}}', "/customer/card"),
        (OBJECT % '"card":{"type":"number"},"tip":{"$ref":"#/properties/card"}', "/card"),
    ],
)
def test_only_one_text_or_number_is_sealed_and_no_keyword_reads_it(schema: str, place: str):
    """What is sealed cannot hold more than the one value of which people are told, and the gate
    need not judge it.
    """
    with pytest.raises(ValueError, match=r"cannot be judged: sealed|cannot be sealed|one value"):
        ToolSpec(name="pay", schema=schema, sealed=(place,))
    # Another client's declaration is void.
    with pytest.raises(BadFact):
        Tool("pay", "v1", ToolDeclared(description="", schema=schema, sealed=(place,)))


def test_no_value_is_sealed_twice():
    with pytest.raises(ValueError, match="different values"):
        ToolSpec(name="pay", schema=CARD, sealed=("/card", "/card"))


def test_a_function_says_what_it_seals():
    def pay(order: str, card: str) -> str:
        return order + card

    assert spec_of(pay, sealed=["/card"]).sealed == ("/card",)
    with pytest.raises(BadInput, match="/cart cannot be sealed"):
        spec_of(pay, sealed=["/cart"])


def test_a_declaration_that_seals_is_another_version():
    """So an executor of before, which would run with the token, does not have that tool."""
    assert (
        declaration(ToolSpec(name="pay", schema=CARD, sealed=("/card",)))[0]
        != (declaration(ToolSpec(name="pay", schema=CARD))[0])
    )


@pytest.mark.parametrize("value", ['"4111"', "4111", "null", "{}", '["x"]', f'" {TOKEN}"'])
def test_what_is_not_sealed_is_refused_with_its_place(value: str):
    problem = tool(NESTED, "/customer/card").problems(f'{{"customer":{{"card":{value}}}}}')
    assert problem == (
        "The arguments of pay do not fit its schema: at /customer/card, the value is sealed by "
        "this tool, and this one is not: request it with a client that has keys."
    )


ESCAPED = TOKEN.replace("ayes", "\\u0061yes")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (f'{{"url":"https://x.example/?q={TOKEN}"}}', "/url"),
        (f'{{"to":"{TOKEN}"}}', "/to"),
        (f'{{"to":"{ESCAPED}"}}', "/to"),
        (f'{{"many":[1,{{"a/b":"{TOKEN}"}}]}}', "/many/1/a~1b"),
        (f'{{"{TOKEN}":1}}', "the top"),
        (f'{{"customer":{{"card":"{TOKEN}","also":"{TOKEN}"}}}}', "/customer/also"),
    ],
)
@pytest.mark.parametrize("sealed_", [(), ("/customer/card",)], ids=["seals nothing", "seals"])
def test_a_token_is_refused_where_the_tool_seals_nothing(
    arguments: str, place: str, sealed_: tuple[str, ...]
):
    """Pages say "(sealed)" for it, so that people would approve a text of its author's choice
    without seeing it.
    """
    says = f"at {place}, there is the text of a sealed value, and this tool seals nothing here"
    problem = tool(NESTED, *sealed_).problems(arguments)
    assert problem is not None
    assert says in problem
    assert ("/customer/card" in problem) == ("card" in arguments and not sealed_)


def test_what_only_resembles_a_token_is_a_text_like_others():
    words = f'{{"to":"ayes:sealed:1:{"0" * 16}:short, \\u0061yes"}}'
    assert tool(NESTED).problems(words) is None


@pytest.mark.parametrize("arguments", [f'{{"customer":{{"card":"{TOKEN}"}}}}', '{"customer":{}}'])
def test_a_token_fits_whatever_the_schema_says_of_the_value(arguments: str):
    strict = NESTED.replace('{"type":"string"}', '{"type":"string","maxLength":4}')
    assert tool(strict, "/customer/card").problems(arguments) is None


def test_opened_arguments_are_checked_and_no_value_is_cited():
    strict = OBJECT % '"card":{"type":"string","pattern":"^4"}'
    assert tool(strict, "/card").misfits_opened('{"card":"4111"}') == []
    assert tool(strict, "/card").misfits_opened('{"card":"5111"}') == ["/card"]
    assert tool(strict, "/card").misfits_opened('{"card":1e999}') == [""]


def test_a_title_shows_no_token():
    spec = ToolSpec(name="pay", schema=CARD, sealed=("/card",), title="Charge {card}")
    assert Tool("pay", *declaration(spec)).title(f'{{"card":"{TOKEN}"}}') == "Charge (secret)"
    elsewhere = ToolSpec(name="pay", schema=CARD, title="Charge {card}")
    assert sealed.SEALED in Tool("pay", *declaration(elsewhere)).title(f'{{"card":"{TOKEN}"}}')


def test_all_other_values_keep_their_bytes():
    before = ' {"a": 1.50, "customer": {"é":"\\u0041" , "card/no": "x"}} '
    after = sealed.with_raw(before, "/customer/card~1no", '"y"')
    assert after == '{"a":1.50,"customer":{"é":"\\u0041","card/no":"y"}}'
    assert sealed.raw_at(after, "/customer/card~1no") == '"y"'
    assert sealed.raw_at(after, "/customer/no") is None
    assert sealed.raw_at(after, "/a/b") is None


def test_a_token_is_shown_as_such():
    assert sealed.shown(f"card {TOKEN}, again {TOKEN}.") == "card (sealed), again (sealed)."
    assert sealed.shown(visible("ayes:sealed:1:short")) == "ayes:sealed:1:short"


@pytest.mark.parametrize(
    "condition",
    [
        'args.card == "4"',
        "has(args.card)",
        'args["card"] == "4"',
        "args['card'] == '4'",
        "args.`card` == '4'",
        "args.?card.orValue('') == '4'",
        "args[?'card'].orValue('') == '4'",
        'args["c\\u0061rd"] == "4"',
        'args["ca" + "rd"] == "4"',
        'args == {"card": "4"}',
        "args.exists(k, args[k] == '4')",
        "dyn(args).card == '4'",
        "[args][0].card == '4'",
        "args.card.startsWith('4')",
        "args.card.number == 4",
        "!(args . card == '4') && agent == 'x'",
        "args // c\n.card == '4'",
    ],
)
def test_a_condition_that_may_read_a_sealed_value_is_recognised(condition: str):
    assert conditions.reads(condition, ["/card"]) == "/card"


@pytest.mark.parametrize(
    "condition",
    [
        "args.amount > 100",
        'args["amount"] > 100',
        "has(args.cards)",
        "args.customer.card == '4'",
        'requester == "args.card"',
        "labels.card == '4'",
    ],
)
def test_a_condition_that_reads_other_values_can_be_judged(condition: str):
    assert conditions.reads(condition, ["/card"]) == ""


def test_a_condition_over_what_is_around_a_sealed_value_reads_it():
    assert conditions.reads("args.customer == {}", ["/customer/card"]) == "/customer/card"
    assert conditions.reads("args.customer.name == ''", ["/customer/card"]) == ""


@pytest.mark.parametrize("before", ["{bad", "", "[]", '{"customer":{"card":"4111"}}'])
def test_what_was_requested_and_does_not_fit_is_not_edited(before: str):
    """Anybody may have requested it, by a client of their own."""
    pay = tool(NESTED, "/customer/card")
    after = f'{{"customer":{{"card":"{TOKEN}"}}}}'
    said = "What was requested of pay does not fit it, so nobody can edit it."
    assert pay.seal_problem(before, after) == said
    assert pay.seal_problem(after, after) == ""
