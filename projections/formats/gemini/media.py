"""Files in Gemini's `generateContent` (ai.google.dev: Image, Document, Audio and Video
understanding, Files API, "Multimodal function responses").

A file is `inlineData`, its bytes in base64, or `fileData`, a link or a file of Google's. The name
of a file is lost. In a function's response, files are beside its text: images, PDFs and plain text.
"""

from typing import Any, Final

from ayes.projections.formats.common import UNKNOWN_TYPE, JsonObject
from ayes.projections.formats.gemini.parts import NAME, inner, is_base64
from ayes.schemas.events import Inline, Linked, Media, Uploaded

IMAGES: Final = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
_DOCUMENTS: Final = ("application/pdf", "text/plain")
_IN_RESPONSES: Final = ("image/png", "image/jpeg", "image/webp", *_DOCUMENTS)
_KINDS: Final = ("text/", "audio/", "video/")
#: The beginnings of Google's own links.
_GOOGLES: Final = ("https://generativelanguage.googleapis.com/", "gs://", "files/")


def takes(media: Media) -> bool:
    """Whether the provider takes this file in a user's content."""
    match media.source:
        case Inline():
            return _is_known(media.media_type)
        case Linked(url=url):
            is_link = url.startswith("https://") and not url.startswith(_GOOGLES)
            return is_link and (_is_unknown(media.media_type) or _is_known(media.media_type))
        case Uploaded(provider=provider, id=id_):
            is_googles = provider == NAME and id_.startswith(_GOOGLES)
            return is_googles and (_is_unknown(media.media_type) or _is_known(media.media_type))
        case _:
            return False


def takes_in_responses(media: Media) -> bool:
    """Whether it takes this file beside the text of a function's response."""
    return isinstance(media.source, Inline) and media.media_type in _IN_RESPONSES


def takes_of_model(media: Media) -> bool:
    """Whether it takes this file as its model's own."""
    return isinstance(media.source, Inline) and media.media_type in IMAGES


def _is_known(media_type: str) -> bool:
    if media_type in (*IMAGES, *_DOCUMENTS):
        return True
    return media_type.startswith(_KINDS) and not media_type.endswith("*")


def _is_unknown(media_type: str) -> bool:
    """Whether it says nothing, so that the provider finds it out."""
    return media_type.endswith("/*") or media_type == UNKNOWN_TYPE


def part_of(media: Media) -> JsonObject:
    """The part of a file that the provider takes."""
    kind = {} if _is_unknown(media.media_type) else {"mimeType": media.media_type}
    match media.source:
        case Inline(data=data):
            return {"inlineData": {"mimeType": media.media_type, "data": data}}
        case Linked(url=uri) | Uploaded(id=uri):
            return {"fileData": {**kind, "fileUri": uri}}
        case _:
            raise AssertionError("not taken")


def _kind_of(found: JsonObject) -> Any:
    return found.get("mimeType", found.get("mime_type"))


def media_problem(part: JsonObject) -> str:
    """Why the provider would refuse a file; empty if it would not."""
    if "inlineData" in part:
        found = inner(part, "inlineData")
        kind, data = _kind_of(found), found.get("data")
        if not isinstance(kind, str) or not _is_known(kind):
            return f"`inlineData` is of a media type that is not taken: {kind!r}."
        return "" if is_base64(data) else "the data of `inlineData` is not base64."
    found = inner(part, "fileData")
    uri, kind = found.get("fileUri", found.get("file_uri")), _kind_of(found)
    if kind is not None and not (isinstance(kind, str) and _is_known(kind)):
        return f"`fileData` is of a media type that is not taken: {kind!r}."
    return "" if isinstance(uri, str) and uri else "`fileData` has no `fileUri`."
