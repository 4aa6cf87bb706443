"""Histories for OpenAI Responses: what is written, and what is turned down."""

import importlib
import json

import pytest
from formats import entries_of, own_lives, turn, wish
from hypothesis import given
from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from stories import Story

from ayes.projections.formats.openai_responses import check, write
from ayes.projections.history import Assistant, Entry, Note, System, User
from ayes.schemas import events as e

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search"},
}


def ours(value) -> e.Opaque:
    return e.Opaque("openai-responses", json.dumps(value, separators=(",", ":")))


def items(*entries: Entry) -> list[dict]:
    return write(entries)["input"]


# ---------------------------------------------------------------------------------- what is written


def test_every_item_stands_in_its_place():
    """Outputs follow their calls before anything else, reasoning and item ids stay where they came,
    and what the form has no field for is said in words (B1, B3, B7, B12, B15).
    """
    assert items(
        System("be kind"),
        User("hi", "ana"),
        *turn(
            1,
            ours(THOUGHT),
            ours({"id": "msg_1", "status": "completed", "phase": "commentary"}),
            e.Text("Let me see."),
            e.Opaque("anthropic", "{}"),
            ours({"id": "fc_1"}),
            wish(),
            wish("look_up", "{", "call_b"),
        ),
        Note("a minute passed", "clock"),
        Note("quick"),
    ) == [
        {"type": "message", "role": "system", "content": "be kind"},
        {"type": "message", "role": "user", "content": "hi"},
        THOUGHT,
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_a",
            "name": "refund",
            "arguments": '{"order":"A-17"}',
        },
        {"type": "function_call", "call_id": "call_b", "name": "look_up", "arguments": "{"},
        {"type": "function_call_output", "call_id": "call_a", "output": "done"},
        {"type": "function_call_output", "call_id": "call_b", "output": "done"},
        {"type": "message", "role": "system", "content": "[Note from clock] a minute passed"},
        {"type": "message", "role": "system", "content": "quick"},
    ]


@pytest.mark.parametrize(
    ("given_ids", "written"),
    [
        (["call_a", "call_b"], ["call_a", "call_b"]),
        (["call_a", "call_a"], ["call_a", "call_2-0"]),
        (["", "x" * 65], ["call_1-0", "call_2-0"]),
        (["x" * 64, "with space"], ["x" * 64, "with space"]),
        (["call_2-0", ""], ["call_2-0", "call_2-0_"]),
    ],
)
def test_a_call_id_is_unique_over_the_whole_input(given_ids, written):
    """Verbatim where valid and not taken by an earlier turn, else made of the call's (B20, B23)."""
    first, second = given_ids
    sent = items(*turn(1, wish(provider_id=first)), *turn(2, wish(provider_id=second)))
    assert [item["call_id"] for item in sent if item["type"] == "function_call"] == written
    assert [item["call_id"] for item in sent if item["type"] == "function_call_output"] == written


@pytest.mark.parametrize(
    ("provider_id", "kept"),
    [("call_b", {"id": "fc_2"}), ("call_a", {}), ("", {}), ("x" * 65, {})],
)
def test_an_items_id_goes_only_with_its_own_call_id(provider_id, kept):
    """The provider looks its own copy up by the item's id, which has its call_id (B1, B20)."""
    own = {"id": "fc_2", "status": "completed"}
    sent = items(*turn(1, wish()), *turn(2, ours(own), wish(provider_id=provider_id)))
    call, output = sent[-2:]
    assert call == {
        "type": "function_call", **kept, "status": "completed",
        "call_id": provider_id if kept else "call_2-0", "name": "refund",
        "arguments": '{"order":"A-17"}',
    }  # fmt: skip
    assert output["call_id"] == call["call_id"]


