"""What agents sent is shown completely, as it is written, with nothing hidden."""

import json
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from starlette.requests import Request

from ayes.interfaces.console.display import fields
from ayes.interfaces.console.display.timeline import duration
from ayes.interfaces.console.rendering import _elsewhere, _templates
from ayes.projections.display import raw_json
from ayes.projections.display.changes import changes, line_diff
from ayes.projections.display.markdown import blocks_of
from ayes.projections.display.texts import MarkedRun, joined, kind_of, runs, text_of
from ayes.projections.display.values import Group, Leaf, Table, value_of
from ayes.schemas.visible import flags, visible, visible_json

TEXTS = st.text() | st.text(st.sampled_from("a\n\t\r \u202e\u200b\x1b<&\"'+-@ü")) | st.text("a\n")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)  # fmt: skip

# -------------------------------------------------------------------------------------- texts


def plain(some):
    return "".join(piece.text for run in some for piece in run.pieces)


@given(
    TEXTS | st.text(st.sampled_from("a:/@.\u202e'\"#-`*_[]() \n")),
    st.sampled_from(["", "diff", "command", "sql", "url", "python", "markdown"]),
)
def test_the_pieces_of_a_text_are_the_text(text, name):
    """Nothing is cut, and each hidden character is in a piece that is marked (B72)."""
    shown = text_of(text, name, coloured=True)
    assert joined(shown) == text
    assert plain(shown.head) + plain(shown.rest) == text
    for piece in (piece for run in (*shown.head, *shown.rest) for piece in run.pieces):
        tame = piece.text.replace("\n", "").replace("\t", "")
        assert piece.hidden == (visible(tame) != tame)
    assert shown.flags == flags(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", ["a", "U+202E", "b"]),
        ("\u200b\u200b\u200b", ["U+200B \u00d7 3"]),
        ("\x1b[2J", ["U+001B", "[2J"]),
        ("a\r\nb", ["a", "U+000D", "\nb"]),
        ("\U000e0041", ["U+E0041"]),
        ("one\n\ttwo", ["one\n\ttwo"]),
    ],
)
def test_a_hidden_character_is_shown_by_its_code_point(text, shown):
    assert [piece.shown for run in text_of(text).head for piece in run.pieces] == shown


def test_what_is_long_is_folded_with_its_size():
    """40 lines stand there; the others are one click away, and counted."""
    lines = [f"line {number}\n" for number in range(1, 201)]
    shown = text_of("".join(lines))
    assert plain(shown.head) == "".join(lines[:40])
    assert shown.more == f"160 more lines, {len(''.join(lines[40:])):,} characters"
    assert text_of("".join(lines[:40])).more == ""
    assert text_of("x" * 200_000).more == "196,000 characters more"


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("rm -rf build", "command", "shell"),
        ("#!/bin/sh\ntrue", "body", "shell"),
        ("select id from users", "query", "sql"),
        ("-- all\n -- of them\ndelete from users", "query", "sql"),
        ("wait for it", "query", ""),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n", "text", "diff"),
        ("# Title\n\ntext", "body", "markdown"),
        ("https://shop.example/a?b#c", "to", "url"),
        ("see https://shop.example", "to", ""),
        ("import os\nos.remove('/')\n# Title\n", "body", "python"),
        ("from here on, nothing", "body", ""),
        ('{"delete": true}', "body", "json"),
        ("{not json}", "body", ""),
    ],
)
def test_a_text_is_read_by_its_kind(text, name, kind):
    assert kind_of(text, name) == kind


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://shop.example/a@b", "shop.example"),
        ("https://good.example@evil.example/", "evil.example"),
        ("https://user:good.example@evil.example:8443/x", "evil.example"),
        ("http://[::1]:80/", "[::1]"),
        # Readers disagree about these (RFC 3986 and the URL standard), so no host stands out.
        (r"https://good.example\@evil.example", None),
        ("https://a@b@evil.example", None),
    ],
)
@pytest.mark.parametrize("kind", ["", "sql", "shell", "python", "json", "diff", "markdown"])
@pytest.mark.parametrize("around", ["{}", "Pay here: {}, at once.", "+<a href='{}'>\n"])
def test_the_host_of_a_link_stands_out_wherever_it_is(url, host, kind, around):
    """Alone, in a sentence and in code: the host is what a reader would trust."""
    found = runs(around.format(url), kind)
    assert plain(found) == around.format(url)
    marked = "".join(piece.text for run in found for piece in run.pieces if piece.host)
    assert marked == (host or "")


