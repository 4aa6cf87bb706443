"""The provider over HTTP, as the released client speaks to it.

Whatever goes wrong is an error, and no agent runs a tool after one: 401 without a known token, 400
for what is no request of the protocol, 404, 409 with the protocol's code, and 503 while the ledger
does not answer, which clients try again.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ayes.adapters.aap import wire
from ayes.adapters.aap.provider import MAX_WAIT_S, Conflict, Provider
from ayes.adapters.aap.settings import ProviderFile, seconds
from ayes.ledger.services import Ledger
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.errors import ApprovalsError, BadInput, Refused, Unavailable, UnknownCall
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.adapters.aap.routes")

_JSON: Final = "application/json"
_MAX_KEY: Final = 255
#: What a route does for an agent: the body of its answer, and the status.
type _Answer = tuple[bytes, int]
type _Route = Callable[[Provider, Request], Awaitable[_Answer]]


class TooLong(BadInput):
    """A body over the limit of a fact."""


def application(settings: ProviderFile, ledger: Ledger) -> Starlette:
    """The ASGI application with the paths below `/v1/requests`."""
    providers = [
        (
            one.token.encode(),
            Provider(ledger, settings.workspace, one, settings.outcome_within_s),
        )
        for one in settings.instances
    ]

    def route(path: str, method: str, does: _Route) -> Route:
        async def endpoint(request: Request) -> Response:
            provider = _known(providers, request)
            if provider is None:
                told = wire.error("unauthorized", "unauthorized", "this token is not known here")
                return Response(told, 401, {"www-authenticate": "Bearer"}, _JSON)
            body, status = await _answered(does, provider, request)
            return Response(body, status, media_type=_JSON)

        return Route(path, endpoint, methods=[method])

    one = "/v1/requests/{id}"
    return Starlette(
        routes=[
            route("/v1/requests", "POST", _create),
            route(one, "GET", _get),
            route(one, "DELETE", _cancel),
            route(f"{one}/consume", "POST", _consume),
            route(f"{one}/outcome", "POST", _outcome),
        ]
    )


def _known(providers: list[tuple[bytes, Provider]], request: Request) -> Provider | None:
    sent = request.headers.getlist("authorization")
    raw = sent[0].encode("latin-1") if len(sent) == 1 else b""
    found = None
    for token, provider in providers:  # each is compared, so that time tells nothing
        if hmac.compare_digest(raw, b"Bearer " + token):
            found = provider
    return found


async def _answered(does: _Route, provider: Provider, request: Request) -> _Answer:
    try:
        return await does(provider, request)
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
    return bytes(found)
