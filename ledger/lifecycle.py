"""The life of a tool call: what may follow what. Open this file first.

                      ┌───────── judged by the policy ────────┐
    requested ────────┤                                       ├── decided ── claimed ── finished
                      └── gated ── voted on, by people ───────┘

    REQUESTED ─┬──────────────┬──► APPROVED ─┬──► RUNNING ─┬──► RETURNED
               └──► PENDING ──┤              │             ├──► FAILED
                              │              │             └──► IN_DOUBT ──► RECONCILED
                              │              └──► REVOKED, DECLINED, ─┐
                              │                   LAPSED              │
                              ├──► DENIED ────────────────────────────┤
                              ├──► ANSWERED    (by people) ───────────┼──► REFUSED: it never ran,
                              ├──► EXPIRED     (after PENDING) ───────┤    and the model is told so
                              ├──► WITHDRAWN ─────────────────────────┤
                              └──► SUPERSEDED ────────────────────────┘

A call *is* the facts recorded about it. Its status is not stored: `Call.status` derives it from the
facts, and `call_of` only puts each fact into its place. So the order in which facts arrive, and
duplicates, make no difference: the same facts give the same call.

**A fact counts only if the facts that it rests on were recorded before it.** The broker decides who
may write a slot; `void` decides whether the fact in it counts:

    fact                    counts after                                and only
    ----------------------  ------------------------------------------  ------------------------
    vote.<reviewer>         the question, before deadline and decision  of voters, on these bytes
    revoked.<reviewer>      an approval, before any start               of a person who may
    lapsed                  an approval, before any start
    claim: ToolStarted      an approval without flaw that is valid      with the approved digest
    claim: Declined         an approval, before any start               in the executor's slot
    finished: ToolReturned, a ToolStarted that counts                   with its attempt, in the
      ToolFailed, InDoubt                                               slots of the running side
    finished: ToolRefused   a decision or revocation that stops it      with that ending
    reconciled.<reviewer>   an InDoubt that counts                      of a person who may

A fact that does not count is *void*: it is kept for ever, shown with the reason, and blocks
nothing. A claim goes to the next free attempt (`Call.claim_slot`), and an end that finds `finished`
taken by a void fact goes to `late` (`Call.end_slot`). Only the gate writes `gated`, `escalated`,
`announced` and `decided`, so these always count. A withdrawal only makes things stricter, so it
counts whenever it was recorded (docs/decisions/0022). A start that comes after the approval's
validity is void by its time, and so may leave the call approved for a moment, until the gate has
recorded that the approval has lapsed (docs/decisions/0041).

Three functions answer three different questions:

* `call_of(ref, facts)`: what happened? It never raises, because recorded facts cannot be refused.
* `void(call, fact)`: why does a recorded fact not count?
* `refusal(call, slot, event, now)`: why may this event not be recorded next? Mostly because of
  `MAY_FOLLOW`; the order of the reasons is fixed.

None of them guards against two concurrent writers. The broker does: a slot takes one fact, ever.
Where two slots compete (a start and a revocation), the order of the log decides, and the writer
reads it before acting. `objections.py` has the rules for people: who may vote, revoke, reconcile.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from itertools import count
from operator import attrgetter
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ayes.ledger.descriptions import (
    FLAWS,
    already_filled,
    cannot_be,
    describe,
    describe_decision,
)
from ayes.ledger.objections import (
    VOID_VOTE,
    may_reconcile,
    may_revoke,
    objection,
    objection_to_voter,
    refused_settlement,
    refused_vote,
)
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    DeadlinePassed,
    NotAllowed,
    NotOpen,
    Refused,
    UnknownCall,
)
from ayes.schemas.slots import CLIENT, FILLED_BY, CallRef, Slot
from ayes.schemas.times import after, earliest


class Status(StrEnum):
    UNKNOWN = "unknown"
    REQUESTED = "requested"
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    SUPERSEDED = "superseded"
    REVOKED = "revoked"
    LAPSED = "lapsed"
    DECLINED = "declined"
    RUNNING = "running"
    RETURNED = "returned"
    FAILED = "failed"
    REFUSED = "refused"
    IN_DOUBT = "in_doubt"
    RECONCILED = "reconciled"


#: For each status, the facts that may follow, and the status that each leads to.
MAY_FOLLOW: Final[dict[Status, dict[type[e.Event], Status]]] = {
    Status.UNKNOWN: {
        e.ToolRequested: Status.REQUESTED,
    },
    # The policy decides alone, or people are asked.
    Status.REQUESTED: {
        e.ApprovalRequested: Status.PENDING,
        e.Approved: Status.APPROVED,
        e.Denied: Status.DENIED,
        e.Withdrawn: Status.WITHDRAWN,
        e.Superseded: Status.SUPERSEDED,
    },
    # A vote or an escalation does not change the status: the gate counts votes and decides, once.
    Status.PENDING: {
        e.Voted: Status.PENDING,
        e.Escalated: Status.PENDING,
        e.GlassBroken: Status.PENDING,
        e.Approved: Status.APPROVED,
        e.Denied: Status.DENIED,
        e.Answered: Status.ANSWERED,
        e.Expired: Status.EXPIRED,
        e.Withdrawn: Status.WITHDRAWN,
        e.Superseded: Status.SUPERSEDED,
    },
    # The first one wins: an executor starts the call, a person revokes the approval, its validity
    # ends, or an executor declines because it has no such tool or finds other bytes than were
    # approved.
    Status.APPROVED: {
        e.ToolStarted: Status.RUNNING,
        e.Revoked: Status.REVOKED,
        e.Lapsed: Status.LAPSED,
        e.Declined: Status.DECLINED,
    },
    # From here on the tool may have run.
    Status.RUNNING: {
        e.ToolStarted: Status.RUNNING,  # the next attempt, if the tool is declared repeatable
        e.ToolReturned: Status.RETURNED,
        e.ToolFailed: Status.FAILED,
        e.InDoubt: Status.IN_DOUBT,
        # The call goes on; the calls below it are withdrawn (ledger/chain.py).
        e.Withdrawn: Status.RUNNING,
    },
    Status.IN_DOUBT: {e.Reconciled: Status.RECONCILED},
    # The tool never ran, and the model is told so.
    Status.DENIED: {e.ToolRefused: Status.REFUSED},
    Status.ANSWERED: {e.ToolRefused: Status.REFUSED},
    Status.EXPIRED: {e.ToolRefused: Status.REFUSED},
    Status.WITHDRAWN: {e.ToolRefused: Status.REFUSED},
    Status.SUPERSEDED: {e.ToolRefused: Status.REFUSED},
    Status.REVOKED: {e.ToolRefused: Status.REFUSED},
    Status.LAPSED: {e.ToolRefused: Status.REFUSED},
    Status.DECLINED: {e.ToolRefused: Status.REFUSED},
    # The end.
    Status.RETURNED: {},
    Status.FAILED: {},
    Status.REFUSED: {},
    Status.RECONCILED: {},
}

#: The grounds of an approval for which nobody looked at the call itself.
_UNASKED: Final = frozenset({"policy", "grant"})

#: The places of a call that hold several facts which always count, and the fields of `Call`.
_MULTI_FACT_PLACES: Final = {
    "vote": "votes",
    "escalated": "escalated",
    "notified": "notified",
    "posted": "posted",
}
#: The places whose facts count or are void, depending on earlier facts.
_CONTESTED: Final = frozenset({"revoked", "lapsed", "claim", "finished", "late", "reconciled"})
#: The events that may be in each place of a call.
EVENTS_BY_PLACE: Final[dict[str, tuple[type[e.Event], ...]]] = {}
for _shape, _kinds in FILLED_BY.items():
    if _shape[0] == "call":
        EVENTS_BY_PLACE[_shape[2]] = tuple(
            dict.fromkeys((*EVENTS_BY_PLACE.get(_shape[2], ()), *_kinds))
        )

#: The same, and bytes that this program cannot read.
_READ: Final[dict[str, frozenset[type]]] = {
    place: frozenset((*kinds, e.Carried)) for place, kinds in EVENTS_BY_PLACE.items()
}

#: The status that each fact leads to: the same one from every status in which it may come. (The
#: withdrawal of a call that runs is in a place that no status is read from.)
LEADS_TO: Final[dict[type, Status]] = {
    event: status
    for before, follows in MAY_FOLLOW.items()
    for event, status in follows.items()
    if (before, event) != (Status.RUNNING, e.Withdrawn)
}
#: The final statuses: the model will read nothing more about the call.
SETTLED: Final = frozenset(status for status, follows in MAY_FOLLOW.items() if not follows)
#: The statuses of a call that will never run, while the model has not been told so.
NOT_RUN: Final = frozenset(
    status for status, follows in MAY_FOLLOW.items() if e.ToolRefused in follows
)

#: The decisions that keep a call from running, and the endings that may be reported for each.
_STOPPED: Final[dict[type, frozenset[str]]] = {
    e.Denied: frozenset({"denied", "unknown_tool"}),
    e.Expired: frozenset({"expired"}),
    e.Withdrawn: frozenset({"withdrawn"}),
    e.Superseded: frozenset({"superseded"}),
}


class Void(Struct, frozen=True):
    """A fact that does not count, and why."""

    fact: Fact
    why: str


class Call(Struct, frozen=True):
    """The facts about one call that count, each in its place."""

    ref: CallRef
    requested: Fact | None = None
    gated: Fact | None = None
    #: In the order of the log. `voids` says which of them do not count.
    votes: tuple[Fact, ...] = ()
    escalated: tuple[Fact, ...] = ()
    announced: Fact | None = None
    withdrawn: Fact | None = None
    decided: Fact | None = None
    revoked: Fact | None = None
    lapsed: Fact | None = None
    #: Starts, or an executor's refusal to start, in the order of the log.
    claims: tuple[Fact, ...] = ()
    #: The end: in the slot `finished`, or in `late` if a void fact is in `finished`.
    finished: Fact | None = None
    #: Results that came after the end: kept, never shown to the model.
    late: tuple[Fact, ...] = ()
    reconciled: Fact | None = None
    #: Who was told about it. These have no effect on the call.
    notified: tuple[Fact, ...] = ()
    #: The messages about it in chats, without effect too.
    posted: tuple[Fact, ...] = ()
    #: Facts that do not count, except votes; `voids` has both.
    void: tuple[Void, ...] = ()
    #: The number of the last fact in a slot of a revocation, whether or not it counts; 0: none.
    last_revocation: int = 0
    #: Facts of a newer program. Their meaning is unknown here, so nobody may act on such a call.
    newer: tuple[Fact, ...] = ()

    @property
    def status(self) -> Status:
        """The status that the furthest fact leads to, by the table."""
        furthest = (
            self.reconciled
            or self.finished
            # A start, a revocation and a lapse exclude each other: the later ones are void.
            or (self.claims[-1] if self.claims else self.revoked or self.lapsed)
            or self.decided
            or self.gated
            or self.requested
        )
        return LEADS_TO[type(furthest.event)] if furthest else Status.UNKNOWN

    @property
    def starts(self) -> tuple[Fact, ...]:
        """The claims after which the tool may have run."""
        return tuple([claim for claim in self.claims if isinstance(claim.event, e.ToolStarted)])

    @property
    def declined(self) -> e.Declined | None:
        """An executor's refusal to start it."""
        for claim in self.claims:
            if isinstance(claim.event, e.Declined):
                return claim.event
        return None

    @property
    def answer(self) -> e.Answered | e.Revoked | None:
        """A person's answer in place of the tool: as the decision, or as they took the approval
        back. None if there is none.
        """
        last = self.revoked or self.decided
        match last and last.event:
            case e.Answered() as given:
                return given
            case e.Revoked(answer=str()) as given:
                return given
            case _:
                return None

    @property
    def halts(self) -> bool:
        """Whether the model waits for a user after it, as a person wanted who denied or answered
        the call, or took its approval back.
        """
        last = self.revoked or self.decided
        match last and last.event:
            case e.Denied(halt=halt) | e.Answered(halt=halt) | e.Revoked(halt=halt):
                return halt
            case _:
                return False

    @property
    def attempt(self) -> int:
        """The number of the last start; 0 before the first."""
        return attempt_of(self.starts[-1]) if self.starts else 0

    @property
    def is_clients(self) -> bool:
        """Whether the requesting program runs it, and not an executor."""
        return self.requested is not None and self.wish.run_by == CLIENT

    @property
    def claim_slot(self) -> Slot:
        """The slot of the next start: the first attempt whose slot is free."""
        return self._free(self.ref.client_claim if self.is_clients else self.ref.claim)

    @property
    def end_slot(self) -> Slot | None:
        """The slot for the end of a call that ran; None if it has ended."""
        if self.finished is not None:
            return None
        place = self.ref.client_finished if self.is_clients else self.ref.finished
        return self.late_slot if self.fact_at(place) is not None else place

    @property
    def refusal_slot(self) -> Slot | None:
        """The slot in which an executor records that the call did not run; None if it has ended."""
        if self.finished is not None:
            return None
        place = self.ref.finished
        return self._free(self.ref.late) if self.fact_at(place) is not None else place

    @property
    def late_slot(self) -> Slot:
        """The slot for a result if the call has ended or a void fact is in `finished`."""
        return self._free(self.ref.client_late if self.is_clients else self.ref.late)

    def _free(self, numbered: Callable[[int], Slot]) -> Slot:
        taken = {fact.slot for fact in self.facts}
        return next(slot for number in count(1) if (slot := numbered(number)) not in taken)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts about the call, void ones included, in the order of the log."""
        alone = (self.requested, self.gated, self.announced, self.withdrawn, self.decided)
        ends = (self.revoked, self.lapsed, self.finished, self.reconciled)
        several = (*self.votes, *self.escalated, *self.claims, *self.late)
        told = (*self.notified, *self.posted)
        found = (*alone, *ends, *several, *told, *self.newer, *(one.fact for one in self.void))
        return tuple(sorted((fact for fact in found if fact is not None), key=_seq))

    @property
    def late_result(self) -> e.ToolReturned | e.ToolFailed | None:
        """The result that came after the end; None if there is none, or if several differ."""
        results: dict[tuple[str, e.Content], e.ToolReturned | e.ToolFailed] = {}
        for fact in self.late:
            match fact.event:
                case e.ToolReturned(output=text) | e.ToolFailed(error=text) as result:
                    results.setdefault((type(result).__name__, text), result)
                case _:
                    pass
        return next(iter(results.values())) if len(results) == 1 else None

    def fact_at(self, slot: Slot) -> Fact | None:
        """The fact in a slot, whether it counts or not."""
        return next((fact for fact in self.facts if fact.slot == slot), None)

    @property
    def trace(self) -> str:
        """The trace context of the furthest fact that has one; empty if none has."""
        ends = (self.finished, *reversed(self.claims))
        facts = (*ends, self.decided, self.gated, self.requested)
        events = (fact.event for fact in facts if fact is not None)
        traces = (event.trace for event in events if isinstance(event, e.Event))
        return next(filter(None, traces), "")

    @property
    def wish(self) -> e.ToolRequested:
        """The request. Only for calls whose `requested` was read."""
        assert self.requested, f"{self.ref} has no request"
        assert isinstance(self.requested.event, e.ToolRequested)
        return self.requested.event

    @property
    def approval_request(self) -> e.ApprovalRequested | None:
        """The gate's question to people; None if it asked nobody."""
        gated = self.gated.event if self.gated else None
        return gated if isinstance(gated, e.ApprovalRequested) else None

    @property
    def approval(self) -> e.Approved:
        """The decision. Only for approved calls."""
        assert self.decided is not None
        assert isinstance(self.decided.event, e.Approved), "only approvals are revoked or run"
        return self.decided.event

    @property
    def arguments(self) -> str:
        """The arguments that will run: the approved edit, else those of the request."""
        decision = self.decided.event if self.decided else None
        edited = decision.arguments if isinstance(decision, e.Approved) else None
        return self.wish.arguments if edited is None else edited

    @property
    def digest(self) -> str:
        """The digest of tool and `arguments`, computed anew."""
        return call_digest(self.wish.tool, self.wish.tool_version, self.arguments)

    @property
    def flaw(self) -> Literal["digest_mismatch", "people_were_asked"] | None:
        """Why the approval does not let the call run; None if it does. Checked before every start.

        The policy may decide only if nobody was asked. Two gates may know different versions of it:
        if one asks people, an approval that the other records later must not overtake them.
        """
        decision = self.decided.event if self.decided else None
        if not isinstance(decision, e.Approved) or decision.digest != self.digest:
            return "digest_mismatch"
        asked_before = (
            self.gated is not None
            and self.decided is not None
            and self.gated.seq < self.decided.seq
        )
        return "people_were_asked" if decision.ground in _UNASKED and asked_before else None

    @property
    def next_stage(self) -> e.Stage | None:
        """The people who are asked next if nobody decides in time; None if there are none."""
        asking, done = self.approval_request, len(self.escalated)
        if asking is None or asking.on_timeout != "escalate" or done >= len(asking.stages):
            return None
        if self.awaited_until is not None and self.due == self.awaited_until:
            return None  # nobody else is asked once the requester waits no longer
        return asking.stages[done]

    @property
    def due(self) -> datetime | None:
        """When it escalates or expires, on the broker's clock; None: never. That is when the policy
        says so, and no later than the requester waits.
        """
        asking = self.approval_request
        if self.gated is None or asking is None:
            return None
        since = self.escalated[-1] if self.escalated else self.gated
        assert isinstance(since.event, e.ApprovalRequested | e.Escalated)
        after_s = since.event.expires_in_s if asking.on_timeout != "stay" else None
        return earliest(after(since.recorded_at, after_s), self.awaited_until)

    @property
    def awaited_until(self) -> datetime | None:
        """How long the requester waits for people; None: as long as the policy asks them."""
        if self.requested is None:
            return None
        return after(self.requested.recorded_at, self.wish.expires_in_s)

    @property
    def valid_until(self) -> datetime | None:
        """Until when the approval lets the call start, on the broker's clock; None: for ever, or
        there is no approval.
        """
        if self.decided is None or not isinstance(self.decided.event, e.Approved):
            return None
        return after(self.decided.recorded_at, self.decided.event.valid_for_s)

    @property
    def deadline(self) -> datetime | None:
        """When the call expires, on the broker's clock; None: never, or it escalates first."""
        return None if self.next_stage else self.due

    def voters(self, before: int | None = None) -> tuple[str, ...]:
        """Everybody who may vote, names and patterns, as of just before that number of the log."""
        asking = self.approval_request
        if asking is None:
            return ()
        each = (asking.voters, *(one.voters for one in (*asking.also, *asking.besides)))
        every = (voter for voters in (*each, self.escalated_to(before)) for voter in voters)
        return tuple(dict.fromkeys(every))

    def escalated_to(self, before: int | None = None) -> tuple[str, ...]:
        """The voters who were added by escalation. They count wherever a vote is lacking."""
        return tuple(
            voter
            for fact in self.escalated
            if isinstance(fact.event, e.Escalated) and (before is None or fact.seq < before)
            for voter in fact.event.voters
        )