def test_words_of_code_stand_out():
    """By weight and slant, as colour alone says nothing to some readers."""
    found = runs("select 'a' -- all\n", "sql")
    assert [(plain([run]), run.mark) for run in found if run.mark] == [
        ("select", "keyword"), ("'a'", "string"), ("-- all\n", "comment"),
    ]  # fmt: skip
    # What is folded is not coloured: read from its middle on, code could seem to be a text.
    [rest] = text_of('x = """' + "\n" * 60 + '"""', "python", coloured=True).rest
    assert rest.mark == ""


# -------------------------------------------------------------------------------------- values


def rebuilt(value):
    """The tree as `json.loads` makes it, with numbers as they are written."""
    match value:
        case Group(kind="object"):
            return [(joined(one.name), rebuilt(one.value)) for one in (*value.head, *value.rest)]
        case Group():
            return [rebuilt(one.value) for one in (*value.head, *value.rest)]
        case Leaf(kind="string"):
            return joined(value.text)
        case Leaf():
            return ("as written", joined(value.text))
        case Table():
            return reject()  # its rows have one order of names


def as_written(raw):
    def mark(text):
        return ("as written", text)

    found = json.loads(raw, parse_int=mark, parse_float=mark, object_pairs_hook=list)
    words = {True: "true", False: "false", None: "null"}

    def marked(value):
        if value is None or isinstance(value, bool):
            return mark(words[value])
        if isinstance(value, list):
            return [
                (one[0], marked(one[1])) if isinstance(one, tuple) else marked(one) for one in value
            ]
        return value

    return marked(found)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_values_are_shown_as_they_are_written(value, ascii_only, indent):
    """Every value, in its order; numbers keep their digits (B61, B72)."""
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert raw_json.is_readable(raw)
    shown = rebuilt(value_of(raw))
    assert json.dumps(shown) == json.dumps(as_written(raw))


@pytest.mark.parametrize("raw", ['{"a":1,"a":2}', '{"a":NaN}', "{", "", '{"a":"\\ud800"}', "1e999"])
def test_what_two_readers_could_read_differently_is_no_tree(raw):
    """Then only its text can be shown (I4)."""
    assert value_of(raw) is None


def test_numbers_keep_their_digits():
    raw = '{"amount": 100.50, "big": 12345678901234567890, "e": 1E2}'
    values = [joined(one.value.text) for one in value_of(raw).head]
    assert values == ["100.50", "12345678901234567890", "1E2"]


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [
        ("480", "120", "last time: 120 (+300 %)"),
        ("60", "120", "last time: 120 (-50 %)"),
        ("100.1", "100", "last time: 100 (+0.10 %)"),
        ("480", "0", "last time: 0"),
        ("480", "480", ""),
        ("1", "1e-99999999", "last time: 1e-99999999"),
        ('"B\u202e"', '"A\u202e"', "last time: A\\u202e"),
        ('"B"', "null", "last time: null"),
        ('"B"', '["A"]', ""),
        ('"B"', f'"{"A" * 100}"', ""),
    ],
)
def test_a_value_stands_beside_that_of_the_last_time(now, then, said):
    [member] = value_of(f'{{"x":{now}}}', earlier=f'{{"x":{then}}}').head
    assert member.last_time == said


