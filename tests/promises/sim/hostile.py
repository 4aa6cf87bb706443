"""A hostile broker: the log in memory, and what may happen between it and each of its clients.

`Memory` is the broker and always right. `Broker` delays, repeats and reorders its deliveries. A
`Process` is one program: between any two of its awaits it may be killed, paused or cut off. And a
`Connection` is the log as one process sees it, by decision 0026: a replica that is behind may
answer a read, a request or its answer may be lost, and a fact whose outcome is unknown may still
arrive seconds later.

With `CALM` it behaves like the log in memory, and is held to the same tests
(`tests/ledger/test_log.py`).
"""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.in_memory import Lagging, Memory
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    Bucket,
    Change,
    Delivered,
    Delivery,
    Mark,
    Overtaken,
    Parked,
    Progress,
    RawMessage,
    Recorded,
    SlotTaken,
    Unconfirmed,
    Written,
)
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import ROOT, CallRef, Slot

#: How long a request without an answer is waited for.
PATIENCE_S = 5.0
#: The most facts that a replica is behind.
_MAX_BEHIND = 40


class Hostility(Struct, frozen=True):
    """What goes wrong, as shares (0 to 1) of the requests or deliveries, and for how long."""

    #: The longest latency of a request or an answer.
    latency_s: float = 0.0
    #: A request that does not reach the broker.
    lost: float = 0.0
    #: An answer that does not reach the client.
    unanswered: float = 0.0
    #: Of the appends without an answer: those that arrive later.
    later: float = 0.0
    #: A read that a replica answers which is behind.
    stale: float = 0.0
    #: A read after which that replica answers for a while, and gets nothing new.
    lagging: float = 0.0
    #: An acknowledgement of a delivery that is lost.
    unacked: float = 0.0
    #: A delivery that comes twice at once, or after others.
    twice: float = 0.0
    reordered: float = 0.0


CALM = Hostility()
HOSTILE = Hostility(
    latency_s=0.02,
    lost=0.01,
    unanswered=0.02,
    later=0.5,
    stale=0.3,
    lagging=0.06,
    unacked=0.02,
    twice=0.05,
    reordered=0.1,
)


class Broker(Memory):
    """The log in memory with hostile deliveries, and the kinds of trouble for its clients."""

    def __init__(
        self,
        seed: str,
        hostility: Hostility,
        *,
        now: clock.Clock = clock.now,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        super().__init__(now=now, ack_wait_s=ack_wait_s)
        self.seed = seed
        self.hostility = hostility
        self._lot = random.Random(f"{seed}/broker")
        for durable in self._durables.values():
            durable.waiting = _HostileQueue(self, self._lot)
        self._arriving: set[asyncio.Task[object]] = set()
        #: Whether the world ends, and its tasks may be cancelled.
        self.is_over = False

    def arrive(self, append: Callable[[], Awaitable[object]], wait_s: float) -> None:
        """Let an append take effect later, although nobody waits for it any more."""

        async def arriving() -> object:
            await asyncio.sleep(wait_s)
            return await append()

        task = asyncio.create_task(arriving())
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)


class _HostileQueue(asyncio.Queue[Any]):
    """Deliveries on their way: some come twice, some after later ones."""

    def __init__(self, broker: Broker, lot: random.Random) -> None:
        super().__init__()
        self._broker, self._lot = broker, lot

    def put_nowait(self, item: Any) -> None:
        how, loop = self._broker.hostility, asyncio.get_running_loop()
        if self._lot.random() < how.twice:
            loop.call_later(self._lot.uniform(0, 5), super().put_nowait, item)
        if self._lot.random() < how.reordered:
            loop.call_later(self._lot.uniform(0, 5), super().put_nowait, item)
        else:
            super().put_nowait(item)


