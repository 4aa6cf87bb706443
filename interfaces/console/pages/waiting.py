"""The page of calls that wait for people."""

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from ayes.interfaces.api import calls
from ayes.interfaces.api.calls import Waiting
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.queries import Listing
from ayes.interfaces.console.pages.forms import search_box
from ayes.interfaces.console.rendering import is_fragment, page
from ayes.schemas.errors import BadInput

router: Final = APIRouter()

#: The views that everybody has, and how they are sorted.
_VIEWS: Final = (("All", "", ""), ("Mine", "is:mine", ""), ("Due soon", "due<1h", "due"))


@router.get("/")
async def waiting(visit: Reading, chosen: Annotated[Listing, Query()]) -> HTMLResponse:
    """The list; without the frame of the page for console.js."""
    found, problem = Waiting(calls=[], waiting=0, next=None), None
    try:
        found = await calls.waiting(chosen, visit)
    except BadInput as bad:
        problem = bad
    following = visit.request.url.include_query_params(after=found.next)
    return page(
        visit,
        "_waiting.html" if is_fragment(visit.request) else "waiting.html",
        problem,
        found=found,
        chosen=chosen,
        **search_box(visit.request, chosen),
        views=_VIEWS,
        now=datetime.now(UTC),
        following=f"/?{following.query}" if found.next else "",
    )
