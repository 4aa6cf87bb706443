"""The hostile broker with a log whose packed facts leave its stream (docs/decisions/0091).

`StreamBroker` keeps the stream as nats-server does: it refuses an append for its slot or for its
condition, forgets what is purged, and a node that is behind has what was purged since. So nothing
in it knows what a pack is. `StreamConnection` is the real `JetStream` on it, as one process has it:
its appends, reads and followers are those of the product, down to single requests. The rest
(deliveries, timers, buckets, what is parked) is that of `Connection`.

With `CALM` it is held to tests of the real log (`tests/ledger/test_packed_log.py` and others).
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, cast

from hostile import PATIENCE_S, Broker, Connection, Hostility, Process
from msgspec.structs import replace

from ayes.ledger import packs
from ayes.ledger.in_memory import _compiled, _head
from ayes.ledger.log import AppendResult, Delivery, Mark, Parked, Progress, RawMessage
from ayes.ledger.nats.api import Ack, ApiError, NatsReply, PubAckError
from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.group_commit import AMONG
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.key_value import REPLACES
from ayes.ledger.nats.streams import PACKED_LEVEL
from ayes.ledger.patience import while_away
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import CallRef, Slot

#: The longest time after which an append arrives whose program does not wait for it any more.
_LATE_S = 40.0
#: How long a program may be paused before an append; before a start twice as long.
_PAUSES_S = (5, 20, 35)
#: The most messages of a batch, the most that a node is behind, and the limit of `multi_last`.
_BATCH = 60
_BEHIND = 40
_FEW = 1000
#: How long a follower that reads until the end waits for a broker (`ordered_consumer.py`).
_CREATED_WITHIN_S = 9.0
_TAKEN = PubAckError(503, 10077, "maximum messages per subject exceeded")
_WRONG_LAST = PubAckError(400, 10071, "wrong last sequence")


class StreamBroker(Broker):
    """The log as a stream.

    Args:
        durables: the names of those that exist.
        options: as of `Broker`.
    """

    def __init__(
        self,
        seed: str,
        hostility: Hostility,
        *,
        durables: Collection[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(seed, hostility, **options)
        self.employed = frozenset(durables)
        #: By the number of a fact that was purged, the end of the log then.
        self.purged: dict[int, int] = {}

    async def publish(self, subject: str, raw: bytes, headers: Mapping[str, str]) -> Ack:
        """Store a message, unless its condition or its slot refuses it."""
        if (among := headers.get(AMONG)) is not None:
            newest = max(self._places(among), default=-1) + 1
            if newest != int(headers[REPLACES]):
                return Ack(error=_WRONG_LAST)
        if subject in self._by_subject:
            return Ack(error=_TAKEN)
        return Ack(seq=await self._record(subject, raw), stream=LEDGER)

    def purge(self, subjects: str, before: int) -> None:
        """Forget what is on the subjects before that number; it is delivered to nobody any more."""
        for subject in [self._raw[place].subject for place in self._places(subjects)]:
            standing = self._by_subject.get(subject)
            if standing is not None and standing.seq < before:
                self._forget(subject, standing.seq)

    def _forget(self, subject: str, seq: int) -> None:
        self._purge(subject, seq)
        self.purged[seq] = len(self._raw)
        for durable in self._durables.values():
            if durable.declared.stream == LEDGER and seq in durable.unsettled:
                durable.unsettled[seq].settle()

    def there(self, *subjects: str, start: int = 1, end: int | None = None) -> list[RawMessage]:
        """The messages that a node has, whose copy of the stream ends at that number."""
        last = len(self._raw)
        end = last if end is None else min(end, last)
        heads = {_head(one) for one in subjects}
        if start > 1 or any("*" in head or ">" in head for head in heads):
            among = range(max(start, 1), end + 1)
        else:
            late = (seq for seq, at in self.purged.items() if at > end)
            here = (place + 1 for head in heads for place in self._by_head.get(head, ()))
            among = sorted({*here, *late})
        fits = _compiled(subjects).fullmatch
        return [
            replace(self._raw[seq - 1], first=0)
            for seq in among
            if seq <= end
            and (seq not in self._removed or self.purged[seq] > end)
            and fits(self._raw[seq - 1].subject)
        ]

    def counted(self, subjects: str) -> dict[str, int]:
        return dict.fromkeys([self._raw[place].subject for place in self._places(subjects)], 1)

    async def news(self, end: int) -> None:
        """Wait until the log is longer."""
        async with self._grown:
            await self._grown.wait_for(lambda: len(self._raw) > end)


class StreamConnection(JetStream):
    """The log as one process sees it; parameters as of `Connection`."""

    def __init__(
        self,
        process: Process,
        told: Callable[[Slot, str, bytes, AppendResult], None] = lambda *_: None,
    ) -> None:
        super().__init__(cast(Any, _Link(process)))
        self._told = told
        self.beside = Connection(process)
        self.requests = _Requests(process, self)
        self.api = cast(Any, self.requests)
        self._commits = cast(Any, self.requests)
        self.pending, self.running = self.beside.pending, self.beside.running

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        answer = await super().append(slot, raw, event_id, after)
        self._told(slot, event_id, raw, answer)
        return answer

    async def each_from_leader(self, stream: str, subjects: Collection[str]) -> list[RawMessage]:
        """Of many, all at one moment: that takes one request in place of hundreds."""
        if len(subjects) < 4:
            return await super().each_from_leader(stream, subjects)
        broker = self.requests.broker
        return await self.requests.answer(lambda: broker.there(*sorted(subjects)))

    async def messages(
        self,
        stream: str,
        subjects: tuple[str, ...],
        start: int | datetime,
        *,
        until_end: bool,
        headers_only: bool = False,
    ) -> AsyncGenerator[list[RawMessage]]:
        """As `ordered_consumer.follow`: a new consumer after each time that no broker was there."""
        process, broker, stop = self.requests.process, self.requests.broker, None
        if isinstance(start, datetime):
            since = (raw.seq for raw in broker._raw if raw.recorded_at >= start)
            start = next(since, len(broker._raw) + 1)
        patience_s = _CREATED_WITHIN_S if until_end else None
        while True:
            create = partial(process.ask, broker.last_seq)
            last = await while_away(create, timeout_s=patience_s)
            stop = last if until_end and stop is None else stop
            await process.travel()
            while not process.is_cut_off:
                end = len(broker._raw) if stop is None else stop
                found = broker.there(*(subjects or (">",)), start=start, end=end)
                if batch := found[: process.lot.randint(1, _BATCH)]:
                    start = batch[-1].seq + 1
                    yield [replace(one, data=b"") for one in batch] if headers_only else batch
                elif until_end:
                    return
                else:
                    await broker.news(end)
                await process.travel()

    @asynccontextmanager
    async def deliveries(self, durable: str) -> AsyncGenerator[AsyncIterator[Delivery]]:
        async def deliver() -> AsyncIterator[Delivery]:
            async for one in given:
                if isinstance(one.handed, Fact):
                    one.handed = await self._as_delivered(one.number)
                    self._advance(one.number)
                yield one

        async with self.beside.deliveries(durable) as given:
            yield deliver()

    async def _as_delivered(self, seq: int) -> Fact:
        raw = replace(self.requests.broker._raw[seq - 1], first=0)
        [noted] = await self._noted([raw], patiently=True)
        return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data, noted.first)

    async def progress(self, durable: str) -> Progress | None:
        return await self.beside.progress(durable)

    async def set_timer(self, call: CallRef, at: datetime, trace: str = "") -> None:
        await self.beside.set_timer(call, at, trace)

    async def cancel_timer(self, call: CallRef) -> None:
        await self.beside.cancel_timer(call)

    async def park(self, parked: Parked) -> bool:
        return await self.beside.park(parked)

    async def parked(self, consumer: str = "*", *, whole: bool = False) -> list[Parked]:
        return await self.beside.parked(consumer, whole=whole)

    async def parked_at(self, number: int) -> Parked | None:
        return await self.beside.parked_at(number)

    async def mark(self, mark: Mark) -> None:
        await self.beside.mark(mark)


class _Requests:
    """Requests to the stream, as `Api` and `GroupCommit` make them."""

    jetstream = "$JS.API"

    def __init__(self, process: Process, log: StreamConnection) -> None:
        assert isinstance(process.broker, StreamBroker)
        self.process, self.broker, self._log = process, process.broker, log
        #: The end of the copy of a node that is behind, and until when that node answers.
        self._lagging = (0, 0.0)

    async def publish(
        self, subject: str, raw: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Ack:
        """As `Connection._append`, but it is for `JetStream` to find out what became of it."""
        process, how = self.process, self.broker.hostility
        publish = partial(self.broker.publish, subject, raw, headers)
        # It is paused just before it writes; and before a start, which no pack refuses, longer.
        is_start = AMONG in headers and not packs.number_of(headers[AMONG])
        if process.happens(how.lost * (10 if is_start else 1)):
            pause_s = process.lot.choice(_PAUSES_S) * (1 + is_start)
            process.paused_until = asyncio.get_running_loop().time() + pause_s
            self.broker.arrive(publish, pause_s)
            await process.travel()
            raise BrokerAway("it is too late for an answer.")
        await process.travel()
        if process.is_cut_off or process.happens(how.lost):
            if process.happens(how.later):
                self.broker.arrive(publish, process.lot.uniform(0, _LATE_S))
        else:
            ack = await publish()
            await process.travel()
            if not (process.is_cut_off or process.happens(how.unanswered)):
                return ack
        await process.sleep(process.lot.uniform(0.1, PATIENCE_S))
        raise BrokerAway("no answer came.")

    async def answer[T](self, read: Callable[[], T], *, times: int = 2) -> T:
        """The answer to a request, which is sent so often while none comes."""

        async def asked() -> T:
            return read()

        for _ in range(times - 1):
            with suppress(BrokerAway):
                return await self.process.ask(asked)
        return await self.process.ask(asked)

    async def call(
        self, subject: str, body: Any = None, *, repeat: bool = False, patience_s: float = 0
    ) -> dict[str, Any]:
        """What the leader answers."""
        answer = partial(self._answer, subject.split("."), body or {})
        found = await self.answer(answer, times=2 if repeat else 1)
        if "error" in found:
            raise ApiError(subject, found["error"])
        return found

    def _answer(self, words: list[str], body: dict[str, Any]) -> dict[str, Any]:
        broker = self.broker
        match words, body:
            case ["STREAM", "INFO", _], _:
                counted = broker.counted(body["subjects_filter"]) if body else {}
                page = dict(islice(counted.items(), body.get("offset", 0), None))
                level = {"ayes-level": str(PACKED_LEVEL)}
                return {
                    "config": {
                        "name": LEDGER,
                        "num_replicas": 1,
                        "metadata": level,
                        "max_bytes": 0,
                    },
                    "state": {"first_seq": 1, "last_seq": len(broker._raw), "subjects": page},
                    "total": len(counted),
                    "ts": _text(broker._now()),
                }
            case ["STREAM", "MSG", "GET", _], {"last_by_subj": subjects}:
                return _message(broker.there(subjects)[-1:])
            case ["STREAM", "MSG", "GET", _], {"next_by_subj": subjects, "seq": seq}:
                return _message(broker.there(subjects, start=seq)[:1])
            case ["STREAM", "MSG", "GET", _], {"seq": seq}:
                found = broker.there(">", start=seq, end=seq)
                return _message([] if seq in broker._removed else found)
            case ["STREAM", "DELETE" | "CREATE", _], _ if not broker._raw:
                return {}
            case ["STREAM", "PURGE", _], {"filter": subject, "seq": before}:
                broker.purge(subject, before)
                return {}
            case ["CONSUMER", "INFO", _, name], _ if name in broker.employed:
                progress = broker._durables[name].progress()
                return {
                    "ack_floor": {"stream_seq": progress.acknowledged},
                    "num_pending": progress.waiting,
                    "num_ack_pending": progress.in_hand,
                }
            case ["CONSUMER", "INFO", *_], _:
                return {"error": {"code": 404, "err_code": 10014, "description": "not found"}}
            case _:
                raise AssertionError(f"{words} {body}")

    async def collect(self, subject: str, payload: bytes, new: Callable[[], Any]) -> Any:
        """What any node answers to a direct get."""
        return await self.answer(lambda: self._collected(json.loads(payload), new()))

    def _collected(self, body: dict[str, Any], found: Any) -> tuple[Any, NatsReply]:
        end, left = self._nodes_end(), 0
        if (subjects := body.get("multi_last")) is not None:
            messages = self.broker.there(*subjects, end=end)
            if len(messages) > _FEW:
                return found, NatsReply(b"", b"NATS/1.0 413 Too Many Results\r\n\r\n")
        else:
            every = self.broker.there(body["next_by_subj"], start=body["seq"], end=end)
            messages = every[: min(self.process.lot.randint(1, _BATCH), body["batch"])]
            left = len(every) - len(messages)
        if not messages:
            return found, NatsReply(b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
        found.messages = messages
        head = f"Nats-Num-Pending: {left}\r\nNats-UpTo-Sequence: {end}\r\n\r\n"
        return found, NatsReply(b"", b"NATS/1.0 204 EOB\r\n" + head.encode())

    def _nodes_end(self) -> int:
        """The last fact of the node that answers; mostly it has what this client knows of."""
        process, how, last = self.process, self.broker.hostility, len(self.broker._raw)
        now_s = asyncio.get_running_loop().time()
        known = 0 if process.happens(how.lagging) else self._log._known_seq
        behind = process.lot.randint(max(known, last - _BEHIND), last)
        if process.happens(how.lagging):
            self._lagging = behind, now_s + process.lot.uniform(0, 1)
        if now_s < self._lagging[1]:
            return max(known, self._lagging[0])
        return behind if process.happens(how.stale) else last


class _Link:
    """The connection of a process to the broker."""

    login = Login("nats://simulated", user="service")
    inbox = "_INBOX"
    probe = None

    def __init__(self, process: Process) -> None:
        self._process = process
        self.client = self

    def on_denied(self, _listener: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return not self._process.is_cut_off

    @property
    def stats(self) -> dict[str, float]:
        """Another number after each time that the process was cut off."""
        return {"reconnects": self._process.cut_until}


def _message(found: list[RawMessage]) -> dict[str, Any]:
    if not found:
        return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
    [raw] = found
    data = base64.b64encode(raw.data).decode()
    at = _text(raw.recorded_at)
    return {"message": {"seq": raw.seq, "subject": raw.subject, "time": at, "data": data}}


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
