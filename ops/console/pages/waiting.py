"""The page of calls that wait for people."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from ayes.ops.console.api import calls
from ayes.ops.console.backend import InBackend
from ayes.ops.console.identity import Reading
from ayes.ops.console.pages.rendering import page

router: Final = APIRouter()


@router.get("/")
async def waiting(
    request: Request,
    backend: InBackend,
    visitor: Reading,
    workspace: str = "",
    thread: str = "",
    tool: str = "",
) -> HTMLResponse:
    found = await calls.waiting(backend, visitor, workspace, thread, tool)
    return page(request, "waiting.html", visitor, found=found)
