"""What stands between the network and the application.

One middleware, so that no page or resource can be added without it. In this order, it

* refuses requests to a host name that is not ours: a foreign name that was made to lead here (DNS
  rebinding) would have the browser treat a foreign page as ours;
* finds the visitor, by the cookie of a session or by an API token;
* refuses what a foreign page makes the browser of a visitor send (CSRF): cookies are
  `SameSite=Strict`, and the browser itself says where a request comes from (`Origin`, and
  `Sec-Fetch-Site` of Fetch Metadata). Ports of one machine are the same site, so the cookie alone
  would not do. A token is never sent by itself, and needs none of this;
* refuses bodies that are too long, before they are read;
* adds the security headers to every response, also to those for errors;
* ends streams and long polls with their session, with the console, and once their visitor may see
  other workspaces than when they began.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from html import escape
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ayes.consumers.notices.devices import DeviceFile
from ayes.interfaces.access.openid import OpenIdProvider, ProviderAccount
from ayes.interfaces.access.sessions import BEGUN, LONGEST_S, WRONG, Attempts, Sessions
from ayes.interfaces.problems import respond, status_of
from ayes.ledger.people import People
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Visitor
from ayes.schemas.addresses import LOOPBACK
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.access.security")

#: A fact has 1 MiB at most; as a string in JSON, with every other character escaped, twice that.
MAX_BYTES: Final = 4 << 20
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: What answers without a visitor.
_OPEN: Final = ("/sign-in", "/static/", "/service-worker.js")

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; font-src 'self'; manifest-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with that, browsers send forms with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), "
    "payment=(), usb=()",
}
_HSTS: Final = "max-age=63072000"


class Security:
    """How the console is reached, and who may.

    Args:
        url: where people open the console.
        provider: who signs people in; None: a link that only this machine can use.
    """

    def __init__(
        self, access: AccessFile, url: str, provider: OpenIdProvider | None = None
    ) -> None:
        parts = urlsplit(url)
        self.access = access
        self.url = url.rstrip("/")
        self.provider = provider
        self.sessions = Sessions()
        self.wrong_codes = Attempts(WRONG)
        self.begun = Attempts(BEGUN)
        self.is_https = parts.scheme == "https"
        self.hosts = LOOPBACK | {parts.hostname}
        #: Of this machine: no passkey works at its addresses, so browsers are led to the name.
        is_local = f".{parts.hostname}".endswith(".localhost")
        self.local_name = parts.netloc if is_local else ""
        # Cookies do not distinguish the ports of a machine, so the name does.
        self.cookie = "__Host-ayes" if self.is_https else f"ayes-{parts.port or 80}"
        #: Who is a person, and the workspaces of each; None: nobody knows yet.
        self.people: Callable[[], People | None] = People
        #: Done when the console ends.
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Done when somebody may not be whom they were, and then another one.
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Break off the streams and long polls that are open."""
        if not self.ending.done():
            self.ending.set_result(None)

    def end_visits(self, name: str, before: datetime) -> None:
        """End what a person has begun who was removed, or added anew, then: sessions, tokens,
        links, devices and streams.
        """
        self.sessions.end_all(name, before.timestamp())
        self.access.end_all(name, before)
        DeviceFile(self.access.store).end_all(name, before)
        self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()

    def sign_in(
        self,
        request: Request,
        response: Response,
        visitor: Visitor,
        account: ProviderAccount | None = None,
    ) -> None:
        """Begin a session in place of the one before, and have the browser keep its secret."""
        self.sessions.end(request.cookies.get(self.cookie, ""))
        self.set_cookie(response, self.cookie, self.sessions.begin(visitor, account), LONGEST_S)

    def account_of(self, request: Request) -> ProviderAccount | None:
        """The account at the provider of whoever makes this request; None if they have none."""
        if "authorization" in request.headers:
            return None
        return self.sessions.account(request.cookies.get(self.cookie, ""))

    def sign_out(self, request: Request, response: Response) -> None:
        self.sessions.end(request.cookies.get(self.cookie, ""))
        self.set_cookie(response, self.cookie, "", 0)

    def set_cookie(
        self, response: Response, name: str, value: str, lasts_s: float, *, lax: bool = False
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(lasts_s),
            secure=self.is_https,
            httponly=True,
            samesite="lax" if lax else "strict",
        )

    def visitor_of(self, request: Request, *, use: bool = True) -> Visitor | None:
        """Who makes this request; None: nobody who is known, or who may see anything.

        Raises:
            BrokerAway: it is not known yet who is a person.
        """
        if (authorization := request.headers.get("authorization")) is not None:
            scheme, _, secret = authorization.partition(" ")
            found = self.access.visitor_of(secret.strip()) if scheme.lower() == "bearer" else None
        else:
            found = self.sessions.find(request.cookies.get(self.cookie, ""), use=use)
        return found and found.as_person(self.people())

    def is_foreign(self, request: Request) -> bool:
        """Whether a page that is not ours made the browser send this."""
        site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
        if request.method in _SAFE:  # a link may lead here, but nothing may be embedded
            embedded = request.headers.get("sec-fetch-mode") != "navigate"
            return embedded and site in {"cross-site", "same-site"}
        if origin is not None:
            scheme = "https" if self.is_https else "http"
            return origin != f"{scheme}://{request.headers.get('host')}"
        return site != "same-origin"


