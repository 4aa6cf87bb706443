"""Histories as the providers take them, and what they would turn down."""

import importlib
import json
from collections.abc import Iterable

import pytest
from formats import conversations, turn, wish
from hypothesis import given
from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from stories import REF, Story, facts_of, lives

from ayes.projections.formats import FORMATS, anthropic, format_named, openai_chat
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput


def chat(*entries: Entry) -> list[dict]:
    return openai_chat.write(entries)["messages"]


def claude(*entries: Entry) -> list[dict]:
    return anthropic.write(entries)["messages"]


# ---------------------------------------------------------------------- what people really recorded


def test_recorded_conversations_are_written_back_as_they_were():
    """150 real GPT-4o conversations become facts and come back, repeated ids and all (B20)."""
    for conversation in conversations():
        found = history(thread_of(REF, facts_of(conversation.messages)))
        assert found.stopped_at is None
        written = openai_chat.write(found.entries)
        assert written == {"messages": conversation.messages}, conversation.id
        assert openai_chat.check(written) == []


def test_recorded_conversations_can_be_sent_to_another_provider():
    """The same 150 as Anthropic takes them: repeated ids are new, no call is lost (B1, B20)."""
    repeated = 0
    for conversation in conversations():
        found = history(thread_of(REF, facts_of(conversation.messages)))
        payload = anthropic.write(found.entries)
        assert anthropic.check(payload) == []
        ids = [
            block["id"]
            for message in payload["messages"]
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        theirs = [entry.provider_id for entry in found.entries if isinstance(entry, Outcome)]
        assert len(ids) == len(theirs)
        repeated += len(theirs) - len(set(theirs))
        assert sum(one != two for one, two in zip(ids, theirs, strict=True)) == len(theirs) - len(
            set(theirs)
        )
        assert payload["system"] == conversation.messages[0]["content"]
    assert repeated > 0


# -------------------------------------------------------------------------------------- OpenAI Chat


def test_chat_writes_the_shapes_that_the_provider_sends():
    """Content is null without a text part, empty for an empty text; arguments stay raw text."""
    two = [wish(provider_id="call_a"), wish("look_up", "{", "call_b")]
    said = (System("be kind"), User("hi", "ana"))
    first, second = turn(1, *two), turn(2, e.Text(""), two[0])
    asks = call("call_a", "refund", '{"order":"A-17"}')
    assert chat(*said, *first, Note("late", "clock"), *second) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "name": "ana", "content": "hi"},
        calling(asks, call("call_b", "look_up", "{")),
        {**result("call_a"), "name": "refund"},
        {**result("call_b"), "name": "look_up"},
        {"role": "system", "name": "clock", "content": "late"},
        {**calling(asks), "content": ""},
        {**result("call_a"), "name": "refund"},
    ]


@pytest.mark.parametrize(
    ("given_ids", "written"),
    [
        (["call_a", "call_b"], ["call_a", "call_b"]),
        (["call_a", "call_a"], ["call_a", "call_1-1"]),
        (["", "x" * 41], ["call_1-0", "call_1-1"]),
        (["x" * 40, "with space"], ["x" * 40, "with space"]),
        (["call_1-1", ""], ["call_1-1", "call_1-1_"]),
    ],
)
def test_chat_keeps_a_provider_id_that_can_stand(given_ids, written):
    """Verbatim where valid and free within the turn, else made of the call's (B20, B23, B85)."""
    messages = chat(*turn(1, *(wish(provider_id=one) for one in given_ids)))
    assert [call["id"] for call in messages[0]["tool_calls"]] == written
    assert [message["tool_call_id"] for message in messages[1:]] == written


def test_chat_ids_may_repeat_across_turns():
    """A call pairs with the messages directly after it, so a repeated id goes back (B20)."""
    messages = chat(*turn(1, wish()), *turn(2, wish()))
    assert [message["tool_calls"][0]["id"] for message in messages[::2]] == ["call_a", "call_a"]
    assert openai_chat.check(messages) == []


def test_an_empty_reply_is_still_a_message():
    """The model's silence stands in the history, in each form (B59)."""
    assert chat(User("hi"), Assistant(1, ()))[-1] == {"role": "assistant", "content": ""}
    assert claude(User("hi"), Assistant(1, (e.Text(" "),)))[-1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "(no text)"}],
    }


