"""The visitor's devices: notified of what is asked of them, and no longer. And the console as an
application on them: the service worker, which must be above all pages.
"""

from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Form
from fastapi.responses import FileResponse, HTMLResponse, Response

from ayes.interfaces.api import devices
from ayes.interfaces.api.identity import Reviewing
from ayes.interfaces.console.pages.forms import again, to
from ayes.interfaces.console.rendering import page
from ayes.schemas.errors import ApprovalsError

router: Final = APIRouter()

_WORKER: Final = Path(__file__).parent.parent / "static" / "service-worker.js"


@router.get("/service-worker.js")
async def worker() -> Response:
    return FileResponse(_WORKER, media_type="text/javascript")


@router.get("/devices")
async def show(visit: Reviewing) -> Response:
    return await _shown(visit)


async def _shown(
    visit: Reviewing, _form: None = None, problem: ApprovalsError | None = None
) -> HTMLResponse:
    key, mine = devices.public_key(visit), devices.devices_of(visit)
    return page(visit, "devices.html", problem, key=key, devices=mine)


@router.post("/devices")
@again(_shown)
async def add(
    visit: Reviewing,
    name: Annotated[str, Form()] = "",
    endpoint: Annotated[str, Form()] = "",
    p256dh: Annotated[str, Form()] = "",
    auth: Annotated[str, Form()] = "",
) -> Response:
    devices.add(visit, endpoint, p256dh, auth, name)
    return to("/devices")


@router.post("/devices/{id_}/remove")
async def remove(id_: str, visit: Reviewing) -> Response:
    devices.remove(visit, id_)
    return to("/devices")
