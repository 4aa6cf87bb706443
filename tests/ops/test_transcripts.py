"""Transcripts of other systems: read in every form, refused whole where they cannot be, rehearsed
as they went.
"""

import json
import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest
from paths import AIRLINE as POLICY
from paths import DATA, SMALL
from program import approvals, up

from ayes.consumers.effects import Perform
from ayes.ledger.clients.services import Ledger
from ayes.ops.rehearsal.recorded import PROVIDER, RecordedModelWorker, recording
from ayes.ops.rehearsal.rehearse import read_recordings
from ayes.ops.rehearsal.transcripts import READ, SAYING, entries_of, payload_of, read_transcripts
from ayes.projections.formats import FORMATS
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedReply,
    Spoken,
    read_conversations,
)
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.slots import ThreadRef

FORMS = pytest.mark.parametrize("form", FORMATS)


def transcripts(path, form, conversations):
    """These conversations, each as the form's writer has it, one a line."""
    lines = [json.dumps({"id": one.id, **payload_of(one.steps, form)}) for one in conversations]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


# ---------------------------------------------------------------------- what people really recorded


@pytest.fixture(scope="module")
def conversations():
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not at {DATA}")
    return read_conversations(DATA)


@FORMS
def test_every_real_conversation_is_read_in_every_form(conversations, tmp_path, form):
    """All 150: the same ids, turns and steps, but for what no form but one can carry; the same
    bytes, written again (B20, I11).
    """
    file = transcripts(tmp_path / "real.jsonl", form, conversations)
    found = read_transcripts(file, form)
    assert [one.id for one in found] == [one.id for one in conversations]
    assert len(found) == 150
    for number, (ours, theirs) in enumerate(zip(found, conversations, strict=True), 1):
        assert ours.place == f"line {number}"
        assert carried(ours.steps) == carried(theirs.steps)
        assert payload_of(ours.steps, form) == payload_of(theirs.steps, form)
    turns = sum(one.turns for _, one in read_recordings(str(file), form).values())
    assert turns == sum(
        isinstance(step, RecordedReply) for one in conversations for step in one.steps
    )


def carried(steps) -> list[object]:
    """Without ids, which are minted again; arguments by their value; no text where there is nothing
    to see.
    """
    return [_carried(step) for step in steps]


def _carried(step: ConversationStep) -> object:
    match step:
        case Spoken(role, text):
            return role, text
        case RecordedReply(parts):
            return [
                (part.tool, json.loads(part.arguments)) if isinstance(part, e.Wish) else part
                for part in parts
                if not (isinstance(part, e.Text) and part.text.strip() in {"", "(no text)"})
            ]
        case Output(tool=tool, text=text, is_error=is_error):
            return tool, text.strip(), is_error


def test_chat_transcripts_are_our_recordings(conversations, tmp_path):
    """In Chat Completions' form nothing is lost: what a history is compared with is the recorded
    messages themselves.
    """
    file = transcripts(tmp_path / "real.jsonl", "openai-chat", conversations)
    ours, theirs = read_recordings(str(DATA)), read_recordings(str(file), "openai-chat")
    assert ours == theirs


