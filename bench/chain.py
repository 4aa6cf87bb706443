"""The bare chain: the cost of six facts by four parties in two processes, without our features.

The facts and the parties are those of `bench/cycle.py`. Service and reviewer are in the process
that measures; gate and executor share one of their own, `python -m bench.chain <store>`. It is
hand-written on nats-py, with the durability that a chain needs to lose no fact:

* a fact is one publish to the plain stream, with the size of one of ours, and its writer waits for
  the acknowledgement before the next step;
* durable consumers deliver facts to gate and executor; each delivery has its own task, and is
  acknowledged once the resulting fact is in the stream;
* service and reviewer receive questions and results by following the stream.

There is nothing else: no schema, policy or digest, no reads, a place takes more than one fact, and
a redelivered fact is processed again. Each process has one connection, and both have the same
credentials.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ayes.ops.broker.processes import die_with_parent, environment
from bench.append import BARE, afresh, bare, timed

#: The facts of a cycle, in their order.
PLACES: Final = ("requested", "gated", "vote", "decided", "claim", "finished")
#: What a fact says besides its kind and its call: with them it has as many bytes as those of ours
#: have on average, 330.
_MORE: Final = "It moves money. " * 18
#: Cycles before the clock starts, since the process of gate and executor is a new one each time.
_WARM: Final = 64
#: All that is here takes seconds.
_PATIENCE_S: Final = 120.0

type Event = dict[str, Any]


async def chain_cycles(
    store: Path, jetstream: JetStreamContext, count: int, at_once: int
) -> tuple[float, list[float]]:
    """Cycles a second, and seconds from each vote to the start of its tool."""
    await afresh(jetstream)
    service = _Service(jetstream)
    warm = [f"w{number}" for number in range(_WARM)]
    calls = [f"c{number}" for number in range(count)]
    waits: list[float] = []

    async def one(call: str) -> None:
        waits.append(await service.cycle(call))

    following = [
        await jetstream.subscribe(f"bare.{place}.*", cb=service.hear, ordered_consumer=True)
        for place in ("gated", "finished")
    ]
    async with _at_work(store), asyncio.timeout(_PATIENCE_S):
        await timed(one, warm, _WARM)
        waits.clear()
        spent = await timed(one, calls, at_once)
    for each in following:
        await each.unsubscribe()
    await each_once(jetstream, warm + calls)
    if len(waits) != count:
        raise AssertionError(f"{len(waits)} of {count} cycles ended")
    return count / spent, waits


async def each_once(jetstream: JetStreamContext, calls: list[str]) -> None:
    """Raise unless the stream holds each fact of each of these calls once, and nothing else: each
    tool ran, and ran once.
    """
    held = (await jetstream.stream_info(BARE, subjects_filter="bare.>")).state.subjects or {}
    wanted = {f"bare.{place}.{call}": 1 for call in calls for place in PLACES}
    if held != wanted:
        wrong = sorted(
            subject
            for subject in held.keys() | wanted.keys()
            if held.get(subject) != wanted.get(subject)
        )
        raise AssertionError(
            f"{len(calls)} cycles left {sum(held.values())} facts. {len(wrong)} places are "
            "missing, or hold what they "
            f"should not: {', '.join(wrong[:6])}"
        )


async def _publish(jetstream: JetStreamContext, place: str, call: str, **also: float) -> None:
    event = {"type": place, "call": call, "more": _MORE} | also
    await jetstream.publish(f"bare.{place}.{call}", msgspec.json.encode(event))


class _Service:
    """The service and the reviewer, which follow the stream."""

    def __init__(self, jetstream: JetStreamContext) -> None:
        self._jetstream = jetstream
        self._awaited: dict[tuple[str, str], asyncio.Future[Event]] = {}

    async def hear(self, msg: Msg) -> None:
        event = msgspec.json.decode(msg.data)
        self._awaited.pop((event["type"], event["call"])).set_result(event)

    async def cycle(self, call: str) -> float:
        """Ask, vote once the question is there, and wait for the result; seconds from the vote to
        the start.
        """
        loop = asyncio.get_running_loop()
        gated = self._awaited["gated", call] = loop.create_future()
        finished = self._awaited["finished", call] = loop.create_future()
        await _publish(self._jetstream, "requested", call)
        await gated
        voted = time.perf_counter()
        await _publish(self._jetstream, "vote", call)
        started: float = (await finished)["started"]
        return started - voted


# -------------------------------------------------------------------------------- gate and executor


@asynccontextmanager
async def _at_work(store: Path) -> AsyncGenerator[None]:
    """Gate and executor at work; what goes wrong there is said on stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(store)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent(),
        env=environment(),
    )
    try:
        assert process.stdout
        if not await process.stdout.readline():
            raise AssertionError("the gate and the executor of the bare chain do not start")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _gate(jetstream: JetStreamContext, event: Event) -> None:
    await _publish(jetstream, "gated" if event["type"] == "requested" else "decided", event["call"])


async def _executor(jetstream: JetStreamContext, event: Event) -> None:
    await _publish(jetstream, "claim", event["call"])
    await _publish(jetstream, "finished", event["call"], started=await _started_at())


async def _started_at() -> float:
    """The tool."""
    return time.perf_counter()


#: Which party handles which fact.
_HANDED: Final[dict[str, Callable[[JetStreamContext, Event], Awaitable[None]]]] = {
    "requested": _gate,
    "vote": _gate,
    "decided": _executor,
}


async def _work(store: Path) -> None:
    """Work until somebody ends this process, or anything fails."""
    async with bare(store) as (_, jetstream), asyncio.TaskGroup() as handling:

        async def handle(msg: Msg) -> None:
            event = msgspec.json.decode(msg.data)
            await _HANDED[event["type"]](jetstream, event)
            await msg.ack()

        async def take(msg: Msg) -> None:
            handling.create_task(handle(msg))

        for place in _HANDED:
            config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1000)
            await jetstream.subscribe(
                f"bare.{place}.*", durable=place, cb=take, manual_ack=True, config=config
            )
        print("at work", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_work(Path(sys.argv[1])))
