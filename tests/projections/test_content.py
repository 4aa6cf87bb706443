"""Files, refusals and citations in every format: kept where the provider takes them, told in words
where it does not.
"""

import importlib
import json
import os

import pytest
from contents import DOCUMENT, IMAGE, LINK, SOUND, TEXT, lives_with_content
from formats import entries_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stories import REF, disorder, facts_told
from test_every_format import EVERY, FIELD, MERGING, as_read, written

from ayes.projections.formats import FORMATS
from ayes.projections.history import Assistant, Outcome, User, digest, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.content import attached, described

#: Random histories for each format; `make properties` has more.
EXAMPLES = int(os.environ.get("CONTENT_EXAMPLES", "30"))


@EVERY
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_whatever_was_said_the_provider_takes_it(name, data):
    """Nothing is wrong with what is written, and the same facts give the same bytes (B1, I11)."""
    facts = data.draw(lives_with_content(name))
    entries = entries_of(facts)
    payload = FORMATS[name].write(entries)
    if payload.get(FIELD.get(name, "messages")):
        assert FORMATS[name].check(payload) == []
    again = entries_of(data.draw(disorder(facts)))
    assert digest(again) == digest(entries)
    assert json.dumps(FORMATS[name].write(again)) == json.dumps(payload)


@EVERY
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_growing_history_with_files_begins_the_same(name, data):
    thread = thread_of(REF, data.draw(lives_with_content(name)))
    whole = history(thread).entries
    for number in thread.turns:
        before = history(thread, before_turn=number).entries
        shorter = written(name, before)
        same = shorter[:-1] if name in MERGING else shorter
        assert written(name, whole)[: len(same)] == same


@EVERY
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_files_that_were_read_are_written_the_same(name, data):
    """A conversation with files becomes facts, and is written back byte for byte (B18)."""
    write, _check, read = FORMATS[name]
    payload = write(entries_of(data.draw(lives_with_content(name))))
    if payload[FIELD.get(name, "messages")]:
        again = write(entries_of(facts_told(read(payload))))
        assert json.dumps(again) == json.dumps(as_read(name, payload))


# ------------------------------------------------------------------------- the providers' own types


def _fits(name: str, messages: list) -> None:
    """Validate messages by the types of the provider's own package; raises if one does not fit."""
    raw = json.dumps(messages)
    match name:
        case "openai-chat":
            from openai.types.chat import ChatCompletionMessageParam as Message

            TypeAdapter(list[Message]).validate_json(raw)
        case "openai-responses":
            from openai.types.responses import ResponseInputItemParam as Item

            TypeAdapter(list[Item]).validate_json(raw)
        case "anthropic":
            from anthropic.types import MessageParam

            TypeAdapter(list[MessageParam]).validate_json(raw)
        case "gemini":
            types = importlib.import_module("google.genai.types")
            for message in messages:
                types.Content.model_validate(message)
        case "pydantic-ai":
            from pydantic_ai.messages import ModelMessagesTypeAdapter

            ModelMessagesTypeAdapter.validate_json(raw)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("ai-sdk")])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_the_providers_own_types_accept_it(name, data):
    """Those of their Python packages; test_ai_sdk.py and test_ai_sdk_ui.py ask the AI SDK."""
    _fits(name, written(name, entries_of(data.draw(lives_with_content(name)))))


# ------------------------------------------------------------------------------ what each one keeps

KEPT = {
    # A user's message, a tool's output.
    "openai-chat": ({IMAGE, DOCUMENT, SOUND, LINK}, set()),
    "openai-responses": ({IMAGE, DOCUMENT, TEXT, LINK}, {IMAGE, DOCUMENT, TEXT, LINK}),
    "anthropic": ({IMAGE, DOCUMENT, TEXT, LINK}, {IMAGE, DOCUMENT, TEXT, LINK}),
    "gemini": ({IMAGE, DOCUMENT, TEXT, SOUND, LINK}, {IMAGE, DOCUMENT, TEXT}),
    "ai-sdk": ({IMAGE, DOCUMENT, TEXT, SOUND, LINK}, {IMAGE, DOCUMENT, TEXT, SOUND, LINK}),
    "ai-sdk-ui": ({IMAGE, DOCUMENT, TEXT, SOUND, LINK}, set()),
    "pydantic-ai": ({IMAGE, DOCUMENT, TEXT, SOUND, LINK}, {IMAGE, DOCUMENT, TEXT, SOUND, LINK}),
}


@EVERY
@pytest.mark.parametrize("media", [IMAGE, DOCUMENT, TEXT, SOUND, LINK], ids=described)
def test_each_provider_is_sent_the_files_that_it_takes(name, media):
    """The others are told in words, which never change."""
    of_users, of_tools = KEPT[name]
    wish = e.Wish("look", "{}", "call_a")
    entries = (
        User((e.Text("What is this?"), media)),
        Assistant(1, (wish,)),
        Outcome("1-0", "look", "call_a", "returned", (e.Text("This:"), media), is_error=False),
    )
    text = json.dumps(FORMATS[name].write(entries), ensure_ascii=False)
    in_words = text.count(json.dumps(described(media), ensure_ascii=False)[1:-1])
    assert in_words == (media not in of_users) + (media not in of_tools)
    assert FORMATS[name].check(FORMATS[name].write(entries)) == []


@EVERY
def test_an_output_without_its_call_is_told_in_words(name):
    """A history that was shortened by other means may have half a pair. Its text becomes a note,
    and its files are told in it.
    """
    output = (e.Text("This:"), IMAGE)
    entries = (User("Look."), Outcome("1-0", "look", "c", "returned", output, is_error=False))
    said = f"An earlier call of `look` ended so: This:\n\n{described(IMAGE)}"
    assert json.dumps(said)[1:-1] in json.dumps(FORMATS[name].write(entries))


def test_how_closely_a_model_looks_at_a_document_is_kept():
    """Responses has a detail for the pages of a PDF, without the one for images alone."""
    data = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk=", "detail": "high"}
    message = {"type": "message", "role": "user", "content": [{"type": "input_file", **data}]}
    write, check, read = FORMATS["openai-responses"]
    assert write(entries_of(facts_told(read([message])))) == {"input": [message]}
    data["detail"] = "original"
    wrong = {**message, "content": [{"type": "input_file", **data}]}
    assert [problem.rule for problem in check([wrong])] == [16]
    plain = attached(b"The order was paid twice.", "text/plain")
    [item] = write((User((plain,)),))["input"]
    assert item["content"][0]["filename"] == "file.txt"