@pytest.mark.parametrize(
    ("made_up", "written"),
    [
        ("functions.refund", "functions_refund-4jr4yuk2vdmzrtk2"),
        ("", "nameless-4oymiquy7qobjgx3"),
        ("a" * 65, "a" * 47 + "-mnjwdrelxhvlcqmy"),
        ("größe", "gr__e-2nj2ezy3m6x76ckb"),
    ],
)
def test_a_made_up_tool_name_spoils_nothing(made_up, written):
    """Models wish for tools under names that no provider takes back (B17)."""
    assert chat(*turn(1, wish(made_up)))[0]["tool_calls"][0]["function"]["name"] == written
    assert claude(*turn(1, wish(made_up)))[1]["content"][0]["name"] == written


def call(id_="a", name="refund", arguments="{}") -> dict:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(id_="a") -> dict:
    return {"role": "tool", "tool_call_id": id_, "content": "done"}


HELLO = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("rule", "message", "messages"),
    [
        (1, 0, [calling(call())]),
        (1, 0, [calling(call()), HELLO]),
        (1, 0, [calling(call("a"), call("b")), result("b"), HELLO]),
        (2, 1, [HELLO, result()]),
        (2, 3, [calling(call()), result(), HELLO, result()]),
        (2, 2, [calling(call()), result(), result("b")]),
        (3, 2, [calling(call()), result(), result()]),
        (4, 0, [calling(call("")), result("")]),
        (4, 0, [calling(call("x" * 41)), result("x" * 41)]),
        (5, 0, [calling(call(), call()), result()]),
        (6, 0, [calling(call(name="a.b")), result()]),
        (6, 0, [calling(call(name="")), result()]),
        (7, 0, [calling(call(arguments={})), result()]),
        (8, 0, [{"role": "assistant", "content": None}]),
        (8, 0, [{"role": "user", "content": []}]),
        (8, 1, [calling(call()), {"role": "tool", "tool_call_id": "a", "content": None}]),
        (9, 0, [{"role": "assistant", "content": "hi", "tool_calls": []}]),
        (10, 0, []),
        (10, 1, [HELLO, {"role": "robot", "content": "hi"}]),
        (10, 0, ["hi"]),
        (11, 0, [
            calling(*(call(f"c{number}") for number in range(129))),
            *(result(f"c{number}") for number in range(129)),
        ]),
    ],
)  # fmt: skip
def test_chat_names_the_rule_that_is_broken(rule, message, messages):
    """Each rule has a payload that breaks it and no other; with bare messages it is the same."""
    assert [(found.rule, found.message) for found in openai_chat.check(messages)] == [
        (rule, message)
    ]
    assert openai_chat.check({"messages": messages}) == openai_chat.check(messages)


def test_chat_takes_what_is_right():
    """Results in another order, text parts and an id that repeats later are all legal."""
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    refusal = {"role": "assistant", "content": None, "refusal": "I will not do that."}
    assert openai_chat.check([HELLO, refusal, HELLO]) == []
    assert (
        openai_chat.check([parts, calling(call("a"), call("b")), result("b"), result("a"), HELLO])
        == []
    )


# ---------------------------------------------------------------------------------------- Anthropic


