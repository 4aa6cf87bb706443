"""Files in OpenAI's two APIs (Images and vision, Audio, File inputs; API reference).

In Chat Completions all are in users' messages: images as links or data URLs, sounds as WAV or MP3,
PDFs by their bytes, and any file by the id under which it was uploaded. A tool's message is text.

In Responses they are also in the outputs of functions: images and documents (PDFs, texts, those of
an office), by their bytes or a link, and any file by its id.
"""

from typing import Any, Final

from msgspec.structs import replace

from ayes.projections.formats.common import (
    UNKNOWN_TYPE,
    JsonObject,
    data_url,
    from_data_url,
)
from ayes.schemas.content import decoded, problem_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Inline, Linked, Media, Uploaded

#: The owner of uploaded files; both of OpenAI's APIs have the same.
PROVIDER: Final = "openai"
IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF: Final = "application/pdf"
_SOUNDS: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}
#: The types of their parts.
FILES: Final = ("image_url", "input_audio", "file")
RESPONSES_FILES: Final = ("input_image", "input_file")
#: How closely a model looks at an image.
DETAILS: Final = ("auto", "low", "high", "original")
#: How closely it looks at the pages of a PDF, in Responses.
_FILE_DETAILS: Final = ("auto", "low", "high")
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
#: The documents that Responses reads, each with an ending for one without a name.
DOCUMENTS: Final = {
    PDF: "pdf",
    "text/plain": "txt",
    "text/markdown": "md",
    "text/html": "html",
    "text/xml": "xml",
    "text/csv": "csv",
    "application/json": "json",
    "application/rtf": "rtf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.oasis.opendocument.text": "odt",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}.presentationml.presentation": "pptx",
}


def takes(media: Media) -> bool:
    """Whether the provider takes this file in a user's message."""
    if media.detail not in ("", *DETAILS):
        return False
    match media.source:
        case Inline():
            return media.media_type in (*IMAGES, *_SOUNDS, PDF)
        case Linked(url=url):
            return media.media_type in (*IMAGES, "image/*") and is_link(url)
        case Uploaded(provider=provider):
            return provider == PROVIDER and not media.media_type.startswith("image/")
        case _:
            return False


