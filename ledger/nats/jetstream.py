"""The log over NATS JetStream.

Reads on a cluster (docs/decisions/0026): any replica answers a direct get, and it may lack a fact
that was acknowledged a millisecond ago. So each client remembers the last fact that it knows to be
recorded, by an acknowledgement, a delivery or a read, and accepts no older answer: a replica
reports how far it has the log (`Nats-UpTo-Sequence`). Only the leader is trusted that there is
nothing, and only if it counts nothing there: a message that is damaged on its disk is counted, and
every read answers as if it did not exist (docs/decisions/0055).
"""

import asyncio
import base64
import functools
import hmac
import math
import re
import secrets
import sys
import time
from collections import defaultdict, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import batched, filterfalse
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakValueDictionary

import msgspec
import nats.errors
from msgspec import structs

from ayes.ledger import clock, log, packs, subscriptions
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    LiveMessages,
    Overtaken,
    Recorded,
    SlotTaken,
    Unconfirmed,
)
from ayes.ledger.nats import scopes, streams
from ayes.ledger.nats.api import PASSING, Api, ApiError, NatsReply, PubAckError, by_leader
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.drift import check_own
from ayes.ledger.nats.group_commit import AMONG, IN_PROCESS, GroupCommit
from ayes.ledger.nats.key_value import REPLACES, KeyValue
from ayes.ledger.nats.ordered_consumer import Start, follow, meta
from ayes.ledger.nats.protocol import NatsMessage, subscription_number
from ayes.ledger.nats.refilled import Refilled
from ayes.ledger.nats.removed import KnownPacks, Removed, in_their_places
from ayes.ledger.patience import while_away
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import (
    BadId,
    BadInput,
    BrokerAway,
    BrokerRefused,
    LedgerFull,
    LogDamaged,
    LogLost,
    Unavailable,
)
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import (
    BUDGET,
    ORGANISATION,
    PACKED,
    POLICY,
    ROOT,
    STOP,
    CallRef,
    Slot,
    ThreadRef,
    matcher,
    matches,
    subject_text,
)

_log: Final = get_logger("ayes.ledger.nats.jetstream")

#: The wildcard over all facts.
_EVERY: Final = f"{ROOT}.>"
#: How long an append tries to find out whether it was recorded.
APPEND_PATIENCE_S: Final = 10.0
#: How long one attempt to connect to all servers may take, before the address is looked up again.
_ROUND_S: Final = 3.0
#: How long replicas may take to catch up with the last fact that this client knows of.
_CATCH_UP_S: Final = 5.0
#: The pauses between attempts of an append, which double.
_PAUSE_S: Final = 0.002
_MOST_PAUSE_S: Final = 0.05
#: Threads whose packs are remembered. To have none is nothing to remember.
_MOST_PACKED: Final = 2048
#: How long it is believed that no stop is missing in what is read.
_COUNTED_FOR_S: Final = 10.0
#: The pause between polls of who follows the log without a consumer.
_POLL_S: Final = 1.0
#: Bytes in the connection's buffer from which on a live message waits.
_MAX_LIVE_BYTES: Final = 64 * 1024
#: How long a durable may deliver nothing before its worker looks whether it is still there.
SILENCE_S: Final = 10.0
#: The server's limit of subjects for `multi_last` (ADR-31); larger results are read in pages.
_PAGE: Final = 1000
#: The first page of a part of a packed log: behind the part there may be packs alone, as large as
#: facts may be.
_PART: Final = 16
#: The subjects in one answer of the server. A longer list comes in several answers, and may lack
#: some if others are removed meanwhile (`JSMaxSubjectDetails` in server/jetstream_api.go, 2.15).
COUNTED_AT_ONCE: Final = 100_000
#: How far apart in the log facts may be that are removed with one request. The server reads the log
#: from the first of them to the last, and takes no append meanwhile (`PurgeEx` in
#: server/filestore.go).
_TOGETHER_WITHIN: Final = 50_000
#: Messages that the leader is asked for at a time, where no other node may answer.
_AT_ONCE: Final = 64
#: Facts that are read in a second in the background: a twentieth of a core.
READING_RATE: Final = 5_000
#: How long a node may take to learn that it is not the leader any more: nats-server looks every
#: 10 s whether it still has a majority (`lostQuorumInterval` in server/raft.go).
_DEPOSED_S: Final = 20.0
#: For how long a fact that is counted and not found is asked for again. Each time the leader would
#: have to be overtaken once more by such a node, and an append has to learn of damage in time.
_DAMAGED_S: Final = 4.0