_seq: Final = attrgetter("seq")


def evolve(call: Call, fact: Fact) -> Call:
    """The call with one more fact. Never raises; a fact without a place in it changes nothing."""
    if fact.slot.call_ref != call.ref or not may_hold(fact.slot.tail[2], fact.event):
        return call
    if any(known.slot == fact.slot for known in call.facts):
        return call
    return call_of(call.ref, (*call.facts, fact))


def may_hold(place: str, event: object) -> bool:
    """Whether this event, or bytes that cannot be read, may be in that place of a call."""
    return type(event) in _READ.get(place, ())


def call_of(ref: CallRef, facts: Iterable[Fact]) -> Call:
    """The call that these facts make; facts about anything else are skipped."""
    workspace, thread, name = ref.workspace, ref.thread, ref.call
    found: dict[tuple[str, ...], Fact] = {}
    last_revocation = 0
    for fact in facts:
        slot = fact.slot
        tail = slot.tail
        if (
            len(tail) > 2
            and tail[1] == name
            and tail[0] == "call"
            and slot.thread == thread
            and slot.workspace == workspace
        ):
            if tail[2] == "revoked":
                last_revocation = max(last_revocation, fact.seq)
            if type(fact.event) in _READ.get(tail[2], ()):
                found.setdefault(tail, fact)
    call = Call(ref, last_revocation=last_revocation)
    # In the order of the log: whether a contested fact counts depends on earlier facts alone.
    for fact in sorted(found.values(), key=_seq):
        place = fact.slot.tail[2]
        if place in _CONTESTED or type(fact.event) is e.Carried:
            _put(call, fact)
        elif (several := _MULTI_FACT_PLACES.get(place)) is None:
            _set(call, place, fact)
        else:
            _set(call, several, (*getattr(call, several), fact))
    return call


