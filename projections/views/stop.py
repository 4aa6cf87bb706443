"""Stops as everybody outside sees them."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ayes.ledger.stops import Stop
from ayes.projections.views.copied import copied
from ayes.schemas import events as e
from ayes.schemas.slots import ORGANISATION

type StopStatus = Literal["in force", "ended"]


class StopState(Struct, frozen=True):
    """What may not start for a time, who stopped it, and how it ends or has ended."""

    #: As `workspace/giver/name`; the workspace is `_organisation` if it is of all workspaces.
    stop: str
    status: StopStatus
    #: The person who gave it.
    stopped_by: str
    reason: str
    #: Names, or patterns with `*`. A call is covered if its agent, tool and requester each match.
    agents: tuple[str, ...]
    tools: tuple[str, ...]
    requesters: tuple[str, ...]
    given_at: datetime
    #: When it ends by itself; None: it lasts until people resume.
    ends_at: datetime | None
    #: How many different people must resume.
    resumes_needed: int
    #: Who resumed so far; of a stop that the gate ended, those who counted.
    resumed_by: tuple[str, ...]
    #: None while it is in force.
    ended_at: datetime | None
    #: The reasons of those who resumed, or why the gate ended it; empty if it ended by itself.
    ended_why: str
    seq: int


class StoppedCall(Struct, frozen=True):
    """A call that a stop covers."""

    call: str
    tool: str
    agent: str
    #: Since when it runs, is in doubt, or is approved.
    since: datetime


class StopAccount(StopState, frozen=True):
    """A stop, and what it covered in the moment in which it was given."""

    #: Those that ran, and are not in doubt since. They go on.
    running: list[StoppedCall]
    #: Those that had started, and of which nobody knows now how they ended.
    in_doubt: list[StoppedCall]
    #: Those that were approved, still validly, and not started. They wait.
    held: list[StoppedCall]
    #: How many wait for people now. They may be denied; no approval is recorded meanwhile.
    pending: int
    #: Calls that were approved, or started without a lease, before this time are not listed; None:
    #: all are.
    looked_since: datetime | None


def stop_state(stop: Stop, now: datetime) -> StopState:
    """A stop at this time, on the broker's clock."""
    holds, ended = stop.holds(now), _ended(stop)
    return copied(
        StopState,
        stop.stopped,
        stop=str(stop.ref),
        status="in force" if holds else "ended",
        stopped_by=stop.ref.giver,
        given_at=stop.given.recorded_at,
        ends_at=stop.ends_at,
        resumed_by=ended.resumed_by
        if ended
        else tuple(dict.fromkeys(fact.slot.tail[4] for fact in stop.resumed)),
        ended_at=None
        if holds
        else stop.ended.recorded_at
        if ended and stop.ended
        else stop.ends_at,
        ended_why=ended.reason if ended else "",
        seq=stop.given.seq,
    )


def stop_words(stop: Stop, now: datetime) -> str:
    state = stop_state(stop, now)
    where = "all workspaces" if stop.ref.workspace == ORGANISATION else stop.ref.workspace
    limits = [("agent", state.agents), ("tool", state.tools), ("requester", state.requesters)]
    what = "".join(f", {name} {' or '.join(of)}" for name, of in limits if "*" not in of)
    resumed = f" ({', '.join(state.resumed_by)})" if state.resumed_by else ""
    if state.ended_at is not None:
        why = f": {state.ended_why}" if state.ended_why else ""
        end = f"ended {state.ended_at:%Y-%m-%d %H:%M:%S} UTC{resumed}{why}"
    else:
        end = f"{len(state.resumed_by)} of {state.resumes_needed} resumed{resumed}"
        end += f", ends {state.ends_at:%Y-%m-%d %H:%M:%S} UTC" if state.ends_at else ""
    return f"{stop.ref}  {state.status}  {where}{what}: {state.reason}  {end}"


def _ended(stop: Stop) -> e.StopEnded | None:
    """The gate's end, unless the stop had ended by itself before."""
    if stop.ended is None or (stop.ends_at is not None and stop.ended.recorded_at >= stop.ends_at):
        return None
    return stop.ended.event if isinstance(stop.ended.event, e.StopEnded) else None
