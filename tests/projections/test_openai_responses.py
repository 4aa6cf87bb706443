"""Histories for OpenAI Responses: what is written, what is turned down, and what is read back."""

import contextlib
import importlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from stories import REF, Story, disorder, facts_of, facts_told, lives

from ayes.projections.formats.common import tool_name
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedReply,
    Spoken,
    read_conversations,
)
from ayes.projections.formats.openai_responses import check, read, write
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search"},
}


def ours(value) -> e.Opaque:
    return e.Opaque("openai-responses", json.dumps(value, separators=(",", ":")))


def wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a") -> e.Wish:
    return e.Wish(tool=tool, arguments=arguments, provider_id=provider_id)


def turn(number: int, *parts: e.Part, text="done") -> list[Entry]:
    wishes = [part for part in parts if isinstance(part, e.Wish)]
    return [
        Assistant(number, parts),
        *(
            Outcome(
                f"{number}-{index}", one.tool, one.provider_id, "returned", text, is_error=False
            )
            for index, one in enumerate(wishes)
        ),
    ]


def items(*entries: Entry) -> list[dict]:
    return write(entries)["input"]


def entries_of(facts: list[Fact]) -> tuple[Entry, ...]:
    return history(thread_of(REF, facts)).entries


@st.composite
def own_lives(draw) -> list[Fact]:
    """Random lives in which this provider's opaque parts occur, good ones and bad ones."""
    pool = [
        THOUGHT,
        {**THOUGHT, "id": "rs_2"},
        SEARCH,
        {"id": "fc_1"},
        {"id": "msg_1", "status": "completed"},
    ]
    pool += [
        {"phase": "commentary"},
        {"type": "reasoning"},
        {"type": "computer_call"},
        [],
        {"id": "x"},
    ]

    def swapped(part: e.Part) -> e.Part:
        return ours(draw(st.sampled_from(pool))) if isinstance(part, e.Opaque) else part

    facts = []
    for fact in draw(lives()):
        event = fact.event
        if isinstance(event, e.ModelReplied):
            event = msgspec.structs.replace(
                event, parts=tuple(swapped(part) for part in event.parts)
            )
        facts.append(msgspec.structs.replace(fact, event=event))
    return facts


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
    """Verbatim when it is valid and not taken by an earlier turn, else made of the call's own id
    (B20, B23).
    """
    first, second = given_ids
    sent = items(*turn(1, wish(provider_id=first)), *turn(2, wish(provider_id=second)))
    assert [item["call_id"] for item in sent if item["type"] == "function_call"] == written
    assert [item["call_id"] for item in sent if item["type"] == "function_call_output"] == written


@pytest.mark.parametrize(
    ("provider_id", "kept"),
    [("call_b", {"id": "fc_2"}), ("call_a", {}), ("", {}), ("x" * 65, {})],
)
def test_an_items_id_goes_only_with_its_own_call_id(provider_id, kept):
    """The provider looks its own copy up by the item's id, and that one has the call_id it came
    with (B1, B20).
    """
    own = {"id": "fc_2", "status": "completed"}
    sent = items(*turn(1, wish()), *turn(2, ours(own), wish(provider_id=provider_id)))
    call, output = sent[-2:]
    assert call == {
        "type": "function_call",
        **kept,
        "status": "completed",
        "call_id": provider_id if kept else "call_2-0",
        "name": "refund",
        "arguments": '{"order":"A-17"}',
    }
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
        (
            [ours({"type": "reasoning"}), ours([]), ours({"type": "computer_call"}), e.Text("hi")],
            [],
        ),
        ([e.Opaque("openai-responses", "no json"), e.Text("hi")], []),
        ([e.Opaque("openai", json.dumps(THOUGHT)), e.Text("hi")], []),
    ],
)
def test_reasoning_goes_with_what_came_of_it_or_not_at_all(parts, kept):
    """The last of a run is kept; the same twice, broken ones and another provider's are left
    out.
    """
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
    """A shortened history keeps no half pairs, no reasoning of a call that is gone, and tells of a
    lone outcome (B13).
    """
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
    ("made_up", "written"), [("functions.refund", "functions_refund"), ("", "nameless")]
)
def test_a_bad_call_spoils_nothing(made_up, written):
    """Made-up names and malformed arguments are sent so that the provider takes them (B17)."""
    call = items(*turn(1, wish(made_up, "{")))[0]
    assert (call["name"], call["arguments"]) == (written, "{")


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "superseded"])
def test_a_call_that_did_not_run_says_how_it_ended(ending):
    """Each ending reaches the provider in words of its own (B2, I5)."""
    story = Story()
    story.turn(1, wish())
    story.live(1, 0, wish(), ending)
    assert items(*entries_of(story.facts))[-1] == {
        "type": "function_call_output",
        "call_id": "call_a",
        "output": f"refund was {ending}",
    }


# ------------------------------------------------------------------------------------- random lives


