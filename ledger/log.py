"""The interface to the broker: all that the ledger needs of a log.

It has two implementations, `nats/jetstream.py` and its twin `in_memory.py`, held to the same tests
(`tests/ledger/test_log.py`). Only the administration of the broker (`ops/`) depends on `JetStream`
itself.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

from ayes.ledger import seal
from ayes.schemas.codec import Fact
from ayes.schemas.slots import ROOT, CallRef, Slot, ThreadRef


class Recorded(Struct, frozen=True):
    """The fact is recorded, as number `seq`."""

    seq: int


class AlreadyRecorded(Struct, frozen=True):
    """The same event was recorded before: a retry after a lost answer."""

    seq: int


class SlotTaken(Struct, frozen=True):
    """Another fact was first. Nothing was recorded."""

    first: Fact


class Overtaken(Struct, frozen=True):
    """There is a revocation of the call that the writer had not seen. Nothing was recorded."""


class Unconfirmed(Struct, frozen=True):
    """No answer came and the slot is empty. The fact may still arrive; a retry is safe."""

    why: str


#: Only after the first two is the fact recorded.
type AppendResult = Recorded | AlreadyRecorded | SlotTaken | Overtaken | Unconfirmed


class RawMessage(Struct, frozen=True, gc=False):
    """A message of the log, not decoded."""

    seq: int
    #: The broker's clock, UTC.
    recorded_at: datetime
    subject: str
    data: bytes
    #: What `recorded_at` leaves out: the nanoseconds since its microsecond.
    nanoseconds: int = 0
    #: If this fact fills a slot for the second time: the number of the first one, which has left
    #: the stream; else 0. Only reads from one number to the next, and deliveries, set it.
    first: int = 0

    @property
    def at_ns(self) -> int:
        """The broker's clock in full, in nanoseconds since 1970."""
        since = self.recorded_at - _EPOCH
        seconds = since.days * 86_400 + since.seconds
        return seconds * 1_000_000_000 + since.microseconds * 1000 + self.nanoseconds

    @property
    def leaf(self) -> bytes:
        """The bytes that stand for it in the seal of the log (`ledger/seal.py`)."""
        return seal.leaf(self.seq, self.at_ns, self.subject.encode(), self.data)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def identity_of(first: RawMessage) -> str:
    """The identity of a log: 32 hex digits of the SHA-256 of the leaf of its first fact.

    No two logs have the same, and neither settings nor upgrades, replicas, a move or a backup
    change it.
    """
    return hashlib.sha256(first.leaf).hexdigest()[:32]


class TimerFired(Struct, frozen=True):
    """A hint that a call's deadline has passed. Its receiver checks the facts."""

    call: CallRef
    seq: int
    recorded_at: datetime
    #: The trace context of what set the timer.
    trace: str = ""


type Delivered = Fact | TimerFired


class Mark(Struct, frozen=True):
    """The operator's word about a parked delivery."""

    consumer: str
    #: The number of the parked delivery.
    number: int
    #: `retry`: deliver it again. `drop`: it was seen to, and leaves the list.
    what: Literal["retry", "drop"]
    at: datetime
    reason: str = ""