def _put(call: Call, fact: Fact) -> None:
    """Put a fact that may not count into its place, or among the void ones."""
    if isinstance(fact.event, e.Carried):
        if fact.event.problem:
            _set(call, "void", (*call.void, Void(fact, f"it cannot be read: {fact.event.problem}")))
        else:
            _set(call, "newer", (*call.newer, fact))
        return
    if (why := void(call, fact)) is not None:
        _set(call, "void", (*call.void, Void(fact, why)))
        return
    match fact.event:
        case e.Revoked():
            _set(call, "revoked", fact)
        case e.Lapsed():
            _set(call, "lapsed", fact)
        case e.ToolStarted() | e.Declined():
            _set(call, "claims", (*call.claims, fact))
        case e.Reconciled():
            _set(call, "reconciled", fact)
        case _ if _is_late(call, fact):
            _set(call, "late", (*call.late, fact))
        case _:
            _set(call, "finished", fact)


#: Sets a field of a frozen struct. Only `call_of` may, while nobody else has the call: a replay
#: makes millions of them, and a copy for each fact would take longer than all the rest.
_set: Final = msgspec.structs.force_setattr


def may_be_void(fact: Fact) -> bool:
    """Whether it belongs to a call, and others than the gate record it or it cannot be read."""
    tail = fact.slot.tail
    return len(tail) > 2 and (
        tail[2] in _CONTESTED or tail[2] == "vote" or isinstance(fact.event, e.Carried)
    )


