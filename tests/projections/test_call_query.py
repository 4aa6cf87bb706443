"""What people type to find calls, and what it selects."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import START
from test_pending import asked_at

from ayes.projections.call_query import ALL, CallQuery, Seen, Word
from ayes.schemas.errors import BadInput

ARGUMENTS = """{
    "order": "A-17", "amount": 480.10, "rate": "0.3", "gift": true, "note": null,
    "customer": {"name": "Ren\\u00e9e", "card": "4111", "id": 7},
    "lines": [{"sku": "x-1", "count": 2}, {"sku": "X-2", "count": 12345678901234567890123}]
}"""
ENTRY = msgspec.structs.replace(
    asked_at(7),
    workspace="shop",
    thread="order-17",
    call="refund-1",
    tool="refund",
    rule="large refunds",
    reason="It gives money away.",
    requester="Rita",
    agent="desk-1",
    arguments=ARGUMENTS,
    labels={"team": "x", "tier": "vip"},
    gated_at=START - timedelta(days=3),
    due_at=START + timedelta(minutes=30),
    handed={"ana": "ben"},
)


def seen(**more):
    return Seen(START, **({"mine": lambda _: True, "snoozed": lambda _: True} | more))


def selects(text, entry=ENTRY, **more):
    return CallQuery.parse(text).selecting(seen(**more))(entry)


@pytest.mark.parametrize(
    "text",
    [
        "", "refund", "REFUND", "shop/order-17", "order-17/refund-1", "rita", "desk", "team=x",
        "gives", '"gives money"', "RENÉE", "480.10", "a-17 large",
        "tool:refund", "tool:Ref*", "tool:ref?nd", "workspace:shop", "thread:order-17",
        "thread:shop/order-*", "call:refund-1", "call:shop/order-17/refund-1", "requester:rita",
        "agent:desk-*", 'rule:"large refunds"', "label:team", "label:tier=VIP", "label:t*=x",
        "is:mine", "is:snoozed", "for:ben", "for:B*", "handed:ana", "due<1h",
        "due>10m", "due<=30m", "age>2d",
        "age<4d",
        "amount>100", "amount:480.1", "amount<=480.10", "amount:480.100", "rate<0.31",
        "order:a-17", "order:A-*", "gift:true", "note:null", "name:renée", "customer/id:7",
        "/customer/id:7", "/amount>1", "lines/sku:x-2", "count>12345678901234567890122",
        "-tool:send", "-is:overdue", "-amount<5", '-"money bag"', "-missing:1", "-due<1m",
    ],
)  # fmt: skip
def test_a_word_selects_what_it_says(text):
    """And with a minus before it, all others."""
    assert selects(text)
    if text:
        word = CallQuery.parse(text).words[0]
        other = CallQuery((msgspec.structs.replace(word, negated=not word.negated),))
        assert not selects(str(other))


@pytest.mark.parametrize(
    "text",
    [
        "refundx", "tool:ref", "tool:send", "workspace:Shop", "thread:order-1", "call:refund",
        "label:x", "label:team=y", "for:ana", "handed:ben", "is:overdue", "due<10m", "age<2d",
        "amount>480.10",
        "amount:480.2", "order>1", "/id:7", "customer:7", "missing:1", "gift:1", 'agent:""',
        "-refund", "refund -rita", "tool:[rR]efund",
    ],
)  # fmt: skip
def test_a_word_selects_nothing_else(text):
    assert not selects(text)


def test_secret_arguments_are_not_searched():
    """Neither their text nor as fields; and none at all while nobody knows which are secret."""
    card = {"secret": lambda _: ("/customer/card", "/lines/*/count")}
    for text in ("4111", "card:4111", "count>1", "lines/count:2"):
        assert selects(text)
        assert not selects(text, **card), text
        assert not selects(text, secret=lambda _: None), text
    for text in ("a-17", "name:renée", "amount>1", "sku:x-1"):
        assert selects(text, **card), text
        assert not selects(text, secret=lambda _: None), text
    assert selects("tool:refund rita", secret=lambda _: None)


def test_time_passes_and_only_a_reader_has_calls():
    late = Seen(START + timedelta(hours=1))
    query = CallQuery.parse("is:overdue due<0s age>3d")
    assert query.selecting(late)(ENTRY)
    assert not query.selecting(late)(msgspec.structs.replace(ENTRY, due_at=None))
    for text in "is:mine", "-is:snoozed":
        with pytest.raises(BadInput, match=f"{text} is about a reader, who is not known"):
            CallQuery.parse(text).selecting(late)


def test_an_unreadable_entry_is_searched_by_its_text_alone():
    broken = msgspec.structs.replace(ENTRY, arguments='{"amount": ')
    assert selects("amount", broken)
    assert not selects("amount>1", broken)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tool:", "tool: at character 1 of the query has no value"),
        ("refund  rule:", "rule: at character 9 of the query has no value"),
        ('say "hello', "the quote at character 5 of the query has no end"),
        ('a"b"', "a quote stands within a word, at character 2"),
        ('"a"b', "a quote stands within a word, at character 4"),
        ("x -", "- (character 3): it searches for nothing"),
        ("tool>refund", "tool>refund (character 1): tool is not compared. Write tool:refund"),
        ("amount>much", "amount>much (character 1): only numbers are compared"),
        ("due:1h", "due:1h (character 1): due is compared with a duration"),
        ("age>5", "age>5 (character 1): age is compared with a duration"),
        ("a is:open", "is:open (character 3): the value of is is one of mine, overdue"),
        ("verdict:denyed", "verdict is one of approved, denied"),
        ("since:yesterday", "since 'yesterday' is not a valid time"),
        ("workspace:a.b", "'a.b' is not the name of a workspace"),
        ("x " * 21, "a query may have 20 words, not 21"),
        ("x" * 1001, "a query may have 1,000 characters, not 1,001"),
    ],
)
def test_what_cannot_be_understood_is_one_sentence_with_its_place(text, said):
    with pytest.raises(BadInput) as problem:
        CallQuery.parse(text)
    assert said in str(problem.value)


def test_words_that_some_calls_do_not_have_are_refused():
    query = CallQuery.parse("refund by:ana is:mine")
    assert query.only("calls in doubt", "is:overdue") == query
    with pytest.raises(BadInput, match="by:ana does not select pending calls"):
        query.only("pending calls", "by")


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
WORDS = st.one_of(
    st.builds(Word, st.just(""), st.just(":"), TEXTS.filter(str.strip), st.booleans()),
    st.builds(Word, st.sampled_from(["tool", "rule", "label", "order", "/a/b"]), st.just(":"),
              st.just("") | TEXTS, st.booleans()),
    st.builds(Word, st.sampled_from(["amount", "a-b"]), st.sampled_from(["<", "<=", ">", ">="]),
              st.integers().map(str), st.booleans()),
    st.builds(Word, st.just("due"), st.just("<"), st.just("1h"), st.booleans()),
)  # fmt: skip


@given(st.lists(WORDS, max_size=6))
def test_what_is_written_is_read_as_the_same_words(words):
    query = CallQuery(tuple(words))
    assert CallQuery.parse(str(query)) == query
    assert all(word not in query.without(word).words for word in words)


@given(st.text(max_size=40) | st.text('ab:"\\<>=-/ ', max_size=12))
def test_any_text_is_a_query_or_one_sentence(text):
    try:
        query = CallQuery.parse(text)
    except BadInput as problem:
        assert str(problem)  # noqa: PT017 - most texts are queries
    else:
        assert CallQuery.parse(str(query)) == query
        selects(str(query))
        assert (query == ALL) == (not text.strip())
