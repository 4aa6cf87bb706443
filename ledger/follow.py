"""Following a stream in order, without a gap, for as long as it takes.

An ephemeral push consumer without acknowledgements, as ADR-17 describes the "ordered consumer": when a message is
missing, or nothing is heard for two heartbeats, or the broker was away, it is thrown away and a new one starts
behind the last message that was seen. nats-py has one too; its watchdog ends with the first reset that gets no
answer, and a follower whose broker restarts would then wait for ever.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from ledger.requests import Requests
from schemas.errors import BrokerRefused, Unavailable
from schemas.ids import new_id

_log: Final = structlog.get_logger("ledger.follow")
HEARTBEAT_S: Final = 1.0


class Meta(Struct, frozen=True):
    """Where a delivered message stands: read off its reply subject, not asked for."""

    consumer: str
    tries: int
    seq: int
    #: Counted per consumer: a gap here is a lost message.
    delivery: int
    recorded_at: datetime
    #: How many more the consumer has.
    left: int


def meta(reply: str) -> Meta:
    """Read `$JS.ACK.[domain.account.]stream.consumer.tries.seq.delivery.time.left` (ADR-15)."""
    tokens = reply.split(".")
    consumer, tries, seq, delivery, time, left = tokens[3:9] if len(tokens) == 9 else tokens[5:11]
    return Meta(
        consumer,
        int(tries),
        int(seq),
        int(delivery),
        datetime.fromtimestamp(int(time) // 1000 / 1e6, UTC),
        int(left),
    )


type Start = int | datetime | None


async def follow(
    client: Client,
    requests: Requests,
    stream: str,
    subjects: tuple[str, ...],
    *,
    inbox: str,
    start: Start,
    until_end: bool,
) -> AsyncGenerator[tuple[Msg, Meta]]:
    """Messages of `stream` on `subjects` in order, from `start` on: a sequence, a time, or None for each subject's last.

    Args:
        until_end: stop at what was the end when the reading began.
    """
    position = start
    stop: int | None = None
    while True:
        # An inbox for each consumer: one that was given up lives as long as somebody listens, and what it goes on
        # saying must not be taken for the next one's.
        async with _listening(client, f"{inbox}.{new_id()}") as (deliver, arrived, heard):
            created = await _create(requests, stream, subjects, deliver, position, patient=not until_end)
            if until_end and stop is None:
                stop = await _last_seq(requests, stream)
            if until_end and created["num_pending"] == 0:
                return
            expected = 1
            while True:
                if not arrived and not await heard():
                    _log.debug("nothing heard, starting a new consumer", stream=stream, position=position)
                    break
                msg = arrived.popleft()
                if not msg.data and msg.headers and msg.headers.get("Status") == "100":
                    await _answer_control(client, msg)
                    last = msg.headers.get("Nats-Last-Consumer")
                    if last is not None and int(last) != expected - 1 and not msg.reply:
                        _log.debug(
                            "messages were lost, starting a new consumer", stream=stream, position=position
                        )
                        break
                    continue
                at = meta(msg.reply)
                if at.consumer != created["name"]:
                    continue  # asked for in vain, while the broker was away, and made all the same
                if at.delivery != expected:
                    _log.debug(
                        "a message was lost, starting a new consumer", stream=stream, position=position
                    )
                    break
                expected += 1
                position = at.seq + 1
                if stop is not None and at.seq > stop:
                    return
                yield msg, at
                if until_end and (at.left == 0 or at.seq == stop):
                    return


@asynccontextmanager
async def _listening(
    client: Client, deliver: str
) -> AsyncGenerator[tuple[str, deque[Msg], Callable[[], Awaitable[bool]]]]:
    """A subject to deliver to, what has arrived there, and a way to wait for more: False after two silent heartbeats."""
    arrived: deque[Msg] = deque()
    something = asyncio.Event()

    async def take(msg: Msg) -> None:
        arrived.append(msg)
        something.set()

    async def heard() -> bool:
        something.clear()
        try:
            async with asyncio.timeout(HEARTBEAT_S * 2.5):
                await something.wait()
        except TimeoutError:
            return False
        return True

    subscription = await client.subscribe(deliver, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    try:
        yield deliver, arrived, heard
    finally:
        if not client.is_closed:
            try:
                await subscription.unsubscribe()
            except nats.errors.Error:
                _log.debug("could not unsubscribe", subject=deliver)


async def _create(
    requests: Requests, stream: str, subjects: tuple[str, ...], deliver: str, start: Start, *, patient: bool
) -> dict[str, Any]:
    """An ephemeral consumer; the patient wait for the broker for as long as it is away."""
    match start:
        case None:
            begin: dict[str, Any] = {"deliver_policy": "last_per_subject"}
        case datetime():
            begin = {
                "deliver_policy": "by_start_time",
                "opt_start_time": start.isoformat().replace("+00:00", "Z"),
            }
        case int():
            begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(start, 1)}
    config = begin | {
        "deliver_subject": deliver,
        "ack_policy": "none",
        "max_deliver": 1,
        "filter_subjects": list(subjects),
        "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(5e9),
    }
    body = msgspec.json.encode({"stream_name": stream, "config": config})
    while True:
        try:
            answer = msgspec.json.decode((await requests.ask(f"$JS.API.CONSUMER.CREATE.{stream}", body)).data)
        except BrokerRefused:
            raise
        except (Unavailable, msgspec.MsgspecError):
            if not patient:
                raise
            await asyncio.sleep(0.25)
            continue
        if problem := answer.get("error"):
            raise BrokerRefused(f"the broker does not let {stream} be followed: {problem['description']}.")
        return dict(answer)


async def _last_seq(requests: Requests, stream: str) -> int:
    answer = msgspec.json.decode((await requests.ask(f"$JS.API.STREAM.INFO.{stream}", b"")).data)
    return int(answer["state"]["last_seq"])


async def _answer_control(client: Client, msg: Msg) -> None:
    """Flow control: the broker goes on when it hears back, straight or through a heartbeat that says it is stalled."""
    if msg.reply:
        await client.publish(msg.reply, b"")
    elif stalled := (msg.headers or {}).get("Nats-Consumer-Stalled"):
        await client.publish(stalled, b"")
