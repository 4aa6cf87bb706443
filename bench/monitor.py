"""A scrape of `/metrics` before 10,000 waiting calls, at rest and while facts are recorded.

The monitor runs in a process of its own, as `ayes monitor` does. The time is from the connection to
the last byte of the answer, as Prometheus has it. Its floor is `/livez` of the same process, which
knows nothing. The workers are left out; the calls that wait are written as theirs would be.
"""

import asyncio
import itertools
import math
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ayes.ledger.clients.services import Ledger
from ayes.ops.inspection.probes import ListenAddress, monitored
from bench import child, logs
from bench.append import LATER, broker, timed
from bench.console import ask, call_of
from bench.logs import Log
from bench.results import Result, compared

WORKLOAD: Final = "monitor"
#: The target, in milliseconds.
WANTED_MS: Final = 20.0
#: Calls that wait.
_MAX: Final = 10_000
#: Scrapes of a round; Prometheus does one in 15 seconds.
_RUNS: Final = 100
_PAUSE_S: Final = 0.02
_IN_FLIGHT: Final = 100
#: Writers of the facts that are recorded meanwhile.
_WRITERS: Final = 16
_PATIENCE_S: Final = 120.0


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds of a scrape."""
    store = scratch / "monitor"
    waiting = max(100, min(_MAX, log.facts // 20))
    async with broker(store, LATER), Ledger.connect(store, role="admin") as admin:
        await timed(lambda one: ask(admin, call_of(one)), list(range(waiting)), _IN_FLIGHT)
        async with _monitor(store, waiting) as (host, port):
            floor = [_p50(await _times_ms(host, port, "/livez")) for _ in range(rounds)]
            rest = [await _times_ms(host, port, "/metrics") for _ in range(rounds)]
            begin, before = time.perf_counter(), await admin.log.last_seq()
            async with _busy(admin):
                load = [await _times_ms(host, port, "/metrics") for _ in range(rounds)]
            facts = await admin.log.last_seq()
            rate = (facts - before) / (time.perf_counter() - begin)
        version = admin.log.server_version

    def line(
        what: str, ours: list[float], floor: list[float], beside: str, target: float | None = None
    ) -> Result:
        return compared(
            WORKLOAD, what, "ms", ours, floor, beside=beside, better="lower", target=target,
            facts=facts, nats_server=version, sync=LATER,
        )  # fmt: skip

    told = f"{waiting:,} calls wait, a scrape"
    busy = f"the same while {rate:,.0f} facts/s are recorded"
    return [
        line(f"{told}, p50", [*map(_p50, rest)], [WANTED_MS], "wanted", 1.0),
        line("the same, p99", [*map(_p99, rest)], [WANTED_MS], "wanted"),
        line("the same, p50", [*map(_p50, rest)], floor, "/livez"),
        line(f"{busy}, p50", [*map(_p50, load)], [WANTED_MS], "wanted", 1.0),
        line(f"{busy}, p99", [*map(_p99, load)], [WANTED_MS], "wanted"),
    ]


def _p50(times_ms: list[float]) -> float:
    return statistics.median(times_ms)


def _p99(times_ms: list[float]) -> float:
    return sorted(times_ms)[math.ceil(0.99 * len(times_ms)) - 1]


@asynccontextmanager
async def _busy(admin: Ledger) -> AsyncGenerator[None]:
    """Record calls from their request to their result."""
    numbers = itertools.count()

    async def write() -> None:
        for number in numbers:
            for slot, event in logs.calling(call_of(number, "busy")):
                await admin.append(slot, event)

    writing = [asyncio.create_task(write()) for _ in range(_WRITERS)]
    try:
        yield
    finally:
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


# ------------------------------------------------------------------------------------- the monitor


@asynccontextmanager
async def _monitor(store: Path, waiting: int) -> AsyncGenerator[tuple[str, int]]:
    """The address of a monitor in a process of its own, once it knows all calls that wait."""
    async with child.served(__spec__.name, store) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        async with asyncio.timeout(_PATIENCE_S):
            while _pending(await _get(host, int(port), "/metrics")) != waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield host, int(port)


async def serve() -> None:
    """Monitor the store that the first argument names, until it is stopped."""
    async with monitored(sys.argv[1], ListenAddress("127.0.0.1", 0)) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def _pending(answer: bytes) -> int:
    """The number of pending calls of all ages."""
    begin = b"ayes_pending_calls{"
    return sum(int(float(one.split()[-1])) for one in answer.splitlines() if one.startswith(begin))


async def _times_ms(host: str, port: int, path: str) -> list[float]:
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        await _get(host, port, path)
        times.append((time.perf_counter() - begin) * 1000)
        await asyncio.sleep(_PAUSE_S)
    return times


async def _get(host: str, port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return answer
