"""What happened, which facts count, and which may be recorded; `lifecycle.py` has the rules in a
table.
"""

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Final

from msgspec import structs

from ayes.ledger.call import Call, Void, attempt_of
from ayes.ledger.descriptions import (
    FLAWS,
    STOPPED,
    already_filled,
    cannot_be,
    describe,
    describe_decision,
    describe_stop,
)
from ayes.ledger.lifecycle import EVENTS_BY_PLACE, MAY_FOLLOW, Status
from ayes.ledger.objections import (
    VOID_VOTE,
    asks_groups,
    may_reconcile,
    may_revoke,
    objection,
    objection_to_voter,
    refused_settlement,
    refused_vote,
)
from ayes.ledger.stops import stops_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    DeadlinePassed,
    NotOpen,
    Refused,
    UnknownCall,
)
from ayes.schemas.slots import CLIENT, STOP, CallRef, Slot

#: Sets a field of a frozen struct. Only `call_of` may, while nobody else has the call: a replay
#: makes millions of them, and a copy for each fact would take longer than all the rest.
_set: Final = structs.force_setattr
#: The places of a call that hold several facts which always count, and the fields of `Call`.
_MULTI_FACT_PLACES: Final = {
    "vote": "votes",
    "escalated": "escalated",
    "notified": "notified",
    "posted": "posted",
    "comment": "comments",
    "handed": "handed",
}
#: The places whose facts count or are void, depending on earlier facts.
_CONTESTED: Final = frozenset({"revoked", "lapsed", "claim", "finished", "late", "reconciled"})
#: The same, and bytes that this program cannot read.
_READ: Final[dict[str, frozenset[type]]] = {
    place: frozenset((*kinds, e.Carried)) for place, kinds in EVENTS_BY_PLACE.items()
}
#: The decisions that keep a call from running, and the endings that may be reported for each.
_STOPPED: Final[dict[type, frozenset[str]]] = {
    e.Denied: frozenset({"denied", "unknown_tool"}),
    e.Expired: frozenset({"expired"}),
    e.Withdrawn: frozenset({"withdrawn"}),
    e.Superseded: frozenset({"superseded"}),
}


def evolve(call: Call, fact: Fact) -> Call:
    """The call with one more fact. Never raises; a fact without a place in it changes nothing, but
    for the number of the last revocation, by which the broker orders starts.
    """
    stops = tuple(one for stop in call.stops for one in stop.facts)
    grown = call_of(call.ref, (*call.facts, *stops, fact))
    last = max(call.last_revocation, grown.last_revocation)
    return structs.replace(grown, last_revocation=last)


def may_hold(place: str, event: object) -> bool:
    """Whether this event, or bytes that cannot be read, may be in that place of a call."""
    return type(event) in _READ.get(place, ())


def call_of(ref: CallRef, facts: Iterable[Fact]) -> Call:
    """The call that these facts make; facts about anything else are skipped, but for those about
    stops.
    """
    workspace, thread, name = ref.workspace, ref.thread, ref.call
    found: dict[tuple[str, ...], Fact] = {}
    stopping: list[Fact] = []
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
            if type(fact.event) in _READ.get(tail[2], ()) and not slot.is_surplus:
                found.setdefault(tail, fact)
        elif tail[0] == STOP:
            stopping.append(fact)
    call = Call(ref, last_revocation=last_revocation)
    if stopping:
        stopping.sort(key=attrgetter("seq"))
        _set(call, "stops", stops_of(stopping, workspace))
    # In the order of the log: whether a contested fact counts depends on earlier facts alone.
    for fact in sorted(found.values(), key=attrgetter("seq")):
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
        # Whoever claimed a call while it was stopped, and saw that, has not run it.
        and not one.why.startswith(STOPPED)
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
    if found.flaw == "stranger" and call.people.readings is None and asks_groups(call):
        return None  # the count of the votes says whether it counts
    if found.flaw == "removed":
        return f"{found.person} was removed before it"
    if found.flaw == "elsewhere":
        return f"{found.person} was not of {call.ref.workspace} then"
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
    if (stop := call.stop(fact.recorded_at, fact.seq)) is not None:
        return describe_stop(stop)
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
        return refused_settlement(call, slot.tail[3], event)
    if isinstance(event, e.ToolStarted) and (until := call.valid_until) and now >= until:
        return DeadlinePassed(
            f"{call.ref} was approved until {until:%Y-%m-%d %H:%M:%S} UTC and was not started by "
            "then, so it will not run. Request it again under another id."
        )
    if isinstance(event, e.ToolStarted) and (stop := call.stop(now)) is not None:
        return NotOpen(f"{call.ref} may not start: {describe_stop(stop)}. Nothing has run.")
    # After these checks the broker alone decides: the slot takes the event or is taken.
    return refused_vote(call, event, slot.tail[3], now) if isinstance(event, e.Voted) else None


#: The places of a call that the decision closes.
_DECIDING: Final = frozenset({"gated", "vote", "escalated", "announced", "withdrawn", "decided"})


def may_vote(
    call: Call, vote: e.Voted, reviewer: str, at: datetime, before: int | None = None
) -> bool:
    """Whether this person, or the one in whose place they vote, was asked and is not excluded."""
    return objection_to_voter(call, vote, reviewer, at, before) is None
