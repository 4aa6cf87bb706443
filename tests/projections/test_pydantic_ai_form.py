"""Histories as the JSON of pydantic-ai's messages: written, checked, and held against the
library's own types.
"""

import json
import subprocess
import sys

import pytest
from formats import entries_of, wish
from hypothesis import given
from msgspec.structs import replace
from pydantic_ai.messages import ModelMessagesTypeAdapter
from stories import lives

from ayes.projections.formats import pydantic_ai
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas import events as e

THOUGHT = {"content": "hm", "signature": "c2ln", "part_kind": "thinking"}


def written(*entries: Entry) -> list[dict]:
    return pydantic_ai.write(entries)["messages"]


def ended(kind: str, text="done") -> list[Entry]:
    """A turn with one call that ended so."""
    is_error = kind not in {"returned", "answered", "reconciled"}
    return [Assistant(1, (wish(),)), Outcome("1-0", "refund", "call_a", kind, text, is_error)]


# ------------------------------------------------------------------------------------- random lives


@given(lives())
def test_the_library_takes_it_and_gives_it_back(facts):
    """Its adapter loads what is written and dumps the same, with defaults and times beside it."""
    messages = written(*entries_of(facts))
    dumped = ModelMessagesTypeAdapter.dump_python(
        ModelMessagesTypeAdapter.validate_json(json.dumps(messages)), mode="json"
    )
    assert within(messages, dumped)
    if messages:
        assert pydantic_ai.check(dumped) == []


def within(less, more) -> bool:
    """Is each field of the one in the other?"""
    if isinstance(less, dict):
        return all(key in more and within(value, more[key]) for key, value in less.items())
    if isinstance(less, list):
        return len(less) == len(more) and all(map(within, less, more))
    return less == more


def test_the_library_is_not_needed():
    """The form is plain JSON, and nobody who writes it loads pydantic-ai for it."""
    program = (
        "import sys, ayes.projections.formats.pydantic_ai; sys.exit('pydantic_ai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ------------------------------------------------------------------------------------ single shapes


def test_it_writes_what_the_library_would_dump():
    """Returns open the next request; arguments stay raw; opaque parts keep their place (B1, B3)."""
    opaque = e.Opaque("pydantic-ai", json.dumps(THOUGHT))
    assert written(
        System("be kind"),
        User("hi", "ana"),
        Assistant(1, (opaque, e.Text("so"), wish(), wish("look_up", "{", ""))),
        Outcome("1-0", "refund", "call_a", "returned", "", is_error=False),
        Outcome("1-1", "look_up", "", "failed", "no", is_error=True),
        Note("late", "clock"),
    ) == [
        {
            "parts": [
                {"content": "be kind", "part_kind": "system-prompt"},
                {"content": "hi", "part_kind": "user-prompt"},
            ],
            "kind": "request",
        },
        {
            "parts": [
                THOUGHT,
                {"content": "so", "part_kind": "text"},
                {
                    "tool_name": "refund",
                    "args": '{"order":"A-17"}',
                    "tool_call_id": "call_a",
                    "part_kind": "tool-call",
                },
                {
                    "tool_name": "look_up",
                    "args": "{",
                    "tool_call_id": "call_1-1",
                    "part_kind": "tool-call",
                },
            ],
            "kind": "response",
        },
        {
            "parts": [
                {
                    "tool_name": "refund",
                    "content": "",
                    "tool_call_id": "call_a",
                    "outcome": "success",
                    "part_kind": "tool-return",
                },
                {
                    "tool_name": "look_up",
                    "content": "no",
                    "tool_call_id": "call_1-1",
                    "outcome": "failed",
                    "part_kind": "tool-return",
                },
                {"content": "[Note from clock] late", "part_kind": "user-prompt"},
            ],
            "kind": "request",
        },
    ]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("returned", "success"),
        ("answered", "success"),
        ("denied", "denied"),
        ("expired", "failed"),
        ("withdrawn", "failed"),
        ("superseded", "failed"),
        ("revoked", "failed"),
        ("failed", "failed"),
    ],
)
def test_only_a_denial_is_a_denial(kind, outcome):
    """Each ending has its text and the tool's real name; nobody's answer is no no (B2, B5, I5)."""
    part = written(*ended(kind, f"it {kind}"))[1]["parts"][0]
    assert (part["tool_name"], part["content"], part["outcome"]) == (
        "refund",
        f"it {kind}",
        outcome,
    )


