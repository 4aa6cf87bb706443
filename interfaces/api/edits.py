"""Checks of edited arguments, before anybody votes for them."""

from typing import Final

from msgspec import Struct

from ayes.interfaces.api.base import ApiModel, ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.queries import Named
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import UnknownTool

router: Final = ApiRouter(tags=["calls"])


class Edit(ApiModel):
    #: Raw JSON text.
    arguments: str


class EditMistake(Struct, frozen=True):
    """A value that does not fit the tool's schema."""

    #: Its place as a JSON pointer (RFC 6901); empty: the whole.
    pointer: str
    #: What is wrong with it.
    message: str


class CheckedEdit(Struct, frozen=True):
    #: What an approval of these arguments would be bound to; empty if they do not fit.
    digest: str
    #: Empty if they fit the schema. The policy is asked when somebody votes for them.
    mistakes: list[EditMistake]


@router.post("/calls/{workspace}/{thread}/{call}/check")
async def check(ref: Named, edit: Edit, visit: Reading) -> CheckedEdit:
    """Check other arguments for a call against the schema of its tool. Nothing is recorded."""
    known = await visit.reading.known_call(ref)
    tool = await visit.reading.tool_of(known)
    if tool is None:
        raise UnknownTool(f"{known.wish.tool} of {ref} is not declared, so it has no schema.")
    mistakes = [
        EditMistake(pointer=one.pointer, message=one.message)
        for one in tool.mistakes(edit.arguments)
    ]
    if not mistakes and (problem := tool.seal_problem(known.wish.arguments, edit.arguments)):
        mistakes = [EditMistake(pointer="", message=problem)]
    digest = "" if mistakes else call_digest(tool.name, tool.version, edit.arguments)
    return CheckedEdit(digest=digest, mistakes=mistakes)
