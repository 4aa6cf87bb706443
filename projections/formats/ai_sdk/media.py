"""Files in the Vercel AI SDK's messages (`prompt/content-part.ts`, `ui/ui-messages.ts`, version 6).

In `ModelMessage` lists a file's `data` is base64 or a URL, and the items of an output say which; in
`UIMessage` lists a file has a `url`, which may be a data URL. How closely a model looks at an image
is lost.
"""

from typing import Any

from ayes.projections.formats.common import (
    UNKNOWN_TYPE,
    JsonObject,
    data_url,
    from_data_url,
    is_taken,
    unreadable,
)
from ayes.schemas.content import problem_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Inline, Linked, Media


def takes(media: Media) -> bool:
    """Whether a message of this form can hold the file."""
    match media.source:
        case Inline():
            return not media.media_type.endswith("*")
        case Linked(url=url):
            return url.startswith(("https://", "http://"))
        case _:
            return False


def takes_of_model(media: Media) -> bool:
    """Whether a message of the model can hold the file."""
    return isinstance(media.source, Inline) and is_taken(media, takes)


def _where(media: Media) -> str:
    """The base64 of a file, or the link to it."""
    assert isinstance(media.source, Inline | Linked)
    return media.source.data if isinstance(media.source, Inline) else media.source.url


def _named(media: Media) -> JsonObject:
    return {"filename": media.name} if media.name else {}


def part_of(media: Media) -> JsonObject:
    """A file of a `ModelMessage`."""
    return {"type": "file", "data": _where(media), "mediaType": media.media_type, **_named(media)}


def item_of(media: Media) -> JsonObject:
    """A file in an output of type `content`."""
    what = "image" if media.media_type.startswith("image/") else "file"
    if isinstance(media.source, Linked):
        return {"type": f"{what}-url", "url": media.source.url}
    named = _named(media) if what == "file" else {}
    return {"type": f"{what}-data", "data": _where(media), "mediaType": media.media_type, **named}


def ui_part_of(media: Media) -> JsonObject:
    """A file of a `UIMessage`."""
    url = data_url(media) if isinstance(media.source, Inline) else _where(media)
    return {"type": "file", "mediaType": media.media_type, **_named(media), "url": url}


def read_media(at: int, part: JsonObject) -> Media:
    """The file of a part or an item.

    Raises:
        BadInput: it cannot be kept.
    """
    kind = part.get("mediaType")
    match part:
        case {"type": "file" | "image", "url": str(where)} | {"type": "file", "data": str(where)}:
            media = _found(at, where, kind)
        case {"type": "image", "image": str(where)}:
            media = _found(at, where, kind or "image/*")
        case {"type": "file-data" | "image-data" | "media", "data": str(where)}:
            media = _found(at, where, kind)
        case {"type": "image-url", "url": str(where)}:
            media = _found(at, where, "image/*")
        case {"type": "file-url", "url": str(where)}:
            media = _found(at, where, UNKNOWN_TYPE)
        case _:
            raise unreadable(at, f"a part of type {part['type']!r} cannot be kept.")
    name = part.get("filename")
    media = Media(media.media_type, media.source, name if isinstance(name, str) else "")
    if (wrong := problem_of(media)) or not takes(media):
        raise unreadable(at, f"a file cannot be kept: {wrong or 'it is of no known form.'}")
    return media


def media_in(at: int, part: JsonObject) -> Media | None:
    """The file of a model's part; None if only its form can hold it."""
    if "providerOptions" in part or "providerMetadata" in part:
        return None
    try:
        return read_media(at, part)
    except BadInput:
        return None


def _found(at: int, where: str, kind: Any) -> Media:
    """The file behind base64, a link, or a data URL, whose own media type counts."""
    if where.startswith("data:"):
        return from_data_url(at, where)
    if not isinstance(kind, str):
        raise unreadable(at, "a file has no `mediaType`.")
    if where.startswith(("https://", "http://")):
        return Media(kind, Linked(where))
    return Media(kind, Inline(where))