def voids(call: Call) -> tuple[Void, ...]:
    """The void facts of a call, votes included, in the order of the log."""
    votes = [Void(vote, why) for vote in call.votes if (why := void(call, vote)) is not None]
    return tuple(sorted((*call.void, *votes), key=attrgetter("fact.seq")))


def void_runs(call: Call) -> tuple[Void, ...]:
    """The void starts and results: somebody ran the call although nobody had let it run, or forged
    what it returned.
    """
    return tuple(
        one
        for one in call.void
        if one.fact.slot.tail[2] in ("claim", "finished", "late")
        and isinstance(one.fact.event, e.ToolStarted | e.ToolReturned | e.ToolFailed | e.Carried)
    )


def void(call: Call, fact: Fact) -> str | None:
    """Why a recorded fact does not count; None if it does.

    Args:
        call: the facts that count. Those recorded after `fact` make no difference.
    """
    if call.requested is None or call.requested.seq > fact.seq:
        return "the call was not requested before it"
    match fact.event:
        case e.Voted() as vote:
            return _void_vote(call, fact, vote)
        case e.Revoked():
            return _unapproved(call, fact) or _void_revocation(call, fact)
        case e.Lapsed():
            started = "the call was started before it" if call.starts else None
            return _unapproved(call, fact) or started
        case e.ToolStarted() | e.Declined():
            return _unapproved(call, fact) or _void_claim(call, fact)
        case (
            e.ToolReturned(attempt=attempt)
            | e.ToolFailed(attempt=attempt)
            | e.InDoubt(attempt=attempt)
        ):
            return _void_result(call, fact, attempt)
        case e.ToolRefused(ending=ending):
            return _void_refusal(call, fact, ending)
        case e.Reconciled():
            return _void_reconciliation(call, fact)
        case _:
            return None


