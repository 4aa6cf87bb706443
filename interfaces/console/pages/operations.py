"""The page of operations: the broker, the workers, and what was parked."""

from typing import Annotated, Final

from fastapi import APIRouter, Form, Query
from fastapi.responses import Response

from ayes.interfaces.api import operations
from ayes.interfaces.api.identity import Operating, Reading, Visit
from ayes.interfaces.console.pages.forms import Why, again, to
from ayes.interfaces.console.rendering import is_fragment, page
from ayes.schemas.errors import ApprovalsError, Unavailable

router: Final = APIRouter()

Number = Annotated[int, Form(ge=0, lt=2**63)]


@router.get("/operations")
async def show(visit: Reading, after: Annotated[int, Query(ge=0, lt=2**63)] = 0) -> Response:
    return await _shown(visit, after=after)


async def _shown(
    visit: Visit, _form: None = None, problem: ApprovalsError | None = None, *, after: int = 0
) -> Response:
    """The page, also while the broker is away: then it asks again by itself, until it answers."""
    found, parked = None, None
    try:
        found = await operations.operations(visit)
        parked = await operations.parked(visit, after=after)
    except Unavailable as away:
        problem = away
    fragment = is_fragment(visit.request)
    return page(visit, "operations.html", problem, found=found, parked=parked, is_fragment=fragment)


@router.get("/operations/parked/{number}")
async def parked(number: int, visit: Reading) -> Response:
    """One parked delivery, with its fact."""
    return page(visit, "parked.html", found=await operations.parked_one(number, visit))


@router.post("/operations/retry")
@again(_shown)
async def retry(number: Number, visit: Operating) -> Response:
    await operations.retry(operations.ParkedFilter(numbers=[number]), visit)
    return to("/operations")


@router.post("/operations/drop")
@again(_shown)
async def drop(number: Number, visit: Operating, why: Why = "") -> Response:
    await operations.drop(operations.Dropped(numbers=[number], reason=why), visit)
    return to("/operations")
