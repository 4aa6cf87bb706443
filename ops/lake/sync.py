"""Facts from the log into a lake, read and written side by side."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.scopes import within
from ayes.ops.lake.writer import LakeWriter
from ayes.ops.workers import until_signalled
from ayes.schemas.slots import ROOT

#: Facts and bytes of one transaction; and the bytes that may wait to be written.
BATCH: Final = 30_000
_BATCH_BYTES: Final = 16_000_000
_WAITING_BYTES: Final = 128_000_000
#: About the size of a fact without its payload.
_FACT_BYTES: Final = 250
#: How long a thread may keep the interpreter while another waits: the writing one needs it only
#: for moments.
_SWITCH_S: Final = 0.0005
#: How long new facts may stay unpublished.
PUBLISH_S: Final = 0.6
_LOOK_S: Final = 0.05


async def identity_in(ledger: Ledger, workspaces: tuple[str, ...] = ()) -> str:
    """The identity of the log, or of what these workspaces have of it: who reads nothing else does
    not know the log's first fact. Empty before the first one.
    """
    if not workspaces:
        return await ledger.log.identity()
    async with aclosing(ledger.log.raw(1, subjects_of(workspaces), until_end=True)) as batches:
        async for first, *_ in batches:
            return identity_of(structs.replace(first, nanoseconds=0))  # as lakes have it
    return ""


def subjects_of(workspaces: tuple[str, ...]) -> tuple[str, ...]:
    """The subjects of the facts in a lake of these workspaces; none for all."""
    return within(f"{ROOT}.>", workspaces, "") if workspaces else ()


def default_directory(store: Path | None) -> Path:
    """Where the lake of a store is, unless another directory is named."""
    return Store(store).path / "archive"


async def until_end_or_signal(
    ledger: Ledger, archive: LakeWriter, *, follow: bool, wrote: Callable[[int], None]
) -> bool:
    """Write until the end of the log or a signal; returns whether it was the end.

    Args:
        follow: go on with new facts at the end.
        wrote: called with the sequence of the last fact of each transaction.
    """
    writing = asyncio.ensure_future(write(ledger, archive, follow=follow, wrote=wrote))
    try:
        await until_signalled(writing)
        return writing.done()
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


class _Waiting:
    """Facts that are read but not written yet."""

    def __init__(self) -> None:
        self._facts: deque[RawMessage] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._facts)

    def put(self, facts: list[RawMessage]) -> None:
        self._facts.extend(facts)
        self.bytes += sum(map(_size, facts))

    def next(self) -> list[RawMessage]:
        """The facts of one transaction, at least one."""
        batch, size = list[RawMessage](), 0
        while self._facts and len(batch) < BATCH and size < _BATCH_BYTES:
            batch.append(self._facts.popleft())
            size += _size(batch[-1])
        self.bytes -= size
        return batch


def _size(fact: RawMessage) -> int:
    return len(fact.data) + _FACT_BYTES


async def write(
    ledger: Ledger, archive: LakeWriter, *, follow: bool, wrote: Callable[[int], None]
) -> None:
    """Read and write at the same time: DuckDB works in a thread, so that reading need not wait."""
    waiting = _Waiting()
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    reading = asyncio.create_task(_read(ledger, archive, waiting, until_end=not follow))
    published = time.monotonic()
    try:
        while waiting or not reading.done():
            full = False
            if waiting:
                batch = waiting.next()
                await _in_thread(archive.take, batch)
                wrote(batch[-1].seq)
                full = archive.full
            else:
                await asyncio.sleep(_LOOK_S)
            if full or (follow and time.monotonic() - published > PUBLISH_S):
                await _in_thread(archive.publish)
                published = time.monotonic()
        await reading
    finally:
        sys.setswitchinterval(before)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _in_thread[**P, T](work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Work in a thread. A cancelled caller waits for it: only one thread at a time may use a
    connection of DuckDB.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


async def _read(ledger: Ledger, archive: LakeWriter, waiting: _Waiting, *, until_end: bool) -> None:
    start, subjects = archive.until + 1, subjects_of(archive.workspaces)
    async with aclosing(ledger.log.raw(start, subjects, until_end=until_end)) as batches:
        async for batch in batches:
            waiting.put(batch)
            while waiting.bytes > _WAITING_BYTES:  # noqa: ASYNC110 - another thread empties it
                await asyncio.sleep(_LOOK_S)
