"""Pages of pending approvals, oldest first, for a program without a view of its own: a command, or
a service that asks now and then.

    entries, waiting, unreadable = await oldest(ledger, 50)

A page cannot be read from the bucket without reading the whole bucket: an entry that is rewritten,
when more people are asked, moves to its end. So the queue's worker, which keeps a view, is asked
(`pending_service.py`). If it does not answer in time, the bucket is read, with the same result.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from ayes.ledger.clients.services import Ledger
from ayes.projections import pending
from ayes.projections.call_filter import NO_FILTER, CallFilter
from ayes.projections.pending import Entry, Listed, Page, PageCursor
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.pending_client")

#: The role that answers, the name of its NATS service (ADR-32), and the subject.
ROLE: Final = "queue"
SERVICE: Final = "approvals-pending"
SUBJECT: Final = "pending.oldest"
#: Entries of a page. For more than that, one pass over the bucket is cheaper.
MAX_ENTRIES: Final = 1_000
#: How long an answer may take before the bucket is read.
PATIENCE_S: Final = 0.5


class PageRequest(CallFilter, frozen=True, forbid_unknown_fields=True):
    """A request. An empty field matches everything."""

    most: Annotated[int, Meta(ge=1, le=MAX_ENTRIES)] = 50
    #: The cursor of the previous page.
    after: PageCursor | None = None


async def oldest(ledger: Ledger, most: int | None = None, chosen: CallFilter = NO_FILTER) -> Listed:
    """The matching entries, oldest first, at most `most` or all; how many match; and the entries
    that cannot be read.
    """
    if most is not None and 1 <= most <= MAX_ENTRIES:
        try:
            return await _asked(ledger, most, chosen)
        except (Unavailable, msgspec.MsgspecError) as problem:
            _log.debug("the whole bucket is read", problem=str(problem))
    return await _read(ledger, most, chosen)


async def _asked(ledger: Ledger, most: int, chosen: CallFilter) -> Listed:
    """Reads page after page: one suffices unless its entries are large."""
    asked = PageRequest(**asdict(chosen), most=most)
    page = await _page(ledger, asked)
    waiting, entries, unreadable = page.waiting, _entries(page), list(page.unreadable)
    while page.more and page.entries and len(entries) < most:
        asked = replace(asked, most=most - len(entries), after=page.after)
        page = await _page(ledger, asked)
        entries += _entries(page)
    return Listed(entries, waiting, unreadable)


def _entries(page: Page) -> list[Entry]:
    return list(map(pending.decode, page.entries))


async def _page(ledger: Ledger, asked: PageRequest) -> Page:
    answer = await ledger.log.ask(SUBJECT, msgspec.json.encode(asked), PATIENCE_S)
    return msgspec.json.decode(answer, type=Page)


async def _read(ledger: Ledger, most: int | None, chosen: CallFilter) -> Listed:
    """Reads the bucket. The key of an entry names its call, so only those returned are decoded."""
    return pending.oldest(await ledger.log.pending.entries(), most, chosen)
