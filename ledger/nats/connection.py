"""Connecting to the broker: quickly, or with one sentence that says why not.

nats-py's defaults keep a program without a broker waiting for 120 seconds (nats-io/nats.py#645).
Here a first connection comes about within `timeout_s`, or fails; once it stood, it is kept up for
ever, with any server of the cluster that answers.

A server that vanishes silently closes nothing, and by its defaults nats-py notices after six
minutes. Here it has `PING_S` for an answer to a ping, `PINGS` times. A follower that misses its
heartbeats sooner (`ordered_consumer.py`) calls `probe`.
"""

import asyncio
import re
import secrets
import ssl
from collections.abc import Callable
from typing import Final

import nats.errors
from nats.aio.client import Client

from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.keys import Key
from ayes.ledger.nats.protocol import NoTls, close_client, discard_unsent, replace_parts
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.nats.connection")
_DENIED: Final = re.compile(
    r"permissions violation for \w+ to \"(?P<subject>[^\"]+)\"", re.IGNORECASE
)

#: A server that leaves `PINGS` pings in a row unanswered, each for `PING_S`, is given up: after six
#: seconds at the most. A request waits for five, so its repetition finds the next server.
PING_S: Final = 2
PINGS: Final = 2
#: How long a server may take to answer the ping of `probe`.
PROBE_S: Final = 2
#: How long a server may take to accept a connection, and again for each answer while signing on.
CONNECT_S: Final = 2

#: How long the broker may refuse to restore a person's connection.
REFUSED_S: Final = 20.0

type OnDenied = Callable[[str], None]


