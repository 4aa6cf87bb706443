"""The page of calls that wait for people."""

from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from ayes.interfaces.api import calls
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.queries import CallQuery
from ayes.interfaces.console.pages.forms import to
from ayes.interfaces.console.rendering import is_fragment, page

router: Final = APIRouter()


@router.get("/")
async def waiting(visit: Reading, chosen: Annotated[CallQuery, Query()]) -> HTMLResponse:
    """The list; without the frame of the page for console.js."""
    found = await calls.waiting(chosen, visit)
    following = visit.request.url.include_query_params(after=found.next)
    return page(
        visit,
        "_waiting.html" if is_fragment(visit.request) else "waiting.html",
        found=found,
        chosen=chosen,
        now=datetime.now(UTC),
        is_filtered=any((chosen.thread, chosen.tool, chosen.rule, chosen.overdue)),
        following=f"/?{following.query}" if found.next else "",
    )


@router.get("/search")
async def search(q: str = "", workspace: str = "") -> Response:
    """To the call or the thread of this name, else to the waiting calls of such a tool."""
    parts = q.strip().split("/")
    if len(parts) in {2, 3}:
        path = f"/{'calls' if len(parts) == 3 else 'conversations'}/{quote('/'.join(parts))}"
    else:
        path = f"/?{urlencode({'tool': f'*{q.strip()}*', 'workspace': workspace})}"
    return to(path)