# ---------------------------------------------------------------------------------- rehearsing them


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The store of a running `ayes up`; each test rehearses in a workspace of its own."""
    with up(tmp_path_factory.mktemp("transcripts") / "store") as ready:
        yield Path(ready["store"])


@pytest.fixture
def workspace(request):
    return request.node.name.replace("[", "-").rstrip("]")[:64]


def rehearsed(store, workspace, file, *options):
    words = (
        "rehearse",
        file,
        "--policy",
        POLICY,
        "-w",
        workspace,
        "--store",
        store,
        "--json",
        *options,
    )
    return approvals(*words, timeout_s=110)


@pytest.mark.parametrize("form", ["anthropic", "gemini", "openai-responses"])
def test_real_transcripts_come_out_as_they_were(conversations, store, workspace, tmp_path, form):
    """A tenth of the real conversations through the real thing: every history is what came in (B20,
    I11).
    """
    tenth = conversations[::10]
    file = transcripts(tmp_path / "tenth.jsonl", form, tenth)
    ended = rehearsed(store, workspace, file, "--format", form)
    assert ended.code == 0, ended.err
    summary = ended.one
    assert (summary["conversations"], summary["identical"], summary["different"]) == (15, 15, 0)
    calls = sum(isinstance(step, Output) for one in tenth for step in one.steps)
    assert calls == summary["calls"] == summary["finished"]
    assert summary["approved"] == summary["gated"] > 10


def test_a_transcript_that_is_denied_is_different(store, workspace, tmp_path):
    """Refusals are not what was recorded, in whatever form: identical are only those in which
    nobody was asked (B2).
    """
    file = transcripts(tmp_path / "small.jsonl", "anthropic", read_conversations(SMALL))
    ended = rehearsed(store, workspace, file, "--format", "anthropic", "--reviewer", "deny")
    assert ended.code == 0, ended.err
    assert (ended.one["denied"], ended.one["identical"], ended.one["different"]) == (4, 1, 3)


AWKWARD = {
    "system": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be quick."}],
    "model": "some-model",
    "tools": [{"name": "cancel", "input_schema": {"type": "object"}}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "Cancel A."}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two calls.", "signature": "c2ln"},
                {"type": "text", "text": "Both."},
                {"type": "tool_use", "id": "a", "name": "cancel", "input": {"order": "A"}},
                {"type": "tool_use", "id": "b", "name": "cancel", "input": {"order": "B"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [{"type": "text", "text": "done"}],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": "No such order.",
                    "is_error": True,
                },
                {"type": "text", "text": "And?"},
                {"type": "text", "text": "What happened?"},
            ],
        },
        {"role": "assistant", "content": "Only B is cancelled."},
    ],
}


def test_what_our_own_form_cannot_say_goes_through(store, workspace, tmp_path):
    """A tool that failed, thinking, several texts at once and beside results: identical, and the
    model waited for all of them.
    """
    file = tmp_path / "awkward.json"
    file.write_text(json.dumps(AWKWARD, indent=2))
    ended = rehearsed(store, workspace, file, "--format", "anthropic")
    assert ended.code == 0, ended.err
    assert (ended.one["calls"], ended.one["identical"]) == (2, 1)
    written = approvals("history", f"{workspace}/awkward", "--format", "anthropic", store=store)
    messages = json.loads(written.out)["messages"]
    assert messages[1] == AWKWARD["messages"][1]
    assert messages[2]["content"][2:] == AWKWARD["messages"][2]["content"][2:]
    assert [one.get("is_error", False) for one in messages[2]["content"][:2]] == [True, False]
    again = rehearsed(store, workspace, file, "--format", "anthropic")
    assert again.one | {"seconds": 0} == ended.one | {"seconds": 0}


def test_the_model_is_not_asked_before_everything_was_said():
    """Two texts before a reply: after the first there is nothing to do, after the second the model
    is asked.
    """
    ref = ThreadRef("shop", "t")
    steps = (Spoken("user", "Hi."), Spoken("user", "Cancel A."), RecordedReply((e.Text("Done."),)))
    asker = RecordedModelWorker({"t": recording("t", steps, "some.json", "", as_it_came=True)})
    opened = e.ThreadOpened(requester="ana", model=f"{PROVIDER}:t", max_turns=1)
    said = (e.Said(role="user", text="Hi."), e.Said(role="user", text="Cancel A."))
    facts = [
        Fact(seq, datetime(2026, 1, 1, tzinfo=UTC), slot, event)
        for seq, (slot, event) in enumerate(
            [(ref.opened, opened), (ref.said("0-0"), said[0]), (ref.said("0-1"), said[1])], 1
        )
    ]
    assert asker.decide(thread_of(ref, facts[:2]), facts[1]) == []
    [step] = asker.decide(thread_of(ref, facts), facts[2])
    assert isinstance(step, Perform)
    assert step.work.turn == 1


# ----------------------------------------------------------------------------- what they are called


HI = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.jsonl", json.dumps(HI), [("line-1", "line 1")]),
        ("a.jsonl", f"{json.dumps(HI)}\n{json.dumps({'messages': HI})}\n",
         [("line-1", "line 1"), ("line-2", "line 2")]),
        ("a.jsonl", f"{json.dumps({'id': 'mine', 'messages': HI})}\r\n", [("mine", "line 1")]),
        ("a.jsonl", f"{json.dumps({'id': None, 'messages': HI})}\n", [("line-1", "line 1")]),
        ("a.jsonl", json.dumps(HI, indent=1), [("a", "")]),
        ("a.json", json.dumps(HI), [("a", "")]),
        ("a.json", json.dumps({"id": "mine", "messages": HI}, indent=1), [("mine", "")]),
        ("a.json", f"{json.dumps(HI)}\n{json.dumps(HI)}\n",
         [("line-1", "line 1"), ("line-2", "line 2")]),
    ],
)  # fmt: skip
def test_each_conversation_has_a_name(tmp_path, name, text, found):
    """Its own id, else its line; in a document the file's name."""
    file = tmp_path / name
    file.write_bytes(text.encode())
    read = read_transcripts(file, "openai-chat")
    assert [(one.id, one.place) for one in read] == found
    assert all(
        one.steps == (Spoken("user", "hi"), RecordedReply((e.Text("hello"),))) for one in read
    )


# ---------------------------------------------------------------------------------- what is refused


