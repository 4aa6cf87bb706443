"""A NATS service that returns a page of pending approvals, served from an in-memory view.

It follows ADR-32, so any client can call it, discover it and read its statistics. The rules:

* **Never a wrong page.** The view holds everything that was written to the bucket before the
  request. While that is uncertain (the view is loading, the broker was away) the answer is an
  error, 503.
* Entries of the bucket that cannot be read are named on the first page (`unreadable`).
* Each entry has the bytes of the bucket. A page has as many as fit into a message; `after` asks for
  the next ones.
* The service is optional: if it fails, the projector keeps running and clients read the bucket.
"""

import asyncio
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.micro.request import Request, ServiceError

from ayes.consumers.pending_client import ROLE, SERVICE, SUBJECT, PageRequest
from ayes.consumers.pending_view import PendingView
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.micro_service import one_line, registered
from ayes.projections.pending import Page
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BadInput, TooLarge
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.pending_service")

#: How long a request waits for the view to catch up.
_CATCH_UP_S: Final = 2.0
#: The pause before a lost view is rebuilt; each failure doubles it.
_PAUSES: Final = Backoff(1.0, 60.0)
#: Bytes of a message around the entries of a page.
_ENVELOPE_BYTES: Final = 1_024


async def serve(log: JetStream) -> None:
    """Answer requests over the connection of this log until cancelled."""
    connection = log.connection
    connection.on_denied(_denied)
    service = PendingService(Ledger.on(log, ROLE), connection.client)
    description = "Pending approvals, oldest first."
    async with registered(connection.client, SERVICE, description) as offered:
        await offered.add_endpoint(name="oldest", subject=SUBJECT, handler=service.answer)
        await service.run()


class PendingService:
    """Answers from a view, which is rebuilt whenever it is lost."""

    def __init__(self, ledger: Ledger, client: Client) -> None:
        self._ledger = ledger
        self._client = client
        self._view: PendingView | None = None

    async def run(self) -> None:
        pauses = _PAUSES.pauses()
        while True:
            try:
                async with PendingView(self._ledger) as view:
                    self._view, pauses = view, _PAUSES.pauses()
                    await view.lost()
            except Exception as problem:  # noqa: BLE001 - the bucket can still be read
                _log.warning("the view is lost and will be rebuilt", problem=str(problem))
            finally:
                self._view = None
            await asyncio.sleep(next(pauses))

    async def answer(self, request: Request) -> None:
        try:
            asked = _decoder.decode(request.data or b"{}")
            page = await self._page(asked)
        except TooLarge as problem:
            raise ServiceError("413", one_line(str(problem))) from None
        except (msgspec.MsgspecError, BadInput) as problem:
            raise ServiceError(
                "400", one_line(f"not a valid request for a page: {problem}")
            ) from None
        await request.respond(msgspec.json.encode(page))

    async def _page(self, asked: PageRequest) -> Page:
        chosen = asked.checked()
        view = self._view
        if view is None:
            raise ServiceError("503", "the view is loading. Ask again soon, or read the bucket.")
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await view.caught_up()
            room = self._client.max_payload - _ENVELOPE_BYTES
            return view.page(asked.most, room, chosen, asked.after)
        except BadInput:
            raise
        except Exception as problem:  # noqa: BLE001 - better no page than one that may be wrong
            why = "it has not caught up" if isinstance(problem, TimeoutError) else str(problem)
            raise ServiceError(
                "503", one_line(f"the view cannot answer: {why}. Read the bucket.")
            ) from None


def _denied(subject: str) -> None:
    if subject.lower() == SUBJECT:
        _log.warning(
            "the broker does not let the queue's worker answer requests for pending approvals, so "
            "each client reads the whole bucket. Its accounts are those of an older version: write "
            "them anew (docs/running.md)."
        )


_decoder: Final = msgspec.json.Decoder(PageRequest)
