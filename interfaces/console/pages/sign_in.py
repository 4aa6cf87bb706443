"""Signing in, with a link that works once or with OpenID Connect; and signing out."""

from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from ayes.interfaces.access.openid import CALLBACK, LASTS_S
from ayes.interfaces.access.security import Security, lead_on, local
from ayes.interfaces.access.sessions import Attempts
from ayes.interfaces.api import accounts, groups
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.console.pages.forms import to
from ayes.interfaces.console.rendering import framed
from ayes.interfaces.problems import status_of
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import ApprovalsError

router: Final = APIRouter()

#: What somebody may do who runs the console on their own machine.
_OWNERS: Final = frozenset({Role.REVIEWER, Role.OPERATOR, Role.AUDITOR})
#: Headers that a proxy adds, which passes on the requests of others as if from this machine.
_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
_USED: Final = "This link was used already, or is older than ten minutes."
_ELSEWHERE: Final = "A link signs in on the machine that the console runs on, and nowhere else."


def _security(request: Request) -> Security:
    found: Security = request.app.state.security
    return found


InSecurity = Annotated[Security, Depends(_security)]
Following = Annotated[str, Query(alias="next")]


@router.get("/sign-in")
async def sign_in(
    request: Request, security: InSecurity, code: str = "", following: Following = "/"
) -> Response:
    """Ask first: a program that only looks at a link must not use it up."""
    if request.state.visitor is not None and not code:
        return to(local(following))
    holder = security.access.holder_of(code) if code else ""
    problem = _USED if code and not holder else ""
    return _page(
        request, security, problem=problem, code=code, holder=holder, following=local(following)
    )


@router.post("/sign-in")
async def use_link(
    request: Request,
    security: InSecurity,
    code: Annotated[str, Form()] = "",
    following: Annotated[str, Form(alias="next")] = "/",
) -> Response:
    """Begin the session of the person whose link this is."""
    if security.provider is not None or not _is_on_this_machine(request):
        return _page(request, security, HTTPStatus.FORBIDDEN, problem=_ELSEWHERE)
    name = security.access.holder_of(code) and security.access.use_link(code)
    if not name:  # a good code is never limited: nobody can guess its 256 bits
        if (refused := _too_often(request, security, security.wrong_codes)) is not None:
            return refused
        return _page(request, security, HTTPStatus.FORBIDDEN, problem=_USED)
    response = to(local(following))
    security.sign_in(request, response, Visitor(name, _OWNERS))
    return response


@router.get("/sign-in/start")
async def start(request: Request, security: InSecurity, following: Following = "/") -> Response:
    """Send somebody to the provider."""
    if security.provider is None:
        return to("/sign-in")
    if (refused := _too_often(request, security, security.begun)) is not None:
        return refused
    try:
        url, secret = await security.provider.begin(local(following))
    except ApprovalsError as problem:
        return _page(request, security, status_of(problem), problem=str(problem))
    response = to(url)
    # Lax: the provider sends people back from its own site.
    security.set_cookie(response, _begun(security), secret, LASTS_S, lax=True)
    return response


@router.get(CALLBACK)
async def callback(request: Request, security: InSecurity, backend: InBackend) -> Response:
    """Begin the session of the person whom the provider sends back."""
    if security.provider is None:
        return to("/sign-in")
    response: Response
    try:
        one = await security.provider.finish(
            request.cookies.get(_begun(security), ""), request.query_params
        )
        settings = security.provider.settings
        await accounts.admit(backend, one.visitor, settings.issuer, one.account.subject)
        with suppress(ApprovalsError):  # they are told when they vote
            await groups.record(backend, one.visitor.name, one.account, one.said, settings)
    except ApprovalsError as problem:
        response = _page(request, security, status_of(problem), problem=str(problem))
    else:
        response = lead_on(one.following)
        security.sign_in(request, response, one.visitor, one.account)
    security.set_cookie(response, _begun(security), "", 0, lax=True)
    return response


@router.post("/sign-out")
async def sign_out(request: Request, security: InSecurity) -> Response:
    response = to("/sign-in")
    security.sign_out(request, response)
    return response


def _page(
    request: Request, security: Security, status: HTTPStatus = HTTPStatus.OK, **values: str
) -> Response:
    shown = {"code": "", "holder": "", "following": "/"} | values
    response = framed(request, "sign_in.html", None, provider=security.provider, **shown)
    response.status_code = status
    return response


def _too_often(request: Request, security: Security, attempts: Attempts) -> Response | None:
    """Refuse somebody who tries to sign in too often."""
    client = request.client.host if request.client else ""
    wait_s = attempts.wait_s(client)
    if not wait_s:
        return None
    problem = f"There were too many attempts to sign in. Try again in {wait_s} s."
    response = _page(request, security, HTTPStatus.TOO_MANY_REQUESTS, problem=problem)
    response.headers["Retry-After"] = str(wait_s)
    return response


def _is_on_this_machine(request: Request) -> bool:
    if request.client is None or not _OF_PROXIES.isdisjoint(request.headers.keys()):
        return False
    try:
        peer = ip_address(request.client.host)
    except ValueError:
        return False
    return (getattr(peer, "ipv4_mapped", None) or peer).is_loopback


def _begun(security: Security) -> str:
    """The name of the cookie of somebody who is at the provider."""
    return f"{security.cookie}-begun"
