"""Watching a log while workers run on it: what is new is added to its witness, and all of it is
read once in the background, from the node that leads it.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.jetstream import READING_RATE, JetStream
from ayes.ops.audit.digest import next_digest
from ayes.ops.inspection.witness import (
    READING,
    LastSeen,
    Reading,
    Witness,
    accepted,
    check_density,
    kept_until,
    packed_until,
    reading,
    seen_of,
)
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerRefused, Distrusted, LogDamaged, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.inspection.watching")

#: The interval at which new facts are read and the state is saved.
EVERY_S: Final = 5.0
#: How long the last look may take, since stopping a worker waits for it.
_LAST_LOOK_S: Final = 2.0
#: Facts between two saves, if many are new.
_SAVE_EVERY: Final = 100_000
#: How old the reading of a node may be.
AGAIN_S: Final = 86_400.0


class Watched(Struct, frozen=True):
    """A log that is watched, or (by default) one that is not."""

    #: Called with the facts that this process receives anyway, so that they are not read again.
    hear: Callable[[list[RawMessage]], None] = lambda _facts: None
    #: Tasks that fail if the log becomes shorter meanwhile, or is found to lack facts.
    ends: tuple[asyncio.Task[None], ...] = ()


@asynccontextmanager
async def keeping(log: JetStream, place: str, *, is_gate: bool = True) -> AsyncGenerator[Watched]:
    """Watch the log for as long as the block lasts. A gate keeps the witness up to date, also at
    the end, and reads all of the log in the background.
    """
    keeper = _Keeper(log, Witness(log, place), is_gate=is_gate)
    await keeper.begin()
    steps = [keeper.look, keeper.read_all] if is_gate else [keeper.look]
    tasks = [asyncio.create_task(keeper.repeat(step), name="witness") for step in steps]
    try:
        yield Watched(keeper.hear, tuple(tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Exception):  # the next start looks again
            async with asyncio.timeout(_LAST_LOOK_S):
                await keeper.look()


class _Keeper:
    def __init__(self, log: JetStream, witness: Witness, *, is_gate: bool) -> None:
        self._log = log
        self._witness = witness
        self._is_gate = is_gate
        self._seen = self._begun = LastSeen(witness.place)
        self._accepted: e.LogAccepted | None = None
        #: The last fact that is in the file.
        self._saved = 0
        #: What this process has read of the log, and what was reported last, by any.
        self._reading: Reading | None = None
        self._reported: Reading | None = None
        #: When each node was read to the end.
        self._read_at: dict[str, float] = {}

    async def begin(self) -> None:
        number, self._accepted = await accepted(self._log)
        known = await seen_of(self._log, self._witness, await self._log.identity())
        seen = known[0] if known else LastSeen(self._witness.place, "", number)
        if seen.kept is None:
            kept = await kept_until(self._log, seen.seq)
            seen = msgspec.structs.replace(seen, kept=kept)
        if seen.packed is None:
            packed = await packed_until(self._log, seen, seen.seq)
            seen = msgspec.structs.replace(seen, packed=packed)
        self._seen = self._begun = seen
        self._saved = self._seen.seq
        self._reported = await reading(self._log)

    async def repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step again and again, until it finds that the log is not what it was."""
        while True:
            try:
                await step()
            except LogDamaged as damage:
                await self._check_not_shorter()
                if self._is_gate:
                    about = self._reading or Reading(damage.node, 0, 0, clock.now())
                    self._reading = msgspec.structs.replace(about, problem=str(damage))
                    await self._report()
                raise
            except _Shorter:
                raise
            except (BrokerRefused, OSError) as problem:
                _log.warning("the witness of the log cannot be saved", problem=str(problem))
            except Unavailable as problem:
                _log.debug("the log cannot be read now", problem=str(problem))
            except Exception as problem:  # noqa: BLE001 - an answer that nobody foresaw ends nothing
                _log.error("the log cannot be watched now", problem=repr(problem))
            await asyncio.sleep(EVERY_S)

    def hear(self, facts: list[RawMessage]) -> None:
        """Add the facts that come next; others are read by the next look."""
        for raw in facts:
            if raw.seq == self._seen.seq + 1:
                self._seen = self._seen.add(raw)

    async def _stream(self) -> tuple[dict[str, Any] | None, str]:
        """The stream's state and identity, if it is the one that was seen and has its end."""
        before = self._seen.seq  # while the broker answers, more may be received
        stream = await self._log.stream_with(before)
        last = stream["state"]["last_seq"] if stream else 0
        identity = await self._log.identity() if stream else ""
        if last < before or self._seen.log not in {"", identity}:
            raise _Shorter(
                f"the log in {self._witness.place} ends at fact {last:,}, and fact {before:,} was "
                "seen in it before. It has lost its end while the gate was running; start this "
                "again."
            )
        return stream, identity

    async def _check_not_shorter(self) -> None:
        """A log that was deleted and made anew while it was read is not a damaged one."""
        try:
            await self._stream()
        except _Shorter:
            raise
        except (Unavailable, BrokerRefused, OSError) as problem:
            _log.debug("the log cannot be looked at now", problem=str(problem))

    async def look(self) -> None:
        """Count the facts, read those that were not received yet, and save the state."""
        stream, identity = await self._stream()
        if stream is None:
            return
        last = stream["state"]["last_seq"]
        await check_density(self._log, stream, self._accepted, self._seen)
        node = str(stream.get("cluster", {}).get("leader", ""))
        await (self._report() if self._is_gate else self._heed())
        if last == self._saved:
            return
        self._seen = msgspec.structs.replace(self._seen, log=identity)
        if not self._is_gate:
            packed = await packed_until(self._log, self._seen, last)
            self._seen = msgspec.structs.replace(self._seen, seq=last, packed=packed)
            self._saved = last
            return
        if self._seen.seq < last:
            async with aclosing(self._log.scan_leader(self._seen.seq + 1)) as pages:
                async for page in pages:
                    for raw in page:  # in order, but `hear` may have added some meanwhile
                        if raw.seq > self._seen.seq:
                            self._check_next(self._seen.seq, raw.seq, node)
                            self._seen = self._seen.add(raw)
                    if self._seen.seq - self._saved >= _SAVE_EVERY:
                        await self._save()
        await self._save()

    async def _save(self) -> None:
        seen = self._seen
        await self._witness.save(seen)
        self._saved = seen.seq

    def _check_next(self, before: int, seq: int, node: str) -> None:
        if seq > before + 1 and before >= (self._accepted.size if self._accepted else 0):
            raise LogDamaged(f"fact {before + 1:,} cannot be read", node)

    async def read_all(self) -> None:
        """Read the whole log from its leader, once from each node that leads it, and each day."""
        node, now = await self._log.leader(), time.monotonic()
        if now - self._read_at.get(node, -math.inf) > AGAIN_S and await self._read_from(node):
            self._read_at[node] = now

    async def _read_from(self, node: str) -> bool:
        """Read all facts at a low rate; returns whether the node led the log until the end."""
        end, at, digest = await self._log.last_seq(), 0, ""
        seen = dict((*self._begun.checkpoints, (self._begun.seq, self._begun.digest)))
        self._reading = Reading(node, 0, end, clock.now())
        async with aclosing(self._log.scan_leader(1)) as pages:
            async for page in pages:
                for raw in page:
                    self._check_next(at, raw.seq, node)
                    at, digest = raw.seq, next_digest(digest, raw)
                    if seen.get(at, digest) != digest:
                        what = f"the facts up to {at:,} are not those that were seen before"
                        raise LogDamaged(what, node)
                self._reading = Reading(node, at, max(at, end), clock.now())
                await asyncio.sleep(len(page) / READING_RATE)
        if at < end:
            self._check_next(at, end + 1, node)
        return await self._log.leader() == node

    async def _report(self) -> None:
        """Tell the others how far this process has read."""
        if self._reading is not None and self._reading != self._reported:
            with suppress(Unavailable):
                await self._log.running.overwrite(READING, msgspec.json.encode(self._reading))
                self._reported = self._reading

    async def _heed(self) -> None:
        """End if the gate's process has found damage since this one began."""
        found = await reading(self._log)
        if found is not None and found.problem and found != self._reported:
            raise _Shorter(found.problem)


class _Shorter(Distrusted):
    """The log has lost facts while the process was running."""
