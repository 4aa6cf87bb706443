"""What messages and outputs consist of: texts and files, and the words for what is not text.

A text alone is recorded as a text (`content_of`), so that one content has one form.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Final

from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.limits import cited

#: The largest file that is kept, in bytes.
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
#: Files of up to so many bytes are recorded in the fact itself.
INLINE_BYTES: Final = 16 * 1024


def content_of(parts: Iterable[e.Text | e.Media]) -> e.Content:
    """The content that consists of these parts."""
    whole = tuple(parts)
    match whole:
        case ():
            return ""
        case (e.Text(text=text, citations=()),):
            return text
        case _:
            return whole


def parts_of(content: e.Content) -> tuple[e.Text | e.Media, ...]:
    """The parts of a content; an empty text is one part."""
    return (e.Text(content),) if isinstance(content, str) else content


def files_of(content: e.Content) -> tuple[e.Media, ...]:
    """The files in a content, in their order."""
    return tuple(part for part in parts_of(content) if isinstance(part, e.Media))


def words(content: e.Content) -> str:
    """The content for readers of text alone: its texts as paragraphs, and its files in words."""
    if isinstance(content, str):
        return content
    return "\n\n".join(
        part.text if isinstance(part, e.Text) else described(part) for part in content
    )


def spoken(part: e.Part) -> str | None:
    """What the model says in this part, for readers of text alone; None if it says nothing."""
    match part:
        case e.Text(text=text) | e.Refusal(text=text):
            return text
        case e.Media():
            return described(part)
        case e.Wish() | e.Opaque():
            return None


def described(media: e.Media) -> str:
    """A file in words, such as `[image/png "chart.png", 12,345 bytes]`.

    Models read it, so the words of a file never change (`History.digest`).
    """
    match media.source:
        case e.Linked(url=url):
            whence = f", {cited(url)}"
        case e.Uploaded(provider=provider):
            whence = f", uploaded to {cited(provider)}"
        case e.Inline() | e.Stored() as held:
            whence = f", {size_of(held):,} bytes"
    named = f" {cited(media.name)}" if media.name else ""
    return f"[{media.media_type}{named}{whence}]"


def size_of(held: e.Inline | e.Stored) -> int:
    """The number of bytes of a file."""
    if isinstance(held, e.Stored):
        return held.size
    return len(held.data) * 3 // 4 - held.data[-2:].count("=")


def inline(media_type: str, data: bytes, name: str = "") -> e.Media:
    """A file with its bytes. Those of a large one are stored when a fact with it is appended.

    Raises:
        BadInput: it has more than `MAX_FILE_BYTES`.
    """
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(
            f"the file {cited(name)} has {len(data):,} bytes, and one may have "
            f"{MAX_FILE_BYTES:,}. Pass a link to it."
        )
    return e.Media(media_type, e.Inline(base64.b64encode(data).decode()), name)


def bytes_of(held: e.Inline) -> bytes:
    """The bytes of a file.

    Raises:
        BadInput: the text is not base64.
    """
    try:
        return base64.b64decode(held.data, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the data of a file is not base64 (RFC 4648, section 4).") from None
