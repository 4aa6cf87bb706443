"""What holds for every format: of what is written, and of what is judged."""

import json
from functools import cache

import pytest
from contents import lives_with_content
from formats import (
    THINKING,
    conversations,
    entries_of,
    own_lives,
    places,
    recorded_entries,
    wish,
)
from hypothesis import given
from hypothesis import strategies as st
from long import sampled
from stories import REF, disorder

from ayes.projections.formats import FORMATS
from ayes.projections.formats.conversation import Output
from ayes.projections.history import Assistant, Outcome, User, digest, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e

EVERY = pytest.mark.parametrize("name", FORMATS)
#: The field of the payload with the messages, where it is not `messages`.
FIELD = {"openai-responses": "input", "gemini": "contents"}
#: Formats that merge messages of one side, so that the last one may grow.
MERGING = ("anthropic", "gemini", "pydantic-ai")
#: The rule that there is a message.
NONE_THERE = {
    "openai-chat": 10, "openai-responses": 15, "anthropic": 11, "gemini": 6, "ai-sdk": 15,
    "pydantic-ai": 11, "ai-sdk-ui": 21,
}  # fmt: skip


def written(name: str, entries) -> list[dict]:
    return FORMATS[name].write(entries)[FIELD.get(name, "messages")]


# --------------------------------------------------------------------------------- what is written


@EVERY
@given(data=st.data())
def test_whatever_happened_the_provider_takes_it(name, data):
    """Any life of a thread, with files or without, in any order and with duplicates, gives a
    payload that nothing is wrong with, and the same bytes each time; no record of an approval is in
    it, but in what is shown to people (B1, B3, B7, B12, B15, B16, B17, B82, I11, I13).
    """
    facts = data.draw(lives_with_content(name))
    entries = entries_of(facts)
    payload = FORMATS[name].write(entries)
    if payload.get(FIELD.get(name, "messages")):
        assert FORMATS[name].check(payload) == []
    again = entries_of(data.draw(disorder(facts)))
    assert digest(again) == digest(entries)
    assert json.dumps(FORMATS[name].write(again)) == json.dumps(payload)
    assert name == "ai-sdk-ui" or "approv" not in json.dumps(payload)


@EVERY
@given(data=st.data())
def test_a_shortened_history_keeps_no_half_pairs(name, data):
    """Any stretch of any history is written so that the provider takes it (B13)."""
    entries = entries_of(data.draw(own_lives(name)))
    begin = data.draw(st.integers(0, len(entries)))
    messages = written(name, entries[begin : data.draw(st.integers(begin, len(entries)))])
    if messages:
        assert FORMATS[name].check(messages) == []


@EVERY
@given(data=st.data())
def test_a_growing_history_is_written_with_the_same_beginning(name, data):
    """What was sent before a turn is how the next request begins, so the provider's cache stays
    good; but a last message may have grown, where a format merges those of one side.
    """
    thread = thread_of(REF, data.draw(lives_with_content(name)))
    whole = history(thread).entries
    for number in thread.turns:
        before = history(thread, before_turn=number).entries
        assert whole[: len(before)] == before
        shorter = written(name, before)
        same = shorter[:-1] if name in MERGING else shorter
        assert written(name, whole)[: len(same)] == same


@pytest.mark.parametrize("name", sampled(FORMATS, *[*FORMATS][:2]))
def test_recorded_conversations_go_out_whole(name):
    """150 real GPT-4o conversations: nothing is wrong with them, and every output stands in the
    payload, in its order (B1, B20).
    """
    write, check = FORMATS[name]
    for conversation in conversations():
        payload = write(recorded_entries(conversation))
        assert check(payload) == []
        text, at = json.dumps(payload), 0
        for step in conversation.steps:
            if isinstance(step, Output):
                at = text.index(json.dumps(step.text)[1:-1], at)


# --------------------------------------------------------------------------------- what is no good

ENTRIES = (
    User("hi"),
    Assistant(1,
              (e.Opaque("anthropic", json.dumps(THINKING)), e.Text("a"), wish(),
               wish(provider_id="b"))),
    Outcome("1-0", "refund", "call_a", "returned", "done", False),
    Outcome("1-1", "refund", "b", "denied", "no", True),
    Assistant(2, (e.Text("b"),)),
)  # fmt: skip


@cache
def odd(name: str) -> st.SearchStrategy:
    """JSON values, and objects that look a little like messages of the format."""
    found = list(places(FORMATS[name].write(ENTRIES)))
    texts = {holder[key] for holder, key in found if isinstance(holder[key], str)}
    names = st.sampled_from(sorted({key for _holder, key in found if isinstance(key, str)}))
    more = st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    return st.recursive(
        st.none() | more | st.sampled_from(sorted({"", "user", "assistant", "model", *texts})),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(names | st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=25,
    )


@EVERY
@given(data=st.data())
def test_any_json_is_checked(name, data):
    """Whatever it is given, a checker names problems and does not break."""
    value = data.draw(odd(name))
    for one in (value, [value], {FIELD.get(name, "messages"): [value]}):
        assert all(problem.sentence for problem in FORMATS[name].check(one))


@EVERY
@given(data=st.data())
def test_whatever_is_wrong_somewhere_is_found_or_harmless(name, data):
    """One value of a good payload becomes any other: the checker does not break (B14, B17)."""
    write, check = FORMATS[name]
    payload = json.loads(json.dumps(write(entries_of(data.draw(own_lives(name))) or ENTRIES)))
    holder, key = data.draw(st.sampled_from(list(places(payload))))
    holder[key] = data.draw(odd(name))
    assert isinstance(check(payload), list)


@EVERY
def test_no_nesting_is_too_deep_to_be_judged(name):
    """However deep a value is, it is wrong or right by its own top."""
    deep: list = []
    for _ in range(20_000):
        deep = [deep]
    for place in range(len(list(places(FORMATS[name].write(ENTRIES))))):
        broken = []
        for value in ([[]], deep):
            payload = json.loads(json.dumps(FORMATS[name].write(ENTRIES)))
            holder, key = list(places(payload))[place]
            holder[key] = value
            broken.append([problem.rule for problem in FORMATS[name].check(payload)])
        assert broken[0] == broken[1], key


@EVERY
@pytest.mark.parametrize("payload", [None, 5, "hi", {"other": []}])
def test_no_list_is_no_conversation(name, payload):
    """A checker says that there is no message."""
    assert [problem.rule for problem in FORMATS[name].check(payload)] == [NONE_THERE[name]]
