"""Packing: what is settled in a thread leaves the stream, and stays in the log (decision 0091).

    1  packs are recorded    of what was settled long ago, behind the last pack of the thread
    2  time passes           who wrote before a pack without knowing of it has had an answer
    3  packs are read back   from the leader, and compared with the stream, byte for byte
    4  their facts leave     unless a worker may still be delivered one of them

A crash between any two of them leaves what the next run finishes; two runs at once are as one.
`packing` does it each hour beside the workers of `ayes up`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from ayes.consumers.supervision import beside, keep_running
from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AlreadyRecorded, RawMessage, Recorded, SlotTaken
from ayes.ledger.nats import streams
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import LogDamaged, OutcomeUnknown
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ThreadRef, stops

_log: Final = get_logger("ayes.ops.actions.packing")

#: The age of a pack at which its facts leave the stream. A reader that has read a page of the
#: stream reads the packs long before that. A node may take less than half of this time to learn
#: that it does not lead any more.
REMOVED_AFTER: Final = timedelta(minutes=2)
#: How often `packing` packs.
EVERY_S: Final = 3600.0


class PackedThread(Struct, frozen=True):
    """What one run did with a thread."""

    thread: str
    #: Facts in new packs.
    packed: int = 0
    #: Facts that left the stream.
    removed: int = 0


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
        run = partial(_pack_hourly, ledger, settled_for)
        async with beside(keep_running("packer", run, ends=())):
            yield


async def _pack_hourly(ledger: Ledger, settled_for: timedelta) -> None:
    while True:
        async with aclosing(pack_log(ledger, settled_for=settled_for)) as threads:
            each = [one async for one in threads]
        if each:
            packed, removed = sum(one.packed for one in each), sum(one.removed for one in each)
            _log.info("settled facts were packed", packed=packed, removed=removed)
        await asyncio.sleep(EVERY_S)


async def pack_log(
    ledger: Ledger, *, settled_for: timedelta, now: datetime | None = None
) -> AsyncGenerator[PackedThread]:
    """Pack what was settled so long ago, thread by thread, and remove what was packed before.

    Args:
        ledger: with an administrator's rights.
        settled_for: how long ago the last fact of a call, turn or message was recorded.
        now: by the broker's clock, which is asked by default.

    Raises:
        BadInput: facts may not leave the stream of this log.
        LogDamaged: a pack, or a fact that is to be packed, cannot be read.
    """
    log = _let_go(ledger)
    streams.check_packed(await streams.info(log.api, f"STREAM.INFO.{LEDGER}"))
    at = now or await log.clock()
    before = at - settled_for
    acknowledged = await _acknowledged(log)
    for thread in await _threads(log, before):
        packed = await pack(ledger, thread, before=before)
        removed = await remove(ledger, thread, now=at, acknowledged=acknowledged)
        if packed or removed:
            yield PackedThread(str(thread), packed, removed)


async def pack(ledger: Ledger, thread: ThreadRef, *, before: datetime) -> int:
    """Pack what is settled in a thread and was recorded before; returns how many facts.

    Raises:
        LogDamaged: as of `pack_log`.
        OutcomeUnknown: nobody answers whether a pack is recorded.
    """
    log = _let_go(ledger)
    while True:
        # The packs first: what another run packs behind them is refused below.
        there = await log.read_from_leader(LEDGER, thread.packs)
        newest = max(there, key=_number, default=None)
        found = await log.read_from_leader(LEDGER, thread.subjects, *stops(thread.workspace))
        facts = [*(one for one in found if not _number(one)), *([newest] if newest else ())]
        units = [
            unit
            for unit in packs.packable(thread, facts)
            if all(one.recorded_at < before for one in unit)
        ]
        new = packs.packs_of(units, packs.pack_in(newest) if newest else None)
        if await _recorded(ledger, thread, _number(newest) + 1 if newest else 1, new):
            return sum(one.size for one in new)


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


async def remove(ledger: Ledger, thread: ThreadRef, *, now: datetime, acknowledged: float) -> int:
    """Remove from the stream what is in the packs of a thread; returns how many facts.

    Packs that are younger than `REMOVED_AFTER` are left for a later run, and so is what a worker
    was not delivered yet, or has not acknowledged.

    Args:
        acknowledged: as of `_acknowledged`.

    Raises:
        LogDamaged: a pack differs from what is in the stream, or cannot be read. Nothing of it is
            removed.
    """
    log = _let_go(ledger)
    found = await log.read_from_leader(LEDGER, thread.subjects)
    live = {one.seq: one for one in found}
    done = 0
    for pack in sorted(filter(_number, found), key=_number):
        facts = packs.unpacked(pack)
        there = [one for one in facts if one.seq in live]
        if not there or now - pack.recorded_at < REMOVED_AFTER:
            continue
        for one in there:
            if live[one.seq] != one:
                raise LogDamaged(f"{pack.subject} has another fact {one.seq:,} than the stream")
        if there[-1].seq > acknowledged:
            continue
        await log.remove(thread, packs.number_of(pack.subject))
        done += len(there)
    return done


async def _acknowledged(log: JetStream) -> float:
    """The number up to which no worker is delivered any of the facts that are there now.

    It is asked for once in a run, before anything is packed. It stays true: what was acknowledged
    is not delivered again, and a fact that comes later has a later number than all that is removed
    in this run, which was packed `REMOVED_AFTER` before it began. A consumer that is created
    meanwhile begins with what is in the stream by then, as it would after the run.
    """
    described = await streams.described(log.api, [LEDGER], lambda one: one.stream == LEDGER)
    waiting = [
        one["ack_floor"]["stream_seq"]
        for one in described.consumers.values()
        if one is not None and (one["num_pending"] or one["num_ack_pending"])
    ]
    return min(waiting, default=math.inf)


def _number(raw: RawMessage) -> int:
    return packs.number_of(raw.subject)


async def _threads(log: JetStream, before: datetime) -> list[ThreadRef]:
    """The threads with facts in the stream from before this time that may be packed, or were."""
    found = dict[ThreadRef, None]()
    async with aclosing(log.in_stream()) as pages:
        async for page in pages:
            for raw in page:
                if raw.recorded_at >= before:
                    return [*found]
                match raw.subject.split("."):
                    case [_, workspace, thread, "call" | "turn" | "said", *_]:
                        found[ThreadRef(workspace, thread)] = None
                    case _:
                        pass
    return [*found]


def _let_go(ledger: Ledger) -> JetStream:
    assert isinstance(ledger.log, JetStream), "packing is administration of the broker"
    return ledger.log
