"""Where the links in messages lead: from a token to the page of its call."""

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from ayes.interfaces.api import links
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.identity import Reading
from ayes.schemas.links import OPEN

router: Final = APIRouter()


@router.get(f"{OPEN}{{token}}")
async def follow(token: str, backend: InBackend, visitor: Reading) -> RedirectResponse:
    """To the page of the call. Whoever is not signed in was led to sign in, and back here."""
    found = await links.linked(token, backend, visitor)
    return RedirectResponse(f"/calls/{found.call}", HTTPStatus.SEE_OTHER)
