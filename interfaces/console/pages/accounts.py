"""Where the link in a chat leads: to the question whether that account is the visitor's own."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ayes.interfaces.api import accounts
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.identity import Reviewing
from ayes.interfaces.console.rendering import page
from ayes.schemas.links import BIND

router: Final = APIRouter()


@router.get(f"{BIND}{{code}}")
async def ask(code: str, request: Request, backend: InBackend, visitor: Reviewing) -> Response:
    """Ask first: chat programs open links ahead of their users."""
    account = accounts.offered(code, backend).account
    return page(request, "bind.html", visitor, account=account, code=code, is_bound=False)


@router.post(f"{BIND}{{code}}")
async def bind(code: str, request: Request, backend: InBackend, visitor: Reviewing) -> Response:
    bound = await accounts.bind(accounts.Code(code=code), backend, visitor)
    return page(request, "bind.html", visitor, account=bound.account, code=code, is_bound=True)