class Guard:
    """The middleware.

    Args:
        shown: makes a page of a problem where a page was asked for.
    """

    def __init__(
        self,
        app: ASGIApp,
        security: Security,
        shown: Callable[[Request, JSONResponse], Response],
    ) -> None:
        self._app = app
        self._security = security
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        exchange = _Exchange(self._security, request, receive, send)
        try:
            refused = self._refused(request)
            if refused is not None:
                await refused(scope, receive, exchange.send)
            else:
                await self._proceed(scope, exchange)
        except Exception:
            _log.exception("a request failed", method=request.method, path=scope["path"])
            if exchange.started:
                raise
            failed = respond("Defect", HTTPStatus.INTERNAL_SERVER_ERROR, _FAILED, 1)
            await self._shown(request, failed)(scope, receive, exchange.send)

    def _refused(self, request: Request) -> Response | None:
        """The answer to a request that may not go on; None: it may."""
        if not self._is_ours(request.headers.get("host", "")):
            where = f"Open it at {self._security.url}, or name it in the settings as [console] url."
            said = f"the console does not answer to this name. {where}"
            return _problem(HTTPStatus.MISDIRECTED_REQUEST, said)
        if self._is_elsewhere(request):
            path, query = (
                quote(request.scope["path"]),
                request.scope["query_string"].decode("latin-1"),
            )
            there = f"{self._security.url}{path}{f'?{query}' if query else ''}"
            return RedirectResponse(there, HTTPStatus.TEMPORARY_REDIRECT)
        try:
            return self._admit(request)
        except HTTPException as refusal:
            return self._shown(request, _problem(HTTPStatus(refusal.status_code), refusal.detail))
        except ApprovalsError as problem:
            request.state.visitor = None
            return self._shown(request, _problem(status_of(problem), str(problem)))

    def _admit(self, request: Request) -> Response | None:
        """Find the visitor; the answer sends those who are not known to sign in.

        Raises:
            HTTPException: the request is not one that the visitor wanted to make.
        """
        security, headers = self._security, request.headers
        if "authorization" in headers and security.cookie in request.cookies:
            raise HTTPException(HTTPStatus.BAD_REQUEST, _BOTH)
        visitor = request.state.visitor = security.visitor_of(request)
        # Not `request.url`, which is made from the Host header too.
        if visitor is None and not request.scope["path"].startswith(_OPEN):
            return _sign_in(request)
        if (visitor is None or visitor.kind == "session") and security.is_foreign(request):
            raise HTTPException(HTTPStatus.FORBIDDEN, _FOREIGN.format(url=security.url))
        reader = headers.get("ayes-visitor")
        if reader is not None and visitor is not None and reader != visitor.name:
            said = _SOMEBODY_ELSE.format(reader=reader, visitor=visitor.name)
            raise HTTPException(HTTPStatus.CONFLICT, said)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LONG)
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
        except ValueError:
            return False
        return parts.hostname in self._security.hosts and parts.netloc == host

    def _is_elsewhere(self, request: Request) -> bool:
        """Whether a browser opens an address of this machine, and the console has a name there."""
        name, host = self._security.local_name, request.headers.get("host", "")
        is_page = request.headers.get("sec-fetch-mode") == "navigate" and request.method in _SAFE
        return (
            bool(name) and is_page and host != name and urlsplit(f"//{host}").hostname in LOOPBACK
        )

    async def _proceed(self, scope: Scope, exchange: "_Exchange") -> None:
        if scope["method"] not in _SAFE:
            await self._app(scope, exchange.receive, exchange.send)
            return
        # A read has no effect, so it can be broken off at any time.
        running = asyncio.ensure_future(self._app(scope, exchange.receive, exchange.send))
        exchange.running = running
        try:
            while True:
                ends = {running, self._security.ending, self._security.changed}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                is_over = running.done() or self._security.ending.done()
                if is_over or not exchange.is_signed_in():
                    break
        finally:
            running.cancel()  # nothing, once it is done
        await asyncio.wait({running})
        if running.cancelled():
            await exchange.finish()
        else:
            running.result()


