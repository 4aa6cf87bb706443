"""Errors as `application/problem+json` (RFC 9457), with the sentence of the command line."""

from http import HTTPStatus
from typing import Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ayes.schemas import errors as x

#: The status of each class of errors; a subclass without one has that of its parent.
STATUS: Final[dict[type[Exception], HTTPStatus]] = {
    x.BadInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    x.UnknownTool: HTTPStatus.NOT_FOUND,
    x.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    x.Refused: HTTPStatus.CONFLICT,
    x.UnknownCall: HTTPStatus.NOT_FOUND,
    x.NotAllowed: HTTPStatus.FORBIDDEN,
    x.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    x.BrokerRefused: HTTPStatus.FORBIDDEN,
    x.WaitTimedOut: HTTPStatus.REQUEST_TIMEOUT,
    x.Defect: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Problem(BaseModel):
    """A problem, as RFC 9457 defines it; `type` names a class of `ayes.schemas.errors`."""

    type: str
    title: str
    status: int
    detail: str
    #: The exit code that the command line has for it.
    exit_code: int = 1


def status_of(problem: x.ApprovalsError) -> HTTPStatus:
    return next(STATUS[kind] for kind in type(problem).__mro__ if kind in STATUS)


async def on_error(_request: Request, problem: Exception) -> JSONResponse:
    """Answer one of our own errors."""
    assert isinstance(problem, x.ApprovalsError)
    status = status_of(problem)
    headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    return respond(type(problem).__name__, status, str(problem), problem.exit_code, headers)


async def on_bad_request(_request: Request, problem: Exception) -> JSONResponse:
    """Answer a request that does not fit the API's schema, naming the first mistake."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(map(str, first["loc"]))
    said = f"{where}: {first['msg']}. docs/api.md and /api/v1/openapi.json say what is expected."
    return respond("BadInput", HTTPStatus.UNPROCESSABLE_ENTITY, said, 2)


async def on_http_error(_request: Request, problem: Exception) -> JSONResponse:
    """Answer what the framework refuses: an unknown path, a method that is not allowed."""
    assert isinstance(problem, HTTPException)
    status = HTTPStatus(problem.status_code)
    return respond("about:blank", status, problem.detail, 2, dict(problem.headers or {}))


def respond(
    kind: str,
    status: HTTPStatus,
    detail: str,
    exit_code: int,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    found = Problem(
        type=kind if ":" in kind else f"urn:ayes:error:{kind}",
        title=status.phrase,
        status=status,
        detail=detail,
        exit_code=exit_code,
    )
    return JSONResponse(found.model_dump(), status, headers, media_type="application/problem+json")
