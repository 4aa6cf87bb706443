"""Packing: what is settled in a thread leaves the stream, and stays in the log (decision 0091).

    1  packs are recorded    of what was settled long ago and no worker may still be delivered,
                             behind the last pack of the thread
    2  time passes           who wrote before a pack without knowing of it has had an answer
    3  packs are read back   from the leader, and compared with the stream, byte for byte
    4  their facts leave     unless a newer consumer may still be delivered one of them

A crash between any two of them leaves what the next run finishes; two runs at once are as one.
`packing` does it each hour beside the workers of `ayes up`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.supervision import beside, keep_running
from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AlreadyRecorded, RawMessage, Recorded, SlotTaken
from ayes.ledger.nats import streams
from ayes.ledger.nats.jetstream import COUNTED_AT_ONCE, JetStream
from ayes.ledger.subscriptions import LEDGER, Durable
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BadId, LogDamaged, NewerLog, OutcomeUnknown
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ThreadRef, stops

_log: Final = get_logger("ayes.ops.actions.packing")

#: The age of a pack at which its facts leave the stream. A reader that has read a page of the
#: stream reads the packs long before that. A node may take less than half of this time to learn
#: that it does not lead any more.
REMOVED_AFTER: Final = timedelta(minutes=2)
#: How often `packing` packs.
EVERY_S: Final = 3600.0
#: The workers of a role, where they have another name.
_WORKERS: Final = {"service": "delegator"}


class PackedThread(Struct, frozen=True):
    """What one run did with a thread."""

    thread: str
    #: Facts in new packs.
    packed: int = 0
    #: Facts that left the stream.
    removed: int = 0
    #: Why it was not packed to the end; empty: it was.
    problem: str = ""


class HeldBack(Struct, frozen=True):
    """A consumer that has not acknowledged what is old enough to be packed, so that this waits."""

    consumer: str
    #: The number up to which it has acknowledged the log.
    acknowledged: int
    #: What to do, in a sentence.
    remedy: str
    #: When the first request, reply or message was recorded that waits for it; None: none does.
    since: datetime | None = None

    def __str__(self) -> str:
        return (
            f"What came after fact {self.acknowledged:,}, since {self.since:%Y-%m-%d %H:%M} "
            f"UTC, stays in the stream: the consumer {self.consumer} has not acknowledged it. "
            f"{self.remedy}"
        )


@asynccontextmanager
async def packing(
    settled_for: timedelta | None, *, store: Path | str | None = None
) -> AsyncGenerator[None]:
    """Pack the log each hour during the block. What runs beside it goes on if that fails.

    Args:
        settled_for: as of `pack_log`; None: do not pack.
    """
    if settled_for is None:
        yield
        return
    async with Ledger.connect(store, role="admin", name="packer") as ledger:
        run = partial(_pack_hourly, ledger, settled_for, set())
        async with beside(keep_running("packer", run, ends=())):
            yield


async def _pack_hourly(ledger: Ledger, settled_for: timedelta, named: set[str]) -> None:
    """Pack each hour.

    Args:
        named: the consumers that hold facts back, as they were logged last.
    """
    while True:
        async with aclosing(pack_log(ledger, settled_for=settled_for)) as found:
            each = [one async for one in found]
        threads = [one for one in each if isinstance(one, PackedThread)]
        packed, removed = sum(one.packed for one in threads), sum(one.removed for one in threads)
        if packed or removed:
            _log.info("settled facts were packed", packed=packed, removed=removed)
        for one in threads:
            if one.problem:
                _log.error("a thread is not packed", thread=one.thread, problem=one.problem)
        held = {one.consumer: one for one in each if isinstance(one, HeldBack)}
        for name in held.keys() - named:
            _log.warning("packed facts are not removed", problem=str(held[name]))
        named.intersection_update(held)
        named.update(held)
        await asyncio.sleep(EVERY_S)


async def pack_log(
    ledger: Ledger, *, settled_for: timedelta, now: datetime | None = None
) -> AsyncGenerator[PackedThread | HeldBack]:
    """Pack what was settled so long ago, thread by thread, and remove what was packed before; then
    name the consumers that hold something back. A thread that cannot be packed stays as it is.

    Args:
        ledger: with an administrator's rights.
        settled_for: how long ago the last fact of a call, turn or message was recorded.
        now: by the broker's clock, which is asked by default.

    Raises:
        BadInput: facts may not leave the stream of this log.
        LogDamaged: a fact about a stop cannot be read.
        OutcomeUnknown: nobody answers whether a pack is recorded.
    """
    assert isinstance(ledger.log, JetStream), "packing is administration of the broker"
    log = ledger.log
    streams.check_packed(await streams.info(log.api, f"STREAM.INFO.{LEDGER}"))
    at = now or await log.clock()
    last, behind = await log.last_seq(), await _unacknowledged(log)
    end = min([last, *(one.acknowledged for one in behind)])
    run = _Run(ledger, log, at, at - settled_for, end)
    threads, held = await _threads(log, run.before, end)
    for thread in threads:
        done = await run.visit(thread)
        if done.packed or done.removed or done.problem:
            yield done
    for one in behind:
        if held is not None and one.acknowledged < held.seq:
            yield replace(one, since=held.recorded_at)


class _Run(Struct):
    """One run."""

    ledger: Ledger
    log: JetStream
    #: By the broker's clock.
    now: datetime
    #: What was recorded then or later is not packed.
    before: datetime
    #: The number of the last fact, as it begins, that all consumers have acknowledged. Later ones
    #: are neither packed nor removed. So stops are read once: those by which a call is judged have
    #: earlier numbers.
    end: int
    #: By workspace, the facts about the stops that hold there.
    stops: dict[str, list[RawMessage]] = {}

    async def visit(self, thread: ThreadRef) -> PackedThread:
        """Pack a thread, and remove what was packed before.

        Raises:
            LogDamaged, OutcomeUnknown: as of `pack_log`.
        """
        packed, removed, problem = None, 0, ""
        if (where := thread.workspace) not in self.stops:
            self.stops[where] = await self.log.read_from_leader(LEDGER, *stops(where))
        try:
            while packed is None:
                live, odd, newest = await self._standing(thread)
                packed = await self._pack(thread, live, newest)
            if newest is not None:
                async for count in self._remove(thread, live, odd, newest):
                    removed += count
        except (LogDamaged, NewerLog) as error:
            problem = str(error)
        return PackedThread(str(thread), packed or 0, removed, problem)

    async def _standing(
        self, thread: ThreadRef
    ) -> tuple[list[RawMessage], list[str], RawMessage | None]:
        """What the stream has of a thread as the leader counts it: facts, subjects that are no
        slots, and the newest pack.

        Another run that packs meanwhile fills the slot behind that pack, which refuses this one.
        """
        names = await self.log.counted(LEDGER, thread.subjects, odd=True)
        newest = max(filter(packs.number_of, names), key=packs.number_of, default=None)
        live = [one for one in names if not packs.number_of(one)]
        found = await self.log.read_each([*filter(str.isascii, live)])
        odd = [*filterfalse(str.isascii, live)]
        return found, odd, await self._pack_of(newest) if newest else None

    async def _pack(
        self, thread: ThreadRef, live: list[RawMessage], newest: RawMessage | None
    ) -> int | None:
        """Pack what is settled; returns how many facts. None: another run was first."""
        facts = [*live, *self.stops[thread.workspace], *([newest] if newest else ())]
        units = [
            unit
            for unit in packs.packable(thread, facts)
            if all(one.recorded_at < self.before and one.seq <= self.end for one in unit)
        ]
        new = packs.packs_of(units, packs.pack_in(newest) if newest else None)
        number = packs.number_of(newest.subject) + 1 if newest else 1
        is_first = await _recorded(self.ledger, thread, number, new)
        return sum(one.size for one in new) if is_first else None

    async def _remove(
        self,
        thread: ThreadRef,
        live: Sequence[RawMessage],
        odd: Iterable[str],
        newest: RawMessage,
    ) -> AsyncGenerator[int]:
        """Remove from the stream what is in the packs of a thread; yields of each how many facts.

        Packs that are younger than `REMOVED_AFTER` are left for a later run, and so are those with
        facts after `end`, as for a consumer that was created after they were packed.

        Args:
            live: what is in the stream. Packs are read, from the newest one backwards, until all
                heads among it are found that have been packed.
            odd: the other subjects that have a message.

        Raises:
            LogDamaged: a pack differs from what is in the stream, or cannot be read. Nothing of it
                is removed.
        """
        packed = packs.PackedNames.in_pack(newest)
        standing = {one.seq: one for one in live}
        subjects = dict.fromkeys(odd, 0) | {one.subject: one.seq for one in live}
        is_certain = len(subjects) + packed.number < COUNTED_AT_ONCE
        heads = {
            one.seq for one in live if packs.is_head(one.subject) and packed.may_match(one.subject)
        }
        for number in range(packed.number, 0, -1):
            if not heads:
                break
            is_newest = number == packed.number
            pack = newest if is_newest else await self._pack_of(thread.packed(number).subject)
            facts = [one for one in packs.unpacked(pack) if one.seq in standing]
            heads.difference_update(one.seq for one in facts)
            for one in facts:
                if standing[one.seq] != one:
                    raise LogDamaged(f"{pack.subject} has another fact {one.seq:,} than the stream")
            is_old = self.now - pack.recorded_at >= REMOVED_AFTER
            if facts and is_old and facts[-1].seq <= self.end:
                await self.log.remove(thread, number, subjects if is_certain else None)
                yield len(facts)

    async def _pack_of(self, subject: str) -> RawMessage:
        found = await self.log.each_from_leader(LEDGER, [subject])
        if not found:
            raise LogDamaged(f"{subject} is missing")
        return found[0]


async def _recorded(ledger: Ledger, thread: ThreadRef, begin: int, new: Iterable[e.Packed]) -> bool:
    """Record packs one behind the other. False: another run was first."""
    for number, one in enumerate(new, begin):
        event = ledger.with_envelope(one)
        slot = thread.packed(number)
        match await ledger.log.append(slot, encode(event), event.id):
            case Recorded() | AlreadyRecorded():
                pass
            case SlotTaken():
                return False
            case _:
                raise OutcomeUnknown(
                    f"nobody can say whether {slot.subject} is recorded. Do the same again."
                )
    return True


async def _unacknowledged(log: JetStream) -> list[HeldBack]:
    """The consumers that may be delivered facts that are there now, and up to which number none.

    They are asked for once in a run, before anything is packed. It stays true: what was
    acknowledged is not delivered again, and a fact that comes later has a later number than all
    that is removed in this run, which was packed `REMOVED_AFTER` before it began. A consumer that
    is created meanwhile begins with what is in the stream by then, as it would after the run.
    """
    described = await streams.described(log.api, [LEDGER], lambda one: one.stream == LEDGER)
    return [
        HeldBack(
            name,
            one["ack_floor"]["stream_seq"],
            _remedy(described.durables[name], has_worker=one.get("push_bound", False)),
        )
        for name, one in described.consumers.items()
        if one is not None and (one["num_pending"] or one["num_ack_pending"])
    ]


def _remedy(durable: Durable, *, has_worker: bool) -> str:
    if has_worker:
        return "Its workers are behind, or wait for something: `ayes status` shows them."
    login, _, kind = durable.name.rpartition("@")
    start = f"Start `ayes work {_WORKERS.get(durable.role, durable.role)}`"
    if login:
        return f"{start} with the login {login}; if it is gone: `ayes auth revoke {login}`."
    if durable.optional:
        return f"{start}; if none is to run any more: `ayes setup --without {kind}`."
    return f"{start}."


async def _threads(
    log: JetStream, before: datetime, end: int
) -> tuple[list[ThreadRef], RawMessage | None]:
    """The threads with heads in the stream from before this time, up to this number, and the first
    one behind it from before this time. Payloads are not read.
    """
    found = dict[ThreadRef, None]()
    heads = log.messages(LEDGER, packs.HEADS, 1, until_end=True, headers_only=True)
    async with aclosing(heads) as pages:
        async for page in pages:
            for raw in page:
                if raw.recorded_at >= before or raw.seq > end:
                    return [*found], (raw if raw.recorded_at < before else None)
                place = packs.thread_of(raw.subject).split(".")[1:]
                with suppress(BadId):  # of who writes with a client of their own
                    found |= {ThreadRef(*place): None} if place else {}
    return [*found], None
