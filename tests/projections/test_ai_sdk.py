"""Histories as the Vercel AI SDK takes them: written, checked, and held against the npm
package itself.
"""

import json

import pytest
from ai_sdk_package import asked, ended, installed
from contents import MEDIA, lives_with_content
from example_counts import examples
from formats import conversations, entries_of, wish
from hypothesis import given, settings
from stories import facts_of, lives

from ayes.projections.formats import ai_sdk
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas import events as e
from ayes.schemas.content import content_of

REASONING = {
    "type": "reasoning",
    "text": "hm",
    "providerOptions": {"anthropic": {"signature": "c2ln"}},
}


def written(*entries: Entry) -> list[dict]:
    return ai_sdk.write(entries)["messages"]


# ------------------------------------------------------------------------------------- random lives


# ----------------------------------------------------------------------------------- the SDK itself

#: Reads lists of ModelMessages and prints for each why the SDK refuses it, or nothing.
SCRIPT = """
import { readFileSync } from 'node:fs';
import { modelMessageSchema } from 'ai';
import { convertToLanguageModelPrompt, standardizePrompt } from 'ai/internal';

const send = async messages => {
  messages.forEach(message => modelMessageSchema.parse(message));
  const prompt = await standardizePrompt({ messages, allowSystemInMessages: true });
  const supportedUrls = { '*': [/^https?:/], '*/*': [/^https?:/] };  // so that none is fetched
  await convertToLanguageModelPrompt({ prompt, supportedUrls, download: undefined });
  return '';
};
const told = [];
for (const list of JSON.parse(readFileSync(0, 'utf8')))
  told.push(await send(list).catch(error => String(error).slice(0, 500)));
console.log(JSON.stringify(told));
"""


def test_the_sdk_takes_what_is_written():
    """Its schemas and its conversion take many lives, and refuse half a pair (B1, B17)."""
    folder = installed()
    lists: list[list] = []

    @settings(max_examples=examples(150), deadline=None, database=None)
    @given(lives())
    def collect(facts) -> None:
        if entries := entries_of(facts):
            lists.append(written(*entries))

    @settings(max_examples=examples(150), deadline=None, database=None)
    @given(lives_with_content("ai-sdk"))
    def collect_contents(facts) -> None:
        if entries := entries_of(facts):
            lists.append(written(*entries))

    collect()
    collect_contents()
    lists += [written(*entries_of(facts_of(one.messages))) for one in conversations()]
    lists += [written(*ended("returned", content_of([media]))) for media in MEDIA]
    assert len(lists) > 180
    assert [told for told in asked(folder, SCRIPT, lists) if told] == []
    assert all(asked(folder, SCRIPT, [[calling(call())], []]))


# ------------------------------------------------------------------------------------ single shapes


def test_it_writes_what_the_sdk_keeps():
    """Results follow their calls in one tool message; opaque parts keep their place (B1, B3)."""
    opaque = e.Opaque("ai-sdk", json.dumps(REASONING))
    assert written(
        System("be kind"),
        User("hi", "ana"),
        Assistant(1, (opaque, e.Text("so"), e.Text(""), wish(), wish("look_up", "{", ""))),
        Outcome("1-0", "refund", "call_a", "returned", "", is_error=False),
        Outcome("1-1", "look_up", "", "failed", "no", is_error=True),
        Note("late", "clock"),
        System("be brief"),
        Assistant(2, ()),
    ) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                REASONING,
                {"type": "text", "text": "so"},
                {
                    "type": "tool-call",
                    "toolCallId": "call_a",
                    "toolName": "refund",
                    "input": {"order": "A-17"},
                },
                {
                    "type": "tool-call",
                    "toolCallId": "call_1-1",
                    "toolName": "look_up",
                    "input": {"malformed_arguments": "{"},
                },
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "call_a",
                    "toolName": "refund",
                    "output": {"type": "text", "value": ""},
                },
                {
                    "type": "tool-result",
                    "toolCallId": "call_1-1",
                    "toolName": "look_up",
                    "output": {"type": "error-text", "value": "no"},
                },
            ],
        },
        {"role": "user", "content": "[Note from clock] late"},
        {"role": "user", "content": "[Note from the system] be brief"},
        {"role": "assistant", "content": [{"type": "text", "text": "(no text)"}]},
    ]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("returned", {"type": "text", "value": "it ended"}),
        ("answered", {"type": "text", "value": "it ended"}),
        ("denied", {"type": "execution-denied", "reason": "it ended"}),
        ("expired", {"type": "error-text", "value": "it ended"}),
        ("withdrawn", {"type": "error-text", "value": "it ended"}),
        ("superseded", {"type": "error-text", "value": "it ended"}),
        ("revoked", {"type": "error-text", "value": "it ended"}),
        ("failed", {"type": "error-text", "value": "it ended"}),
    ],
)
def test_only_a_denial_is_a_denial(kind, output):
    """Each ending has its text and the tool's real name; nobody's answer is no no (B2, B5, I5)."""
    part = written(*ended(kind, "it ended"))[1]["content"][0]
    assert (part["toolName"], part["output"]) == ("refund", output)


