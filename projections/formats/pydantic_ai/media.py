"""Files in Pydantic AI's messages (`BinaryContent`, the URL types and `UploadedFile` of its
`messages.py`). The name of a file is lost.

The library decides with each model whether it can send a file, downloads what the provider does not
fetch, and raises where it can do neither.
"""

from typing import Any, Final

from ayes.projections.formats.common import UNKNOWN_TYPE, JsonObject
from ayes.schemas.content import decoded, problem_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Inline, Linked, Media, Uploaded

#: The kinds of content that are files.
_URLS: Final = {"image-url": "image", "audio-url": "audio", "video-url": "video"}
#: Their media types if they have none of their own.
_TYPES: Final = {kind: f"{what}/*" for kind, what in _URLS.items()}
KINDS: Final = ("binary", *_URLS, "document-url", "uploaded-file")
#: The services whose uploaded files it knows, by our names for them.
_SERVICES: Final = {
    "anthropic": "anthropic",
    "openai": "openai",
    "gemini": "google",
    "google-cloud": "google-cloud",
    "bedrock": "bedrock",
    "xai": "xai",
}
_STANDARD: Final = str.maketrans("-_", "+/")
_URL_SAFE: Final = str.maketrans("+/", "-_")


def takes(media: Media) -> bool:
    """Whether its messages can hold this file."""
    match media.source:
        case Inline():
            return not media.media_type.endswith("*")
        case Linked(url=url):
            return url.startswith(("https://", "http://"))
        case Uploaded(provider=provider):
            return provider in _SERVICES
        case _:
            return False


def item_of(media: Media) -> JsonObject:
    """The item of a file that its messages can hold."""
    detail = {"vendor_metadata": {"detail": media.detail}} if media.detail else {}
    is_known = not media.media_type.endswith("/*") and media.media_type != UNKNOWN_TYPE
    kind = {"media_type": media.media_type} if is_known else {}
    match media.source:
        case Inline(data=data):
            bytes_ = {"data": data.translate(_URL_SAFE), "media_type": media.media_type}
            return {**bytes_, **detail, "kind": "binary"}
        case Linked(url=url):
            of = media.media_type.partition("/")[0]
            name = next((one for one, what in _URLS.items() if what == of), "document-url")
            return {"url": url, **detail, "kind": name, **kind}
        case Uploaded(provider=provider, id=id_):
            file = {"file_id": id_, "provider_name": _SERVICES[provider]}
            return {**file, **detail, "kind": "uploaded-file", **kind}
        case _:
            raise AssertionError("not taken")


def is_file(item: Any) -> bool:
    """Whether an item is a file."""
    return isinstance(item, dict) and item.get("kind") in KINDS


def read_media(item: JsonObject) -> Media:
    """The file of an item.

    Raises:
        BadInput: it cannot be kept.
    """
    metadata = item.get("vendor_metadata") or {}
    detail = metadata.get("detail", "") if isinstance(metadata, dict) else None
    kind = item.get("media_type") or _TYPES.get(item["kind"], UNKNOWN_TYPE)
    if not isinstance(detail, str) or set(metadata) > {"detail"} or not isinstance(kind, str):
        raise BadInput("a file has vendor_metadata that cannot be kept.")
    match item:
        case {"kind": "binary", "data": str(data)}:
            media = Media(kind, Inline(data.translate(_STANDARD)), detail=detail)
        case {"kind": "uploaded-file", "file_id": str(id_), "provider_name": str(service)}:
            provider = next((one for one, name in _SERVICES.items() if name == service), service)
            media = Media(kind, Uploaded(provider, id_), detail=detail)
        case {"url": str(url)} if not item.get("force_download"):
            media = Media(kind, Linked(url), detail=detail)
        case _:
            raise BadInput(f"a file of kind {item['kind']!r} has no form that is known.")
    if (wrong := problem_of(media)) or not takes(media):
        raise BadInput(f"a file cannot be kept: {wrong or 'the library does not know it.'}")
    return media


def item_problem(item: JsonObject) -> str:
    """Why the library would not load a file; empty if it would."""
    match item:
        case {"kind": "binary", "data": str(data), "media_type": str()}:
            whole = decoded(Inline(data.translate(_STANDARD))) is not None
            return "" if whole else "the data of a file is not base64."
        case {"kind": "binary"}:
            return "a binary has `data` and a `media_type`."
        case {"kind": "uploaded-file", "file_id": str(), "provider_name": str(name)}:
            known = (*_SERVICES.values(), "google-gla", "google-vertex")
            return "" if name in known else f"a file's provider is one of {', '.join(known)}."
        case {"kind": "uploaded-file"}:
            return "an uploaded file has a `file_id` and a `provider_name`."
        case {"url": str()}:
            return ""
        case _:
            return f"a file of kind {item['kind']!r} has no `url`."