@given(own_lives(), st.data())
def test_whatever_happened_the_provider_takes_it(facts, data):
    """Any life of a thread, in any order and with duplicates, gives an input that nothing is wrong
    with, and the same bytes each time (B1, B3, B12, B16, B17, I11, I13).
    """
    entries = entries_of(facts)
    payload = write(entries)
    if payload["input"]:
        assert check(payload) == []
    assert json.dumps(payload) == json.dumps(write(entries_of(data.draw(disorder(facts)))))


@given(own_lives(), st.data())
def test_a_shortened_history_keeps_no_half_pairs(facts, data):
    """Any stretch of any history is written so that the provider takes it (B13)."""
    entries = entries_of(facts)
    begin = data.draw(st.integers(0, len(entries)))
    payload = write(entries[begin : data.draw(st.integers(begin, len(entries)))])
    if payload["input"]:
        assert check(payload) == []


@given(own_lives())
def test_a_growing_history_is_written_with_the_same_beginning(facts):
    """What was sent before a turn is how the next request begins, so the provider's cache stays
    good.
    """
    thread = thread_of(REF, facts)
    whole = items(*history(thread).entries)
    for number in thread.turns:
        sent = items(*history(thread, before_turn=number).entries)
        assert whole[: len(sent)] == sent


@pytest.fixture(scope="module")
def sdk():
    """OpenAI's own type of what it takes: an item must fit, and nothing of it may be unknown to the
    type.
    """
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


@given(facts=own_lives())
def test_the_providers_own_types_take_it(sdk, facts):
    """Each item that is written fits OpenAI's type of it, and loses nothing in it (B1)."""
    for item in items(*entries_of(facts)):
        assert sdk(item), item


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "a", "name": "refund", "arguments": {}},
        {
            "type": "function_call",
            "call_id": "a",
            "name": "refund",
            "arguments": "{}",
            "name_": "x",
        },
        {"type": "function_call_output", "call_id": "a", "output": 1},
        {"type": "message", "role": "robot", "content": "hi"},
    ],
)
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
    """Each rule has an input that breaks it and no other; a payload and its bare items are the same
    (B1, B13).
    """
    assert [(found.rule, found.message) for found in check(sent)] == [(rule, at)]
    assert check({"input": sent}) == check(sent)