@pytest.mark.parametrize(
    ("arguments", "input_"),
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        (" ", {}),
        ("{", {"malformed_arguments": "{"}),
        ("[1]", {"malformed_arguments": "[1]"}),
        ('{"a":1,"a":2}', {"malformed_arguments": '{"a":1,"a":2}'}),
        ("[" * 99_999, {"malformed_arguments": "[" * 99_999}),
        ('{"malformed_arguments":"{}"}', {"malformed_arguments": "{}"}),
    ],
)
def test_malformed_arguments_wedge_no_conversation(arguments, input_):
    """What is no object, or two objects, is wrapped whole (B17)."""
    messages = written(*ended("returned", arguments=arguments))
    assert messages[0]["content"][0]["input"] == input_


@pytest.mark.parametrize(
    "data",
    ["", "[]", "no json", '{"type":"text","text":"x"}', '{"type":"reasoning"}', '{"type":[]}'],
)
def test_an_opaque_part_that_is_none_is_left_out(data):
    """What is no part of an assistant, or what a fact of its own says, no opaque part writes."""
    found = written(
        Assistant(
            1, (e.Opaque("ai-sdk", data), e.Opaque("openai", json.dumps(REASONING)), e.Text("x"))
        )
    )
    assert found[0]["content"] == [{"type": "text", "text": "x"}]


# ----------------------------------------------------------------------------------------- checking


def call(id_="a", tool="refund", **fields) -> dict:
    return {"type": "tool-call", "toolCallId": id_, "toolName": tool, "input": {}, **fields}


def done(id_="a", tool="refund", output=None) -> dict:
    output = {"type": "text", "value": "x"} if output is None else output
    return {"type": "tool-result", "toolCallId": id_, "toolName": tool, "output": output}


def asks(id_="p", call="a") -> dict:
    return {"type": "tool-approval-request", "approvalId": id_, "toolCallId": call}


def answers(id_="p", approved=True) -> dict:
    return {"type": "tool-approval-response", "approvalId": id_, "approved": approved}


def calling(*parts) -> dict:
    return {"role": "assistant", "content": list(parts)}


def tool(*parts) -> dict:
    return {"role": "tool", "content": list(parts)}


HELLO = {"role": "user", "content": "hi"}
SAYS = {"type": "text", "text": "hi"}
SYSTEM = {"role": "system", "content": "be kind"}