class _Exchange:
    """One request and its response: limits the one, and adds the headers to the other."""

    def __init__(self, security: Security, request: Request, receive: Receive, send: Send) -> None:
        self.running: asyncio.Future[None] | None = None
        self.started = False
        self._security = security
        self._request = request
        self._receive = receive
        self._send = send
        self._received = 0
        self._completed = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > MAX_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LONG)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self._add_headers(MutableHeaders(scope=message))
        elif not message.get("more_body", False):
            self._completed = True
        elif self.running is not None and not self.is_signed_in():
            self.running.cancel()
            return
        await self._send(message)

    async def finish(self) -> None:
        """Complete the response to a read that was broken off."""
        if not self.started:
            headers = {"Retry-After": "1"}
            status = HTTPStatus.SERVICE_UNAVAILABLE
            ending = respond("Unavailable", status, _BROKEN_OFF, 1, headers)
            await ending(self._request.scope, self._receive, self.send)
        elif not self._completed:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def is_signed_in(self) -> bool:
        """Whether the visitor of a stream still is who they were when it began."""
        known = self._request.state.visitor
        return known is None or self._security.visitor_of(self._request, use=False) == known

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if self._security.is_https:
            headers["Strict-Transport-Security"] = _HSTS
        headers["Cache-Control"] = _kept(self._request)


#: A page that leads on by itself. A browser that comes from another site brings no cookies, not
#: even after a redirect, but it does when a page of ours has sent it on.
_ONWARDS: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0;url={url}">
<title>ayes</title>
<p><a href="{url}">Continue</a></p>
</html>
"""
_BOTH: Final = (
    "the request has a session and a token. Send one of them, so that it is clear whose it is."
)
_FOREIGN: Final = (
    "another site made the browser send this, so nothing was done. Open the console itself, at "
    "{url}."
)
_SOMEBODY_ELSE: Final = (
    "{reader} opened this page, and {visitor} is signed in now, so nothing was done. Reload it."
)
_FAILED: Final = "the console failed at this request. Its log says why."
_BROKEN_OFF: Final = "the console is ending, or what you may see has changed meanwhile. Ask again."
_TOO_LONG: Final = f"the request is too long: {MAX_BYTES >> 20} MiB at most."
_WHO: Final = (
    "nobody is signed in. Send `Authorization: Bearer` with a token that `ayes token add` has "
    "made, or sign in with a browser."
)


def _kept(request: Request) -> str:
    """For how long a browser may keep the answer."""
    if not request.scope["path"].startswith("/static/"):
        return "no-store"
    # Templates name a file with a hash of its content; others are asked about again (ETag).
    return "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"


def lead_on(url: str) -> HTMLResponse:
    """A page that leads to `url`, from which the browser brings its cookies."""
    return HTMLResponse(_ONWARDS.format(url=escape(url)))


def local(url: str) -> str:
    """`url` if it is a path of ours; else the first page, so that no link to us leads elsewhere."""
    # Browsers take a backslash for a slash, and drop tabs and line ends.
    if url.startswith("/") and url.isprintable() and not url.startswith(("//", "/\\")):
        return url
    return "/"


def _sign_in(request: Request) -> Response:
    """The answer to somebody whom nobody knows, or does not know any more."""
    headers = request.headers
    if request.scope["path"].startswith("/api/"):
        challenge = {"WWW-Authenticate": 'Bearer realm="ayes"'}
        return _problem(HTTPStatus.UNAUTHORIZED, _WHO, challenge)
    by_htmx = headers.get("hx-request") == "true"
    if by_htmx or request.method not in _SAFE:  # not what was sent, but where it was written
        there = urlsplit(headers.get("hx-current-url") or headers.get("referer") or "/")
        path, query = there.path, there.query
    else:
        path, query = quote(request.scope["path"]), request.scope["query_string"].decode("latin-1")
    url = f"/sign-in?{urlencode({'next': local(f'{path}?{query}' if query else path)})}"
    if by_htmx:
        return _problem(HTTPStatus.UNAUTHORIZED, _WHO, {"HX-Redirect": url})
    if headers.get("sec-fetch-site") == "cross-site":
        return lead_on(url)
    return RedirectResponse(url, HTTPStatus.SEE_OTHER)


def _problem(
    status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return respond("about:blank", status, detail, 4, dict(headers or {}))
