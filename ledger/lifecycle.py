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

A call *is* the facts recorded about it. Nothing stores its status; `Call.status` reads it off the facts that are
there, and `evolve` only puts a fact into its place. So it does not matter in which order facts arrive, or how
often: the same facts give the same call.

Two questions are asked of a call, and they are different questions:

* `evolve(call, fact)` tells what happened. It never raises: what is recorded is recorded.
* `refusal(call, slot, event, now)` says what may not happen next, in a fixed order. The table `MAY_FOLLOW` is most
  of the answer.

Neither of them guards against two writers at once. The broker does: a slot takes one fact, ever. What is checked
here only ever asks that a fact *exists* ("approved?"), and what exists never goes away.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Final, Literal

import msgspec
from msgspec import Struct

from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    DeadlinePassed,
    NotAllowed,
    NotOpen,
    Refused,
    UnknownCall,
)
from schemas.quorums import is_among
from schemas.slots import FILLED_BY, CallRef, Slot


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
    # A vote does not change the status. The gate counts votes and decides, once. Nor does it when more people are asked.
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
    # Whoever takes the claim's slot first: an executor to run it, a person to take the approval back, or an
    # executor that has no such tool, or finds other bytes than were approved.
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

#: The places of a call that hold more than one fact, and the field that holds them.
_SEVERAL: Final = {"vote": "votes", "claim": "claims", "late": "late", "escalated": "escalated"}
#: Which facts may stand in each place of a call.
STANDS: Final = {shape[2]: kinds for shape, kinds in FILLED_BY.items() if shape[0] == "call"}

#: Nothing more will be told to the model about a call in one of these.
SETTLED: Final = frozenset({Status.RETURNED, Status.FAILED, Status.REFUSED, Status.RECONCILED})

_DECISIONS: Final[dict[type[e.Event], Status]] = {
    e.Approved: Status.APPROVED,
    e.Denied: Status.DENIED,
    e.Answered: Status.ANSWERED,
    e.Expired: Status.EXPIRED,
    e.Withdrawn: Status.WITHDRAWN,
    e.Superseded: Status.SUPERSEDED,
}
_CLAIMS: Final[dict[type[e.Event], Status]] = {
    e.ToolStarted: Status.RUNNING,
    e.Revoked: Status.REVOKED,
    e.Declined: Status.DECLINED,
}
_ENDS: Final[dict[type[e.Event], Status]] = {
    e.ToolReturned: Status.RETURNED,
    e.ToolFailed: Status.FAILED,
    e.ToolRefused: Status.REFUSED,
    e.InDoubt: Status.IN_DOUBT,
}


class Call(Struct, frozen=True):
    """The facts about one call, each in its place. `ref` is which call it is."""

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
    #: By attempt.
    claims: tuple[Fact, ...] = ()
    finished: Fact | None = None
    #: Results that came after the call was closed: kept, never shown to the model.
    late: tuple[Fact, ...] = ()
    reconciled: Fact | None = None

    @property
    def status(self) -> Status:
        """The furthest point that the facts bear out."""
        if self.reconciled:
            return Status.RECONCILED
        if self.finished:
            return _ENDS[type(self.finished.event)]  # type: ignore[index]
        if self.claims:
            # Started is started, whatever else stands in another claim's slot.
            started = any(isinstance(claim.event, e.ToolStarted) for claim in self.claims)
            return Status.RUNNING if started else _CLAIMS[type(self.claims[0].event)]  # type: ignore[index]
        if self.decided:
            return _DECISIONS[type(self.decided.event)]  # type: ignore[index]
        if self.gated:
            return Status.PENDING
        return Status.REQUESTED if self.requested else Status.UNKNOWN

    @property
    def wish(self) -> e.ToolRequested:
        """What was asked for. Only for calls whose request was read."""
        assert self.requested, f"{self.ref} has no request"
        assert isinstance(self.requested.event, e.ToolRequested)
        return self.requested.event

    @property
    def asking(self) -> e.ApprovalRequested | None:
        """The gate's question to people, if it asked."""
        return self.gated.event if self.gated and isinstance(self.gated.event, e.ApprovalRequested) else None

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
        """Why an approval does not let the call run after all; None where it does. Looked at before every start.

        The policy decides only where nobody is asked. Two gates may know different versions of it: then one asks
        people, and the other's approval, if it was recorded later, must not overtake them.
        """
        decision = self.decided.event if self.decided else None
        if not isinstance(decision, e.Approved) or decision.digest != self.digest:
            return "digest_mismatch"
        asked_before = (
            self.gated is not None and self.decided is not None and self.gated.seq < self.decided.seq
        )
        return "people_were_asked" if decision.ground in _UNASKED and asked_before else None

    @property
    def next_stage(self) -> e.Stage | None:
        """Who is asked as well when nobody decides in time; None when nobody more is."""
        asking = self.asking
        stages = asking.stages[len(self.escalated) :] if asking and asking.on_timeout == "escalate" else ()
        return stages[0] if stages else None

    @property
    def due(self) -> datetime | None:
        """When something happens by itself, on the broker's clock: more people are asked, or it expires. None: never."""
        if self.gated is None or self.asking is None or self.asking.on_timeout == "stay":
            return None
        since = self.escalated[-1] if self.escalated else self.gated
        assert isinstance(since.event, e.ApprovalRequested | e.Escalated)
        after_s = since.event.expires_in_s
        return None if after_s is None else since.recorded_at + timedelta(seconds=after_s)

    @property
    def deadline(self) -> datetime | None:
        """When the approval expires, on the broker's clock. None: never, or not before more people were asked."""
        return None if self.next_stage else self.due

    def voters(self, before: int | None = None) -> tuple[str, ...]:
        """Everybody who may vote, names and patterns; with `before`, as it was before that fact of the log."""
        asking = self.asking
        if asking is None:
            return ()
        more = [one.voters for one in (*asking.also, *asking.besides)]
        more += [self.asked_as_well(before)]
        return tuple(dict.fromkeys((*asking.voters, *(voter for voters in more for voter in voters))))

    def asked_as_well(self, before: int | None = None) -> tuple[str, ...]:
        """Those among them who were asked when nobody had decided in time. They count wherever a vote is lacking."""
        return tuple(
            voter
            for fact in self.escalated
            if isinstance(fact.event, e.Escalated) and (before is None or fact.seq < before)
            for voter in fact.event.voters
        )