@pytest.mark.parametrize(
    "data", ["", "[]", "no json", '{"part_kind":"text","content":"x"}', '{"part_kind":"thinking"}']
)
def test_an_opaque_part_that_is_none_is_left_out(data):
    """What no response may hold, or what a fact of its own says, no opaque part writes."""
    assert written(
        Assistant(
            1, (e.Opaque("pydantic-ai", data), e.Opaque("openai-responses", json.dumps([THOUGHT])))
        )
    ) == [{"parts": [], "kind": "response"}]


SIGNED = {"thought_signature": "c2ln"}


def test_what_belongs_to_a_lost_call_is_lost_with_it():
    """A shortened history keeps no id, signature or reasoning of a call that is gone (B13)."""
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2ln"}
    parts = (
        e.Opaque("openai-responses", json.dumps(reasoning)),
        e.Opaque("openai-responses", '{"id":"fc_1"}'),
        wish(),
        e.Text("so"),
    )
    assert written(Assistant(1, parts))[0]["parts"] == [{"content": "so", "part_kind": "text"}]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        # The service stored it: nothing of it is here but its id, so what came of it cannot be
        # named either.
        ([{"type": "reasoning", "id": "rs_1", "summary": []},
          {"id": "msg_1", "phase": "commentary"}],
         [{"content": "x", "provider_details": {"phase": "commentary"}, "provider_name": "openai",
           "part_kind": "text"}]),
        ([{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"},
          {"type": "web_search_call", "id": "ws_1", "status": "completed"}],
         [{"content": "x", "part_kind": "text"}]),
    ],
)  # fmt: skip
def test_reasoning_goes_with_what_came_of_it_or_not_at_all(kept, said):
    """OpenAI takes neither of the two alone."""
    parts = [e.Opaque("openai-responses", json.dumps(one)) for one in kept]
    assert written(Assistant(1, (*parts, e.Text("x"))))[0]["parts"] == said


def test_an_items_id_goes_with_the_id_of_its_call():
    """OpenAI reads its own copy of an item, in which the call has the id from there (B20)."""
    parts = (e.Opaque("openai-responses", '{"id":"fc_1"}'), wish())
    outcome = ended("returned")[1]
    named = written(Assistant(1, parts), outcome, Assistant(2, parts), replace(outcome, call="2-0"))
    assert [(one["parts"][0]["tool_call_id"], one["parts"][0].get("id")) for one in named[::2]] == [
        ("call_a", "fc_1"),
        ("call_2-0", None),
    ]


@pytest.mark.parametrize(
    ("signature", "spelled"), [("-_8=", "+/8="), ("-_8", "+/8="), ("+/8=", "+/8="), ("!", None)]
)
def test_a_signature_is_spelled_as_the_library_reads_it(signature, spelled):
    """It would drop the other alphabet and send another signature; one that is none is left out."""
    said = written(
        Assistant(1, (e.Opaque("gemini", json.dumps({"thoughtSignature": signature})), e.Text("x")))
    )
    details = said[0]["parts"][0].get("provider_details")
    assert (details or {}).get("thought_signature") == spelled


def test_a_signature_never_moves_to_another_part():
    """What nothing was said with stands on an empty text, as Google's service does it."""
    signed = e.Opaque("gemini", '{"thoughtSignature":"c2ln"}')
    thought = e.Opaque("gemini", '{"text":"hm","thought":true}')
    parts = written(Assistant(1, (signed, thought, e.Text("x"), signed)))[0]["parts"]
    assert [(part["content"], part.get("provider_details")) for part in parts] == [
        ("", SIGNED),
        ("hm", None),
        ("x", None),
        ("", SIGNED),
    ]


# ----------------------------------------------------------------------------------------- checking


