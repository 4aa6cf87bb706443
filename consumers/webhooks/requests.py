"""The HTTP requests to endpoints of webhooks: signed, and only to where they may go. Calendars are
read by them too (consumers/absence), and notices pushed (consumers/notices/push.py).

A URL may name anything, so these hold for each request:

* The name is resolved once, each of its addresses is checked (`schemas/addresses.py`), and exactly
  such an address is connected to: a name cannot resolve to another one in between. The TLS
  certificate is verified for the name in the URL.
* Redirects are not followed, and proxies of the environment are not used.
* A request takes `timeout_s` in all, and a bounded part of the answer is read.

With a proxy of the endpoint's own, the proxy resolves the name, and decides what it connects to.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ayes import __version__
from ayes.consumers.webhooks.endpoints import Endpoint
from ayes.ledger import clock
from ayes.projections.cloud_events import MEDIA_TYPE
from ayes.schemas.addresses import reach
from ayes.schemas.errors import BadInput

if TYPE_CHECKING:
    import httpx

#: Read of an answer; the rest is not needed.
_MAX_BYTES: Final = 4096
#: No answer may put off the next try for longer.
_MAX_RETRY_AFTER_S: Final = 3600.0
#: The header by which a receiver agrees (CloudEvents, HTTP webhooks 1.0.2).
_ORIGIN: Final = "WebHook-Request-Origin"
_ALLOWED: Final = "WebHook-Allowed-Origin"

#: Returns the IP addresses of a host.
type Resolve = Callable[[str, int], Awaitable[list[str]]]


class HttpAnswer(Struct, frozen=True):
    """What came of a request."""

    #: 0: there was no answer.
    status: int = 0
    #: Why the request failed; empty if it succeeded.
    why: str = ""
    #: The time until which the receiver asks to be left alone.
    retry_after_s: float = 0.0
    took_s: float = 0.0
    #: The beginning of the answer, and whether more of it came.
    text: str = ""
    is_cut: bool = False
    allowed_origin: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether the receiver wants nothing more, ever."""
        return self.status == HTTPStatus.GONE


class _NotPermitted(Exception):
    """The URL leads to where this endpoint's requests may not go."""


