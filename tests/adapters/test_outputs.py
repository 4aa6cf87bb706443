"""What a tool returned, as the ledger records it: its files are files, and it is never too much."""

import base64
import hashlib
import importlib
from typing import Any

import pytest
from pictures import PDF, PNG, WAV, png

from ayes.adapters.outputs import MAX_OUTPUT, kept, output_of, recordable
from ayes.ledger.in_memory import Memory
from ayes.schemas import events as e
from ayes.schemas.content import MAX_FILE_BYTES, attached
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused, LedgerFull

LARGE = png(160, 160, level=0)
DIGEST = hashlib.sha256(LARGE).hexdigest()
PICTURE = attached(LARGE, "image/png", "chart.png")
TEXT = e.Text("Refunds by month.")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bytes_are_files(item: Any) -> e.Media | None:
    """A framework whose files are bytes; empty ones are broken."""
    if isinstance(item, bytes) and not item:
        raise BadInput("an empty file")
    return attached(item, "image/png") if isinstance(item, bytes) else None


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("as it is", "as it is"),
        ({"amount": 1}, '{"amount":1}'),
        (["a", "b"], '["a","b"]'),
        ([{"type": "text", "text": "a"}], '[{"type":"text","text":"a"}]'),
        (PNG, (attached(PNG, "image/png"),)),
        (PICTURE, (PICTURE,)),
        (["a", PNG], (e.Text("a"), attached(PNG, "image/png"))),
        (({"type": "text", "text": "a"}, PNG), (e.Text("a"), attached(PNG, "image/png"))),
        ([{"amount": 1}, PNG], (e.Text('{"amount":1}'), attached(PNG, "image/png"))),
        ([b"", PNG], (e.Text('""'), attached(PNG, "image/png"))),
    ],
)
def test_a_result_is_one_text_unless_it_has_files(value: Any, output: e.Content):
    """A value that lists texts and files is these parts; anything else stays one text."""
    assert output_of(value, bytes_are_files) == output


def test_what_cannot_be_recorded_is_told_in_words():
    """A file that no fact can hold is described, and the rest is recorded. Texts that are too long
    together are summarised, beside the files.
    """
    broken = e.Media("image/png", e.Inline("no base64"))
    huge = attached(b"x" * (MAX_FILE_BYTES + 1), "video/mp4", "film.mp4")
    described, film, half = recordable((broken, huge, e.Text("half \ud800")), lambda parts: parts)
    assert described.text == (
        "[image/png, 6 bytes] was not recorded: its data is not base64 (RFC 4648, section 4)."
    )
    assert film.text.startswith("[video/mp4 'film.mp4', 33,554,433 bytes] was not recorded:")
    assert half == e.Text("half ?")
    long = e.Text("x" * MAX_OUTPUT)
    summary, picture = recordable((long, PICTURE, long), lambda parts: parts)
    assert f'"bytes":{2 * MAX_OUTPUT + 2}' in summary.text
    assert picture == PICTURE
    assert "not_recorded" in recordable(object(), lambda value: 1 / 0)


class Store(Memory):
    """A log whose store of files answers with these problems first."""

    def __init__(self, *problems: Exception) -> None:
        super().__init__()
        self.problems = list(problems)

    async def keep_piece(self, subject: str, piece: bytes) -> bool:
        if self.problems:
            raise self.problems.pop(0)
        return await super().keep_piece(subject, piece)


async def test_a_large_file_is_stored_after_the_broker_was_away():
    """It is waited for, as it is for a fact. Small files are recorded in the fact."""
    small = attached(PDF, "application/pdf")
    store = Store(BrokerAway("no broker answered"))
    source = e.Stored(DIGEST, len(LARGE), store.file_place(DIGEST))
    stored = e.Media("image/png", source, "chart.png")
    assert await kept(store, "shop", (TEXT, small, PICTURE)) == (TEXT, small, stored)
    assert await kept(store, "shop", "a text") == "a text"


@pytest.mark.parametrize("problem", [LedgerFull("no room"), BrokerRefused("not you")])
async def test_a_store_that_takes_no_file_keeps_no_call_open(problem: Exception):
    """The file is described instead, with its digest."""
    named = f"[image/png 'chart.png', {len(LARGE):,} bytes]"
    told = e.Text(f"{named} could not be stored. Its SHA-256 is {DIGEST}.")
    assert await kept(Store(problem), "shop", (TEXT, PICTURE)) == (TEXT, told)


# ------------------------------------------------------------------------- the forms of frameworks

URL = f"data:image/png;base64,{encoded(PNG)}"
IMAGE = attached(PNG, "image/png")
LINK = e.Media("image/*", e.Linked("https://shop.example/chart.png"))


def adapter_of(name: str, *packages: str) -> Any:
    for package in packages or (name,):
        pytest.importorskip(package)
    return importlib.import_module(f"ayes.adapters.{name}")


