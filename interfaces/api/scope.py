"""What there is for a visitor who may see some workspaces only.

`Visit` reads and writes through these alone. So a handler need not ask what its visitor may see:
whatever it reads, a call of another workspace is as one that was never requested. What does not
pass here is about the whole site (`Visit.site`) and is refused to such a visitor.

The facts of the organisation are everybody's: its policy and its stops hold in every workspace, and
votes rest on who is a person. Numbers of facts are those of the whole log.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final, cast

from msgspec.structs import replace

from ayes.interfaces.api.feed import FeedEvent, ListChanged, Sent
from ayes.ledger.clients.services import CHANNEL, Ledger
from ayes.ledger.log import (
    AppendResult,
    Bucket,
    EventLog,
    LiveMessages,
    RawMessage,
    Written,
)
from ayes.ledger.nats.jetstream import JetStream
from ayes.projections.pending import Entry, PendingIndex
from ayes.schemas.codec import Fact
from ayes.schemas.errors import NotAllowed, Unavailable
from ayes.schemas.ids import token
from ayes.schemas.slots import KEY, ORGANISATION, PERSON, ROOT, Slot

#: The subject of a message of which only the time is told: no message has it.
_ELSEWHERE: Final = "*"


def scoped(ledger: Ledger, workspaces: tuple[str, ...]) -> Ledger:
    """The same connection and author, where other workspaces than these do not exist.

    Args:
        workspaces: none: all of them exist.

    Raises:
        BadId: one is not a valid name.
    """
    if not workspaces:
        return ledger
    assert isinstance(ledger.log, JetStream), "the console connects to brokers only"
    # What only workers need is left out, and so is refused.
    return ledger.on_log(cast(EventLog, ScopedLog(ledger.log, workspaces)))


class ScopedLog:
    """A log as if it had the facts of these workspaces and of the organisation alone."""

    def __init__(self, log: JetStream, workspaces: tuple[str, ...]) -> None:
        self._log = log
        self.workspaces = tuple(token("workspace", one) for one in workspaces)
        self._own = frozenset(self.workspaces)
        self._seen = (*self.workspaces, ORGANISATION)
        self.pending = cast(Bucket, _ScopedBucket(log.pending, self._own))
        self.running = cast(Bucket, _ScopedBucket(log.running, self._own))

    # -------------------------------------------------------------------------------------- writing

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        if slot.workspace == ORGANISATION and slot.tail[0] not in (PERSON, KEY):
            raise NotAllowed(
                "what holds in every workspace is for those who may see all of them. Nothing was "
                "recorded."
            )
        if slot.workspace != ORGANISATION:
            self._require(slot.workspace)
        return await self._log.append(slot, raw, event_id, after)

    def file_place(self, digest: str) -> str:
        return self._log.file_place(digest)

    async def keep_piece(self, subject: str, piece: bytes) -> bool:
        self._require(subject.split(".")[1])
        return await self._log.keep_piece(subject, piece)

    def _require(self, workspace: str) -> None:
        if workspace not in self._own:
            raise NotAllowed(
                f"{workspace} is none of the workspaces that you may see. Nothing was recorded."
            )

    # -------------------------------------------------------------------------------------- reading

    def _within(self, *subjects: str) -> tuple[str, ...]:
        """These subjects without those of other workspaces, also where a wildcard covers them."""
        found: list[str] = []
        for one in subjects or (f"{ROOT}.>",):
            root, workspace, *rest = one.split(".")
            if workspace in {"*", ">"}:
                tail = rest if workspace == "*" else [">"]
                found += [".".join((root, seen, *tail)) for seen in self._seen]
            elif workspace in self._seen:
                found.append(one)
        return tuple(found)

    async def latest(self, subjects: str) -> Fact | None:
        found = [await self._log.latest(one) for one in self._within(subjects)]
        return max((one for one in found if one), key=attrgetter("seq"), default=None)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        within = self._within(*subjects) if subjects else ()
        return await self._log.read(*within) if within else ()

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        within = self._within(*subjects) if subjects else ()
        return await self._log.read_few(*within) if within else []

    async def piece(self, subject: str) -> bytes | None:
        return await self._log.piece(subject) if subject.split(".")[1] in self._own else None

    async def at(self, seq: int) -> RawMessage | None:
        """The message of that number; of other workspaces its time alone."""
        found = await self._log.at(seq)
        if found is None or self._within(found.subject):
            return found
        return replace(found, subject=_ELSEWHERE, data=b"")

    async def scan(
        self, start: int, subjects: str = f"{ROOT}.>", *, before: int = sys.maxsize
    ) -> AsyncGenerator[list[RawMessage]]:
        """As of `JetStream.scan`: of each workspace by itself, put together in their order."""
        async with AsyncExitStack() as stack:
            pages = {
                await stack.enter_async_context(
                    aclosing(self._log.scan(start, one, before=before))
                ): list[RawMessage]()
                for one in self._within(subjects)
            }
            while True:
                read = [source for source, left in pages.items() if not left]
                pages |= zip(
                    read, await asyncio.gather(*(anext(one, []) for one in read)), strict=True
                )
                pages = {source: page for source, page in pages.items() if page}
                if not pages:
                    return
                until = min(page[-1].seq for page in pages.values())
                every = [raw for page in pages.values() for raw in page]
                yield sorted((raw for raw in every if raw.seq <= until), key=attrgetter("seq"))
                for source, page in pages.items():
                    pages[source] = [raw for raw in page if raw.seq > until]

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        if within := self._within(*subjects):
            following = self._log.follow(within, start, until_end=until_end)
            async with aclosing(following) as batches:
                async for facts in batches:
                    yield facts

    @asynccontextmanager
    async def subscribe_live(self, subject: str) -> AsyncGenerator[LiveMessages]:
        self._require(subject.split(".")[1])
        async with self._log.subscribe_live(subject) as messages:
            yield messages

    async def last_seq(self) -> int:
        return await self._log.last_seq()

    async def identity(self) -> str:
        return await self._log.identity()

    async def clock(self) -> datetime:
        return await self._log.clock()


class _ScopedBucket:
    """A bucket as if it had the keys of these workspaces alone."""

    def __init__(self, bucket: Bucket, workspaces: frozenset[str]) -> None:
        self._bucket = bucket
        self._own = workspaces

    def _has(self, key: str) -> bool:
        """Whether it is a key of theirs, as `workspace.thread.call`, perhaps with the beginning of
        a kind; or one that names no workspace.
        """
        kind, *rest = key.split(".")
        if kind.startswith("_"):
            return not rest or (f"{kind}." != CHANNEL and rest[0] in self._own)
        return kind in self._own

    async def entries(self) -> dict[str, bytes]:
        found = await self._bucket.entries()
        return {key: one for key, one in found.items() if self._has(key)}

    async def written(self) -> dict[str, Written]:
        found = await self._bucket.written()
        return {key: one for key, one in found.items() if self._has(key)}

    async def overwrite(self, key: str, value: bytes) -> None:
        if not self._has(key):
            raise NotAllowed(f"{key} is of a workspace that you may not see.")
        await self._bucket.overwrite(key, value)


class ScopedPending:
    """The pending calls of these workspaces."""

    def __init__(self, index: PendingIndex, workspaces: tuple[str, ...]) -> None:
        self._index = index
        self._own = frozenset(workspaces)
        self.page = partial(index.page, within=self._own)

    def oldest(self, most: int | None = None) -> list[Entry]:
        return [one for one in self._index.oldest() if one.workspace in self._own][:most]


async def scoped_events(
    events: AsyncGenerator[list[Sent]],
    workspaces: tuple[str, ...],
    waiting: Callable[[], ScopedPending],
) -> AsyncGenerator[list[Sent]]:
    """These events of the feed, as far as they are of these workspaces or the organisation's."""
    before: list[Entry] = []
    with suppress(Unavailable):
        before = waiting().oldest()
    async with aclosing(events):
        async for together in events:
            kept: list[Sent] = []
            for one in together:
                match one:
                    case FeedEvent(workspace=workspace) if workspace == ORGANISATION:
                        kept.append(replace(one, by=""))  # they may be of another workspace
                    case FeedEvent(workspace=workspace) if workspace not in workspaces:
                        pass
                    case ListChanged():
                        with suppress(Unavailable):
                            if (now := waiting().oldest()) != before:
                                kept.append(ListChanged(len(now)))
                                before = now
                    case _:
                        kept.append(one)
            if kept:
                yield kept
