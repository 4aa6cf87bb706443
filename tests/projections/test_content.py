"""Files, refusals and citations in every format: kept where the provider takes them, told in words
where it does not.
"""

import functools
import importlib
import json
import os

import pytest
from contents import (
    ANTHROPICS,
    CITATIONS,
    DOCUMENT,
    IMAGE,
    LINK,
    MEDIA,
    OPENAIS,
    SOUND,
    TEXT,
    lives_with_content,
)
from example_counts import examples
from formats import entries_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_every_format import EVERY, written

from ayes.projections.formats import FORMATS
from ayes.projections.history import Assistant, Outcome, User
from ayes.schemas import events as e
from ayes.schemas.content import attached, described

#: Random histories for each format; `make properties` has more.
EXAMPLES = int(os.environ.get("CONTENT_EXAMPLES", examples(30)))


# ------------------------------------------------------------------------- the providers' own types


@functools.cache
def _own_type(name: str) -> TypeAdapter:
    """A list of messages in the types of the provider's own package, each slow to import."""
    module, named = {
        "openai-chat": ("openai.types.chat", "ChatCompletionMessageParam"),
        "openai-responses": ("openai.types.responses", "ResponseInputItemParam"),
        "anthropic": ("anthropic.types", "MessageParam"),
        "gemini": ("google.genai.types", "Content"),
        "pydantic-ai": ("pydantic_ai.messages", "ModelMessage"),
    }[name]
    return TypeAdapter(list[getattr(importlib.import_module(module), named)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("ai-sdk")])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_the_providers_own_types_accept_it(name, data):
    """Those of their Python packages; test_ai_sdk.py and test_ai_sdk_ui.py ask the AI SDK."""
    messages = written(name, entries_of(data.draw(lives_with_content(name))))
    _own_type(name).validate_json(json.dumps(messages))


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
@pytest.mark.parametrize("media", MEDIA, ids=described)
def test_no_file_makes_a_payload_that_the_provider_refuses(name, media):
    """In a message, an output and a reply; also those that only a raw client records."""
    wish = e.Wish("look", "{}", "call_a")
    entries = (
        User((e.Text("What is this?"), media)),
        Assistant(1, (e.Text("This:"), media, wish)),
        Outcome("1-0", "look", "call_a", "returned", (e.Text("This:"), media), is_error=False),
    )
    assert FORMATS[name].check(FORMATS[name].write(entries)) == []


@EVERY
def test_a_file_is_sent_by_its_id_to_the_provider_that_has_it(name):
    """To another one the id means nothing, or another file."""
    for provider, takes in (
        ("anthropic", {"anthropic", "pydantic-ai"}),
        ("openai", {"openai-chat", "openai-responses", "pydantic-ai"}),
        ("gemini", {"gemini", "pydantic-ai"}),
        ("nobody", set()),
    ):
        media = e.Media("application/pdf", e.Uploaded(provider, "files/1"))
        text = json.dumps(FORMATS[name].write((User((e.Text("Look."), media)),)))
        assert (json.dumps(described(media))[1:-1] in text) is (name not in takes), provider


def test_a_citation_goes_back_to_its_provider_unchanged():
    """To another one it is told in words."""
    for name, raw, before in (
        ("anthropic", ANTHROPICS, ()),
        ("openai-responses", OPENAIS, (e.Opaque("openai-responses", '{"id":"msg_1"}'),)),
    ):
        citation = next(one for one in CITATIONS if one.provider == name)
        text = e.Text("so it is", (citation,))
        entries = (User("Is it?"), Assistant(1, (*before, text)))
        payload = written(name, entries)
        [block] = payload[-1]["content"]
        assert (block.get("citations") or block.get("annotations")) == [raw]
        for other in set(FORMATS) - {name}:
            told = json.dumps(FORMATS[other].write(entries))
            assert "[Sources: 'It', 'https://example.org']" in told


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
    write, check = FORMATS["openai-responses"]
    source = e.Inline("aGk=")
    media = e.Media("application/pdf", source, name="a.pdf", detail="high")
    assert write((User((media,)),)) == {"input": [message]}
    data["detail"] = "original"
    wrong = {**message, "content": [{"type": "input_file", **data}]}
    assert [problem.rule for problem in check([wrong])] == [16]
    plain = attached(b"The order was paid twice.", "text/plain")
    [item] = write((User((plain,)),))["input"]
    assert item["content"][0]["filename"] == "file.txt"


# ------------------------------------------------------------------------------- what each refuses

DATA = "aGk="
CHAT, RESPONSES = "openai-chat", "openai-responses"


