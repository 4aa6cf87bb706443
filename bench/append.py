"""Appending facts, compared with nats-py publishing the same bytes to a plain stream of the broker.

64 writers, each with one fact in flight, share one connection: appends that wait during one commit
become the next one (`ledger/nats/group_commit.py`). One floor is 64 bare publishes in flight, the
other atomic batches of 100, one after the other. A single writer is compared with a single bare
publisher, since it must not pay for batching.

Everything is measured twice: flushed to disk before each acknowledgement, for which the targets
are, and not flushed. The workload has its own brokers, because it writes; so have the other
workloads that use the helpers below.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NotFoundError

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.keys import Key
from ayes.ledger.nats.protocol import sign_on_with
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas.codec import encode
from ayes.schemas.ids import new_id
from ayes.schemas.slots import ThreadRef
from bench import logs
from bench.logs import Log, Place
from bench.results import SYNC, Result, compared, in_turns

WORKLOAD: Final = "append"
#: The default of nats-server: an acknowledgement does not mean that the fact is on disk.
LATER: Final = "2m"
#: Writers, or cycles, at a time.
AT_ONCE: Final = 64
#: The plain stream of the floors.
BARE: Final = "BARE"
_BATCH: Final = 100
#: Facts of a round; of one writer alone.
_MAX: Final = 20_000
_MAX_ALONE: Final = 2_000


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Facts a second with many writers and with one, durable and not."""
    found: list[Result] = []
    for sync in (SYNC, LATER):
        store = scratch / f"append-{sync}"
        async with (
            broker(store, sync),
            Ledger.connect(store) as ledger,
            bare(store) as (client, jetstream),
        ):
            found += await _measured(log, rounds, ledger, client, jetstream, sync)
    return found