class Parked(Struct, frozen=True):
    """A delivery that a consumer gave up on. Its payload is in the log, at `seq`."""

    consumer: str
    seq: int
    subject: str
    reason: str
    tries: int
    parked_at: datetime
    #: The fact is of a newer program. A worker that can read it tries it again by itself.
    newer: bool = False
    #: `again`: it is delivered again. `settled`: its consequences are in the ledger.
    state: Literal["parked", "again", "settled"] = "parked"
    #: Its sequence in the stream of parked deliveries, new with each change; 0: not stored yet.
    number: int = 0
    #: The last token of its subject, as its writer chose it.
    word: str = ""
    mark: Mark | None = None
    #: Not empty: it stands for all later facts, too, that a program with these versions, by type,
    #: cannot read.
    known: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether it still needs attention."""
        return self.state != "settled" and not (self.mark and self.mark.what == "drop")

    @property
    def is_waiting(self) -> bool:
        """Whether nobody has had it tried again, or dropped it."""
        return self.state == "parked" and self.mark is None

    @property
    def is_newer(self) -> bool:
        # Older entries say so in the reason alone.
        return self.newer or bool(self.known) or self.reason.endswith(NEWER)


NEWER: Final = "is newer than this program"


class Progress(Struct, frozen=True):
    """The progress of the workers of a durable subscription."""

    #: Every fact of theirs up to this sequence is acknowledged.
    acknowledged: int
    #: Facts that were not delivered yet.
    waiting: int
    #: Facts that were delivered and are not acknowledged.
    in_hand: int


class Delivery(Protocol):
    """A delivery to a consumer, to be acknowledged once its consequences are in the ledger.

    Consumers of parked deliveries receive entries that are to be tried again, and marks.
    """

    @property
    def handed(self) -> Delivered | Parked | Mark: ...

    @property
    def number(self) -> int:
        """Its sequence in its stream."""
        ...

    @property
    def tries(self) -> int:
        """The number of times it was delivered, this one included."""
        ...

    async def ack(self) -> None: ...

    async def retry(self, after_s: float) -> None: ...

    async def in_progress(self) -> None:
        """Tell the broker that the work goes on, so that it does not deliver it to another worker.

        Raises:
            Unavailable: the broker did not confirm it.
        """
        ...


class Change(Struct, frozen=True):
    """A change of a bucket, by key. Empty bytes: the entry is deleted."""

    entries: dict[str, bytes]
    #: Whether these are all entries, and replace those of earlier changes.
    whole: bool
    #: Every write up to this revision is in this change or an earlier one.
    revision: int = 0


class Written(Struct, frozen=True):
    """An entry of a bucket."""

    value: bytes
    revision: int
    #: The broker's clock, UTC.
    at: datetime


class Bucket(Protocol):
    """A bucket with one key per call: `pending` approvals, or calls that are `running`.

    A write names the revision that it replaces (0: none) and returns whether it succeeded, so two
    copies of a projector cannot undo each other's work.
    """

    async def get(self, key: str) -> tuple[bytes, int]:
        """Value and revision, as the leader has them; empty bytes if there is no entry."""
        ...

    async def put(self, key: str, value: bytes, replaces: int) -> bool: ...

    async def overwrite(self, key: str, value: bytes) -> None: ...

    async def delete(self, key: str, replaces: int) -> bool: ...

    async def entries(self) -> dict[str, bytes]: ...

    async def written(self) -> dict[str, Written]:
        """As `entries`, with the revision and time of the last write of each."""
        ...

    def follow(self) -> AsyncGenerator[Change]:
        """All entries, then changes, for ever; all entries again if a change may be missing."""
        ...


class FactReader(Protocol):
    """A source of facts: the broker, or a replica of the log."""

    async def latest(self, subjects: str) -> Fact | None:
        """The newest fact on the subjects (wildcards allowed)."""
        ...

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        """Every fact on the subjects (wildcards allowed), in log order, as of one moment."""
        ...


#: Bytes of live messages that wait for a subscriber. While as many do, new ones are dropped.
MAX_LIVE_BYTES: Final = 256 * 1024


class LiveMessages:
    """The live messages of one subscriber, in order."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0

    def put(self, message: bytes) -> None:
        """Add a message, or drop it if the subscriber does not keep up."""
        if self._bytes < MAX_LIVE_BYTES:
            self._bytes += len(message)
            self._waiting.put_nowait(message)

    async def get(self) -> bytes:
        """Wait for the next message. A call that is cancelled loses none."""
        message = await self._waiting.get()
        self._bytes -= len(message)
        return message


class Deliveries(Protocol):
    """What the broker hands to durable consumers: facts, and timers; and what they gave up."""

    def deliveries(self, durable: str) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """The deliveries to a durable consumer. After closing, those in hand stay valid."""
        ...

    async def set_timer(self, call: CallRef, at: datetime, trace: str = "") -> None: ...

    async def cancel_timer(self, call: CallRef) -> None: ...

    async def park(self, parked: Parked) -> bool:
        """Store a parked delivery. With a number it replaces that entry: False if it is gone.

        Raises:
            LedgerFull: its consumer has as many as it may. No entry gives way to another.
        """
        ...

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[Parked]:
        """The open parked deliveries, oldest first; with `whole` also those settled or dropped."""
        ...

    async def parked_at(self, number: int) -> Parked | None:
        """The parked delivery of that number; None if it has changed since."""
        ...

    async def mark(self, mark: Mark) -> None:
        """Note the operator's word about an entry, unless it has changed since. One that belongs to
        no consumer is deleted.

        Raises:
            BadInput: the reason is too long.
        """
        ...

    async def progress(self, durable: str) -> Progress | None:
        """The progress of a durable subscription to the facts; None if it does not exist."""
        ...


