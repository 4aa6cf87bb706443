"""Histories for Gemini: what is written, what is turned down, and what is read back."""

import contextlib
import importlib
import json
import warnings

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA
from pydantic import ValidationError as PydanticError
from stories import REF, Story, disorder, facts_of, facts_told, lives

from ayes.projections.formats.common import BLANK, MALFORMED, OPENING
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedReply,
    Spoken,
    read_conversations,
)
from ayes.projections.formats.gemini import FOREIGN, check, read, write
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput

SIGNED = {"thoughtSignature": "c2ln"}
THOUGHT = {"text": "hm", "thought": True}
RAN = {"executableCode": {"language": "PYTHON", "code": "1+1"}}


def ours(value) -> e.Opaque:
    return e.Opaque("gemini", json.dumps(value, separators=(",", ":")))


def wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a") -> e.Wish:
    return e.Wish(tool=tool, arguments=arguments, provider_id=provider_id)


def turn(number: int, *parts: e.Part, text="done", is_error=False) -> list[Entry]:
    wishes = [part for part in parts if isinstance(part, e.Wish)]
    kind = "failed" if is_error else "returned"
    return [
        Assistant(number, parts),
        *(
            Outcome(f"{number}-{index}", one.tool, one.provider_id, kind, text, is_error)
            for index, one in enumerate(wishes)
        ),
    ]


def contents(*entries: Entry) -> list[dict]:
    return write(entries)["contents"]


def entries_of(facts: list[Fact]) -> tuple[Entry, ...]:
    return history(thread_of(REF, facts)).entries


@st.composite
def own_lives(draw) -> list[Fact]:
    """Random lives in which this provider's opaque parts occur, good ones and bad ones."""
    pool = [SIGNED, SIGNED, THOUGHT, {**THOUGHT, **SIGNED}, RAN, {"thoughtSignature": "no base64!"}]
    pool += [{"text": "hi"}, {"text": "", "thought": True}, {"functionCall": {"name": "x"}}, [], {}]

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
    """Verbatim when it is not taken by an earlier turn, else made of the call's own; none where
    none came (B20).
    """
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
    """It never moves to another part, is never invented for a text, and goes to nobody else (B15,
    B59).
    """
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
        ("functions.refund", "functions_refund"),
        ("", "nameless"),
        ("1st", "_1st"),
        ("-" * 70, "_" + "-" * 63),
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
def test_arguments_that_are_no_object_are_wrapped_and_unwrapped(raw):
    """What the model wrote is sent as the text it is, and comes back as that text (B17)."""
    sent = contents(*turn(1, wish(arguments=raw)))
    assert sent[1]["parts"][0]["functionCall"]["args"] == {MALFORMED: raw}
    assert read(sent)[1].wishes[0].arguments == raw
    wrapped = json.dumps({MALFORMED: "{}"}, separators=(",", ":"))
    assert read(contents(*turn(1, wish(arguments=wrapped))))[1].wishes[0].arguments == wrapped


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "superseded"])
def test_a_call_that_did_not_run_says_how_it_ended(ending):
    """Each ending reaches the provider as an error in words of its own (B2, I5)."""
    story = Story()
    story.turn(1, wish())
    story.live(1, 0, wish(), ending)
    assert contents(*entries_of(story.facts))[-1] == user(
        response(told={"error": f"refund was {ending}"}, id="call_a")
    )


# ------------------------------------------------------------------------------------- random lives


@given(own_lives(), st.data())
def test_whatever_happened_the_provider_takes_it(facts, data):
    """Any life of a thread, in any order and with duplicates, gives contents that nothing is wrong
    with, and the same bytes each time (B1, B3, B12, B16, B17, I11, I13).
    """
    payload = write(entries_of(facts))
    assert check(payload) == []
    assert json.dumps(payload) == json.dumps(write(entries_of(data.draw(disorder(facts)))))


@given(own_lives(), st.data())
def test_a_shortened_history_keeps_no_half_pairs(facts, data):
    """Any stretch of any history is written so that the provider takes it (B13)."""
    entries = entries_of(facts)
    begin = data.draw(st.integers(0, len(entries)))
    assert check(write(entries[begin : data.draw(st.integers(begin, len(entries)))])) == []