def chat(*parts: dict) -> list:
    return [{"role": "user", "content": list(parts)}]


def responses(*parts: dict) -> list:
    return [{"type": "message", "role": "user", "content": list(parts)}]


def outputs(*parts: dict) -> list:
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "a", "output": list(parts)}]


def gemini(*parts: dict, role: str = "user") -> list:
    return [{"role": role, "parts": list(parts)}]


def answered(*parts: dict) -> list:
    call = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2ln"}
    response = {"name": "look", "response": {"output": ""}, "parts": list(parts)}
    return [
        *gemini({"text": "hi"}),
        *gemini(call, role="model"),
        *gemini({"functionResponse": response}),
    ]


def image(data: str = DATA, media_type: str = "image/png") -> dict:
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def document(**source: str) -> dict:
    return {"type": "document", "source": source}


def result(*blocks: dict, **fields: object) -> list:
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    used = {"type": "tool_result", "tool_use_id": "a", "content": list(blocks), **fields}
    return [*chat({"type": "text", "text": "hi"}), {"role": "assistant", "content": [use]},
            *chat(used)]  # fmt: skip


def cited(role: str, *citations: object) -> list:
    text = {"type": "text", "text": "so it is", "citations": list(citations)}
    if role == "user":
        return chat(text)
    return [*chat({"type": "text", "text": "hi"}), {"role": role, "content": [text]}]


