"""Histories for Gemini: what is written, and what is turned down."""

import importlib
import json
import warnings

import pytest
from formats import entries_of, own_lives, turn, wish
from hypothesis import given
from pydantic import ValidationError as PydanticError
from stories import Story

from ayes.projections.formats.common import BLANK, MALFORMED
from ayes.projections.formats.gemini import FOREIGN, check, write
from ayes.projections.history import Entry, Note, System, User
from ayes.schemas import events as e

SIGNED = {"thoughtSignature": "c2ln"}
THOUGHT = {"text": "hm", "thought": True}
RAN = {"executableCode": {"language": "PYTHON", "code": "1+1"}}


def ours(value) -> e.Opaque:
    return e.Opaque("gemini", json.dumps(value, separators=(",", ":")))


def contents(*entries: Entry) -> list[dict]:
    return write(entries)["contents"]


def call(name="refund", args=None, signature="c2ln", **more) -> dict:
    inner = {**more, "name": name, "args": {} if args is None else args}
    return {"functionCall": inner, **({"thoughtSignature": signature} if signature else {})}


def response(name="refund", told=None, **more) -> dict:
    inner = {**more, "name": name, "response": {"output": "done"} if told is None else told}
    return {"functionResponse": inner}


def says(text="hi", **more) -> dict:
    return {"text": text, **more}


def user(*parts) -> dict:
    return {"role": "user", "parts": list(parts)}


def model(*parts) -> dict:
    return {"role": "model", "parts": list(parts)}


# ---------------------------------------------------------------------------------- what is written


def test_responses_have_a_content_of_their_own():
    """All responses of a turn follow it directly, in one content, and what was said comes after
    them; signatures stay on their parts (B1, B3, B7, B12, B15).
    """
    assert write(
        [
            System("be kind"),
            System("be quick"),
            User("hi", "ana"),
            *turn(
                1,
                ours(THOUGHT),
                e.Opaque("anthropic", "{}"),
                e.Text("Let me see."),
                ours(SIGNED),
                wish(),
                wish("look_up", "{", "call_b"),
            ),
            User("and?"),
            Note("a minute passed", "clock"),
            System("be brief"),
            *turn(2, wish(provider_id=""), text="no such order", is_error=True),
        ]
    ) == {
        "systemInstruction": {"parts": [says("be kind"), says("be quick")]},
        "contents": [
            user(says()),
            model(
                THOUGHT,
                says("Let me see."),
                call(args={"order": "A-17"}, id="call_a"),
                call("look_up", {MALFORMED: "{"}, "", id="call_b"),
            ),
            user(response(id="call_a"), response("look_up", id="call_b")),
            user(
                says("and?"),
                says("[Note from clock] a minute passed"),
                says("[Note from the system] be brief"),
            ),
            model(call(args={"order": "A-17"}, signature=FOREIGN)),
            user(response(told={"error": "no such order"})),
        ],
    }


@pytest.mark.parametrize(
    ("given_ids", "written"),
    [
        (["call_a", "call_b"], ["call_a", "call_b"]),
        (["call_a", "call_a"], ["call_a", "call_2-0"]),
        (["", ""], [None, None]),
        (["call_2-0", "call_2-0"], ["call_2-0", "call_2-0_"]),
    ],
)
def test_an_id_stays_if_there_is_one(given_ids, written):
    """Verbatim where no earlier turn has it, else made of the call's; or none (B20)."""
    first, second = given_ids
    sent = contents(*turn(1, wish(provider_id=first)), *turn(2, wish(provider_id=second)))
    assert [one["parts"][0]["functionCall"].get("id") for one in sent[1::2]] == written
    assert [one["parts"][0]["functionResponse"].get("id") for one in sent[2::2]] == written


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ([ours(SIGNED), e.Text("a"), e.Text("b")], [says("a", **SIGNED), says("b")]),
        ([e.Text("a"), ours(SIGNED)], [says("a"), says("", **SIGNED)]),
        ([ours(SIGNED), ours(RAN), e.Text("a")], [says("", **SIGNED), RAN, says("a")]),
        ([ours(SIGNED), e.Text("")], [says("", **SIGNED)]),
        ([ours(SIGNED), e.Opaque("anthropic", "{}"), e.Text("a")], [says("a", **SIGNED)]),
        ([e.Opaque("google", json.dumps(SIGNED)), e.Text("a")], [says("a")]),
        ([ours({"text": "hi"}), ours({"thoughtSignature": "!"}), e.Text("a")], [says("a")]),
        ([], [says(BLANK)]),
        ([e.Text("")], [says(BLANK)]),
    ],
)
def test_a_signature_belongs_to_the_part_after_it(parts, written):
    """It moves to no other part, is not invented for a text, and goes to nobody else (B15, B59)."""
    sent = contents(User("hi"), *turn(1, *parts))
    assert sent[1] == model(*written)
    assert check(sent) == []