@given(own_lives())
def test_a_growing_history_is_written_with_the_same_beginning(facts):
    """What was sent before a turn is how the next request begins, but that its last content may
    have grown.
    """
    thread = thread_of(REF, facts)
    whole = contents(*history(thread).entries)
    for number in thread.turns:
        sent = contents(*history(thread, before_turn=number).entries)
        assert whole[: len(sent) - 1] == sent[:-1]


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


@given(facts=own_lives())
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
        (8, 1, [HELLO, model({**RAN, "inlineData": {}})]),
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
    """Each rule has contents that break it and no other; a payload and its bare contents are the
    same (B1, B13).
    """
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
    """Rule 15 is named at the first content, and such an instruction is not read."""
    assert [
        (found.rule, found.message)
        for found in check({"systemInstruction": system, "contents": [HELLO]})
    ] == [(15, 0)]
    with pytest.raises(BadInput, match="systemInstruction"):
        read({"systemInstruction": system, "contents": [HELLO]})


def test_what_is_right_is_taken():
    """Both spellings, fields that are null, calls without ids in order, earlier turns without
    signatures.
    """
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
                user({"inlineData": {"mimeType": "x"}}),
            ]
        )
        == []
    )
    assert check({"contents": "hi", "system_instruction": "be kind"}) == []
    assert read({"contents": "hi", "system_instruction": "be kind"}) == (
        Spoken("system", "be kind"),
        Spoken("user", "hi"),
    )


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["", "user", "model", "a", "c2ln"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "parts",
                    "contents",
                    "text",
                    "functionCall",
                    "functionResponse",
                    "name",
                    "args",
                    "id",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(
    _json
    | st.lists(
        st.builds(lambda role, parts: {"role": role, "parts": parts}, _json, st.lists(_json))
    )
)
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


def sent_arguments(raw: str) -> str:
    """Arguments as they come back: an object without blanks, or the text that was no object."""
    try:
        value = strict_json.read(raw) if raw.strip() else {}
    except strict_json.BadJson:
        return raw
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if isinstance(value, dict)
        else raw
    )


def sent_name(tool: str) -> str:
    """The random lives' names as they can be sent."""
    return {
        "functions.refund": "functions_refund",
        "": "nameless",
        "a" * 80: "a" * 64,
        "ä": "_",
    }.get(tool, tool)


def carried(entries: tuple[Entry, ...]) -> list[ConversationStep]:
    """What the form can carry of a history without opaque parts: the steps that must come back."""
    used: set[str] = set()
    ids: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Outcome):
            id_ = entry.provider_id
            id_ = f"call_{entry.call}" if id_ in used else id_
            while id_ and id_ in used:
                id_ += "_"
            used |= {id_} - {""}
            ids[entry.call] = id_
    steps: list[ConversationStep] = []
    opening = True
    for entry in entries:
        if opening and isinstance(entry, System):
            steps += [Spoken("system", entry.text)] if entry.text else []
            continue
        if opening and isinstance(entry, Assistant):
            steps.append(Spoken("user", OPENING))
        opening = False
        match entry:
            case System(text):
                steps.append(Spoken("user", f"[Note from the system] {text}"))
            case User(text):
                steps.append(Spoken("user", text or BLANK))
            case Note(text, name):
                steps.append(Spoken("user", f"[Note from {name or 'the system'}] {text}"))
            case Outcome():
                steps.append(
                    Output(
                        ids[entry.call], sent_name(entry.tool), entry.text, is_error=entry.is_error
                    )
                )
            case Assistant(number, parts):
                index, kept = 0, []
                for part in parts:
                    if isinstance(part, e.Wish):
                        id_ = ids[f"{number}-{index}"]
                        kept.append(
                            e.Wish(sent_name(part.tool), sent_arguments(part.arguments), id_)
                        )
                        index += 1
                    elif isinstance(part, e.Text) and part.text:
                        kept.append(part)
                reply = RecordedReply(tuple(kept or [e.Text(BLANK)]))
                if steps and isinstance(steps[-1], RecordedReply):
                    steps[-1] = RecordedReply((*steps[-1].parts, *reply.parts))
                else:
                    steps.append(reply)
    return steps if not opening else [*steps, Spoken("user", OPENING)]


