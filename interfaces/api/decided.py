"""Decided calls: a search, and its result as JSON lines."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import msgspec
from fastapi import Query
from fastapi.responses import StreamingResponse
from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.queries import Queried, read_cursor
from ayes.interfaces.api.search import Order, search
from ayes.projections.call_query import CallQuery
from ayes.projections.views.call import DecidedCall

router: Final = ApiRouter(tags=["calls"])

#: Calls of a page, unless the request says how many, and of a step of an export.
_PAGE: Final = 50
_STEP: Final = 200
_CURSOR: Final = re.compile("[0-9]{1,19}", re.ASCII)


class DecidedPage(Struct, frozen=True):
    """Decided calls that were found. A page with `next` may be short, even empty."""

    #: Those of the page.
    calls: list[DecidedCall]
    #: The cursor with which the search goes on; None: there is nothing more.
    next: str | None


class Export(Queried):
    """The parameters of an export."""

    order: Order = "newest"


class DecidedSearch(Export):
    """The parameters of a search."""

    after: str = ""
    limit: int = Field(default=_PAGE, ge=1, le=200)


@router.get("/decided")
async def decided(visit: Reading, search: Annotated[DecidedSearch, Query()]) -> DecidedPage:
    """Search the decided calls, by when they were decided."""
    return await page(visit, search.chosen, search.order, search.after, search.limit)


class JsonLines(StreamingResponse):
    media_type = "application/jsonl"


@router.get("/decided.jsonl", response_class=JsonLines)
async def export(visit: Reading, search: Annotated[Export, Query()]) -> JsonLines:
    """All decided calls that a search finds, each as a line of JSON. If the stream breaks off
    without its end, some are missing.
    """
    chosen, order = search.chosen, search.order
    first = await page(visit, chosen, order, limit=_STEP)
    headers = {"Content-Disposition": 'attachment; filename="decided.jsonl"'}
    return JsonLines(_lines(visit, chosen, order, first), headers=headers)


async def page(
    visit: Visit,
    chosen: CallQuery,
    order: Order = "newest",
    after: str = "",
    limit: int = _PAGE,
    *,
    whole: bool = False,
) -> DecidedPage:
    """A page of the decided calls that the query selects.

    Args:
        whole: with what is secret, for what is not shown to anybody.
    """
    position = int(read_cursor(_CURSOR, after)[0]) if after else None
    shown = None if whole else visit.secrets
    found = await search(visit.reading, visit.lake, chosen, order, position, limit, shown)
    return DecidedPage(
        calls=found.calls,
        next=None if found.next is None else str(found.next),
    )


async def _lines(
    visit: Visit, chosen: CallQuery, order: Order, found: DecidedPage
) -> AsyncGenerator[bytes]:
    while True:
        yield msgspec.json.Encoder().encode_lines(found.calls)
        if found.next is None:
            return
        found = await page(visit, chosen, order, found.next, _STEP)
