"""The page on which decided calls are searched."""

from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ayes.interfaces.api import decided as api
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.search import Order
from ayes.interfaces.console.rendering import page

router: Final = APIRouter()


@router.get("/decided")
async def decided(
    visit: Reading, chosen: api.Filtered, order: Order = "newest", after: str = ""
) -> HTMLResponse:
    found = await api.decided(visit, chosen, order, after)
    given = visit.request.query_params.items()
    query = {name: value for name, value in given if value and name != "after"}
    within = urlencode({"workspace": chosen.workspace} if chosen.workspace else {})
    return page(
        visit,
        "decided.html",
        found=found,
        chosen=chosen,
        order=order,
        decisions=api.DECISIONS,
        is_later=bool(after),
        is_search=bool(query.keys() - {"order", "workspace"}),
        all=f"/decided?{within}" if within else "/decided",
        export=f"/api/v1/decided.jsonl?{urlencode(query)}",
        more=found.next and f"?{urlencode(query | {'after': found.next})}",
    )