def is_link(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def part_of(media: Media) -> JsonObject:
    """The part of a file that the provider takes."""
    detail = {"detail": media.detail} if media.detail else {}
    match media.source:
        case Uploaded(id=id_):
            return {"type": "file", "file": {"file_id": id_}}
        case Linked(url=url):
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        case Inline(data=data) if media.media_type in _SOUNDS:
            sound = {"data": data, "format": _SOUNDS[media.media_type]}
            return {"type": "input_audio", "input_audio": sound}
        case Inline() if media.media_type == PDF:
            file = {"filename": media.name or "file.pdf", "file_data": data_url(media)}
            return {"type": "file", "file": file}
        case _:
            return {"type": "image_url", "image_url": {"url": data_url(media), **detail}}


def read_media(part: JsonObject) -> Media:
    """The file of a part.

    Raises:
        BadInput: it cannot be kept.
    """
    match part:
        case {"type": "image_url", "image_url": {"url": str(url), **more}} if set(more) <= {
            "detail"
        }:
            media = from_data_url(url, "image")
            media = replace(media, detail=_text_of(more.get("detail")))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            media_type = next((name for name, one in _SOUNDS.items() if one == form), "")
            media = Media(media_type, Inline(data))
        case {"type": "file", "file": {"file_id": str(id_)}}:
            media = Media(UNKNOWN_TYPE, Uploaded(PROVIDER, id_))
        case {"type": "file", "file": {"file_data": str(url), **more}}:
            media = from_data_url(url)
            media = replace(media, name=_text_of(more.get("filename")))
        case _:
            raise BadInput(f"a part of type {part.get('type')!r} has no form that is known.")
    if (wrong := problem_of(media)) or not takes(media):
        raise BadInput(f"a file cannot be kept: {wrong or 'the provider does not take it.'}")
    return media


def _text_of(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise BadInput("the detail or the name of a file is not text.")


def media_problem(part: JsonObject) -> str:
    """Why the provider would refuse a part with a file; empty if it would not."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            if more.get("detail") not in (None, *DETAILS):
                return f"an image's detail is one of {', '.join(DETAILS)}."
            return "" if is_link(url) else _data_problem(url, IMAGES)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": form}}:
            if form not in _SOUNDS.values():
                return "a sound is of format wav or mp3."
            return "" if data and decoded(Inline(data)) is not None else _NOT_BASE64
        case {"type": "file", "file": {"file_id": str(id_), **more}}:
            return "" if id_ and not more.get("file_data") else "a file is its id, or its data."
        case {"type": "file", "file": {"file_data": str(url)}}:
            return _data_problem(url, (PDF,))
        case _:
            return f"a part of type {part['type']!r} lacks what it is about."


_NOT_BASE64: Final = "the data of a file is not base64."


def _data_problem(url: Any, types: tuple[str, ...]) -> str:
    head, comma, data = url.partition(";base64,")
    media_type = head.removeprefix("data:")
    if not comma or not head.startswith("data:") or media_type not in types:
        return f"a file in the message is a data URL, in base64, of {', '.join(types)}."
    return "" if data and decoded(Inline(data)) is not None else _NOT_BASE64


# --------------------------------------------------------------------------------------- Responses


def responses_takes(media: Media) -> bool:
    """Whether Responses takes this file in a user's message or an output."""
    is_image = media.media_type in (*IMAGES, "image/*")
    if media.detail not in ("", *DETAILS):
        return False
    match media.source:
        case Inline():
            return media.media_type in (*IMAGES, *DOCUMENTS)
        case Linked(url=url):
            return is_link(url) and (is_image or media.media_type in (*DOCUMENTS, UNKNOWN_TYPE))
        case Uploaded(provider=provider):
            return provider == PROVIDER
        case _:
            return False


def responses_part_of(media: Media) -> JsonObject:
    """The part of a file that Responses takes."""
    if media.media_type.startswith("image/"):
        image = {"type": "input_image", "detail": media.detail or "auto"}
        match media.source:
            case Uploaded(id=id_):
                return {**image, "file_id": id_}
            case Linked(url=url):
                return {**image, "image_url": url}
            case _:
                return {**image, "image_url": data_url(media)}
    named = {"filename": media.name} if media.name else {}
    detail = {"detail": media.detail} if media.detail in _FILE_DETAILS else {}
    match media.source:
        case Uploaded(id=id_):
            return {"type": "input_file", "file_id": id_, **detail}
        case Linked(url=url):
            return {"type": "input_file", "file_url": url, **named, **detail}
        case _:
            name = media.name or f"file.{DOCUMENTS[media.media_type]}"
            data = {"filename": name, "file_data": data_url(media)}
            return {"type": "input_file", **data, **detail}


def read_responses_media(part: JsonObject) -> Media:
    """The file of a part of Responses.

    Raises:
        BadInput: it cannot be kept.
    """
    given = {key: value for key, value in part.items() if value is not None}
    match given:
        case {"type": "input_image", "image_url": str(url)} if "file_id" not in given:
            media = from_data_url(url, "image")
        case {"type": "input_image", "file_id": str(id_)} if "image_url" not in given:
            media = Media("image/*", Uploaded(PROVIDER, id_))
        case {"type": "input_file", "file_data": str(url)}:
            media = from_data_url(url)
        case {"type": "input_file", "file_url": str(url)}:
            media = Media(UNKNOWN_TYPE, Linked(url))
        case {"type": "input_file", "file_id": str(id_)}:
            media = Media(UNKNOWN_TYPE, Uploaded(PROVIDER, id_))
        case _:
            raise BadInput("a file in it has no form that is known.")
    media = replace(media, detail=_text_of(part.get("detail")), name=_text_of(part.get("filename")))
    if (wrong := problem_of(media)) or not responses_takes(media):
        raise BadInput(f"a file cannot be kept: {wrong or 'the provider does not take it.'}")
    return media


def responses_problem(part: JsonObject) -> str:
    """Why Responses would refuse a part with a file; empty if it would not."""
    keys = ("image_url", "file_id") if part["type"] == "input_image" else _FILE_KEYS
    given = {key: part[key] for key in keys if part.get(key) is not None}
    if len(given) != 1 or not all(isinstance(value, str) and value for value in given.values()):
        return f"a part of type {part['type']} has exactly one of {', '.join(keys)}."
    details = DETAILS if part["type"] == "input_image" else _FILE_DETAILS
    if part.get("detail") not in (None, *details):
        return f"the detail of a part of type {part['type']} is one of {', '.join(details)}."
    match given:
        case {"image_url": url} if not is_link(url):
            return _data_problem(url, IMAGES)
        case {"file_url": url} if not is_link(url):
            return "the file's link is not one of the web."
        case {"file_data": url}:
            return _data_problem(url, tuple(DOCUMENTS))
        case _:
            return ""


_FILE_KEYS: Final = ("file_data", "file_url", "file_id")
