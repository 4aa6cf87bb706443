"""The one loop that every consumer runs: take, look, react, carry out, acknowledge.

    taken ──► look: read the facts of that call or thread, as of at least the fact that was handed
                │
              react: a pure function says what should exist next
                │
              carry out: append; claim and do the work; set timers. A slot that was taken: look
                  again
                │
    acked ◄── everything that follows from it is in the ledger

The rules of this file:

* A consumer does not act on what just came, but on all that is there. Redelivery, another order, a
  crash between two steps and two copies of the same worker all end in the same facts.
* All that is there: the first look is at what this process has heard of the log, up to the fact
  that was handed and maybe further. Whoever looks again, or is handed what was handed out before,
  looks at the broker. The work behind a claim is done with what was heard up to that claim.
* This is the only place that acknowledges, and it does so last.
* While something is in hand the broker is told so; a worker that falls silent is taken for dead. A
  worker that was silent (paused, cut off) knows it, and lets go of what it had not begun: somebody
  else has it by now. And whoever loses a claim to one who was handed the same has a living rival,
  and leaves the work to them. So a claim that stands without a result, before somebody who is
  handed its cause, is one whose maker has died.
* What has been done is written down, whatever happens: neither a cancelled worker nor a broker that
  is away keeps the result of a tool that ran out of the ledger while this process lives.
* What cannot be handled is parked with its reason, and the others go on. The operator may have it
  tried again, and what a newer program wrote is tried again by the first worker that understands it
  (decision 0017).
* No error in a part of a worker ends it: that part is started again. What only an operator can mend
  ends it.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import structlog
from msgspec import structs

from ayes.consumers.effects import (
    Append,
    CancelTimer,
    Effect,
    HandOn,
    Perform,
    Reload,
    SetTimer,
    WritePending,
)
from ayes.consumers.supervision import kept
from ayes.ledger.log import (
    NEWER,
    AlreadyRecorded,
    Delivered,
    Delivery,
    Mark,
    Parked,
    Recorded,
    SlotTaken,
    TimerFired,
    Unconfirmed,
)
from ayes.ledger.replica import ReadReplica
from ayes.ledger.services import Ledger
from ayes.ledger.subscriptions import ACK_WAIT_S, DURABLES, LEDGER
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import (
    BadSlot,
    BrokerAway,
    BrokerRefused,
    Defect,
    OutcomeUnknown,
    Unavailable,
)
from ayes.schemas.events import Carried, Event
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, Slot, matches

_log: Final = get_logger("ayes.consumers.worker")

#: How often handling may fail in this process before a delivery is parked.
MAX_TRIES: Final = 5
#: Of how many deliveries that failed a worker remembers how often.
_MOST_FAILURES: Final = 10_000
#: How often it may be handed out at all: what kills its worker each time must not do so for ever.
#: Who hands on waits twice as long each time, so that alone does not lead there for days.
MAX_DELIVERIES: Final = 20
#: How often a lost slot makes the loop look again. Each time a fact more is there, so it ends much
#: sooner.
_MAX_LOOKS: Final = 50
#: How long a draining worker lets work in hand go on.
DRAIN_S: Final = 30.0


class Reaction[S, W](Protocol):
    """What a consumer is made of: how to look, what to conclude, and how to do the work it claims.

    `S` is what it looks at, `W` the work. Only `load` and `execute` touch the world.
    """

    @property
    def durables(self) -> tuple[str, ...]: ...

    @property
    def replaces(self) -> bool:
        """Does it overwrite what others wrote? Then it must look at the broker; else what was heard
        is enough to begin with.
        """
        ...

    async def load(self, ledger: Ledger, handed: Delivered) -> S: ...

    def decide(self, seen: S, handed: Delivered) -> Sequence[Effect[W]]:
        """Which steps should follow. Pure: handed the same again, it answers the same."""
        ...

    async def execute(self, ledger: Ledger, work: W) -> Append | None:
        """The work behind a claim; answers with the fact that tells how it went. Does not raise for
        bad luck.

        None: the claim does not count, so nothing was done, and nothing is to be told.

        The ledger shows what was recorded up to the claim, and maybe more.
        """
        ...


class _LetGo(Exception):
    """Neither acknowledged nor handed back: whoever has it will see to it, and if they die it is
    handed out again.
    """


class _HandedOn(Exception):
    """Handed back for another process of the same consumer; not a failure."""

    def __init__(self, step: HandOn) -> None:
        super().__init__(step.why)
        self.after_s = step.after_s


class Worker[S, W]:
    """One reaction, running until it is stopped."""

    def __init__(
        self,
        ledger: Ledger,
        reaction: Reaction[S, W],
        *,
        heard: ReadReplica | None = None,
        concurrency: int = 64,
        ack_wait_s: float = ACK_WAIT_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._ledger = ledger
        self._reaction = reaction
        self._heard = None if reaction.replaces else heard
        self._room = asyncio.Semaphore(concurrency)
        self._lease_s = ack_wait_s
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        #: In hand, and until when (on the event loop's clock) the broker takes us for alive.
        self._held: dict[tuple[str, int], tuple[Delivery, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: How often handling failed here, of what was handed back for it.
        self._failures: dict[tuple[str, int], int] = {}

    def stop(self) -> None:
        """Take nothing more, finish what is in hand, then return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        durables = [
            one
            for durable in self._reaction.durables
            for one in (durable, DURABLES[durable].again.name)
        ]
        pumps = [
            asyncio.create_task(kept(f"taking from {durable}", partial(self._take, durable)))
            for durable in durables
        ]
        beat = asyncio.create_task(kept("heartbeat", self._beat))
        stopping = asyncio.create_task(self._stopping.wait())
        understood = asyncio.create_task(self._ask_again_for_newer())
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

    async def _take(self, durable: str) -> None:
        async with self._ledger.log.deliveries(durable) as deliveries:
            async for delivery in deliveries:
                place = (durable, delivery.number)
                if place in self._held:
                    # handed out again although we still work on it: the heartbeat came too late
                    continue
                self._hold(place, delivery)
                task = asyncio.create_task(self._handle(durable, delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _hold(self, place: tuple[str, int], delivery: Delivery) -> None:
        self._held[place] = (delivery, asyncio.get_running_loop().time() + self._lease_s)

    def _lost(self, place: tuple[str, int]) -> bool:
        return asyncio.get_running_loop().time() > self._held[place][1]

    def _still_ours(self, place: tuple[str, int]) -> None:
        if self._lost(place):
            raise _LetGo("silent for too long, so somebody else has it")

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
        until = asyncio.get_running_loop().time() + self._lease_s
        try:
            await delivery.in_progress()
        except Exception as problem:  # noqa: BLE001 - one that fails must not keep the others from being renewed
            _log.warning("not heard by the broker", problem=str(problem))
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

    async def _handle(self, durable: str, delivery: Delivery) -> None:
        """Settle it and acknowledge; or hand it back, or park it. A task of its own, so what it
        binds for the log is too.
        """
        structlog.contextvars.bind_contextvars(consumer=durable, **_where(delivery.handed))
        try:
            await self._handle_one(durable, delivery)
        except Exception as problem:  # noqa: BLE001 - it is not acknowledged, so it is handed out again
            _log.warning("will be handed out again", problem=f"{type(problem).__name__}: {problem}")

    async def _handle_one(self, durable: str, delivery: Delivery) -> None:
        place = (durable, delivery.number)
        try:
            async with self._room:
                reason = await self._settle(durable, delivery)
        except asyncio.CancelledError:
            raise
        except _LetGo as why:
            _log.warning("let go", why=str(why), tries=delivery.tries)
            return
        except _HandedOn as why:
            _log.info("handed on", why=str(why), after_s=why.after_s, tries=delivery.tries)
            await delivery.retry(why.after_s)
            return
        except Unavailable as problem:
            _log.warning("will be tried again", problem=str(problem), tries=delivery.tries)
            hopeless = isinstance(problem, BrokerRefused) and self._failed(place) >= MAX_TRIES
            reason = str(problem) if hopeless else ""
            if not hopeless:
                await delivery.retry(_backoff_s(delivery.tries))
                return
        except Exception as problem:  # noqa: BLE001 - whatever it is, it must end parked and not here
            _log.exception("could not be handled", tries=delivery.tries)
            if self._failed(place) < MAX_TRIES:
                await delivery.retry(_backoff_s(delivery.tries))
                return
            reason = f"{type(problem).__name__}: {problem}"
        finally:
            self._held.pop(place, None)
        self._failures.pop(place, None)
        if reason:
            await self._park(durable, delivery, reason)
        await delivery.ack()

    def _failed(self, place: tuple[str, int]) -> int:
        """Note that handling it failed here; answers how often it did. What was handed on did not
        fail.
        """
        failures = self._failures.pop(place, 0) + 1
        self._failures[place] = failures
        if len(self._failures) > _MOST_FAILURES:  # settled elsewhere, the oldest of them
            del self._failures[next(iter(self._failures))]
        return failures

    async def _settle(self, durable: str, delivery: Delivery) -> str:
        """Do all that follows. Answers with why it cannot be handled, or with nothing."""
        place = (durable, delivery.number)
        match delivery.handed:
            case Mark() as mark:
                return await self._heed(mark)
            case Parked(state="again") as parked:
                reason = await self._settle_fact(await self._original(parked), delivery, place)
                if not reason:
                    # Outrun by a rival, if the broker took us for dead: then they have noted it.
                    await self._ledger.log.park(structs.replace(parked, state="settled"))
                    _log.info("settled, tried again", subject=parked.subject)
                return reason
            case Parked():
                return ""  # noted, and to be seen to by the operator
            case Fact() | TimerFired() as handed:
                return await self._settle_fact(handed, delivery, place)

    async def _settle_fact(
        self, handed: Delivered, delivery: Delivery, place: tuple[str, int]
    ) -> str:
        if isinstance(handed, Fact) and isinstance(handed.event, Carried):
            return (
                handed.event.problem or f"a {handed.event.type} of version {handed.event.v} {NEWER}"
            )
        if delivery.tries > MAX_DELIVERIES:
            return f"handed out {delivery.tries} times, never settled"
        ledger = self._as_of(handed.seq) if _is_new(delivery) else self._ledger
        for _ in range(_MAX_LOOKS):
            self._still_ours(place)
            seen = await self._reaction.load(ledger, handed)
            # Once more: had we fallen silent before that look, what it shows might be a living
            # rival's work.
            self._still_ours(place)
            steps = self._reaction.decide(seen, handed)
            if await self._carry_out(steps, handed):
                return ""
            ledger = self._ledger
        raise Defect(
            f"the facts about {_where(handed)} kept changing while they were looked at; please "
            "report it"
        )

    def _as_of(self, seq: int) -> Ledger:
        """The ledger as this process has heard it, at least up to that fact."""
        return (
            self._ledger
            if self._heard is None
            else self._ledger.reading_from(self._heard.as_of(seq))
        )

    async def _carry_out(self, steps: Sequence[Effect[W]], handed: Delivered) -> bool:
        """Take the steps in their order; False when one lost to somebody else, so that we look
        again.
        """
        cause = (
            handed.event if isinstance(handed, Fact) and isinstance(handed.event, Event) else None
        )
        for step in steps:
            match step:
                case Append():
                    won = await self._won(step, cause) is not None
                case Perform(claim, work):
                    claimed = await self._won(claim, cause)
                    won = claimed is not None
                    if claimed is not None:
                        await self._perform(work, cause, claimed)
                case SetTimer(call, at):
                    won = True
                    await self._ledger.log.set_timer(call, at)
                case CancelTimer(call):
                    won = True
                    await self._ledger.log.cancel_timer(call)
                case Reload():
                    won = False
                case HandOn():
                    raise _HandedOn(step)
                case WritePending(key, value, replaces):
                    pending = self._ledger.log.pending
                    won = await (
                        pending.put(key, value, replaces)
                        if value
                        else pending.delete(key, replaces)
                    )
            if not won:
                return False
        return True

    async def _won(self, step: Append, cause: Event | None) -> int | None:
        """Append; as which fact of the log, or None when somebody else was first."""
        match await self._ledger.append(
            step.slot, step.event, cause=cause, fallback_slot=step.fallback_slot
        ):
            case Recorded(seq) | AlreadyRecorded(seq):
                return seq
            case SlotTaken(first):
                if _is_claim(step.slot) and _same_cause(first.event, cause):
                    raise _LetGo("a rival who was handed the same has just claimed it")
                return None
            case Unconfirmed(why):
                raise OutcomeUnknown(f"{step.slot.subject} may or may not be recorded: {why}")

    async def _perform(self, work: W, cause: Event | None, claimed: int) -> None:
        """Do the work, then write down how it went, for as long as it takes."""
        done = await self._reaction.execute(self._as_of(claimed), work)
        if done is None:
            return
        first = await self._ledger.append_until_acknowledged(
            done.slot, done.event, cause=cause, fallback_slot=done.fallback_slot
        )
        if first is not None:
            _log.warning(
                "came late, kept apart", slot=done.slot.subject, first=type(first.event).__name__
            )

    async def _park(self, durable: str, delivery: Delivery, reason: str) -> None:
        now, newer = self._ledger.now(), reason.endswith(NEWER)
        match delivery.handed:
            case Mark() as mark:
                _log.error(
                    "what the operator said was not heeded", number=mark.number, reason=reason
                )
                return
            case Parked() as again:
                tries = again.tries + delivery.tries
                parked = structs.replace(
                    again, state="parked", reason=reason, tries=tries, parked_at=now, newer=newer
                )
            case TimerFired(call, seq):
                parked = Parked(durable, seq, str(call), reason, delivery.tries, now)
            case Fact(seq, _, slot):
                parked = Parked(
                    durable, seq, slot.subject, reason, delivery.tries, now, newer=newer
                )
        _log.error("parked", reason=reason, subject=parked.subject)
        await self._ledger.log.park(parked)

    # ------------------------------------------------------------------------------ what was parked

    async def _heed(self, mark: Mark) -> str:
        """Do what the operator says of a parked delivery: it is handed out again, to one worker at
        a time.
        """
        parked = await self._ledger.log.parked_at(mark.number)
        if parked is None or parked.state != "parked" or parked.consumer != mark.consumer:
            return ""  # it has changed since: it is being tried again already, or is settled
        _log.info(
            f"the operator says {mark.what}",
            number=mark.number,
            fact=parked.seq,
            reason=mark.reason,
        )
        if mark.what == "retry":
            await self._ledger.log.park(structs.replace(parked, state="again"))
        return ""

    async def _original(self, parked: Parked) -> Delivered:
        """What was handed out when it was parked: the fact as the log has it, or the hint about a
        call.
        """
        consumer = DURABLES[parked.consumer]
        if consumer.stream != LEDGER:
            return TimerFired(CallRef.parse(parked.subject), parked.seq, parked.parked_at)
        raw = await self._ledger.log.at(parked.seq)
        if raw is None:
            raise BrokerAway(f"fact {parked.seq} cannot be read just now")
        if not any(matches(pattern, raw.subject) for pattern in consumer.subjects):
            raise BadSlot(
                f"fact {parked.seq} ({raw.subject}) is not for consumer {parked.consumer}"
            )
        return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)

    async def _ask_again_for_newer(self) -> None:
        """What an older program parked, since it did not understand it, is tried again if this one
        does.
        """
        try:
            for durable in self._reaction.durables:
                await kept(
                    f"looking at what {durable} parked", partial(self._ask_again_for, durable)
                )
        except BrokerRefused as problem:
            _log.warning("what was parked is not looked at", problem=str(problem))

    async def _ask_again_for(self, durable: str) -> None:
        for parked in await self._ledger.log.parked(durable):
            if parked.is_newer and parked.state == "parked" and parked.mark is None:
                handed = await self._original(parked)
                if isinstance(handed, Fact) and isinstance(handed.event, Event):
                    # Of several workers that start, one wins.
                    await self._ledger.log.park(structs.replace(parked, state="again"))


def _is_new(delivery: Delivery) -> bool:
    """May the first look be at what was heard?

    What is handed out again was begun by somebody, and what became of that is not known from
    hearing; a timer is of another stream than the facts.
    """
    return delivery.tries == 1 and isinstance(delivery.handed, Fact)


def _is_claim(slot: Slot) -> bool:
    """Is it a slot whose taker alone goes on: a call's claim, or a model's turn?"""
    return not {"claim", "asked"}.isdisjoint(slot.tail[:-1])


def _same_cause(event: Event | Carried, cause: Event | None) -> bool:
    return isinstance(event, Event) and cause is not None and event.cause == cause.id


def _where(handed: Delivered | Parked | Mark) -> dict[str, object]:
    """Workspace, thread, call and sequence, for the log."""
    if isinstance(handed, Mark):
        return {"number": handed.number}
    if isinstance(handed, Parked):
        return {"number": handed.number, "seq": handed.seq}
    if isinstance(handed, TimerFired):
        return {"call": str(handed.call), "seq": handed.seq}
    slot, ref = handed.slot, handed.slot.call_ref
    place = {"call": ref.call} if ref else {}
    return {"workspace": slot.workspace, "thread": slot.thread, **place, "seq": handed.seq}


def _backoff_s(tries: int) -> float:
    return float(min(30.0, 0.2 * 2**tries))
