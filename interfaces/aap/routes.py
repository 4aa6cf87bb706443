"""The provider over HTTP, as the released client speaks to it.

Whatever goes wrong is an error, and no agent runs a tool after one: 401 without a known token, 400
for what is no request of the protocol, 404, 409 with the protocol's code, and 503 while the ledger
does not answer, which clients try again.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ayes.interfaces.aap import wire
from ayes.interfaces.aap.provider import MAX_WAIT_S, Conflict, Provider
from ayes.interfaces.aap.provisioning import NotVerified, Provisioning
from ayes.interfaces.aap.settings import ProviderSettings, ProvisionerSettings
from ayes.ledger.clients.services import Ledger
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.durations import seconds
from ayes.schemas.errors import ApprovalsError, BadInput, Refused, Unavailable, UnknownCall
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.aap.routes")

_JSON: Final = "application/json"
_MAX_KEY: Final = 255
#: The body of an answer, and its status.
type _Answer = tuple[bytes, int]


class _Program(NamedTuple):
    """A program that makes instances, and where it makes them."""

    settings: ProvisionerSettings
    provisioning: Provisioning


class TooLong(BadInput):
    """A body over the limit of a fact."""


def application(
    settings: ProviderSettings, ledger: Ledger, provisioning: Provisioning | None = None
) -> Starlette:
    """The ASGI application with the paths below `/v1/requests` and `/v1/instances`.

    Args:
        provisioning: of the instances that are not in the settings. None: there are none.
    """
    listed = [
        (
            one.token.encode(),
            Provider(ledger, settings.workspace, one, settings.outcome_within_s),
        )
        for one in settings.instances
    ]
    provisioners = [(one.token.encode(), one) for one in settings.provisioners]

    def agent(sent: str) -> Provider | None:
        found = _holder(listed, sent)
        return provisioning.provider(sent) if found is None and provisioning else found

    def program(sent: str) -> _Program | None:
        by = _holder(provisioners, sent)
        return _Program(by, provisioning) if provisioning and by else None

    one, instance = "/v1/requests/{id}", "/v1/instances/{id}"
    made = [
        _route("/v1/instances", "POST", program, _provision),
        _route("/v1/instances", "GET", program, _instances),
        _route(instance, "GET", program, _instance),
        _route(instance, "DELETE", program, _remove),
    ]
    return Starlette(
        routes=[
            *(made if provisioning is not None else ()),
            _route("/v1/requests", "POST", agent, _create),
            _route(one, "GET", agent, _get),
            _route(one, "DELETE", agent, _cancel),
            _route(f"{one}/consume", "POST", agent, _consume),
            _route(f"{one}/outcome", "POST", agent, _outcome),
        ]
    )


def _route[T](
    path: str,
    method: str,
    holder: Callable[[str], T | None],
    does: Callable[[T, Request], Awaitable[_Answer]],
) -> Route:
    """A route for those whom their tokens show."""

    async def endpoint(request: Request) -> Response:
        if (found := holder(_token(request))) is None:
            told = wire.error("unauthorized", "unauthorized", "this token is not known here")
            return Response(told, 401, {"www-authenticate": "Bearer"}, _JSON)
        body, status = await _answered(does, found, request)
        return Response(body, status, media_type=_JSON)

    return Route(path, endpoint, methods=[method])


def _token(request: Request) -> str:
    """The token that was sent; empty if there is none, or more than one."""
    sent = request.headers.getlist("authorization")
    scheme, _, token = (sent[0] if len(sent) == 1 else "").partition(" ")
    return token if scheme == "Bearer" else ""


def _holder[T](tokens: Sequence[tuple[bytes, T]], sent: str) -> T | None:
    raw, found = sent.encode("latin-1"), None
    for token, holder in tokens:  # each is compared, so that time tells nothing
        if hmac.compare_digest(raw, token):
            found = holder
    return found


async def _answered[T](
    does: Callable[[T, Request], Awaitable[_Answer]], holder: T, request: Request
) -> _Answer:
    try:
        return await does(holder, request)
    except NotVerified as problem:
        return wire.error("invalid_request", "webhook_verification_failed", str(problem)), 422
    except Conflict as problem:
        return wire.error("conflict", problem.code, str(problem)), 409
    except UnknownCall as problem:
        return wire.error("not_found", "not_found", str(problem)), 404
    except TooLong as problem:
        return wire.error("invalid_request", "too_large", str(problem)), 413
    except BadInput as problem:
        return wire.error("invalid_request", "invalid_request", str(problem)), 400
    except Unavailable as problem:
        return wire.error("unavailable", "unavailable", str(problem)), 503
    except Refused as problem:
        return wire.error("conflict", "refused", str(problem)), 409
    except ApprovalsError as problem:
        _log.error("a request failed", problem=str(problem))
        return wire.error("internal", "internal", "the provider failed. Nothing has run."), 500


async def _create(provider: Provider, request: Request) -> _Answer:
    key = _key(request)
    body, is_new = await provider.create(wire.submission(await _body(request)), key)
    return body, 201 if is_new else 200


async def _get(provider: Provider, request: Request) -> _Answer:
    wait = request.query_params.get("wait", "0s")
    wait_s = seconds(wait)
    if wait_s is None:
        raise BadInput(f"wait={wait!r} is not a time of up to {MAX_WAIT_S:g}s, such as 25s.")
    return await provider.get(request.path_params["id"], wait_s), 200


async def _cancel(provider: Provider, request: Request) -> _Answer:
    return await provider.cancel(request.path_params["id"]), 200


async def _consume(provider: Provider, request: Request) -> _Answer:
    return await provider.consume(request.path_params["id"], _key(request)), 200


async def _outcome(provider: Provider, request: Request) -> _Answer:
    report = wire.report(await _body(request))
    return await provider.outcome(request.path_params["id"], report), 200


async def _provision(by: _Program, request: Request) -> _Answer:
    key = _key(request)
    body, is_new = await by.provisioning.create(by.settings, await _body(request), key)
    return body, 201 if is_new else 200


async def _instances(by: _Program, _: Request) -> _Answer:
    return by.provisioning.listed(by.settings), 200


async def _instance(by: _Program, request: Request) -> _Answer:
    return by.provisioning.shown(by.settings, request.path_params["id"]), 200


async def _remove(by: _Program, request: Request) -> _Answer:
    return await by.provisioning.remove(by.settings, request.path_params["id"]), 200


def _key(request: Request) -> str:
    key: str = request.headers.get("idempotency-key", "")
    if not 1 <= len(key) <= _MAX_KEY:
        raise BadInput(f"the header Idempotency-Key is missing, or over {_MAX_KEY} characters.")
    return key


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MAX_BYTES:
            raise TooLong(f"the request has over {MAX_BYTES:,} bytes, and no fact may have more.")
    try:
        found.decode()
    except UnicodeDecodeError:
        raise BadInput("the request is not UTF-8, as JSON is.") from None
    return bytes(found)