def asked(*items: dict) -> list:
    return [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": list(items)}]}]


def url(data: str = DATA, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{data}"


PICTURE = {"type": "text", "text": "a picture"}
OLD = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
LARGE = "aGkh" * (6 << 18)

BROKEN = [
    (CHAT, 12, chat({"type": "image_url", "image_url": {"url": "ftp://example.org"}})),
    (CHAT, 12, chat({"type": "image_url", "image_url": {"url": url("no base64")}})),
    (CHAT, 12, chat({"type": "image_url", "image_url": {"url": url("")}})),
    (CHAT, 12, chat({"type": "image_url", "image_url": {"url": url(DATA, "image/bmp")}})),
    (CHAT, 12, chat({"type": "image_url", "image_url": {**OLD["image_url"], "detail": "x"}})),
    (CHAT, 12, chat({"type": "image_url"})),
    (CHAT, 12, chat({"type": "input_audio", "input_audio": {"data": DATA, "format": "ogg"}})),
    (CHAT, 12, chat({"type": "input_audio", "input_audio": {"data": "no", "format": "wav"}})),
    (CHAT, 12, chat({"type": "file", "file": {"file_id": ""}})),
    (CHAT, 12, chat({"type": "file", "file": {"file_id": "f", "file_data": url()}})),
    (CHAT, 12, chat({"type": "file", "file": {"file_data": url(DATA, "text/plain")}})),
    (RESPONSES, 16, responses({"type": "input_image", "image_url": url(DATA, "image/bmp")})),
    (RESPONSES, 16, responses({"type": "input_image", "image_url": url(), "file_id": "f"})),
    (RESPONSES, 16, responses({"type": "input_image", "image_url": url(), "detail": "x"})),
    (RESPONSES, 16, responses({"type": "input_image"})),
    (RESPONSES, 16, outputs({"type": "input_image", "image_url": url("no base64")})),
    (RESPONSES, 16, outputs({"type": "input_file", "file_url": "file:///etc/passwd"})),
    (RESPONSES, 16, outputs({"type": "input_file", "file_data": url(DATA, "audio/wav")})),
    (CHAT, 8, [{"role": "assistant", "content": [{"type": "refusal"}]}]),
    (RESPONSES, 13, responses({"type": "input_text"})),
    (RESPONSES, 13, [{"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}]),
    (RESPONSES, 12, outputs({"type": "input_text", "text": None})),
    ("anthropic", 17, chat(image(media_type="image/bmp"))),
    ("anthropic", 17, chat(image("no base64"))),
    ("anthropic", 17, chat(image(""))),
    ("anthropic", 17, chat(image("aGkh" * (3 << 20)))),
    ("anthropic", 17, chat(document(type="base64", media_type="text/plain", data=DATA))),
    ("anthropic", 17, chat(document(type="text", media_type="text/plain", data=" "))),
    ("anthropic", 17, chat(document(type="url", url="http://example.org/a.pdf"))),
    ("anthropic", 17, chat(document(type="file", file_id=""))),
    ("anthropic", 17, chat(document(type="unheard-of"))),
    ("anthropic", 17, chat({**document(type="file", file_id="f"), "title": "x" * 501})),
    ("anthropic", 17, chat({**document(type="file", file_id="f"), "title": ""})),
    ("anthropic", 17, result(image("no base64"))),
    ("anthropic", 18, [*chat(PICTURE), {"role": "assistant", "content": [image()]}]),
    ("anthropic", 19, cited("user", {"type": "char_location"})),
    ("anthropic", 19, cited("assistant", "example.org")),
    ("anthropic", 20, result(OLD)),
    ("anthropic", 20, result({"type": "tool_result", "tool_use_id": "b", "content": "nested"})),
    ("anthropic", 20, result(PICTURE, image(), is_error=True)),
    ("anthropic", 21, chat(*[image()] * 601)),
    ("anthropic", 21, result(*[image(LARGE)] * 6)),
    ("gemini", 16, gemini({"inlineData": {"mimeType": "image/gif", "data": DATA}})),
    ("gemini", 16, gemini({"inlineData": {"data": DATA}})),
    ("gemini", 16, gemini({"inlineData": {"mimeType": "image/png", "data": "no base64"}})),
    ("gemini", 16, gemini({"fileData": {"mimeType": "image/png"}})),
    ("gemini", 16, gemini({"file_data": {"mime_type": "image/gif", "file_uri": "https://e.org"}})),
    ("gemini", 16, answered({"inlineData": {"mimeType": "image/png", "data": ""}})),
    ("gemini", 16, answered({"text": "no file"})),
    ("pydantic-ai", 13, asked({"kind": "binary", "data": "no base64", "media_type": "image/png"})),
    ("pydantic-ai", 13, asked({"kind": "binary", "data": DATA})),
    ("pydantic-ai", 13, asked({"kind": "image-url"})),
    ("pydantic-ai", 13, asked({"kind": "uploaded-file", "file_id": "f"})),
    ("pydantic-ai", 13, asked({"kind": "uploaded-file", "file_id": "f", "provider_name": "x"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "messages"), BROKEN)
def test_the_rule_for_files_that_is_broken_is_named(name, rule, messages):
    """Each has one mistake in it, and no other."""
    assert [problem.rule for problem in FORMATS[name].check(messages)] == [rule]


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("openai-chat", chat(OLD, {"type": "file", "file": {"file_id": "file-1"}})),
        (CHAT, [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}]),
        (CHAT, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]),
        (RESPONSES, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]),
        ("openai-responses", responses({"type": "input_image", "file_id": "file-1"})),
        ("openai-responses", outputs({"type": "input_file", "file_url": "https://example.org/a"})),
        ("anthropic", chat(image(LARGE), document(type="content", content="in pieces"))),
        ("anthropic", result(PICTURE, image(), {"type": "search_result"})),
        ("anthropic", result(PICTURE, is_error=True)),
        ("anthropic", cited("assistant", {"type": "char_location"})),
        ("gemini", gemini({"fileData": {"fileUri": "https://example.org/a"}})),
        ("gemini", answered({"inlineData": {"mimeType": "application/pdf", "data": DATA}})),
    ],
)
def test_files_that_are_right_are_taken(name, messages):
    assert FORMATS[name].check(messages) == []


GIF = e.Media("image/gif", e.Linked("https://example.org/a.gif"))


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("anthropic", attached(b"x" * (8 << 20), "image/png")),
        ("anthropic", attached(b"x" * (24 << 20), "application/pdf")),
        ("gemini", GIF),
        ("gemini", e.Media("image/gif", e.Uploaded("gemini", "files/1"))),
    ],
    ids=["image", "document", "link", "upload"],
)
def test_a_file_that_the_provider_would_refuse_is_told_in_words(name, media):
    """Each later request has it too, so the conversation could not go on."""
    text = json.dumps(FORMATS[name].write((User((e.Text("Look."), media)),)))
    assert json.dumps(described(media))[1:-1] in text


def test_the_title_of_a_document_has_the_length_that_anthropic_takes():
    named = attached(b"%PDF", "application/pdf", "x" * 600)
    payload = FORMATS["anthropic"].write((User((named,)),))
    assert payload["messages"][0]["content"][0]["title"] == "x" * 500
    assert FORMATS["anthropic"].check(payload) == []


@EVERY
@pytest.mark.parametrize("said", [e.Text("It is on its way. \n"), e.Refusal("I will not. ")])
def test_a_history_that_ends_in_a_blank_is_taken(name, said):
    """As one of a conversation that is complete. Anthropic refuses it if the model said it last."""
    entries = (User("hi"), Assistant(1, (said,)))
    assert FORMATS[name].check(FORMATS[name].write(entries)) == []
    whole = FORMATS[name].write((*entries, User("And now?")))
    assert json.dumps(said.text)[1:-1] in json.dumps(whole)