class Buckets(Protocol):
    """The values that are kept beside the facts, and can be made again out of them."""

    @property
    def pending(self) -> Bucket: ...

    @property
    def running(self) -> Bucket:
        """Claims that services renew, and the index of `consumers/doubt.py`."""
        ...


class Files(Protocol):
    """The store of the files in calls and results (`ledger/files.py`)."""

    def file_place(self, digest: str) -> str:
        """A place for a file in the store, as `Stored.place`: no other role may fill it, and no
        other process can know it before. The same for the same bytes, for an hour at most.
        """
        ...

    async def keep_piece(self, subject: str, piece: bytes) -> bool:
        """Store a piece of a file (`ledger/files.py`); False if its place was filled before.

        Raises:
            LedgerFull: the store of files has no room.
            Unavailable: not acknowledged.
        """
        ...

    async def piece(self, subject: str) -> bytes | None:
        """A piece of a file, as the leader has it; None if there is none."""
        ...


class Live(Protocol):
    """Messages that are not stored: replies of models while they are made."""

    async def publish_live(self, subject: str, body: bytes) -> None:
        """Publish to the subscribers of this moment. The message is not stored, and no subscriber
        is waited for; while the connection is slow, the call waits.

        Raises:
            Unavailable: the broker is away; the message is lost.
        """
        ...

    def subscribe_live(self, subject: str) -> AbstractAsyncContextManager[LiveMessages]:
        """The messages on this subject from now on. Some are missing after a lost connection, or if
        they are not read as fast as they arrive.

        Raises:
            Unavailable: the connection is closed.
        """
        ...


class EventLog(FactReader, Deliveries, Buckets, Files, Live, Protocol):
    """The log and what belongs to it, for one reader and writer (docs/decisions/0026).

    The leader answers `latest`, so it is current. A replica that is behind may answer `read`: the
    result includes all that this client knows to be recorded, by an append, a delivery, a read or
    `last_seq`, and perhaps nothing newer. An empty result is always the leader's.
    """

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        """Fill a slot. Safe to repeat.

        Args:
            after: the last revocation of the slot's call that the writer has seen, void or not, by
                its number; 0 for none. If there is a later one, the broker records nothing
                (decision 0053).
        """
        ...

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        """As `read`, without decoding and in no order; None if it is too much for one answer."""
        ...

    async def at(self, seq: int) -> RawMessage | None:
        """The message of that number."""
        ...

    async def remove(self, thread: ThreadRef, number: int) -> None:
        """Remove from the stream what is in the pack of that number, and nothing else. Reads of
        the thread, and of one of its calls, give it as before. Safe to repeat.

        Raises:
            BadInput: the thread has no pack of that number.
            BrokerRefused: the stream does not allow it (`deny_purge`), or not with this login.
        """
        ...

    async def last_seq(self) -> int:
        """The number of the leader's last fact. Later reads are as of at least this one."""
        ...

    async def identity(self) -> str:
        """The identity of the log (`identity_of` its first fact); empty before that.

        Raises:
            BrokerRefused: there is no log.
        """
        ...

    @property
    def server_version(self) -> str:
        """The version of the broker, such as `2.15.0`."""
        ...

    async def clock(self) -> datetime:
        """The time on the broker's clock, which `recorded_at` uses."""
        ...

    def scan(self, start: int, subjects: str = f"{ROOT}.>") -> AsyncGenerator[list[RawMessage]]:
        """The messages from that number to the end, in pages; unlike `raw` without a consumer."""
        ...

    def raw(
        self, start: int, subjects: tuple[str, ...] = (), *, until_end: bool
    ) -> AsyncGenerator[list[RawMessage]]:
        """As `follow`, from that number on, without decoding."""
        ...

    def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        """Facts from a number or time on, in log order, in batches as they arrive.

        One that fills a slot for the second time is in no slot, here and as a delivery
        (`ayes.schemas.codec.fact_of`).

        Args:
            subjects: none for all, which is faster: the broker need not count the matches.
            until_end: stop at the end of the log as of the start, instead of waiting for more.
        """
        ...
