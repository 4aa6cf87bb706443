"""The page of calls that wait for people."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from ayes.ops.console.api import calls
from ayes.ops.console.api.models import Chosen
from ayes.ops.console.backend import InBackend
from ayes.ops.console.identity import Reading
from ayes.ops.console.pages.rendering import page

router: Final = APIRouter()


@router.get("/")
async def waiting(
    request: Request, backend: InBackend, visitor: Reading, chosen: Annotated[Chosen, Query()]
) -> HTMLResponse:
    found = await calls.waiting(chosen, backend, visitor)
    return page(request, "waiting.html", visitor, found=found)