class _Text(HTMLParser):
    """The text within each `pre`, as a browser has it, and all tags."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.all, self.inside = [], [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "pre":
            self.inside = True
            self.texts.append("")

    def handle_endtag(self, tag):
        if tag == "pre":
            self.inside = False

    def handle_data(self, data):
        self.all.append(data)
        if self.inside:
            self.texts[-1] += data


def rendered(macro, *values):
    return str(getattr(_templates.env.get_template("call_values.html").module, macro)(*values))


@given(TEXTS, st.sampled_from(["", "sql", "python", "command", "diff", "markdown"]))
def test_a_page_has_the_text_and_no_element_of_it(text, name):
    """HTML in a text is text; a browser drops the first line feed of each `pre`, which is ours."""
    shown = text_of(text, name, coloured=True)
    found = _Text(rendered("block", shown))
    ours = {"p", "span", "pre", "mark", "details", "summary", "ins", "del", "strong", "b", "i"}
    ours |= {"samp", "em", "code", "div", "ul", "ol", "li", "blockquote", "hr"}
    assert set(found.tags) <= ours
    whole = "".join(piece.shown for run in (*shown.head, *shown.rest) for piece in run.pieces)
    assert "".join(one.removeprefix("\n") for one in found.texts) == whole


HIDDEN = "\u202egnp\u202c \u200b \x1b[31m p\u0430ypal https://bank.example@evil.example/"
MARKED = ("U+202E", "U+202C", "U+200B", "U+001B", "mixed scripts", '"host">evil.example<')
#: Where a text of an agent may stand, each with its own way onto the page.
PLACES = {
    "value": lambda text: {"x": text},
    "name": lambda text: {text: 1},
    "item": lambda text: {"x": [text, "b"]},
    "cell": lambda text: {"x": [{"a": text}, {"a": "b"}]},
    "column": lambda text: {"x": [{text: 1}, {text: 2}]},
    "prose": lambda text: {"x": f"{text}\nmore"},
    "folded": lambda text: {"x": "line\n" * 60 + text},
    "markdown": lambda text: {"x": f"# Title\n\n{text}"},
    "heading": lambda text: {"x": f"# {text}"},
    "item of markdown": lambda text: {"x": f"# a\n\n* {text}"},
    "code of markdown": lambda text: {"x": f"# a\n\n```{text}\n{text}\n```"},
    "link of markdown": lambda text: {"x": f"# a\n\n[{text}](<{text}>)"},
    "sql": lambda text: {"sql": f"select '{text}' from x"},
    "shell": lambda text: {"command": f"echo '{text}'"},
    "python": lambda text: {"python": f"import os\nos.remove(`{text}`)"},
    "json": lambda text: {"x": json.dumps({"a": text}, ensure_ascii=False)},
    "diff": lambda text: {"diff": f"--- a\n+++ b\n+{text}"},
}


@pytest.mark.parametrize("place", PLACES)
def test_hostile_text_is_marked_in_every_rendering(place):
    """Hidden and reordering characters, escapes, mixed scripts, and the true host of a link."""
    raw = json.dumps(PLACES[place](HIDDEN), ensure_ascii=False)
    html = rendered("value", value_of(raw, dressed=True)).replace(
        r"\u001b", "U+001B"
    )  # JSON escapes it
    assert [mark for mark in MARKED if mark not in html] == []
    assert not set(html) & set("\u202e\u202c\u200b\x1b")


# ------------------------------------------------------------------------------------- renderings

SIGNS = st.text(st.sampled_from("aB1 \n#*_`>-[]()!<&;\"'\\:/.\u202e|~"), max_size=60)


@given(SIGNS | TEXTS | st.lists(SIGNS).map("\n\n".join))
def test_markdown_leaves_out_signs_of_its_layout_only(source):
    """Each letter and digit, and each hidden character, is in the blocks; no element is theirs."""
    html = rendered("markdown", blocks_of(source))
    ours = {"p", "pre", "hr", "ul", "ol", "li", "blockquote", "em", "b", "code", "mark", "strong"}
    assert set(_Text(html).tags) <= ours
    if blocks_of(source):
        said = Counter("".join(_Text(html).all))
        letters = Counter(one for one in source if one.isalpha())
        assert letters - said == Counter()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "[here](https://bank.example@evil.example/x)",
            "here (https://bank.example@evil.example/x)",
        ),
        ("[https://a.example](https://b.example)", "https://a.example (https://b.example)"),
        ("<https://a.example/>", "https://a.example/"),
        ("[a](javascript:alert(1))", "a (javascript:alert(1))"),
        ('![cat](https://x.example/a.png "t")', 'picture: cat (https://x.example/a.png "t")'),
        ("[x]: https://x.example 'hidden'", "[x]: https://x.example 'hidden'"),
        ("&#x202e; <b>a</b> <!-- b -->", "&#x202e; <b>a</b> <!-- b -->"),
        ("| a |\n|---|\n| b | c |", "| a |\n|---|\n| b | c |"),
    ],
)
def test_what_markdown_would_hide_is_text(source, said):
    [block] = blocks_of(source)
    assert plain(block.runs) == said


def test_markdown_that_would_leave_something_out_is_shown_as_its_source():
    assert blocks_of(">" * 40 + " delete everything") == ()  # deeper than the reader goes
    assert blocks_of("a\n" * 10_000) == ()
    raw = json.dumps({"markdown": "# a\n" + ">" * 40 + " b"})
    html = rendered("value", value_of(raw, dressed=True))
    assert "&gt; b" in html


def test_a_picture_does_not_keep_the_texts_beside_it_from_being_read():
    picture = f"data:image/png;base64,{'iVBO' * 15_000}"
    texts = {"markdown": "# a", "more": "x" * 40_000}
    shown = value_of(json.dumps({"picture": picture, **texts}), dressed=True)
    assert shown.head[1].value.blocks
    too_long = value_of(json.dumps({"less": "x" * 10_000, **texts}), dressed=True)
    assert not too_long.head[1].value.blocks


def test_objects_that_are_alike_are_a_table():
    """A column for each name and a row for each object; what is folded is counted."""
    rows = [{"id": number, "name": f"Customer {number}"} for number in range(120)]
    del rows[3]["name"]
    table = value_of(json.dumps(rows))
    assert [joined(one) for one in table.columns] == ["id", "name"]
    cells = (*table.head, *table.rest)
    assert len(cells) == 120
    assert [joined(cell.text) for cell in cells[119]] == ["119", "Customer 119"]
    assert cells[3][1] is None
    html = rendered("value", table)
    assert "<caption>120 rows</caption>" in html
    assert "100 more rows" in html
    assert "(none)" in html


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1}],
        [{"a": 1}, 2],
        [{"a": 1}, {"b": 2}, {"c": 3}],
        [{"a": {"b": 1}}, {"a": {"b": 2}}],
        [{"a": "two\nlines"}, {"a": "x"}],
        [{str(number): 1 for number in range(9)}] * 2,
        [{}, {}],
    ],
)
def test_what_does_not_fit_into_rows_is_no_table(rows):
    assert isinstance(value_of(json.dumps(rows)), Group)


def test_short_items_have_no_numbers():
    html = rendered("value", value_of('["a", 5, null]'))
    assert _Text(html).tags.count("li") == 3
    assert "<dt>" not in html
    assert "<dt>" in rendered("value", value_of('["a", ["b"]]'))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-01T12:00:00+02:00", "2026-03-01T10:00:00+00:00"),
        ("2026-03-01t12:00:00.5z", "2026-03-01T12:00:00.500000+00:00"),
        ("2026-03-01", None),
        ("2026-13-01T12:00:00Z", None),
        ("0001-01-01T00:00:00+23:00", None),
        ("on 2026-03-01T12:00:00Z", None),
    ],
)
def test_a_time_is_also_that_of_the_reader(text, at):
    found = value_of(json.dumps(text)).at
    assert (found and found.isoformat()) == at


def test_a_schema_says_what_a_value_is():
    """Its title, description and format stand below the value, and never in place of the name."""
    said = {"title": "Gift", "description": "In \u202eeuros.", "format": "money"}
    schema = json.dumps({"type": "object", "properties": {"amount": said}})
    notes = {
        one.pointer: one.description for one in fields.each(fields.form(schema, '{"amount":5}'))
    }
    html = rendered("value", value_of('{"amount":5}', notes=notes))
    assert "<dt>amount</dt>" in html
    assert "Gift · In " in html
    assert "euros. · money" in html
    assert "U+202E" in html
    same = json.dumps({"type": "object", "properties": {"due_at": {"title": "Due At"}}})
    assert fields.form(same, '{"due_at":1}').fields[0].description == ""


def test_large_and_deep_arguments_are_rendered_completely():
    """500 arguments, 200 kB of text, hidden characters throughout, and 100 levels (B72)."""
    many = json.dumps({f"argument-{number}": number for number in range(500)})
    html = rendered("value", value_of(many))
    assert all(f"argument-{number}<" in html for number in range(500))
    assert "<summary>460 more</summary>" in html
    long = value_of(json.dumps({"text": "a\u202e" * 100_000}, ensure_ascii=False))
    assert rendered("value", long).count("U+202E") == 100_000
    deep = "[" * 100 + '"end"' + "]" * 100
    assert '"end"' in rendered("value", value_of(deep)).replace("&#34;", '"')


# -------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ('{"a":5}', '{"a":4}', [("a", "5", "4")]),
        ('{"a":5}', '{"a":5.0}', [("a", "5", "5.0")]),
        ('{"a":5}', '{"b":5}', [("b", None, "5"), ("a", "5", None)]),
        ('{"a":{"b":["x","y"]}}', '{"a":{"b":["x","z"]}}', [("a.b.1", "y", "z")]),
        ('{"a":"A"}', '{"a":"\\u0041"}', []),
        ('{"a":1}', '{ "a": 1 }', []),
        ('{"a":5}', '{"a":"5"}', [("a", "5", '"5"')]),
        ('{"a":[1]}', '{"a":{"0":1}}', [("a", "[1]", '{"0":1}')]),
    ],
)
def test_an_edit_is_shown_by_its_places(before, after, found):
    def text(one):
        return None if one is None else joined(one)

    assert [
        (joined(one.place), text(one.before), text(one.after)) for one in changes(before, after)
    ] == found


def test_a_long_text_is_compared_by_its_lines():
    before, after = "one\ntwo\nthree\n", "one\n2\nthree\n"
    [change] = changes(json.dumps({"text": before}), json.dumps({"text": after}))
    assert [(run.mark, plain([run])) for run in change.lines] == [
        ("", "one\n"), ("removed", "two\n"), ("added", "2\n"), ("", "three\n"),
    ]  # fmt: skip


@given(TEXTS, TEXTS)
def test_a_diff_has_all_of_both_texts(before, after):
    found: tuple[MarkedRun, ...] = line_diff(before, after)
    assert plain(run for run in found if run.mark != "added") == before
    assert plain(run for run in found if run.mark != "removed") == after


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("/doubt", "/doubt?workspace=bank"),
        ("/grants?workspace=shop&after=7", "/grants?workspace=bank"),
        ("/?q=is:mine&workspace=shop", "/?q=is%3Amine&workspace=bank"),
        ("/?q=thread:shop/t1", "/?workspace=bank"),
        ("/calls/shop/t1/c1?q=is:mine", "/?workspace=bank"),
        ("/policy/shop", "/policy/bank"),
    ],
)
def test_another_workspace_is_reached_from_where_the_reader_is(here: str, there: str):
    """What belongs to one workspace is left behind: a call, a thread, a place in a list."""
    path, _, query = here.partition("?")
    scope = {"type": "http", "path": path, "query_string": query.encode(), "headers": []}
    assert _elsewhere(Request(scope), "bank") == there


# ---------------------------------------------------------------------------------------- forms

SCHEMA = json.dumps(
    {
        "type": "object",
        "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}},
                           "required": ["sku"]}},
        "properties": {
            "order": {"type": "string", "description": "The order's name."},
            "amount": {"type": "number"},
            "express": {"type": "boolean"},
            "way": {"enum": ["post", "cash", 3]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "free": {"type": "object"},
        },
        "required": ["order", "amount"],
    }
)  # fmt: skip
ARGUMENTS = st.fixed_dictionaries(
    {"order": st.text(st.characters(codec="utf-8")), "amount": st.integers() | st.floats(0, 1e9)},
    optional={
        "express": st.booleans(),
        "way": st.sampled_from(["post", "cash", 3]),
        "note": st.none() | st.text(st.sampled_from("a\n\r\u202e")),
        "lines": st.lists(st.fixed_dictionaries({"sku": st.text("ab\n")}), max_size=3),
        "free": st.dictionaries(st.text("ab/~"), st.integers(), max_size=3),
        "other": JSON,
    },
)


def submitted(form):
    """What a browser sends of an untouched form: every line end is CR LF."""
    return {
        one.pointer: "\r\n".join(one.text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
        for one in fields.each(form)
        if one.control != "group"
    }


@given(ARGUMENTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_form_that_nobody_touched_keeps_the_bytes(arguments, ascii_only, indent):
    """The digest of an untouched edit is that of the request (B61)."""
    raw = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    form = fields.form(SCHEMA, raw)
    same = fields.filled(form, submitted(form))
    assert fields.mistakes(same) == {}
    assert fields.written(form, same) == raw


@pytest.mark.parametrize(
    ("place", "typed", "then"),
    [
        ("/amount", "12.50", '{"order":"A-17","amount":12.50,"lines":[{"sku":"x"}],"note":null}'),
        ("/order", 'B "17"\r\nx',
         '{"order":"B \\"17\\"\\nx","amount":480,"lines":[{"sku":"x"}],"note":null}'),
        ("/lines/0/sku", "y", '{"order":"A-17","amount":480,"lines":[{"sku":"y"}],"note":null}'),
        ("/note", '"later"',
         '{"order":"A-17","amount":480,"lines":[{"sku":"x"}],"note":"later"}'),
    ],
)  # fmt: skip
def test_what_was_typed_keeps_its_type(place, typed, then):
    raw = '{"order":"A-17","amount":480,"lines":[{"sku":"x"}],"note":null}'
    form = fields.form(SCHEMA, raw)
    assert fields.written(form, fields.filled(form, {place: typed})) == then


@pytest.mark.parametrize(
    ("place", "typed", "said"),
    [
        ("/amount", "1,5", "not a number"),
        ("/amount", "", "not a number"),
        ("/amount", "NaN", "not a number"),
        ("/note", "later", "not JSON"),
        ("/way", '"gold"', "not one of the values"),
    ],
)
def test_what_is_not_json_is_said_at_its_field(place, typed, said):
    form = fields.form(SCHEMA, '{"order":"A-17","amount":480,"note":null,"way":"post"}')
    [(where, what)] = fields.mistakes(fields.filled(form, {place: typed})).items()
    assert where == place
    assert said in what


def test_a_form_is_made_of_the_schema():
    """Each value has a control of its type; what the schema allows beside it can be added."""
    raw = '{"order":"A\u202e","amount":1,"express":true,"way":"cash","lines":[{"sku":"x"}],"z":[1]}'
    form = fields.form(SCHEMA, raw)
    assert [(one.name, one.control, one.optional) for one in form.fields] == [
        ("order", "json", False),  # a text field would not show its hidden character
        ("amount", "number", False),
        ("express", "choice", True),
        ("way", "choice", True),
        ("lines", "group", True),
        ("z", "json", True),
    ]
    assert form.fields[0].text == r'"A\u202e"'
    assert form.fields[3].options == ('"post"', '"cash"', "3")
    assert {one.pointer: one.raw for one in form.additions} == {"/note": '""', "/free": "{}"}
    [another] = form.fields[4].additions
    assert (another.pointer, another.raw) == ("/lines/1", '{"sku":""}')


@pytest.mark.parametrize(
    ("raw", "control", "said"),
    [("3", "number", "How many."), ('"a"', "text", "Which."), ("true", "json", "")],
)
def test_of_alternatives_that_of_the_value_counts(raw: str, control: str, said: str):
    """An integer is a number; what none of them allows has no field of its own."""
    which = {"type": "string", "description": "Which."}
    many = {"type": "integer", "description": "How many."}
    schema = {"type": "object", "properties": {"it": {"anyOf": [which, many]}}}
    [field] = fields.form(json.dumps(schema), f'{{"it":{raw}}}').fields
    assert (field.control, field.description) == (control, said)


def test_a_line_end_that_nobody_touched_keeps_the_bytes_around_it():
    """A browser sends each as CR LF, and a form holds LF."""
    raw = '{ "order": "A\\r\\nB", "amount": 480 }'
    form = fields.form(SCHEMA, raw)
    same = fields.filled(form, submitted(form))
    assert same != form
    assert fields.written(form, same) == raw
    more = fields.filled(form, {"/order": "A\r\nB\r\nC"})
    assert fields.written(form, more) == '{"order":"A\\r\\nB\\r\\nC","amount":480}'


def test_a_mistake_within_a_value_stands_at_the_field_around_it():
    form = fields.form(SCHEMA, '{"order":"A","amount":1,"free":{"a":1}}')
    mistakes = [("/free/a/b", "no"), ("/amount", "too much"), ("", "this"), ("", "and this")]
    found = fields.at_fields(form, mistakes)
    assert found == {"/free": ["no"], "/amount": ["too much"], "": ["this", "and this"]}


@given(JSON)
def test_an_escape_for_each_hidden_character_keeps_the_value(value):
    raw = json.dumps(value, ensure_ascii=False)
    assert json.loads(visible_json(raw)) == value
    assert visible(visible_json(raw)) == visible_json(raw)


def test_a_value_is_put_into_its_place():
    raw = '{"a": [1, {"b/c": 2}], "d": 3}'
    assert raw_json.replaced(raw, ("a", "1", "b/c"), "4") == '{"a":[1,{"b/c":4}],"d":3}'
    assert raw_json.replaced(raw, ("a", "0"), None) == '{"a":[{"b/c": 2}],"d":3}'
    assert raw_json.replaced(raw, ("a", "2"), "5") == '{"a":[1,{"b/c": 2},5],"d":3}'
    assert raw_json.pointer(("a", "b/c", "~")) == "/a/b~1c/~0"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.02, "20 ms"), (59.6, "1 min"), (250, "4 min 10 s"), (3600, "1 h"), (90_000, "1 d 1 h")],
)
def test_a_duration_ends_in_its_unit(seconds, text):
    assert duration(seconds) == text
