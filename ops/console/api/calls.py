"""Calls: those that wait, and one with its whole record."""

from typing import Annotated, Final

from fastapi import APIRouter, Query

from ayes.ops.commands.outcome import open_tally
from ayes.ops.console.api.models import PendingCall, Record, Waiting
from ayes.ops.console.backend import InBackend
from ayes.ops.console.identity import Reading
from ayes.projections.pending import PageCursor, PendingFilter, decode
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

router: Final = APIRouter(tags=["calls"])

#: Calls of a page, unless the request says how many.
_PAGE: Final = 50
#: Bytes of the entries of a page.
_MOST_BYTES: Final = 4 << 20


@router.get("/calls/waiting")
async def waiting(
    backend: InBackend,
    _visitor: Reading,
    workspace: str = "",
    thread: str = "",
    tool: str = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=200)] = _PAGE,
) -> Waiting:
    """The pending calls, oldest first."""
    chosen = PendingFilter(workspace, thread, tool)
    place = _cursor(after) if after else None
    page = backend.waiting.page(limit, _MOST_BYTES, chosen, place)
    return Waiting(
        calls=[PendingCall.of(decode(raw)) for raw in page.entries],
        waiting=page.waiting,
        next=_text(page.after) if page.more and page.after else None,
    )


def _text(cursor: PageCursor) -> str:
    return f"{cursor.seq}-{cursor.key}"


def _cursor(text: str) -> PageCursor:
    seq, _, key = text.partition("-")
    if not (seq.isdecimal() and key):
        raise BadInput(f"after={text!r} is not a cursor. Take `next` of the page before.")
    return PageCursor(int(seq), key)


@router.get("/calls/{workspace}/{thread}/{call}")
async def record(
    workspace: str, thread: str, call: str, backend: InBackend, _visitor: Reading
) -> Record:
    """One call: its state, and every fact about it."""
    ref = CallRef(workspace, thread, call)
    known = await backend.reading.known_call(ref)
    facts = await backend.reading.read(ref)
    return Record.of(known, await open_tally(backend.reading, known), facts)