def test_an_items_id_that_was_left_out_is_not_taken():
    """A later call may still have it."""
    again = [ours({"id": "fc_1"}), wish(provider_id="call_b")]
    sent = items(*turn(1, wish()), *turn(2, ours({"id": "fc_1"}), wish()), *turn(3, *again))
    assert [item.get("id") for item in sent if item["type"] == "function_call"] == [
        None,
        None,
        "fc_1",
    ]
    assert check(sent) == []


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([ours(THOUGHT)], []),
        ([ours(THOUGHT), e.Text("hi")], [THOUGHT]),
        ([ours({**THOUGHT, "id": "rs_0"}), ours(THOUGHT), e.Text("hi")], [THOUGHT]),
        ([ours(THOUGHT), e.Text("a"), ours(THOUGHT), e.Text("b")], [THOUGHT]),
        ([ours(THOUGHT), ours(SEARCH), e.Text("a")], [THOUGHT, SEARCH]),
        ([ours({"type": "reasoning"}), ours([]), ours({"type": "computer_call"}), e.Text("hi")],
         []),
        ([e.Opaque("openai-responses", "no json"), e.Text("hi")], []),
        ([e.Opaque("openai", json.dumps(THOUGHT)), e.Text("hi")], []),
    ],
)  # fmt: skip
def test_reasoning_goes_with_what_came_of_it_or_not_at_all(parts, kept):
    """The last of a run is kept; the same twice, broken ones and another provider's are not."""
    sent = items(User("hi"), *turn(1, *parts))
    assert [item for item in sent if item["type"] != "message"] == kept
    assert check(sent) == []


def test_a_part_of_the_librarys_says_nothing_of_the_next_item():
    """What pydantic-ai alone can say again is left out, its id too."""
    library = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "id": "msg_1"}
    assert items(Assistant(1, (ours(library), e.Text("hi")))) == items(
        Assistant(1, (e.Text("hi"),))
    )


def test_what_belongs_to_a_lost_call_is_lost_with_it():
    """A shorter history has no half pairs or orphaned reasoning; lone outcomes are told (B13)."""
    whole = turn(
        1, ours(THOUGHT), ours({"id": "fc_1"}), wish(), wish(provider_id="call_b"), e.Text("so")
    )
    sent = items(whole[0], whole[2])
    assert [item.get("call_id", item.get("content")) for item in sent] == ["call_b", "so", "call_b"]
    assert "id" not in sent[0]
    assert items(whole[1])[0]["content"] == "An earlier call of `refund` ended so: done"


def test_an_empty_reply_is_still_a_message():
    """The model's silence stands in the history (B59)."""
    assert items(User("hi"), Assistant(1, ()))[-1] == {
        "type": "message",
        "role": "assistant",
        "content": "",
    }


@pytest.mark.parametrize(
    ("made_up", "written"),
    [("functions.refund", "functions_refund-4jr4yuk2vdmzrtk2"), ("", "nameless-4oymiquy7qobjgx3")],
)
def test_a_bad_call_spoils_nothing(made_up, written):
    """Made-up names and malformed arguments are sent so that the provider takes them (B17)."""
    call = items(*turn(1, wish(made_up, "{")))[0]
    assert (call["name"], call["arguments"]) == (written, "{")


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "superseded"])
def test_a_call_that_did_not_run_says_how_it_ended(ending):
    """Each ending reaches the provider in words of its own (B2, I5)."""
    story = Story().turn(1, wish()).live(1, 0, wish(), ending)
    assert items(*entries_of(story.facts))[-1] == {
        "type": "function_call_output",
        "call_id": "call_a",
        "output": f"refund was {ending}",
    }


# ------------------------------------------------------------------------------------- random lives


@pytest.fixture(scope="module")
def sdk():
    """OpenAI's own type of what it takes: an item must fit, and the type must know all of it."""
    pytest.importorskip(
        "openai", reason="the `openai` package is not installed: its types are not asked"
    )
    adapter = TypeAdapter(importlib.import_module("openai.types.responses").ResponseInputItemParam)

    def fits(item: dict) -> bool:
        try:
            return (
                adapter.dump_python(adapter.validate_python(item), mode="json", warnings=False)
                == item
            )
        except PydanticError:
            return False

    return fits


