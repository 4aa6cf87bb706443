"""Calls in doubt: nobody knows whether they took effect."""

from collections.abc import Sequence
from itertools import batched
from typing import Final, Literal

from msgspec import Struct

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.api.identity import Reading, Role, Visitor
from ayes.interfaces.api.queries import CallQuery, cursor_text
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.objections import may_reconcile
from ayes.ledger.validity import call_of
from ayes.projections.doubt import CallInDoubt, doubt_of
from ayes.projections.pending import PageCursor, key
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


async def doubtful(chosen: CallQuery, visit: Reading) -> Doubtful:
    """The calls in doubt, ordered by the time since when they are."""
    found = filter(chosen.chosen.fits, await in_doubt(visit.reading, chosen.workspace))
    listed = await _listed(visit.reading, list(found), visit.visitor)
    newest_first, after = chosen.order == "newest", chosen.cursor
    fitting = sorted(
        (one for one in listed if one.mine or not chosen.mine), key=_place, reverse=newest_first
    )
    left = [one for one in fitting if after is None or _is_behind(one, after, newest_first)]
    page = left[: chosen.limit]
    return Doubtful(
        calls=page,
        in_doubt=len(fitting),
        next=cursor_text(PageCursor(*_place(page[-1]))) if len(page) < len(left) else None,
    )


async def _listed(
    ledger: Ledger, found: Sequence[CallInDoubt], visitor: Visitor
) -> list[DoubtfulCall]:
    listed: list[DoubtfulCall] = []
    is_reviewer = Role.REVIEWER in visitor.roles
    for together in batched(found, _TOGETHER, strict=False):
        refs = list(map(_ref, together))
        facts = await ledger.read(*refs)
        known = [call_of(ref, facts) for ref in refs]
        listed += [
            doubtful_call(one, call, mine=is_reviewer and may_reconcile(call, visitor.name))
            for one, call in zip(together, known, strict=True)
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
