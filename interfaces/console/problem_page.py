"""Problems as pages, for those who ask with a browser; the API answers with the problem itself."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ayes.interfaces.console.rendering import is_fragment, page

type Handler = Callable[[Request, Exception], Awaitable[JSONResponse]]

#: In place of what htmx was to replace: a message above the page, which stays as it is.
_AS_MESSAGE: Final = {"HX-Retarget": "#messages", "HX-Reswap": "innerHTML"}


def readable(handler: Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The same answers, as pages where a page was asked for."""

    async def answer(request: Request, problem: Exception) -> Response:
        return shown(request, await handler(request, problem))

    return answer


def shown(request: Request, found: JSONResponse) -> Response:
    """This answer, as a page where a page was asked for."""
    if request.url.path.startswith("/api/"):
        return found
    name = "_problem.html" if is_fragment(request) else "problem.html"
    visitor = getattr(request.state, "visitor", None)
    answer = page(request, name, visitor, problem=json.loads(bytes(found.body)))
    answer.status_code = found.status_code
    answer.headers.update(_AS_MESSAGE if is_fragment(request) else {})
    return answer