@given(facts=own_lives("openai-responses"))
def test_the_providers_own_types_take_it(sdk, facts):
    """Each item that is written fits OpenAI's type of it, and loses nothing in it (B1)."""
    for item in items(*entries_of(facts)):
        assert sdk(item), item


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "a", "name": "refund", "arguments": {}},
        {"type": "function_call", "call_id": "a", "name": "refund", "arguments": "{}",
         "name_": "x"},
        {"type": "function_call_output", "call_id": "a", "output": 1},
        {"type": "message", "role": "robot", "content": "hi"},
    ],
)  # fmt: skip
def test_the_providers_own_types_are_no_rubber_stamp(sdk, item):
    """What is wrong does not fit them."""
    assert not sdk(item)


# ------------------------------------------------------------------------------ what is turned down


def call(id_="a", name="refund", arguments="{}", **more) -> dict:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments, **more}


def output(id_="a", text="done") -> dict:
    return {"type": "function_call_output", "call_id": id_, "output": text}


def says(role="user", content="hi", **more) -> dict:
    return {"role": role, "content": content, **more}


APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
APPROVAL_REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1"}


@pytest.mark.parametrize(
    ("rule", "at", "sent"),
    [
        (1, 0, [call()]),
        (1, 1, [call(), call("b"), output("a"), says()]),
        (1, 0, [{"type": "custom_tool_call", "call_id": "a"}]),
        (2, 1, [says(), output()]),
        (3, 2, [call(), output(), output()]),
        (4, 0, [call(""), output("")]),
        (4, 0, [call("x" * 65), output("x" * 65)]),
        (4, 0, [call(None), output(None)]),
        (5, 1, [call(), call(), output()]),
        (5, 2, [call(), output(), call()]),
        (6, 0, [THOUGHT]),
        (6, 0, [THOUGHT, says()]),
        (6, 0, [THOUGHT, {**THOUGHT, "id": "rs_2"}, says("assistant")]),
        (7, 0, [{**THOUGHT, "id": None}, says("assistant")]),
        (7, 0, [{**THOUGHT, "summary": None}, says("assistant")]),
        (8, 2, [call(id="fc_1"), output(), call("b", id="fc_1"), output("b")]),
        (9, 0, [call(id="call_1"), output()]),
        (9, 0, [says(id="rs_1")]),
        (9, 0, [says(id=1)]),
        (10, 0, [call(name="a.b"), output()]),
        (10, 0, [call(name=""), output()]),
        (10, 0, [call(name=None), output()]),
        (11, 0, [call(arguments={}), output()]),
        (12, 1, [call(), output(text=None)]),
        (12, 1, [call(), output(text={"a": 1})]),
        (12, 1, [call(), output(text=[{"type": "output_text", "text": "x"}])]),
        (12, 1, [call(), output(text="x" * 10_485_761)]),
        (13, 0, [says(content=None)]),
        (13, 0, [says(content=[])]),
        (13, 0, [says(content=[{"type": "output_text", "text": "x"}])]),
        (13, 0, [says("assistant", [{"type": "input_text", "text": "x"}])]),
        (14, 0, [APPROVAL]),
        (14, 1, [APPROVAL_REQUEST, {**APPROVAL, "approve": "yes"}]),
        (15, 0, []),
        (15, 0, ["hi"]),
        (15, 0, [says("robot")]),
        (15, 0, [{"type": "tool_use"}]),
        (15, 0, [{"role": ["user"]}]),
    ],
)
def test_the_rule_that_is_broken_is_named(rule, at, sent):
    """Each rule has an input that breaks it and no other; also as bare items (B1, B13)."""
    assert [(found.rule, found.message) for found in check(sent)] == [(rule, at)]
    assert check({"input": sent}) == check(sent)


def test_what_is_right_is_taken():
    """Outputs in another order, plain text, the provider's own tools, and calls that it keeps."""
    assert (
        check([call("a"), call("b"), output("b"), output("a"), THOUGHT, SEARCH, says("assistant")])
        == []
    )
    assert check({"input": "hi"}) == []
    assert check([APPROVAL_REQUEST, APPROVAL]) == []
    assert check({"input": [output(), APPROVAL], "previous_response_id": "resp_1"}) == []
    assert check([says(content=[{"type": "input_text", "text": "x"}]), says("developer")]) == []