def test_anthropic_puts_results_first_and_all_in_one_message():
    """All results of a turn open the next user message, before what was said (B1, B3, B12)."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    payload = anthropic.write(
        [
            System("be kind"),
            System("be quick"),
            User("hi"),
            *turn(1, e.Opaque("anthropic", json.dumps(thinking)), e.Text("Let me see."), wish(),
                  wish("look_up", "{}", "call_b")),
            User("and?"),
            Note("a minute passed", "clock"),
            System("be brief"),
            *turn(2, wish(), text="no such order", is_error=True),
        ]
    )  # fmt: skip
    assert payload == {
        "system": "be kind\n\nbe quick",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    thinking,
                    {"type": "text", "text": "Let me see."},
                    {
                        "type": "tool_use",
                        "id": "call_a",
                        "name": "refund",
                        "input": {"order": "A-17"},
                    },
                    {"type": "tool_use", "id": "call_b", "name": "look_up", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_a", "content": "done"},
                    {"type": "tool_result", "tool_use_id": "call_b", "content": "done"},
                    {"type": "text", "text": "and?"},
                    {"type": "text", "text": "[Note from clock] a minute passed"},
                    {"type": "text", "text": "[Note from the system] be brief"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "call_2-0",
                        "name": "refund",
                        "input": {"order": "A-17"},
                    }
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_2-0",
                        "content": "no such order",
                        "is_error": True,
                    }
                ],
            },
        ],
    }
    assert anthropic.check(payload) == []


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ("", {}),
        ("{", {"malformed_arguments": "{"}),
        ("[1]", {"malformed_arguments": "[1]"}),
        ("null", {"malformed_arguments": "null"}),
        ('{"a": NaN}', {"malformed_arguments": '{"a": NaN}'}),
        ("[" * 99_999, {"malformed_arguments": "[" * 99_999}),
    ],
)
def test_malformed_arguments_wedge_no_conversation(arguments, written):
    """What is no object is wrapped under a telling name; chat takes the raw text back (B17)."""
    assert claude(*turn(1, wish(arguments=arguments)))[1]["content"][0]["input"] == written
    assert (
        chat(*turn(1, wish(arguments=arguments)))[0]["tool_calls"][0]["function"]["arguments"]
        == arguments
    )


#: Where each form has a call's arguments; those that send an object have no room for what is none.
ARGUMENTS = {
    "openai-chat": lambda payload: payload["messages"][0]["tool_calls"][0]["function"]["arguments"],
    "openai-responses": lambda payload: payload["input"][0]["arguments"],
    "anthropic": lambda payload: payload["messages"][1]["content"][0]["input"],
    "gemini": lambda payload: payload["contents"][1]["parts"][0]["functionCall"]["args"],
    "ai-sdk": lambda payload: payload["messages"][0]["content"][0]["input"],
    "ai-sdk-ui": lambda payload: payload["messages"][0]["parts"][0]["input"],
    "pydantic-ai": lambda payload: payload["messages"][0]["parts"][0]["args"],
}
AS_TEXT = {"openai-chat", "openai-responses", "pydantic-ai"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}',
        '{"a":' * 200 + "1" + "}" * 200, "[1]", "{",
    ],
)  # fmt: skip
def test_every_form_does_the_same_with_arguments_that_two_could_read_differently(name, arguments):
    """No form picks one of the readings: as text they go out as they came, as an object they are
    wrapped whole (B17, I11).
    """
    payload = FORMATS[name].write(turn(1, wish(arguments=arguments)))
    wrapped = arguments if name in AS_TEXT else {"malformed_arguments": arguments}
    assert ARGUMENTS[name](payload) == wrapped
    assert FORMATS[name].check(payload) == []


def test_anthropic_opens_with_a_user():
    """A history that opens with the model, or is empty, gets a small user message before it."""
    opening = {"role": "user", "content": [{"type": "text", "text": "(The conversation begins.)"}]}
    assert (
        claude()[0]
        == claude(System("be kind"))[0]
        == claude(*turn(1, e.Text("Hello!")))[0]
        == opening
    )
    assert anthropic.check(anthropic.write([System("be kind")])) == []
    assert "system" not in anthropic.write([User("hi")])


def test_anthropic_joins_neighbours_of_one_role():
    """Two turns with nothing between them are one message; so are two things said (B4)."""
    messages = claude(
        User("one"), User("two"), *turn(1, e.Text("a")), *turn(2, e.Text("b")), User("")
    )
    assert [
        (message["role"], [block["text"] for block in message["content"]]) for message in messages
    ] == [
        ("user", ["one", "two"]),
        ("assistant", ["a", "b"]),
        ("user", ["(no text)"]),
    ]


def test_anthropic_puts_text_before_the_first_use():
    """Text that the model wrote after a wish moves before it; the rest keeps its order."""
    blocks = claude(
        User("hi"), *turn(1, e.Text("a"), wish(), e.Text("b"), wish(provider_id="x"), e.Text("c"))
    )[1]
    found = [block.get("text") or block["id"] for block in blocks["content"]]
    assert found == ["a", "b", "c", "call_a", "x"]


@pytest.mark.parametrize(
    ("part", "is_sent"),
    [
        (e.Opaque("anthropic", '{"type":"redacted_thinking","data":"c2VjcmV0"}'), True),
        (e.Opaque("anthropic", '{"type":"thinking","thinking":"hm"}'), False),
        (e.Opaque("anthropic", '{"type":"tool_use","id":"x"}'), False),
        (e.Opaque("anthropic", "no json"), False),
        (e.Opaque("google", '{"type":"redacted_thinking","data":"c2VjcmV0"}'), False),
    ],
)
def test_opaque_parts_go_back_to_their_own_provider_alone(part, is_sent):
    """Verbatim, in their place, if they are blocks that it may have sent; never to another."""
    content = claude(User("hi"), Assistant(1, (part, e.Text("ok"))))[1]["content"]
    assert content == ([json.loads(part.data)] if is_sent else []) + [
        {"type": "text", "text": "ok"}
    ]
    assert chat(Assistant(1, (part, e.Text("ok")))) == [{"role": "assistant", "content": "ok"}]


@pytest.mark.parametrize(
    ("text", "is_error", "written"),
    [
        ("done", False, {"content": "done"}),
        ("", False, {}),
        (" \n", False, {}),
        ("no", True, {"content": "no", "is_error": True}),
        ("", True, {"content": "(no text)", "is_error": True}),
    ],
)
def test_anthropic_results_say_something_when_they_are_errors(text, is_error, written):
    """A success may be silent; an error never is."""
    (block,) = claude(*turn(1, wish(), text=text, is_error=is_error))[-1]["content"]
    assert block == {"type": "tool_result", "tool_use_id": "call_a", **written}


def test_an_outcome_whose_call_is_gone_is_a_note():
    """A history that was cut within a turn tells what happened, without half a pair (B13)."""
    outcomes = turn(1, e.Text("so"), wish(), wish(provider_id="call_b"))
    assert chat(outcomes[1]) == [
        {"role": "system", "content": "An earlier call of `refund` ended so: done"}
    ]
    assert chat(*outcomes[:1]) == [{"role": "assistant", "content": "so"}]
    # Also where it stands between a turn and its own outcomes, and looks as if it were one of them.
    foreign = chat(turn(2, wish(provider_id="call_b"))[0], outcomes[1])
    assert foreign[-1] == {
        "role": "system",
        "content": "An earlier call of `refund` ended so: done",
    }
    first_is_gone = chat(outcomes[0], outcomes[2])
    assert [one["id"] for one in first_is_gone[0]["tool_calls"]] == ["call_b"]
    assert openai_chat.check(first_is_gone) == []


def use(id_="a", name="refund", input_=None) -> dict:
    return {"type": "tool_use", "id": id_, "name": name, "input": {} if input_ is None else input_}


def used(id_="a", **fields) -> dict:
    return {"type": "tool_result", "tool_use_id": id_, "content": "done", **fields}


def says(text="hi") -> dict:
    return {"type": "text", "text": text}


def user(*blocks) -> dict:
    return {"role": "user", "content": list(blocks)}


def model(*blocks) -> dict:
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize(
    ("rule", "message", "messages"),
    [
        (1, 1, [user(says()), model(use())]),
        (1, 1, [user(says()), model(use()), user(says())]),
        (1, 1, [user(says()), model(use("a"), use("b")), user(used("a"))]),
        (2, 2, [user(says()), model(use()), user(says(), used())]),
        (3, 2, [user(says()), model(use()), user(used(), used())]),
        (4, 0, [user(used())]),
        (4, 4, [user(says()), model(use()), user(used()), model(says()), user(used())]),
        (5, 3, [user(says()), model(use()), user(used()), model(use()), user(used())]),
        (5, 1, [user(says()), model(use("a b")), user(used("a b"))]),
        (5, 1, [user(says()), model(use("")), user(used(""))]),
        (6, 1, [user(says()), model(use(), says()), user(used())]),
        (7, 0, [user(says(" \n"))]),
        (7, 0, [{"role": "user", "content": ""}]),
        (7, 1, [user(says()), model(), user(says())]),
        (8, 2, [user(says()), model(use()), user(used(content=[]))]),
        (8, 2, [user(says()), model(use()), user(used(content="", is_error=True))]),
        (8, 2, [user(says()), model(use()), user(used(content=[says(" ")], is_error=True))]),
        (9, 1, [user(says()), model({"type": "thinking", "thinking": "hm"}, says())]),
        (9, 0, [user(says(), {"type": "redacted_thinking", "data": "x"})]),
        (
            10,
            1,
            [user(says()), model({"type": "web_search_tool_result", "tool_use_id": "s"}, says())],
        ),
        (11, 0, [model(says())]),
        (11, 0, []),
        (12, 1, [user(says()), user(says())]),
        (13, 1, [user(says()), model(use(input_="{}")), user(used())]),
        (14, 1, [user(says()), model(use(name="a.b")), user(used())]),
        (15, 0, [{"role": "system", "content": "hi"}]),
        (15, 0, [{"role": "user", "content": None}]),
        (15, 0, [user("hi")]),
        (16, 1, [user(says()), model(says("It is on its way. "))]),
    ],
)
def test_anthropic_names_the_rule_that_is_broken(rule, message, messages):
    """Each rule has a payload that breaks it and no other; with bare messages it is the same."""
    assert [(found.rule, found.message) for found in anthropic.check(messages)] == [(rule, message)]
    assert anthropic.check({"system": "x", "messages": messages}) == anthropic.check(messages)


def test_anthropic_takes_what_is_right():
    """Plain text, server tools with their results, whole thinking, an empty last answer."""
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    image = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    messages = [
        {"role": "user", "content": "hi"},
        model(thinking, server, found, says(), use()),
        user(used(content=[image]), says()),
        model(),
    ]
    assert anthropic.check(messages) == []


@pytest.fixture(scope="module")
def sdk():
    """Anthropic's own type: a message must fit, and nothing of it may be unknown to the type."""
    pytest.importorskip(
        "anthropic", reason="the `anthropic` package is not installed: its types are not asked"
    )
    adapter = TypeAdapter(importlib.import_module("anthropic.types").MessageParam)

    def fits(message: dict) -> bool:
        try:
            return drawn(adapter.validate_python(message)) == message
        except PydanticError:
            return False

    return fits