def test_what_belongs_to_a_lost_call_is_lost_with_it():
    """A shortened history keeps no half pairs and no signature of a call that is gone (B13)."""
    whole = turn(1, ours(SIGNED), wish(), wish(provider_id="call_b"), e.Text("so"))
    sent = contents(whole[0], whole[2])
    assert sent[1] == model(
        call(args={"order": "A-17"}, signature=FOREIGN, id="call_b"), says("so")
    )
    assert contents(whole[1]) == [
        user(says("[Note from the system] An earlier call of `refund` ended so: done"))
    ]


@pytest.mark.parametrize(
    ("made_up", "written"),
    [
        ("functions.refund", "functions_refund-4jr4yuk2vdmzrtk2"),
        ("", "nameless-4oymiquy7qobjgx3"),
        ("1st", "_1st"),
        ("-" * 70, f"_{'-' * 48}hngavpy2ahwydbb"),
    ],
)
def test_a_made_up_tool_name_spoils_nothing(made_up, written):
    """Models wish for tools under names that no provider takes back (B17)."""
    sent = contents(*turn(1, wish(made_up)))
    assert sent[1]["parts"][0]["functionCall"]["name"] == written
    assert sent[2]["parts"][0]["functionResponse"]["name"] == written


@pytest.mark.parametrize(
    "raw", ["{", "[1]", "null", '{"a":1,"a":2}', '{"a":NaN}', '{"a":"\\ud800"}']
)
def test_arguments_that_are_no_object_are_wrapped(raw):
    """What the model wrote is sent as the text it is (B17)."""
    sent = contents(*turn(1, wish(arguments=raw)))
    assert sent[1]["parts"][0]["functionCall"]["args"] == {MALFORMED: raw}


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "superseded"])
def test_a_call_that_did_not_run_says_how_it_ended(ending):
    """Each ending reaches the provider as an error in words of its own (B2, I5)."""
    story = Story().turn(1, wish()).live(1, 0, wish(), ending)
    assert contents(*entries_of(story.facts))[-1] == user(
        response(told={"error": f"refund was {ending}"}, id="call_a")
    )


# ------------------------------------------------------------------------------------- random lives


