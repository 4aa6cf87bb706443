"""A witness of seals over HTTP, as c2sp.org/tlog-witness says.

POST /add-checkpoint             sign a checkpoint that continues the one before
GET /<SHA-256>/checkpoint        what was signed last of the log whose name has this hash
"""

import asyncio
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ayes.ops.sealing.cosigning import Cosigner, Reply
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.witness")

#: Of a request: a proof of 63 hashes has 3 KB.
_MAX_BYTES: Final = 16_384


def application(cosigner: Cosigner) -> Starlette:
    async def add(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BYTES:
                return _response(Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "it is too long.\n"))
        try:
            return _response(await asyncio.to_thread(cosigner.add, bytes(body)))
        except (ApprovalsError, OSError) as problem:
            _log.error("a checkpoint could not be signed", problem=str(problem))
            return _response(Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "the witness failed.\n"))

    async def signed(request: Request) -> Response:
        note = await asyncio.to_thread(cosigner.signed, request.path_params["hashed"])
        if not note:
            return _response(Reply(HTTPStatus.NOT_FOUND, "nothing was signed of this log.\n"))
        return _response(Reply(HTTPStatus.OK, note))

    return Starlette(
        routes=[
            Route("/add-checkpoint", add, methods=["POST"]),
            Route("/{hashed}/checkpoint", signed),
        ]
    )


def _response(answer: Reply) -> Response:
    is_size = answer.status == HTTPStatus.CONFLICT
    media_type = "text/x.tlog.size" if is_size else "text/plain; charset=utf-8"
    return Response(answer.text, answer.status, {"content-type": media_type})
