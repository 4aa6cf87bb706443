"""The content of messages and outputs: texts and files, and the words that describe a file.

A text alone is recorded as a text (`content_of`), so that one content has one form.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from ayes.schemas import events as e
from ayes.schemas.limits import cited

#: The largest file that is stored, in bytes.
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
#: The most bytes of files that are recorded in one fact itself. The others are stored.
INLINE_BYTES: Final = 64 * 1024
#: Such as `image/png`; or `image/*`, if only the kind is known (RFC 6838).
MEDIA_TYPE: Final = re.compile(r"[a-z]+/(\*|[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126})", re.ASCII)

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
#: A role and an id; none in older logs.
PLACE: Final = r"[a-z0-9-]{1,64}\.[0-9a-f]{32}"
_PLACE: Final = re.compile(PLACE, re.ASCII)


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


def files_in(event: e.Event) -> tuple[e.Media, ...]:
    """The files in a message, an output or a model's reply, in their order."""
    return tuple(part for part in _parts_in(event) if isinstance(part, e.Media))


def with_files[E: e.Event](event: E, changed: Mapping[e.Media, e.Media]) -> E:
    """The event with other files in the places of these."""
    parts = tuple(
        changed.get(part, part) if isinstance(part, e.Media) else part for part in _parts_in(event)
    )
    match event:
        case e.Said():
            return replace(event, text=parts)
        case e.ToolReturned() | e.Reconciled():
            return replace(event, output=parts)
        case e.ModelReplied():
            return replace(event, parts=parts)
        case _:
            return event


def by_digest(event: e.Event) -> e.Event:
    """The event with its files as their digests, wherever their bytes are, to be compared."""
    found = {media: replace(media, source=_by_digest(media.source)) for media in files_in(event)}
    return with_files(event, found) if found else event


def _by_digest(source: e.Source) -> e.Source:
    match source:
        case e.Stored():
            return replace(source, place="")
        case e.Inline() as held if (data := decoded(held)) is not None:
            return e.Stored(sha256(data).hexdigest(), len(data))
        case _:
            return source


def _parts_in(event: e.Event) -> tuple[e.Part, ...]:
    match event:
        case e.Said(text=content) | e.ToolReturned(output=content) | e.Reconciled(output=content):
            return parts_of(content)
        case e.ModelReplied(parts=parts):
            return parts
        case _:
            return ()


def words(content: e.Content) -> str:
    """The content for readers of text alone: its texts as paragraphs, and its files in words."""
    if isinstance(content, str):
        return content
    return "\n\n".join(
        part.text if isinstance(part, e.Text) else described(part) for part in content
    )


def spoken(part: e.Part) -> str | None:
    """The text of this part for readers of text alone; None if it has none."""
    match part:
        case e.Text():
            return with_sources(part)
        case e.Refusal(text=text):
            return text
        case e.Media():
            return described(part)
        case e.Wish() | e.Opaque():
            return None


def with_sources(text: e.Text) -> str:
    """The text, followed by its sources in words."""
    if not text.citations:
        return text.text
    sources = "; ".join(dict.fromkeys(map(_source, text.citations)))
    return f"{text.text}\n\n[Sources: {sources}]"


def _source(citation: e.Citation) -> str:
    named = [_quoted(citation.title)] if citation.title else []
    if citation.url:
        named.append(_quoted(citation.url))
    if not named and citation.quote:
        named.append(_quoted(citation.quote))
    return ", ".join(named) or "one that is not named"


def described(media: e.Media) -> str:
    """A file in words, such as `[image/png "chart.png", 12,345 bytes]`.

    Models read it, so the words of a file never change (`History.digest`).
    """
    match media.source:
        case e.Linked(url=url):
            whence = f", {_quoted(url)}"
        case e.Uploaded(provider=provider):
            whence = f", uploaded to {_quoted(provider)}"
        case e.Inline() | e.Stored() as held:
            whence = f", {size_of(held):,} bytes"
    named = f" {_quoted(media.name)}" if media.name else ""
    return f"[{media.media_type}{named}{whence}]"


def _quoted(text: str) -> str:
    """The text in quotation marks, as `repr` writes it. But what that escapes depends on Python's
    tables of Unicode, which grow with its versions; here a new character is itself.
    """
    mark = '"' if "'" in text and '"' not in text else "'"
    escaped = _ESCAPED.sub(lambda found: ascii(found[0])[1:-1], text)
    return mark + (escaped.replace("'", "\\'") if mark == "'" else escaped) + mark


#: The backslash, and controls, formats, separators, surrogates and what is for private use.
_ESCAPED: Final = re.compile(
    r"[\\\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e"
    r"\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff9-\ufffb\U000110bd"
    r"\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000f0000-\U0010ffff]"
)


def size_of(held: e.Inline | e.Stored) -> int:
    """The number of bytes of a file."""
    if isinstance(held, e.Stored):
        return held.size
    return len(held.data) * 3 // 4 - held.data[-2:].count("=")


def to_store(files: Iterable[e.Media]) -> tuple[e.Media, ...]:
    """Those files of one fact that are too large to be recorded in it."""
    left, large = INLINE_BYTES, []
    for media in files:
        if not isinstance(media.source, e.Inline):
            continue
        if (size := size_of(media.source)) > left:
            large.append(media)
        else:
            left -= size
    return tuple(large)


def is_sound(stored: e.Stored) -> bool:
    """Whether it can name a file of the store. A program of others may record anything."""
    return (
        _SHA256.fullmatch(stored.digest) is not None
        and 0 <= stored.size <= MAX_FILE_BYTES
        and (not stored.place or _PLACE.fullmatch(stored.place) is not None)
    )


def problem_of(media: e.Media) -> str:
    """Why this file cannot be recorded; empty if it can."""
    if not MEDIA_TYPE.fullmatch(media.media_type):
        return f"its media type {cited(media.media_type)} is not one such as image/png (RFC 6838)."
    match media.source:
        case e.Inline() as held if (size := size_of(held)) > MAX_FILE_BYTES:
            return f"it has {size:,} bytes, and one may have {MAX_FILE_BYTES:,}. Pass a link to it."
        case e.Inline() as held if decoded(held) is None:
            return "its data is not base64 (RFC 4648, section 4)."
        case e.Stored() as stored if not is_sound(stored):
            return (
                f"it has no SHA-256, a size that is not 0 to {MAX_FILE_BYTES:,} bytes, or a place "
                "that is none."
            )
        case e.Linked(url=url) if not url:
            return "its link is empty."
        case e.Uploaded(provider=provider, id=id_) if not (provider and id_):
            return "it does not say to which provider it was uploaded, under which id."
        case _:
            return ""


def attached(data: bytes, media_type: str, name: str = "") -> e.Media:
    """A file to say or to return. The bytes of a large one are stored when it is recorded."""
    return e.Media(media_type, e.Inline(base64.b64encode(data).decode()), name)


def decoded(held: e.Inline) -> bytes | None:
    """The bytes of a file; None if the text is not base64."""
    try:
        return base64.b64decode(held.data, validate=True)
    except (binascii.Error, ValueError):
        return None
