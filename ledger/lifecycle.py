"""The life of a tool call: what may follow what. Open this file first.

                      ┌───────── judged by the policy ────────┐
    requested ────────┤                                       ├──── decided ──── claimed ──── finished
                      └── gated ── voted on, by people ───────┘

    REQUESTED ─┬──────────────┬──► APPROVED ─┬──► RUNNING ─┬──► RETURNED
               └──► PENDING ──┤              │             ├──► FAILED
                              │              │             └──► IN_DOUBT ──► RECONCILED
                              │              └──► REVOKED, DECLINED ──┐
                              ├──► DENIED ────────────────────────────┤
                              ├──► ANSWERED    (by people) ───────────┼──► REFUSED: it never ran,
                              ├──► EXPIRED     (after PENDING) ───────┤    and the model is told so
                              ├──► WITHDRAWN ─────────────────────────┤
                              └──► SUPERSEDED ────────────────────────┘

A call *is* the facts recorded about it. Nothing stores its status; `Call.status` reads it off the
facts that are there, and `call_of` only puts each fact into its place. So it does not matter in
which order facts arrive, or how often: the same facts give the same call.

**A fact counts only for what it rests on.** Who may write a slot is the broker's business; whether
what stands there counts is decided here, by `void`, from the facts that were recorded before it:

    fact                         counts after                                   and only
    ---------------------------  ---------------------------------------------  ----------------------------------
    vote.<reviewer>              the question, before deadline and decision     by a person asked, on these bytes
    revoked.<reviewer>           an approval, before any start                  by a person who may, not who asked
    claim: ToolStarted           an approval without flaw, not revoked          with the approved digest
    claim: Declined              an approval, before any start                  in the executor's slot
    finished: ToolReturned,      a ToolStarted that counts                      with its attempt, in the slots of
      ToolFailed, InDoubt                                                       the side that runs the call
    finished: ToolRefused        a decision or a revocation that stops it       with that ending
    reconciled.<reviewer>        an InDoubt that counts                         by a person who may, not who asked

What does not count is *void*: it is kept for ever, shown with the reason, and no obstacle. A claim
goes to the next free attempt (`Call.claim_slot`), an end that finds `finished` taken by a void fact
goes to `late` (`Call.end_slot`). Only the gate writes `gated`, `escalated`, `announced` and
`decided`, so these are not questioned; a withdrawal only makes things stricter, so it counts
whenever it was recorded (docs/decisions/0022).

Three questions are asked of a call, and they are different questions:

* `call_of(ref, facts)` tells what happened. It never raises: what is recorded is recorded.
* `void(call, fact)` says why a recorded fact does not count.
* `refusal(call, slot, event, now)` says what may not be recorded next, in a fixed order. The table
  `MAY_FOLLOW` is most of the answer.

None of them guards against two writers at once. The broker does: a slot takes one fact, ever. Where
two slots compete (a start and a revocation), the order of the log decides, and whoever wrote looks
at it before acting.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import count
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

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
from ayes.schemas.people import is_excluded, person
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import CLIENT, FILLED_BY, CallRef, Slot


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
    DECLINED = "declined"
    RUNNING = "running"
    RETURNED = "returned"
    FAILED = "failed"
    REFUSED = "refused"
    IN_DOUBT = "in_doubt"
    RECONCILED = "reconciled"


#: In this status, this fact may come, and leads to that status. What is not listed may not happen.
MAY_FOLLOW: Final[dict[Status, dict[type[e.Event], Status]]] = {
    Status.UNKNOWN: {
        e.ToolRequested: Status.REQUESTED,
    },
    # Judged by the policy alone, or handed on to people.
    Status.REQUESTED: {
        e.ApprovalRequested: Status.PENDING,
        e.Approved: Status.APPROVED,
        e.Denied: Status.DENIED,
        e.Withdrawn: Status.WITHDRAWN,
        e.Superseded: Status.SUPERSEDED,
    },
    # A vote does not change the status. The gate counts votes and decides, once. Nor does it when
    # more people are asked.
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
    # What is recorded first: an executor starts it, a person takes the approval back, or an
    # executor declines it that has no such tool, or finds other bytes than were approved.
    Status.APPROVED: {
        e.ToolStarted: Status.RUNNING,
        e.Revoked: Status.REVOKED,
        e.Declined: Status.DECLINED,
    },
    # From here on it may have run.
    Status.RUNNING: {
        e.ToolStarted: Status.RUNNING,  # the next attempt, if the tool is declared repeatable
        e.ToolReturned: Status.RETURNED,
        e.ToolFailed: Status.FAILED,
        e.InDoubt: Status.IN_DOUBT,
    },
    Status.IN_DOUBT: {e.Reconciled: Status.RECONCILED},
    # It never ran, and the model is told so.
    Status.DENIED: {e.ToolRefused: Status.REFUSED},
    Status.ANSWERED: {e.ToolRefused: Status.REFUSED},
    Status.EXPIRED: {e.ToolRefused: Status.REFUSED},
    Status.WITHDRAWN: {e.ToolRefused: Status.REFUSED},
    Status.SUPERSEDED: {e.ToolRefused: Status.REFUSED},
    Status.REVOKED: {e.ToolRefused: Status.REFUSED},
    Status.DECLINED: {e.ToolRefused: Status.REFUSED},
    # The end.
    Status.RETURNED: {},
    Status.FAILED: {},
    Status.REFUSED: {},
    Status.RECONCILED: {},
}

#: What an approval can rest on without anybody having looked at this call.
_UNASKED: Final = frozenset({"policy", "grant"})

#: The places of a call that hold more than one fact and are not questioned, and the field that
#: holds them.
_MULTI_FACT_PLACES: Final = {"vote": "votes", "escalated": "escalated"}
#: The places whose facts count or are void, by what was recorded before them.
_CONTESTED: Final = frozenset({"revoked", "claim", "finished", "late", "reconciled"})
#: Which facts may stand in each place of a call.
EVENTS_BY_PLACE: Final[dict[str, tuple[type[e.Event], ...]]] = {}
for _shape, _kinds in FILLED_BY.items():
    if _shape[0] == "call":
        EVENTS_BY_PLACE[_shape[2]] = tuple(
            dict.fromkeys((*EVENTS_BY_PLACE.get(_shape[2], ()), *_kinds))
        )

#: The same, and what this program cannot read.
_READ: Final[dict[str, tuple[type, ...]]] = {
    place: (*kinds, e.Carried) for place, kinds in EVENTS_BY_PLACE.items()
}

#: The status that each fact leads to: one, in whatever status it may come.
LEADS_TO: Final[dict[type, Status]] = {
    event: status for follows in MAY_FOLLOW.values() for event, status in follows.items()
}
#: Nothing more will be told to the model about a call in one of these.
SETTLED: Final = frozenset(status for status, follows in MAY_FOLLOW.items() if not follows)
#: A call in one of these will never run, and the model is still to be told so.
NOT_RUN: Final = frozenset(
    status for status, follows in MAY_FOLLOW.items() if e.ToolRefused in follows
)

#: The decisions that keep a call from running, and what the model is told about each.
_STOPPED: Final[dict[type, frozenset[str]]] = {
    e.Denied: frozenset({"denied", "unknown_tool"}),
    e.Answered: frozenset({"answered"}),
    e.Expired: frozenset({"expired"}),
    e.Withdrawn: frozenset({"withdrawn"}),
    e.Superseded: frozenset({"superseded"}),
}


class Void(Struct, frozen=True):
    """A fact that does not count, and why."""

    fact: Fact
    why: str


#: What can be wrong with a vote.
type VoteFlaw = Literal[
    "not_asked",
    "decided",
    "deadline",
    "excluded",
    "stranger",
    "glass_for_another",
    "glass_with_edit",
    "glass_without_reason",
    "not_delegated",
    "voted",
    "other_bytes",
    "may_not_run",
]


class Objection(Struct, frozen=True):
    """Why a vote does not count."""

    flaw: VoteFlaw
    #: The one who is excluded; else the person whose vote it would be.
    person: str


class Call(Struct, frozen=True):
    """The facts about one call that count, each in its place. `ref` is which call it is."""

    ref: CallRef
    requested: Fact | None = None
    gated: Fact | None = None
    #: By reviewer, in the order in which the broker recorded them.
    votes: tuple[Fact, ...] = ()
    #: Stage by stage: who was asked as well.
    escalated: tuple[Fact, ...] = ()
    announced: Fact | None = None
    withdrawn: Fact | None = None
    decided: Fact | None = None
    #: A person took the approval back.
    revoked: Fact | None = None
    #: Starts, or an executor's refusal to start, as they were recorded.
    claims: tuple[Fact, ...] = ()
    #: How it ended: in `finished`, or in `late` where a void fact stands in `finished`.
    finished: Fact | None = None
    #: Results that came after the call was closed: kept, never shown to the model.
    late: tuple[Fact, ...] = ()
    reconciled: Fact | None = None
    #: What stands in the call's slots and does not count, apart from votes; `voids` has these too.
    void: tuple[Void, ...] = ()
    #: Facts of a newer program. What they mean is not known here, so nobody may act on such a call.
    newer: tuple[Fact, ...] = ()

    @property
    def status(self) -> Status:
        """The furthest point that the facts bear out, by the table."""
        furthest = (
            self.reconciled
            or self.finished
            # What claims a call and what revokes it exclude each other: the later one is void.
            or (self.claims[-1] if self.claims else self.revoked)
            or self.decided
            or self.gated
            or self.requested
        )
        return LEADS_TO[type(furthest.event)] if furthest else Status.UNKNOWN

    @property
    def starts(self) -> tuple[Fact, ...]:
        """The claims after which it may have run."""
        return tuple(claim for claim in self.claims if isinstance(claim.event, e.ToolStarted))

    @property
    def declined(self) -> e.Declined | None:
        """Why an executor did not start it."""
        return next((one.event for one in self.claims if isinstance(one.event, e.Declined)), None)

    @property
    def attempt(self) -> int:
        """The number of the last start; 0 before the first."""
        return attempt_of(self.starts[-1]) if self.starts else 0

    @property
    def is_clients(self) -> bool:
        """Whether the program that asked for it runs it, and not an executor."""
        return self.requested is not None and self.wish.run_by == CLIENT

    @property
    def claim_slot(self) -> Slot:
        """Where the next start would be claimed: the first attempt whose slot is free."""
        return self._free(self.ref.client_claim if self.is_clients else self.ref.claim)

    @property
    def end_slot(self) -> Slot | None:
        """Where the end of a call that ran would be recorded; None when it has ended."""
        if self.finished is not None:
            return None
        place = self.ref.client_finished if self.is_clients else self.ref.finished
        return self.late_slot if _fact_at(self, place) is not None else place

    @property
    def refusal_slot(self) -> Slot | None:
        """Where an executor says that the call did not run; None when it has ended."""
        if self.finished is not None:
            return None
        place = self.ref.finished
        return self._free(self.ref.late) if _fact_at(self, place) is not None else place

    @property
    def late_slot(self) -> Slot:
        """Where a result goes that found the call ended, or `finished` taken by a void fact."""
        return self._free(self.ref.client_late if self.is_clients else self.ref.late)

    def _free(self, numbered: Callable[[int], Slot]) -> Slot:
        taken = {fact.slot for fact in self.facts}
        return next(slot for number in count(1) if (slot := numbered(number)) not in taken)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All that is recorded about the call, in the order of the log."""
        alone = (self.requested, self.gated, self.announced, self.withdrawn, self.decided)
        ends = (self.revoked, self.finished, self.reconciled)
        several = (*self.votes, *self.escalated, *self.claims, *self.late, *self.newer)
        found = (*alone, *ends, *several, *(one.fact for one in self.void))
        return tuple(sorted((fact for fact in found if fact is not None), key=_seq))

    @property
    def wish(self) -> e.ToolRequested:
        """What was asked for. Only for calls whose request was read."""
        assert self.requested, f"{self.ref} has no request"
        assert isinstance(self.requested.event, e.ToolRequested)
        return self.requested.event

    @property
    def approval_request(self) -> e.ApprovalRequested | None:
        """The gate's question to people, if it asked."""
        return (
            self.gated.event
            if self.gated and isinstance(self.gated.event, e.ApprovalRequested)
            else None
        )

    @property
    def arguments(self) -> str:
        """What will run: the approved edit, else what was asked for."""
        decision = self.decided.event if self.decided else None
        edited = decision.arguments if isinstance(decision, e.Approved) else None
        return self.wish.arguments if edited is None else edited

    @property
    def digest(self) -> str:
        """Of what would run, computed here and now."""
        return call_digest(self.wish.tool, self.wish.tool_version, self.arguments)

    @property
    def flaw(self) -> Literal["digest_mismatch", "people_were_asked"] | None:
        """Why an approval does not let the call run after all; None where it does. Looked at before
        every start.

        The policy decides only where nobody is asked. Two gates may know different versions of it:
        then one asks people, and the other's approval, if it was recorded later, must not overtake
        them.
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
        """Who is asked as well when nobody decides in time; None when nobody more is."""
        asking = self.approval_request
        stages = (
            asking.stages[len(self.escalated) :]
            if asking and asking.on_timeout == "escalate"
            else ()
        )
        return stages[0] if stages else None

    @property
    def due(self) -> datetime | None:
        """When something happens by itself, on the broker's clock: more people are asked, or it
        expires. None: never.
        """
        if (
            self.gated is None
            or self.approval_request is None
            or self.approval_request.on_timeout == "stay"
        ):
            return None
        since = self.escalated[-1] if self.escalated else self.gated
        assert isinstance(since.event, e.ApprovalRequested | e.Escalated)
        after_s = since.event.expires_in_s
        try:
            return None if after_s is None else since.recorded_at + timedelta(seconds=after_s)
        except OverflowError:  # a time after the last that there is
            return None

    @property
    def deadline(self) -> datetime | None:
        """When the approval expires, on the broker's clock. None: never, or not before more people
        were asked.
        """
        return None if self.next_stage else self.due

    def voters(self, before: int | None = None) -> tuple[str, ...]:
        """Everybody who may vote, names and patterns; with `before`, as it was before that fact of
        the log.
        """
        asking = self.approval_request
        if asking is None:
            return ()
        more = [one.voters for one in (*asking.also, *asking.besides)]
        more += [self.escalated_to(before)]
        return tuple(
            dict.fromkeys((*asking.voters, *(voter for voters in more for voter in voters)))
        )

    def escalated_to(self, before: int | None = None) -> tuple[str, ...]:
        """Those among them who were asked when nobody had decided in time. They count wherever a
        vote is lacking.
        """
        return tuple(
            voter
            for fact in self.escalated
            if isinstance(fact.event, e.Escalated) and (before is None or fact.seq < before)
            for voter in fact.event.voters
        )


_seq: Final = attrgetter("seq")


def evolve(call: Call, fact: Fact) -> Call:
    """The call with one fact more. Never raises; a fact that has no place in the call changes
    nothing.
    """
    if fact.slot.call_ref != call.ref or not may_hold(fact.slot.tail[2], fact.event):
        return call
    if any(known.slot == fact.slot for known in call.facts):
        return call
    return call_of(call.ref, (*call.facts, fact))


def may_hold(place: str, event: object) -> bool:
    """Whether a call's slots of that place may hold this event, or bytes that this program cannot
    read.
    """
    return isinstance(event, _READ.get(place, ()))


def call_of(ref: CallRef, facts: Iterable[Fact]) -> Call:
    """The call that these facts make; facts about anything else are passed over."""
    known: list[Fact] = []
    unread: list[Fact] = []
    seen: set[tuple[str, ...]] = set()
    workspace, thread, name = ref.workspace, ref.thread, ref.call
    for fact in facts:
        slot = fact.slot
        tail = slot.tail
        if len(tail) < 3 or tail[1] != name or slot.thread != thread or slot.workspace != workspace:
            continue
        place = tail[2]
        if tail[0] != "call" or tail in seen or not may_hold(place, fact.event):
            continue
        seen.add(tail)
        (unread if type(fact.event) is e.Carried else known).append(fact)
    call = Call(ref)
    if unread:
        call = _with_unread(call, sorted(unread, key=_seq))
    known.sort(key=_seq)
    # In the order of the log: whether a contested fact counts depends on what was recorded before
    # it, and on nothing that comes later. What is not questioned is put into its place when a
    # contested fact comes.
    placed: dict[str, Any] = {}
    for fact in known:
        place = fact.slot.tail[2]
        if place in _CONTESTED:
            if placed:
                call, placed = msgspec.structs.replace(call, **placed), {}
            call = _recorded(call, fact)
        elif (several := _MULTI_FACT_PLACES.get(place)) is not None:
            placed[several] = (*placed.get(several, getattr(call, several)), fact)
        else:
            placed[place] = fact
    return msgspec.structs.replace(call, **placed) if placed else call


def _with_unread(call: Call, facts: Collection[Fact]) -> Call:
    """Bytes that are not a fact are void. What a newer program wrote is not: nobody here knows what
    it says.
    """
    broken = tuple(
        Void(one, f"it cannot be read: {problem}") for one in facts if (problem := _problem(one))
    )
    return msgspec.structs.replace(
        call, void=broken, newer=tuple(one for one in facts if not _problem(one))
    )


def _problem(fact: Fact) -> str:
    return fact.event.problem if isinstance(fact.event, e.Carried) else ""


def _recorded(call: Call, fact: Fact) -> Call:
    """The call after a contested fact was recorded: in its place if it counts, else among the
    void.
    """
    why = void(call, fact)
    if why is not None:
        return msgspec.structs.replace(call, void=(*call.void, Void(fact, why)))
    match fact.event:
        case e.Revoked():
            return msgspec.structs.replace(call, revoked=fact)
        case e.ToolStarted() | e.Declined():
            return msgspec.structs.replace(call, claims=(*call.claims, fact))
        case e.Reconciled():
            return msgspec.structs.replace(call, reconciled=fact)
        case _ if _is_late(call, fact):
            return msgspec.structs.replace(call, late=(*call.late, fact))
        case _:
            return msgspec.structs.replace(call, finished=fact)


def may_be_void(fact: Fact) -> bool:
    """Whether it is a fact of a call that others than the gate record, or that cannot be read."""
    tail = fact.slot.tail
    return len(tail) > 2 and (
        tail[2] in _CONTESTED or tail[2] == "vote" or isinstance(fact.event, e.Carried)
    )


def voids(call: Call) -> tuple[Void, ...]:
    """All that is recorded about a call and does not count, votes included, in the order of the
    log.
    """
    votes = [Void(vote, why) for vote in call.votes if (why := void(call, vote)) is not None]
    return tuple(sorted((*call.void, *votes), key=lambda one: one.fact.seq))


def void(call: Call, fact: Fact) -> str | None:
    """Why a recorded fact does not count; None if it does.

    Args:
        call: all that counts among what was recorded before it. What came later changes nothing.
    """
    if call.requested is None or call.requested.seq > fact.seq:
        return "the call was not requested before it"
    match fact.event:
        case e.Voted() as vote:
            return _void_vote(call, fact, vote)
        case e.Revoked():
            return _unapproved(call, fact) or _void_revocation(call, fact)
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
    return _VOID_VOTE.get(found.flaw, f"{vote.on_behalf_of or reviewer} may not cast it")


def _unapproved(call: Call, fact: Fact) -> str | None:
    """What every claim and revocation rests on."""
    if call.decided is None or call.decided.seq > fact.seq:
        return "the call was not decided before it"
    if not isinstance(call.decided.event, e.Approved):
        return f"the call was not approved, but {type(call.decided.event).__name__.lower()}"
    if call.finished is not None:
        return "the call had ended before it"
    if call.revoked is not None:
        return "the approval was revoked before it"
    if call.declined is not None:
        return "an executor had declined the call before it"
    return None


def _void_revocation(call: Call, fact: Fact) -> str | None:
    if call.starts:
        return "the call was started before it"
    if fact.slot.tail[2] == "claim":
        return None  # of a log in which every reviewer could
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
    # Without a flaw, this is the digest of what would run.
    return (
        None
        if fact.event.digest == _approved(call).digest
        else "it is about other bytes than were approved"
    )


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
    elif call.revoked is not None:
        endings = frozenset({"revoked"})
    elif call.decided is not None and call.decided.seq < fact.seq:
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
        return None  # of a log in which every reviewer could
    reviewer = fact.slot.tail[3]
    return None if may_reconcile(call, reviewer) else f"{reviewer} may not reconcile this call"


def _is_in_place(call: Call, slot: Slot) -> bool:
    """Whether a claim or result stands in a slot of the side that runs the call.

    Before layout 2 a client had no slots of its own and used the executor's.
    """
    wish = call.wish
    if CLIENT in slot.tail[3:]:
        return wish.run_by == CLIENT
    return wish.run_by != CLIENT or wish.layout < 2


def _is_late(call: Call, fact: Fact) -> bool:
    """Whether a result that counts came after the end, or past a free `finished`, and is only
    kept.
    """
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
    """Why `event` may not be recorded at `slot` now; None if it may.

    The order is fixed, so that everybody hears the same reason:

    1. the very same event is recorded already: that is no refusal, whatever came since (idempotence
       first);
    2. nobody ever requested the call;
    3. the call is decided (or, past that, ended): who was first, what and when;
    4. the slot is taken;
    5. the table does not know this fact in this status, or a newer program has recorded something
       about the call;
    6. the deadline has passed;
    7. the person is excluded (asked for it), or not among those who may do this, or has voted;
    8. the vote is about other bytes than those that wait.

    Of a vote, 6 to 8 are what `objection` says.
    """
    taken = _fact_at(call, slot)
    if taken is not None and taken.event.id == event.id and event.id:
        return None
    if call.status is Status.UNKNOWN and not isinstance(event, e.ToolRequested):
        return UnknownCall(f"{call.ref} was never requested. `ayes pending` lists what waits.")
    if (
        type(event) not in MAY_FOLLOW[call.status]
        and call.decided is not None
        and _is_about_deciding(slot)
    ):
        told = f"{call.ref} is already decided: {describe(call.decided)}. Nothing was recorded."
        return (
            DeadlinePassed(told)
            if isinstance(call.decided.event, e.Expired)
            else AlreadyDecided(told)
        )
    if taken is not None:
        return AlreadyFilled(f"{slot.subject} is taken: {describe(taken)}. Nothing was recorded.")
    if type(event) not in MAY_FOLLOW[call.status]:
        return NotOpen(
            f"{call.ref} is {call.status.replace('_', ' ')}, so {type(event).__name__} cannot "
            "follow. "
            "What can: "
            f"{', '.join(sorted(kind.__name__ for kind in MAY_FOLLOW[call.status])) or 'nothing'}."
        )
    if call.newer:
        return NotOpen(
            f"{call.ref} holds a fact of a newer program: {describe(call.newer[0])}. Upgrade this "
            "one, then try again."
        )
    if isinstance(event, e.Revoked | e.Reconciled):
        if slot.tail[2:3] not in (("revoked",), ("reconciled",)) or len(slot.tail) < 4:
            return NotAllowed(f"{slot.subject} is a slot of older logs. Use the reviewer's own.")
        return _not_allowed(call, slot.tail[3], event)
    if not isinstance(event, e.Voted):
        return None
    reviewer = slot.tail[3]
    found = objection(call, event, reviewer, now, spent=_voted_in_person(call, event))
    if found is not None:
        return _refused_vote(call, event, reviewer, found)
    # After this point the broker alone decides: the vote's slot takes it or is taken.
    return None


def objection(
    call: Call,
    vote: e.Voted,
    reviewer: str,
    at: datetime,
    *,
    seq: int | None = None,
    spent: Collection[str] = (),
    delegated: bool = True,
) -> Objection | None:
    """Why a vote does not count, or would not; None if nothing speaks against it. In a fixed order:

    1. people were not asked before it, the call was decided before it, or the deadline had passed;
    2. the reviewer, or the person in whose place they vote, is excluded, or is not asked;
    3. breaking the glass takes a reason, and no edit;
    4. that person gave the reviewer no vote;
    5. one of the two has voted, in whoever's place;
    6. it is about other bytes than those that people were asked about.

    Args:
        at: when it was recorded, or now, on the broker's clock.
        seq: its place in the log, of which only what stands before it matters; None: not recorded.
        spent: the people who have voted by then, as `people.person` names them.
        delegated: whether the delegation holds by which it is cast in another's place.
    """
    call = call if seq is None else _as_escalated_before(call, seq)
    asking, principal = call.approval_request, vote.on_behalf_of or reviewer
    rests_on = (call.requested, call.gated)
    if asking is None or (seq is not None and not all(one and one.seq < seq for one in rests_on)):
        return Objection("not_asked", principal)
    if call.decided is not None and (seq is None or call.decided.seq < seq):
        return Objection("decided", principal)
    if call.deadline is not None and at >= call.deadline:
        return Objection("deadline", principal)
    if (found := _objection_to_voter(call, asking, vote, reviewer, seq)) is not None:
        return found
    if vote.verdict == "break_glass" and vote.arguments is not None:
        return Objection("glass_with_edit", principal)
    if vote.verdict == "break_glass" and not vote.reason.strip():
        return Objection("glass_without_reason", principal)
    if principal != reviewer and not delegated:
        return Objection("not_delegated", principal)
    if not {person(principal, asking.people), person(reviewer, asking.people)}.isdisjoint(spent):
        return Objection("voted", principal)
    if vote.digest != asking.digest:
        return Objection("other_bytes", principal)
    return None


def _objection_to_voter(
    call: Call, asking: e.ApprovalRequested, vote: e.Voted, reviewer: str, seq: int | None
) -> Objection | None:
    """What speaks against who votes. Being excluded beats being asked."""
    principal = vote.on_behalf_of or reviewer
    for name in dict.fromkeys((reviewer, principal)):
        if is_excluded(name, asking.excluded, asking.people):
            return Objection("excluded", name)
    if vote.verdict != "break_glass":
        return None if is_among(principal, call.voters(seq)) else Objection("stranger", principal)
    if principal != reviewer:
        return Objection("glass_for_another", principal)
    return None if is_among(reviewer, asking.may_break_glass) else Objection("stranger", principal)


def _as_escalated_before(call: Call, seq: int) -> Call:
    """The call without later escalations: these move the deadline of later votes only."""
    if not call.escalated or call.escalated[-1].seq < seq:
        return call
    asked_by_then = tuple(one for one in call.escalated if one.seq < seq)
    return msgspec.structs.replace(call, escalated=asked_by_then)


def _voted_in_person(call: Call, vote: e.Voted) -> tuple[str, ...]:
    """The person in whose place this vote would be cast, where that person has voted already."""
    principal, asking = vote.on_behalf_of, call.approval_request
    if asking is None or not principal or _fact_at(call, call.ref.vote(principal)) is None:
        return ()
    return (person(principal, asking.people),)


def _refused_vote(call: Call, vote: e.Voted, reviewer: str, found: Objection) -> Refused:
    """An objection in the words for a person who is about to vote."""
    asking, who = call.approval_request, found.person
    assert asking, "the table lets votes come only while PENDING"
    is_glass = vote.verdict == "break_glass"
    match found.flaw:
        case "deadline":
            expired = f"{call.ref} expired at {call.deadline:%Y-%m-%d %H:%M:%S} UTC"
            return DeadlinePassed(f"{expired}. Nothing was recorded.")
        case "excluded":
            return NotAllowed(
                f"{who} asked for {call.ref}, or is behind the agent that did, and does not count. "
                "Somebody else must."
            )
        case "glass_for_another":
            never = "nobody may break the glass in another's place"
            return NotAllowed(f"{never}. {reviewer} may do it only in their own.")
        case "glass_with_edit":
            as_it_is = f"who breaks the glass for {call.ref} lets it run as it is"
            return NotAllowed(f"{as_it_is}. Leave the arguments as they are.")
        case "glass_without_reason":
            return NotAllowed(f"who breaks the glass for {call.ref} must say why. Give a reason.")
        case "voted":
            own = _fact_at(call, call.ref.vote(who))
            assert own, "only a vote in person is looked for before a vote is recorded"
            voted = f"{who} has voted on {call.ref}: {describe(own)}"
            return AlreadyFilled(f"{voted}. Nothing was recorded.")
        case "other_bytes":
            other = f"this vote is about other arguments than those that {call.ref} waits with"
            return NotOpen(f"{other}. Look at it again.")
        case _:
            named = "may break the glass for" if is_glass else "may vote on"
            asked = ", ".join(asking.may_break_glass if is_glass else call.voters()) or "nobody"
            return NotAllowed(
                f"{who} is none of those who {named} {call.ref}. Rule {asking.rule!r} asks {asked}."
            )


def _not_allowed(call: Call, reviewer: str, event: e.Revoked | e.Reconciled) -> NotAllowed | None:
    may, what = (
        (may_revoke, "revoke") if isinstance(event, e.Revoked) else (may_reconcile, "reconcile")
    )
    if may(call, reviewer):
        return None
    if is_excluded(reviewer, _excluded(call), _people(call)):
        return NotAllowed(
            f"{reviewer} asked for {call.ref}, or is behind the agent that did, and may not "
            f"{what} it. "
            "Somebody else must."
        )
    return NotAllowed(
        f"{reviewer} may not {what} {call.ref}. Ask somebody who may decide about it, "
        f"or whom the policy names in may_{what}."
    )


def may_vote(call: Call, vote: e.Voted, reviewer: str, before: int | None = None) -> bool:
    """Is this person asked, or the one in whose place they vote? Being excluded beats being asked.

    Args:
        before: as it was before that fact of the log.
    """
    asking = call.approval_request
    return asking is not None and _objection_to_voter(call, asking, vote, reviewer, before) is None


def may_revoke(call: Call, reviewer: str) -> bool:
    """Whether this person may take the approval back: who may decide, has decided, or is named by
    the policy.
    """
    named = (
        call.approval_request.may_revoke if call.approval_request else _approved(call).may_revoke
    )
    asked = (
        (*call.voters(), *call.approval_request.may_break_glass)
        if call.approval_request
        else ()
        if named
        else ("*",)
    )
    decided = _approved(call)
    who = (*named, *asked, *decided.voters, *decided.on_behalf_of.values())
    return _is_one_of(call, reviewer, who)


def may_reconcile(call: Call, reviewer: str) -> bool:
    """Whether this person may say what became of a call in doubt: whom the policy names, else who
    may decide.
    """
    named = (
        call.approval_request.may_reconcile
        if call.approval_request
        else _approved(call).may_reconcile
    )
    return _is_one_of(call, reviewer, named or (call.voters() if call.approval_request else ("*",)))


def _is_one_of(call: Call, reviewer: str, who: tuple[str, ...]) -> bool:
    people = _people(call)
    if is_excluded(reviewer, _excluded(call), people):
        return False
    return is_among(reviewer, who) or is_among(person(reviewer, people), who)


def _approved(call: Call) -> e.Approved:
    assert call.decided is not None
    assert isinstance(call.decided.event, e.Approved), (
        "only approvals are revoked, and only they run"
    )
    return call.decided.event


def _excluded(call: Call) -> tuple[str, ...]:
    """The people who asked for the call, or are behind the agent that did."""
    if call.approval_request is not None:
        return call.approval_request.excluded
    return (*filter(None, (call.wish.requester,)), *_approved(call).excluded)


def _people(call: Call) -> dict[str, str]:
    return call.approval_request.people if call.approval_request else {}


def describe(fact: Fact) -> str:
    """A recorded fact in a few words, for the person who came second: what, by whom, when."""
    event = fact.event
    who = event.by.name if isinstance(event, e.Event) and isinstance(event.by, e.Author) else ""
    match event:
        case e.Approved() | e.Denied() | e.Answered() if event.voters:
            behalf = event.on_behalf_of
            who = ", ".join(
                f"{one} for {behalf[one]}" if one in behalf else one for one in event.voters
            )
            if isinstance(event, e.Approved) and event.ground == "broken_glass":
                who += ", who broke the glass"
            if isinstance(event, e.Approved) and event.grants:
                who += f" (grant {', '.join(event.grants)})"
        case (
            e.Approved(ground="policy", rule=rule) | e.Denied(ground="policy" | "limit", rule=rule)
        ):
            who = f"policy rule {rule!r}"
        case e.Denied(ground="repeated"):
            who = "the gate, as it was before"
        case e.GlassBroken(reviewer=who):
            pass
        case e.Voted(on_behalf_of=principal):
            who = f"{fact.slot.tail[3]} for {principal}" if principal else fact.slot.tail[3]
        case e.Revoked() | e.Reconciled() if (
            fact.slot.tail[2] != "claim" and len(fact.slot.tail) > 3
        ):
            who = fact.slot.tail[3]
        case _:
            pass
    what = event.type if isinstance(event, e.Carried) else type(event).__name__
    return f"{what}{f' by {who}' if who else ''} at {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC"


def _fact_at(call: Call, slot: Slot) -> Fact | None:
    """What stands in a slot of the call, whether it counts or not."""
    return next((fact for fact in call.facts if fact.slot == slot), None)


def _is_about_deciding(slot: Slot) -> bool:
    return slot.tail[2] in {"gated", "vote", "escalated", "announced", "withdrawn", "decided"}


#: Why a recorded vote is void, in words; the other objections are to who cast it.
_VOID_VOTE: Final[dict[VoteFlaw, str]] = {
    "not_asked": "people were not asked before it",
    "decided": "the call was decided before it",
    "deadline": "the deadline had passed",
    "glass_with_edit": "breaking the glass takes a reason, and no edit",
    "glass_without_reason": "breaking the glass takes a reason, and no edit",
    "other_bytes": "it is about other bytes than those that people were asked about",
}
#: Why an approval does not let a call run, in words.
FLAWS: Final = {
    "digest_mismatch": "the arguments are not the ones that were approved",
    "people_were_asked": "people were asked about it, and before they answered a policy let it "
    "through",
}
