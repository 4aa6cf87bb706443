"""The loop that every worker runs: receive, load, decide, execute, acknowledge.

    received ──► load: read the facts of that call or thread, at least up to the delivered fact
                   │
                 decide: a pure function returns the effects that should follow
                   │
                 execute: append; claim and do the work; set timers. If a slot was taken: load again
                   │
    acked    ◄── everything that follows is in the ledger

The rules of this file:

* A worker does not act on the delivered fact alone, but on all recorded facts. Redelivery, another
  order, a crash between two steps and two copies of one worker all end in the same facts.
* On first delivery, facts are loaded from the local replica, caught up to the delivered fact, and
  after a fact of its own, caught up to that. On redelivery, and after losing a slot, they are
  loaded from the broker. Claimed work is done with the replica caught up to the claim.
* Only this file acknowledges, and it does so last.
* While a delivery is in progress the broker is notified; a worker that falls silent is presumed
  dead. A worker that was silent (paused, cut off) notices and abandons work that it had not begun,
  since another worker has it by now. If we lose a claim to a worker that received the same
  delivery, that worker is alive: we leave the work to it. So a claim without a result, seen on
  redelivery, belongs to a worker that has died.
* An acknowledged claim is ours if the fact in its slot is that very event. What else could have
  filled it: whoever answered in the broker's place, or a log that was restored meanwhile.
* A result is always recorded: while this process lives, neither cancellation nor a broker that is
  away keeps the result of a tool that ran out of the ledger.
* A delivery that cannot be handled is parked with its reason, and the others continue. The operator
  may have it retried; a delivery parked because a newer program wrote it is retried by the first
  worker that understands it (decision 0017, newer.py).
* An error in one part of a worker does not end it: that part is restarted. Only an error that an
  operator must fix ends it.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol
from zlib import crc32

import structlog
from msgspec import structs

from ayes.consumers.effects import (
    Append,
    CancelTimer,
    Effect,
    GivenUp,
    HandedOn,
    HandOn,
    Perform,
    Reload,
    SetTimer,
    WritePending,
)
from ayes.consumers.newer import NewerFacts, reads_more, why_newer, with_later
from ayes.consumers.supervision import keep_running
from ayes.ledger import tracing
from ayes.ledger.clients.client import is_same_event
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import (
    NEWER,
    AlreadyRecorded,
    Delivered,
    Delivery,
    FactReader,
    Mark,
    Overtaken,
    Parked,
    Recorded,
    SlotTaken,
    TimerFired,
    Unconfirmed,
)
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import ACK_WAIT_S, DURABLES, LEDGER, kind_of
from ayes.ledger.tool_runner import not_recorded
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import (
    BadInput,
    BadSlot,
    BrokerRefused,
    Defect,
    LogDamaged,
    OutcomeUnknown,
    Unavailable,
)
from ayes.schemas.events import VERSION, Carried, Event
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, Slot, matches

_log: Final = get_logger("ayes.consumers.worker")

#: Deliveries of one consumer that a worker works on at a time.
CONCURRENCY: Final = 64
#: Failures in this process after which a delivery is parked.
MAX_TRIES: Final = 5
#: Deliveries whose failures a worker remembers.
_MAX_FAILURES: Final = 10_000
#: Facts that no program can read, of which each worker parks so many of a consumer. Whoever writes
#: more would take all places of parked deliveries, and then hold up the consumer.
_MAX_UNREADABLE: Final = 100
#: Deliveries after which it is parked in any case, since it may kill its worker each time, unless
#: its consumer allows more (`Durable.max_deliveries`). Handing it on doubles the wait each time, so
#: that alone does not reach this for days.
MAX_DELIVERIES: Final = 20
#: Loads for one delivery. After each lost slot there is one more fact, so it ends much sooner.
_MAX_LOADS: Final = 50
#: Loads without a pause. Each later load has one, up to a limit that doubles each time: if many
#: deliveries compete for the slots of a series, all but one have to read it again.
_HURRIED_LOADS: Final = 4
_LOADS: Final = Backoff(0.05, 2.0)
#: The pauses before a delivery comes again.
RETRIES: Final = Backoff(0.4, 30.0)
#: How long a draining worker waits for work in progress.
DRAIN_S: Final = 30.0


class Reaction[S, W](Protocol):
    """How a worker loads state `S`, what it decides, and how it does the work `W` that it claims.

    Only `load` and `execute` do I/O.
    """

    @property
    def durables(self) -> tuple[str, ...]: ...

    @property
    def replaces(self) -> bool:
        """Whether it overwrites what others wrote. Then it always loads from the broker."""
        ...

    async def load(self, ledger: Ledger, handed: Delivered) -> S: ...

    def decide(self, seen: S, handed: Delivered) -> Sequence[Effect[W]]:
        """Returns the effects that should follow. Pure: the same input gives the same answer."""
        ...

    async def execute(self, ledger: Ledger, work: W) -> Append | None:
        """Does the work behind a claim and returns the fact that records its outcome. A failure of
        the work is an outcome and not an exception.

        `None` if the claim does not count: then nothing was done, and nothing is recorded. Work
        without a claim may have nothing to record either.

        `ledger` shows the facts up to the claim, and possibly later ones. Reading from it ends the
        work if the claim's slot has another fact. For work without a claim it is the broker.

        Raises:
            GivenUp: work without a claim failed as often as it may.
        """
        ...


class _Abandoned(Exception):
    """Neither acknowledged nor returned: another worker has the delivery, and if that one dies it
    is delivered again.
    """


class _NotClaimed(Exception):
    """Another fact is in the slot of a claim that was acknowledged. Nothing was done."""

    def __init__(self, first: Fact) -> None:
        super().__init__(f"another fact is in {first.slot.subject}")
        self.first = first


class _OwnClaim:
    """Reads facts for the work behind a claim, and refuses if another is in the claim's slot."""

    def __init__(self, source: FactReader, claim: Append) -> None:
        self._source, self._claim = source, claim
        self.latest = source.latest

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        facts = await self._source.read(*subjects)
        for fact in facts:
            if fact.slot == self._claim.slot and not is_same_event(fact, self._claim.event):
                raise _NotClaimed(fact)
        return facts


