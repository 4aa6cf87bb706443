"""A tool call: the facts about it that count, each in its place, and those that do not."""

from collections.abc import Callable
from datetime import datetime
from itertools import count
from operator import attrgetter
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.keys import Signatures
from ayes.ledger.lifecycle import LEADS_TO, Status
from ayes.ledger.people import People
from ayes.ledger.stops import Stop
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.ids import is_token
from ayes.schemas.slots import CLIENT, CallRef, Slot
from ayes.schemas.times import after, earliest

#: The grounds of an approval for which nobody looked at the call itself.
_UNASKED: Final = frozenset({"policy", "grant"})


def mode_of(decision: e.AnyEvent | e.Carried | None) -> e.Mode | None:
    """The mode of an approval by people's votes; None: of no other decision."""
    if not isinstance(decision, e.Approved) or decision.ground in _UNASKED:
        return None
    return decision.mode


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
    #: What people said about it, without effect either.
    comments: tuple[Fact, ...] = ()
    #: Who asked whom to decide, in the order of the log. It changes nobody's right to vote.
    handed: tuple[Fact, ...] = ()
    #: Facts that do not count, except votes; `voids` has both.
    void: tuple[Void, ...] = ()
    #: The number of the last fact in a slot of a revocation, whether or not it counts; 0: none.
    last_revocation: int = 0
    #: Facts of a newer program. Their meaning is unknown here, so nobody may act on such a call.
    newer: tuple[Fact, ...] = ()
    #: The stops that hold in its workspace, whether or not they cover it.
    stops: tuple[Stop, ...] = ()
    #: Who was removed: not of the facts about the call, but of what counting its votes needs.
    people: People = People()
    #: By what signatures are judged, likewise. None: nobody has read it.
    signatures: Signatures | None = None
    #: The class by which rules judge it (`policies.classed`), not of the facts about it either.
    tool_class: e.ToolClass = "irreversible"

    @property
    def status(self) -> Status:
        """The status that the furthest fact leads to, by the table."""
        furthest = self.reconciled or self.finished
        return LEADS_TO[type(furthest.event)] if furthest else self._status_before_the_end

    @property
    def outcome(self) -> Status:
        """The status as people read it: of a call that never ran also why, such as `denied`, when
        the model has been told so (`refused`).
        """
        return self._status_before_the_end if self.status is Status.REFUSED else self.status

    @property
    def _status_before_the_end(self) -> Status:
        furthest = (
            # A start, a revocation and a lapse exclude each other: the later ones are void.
            (self.claims[-1] if self.claims else self.revoked or self.lapsed)
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
        told = (*self.notified, *self.posted, *self.comments, *self.handed)
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

    def judged_by(self, signatures: Signatures) -> "Call":
        """The call whose votes count if they are signed. Nobody votes there as a member of a group,
        since what a provider said of it is signed by nobody.
        """
        people = replace(self.people, readings=None)
        return replace(self, signatures=signatures, people=people)

    @property
    def wants_signed(self) -> bool:
        """Whether votes other than denials count only with a signature of their voter."""
        asking = self.approval_request
        is_said = asking is not None and asking.signed
        return is_said or (self.signatures is not None and self.signatures.is_wanted)

    def stop(self, at: datetime, before: int | None = None) -> Stop | None:
        """The stop that keeps it from starting at this time, on the broker's clock; None if none
        does. With `before`, just before that number of the log.
        """
        if self.requested is None:
            return None
        holding = (one for one in self.stops if one.holds(at, before))
        return next((one for one in holding if one.covers(self.wish)), None)

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
    def undoing(self) -> e.Undoing | None:
        """How it can be undone, as its question says, or the approval of one without a question."""
        decision = self.decided.event if self.decided else None
        asking = self.approval_request
        said = asking if asking is not None or not isinstance(decision, e.Approved) else decision
        return said.undoing if said is not None else None

    @property
    def undo_until(self) -> datetime | None:
        """Until when it can be undone, on the broker's clock; None: no end is known, or it has not
        returned.
        """
        ended, undoing = self.finished, self.undoing
        if ended is None or not isinstance(ended.event, e.ToolReturned) or undoing is None:
            return None
        return after(ended.recorded_at, undoing.undo_within_s)

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

    @property
    def handed_to(self) -> dict[str, str]:
        """To whom it was handed by each person to whom it was not handed back; the newest last."""
        found: dict[str, str] = {}
        for fact in self.handed:
            assert isinstance(fact.event, e.HandedOver)
            if is_token(fact.event.to):
                by, to = fact.slot.tail[3], fact.event.to
                found = {one: whom for one, whom in found.items() if one not in (by, to)} | {by: to}
        return found

    @property
    def on_call(self) -> tuple[e.OnCall, ...]:
        """Who was on call as the stages began that asked them."""
        return tuple(one for fact in self.escalated for one in getattr(fact.event, "on_call", ()))


_seq: Final = attrgetter("seq")


def attempt_of(claim: Fact) -> int:
    """The number of a claim, counted from 1."""
    return int(claim.slot.tail[-1])
