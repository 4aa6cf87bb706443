"""Errors as `application/problem+json` (RFC 9457), with the sentence of the command line."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from msgspec import Struct
from starlette.exceptions import HTTPException

from ayes.interfaces.responses import StructResponse
from ayes.schemas import errors as x

MEDIA_TYPE: Final = "application/problem+json"
#: What each operation of the API may answer besides its result, for the OpenAPI document.
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "A problem (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
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
    x.LogDamaged: HTTPStatus.INTERNAL_SERVER_ERROR,
    x.WaitTimedOut: HTTPStatus.REQUEST_TIMEOUT,
    x.Defect: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Problem(Struct, frozen=True):
    """A problem, as RFC 9457 defines it; `type` names a class of `ayes.schemas.errors`."""

    #: `urn:ayes:error:` and the name of the class.
    type: str
    #: The status in words.
    title: str
    #: The status of the response.
    status: int
    #: What is wrong, and what to do about it.
    detail: str
    #: The exit code that the command line has for it.
    exit_code: int = 1


def status_of(problem: x.ApprovalsError) -> HTTPStatus:
    return next(STATUS[kind] for kind in type(problem).__mro__ if kind in STATUS)


def problem_of(problem: x.ApprovalsError) -> Problem:
    return _problem(type(problem).__name__, status_of(problem), str(problem), problem.exit_code)


async def on_error(_request: Request, problem: Exception) -> StructResponse:
    """Answer one of our own errors."""
    assert isinstance(problem, x.ApprovalsError)
    found = problem_of(problem)
    headers = {"Retry-After": "1"} if found.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return _respond(found, headers)


async def on_bad_request(_request: Request, problem: Exception) -> StructResponse:
    """Answer a request that does not fit the API's schema, naming the first mistake."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where, why = ".".join(map(str, first["loc"])), first["msg"]
    if first["type"] == "json_invalid":
        where, why = "the body", f"it is not JSON: {first['ctx']['error']}"
    said = f"{where}: {why}. docs/api.md and /api/v1/openapi.json say what is expected."
    return respond("BadInput", HTTPStatus.UNPROCESSABLE_ENTITY, said, 2)


async def on_http_error(_request: Request, problem: Exception) -> StructResponse:
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
) -> StructResponse:
    return _respond(_problem(kind, status, detail, exit_code), headers)


def _problem(kind: str, status: HTTPStatus, detail: str, exit_code: int) -> Problem:
    return Problem(
        type=kind if ":" in kind else f"urn:ayes:error:{kind}",
        title=status.phrase,
        status=status,
        # It may quote a name of the request, and half a surrogate pair cannot be sent.
        detail=detail.encode("utf-8", "replace").decode(),
        exit_code=exit_code,
    )


def _respond(problem: Problem, headers: dict[str, str] | None) -> StructResponse:
    return StructResponse(problem, problem.status, headers, media_type=MEDIA_TYPE)
