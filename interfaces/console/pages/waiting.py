"""The page of calls that wait for people."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ayes.interfaces.api import calls, views
from ayes.interfaces.api.calls import Waiting
from ayes.interfaces.api.identity import Reading
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
    is_part, saved = is_fragment(visit.request), list[View]()
    if not is_part:
        with suppress(ApprovalsError):  # the list is shown without them
            saved = (await views.views(visit, chosen.workspace)).views
        first = [one for one in saved if one.first and not one.problem]
        if first and visit.request.query_params.keys() <= {"workspace"}:
            return to(f"/?{address(first[0].listing(chosen.workspace))}")
    found, problem = Waiting(calls=[], waiting=0, next=None), None
    try:
        found = await calls.waiting(chosen, visit)
    except BadInput as bad:
        problem = bad
    following = visit.request.url.include_query_params(after=found.next)
    return page(
        visit,
        "_waiting.html" if is_part else "waiting.html",
        problem,
        found=found,
        chosen=chosen,
        **search_box(visit.request, chosen),
        views=_VIEWS,
        saved=saved,
        now=datetime.now(UTC),
        following=f"/?{following.query}" if found.next else "",
    )
