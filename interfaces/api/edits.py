"""Checks of edited arguments, before anybody votes for them."""

from typing import Final

from fastapi import APIRouter

from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.base import ApiModel
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.models import Named
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import UnknownTool

router: Final = APIRouter(tags=["calls"])


class Edit(ApiModel):
    arguments: str
    """Raw JSON text."""


class EditMistake(ApiModel):
    """A value that does not fit the tool's schema."""

    pointer: str
    """Its place as a JSON pointer (RFC 6901); empty: the whole."""
    message: str


class CheckedEdit(ApiModel):
    digest: str
    """What an approval of these arguments would be bound to; empty if they do not fit."""
    mistakes: list[EditMistake]
    """Empty if they fit the schema. The policy is asked when somebody votes for them."""


@router.post("/calls/{workspace}/{thread}/{call}/check")
async def check(ref: Named, edit: Edit, backend: InBackend, _visitor: Reading) -> CheckedEdit:
    """Check other arguments for a call against the schema of its tool. Nothing is recorded."""
    known = await backend.reading.known_call(ref)
    tool = await backend.reading.tool_of(known)
    if tool is None:
        raise UnknownTool(f"{known.wish.tool} of {ref} is not declared, so it has no schema.")
    mistakes = [
        EditMistake(pointer=one.pointer, message=one.message)
        for one in tool.mistakes(edit.arguments)
    ]
    digest = "" if mistakes else call_digest(tool.name, tool.version, edit.arguments)
    return CheckedEdit(digest=digest, mistakes=mistakes)