class Process:
    """One program and its fate. Everything that it does outside of itself goes through `step`."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.lot = random.Random(f"{broker.seed}/{name}")
        self.is_alive = True
        #: On the event loop's clock.
        self.paused_until = 0.0
        self.cut_until = 0.0
        #: Kept, since a task that nobody refers to would be collected at some moment or other.
        self._stuck: list[asyncio.Future[None]] = []

    def kill(self) -> None:
        """As `kill -9`: what it awaits never returns."""
        self.is_alive = False

    async def step(self) -> None:
        """Go on, unless the process is paused or dead. Then no time limit of it passes either."""
        late: asyncio.CancelledError | None = None
        # It may be paused again meanwhile, and no event tells when.
        while not self.is_alive or self.paused_until > _now_s():
            try:
                if self.is_alive:
                    await asyncio.sleep(self.paused_until - _now_s())
                else:
                    self._stuck.append(never := asyncio.get_running_loop().create_future())
                    await never
            except asyncio.CancelledError as cancelled:
                late = cancelled
                if self.broker.is_over:
                    break
        if late is not None:
            raise late

    async def sleep(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        await self.step()

    @property
    def is_cut_off(self) -> bool:
        return self.cut_until > _now_s()

    async def reconnected(self) -> None:
        """Wait until it is not cut off."""
        while self.is_cut_off:  # noqa: ASYNC110 - as in `step`
            await asyncio.sleep(self.cut_until - _now_s())
        await self.step()

    async def travel(self) -> None:
        """The latency of a message, after which the process may be dead."""
        if (most := self.broker.hostility.latency_s) > 0:
            await asyncio.sleep(self.lot.uniform(0, most))
        await self.step()

    def happens(self, share: float) -> bool:
        return share > 0 and self.lot.random() < share

    async def ask[T](self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request and return its answer, if both arrive.

        Raises:
            BrokerAway: no answer came. The request may have been carried out.
        """
        await self.travel()
        if self.is_cut_off or self.happens(self.broker.hostility.lost):
            await self.sleep(self.lot.uniform(0.1, PATIENCE_S))
            raise BrokerAway("no answer came (the request was lost).")
        answer = await request()
        await self.travel()
        if self.is_cut_off or self.happens(self.broker.hostility.unanswered):
            await self.sleep(self.lot.uniform(0.1, PATIENCE_S))
            raise BrokerAway("no answer came (the answer was lost).")
        return answer


class Connection(Lagging):
    """The log as one process sees it.

    Args:
        told: called with each append and its answer, once the process has it.
    """

    def __init__(
        self,
        process: Process,
        told: Callable[[Slot, str, bytes, AppendResult], None] = lambda *_: None,
    ) -> None:
        super().__init__(process.broker, process.lot)
        self.broker = process.broker
        self.process = process
        self._told = told
        #: The last fact of a replica that is behind, and until when it answers.
        self._lagging = (0, 0.0)
        self.pending = _Bucket(process, process.broker.pending)
        self.running = _Bucket(process, process.broker.running)

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        answer = await self._append(slot, raw, event_id, after)
        match answer:
            case Recorded(seq) | AlreadyRecorded(seq) | SlotTaken(first=Fact(seq=seq)):
                self._advance(seq)
            case Overtaken():
                await self.last_seq()
            case Unconfirmed():
                pass
        self._told(slot, event_id, raw, answer)
        return answer

    async def _append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None
    ) -> AppendResult:
        process, how = self.process, self.broker.hostility
        await process.travel()
        if process.is_cut_off or process.happens(how.lost):
            if process.happens(how.later):
                append = partial(self.broker.append, slot, raw, event_id, after)
                self.broker.arrive(append, process.lot.uniform(0, 8))
            await process.sleep(process.lot.uniform(0.1, PATIENCE_S))
            return Unconfirmed("no answer from the broker")
        answer = await self.broker.append(slot, raw, event_id, after)
        await process.travel()
        if process.is_cut_off or process.happens(how.unanswered):
            await process.sleep(process.lot.uniform(0.1, PATIENCE_S))
            if process.is_cut_off or process.happens(0.5):
                return Unconfirmed("no answer from the broker")
            # The slot was read, to see what is in it.
            return await self.broker.append(slot, raw, event_id, after)
        return answer

    # -------------------------------------------------------------------------------------- reading

    async def latest(self, subjects: str) -> Fact | None:
        return await self.process.ask(lambda: Lagging.latest(self, subjects))

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return await self.process.ask(lambda: Lagging.read(self, *subjects))

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        return await self.process.ask(lambda: Lagging.read_few(self, *subjects))

    async def _replicas_last(self) -> int:
        """As a replica that is behind a little, now or for a while."""
        last, process, now_s = await self.broker.last_seq(), self.process, _now_s()
        behind = process.lot.randint(max(self._known_seq, last - _MAX_BEHIND), last)
        if process.happens(self.broker.hostility.lagging):
            self._lagging = behind, now_s + process.lot.uniform(0, 1)
        if now_s < self._lagging[1]:
            return max(self._known_seq, self._lagging[0])
        return behind if process.happens(self.broker.hostility.stale) else last

    async def at(self, seq: int) -> RawMessage | None:
        return await self.process.ask(lambda: self.broker.at(seq))

    async def last_seq(self) -> int:
        return await self.process.ask(lambda: Lagging.last_seq(self))

    async def identity(self) -> str:
        return await self.process.ask(self.broker.identity)

    async def progress(self, durable: str) -> Progress | None:
        return await self.process.ask(lambda: self.broker.progress(durable))

    async def clock(self) -> datetime:
        return await self.process.ask(self.broker.clock)

    @property
    def server_version(self) -> str:
        return self.broker.server_version

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(super().follow(subjects, start, until_end=until_end)) as batches:
            async for batch in batches:
                await self._received()
                yield batch

    async def scan(
        self, start: int, subjects: str = f"{ROOT}.>", *, before: int = sys.maxsize
    ) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(super().scan(start, subjects, before=before)) as pages:
            async for page in pages:
                await self._received()
                yield page

    async def raw(
        self, start: int, subjects: tuple[str, ...] = (), *, until_end: bool
    ) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(super().raw(start, subjects, until_end=until_end)) as batches:
            async for batch in batches:
                await self._received()
                yield batch

    async def _received(self) -> None:
        await self.process.travel()
        await self.process.reconnected()

    # ----------------------------------------------------------------------------------- deliveries

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator["_Delivery"]]:
        async def deliver() -> AsyncIterator[_Delivery]:
            async for delivery in given:
                # One that a dead process had asked for is lost, and delivered again later.
                await self.process.reconnected()
                yield _Delivery(self.process, delivery)

        async with super().deliveries(durable) as given:
            yield deliver()

    async def set_timer(self, call: CallRef, at: datetime, trace: str = "") -> None:
        await self.process.ask(lambda: self.broker.set_timer(call, at, trace))

    async def cancel_timer(self, call: CallRef) -> None:
        await self.process.ask(lambda: self.broker.cancel_timer(call))

    async def park(self, parked: Parked) -> bool:
        return await self.process.ask(lambda: self.broker.park(parked))

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[Parked]:
        return await self.process.ask(lambda: self.broker.parked(consumer, whole=whole))

    async def parked_at(self, number: int) -> Parked | None:
        return await self.process.ask(lambda: self.broker.parked_at(number))

    async def mark(self, mark: Mark) -> None:
        await self.process.ask(lambda: self.broker.mark(mark))


