"""Providers' conversations in our words, and from there back again."""

import json
import re

import pytest
from formats import conversations, entries_of, wish
from hypothesis import given
from stories import facts_of, facts_told, lives

from ayes.projections.formats import anthropic, openai_chat
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedReply,
    Spoken,
)
from ayes.projections.history import Assistant, Outcome, System, User
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput


def steps_of(entries) -> list[ConversationStep]:
    """The entries in the readers' words, where nothing has to be lost."""
    steps: list[ConversationStep] = []
    for entry in entries:
        match entry:
            case System(text):
                steps.append(Spoken("system", text))
            case User(text):
                steps.append(Spoken("user", text))
            case Assistant(parts=parts):
                steps.append(RecordedReply(parts))
            case Outcome(provider_id=id_, tool=tool, text=text, is_error=is_error):
                steps.append(Output(id_, tool, text, is_error))
    return steps


# ---------------------------------------------------------------------- what people really recorded


def test_recorded_conversations_are_read_in_one_way():
    """The provider's reader and the reader of recordings have the same words for all 150
    conversations (B20, B25).
    """
    for one in conversations():
        assert openai_chat.read(one.messages) == one.steps
        assert openai_chat.read({"messages": one.messages}) == one.steps


def test_recorded_conversations_make_the_round_trip_through_chat():
    """All 150 are written, read, made facts and written again: the same steps and the same
    bytes.
    """
    for one in conversations():
        payload = openai_chat.write(entries_of(facts_of(one.messages)))
        steps = openai_chat.read(payload)
        assert steps == one.steps
        again = openai_chat.write(entries_of(facts_told(steps)))
        assert json.dumps(again) == json.dumps(payload)
        assert again == {"messages": one.messages}


def test_recorded_conversations_make_the_round_trip_through_anthropic():
    """All 150 again: what was said and given is the same; lost are repeated ids, the spelling of
    arguments, empty texts.
    """
    for one in conversations():
        payload = anthropic.write(entries_of(facts_of(one.messages)))
        steps = anthropic.read(payload)
        assert [as_anthropic_can(step) for step in steps] == [
            as_anthropic_can(step) for step in one.steps
        ]
        assert json.dumps(anthropic.write(entries_of(facts_told(steps)))) == json.dumps(payload)


def as_anthropic_can(step: ConversationStep) -> object:
    match step:
        case Spoken(role, text):
            return role, text
        case RecordedReply(parts):
            return [
                (part.tool, json.loads(part.arguments)) if isinstance(part, e.Wish) else part
                for part in parts
                if not isinstance(part, e.Text) or part.text.strip()
            ]
        case Output(_, tool, text, is_error):
            return tool, text if text.strip() else "", is_error


# ------------------------------------------------------------------------------------- random lives


@given(lives())
def test_a_reader_tells_every_call_and_outcome(facts):
    """As many wishes and outcomes as the history has, in its order, with its texts and what the
    form knows of errors.
    """
    outcomes = [entry for entry in entries_of(facts) if isinstance(entry, Outcome)]
    for form in (openai_chat, anthropic):
        found = [
            step for step in form.read(form.write(entries_of(facts))) if isinstance(step, Output)
        ]
        assert len(found) == len(outcomes)
        for step, outcome in zip(found, outcomes, strict=True):
            assert step.text.strip() == outcome.text.strip()
            assert step.is_error == (outcome.is_error and form is anthropic)


# ------------------------------------------------------------------------------------- what is read


THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def test_chat_loses_nothing_of_a_plain_conversation():
    """System, users, texts, calls and results come back as they went."""
    entries = (
        System("be kind"),
        User("hi"),
        Assistant(1, (e.Text("Let me see."), wish(), wish("look_up", "{", "call_b"))),
        Outcome("1-0", "refund", "call_a", "returned", "done", False),
        Outcome("1-1", "look_up", "call_b", "returned", "", False),
        Assistant(2, (e.Text("Done."),)),
    )
    assert list(openai_chat.read(openai_chat.write(entries))) == steps_of(entries)


def test_anthropic_loses_nothing_of_a_plain_conversation():
    """Thinking and errors come back too."""
    entries = (
        System("be kind"),
        User("hi"),
        Assistant(
            1,
            (
                e.Opaque("anthropic", json.dumps(THINKING, separators=(",", ":"))),
                e.Text("Let me see."),
                wish(),
                wish("look_up", "{", "call_b"),
            ),
        ),
        Outcome("1-0", "refund", "call_a", "returned", "done", False),
        Outcome("1-1", "look_up", "call_b", "failed", "no such order", True),
        User("and?"),
        Assistant(2, (e.Text("Done."),)),
    )
    assert list(anthropic.read(anthropic.write(entries))) == steps_of(entries)


def chat_call(id_="a", name="refund", arguments="{}") -> dict:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_calling(*calls) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def chat_result(id_="a", **fields) -> dict:
    return {"role": "tool", "tool_call_id": id_, "content": f"result {id_}", **fields}


