"""Calls: those that wait or are in doubt, and one with its whole record."""

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import Query
from msgspec import Struct
from msgspec.structs import replace

from ayes.interfaces.api import decided, doubts
from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.decided import DecidedPage
from ayes.interfaces.api.doubts import Doubtful
from ayes.interfaces.api.identity import Reading, Role, Visit
from ayes.interfaces.api.mine import mine_of
from ayes.interfaces.api.permissions import Permission, permissions
from ayes.interfaces.api.queries import Listing, Named, cursor_text
from ayes.interfaces.api.search import Order
from ayes.interfaces.api.snoozes import snoozed_of
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.ops.actions.searching import seen_by, voted
from ayes.ops.actions.votes import state_of
from ayes.projections.call_query import OF_DECIDED, SNOOZED, CallQuery
from ayes.projections.pending import decode
from ayes.projections.views import call as views
from ayes.projections.views.copied import copied
from ayes.projections.views.doubt import Doubt
from ayes.projections.views.doubt import doubt as doubt_view
from ayes.projections.views.fact import RecordedFact, recorded
from ayes.projections.views.secrets import WHOLE
from ayes.schemas.errors import BadInput, NotAllowed
from ayes.schemas.slots import ROOT, CallRef

router: Final = ApiRouter(tags=["calls"])

#: Bytes of the entries of a page.
_MAX_BYTES: Final = 4 << 20
#: Earlier calls of the thread in a record.
_EARLIER: Final = 10


class Waiting(Struct, frozen=True, kw_only=True):
    """A page of pending calls."""

    status: Literal["pending"] = "pending"
    #: Those of the page.
    calls: list[views.PendingCall]
    #: The number of matching calls, on this page and on others.
    waiting: int
    next: str | None
    #: If they are grouped: the groups on the page, each with its number of matching calls.
    groups: dict[str, int] = {}
    #: Why entries of the queue are left out, which cannot be read. Only on the first page.
    unreadable: list[str] = []
    #: How many more calls match that the visitor has put aside; 0 if the query has `is:snoozed`.
    put_aside: int = 0
    #: When the next call that the visitor has put aside comes back at the latest.
    back_at: datetime | None = None


@router.get("/calls")
async def calls(
    chosen: Annotated[Listing, Query()], visit: Reading
) -> Waiting | Doubtful | DecidedPage:
    """The calls of a status, page by page."""
    match chosen.status:
        case Status.PENDING:
            return await waiting(chosen, visit)
        case Status.IN_DOUBT:
            return await doubts.doubtful(chosen, visit)
        case Status.UNKNOWN | Status.REQUESTED:
            raise BadInput(
                f"calls with the status {chosen.status} are not listed. A gate judges one within "
                "milliseconds; `ayes status` says whether one runs."
            )
        case status:
            became = CallQuery.of(status="" if status == "decided" else str(status))
            order: Order = "newest" if chosen.is_newest_first else "oldest"
            found = chosen.chosen & became
            return await decided.page(visit, found, order, chosen.after, chosen.limit)


async def waiting(chosen: Listing, visit: Reading) -> Waiting:
    """The pending calls."""
    ledger, query, order = visit.reading, chosen.chosen, chosen.order
    query.only("pending calls", *OF_DECIDED)
    mine = await mine_of(visit, reads_votes=query.needs("mine"))
    snoozed = await snoozed_of(visit, is_needed=query.needs("snoozed"))
    seen = await seen_by(ledger, visit.waiting.oldest(), query, order, mine, snoozed.holds)
    shown = snoozed.left_out_of(query)
    page = visit.waiting.page(
        chosen.limit, _MAX_BYTES, shown, chosen.cursor, seen=seen, order=order
    )
    aside = visit.waiting.page(0, 0, query & SNOOZED, seen=seen) if shown != query else None
    entries = list(map(decode, page.entries))
    votes = Role.REVIEWER in visit.visitor.roles
    done = await voted(ledger, visit.name, [one.ref for one in entries] if votes else ())
    secrets = await visit.secrets(*entries)
    listed = [
        views.pending_call(
            one,
            secrets,
            mine=mine(one),
            voted=one.ref in done,
            confirms=one.confirms(visit.visitor.name),
            snoozed=snoozed,
        )
        for one in entries
    ]
    on_page = {getattr(one, order.group) for one in listed} if order.group else ()
    return Waiting(
        calls=[one for one in listed if one.mine or not query.is_mine],
        waiting=page.waiting,
        next=cursor_text(page.after) if page.more else None,
        groups={name: count for name, count in page.groups.items() if name in on_page},
        unreadable=list(map(str, page.unreadable)),
        put_aside=aside.waiting if aside else 0,
        back_at=snoozed.back_at,
    )


