"""Events for screens: one follower of the log serves all clients.

    the log ──► Feed: the last `KEPT` events ──► client at event 4,711
                                             ──► client at event 4,709
                                             ──► …

Only these events are held. A client is a position among them, so a slow one costs no memory and
delays nobody: once the events behind its position are gone it receives `Reset`, as does one that
was away for too long, and reads its lists again.

An event shows its call as of its own fact, as `ledger.lifecycle` derives it. So it is the same
whenever it is sent, and each fact has exactly one event: after a restart, and after the broker was
away, nothing is missing and nothing is doubled. A fact that is void changes no state, and `as_of`
says how new the state is: a client that keeps the state with the greatest one cannot be moved
backwards.
"""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from functools import partial
from itertools import batched
from operator import attrgetter
from typing import Final, Literal

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import author_of
from ayes.ledger.lifecycle import Status
from ayes.ledger.patience import while_away
from ayes.ledger.validity import call_of, voids
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Unavailable
from ayes.schemas.limits import cut
from ayes.schemas.slots import CallRef

#: The number of events that clients can catch up on.
KEPT: Final = 4096
#: The interval of `Heartbeat`, which a client awaits from a console that works.
HEARTBEAT_S: Final = 2.0
#: The interval in which the broker is asked whether it answers, and the time that it has for it.
_PROBE_S: Final = 1.0
_ANSWER_S: Final = 2.0
#: Bytes of a tool's or a program's name in an event; models and programs choose these themselves.
_LONGEST: Final = 200
#: The number of calls that are read together: with a dozen facts each, still one answer.
_TOGETHER: Final = 80

type Kind = Literal["requested", "waiting", "voted", "decided", "started", "finished", "changed"]

#: The event of a fact that brought a call into this status.
_ENTERED: Final[dict[Status, Kind]] = {
    Status.REQUESTED: "requested",
    Status.PENDING: "waiting",
    Status.APPROVED: "decided",
    Status.DENIED: "decided",
    Status.ANSWERED: "decided",
    Status.EXPIRED: "decided",
    Status.WITHDRAWN: "decided",
    Status.SUPERSEDED: "decided",
    Status.REVOKED: "decided",
    Status.LAPSED: "decided",
    Status.RUNNING: "started",
    Status.RETURNED: "finished",
    Status.FAILED: "finished",
    Status.REFUSED: "finished",
    Status.IN_DOUBT: "finished",
    Status.RECONCILED: "finished",
}


class FeedEvent(Struct, frozen=True):
    """What a fact changed, for a screen. A field that does not apply is empty."""

    #: The fact's number in the log.
    seq: int
    #: `changed`: anything that is not one of the other kinds. Read again what is shown of it.
    type: Kind
    call: str
    workspace: str
    thread: str
    tool: str
    #: Of the call after this fact.
    status: str
    #: The people, the rule or the program behind the fact.
    by: str
    #: The number of the newest fact that counts for the call; 0 if it has none.
    as_of: int


class Heartbeat(Struct, frozen=True):
    """Whether the broker answers."""

    broker: Literal["up", "down"]
    #: The client has all events up to this one; None while the events are being loaded.
    seq: int | None


class Reset(Struct, frozen=True):
    """Events are missing here: read all lists again."""

    #: The events that follow are later than this one.
    seq: int


class ListChanged(Struct, frozen=True):
    """The list of waiting calls has changed, which follows the log by some milliseconds."""

    #: The number of waiting calls.
    waiting: int


class LookingToo(Struct, frozen=True):
    """Who else looks at a call has changed."""

    #: As `workspace/thread/call`.
    call: str
    #: The people, by their names.
    people: tuple[str, ...]


type Sent = FeedEvent | Heartbeat | Reset | ListChanged | LookingToo


class EventFilter(Struct, frozen=True):
    """Selects events. An empty field selects all."""

    workspace: str = ""
    #: As `workspace/thread`.
    thread: str = ""
    #: As `workspace/thread/call`.
    call: str = ""

    def selects(self, event: FeedEvent) -> bool:
        return (
            self.workspace in {"", event.workspace}
            and self.thread in {"", f"{event.workspace}/{event.thread}"}
            and self.call in {"", event.call}
        )


ALL: Final = EventFilter()


def events_of(facts: Iterable[Fact], known: Iterable[Fact]) -> list[FeedEvent]:
    """The events of these facts.

    Args:
        known: every fact about their calls. Later ones make no difference.
    """
    calls: defaultdict[CallRef | None, list[Fact]] = defaultdict(list)
    for fact in known:
        calls[fact.slot.call_ref].append(fact)
    others = calls[None]  # the stops among them
    return [_event(fact, [*calls[fact.slot.call_ref], *others]) for fact in facts]


