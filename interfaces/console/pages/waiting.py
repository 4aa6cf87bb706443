"""The page of calls that wait for people."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from ayes.interfaces.api import calls
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.queries import CallQuery
from ayes.interfaces.console.rendering import is_fragment, page

router: Final = APIRouter()


@router.get("/")
async def waiting(
    request: Request, backend: InBackend, visitor: Reading, chosen: Annotated[CallQuery, Query()]
) -> HTMLResponse:
    """The list; without the frame of the page for console.js."""
    found = await calls.waiting(chosen, backend, visitor)
    following = request.url.include_query_params(after=found.next)
    return page(
        request,
        "_waiting.html" if is_fragment(request) else "waiting.html",
        visitor,
        found=found,
        chosen=chosen,
        now=datetime.now(UTC),
        is_filtered=any((chosen.thread, chosen.tool, chosen.rule, chosen.overdue)),
        following=f"/?{following.query}" if found.next else "",
    )


@router.get("/search")
async def search(q: str = "", workspace: str = "") -> RedirectResponse:
    """To the call or the thread of this name, else to the waiting calls of such a tool."""
    parts = q.strip().split("/")
    if len(parts) in {2, 3}:
        path = f"/{'calls' if len(parts) == 3 else 'conversations'}/{quote('/'.join(parts))}"
    else:
        path = f"/?{urlencode({'tool': f'*{q.strip()}*', 'workspace': workspace})}"
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