class Record(Struct, frozen=True):
    """A call with every fact about it, in the order of the log."""

    #: The call as it is.
    state: views.CallState
    #: The person on whose behalf it was requested.
    requester: str
    agent: str
    labels: dict[str, str]
    tool_version: str
    #: The tool's description; empty if it is not declared.
    tool_description: str
    #: The JSON Schema of its arguments, raw text; empty if it is not declared.
    tool_schema: str
    #: What runs, in one line as the tool declares it; empty: it declares none.
    title: str
    run_by: str
    requested_at: datetime
    #: None: the policy decided alone, or has not judged it yet.
    question: views.Question | None
    #: The votes, in the order of the log.
    votes: list[views.RecordedVote]
    #: What people said about it, in the order of the log.
    comments: list[views.Comment]
    #: Who asked whom to decide, in the order of the log.
    handed: list[views.Handover]
    #: Why nobody knows how it ended; None: it is not in doubt.
    doubt: Doubt | None
    #: Whether values of the arguments are left out, which its tool declares as secret.
    hidden: bool
    #: Every action, with the reason why the visitor may not take it.
    may: list[Permission]
    #: The calls of the same thread before it, oldest first; the ten newest of them.
    earlier: list[views.EarlierCall]
    #: Every fact about it, but for those in `surplus`.
    facts: list[RecordedFact]
    #: The number of comments and handovers that nobody looks at, since their authors had as many as
    #: one person may have on a call.
    surplus: int

    @property
    def seq(self) -> int:
        """The last fact that is included for certain."""
        return self.facts[-1].seq if self.facts else 0


@router.get("/calls/{workspace}/{thread}/{call}")
async def record(ref: Named, visit: Reading, secrets: Annotated[bool, Query()] = False) -> Record:
    """One call: its state, what the visitor may do about it, and every fact.

    With `secrets` also what its tool declares as secret: for its requester, for those who decide
    about it, and for services, who get it in any case.
    """
    return await record_of(ref, visit, "if_allowed" if secrets else "no")


async def record_of(
    ref: CallRef, visit: Visit, reveal: Literal["no", "if_allowed", "yes"]
) -> Record:
    """As `record`.

    Args:
        reveal: `yes` also to those who may not ask for it, for what they sign themselves.

    Raises:
        NotAllowed: something is secret, and the visitor may not see it.
    """
    ledger = visit.reading
    facts = await ledger.read(ref)  # first, so that the rest is not older than they are
    known = await ledger.with_origin(await ledger.known_call(ref))
    known, _ = await ledger.with_given(known) if known.votes else (known, ())
    assert known.requested, "`known_call` raises otherwise"
    tool, doubt = await ledger.tool_of(known), await doubts.doubt_about(ledger, known)
    hiding = await visit.secrets(known) if reveal != "yes" else WHOLE
    may = await permissions(ledger, known, visit.visitor, doubt)
    if hiding.hides_in(known) and reveal == "if_allowed":
        if refusal := next(one.refusal for one in may if one.action == "reveal"):
            raise NotAllowed(refusal)
        hiding = WHOLE
    question = views.question(known)
    if question is not None:
        question = replace(question, signed=ledger.wants_signed(known))
    return copied(
        Record,
        known.wish,
        state=await state_of(ledger, known, hiding),
        tool_description=tool.declared.description if tool else "",
        tool_schema=tool.declared.schema if tool else "",
        title=tool.title(known.arguments) if tool else "",
        requested_at=known.requested.recorded_at,
        question=question,
        votes=views.recorded_votes(known, hiding),
        comments=views.comments(known),
        handed=views.handovers(known),
        doubt=doubt_view(doubt) if doubt else None,
        hidden=hiding.hides_in(known),
        may=may,
        earlier=await _earlier(visit, known),
        facts=recorded(facts, hiding),
        surplus=sum(fact.slot.is_surplus for fact in facts),
    )


async def _earlier(visit: Visit, call: Call) -> list[views.EarlierCall]:
    """The newest calls of the thread that were requested before this one."""
    assert call.requested
    ledger = visit.reading
    thread = f"{ROOT}.{call.ref.workspace}.{call.ref.thread}"
    requests = await ledger.read(f"{thread}.call.*.requested")
    before = [one.slot.call_ref for one in requests if one.seq < call.requested.seq]
    refs: list[CallRef] = [ref for ref in before[-_EARLIER:] if ref is not None]
    facts = await ledger.read(*refs) if refs else ()
    found = [known for ref in refs if (known := call_of(ref, facts)).requested]
    secrets = await visit.secrets(*found)
    return [views.earlier_call(one, secrets) for one in found]