@pytest.mark.parametrize(
    ("rule", "message", "messages"),
    [
        (1, 0, [calling(call())]),
        (1, 0, [calling(call()), HELLO]),
        (1, 0, [calling(call()), calling(SAYS)]),
        (1, 0, [calling(call("a"), call("b")), tool(done("b")), HELLO]),
        (1, 0, [calling(call(), asks()), tool(answers())]),
        (2, 1, [HELLO, tool(done())]),
        (2, 3, [calling(call()), tool(done()), HELLO, tool(done())]),
        (2, 1, [calling(call()), tool(done("b"), done("a"))]),
        (2, 0, [calling(call(), done()), tool(done())]),
        (3, 1, [calling(call()), tool(done(), done())]),
        (3, 2, [calling(call()), tool(done()), tool(done())]),
        (4, 0, [calling(call("")), tool(done(""))]),
        (4, 2, [calling(call()), tool(done()), calling(call()), tool(done())]),
        (5, 0, [calling(call(tool="a.b")), tool(done(tool="a.b"))]),
        (5, 0, [calling(call(tool="")), tool(done(tool=""))]),
        (6, 1, [calling(call()), tool(done(tool="look_up"))]),
        (7, 0, [{"role": "system", "content": [SAYS]}]),
        (7, 0, [{"role": "user", "content": None}]),
        (7, 1, [HELLO, {"role": "tool", "content": "done"}]),
        (7, 0, [{"role": "user", "content": [call()]}]),
        (7, 0, [{"role": "user", "content": ["hi"]}]),
        (7, 0, [calling({"type": "text"})]),
        (7, 0, [calling({"type": ["text"]})]),
        (7, 0, [calling({"type": "tool_use", "id": "a", "name": "refund", "input": {}})]),
        (8, 0, [{"role": "user", "content": ""}]),
        (8, 0, [calling({"type": "text", "text": " \n"})]),
        (8, 0, [calling()]),
        (9, 1, [HELLO, SYSTEM]),
        (10, 0, [calling(call(input="{}")), tool(done())]),
        (10, 0, [calling(call(input=None)), tool(done())]),
        (11, 1, [calling(call()), tool(done(output="done"))]),
        (11, 1, [calling(call()), tool(done(output={"type": "text", "value": 5}))]),
        (11, 1, [calling(call()), tool(done(output={"type": "error-text", "value": " "}))]),
        (11, 1, [calling(call()), tool(done(output={"type": "execution-denied", "reason": 5}))]),
        (
            11,
            1,
            [calling(call()), tool(done(output={"type": "content", "value": [{"type": "dance"}]}))],
        ),
        (12, 0, [calling(call(), asks(call="b")), tool(done())]),
        (12, 0, [calling(call(), asks(), asks()), tool(answers(), done())]),
        (12, 0, [calling(call(), asks("")), tool(done())]),
        (13, 1, [calling(call()), tool(answers(), done())]),
        (13, 1, [calling(call(), asks()), tool(answers(), answers(approved=False), done())]),
        (14, 0, [calling(call(), asks()), tool(done())]),
        (15, 0, []),
        (15, 0, ["hi"]),
        (15, 1, [HELLO, {"role": "developer", "content": "hi"}]),
        (15, 1, [HELLO, {"role": ["user"], "content": "hi"}]),
        (15, 0, [{"role": "assistant", "content": "hi", "tool_calls": []}]),
        (15, 0, [{"id": "m1", "role": "user", "parts": [SAYS]}]),
    ],
)
def test_the_rule_that_is_broken_is_named(rule, message, messages):
    """Each rule has a list that breaks it and no other; payload and bare list are the same."""
    assert [(found.rule, found.message) for found in ai_sdk.check(messages)] == [(rule, message)]
    assert ai_sdk.check({"messages": messages}) == ai_sdk.check(messages)


def test_what_is_right_is_taken():
    """Results in another order or in two messages, settled approvals, all kinds of output."""
    outputs = [
        {"type": "json", "value": None},
        {"type": "error-json", "value": [1]},
        {"type": "execution-denied"},
        {
            "type": "content",
            "value": [{"type": "text", "text": "x"}, {"type": "file-url", "url": "https://x"}],
        },
    ]
    messages = [
        SYSTEM,
        SYSTEM,
        {"role": "user", "content": [SAYS, {"type": "image", "image": "aGk="}]},
        calling(REASONING, SAYS, call("s", providerExecuted=True), done("s"), call("a"), asks(),
                call("b")),
        tool(done("b", output=outputs[0])),
        tool(answers(approved=False), done("a", output=outputs[2])),
        calling(call("c"), call("d")),
        tool(done("c", output=outputs[1]), done("d", output=outputs[3])),
        {"role": "assistant", "content": "hi"},
    ]  # fmt: skip
    assert ai_sdk.check(messages) == []