USE = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "a", "name": "cancel", "input": {}}],
}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]}
GOOD = json.dumps({"id": "good", "messages": HI})


def called(name):
    return [HI[0], {**USE, "content": [{**USE["content"][0], "name": name}]}, USED]


BAD = {
    # form, what stands in the file, what is said after the file's name
    "bytes": ("anthropic", f"{GOOD}\n".encode() + b'{"id": "\xff"}\n', (", line 2: not UTF-8: byte "
                                                                       "0xff.")),
    "a line cut off": ("anthropic", f"{GOOD}\n{GOOD[:-9]}\n", ", line 2: it is no JSON: "),
    "a first line cut off": ("anthropic", f"{GOOD[:-9]}\n{GOOD}\n", ", line 1: it is no JSON: "),
    "a blank line": ("anthropic", f"{GOOD}\n\n{GOOD}\n", ", line 2: the line is blank."),
    "nothing": ("anthropic", "", ": is empty. It needs one conversation on each line."),
    "blanks": ("anthropic", " \n\n", ": is empty."),
    "a key twice": ("anthropic", f'{{"messages":[],"messages":{json.dumps(HI)}}}', (", line 1: the "
                                                                                   "key ")),
    "the same id": ("anthropic", f"{GOOD}\n{GOOD}\n", (", line 2: the id 'good' is already used on "
                                                      "line 1.")),
    "the id of a line": (
        "anthropic",
        f'{json.dumps({"id": "line-2", "messages": HI})}\n{json.dumps(HI)}\n',
        ", line 2: the id 'line-2' is already used on line 1.",
    ),
    "a dot in the id": ("gemini", '{"id": "a.b", "contents": "hi"}', (", line 1: conversation id "
                                                                     "'a.b' cannot be")),
    "a number for an id": ("gemini", '{"id": 7, "contents": "hi"}', (", line 1: conversation id 7 "
                                                                    "cannot be")),
    "no list": ("anthropic", "7", ", line 1: this is not a list of messages"),
    "no message": ("openai-chat", '{"messages": []}', ", line 1: it has no messages."),
    "several in a list": ("anthropic", json.dumps([HI, HI]), (", line 1: this is a list of "
                                                             "conversations. Write each")),
    "several with ids": ("anthropic", f"[{GOOD}]", (", line 1: this is a list of conversations. "
                                                   "Write each")),
    "half a call": ("anthropic", f"{GOOD}\n{json.dumps([HI[0], USE])}", (", line 2: message 1: 'a' "
                                                                        "has no result")),
    "half a result": ("anthropic", json.dumps([HI[0], USED]), (", line 1: message 1: the result of "
                                                              "'a' does not follow")),
    "half a character": ("anthropic", r'[{"role":"user","content":"\ud800"}]', (", line 1: it "
                                                                               "holds half a "
                                                                               "surrogate pair")),
    "another form's list": (
        "gemini",
        json.dumps([HI[0], USE, USED]),
        (", line 1: content 0: it is not a content: "
         "a role, user or model, and a list of parts, at least one. "
         "It can be read with --format anthropic."),
    ),
    "another form's object": (
        "anthropic",
        '{"contents": "hi"}',
        (", line 1: this is not a list of messages, "
         "and not an object that has one under 'messages'. "
         "It can be read with --format gemini."),
    ),
    "another form's words": (
        "openai-responses",
        json.dumps([HI[0], {"role": "assistant", "content": None, "tool_calls": []}]),
        ", line 1: item 1: there is no text in it, and no list of parts with text.",
    ),
    "words beside the messages": (
        "ai-sdk",
        json.dumps({"system": "Be kind.", "messages": HI}),
        (", line 1: 'system' is not read in this form. Put it among the messages. "
         "It can be read with --format anthropic."),
    ),
    "an answer beside the question": (
        "openai-responses",
        '{"input": "hi", "output": [{"type": "message"}]}',
        ", line 1: 'output' is not read in this form.",
    ),
    "a large text": (
        "anthropic",
        json.dumps([{"role": "user", "content": "x" * 600_000}]),
        ", line 1: the user's message, step 1 of the conversation, has 600,0",
    ),
    "a tool's name": (
        "anthropic",
        json.dumps(called("a b")),
        ", line 1: step 2 of the conversation: tool 'a b' cannot be",
    ),
    "the model first": (
        "anthropic",
        f"{GOOD}\n{json.dumps(HI[1:])}",
        ", line 2 (line-2): the model speaks without having",
    ),
    "the model twice": (
        "openai-chat",
        json.dumps([*HI, HI[1]]),
        ", line 1 (line-1): the model speaks without having",
    ),
}  # fmt: skip