class _Delivery:
    def __init__(self, process: Process, delivery: Delivery) -> None:
        self._process, self._delivery = process, delivery
        self.handed: Delivered | Parked | Mark = delivery.handed

    @property
    def number(self) -> int:
        return self._delivery.number

    @property
    def tries(self) -> int:
        return self._delivery.tries

    async def ack(self) -> None:
        if await self._arrives():
            await self._delivery.ack()

    async def retry(self, after_s: float) -> None:
        if await self._arrives():
            await self._delivery.retry(after_s)

    async def _arrives(self) -> bool:
        """Neither is confirmed, so a lost one goes unnoticed."""
        await self._process.travel()
        lost = self._process.happens(self._process.broker.hostility.unacked)
        return not (lost or self._process.is_cut_off)

    async def in_progress(self) -> None:
        await self._process.ask(self._delivery.in_progress)


class _Bucket:
    """A bucket as one process sees it: the leader answers."""

    def __init__(self, process: Process, bucket: Bucket) -> None:
        self._process = process
        self._bucket = bucket

    async def get(self, key: str) -> tuple[bytes, int]:
        return await self._process.ask(lambda: self._bucket.get(key))

    async def put(self, key: str, value: bytes, replaces: int) -> bool:
        return await self._process.ask(lambda: self._bucket.put(key, value, replaces))

    async def delete(self, key: str, replaces: int) -> bool:
        return await self._process.ask(lambda: self._bucket.delete(key, replaces))

    async def entries(self) -> dict[str, bytes]:
        return await self._process.ask(self._bucket.entries)

    async def overwrite(self, key: str, value: bytes) -> None:
        await self._process.ask(lambda: self._bucket.overwrite(key, value))

    async def written(self) -> dict[str, Written]:
        return await self._process.ask(self._bucket.written)

    async def follow(self) -> AsyncGenerator[Change]:
        async with aclosing(self._bucket.follow()) as changes:
            async for change in changes:
                await self._process.reconnected()
                yield change


def _now_s() -> float:
    return asyncio.get_running_loop().time()
