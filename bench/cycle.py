"""Approvals from the request to the tool's result, and the time from the vote to the tool's start.

A cycle is six facts: requested, gated, vote, decided, claim, finished. Four parties take part, each
with a connection and the credentials of its role: a service that requests, a reviewer who votes as
soon as people are asked, and gate and executor in one process, as `ayes work gate executor` and
`ayes up` run them. Service and reviewer share the process that measures, and receive approval
requests and results by following the log.

The floors are hand-written on nats-py. One is the same six facts, between the same four
parties and processes, and nothing else (`bench/chain.py`): the difference is the price of our
features. The other is the minimal cycle: requested, approved and executed are published, and one
durable consumer runs the tool. It is in one process, and has no gate, no claim, no reads and no
rules.

A tool is an `async` function that returns the time on the machine's clock, which both processes
share.
"""

import asyncio
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ayes.consumers.tools import Tools
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.processes import die_with_parent, environment
from ayes.ops.broker.setup import apply_policy
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import ROOT, CallRef, Slot, ThreadRef
from ayes.schemas.tools import declaration
from bench import logs
from bench.append import AT_ONCE, LATER, afresh, bare, broker, named, timed
from bench.chain import chain_cycles
from bench.logs import Log
from bench.results import SYNC, Better, Result, compared, in_turns

WORKLOAD: Final = "cycle"
WORKSPACE: Final = "bench"
REVIEWER: Final = "ana"
#: Targets: cycles a second with 64 at once, and milliseconds from vote to start with one at a time.
WANTED: Final = {SYNC: (1500.0, 1.6), LATER: (2500.0, 1.0)}
POLICY: Final = f'[[rule]]\nname = "money"\ntools = ["*"]\nthen = "ask"\nvoters = ["{REVIEWER}"]\n'
TOOLS: Final = Tools()
#: Cycles of a round; of a round with one at a time; and for warming up, so that caches are filled.
_MAX: Final = 2_000
_MAX_ALONE: Final = 400
#: The same of the chain. A process is started for each of its rounds, and all workloads together
#: have ten minutes.
_MAX_CHAIN: Final = 600
_MAX_CHAIN_ALONE: Final = 100
_WARM: Final = 10
#: All that is here takes seconds.
_PATIENCE_S: Final = 120.0


@TOOLS.add(name="update_reservation")
async def started_at(reservation_id: str, cabin: str) -> str:
    """Say when it was started, and for which reservation."""
    return f"{time.perf_counter()!r} {cabin} {reservation_id}"


