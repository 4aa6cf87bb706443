"""Connecting to the broker: quickly, or with one sentence that says why not.

nats-py's defaults keep a program without a broker waiting for 120 seconds (nats-io/nats.py#645).
Here a first connection comes about within `timeout_s`, or fails; once it stood, it is kept up for
ever.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Final

import nats.errors
from nats.aio.client import Client

from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.protocol import Parser, parse_with
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.nats.connection")
_DENIED: Final = re.compile(
    r"permissions violation for \w+ to \"(?P<subject>[^\"]+)\"", re.IGNORECASE
)

type OnDenied = Callable[[str], None]


class Connection:
    """One connection, and the listeners for subjects that the broker denies."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.client = Client()
        parser = Parser(self.client)
        parse_with(self.client, parser)
        #: The receivers of messages, by the number of the subscription.
        self.straight = parser.straight
        self.inbox = f"_INBOX.{login.user}" if login.user else "_INBOX"
        self._on_denied: list[OnDenied] = []
        #: Whether the credentials were rejected. nats-py tells only its error callback so.
        self._not_known = False
        self._is_open = False
        self._is_away = False
        #: Set when the connection is gone for good, not when it is being restored.
        self.closed = asyncio.Event()

    def on_denied(self, listener: OnDenied) -> None:
        """Add a listener for subjects that the broker denied."""
        self._on_denied.append(listener)

    async def open(self, *, name: str, timeout_s: float = 3.0) -> None:
        """Connect.

        Raises:
            BrokerAway: no broker answered within `timeout_s`.
            BrokerRefused: it answered, and does not know these credentials.
        """
        login = self.login
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.connect(
                    login.url.split(","),
                    tls=ssl.create_default_context(cafile=login.ca) if login.ca else None,
                    user=login.user or None,
                    password=login.password or None,
                    name=name,
                    inbox_prefix=self.inbox.encode(),
                    # While connecting for the first time: give up after two tries.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds; annotated too narrowly
                    connect_timeout=1,
                    error_cb=self._on_error,
                    closed_cb=self._closed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    skip_subject_validation=True,  # slots validate theirs
                    pending_size=8 * 1024 * 1024,
                )
        except (nats.errors.Error, OSError, TimeoutError):
            await self.client.close()  # a half-open socket, if it came so far
            if self._not_known:
                raise BrokerRefused(
                    f"the broker at {login.url} does not accept the credentials of "
                    f"{login.user or 'nobody'!r}. Give the store that it runs from (--store), or a "
                    "URL with user and password."
                ) from None
            raise BrokerAway(
                f"no NATS broker answers at {login.url} (tried for {timeout_s:g} s). "
                "Start one with `ayes up`, or name another with --url."
            ) from None
        self._is_open = True
        self.client.options["max_reconnect_attempts"] = -1
        self.client.options["reconnect_time_wait"] = 0.25

    async def close(self) -> None:
        """Send what is still buffered, then close."""
        self._is_open = False
        if self.client.is_connected:
            try:
                await self.client.flush(timeout=2)
            except (nats.errors.Error, TimeoutError):
                _log.warning("closing with unsent messages", url=self.login.url)
        if not self.client.is_closed:
            await self.client.close()

    async def _on_error(self, problem: Exception) -> None:
        self._not_known = self._not_known or "authorization" in str(problem).lower()
        denied = _DENIED.search(str(problem))
        if denied is None:
            _log.debug("broker connection", problem=str(problem) or type(problem).__name__)
            return
        for listener in self._on_denied:
            listener(denied["subject"])

    async def _disconnected(self) -> None:
        # Also called when the connection is closed on purpose, and for each attempt that failed.
        if self._is_open and not self.client.is_closed and not self._is_away:
            self._is_away = True
            _log.warning("the broker is away, waiting for it", url=self.login.url)

    async def _reconnected(self) -> None:
        self._is_away = False
        _log.warning("the broker is back", url=self.login.url)

    async def _closed(self) -> None:
        self.closed.set()
