"""Past calls that a grant would have covered, for somebody who is about to give it."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Final

from msgspec import Struct

from ayes.interfaces.api import decided
from ayes.interfaces.api.identity import Role, Visit
from ayes.ledger.judging.grants import bad_grant, fits
from ayes.ledger.judging.policy_rules import About
from ayes.ops.actions.grants import GrantScope, granted
from ayes.projections.call_query import CallQuery
from ayes.projections.views.call import DecidedCall
from ayes.projections.views.copied import copied
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

#: Days that are looked at, calls at most, and seconds after which no more are read.
DAYS: Final = 30
_CALLS: Final = 1000
_PATIENCE_S: Final = 3.0
_PAGE: Final = 200


class Precedents(Struct, frozen=True):
    """The newest decided calls of a tool, and those that a grant would have covered."""

    looked_at: int
    #: Whether there are no more of these days.
    is_all: bool
    #: Those that it would have covered, by how they were decided.
    covered: dict[str, int]


async def hidden_of(visit: Visit, ref: CallRef) -> tuple[str, ...]:
    """The secret places in the arguments of a call (JSON pointers), none of which a grant cites.

    Raises:
        NotAllowed: the visitor may not give grants, or none may cover the tool.
        UnknownTool: nobody declares the tool any more.
    """
    visit.visitor.require(Role.REVIEWER)
    known = await visit.reading.known_call(ref)
    reviewer = visit.reading.reviewer(visit.name)
    newest = await reviewer.check_grantable(ref.workspace, known.wish.tool)
    called = await visit.reading.tool_of(known) or newest
    return (*newest.hidden, *called.hidden)


async def proposed(visit: Visit, like: CallRef, scope: GrantScope) -> e.Granted:
    """The grant as it would be recorded.

    Raises:
        BadInput: it would not be valid.
    """
    new = granted(await visit.reading.known_call(like), scope)
    if problem := bad_grant(new):
        raise BadInput(problem)
    return new


async def precedents(visit: Visit, workspace: str, new: e.Granted) -> Precedents:
    """The calls of the last days that such a grant would have covered. Those that the visitor
    asked for are none: a grant does not cover its giver's own calls.
    """
    clock = asyncio.get_running_loop()
    late, after, looked_at = clock.time() + _PATIENCE_S, "", 0
    covered = Counter[str]()
    since = (visit.reading.now() - timedelta(days=DAYS)).isoformat()
    chosen = CallQuery.of(workspace=workspace, tool=new.tool, since=since)
    while looked_at < _CALLS and clock.time() < late:
        found = await decided.page(visit, chosen, after=after, limit=_PAGE, whole=True)
        for one in found.calls:
            looked_at += 1
            if one.requester not in {visit.name, visit.visitor.person} and await _is_covered(
                visit, one, new
            ):
                covered[one.verdict] += 1
        if found.next is None:
            return Precedents(looked_at, True, dict(covered.most_common()))
        after = found.next
    return Precedents(looked_at, False, dict(covered.most_common()))


async def _is_covered(visit: Visit, one: DecidedCall, new: e.Granted) -> bool:
    arguments = one.arguments
    if one.edited:  # a grant is for what is asked, not for what a reviewer made of it
        arguments = (await visit.reading.known_call(CallRef.parse(one.call))).wish.arguments
    try:
        args = strict_json.read(arguments)
    except strict_json.BadJson:
        return False
    about = copied(About, one, args=args, tool_class="irreversible")  # conditions see no class
    return fits(new, about, about.scope)