_REF: Final = e.ToolRef(
    "update_reservation", declaration(TOOLS["update_reservation"].spec)[0], "executor"
)


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Cycles a second, and milliseconds from vote to start, durable and not."""
    found: list[Result] = []
    for sync in (SYNC, LATER):
        store = scratch / f"cycle-{sync}"
        async with broker(store, sync) as server:
            await server.ensure_account(f"reviewer-{REVIEWER}")
            async with at_work(store), Clients.at(store) as clients, bare(store) as (_, jetstream):
                found += await _measured(log, rounds, store, clients, jetstream, sync)
    return found


async def _measured(
    log: Log, rounds: int, store: Path, clients: "Clients", jetstream: JetStreamContext, sync: str
) -> list[Result]:
    many, alone = min(_MAX, log.facts), min(_MAX_ALONE, log.facts)
    await clients.cycles(_WARM, 1)

    async def ours() -> float:
        begun = time.perf_counter()
        await clients.cycles(many, AT_ONCE)
        return many / (time.perf_counter() - begun)

    chains: list[float] = []

    # The chain's garbage is collected before the other floor begins, so that this does not pay
    # for it.
    async def floors() -> float:
        rate, _ = await chain_cycles(store, jetstream, min(_MAX_CHAIN, log.facts), AT_ONCE)
        chains.append(rate)
        gc.collect()
        rate, _ = await _bare_cycles(jetstream, many, AT_ONCE)
        return rate

    last: list[list[float]] = []
    chain_medians: list[float] = []

    async def vote_to_start() -> float:
        last.append(await clients.cycles(alone, 1))
        return statistics.median(last[-1]) * 1000

    async def floors_to_start() -> float:
        _, waits = await chain_cycles(store, jetstream, min(_MAX_CHAIN_ALONE, log.facts), 1)
        chain_medians.append(statistics.median(waits) * 1000)
        gc.collect()
        _, waits = await _bare_cycles(jetstream, alone, 1)
        return statistics.median(waits) * 1000

    # Three in turn: the chain comes right before the other floor.
    rates, bare_rates = await in_turns(rounds, ours, floors)
    medians, bare_medians = await in_turns(rounds, vote_to_start, floors_to_start)
    slow = [_percentile(waits, 0.99) * 1000 for waits in last]
    wanted_rate, wanted_ms = WANTED[sync]

    def line(
        what: str, unit: str, measured: list[float], beside: list[float], than: str, better: Better,
        facts: int, target: float | None = None,
    ) -> Result:  # fmt: skip
        return compared(
            WORKLOAD, named(what, sync), unit, measured, beside, beside=than, better=better,
            target=target, facts=facts, nats_server=clients.service.log.server_version, sync=sync,
        )  # fmt: skip

    at_once = f"approval cycles, {AT_ONCE} at once"
    start = "vote to tool started, one at a time"
    chain = "nats-py: the same six facts, nothing else"
    bare_cycle = "nats-py: three publishes, one consumer"
    bare_start = "nats-py: approved to started"
    facts = many * 6
    return [
        line(at_once, "cycles/s", rates, [wanted_rate], "wanted", "higher", facts, 1.0),
        line(at_once, "cycles/s", rates, chains, chain, "higher", facts),
        line(at_once, "cycles/s", rates, bare_rates, bare_cycle, "higher", facts),
        line(f"{start}, p50", "ms", medians, [wanted_ms], "wanted", "lower", alone * 6, 1.0),
        line(f"{start}, p50", "ms", medians, chain_medians, chain, "lower", alone * 6),
        line(f"{start}, p50", "ms", medians, bare_medians, bare_start, "lower", alone * 6),
        line(f"{start}, p99", "ms", slow, medians, "p50", "lower", alone * 6, 3.0),
    ]  # fmt: skip


def _percentile(waits: list[float], part: float) -> float:
    return sorted(waits)[min(len(waits) - 1, int(part * len(waits)))]


# --------------------------------------------------------------------------------------------- ours


#: Clients of one store that come after others have new conversations.
_THREADS: Final = itertools.count()


class Clients:
    """A service and a reviewer that follow the log."""

    def __init__(self, service: Ledger, reviewer: Ledger) -> None:
        self.service = service
        self.reviewer = reviewer
        self._awaited: dict[Slot, asyncio.Future[Fact]] = {}

    @classmethod
    @asynccontextmanager
    async def at(
        cls, store: Path, logins: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator["Clients"]:
        """Both clients, with a policy that asks the reviewer about everything.

        Args:
            logins: the files of their logins, by role; by default the store's own.
        """
        asker, voter = "service", f"reviewer-{REVIEWER}"
        async with Ledger.connect(store, role="operator") as operator:
            await apply_policy(operator, WORKSPACE, POLICY, "policy.toml")
        async with (
            Ledger.connect(store, url=logins.get(asker), role=asker, name="desk") as service,
            Ledger.connect(store, url=logins.get(voter), role=voter) as reviewer,
        ):
            clients = cls(service, reviewer)
            listening = asyncio.create_task(clients.listen(await service.log.last_seq() + 1))
            try:
                yield clients
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def listen(self, start: int) -> None:
        """Follow questions and results."""
        calls = f"{ROOT}.{WORKSPACE}.*.call.*"
        async with aclosing(
            self.service.watch(start, f"{calls}.gated", f"{calls}.finished")
        ) as facts:
            async for fact in facts:
                self._awaited.pop(fact.slot).set_result(fact)

    async def cycles(self, count: int, at_once: int) -> list[float]:
        """Runs `count` cycles, `at_once` at a time; seconds from each vote to its tool's start."""
        waits: list[float] = []

        async def one(call: CallRef) -> None:
            waits.append(await self.cycle(call))

        before = await self.service.log.last_seq()
        async with asyncio.timeout(_PATIENCE_S):
            await timed(one, list(self._calls(count, at_once)), at_once)
        recorded = await self.service.log.last_seq() - before
        if recorded != 6 * count or len(waits) != count:
            raise AssertionError(f"{count} cycles left {recorded} facts, and {len(waits)} ended")
        return waits

    async def cycle(self, call: CallRef) -> float:
        """Ask, vote once the question is there, and wait for the result; seconds from the vote to
        the start.
        """
        gated, finished = self._expected(call.gated), self._expected(call.finished)
        await self.service.request(call, _REF, _ARGUMENTS, requester="rita", agent="desk")
        await gated
        voted = time.perf_counter()
        await self.reviewer.reviewer(REVIEWER).approve(call, reason="within the fare rules")
        match (await finished).event:
            case e.ToolReturned(output=output):
                return float(str(output).split()[0]) - voted
            case other:
                raise AssertionError(f"{call} ended with {other}")

    def _expected(self, slot: Slot) -> asyncio.Future[Fact]:
        return self._awaited.setdefault(slot, asyncio.get_running_loop().create_future())

    def _calls(self, count: int, at_once: int) -> Iterator[CallRef]:
        """Calls of `at_once` conversations at a time, each of twenty calls."""
        for first in range(0, count, at_once * logs.TURNS):
            threads = [ThreadRef(WORKSPACE, f"t{next(_THREADS)}") for _ in range(at_once)]
            places = itertools.product(range(1, logs.TURNS + 1), threads)
            for turn, thread in itertools.islice(places, count - first):
                yield thread.call(f"c{turn}")