class JetStream:
    """The log over one connection: `connect` makes a new one, `open` uses the given one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.api = Api(connection)
        self._commits = GroupCommit(self.api)
        self._secret = secrets.token_bytes(32)
        #: The last fact of the log that this client knows to be recorded.
        self._known_seq = 0
        #: Whether facts may have left the stream, and after how many reconnections that was read.
        self._is_packed: tuple[int, bool] | None = None
        #: By thread, what is known to be in its packs; by nothing, it has none.
        self._packed: dict[str, packs.PackedNames] = {}
        #: By thread, held by the writer that finds out what is in its packs.
        self._learning = WeakValueDictionary[str, asyncio.Lock]()
        self._refilled, self._known_packs = Refilled(self), self._no_packs()
        #: By wildcard over stops: when they were counted, and their subjects then.
        self._counted: dict[str, tuple[float, frozenset[str]]] = {}
        #: Creates the durables of this process again, if it has an administrator's login.
        self.declare: Callable[[], Awaitable[None]] | None = None
        self.pending = self.bucket("pending")
        self.running = self.bucket("running")

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        store: Path | str | None = None,
        *,
        url: str | None = None,
        role: str = "service",
        name: str = "",
        timeout_s: float | None = 3.0,
        any_level: bool = False,
    ) -> AsyncGenerator[Self]:
        """The log on a new connection; parameters and errors as of `LedgerClient.connect`.

        Args:
            any_level: do not ask for the level of the log. For programs that administer the broker,
                and work while no node can answer.
        """

        async def connect() -> Self:
            # Each time anew: a store has no address before its broker runs, and may have another.
            connection = Connection(Store.login_for(role, store=store, url=url))
            await connection.open(
                name=f"ayes {role} {name}".strip(), timeout_s=min(timeout_s or _ROUND_S, _ROUND_S)
            )
            try:
                jetstream = cls(connection)
                await jetstream.open()
                if not any_level:
                    streams.check_server(jetstream.server)
                    stream = await streams.info(
                        jetstream.api, f"STREAM.INFO.{subscriptions.LEDGER}"
                    )
                    streams.check_level(stream)
                    if stream is not None:
                        jetstream._is_packed = jetstream._reconnects, streams.is_packed(stream)
            except BaseException:
                await connection.close()
                raise
            return jetstream

        jetstream: Self = await while_away(connect, timeout_s=timeout_s)
        try:
            yield jetstream
        finally:
            await jetstream.connection.close()

    async def open(self) -> None:
        await self.api.start()

    def bucket(self, name: str) -> log.Bucket:
        """An existing key-value bucket."""
        return KeyValue(self, name)

    # -------------------------------------------------------------------------------------- writing

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        """Fill a slot. Unless the broker acknowledges it, the slot is read to find the outcome.

        Raises:
            LedgerFull: the log has no room, or its disk has none.
            BrokerRefused: the broker will never take it: permissions, no stream.
        """
        why, pause_s = "", _PAUSE_S
        try:
            async with asyncio.timeout(APPEND_PATIENCE_S):
                while True:
                    packed = await self._packed_beside(slot)
                    may_have_it = packed is not None and packed.may_have(slot)
                    if first := await self.read(slot.subject) if may_have_it else ():
                        return _refused(first[0], event_id)
                    error = None
                    try:
                        headers = _headers(slot, after, packed)
                        ack = await self._commits.publish(slot.subject, raw, headers)
                        if (error := ack.error) is None:
                            self._advance(ack.seq)
                            return Recorded(ack.seq)
                        why = error.description
                    except BrokerAway as away:
                        why = str(away)
                    is_busy = packed is not None and error and error.err_code == IN_PROCESS
                    if not is_busy or pause_s >= _MOST_PAUSE_S:
                        outcome = await self._outcome(slot, event_id, after, packed, error)
                        if outcome is not None:
                            return outcome
                    if await self._packed_beside(slot) is packed:  # nothing new was learned
                        pause_s = await _paused(pause_s)
        except (TimeoutError, BrokerAway):
            return Unconfirmed(why or "no answer from the broker")

    async def _outcome(
        self,
        slot: Slot,
        event_id: str,
        after: int | None,
        packed: packs.PackedNames | None,
        error: PubAckError | None,
    ) -> AppendResult | None:
        """What became of an append that was not acknowledged; None: try it again.

        The slot is taken, perhaps by this event before its answer was lost; or there is a new pack;
        or the refusal will pass (10164 on three replicas, 10201 in a batch). The leader is asked
        for the slot first: what has left it since is in the packs that are read afterwards.

        Raises:
            LedgerFull, BrokerRefused: as of `append`.
        """
        if error is not None and error.description == _FULL:
            raise LedgerFull(
                "the ledger is full: its stream has reached its limit of bytes (max_bytes), or "
                "`ayes up` refuses facts while the disk is nearly full. Nothing was recorded. "
                "`ayes doctor` says which: free some space, or raise the limit with `ayes setup "
                "--max-bytes`."
            )
        standing = await self._newest(subscriptions.LEDGER, slot.subject)
        is_wrong_last = error is not None and error.err_code == _WRONG_LAST
        about = slot.call_ref if after is not None else None
        if is_wrong_last and packed and not about and await self._learns(_thread(slot), packed):
            return None
        if standing is not None:
            self._advance(standing.seq)
            return _refused(_fact(standing), event_id)
        if is_wrong_last and about is not None:
            # The writer reads again, as of at least the fact that it had not seen.
            await self.latest(about.revocations)
            return Overtaken()
        if error is not None and error.err_code not in _PASSING:
            raise BrokerRefused(f"the broker refuses {slot.subject}: {error.description}.")
        return None

    async def _lets_go(self, *, patiently: bool = False) -> bool:
        """Whether facts may have left the stream. In another log that is restored here they may, so
        it is looked up after each lost connection.

        Args:
            patiently: wait for a broker that is away.
        """
        before = self._reconnects
        if self._is_packed is None or self._is_packed[0] != before:
            stream = await _waiting(self._ledger, patiently=patiently)
            self._is_packed = before, streams.is_packed(stream)
            self._refilled, self._known_packs = Refilled(self), self._no_packs()
            self._packed.clear()
        return self._is_packed[1]

    def _no_packs(self) -> KnownPacks:
        async def at(number: int) -> log.RawMessage | None:
            return await self._while_odd(
                functools.partial(self._at, number), lambda one: one is None
            )

        return KnownPacks(functools.partial(self.in_stream, size=1), at)

    @property
    def _reconnects(self) -> int:
        return self.connection.client.stats["reconnects"]

    async def _packed_beside(self, slot: Slot) -> packs.PackedNames | None:
        """What is known of the packs of the slot's thread; None: it cannot be in one."""
        if not self.connection.client.is_connected:  # it would be sent to whatever is there then
            self._is_packed = None
        if packs.is_packable(slot) and await self._lets_go(patiently=True):
            return self._packed.get(_thread(slot), packs.NONE)
        return None

    async def _learns(self, thread: str, known: packs.PackedNames) -> bool:
        """Whether the thread has packs after those; what is in them is known then.

        Raises:
            LogDamaged: the newest cannot be read.
        """
        # Many writers of one thread are refused at once; the first of them reads for all.
        async with self._learning.setdefault(thread, asyncio.Lock()):
            if self._packed.get(thread, packs.NONE).number > known.number:
                return True
            newest = await self._newest(subscriptions.LEDGER, f"{thread}.{PACKED}.*")
            if newest is None or packs.number_of(newest.subject) <= known.number:
                return False
            self._advance(newest.seq)
            self._remember(newest)
            return True

    def _remember(self, newest: log.RawMessage) -> None:
        """Keep what is in the packs of a thread, by the newest of them."""
        thread = _thread_of(newest.subject)
        names = packs.PackedNames.in_pack(newest)
        if self._packed.get(thread, packs.NONE).number <= names.number:
            self._packed.pop(thread, None)
            self._packed[thread] = names
        if len(self._packed) > _MOST_PACKED:
            del self._packed[next(iter(self._packed))]

    def _advance(self, seq: int) -> None:
        self._known_seq = max(self._known_seq, seq)

    # -------------------------------------------------------------------------------------- reading

    async def latest(self, subjects: str) -> Fact | None:
        message = await self._newest(subscriptions.LEDGER, subjects)
        # On a wildcard, a fact that has left the stream may be newer than this one; and in a slot
        # that was filled twice, the first fact counts, which is in a pack.
        is_one = False
        if message is not None and "*" not in subjects and ">" not in subjects:
            is_one = not (await self._noted([message]))[0].first
        if not is_one and await self._lets_go():
            message = await self._newest_packed(subjects, message)
        if message is None:
            return None
        self._advance(message.seq)
        return _fact(message)

    async def _newest(self, stream: str, subjects: str) -> log.RawMessage | None:
        """The newest message on the subjects, as the leader has it; None if it counts none."""
        message = await self.leaders_message(stream, last_by_subj=subjects)
        if message is None:
            there = await self.read_from_leader(stream, subjects)
            message = max(there, key=attrgetter("seq"), default=None)
        elif subjects.endswith(_NUMBERED):  # not by one that was before one that rotted
            counted = await self.counted(stream, subjects)
            if message.subject != max(counted, key=_version, default=""):
                there = await self.each_from_leader(stream, counted)
                message = max(there, key=attrgetter("seq"), default=message)
        return message

    async def _newest_packed(
        self, subjects: str, live: log.RawMessage | None
    ) -> log.RawMessage | None:
        """The newest of this message and those on the subjects that are in packs."""
        if live is not None and packs.number_of(live.subject):  # in the place of an older fact
            self._advance(live.seq)
            return (await self._every(subscriptions.LEDGER, (subjects,)) or [live])[-1]
        found = [] if live is None else [live]
        for wildcard in packs.packs_for((subjects,)):
            there = await self.counted(subscriptions.LEDGER, wildcard)
            thread, number = _thread_of(wildcard), max(map(packs.number_of, there), default=0)
            known = self._packed.get(thread, packs.NONE)
            if number > known.number and await self._learns(thread, known):
                known = self._packed[thread]
            if known.may_match(subjects):
                found += await self.each_from_leader(subscriptions.LEDGER, there)
        return max(packs.as_before(found, (subjects,)), key=attrgetter("seq"), default=None)

    async def leaders_message(self, stream: str, **which: str | int) -> log.RawMessage | None:
        """The message as the leader of the stream has it; None if it has none that it can read."""
        try:
            answer = await self.api.call(f"STREAM.MSG.GET.{stream}", which, repeat=True)
        except ApiError as problem:
            if problem.code == 404:
                return None
            if problem.code == 403:
                named = str(which.get("last_by_subj") or which.get("next_by_subj") or which)
                raise BrokerRefused(self._not_ours((named,))) from None
            raise
        message = answer["message"]  # in the words of the API (ADR-31)
        return log.RawMessage(
            message["seq"],
            _time(message["time"]),
            subject_text(message["subject"].encode()),
            base64.b64decode(message.get("data", "")),
            _nanoseconds(message["time"]),
        )

    async def stream_with(self, seq: int) -> dict[str, Any] | None:
        """The leader's description of a log that has this fact; `None` if there is no log."""
        ask = functools.partial(streams.info, self.api, f"STREAM.INFO.{subscriptions.LEDGER}")
        return await self._while_odd(
            ask, lambda stream: stream is not None and stream["state"]["last_seq"] < seq
        )

    async def _while_odd[T](
        self,
        ask: Callable[[], Awaitable[T]],
        is_odd: Callable[[T], bool],
        for_s: float = _DEPOSED_S,
    ) -> T:
        """An answer of the leader, in a cluster asked for again while it is odd.

        A node that was paused or cut off while another became the leader answers for the log as it
        had it, until it learns of that. So an odd answer is believed only if it stays for so long.
        """
        until = time.monotonic() + for_s
        while is_odd(answer := await ask()) and time.monotonic() < until:
            stream = await streams.info(self.api, f"STREAM.INFO.{subscriptions.LEDGER}")
            if stream is None or not stream.get("cluster", {}).get("replicas"):
                break
            await asyncio.sleep(0.5)
        return answer

    async def scan_leader(self, start: int) -> AsyncGenerator[list[log.RawMessage]]:
        """The facts from that number to the end, as the leader alone has them, in pages.

        Those that it cannot read are left out, so a number is missing.
        """
        stream = await self._ledger()
        if stream["config"]["num_replicas"] == 1:
            async with aclosing(self.scan(start)) as pages:
                async for page in pages:
                    yield page
            return
        async with aclosing(self._as_before(self._numbered(start), start)) as pages:
            async for page in pages:
                yield page

    async def _numbered(self, start: int) -> AsyncGenerator[list[log.RawMessage]]:
        """The messages from that number to the end, as the leader alone has them, in pages.

        The end is looked up again behind the last one: what left the stream meanwhile is in packs
        that come after it.
        """
        while start <= (last := await self.last_seq()):
            for some in batched(range(start, last + 1), _AT_ONCE, strict=False):
                found = await asyncio.gather(*map(self._at, some))
                if page := [one for one in found if one is not None]:
                    yield page
            start = last + 1

    async def in_packs(self, start: int, last: int) -> int:
        """How many facts are in the packs from one number to another, as the leader has them. They
        are counted whether they have left the stream or not.
        """
        count = 0
        while start <= last:
            pack = await self.leaders_message(
                subscriptions.LEDGER, seq=start, next_by_subj=packs.EVERY
            )
            if pack is None or pack.seq > last:
                break
            count, start = count + packs.size_of(pack), pack.seq + 1
        return count

    async def read_from_leader(self, stream: str, *subjects: str) -> list[log.RawMessage]:
        """Every message that the leader counts on the subjects, read from itself alone, but for
        those that are removed meanwhile.

        Raises:
            LogDamaged: it cannot read one of them.
        """
        found: dict[str, log.RawMessage] = {}
        for one in subjects:  # one after the other: packs after what may leave the stream
            names = {*await self.counted(stream, one)}.difference(found)
            found |= {raw.subject: raw for raw in await self.each_from_leader(stream, names)}
        return [*found.values()]

    async def counted(self, stream: str, subjects: str, *, odd: bool = False) -> list[str]:
        """The subjects that match and have a message, as the leader counts them.

        Args:
            odd: with those that have other than ASCII characters. They are no slots, and cannot be
                named in JSON.
        """
        found: list[str] = []
        while True:
            body = {"subjects_filter": subjects, "offset": len(found)}
            answer = by_leader(await self.api.call(f"STREAM.INFO.{stream}", body, repeat=True))
            found += (page := answer["state"].get("subjects") or {})
            if not page or len(found) >= answer["total"]:
                return [one for one in found if odd or one.isascii()]

    async def each_from_leader(
        self, stream: str, subjects: Collection[str]
    ) -> list[log.RawMessage]:
        """The messages on these subjects, without wildcards, read from the leader alone.

        Raises:
            LogDamaged: it counts one and cannot read it.
        """

        async def read(subject: str) -> tuple[log.RawMessage | None, bool]:
            message = await self.leaders_message(stream, last_by_subj=subject)
            return message, message is None and bool(await self.counted(stream, subject))

        async def one(subject: str) -> log.RawMessage | None:
            message, is_damaged = await self._while_odd(
                functools.partial(read, subject), itemgetter(1), _DAMAGED_S
            )
            if is_damaged:
                node = await self.leader(stream)
                raise LogDamaged(f"{subject} is counted there and cannot be read", node)
            return message

        found: list[log.RawMessage] = []
        for some in batched(sorted(subjects), _AT_ONCE, strict=False):
            each = await asyncio.gather(*map(one, some))
            found += [message for message in each if message is not None]
        return found

    async def read_each(self, subjects: Collection[str]) -> list[log.RawMessage]:
        """The messages of the ledger on these subjects, without wildcards, which the leader counts:
        from a replica, and from the leader what is missing there.

        Raises:
            LogDamaged: the leader cannot read one of those either.
        """
        found = list[log.RawMessage]()
        for some in batched(sorted(subjects), _PAGE, strict=False):
            found += await self._few(subscriptions.LEDGER, some) or ()
        missing = {*subjects}.difference(raw.subject for raw in found)
        return found + await self.each_from_leader(subscriptions.LEDGER, missing)

    async def leader(self, stream: str = subscriptions.LEDGER) -> str:
        """The name of the node that leads a stream."""
        answer = by_leader(await self.api.call(f"STREAM.INFO.{stream}", repeat=True))
        return str(answer["cluster"]["leader"])

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return tuple([_fact(one) for one in await self._every(subscriptions.LEDGER, subjects)])

    async def read_few(self, *subjects: str) -> list[log.RawMessage] | None:
        return await self._few_as_before(subscriptions.LEDGER, self._ours(subjects))

    async def _every(self, stream: str, subjects: tuple[str, ...]) -> list[log.RawMessage]:
        """Every message on the subjects, in the order of the stream."""
        if not (subjects := self._ours(subjects)):
            return []
        found = await self._few_as_before(stream, subjects)
        if found is None:
            found = [raw for one in subjects for raw in await self._in_pages(stream, one)]
            if inside := await self._packs_for(stream, subjects):
                # Afterwards, and from the leader: what left the stream meanwhile was packed before.
                found += await self.read_from_leader(stream, *inside)
                once = {raw.seq: raw for raw in found}
                found = packs.as_before([*once.values()], subjects)
        each = {raw.seq: raw for raw in found}
        return [each[seq] for seq in sorted(each)]

    async def _few_as_before(
        self, stream: str, subjects: tuple[str, ...]
    ) -> list[log.RawMessage] | None:
        """As `_few`, as if nothing had been packed."""
        inside = await self._packs_for(stream, subjects)
        if after := self._after_packs(subjects) if inside else ():
            live = await self._few(stream, (*subjects, *after)) or []
            is_there = any(packs.thread_of(raw.subject) for raw in live)
            if is_there and not any(packs.number_of(raw.subject) for raw in live):
                return live
        found = await self._few(stream, (*subjects, *inside))
        if not (inside and found):
            return found
        before = packs.as_before(found, subjects)
        for raw in found:
            if packs.number_of(raw.subject):
                self._remember(raw)
        if before:
            return before
        # There are packs. That there is nothing else is for the leader to say: packs come last, as
        # what is in them may have left the stream meanwhile.
        known = {raw.subject for raw in found}
        found += await self.read_from_leader(stream, *subjects)
        counted = [one for wildcard in inside for one in await self.counted(stream, wildcard)]
        found += await self.each_from_leader(stream, {*counted} - known)
        self._advance(max(one.seq for one in found))
        return packs.as_before(found, subjects)

    def _after_packs(self, subjects: tuple[str, ...]) -> tuple[str, ...]:
        """Of threads in which nothing on these subjects is in a pack, as far as is known, the packs
        that would come next; none if packs are to be read.
        """
        after = list[str]()
        for one in subjects:
            for wildcard in packs.packs_for((one,)):
                thread = _thread_of(wildcard)
                known = self._packed.get(thread, packs.NONE)
                if not known.number or known.may_match(one):
                    return ()
                after.append(f"{thread}.{PACKED}.{known.number + 1}")
        return tuple(dict.fromkeys(after))

    async def _packs_for(self, stream: str, subjects: tuple[str, ...]) -> tuple[str, ...]:
        """As `packs.packs_for`, of a log whose facts may leave its stream."""
        is_ledger = stream == subscriptions.LEDGER
        return packs.packs_for(subjects) if is_ledger and await self._lets_go() else ()

    async def _in_pages(self, stream: str, subjects: str) -> list[log.RawMessage]:
        counted = await self.counted(stream, subjects)
        found = [raw async for page in self.in_stream(1, subjects, stream) for raw in page]
        missing = {*counted}.difference(raw.subject for raw in found)
        return found + await self.each_from_leader(stream, missing)

    async def _few(self, stream: str, subjects: tuple[str, ...]) -> list[log.RawMessage] | None:
        """The last message on each subject, from a replica that is recent enough."""
        known = self._known_seq if stream == subscriptions.LEDGER else 0
        until = time.monotonic() + _CATCH_UP_S
        while True:
            found, last = await self._get(stream, subjects, multi_last=list(subjects))
            if last.status == b"413" or last.headers.get("Nats-Num-Pending", "0") != "0":
                return None
            is_found = last.status != b"404"
            if not is_found or int(last.headers["Nats-UpTo-Sequence"]) >= known:
                # A replica that lacks all of it, or cannot read one of them, does not say how far
                # it has the stream.
                if not is_found:
                    found = await self.read_from_leader(stream, *subjects)
                elif kept := [one for one in subjects if self._is_to_count(one, found)]:
                    begun = time.monotonic()
                    counted = {one: frozenset(await self.counted(stream, one)) for one in kept}
                    every = frozenset[str]().union(*counted.values())
                    missing = every.difference(raw.subject for raw in found)
                    found += await self.each_from_leader(stream, missing)
                    for one, names in counted.items():
                        if _is_of_stops(one):
                            self._counted[one] = begun, names
                if stream == subscriptions.LEDGER:
                    self._advance(max((one.seq for one in found), default=0))
                return found
            await self._retry_read(until, subjects)

    def _is_to_count(self, subjects: str, found: list[log.RawMessage]) -> bool:
        """Whether to compare what was found on these subjects with what the leader counts."""
        if not _is_kept(subjects):
            return False
        at, known = self._counted.get(subjects, (-math.inf, frozenset()))
        is_old = time.monotonic() - at > _COUNTED_FOR_S
        return is_old or not known.issubset(raw.subject for raw in found)

    async def scan(
        self,
        start: int,
        subjects: str = _EVERY,
        stream: str = subscriptions.LEDGER,
        *,
        before: int = sys.maxsize,
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """The messages from that number to the end, in pages; unlike `raw` without a consumer.

        A login with some workspaces only reads them one after the other.

        Args:
            before: the number behind the last one that is wanted.
        """
        size = _PART if before < sys.maxsize and await self._lets_go() else _PAGE
        for part in self._ours((subjects,)):
            pages = self.in_stream(start, part, stream, size=size)
            if stream == subscriptions.LEDGER:
                pages = self._as_before(_cut(pages, before), start, part, last=before - 1)
            async with aclosing(pages) as each:
                async for page in each:
                    yield page

    async def _as_before(
        self,
        pages: AsyncGenerator[list[log.RawMessage]],
        start: int | datetime,
        *subjects: str,
        last: int = sys.maxsize,
        patiently: bool = False,
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """Pages of the log on some subjects, or all, with what has left the stream in its place.

        Of the whole log each number is there, so packs are read only where one is missing.

        Args:
            last: the last number that is wanted.
            patiently: wait for a broker that is away, while it is asked for something else.
        """
        subjects = subjects or (_EVERY,)
        is_whole = _EVERY in subjects

        def new(start: int | datetime) -> Removed:
            return Removed(lambda: self._known_packs, self.first_since, subjects, start, last)

        removed = new(start)
        following = start if isinstance(start, int) else 0
        is_packed = removed.packs and await self._lets_go(patiently=patiently)
        end = min(await _waiting(self.last_seq, patiently=patiently), last) if is_packed else 0

        async def filled(
            page: list[log.RawMessage], begin: int, behind: int
        ) -> AsyncGenerator[list[log.RawMessage]]:
            """A page with what has left the stream between two numbers, in parts."""
            nonlocal removed
            is_again = False
            while begin < behind:
                found = functools.partial(removed.up_to, behind - 1)
                more, until = await _waiting(found, patiently=patiently)
                part = in_their_places([one for one in page if begin <= one.seq <= until], more)
                if is_whole and begin and len(part) <= until - begin and not is_again:
                    # A replica that cannot read a pack passes over it: another one may answer now.
                    self._known_packs, removed, is_again = self._no_packs(), new(begin), True
                    continue
                if part:
                    yield part
                begin, is_again = until + 1, False

        async with aclosing(pages) as each:
            async for page in each:
                begin, following = following, page[-1].seq + 1
                is_dense = is_whole and following - begin == len(page)
                noted = await self._noted(page, patiently=patiently)
                if is_dense or not (removed.packs and await self._lets_go(patiently=patiently)):
                    removed.skip(following - 1)
                    yield noted
                else:
                    async with aclosing(filled(noted, begin, following)) as parts:
                        async for part in parts:
                            yield part
        if following <= end:
            async with aclosing(filled([], following, end + 1)) as parts:
                async for part in parts:
                    yield part

    async def _noted(
        self, page: list[log.RawMessage], *, patiently: bool = False
    ) -> list[log.RawMessage]:
        """Messages of the stream, each that fills a slot again with the number of the first.

        Args:
            patiently: wait for a broker that is away.
        """
        if not await self._lets_go(patiently=patiently):
            return page
        noted = functools.partial(self._refilled.noted, page)
        return await _waiting(noted, patiently=patiently)

    @property
    def every_pack(self) -> tuple[str, ...]:
        """The wildcards over all packs that this login may read."""
        return self._ours((packs.EVERY,))

    async def in_stream(
        self,
        start: int = 1,
        subjects: str = _EVERY,
        stream: str = subscriptions.LEDGER,
        *,
        size: int = _PAGE,
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """The messages from that number to the end that the stream itself has, in pages.

        Args:
            size: the messages of the first page; each may be twice as long as the one before it.
                Who stops behind some messages has then received twice as many at most.
        """
        seq = start
        until = time.monotonic() + _CATCH_UP_S
        # Said so, the server counts the rest by blocks, and not by subjects: at a million facts a
        # page takes 20 ms, and not 600 (`NumPending` in server/filestore.go, 2.15).
        which = ">" if (stream, subjects) == (subscriptions.LEDGER, _EVERY) else subjects
        while True:
            asked = {"next_by_subj": which, "batch": size}
            page, last = await self._get(stream, (subjects,), seq=seq, **asked)
            if page:
                yield page
                size = min(2 * size, _PAGE)
                seq = page[-1].seq + 1
                until = time.monotonic() + _CATCH_UP_S
                if stream == subscriptions.LEDGER:
                    self._advance(page[-1].seq)
            if page and last.headers.get("Nats-Num-Pending", "0") != "0":
                continue
            if await self.leaders_message(stream, seq=seq, next_by_subj=subjects) is None:
                return
            await self._retry_read(until, (subjects,))

    async def _retry_read(self, until: float, subjects: Collection[str]) -> None:
        """Wait until another replica may answer, or the one that is behind has caught up."""
        if time.monotonic() > until:
            raise BrokerAway(
                f"{', '.join(subjects)} cannot be read yet: the replicas that answer are behind."
            )
        await asyncio.sleep(0.005)

    async def at(self, seq: int) -> log.RawMessage | None:
        message = await self._at(seq)
        if message is not None:
            return (await self._noted([message]))[0]
        if not await self._lets_go():
            return None
        if (message := await self._in_pack(seq)) is None:
            self._known_packs = self._no_packs()  # as in `_as_before`
            message = await self._in_pack(seq)
        return message

    async def _in_pack(self, seq: int) -> log.RawMessage | None:
        """The message of that number, out of a pack."""
        known = self._known_packs
        for wildcard in self.every_pack:
            async with aclosing(known.behind(seq + 1, wildcard, seq, seq)) as parts:
                async for _, some in parts:
                    for _, _, number in some:
                        every = packs.unpacked(await known.pack(number))
                        if message := next((one for one in every if one.seq == seq), None):
                            return message
        return None

    async def _at(self, seq: int) -> log.RawMessage | None:
        return await self.leaders_message(subscriptions.LEDGER, seq=seq)

    async def remove(
        self, thread: ThreadRef, number: int, live: Mapping[str, int] | None = None
    ) -> None:
        """Remove the facts of a pack from the stream.

        Args:
            live: all subjects of the thread that have a message, with its number; 0 if that is not
                known. Facts whose subjects differ in the name of their call, turn or message only
                are then removed with one request, up to what is not in the pack, if they are not
                too far apart.
        """
        subject = thread.packed(number).subject
        pack = await self.leaders_message(subscriptions.LEDGER, last_by_subj=subject)
        if pack is None:
            raise BadInput(f"{thread} has no pack {number}.")
        facts = packs.unpacked(pack)
        inside = {one.seq for one in facts}
        alike = defaultdict[str, list[int]](list)
        for subject, seq in (live or {}).items():
            alike[_alike(subject)].append(seq)
        #: By such subjects, the first number that is not removed with one request.
        until = {
            one: min(filterfalse(inside.__contains__, numbers), default=math.inf)
            for one, numbers in alike.items()
            if max(numbers) - min(numbers) <= _TOGETHER_WITHIN
        }

        async def purge(subjects: str, last: int) -> None:
            upto = {"filter": subjects, "seq": last + 1}
            await self.api.call(f"STREAM.PURGE.{subscriptions.LEDGER}", upto)

        # The decisions first. A client that knows of no packs may claim a call whose claim has
        # left, since the broker takes the slot for free. If it finds the decision beside its claim,
        # then claims and revocations of before were there when it claimed (docs/services.md).
        # The heads last: a removal that was interrupted is found by them.
        heads = [one for one in facts if packs.is_head(one.subject)]
        others = [one for one in facts if not packs.is_head(one.subject)]
        for part in (filter(_is_decision, others), filterfalse(_is_decision, others), heads):
            up_to = dict[str, int]()
            for one in part:
                together = _alike(one.subject)
                is_alone = until.get(together, 0) < one.seq
                up_to[one.subject if is_alone else together] = one.seq
            for some in batched(up_to.items(), _AT_ONCE, strict=False):
                await asyncio.gather(*(purge(*one) for one in some))

    async def first_since(
        self, since: datetime, subjects: str, stream: str = subscriptions.LEDGER
    ) -> int:
        """The number from which on each message on the subjects, in the stream itself, was recorded
        at that time or later, and no message before it was.
        """
        state = by_leader(await self.api.call(f"STREAM.INFO.{stream}", repeat=True))["state"]
        low, high = int(state["first_seq"]), int(state["last_seq"]) + 1
        while low < high:
            middle = (low + high) // 2
            message = await self.leaders_message(stream, seq=middle, next_by_subj=subjects)
            if message is None or message.recorded_at >= since:
                high = middle
            else:
                low = message.seq + 1
        return low

    async def _get(
        self, stream: str, subjects: tuple[str, ...], *, seq: int = 0, **which: Any
    ) -> tuple[list[log.RawMessage], NatsReply]:
        body = ({"seq": seq} if seq else {}) | {"batch": _PAGE} | which
        found, last = await self.api.collect(
            f"{self.api.jetstream}.DIRECT.GET.{stream}",
            msgspec.json.encode(body),
            functools.partial(_DirectGet, stream, subjects, seq),
        )
        if last.status == b"403":
            raise BrokerRefused(self._not_ours(subjects))
        if last.status not in {b"204", b"404", b"413"}:
            raise BrokerAway(f"the broker cannot read {body}: {last.headers}.")
        return found.messages, last

    def _ours(self, subjects: tuple[str, ...]) -> tuple[str, ...]:
        """These patterns, or the parts of them that this login may read.

        What the organisation says of all people is left out: the gate judges by it.

        Raises:
            BrokerRefused: they are of other workspaces.
        """
        if not (own := self.connection.login.workspaces):
            return subjects
        user = self.connection.login.user
        parts = {one: scopes.within(one, own, user) for one in subjects}
        of_people = f"{ROOT}.{ORGANISATION}."
        for one, found in parts.items():
            if not found and not (one.startswith(of_people) and one.endswith(("*", ">"))):
                raise BrokerRefused(self._not_ours((one,)))
        return tuple(dict.fromkeys(part for found in parts.values() for part in found))

    def _not_ours(self, subjects: tuple[str, ...]) -> str:
        login = self.connection.login
        return (
            f"{login.user} may read the workspaces {', '.join(login.workspaces)} alone, and not "
            f"{', '.join(subjects)[:200]}."
        )

    async def _ledger(self) -> dict[str, Any]:
        stream = await streams.info(self.api, f"STREAM.INFO.{subscriptions.LEDGER}")
        if stream is None:
            raise BrokerRefused(
                f"there is no stream {subscriptions.LEDGER} here. `ayes up` creates it."
            )
        return by_leader(stream)

    async def last_seq(self) -> int:
        last = int((await self._ledger())["state"]["last_seq"])
        self._advance(last)
        return last

    async def identity(self) -> str:
        await self._ledger()  # there is one
        # The first that can be read: of a log that was accepted without its first fact, the next.
        first = await self.leaders_message(subscriptions.LEDGER, seq=1, next_by_subj=_EVERY)
        if first is not None and first.seq != 1:
            first = await self.at(1) or first
        return log.identity_of(first) if first else ""

    async def progress(self, durable: str) -> log.Progress | None:
        consumer = await streams.info(self.api, f"CONSUMER.INFO.{subscriptions.LEDGER}.{durable}")
        if consumer is None:
            return None
        return log.Progress(
            acknowledged=consumer["ack_floor"]["stream_seq"],
            waiting=consumer["num_pending"],
            in_hand=consumer["num_ack_pending"],
        )

    @property
    def server(self) -> tuple[int, ...]:
        """The version of the nats-server that this client is connected to."""
        version = self.connection.client.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def server_version(self) -> str:
        return streams.version_text(self.server)

    async def clock(self) -> datetime:
        return _time((await self._ledger())["ts"])

    async def follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[Fact]]:
        async with aclosing(self._follow(subjects, start, until_end=until_end)) as batches:
            async for batch in batches:
                yield [_fact(one) for one in batch]

    def raw(
        self, start: int, subjects: tuple[str, ...] = (), *, until_end: bool
    ) -> AsyncGenerator[list[log.RawMessage]]:
        return self._follow(subjects, start, until_end=until_end)

    async def _follow(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[log.RawMessage]]:
        login = self.connection.login
        may_not_consume = (login.role or login.user) == subscriptions.OPERATOR and not login.scope
        if isinstance(start, int) and may_not_consume:
            found = self._poll(subjects, start, until_end=until_end)
        else:
            found = self._in_order(subjects, start, until_end=until_end)
        async with aclosing(found) as batches:
            async for batch in batches:
                self._advance(batch[-1].seq)
                yield batch

    async def _in_order(
        self, subjects: tuple[str, ...], start: int | datetime, *, until_end: bool
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """Follow with a consumer."""
        own = self._ours(subjects or (_EVERY,))
        patiently = not until_end
        inside = packs.packs_over(own) if await self._lets_go(patiently=patiently) else ()
        if not inside or _EVERY in own or until_end:
            found = self.messages(subscriptions.LEDGER, subjects, start, until_end=until_end)
            filled = self._as_before(found, start, *own, patiently=patiently)
            async with aclosing(filled) as batches:
                async for batch in batches:
                    yield batch
            return
        # First what is there, also if nothing of it is in the stream any more. From then on packs
        # are followed as well: what left the stream before it was delivered is in one of them.
        position, end = start, 0
        while True:
            end = max(end, await while_away(self.last_seq))
            with suppress(BrokerAway):  # which is waited for above
                async with aclosing(self._in_order(subjects, position, until_end=True)) as batches:
                    async for batch in batches:
                        end, position = max(end, batch[-1].seq), batch[-1].seq + 1
                        yield batch
                break
        among = self._ours(packs.followed_with(own))
        found = self.messages(subscriptions.LEDGER, among, end + 1, until_end=False)
        async with aclosing(self._as_before(found, end + 1, *own, patiently=True)) as batches:
            async for batch in batches:
                if wanted := [one for one in batch if any(matches(i, one.subject) for i in own)]:
                    yield wanted

    async def _poll(
        self, subjects: tuple[str, ...], start: int, *, until_end: bool
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """Follow without a consumer, for who may not create one (`ops/broker/accounts.py`)."""
        position = start
        while True:
            async with aclosing(self.scan(position)) as pages:
                async for page in pages:
                    position = page[-1].seq + 1
                    if wanted := [
                        raw
                        for raw in page
                        if not subjects or any(matches(one, raw.subject) for one in subjects)
                    ]:
                        yield wanted
            if until_end:
                return
            await asyncio.sleep(_POLL_S)
            if (last := await while_away(self.last_seq)) < position - 1:
                raise LogLost(
                    f"{subscriptions.LEDGER} ends at {last}, and {position - 1} was read from it "
                    "before: it has lost its end, or it is another one. Start this again."
                )

    def messages(
        self,
        stream: str,
        subjects: tuple[str, ...],
        start: Start,
        *,
        until_end: bool,
        headers_only: bool = False,
    ) -> AsyncGenerator[list[log.RawMessage]]:
        """The messages of any stream, in order; parameters as of `follow`."""
        inbox = self.connection.inbox
        if self.connection.login.scope:
            subjects = self._ours(subjects or (_EVERY,))
        return follow(
            self.api,
            stream,
            subjects,
            inbox=inbox,
            start=start,
            until_end=until_end,
            headers_only=headers_only,
        )

    # ------------------------------------------------------------------------------------ consumers

    def _own(self, durable: str) -> subscriptions.Durable:
        """The subscription that workers of a kind have with this login."""
        login = self.connection.login
        return subscriptions.DURABLES[durable].of(login.user, login.workspaces)

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator[log.Delivery]]:
        consumer = self._own(durable)
        await check_own(self.api, consumer)
        arrived: deque[NatsMessage] = deque()
        something = asyncio.Event()
        own = f".{consumer.stream}.{consumer.name}.".encode()

        def take(message: NatsMessage) -> None:
            # Others may have the broker answer here; only its deliveries have this reply.
            if own in message[1]:
                arrived.append(message)
                something.set()

        async def deliver() -> AsyncIterator[log.Delivery]:
            is_there = True
            while True:
                while arrived:
                    is_fact = consumer.stream == subscriptions.LEDGER
                    first = await self._first_before(arrived[0]) if is_fact else 0
                    yield _Delivery(self, arrived.popleft(), first)
                something.clear()
                try:
                    async with asyncio.timeout(SILENCE_S):
                        await something.wait()
                except TimeoutError:
                    is_there = await self._declared(consumer, was_there=is_there)

        try:
            async with self.api.straight(
                streams.deliver_subject(consumer), take, queue=consumer.name
            ):
                yield deliver()
        finally:
            if not self.connection.client.is_closed:
                # Deliveries that were not begun go back at once, to be delivered to others.
                for _, reply, _, _ in arrived:
                    await self.api.tell(reply.decode(), b"-NAK")

    async def _first_before(self, message: NatsMessage) -> int:
        """The number of the fact that filled the slot of a delivered one before it; 0: none did."""
        if not await self._lets_go(patiently=True):
            return 0
        subject, reply, _, _ = message
        at = meta(reply.decode())
        raw = log.RawMessage(at.seq, at.recorded_at, subject_text(subject), b"")
        return (await self._noted([raw], patiently=True))[0].first

    async def _declared(self, durable: subscriptions.Durable, *, was_there: bool) -> bool:
        """Whether a durable exists. If an administrator deleted it, it is created again, by this
        process if it may: deliveries go on, since they go to the same subject.
        """
        try:
            what = f"CONSUMER.INFO.{durable.stream}.{durable.name}"
            if await streams.info(self.api, what) is not None:
                return True
            if self.declare is not None:
                await self.declare()
                _log.error("a consumer was deleted and is created again", consumer=durable.name)
                return True
        except Unavailable as problem:
            _log.warning("a consumer cannot be looked at", name=durable.name, problem=str(problem))
            return was_there
        if was_there:
            _log.error(
                "a consumer was deleted, so this worker receives nothing: `ayes setup` creates it",
                consumer=durable.name,
            )
        return False

    async def set_timer(self, call: CallRef, at: datetime, trace: str = "") -> None:
        """Have the broker deliver a hint at `at` (ADR-51). Setting it again replaces it."""
        headers = {
            "Nats-Schedule": f"@at {at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}",
            "Nats-Schedule-Target": _timer("due", call),
        }
        body = msgspec.json.encode(_Timer(str(call), trace))
        await self._publish(_timer("set", call), body, headers)

    async def cancel_timer(self, call: CallRef) -> None:
        await self.api.call(f"STREAM.PURGE.{subscriptions.TIMERS}", {"filter": _timer("set", call)})

    async def park(self, parked: log.Parked) -> bool:
        own = self._own(subscriptions.kind_of(parked.consumer))
        parked = structs.replace(parked, consumer=own.name)
        place = f"parked.{own.role}.{own.name}."
        if parked.number:
            headers = {REPLACES: str(parked.number)}
            return await self.replace(place + parked.word, _entry(parked), headers)
        for attempt in range(_PLACES_TRIED):
            word = f"{attempt}-{parked.seq}"
            entry = _entry(structs.replace(parked, word=word))
            while (replaces := await self._vacant(parked, place, word)) is not None:
                if await self.replace(place + word, entry, {REPLACES: str(replaces)}):
                    return True
        raise LedgerFull(
            f"{parked.consumer} has as many parked deliveries as it may, "
            f"{subscriptions.MAX_PARKED:,}: retry or drop some (ayes parked ls)."
        )

    async def _vacant(self, parked: log.Parked, subject: str, word: str) -> int | None:
        """What an entry of this place would replace: its number, or 0; None: one of another fact
        that is still open.
        """
        place = subscriptions.parked_place(word)
        last = await self.leaders_message(subscriptions.PARKED, last_by_subj=subject + place)
        standing = _parked(last) if last else None
        if last is None or not isinstance(standing, log.Parked) or not standing.consumer:
            return last.seq if last else 0
        is_same = (standing.seq, standing.known) == (parked.seq, parked.known)
        if is_same or not standing.is_open:
            return standing.number
        mark = await self.leaders_message(
            subscriptions.PARKED,
            last_by_subj=f"parked.{subscriptions.OPERATOR}.{parked.consumer}.{place}",
        )
        said = _parked(mark) if mark else None
        is_dropped = isinstance(said, log.Mark) and (said.number, said.what) == (
            standing.number,
            "drop",
        )
        return standing.number if is_dropped else None

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[log.Parked]:
        if consumer == "*" and self.connection.login.workspaces:
            raise BrokerRefused(self._not_ours(("parked.>",)))
        subjects = "parked.>" if consumer == "*" else f"parked.*.{self._own(consumer).name}.*"
        found = [_parked(one) for one in await self._every(subscriptions.PARKED, (subjects,))]
        marks = {one.number: one for one in found if isinstance(one, log.Mark)}
        every = (
            structs.replace(one, mark=marks.get(one.number))
            for one in found
            if isinstance(one, log.Parked)
        )
        return [one for one in every if whole or one.is_open]

    async def parked_at(self, number: int) -> log.Parked | None:
        found = await self.leaders_message(subscriptions.PARKED, seq=number)
        one = None if found is None else _parked(found)
        return one if isinstance(one, log.Parked) else None

    async def mark(self, mark: log.Mark) -> None:
        if not mark.consumer:
            await self.api.call(f"STREAM.MSG.DELETE.{subscriptions.PARKED}", {"seq": mark.number})
            return
        if (one := await self.parked_at(mark.number)) is None:
            return  # it has changed since, so the mark says nothing about it
        entry = msgspec.json.encode(mark)
        if len(entry) > subscriptions.PARKED_BYTES:
            raise BadInput("the reason is too long: write at most 500 characters.")
        subject = f"parked.{subscriptions.OPERATOR}.{mark.consumer}.{one.word}"
        await self._publish(subject, entry)

    async def publish_live(self, subject: str, body: bytes) -> None:
        client = self.connection.client
        # Facts go first: only a few live messages may wait in the connection's buffer.
        while client.pending_data_size > _MAX_LIVE_BYTES:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.02)
        if not client.is_connected:
            raise BrokerAway(f"no broker is there to publish {subject}.")
        try:
            await self.api.tell(subject, body)
        except nats.errors.Error as problem:
            raise BrokerAway(f"{subject} cannot be published: {problem}.") from None

    @asynccontextmanager
    async def subscribe_live(self, subject: str) -> AsyncGenerator[LiveMessages]:
        messages = LiveMessages()
        try:
            subscription = await self.connection.client.subscribe(subject)
        except nats.errors.Error as problem:
            raise BrokerAway(f"{subject} cannot be followed: {problem}.") from None
        number = subscription_number(subscription)

        def received(message: NatsMessage) -> None:
            _subject, reply, data, head = message
            if not (reply or head):  # else the broker's answer to a request with this reply subject
                messages.put(data)

        self.connection.straight[number] = received
        try:
            yield messages
        finally:
            self.connection.straight.pop(number, None)
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _publish(
        self, subject: str, raw: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish to one of the side streams.

        Raises:
            Unavailable: not acknowledged.
        """
        if not await self.replace(subject, raw, headers):
            raise BrokerRefused(f"the broker refuses {subject}: somebody else wrote it.")

    def file_place(self, digest: str) -> str:
        hour = int(clock.now().timestamp()) // 3600
        secret = hmac.digest(self._secret, f"{digest} {hour}".encode(), "sha256").hex()
        login = self.connection.login
        return f"{login.role or login.user or 'service'}.{secret[:32]}"

    async def keep_piece(self, subject: str, piece: bytes) -> bool:
        try:
            ack = await self.api.publish(subject, piece, patience_s=APPEND_PATIENCE_S)
        except BrokerAway:
            if await streams.info(self.api, f"STREAM.INFO.{streams.STORED}") is None:
                raise LedgerFull(
                    f"this ledger has no store of files (stream {streams.STORED}), so a fact with "
                    "a large file cannot be recorded. `ayes setup` creates it, where the disk has "
                    "room for it."
                ) from None
            raise
        if ack.error is None:
            return True
        if ack.error.description == _FULL:
            raise LedgerFull(
                f"the store of files is full: {streams.STORED} has reached its limit of bytes "
                "(max_bytes), or `ayes up` refuses facts while the disk is nearly full. Nothing "
                "was recorded."
            )
        if ack.error.err_code in _PASSING:  # taken, or it will pass
            if await self.piece(subject) is not None:
                return False
            raise BrokerAway(f"the broker does not take {subject} now: {ack.error.description}.")
        raise BrokerRefused(f"the broker refuses {subject}: {ack.error.description}.")

    async def piece(self, subject: str) -> bytes | None:
        found = await self._newest(streams.STORED, subject)
        return None if found is None else found.data

    async def replace(self, subject: str, raw: bytes, headers: Mapping[str, str] | None) -> bool:
        """Publish to one of the side streams.

        Returns whether it was stored: False where the stream does not hold the sequence that
        `REPLACES` in the headers names.

        Raises:
            Unavailable: not acknowledged.
        """
        ack = await self.api.publish(subject, raw, headers, APPEND_PATIENCE_S)
        if ack.error is None:
            return True
        if ack.error.err_code in _OUTRUN:
            return False
        if ack.error.code == 503:  # it is full, or lacks something for the moment
            raise BrokerAway(f"the broker did not take {subject}: {ack.error.description}.")
        raise BrokerRefused(f"the broker refuses {subject}: {ack.error.description}.")


#: The places that an entry tries: enough to find one while a tenth of them is free.
_PLACES_TRIED: Final = 48

#: A header that each fact is stored with. In a message without any, nats-server's checksum does not
#: cover where the subject ends and the data begins (`msgFromBufEx` in server/filestore.go): with a
#: flipped bit of the subject's length, the fact is on another subject and its slot is free.
_COVERED: Final = {"Ayes": "1"}
#: "wrong last sequence", compared with what is stored.
_WRONG_LAST: Final = 10071

#: The broker's text for a full stream. Its code, 10077, is also that of a taken slot.
_FULL: Final = "maximum bytes exceeded"


#: The ends of wildcards over facts of which the one with the highest number says what holds.
_NUMBERED: Final = (f".{POLICY}.*", f".{PACKED}.*")


def _alike(subject: str) -> str:
    """The wildcard over the subjects of a thread that differ in the name of their call only."""
    tokens = subject.split(".")
    tokens[4:5] = "*"
    return ".".join(tokens)


def _is_decision(raw: log.RawMessage) -> bool:
    return Slot.parse(raw.subject).tail[2:] == ("decided",)


def _thread_of(packed: str) -> str:
    """How the subjects of a thread begin, by that of a pack or the wildcard over its packs."""
    return packed.rpartition(f".{PACKED}.")[0]


def _thread(slot: Slot) -> str:
    return f"{ROOT}.{slot.workspace}.{slot.thread}"


def _headers(slot: Slot, after: int | None, packed: packs.PackedNames | None) -> dict[str, str]:
    """The headers of a fact, with what it may not be behind: a revocation, or else a pack after
    those that are known.
    """
    if after is not None and (about := slot.call_ref):
        return _COVERED | {REPLACES: str(after), AMONG: about.revocations}
    if packed is None:
        return _COVERED
    return _COVERED | {REPLACES: "0", AMONG: f"{_thread(slot)}.{PACKED}.{packed.number + 1}"}


async def _cut(
    pages: AsyncGenerator[list[log.RawMessage]], end: int
) -> AsyncGenerator[list[log.RawMessage]]:
    """The messages before that number."""
    async with aclosing(pages) as each:
        async for page in each:
            if wanted := [one for one in page if one.seq < end]:
                yield wanted
            if page[-1].seq >= end - 1:
                return


async def _waiting[T](ask: Callable[[], Awaitable[T]], *, patiently: bool) -> T:
    """An answer; if `patiently`, wait for a broker that is away."""
    return await (while_away(ask) if patiently else ask())


async def _paused(pause_s: float) -> float:
    """Wait before the next attempt; returns how long to wait before the one after it."""
    await asyncio.sleep(pause_s)
    return min(2 * pause_s, _MOST_PAUSE_S)


def _refused(first: Fact, event_id: str) -> AlreadyRecorded | SlotTaken:
    return AlreadyRecorded(first.seq) if first.event.id == event_id else SlotTaken(first)


def _version(subject: str) -> tuple[int, str]:
    number = subject.rpartition(".")[2]
    return len(number), number


def _is_kept(subjects: str) -> bool:
    """Whether these are policies, tools, grants, delegations or stops, read by a wildcard.

    Of a message whose subject rotted, such a read says nothing. They are read rarely, and what is
    missing among them would loosen something, so they are compared with what the leader counts.
    Stops are read with each call: they are compared some times a minute, and whenever one is
    missing that was there. A call and its budgets are read all the time; their damage is found by
    reading the whole log.
    """
    match subjects.split(".", 3):
        case [_, _, kind, tail]:
            return kind.startswith("_") and kind != BUDGET and ("*" in tail or ">" in tail)
        case _:
            return False


def _is_of_stops(subjects: str) -> bool:
    return subjects.split(".", 3)[2:3] == [STOP]


#: Refusals of a publish that may pass: nobody takes it, in process on a replica, a duplicate batch.
_PASSING: Final = PASSING | {0, IN_PROCESS, 10201, 10077, 10071}


class _Delivery:
    def __init__(self, jetstream: JetStream, message: NatsMessage, first: int = 0) -> None:
        subject, reply, data, _ = message
        self._requests = jetstream.api
        self._reply = reply.decode()
        at = meta(self._reply)
        self.tries = at.tries
        self.number = at.seq
        raw = log.RawMessage(at.seq, at.recorded_at, subject_text(subject), data, first=first)
        self.handed = _handed(raw)
        if isinstance(self.handed, Fact):
            jetstream._advance(at.seq)  # noqa: SLF001 - one object in two parts

    async def ack(self) -> None:
        await self._requests.tell(self._reply, b"+ACK")

    async def retry(self, after_s: float) -> None:
        await self._requests.tell(self._reply, b'-NAK {"delay": %d}' % int(after_s * 1e9))

    async def in_progress(self) -> None:
        # A request with an answer: without a connection nats-py would buffer a mere publish, and
        # the worker would believe that the delivery is still its own.
        await self._requests.ask(self._reply, b"+WPI")


#: Another writer was first: on one server 10071, on three mostly 10164.
_OUTRUN: Final = frozenset({10071, IN_PROCESS})


def _handed(raw: log.RawMessage) -> log.Delivered | log.Parked | log.Mark:
    """Decode a delivery. Never raises: an invalid one becomes a `Carried` fact."""
    match raw.subject.split("."):
        case ["timer", "due", workspace, thread, call]:
            with suppress(BadId):
                ref, trace = CallRef(workspace, thread, call), _timer_trace(raw.data)
                return log.TimerFired(ref, raw.seq, raw.recorded_at, trace)
        case ["parked", *_]:
            return _parked(raw)
        case _:
            pass
    return _fact(raw)


def _entry(parked: log.Parked) -> bytes:
    """As it is stored; reason and subject are cut where it would be too large."""
    for length in (2000, 600, 300):
        cut = {"reason": parked.reason[:length], "subject": parked.subject[:length]}
        entry = msgspec.json.encode(structs.replace(parked, **cut))
        if len(entry) <= subscriptions.PARKED_BYTES:
            break
    return entry


def _parked(raw: log.RawMessage) -> log.Parked | log.Mark:
    """Decode an entry of `PARKED`. Never raises: an invalid one has no consumer, and the reason.

    An entry counts only under the consumer's own role, which no other role can write.
    """
    match raw.subject.split("."):
        case ["parked", subscriptions.OPERATOR, name, place]:
            kind: type[log.Parked | log.Mark] = log.Mark
        case ["parked", role, name, place] if (
            known := subscriptions.DURABLES.get(subscriptions.kind_of(name))
        ) and known.role == role:
            kind = log.Parked
        case _:
            return _not_parked(raw, "there is no such consumer")
    try:
        found = msgspec.json.decode(raw.data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        return _not_parked(raw, str(problem))
    if isinstance(found, log.Mark):
        return found if found.consumer == name else _not_parked(raw, "it names another consumer")
    if (found.consumer, subscriptions.parked_place(found.word)) != (name, place):
        return _not_parked(raw, "it names another place than its subject does")
    return structs.replace(found, number=raw.seq, mark=None)


def _not_parked(raw: log.RawMessage, why: str) -> log.Parked:
    reason = f"this entry is not a valid parked delivery: {why}"
    return log.Parked("", 0, raw.subject, reason, 0, raw.recorded_at, number=raw.seq)


def _fact(raw: log.RawMessage) -> Fact:
    return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data, raw.first)


class _DirectGet:
    """The answers to a direct get (ADR-31): a chain of messages from that stream and on those
    subjects, and the status that ends it. Anything else is ignored.
    """

    def __init__(self, stream: str, subjects: tuple[str, ...], start: int) -> None:
        self.messages: list[log.RawMessage] = []
        #: How many come after the last one. That does not add up in a mixture of two answers.
        self._left = 0
        self._stream = stream.encode()
        self._start = start
        self._is_asked = matcher(subjects)

    def add(self, reply: NatsReply) -> bool:
        last = self.messages[-1].seq if self.messages else 0
        if status := reply.status:
            if status != b"204":
                return not status.startswith(b"1")  # a heartbeat ends nothing
            ended = _END.search(reply.head)
            # An end without messages is no answer: the broker says 404 if it finds none.
            if ended is None or not last or int(ended[2]) != last:
                return False
            is_of_several = b"\nNats-UpTo-Sequence:" in reply.head
            return bool(self._start) or (is_of_several and int(ended[1]) == self._left)
        found = _DIRECT.search(reply.head)
        if found is None or found[1] != self._stream or int(found[6]) != last:
            return False
        left = int(found[5])
        if last and left != max(self._left - 1, 0):
            return False
        seq, subject = int(found[3]), subject_text(found[2])
        if seq > last and seq >= self._start and self._is_asked(subject):
            self._left = left
            at = found[4].decode()
            self.messages.append(
                log.RawMessage(seq, _time(at), subject, reply.data, _nanoseconds(at))
            )
        return False


#: The headers that the broker adds after those of the publisher: stream, subject, sequence, time,
#: how many come after it, and the sequence of the answer before.
_DIRECT: Final = re.compile(
    rb"\nNats-Stream: ([^\r\n]*)\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)"
    rb"\r\nNats-Time-Stamp: ([^\r\n]*)\r\nNats-Num-Pending: (\d+)"
    rb"\r\nNats-Last-Sequence: (\d+)\r\n\r\n\Z"
)
_END: Final = re.compile(rb"\nNats-Num-Pending: (\d+)\r\nNats-Last-Sequence: (\d+)\r\n")


def _time(text: str) -> datetime:
    """Parse RFC 3339 with nanoseconds, cut to microseconds as everywhere else."""
    return datetime.fromisoformat(text)


def _nanoseconds(text: str) -> int:
    """What `_time` cuts off such a time, which ends in Z and leaves out zeros at its end."""
    return int(text[len("2026-01-01T00:00:00.000000") : -1].ljust(3, "0"))


class _Timer(msgspec.Struct, omit_defaults=True):
    """The body of a timer. Its subject names the call too, and that alone counts."""

    call: str
    trace: str = ""


def _timer_trace(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Timer).trace
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _timer(kind: str, call: CallRef) -> str:
    return f"timer.{kind}.{call.workspace}.{call.thread}.{call.call}"