@pytest.fixture(scope="module")
def sdk():
    """Google's own type of a content, which takes no field that it does not know."""
    pytest.importorskip(
        "google.genai", reason="`google-genai` is not installed: its types are not asked"
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # what the package warns of while it is imported is its own affair
        types = importlib.import_module("google.genai.types")

    def fits(content: dict) -> bool:
        try:
            took = types.Content.model_validate_json(json.dumps(content))
        except PydanticError:
            return False
        return json.loads(took.model_dump_json(by_alias=True, exclude_none=True)) == content

    return fits


@given(facts=own_lives("gemini"))
def test_the_providers_own_types_take_it(sdk, facts):
    """Each content that is written fits Google's type of it, and loses nothing in it (B1)."""
    for content in contents(*entries_of(facts)):
        assert sdk(content), content


@pytest.mark.parametrize(
    "content",
    [
        model(call(args="{}")),
        user(response(told="done")),
        user(says(1)),
        {**user(says()), "name": "ana"},
        model(call(), {"functionCalls": []}),
        model(says(thoughtSignature=1)),
    ],
)
def test_the_providers_own_types_are_no_rubber_stamp(sdk, content):
    """What is wrong does not fit them."""
    assert not sdk(content)


# ------------------------------------------------------------------------------ what is turned down

HELLO = user(says())


@pytest.mark.parametrize(
    ("rule", "at", "sent"),
    [
        (1, 1, [HELLO, model(call())]),
        (1, 1, [HELLO, model(call()), HELLO]),
        (1, 1, [HELLO, model(call(), call("b")), user(response())]),
        (1, 1, [HELLO, model(call()), user(response(), response())]),
        (2, 0, [user(response())]),
        (2, 2, [HELLO, model(says()), user(response())]),
        (3, 2, [HELLO, model(call()), user(response("other"))]),
        (3, 2, [HELLO, model(call(id="a")), user(response(id="b"))]),
        (3, 2, [HELLO, model(call(id="a")), user(response())]),
        (
            3,
            1,
            [HELLO, model(call(id="a"), call(id="a")), user(response(id="a"), response(id="a"))],
        ),
        (4, 2, [HELLO, model(call()), user(response(), says())]),
        (5, 2, [HELLO, model(says()), model(call()), user(response())]),
        (6, 0, [model(says())]),
        (6, 0, []),
        (7, 1, [HELLO, model(call(signature="")), user(response())]),
        (
            7,
            3,
            [HELLO, model(call()), user(response()), model(call(signature="")), user(response())],
        ),
        (8, 0, [user({})]),
        (8, 0, [user({"type": "text"})]),
        (8, 1, [HELLO, model({**RAN, "text": "and more"})]),
        (9, 0, [user(says(""))]),
        (9, 0, [user(says(1))]),
        (10, 1, [HELLO, model(call(args="{}")), user(response())]),
        (11, 2, [HELLO, model(call()), user(response(told="done"))]),
        (11, 2, [HELLO, model(call()), user({"functionResponse": {"name": "refund"}})]),
        (13, 0, [{"role": "assistant", "parts": [says()]}]),
        (13, 0, [{"role": "user", "content": "hi"}]),
        (13, 0, [user()]),
        (13, 0, [user("hi")]),
        (13, 0, ["hi"]),
        (14, 1, [HELLO, model(says(thoughtSignature="no base64!"))]),
        (14, 0, [user(says(**SIGNED))]),
        (14, 0, [user(call(signature="")), user(response())]),
    ],
)
def test_the_rule_that_is_broken_is_named(rule, at, sent):
    """Each rule has contents that break it and no other; also as bare contents (B1, B13)."""
    assert [(found.rule, found.message) for found in check(sent)] == [(rule, at)]
    assert check({"contents": sent}) == check(sent)


@pytest.mark.parametrize("name", ["", "a b", "1st", "a" * 65, "ä"])
def test_a_name_that_cannot_be_sent_is_named(name):
    """Rule 12 is broken by the call and by its response, as both bear the name (B17)."""
    sent = [HELLO, model(call(name)), user(response(name))]
    assert [(found.rule, found.message) for found in check(sent)] == [(12, 1), (12, 2)]


@pytest.mark.parametrize(
    "system", [{"parts": []}, {"parts": [says("")]}, {"parts": [RAN]}, 1, {"text": "x"}]
)
def test_a_system_instruction_is_a_content_of_texts(system):
    """Rule 15 is named at the first content."""
    assert [
        (found.rule, found.message)
        for found in check({"systemInstruction": system, "contents": [HELLO]})
    ] == [(15, 0)]


def test_what_is_right_is_taken():
    """Both spellings, null fields, calls without ids in order, earlier turns without signatures."""
    snake = {
        "function_call": {"name": "refund", "args": None, "id": None},
        "thought_signature": "c2ln",
        "text": None,
    }
    earlier = [HELLO, model(call(signature="")), user(response())]
    assert (
        check([HELLO, model(snake), user({"function_response": response()["functionResponse"]})])
        == []
    )
    assert (
        check(
            [
                *earlier,
                HELLO,
                model(call(), call("b", signature="")),
                user(response(), response("b")),
            ]
        )
        == []
    )
    assert (
        check(
            [
                HELLO,
                model(RAN, THOUGHT, says("", **SIGNED)),
                user({"inlineData": {"mimeType": "image/png", "data": "aGk="}}),
            ]
        )
        == []
    )
    assert check({"contents": "hi", "system_instruction": "be kind"}) == []
