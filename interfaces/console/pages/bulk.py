"""Deciding several calls at once, after all of them have been shown."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from ayes.interfaces.api import calls, votes
from ayes.interfaces.api.identity import Reading, Reviewing
from ayes.interfaces.api.votes import Shown, Votes
from ayes.interfaces.console.rendering import is_fragment, page
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

router: Final = APIRouter()

#: How many calls can be decided at once.
MAX_AT_ONCE: Final = 50


@router.get("/bulk")
async def bulk(visit: Reading, call: Annotated[list[str] | None, Query()] = None) -> HTMLResponse:
    """List the chosen calls, each with everything that would run."""
    chosen = list(dict.fromkeys(call or ()))
    if not 0 < len(chosen) <= MAX_AT_ONCE:
        raise BadInput(
            f"{len(chosen)} calls are selected. Select between 1 and {MAX_AT_ONCE} of them."
        )
    listed = await asyncio.gather(*(calls.record(CallRef.parse(one), visit) for one in chosen))
    name = "_bulk.html" if is_fragment(visit.request) else "bulk.html"
    return page(visit, name, calls=listed)


@router.post("/bulk")
async def decide(
    visit: Reviewing,
    verdict: Annotated[str, Form()],
    shown: Annotated[list[str], Form()],
    reason: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Vote on each of them, and report each that failed.

    Args:
        shown: each call with its digest, separated by a space.
    """
    given = {
        "verdict": verdict,
        "calls": [dict(zip(Shown.model_fields, one.split(" "), strict=False)) for one in shown],
        "reason": reason,
    }
    try:
        wanted = Votes.model_validate(given)
    except ValidationError as problem:
        raise RequestValidationError(problem.errors()) from None
    results = await votes.vote_on_several(wanted, visit)
    name = "_bulk_done.html" if is_fragment(visit.request) else "bulk_done.html"
    return page(visit, name, results=results, verdict=wanted.verdict)