class Sender:
    """Sends requests to endpoints.

    Args:
        resolve: finds the addresses of a host.
        tls: verifies certificates; by default with the authorities of the system.

    Raises:
        BadInput: the packages for it are not installed.
    """

    def __init__(
        self,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        now: clock.Clock = clock.now,
    ) -> None:
        try:
            import httpx
            import standardwebhooks
        except ImportError:
            raise BadInput(
                "webhooks are not installed. Install them with `pip install ayes[webhooks]`."
            ) from None
        self._httpx, self._signing = httpx, standardwebhooks
        self._resolve = resolve or _addresses
        self._tls = tls or ssl.create_default_context()
        self._now = now

    async def agrees(self, endpoint: Endpoint) -> HttpAnswer:
        """Ask the endpoint whether it wants to be sent facts.

        It must answer with a header that names this ledger, or any. `OPTIONS` has no effect on a
        receiver that knows nothing of this.
        """
        answer = await self._request(endpoint, "OPTIONS", {_ORIGIN: endpoint.origin}, b"")
        if answer.why or answer.allowed_origin in {endpoint.origin, "*"}:
            return answer
        why = f"it does not agree: its answer to OPTIONS has no {_ALLOWED}: {endpoint.origin}"
        return replace(answer, why=why)

    async def post(
        self, endpoint: Endpoint, webhook_id: str, event: str, media_type: str = MEDIA_TYPE
    ) -> HttpAnswer:
        """Send an event, by default a CloudEvent, with a signature for each of the endpoint's
        secrets.
        """
        now = self._now()
        signatures = (
            self._signing.Webhook(secret).sign(webhook_id, now.astimezone(UTC), event)
            for secret in endpoint.secrets(now)
        )
        headers = {
            _ORIGIN: endpoint.origin,
            "Content-Type": f"{media_type}; charset=utf-8",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        return await self._request(endpoint, "POST", headers, event.encode())

    async def send(self, endpoint: Endpoint, headers: dict[str, str], content: bytes) -> HttpAnswer:
        """Send this content, unsigned."""
        return await self._request(endpoint, "POST", headers, content)

    async def get(self, endpoint: Endpoint, most: int) -> HttpAnswer:
        """Read what is there, this many bytes at most."""
        return await self._request(endpoint, "GET", {}, b"", most)

    async def _request(
        self,
        endpoint: Endpoint,
        method: str,
        headers: dict[str, str],
        content: bytes,
        most: int = _MAX_BYTES,
    ) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        headers = headers | {
            "User-Agent": f"ayes/{__version__}",
            "Accept-Encoding": "identity",
            # A connection is of one name, and is not reused for another one at the same address.
            "Connection": "close",
        }
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                answer = await self._connected(endpoint, method, headers, content, most)
        except TimeoutError:
            answer = HttpAnswer(why=f"no answer within {endpoint.timeout_s:g} s")
        except _NotPermitted as why:
            answer = HttpAnswer(why=str(why))
        except (self._httpx.HTTPError, self._httpx.InvalidURL, OSError, UnicodeError) as problem:
            answer = HttpAnswer(why=f"{type(problem).__name__}: {problem}".rstrip(": "))
        return replace(answer, took_s=loop.time() - begun)

    async def _connected(
        self, endpoint: Endpoint, method: str, headers: dict[str, str], content: bytes, most: int
    ) -> HttpAnswer:
        """Send the request to the first address of the host that can be connected to."""
        url = self._httpx.URL(endpoint.url)
        if endpoint.proxy:
            return await self._send(endpoint, method, url, headers, content, most, {})
        host = url.raw_host.decode("ascii")
        headers = headers | {"Host": url.netloc.decode("ascii")}
        addresses = await self._permitted(endpoint, url.scheme, host, url.port)
        timeout_s = endpoint.timeout_s / len(addresses)
        for address in addresses:
            more: dict[str, Any] = {"sni_hostname": host, "timeout": {"connect": timeout_s}}
            to = url.copy_with(host=address)
            try:
                return await self._send(endpoint, method, to, headers, content, most, more)
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise AssertionError("there is an address, or it was not permitted")

    async def _permitted(
        self, endpoint: Endpoint, scheme: str, host: str, port: int | None
    ) -> list[str]:
        """The addresses of the host, if requests may go to all of them."""
        try:
            found = await self._resolve(host, port or (443 if scheme == "https" else 80))
        except OSError as problem:
            raise _NotPermitted(f"{host} has no address: {problem}") from None
        if not found:
            raise _NotPermitted(f"{host} has no address")
        for address in found:
            where = reach(address)
            if where == "special" or (where == "private" and not endpoint.allow_private):
                # Without the address: who registers a name need not know what it is inside.
                hint = " Allow it with --allow-private." if where == "private" else ""
                raise _NotPermitted(f"{host} is at a {where} address, where nothing is sent.{hint}")
            if where == "public" and scheme == "http":
                raise _NotPermitted(f"{host} is at {address}, which needs https://")
        return found

    async def _send(
        self,
        endpoint: Endpoint,
        method: str,
        url: "httpx.URL",
        headers: Mapping[str, str],
        content: bytes,
        most: int,
        extensions: dict[str, Any],
    ) -> HttpAnswer:
        transport = self._httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, proxy=endpoint.proxy or None
        )
        async with (
            self._httpx.AsyncClient(transport=transport, trust_env=False, timeout=None) as client,
            client.stream(
                method, url, headers=headers, content=content, extensions=extensions
            ) as response,
        ):
            text = bytearray()
            async for part in response.aiter_raw():
                text += part
                if len(text) > most:
                    break
        return HttpAnswer(
            response.status_code,
            _why(response.status_code, response.headers.get("location", "")),
            _retry_after_s(response.headers.get("retry-after", ""), self._now()),
            text=text[:most].decode(errors="replace"),
            is_cut=len(text) > most,
            allowed_origin=response.headers.get(_ALLOWED, "").strip(),
        )


def _why(status: int, location: str) -> str:
    """Why an answer of this status is a failure; empty if it is none."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return ""
    phrase = HTTPStatus(status).phrase if status in {*HTTPStatus} else ""
    said = f"it answered {status} {phrase}".rstrip()
    if location and status < HTTPStatus.BAD_REQUEST:
        return f"{said}; redirects are not followed"
    return said


def _retry_after_s(text: str, now: datetime) -> float:
    """Seconds or an HTTP date, as seconds from now; 0 if it is neither."""
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _MAX_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return min(max(0.0, (at - now).total_seconds()), _MAX_RETRY_AFTER_S)


async def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order of the system's preference."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(address[0]) for *_, address in found)]
