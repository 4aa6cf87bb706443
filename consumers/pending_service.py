"""The desk: where the queue is kept, who asks for a page of what waits gets it from an inbox, in
one request.

It is a NATS service (ADR-32), so any client can ask it, and look for it, and at how it fares. The
rules of this file:

* **Never a wrong page.** It holds all that was written to the bucket before it was asked for. While
  the inbox cannot say that (it is being read, the broker was away) there is an error, 503.
* What the bucket holds and is not an entry is named on the first page (`unreadable`) and hinders no
  other.
* Each entry has the bytes that the bucket has. As many are in a page as fit into a message; `after`
  asks for those behind.
* What becomes of the desk is nothing to the queue's worker: without it the bucket is read.
"""

import asyncio
import importlib.metadata
import re
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import nats.errors
from nats import micro
from nats.aio.client import Client
from nats.micro.request import Handler, Request, ServiceError

from ayes.consumers.pending_client import ROLE, SERVICE, SUBJECT, PageRequest
from ayes.consumers.pending_view import PendingView
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.services import Ledger
from ayes.projections.pending import Page
from ayes.schemas.errors import BadInput, TooLarge
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.pending_service")

#: How long a request waits for the inbox to catch up. Whoever is less patient reads the bucket
#: meanwhile.
_CATCH_UP_S: Final = 2.0
#: How soon an inbox that was lost is begun anew; and twice that, and so on, while it cannot be
#: entered.
_AGAIN_S: Final = 1.0
_AT_LAST_S: Final = 60.0
#: Room in a message for what is around the entries of a page.
_AROUND: Final = 1_024


async def serve(log: JetStream) -> None:
    """Answer for as long as this runs, over the connection of this log."""
    connection = log.connection
    connection.on_denied(_denied)
    desk = PendingService(Ledger.on(log, ROLE), connection.client)
    async with _service(connection.client, desk.answer):
        await desk.keep()


class PendingService:
    """An inbox, begun anew whenever it is lost, and what is answered from it."""

    def __init__(self, ledger: Ledger, client: Client) -> None:
        self._ledger = ledger
        self._client = client
        self._inbox: PendingView | None = None

    async def keep(self) -> None:
        again_s = _AGAIN_S
        while True:
            try:
                async with PendingView(self._ledger) as inbox:
                    self._inbox, again_s = inbox, _AGAIN_S
                    await inbox.lost()
            except Exception as problem:  # noqa: BLE001 - whatever it is, the bucket can still be read
                _log.warning("the inbox is lost and will be begun anew", problem=str(problem))
            finally:
                self._inbox = None
            await asyncio.sleep(again_s)
            again_s = min(again_s * 2, _AT_LAST_S)

    async def answer(self, request: Request) -> None:
        try:
            asked = _decoder.decode(request.data or b"{}")
            page = await self._page(asked)
        except TooLarge as problem:
            raise ServiceError("413", _line(str(problem))) from None
        except (msgspec.MsgspecError, BadInput) as problem:
            raise ServiceError("400", _line(f"this is no request for a page: {problem}")) from None
        await request.respond(msgspec.json.encode(page))

    async def _page(self, asked: PageRequest) -> Page:
        chosen = asked.chosen
        inbox = self._inbox
        if inbox is None:
            raise ServiceError(
                "503", "the inbox is being read. Ask again soon, or read the bucket."
            )
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await inbox.caught_up()
            return inbox.page(asked.most, self._client.max_payload - _AROUND, chosen, asked.after)
        except BadInput:
            raise
        except Exception as problem:  # noqa: BLE001 - a page that is not known to be right is none
            why = "it has not caught up" if isinstance(problem, TimeoutError) else str(problem)
            raise ServiceError(
                "503", _line(f"the inbox cannot tell: {why}. Read the bucket.")
            ) from None


@asynccontextmanager
async def _service(client: Client, answer: Handler) -> AsyncGenerator[None]:
    with warnings.catch_warnings():
        # nats-py's, when it notes since when a service runs.
        warnings.filterwarnings("ignore", r"datetime\.datetime\.utcnow", DeprecationWarning)
        service = await micro.add_service(
            client,
            name=SERVICE,
            version=_version(),
            description="What waits for people, the oldest first.",
        )
    try:
        await service.add_endpoint(name="oldest", subject=SUBJECT, handler=answer)
        yield
    finally:
        with suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(1):
                await service.stop()


def _denied(subject: str) -> None:
    if subject.lower() == SUBJECT:
        _log.warning(
            "the broker does not let the queue's worker answer who asks what waits, so each reads "
            "the whole bucket. "
            "Its accounts are those of an older version: write them anew (docs/operators.md)."
        )


def _version() -> str:
    """Of this package, as far as a service may say it: three numbers."""
    with suppress(importlib.metadata.PackageNotFoundError):
        if found := re.match(r"\d+\.\d+\.\d+", importlib.metadata.version("ayes")):
            return found[0]
    return "0.0.0"


def _line(text: str) -> str:
    """As a header holds it."""
    return " ".join(text.split())


_decoder: Final = msgspec.json.Decoder(PageRequest)
