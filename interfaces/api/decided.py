"""Decided calls: a search, and its result as JSON lines."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Final, get_args

import msgspec
from fastapi import Depends, Query
from fastapi.responses import StreamingResponse
from msgspec import Struct

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.queries import read_cursor
from ayes.interfaces.api.search import DecidedFilter, DecisionKind, Order, search
from ayes.projections.views.call import DecidedCall

router: Final = ApiRouter(tags=["calls"])

#: Calls of a page, unless the request says how many, and of a step of an export.
_PAGE: Final = 50
_STEP: Final = 200
_CURSOR: Final = re.compile("[0-9]{1,19}", re.ASCII)
#: The ways in which a call can be decided.
DECISIONS: Final[tuple[str, ...]] = get_args(DecisionKind.__value__)


class DecidedPage(Struct, frozen=True):
    """Decided calls that were found. A page with `next` may be short, even empty."""

    #: Those of the page.
    calls: list[DecidedCall]
    #: The cursor with which the search goes on; None: there is nothing more.
    next: str | None


Filtered = Annotated[DecidedFilter, Depends()]


@router.get("/decided")
async def decided(
    visit: Reading,
    chosen: Filtered,
    order: Order = "newest",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=200)] = _PAGE,
) -> DecidedPage:
    """Search the decided calls, by when they were decided."""
    return await page(visit, chosen, order, after, limit)


class JsonLines(StreamingResponse):
    media_type = "application/jsonl"


@router.get("/decided.jsonl", response_class=JsonLines)
async def export(visit: Reading, chosen: Filtered, order: Order = "newest") -> JsonLines:
    """All decided calls that a search finds, each as a line of JSON. If the stream breaks off
    without its end, some are missing.
    """
    first = await page(visit, chosen, order, limit=_STEP)
    headers = {"Content-Disposition": 'attachment; filename="decided.jsonl"'}
    return JsonLines(_lines(visit, chosen, order, first), headers=headers)


async def page(
    visit: Visit,
    chosen: DecidedFilter,
    order: Order = "newest",
    after: str = "",
    limit: int = _PAGE,
) -> DecidedPage:
    """A page of the decided calls that the filter selects."""
    position = int(read_cursor(_CURSOR, after)[0]) if after else None
    found = await search(visit.reading, visit.lake, chosen, order, position, limit)
    return DecidedPage(
        calls=found.calls,
        next=None if found.next is None else str(found.next),
    )


async def _lines(
    visit: Visit, chosen: DecidedFilter, order: Order, found: DecidedPage
) -> AsyncGenerator[bytes]:
    while True:
        yield msgspec.json.Encoder().encode_lines(found.calls)
        if found.next is None:
            return
        found = await page(visit, chosen, order, found.next, _STEP)
