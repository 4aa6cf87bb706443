"""Links in messages: which call a token stands for, as long as that call waits."""

from typing import Final

from msgspec import Struct

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.schemas.errors import UnknownCall
from ayes.schemas.links import find_call

router: Final = ApiRouter(tags=["links"])


class LinkedCall(Struct, frozen=True):
    """The call of a link."""

    call: str


@router.get("/links/{token}")
async def linked(token: str, visit: Reading) -> LinkedCall:
    """The call that a link of the visitor's leads to, while it waits with the same digest.

    Another person's link, one that has ended and one that never was have the same answer.
    """
    key, name = visit.backend.link_key, visit.visitor.person
    waiting = ((entry.ref, entry.digest) for entry in visit.waiting.oldest())
    found = find_call(key, name, token, waiting)
    # The list is only a copy, and follows the log by some milliseconds.
    if found is None or not _waits(await visit.reading.call(found), key, name, token):
        raise UnknownCall("this link has ended or is not yours.")
    return LinkedCall(call=str(found))


def _waits(call: Call, key: bytes, name: str, token: str) -> bool:
    """Whether the call is pending according to the log, with the digest of this token."""
    asked = call.approval_request
    return (
        call.status is Status.PENDING
        and asked is not None
        and find_call(key, name, token, [(call.ref, asked.digest)]) is not None
    )
