"""The page on which searches are saved as views, renamed and removed."""

from typing import Annotated, Final

from fastapi import APIRouter, Form, Query
from fastapi.responses import Response

from ayes.interfaces.api import policies, views
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.views import NewView
from ayes.interfaces.console.pages.forms import again, to
from ayes.interfaces.console.rendering import address, page
from ayes.schemas.errors import ApprovalsError

router: Final = APIRouter()


@router.get("/views")
async def show(visit: Reading, form: Annotated[NewView, Query()]) -> Response:
    """The views, and a form for the search that the address has."""
    return await _shown(visit, form)


async def _shown(
    visit: Visit, form: NewView | None, problem: ApprovalsError | None = None
) -> Response:
    return page(
        visit,
        "views.html",
        problem,
        form=form or NewView(),
        views=(await views.views(visit)).views,
        known=await policies.workspaces(visit),
    )


@router.post("/views")
@again(_shown)
async def save(visit: Reading, form: Annotated[NewView, Form()]) -> Response:
    saved = await views.save(form, visit)
    return to(f"/?{address(saved.listing(''))}")


@router.post("/views/remove")
@again(_shown)
async def remove(
    visit: Reading, name: Annotated[str, Form()], author: Annotated[str, Form()] = ""
) -> Response:
    await views.remove(visit, name, author)
    return to("/views")
