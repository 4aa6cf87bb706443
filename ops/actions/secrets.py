"""What of the arguments of calls, queue entries and facts is not shown to people."""

from collections.abc import Iterator
from typing import Final

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import Grant
from ayes.projections.pending import Entry
from ayes.projections.views.secrets import NEWEST, Declaration, Secrets, declaration
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, UnknownTool
from ayes.schemas.slots import declarations

#: The tools of wishes that are looked up for one answer; the arguments of others are hidden.
_MOST: Final = 100


async def secrets_in(ledger: Ledger, *shown: Call | Entry | Fact | Grant) -> Secrets:
    """What is secret in these, by the declarations that they were made with; in a model's wish and
    in a grant by the newest one.
    """
    wanted = dict.fromkeys(one for each in shown for one in _declarations(each))
    named = [one for one in wanted if one[2] != NEWEST]
    places: dict[Declaration, tuple[str, ...] | None] = dict(await ledger.secrets(named))
    newest = [one for one in wanted if one[2] == NEWEST]
    for workspace, tool, _ in newest[:_MOST]:
        found: tuple[str, ...] | None
        try:
            found = (await ledger.tool(workspace, tool)).hidden
        except UnknownTool:
            found = await _none_if_unreadable(ledger, workspace, tool)
        places[workspace, tool, NEWEST] = found
    return Secrets(places)


async def _none_if_unreadable(ledger: Ledger, workspace: str, tool: str) -> tuple[str, ...] | None:
    """What is secret of a tool that is not known: all, if something that cannot be read declares
    it.
    """
    try:
        declared = await ledger.reading.latest(declarations(workspace, tool))
    except BadId:
        return ()
    return () if declared is None else None


def _declarations(shown: Call | Entry | Fact | Grant) -> Iterator[Declaration]:
    match shown:
        case Call():
            if shown.requested is not None:
                yield declaration(shown)
        case Entry():
            yield shown.declaration
        case Grant():
            yield from _declarations(shown.given)
        case Fact(event=e.ToolRequested(tool=tool, tool_version=version)):
            yield shown.slot.workspace, tool, version
        case Fact(event=e.ModelReplied(parts=parts)):
            for part in parts:
                if isinstance(part, e.Wish):
                    yield shown.slot.workspace, part.tool, NEWEST
        case Fact(event=e.Granted(tool=tool)):
            yield shown.slot.workspace, tool, NEWEST
        case _:
            pass
