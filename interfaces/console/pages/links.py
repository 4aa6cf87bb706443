"""Where links in messages lead: to the page of a call, or to the question whether an account in a
chat is the visitor's own.
"""

from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from ayes.interfaces.api import accounts, links
from ayes.interfaces.api.identity import Reading, Reviewing
from ayes.interfaces.console.pages.forms import to
from ayes.interfaces.console.rendering import page
from ayes.schemas.links import BIND, OPEN

router: Final = APIRouter()


@router.get(f"{OPEN}{{token}}")
async def follow(token: str, visit: Reading) -> Response:
    """To the page of the call. Whoever is not signed in was led to sign in, and back here."""
    return to(f"/calls/{(await links.linked(token, visit)).call}")


@router.get(f"{BIND}{{code}}")
async def ask(code: str, visit: Reviewing) -> Response:
    """Ask first: chat programs open links ahead of their users."""
    account = accounts.offered(code, visit).account
    return page(visit, "bind.html", account=account, code=code, is_bound=False)


@router.post(f"{BIND}{{code}}")
async def bind(code: str, visit: Reviewing) -> Response:
    bound = await accounts.bind(accounts.Code(code=code), visit)
    return page(visit, "bind.html", account=bound.account, code=code, is_bound=True)
