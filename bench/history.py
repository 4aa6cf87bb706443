"""Building a model's history: read the thread, build the history, write it for a provider.

The thread has 200 messages and 40 calls. The floor is the batched direct get of its facts, with
nats-py alone: the answers are collected, and only the status at their end is read.

The model's worker reads a thread from its replica, which holds decoded facts. Two lines measure
that: the time until the history is built, and the time until it is written for a provider.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from ayes.ledger.clients.services import Ledger
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import LEDGER
from ayes.projections.formats import format_named
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef
from bench import logs
from bench.logs import Log, Place
from bench.results import Result, compared, in_turns

WORKLOAD: Final = "history"
PROVIDER: Final = "anthropic"
THREAD: Final = ThreadRef("bench", "long")
#: Of the turns, 40 want a tool: with what the user says and the results these make 200 messages.
_TURNS: Final = 80
MESSAGES: Final = 200
#: Histories of a round; its figure is their median.
_RUNS: Final = 70


async def measure(log: Log, rounds: int, _scratch: Path) -> list[Result]:
    """Milliseconds for one history, the median of many."""
    async with (
        Ledger.connect(log.store, role="admin") as ledger,
        logs.plain_client(log.store) as client,
    ):
        await logs.append_all(ledger, conversation())
        facts = len(await ledger.read(THREAD))

        async def ours() -> float:
            return await _timed(ledger)

        async def floor() -> float:
            begun = time.perf_counter()
            found = await _got(client)
            spent = time.perf_counter() - begun
            if found != facts:
                raise AssertionError(f"the direct get found {found} facts instead of {facts}")
            return spent * 1000

        times, floors = await in_turns(_RUNS * rounds, ours, floor)
        mirrored = await _mirrored(ledger, _RUNS * rounds)

        def line(
            what: str, ours: list[float], floor: list[float], beside: str, target: float | None
        ) -> Result:
            return compared(
                WORKLOAD, what, "ms", _medians(ours), floor, beside=beside, better="lower",
                target=target, facts=log.facts + facts, nats_server=ledger.log.server_version,
            )  # fmt: skip

        size = f"{MESSAGES} messages from {facts} facts"
        near = "from the mirror"
        alone = [made for made, _ in mirrored]
        return [
            line(
                f"{size}, for {PROVIDER}, p50", times, _medians(floors),
                "nats-py batched direct get, p50", 1.3,
            ),
            line(
                f"{size}, {near}, p50", alone, _medians(times),
                f"read from the broker, for {PROVIDER}", None,
            ),
            line(
                f"{size}, for {PROVIDER}, {near}, p50",
                [written for _, written in mirrored], _medians(alone), "the history alone", None,
            ),
        ]  # fmt: skip


async def _mirrored(ledger: Ledger, runs: int) -> list[tuple[float, float]]:
    """For each history from a mirror: the milliseconds until it is made, and until it is
    written.
    """
    mirror = ReadReplica(ledger.log)
    hearing = asyncio.create_task(mirror.run())
    try:
        async with asyncio.timeout(30):
            while not await mirror.has(await ledger.log.last_seq()):  # noqa: ASYNC110 - it waits by itself
                await asyncio.sleep(0.01)
        near = ledger.reading_from(mirror)
        await near.read(THREAD)  # the mirror reads it from the broker
        return [await _from_mirror(near) for _ in range(runs)]
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _from_mirror(ledger: Ledger) -> tuple[float, float]:
    begun = time.perf_counter()
    entries = history(thread_of(THREAD, await ledger.read(THREAD))).entries
    made = time.perf_counter()
    payload = format_named(PROVIDER).write(entries)
    spent = time.perf_counter()
    if not payload or len(entries) != MESSAGES:
        raise AssertionError(f"the history has {len(entries)} messages instead of {MESSAGES}")
    return (made - begun) * 1000, (spent - begun) * 1000


async def _timed(ledger: Ledger) -> float:
    begun = time.perf_counter()
    entries = await written(ledger)
    spent = time.perf_counter() - begun
    if entries != MESSAGES:
        raise AssertionError(f"the history has {entries} messages instead of {MESSAGES}")
    return spent * 1000


async def written(ledger: Ledger) -> int:
    """The number of entries in the written history."""
    entries = history(thread_of(THREAD, await ledger.read(THREAD))).entries
    return len(entries) if format_named(PROVIDER).write(entries) else 0


async def _got(client: Client) -> int:
    """The number of answers of the batched direct get."""
    body = msgspec.json.encode({"multi_last": [THREAD.subjects], "batch": 1000})
    inbox = client.new_inbox()
    ended = asyncio.Event()
    found: list[Msg] = []

    async def answered(msg: Msg) -> None:
        if msg.data:
            found.append(msg)
        else:
            ended.set()

    subscription = await client.subscribe(inbox, cb=answered)
    await client.publish(f"$JS.API.DIRECT.GET.{LEDGER}", body, inbox)
    async with asyncio.timeout(10):
        await ended.wait()
    await subscription.unsubscribe()
    return len(found)


def conversation() -> Iterator[Place]:
    yield THREAD.opened, e.ThreadOpened(requester="rita", agent="desk", model="recorded:desk")
    for turn in range(1, _TURNS + 1):
        text = "And the next one, please: the same passengers, a day later, if there are seats."
        yield THREAD.said(f"m{turn}"), e.Said(role="user", text=text)
        if turn % 2:
            yield from logs.asking(THREAD, turn, "There are none that day. Which other day?")
            continue
        yield from logs.asking(THREAD, turn, "Let me change that for you.", THREAD.wish(turn, 0))
        yield from logs.calling(THREAD.wish(turn, 0))


def _medians(times: list[float]) -> list[float]:
    return [statistics.median(times[at : at + _RUNS]) for at in range(0, len(times), _RUNS)]
