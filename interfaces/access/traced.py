"""Requests in traces: the context of their `traceparent` header, and a span for each.

A request that only reads, and comes without the header, has no span: pages and probes read often.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ayes.ledger import tracing

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Traced:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get("traceparent", "")
        if scope["method"] in _READS and not header:
            await self._app(scope, receive, send)
            return
        with tracing.serving(scope["method"], header) as exchange:

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                await send(message)

            await self._app(scope, receive, sent)
            exchange.route = _route(scope)


def _route(scope: Scope) -> str:
    """The pattern of the path; empty if there is no such resource.

    FastAPI says it without the prefix of the router, which none of our paths' parameters is in.
    """
    pattern: str = getattr(scope.get("route"), "path", "")
    count = scope["path"].count("/") - pattern.count("/")
    return "/".join(scope["path"].split("/")[: count + 1]) + pattern if pattern else ""
