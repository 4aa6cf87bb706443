"""The store of files: the bytes that facts refer to by their digest (docs/decisions/0048).

A file is stored in pieces, each on a subject that takes one message, like a slot:

    file.<workspace>.<role>.<random id>.<number from 1>      the bytes, `PIECE_BYTES` each

It is stored before the fact that refers to it, which has the place and the digest. The broker
allows each role its own places only, and nobody knows an id before. A reader compares the bytes
with the digest, so it gets the right bytes or an error. `ayes files sweep` removes files that no
fact names (`ops/files.py`).
"""

import base64
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from ayes.ledger.log import Files
from ayes.schemas import events as e
from ayes.schemas.content import (
    decoded,
    files_in,
    is_sound,
    problem_of,
    to_store,
    with_files,
)
from ayes.schemas.errors import BadInput
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import file_piece

_log: Final = get_logger("ayes.ledger.files")

#: As large as the largest fact.
PIECE_BYTES: Final = 512 * 1024


async def keep(log: Files, workspace: str, data: bytes, place: str = "") -> e.Stored:
    """Store a file. Storing it again changes nothing.

    Args:
        place: where it was stored before; empty: a place of its own.

    Raises:
        BadInput: other bytes are in its place.
        Unavailable: no answer came, or not every piece can be read yet. A retry is safe.
    """
    digest = sha256(data).hexdigest()
    stored = e.Stored(digest, len(data), place or log.file_place(digest))
    new = True
    for number, piece in enumerate(_pieces(data), 1):
        new &= await log.keep_piece(file_piece(workspace, stored.place, number), piece)
    if not new:  # mostly the same file
        await fetch(log, workspace, stored)
    return stored


async def fetch(log: Files, workspace: str, stored: e.Stored) -> bytes:
    """The bytes of a stored file.

    Raises:
        BadInput: the store does not have them, or has other bytes in their place.
        Unavailable: they cannot be read now.
    """
    if not is_sound(stored):
        raise BadInput(f"{stored} names no file that the store of {workspace} can have.")
    data = bytearray()
    while len(data) < stored.size or not data:
        number = len(data) // PIECE_BYTES + 1
        piece = await log.piece(file_piece(workspace, stored.place or stored.digest, number))
        if piece is None:
            raise BadInput(
                f"piece {number} of the file {stored.digest} is not in the store of {workspace}: "
                "it was removed, or never stored."
            )
        data += piece
        if len(piece) < PIECE_BYTES:
            break
    if len(data) != stored.size or sha256(data).hexdigest() != stored.digest:
        raise BadInput(
            f"the store of {workspace} has other bytes in the place of the file {stored.digest}. "
            "They were written with the credentials of a service, an executor or a model."
        )
    return bytes(data)


async def with_files_kept[E: e.Event](log: Files, workspace: str, event: E) -> E:
    """The event as it is recorded: its large files are stored and referred to.

    Raises:
        BadInput: a file cannot be recorded, or is not in the store; says why.
        Unavailable: as of `keep`.
    """
    files = files_in(event)
    for number, media in enumerate(files, 1):
        if problem := problem_of(media):
            raise BadInput(f"file {number} of this {type(event).__name__} is refused: {problem}")
    for stored in {media.source for media in files if isinstance(media.source, e.Stored)}:
        place, pieces = stored.place or stored.digest, max(1, -(-stored.size // PIECE_BYTES))
        last = file_piece(workspace, place, pieces)
        if await log.piece(last) is None:
            raise BadInput(
                f"the file {stored.digest} is not in the store of {workspace}, so nobody could "
                f"read this {type(event).__name__}. Attach its bytes."
            )
    large = to_store(files)
    kept = {media: await keep_media(log, workspace, media) for media in dict.fromkeys(large)}
    return with_files(event, kept) if kept else event


async def keep_media(log: Files, workspace: str, media: e.Media) -> e.Media:
    """Store a file that has its bytes, and return the reference to it.

    Raises:
        BadInput: as of `keep`.
        Unavailable: as of `keep`.
    """
    assert isinstance(media.source, e.Inline)
    data = decoded(media.source)
    assert data is not None, "problem_of"
    return replace(media, source=await keep(log, workspace, data))


async def kept_again(log: Files, workspace: str, given: e.Event, recorded: e.Event) -> None:
    """Store the files of an event once more, where its fact says, unless they are there: they may
    have been swept, if more than a day passed before it was recorded.

    Raises:
        Unavailable: no answer came.
    """
    for before, after in zip(files_in(given), files_in(recorded), strict=True):
        if isinstance(before.source, e.Inline) and isinstance(after.source, e.Stored):
            data = decoded(before.source)
            assert data is not None, "it was stored"
            await keep(log, workspace, data, after.source.place)


async def fetched(log: Files, workspace: str, files: Iterable[e.Media]) -> dict[e.Media, e.Media]:
    """The stored files among these, each with its bytes.

    One that is missing or damaged is left out: it stays a reference, which every form describes, so
    that an agent can go on without it.

    Raises:
        Unavailable: they cannot be read now.
    """
    found = {}
    for media in dict.fromkeys(files):
        if isinstance(media.source, e.Stored):
            try:
                data = await fetch(log, workspace, media.source)
            except BadInput as problem:
                _log.warning("a file cannot be read", workspace=workspace, problem=str(problem))
                continue
            source = e.Inline(base64.b64encode(data).decode())
            found[media] = replace(media, source=source)
    return found


def _pieces(data: bytes) -> list[bytes]:
    """The pieces of a file; an empty file is one piece."""
    return [data[at : at + PIECE_BYTES] for at in range(0, max(1, len(data)), PIECE_BYTES)]
