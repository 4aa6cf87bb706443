"""What traces add to an approval: the cycles of `bench/cycle.py` with gate and executor exporting
to a collector on loopback, and without, in turns.

The collector is part of this process and throws everything away. Each request names a span that was
sampled, so that each delivery has a span that is exported.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.append import AT_ONCE, broker
from bench.cycle import REVIEWER, Clients, at_work
from bench.logs import Log
from bench.results import SYNC, Result, compared, in_turns

WORKLOAD: Final = "traces"
#: Cycles of a round, and for warming up.
_MAX: Final = 2_000
_WARM: Final = 50


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Cycles a second, many at once."""
    most = min(_MAX, log.facts)
    async with _collector() as (url, received):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        async with (
            broker(scratch / "traces-off", SYNC) as off,
            broker(scratch / "traces-on", SYNC) as on,
        ):
            for server in (off, on):
                await server.ensure_account(f"reviewer-{REVIEWER}")
            async with (
                at_work(off.store.path),
                at_work(on.store.path, **variables),
                Clients.at(off.store.path) as without,
                Clients.at(on.store.path) as traced,
            ):

                async def rate(clients: Clients) -> float:
                    begun = time.perf_counter()
                    await clients.cycles(most, AT_ONCE)
                    return most / (time.perf_counter() - begun)

                for clients in (without, traced):
                    await clients.cycles(_WARM, 1)
                measured, beside = await in_turns(
                    rounds, lambda: rate(traced), lambda: rate(without)
                )
                version = traced.service.log.server_version
    if not received:
        raise AssertionError("the collector has received no spans")
    what = f"approval cycles with traces, {AT_ONCE} at once"
    return [
        compared(
            WORKLOAD, what, "cycles/s", measured, beside, beside="without traces",
            better="higher", facts=most * 6, nats_server=version,
        )
    ]  # fmt: skip


@asynccontextmanager
async def _collector() -> AsyncGenerator[tuple[str, list[int]]]:
    """The URL of a collector, and the sizes of what it received."""
    received: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.split(b": ", 1) for line in head.lower().splitlines()[1:-1])
                received.append(int(fields[b"content-length"]))
                await reader.readexactly(received[-1])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