def _void_vote(call: Call, fact: Fact, vote: e.Voted) -> str | None:
    reviewer = fact.slot.tail[3]
    found = objection(call, vote, reviewer, fact.recorded_at, seq=fact.seq)
    if found is None:
        return None
    return VOID_VOTE.get(found.flaw, f"{vote.on_behalf_of or reviewer} may not cast it")


def _unapproved(call: Call, fact: Fact) -> str | None:
    """Why a claim, a revocation or a lapse has no approval to rest on; None if it has one."""
    if call.decided is None or call.decided.seq > fact.seq:
        return "the call was not decided before it"
    if not isinstance(call.decided.event, e.Approved):
        return f"the call was not approved, but {type(call.decided.event).__name__.lower()}"
    if call.finished is not None:
        return "the call had ended before it"
    if call.revoked is not None:
        return "the approval was revoked before it"
    if call.lapsed is not None:
        return "the approval had lapsed before it"
    if call.declined is not None:
        return "an executor had declined the call before it"
    return None


def _void_revocation(call: Call, fact: Fact) -> str | None:
    if call.starts:
        return "the call was started before it"
    if fact.slot.tail[2] == "claim":
        return None  # an older log, in which every reviewer could revoke
    reviewer = fact.slot.tail[3]
    return None if may_revoke(call, reviewer) else f"{reviewer} may not revoke this approval"