HELLO = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ({"role": "developer", "content": "be kind"}, Spoken("system", "be kind")),
        ({"role": "user", "name": "ana", "content": "hi"}, Spoken("user", "hi")),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, Spoken("user", "hi")),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            Spoken("user", "a\n\nb"),
        ),
        (
            {
                "role": "assistant",
                "content": "",
                "refusal": None,
                "annotations": [],
                "tool_calls": None,
            },
            RecordedReply((e.Text(""),)),
        ),
        (
            {"role": "assistant", "content": None, "refusal": "I will not do that."},
            RecordedReply((e.Refusal("I will not do that."),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            RecordedReply((e.Refusal("No."),)),
        ),
    ],
)
def test_chat_is_read_however_it_is_said(message, step):
    """Other spellings that mean one thing: parts, a developer, fields that are there and empty."""
    assert openai_chat.read([message]) == (step,)


def test_chat_results_are_read_in_the_order_of_their_calls():
    """The provider takes them in any order and without a name; ours has one order, and every tool
    its name.
    """
    messages = [
        chat_calling(chat_call("a"), chat_call("b", "look_up")),
        chat_result("b"),
        chat_result("a"),
    ]
    assert openai_chat.check(messages) == []
    assert openai_chat.read(messages)[1:] == (
        Output("a", "refund", "result a"),
        Output("b", "look_up", "result b"),
    )


def use(id_="a", name="refund", input_=None, **fields) -> dict:
    return {
        "type": "tool_use",
        "id": id_,
        "name": name,
        "input": {} if input_ is None else input_,
        **fields,
    }


def used(id_="a", **fields) -> dict:
    return {"type": "tool_result", "tool_use_id": id_, **fields}


def says(text="hi", **fields) -> dict:
    return {"type": "text", "text": text, **fields}


def user(*blocks) -> dict:
    return {"role": "user", "content": list(blocks)}


def model(*blocks) -> dict:
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (used(content="done"), Output("a", "refund", "done")),
        (used(), Output("a", "refund", "")),
        (used(content=[]), Output("a", "refund", "")),
        (used(content=[says("one"), says("two")]), Output("a", "refund", "one\n\ntwo")),
        (used(content="no", is_error=True), Output("a", "refund", "no", is_error=True)),
        (
            used(content="done", is_error=False, cache_control={"type": "ephemeral"}),
            Output("a", "refund", "done"),
        ),
    ],
)
def test_anthropic_results_are_read(result, output):
    """Text or a list of texts, or nothing; and whether it is an error."""
    assert anthropic.read([model(use()), user(result)])[1:] == (output,)


