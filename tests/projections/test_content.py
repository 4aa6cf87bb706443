"""Files, refusals and citations in every format: kept where the provider takes them, told in words
where it does not.
"""

import base64
import json
import os

import msgspec
import pytest
from formats import entries_of, own_lives
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import PDF, PNG, WAV
from stories import REF, disorder, facts_told
from test_every_format import EVERY, FIELD, MERGING, as_read, written

from ayes.projections.formats import FORMATS
from ayes.projections.history import Assistant, Outcome, User, digest, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import attached, content_of, described

#: Random histories for each format; `make properties` has more.
EXAMPLES = int(os.environ.get("CONTENT_EXAMPLES", "30"))

IMAGE = attached(PNG, "image/png", "square.png")
DOCUMENT = attached(PDF, "application/pdf", "page.pdf")
TEXT = attached(b"The order was paid twice.", "text/plain", "note.txt")
SOUND = attached(WAV, "audio/wav", "beep.wav")
LINK = e.Media("image/*", e.Linked("https://example.org/square.png"))
MEDIA = (
    IMAGE,
    e.Media("image/png", e.Inline(base64.b64encode(PNG).decode()), detail="low"),
    DOCUMENT,
    TEXT,
    SOUND,
    LINK,
    e.Media("image/*", e.Linked("http://example.org/insecure.png")),
    e.Media("application/pdf", e.Linked("https://example.org/page.pdf"), "page.pdf"),
    attached(b"\x00\x01", "application/x-unheard-of", "x.bin"),
    attached(b"\xff\xfe no UTF-8", "text/plain"),
    attached(b"", "image/png"),
    *(
        e.Media(media_type, e.Uploaded(provider, "file_1"))
        for provider in ("anthropic", "openai", "gemini", "nobody")
        for media_type in ("image/*", "application/octet-stream")
    ),
    # What only a raw client records.
    e.Media("image/png", e.Inline("no base64!")),
    e.Media("no media type", e.Inline("aGk=")),
    e.Media("image/png", e.Linked("")),
    e.Media("image/png", e.Stored("0" * 64, 5)),
)
ANTHROPICS = {"type": "web_search_result_location", "url": "https://example.org", "title": "It",
              "cited_text": "so it is", "encrypted_index": "x"}  # fmt: skip
OPENAIS = {"type": "url_citation", "start_index": 0, "end_index": 1, "url": "https://example.org",
           "title": "It"}  # fmt: skip
CITATIONS = (
    e.Citation(url="https://example.org", title="It", provider="anthropic",
               data=json.dumps(ANTHROPICS)),
    e.Citation(url="https://example.org", title="It", provider="openai-responses",
               data=json.dumps(OPENAIS)),
    e.Citation(quote="so it is"),
    e.Citation(provider="anthropic", data="no JSON"),
    e.Citation(),
)  # fmt: skip

_texts = st.sampled_from(("", " ", "Look at this.", "And this?"))
_contents = st.lists(
    st.builds(e.Text, _texts) | st.sampled_from(MEDIA), min_size=1, max_size=4
).map(content_of)
_spoken = (
    st.builds(e.Text, _texts, st.lists(st.sampled_from(CITATIONS), max_size=2).map(tuple))
    | st.builds(e.Refusal, _texts)
    | st.sampled_from(MEDIA)
)


@st.composite
def lives_with_content(draw: st.DrawFn, name: str) -> list[Fact]:
    """Random lives in which users, tools and models say more than texts."""

    def enriched(event: e.AnyEvent | e.Carried) -> e.AnyEvent | e.Carried:
        match event:
            case e.Said(role="user") if draw(st.booleans()):
                return msgspec.structs.replace(event, text=draw(_contents))
            case e.ToolReturned() if draw(st.booleans()):
                return msgspec.structs.replace(event, output=draw(_contents))
            case e.ModelReplied(parts=parts) if draw(st.booleans()):
                place = draw(st.integers(0, len(parts)))
                more = tuple(draw(st.lists(_spoken, min_size=1, max_size=2)))
                # A part of its own belongs to the part directly after it.
                return msgspec.structs.replace(event, parts=(*parts[:place], *more, *parts[place:]))
            case _:
                return event

    facts = draw(own_lives(name))
    return [msgspec.structs.replace(fact, event=enriched(fact.event)) for fact in facts]


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


# ------------------------------------------------------------------------------ what each one keeps

KEPT = {
    # A user's message, a tool's output.
    "openai-chat": ({IMAGE, DOCUMENT, SOUND, LINK}, set()),
    "openai-responses": ({IMAGE, DOCUMENT, LINK}, {IMAGE, DOCUMENT, LINK}),
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
