"""The list of calls that wait for people, alone or with one of them beside it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ayes.interfaces.api import calls, views
from ayes.interfaces.api.calls import Waiting
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.queries import Listing
from ayes.interfaces.api.views import View
from ayes.interfaces.console.pages.forms import search_box, to
from ayes.interfaces.console.rendering import address, is_fragment, page
from ayes.schemas.errors import ApprovalsError, BadInput

router: Final = APIRouter()

#: The views that everybody has, and how they are sorted.
_VIEWS: Final = (("All", "", ""), ("Mine", "is:mine", ""), ("Due soon", "due<1h", "due"))


@router.get("/")
async def waiting(visit: Reading, chosen: Annotated[Listing, Query()]) -> Response:
    """The list, or the reader's first page; without the frame of the page for console.js."""
    if is_fragment(visit.request):
        found, problem = await _found(visit, chosen)
        return page(visit, "_waiting.html", problem, **listed(visit, chosen, found, []))
    (found, problem), saved = await asyncio.gather(
        _found(visit, chosen), saved_views(visit, chosen)
    )
    first = [one for one in saved if one.first and not one.problem]
    if first and visit.request.query_params.keys() <= {"workspace"}:
        return to(f"/?{address(first[0].listing(chosen.workspace))}")
    return page(visit, "waiting.html", problem, **listed(visit, chosen, found, saved))


async def _found(visit: Visit, chosen: Listing) -> tuple[Waiting, BadInput | None]:
    """The calls of the list, or why nothing was searched."""
    try:
        return await calls.waiting(chosen, visit), None
    except BadInput as problem:
        return Waiting(calls=[], waiting=0, next=None), problem


async def saved_views(visit: Visit, chosen: Listing) -> list[View]:
    """The reader's views; none if they cannot be read, since the list is shown without them."""
    try:
        return (await views.views(visit, chosen.workspace)).views
    except ApprovalsError:
        return []


def listed(visit: Visit, chosen: Listing, found: Waiting, saved: Sequence[View]) -> dict[str, Any]:
    """What the list shows. The addresses of its calls have its search, so that it stays beside
    them.
    """
    searched = visit.request.url.query
    following = visit.request.url.include_query_params(after=found.next)
    return {
        "found": found,
        "chosen": chosen,
        **search_box(visit.request, chosen, "/"),
        "views": (*_VIEWS, ("Handed over", f"handed:{visit.name}", "")),
        "saved": saved,
        "now": datetime.now(UTC),
        "following": f"/?{following.query}" if found.next else "",
        "searched": f"?{searched}" if searched else "",
    }
