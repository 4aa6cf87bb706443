"""Entries of the pending bucket, and a network connection that a test can cut or silence."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from ayes.ledger.log import Bucket
from ayes.projections import pending
from ayes.projections.pending import Entry

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


def question(seq: int, *, workspace: str = "acme", stage: int = 0, size: int = 0) -> Entry:
    return Entry(
        workspace=workspace, thread="t1", call=f"c{seq}", tool="refund",
        arguments=json.dumps({"order": "x" * size}), digest="d", rule="money", reason="",
        requester="rita", agent="", voters=("*",), excluded=(), votes_needed=1,
        requested_at=START, gated_at=START, expires_at=None, due_at=None, also=(), besides=(),
        denials_needed=1, may_break_glass=(),
        asked_as_well=tuple(f"p{number}" for number in range(stage)), seq=seq,
    )  # fmt: skip


async def put(bucket: Bucket, entry: Entry) -> None:
    """Write the entry, new or in place of the one before."""
    key = pending.key(entry.ref)
    _, revision = await bucket.get(key)
    assert await bucket.put(key, pending.encode(entry), revision)


async def delete(bucket: Bucket, seq: int) -> None:
    """Remove the entry, as after a decision."""
    key = pending.key(question(seq).ref)
    _, revision = await bucket.get(key)
    assert await bucket.delete(key, revision)


class Cable:
    """A TCP proxy to the broker, which a test can cut and mend, or silence.

    A silent one closes nothing and passes nothing on, as a machine that vanished: it takes new
    connections too, as the kernel of a stopped process does.
    """

    def __init__(self, port: int) -> None:
        self._there = port
        self._here = 0
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self._speaks = asyncio.Event()
        self._speaks.set()

    def silence(self) -> None:
        self._speaks.clear()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[int]:
        await self.mend()
        try:
            yield self._here
        finally:
            await self.cut()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._here)
        self._here = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._open.add(task)
        try:
            await self._speaks.wait()
            there = await asyncio.open_connection("127.0.0.1", self._there)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, there[1]))
                    both.create_task(self._pass_on(there[0], writer))
            finally:
                there[1].transport.abort()
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            await self._speaks.wait()
            target.write(data)
            await target.drain()
        target.close()
