"""Texts and files, as programs send them and as visitors are shown them (docs/decisions/0048)."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal, Self

from pydantic import Discriminator, Field, Tag

from ayes.interfaces.api.base import ApiModel
from ayes.schemas import events as e
from ayes.schemas.content import content_of, decoded, files_in, is_sound, parts_of

# ------------------------------------------------------------------------------------------- sent


class TextPart(ApiModel):
    """A text beside files."""

    part: Literal["text"]
    text: str

    @property
    def event_part(self) -> e.Text:
        return e.Text(self.text)


class InlineFile(ApiModel):
    """The bytes themselves. More than 64 KiB are stored beside the log, and referred to."""

    kept: Literal["inline"]
    data: str
    """Base64 (RFC 4648, section 4), with padding."""

    @property
    def source(self) -> e.Source:
        return e.Inline(self.data)


class StoredFile(ApiModel):
    """Bytes that the workspace's store of files has already."""

    kept: Literal["stored"]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 of the bytes."""
    size: Annotated[int, Field(ge=0)]
    """The number of bytes."""
    place: str = ""
    """Where it is stored, as the fact that it was recorded with says."""

    @property
    def source(self) -> e.Source:
        return e.Stored(self.digest, self.size, self.place)


class LinkedFile(ApiModel):
    """Bytes that the model's provider fetches. The ledger never fetches them."""

    kept: Literal["linked"]
    url: str

    @property
    def source(self) -> e.Source:
        return e.Linked(self.url)


class UploadedFile(ApiModel):
    """Bytes that were uploaded to the model's provider."""

    kept: Literal["uploaded"]
    provider: str
    """`anthropic`, `openai` or `google`."""
    id: str

    @property
    def source(self) -> e.Source:
        return e.Uploaded(self.provider, self.id)


class FilePart(ApiModel):
    """An image or another file."""

    part: Literal["media"]
    media_type: str
    """Such as `image/png` (RFC 6838)."""
    source: Annotated[
        InlineFile | StoredFile | LinkedFile | UploadedFile, Field(discriminator="kept")
    ]
    name: str = ""
    """The file's name."""
    detail: str = ""
    """How closely the model looks at an image, in the words of its provider."""

    @property
    def event_part(self) -> e.Media:
        return e.Media(self.media_type, self.source.source, self.name, self.detail)


type Part = Annotated[TextPart | FilePart, Field(discriminator="part")]


def _form(given: object) -> str:
    return "parts" if isinstance(given, list) else "text"


#: A text, or texts and files in their order, with the fields that they have in the events.
type GivenContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], Tag("parts")], Discriminator(_form)
]


def as_recorded(given: str | Sequence[TextPart | FilePart]) -> e.Content:
    """The content in the form in which it is recorded."""
    return given if isinstance(given, str) else content_of(part.event_part for part in given)


# ------------------------------------------------------------------------------------------ shown


#: Not SVG, which may hold scripts and links.
_PICTURES: Final = {"image/png", "image/jpeg", "image/gif", "image/webp"}


class HeldFile(ApiModel):
    """A file that the ledger has, and gives by its digest."""

    digest: str
    """The SHA-256 of its bytes."""
    media_type: str
    name: str
    size: int
    """The number of bytes."""
    place: str = ""
    """Where the store of files has it, to refer to it again; empty if it is in the fact."""

    @property
    def is_picture(self) -> bool:
        """Whether a browser shows it, and cannot run anything in it."""
        return self.media_type in _PICTURES

    @classmethod
    def of(cls, media: e.Media) -> Self | None:
        """None for a link, for a file at a provider, and for what no file can be."""
        match media.source:
            case e.Stored(digest=digest, size=size, place=place) as stored if is_sound(stored):
                pass
            case e.Inline() as inline if (data := decoded(inline)) is not None:
                digest, size, place = sha256(data).hexdigest(), len(data), ""
            case _:
                return None
        return cls(
            digest=digest, media_type=media.media_type, name=media.name, size=size, place=place
        )


def held_files(files: Iterable[e.Media]) -> list[HeldFile]:
    """Those among the files that the ledger has."""
    return [held for media in files if (held := HeldFile.of(media)) is not None]


def held_in(event: e.AnyEvent | e.Carried | None) -> list[HeldFile]:
    """Those in a message, an output or a model's reply."""
    return held_files(files_in(event)) if isinstance(event, e.Event) else []


def held_in_content(content: e.Content) -> list[HeldFile]:
    return held_files(part for part in parts_of(content) if isinstance(part, e.Media))