def drawn(value):
    """The value, each list drawn to its end: the types check items only as drawn."""
    if isinstance(value, dict):
        return {name: drawn(inner) for name, inner in value.items()}
    return (
        value if isinstance(value, str) or not isinstance(value, Iterable) else [*map(drawn, value)]
    )


@given(facts=lives())
def test_anthropics_own_types_take_it(sdk, facts):
    """Each message that is written fits Anthropic's type of it, and loses nothing in it (B1)."""
    for message in claude(*history(thread_of(REF, facts)).entries):
        assert sdk(message), message


@pytest.mark.parametrize(
    "message",
    [
        model(use(input_="{}")),
        model({"type": "thinking", "thinking": "hm"}),
        model({"type": "dance"}),
        user({**used(), "is_error": "no"}),
        user({**says(), "text_": "hi"}),
        {"role": "robot", "content": "hi"},
        {"role": "user"},
    ],
)
def test_anthropics_own_types_are_no_rubber_stamp(sdk, message):
    """What is wrong does not fit them."""
    assert not sdk(message)


# ------------------------------------------------------------------------------------- the registry


def test_providers_are_known_by_name():
    """A name that nobody wrote a form for is an error that lists those there are."""
    assert format_named("anthropic").write is anthropic.write
    assert format_named("openai-chat").check is openai_chat.check
    with pytest.raises(BadInput, match=", ".join(FORMATS)):
        format_named("constructor")


def test_a_problem_says_what_to_do():
    """It names the message and the rule, and what to change."""
    (problem,) = openai_chat.check([HELLO, result("x")])
    assert str(problem) == (
        "message 1: the result of 'x' does not follow an assistant message with that call. "
        "Put it there, or drop it. (rule 2)"
    )


def test_a_refusal_reaches_every_provider():
    """A denied call has each provider told so by a result, under the real name (B2, B5, B33)."""
    story = Story().say("refund me").turn(1, wish()).live(1, 0, wish(), "denied")
    entries = history(thread_of(REF, story.facts)).entries
    assert chat(*entries)[-1] == {
        "role": "tool", "tool_call_id": "call_a", "name": "refund", "content": "refund was denied",
    }  # fmt: skip
    assert claude(*entries)[-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_a", "content": "refund was denied",
         "is_error": True},
    ]  # fmt: skip
