"""Consuming facts: our worker with a reaction that does nothing, compared with nats-py's `fetch`.

Both read the same requests from their own durable consumer, decode them, and acknowledge one by
one; the clock stops when the broker has all acknowledgements. Ours is `consumers/worker.py` as
every worker runs it: a task for each delivery, the limits, the lease, the context of log lines. The
floor fetches 500 at a time and decodes the event alone, without its slot.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Never

import msgspec
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ayes.consumers.effects import Effect
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered
from ayes.ledger.nats import streams
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.setup import declare_streams
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import ROOT, ThreadRef
from bench import logs
from bench.append import bare, broker
from bench.logs import Log
from bench.results import SYNC, Result, compared, in_turns

WORKLOAD: Final = "consumer"
#: The target, in facts a second.
WANTED: Final = 20_000.0
#: The durable consumer. It delivers requests, and the log holds nothing else.
_DURABLE: Final = "gate"
_MAX: Final = 20_000
_FETCHED: Final = 500
_PATIENCE_S: Final = 120.0


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Facts a second, with decoding and acknowledging, in one process."""
    store, facts = scratch / "consumer", min(_MAX, log.facts)
    async with (
        broker(store, SYNC),
        JetStream.connect(store, role="admin") as admin,
        bare(store) as (client, jetstream),
    ):
        await logs.append_all(
            Ledger.on(admin, "admin"),
            (
                next(
                    logs.calling(ThreadRef("bench", f"t{number // logs.TURNS}").call(f"c{number}"))
                )
                for number in range(facts)
            ),
        )

        async def ours() -> float:
            await _anew(admin, store)
            rate = await _handed_to_us(store, facts)
            await _all_acknowledged(admin, _DURABLE)
            return rate

        async def floor() -> float:
            rate = await _fetched(client, jetstream, facts)
            await _all_acknowledged(admin, "bare")
            await jetstream.delete_consumer(LEDGER, "bare")
            return rate

        rates, floors = await in_turns(rounds, ours, floor)
        version = admin.server_version

    def line(beside: str, floor: list[float], target: float | None = None) -> Result:
        return compared(
            WORKLOAD, "handed, decoded, acknowledged", "facts/s", rates, floor, beside=beside,
            better="higher", target=target, facts=facts, nats_server=version,
        )  # fmt: skip

    return [
        line("wanted", [WANTED], 1.0),
        line(f"nats-py, fetch({_FETCHED}), decode, ack", floors),
    ]


class Nothing:
    """A reaction without effects."""

    durables = (_DURABLE,)
    replaces = False

    def __init__(self, facts: int) -> None:
        self._left = facts
        self.all_seen = asyncio.Event()

    async def load(self, ledger: Ledger, handed: Delivered) -> None:
        match handed:
            case Fact(event=e.ToolRequested()):
                self._left -= 1
            case _:
                raise AssertionError(f"unexpected delivery: {handed}")
        if not self._left:
            self.all_seen.set()

    def decide(self, seen: None, handed: Delivered) -> Sequence[Effect[Never]]:
        return ()

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("nothing was claimed")


async def _handed_to_us(store: Path, facts: int) -> float:
    async with JetStream.connect(store, role="gate") as log:
        reaction = Nothing(facts)
        worker = Worker(Ledger.on(log, "gate"), reaction)
        begun = time.perf_counter()
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(_PATIENCE_S):
            await reaction.all_seen.wait()
            worker.stop()
            await running
            await log.connection.client.flush()
        return facts / (time.perf_counter() - begun)


async def _fetched(client: Client, jetstream: JetStreamContext, facts: int) -> float:
    decoder = msgspec.json.Decoder(e.ToolRequested)
    fetching = await jetstream.pull_subscribe(
        f"{ROOT}.*.*.call.*.requested",
        durable="bare",
        stream=LEDGER,
        config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1000),
    )
    begun = time.perf_counter()
    got = 0
    async with asyncio.timeout(_PATIENCE_S):
        while got < facts:
            for msg in await fetching.fetch(_FETCHED, timeout=5):
                decoder.decode(msg.data)
                await msg.ack()
                got += 1
        await client.flush()
    spent = time.perf_counter() - begun
    await fetching.unsubscribe()
    return facts / spent


async def _anew(admin: JetStream, store: Path) -> None:
    """Recreates the durable consumer, so that it delivers the whole log again."""
    await _asked(admin, f"CONSUMER.DELETE.{LEDGER}.{_DURABLE}")
    await declare_streams(store)


async def _all_acknowledged(admin: JetStream, durable: str) -> None:
    for _ in range(100):  # the last acknowledgements may be under way
        consumer = await _asked(admin, f"CONSUMER.INFO.{LEDGER}.{durable}")
        if not consumer["num_ack_pending"]:
            break
        await asyncio.sleep(0.05)
    if consumer["num_pending"] or consumer["num_ack_pending"] or consumer["num_redelivered"]:
        raise AssertionError(f"not every fact was delivered once and acknowledged: {consumer}")


async def _asked(admin: JetStream, what: str) -> dict[str, Any]:
    answer = await streams.info(admin.api, what)
    assert answer is not None, what
    return answer
