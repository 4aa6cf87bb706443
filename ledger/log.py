"""The seam to the broker: what the ledger asks of a log, and nothing else.

It has two implementations, `nats/jetstream.py` and its twin `in_memory.py`, held to the same tests
(`tests/test_port.py`). Nothing above this file knows which one it talks to; only what administers
the broker itself (`ops/`) takes a `JetStream` by its type.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef, Slot


class Recorded(Struct, frozen=True):
    """The fact stands, as number `seq`."""

    seq: int


class AlreadyRecorded(Struct, frozen=True):
    """This very event stood there before: a retry, after an answer that was lost."""

    seq: int


class SlotTaken(Struct, frozen=True):
    """Another fact was first; here it is. Nothing was recorded."""

    first: Fact


class Unconfirmed(Struct, frozen=True):
    """No answer came and the slot reads empty: the fact may still arrive. Appending it again is
    safe.
    """

    why: str


#: What an append answers. Only after the first two does the fact stand.
type AppendResult = Recorded | AlreadyRecorded | SlotTaken | Unconfirmed


class RawMessage(Struct, frozen=True, gc=False):
    """A message of the log as it stands there, nothing of it read."""

    seq: int
    #: The broker's clock, UTC.
    recorded_at: datetime
    subject: str
    data: bytes


class TimerFired(Struct, frozen=True):
    """A deadline's hint: the time of this call is up. Only a hint; whoever gets it reads the
    facts.
    """

    call: CallRef
    seq: int
    recorded_at: datetime


type Delivered = Fact | TimerFired


class Mark(Struct, frozen=True):
    """What the operator says about a parked delivery."""

    consumer: str
    #: Which one, by its number.
    number: int
    #: `retry`: hand it to its consumer again. `drop`: it was seen, and is taken off the list.
    what: Literal["retry", "drop"]
    at: datetime
    reason: str = ""


class Parked(Struct, frozen=True):
    """A delivery that a consumer gave up on: why, and which fact it was. The payload is in the log,
    at `seq`.
    """

    consumer: str
    seq: int
    subject: str
    reason: str
    tries: int
    parked_at: datetime
    #: The fact is of a newer program: whichever understands it tries it again by itself.
    newer: bool = False
    #: `again`: it is handed out again. `settled`: what follows from it is in the ledger.
    state: Literal["parked", "again", "settled"] = "parked"
    #: Where it stands among all that was parked; a new one whenever it changes. 0: nowhere yet.
    number: int = 0
    #: What the operator has said about it.
    mark: Mark | None = None

    @property
    def is_open(self) -> bool:
        """Is it still to be seen to?"""
        return self.state != "settled" and not (self.mark and self.mark.what == "drop")

    @property
    def is_newer(self) -> bool:
        # Before there was such a field, the reason said so.
        return self.newer or self.reason.endswith(NEWER)


NEWER: Final = "is newer than this program"


class Progress(Struct, frozen=True):
    """How far the workers of a durable subscription have come."""

    #: Every fact of theirs up to this sequence is acknowledged.
    acknowledged: int
    #: Facts that were not delivered to any of them yet, and those delivered and not acknowledged.
    waiting: int
    in_hand: int


class Delivery(Protocol):
    """Something handed to a consumer, to be acknowledged once its consequences are in the ledger.

    To those for what was parked, that is an entry which is to be tried again, or what the operator
    says of one.
    """

    @property
    def handed(self) -> Delivered | Parked | Mark: ...

    @property
    def number(self) -> int:
        """Its sequence in the stream that it comes from."""
        ...

    @property
    def tries(self) -> int:
        """How often it was handed out, this time included."""
        ...

    async def ack(self) -> None: ...

    async def retry(self, after_s: float) -> None: ...

    async def in_progress(self) -> None:
        """Tell the broker that it is still being worked on, so that nobody else gets it.

        Raises:
            Unavailable: the broker did not hear it.
        """
        ...


class Change(Struct, frozen=True):
    """What has changed in a bucket, by key. Empty bytes: the entry is gone."""

    entries: dict[str, bytes]
    #: These are all that there are, whatever was told before.
    whole: bool
    #: All writes up to this one are told, now and before.
    revision: int = 0


class Pending(Protocol):
    """The queue of open approvals: one key a call, a projection that can be rebuilt at will.

    Writes name the revision that they replace (0: there was none) and answer whether they won, so
    two copies of the projector cannot undo each other's work.
    """

    async def get(self, key: str) -> tuple[bytes, int]:
        """Value and revision, as the leader has them; empty bytes when there is no entry."""
        ...

    async def put(self, key: str, value: bytes, replaces: int) -> bool: ...

    async def delete(self, key: str, replaces: int) -> bool: ...

    async def entries(self) -> dict[str, bytes]: ...

    async def last_revision(self) -> int:
        """Of the last write that there was, be it one that took an entry off; 0 before the
        first.
        """
        ...

    def follow(self) -> AsyncGenerator[Change]:
        """All that there is, then what changes, for ever; and all there is again whenever something
        may have been missed.

        So whoever keeps what this tells has neither less nor more than there is.
        """
        ...


class FactReader(Protocol):
    """Where facts are read from: the broker, or what was heard from it."""

    async def latest(self, subjects: str) -> Fact | None:
        """The newest fact on a subject, or on any that a wildcard matches."""
        ...

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        """Every fact on the subjects (wildcards allowed), in the order of the log, as of the same
        moment.
        """
        ...


class EventLog(FactReader, Protocol):
    """The log, to one reader and writer (docs/decisions/0026).

    `latest` is answered by the leader, so it is as of now. `read` may be answered by a replica that
    is behind: it is as of at least all that this port was told of, by an append, a delivery, a read
    or `last_seq`, and maybe of no more. Only where it finds nothing at all, that is the leader's
    word.
    """

    async def append(self, slot: Slot, raw: bytes, event_id: str) -> AppendResult:
        """Fill a slot. Safe to repeat."""
        ...

    async def read_few(self, *subjects: str) -> list[RawMessage] | None:
        """As `read`, in no order, and nothing of it read; None where it is too much for one
        answer.
        """
        ...

    async def at(self, seq: int) -> RawMessage | None:
        """The message at that place of the log."""
        ...

    async def last_seq(self) -> int:
        """The last fact that the leader has. What is read afterwards is as of at least this one."""
        ...

    async def created(self) -> str:
        """When the log was created, as its broker writes it: no two logs have the same.

        Raises:
            BrokerRefused: there is no log.
        """
        ...

    async def progress(self, durable: str) -> Progress | None:
        """How far a durable subscription to the facts has come; None where there is none."""
        ...

    async def clock(self) -> datetime:
        """What time it is on the broker's clock, by which `recorded_at` is written."""
        ...

    def raw(self, start: int, *, until_end: bool) -> AsyncGenerator[list[RawMessage]]:
        """The messages of the log as they stand there, from that sequence on; as `follow`."""
        ...

    def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        """Facts from a sequence number or time on, in the order of the log, those together that
        came together.

        Args:
            subjects: none for all there are, which the broker answers sooner: it need not count
                what matches.
            until_end: stop at what was the end of the log when the reading began, instead of
                waiting for more.
        """
        ...

    def deliveries(self, durable: str) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """What a durable consumer is handed. Closing it stops the handing out; what is in hand
        stays so.
        """
        ...

    async def set_timer(self, call: CallRef, at: datetime) -> None: ...

    async def cancel_timer(self, call: CallRef) -> None: ...

    async def park(self, parked: Parked) -> bool:
        """Note what a consumer gave up on, or how it stands now. With a number it replaces that
        one: False if it is gone.
        """
        ...

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[Parked]:
        """What consumers gave up on, oldest first; with `whole`, also what was settled or dropped
        since.
        """
        ...

    async def parked_at(self, number: int) -> Parked | None:
        """The entry of that number, as it was written; None if it has changed since."""
        ...

    async def mark(self, mark: Mark) -> None:
        """Say what becomes of a parked delivery."""
        ...

    async def ask(self, subject: str, body: bytes, patience_s: float) -> bytes:
        """What a service answers (NATS ADR-32).

        Raises:
            BrokerAway: nobody is there who would, or nobody did within `patience_s`.
            BrokerRefused: the service answers that it cannot, or these credentials may not ask it.
        """
        ...

    @property
    def pending(self) -> Pending: ...