def evolve(call: Call, fact: Fact) -> Call:
    """Put a fact into its place. Never raises; a fact that has no place in the call changes nothing."""
    if fact.slot.call_ref != call.ref or not isinstance(fact.event, fact.slot.filled_by):
        return call
    match fact.slot.tail[2:]:
        case ("vote" | "claim" | "late" | "escalated" as place, _):
            several = _SEVERAL[place]
            return msgspec.structs.replace(call, **{several: _with(getattr(call, several), fact)})
        case (place,) if getattr(call, place) is None:
            return msgspec.structs.replace(call, **{place: fact})
        case _:
            return call


def _with(facts: tuple[Fact, ...], fact: Fact) -> tuple[Fact, ...]:
    if any(known.slot == fact.slot for known in facts):
        return facts
    return tuple(sorted((*facts, fact), key=lambda one: one.seq))


_seq: Final = attrgetter("seq")


def call_of(ref: CallRef, facts: tuple[Fact, ...]) -> Call:
    """The call that these facts make; facts about anything else are passed over."""
    # What `evolve` does with one after the other; but there each is a copy of the call, and here all are one.
    alone: dict[str, Fact] = {}
    several: defaultdict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        slot = fact.slot
        if slot.thread != ref.thread or slot.workspace != ref.workspace:
            continue
        match slot.tail:
            case ("call", ref.call, place) if isinstance(fact.event, STANDS.get(place, ())):
                alone.setdefault(place, fact)
            case ("call", ref.call, place, which) if place in _SEVERAL and isinstance(
                fact.event, STANDS[place]
            ):
                several[_SEVERAL[place]].setdefault(which, fact)
            case _:
                pass
    ordered = {place: tuple(sorted(found.values(), key=_seq)) for place, found in several.items()}
    return msgspec.structs.replace(Call(ref), **alone, **ordered)


