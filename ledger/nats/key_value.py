"""A key-value bucket (ADR-8) in which each write names the revision that it replaces.

So of two copies of a projector one wins, and the other reads again. A follower receives all entries
first, and then changes; it starts over before it could miss a deletion.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final, Protocol

from ayes.ledger import clock, log
from ayes.ledger.nats import streams
from ayes.ledger.nats.api import Api, by_leader
from ayes.ledger.nats.ordered_consumer import Start
from ayes.ledger.patience import while_away
from ayes.schemas.errors import BrokerRefused

#: The header by which a write names the sequence that it replaces; 0: there is none.
REPLACES: Final = "Nats-Expected-Last-Subject-Sequence"


class Streams(Protocol):
    """The part of `JetStream` that a bucket needs."""

    @property
    def api(self) -> Api: ...

    async def leaders_message(self, stream: str, **which: str | int) -> log.RawMessage | None: ...

    async def replace(
        self, subject: str, raw: bytes, headers: Mapping[str, str] | None
    ) -> bool: ...

    def scan(
        self, start: int, subjects: str, stream: str
    ) -> AsyncGenerator[list[log.RawMessage]]: ...

    def messages(
        self, stream: str, subjects: tuple[str, ...], start: Start, *, until_end: bool
    ) -> AsyncGenerator[list[log.RawMessage]]: ...


#: How long the marker of a deleted entry stays, for followers.
_MARKER_S: Final = 3600


class KeyValue:
    """An existing bucket (`streams.bucket`)."""

    def __init__(self, jetstream: Streams, name: str, *, marker_s: int = _MARKER_S) -> None:
        self._jetstream = jetstream
        self._stream = streams.bucket_stream(name)
        self._prefix = f"$KV.{name}."
        self._marker_s = marker_s

    async def get(self, key: str) -> tuple[bytes, int]:
        last = await self._jetstream.leaders_message(
            self._stream, last_by_subj=f"{self._prefix}{key}"
        )
        return (b"", 0) if last is None else (last.data, last.seq)

    async def put(self, key: str, value: bytes, replaces: int) -> bool:
        return await self._write(key, value, {REPLACES: str(replaces)})

    async def overwrite(self, key: str, value: bytes) -> None:
        await self._write(key, value, {})

    async def delete(self, key: str, replaces: int) -> bool:
        # The marker itself expires. Followers start over before they could miss one.
        headers = {
            REPLACES: str(replaces),
            "KV-Operation": "DEL",
            "Nats-TTL": f"{self._marker_s}s",
        }
        return await self._write(key, b"", headers)

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> bool:
        return await self._jetstream.replace(self._prefix + key, value, headers)

    async def entries(self) -> dict[str, bytes]:
        return {key: one.value for key, one in (await self.written()).items()}

    async def written(self) -> dict[str, log.Written]:
        _, (found, _) = await self._everything()  # without the bucket nobody answers a reading
        return found

    async def _last_revision(self) -> int:
        stream = await streams.info(self._jetstream.api, f"STREAM.INFO.{self._stream}")
        if stream is None:
            raise BrokerRefused(f"there is no bucket {self._stream} here. `ayes up` creates it.")
        return int(by_leader(stream)["state"]["last_seq"])

    async def follow(self) -> AsyncGenerator[log.Change]:
        while True:
            begun = clock.now()
            # The markers of the last writes may have expired: with this revision, all writes from
            # before the reading count as read.
            last, (found, position) = await while_away(self._everything)
            position = max(position, last + 1)
            entries = {key: one.value for key, one in found.items()}
            yield log.Change(entries, whole=True, revision=position - 1)
            async with aclosing(self._since(position, begun)) as changes:
                async for change in changes:
                    yield change

    async def _everything(self) -> tuple[int, tuple[dict[str, log.Written], int]]:
        return await self._last_revision(), await self._all()

    async def _all(self) -> tuple[dict[str, log.Written], int]:
        """All entries, and the sequence at which to go on.

        Without a consumer, which a cluster may place on a node that is away. An entry that is
        rewritten during the reading moves to the end, and is read there.
        """
        found: dict[str, log.Written] = {}
        position = 1
        async with aclosing(self._jetstream.scan(1, f"{self._prefix}>", self._stream)) as pages:
            async for page in pages:
                found.update(self._entries(page))
                position = max(position, page[-1].seq + 1)
        return {key: one for key, one in found.items() if one.value}, position

    async def _since(self, position: int, begun: datetime) -> AsyncGenerator[log.Change]:
        """The changes from that position on, for half as long as a marker lives.

        Until then no marker of a deletion after `begun` has expired, however long the broker was
        out of reach. By the wall clock: the event loop's may stop while the machine sleeps.
        """
        trust = timedelta(seconds=self._marker_s / 2)
        following = self._jetstream.messages(
            self._stream, (f"{self._prefix}>",), position, until_end=False
        )
        async with aclosing(following) as batches:
            coming = asyncio.ensure_future(anext(batches))
            try:
                while True:
                    await asyncio.wait({coming}, timeout=trust.total_seconds() / 60)
                    # Checked before yielding: after too long a silence there may be a gap.
                    if not begun <= clock.now() < begun + trust:
                        return
                    if coming.done():
                        batch = coming.result()
                        changed = {key: one.value for key, one in self._entries(batch).items()}
                        yield log.Change(changed, whole=False, revision=batch[-1].seq)
                        coming = asyncio.ensure_future(anext(batches))
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    def _entries(self, batch: list[log.RawMessage]) -> dict[str, log.Written]:
        """By key. Subjects with bytes that no key can have are not entries."""
        return {
            one.subject.removeprefix(self._prefix): log.Written(one.data, one.seq, one.recorded_at)
            for one in batch
            if "\\" not in one.subject
        }
