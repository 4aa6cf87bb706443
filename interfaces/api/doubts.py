"""Calls in doubt: nobody knows whether they took effect."""

from collections.abc import Sequence
from itertools import batched
from typing import Final, Literal

from msgspec import Struct

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.api.identity import Reading, Role, Visit
from ayes.interfaces.api.queries import Listing, cursor_text
from ayes.interfaces.api.search import selected
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.objections import may_reconcile
from ayes.ledger.validity import call_of
from ayes.projections.call_order import PageCursor
from ayes.projections.call_query import ALL, CallQuery
from ayes.projections.doubt import CallInDoubt, doubt_of
from ayes.projections.pending import key
from ayes.projections.views.doubt import DoubtfulCall, doubtful_call
from ayes.schemas.slots import CallRef

#: Calls read with one request.
_TOGETHER: Final = 50


class Doubtful(Struct, frozen=True, kw_only=True):
    """A page of calls in doubt."""

    status: Literal["in_doubt"] = "in_doubt"
    #: Those of the page.
    calls: list[DoubtfulCall]
    #: The number of matching calls, on this page and on others.
    in_doubt: int
    next: str | None


async def doubtful(chosen: Listing, visit: Reading) -> Doubtful:
    """The calls in doubt, ordered by the time since when they are."""
    query = chosen.chosen.only(
        "calls in doubt", "due", "age", "for", "handed", "is:overdue", "is:snoozed"
    )
    found = await in_doubt(visit.reading, chosen.workspace)
    listed = await _listed(visit, found, query)
    newest_first, after = chosen.is_newest_first, chosen.cursor
    fitting = sorted(listed, key=_place, reverse=newest_first)
    left = [one for one in fitting if after is None or _is_behind(one, after, newest_first)]
    page = left[: chosen.limit]
    return Doubtful(
        calls=page,
        in_doubt=len(fitting),
        next=cursor_text(PageCursor(*_place(page[-1]))) if len(page) < len(left) else None,
    )


async def _listed(
    visit: Visit, found: Sequence[CallInDoubt], query: CallQuery
) -> list[DoubtfulCall]:
    listed: list[DoubtfulCall] = []
    ledger, visitor = visit.reading, visit.visitor
    is_reviewer = Role.REVIEWER in visitor.roles
    for together in batched(found, _TOGETHER, strict=False):
        refs = list(map(_ref, together))
        facts = await ledger.read(*refs)
        known = {ref: call_of(ref, facts) for ref in refs}
        mine = {
            str(ref): is_reviewer and may_reconcile(call, visitor.name)
            for ref, call in known.items()
        }
        shown = {str(ref) for ref in refs}
        if query != ALL:
            decided = [one for one in known.values() if one.requested and one.decided]
            chosen = await selected(ledger, decided, query, mine)
            shown = {one.call for one in chosen}
        secrets = await visit.secrets(*known.values())
        listed += [
            doubtful_call(one, known[ref], secrets, mine=mine[str(ref)])
            for one, ref in zip(together, refs, strict=True)
            if str(ref) in shown
        ]
    return listed


def _place(one: DoubtfulCall) -> tuple[int, str]:
    """Microseconds since 1970, and the key of the call."""
    return int(one.since.timestamp() * 1_000_000), key(CallRef.parse(one.call))


def _is_behind(one: DoubtfulCall, after: PageCursor, newest_first: bool) -> bool:
    place, last = _place(one), (after.seq, after.key)
    return place < last if newest_first else place > last


async def doubt_about(ledger: Ledger, call: Call) -> CallInDoubt | None:
    """The doubt about a call; None if it is not in doubt."""
    found = doubt_of(call, None, ledger.now())
    if found is None or found.recorded:
        return found
    # Its claim may have been renewed, which only the index knows.
    each = await in_doubt(ledger, call.ref.workspace)
    return next((one for one in each if _ref(one) == call.ref), None)


def _ref(one: CallInDoubt) -> CallRef:
    return CallRef(one.workspace, one.thread, one.call)
