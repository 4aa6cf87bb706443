"""Files as everybody outside sees them (docs/decisions/0048)."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from msgspec import Struct

from ayes.schemas import events as e
from ayes.schemas.content import decoded, files_in, is_sound, parts_of

#: Not SVG, which may hold scripts and links.
_PICTURES: Final = {"image/png", "image/jpeg", "image/gif", "image/webp"}


class HeldFile(Struct, frozen=True):
    """A file that the ledger has, and gives by its digest."""

    #: The SHA-256 of its bytes.
    digest: str
    media_type: str
    #: The file's name; may be empty.
    name: str
    #: The number of bytes.
    size: int
    #: Where the store of files has it, to refer to it again; empty if it is in the fact.
    place: str = ""

    @property
    def is_picture(self) -> bool:
        """Whether a browser shows it, and cannot run anything in it."""
        return self.media_type in _PICTURES


def held_file(media: e.Media) -> HeldFile | None:
    """None for a link, for a file at a provider, and for what no file can be."""
    match media.source:
        case e.Stored(digest=digest, size=size, place=place) as stored if is_sound(stored):
            return HeldFile(digest, media.media_type, media.name, size, place)
        case e.Inline() as inline if (data := decoded(inline)) is not None:
            return HeldFile(sha256(data).hexdigest(), media.media_type, media.name, len(data))
        case _:
            return None


def held_files(files: Iterable[e.Media]) -> list[HeldFile]:
    """Those among the files that the ledger has."""
    return [held for media in files if (held := held_file(media)) is not None]


def held_in(event: e.AnyEvent | e.Carried | None) -> list[HeldFile]:
    """Those in a message, an output or a model's reply."""
    return held_files(files_in(event)) if isinstance(event, e.Event) else []


def held_in_content(content: e.Content) -> list[HeldFile]:
    return held_files(part for part in parts_of(content) if isinstance(part, e.Media))
