"""What people have the console keep: their views, and the calls that they have put aside.

It is in a bucket of the broker that the console's login alone may read and write
(docs/decisions/0081), a document for each person.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from ayes.interfaces.api.backend import jetstream
from ayes.interfaces.api.identity import Visit
from ayes.ledger.log import Bucket
from ayes.projections.kept import Kept
from ayes.schemas.errors import BrokerAway
from ayes.schemas.ids import token
from ayes.schemas.people import plain

_decoder: Final = msgspec.json.Decoder(Kept)


async def kept_for_all(visit: Visit) -> dict[str, Kept]:
    """The documents of all people, each with its saved views and snoozes."""
    found = (await (await _bucket(visit)).entries()).items()
    return {key: kept for key, raw in found if (kept := _read(visit, key, raw)) is not None}


async def kept_for(visit: Visit, person: str) -> Kept | None:
    """The document of this person; None: there is none."""
    key = token("person", plain(person))
    raw, _ = await (await _bucket(visit)).get(key)
    return _read(visit, key, raw)


async def keep(visit: Visit, person: str, change: Callable[[Kept], Kept]) -> None:
    """Change the document of a person; once more if another request changed it meanwhile."""
    key, bucket, is_saved = token("person", plain(person)), await _bucket(visit), False
    while not is_saved:
        raw, revision = await bucket.get(key)
        now = await visit.backend.reading.log.clock()
        kept = change(_read(visit, key, raw) or Kept(person, now))
        document = replace(kept, author=person, saved_at=now)
        is_saved = await bucket.put(key, msgspec.json.encode(document), revision)


def _read(visit: Visit, key: str, raw: bytes) -> Kept | None:
    """The document of a person; None: there is none, or it is of an earlier holder of the name.

    Raises:
        BrokerAway: it is not known yet who holds which name.
    """
    if visit.backend.people is None:
        raise BrokerAway("it is not known yet who is a person. Try again in a moment.")
    try:
        kept = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    since = visit.backend.people.since(key)
    return kept if since is None or kept.saved_at > since else None


async def _bucket(visit: Visit) -> Bucket:
    return jetstream(await visit.backend.recording()).bucket("views")