def bad_file(tmp_path, case, name="bad.jsonl"):
    form, content, said = BAD[case]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return form, file, said


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_whole(tmp_path, case):
    """The sentence begins with the file and the line, and says what is wrong there (B4, B14)."""
    form, file, said = bad_file(tmp_path, case)
    with pytest.raises(BadFile, match=f"^{re.escape(f'{file}{said}')}") as refused:
        read_recordings(str(file), form)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(HI, indent=1)[:-1], ": it is no JSON: "),
        (json.dumps([HI[0], USE], indent=1), ": message 1: 'a' has no result"),
        (json.dumps(HI[1:]), ": the model speaks without having"),
        (f"{json.dumps(HI)}\n{{", ", line 2: it is no JSON: "),
    ],
)
def test_a_bad_document_is_refused(tmp_path, content, said):
    """Without a line, which says nothing of a document; unless the file turns out to have a
    conversation a line.
    """
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(BadFile, match=f"^{re.escape(f'{file}{said}')}"):
        read_recordings(str(file), "anthropic")


@pytest.mark.parametrize(
    "case",
    ["bytes", "another form's list", "nothing", "half a result"],
)
async def test_from_a_bad_file_nothing_is_recorded(store, tmp_path, case):
    """On the real program: exit code 2, no data, one sentence, and the log is as long as before."""
    form, file, said = bad_file(tmp_path, case)
    async with Ledger.connect(store, role="observer") as ledger:
        before = await ledger.log.last_seq()
        ended = rehearsed(store, "bad", file, "--format", form)
        assert await ledger.log.last_seq() == before
    assert (ended.code, ended.out) == (2, "")
    assert ended.problem["message"].startswith(f"{file}{said}")


@pytest.mark.parametrize(
    ("case", "skipped"),
    [("a line cut off", 1), ("half a call", 1), ("the same id", 1), ("a blank line", 2)],
)
def test_a_bad_conversation_costs_itself_alone(store, tmp_path, case, skipped):
    """It is named with its line, the others are rehearsed, and the exit code says that the file was
    not all good (B4, B14).
    """
    form, file, said = bad_file(tmp_path, case)
    ended = rehearsed(store, case.replace(" ", "-"), file, "--format", form)
    assert ended.code == 2
    assert (ended.one["conversations"], ended.one["identical"]) == (1, 1), ended.err
    assert ended.one["skipped"] == skipped
    assert f"Skipped: {file}{said}" in ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "chatml"), "there is no provider 'chatml'. Known are: openai-chat, "),
        (
            ("--format", "openai-chat", "--no-workers"),
            "reads only our own form. Leave out --no-workers",
        ),
    ],
)
def test_forms_that_cannot_be(tmp_path, options, said):
    """An unknown form, and one that the workers elsewhere could not read: usage errors (2)."""
    ended = approvals("rehearse", SMALL, *options, "--store", tmp_path / "store", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.problem["message"]
    assert not (tmp_path / "store").exists()


SHORT = (Spoken("user", "hi"), RecordedReply((e.Text("hello"),)))
BESIDE = [
    (form, key)
    for form, key in product(FORMATS, sorted(SAYING))
    if key not in payload_of(SHORT, form)
]


@pytest.mark.parametrize(("form", "key"), BESIDE)
def test_nothing_said_is_passed_over(tmp_path, form, key):
    """Whatever key of whatever form stands beside the messages: it is read, or the file is refused
    (B14).
    """
    file = tmp_path / "some.json"
    file.write_text(json.dumps({**payload_of(SHORT, form), key: "Be kind."}))
    try:
        [found] = read_transcripts(file, form)
    except BadInput:
        assert key not in READ.get(form, ())
    else:
        assert found.steps[0] == Spoken("system", "Be kind.")


@FORMS
def test_settings_beside_the_messages_are_not_read(tmp_path, form):
    """How the model was asked is no part of the conversation, and empty keys say nothing."""
    beside = {
        "model": "m",
        "tools": [{"name": "x"}],
        "temperature": 0.5,
        "output": [],
        "response": None,
    }
    file = tmp_path / "some.json"
    file.write_text(json.dumps({**payload_of(SHORT, form), **beside}))
    [found] = read_transcripts(file, form)
    assert found.steps == SHORT


def test_entries_are_the_history_that_the_steps_are():
    """Calls count from 0 in each turn, turns from 1; an error is a failure."""
    wishes = (e.Wish("cancel", "{}", "a"), e.Wish("cancel", "{}", "b"))
    entries = entries_of(
        (Spoken("user", "hi"), RecordedReply(wishes), Output("a", "cancel", "done"),
         Output("b", "cancel", "no", is_error=True))
    )  # fmt: skip
    assert [(one.call, one.kind, one.is_error) for one in entries[2:]] == [
        ("1-0", "returned", False),
        ("1-1", "failed", True),
    ]