def test_anthropic_blocks_are_read():
    """A system in blocks, text beside results, results in another order, thinking and server tools
    as they came.
    """
    search = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"q": "é"},
    }
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"url": "u"}],
    }
    payload = {
        "system": [says("be kind", cache_control={"type": "ephemeral"}), says("be quick")],
        "messages": [
            HELLO,
            model(
                THINKING, search, found, says(), use("a"), use("b", "look_up", {"x": [1.5, None]})
            ),
            user(used("b", content="B"), used("a", content="A"), says("and?")),
            {"role": "assistant", "content": ""},
        ],
    }
    steps = anthropic.read(payload)
    parts = [
        e.Opaque("anthropic", json.dumps(one, ensure_ascii=False, separators=(",", ":")))
        for one in (THINKING, search, found)
    ]
    assert steps == (
        Spoken("system", "be kind"),
        Spoken("system", "be quick"),
        Spoken("user", "hi"),
        RecordedReply(
            (
                *parts,
                e.Text("hi"),
                wish("refund", "{}", "a"),
                wish("look_up", '{"x":[1.5,null]}', "b"),
            )
        ),
        Output("a", "refund", "A"),
        Output("b", "look_up", "B"),
        Spoken("user", "and?"),
        RecordedReply(()),
    )
    again = anthropic.write(entries_of(facts_told(steps)))["messages"]
    assert again[1]["content"] == payload["messages"][1]["content"]


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", '{"a": NaN}', "[" * 9_999])
def test_wrapped_arguments_are_unwrapped(arguments):
    """What was no object when it was written is the same text when it is read (B17)."""
    entries = [
        Assistant(1, (wish(arguments=arguments),)),
        Outcome("1-0", "refund", "call_a", "returned", "", False),
    ]
    (reply,) = [
        step for step in anthropic.read(anthropic.write(entries)) if isinstance(step, RecordedReply)
    ]
    assert reply.wishes[0].arguments == arguments


@pytest.mark.parametrize(
    "given",
    [{"malformed_arguments": "{}"}, {"malformed_arguments": ""}, {"malformed_arguments": 1}],
)
def test_an_input_that_was_never_wrapped_stays(given):
    """Only what the writer itself would wrap is taken out again."""
    assert anthropic.read([model(use(input_=given)), user(used())])[0].wishes[
        0
    ].arguments == json.dumps(given, separators=(",", ":"))


# ------------------------------------------------------------------------------ what is not guessed


@pytest.mark.parametrize(
    ("messages", "says_so"),
    [
        ("hi", "not a list of messages"),
        ({"contents": []}, "'messages'"),
        (None, "not a list of messages"),
        ([HELLO, "hi"], "message 1: "),
        ([HELLO, {"role": "robot", "content": "hi"}], "message 1: 'role' is 'robot'"),
        ([{"role": ["user"], "content": "hi"}], "message 0: "),
        ([HELLO, chat_calling(chat_call())], "message 1: 'a' has no result"),
        ([HELLO, chat_calling(chat_call()), HELLO], "message 1: 'a' has no result"),
        (
            [chat_calling(chat_call("a"), chat_call("b")), chat_result("b")],
            "message 0: 'a' has no result",
        ),
        ([HELLO, chat_result()], "message 1: tool_call_id 'a' is not a call"),
        (
            [chat_calling(chat_call()), chat_result(), chat_result()],
            "message 2: call 'a' of refund was answered",
        ),
        ([chat_calling(chat_call(), chat_call()), chat_result()], "message 0: two calls"),
        ([chat_calling(chat_call(arguments={})), chat_result()], "message 0: 'arguments'"),
        ([chat_calling({"id": "a", "type": "custom", "custom": {}}), chat_result()], "'custom'"),
        ([{"role": "assistant", "content": None}], "message 0: an assistant message needs"),
        (
            [{"role": "assistant", "content": "hi", "tool_calls": []}],
            "message 0: 'tool_calls' is empty",
        ),
        (
            [HELLO, {"role": "user", "content": [{"type": "image_url"}]}],
            "message 1: a part of type 'image_url'",
        ),
        ([HELLO, {"role": "user", "content": []}], "message 1: the content is neither text"),
        (
            [HELLO, {"role": "user", "content": ["hi"]}],
            "message 1: a part of the content is not an object",
        ),
        ([HELLO, model(use()), user(used())], "message 1: a part of type 'tool_use'"),
        ([HELLO, {"role": "user"}], "message 1: 'content' is missing"),
    ],
)
def test_chat_guesses_nothing(messages, says_so):
    """Half a pair, unknown parts, another provider's messages: refused with the index of the
    message (B1, B14).
    """
    with pytest.raises(BadInput, match=re.escape(says_so)):
        openai_chat.read(messages)


@pytest.mark.parametrize(
    ("messages", "says_so"),
    [
        ("hi", "not a list of messages"),
        ({"input": []}, "'messages'"),
        ({"system": 3, "messages": []}, "the system is neither text"),
        ({"system": [use()], "messages": []}, "the system is neither text"),
        ([HELLO, "hi"], "message 1: a message is a role"),
        (
            [HELLO, {"role": "tool", "content": "hi"}],
            "message 1: this is a message for OpenAI Chat",
        ),
        (
            [HELLO, chat_calling(chat_call()), chat_result()],
            "message 1: this is a message for OpenAI Chat",
        ),
        ([HELLO, {**HELLO, "name": "ana"}], "message 1: the message has 'name'"),
        ([HELLO, model(use())], "message 1: 'a' has no result"),
        ([HELLO, model(use()), HELLO], "message 1: 'a' has no result"),
        ([HELLO, model(use()), model(says())], "message 1: 'a' has no result"),
        ([model(use("a"), use("b")), user(used("a"))], "message 0: 'b' has no result"),
        ([HELLO, user(used())], "message 1: the result of 'a' does not follow its use"),
        ([model(use("None")), user({"type": "tool_result"})], "message 1: a result does not say"),
        ([model(use()), user(used(), used())], "message 1: 'a' is answered twice"),
        ([model(use(), use()), user(used())], "message 0: two calls have the same id 'a'"),
        ([model(use()), user(says(), used())], "message 1: a result comes after something else"),
        ([model(use(input_=[])), user(used())], "message 0: a tool_use is"),
        ([model(use(id_=3)), user(used("3"))], "message 0: a tool_use is"),
        ([model(use(input_={"a": "\ud800"})), user(used())], "message 0: it cannot be written"),
        ([model(use()), user(used(content=3))], "message 1: the content is neither text"),
        (
            [model(use()), user(used(content=[{"type": "image"}]))],
            "message 1: the source of a block of type 'image'",
        ),
        ([model(use()), user(used(is_error="yes"))], "message 1: is_error"),
        (
            [model(says(citations=[{"url": "u"}]))],
            "message 0: a citation is not an object with a type",
        ),
        ([model({"type": "text"})], "message 0: a part of type 'text'"),
        ([HELLO, model({"type": "hologram"})], "message 1: a block of type 'hologram'"),
        ([model(use()), model(used())], "message 1: a result is in the model's message"),
        ([user(THINKING)], "message 0: a part of type 'thinking'"),
        (
            [user({"type": "image", "source": {}})],
            "message 0: the source of a block of type 'image'",
        ),
    ],
)
def test_anthropic_guesses_nothing(messages, says_so):
    """Half a pair, unknown blocks, another provider's messages: refused with the index of the
    message (B1, B14).
    """
    with pytest.raises(BadInput, match=re.escape(says_so)):
        anthropic.read(messages)
