"""The page of operations: the broker, the workers, and what was parked."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ayes.interfaces.api import operations, problems
from ayes.interfaces.api.backend import Backend, InBackend
from ayes.interfaces.api.identity import Operating, Reading, Role, Visitor
from ayes.interfaces.console.rendering import is_fragment, page
from ayes.schemas.errors import ApprovalsError, Unavailable

router: Final = APIRouter()

Number = Annotated[int, Form(ge=0, lt=2**63)]


@router.get("/operations")
async def show(
    request: Request,
    backend: InBackend,
    visitor: Reading,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
) -> HTMLResponse:
    return await _shown(request, backend, visitor, after=after)


async def _shown(
    request: Request,
    backend: Backend,
    visitor: Visitor,
    problem: ApprovalsError | None = None,
    *,
    after: int = 0,
) -> HTMLResponse:
    """The page, also while the broker is away: then it asks again by itself, until it answers."""
    found, parked = None, None
    try:
        found = await operations.operations(backend, visitor)
        parked = await operations.parked(backend, visitor, after=after)
    except Unavailable as away:
        problem = away
    answer = page(
        request,
        "operations.html",
        visitor,
        found=found,
        parked=parked,
        is_fragment=is_fragment(request),
        is_operator=Role.OPERATOR in visitor.roles,
        problem=problem,
    )
    answer.status_code = problems.status_of(problem) if problem else HTTPStatus.OK
    return answer


@router.get("/operations/parked/{number}")
async def parked(
    number: int, request: Request, backend: InBackend, visitor: Reading
) -> HTMLResponse:
    """One parked delivery, with its fact."""
    found = await operations.parked_one(number, backend, visitor)
    return page(request, "parked.html", visitor, found=found)


@router.post("/operations/retry")
async def retry(
    number: Number, request: Request, backend: InBackend, visitor: Operating
) -> Response:
    try:
        await operations.retry(operations.ParkedFilter(numbers=[number]), backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, problem)
    return RedirectResponse("/operations", HTTPStatus.SEE_OTHER)


@router.post("/operations/drop")
async def drop(
    number: Number,
    request: Request,
    backend: InBackend,
    visitor: Operating,
    reason: Annotated[str, Form(max_length=20_000)] = "",
) -> Response:
    try:
        chosen = operations.Dropped(numbers=[number], reason=reason)
        await operations.drop(chosen, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, problem)
    return RedirectResponse("/operations", HTTPStatus.SEE_OTHER)
