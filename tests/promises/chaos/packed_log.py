"""A log that was packed, as the stream itself has it: read with a raw client, and unpacked here.

Nothing here is shared with the code that packs and reads.
"""

import asyncio
import base64
import hashlib
import json
import ssl
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import batched, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.subscriptions import LEDGER

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InStream(NamedTuple):
    """A fact in the stream or in a pack."""

    seq: int
    at: datetime
    subject: str
    data: bytes


class PackedLog:
    """What is in the stream, and in the packs there."""

    def __init__(self, stream: Iterable[InStream]) -> None:
        self.stream = {one.seq: one for one in stream}
        self._packs = [one for one in self.stream.values() if _number(one.subject)]
        #: The facts of each pack, and each fact with the number of its pack.
        self._rows = {pack.seq: list(_rows(pack)) for pack in self._packs}
        self.inside = {one.seq: one for rows in self._rows.values() for one in rows}

    @property
    def left(self) -> int:
        """How many of the facts in packs are not in the stream any more."""
        return len(self.inside.keys() - self.stream.keys())

    def problems(
        self, journal: Iterable[dict[str, Any]], told: Sequence[RawMessage]
    ) -> Iterator[str]:
        """What is wrong with it.

        Args:
            journal: its lines about what was acknowledged; others are skipped.
            told: all facts, as the ledger reads them.
        """
        every = self.inside | self.stream
        last = max(every, default=0)
        yield from (f"{seq} is missing" for seq in range(1, last + 1) if seq not in every)
        yield from self._in_packs()
        at = defaultdict[str, list[int]](list)
        for seq in sorted(every):
            at[every[seq].subject].append(seq)
        yield from (f"{one} is filled by {found}" for one, found in at.items() if len(found) > 1)
        for line in journal:
            if line["kind"] == "acknowledged":
                found = every.get(line["seq"])
                digest = hashlib.sha256(found.data).hexdigest() if found else ""
                if found is None or (found.subject, digest) != (line["slot"], line["sha256"]):
                    yield f"{line['slot']} is not what was acknowledged as {line['seq']}"
        read = {one.seq: InStream(one.seq, one.recorded_at, one.subject, one.data) for one in told}
        differ = [seq for seq in every.keys() | read.keys() if every.get(seq) != read.get(seq)]
        yield from (f"the ledger reads {seq} otherwise" for seq in sorted(differ))

    def _in_packs(self) -> Iterator[str]:
        numbers = defaultdict[str, list[int]](list)
        packed_in = dict[int, str]()
        for pack in sorted(self._packs, key=lambda one: one.seq):
            numbers[pack.subject.rpartition(".")[0]].append(_number(pack.subject))
            rows = self._rows[pack.seq]
            order = [*(one.seq for one in rows), pack.seq]
            if any(one >= after for one, after in pairwise(order)):
                yield f"{pack.subject} has {order}"
            for one in rows:
                if one.seq in packed_in:
                    yield f"{one.seq} is in {packed_in[one.seq]} and in {pack.subject}"
                packed_in[one.seq] = pack.subject
                if self.stream.get(one.seq, one) != one:
                    yield f"{one.seq} is not the same in {pack.subject} as in the stream"
        for thread, found in numbers.items():
            if found != [*range(1, len(found) + 1)]:
                yield f"{thread} has {found}"


def _number(subject: str) -> int:
    """The number of the pack on this subject; 0 if it is none."""
    match subject.split("."):
        case [_, _, thread, "packed", number] if not thread.startswith("_"):
            return int(number)
        case _:
            return 0


def _rows(pack: InStream) -> Iterator[InStream]:
    thread = pack.subject.rsplit(".", 2)[0]
    content = zlib.decompress(base64.b64decode(json.loads(pack.data)["facts"]), wbits=31)
    for seq, at_ns, tail, data in msgspec.msgpack.decode(content):
        at = _EPOCH + timedelta(microseconds=at_ns // 1000)
        yield InStream(seq, at, f"{thread}.{tail}", data)


async def messages(store: Path) -> list[InStream]:
    """Everything that is in the stream of the log, as its leader has it."""
    login = Store(store).login("observer")
    client = await nats.connect(
        login.url.split(","),
        tls=ssl.create_default_context(cafile=login.ca) if login.ca else None,
        user=login.user,
        password=login.password,
        inbox_prefix=f"_INBOX.{login.user}._",
    )

    async def ask(what: str, **body: int) -> dict[str, Any]:
        reply = await client.request(
            f"$JS.API.STREAM.{what}.{LEDGER}", json.dumps(body).encode(), timeout=20
        )
        return dict(json.loads(reply.data))

    async def message(seq: int) -> InStream | None:
        answer = await ask("MSG.GET", seq=seq)
        if answer.get("error", {}).get("code") == HTTPStatus.NOT_FOUND:
            return None
        found = answer["message"]
        at = datetime.fromisoformat(found["time"])
        return InStream(seq, at, found["subject"], base64.b64decode(found.get("data", "")))

    try:
        last = (await ask("INFO"))["state"]["last_seq"]
        found = list[InStream]()
        for some in batched(range(1, last + 1), 200, strict=False):
            found += filter(None, await asyncio.gather(*map(message, some)))
        return found
    finally:
        await client.close()