def refusal(call: Call, slot: Slot, event: e.Event, now: datetime) -> Refused | None:
    """Why `event` may not be recorded at `slot` now; None if it may.

    The order is fixed, so that everybody hears the same reason:

    1. the very same event is recorded already: that is no refusal, whatever came since (idempotence first);
    2. nobody ever requested the call;
    3. the call is decided (or, past that, ended): who was first, what and when;
    4. the slot is taken;
    5. the table does not know this fact in this status;
    6. the deadline has passed;
    7. the voter is excluded (asked for it), or not among those who may vote, or has voted in person;
    8. the vote is about other bytes than those that wait.
    """
    taken = _standing(call, slot)
    if taken is not None and taken.event.id == event.id and event.id:
        return None
    if call.status is Status.UNKNOWN and not isinstance(event, e.ToolRequested):
        return UnknownCall(f"{call.ref} was never requested. `approvals pending` lists what waits.")
    if type(event) not in MAY_FOLLOW[call.status] and call.decided is not None and _is_about_deciding(slot):
        told = f"{call.ref} is already decided: {describe(call.decided)}. Nothing was recorded."
        return DeadlinePassed(told) if isinstance(call.decided.event, e.Expired) else AlreadyDecided(told)
    if taken is not None:
        return AlreadyFilled(f"{slot.subject} is taken: {describe(taken)}. Nothing was recorded.")
    if type(event) not in MAY_FOLLOW[call.status]:
        return NotOpen(
            f"{call.ref} is {call.status.replace('_', ' ')}, so {type(event).__name__} cannot follow. "
            f"What can: {', '.join(sorted(kind.__name__ for kind in MAY_FOLLOW[call.status])) or 'nothing'}."
        )
    if not isinstance(event, e.Voted):
        return None
    asking = call.asking
    assert asking, "the table lets votes come only while PENDING"
    if call.deadline is not None and now >= call.deadline:
        return DeadlinePassed(
            f"{call.ref} expired at {call.deadline:%Y-%m-%d %H:%M:%S} UTC. Nothing was recorded."
        )
    reviewer = slot.tail[3]
    person = event.on_behalf_of or reviewer
    for name in (reviewer, person):
        if is_among(name, asking.excluded):
            return NotAllowed(
                f"{name} asked for {call.ref}, or is behind the agent that did, and does not count. Somebody else must."
            )
    if event.verdict == "break_glass" and person != reviewer:
        return NotAllowed(
            f"nobody may break the glass in another's place. {reviewer} may do it only in their own."
        )
    if not may_vote(call, event, reviewer):
        named = "may break the glass for" if event.verdict == "break_glass" else "may vote on"
        asked = asking.may_break_glass if event.verdict == "break_glass" else call.voters()
        return NotAllowed(
            f"{person} is none of those who {named} {call.ref}. Rule {asking.rule!r} asks {', '.join(asked) or 'nobody'}."
        )
    if event.verdict == "break_glass" and event.arguments is not None:
        return NotAllowed(
            f"who breaks the glass for {call.ref} lets it run as it is. Leave the arguments as they are."
        )
    if event.verdict == "break_glass" and not event.reason.strip():
        return NotAllowed(f"who breaks the glass for {call.ref} must say why. Give a reason.")
    if person != reviewer and (own := _standing(call, call.ref.vote(person))) is not None:
        return AlreadyFilled(f"{person} has voted on {call.ref}: {describe(own)}. Nothing was recorded.")
    if event.digest != asking.digest:
        return NotOpen(
            f"this vote is about other arguments than those that {call.ref} waits with. Look at it again."
        )
    # After this point the broker alone decides: the vote's slot takes it or is taken.
    return None


def may_vote(call: Call, vote: e.Voted, reviewer: str, before: int | None = None) -> bool:
    """Is this person asked, or the one in whose place they vote? Being excluded beats being asked.

    Args:
        before: as it was before that fact of the log.
    """
    asking = call.asking
    person = vote.on_behalf_of or reviewer
    if asking is None or any(is_among(name, asking.excluded) for name in (reviewer, person)):
        return False
    if vote.verdict == "break_glass":  # nobody may do that in another's place
        return person == reviewer and is_among(reviewer, asking.may_break_glass)
    return is_among(person, call.voters(before))


def describe(fact: Fact) -> str:
    """A recorded fact in a few words, for the person who came second: what, by whom, when."""
    event = fact.event
    who = event.by.name if isinstance(event, e.Event) and isinstance(event.by, e.Author) else ""
    match event:
        case e.Approved() | e.Denied() | e.Answered() if event.voters:
            behalf = event.on_behalf_of
            who = ", ".join(f"{one} for {behalf[one]}" if one in behalf else one for one in event.voters)
            if isinstance(event, e.Approved) and event.ground == "broken_glass":
                who += ", who broke the glass"
            if isinstance(event, e.Approved) and event.grants:
                who += f" (grant {', '.join(event.grants)})"
        case e.Approved(ground="policy", rule=rule) | e.Denied(ground="policy" | "limit", rule=rule):
            who = f"policy rule {rule!r}"
        case e.Denied(ground="repeated"):
            who = "the gate, as it was before"
        case e.GlassBroken(reviewer=who):
            pass
        case e.Voted(on_behalf_of=person):
            who = f"{fact.slot.tail[3]} for {person}" if person else fact.slot.tail[3]
        case _:
            pass
    what = event.type if isinstance(event, e.Carried) else type(event).__name__
    return f"{what}{f' by {who}' if who else ''} at {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC"


def _standing(call: Call, slot: Slot) -> Fact | None:
    every = (call.requested, call.gated, *call.votes, *call.escalated, call.announced, call.withdrawn)
    every += (call.decided, *call.claims, call.finished, *call.late, call.reconciled)
    return next((fact for fact in every if fact is not None and fact.slot == slot), None)


def _is_about_deciding(slot: Slot) -> bool:
    return slot.tail[2] in {"gated", "vote", "escalated", "announced", "withdrawn", "decided"}
