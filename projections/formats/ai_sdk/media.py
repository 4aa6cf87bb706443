"""Files in the Vercel AI SDK's messages (`prompt/content-part.ts`, `ui/ui-messages.ts`, version 6).

In `ModelMessage` lists a file's `data` is base64 or a URL, and the items of an output say which; in
`UIMessage` lists a file has a `url`, which may be a data URL. How closely a model looks at an image
is lost.
"""

from ayes.projections.formats.common import (
    JsonObject,
    data_url,
    is_taken,
)
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
    """A file in an output of type `content`.

    By the media type of a link the SDK sees whether the provider takes links to such files. Where
    it is missing, the SDK fetches the file before it asks the provider.
    """
    what = "image" if media.media_type.startswith("image/") else "file"
    if isinstance(media.source, Linked):
        typed = {"mediaType": media.media_type} if what == "file" else {}
        return {"type": f"{what}-url", "url": media.source.url, **typed}
    named = _named(media) if what == "file" else {}
    return {"type": f"{what}-data", "data": _where(media), "mediaType": media.media_type, **named}


def ui_part_of(media: Media) -> JsonObject:
    """A file of a `UIMessage`."""
    url = data_url(media) if isinstance(media.source, Inline) else _where(media)
    return {"type": "file", "mediaType": media.media_type, **_named(media), "url": url}
