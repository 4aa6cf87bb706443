"""Replaying a whole log: our folds, compared with a reader that only counts.

The floor is nats-py's own ordered consumer with a callback that only counts. Ours reads the same
log, decodes every fact, folds the queue and the histories, and writes the history of every
conversation that ends, as `ayes replay --projection histories` does.

Memory is the peak of a separate process that does the same; it should depend on the work in
progress, not on the length of the log.
"""

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Final

from nats.aio.msg import Msg

from ayes.ledger.clients.services import Ledger
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.audit.replay import replay
from ayes.projections.fold import ProjectionState
from ayes.projections.histories import HISTORIES
from ayes.projections.pending import OPEN_APPROVALS
from bench import logs
from bench.logs import Log
from bench.results import Result, compared, in_turns

WORKLOAD: Final = "replay"
#: Under way at once in the log that shows what memory does follow.
_MANY: Final = 5


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Facts a second, and peak memory at half of the log, at all of it, and with more under way."""
    async with Ledger.connect(log.store, role="admin") as ledger:

        async def ours() -> float:
            return await folded(ledger, log.facts)

        async def floor() -> float:
            return await counted(log.store, log.facts)

        rates, floors = await in_turns(rounds, ours, floor)
        version = ledger.log.server_version
    half = log.facts // 2
    whole, part = [[await peak_mb(log.store, facts)] for facts in (log.facts, half)]
    async with logs.written(scratch / "many", half, log.open * _MANY) as busy:
        more = [await peak_mb(busy.store, busy.facts)]
    return [
        compared(
            WORKLOAD,
            "folding queue and histories",
            "facts/s",
            rates,
            floors,
            beside="nats-py ordered consumer, counting",
            better="higher",
            target=0.7,
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            f"peak memory, {log.open:,} conversations under way",
            "MB",
            whole,
            part,
            beside=f"the first {half:,} facts of the same log",
            better="lower",
            target=1.15,
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            f"peak memory, {busy.open:,} conversations under way",
            "MB",
            more,
            part,
            beside=f"{log.open:,} under way in as many facts",
            better="lower",
            target=float(_MANY),
            facts=busy.facts,
            nats_server=version,
        ),
    ]


async def folded(ledger: Ledger, facts: int) -> float:
    """Facts a second, with the history of every conversation that ended written out."""
    state = ProjectionState(OPEN_APPROVALS, HISTORIES)
    rows = size = 0

    async def batch() -> None:
        nonlocal rows, size
        state.evicted(OPEN_APPROVALS)
        for row in map(HISTORIES.row, state.evicted(HISTORIES)):
            if row is not None:
                rows, size = rows + 1, size + len(row.value)

    begun = time.perf_counter()
    gaps = await replay(ledger, state, until=facts, batch=batch)
    for row in state.rows(HISTORIES):
        rows, size = rows + 1, size + len(row.value)
    rate = facts / (time.perf_counter() - begun)
    if state.seq != facts or gaps or not rows or not size:
        raise AssertionError(
            f"the replay of {facts} facts came to {state.seq}, {rows} rows, gaps {gaps}"
        )
    return rate


async def counted(store: Path, facts: int) -> float:
    """Messages a second of nats-py's ordered consumer, with nothing done about them."""
    done = asyncio.Event()
    count = 0

    async def one(_msg: Msg) -> None:
        nonlocal count
        count += 1
        if count == facts:
            done.set()

    async with logs.plain_client(store) as client:
        begun = time.perf_counter()
        await client.jetstream().subscribe("ledger.>", stream=LEDGER, ordered_consumer=True, cb=one)
        async with asyncio.timeout(60 + facts / 1000):
            await done.wait()
        return facts / (time.perf_counter() - begun)


async def peak_mb(store: Path, facts: int) -> float:
    """Peak memory of a process that replays the first `facts` facts."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, str(store), str(facts), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    if child.returncode != 0:
        raise AssertionError(
            f"the process that replays for its memory ended with {child.returncode}"
        )
    return float(said)


async def _replay_once(store: Path, facts: int) -> None:
    async with Ledger.connect(store, role="admin") as ledger:
        await folded(ledger, facts)


def own_peak_mb() -> float:
    # Not `ru_maxrss` where there is better: Linux counts in what the parent had before it became
    # this program.
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


if __name__ == "__main__":
    # The child process of `python -m bench replay`: its own memory is measured.
    asyncio.run(_replay_once(Path(sys.argv[1]), int(sys.argv[2])))
    print(own_peak_mb())
