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
    claim: ToolStarted      an approval without flaw that is valid      with the approved digest,
                                                                        while no stop covers it
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
recorded that the approval has lapsed (docs/decisions/0041). One that comes while a stop covers the
call leaves it approved too, until it may start (`stops.py`, docs/decisions/0063).

What people say to each other is in no row: a comment, or that one hands the call to another, may
come in any status and changes nothing (docs/decisions/0079). So is who was told.

A call is a `Call` (`call.py`). Three functions of `validity.py` answer three different questions:

* `call_of(ref, facts)`: what happened? It never raises, because recorded facts cannot be refused.
* `void(call, fact)`: why does a recorded fact not count?
* `refusal(call, slot, event, now)`: why may this event not be recorded next? Mostly because of
  `MAY_FOLLOW`; the order of the reasons is fixed.

None of them guards against two concurrent writers. The broker does: a slot takes one fact, ever.
Where two slots compete (a start and a revocation), the order of the log decides, and the writer
reads it before acting. `objections.py` has the rules for people: who may vote, revoke, reconcile.
"""

from enum import StrEnum
from typing import Final

from ayes.schemas import events as e
from ayes.schemas.slots import FILLED_BY


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
        # The call goes on; the calls below it are withdrawn (ledger/judging/chain.py).
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


#: The events that may be in each place of a call.
EVENTS_BY_PLACE: Final[dict[str, tuple[type[e.Event], ...]]] = {}
for _shape, _kinds in FILLED_BY.items():
    if _shape[0] == "call":
        EVENTS_BY_PLACE[_shape[2]] = tuple(
            dict.fromkeys((*EVENTS_BY_PLACE.get(_shape[2], ()), *_kinds))
        )


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