def _void_claim(call: Call, fact: Fact) -> str | None:
    if not _is_in_place(call, fact.slot):
        return f"calls that {call.wish.run_by!r} runs are not claimed in {_place(fact.slot)}"
    if isinstance(fact.event, e.Declined):
        return "the call was started before it" if call.starts else None
    assert isinstance(fact.event, e.ToolStarted)
    if (flaw := call.flaw) is not None:
        return f"the approval does not let the call run: {FLAWS[flaw]}"
    if fact.event.digest != call.approval.digest:
        return "it is about other bytes than were approved"
    if (until := call.valid_until) is not None and fact.recorded_at >= until:
        return f"the approval was valid until {until:%Y-%m-%d %H:%M:%S} UTC"
    return None


def _void_result(call: Call, fact: Fact, attempt: int) -> str | None:
    if not _is_in_place(call, fact.slot):
        return f"calls that {call.wish.run_by!r} runs do not end in {_place(fact.slot)}"
    if not any(attempt_of(start) == attempt for start in call.starts):
        return f"attempt {attempt} was not started before it"
    if call.finished is not None and isinstance(fact.event, e.InDoubt):
        return "the call had ended before it"
    return None


def _void_refusal(call: Call, fact: Fact, ending: e.Ending) -> str | None:
    if call.finished is not None:
        return "the call had ended before it"
    if call.starts:
        return "the call was started before it"
    endings: frozenset[str] = frozenset()
    if call.declined is not None:
        endings = frozenset({call.declined.why})
    elif call.lapsed is not None:
        endings = frozenset({"lapsed"})
    elif call.decided is not None and call.decided.seq < fact.seq:
        if (given := call.answer) is not None:
            endings = frozenset({"answered_with_error" if given.is_error else "answered"})
        elif call.revoked is not None:
            endings = frozenset({"revoked"})
        else:
            endings = _STOPPED.get(type(call.decided.event), endings)
    return (
        None if ending in endings else f"nothing before it says that the call ended so ({ending})"
    )


