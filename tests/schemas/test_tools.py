"""Tools: declarations, and whether arguments fit."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.schemas import strict_json
from ayes.schemas.errors import AlreadyFilled, BadArguments, BadFact, BadFile, BadInput
from ayes.schemas.events import Author, ToolDeclared
from ayes.schemas.tools import (
    Tool,
    ToolSpec,
    declaration,
    highest_class,
    read_tools,
    schema_of,
    spec_of,
)

STRICTER = '{"type":"object","properties":{"order":{"type":"number"}}}'
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "order": {"type": "string"},
            "amount": {"type": "number", "minimum": 0},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "a/b~c": {"type": "string"},
        },
        "required": ["order"],
        "additionalProperties": False,
        "$defs": {"line": {"type": "integer"}},
    }
)


def tool(schema=SCHEMA, name="refund"):
    return Tool(name, "v1", ToolDeclared(description="", schema=schema))


# ---------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "arguments",
    [
        '{"order": "A-17"}', ' {\n"order":"A-17", "amount": 1.50, "lines": [1, 2]}\n',
        '{"order": "Größe 🙏 \\ud83d\\ude4f \\u0000"}', '{"order": "", "amount": 1e300}',
        '{"order": "x", "lines": [1.0]}',
    ],
)  # fmt: skip
def test_arguments_that_fit(arguments):
    """Arguments that are JSON and fit the schema have no problems (B66)."""
    assert tool().problems(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ["cannot be read", "no JSON", "character 1"]),
        ("{", ["no JSON", "character 2"]),
        ('{"order": "A-17"} x', ["no JSON: Extra data", "character 19"]),
        ("{'order': 1}", ["no JSON", "character 2"]),
        ("\ufeff{}", ["no JSON"]),
        ('{"order": "A", "order": "B"}', ['key "order" stands twice']),
        ('{"order": "A", "\\u006frder": "B"}', ['key "order" stands twice']),
        ('{"order": "A", "amount": NaN}', ["NaN is no JSON number"]),
        ('{"order": "A", "amount": -Infinity}', ["-Infinity is no JSON number"]),
        ('{"order": "A", "amount": 1e999}', ["1e999 is out of range"]),
        (f'{{"order": "A", "amount": {"9" * 5000}}}', ["number of 5000 digits is out of range"]),
        ('{"order": "\\ud800"}', ["half a surrogate pair"]),
        ('{"order": "\ud800"}', ["half a surrogate pair"]),
        ("[" * 101 + "]" * 101, ["deeper than 100"]),
        ('{"a":' * 101 + "1" + "}" * 101, ["deeper than 100"]),
        ("[" * 200_000 + "]" * 200_000, ["deeper than 100"]),
        ("[]", ["do not fit", 'at the top, the value is not of type "object"']),
        ("null", ["at the top"]),
        ("{}", ['at the top, "order" is a required property']),
        ('{"order": 5}', ['at /order, the value is not of type "string"']),
        ('{"order": "A", "amount": -1}', ["at /amount, the value is less than the minimum of 0"]),
        ('{"order": "A", "lines": [1, "x"]}', ['at /lines/1, the value is not of type "integer"']),
        ('{"order": "A", "a/b~c": 1}', ["at /a~1b~0c,"]),
        ('{"order": "A", "colour": 1}',
         ["at the top, Additional properties", "'colour' was unexpected"]),
        ('{"lines": ["a", "b", "c"], "amount": "x"}',
         ["at /amount", "at /lines/0", "; and 2 more."]),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(arguments, expected):
    """What is wrong is one sentence of where and what, for people and models (I4, B17, B66)."""
    said = tool().problems(arguments)
    assert said.startswith("The arguments of refund ")
    assert said.endswith(".")
    assert len(said) < 1000
    assert "\n" not in said
    for words in expected:
        assert words in said


def test_values_are_not_cited():
    """A secret in the arguments does not leak into the sentence about them (B71)."""
    said = tool().problems('{"order": ["tok_secret"], "amount": "tok_secret"}')
    assert said is not None
    assert "tok_secret" not in said


def test_problems_are_the_same_each_time():
    """The same arguments have the same problems in the same order, however found (I11)."""
    arguments = json.dumps(
        {f"k{number}": number for number in range(50)} | {"amount": "x", "lines": "x"}
    )
    assert len({tool().problems(arguments) for _ in range(20)}) == 1


def test_recorded_schema_that_is_none_is_a_bad_fact():
    """A declaration from a careless writer fails loudly, by name (B14)."""
    with pytest.raises(BadFact, match=r"tool refund was declared \(version v1\) with a bad schema"):
        tool(schema='{"type": "objekt"}')


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANY_JSON, st.booleans())
def test_every_honest_json_text_is_read(value, ascii_only):
    """The strict reader refuses nothing that JSON says in only one way."""
    assert strict_json.read(json.dumps(value, ensure_ascii=ascii_only)) == value


# ------------------------------------------------------------------------------------- declarations


def spec(**changed):
    fields: dict[str, Any] = {"name": "refund", "description": "Pays back.", "schema": SCHEMA}
    return ToolSpec.model_validate(fields | changed)


# ------------------------------------------------------------------------------------------- drafts

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def of_draft(dialect: str | None, **words: object) -> Tool:
    named = {} if dialect is None else {"$schema": dialect}
    return tool(json.dumps({**named, "type": "object", **words}))


@pytest.mark.parametrize(
    "dialect",
    [
        *(DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020, None),
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft/2020-12/schema#",
    ],
)
def test_a_schema_of_any_draft_since_04_is_checked(dialect: str | None):
    """Servers of the TypeScript SDK name draft-07 in each tool: arguments are checked all the same,
    before anybody is asked (B66).
    """
    path = {"type": "string", "format": "email"}
    lines = {"type": "integer", "minimum": 1}
    read = of_draft(dialect, properties={"path": path, "lines": lines}, required=["path"])
    assert read.problems('{"path": "not an address", "lines": 1}') is None
    assert "at /path" in (read.problems('{"path": 7}') or "")
    assert "at /lines" in (read.problems('{"path": "a", "lines": 0}') or "")


LINKED = {"next": {"$ref": "#/definitions/node"}, "value": {"type": "integer"}}


@pytest.mark.parametrize(
    ("dialect", "words", "fits", "breaks"),
    [
        pytest.param(DRAFT_4, {"properties": {"a": {"minimum": 3, "exclusiveMinimum": True}}},
                     '{"a": 4}', '{"a": 3}', id="a boolean exclusiveMinimum"),
        pytest.param(DRAFT_6, {"properties": {"a": {"exclusiveMinimum": 3}}}, '{"a": 4}',
                     '{"a": 3}', id="a number as exclusiveMinimum"),
        *(
            pytest.param(
                dialect,
                {
                    "properties": {
                        "a": {"items": [{"type": "string"}], "additionalItems": {"type": "number"}}
                    }
                },
                '{"a": ["x", 1, 2]}',
                '{"a": ["x", 1, "y"]}',
                id=f"a list of items, {dialect}",
            )
            for dialect in (DRAFT_4, DRAFT_7, DRAFT_2019, None)
        ),
        pytest.param(DRAFT_7, {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
                     '{"a": 1, "b": 1, "c": 1, "d": 1}', '{"c": 1}', id="dependencies"),
        pytest.param(DRAFT_7,
                     {"properties": LINKED, "definitions": {"node": {"properties": LINKED}}},
                     '{"next": {"next": {"value": 1}}}', '{"next": {"next": {"value": "1"}}}',
                     id="definitions"),
        pytest.param(
            DRAFT_7,
            {
                "properties": {"a": {"$ref": "#text"}},
                "definitions": {"b": {"$id": "#text", "type": "string"}},
            },
            '{"a": "x"}',
            '{"a": 1}',
            id="an anchor in $id",
        ),
        pytest.param(
            DRAFT_4,
            {
                "id": "http://a.example/b#",
                "properties": {"a": {"$ref": "#text"}, "c": {"$ref": "http://a.example/b#text"}},
                "definitions": {"b": {"id": "#text", "type": "string"}},
            },
            '{"a": "x", "c": "y"}',
            '{"a": "x", "c": 1}',
            id="an anchor in id",
        ),
        pytest.param(
            DRAFT_2019,
            {"properties": {"child": {"$recursiveRef": "#"}, "n": {"type": "integer"}}},
            '{"child": {"child": {"n": 1}}}',
            '{"child": {"child": {"n": "1"}}}',
            id="$recursiveRef",
        ),
        pytest.param(DRAFT_7, {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
                     '{"a": 1, "b": 1}', '{"a": 1}', id="if and then"),
        pytest.param(DRAFT_2019,
                     {"properties": {"a": {"type": "string"}}, "unevaluatedProperties": False},
                     '{"a": "x"}', '{"b": 1}', id="unevaluatedProperties"),
        pytest.param(DRAFT_7,
                     {"properties": {"a": {"type": "string", "contentEncoding": "base64"}}},
                     '{"a": "not base64"}', '{"a": 1}', id="contentEncoding only describes"),
        pytest.param(None, {"properties": {"a": {"minimum": 3, "exclusiveMinimum": True}}},
                     '{"a": 4}', '{"a": 3}', id="without $schema, in words of draft-04 alone"),
    ],
)  # fmt: skip
def test_a_word_means_what_its_draft_says(dialect, words, fits, breaks):
    """Each word that changed between the drafts, by the draft that the schema names (B66)."""
    read = of_draft(dialect, **words)
    assert read.problems(fits) is None
    assert read.problems(breaks)


@pytest.mark.parametrize(
    ("dialect", "words", "expected"),
    [
        ("http://json-schema.org/draft-03/schema#", {}, "draft-03/schema#, which is not one of"),
        ("https://spec.openapis.org/oas/3.1/dialect/base", {}, "oas/3.1.*not one of the drafts"),
        (DRAFT_4, {"properties": {"a": {"const": 1}}}, 'draft-04.*does not know the word "const"'),
        (DRAFT_6, {"if": {}, "then": {}}, 'draft-06.*does not know the word "if"'),
        (DRAFT_7, {"properties": {"a": {"prefixItems": []}}}, 'draft-07.*"prefixItems"'),
        (DRAFT_7, {"dependentRequired": {"a": ["b"]}}, 'draft-07.*"dependentRequired"'),
        (DRAFT_2019, {"$dynamicRef": "#a"}, r'2019-09.*"\$dynamicRef"'),
        (DRAFT_2020, {"properties": {"a": {"$recursiveRef": "#"}}}, r'2020-12.*"\$recursiveRef"'),
        (DRAFT_4, {"properties": {"a": {"id": "http://a.example"}}}, "a subschema has an id"),
        (DRAFT_7, {"properties": {"a": {"exclusiveMinimum": True}}}, "draft 07.*exclusiveMinimum"),
        (DRAFT_7, {"properties": {"a": {"$schema": DRAFT_2019}}}, r"has another \$schema"),
        (DRAFT_7, {"properties": {"a": {"$ref": "http://a.example/b"}}}, "refers to"),
    ],
)
def test_a_word_that_the_draft_does_not_have_is_refused_by_name(dialect, words, expected):
    """Its validators would ignore the word, and people would believe it was checked (I7)."""
    with pytest.raises(BadFact, match=expected):
        of_draft(dialect, **words)


def test_declaration_keeps_the_schema_as_it_came():
    """The schema is recorded as raw text, blanks and all."""
    raw = '{ "type" : "object" }'
    version, declared = declaration(spec(schema=raw, repeatable=True, run_by="payments"))
    assert declared == ToolDeclared(
        description="Pays back.", schema=raw, repeatable=True, run_by="payments"
    )
    assert len(version) == 16
    assert set(version) <= set("0123456789abcdef")


def test_version_stays_the_same():
    """A version that was recorded once is computed again for ever."""
    plain = {"schema": '{"type":"object"}'}
    assert declaration(spec(**plain))[0] == "53a523f30570f35d"
    assert declaration(spec(**plain, governs=True))[0] == "ce75a6c9dd83985d"
    assert declaration(spec(**plain, governs=True, secret=("/card", "")))[0] == "297b124f89266d24"
    undone = {"class": "reversible", "undo": "charge", "undo_within_s": 3600}
    assert declaration(spec(**plain, **undone))[0] == "e3dee2d63b2c7561"
    assert declaration(spec(**plain, title="Refund {amount}"))[0] == "4a99f16fa2dea2f2"


def test_a_function_and_a_file_declare_the_same_class():
    (written,) = read_tools(
        """
        [[tool]]
        name = "refund"
        class = "reversible_outside"
        undo = "charge"
        undo_within_s = 3600
        schema = {type = "object"}
        """,
        "tools.toml",
    )
    made = spec_of(refund, tool_class="reversible_outside", undo="charge", undo_within_s=3600)
    for one in (written, made):
        declared = declaration(one)[1]
        said = (declared.tool_class, declared.undo, declared.undo_within_s)
        assert said == ("reversible_outside", "charge", 3600.0)
    with pytest.raises(BadInput, match="tool 'refund': 'undo': only a tool with class"):
        spec_of(refund, undo="charge")


ARGUMENTS = (
    '{"order":"A-17","amount":100.50,"who":{"name":"Ada L","card":"4111"},"lines":[{"sku":"x/y"}],'
    '"a/b":null,"note":"x\\n\u202ey","long":"' + "w" * 60 + '"}'
)


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("Refund {amount} for {order}", "Refund 100.50 for A-17"),
        ("Pay {who/name}", 'Pay "Ada L"'),
        ("Pay {who/card} and {lines/0/sku}", 'Pay (secret) and "x/y"'),
        ("Pay {who}, {lines}", "Pay {…}, […]"),
        ("{missing} {who/x/y} {lines/7} {lines/x} {order/0}", "— — — — —"),
        ("{a~1b}", "null"),
        ("{note}", '"x\\n\u202ey"'),
        ("{long}", "w" * 39 + "…"),
        ("{long}" * 20, ("w" * 39 + "…") * 4 + "w" * 39 + "…"),
        ("", ""),
    ],
)
def test_a_title_says_what_a_call_does(title, said):
    """In one line. A text of the agent does not pass for words of the title, and a secret, also one
    within a structure, is not in it.
    """
    version, declared = declaration(
        spec(schema='{"type":"object"}', title=title, secret=("/who/card",))
    )
    assert Tool("pay", version, declared).title(ARGUMENTS) == said


def test_a_text_that_is_no_json_has_no_title():
    version, declared = declaration(spec(schema='{"type":"object"}', title="Pay {a}"))
    assert Tool("pay", version, declared).title('{"a":1,"a":2}') == ""


@pytest.mark.parametrize(
    "title", ["Pay {amount", "Pay {}", "a}b", "{a{b}}", "two\nlines", "x" * 201]
)
def test_a_title_is_one_line_with_places_in_braces(title):
    with pytest.raises(BadInput, match="'title'"):
        spec_of(refund, title=title)


@pytest.mark.parametrize(
    ("classes", "highest"),
    [
        (["reads"], "reads"),
        (["reads", "reversible"], "reversible"),
        (["reversible_outside", "reversible", "reads"], "reversible_outside"),
        (["reads", "irreversible", "reads"], "irreversible"),
        (["reads", "undeclared"], "irreversible"),
        (["reads", None], "irreversible"),
    ],
)
def test_the_highest_class_counts_and_an_unknown_one_is_the_highest(classes, highest):
    assert highest_class(classes) == highest


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "refund2"},
        {"description": "Pays back?"},
        {"schema": SCHEMA + " "},
        {"repeatable": True},
        {"run_by": "payments"},
        {"governs": True},
        {"governs": True, "run_by": "governs"},
        {"run_by": "governs"},
        {"secret": ("/governs",)},
        {"secret": ("",)},
        {"class": "reads"},
        {"class": "reversible"},
        {"class": "reversible", "undo": "charge"},
        {"class": "reversible", "undo_within_s": 60},
        {"name": "refund2", "description": "1:xPays back."},
    ],
)
def test_changed_contract_is_another_version(changed):
    """Whatever is changed in a declaration changes its version; nothing changed, the same one."""
    assert declaration(spec())[0] == declaration(spec())[0]
    assert declaration(spec(**changed))[0] != declaration(spec())[0]


def test_a_tool_that_governs_says_so_in_its_declaration():
    """What governs is marked where it is declared, in code and in a file; else it is not (B69)."""
    made = spec_of(refund, governs=True)
    (written,) = read_tools(
        '[[tool]]\nname = "grant"\ngoverns = true\nschema = {type = "object"}', "tools.toml"
    )
    assert [declaration(one)[1].governs for one in (made, written, spec_of(refund))] == [
        True,
        True,
        False,
    ]


@given(st.text(), st.text())
def test_version_tells_declarations_apart(one, other):
    """Texts that lean on each other's borders still give different versions (B63)."""
    left = declaration(spec(description=one + other, run_by="a"))[0]
    right = declaration(spec(description=one, run_by="a"))[0]
    assert (left == right) == (other == "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[tool]]\nname = "a"', ["line 1, tool 'a'", "'schema' is missing"]),
        ('[[tool]]\nname = "a b"\nschema = {type = "object"}', ["line 2", "'a b' cannot be used"]),
        ('[[tool]]\nname = "a:b"\nschema = {type = "object"}', ["line 2", "'a:b' cannot be used"]),
        (f'[[tool]]\nname = "{"a" * 129}"\nschema = {{type = "object"}}', ["line 2", "1 to 128"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\nrun_by = "a b"',
         ["line 4", "'a b' cannot"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\nrepeatable = 1',
         ["line 4", "valid boolean"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\ngoverns = "yes"',
         ["line 4", "valid boolean"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\nretries = 1',
         ["line 4", "unknown key 'retries'"]),
        *((
            f'[[tool]]\nname = "a"\nschema = {{type = "object"}}\n{line}\n{key} = {value}',
            [f"line {4 if not line else 5}, tool 'a': {key!r}: only a tool with class", has],
        ) for key, value in (("undo", '"b"'), ("undo_within_s", "9")) for line, has in (
            ('class = "irreversible"', "here it is 'irreversible'."),
            ('class = "reads"', "here it is 'reads'."),
            ("# none", "none is declared."),
        )),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\nclass = "read"\nundo = "b"',
         ["line 4, tool 'a': 'class' is 'read'. It can be 'reads', 'reversible', "]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\nclass = "reversible"\nundo = "a b"',
         ["line 5", "'a b' cannot be used"]),
        (('[[tool]]\nname = "a"\nschema = {type = "object"}\nclass = "reversible"\n'
          "undo_within_s = 0"), ["line 5", "'undo_within_s' should be greater than 0"]),
        ('[[tool]]\nname = "a"\nschema = 3', ["line 3", "'schema' should be a valid string"]),
        ('[[tool]]\nname = "a"\nschema = {}', ["line 3", '"type": "object"']),
        ("[[tool]]\nname = 'a'\nschema = '[]'", ["line 3", '"type": "object"']),
        ("[[tool]]\nname = 'a'\nschema = '{'", ["line 3", "no JSON", "character 2"]),
        ('[[tool]]\nname = \'a\'\nschema = \'{"type": "object", "type": "object"}\'',
         ["stands twice"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object", since = 2026-01-01}',
         ["line 3", "written as JSON"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object", minimum = nan}',
         ["line 3", "written as JSON"]),
        ('[[tool]]\nname = "a"\n[tool.schema]\ntype = "object"\nproperties.x.type = "intger"',
         ["line 3, tool 'a'", "at /properties/x/type", '"intger"']),
        ('[[tool]]\nname = "a"\nschema = {type = "object", properties = {x = {pattern = "("}}}',
         ["line 3", "at /properties/x/pattern"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object", "$ref" = "https://a.example/b"}',
         ["line 3"]),
        (('[[tool]]\nname = "a"\nschema = {type = "object", "$schema" = '
          '"http://json-schema.org/draft-03/schema#"}'),
         ["line 3", "draft-03", "2020-12"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object", "$schema" = 3}', ["line 3", "2020-12"]),
        ('[[tool]]\nname = "a"\nschema = {type = "object"}\n' * 2,
         ["line 5, tool 'a'", "another tool has the name"]),
    ],
)  # fmt: skip
def test_mistake_in_a_tools_file_is_told_with_its_line(text, expected):
    """A tool that could not be declared as written is a mistake, with its line and name."""
    with pytest.raises(BadFile) as raised:
        read_tools(text, "tools.toml")
    for words in expected:
        assert words in str(raised.value)


def test_tools_file_takes_tables_and_texts():
    """A schema may be written as a table or as JSON; an empty file declares nothing."""
    as_table, as_text = read_tools(
        """
        [[tool]]
        name = "refund"
        description = "Pays back."
        repeatable = true
        run_by = "payments"
        schema = {type = "object", properties = {order = {type = "string"}}}

        [[tool]]
        name = "constructor"
        schema = '{ "type": "object" }'
        """,
        "tools.toml",
    )
    assert as_table.schema_text == '{"type":"object","properties":{"order":{"type":"string"}}}'
    assert (as_table.repeatable, as_table.run_by) == (True, "payments")
    assert as_text.schema_text == '{ "type": "object" }'
    assert (as_text.repeatable, as_text.run_by) == (False, "client")
    assert read_tools("", "tools.toml") == ()


# ---------------------------------------------------------------------------- from Python functions


class Line(BaseModel):
    sku: str
    count: int = 1


def refund(
    order: str,
    amount: float,
    *,
    lines: list[Line],
    cabin: Literal["economy", "business"] = "economy",
    note: str | None = None,
    labels: dict[str, str] | None = None,
    urgent: bool = False,
    count: int = 1,
) -> object:
    """Pays an order back.

    Not more than once.
    """


def test_function_gives_a_declaration():
    """A function's name, docstring and annotations make a declaration that arguments must fit."""
    made = spec_of(refund, repeatable=True, run_by="payments")
    version, declared = declaration(made)
    compiled = Tool("refund", version, declared)
    assert (made.name, made.repeatable, made.run_by) == ("refund", True, "payments")
    assert made.description == "Pays an order back.\n\nNot more than once."
    assert json.loads(made.schema_text)["required"] == ["order", "amount", "lines"]
    assert (
        compiled.problems('{"order": "A", "amount": 1, "lines": [{"sku": "S"}], "note": null}')
        is None
    )
    for arguments, where in [
        ('{"order": "A", "amount": 1, "lines": [{"count": 2}]}', '/lines/0, "sku"'),
        ('{"order": "A", "amount": 1, "lines": [], "cabin": "roof"}', "/cabin"),
        ('{"order": "A", "amount": 1, "lines": [], "urgent": "yes"}', "/urgent"),
        ('{"order": "A", "amount": 1, "lines": [], "labels": {"a": 1}}', "/labels"),
        ('{"order": "A", "amount": 1, "lines": [], "colour": 1}', "'colour'"),
    ]:
        said = compiled.problems(arguments)
        assert said is not None
        assert where in said


def test_function_may_be_async_a_method_or_without_parameters():
    """Whatever can be called by name can be declared; a parameter called `title` keeps its name."""

    async def look(title: str, _hidden: int = 3) -> None: ...

    class Desk:
        def now(self) -> None: ...

    assert set(json.loads(schema_of(look))["properties"]) == {"title", "_hidden"}
    assert json.loads(schema_of(Desk().now)) == {
        "additionalProperties": False, "properties": {}, "type": "object"
    }  # fmt: skip
    assert spec_of(Desk().now).description == ""


def test_schema_of_a_function_is_the_same_each_time():
    """The version of a function's declaration does not change by itself (I11)."""
    assert schema_of(refund) == schema_of(refund)


class Opaque:
    pass


def no_type(order): ...
def star(*orders: str): ...
def double_star(**orders: str): ...
def by_position(order: str, /): ...
def no_json(order: Opaque): ...
def unknown(order: "Nowhere"): ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (no_type, "parameter 'order' has no type. Annotate it, as in order: str"),
        (star, "parameter '*orders' cannot be given by name"),
        (double_star, "parameter '**orders' cannot be given by name"),
        (by_position, "parameter 'order' cannot be given by name"),
        (no_json, "no JSON Schema can be made of its parameters"),
        (unknown, "'Nowhere' is not defined"),
        (lambda: None, "'<lambda>' cannot be used"),
    ],
)
def test_function_that_cannot_be_declared_says_why(function, expected):
    """A function without a clear signature is refused before any model sees it."""
    with pytest.raises(BadInput) as raised:
        spec_of(function)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_spec_built_in_code_is_checked_too():
    """What a service writes in Python is held to the same rules as a file."""
    with pytest.raises(ValidationError, match="cannot be used"):
        ToolSpec(name="a b", schema='{"type":"object"}')
    with pytest.raises(ValidationError, match='"type": "object"'):
        ToolSpec(name="a", schema="{}")


async def test_another_tool_under_the_same_call_id_is_refused():
    """A call id is for one tool and its arguments: another tool is another request (B50)."""
    ledger = Ledger(Memory(), Author(kind="service", name="tests"))
    for name in ("refund", "charge"):
        await ledger.declare("shop", ToolSpec(name=name, schema=SCHEMA))
    await ledger.request("shop/t1/c1", "refund", {"order": "A-17"})
    with pytest.raises(AlreadyFilled, match="other arguments or another tool"):
        await ledger.request("shop/t1/c1", "charge", {"order": "A-17"})


@pytest.mark.parametrize("change", [{"description": "Pays."}, {"schema": STRICTER}])
async def test_a_request_by_the_tools_name_is_the_same_after_a_new_declaration(change):
    """As of a client that was restarted after a release: it gets its call, in the version of then,
    also if the tool takes these arguments no more. Other arguments are another request (B50).
    """
    ledger = Ledger(Memory(), Author(kind="service", name="tests"))
    spec = {"name": "refund", "schema": SCHEMA}
    await ledger.declare("shop", ToolSpec(**spec))
    asked = "shop/t1/c1", "refund", '{"order":"A-17"}'
    first = await ledger.request(*asked, requester="ben")
    declared = await ledger.declare("shop", ToolSpec(**spec | change))
    assert declared.version != first.wish.tool_version
    assert await ledger.request(*asked, requester="ben") == first
    with pytest.raises(AlreadyFilled, match="another requester"):
        await ledger.request(*asked, requester="eve")
    with pytest.raises(AlreadyFilled, match="other arguments"):
        await ledger.request("shop/t1/c1", "refund", '{"order":"A-18"}', requester="ben")
    with pytest.raises(AlreadyFilled if "description" in change else BadArguments):
        await ledger.request("shop/t1/c1", declared, asked[2], requester="ben")