_ARGUMENTS: Final = (
    '{"reservation_id":"A-17, with two passengers and their luggage","cabin":"economy"}'
)


@asynccontextmanager
async def at_work(
    store: Path, kinds: Sequence[str] = ("gate", "executor"), **variables: str
) -> AsyncGenerator[int]:
    """Workers of these kinds, in one process of their own, with these variables; its id."""
    tools = ("--tools", f"{__spec__.name}:TOOLS", "-w", WORKSPACE) if "executor" in kinds else ()
    log = store.with_suffix(".log")
    with log.open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("ayes")), "work", *kinds, "--json"),
            *(*tools, "--store", str(store)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            preexec_fn=die_with_parent(),
            env=environment() | variables,
        )  # fmt: skip
    try:
        assert process.stdout
        if not await process.stdout.readline():
            raise AssertionError(f"{', '.join(kinds)} do not start: {log.read_text()}")
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


# ---------------------------------------------------------------------------------- the lower floor


class _Bare:
    """Requested, approved, executed, and who runs what was approved."""

    def __init__(self, jetstream: JetStreamContext) -> None:
        self._jetstream = jetstream
        self._done: dict[str, asyncio.Future[None]] = {}
        self._recording: set[asyncio.Task[None]] = set()
        self.ran: dict[str, float] = {}

    async def execute(self, msg: Msg) -> None:
        event = msgspec.json.decode(msg.data)
        call = event["call"]
        if call in self.ran:  # redelivered
            await msg.ack()
            return
        self.ran[call] = time.perf_counter()
        task = asyncio.create_task(self._record(call, event, msg))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _record(self, call: str, event: dict[str, str], msg: Msg) -> None:
        event["type"] = "executed"
        await self._jetstream.publish(f"bare.executed.{call}", msgspec.json.encode(event))
        await msg.ack()
        self._done.pop(call).set_result(None)

    async def cycle(self, call: str) -> float:
        event = {
            "type": "requested",
            "call": call,
            "tool": _REF.tool,
            "arguments": _ARGUMENTS,
            "why": "money " * 50,
        }
        done = self._done[call] = asyncio.get_running_loop().create_future()
        await self._jetstream.publish(f"bare.requested.{call}", msgspec.json.encode(event))
        event["type"] = "approved"
        voted = time.perf_counter()
        await self._jetstream.publish(f"bare.approved.{call}", msgspec.json.encode(event))
        await done
        return self.ran[call] - voted


async def _bare_cycles(
    jetstream: JetStreamContext, count: int, at_once: int
) -> tuple[float, list[float]]:
    """Cycles a second, and seconds from each approval to the start of its tool."""
    await afresh(jetstream)
    cycle = _Bare(jetstream)
    executing = await jetstream.subscribe(
        "bare.approved.*",
        durable="bare",
        cb=cycle.execute,
        manual_ack=True,
        config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1000),
    )
    waits: list[float] = []

    async def one(call: str) -> None:
        waits.append(await cycle.cycle(call))

    async with asyncio.timeout(_PATIENCE_S):
        spent = await timed(one, [f"c{number}" for number in range(count)], at_once)
    await executing.unsubscribe()
    if len(cycle.ran) != count or len(waits) != count:
        raise AssertionError(f"{len(cycle.ran)} of {count} tools ran")
    return count / spent, waits
