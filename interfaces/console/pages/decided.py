"""The page on which decided calls are searched."""

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from ayes.interfaces.api import decided as api
from ayes.interfaces.api.decided import DecidedPage, DecidedSearch
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.console.pages.forms import search_box
from ayes.interfaces.console.rendering import page
from ayes.schemas.errors import BadInput

router: Final = APIRouter()


@router.get("/decided")
async def decided(visit: Reading, chosen: Annotated[DecidedSearch, Query()]) -> HTMLResponse:
    found, problem = DecidedPage([], None), None
    try:
        found = await api.decided(visit, chosen)
    except BadInput as bad:
        problem = bad
    given = visit.request.query_params.items()
    query = {name: value for name, value in given if value and name != "after"}
    exported = {name: query[name] for name in api.Export.model_fields if name in query}
    return page(
        visit,
        "decided.html",
        problem,
        found=found,
        chosen=chosen,
        **search_box(visit.request, chosen, "/decided"),
        is_later=bool(chosen.after),
        export=f"/api/v1/decided.jsonl?{urlencode(exported)}",
        more=found.next and f"?{urlencode(query | {'after': found.next})}",
    )
