"""The receipt of a call, for whoever has no access to the log (docs/receipts.md)."""

from typing import Final

from fastapi import Response

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.permissions import check_reveal
from ayes.interfaces.api.queries import Named
from ayes.ops.sealing.files import KEY, SealFiles, read_key
from ayes.ops.sealing.receipts import make

router: Final = ApiRouter(tags=["calls"])


@router.get(
    "/calls/{workspace}/{thread}/{call}/receipt",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}}},
)
async def receipt(ref: Named, visit: Reading) -> Response:
    """A file with the call's facts and the proof that they are in the sealed log. Whoever has it
    can verify it, and read everything in it; so if arguments of its tool are secret, it is for
    those who may see them. It may wait ten seconds for the seal.
    """
    known = await visit.reading.with_origin(await visit.reading.known_call(ref))
    if (await visit.secrets(known)).hides_in(known):
        await check_reveal(visit.reading, known, visit.visitor)
    store = visit.backend.store
    made = await make(visit.reading, ref, SealFiles(store), read_key(store))
    headers = {"Content-Disposition": f'attachment; filename="{ref.call}.receipt"'}
    return Response(made.text(), headers=headers, media_type="application/json")


def is_sealed(visit: Visit) -> bool:
    """Whether receipts can be made here."""
    return (visit.backend.store.path / KEY).exists()
