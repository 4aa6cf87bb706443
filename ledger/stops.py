"""Stops: from one fact on, nothing starts that it covers (docs/decisions/0063).

A stop counts from the moment in which it is recorded, before anybody has looked at who gave it: a
start that comes later in the log is void for every reader, as one after a revocation. The gate ends
a stop that its giver had no right to, and one that enough people with the right have resumed.

Whether a stop covers a call depends on that call's request alone, and not on the thread's opening,
so that everybody who has the facts of the call says the same.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import ORGANISATION, STOP, StopRef
from ayes.schemas.times import after


class Stop(Struct, frozen=True):
    """A stop, who resumed, and its end."""

    ref: StopRef
    given: Fact
    #: In the order of the log.
    resumed: tuple[Fact, ...] = ()
    ended: Fact | None = None

    @property
    def stopped(self) -> e.Stopped:
        assert isinstance(self.given.event, e.Stopped)
        return self.given.event

    @property
    def ends_at(self) -> datetime | None:
        """When it ends by itself, on the broker's clock."""
        return after(self.given.recorded_at, self.stopped.expires_in_s)

    @property
    def facts(self) -> tuple[Fact, ...]:
        return (self.given, *self.resumed, *((self.ended,) if self.ended else ()))

    def holds(self, at: datetime, before: int | None = None) -> bool:
        """Whether it is in force at this time on the broker's clock; with `before`, just before
        that number of the log.
        """
        if before is not None and self.given.seq > before:
            return False
        if self.ended is not None and (before is None or self.ended.seq < before):
            return False
        return self.ends_at is None or at < self.ends_at

    def covers(self, wish: e.ToolRequested) -> bool:
        """Whether it is about this request."""
        stopped = self.stopped
        return (
            is_among(wish.tool, stopped.tools)
            and (not wish.agent or is_among(wish.agent, stopped.agents))
            and is_among(wish.requester, stopped.requesters)
        )

    def covers_thread(self, opened: e.ThreadOpened) -> bool:
        """Whether a model of this thread is asked nothing: it stops all tools of its agent."""
        stopped = self.stopped
        return (
            "*" in stopped.tools
            and (not opened.agent or is_among(opened.agent, stopped.agents))
            and is_among(opened.requester, stopped.requesters)
        )


def known_stop(ref: StopRef, facts: Iterable[Fact]) -> Stop:
    """The stop of this name, which these facts are about.

    Raises:
        BadInput: there is none.
    """
    found = stops_of(facts)
    if not found:
        raise BadInput(f"there is no stop {ref}. `ayes stops` shows those that there are.")
    return found[0]


def stops_of(facts: Iterable[Fact], workspace: str = "") -> tuple[Stop, ...]:
    """The stops among these facts, oldest first.

    Args:
        workspace: only those that hold there.
    """
    found: dict[StopRef, Stop] = {}
    for fact in facts:
        tail = fact.slot.tail
        if tail[0] != STOP or (workspace and fact.slot.workspace not in (workspace, ORGANISATION)):
            continue
        ref = StopRef(fact.slot.workspace, tail[1], tail[2])
        match fact.event:
            case e.Stopped():
                found[ref] = Stop(ref, fact)
            # In the order of the log these come after it; what comes first is about nothing.
            case e.Resumed() if (stop := found.get(ref)) is not None:
                found[ref] = Stop(ref, stop.given, (*stop.resumed, fact), stop.ended)
            case e.StopEnded() if (stop := found.get(ref)) is not None:
                found[ref] = Stop(ref, stop.given, stop.resumed, fact)
    return tuple(found.values())
