"""Following a stream in order, without a gap, for as long as it takes.

An ephemeral push consumer without acknowledgements, as ADR-17 describes the "ordered consumer":
when a message is missing, or nothing is heard for two heartbeats, or the broker was away, it is
thrown away and a new one starts behind the last message that was seen. If the server does not
answer a ping either, on another server. A cluster places it on any node, also on one that fell
silent up to two minutes ago, and then nobody answers: another request soon follows, which chance
places elsewhere. nats-py has an ordered consumer too; its watchdog ends with the first reset that
gets no answer, and a follower whose broker restarts would then wait for ever.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.api import PATIENCE_S, Api, ApiError, by_leader, header_lines
from ayes.ledger.nats.protocol import NatsMessage
from ayes.ledger.patience import while_away
from ayes.schemas.errors import BrokerAway, BrokerRefused, LogLost
from ayes.schemas.ids import new_id
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import subject_text

_log: Final = get_logger("ayes.ledger.nats.ordered_consumer")
HEARTBEAT_S: Final = 1.0
#: How long each request for a consumer may take; a node that is away answers none.
_PATIENCE_S: Final = (1.0, 1.0, 1.0, 2.0, 4.0)
#: A reading to the end replaces its consumer after so many heartbeats without a message: the
#: messages that are missing may have left the stream (docs/decisions/0091), and the new consumer
#: says how many are left.
_IDLE: Final = 3
#: The largest batch of messages.
_TOGETHER: Final = 256
_CONTROL: Final = b"NATS/1.0 100"
_STORED: Final = b"$JS.ACK."
#: In a heartbeat of a consumer that waits for its reader.
_STALLED: Final = b"Nats-Consumer-Stalled"
#: "consumer not found"
_NO_CONSUMER: Final = 10014


class Meta(Struct, frozen=True, gc=False):
    """The metadata of a delivered message, from its reply subject."""

    tries: int
    seq: int
    recorded_at: datetime


def meta(reply: str) -> Meta:
    """Read `$JS.ACK.[domain.account.]stream.consumer.tries.seq.delivery.time.left` (ADR-15)."""
    tokens = reply.split(".")
    tries, seq, _delivery, time, _left = tokens[4:9] if len(tokens) == 9 else tokens[6:11]
    return Meta(int(tries), int(seq), _time(time))


def _time(nanoseconds: str | bytes) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) // 1000 / 1e6, UTC)


type Start = int | datetime


async def follow(
    requests: Api,
    stream: str,
    subjects: tuple[str, ...],
    *,
    inbox: str,
    start: Start,
    until_end: bool,
    headers_only: bool = False,
) -> AsyncGenerator[list[RawMessage]]:
    """Messages of `stream` in order, in batches as they arrive.

    Args:
        subjects: none for all, which is faster: the broker need not count the matches.
        start: a sequence or a time.
        until_end: stop at the end of the stream as of the start.
        headers_only: the broker leaves the payloads out.
    """
    position = start
    stop: int | None = None
    options: dict[str, Any] = {"headers_only": headers_only}
    if subjects:
        options["filter_subjects"] = list(subjects)
    while True:
        create = partial(_create, requests, stream, options, inbox, position, iter(_PATIENCE_S))
        given_up_s = sum(_PATIENCE_S) if until_end else None
        stack, created, arrived, wait = await while_away(create, timeout_s=given_up_s)
        async with stack:
            if isinstance(position, int) and position != start:
                # Otherwise it would wait behind the end and miss what is recorded there anew.
                last_seq = await _last_seq(requests, stream, patient=not until_end)
                if last_seq < position - 1:
                    raise LogLost(
                        f"{stream} ends at {last_seq}, and {position - 1} was read from it "
                        "before: it has lost its end, or it is another one. Start this again, so "
                        "that it reads from the beginning."
                    )
            if until_end and stop is None:
                stop = await _last_seq(requests, stream, patient=False)
            if until_end and created["num_pending"] == 0:
                return
            mine = f".{stream}.{created['name']}.".encode()
            expected, idle = 1, 0
            lost = ended = False
            while not (lost or ended):
                if not arrived and not await wait():
                    _log.debug("silent, starting a new consumer", stream=stream, position=position)
                    await requests.probe()
                    break
                found: list[RawMessage] = []
                while arrived and len(found) < _TOGETHER:
                    subject, reply, data, headers = arrived.popleft()
                    # Stored messages have the stream's reply subject, and may have any headers,
                    # even those of a control message.
                    if not data and headers.startswith(_CONTROL) and not reply.startswith(_STORED):
                        if (last := await _answer_control(requests, reply, headers)) is not None:
                            idle += _STALLED not in headers
                            lost = last != expected - 1 or (until_end and idle == _IDLE)
                        if lost:
                            break
                        continue
                    # As in `meta`, but only the necessary parts: this runs for each fact of a
                    # replay.
                    _, own, place = reply.partition(mine)
                    if not own:
                        continue  # of a consumer that was requested while the broker was away
                    _tries, seq_, delivery, time, left = place.split(b".")[:5]
                    seq = int(seq_)
                    if lost := int(delivery) != expected:
                        break
                    if ended := stop is not None and seq > stop:
                        break
                    expected, idle = expected + 1, 0
                    position = seq + 1
                    at, below_us = _time(time), int(time) % 1000
                    found.append(RawMessage(seq, at, subject_text(subject), data, below_us))
                    if ended := until_end and (left == b"0" or seq == stop):
                        break
                if found:
                    yield found
            if ended:
                return
            if lost:
                _log.debug(
                    "messages are missing, starting a new consumer",
                    stream=stream,
                    position=position,
                )


class _Consumer(NamedTuple):
    """An ephemeral consumer: what ends listening to it, its description, and as `_listening`."""

    stack: AsyncExitStack
    created: dict[str, Any]
    arrived: deque[NatsMessage]
    wait: Callable[[], Awaitable[bool]]


@asynccontextmanager
async def _listening(
    requests: Api, deliver: str
) -> AsyncGenerator[tuple[deque[NatsMessage], Callable[[], Awaitable[bool]]]]:
    """The messages on a subject, and a wait for more: False after two heartbeats."""
    arrived: deque[NatsMessage] = deque()
    something = asyncio.Event()

    def take(message: NatsMessage) -> None:
        arrived.append(message)
        something.set()

    async def wait() -> bool:
        something.clear()
        try:
            async with asyncio.timeout(HEARTBEAT_S * 2.5):
                await something.wait()
        except TimeoutError:
            return False
        return True

    async with requests.straight(deliver, take):
        yield arrived, wait


async def _create(
    requests: Api,
    stream: str,
    options: dict[str, Any],
    inbox: str,
    start: Start,
    patience_s: Iterator[float],
) -> _Consumer:
    """Request an ephemeral consumer with these settings besides its own, once."""
    match start:
        case datetime():
            begin: dict[str, Any] = {
                "deliver_policy": "by_start_time",
                "opt_start_time": start.isoformat().replace("+00:00", "Z"),
            }
        case int():
            begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(start, 1)}
    config = begin | {
        **options,
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(5e9),
    }
    async with AsyncExitStack() as stack:
        # An inbox for each consumer: an abandoned one lives while somebody listens, and its
        # messages must not be mixed with those of the next one.
        deliver = f"{inbox}.{new_id()}"
        arrived, wait = await stack.enter_async_context(_listening(requests, deliver))
        body = {"stream_name": stream, "config": config | {"deliver_subject": deliver}}
        created = await _asked(
            requests, f"CONSUMER.CREATE.{stream}", body, next(patience_s, PATIENCE_S)
        )
        return _Consumer(stack.pop_all(), created, arrived, wait)


async def _last_seq(requests: Api, stream: str, *, patient: bool) -> int:
    """The number of the stream's last message; if `patient`, wait while there is no leader."""

    async def ask() -> int:
        answer = await _asked(requests, f"STREAM.INFO.{stream}", None, None)
        return int(by_leader(answer)["state"]["last_seq"])

    return await (while_away(ask) if patient else ask())


async def _asked(
    requests: Api, what: str, body: object, patience_s: float | None
) -> dict[str, Any]:
    try:
        return await requests.call(what, body, repeat=body is None, patience_s=patience_s)
    except ApiError as problem:
        stream = what.rpartition(".")[2]
        refused = f"the broker does not let {stream} be followed: {problem.description}."
        # Of a consumer that is just being created: the node that was to have it is away.
        if problem.err_code == _NO_CONSUMER:
            raise BrokerAway(refused) from None
        raise BrokerRefused(refused) from None


async def _answer_control(requests: Api, reply: bytes, headers: bytes) -> int | None:
    """Answer flow control, also in a stalled heartbeat; return a heartbeat's delivered count."""
    said = header_lines(headers)
    # To no other subject: a stored message may have these headers, and name a slot.
    if (asked := reply.decode() or said.get(_STALLED.decode(), "")).startswith("$JS.FC."):
        await requests.tell(asked, b"")
    last = said.get("Nats-Last-Consumer", "")
    return int(last) if last.isdecimal() and not reply else None
