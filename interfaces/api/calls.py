"""Calls: those that wait or are in doubt, and one with its whole record."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query

from ayes.interfaces.api import decided, doubts
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.decided import DecidedPage
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.mine import Mine, mine_of, voted
from ayes.interfaces.api.models import (
    CallFilter,
    CallState,
    Doubt,
    Doubtful,
    EarlierCall,
    Named,
    PendingCall,
    Question,
    Record,
    Waiting,
    ballots,
    cursor_text,
    earlier_call,
    recorded,
)
from ayes.interfaces.api.permissions import permissions
from ayes.interfaces.api.search import DecidedFilter
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.ops.actions.votes import open_tally
from ayes.projections.pending import Entry, decode
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ROOT, CallRef

router: Final = APIRouter(tags=["calls"])

#: Bytes of the entries of a page.
_MOST_BYTES: Final = 4 << 20
#: Earlier calls of the thread in a record.
_EARLIER: Final = 10


@router.get("/calls")
async def calls(
    chosen: Annotated[CallFilter, Query()], backend: InBackend, visitor: Reading
) -> Waiting | Doubtful | DecidedPage:
    """The calls of a status, page by page. `/decided` has more filters for decided calls."""
    match chosen.status:
        case Status.PENDING:
            return await waiting(chosen, backend, visitor)
        case Status.IN_DOUBT:
            chosen.only("mine")
            return await doubts.doubtful(chosen, backend, visitor)
        case Status.UNKNOWN | Status.REQUESTED:
            raise BadInput(
                f"calls with the status {chosen.status} are not listed. A gate judges one within "
                "milliseconds; `ayes status` says whether one runs."
            )
        case status:
            chosen.only("rule")
            became = "" if status == "decided" else status
            found = DecidedFilter(
                chosen.workspace, chosen.thread, chosen.tool, chosen.rule, status=became
            )
            return await decided.page(backend, found, chosen.order, chosen.after, chosen.limit)


async def waiting(chosen: CallFilter, backend: InBackend, visitor: Reading) -> Waiting:
    """The pending calls."""
    ledger = backend.reading
    mine = await mine_of(ledger, visitor)
    page = backend.waiting.page(
        chosen.limit,
        _MOST_BYTES,
        chosen.pending,
        chosen.cursor,
        fits=_fits(chosen, mine, ledger.now()),
        newest_first=chosen.order == "newest",
    )
    entries = list(map(decode, page.entries))
    done = await voted(ledger, visitor, [one.ref for one in entries if mine(one)])
    listed = [PendingCall.of(one, mine=mine(one), voted=one.ref in done) for one in entries]
    return Waiting(
        calls=[one for one in listed if one.mine or not chosen.mine],
        waiting=page.waiting,
        next=cursor_text(page.after) if page.more else None,
        unreadable=list(map(str, page.unreadable)),
    )


def _fits(chosen: CallFilter, mine: Mine, now: datetime) -> Callable[[Entry], bool] | None:
    """The conditions besides workspace, thread and tool; None if there are none."""
    if not (chosen.rule or chosen.mine or chosen.overdue):
        return None
    return lambda entry: (
        (not chosen.rule or entry.rule == chosen.rule)
        and (not chosen.mine or mine(entry))
        and (not chosen.overdue or (entry.due_at is not None and entry.due_at <= now))
    )


@router.get("/calls/{workspace}/{thread}/{call}")
async def record(ref: Named, backend: InBackend, visitor: Reading) -> Record:
    """One call: its state, what the visitor may do about it, and every fact."""
    ledger = backend.reading
    facts = recorded(await ledger.read(ref))  # first, so that the rest is not older than they are
    known = await ledger.with_origin(await ledger.known_call(ref))
    known, _ = await ledger.with_given(known) if known.votes else (known, ())
    assert known.requested, "`known_call` raises otherwise"
    wish, tool, doubt = (
        known.wish,
        await ledger.tool_of(known),
        await doubts.doubt_about(ledger, known),
    )
    return Record(
        state=CallState.of(known, await open_tally(ledger, known)),
        requester=wish.requester,
        agent=wish.agent,
        labels=wish.labels,
        tool_version=wish.tool_version,
        tool_description=tool.declared.description if tool else "",
        tool_schema=tool.declared.schema if tool else "",
        run_by=wish.run_by,
        requested_at=known.requested.recorded_at,
        question=Question.of(known),
        votes=ballots(known),
        doubt=Doubt.of(doubt) if doubt else None,
        may=await permissions(ledger, known, visitor, doubt),
        earlier=await _earlier(ledger, known),
        facts=facts,
    )


async def _earlier(ledger: Ledger, call: Call) -> list[EarlierCall]:
    """The newest calls of the thread that were requested before this one."""
    assert call.requested
    thread = f"{ROOT}.{call.ref.workspace}.{call.ref.thread}"
    requests = await ledger.read(f"{thread}.call.*.requested")
    before = [one.slot.call_ref for one in requests if one.seq < call.requested.seq]
    refs: list[CallRef] = [ref for ref in before[-_EARLIER:] if ref is not None]
    facts = await ledger.read(*refs) if refs else ()
    return [earlier_call(known) for ref in refs if (known := call_of(ref, facts)).requested]