def _event(fact: Fact, known: list[Fact]) -> FeedEvent:
    slot, ref, by = fact.slot, fact.slot.call_ref, cut(author_of(fact), _LONGEST)
    if ref is None:
        return FeedEvent(fact.seq, "changed", "", slot.workspace, slot.thread, "", "", by, 0)
    before = call_of(ref, (one for one in known if one.seq < fact.seq))
    call = call_of(ref, (one for one in known if one.seq <= fact.seq))
    void = {one.fact.seq for one in voids(call)}
    return FeedEvent(
        seq=fact.seq,
        type="changed" if fact.seq in void else _kind(fact, before, call),
        call=str(ref),
        workspace=ref.workspace,
        thread=ref.thread,
        tool=cut(call.wish.tool, _LONGEST) if call.requested else "",
        status=str(call.status),
        by=by,
        as_of=max((one.seq for one in call.facts if one.seq not in void), default=0),
    )


def _kind(fact: Fact, before: Call, call: Call) -> Kind:
    if call.status is not before.status:
        return _ENTERED.get(call.status, "changed")
    match fact.event:
        case e.Voted():
            return "voted"
        case e.Escalated():
            return "waiting"  # for more people
        case _:
            return "changed"


class Feed:
    """The events of a log; `run` and `watch_broker` keep them up to date."""

    def __init__(self, ledger: Ledger, kept: int = KEPT) -> None:
        self._ledger = ledger
        self._kept = kept
        self._events: list[FeedEvent] = []
        #: All events after `_begin` are held, up to `seq`; the log had `_end` at the start.
        self._begin = self._end = self.seq = 0
        self._is_loaded = False
        self._broker: Literal["up", "down"] = "up"
        self._listed = ListChanged(0)
        #: The number of clients that are connected.
        self.clients = 0
        self._is_closed = False
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Follow the log, beginning with the last events that clients may have missed.

        Raises:
            Unavailable: it cannot be followed any more. Run it again.
        """
        log = self._ledger.log
        self._end = await while_away(log.last_seq)
        self._begin = self.seq = max(0, self._end - self._kept)
        self._events, self._is_loaded = [], True
        async with aclosing(log.follow((), self._begin + 1, until_end=False)) as batches:
            async for facts in batches:
                self._events += events_of(facts, await self._known(facts))
                self.seq = facts[-1].seq
                if len(self._events) > 2 * self._kept:
                    del self._events[: -self._kept]
                    self._begin = self._events[0].seq - 1
                self.wake()

    async def watch_broker(self) -> None:
        """Ask again and again whether the broker answers."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._ledger.log.last_seq()
                answers: Literal["up", "down"] = "up"
            except (Unavailable, TimeoutError):
                answers = "down"
            if answers != self._broker:
                self._broker = answers
                self.wake()
            await asyncio.sleep(_PROBE_S)

    @property
    def position(self) -> int | None:
        """What is read from now on includes all facts up to this one; None while the events are
        being loaded.
        """
        return max(self.seq, self._end) if self._is_loaded else None

    def list_changed(self, waiting: int) -> None:
        """Tell all clients that so many calls wait now."""
        self._listed = ListChanged(waiting)
        self.wake()

    def close(self) -> None:
        """End all clients' streams."""
        self._is_closed = True
        self.wake()

    async def events(
        self,
        chosen: EventFilter = ALL,
        after: int | None = None,
        looking: Callable[[], LookingToo | None] = lambda: None,
    ) -> AsyncGenerator[list[Sent]]:
        """The events of one client, and a heartbeat at once, at intervals and when it changes.

        Args:
            after: the last event that the client has; None: only new ones.
            looking: who else looks at the call that the client shows.
        """
        self.clients += 1
        try:
            async with aclosing(self._sent(chosen, after, looking)) as sent:
                async for together in sent:
                    yield together
        finally:
            self.clients -= 1

    async def _sent(
        self,
        chosen: EventFilter,
        position: int | None,
        looking: Callable[[], LookingToo | None],
    ) -> AsyncGenerator[list[Sent]]:
        clock = asyncio.get_running_loop()
        told, due, listed, looks = "", 0.0, self._listed, None
        while not self._is_closed:
            moved = self._moved
            found: list[Sent] = []
            if self._is_loaded:
                last = max(self.seq, self._end)
                position = last if position is None else position
                if not self._begin <= position <= last:
                    found.append(Reset(position := last))
                new = self._later_than(position)
                position = new[-1].seq if new else position
                found += [event for event in new if chosen.selects(event)]
            if listed is not self._listed:
                found.append(listed := self._listed)
            if (now := looking()) != looks and now is not None:
                found.append(looks := now)
            if told != self._broker or clock.time() >= due:
                told, due = self._broker, clock.time() + HEARTBEAT_S
                found.append(Heartbeat(self._broker, position))
            if found:
                yield found
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await moved.wait()

    def _later_than(self, position: int) -> list[FeedEvent]:
        return self._events[bisect_right(self._events, position, key=_seq) :]

    async def _known(self, facts: list[Fact]) -> list[Fact]:
        """Every fact about the calls of these facts."""
        calls = dict.fromkeys(ref for fact in facts if (ref := fact.slot.call_ref) is not None)
        found: list[Fact] = []
        for together in batched(calls, _TOGETHER, strict=False):
            found += await while_away(partial(self._ledger.read, *together))
        return found

    def wake(self) -> None:
        """Have each client look what is new."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


_seq: Final = attrgetter("seq")