class Connection:
    """One connection, and the listeners for subjects that the broker denies."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.client = Client()
        #: The receivers of messages, by the number of the subscription.
        self._key = Key(seed=login.seed) if login.seed else None
        key = self._key.public if self._key else ""
        self._parser = replace_parts(self.client, needs_tls=login.is_tls, key=key)
        self.straight = self._parser.straight
        #: Nobody can guess it, and on the broker of `up` nobody else may hear it (decision 0053).
        self._own = secrets.token_urlsafe(12)
        # An account imports the inboxes of its role; those of logins with workspaces have one.
        user = login.user if login.workspaces else login.role or login.user
        self.inbox = ".".join(("_INBOX", *([user] if user else ()), self._own))
        self._on_denied: list[OnDenied] = []
        self._is_connecting = False
        self._is_open = False
        self._is_away = False
        #: Since when the broker refuses these credentials; 0: it does not.
        self._refused_at = 0.0
        self._closing: asyncio.Task[None] | None = None
        #: Set when the connection is gone for good, not when it is being restored.
        self.closed = asyncio.Event()

    def on_denied(self, listener: OnDenied) -> None:
        """Add a listener for subjects that the broker denied."""
        self._on_denied.append(listener)

    async def open(self, *, name: str, timeout_s: float = 3.0) -> None:
        """Connect to any of the servers.

        Raises:
            BadInput: the CA's file cannot be read; or a password or a key would go to another
                machine without TLS.
            BrokerAway: none of the servers answered within `timeout_s`.
            BrokerRefused: one answered, and does not accept these credentials, or cannot show a
                certificate that is valid.
        """
        login = self.login
        login.check_line()
        tls = login.tls() if login.is_tls or login.ca else None
        self._is_connecting = True
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.connect(
                    login.servers,
                    user=login.user or None,
                    password=login.password or None,
                    signature_cb=self._key.answer if self._key else None,
                    tls=tls,
                    name=f"{name} inbox={self._own}",
                    inbox_prefix=self.inbox.encode(),
                    # While connecting for the first time: give up after two tries of each server.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds; annotated too narrowly
                    connect_timeout=CONNECT_S,
                    ping_interval=PING_S,
                    max_outstanding_pings=PINGS,
                    error_cb=self._on_error,
                    closed_cb=self._closed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    skip_subject_validation=True,  # slots validate theirs
                    pending_size=8 * 1024 * 1024,
                )
        except (nats.errors.Error, OSError, TimeoutError):
            raise BrokerAway(
                f"no NATS broker answers at {login.url}. "
                "Start one with `ayes up`, or name another with --url."
            ) from None
        finally:
            self._is_connecting = False
            if not self.client.is_connected:
                await close_client(self.client)  # a half-open socket, if it came so far
        self._is_open = True
        self.client.options["max_reconnect_attempts"] = -1
        self.client.options["reconnect_time_wait"] = 0.25

    async def probe(self) -> None:
        """Reconnect, to another server if there is one, unless this one answers a ping."""
        client, before = self.client, self.client.stats["reconnects"]
        if not client.is_connected:
            return
        try:
            await client.flush(timeout=PROBE_S)
        except (nats.errors.Error, TimeoutError):
            if client.stats["reconnects"] == before:
                _log.warning("the broker does not answer, reconnecting", url=self.server)
                await client.force_reconnect()

    @property
    def server(self) -> str:
        """The URL of the server in use, or of all of them."""
        url = self.client.connected_url
        return url.geturl() if url else self.login.url

    async def close(self) -> None:
        """Send what is still buffered, then close; that also if it is cancelled meanwhile."""
        self._is_open = False
        try:
            if self.client.is_connected:
                await self.client.flush(timeout=2)
        except (nats.errors.Error, TimeoutError):
            _log.warning("closing with unsent messages", url=self.login.url)
        finally:
            if not self.client.is_closed:
                discard_unsent(self.client)
                await close_client(self.client)

    async def _on_error(self, problem: Exception) -> None:
        if self._is_connecting:
            self._refuse(problem)
        elif "authorization" in str(problem).lower() and not self.client.is_connected:
            self._give_up_later()
        denied = _DENIED.search(str(problem))
        if denied is None:
            _log.debug("broker connection", problem=str(problem) or type(problem).__name__)
            return
        for listener in self._on_denied:
            listener(denied["subject"])

    def _give_up_later(self) -> None:
        """Close the connection of a person or a key that the broker refuses to restore: they were
        removed, or it was revoked.
        """
        now = asyncio.get_running_loop().time()
        self._refused_at = self._refused_at or now
        may_end = self._key or self.login.user.startswith("reviewer-")
        if may_end and now - self._refused_at > REFUSED_S and self._closing is None:
            _log.warning("the broker accepts a login no more", user=self.login.user)
            self._is_open = False
            self._closing = asyncio.create_task(self.client.close())

    def _refuse(self, problem: Exception) -> None:
        """Raise what trying again will not mend, out of nats-py's `connect`, which calls this.

        It reports this to its error callback alone, and goes on with the next server.
        """
        url, user = self.login.url, self.login.user or "nobody"
        if "authorization" in str(problem).lower():
            if self._key:
                raise BrokerRefused(
                    f"the broker at {url} does not accept the key of the login {user!r}. It has "
                    "ended, was revoked or got another key: see `ayes auth list` at the broker."
                ) from None
            raise BrokerRefused(
                f"the broker at {url} does not accept the credentials of {user!r}. Give the store "
                "that it runs from (--store), or a URL with user and password."
            ) from None
        if isinstance(problem, NoTls):
            raise BrokerRefused(
                f"the broker at {url} offers no TLS, and the URL begins with tls://. Nothing was "
                "sent to it."
            ) from None
        if isinstance(problem, ssl.SSLCertVerificationError):
            raise BrokerRefused(
                f"the certificate of the broker at {url} is not valid: {problem.verify_message}. "
                "AYES_CA names the file with the certificate of its CA."
            ) from None

    async def _disconnected(self) -> None:
        # Also called when the connection is closed on purpose, and for each attempt that failed.
        if self._is_open and not self.client.is_closed and not self._is_away:
            self._is_away = True
            if self._parser.has_expired:
                return
            _log.warning("the broker is away, waiting for it", url=self.login.url)

    async def _reconnected(self) -> None:
        self._is_away, self._refused_at = False, 0.0
        if not self._parser.has_expired:
            _log.warning("the broker is back", url=self.login.url)
        self._parser.has_expired = False

    async def _closed(self) -> None:
        self.closed.set()