async def _measured(
    log: Log, rounds: int, ledger: Ledger, client: Client, jetstream: JetStreamContext, sync: str
) -> list[Result]:
    runs = itertools.count()
    whole = max(_BATCH, min(_MAX, log.facts) // _BATCH * _BATCH)
    alone = min(_MAX_ALONE, log.facts)

    def ours(facts: int, writers: int) -> Callable[[], Awaitable[float]]:
        return lambda: appended(ledger, f"r{next(runs)}", facts, writers)

    def singly(facts: int, writers: int) -> Callable[[], Awaitable[float]]:
        return lambda: _published(jetstream, _payloads(ledger, facts), writers)

    async def in_batches() -> float:
        return await _batched(client, jetstream, _payloads(ledger, whole))

    def line(
        what: str, measured: tuple[list[float], list[float]], beside: str, facts: int,
        target: float | None = None,
    ) -> Result:  # fmt: skip
        # The targets are for a log that is flushed before each acknowledgement.
        return compared(
            WORKLOAD, named(what, sync), "facts/s", *measured, beside=beside, better="higher",
            sync=sync, target=target if sync == SYNC else None, facts=facts,
            nats_server=ledger.log.server_version,
        )  # fmt: skip

    many = f"{AT_ONCE} writers"
    batches = await in_turns(rounds, ours(whole, AT_ONCE), in_batches)
    each = await in_turns(rounds, ours(whole, AT_ONCE), singly(whole, AT_ONCE))
    lone = await in_turns(rounds, ours(alone, 1), singly(alone, 1))
    return [
        line(many, batches, f"nats-py, atomic batches of {_BATCH}", whole, 0.7),
        line(many, each, f"nats-py, {AT_ONCE} publishes in flight", whole),
        line("one writer", lone, "nats-py, one publish at a time", alone, 0.85),
    ]


async def appended(ledger: Ledger, name: str, facts: int, writers: int) -> float:
    requests = list(places(name, facts))
    before = await ledger.log.last_seq()

    async def one(place: Place) -> None:
        match await ledger.append(*place):
            case Recorded():
                pass
            case answer:
                raise AssertionError(f"{place[0].subject} was not recorded: {answer}")

    spent = await timed(one, requests, writers)
    recorded = await ledger.log.last_seq() - before
    if recorded != facts:
        raise AssertionError(f"{recorded} of {facts} facts were recorded")
    return facts / spent


async def _published(
    jetstream: JetStreamContext, payloads: list[tuple[str, bytes]], writers: int
) -> float:
    await afresh(jetstream)

    async def one(message: tuple[str, bytes]) -> None:
        await jetstream.publish(*message)

    spent = await timed(one, payloads, writers)
    await _holds(jetstream, len(payloads))
    return len(payloads) / spent


async def _batched(
    client: Client, jetstream: JetStreamContext, payloads: list[tuple[str, bytes]]
) -> float:
    """Publish atomic batches (ADR-50), of which only the commit is acknowledged."""
    await afresh(jetstream)
    batches = [payloads[at : at + _BATCH] for at in range(0, len(payloads), _BATCH)]
    begun = time.perf_counter()
    for batch in batches:
        name = new_id()
        *members, (subject, payload) = batch
        for number, member in enumerate(members, 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            await client.publish(*member, headers=headers)
        last = {
            "Nats-Batch-Id": name,
            "Nats-Batch-Sequence": str(len(batch)),
            "Nats-Batch-Commit": "1",
        }
        await jetstream.publish(subject, payload, headers=last)
    spent = time.perf_counter() - begun
    await _holds(jetstream, len(payloads))
    return len(payloads) / spent


def places(name: str, facts: int) -> Iterator[Place]:
    """Requests, twenty to a thread."""
    for number in range(facts):
        yield next(
            logs.calling(ThreadRef("bench", f"{name}-{number // logs.TURNS}").call(f"c{number}"))
        )


def _payloads(ledger: Ledger, facts: int) -> list[tuple[str, bytes]]:
    """The bytes that ours would append, twenty to a subject."""
    return [
        (f"bare.{number // logs.TURNS}", encode(ledger.with_envelope(event)))
        for number, (_, event) in enumerate(places("bare", facts))
    ]


async def _holds(jetstream: JetStreamContext, messages: int) -> None:
    held = (await jetstream.stream_info(BARE)).state.messages
    if held != messages:
        raise AssertionError(f"the plain stream holds {held} messages instead of {messages}")


# -------------------------------------------------------------------- for each workload that writes


@asynccontextmanager
async def broker(store: Path, sync: str, *also: str) -> AsyncGenerator[EmbeddedServer]:
    """A broker with the streams and consumers of a ledger, flushed as `sync` says."""
    async with EmbeddedServer(store, sync=sync) as server:
        await declare_streams(store, also=also)
        yield server


@asynccontextmanager
async def bare(store: Path) -> AsyncGenerator[tuple[Client, JetStreamContext]]:
    """nats-py for a floor, with its fastest options."""
    login = Store.login_for("admin", store=store)
    client, key = Client(), Key(seed=login.seed)
    sign_on_with(client, key.public)
    await client.connect(
        login.url,
        signature_cb=key.answer,
        inbox_prefix=f"_INBOX.{login.user}._".encode(),
        skip_subject_validation=True,
    )
    try:
        yield client, client.jetstream(timeout=30)
    finally:
        await client.close()


def named(what: str, sync: str) -> str:
    """The name of a measurement, with its durability."""
    return what if sync == SYNC else f"{what}, not durable"


async def afresh(jetstream: JetStreamContext) -> None:
    """The plain stream, empty and without consumers."""
    with suppress(NotFoundError):
        await jetstream.delete_stream(BARE)
    await jetstream.add_stream(
        StreamConfig(
            name=BARE,
            subjects=["bare.>"],
            storage=StorageType.FILE,
            num_replicas=1,
            allow_direct=True,
            allow_atomic=True,
        )
    )


async def timed[T](one: Callable[[T], Awaitable[None]], things: list[T], at_once: int) -> float:
    """Seconds for all of them, `at_once` at a time."""
    left = iter(things)

    async def work() -> None:
        for thing in left:
            await one(thing)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(work())
    return time.perf_counter() - begun
