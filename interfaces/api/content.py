"""Texts and files as programs send them (docs/decisions/0048)."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Discriminator, Field, Tag

from ayes.interfaces.api.base import ApiModel
from ayes.schemas import events as e
from ayes.schemas.content import content_of


class TextPart(ApiModel):
    """A text beside files."""

    part: Literal["text"]
    text: str


class InlineFile(ApiModel):
    """The bytes themselves. More than 64 KiB are stored beside the log, and referred to."""

    kept: Literal["inline"]
    #: Base64 (RFC 4648, section 4), with padding.
    data: str


class StoredFile(ApiModel):
    """Bytes that the workspace's store of files has already."""

    kept: Literal["stored"]
    #: The SHA-256 of the bytes.
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    #: The number of bytes.
    size: Annotated[int, Field(ge=0)]
    #: Where it is stored, as the fact that it was recorded with says.
    place: str = ""


class LinkedFile(ApiModel):
    """Bytes that the model's provider fetches. The ledger never fetches them."""

    kept: Literal["linked"]
    #: Where it is.
    url: str


class UploadedFile(ApiModel):
    """Bytes that were uploaded to the model's provider."""

    kept: Literal["uploaded"]
    #: `anthropic`, `openai` or `google`.
    provider: str
    #: Its id there.
    id: str


class FilePart(ApiModel):
    """An image or another file."""

    part: Literal["media"]
    media_type: str
    #: The bytes, or where they are.
    source: Annotated[
        InlineFile | StoredFile | LinkedFile | UploadedFile, Field(discriminator="kept")
    ]
    #: The file's name.
    name: str = ""
    #: How closely the model looks at an image, in the words of its provider.
    detail: str = ""


type Part = Annotated[TextPart | FilePart, Field(discriminator="part")]


def _form(given: object) -> str:
    return "parts" if isinstance(given, list) else "text"


#: A text, or texts and files in their order, with the fields that they have in the events.
type GivenContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], Tag("parts")], Discriminator(_form)
]


def as_recorded(given: str | Sequence[TextPart | FilePart]) -> e.Content:
    """The content in the form in which it is recorded."""
    if isinstance(given, str):
        return given
    parts = [part.model_dump() for part in given]
    return content_of(msgspec.convert(parts, list[e.Text | e.Media]))