@given(lives())
def test_what_was_written_is_read_back(facts):
    """Every text, call and output comes back in its order; what the form cannot carry is what the
    module lists.
    """
    entries = entries_of(facts)
    assert list(read(write(entries))) == carried(entries)


@given(own_lives())
def test_what_was_read_is_written_the_same(facts):
    """A conversation that becomes facts again gives the same bytes, signatures and all (B18,
    I11).
    """
    payload = write(entries_of(facts))
    assert json.dumps(write(entries_of(facts_told(read(payload))))) == json.dumps(payload)


def test_recorded_conversations_go_out_and_come_back():
    """All 150 come back with what the form can carry, and are written the same when they are told
    again (B1, B20).
    """
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not at {DATA}")
    conversations = read_conversations(DATA)
    assert len(conversations) == 150
    for conversation in conversations:
        entries = entries_of(facts_of(conversation.messages))
        payload = write(entries)
        assert check(payload) == []
        back = read(payload)
        assert list(back) == carried(entries)
        outputs = [
            (step.tool, step.text) for step in conversation.steps if isinstance(step, Output)
        ]
        assert [(step.tool, step.text) for step in back if isinstance(step, Output)] == outputs
        assert write(entries_of(facts_told(back))) == payload


def test_what_the_provider_sends_is_read():
    """Signatures, thoughts and responses of any shape become our words, and the dummy signature
    does not (B18).
    """
    assert read(
        [
            HELLO,
            model(THOUGHT, says("ok", **SIGNED), call(id="a"), call("b", signature=FOREIGN)),
            user(response(told={"output": 1}, id="a"), response("b", told={"error": {"code": 5}})),
        ]
    ) == (
        Spoken("user", "hi"),
        RecordedReply(
            (
                ours(THOUGHT),
                ours(SIGNED),
                e.Text("ok"),
                ours(SIGNED),
                e.Wish("refund", "{}", "a"),
                e.Wish("b", "{}"),
            )
        ),
        Output("a", "refund", '{"output":1}'),
        Output("", "b", '{"error":{"code":5}}', is_error=True),
    )


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ([], "no content"),
        ({"messages": [HELLO]}, "no content"),
        ([{"role": "user", "content": "hi"}], "content 0: it is not a content"),
        ([{"role": "assistant", "parts": [says()]}], "content 0: it is not a content"),
        ([HELLO, model(call())], "content 1: a call of 'refund' has no response"),
        (
            [HELLO, model(call()), HELLO],
            "content 2: a call of 'refund' has no response before the text",
        ),
        (
            [HELLO, model(call()), model(says())],
            "content 2: a call of 'refund' has no response before",
        ),
        (
            [HELLO, model(call(), call("b")), user(response())],
            "content 2: a call of 'b' has no response",
        ),
        ([user(response())], "content 0: the response of 'refund' does not follow its call"),
        ([HELLO, model(call(), call("b")), user(response("b"), response())], "content 2: .* Sort"),
        ([HELLO, model(call(id="a")), user(response(id="b"))], "content 2: .* Sort"),
        ([HELLO, model(call(id="a"), call(id="a"))], "content 1: two calls"),
        ([HELLO, model(call(args=[]))], "content 1: a call needs"),
        ([HELLO, model(call(name=""))], "content 1: a call needs"),
        (
            [HELLO, model(call()), user(response(told="x"))],
            "content 2: a response is not an object",
        ),
        ([user({"inlineData": {}})], "content 0: a part of the user's side"),
        ([HELLO, model({"inlineData": {}})], "content 1: a part of the model's"),
        ([user(says("\ud800"))], "content 0: it cannot be written"),
    ],
)
def test_what_cannot_be_read_is_refused_by_content(sent, sentence):
    """Half a pair, another provider's shape or an image: a sentence with the content, and nothing
    guessed (B14).
    """
    with pytest.raises(BadInput, match=sentence):
        read(sent)