def test_files_of_anthropic():
    """Images and documents, by their bytes or a link. What the provider would not take is told."""
    anthropic = adapter_of("anthropic")

    def image(**source: str) -> dict[str, Any]:
        return {"type": "image", "source": source}

    inline = image(type="base64", media_type="image/png", data=encoded(PNG))
    page = {"type": "base64", "media_type": "application/pdf", "data": encoded(PDF)}
    for value, output in (
        ([TEXT.text, inline], (TEXT, IMAGE)),
        (image(type="url", url=LINK.source.url), (LINK,)),
        (
            {"type": "document", "source": page, "title": "May"},
            (attached(PDF, "application/pdf", "May"),),
        ),
    ):
        assert anthropic._output(value) == output
        block = anthropic._block("toolu_1", output)
        assert anthropic._output(block["content"]) == output
    sound = anthropic._block("toolu_1", (TEXT, attached(WAV, "audio/wav")))
    assert sound["content"] == f"{TEXT.text}\n\n[audio/wav, {len(WAV)} bytes]"


def test_files_of_pydantic_ai():
    """Its binaries and links; and what a `ToolReturn` tells the model beside the value."""
    adapter = adapter_of("pydantic_ai")
    from pydantic_ai import ToolReturn
    from pydantic_ai.messages import BinaryContent, ImageUrl, TextContent

    image = BinaryContent(PNG, media_type="image/png")
    for value, output in (
        (image, (IMAGE,)),
        ([TEXT.text, image, ImageUrl(LINK.source.url)], (TEXT, IMAGE, _png_link())),
        ({"amount": 1}, '{"amount":1}'),
    ):
        assert adapter._output(value) == output
        assert adapter._output(adapter._given(output)) == output
    again = adapter._given((IMAGE,))
    assert (again.data, again.media_type) == (image.data, image.media_type)
    told = ToolReturn({"amount": 1}, content=[TextContent(TEXT.text), image])
    assert adapter._output(told) == (e.Text('{"amount":1}'), TEXT, IMAGE)
    assert adapter._output(ToolReturn("paid", metadata=image)) == "paid"


def _png_link() -> e.Media:
    return e.Media("image/png", LINK.source)


def test_files_of_langchain():
    """Standard blocks, and those of providers that the library knows. No artifact is recorded."""
    adapter = adapter_of("langchain", "langchain", "langgraph")
    from langchain_core.messages import ToolMessage

    text = {"type": "text", "text": TEXT.text}
    page = {"mime_type": "application/pdf", "base64": encoded(PDF), "filename": "may.pdf"}
    anthropic = {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}
    for blocks, output in (
        (
            [text, {"type": "image", "base64": encoded(PNG), "mime_type": "image/png"}],
            (TEXT, IMAGE),
        ),
        ([TEXT.text, {"type": "image_url", "image_url": {"url": URL}}], (TEXT, IMAGE)),
        ([{"type": "image", "source": anthropic}], (IMAGE,)),
        ([{"type": "image", "url": LINK.source.url}], (LINK,)),
        ([{"type": "file", **page}], (attached(PDF, "application/pdf", "may.pdf"),)),
        ([text], f'[{{"type":"text","text":"{TEXT.text}"}}]'),
        (TEXT.text, TEXT.text),
    ):
        message = ToolMessage(blocks, tool_call_id="call_9", artifact=PNG)
        assert adapter._output(message) == output
        again = ToolMessage(adapter._given(output), tool_call_id="call_9")
        assert adapter._output(again) == output
    sound = {"type": "audio", "base64": encoded(WAV), "mime_type": "audio/wav"}
    assert adapter._given((attached(WAV, "audio/wav"),)) == [sound]


def test_files_of_openai_agents():
    """The SDK's images and files, as objects or as JSON. What is not taken is told in words."""
    adapter = adapter_of("openai_agents", "agents")
    from agents import ToolOutputFileContent, ToolOutputImage, ToolOutputText

    page = attached(PDF, "application/pdf", "may.pdf")
    uploaded = e.Media("image/*", e.Uploaded("openai", "file-1"), detail="low")
    for value, output in (
        ([ToolOutputText(text=TEXT.text), ToolOutputImage(image_url=URL)], (TEXT, IMAGE)),
        ({"type": "image", "image_url": LINK.source.url}, (LINK,)),
        (ToolOutputImage(file_id="file-1", detail="low"), (uploaded,)),
        (ToolOutputFileContent(file_data=encoded(PDF), filename="may.pdf"), (page,)),
        ({"amount": 1}, '{"amount":1}'),
    ):
        assert adapter._output(value) == output
        assert adapter._output(adapter._given(output)) == output
    assert adapter._given((TEXT, IMAGE)) == [
        ToolOutputText(text=TEXT.text),
        ToolOutputImage(image_url=URL),
    ]
    told = adapter._given((attached(WAV, "audio/wav"),))
    assert told == f"[audio/wav, {len(WAV)} bytes]"