class Worker[S, W]:
    """Runs one reaction until it is stopped."""

    def __init__(
        self,
        ledger: Ledger,
        reaction: Reaction[S, W],
        *,
        replica: ReadReplica | None = None,
        concurrency: int = CONCURRENCY,
        ack_wait_s: float = ACK_WAIT_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._ledger = ledger
        self._reaction = reaction
        self._replica = None if reaction.replaces else replica
        #: By consumer, so that none waits behind another's.
        self._rooms = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(concurrency))
        self._lease_s = min(
            (DURABLES[durable].ack_wait_s(ack_wait_s) for durable in reaction.durables),
            default=ack_wait_s,
        )
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        #: Why it stops: what cannot be read must not be taken for what is not there.
        self._damage: LogDamaged | None = None
        #: Deliveries in progress, and when (on the event loop's clock) their lease ends.
        self._held: dict[tuple[str, int], tuple[Delivery, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Failures in this process, by delivery.
        self._failures: dict[tuple[str, int], int] = {}
        #: By consumer: facts that no program can read.
        self._unreadable: Counter[str] = Counter()
        self._newer = NewerFacts(ledger, self._note)

    def stop(self) -> None:
        """Take no more deliveries, finish those in progress, then return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        durables = [
            one
            for durable in self._reaction.durables
            for one in (durable, DURABLES[durable].again.name)
        ]
        pumps = [
            asyncio.create_task(
                keep_running(f"taking from {durable}", partial(self._take, durable))
            )
            for durable in durables
        ]
        beat = asyncio.create_task(keep_running("heartbeat", self._beat))
        stopping = asyncio.create_task(self._stopping.wait())
        understood = asyncio.create_task(self._retry_newer())
        try:
            done, _ = await asyncio.wait(
                [*pumps, beat, stopping], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done - {stopping}:
                task.result()  # a pump never ends by itself; if it fails, so does the worker
        finally:
            for task in (*pumps, stopping, understood):
                task.cancel()
            await asyncio.gather(*pumps, stopping, understood, return_exceptions=True)
            await self._drain()
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
        if self._damage is not None:
            raise self._damage

    async def _take(self, durable: str) -> None:
        async with self._ledger.log.deliveries(durable) as deliveries:
            async for delivery in deliveries:
                place = (durable, delivery.number)
                if place in self._held:
                    continue  # delivered again while in progress: the heartbeat came too late
                self._held[place] = (delivery, self._lease_end())
                task = asyncio.create_task(self._handle(place, delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _lease_end(self) -> float:
        return asyncio.get_running_loop().time() + self._lease_s

    def _lost(self, place: tuple[str, int]) -> bool:
        return asyncio.get_running_loop().time() > self._held[place][1]

    def _check_lease(self, place: tuple[str, int]) -> None:
        if self._lost(place):
            raise _Abandoned("silent for too long, so another worker has it")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            held = [
                (place, delivery)
                for place, (delivery, _) in self._held.items()
                if not self._lost(place)
            ]
            await asyncio.gather(*(self._renew(place, delivery) for place, delivery in held))

    async def _renew(self, place: tuple[str, int], delivery: Delivery) -> None:
        until = self._lease_end()
        try:
            await delivery.in_progress()
        except Exception as problem:  # noqa: BLE001 - the others must still be renewed
            _log.warning("the broker cannot be reached", problem=str(problem))
            return
        if place in self._held and self._held[place][0] is delivery:
            self._held[place] = (delivery, until)

    async def _drain(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._drain_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # --------------------------------------------------------------------------------- one delivery

    async def _handle(self, place: tuple[str, int], delivery: Delivery) -> None:
        """Settles the delivery and acknowledges it; or returns it, or parks it.

        It runs as a task of its own, so the log context that it binds is its own too.
        """
        structlog.contextvars.bind_contextvars(consumer=place[0], **_where(delivery.handed))
        try:
            await self._handle_one(place, delivery)
        except Exception as problem:  # noqa: BLE001 - without an ack it is delivered again
            _log.warning("will be delivered again", problem=f"{type(problem).__name__}: {problem}")

    async def _handle_one(self, place: tuple[str, int], delivery: Delivery) -> None:
        try:
            async with self._rooms[DURABLES[place[0]].origin]:
                reason = await self._settle(place, delivery)
        except _Abandoned as why:
            _log.warning("abandoned", why=str(why), tries=delivery.tries)
            return
        except HandedOn as why:
            _log.info("handed on", why=str(why), after_s=why.after_s, tries=delivery.tries)
            await delivery.retry(why.after_s)
            return
        except GivenUp as why:
            reason = str(why)
        except LogDamaged as problem:
            self._damage = problem
            self.stop()
            return
        except Unavailable as problem:
            _log.warning("will be tried again", problem=str(problem), tries=delivery.tries)
            if not isinstance(problem, BrokerRefused) or self._failed(place) < MAX_TRIES:
                await delivery.retry(RETRIES.pause_s(delivery.tries))
                return
            reason = str(problem)
        except Exception as problem:  # noqa: BLE001 - a delivery may fail in any way; it ends parked
            _log.exception("could not be handled", tries=delivery.tries)
            if self._failed(place) < MAX_TRIES:
                await delivery.retry(RETRIES.pause_s(delivery.tries))
                return
            reason = f"{type(problem).__name__}: {problem}"
        finally:
            self._held.pop(place, None)
        self._failures.pop(place, None)
        if reason:
            try:
                await self._park(place[0], delivery, reason)
            except Unavailable as problem:
                # It stays with the broker, whose monitor counts what is in hand.
                _log.error("cannot be parked, will be tried again", problem=str(problem))
                await delivery.retry(RETRIES.pause_s(delivery.tries))
                return
        await delivery.ack()

    def _failed(self, place: tuple[str, int]) -> int:
        """Counts a failure of this delivery here, and returns their number."""
        failures = self._failures.pop(place, 0) + 1
        self._failures[place] = failures
        if len(self._failures) > _MAX_FAILURES:  # the oldest was settled elsewhere
            del self._failures[next(iter(self._failures))]
        return failures

    async def _settle(self, place: tuple[str, int], delivery: Delivery) -> str:
        """Does everything that follows. Returns why that is impossible, or an empty string."""
        match delivery.handed:
            case Mark() as mark:
                return await self._obey(mark)
            case Parked(state="again") as parked:
                left = await self._newer.deliver_again(parked) if parked.known else ""
                handed = await self._original(parked)
                reason = await self._settle_fact(handed, delivery, place) or left
                if reason and parked.known:
                    return with_later(reason)
                if not reason:
                    # If the broker presumed us dead, another worker may have noted it already.
                    await self._ledger.log.park(structs.replace(parked, state="settled"))
                    _log.info("settled, tried again", subject=parked.subject)
                return reason
            case Parked():
                return ""  # it waits for the operator
            case Fact(slot=slot) if slot.is_surplus:
                return ""  # a login may record any number of them, so none is worth a reading
            case Fact(event=Carried(problem=str(problem))) if problem:
                return self._void(place[0], problem)
            case Fact(event=Carried()) as newer:
                await self._newer.put_aside(place[0], newer, delivery.tries)
                return ""
            case Fact() | TimerFired() as handed:
                return await self._settle_fact(handed, delivery, place)

    def _void(self, durable: str, problem: str) -> str:
        """Why a fact that no program can read is parked; empty if so many are parked already."""
        self._unreadable[durable] += 1
        if (count := self._unreadable[durable]) == _MAX_UNREADABLE + 1:
            _log.error("more facts cannot be read, and are not parked", problem=problem)
        return problem if count <= _MAX_UNREADABLE else ""

    async def _settle_fact(
        self, handed: Delivered, delivery: Delivery, place: tuple[str, int]
    ) -> str:
        return await tracing.processing(
            self._ledger.author.kind,
            place[0],
            handed,
            delivery.tries,
            self._settle_traced(handed, delivery, place),
            expected=(_Abandoned, HandedOn),
        )

    async def _settle_traced(
        self, handed: Delivered, delivery: Delivery, place: tuple[str, int]
    ) -> str:
        if isinstance(handed, Fact) and isinstance(handed.event, Carried):
            return handed.event.problem or why_newer(handed)
        if DURABLES[place[0]].only_again and delivery.tries == 1:
            return ""
        if delivery.tries > max(MAX_DELIVERIES, DURABLES[place[0]].max_deliveries):
            return f"delivered {delivery.tries} times, never settled"
        ledger = self._as_of(handed.seq) if _is_first(delivery) else self._ledger
        for load in range(_MAX_LOADS):
            if load >= _HURRIED_LOADS:
                await asyncio.sleep(_pause_s(place, load))
            self._check_lease(place)
            seen = await self._reaction.load(ledger, handed)
            # Again: had the lease ended before that load, it might show a living worker's claim.
            self._check_lease(place)
            if load == 0 and await self._newer.was_handled(delivery, handed):
                return ""
            steps = self._reaction.decide(seen, handed)
            again = await self._carry_out(steps, handed)
            if again is None:
                return ""
            ledger = again
        raise Defect(
            f"the facts about {_where(handed)} kept changing while they were read; please report it"
        )

    def _as_of(self, seq: int) -> Ledger:
        """The ledger as the replica shows it, at least up to that fact."""
        if self._replica is None:
            return self._ledger
        return self._ledger.reading_from(self._replica.as_of(seq))

    async def _carry_out(self, steps: Sequence[Effect[W]], handed: Delivered) -> Ledger | None:
        """Takes the steps in order. Returns the ledger to load again from, if we have to."""
        cause = _cause(handed)
        for is_unclaimed, together in groupby(steps, _is_unclaimed):
            if is_unclaimed:
                await self._perform_together(together, cause)
            elif (again := await self._take_steps(together, handed, cause)) is not None:
                return again
        return None

    async def _take_steps(
        self, steps: Iterable[Effect[W]], handed: Delivered, cause: Event | None
    ) -> Ledger | None:
        again = self._ledger
        for step in steps:
            match step:
                case Append():
                    if (appended := await self._won(step, cause)) is None:
                        return self._ledger
                    again = self._as_of(appended)
                case Perform(claim, work):
                    assert claim, "work without a claim is done together"
                    event = self._ledger.with_envelope(claim.event, cause)
                    claim = structs.replace(claim, event=event)
                    if (claimed := await self._won(claim, cause)) is None:
                        return self._ledger
                    ledger = self._as_of(claimed)
                    try:
                        own = ledger.reading_from(_OwnClaim(ledger.reading, claim))
                        await self._perform(work, cause, own)
                    except _NotClaimed as why:
                        _check_others(claim.slot, why.first, cause)
                        return self._ledger
                case SetTimer(call, at):
                    trace = tracing.continued(tracing.trace_of(handed))
                    await self._ledger.log.set_timer(call, at, trace)
                case CancelTimer(call):
                    await self._ledger.log.cancel_timer(call)
                case Reload():
                    return again
                case HandOn():
                    raise HandedOn(step)
                case WritePending(key, b"", replaces):
                    if not await self._ledger.log.pending.delete(key, replaces):
                        return self._ledger
                case WritePending(key, value, replaces):
                    if not await self._ledger.log.pending.put(key, value, replaces):
                        return self._ledger
        return None

    async def _won(self, step: Append, cause: Event | None) -> int | None:
        """Appends a fact. Returns its number in the log, or None to load again."""
        match await self._ledger.append(
            step.slot,
            step.event,
            cause=cause,
            fallback_slot=step.fallback_slot,
            after=step.after,
        ):
            case Recorded(seq) | AlreadyRecorded(seq):
                return seq
            case SlotTaken(first):
                _check_others(step.slot, first, cause)
                return None
            case Overtaken():
                return None
            case Unconfirmed(why):
                raise OutcomeUnknown(f"{step.slot.subject} may or may not be recorded: {why}")

    async def _perform_together(self, steps: Iterable[Effect[W]], cause: Event | None) -> None:
        """Does the work of all, each for itself. Raises a failure once all of them have ended."""
        results = await asyncio.gather(
            *(
                self._perform(step.work, cause, self._ledger)
                for step in steps
                if isinstance(step, Perform)
            ),
            return_exceptions=True,
        )
        failures = [one for one in results if one is not None]
        # What may succeed when it is delivered again comes before what was given up.
        for failure in sorted(failures, key=lambda one: isinstance(one, GivenUp)):
            raise failure

    async def _perform(self, work: W, cause: Event | None, ledger: Ledger) -> None:
        """Does the work, then records the outcome, retrying for as long as it takes."""
        done = await self._reaction.execute(ledger, work)
        if done is None:
            return
        try:
            first = await self._record(done, cause)
        except BadInput as problem:
            said = not_recorded(done.event, problem)
            first = await self._record(structs.replace(done, event=said), cause)
        if first is not None:
            _log.warning(
                "came late, kept apart", slot=done.slot.subject, first=type(first.event).__name__
            )

    async def _record(self, done: Append, cause: Event | None) -> Fact | None:
        return await self._ledger.append_until_acknowledged(
            done.slot, done.event, cause=cause, fallback_slot=done.fallback_slot
        )

    async def _park(self, durable: str, delivery: Delivery, reason: str) -> None:
        now = self._ledger.now()
        match delivery.handed:
            case Mark() as mark:
                _log.error("the operator's mark failed", number=mark.number, reason=reason)
                return
            case Parked() as again:
                tries = again.tries + delivery.tries
                parked = structs.replace(
                    again,
                    state="parked",
                    reason=reason,
                    tries=tries,
                    parked_at=now,
                    newer=reason.endswith(NEWER),
                    known=VERSION if again.known else {},
                )
            case TimerFired(call, seq):
                parked = Parked(durable, seq, str(call), reason, delivery.tries, now)
            case Fact(seq, _, slot):
                parked = Parked(durable, seq, slot.subject, reason, delivery.tries, now)
        await self._note(parked)

    async def _note(self, parked: Parked) -> None:
        _log.error("parked", reason=parked.reason, subject=parked.subject)
        await self._ledger.log.park(parked)

    # --------------------------------------------------------------------------- parked deliveries

    async def _obey(self, mark: Mark) -> str:
        """Carries out the operator's mark on a parked delivery, unless it has changed since."""
        parked = await self._ledger.log.parked_at(mark.number)
        if parked is None or parked.state != "parked" or parked.consumer != mark.consumer:
            return ""
        _log.info(
            "the operator has marked it",
            mark=mark.what,
            number=mark.number,
            fact=parked.seq,
            reason=mark.reason,
        )
        if mark.what == "retry":
            await self._ledger.log.park(structs.replace(parked, state="again"))
        return ""

    async def _original(self, parked: Parked) -> Delivered:
        """The fact or timer that was parked, as it was delivered."""
        consumer = DURABLES[kind_of(parked.consumer)]
        if consumer.stream != LEDGER:
            return TimerFired(CallRef.parse(parked.subject), parked.seq, parked.parked_at)
        raw = await self._ledger.log.at(parked.seq)
        if raw is None:
            raise LogDamaged(f"fact {parked.seq:,} was delivered and cannot be read")
        if not any(matches(pattern, raw.subject) for pattern in consumer.subjects):
            raise BadSlot(
                f"fact {parked.seq} ({raw.subject}) is not for consumer {parked.consumer}"
            )
        return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data, raw.first)

    async def _retry_newer(self) -> None:
        """Retries deliveries that an older program parked and that this one understands."""
        try:
            for durable in self._reaction.durables:
                await keep_running(
                    f"retrying what {durable} parked", partial(self._retry_newer_of, durable)
                )
        except BrokerRefused as problem:
            _log.warning("the parked deliveries cannot be read", problem=str(problem))

    async def _retry_newer_of(self, durable: str) -> None:
        for parked in await self._ledger.log.parked(durable):
            if parked.is_newer and parked.is_waiting:
                handed = await self._original(parked)
                is_read = isinstance(handed, Fact) and isinstance(handed.event, Event)
                if reads_more(parked.known) if parked.known else is_read:
                    # If several workers start at once, one of them wins.
                    await self._ledger.log.park(structs.replace(parked, state="again"))


def _is_first(delivery: Delivery) -> bool:
    """Whether to load from the replica.

    After a redelivery the replica may lack what another worker has begun; and a timer is in a
    stream of its own, so its number says nothing about the facts.
    """
    return delivery.tries == 1 and isinstance(delivery.handed, Fact)


def _cause(handed: Delivered) -> Event | None:
    """The event that what follows reacts to. A timer is none, but passes on its trace context."""
    if isinstance(handed, TimerFired):
        return Event(trace=handed.trace)
    return handed.event if isinstance(handed.event, Event) else None


def _is_unclaimed(step: Effect[Any]) -> bool:
    return isinstance(step, Perform) and step.claim is None


def _is_claim(slot: Slot) -> bool:
    """Whether only the worker that fills the slot continues: a call's claim, or a model's turn."""
    return not {"claim", "asked"}.isdisjoint(slot.tail[:-1])


def _check_others(slot: Slot, first: Fact, cause: Event | None) -> None:
    """Leave the work to the worker whose fact is in the slot of our claim, if it is alive.

    Raises:
        _Abandoned: it is.
    """
    event = first.event
    is_of_same = isinstance(event, Event) and cause is not None and event.cause == cause.id
    if _is_claim(slot) and is_of_same:
        raise _Abandoned("another worker with the same delivery has just claimed it")


def _where(handed: Delivered | Parked | Mark) -> dict[str, object]:
    """Workspace, thread, call and sequence, for log lines."""
    if isinstance(handed, Mark):
        return {"number": handed.number}
    if isinstance(handed, Parked):
        return {"number": handed.number, "seq": handed.seq}
    if isinstance(handed, TimerFired):
        return {"call": str(handed.call), "seq": handed.seq}
    slot, ref = handed.slot, handed.slot.call_ref
    place = {"call": ref.call} if ref else {}
    return {"workspace": slot.workspace, "thread": slot.thread, **place, "seq": handed.seq}


def _pause_s(place: tuple[str, int], load: int) -> float:
    """A pause before a load, different for each delivery, so that they do not collide again."""
    most = _LOADS.pause_s(load - _HURRIED_LOADS + 1)
    return most * crc32(f"{place} {load}".encode()) / 2**32