def _void_reconciliation(call: Call, fact: Fact) -> str | None:
    if call.reconciled is not None:
        return "the call was reconciled before it"
    if call.finished is None or not isinstance(call.finished.event, e.InDoubt):
        return "the call was not in doubt before it"
    if len(fact.slot.tail) == 3:
        return None  # an older log, in which every reviewer could reconcile
    reviewer = fact.slot.tail[3]
    return None if may_reconcile(call, reviewer) else f"{reviewer} may not reconcile this call"


def _is_in_place(call: Call, slot: Slot) -> bool:
    """Whether a claim or result is in a slot of the side that runs the call.

    Before layout 2 a client had no slots of its own and used the executor's.
    """
    wish = call.wish
    if CLIENT in slot.tail[3:]:
        return wish.run_by == CLIENT
    return wish.run_by != CLIENT or wish.layout < 2


def _is_late(call: Call, fact: Fact) -> bool:
    """Whether a result that counts is only kept: the call had ended, or `finished` was free."""
    if call.finished is not None:
        return True
    if fact.slot.tail[2] != "late":
        return False
    side = (CLIENT,) if fact.slot.tail[3] == CLIENT else ()
    ends = ("call", call.ref.call, "finished", *side)
    return not any(one.fact.slot.tail == ends and one.fact.seq < fact.seq for one in call.void)


