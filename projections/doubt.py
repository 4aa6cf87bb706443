"""The calls in doubt: claimed, and nobody knows how they ended.

A call is in doubt

* if that is recorded (`InDoubt`): an executor found the claim of one that died, or a service
  recorded it;
* if the service that runs it has died. Its claim has a lease (`ToolStarted.lease_s`), which the
  service renews while the tool runs. A lease that ended is not a fact: a service that was cut off
  renews it once it is back.

`doubt_of` tells from the facts whether a call is in doubt. `opens` tells which calls to examine, so
that nobody has to examine all (docs/decisions/0030).
"""

from datetime import datetime
from typing import Final

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CLIENT, ROOT

#: The facts that begin a doubt, and those that end the claims of services; and all others that may
#: be void starts and results.
SUBJECTS: Final = tuple(
    f"{ROOT}.*.*.call.*.{tail}"
    for tail in ("claim.*", f"claim.{CLIENT}.*", "finished", f"finished.{CLIENT}", "late.>")
)


class CallInDoubt(Struct, frozen=True):
    """A call in doubt. Times are the broker's."""

    workspace: str
    thread: str
    call: str
    tool: str
    #: When the doubt was recorded; else the last sign of life of the service that runs it.
    since: datetime
    claimed_by: str
    claimed_at: datetime
    #: Whether it is recorded. If not, the service stopped renewing its claim: `ayes doubt` records
    #: it, and then it can be reconciled.
    recorded: bool
    #: Why, as it was recorded; empty if it is not.
    reason: str
    #: A result that was recorded later. None if there is none, or if several differ.
    late: e.ToolReturned | e.ToolFailed | None


def doubt_of(call: Call, renewed_at: datetime | None, now: datetime) -> CallInDoubt | None:
    """The doubt about a call; None if it is not in doubt.

    Args:
        renewed_at: when its lease was last renewed; None: never since the claim.
        now: the broker's clock.
    """
    if call.status not in (Status.RUNNING, Status.IN_DOUBT):
        return None
    claim = call.starts[-1]
    assert isinstance(claim.event, e.ToolStarted)
    reason = ""
    since = max(claim.recorded_at, renewed_at or claim.recorded_at)
    if call.status is Status.IN_DOUBT:
        assert call.finished
        since = call.finished.recorded_at
        reason = call.finished.event.text if isinstance(call.finished.event, e.InDoubt) else ""
    elif not 0 < claim.event.lease_s < (now - since).total_seconds():
        return None
    return CallInDoubt(
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        call=call.ref.call,
        tool=call.wish.tool,
        since=since,
        claimed_by=claim.event.by.name if isinstance(claim.event.by, e.Author) else "",
        claimed_at=claim.recorded_at,
        recorded=call.status is Status.IN_DOUBT,
        reason=reason,
        late=call.late_result,
    )


def opens(fact: Fact) -> bool | None:
    """Whether its call may be in doubt from this fact on (True), or no longer (False); None: the
    fact changes nothing.

    A call that may be in doubt is examined by `doubt_of`, so True may be wrong.
    """
    match fact.event:
        case e.InDoubt():
            return True
        case e.ToolStarted(lease_s=lease_s):
            return True if lease_s > 0 else None
        # A service's first attempt, and mostly its only one. `doubt_of` handles all others.
        case e.ToolReturned(attempt=1) | e.ToolFailed(attempt=1) if fact.slot.tail[2:] == (
            "finished",
            CLIENT,
        ):
            return False
        case _:
            return None
