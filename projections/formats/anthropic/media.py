"""Images and documents in Anthropic Messages (Vision, PDF support, Files API).

An image is JPEG, PNG, GIF or WebP; a document is a PDF, or plain text. Both are in users' messages
and in results, by their bytes, by a link, or by the id of an uploaded file. A larger image than
`MAX_IMAGE`, or a file that no request has room for, is told in words; of a longer title the rest is
left out.
"""

import base64
from typing import Any, Final

from ayes.projections.formats.common import UNKNOWN_TYPE, JsonObject
from ayes.schemas.content import decoded, problem_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Inline, Linked, Media, Uploaded

PROVIDER: Final = "anthropic"
IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF: Final = "application/pdf"
PLAIN: Final = "text/plain"
#: The largest image, in characters of its base64 ("image exceeds 10 MB maximum"), and request.
MAX_IMAGE: Final = 10 * 1024 * 1024
MAX_REQUEST: Final = 32 * 1024 * 1024
#: The longest title of a document (Messages reference).
MAX_TITLE: Final = 500


def takes(media: Media) -> bool:
    """Whether the provider takes this file in a user's message or a result."""
    is_image = media.media_type in (*IMAGES, "image/*")
    match media.source:
        case Inline(data=data) if len(data) >= (MAX_IMAGE + 1 if is_image else MAX_REQUEST):
            return False
        case Inline():
            return media.media_type in (*IMAGES, PDF) or _plain_text(media) is not None
        case Linked(url=url):
            return url.startswith("https://") and (is_image or media.media_type == PDF)
        case Uploaded(provider=provider):
            return provider == PROVIDER
        case _:
            return False


def block_of(media: Media) -> JsonObject:
    """The block of a file that the provider takes."""
    kind = "image" if media.media_type.startswith("image/") else "document"
    title = {"title": media.name[:MAX_TITLE]} if media.name and kind == "document" else {}
    return {"type": kind, "source": _source(media), **title}


def _source(media: Media) -> JsonObject:
    match media.source:
        case Linked(url=url):
            return {"type": "url", "url": url}
        case Uploaded(id=id_):
            return {"type": "file", "file_id": id_}
        case Inline(data=data):
            if (text := _plain_text(media)) is not None:
                return {"type": "text", "media_type": PLAIN, "data": text}
            return {"type": "base64", "media_type": media.media_type, "data": data}
        case _:
            raise AssertionError("not taken")


def _plain_text(media: Media) -> str | None:
    """The text of a file that is plain text, and not blank."""
    if media.media_type != PLAIN or not isinstance(media.source, Inline):
        return None
    try:
        text = (decoded(media.source) or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if text.strip() else None


def read_media(block: JsonObject) -> Media:
    """The file of an image or a document.

    Raises:
        BadInput: it cannot be kept.
    """
    kind, title = block["type"], block.get("title") or ""
    match block.get("source"):
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            media = Media(media_type, Inline(data), title)
        case {"type": "text", "media_type": "text/plain", "data": str(text)}:
            encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
            media = Media(PLAIN, Inline(encoded), title)
        case {"type": "url", "url": str(url)}:
            media = Media("image/*" if kind == "image" else PDF, Linked(url), title)
        case {"type": "file", "file_id": str(id_)}:
            media_type = "image/*" if kind == "image" else UNKNOWN_TYPE
            media = Media(media_type, Uploaded(PROVIDER, id_), title)
        case _:
            raise BadInput(f"the source of a block of type {kind!r} is not known.")
    wrong = problem_of(media) if isinstance(title, str) else "its title is not text."
    if wrong or not takes(media):
        raise BadInput(f"a block of type {kind!r} cannot be kept: {wrong or 'see `check`.'}")
    return media


def source_problem(block: JsonObject) -> str:
    """Why the provider would refuse the source of an image or a document; empty if it would not."""
    kind: Any = block["type"]
    title = block.get("title")
    if title is not None and not (isinstance(title, str) and 1 <= len(title) <= MAX_TITLE):
        return f"its title is not text of 1 to {MAX_TITLE} characters."
    match block.get("source"):
        case {"type": "base64", "data": str(data)} if kind == "image" and len(data) > MAX_IMAGE:
            return f"it has {len(data):,} characters of base64, and an image {MAX_IMAGE:,} at most."
        case {"type": "base64", "media_type": media_type, "data": str(data)}:
            known = IMAGES if kind == "image" else (PDF,)
            if media_type not in known:
                return f"a block of type {kind!r} can be {', '.join(known)}, not {media_type!r}."
            return "" if data and decoded(Inline(data)) is not None else "its data is not base64."
        case {"type": "text", "media_type": "text/plain", "data": str(text)}:
            return "" if kind == "document" and text.strip() else "it has no text."
        case {"type": "url", "url": str(url)}:
            return "" if url.startswith("https://") else "its link is not one of https."
        case {"type": "file", "file_id": str(id_)}:
            return "" if id_ else "it names no file."
        case {"type": "content", "content": str() | list()} if kind == "document":
            return ""
        case _:
            return "its source is not base64, text, url or file."