def request(*parts, **fields) -> dict:
    return {"kind": "request", "parts": list(parts), **fields}


def response(*parts, **fields) -> dict:
    return {"kind": "response", "parts": list(parts), **fields}


def call(id_="a", tool="refund", **fields) -> dict:
    return {
        "part_kind": "tool-call", "tool_name": tool, "args": "{}", "tool_call_id": id_, **fields,
    }  # fmt: skip


def done(id_="a", tool="refund", **fields) -> dict:
    return {
        "part_kind": "tool-return", "tool_name": tool, "content": "x", "tool_call_id": id_,
        **fields,
    }  # fmt: skip


HELLO = {"part_kind": "user-prompt", "content": "hi"}
RETRY = {"part_kind": "retry-prompt", "content": "no", "tool_call_id": "a"}
SAYS = {"part_kind": "text", "content": "hi"}


@pytest.mark.parametrize(
    ("rule", "message", "messages"),
    [
        (1, 0, [response(call())]),
        (1, 0, [response(call()), request(HELLO)]),
        (1, 0, [response(call()), response(SAYS)]),
        (1, 0, [response(call("a"), call("b")), request(done("b"))]),
        (1, 0, [response(call()), request(RETRY)]),
        (2, 0, [request(done())]),
        (2, 1, [response(call()), request(done("b"), done("a"))]),
        (2, 3, [response(call()), request(done()), response(SAYS), request(done())]),
        (3, 1, [response(call()), request(done(), done())]),
        (3, 2, [response(call()), request(done()), request(done())]),
        (4, 0, [response(call("")), request(done(""))]),
        (4, 0, [response(call(None)), request(done(None))]),
        (4, 2, [response(call()), request(done()), response(call()), request(done())]),
        (5, 0, [response(call(tool="a.b")), request(done(tool="a.b"))]),
        (5, 0, [response(call(tool="")), request(done(tool=""))]),
        (6, 1, [response(call()), request(done(tool="look_up"))]),
        (7, 0, [response(call(args=[1])), request(done())]),
        (8, 0, [request(SAYS)]),
        (8, 0, [request({"part_kind": "user-prompt"})]),
        (8, 0, [request({"role": "user"})]),
        (8, 0, [request({**HELLO, "content": ["hi", None]})]),
        (8, 0, [response(HELLO)]),
        (8, 0, [response({"part_kind": "thinking"})]),
        (9, 1, [response(call()), request(done(outcome="expired"))]),
        (9, 1, [response(call()), request(done(outcome=["denied"]))]),
        (9, 1, [response(call()), request(done(outcome="denied", content=" "))]),
        (10, 1, [request(HELLO), response(SAYS, state="suspended")]),
        (11, 0, []),
        (11, 0, [{"role": "user", "content": "hi"}]),
        (11, 0, [{"kind": "request", "parts": "hi"}]),
        (11, 1, [request(HELLO), "hi"]),
        (12, 0, [request({**HELLO, "timestamp": None})]),
        (12, 0, [request(HELLO, timestamp=5)]),
    ],
)
def test_the_rule_that_is_broken_is_named(rule, message, messages):
    """Each rule has a list that breaks it and no other; payload and bare list are the same."""
    assert [(found.rule, found.message) for found in pydantic_ai.check(messages)] == [
        (rule, message)
    ]
    assert pydantic_ai.check({"messages": messages}) == pydantic_ai.check(messages)


def test_what_is_right_is_taken():
    """Returns in another order, after a prompt, retries, the provider's own tools: all legal."""
    server = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "tool_call_id": "s"}
    messages = [
        request(HELLO, timestamp=None, instructions="be kind"),
        response(THOUGHT, server, call("a"), call("b", args={"x": 1}), call("c", args=None),
                 state="suspended"),
        request(HELLO, done("b", outcome="interrupted"), {**RETRY, "tool_name": "refund"}),
        request(done("c", timestamp="2026-03-01T09:00:00Z", content={"x": [1]})),
        response(),
    ]  # fmt: skip
    assert pydantic_ai.check(messages) == []
