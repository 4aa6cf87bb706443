"""Files, refusals and citations for the tests of the formats, and random lives with them."""

import base64
import json

import msgspec
from formats import own_lives
from hypothesis import strategies as st
from pictures import PDF, PNG, WAV

from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import attached, content_of

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
    e.Media("image/gif", e.Linked("https://example.org/moving.gif")),
    e.Media("text/csv", e.Linked("https://example.org/table.csv"), "x" * 600),
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
