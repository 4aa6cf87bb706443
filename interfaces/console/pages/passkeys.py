"""The visitor's keys, a new passkey, and the step in which a vote is signed with one."""

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, Response

from ayes.interfaces.api import passkeys
from ayes.interfaces.api.identity import Reading, Reviewing, Visit
from ayes.interfaces.api.passkeys import credential_of
from ayes.interfaces.api.votes import ToSign
from ayes.interfaces.console.pages.forms import again, to
from ayes.interfaces.console.rendering import page
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import ApprovalsError

router: Final = APIRouter()


@router.get("/passkeys")
async def show(visit: Reviewing) -> Response:
    return await _shown(visit)


async def _shown(
    visit: Reviewing, _form: None = None, problem: ApprovalsError | None = None
) -> HTMLResponse:
    trust, keys = passkeys.trust_of(visit), await passkeys.keys_of(visit)
    making: dict[str, Any] = {}
    if trust is not None:
        # A device makes one in the place of a key that was revoked.
        taken = [one.credential for one in keys if one.credential and not one.is_revoked]
        making = {"person": visit.name, "taken": taken}
        where = place(visit, making)
        challenge = base64url(passkeys.challenge_of(visit.name, trust))
        making |= {"where": where, "rp": trust.rp, "challenge": challenge}
    return page(visit, "passkeys.html", problem, keys=keys, making=making, trust=trust)


@router.post("/passkeys")
@again(_shown)
async def add(visit: Reviewing, made: Annotated[str, Form()] = "") -> Response:
    await passkeys.register(visit, made)
    return to("/passkeys")


@router.get("/signed")
async def signed(visit: Reading) -> Response:
    """Where the sign page leads back to: passkeys.js sends the vote with its signature."""
    return page(visit, "signed.html")


async def to_be_signed(visit: Visit, asked: ToSign) -> dict[str, Any]:
    """What the page of this step shows, with the raw facts from which a sign page computes again
    what is signed.
    """
    call, vote = asked.call, asked.vote
    assert call.requested
    assert call.gated
    raws = [await visit.reading.log.at(one.seq) for one in (call.requested, call.gated)]
    requested, gated = (raw.data.decode() if raw is not None else "" for raw in raws)
    said = ("verdict", "reason", "arguments", "answer", "is_error", "on_behalf_of", "halt")
    credentials = [credential_of(one.added.event) for one in asked.keys]
    given = {
        "call": str(call.ref),
        "reviewer": visit.name,
        "vote": {name: getattr(vote, name) for name in said},
        "until": asked.until,
        "requested": requested,
        "gated": gated,
        "policy": asked.bound.policy,
        "keys": dict(zip((one.id for one in asked.keys), credentials, strict=True)),
    }
    trust = passkeys.trust_of(visit)
    assert trust
    return {
        "vote": vote,
        "until": asked.until,
        "rp": trust.rp,
        "challenge": base64url(asked.digest),
        "keys": json.dumps(given["keys"]),
        "where": place(visit, given),
    }


def place(visit: Visit, given: dict[str, Any]) -> str:
    """The address of the sign page with what it is given; `here` if the console's own pages sign;
    empty if nothing can.
    """
    if sign_page := visit.backend.sign_page:
        return f"{sign_page}#{base64url(json.dumps(given).encode())}"
    trust = passkeys.trust_of(visit)
    is_here = trust is not None and visit.request.app.state.security.url in trust.origins
    return "here" if is_here else ""
