"""What the ledger adds to a tool call that needs nobody: through the MCP gateway and in an adapter.

The gateway, its gate and the MCP server behind it run in processes of their own. A call is one
request over HTTP in the protocol of 2026-07-28, sent to the server directly and to the gateway in
turns. Behind the gateway it is requested, judged, claimed, passed on, and its result recorded.

An adapter's call is `Kernel.settle`; beside it, what a service does by itself: `Ledger.request`,
the decision, and `Ledger.run`.
"""

import asyncio
import itertools
import logging
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx2
import uvicorn

from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key
from ayes.ledger.replica import ReadReplica
from ayes.schemas.policy import applied
from ayes.schemas.slots import ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec
from bench import child
from bench.append import LATER, broker, timed
from bench.logs import Log
from bench.results import Result, compared

WORKLOAD: Final = "adapters"
#: Clients at once, and the calls of a round.
_CLIENTS: Final = {1: 100, 16: 320, 64: 640}
#: Calls before those that are measured.
_WARM_UP: Final = 20
_POLICY: Final = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
_SPEC: Final = ToolSpec(name="echo", schema='{"type":"object"}')
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS: Final = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
    "Accept": "application/json, text/event-stream",
}


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds of a call."""
    store, numbers = scratch / "adapters", itertools.count()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request
    # A small log measures that it runs, and a large one what it costs.
    share = min(1.0, log.facts / 20_000)
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker(store, LATER))
        admin = await stack.enter_async_context(Ledger.connect(store, role="admin"))
        await admin.append(policy_slot("bench", 1), applied(_POLICY))
        await stack.enter_async_context(child.served(__spec__.name, store, "gate"))
        _, direct = await stack.enter_async_context(child.served(__spec__.name, store, "server"))
        _, behind = await stack.enter_async_context(
            child.served(__spec__.name, store, "gateway", direct)
        )
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60, headers=_HEADERS))
        ledger = await stack.enter_async_context(Ledger.connect(store, role="service"))
        kernel = Kernel(ledger, "bench", requester="rita")

        async def line(
            what: str, ours: Callable[[int], Awaitable[None]],
            floor: Callable[[int], Awaitable[None]], beside: str,
        ) -> None:  # fmt: skip
            for one in (ours, floor):
                await _times_ms(one, numbers, _WARM_UP, 1)
            for at_once, most in _CLIENTS.items():
                count = max(at_once, int(most * share))
                times = [
                    [await _times_ms(one, numbers, count, at_once) for one in (ours, floor)]
                    for _ in range(rounds)
                ]
                facts = await admin.log.last_seq()
                version = admin.log.server_version
                for name, figure in (("p50", _p50), ("p99", _p99)):
                    told = f"{what}, {at_once} at once, {name}"
                    ms, floors = ([figure(one[index]) for one in times] for index in (0, 1))
                    results.append(
                        compared(
                            WORKLOAD, told, "ms", ms, floors, beside=beside, better="lower",
                            facts=facts, nats_server=version, sync=LATER,
                        )
                    )  # fmt: skip

        await line(
            "an allowed call through the MCP gateway",
            lambda number: _call(http, behind, number),
            lambda number: _call(http, direct, number),
            "the server itself",
        )
        await line(
            "an allowed call in an adapter",
            lambda number: _settle(kernel, number),
            lambda number: _run(ledger, number),
            "request, decision, run",
        )
    return results


async def _times_ms(
    one: Callable[[int], Awaitable[None]], numbers: Iterator[int], count: int, at_once: int
) -> list[float]:
    times: list[float] = []

    async def call(number: int) -> None:
        begun = time.perf_counter()
        await one(number)
        times.append((time.perf_counter() - begun) * 1000)

    await timed(call, list(itertools.islice(numbers, count)), at_once)
    return times


def _p50(times_ms: list[float]) -> float:
    return statistics.median(times_ms)


def _p99(times_ms: list[float]) -> float:
    return sorted(times_ms)[math.ceil(0.99 * len(times_ms)) - 1]


async def _call(http: httpx2.AsyncClient, url: str, number: int) -> None:
    params = {"name": "echo", "arguments": {"text": f"text {number}"}, "_meta": _META}
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    answer = await http.post(url, json=body)
    assert f"text {number}" in answer.text, answer.text[:500]


async def _settle(kernel: Kernel, number: int) -> None:
    asked = AskedCall("settled", f"call-{number}", "echo", "{}")
    await kernel.settle(asked, _SPEC, _tool)


async def _run(ledger: Ledger, number: int) -> None:
    tool = await ledger.declare("bench", _SPEC)
    ref = ThreadRef("bench", "ran").call(f"call-{number}")
    await ledger.request(ref, tool, "{}", requester="rita")
    await ledger.decision(ref, timeout_s=60)
    await ledger.run(ref, _tool_of_ledger)


async def _tool(_arguments: object) -> str:
    return "done"


async def _tool_of_ledger() -> str:
    return "done"


# ------------------------------------------------------------------------------- the other programs


async def gate() -> None:
    """Judge calls in the store that the first argument names, until it is stopped."""
    async with Ledger.connect(sys.argv[1], role="gate") as ledger:
        replica = ReadReplica(ledger.log)
        following = asyncio.create_task(replica.run())
        print("ready", flush=True)
        await Worker(ledger, Gate(), replica=replica).run()
        following.cancel()


async def server() -> None:
    """An MCP server with one tool."""
    from mcp.server.mcpserver import MCPServer

    made = MCPServer("bench", log_level="ERROR")

    @made.tool()
    def echo(text: str) -> str:
        """Give the text back."""
        return text

    await _served(made.streamable_http_app(host="127.0.0.1"))


async def gateway() -> None:
    """The gateway in front of the server that the second argument names."""
    from ayes.interfaces.mcp.server import http_app, opened
    from ayes.interfaces.mcp.settings import GatewaySettings, ServerSettings

    far = ServerSettings(name="far", url=sys.argv[2])
    file = GatewaySettings.model_validate(
        {"workspace": "bench", "requester": "rita", "server": [far]}
    )
    key = link_key(Store(sys.argv[1]), None)
    async with (
        Ledger.connect(sys.argv[1], role="service") as ledger,
        opened(file, ledger, key) as made,
    ):
        await _served(http_app(made, "127.0.0.1"))


async def _served(app: object) -> None:
    """Serve an application on a free port, which is printed as its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none")  # type: ignore[arg-type]
    serving = uvicorn.Server(config)
    running = asyncio.create_task(serving.serve())
    while not serving.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    port = serving.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    await running
