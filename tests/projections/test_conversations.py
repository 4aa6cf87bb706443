"""Recorded conversations: what is read, and which files are refused whole."""

import json
import time

import pytest
from paths import SMALL

from ayes.projections.formats.conversation import Output, RecordedReply, Spoken, read_conversations
from ayes.schemas.errors import BadFile
from ayes.schemas.events import Text, Wish


def user(text="Hello"):
    return {"role": "user", "content": text}


def reply(content="Hi", *calls):
    message = {"role": "assistant", "content": content}
    return message | {"tool_calls": list(calls)} if calls else message


def call(provider_id="c1", name="look", arguments="{}"):
    return {
        "id": provider_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def output(provider_id="c1", name="look", content="42"):
    return {"role": "tool", "tool_call_id": provider_id, "name": name, "content": content}


def line(*messages, id="t1", **more):  # noqa: A002
    return json.dumps({"id": id, "messages": messages, **more}).encode()


@pytest.fixture
def read(tmp_path):
    def read(raw):
        path = tmp_path / "some.jsonl"
        path.write_bytes(raw)
        return read_conversations(path)

    return read


def test_every_message_has_its_step():
    """Our conversations are read: reused ids, two calls at once, broken arguments (B20)."""
    conversations = read_conversations(SMALL)
    assert [one.id for one in conversations] == [
        "small-talk", "same-id-twice", "two-at-once", "broken-arguments"
    ]  # fmt: skip
    _, twice, at_once, broken = conversations
    assert [
        step.wishes for step in twice.steps if isinstance(step, RecordedReply) and step.wishes
    ] == [
        (Wish("cancel_reservation", '{"reservation_id": "KX77QA"}', "call_1"),),
        (Wish("cancel_reservation", '{"reservation_id": "MM20PL"}', "call_1"),),
    ]
    assert at_once.steps[3] == RecordedReply(
        (
            Wish(
                "update_reservation_baggages",
                '{ "reservation_id" : "KX77QA",\n  "total_baggages": 3 }',
                "call_b",
            ),
            Wish("send_certificate", '{"user_id":"carol_1042","amount":1.50}', "call_c"),
        ),
    )
    assert at_once.steps[5] == Output(
        "call_c", "send_certificate", "Certificate certificate_2231 sent."
    )
    assert broken.steps[1] == Spoken("user", "What is 7 * 6?")
    assert isinstance(broken.steps[2], RecordedReply)
    assert broken.steps[2].wishes[0].arguments == '{"expression": "7 * 6"'


def test_messages_are_kept_as_they_stand():
    """The parsed messages are handed on unchanged, one step for each (I11)."""
    lines = SMALL.read_text("utf-8").split("\n")[:-1]
    for one, raw in zip(read_conversations(SMALL), lines, strict=True):
        assert {"id": one.id, "messages": one.messages} == json.loads(raw)
        assert len(one.steps) == len(one.messages)
        assert [_written(step) for step in one.steps] == one.messages


def _written(step):
    match step:
        case Spoken(role, text):
            return {"role": role, "content": text}
        case RecordedReply(parts):
            wishes = step.wishes
            text = next((part.text for part in parts if isinstance(part, Text)), None)
            return reply(
                text, *(call(wish.provider_id, wish.tool, wish.arguments) for wish in wishes)
            )
        case Output(provider_id, tool, text):
            return output(provider_id, tool, text)


@pytest.mark.parametrize(
    "raw",
    [
        line(user()),
        line(user()) + b"\n",
        line(user()) + b"\r\n" + line(user(), id="t2") + b"\r\n",
        line(user("a\u2028b")) + b"\n" + line(user("a\x85b"), id="constructor"),
        line(user(), reply()),
        line(reply(None, call()), output()),
        line(reply("", call()), output(content="")),
        line(reply(None, call("c1"), call("c2")), output("c1"), output("c2"), user()),
        line(reply(None, call()), output(), reply(None, call()), output(), reply("done")),
        line(user(), user(), reply(), reply()),
    ],
)
def test_good_file_is_read(read, raw):
    """What can be told in only one way is accepted, whatever its line ends (B24, B25)."""
    assert [{"id": one.id, "messages": one.messages} for one in read(raw)] == [
        json.loads(part) for part in raw.split(b"\n") if part
    ]


WRONG = {**user(), "name": "carol"}
TALK = line(user()) + b"\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # The file.
        (b"", ["is empty"]),
        (b"\n", ["line 1:", "blank"]),
        (TALK + b"\n" + TALK, ["line 2:", "blank"]),
        (TALK + b'{"id": "\xff"}', ["line 2:", "not UTF-8", "0xff"]),
        (b"\xef\xbb\xbf" + TALK, ["line 1:", "no JSON"]),
        (TALK + b'{"id": "t2", ', ["line 2:", "no JSON", "(at character "]),
        (TALK + TALK, ["line 2:", "'t1' is already used on line 1"]),
        # The conversation.
        (b"[]", ["line 1:", "JSON object"]),
        (b"3", ["line 1:", "JSON object"]),
        (b'{"id": "t1"}', ["line 1:", "'messages' is missing"]),
        (b'{"messages": []}', ["line 1:", "'id' is missing"]),
        (line(), ["line 1:", "'messages' is empty"]),
        (line(user(), note=1), ["line 1:", "unknown key 'note'", "id, messages"]),
        (line(user(), id="a.b"), ["line 1:", "'a.b' cannot be used"]),
        (line(user(), id="_a"), ["line 1:", "'_a' cannot be used"]),
        (line(user(), id=""), ["line 1:", "'' cannot be used"]),
        (line(user(), id=3), ["line 1:", "'id' should be a valid string"]),
        (b'{"id": "t1", "messages": {}}', ["line 1:", "'messages' should be a list"]),
        (b'{"id": "t1", "id": "t2", "messages": []}', ["line 1:", 'key "id" stands twice']),
        # One message.
        (line(3), ["line 1, message 1:"]),
        (line(user(), {"content": "x"}), ["line 1, message 2:", "role", "missing"]),
        (line({"role": "developer", "content": "x"}),
         ["message 1:", "'developer'", "'assistant'", "'tool'"]),
        (line(user(), WRONG), ["message 2:", "unknown key 'name'", "role, content"]),
        (line(user(None)), ["message 1:", "'content' should be a valid string"]),
        (line(user([{"type": "text", "text": "x"}])),
         ["message 1:", "content in parts is a user's, with a file"]),
        (line({"role": "user"}), ["message 1:", "'content' is missing"]),
        (line({"role": "assistant", "tool_calls": [call()]}, output()), ["'content' is missing"]),
        (line(reply(None)), ["message 1:", "needs content or tool_calls"]),
        (line({**reply(), "tool_calls": []}), ["message 1:", "'tool_calls' is empty"]),
        (line({**reply(), "tool_calls": None}), ["message 1:", "'tool_calls' should be a list"]),
        (line({**reply(), "refusal": None}), ["message 1:", "'refusal' should be a valid string"]),
        (line(reply("x", {**call(), "index": 0})), ["message 1:", "unknown key 'index'"]),
        (line(reply("x", {**call(), "type": "custom"})),
         ["message 1:", "'type' is 'custom'", "'function'"]),
        (line(reply("x", call(""))), ["message 1:", "'id'"]),
        (line(reply("x", call(arguments={}))),
         ["message 1:", "'arguments' should be a valid string"]),
        (line(reply("x", {"id": "c1", "type": "function"})),
         ["message 1:", "'function' is missing"]),
        (line(reply("x", call(name="a b")), output(name="a b")),
         ["message 1:", "tool 'a b' cannot be used"]),
        (line(user("\ud800")), ["line 1:", "half a surrogate pair"]),
        (line(user("x" * 600_000)), ["message 1:", "one fact may have 524,288"]),
        # Calls and their outputs.
        (line(reply("x", call(), call()), output()), ["message 1:", "two calls", "'c1'"]),
        (line(user(), output()),
         ["message 2:", "'c1' is not a call of the assistant message before it"]),
        (line(reply("x", call()), output("c2")), ["message 2:", "'c2' is not a call"]),
        (line(reply("x", call()), output(), output()),
         ["message 3:", "call 'c1' of look was answered"]),
        (line(reply("x", call()), output(), user(), output()), ["message 4:", "is not a call"]),
        (line(reply("x", call()), user(), output()),
         ["message 2:", "'c1' of look has no tool message before"]),
        (line(reply("x", call()), reply()), ["message 2:", "has no tool message before"]),
        (line(user(), reply("x", call())), ["message 2:", "'c1' of look has no tool message."]),
        (line(reply("x", call("c1"), call("c2")), output("c1"), user()),
         ["message 3:", "'c2' of look has no tool message before"]),
        (line(reply("x", call("c1"), call("c2")), output("c2"), output("c1")),
         ["message 2:", "'c2' of look is answered before call 'c1'", "sort them"]),
        (line(reply("x", call()), output(name="see")), ["message 2:", "under the name 'see'"]),
        (line(reply("x", call()), {"role": "tool", "tool_call_id": "c1", "content": "x"}),
         ["message 2:", "'name' is missing"]),
        # Several: the first is told.
        (TALK + line(user(), id="t2") + b"\n" + line(user(), user(3), id="t3"),
         ["line 3, message 2:"]),
    ],
)  # fmt: skip
def test_bad_file_is_refused_whole(read, raw, expected):
    """A mistake names line, message and fault, and nothing of the file is returned (B1, B14)."""
    with pytest.raises(BadFile) as raised:
        read(raw)
    for words in expected:
        assert words in str(raised.value)


def test_missing_file_is_bad_input(tmp_path):
    """A file that is not there is told by its path."""
    with pytest.raises(BadFile, match=r"none\.jsonl: cannot be read"):
        read_conversations(tmp_path / "none.jsonl")


def test_large_file_is_read_quickly(read):
    """Two and a half megabytes take well under a second."""
    turns = [
        user("x" * 800),
        reply(None, call(arguments='{"order": "A-17"}')),
        output(content="y" * 800),
        reply("z" * 800),
    ]
    raw = b"\n".join(line(*turns * 6, id=f"t{number}") for number in range(150))
    assert len(raw) > 2_400_000
    began = time.process_time()
    read(raw)
    assert time.process_time() - began < 1
