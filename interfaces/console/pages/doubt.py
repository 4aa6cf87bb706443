"""The page of calls in doubt: what is known of each, and what a person can say about it."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from ayes.interfaces.api import calls
from ayes.interfaces.api.doubts import Doubtful
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.api.queries import Listing
from ayes.interfaces.console.rendering import page
from ayes.projections.display.texts import text_of
from ayes.projections.display.values import value_of

router: Final = APIRouter()


@router.get("/doubt")
async def doubt(chosen: Annotated[Listing, Query()], visit: Reading) -> HTMLResponse:
    chosen = chosen.model_copy(update={"status": "in_doubt"})
    found = await calls.calls(chosen, visit)
    assert isinstance(found, Doubtful)
    # In a thread, since the arguments of hostile calls may take seconds.
    return await run_in_threadpool(_composed, visit, found)


def _composed(visit: Visit, found: Doubtful) -> HTMLResponse:
    return page(
        visit,
        "doubt.html",
        found=found,
        shown=[(one, value_of(one.arguments), text_of(one.arguments)) for one in found.calls],
        may=lambda one: {"reconcile": "" if one.mine else _NOT_THEIRS},
    )


_NOT_THEIRS: Final = (
    "Those who were asked about it can say what became of it; its requester cannot."
)