def attempt_of(claim: Fact) -> int:
    """The number of a claim, counted from 1."""
    return int(claim.slot.tail[-1])


def _place(slot: Slot) -> str:
    return ".".join(slot.tail[2:])


def refusal(call: Call, slot: Slot, event: e.Event, now: datetime) -> Refused | None:
    """Why `event` may not be recorded in `slot` now; None if it may.

    The order is fixed, so that everybody gets the same reason:

    1. the same event is recorded already: it is not refused, whatever came since;
    2. nobody requested the call;
    3. the call is decided (or has ended): by whom, how and when;
    4. the slot is taken;
    5. the table does not list this fact in this status, or a newer program has recorded something
       about the call;
    6. the deadline has passed, or the approval is valid no longer;
    7. the person is excluded (the requester), not among those who may do this, or has voted;
    8. the vote is about other bytes than those that people were asked about.

    For a vote, `objections.objection` finds 6 to 8.
    """
    taken = call.fact_at(slot)
    if taken is not None and taken.event.id == event.id and event.id:
        return None
    if call.status is Status.UNKNOWN and not isinstance(event, e.ToolRequested):
        return UnknownCall(f"{call.ref} was never requested. `ayes pending` lists what waits.")
    may_follow = MAY_FOLLOW[call.status]
    if type(event) not in may_follow and call.decided is not None and slot.tail[2] in _DECIDING:
        decision = describe_decision(call.decided, call.withdrawn)
        decided = f"{call.ref} is already decided: {decision}. Nothing was recorded."
        is_expired = isinstance(call.decided.event, e.Expired)
        return DeadlinePassed(decided) if is_expired else AlreadyDecided(decided)
    if taken is not None:
        return AlreadyFilled(already_filled(slot, taken))
    if type(event) not in may_follow:
        status = call.status.replace("_", " ")
        judged = "" if call.status is not Status.REQUESTED else " No gate has judged it yet."
        return NotOpen(f"{call.ref} is {status}, so {cannot_be(type(event))}.{judged}")
    if call.newer:
        found = f"{call.ref} holds a fact of a newer program: {describe(call.newer[0])}"
        return NotOpen(f"{found}. Upgrade this one, then try again.")
    if isinstance(event, e.Revoked | e.Reconciled):
        if slot.tail[2:3] not in (("revoked",), ("reconciled",)) or len(slot.tail) < 4:
            return NotAllowed(f"{slot.subject} is a slot of older logs. Use the reviewer's own.")
        return refused_settlement(call, slot.tail[3], event)
    if isinstance(event, e.ToolStarted) and (until := call.valid_until) and now >= until:
        return DeadlinePassed(
            f"{call.ref} was approved until {until:%Y-%m-%d %H:%M:%S} UTC and was not started by "
            "then, so it will not run. Request it again under another id."
        )
    # After these checks the broker alone decides: the slot takes the event or is taken.
    return refused_vote(call, event, slot.tail[3], now) if isinstance(event, e.Voted) else None


#: The places of a call that the decision closes.
_DECIDING: Final = frozenset({"gated", "vote", "escalated", "announced", "withdrawn", "decided"})


def may_vote(call: Call, vote: e.Voted, reviewer: str, before: int | None = None) -> bool:
    """Whether this person, or the one in whose place they vote, was asked and is not excluded."""
    return objection_to_voter(call, vote, reviewer, before) is None