def test_what_is_right_is_taken():
    """Outputs in another order, a plain text, the provider's own tools, and outputs of calls that
    it keeps.
    """
    assert (
        check([call("a"), call("b"), output("b"), output("a"), THOUGHT, SEARCH, says("assistant")])
        == []
    )
    assert check({"input": "hi"}) == []
    assert check([APPROVAL_REQUEST, APPROVAL]) == []
    assert check({"input": [output(), APPROVAL], "previous_response_id": "resp_1"}) == []
    assert check([says(content=[{"type": "input_text", "text": "x"}]), says("developer")]) == []


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.sampled_from(
        ["", "user", "message", "function_call", "function_call_output", "a", "reasoning"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "input", "call_id", "output", "content", "id", "name"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_the_checker_never_fails(payload):
    """Any JSON is judged, and any JSON is read or refused in a sentence."""
    assert isinstance(check(payload), list)
    with contextlib.suppress(BadInput):
        assert isinstance(read(payload), tuple)


@given(own_lives(), _json, st.data())
def test_whatever_is_wrong_somewhere_is_found_or_harmless(facts, wrong, data):
    """One value of a good payload is exchanged for any other: nothing fails, and what can still be
    read can be sent again (B14, B17).
    """
    payload = json.loads(json.dumps(write(entries_of(facts))))
    places = list(_places(payload))
    if places:
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = wrong
    assert isinstance(check(payload), list)
    with contextlib.suppress(BadInput):
        again = write(entries_of(facts_told(read(payload))))
        assert check(again) == []


def _places(value):
    """Everything in a JSON value that can be exchanged for something else."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


# ------------------------------------------------------------------------------------- what is read


def carried(entries: tuple[Entry, ...]) -> list[ConversationStep]:
    """What the form can carry of a history without opaque parts: the steps that must come back."""
    steps: list[ConversationStep] = []
    used: set[str] = set()
    ids: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Outcome):
            id_ = entry.provider_id
            if not 1 <= len(id_) <= 64 or id_ in used:
                id_ = f"call_{entry.call}"
            while id_ in used:
                id_ += "_"
            used.add(id_)
            ids[entry.call] = id_
    for entry in entries:
        match entry:
            case System(text):
                steps.append(Spoken("system", text))
            case User(text):
                steps.append(Spoken("user", text))
            case Note(text, name):
                steps.append(Spoken("system", f"[Note from {name}] {text}" if name else text))
            case Outcome():
                steps.append(Output(ids[entry.call], tool_name(entry.tool), entry.text))
            case Assistant(number, parts):
                index, kept = 0, []
                for part in parts:
                    if isinstance(part, e.Wish):
                        id_ = ids[f"{number}-{index}"]
                        kept.append(e.Wish(tool_name(part.tool), part.arguments, id_))
                        index += 1
                    elif isinstance(part, e.Text):
                        kept.append(part)
                reply = RecordedReply(tuple(kept or [e.Text("")]))
                if steps and isinstance(steps[-1], RecordedReply):
                    steps[-1] = RecordedReply((*steps[-1].parts, *reply.parts))
                else:
                    steps.append(reply)
    return steps


@given(lives())
def test_what_was_written_is_read_back(facts):
    """Every text, call and output comes back in its order; what the form cannot carry is what the
    module lists.
    """
    entries = entries_of(facts)
    payload = write(entries)
    if payload["input"]:
        assert list(read(payload)) == carried(entries)


@given(own_lives())
def test_what_was_read_is_written_the_same(facts):
    """A conversation that becomes facts again gives the same bytes, reasoning and item ids too
    (B18, I11).
    """
    payload = write(entries_of(facts))
    if payload["input"]:
        assert json.dumps(write(entries_of(facts_told(read(payload))))) == json.dumps(payload)


def test_recorded_conversations_go_out_and_come_back():
    """All 150 lose nothing but the ids that repeat, and are written the same when they are told
    again (B1, B20).
    """
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not at {DATA}")
    conversations = read_conversations(DATA)
    assert len(conversations) == 150
    for conversation in conversations:
        payload = write(entries_of(facts_of(conversation.messages)))
        assert check(payload) == []
        back = read(payload)
        seen: set[str] = set()
        for old, new in zip(conversation.steps, back, strict=True):
            if isinstance(old, RecordedReply):
                assert isinstance(new, RecordedReply)
                assert [_blank(part) for part in new.parts] == [_blank(part) for part in old.parts]
                for one, two in zip(old.wishes, new.wishes, strict=True):
                    assert two.provider_id == one.provider_id or one.provider_id in seen
                    seen |= {one.provider_id, two.provider_id}
            elif isinstance(old, Output):
                assert isinstance(new, Output)
                assert (new.tool, new.text) == (old.tool, old.text)
            else:
                assert new == old
        assert write(entries_of(facts_told(back))) == payload


def _blank(part: e.Part) -> e.Part:
    return msgspec.structs.replace(part, provider_id="") if isinstance(part, e.Wish) else part


def test_what_the_provider_sends_is_read():
    """Instructions, parts, item ids and reasoning become our words, and go back as they came
    (B18).
    """
    message = says("assistant", [{"type": "output_text", "text": "ok"}], type="message", id="msg_1")
    refusal = says("assistant", [{"type": "refusal", "refusal": "no"}])
    several = says(
        "developer", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    )
    done = output(text=[{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}])
    assert read(
        {
            "instructions": "be kind",
            "input": [several, THOUGHT, message, refusal, call(id="fc_1"), done],
        }
    ) == (
        Spoken("system", "be kind"),
        Spoken("system", "a"),
        Spoken("system", "b"),
        RecordedReply(
            (
                ours(THOUGHT),
                ours({"id": "msg_1"}),
                e.Text("ok"),
                e.Text("no"),
                ours({"id": "fc_1"}),
                e.Wish("refund", "{}", "a"),
            )
        ),
        Output("a", "refund", "x\n\ny"),
    )


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ([], "no item"),
        ({"messages": [says()]}, "no item"),
        ({"contents": []}, "no item"),
        ({"input": [says()], "previous_response_id": "resp_1"}, "with the provider"),
        ({"input": [says()], "instructions": [says()]}, "`instructions`"),
        ([{"role": "user", "parts": []}], "item 0: there is no text"),
        ([{"role": "tool", "content": "x"}], "item 0: it is not an item"),
        (
            [says(), {"type": "item_reference", "id": "rs_1"}],
            "item 1: an item of type item_reference",
        ),
        ([says(), call()], "item 1: the call 'a' has no output"),
        ([call(), says()], "item 1: the call 'a' has no output before"),
        ([call(), call("b"), output(), says()], "item 3: the call 'b' has no output before"),
        ([call(), call("b"), output("b"), output()], "item 2: 'b' is answered before 'a'"),
        ([call(), output(), output()], "item 2: the output of 'a'"),
        ([output()], "item 0: the output of 'a'"),
        ([call(), call()], "item 1: two calls"),
        ([call(""), output("")], "item 0: a call needs"),
        ([call(arguments={})], "item 0: a call needs"),
        ([says(content=[{"type": "input_image"}])], "item 0: only text"),
        ([says(content=[{"type": "input_text", "text": 1}])], "item 0: only text"),
        ([says(content=None)], "item 0: there is no text"),
        ([says(content="\ud800")], "item 0: it cannot be written"),
    ],
)
def test_what_cannot_be_read_is_refused_by_item(sent, sentence):
    """Half a pair, another provider's shape or an unknown item: a sentence with the item, and
    nothing guessed (B14).
    """
    with pytest.raises(BadInput, match=sentence):
        read(sent)
