"""Pages of what waits, the oldest first, for whoever keeps no inbox: a command, or a service that
asks now and then.

    entries, waiting, unreadable = await oldest(ledger, 50)

A page cannot be read from the bucket without reading all of it: an entry that is written anew,
since more people are asked, moves to its end. So the queue's worker, which keeps an inbox, is asked
(`desk.py`). Where nobody answers, or not in time, or what cannot be read, the bucket itself is
read, with the same result.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ayes.ledger.services import Ledger
from ayes.projections import pending
from ayes.projections.pending import NO_FILTER, Entry, Listed, Page, PageCursor, PendingFilter
from ayes.schemas.errors import Unavailable
from ayes.schemas.ids import token
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ThreadRef

_log: Final = get_logger("ayes.consumers.pending_client")

#: Whose credentials answer, as which NATS service (ADR-32), and on which subject.
ROLE: Final = "queue"
SERVICE: Final = "approvals-pending"
SUBJECT: Final = "pending.oldest"
#: No page has more entries. Who wants more than that is served better by one pass over the bucket.
MOST: Final = 1_000
#: How long an answer may take before the bucket is read.
PATIENCE_S: Final = 0.5


class PageRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request. What is empty leaves nothing out."""

    workspace: str = ""
    #: As workspace/thread.
    thread: str = ""
    #: A name, or a pattern with `*` and `?`.
    tool: str = ""
    most: Annotated[int, Meta(ge=1, le=MOST)] = 50
    #: As the page before had it.
    after: PageCursor | None = None

    @property
    def chosen(self) -> PendingFilter:
        """Which calls.

        Raises:
            BadInput: no workspace or thread is called that.
        """
        if self.workspace:
            token("workspace", self.workspace)
        if self.thread:
            ThreadRef.parse(self.thread)
        return PendingFilter(self.workspace, self.thread, self.tool)


async def oldest(
    ledger: Ledger, most: int | None = None, chosen: PendingFilter = NO_FILTER
) -> Listed:
    """The entries that fit, oldest first, N at most or all of them; how many fit; and what cannot
    be read.
    """
    if most is not None and 1 <= most <= MOST:
        try:
            return await _asked(ledger, most, chosen)
        except (Unavailable, msgspec.MsgspecError) as problem:
            _log.debug("the whole bucket is read", problem=str(problem))
    return await _read(ledger, most, chosen)


async def _asked(ledger: Ledger, most: int, chosen: PendingFilter) -> Listed:
    """Page after page: one, unless its entries are large."""
    page = await _page(ledger, PageRequest(*chosen, most=most))
    waiting, entries, unreadable = page.waiting, _entries(page), list(page.unreadable)
    while page.more and page.entries and len(entries) < most:
        page = await _page(ledger, PageRequest(*chosen, most=most - len(entries), after=page.after))
        entries += _entries(page)
    return Listed(entries, waiting, unreadable)


def _entries(page: Page) -> list[Entry]:
    return list(map(pending.decode, page.entries))


async def _page(ledger: Ledger, asked: PageRequest) -> Page:
    answer = await ledger.log.ask(SUBJECT, msgspec.json.encode(asked), PATIENCE_S)
    return msgspec.json.decode(answer, type=Page)


async def _read(ledger: Ledger, most: int | None, chosen: PendingFilter) -> Listed:
    """All of the bucket. Whose an entry is says its key, so that only what is shown need be
    decoded.
    """
    return pending.oldest(await ledger.log.pending.entries(), most, chosen)
