"""The pages of conversations: the list, and one as its model read it."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from ayes.interfaces.api import threads
from ayes.interfaces.api.identity import Reading, Visit
from ayes.interfaces.console.rendering import page
from ayes.projections.display.texts import text_of
from ayes.schemas.slots import ThreadRef

router: Final = APIRouter()


@router.get("/conversations")
async def conversations(
    visit: Reading, workspace: str = "", before: threads.Before = None
) -> HTMLResponse:
    found = await threads.threads(visit, workspace, before)
    return page(visit, "conversations.html", found=found, is_first=before is None)


@router.get("/conversations/{workspace}/{thread}")
async def conversation(
    ref: threads.Named,
    visit: Reading,
    before: threads.Before = None,
    provider: Annotated[str, Query(alias="format")] = "",
) -> HTMLResponse:
    """One conversation; with a format, also its history as JSON, to be copied."""
    found = await threads.conversation(ref, visit, before)
    history = await _history(ref, visit, provider) if provider else ""
    return page(
        visit,
        "conversation.html",
        found=found,
        provider=provider,
        history=text_of(history),
        plain_history=history,
    )


async def _history(ref: ThreadRef, visit: Visit, provider: str) -> str:
    """The messages of a provider's API as JSON, indented.

    Without stored files: they may be of any number, each of 32 MiB, and a page of them takes the
    console and the browser minutes.
    """
    found = await threads.history(ref, visit, provider, files=False)
    return msgspec.json.format(bytes(found.body)).decode()
