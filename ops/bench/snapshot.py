"""Starting up the queue's projection: from a snapshot it costs what is open, not what was ever recorded.

A short log and a long one end with the same number of open approvals. Both are snapshotted the same number of facts
before their end. Starting up is what `approvals replay --projection pending` does: load the snapshot, read what came
after it, show the rows. The floor is the short log; without its snapshot the long one shows what is saved.
"""

import os
import time
from pathlib import Path
from typing import Final

from ledger.client import Ledger
from ops import snapshots
from ops.bench import logs
from ops.bench.logs import Log
from ops.bench.results import Result, compared, in_turns
from ops.replay import log_of, replay
from projections.fold import Folding
from projections.pending import OPEN
from schemas.codec import Fact

WORKLOAD: Final = "snapshot"
#: The long log is so many times the short one.
_TIMES: Final = 100
#: What came after the snapshot, in both: as much as a busy hour.
_TAIL: Final = 1000


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds to start up, of a long log and a short one, with snapshot and without."""
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    async with (
        logs.written(scratch / "short", log.facts // _TIMES, log.open) as short,
        Ledger.connect(short.store, role="admin") as beside,
        Ledger.connect(log.store, role="admin") as ledger,
    ):
        tail = min(_TAIL, short.facts // 2)
        for one, facts in ((beside, short.facts), (ledger, log.facts)):
            await save(one, facts - tail)

        async def long_one() -> float:
            return await _started(ledger, log)

        async def short_one() -> float:
            return await _started(beside, short)

        async def without() -> float:
            return await _started(ledger, log, snapshot=False)

        times, floors = await in_turns(rounds * 7, long_one, short_one)
        whole, part = await in_turns(1, without, long_one)
        version = logs.broker_version(ledger)
    return [
        compared(
            WORKLOAD,
            f"start-up with {log.open:,} open approvals and {tail:,} facts to read",
            "ms",
            times,
            floors,
            beside=f"of a log of {short.facts:,} facts",
            better="lower",
            target=4 / 3,
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            "start-up without snapshot",
            "ms",
            whole,
            part,
            beside="with it",
            better="higher",
            facts=log.facts,
            nats_server=version,
        ),
    ]


async def save(ledger: Ledger, until: int) -> None:
    """Keep where the projection stands after so many facts."""
    folding = Folding(OPEN)
    last: Fact | None = None

    def each(fact: Fact) -> None:
        nonlocal last
        last = fact

    async def batch() -> None:
        folding.ended(OPEN)

    await replay(ledger, folding, until=until, each=each, batch=batch)
    assert last, "the log is not empty"
    snapshots.save(OPEN, folding, last, (await log_of(ledger)).id)


async def _started(ledger: Ledger, log: Log, *, snapshot: bool = True) -> float:
    begun = time.perf_counter()
    identity = (await log_of(ledger)).id
    resumed = await snapshots.load(OPEN, ledger, identity) if snapshot else None
    folding, _ = resumed or (Folding(OPEN), None)

    async def batch() -> None:
        folding.ended(OPEN)

    await replay(ledger, folding, until=log.facts, batch=batch)
    rows = len(list(folding.rows(OPEN)))
    spent = time.perf_counter() - begun
    if snapshot and resumed is None:
        raise AssertionError("the snapshot was not taken")
    if rows != log.open or folding.seq < log.facts:
        raise AssertionError(f"{rows} open approvals instead of {log.open}, at fact {folding.seq:,}")
    return spent * 1000


if __name__ == "__main__":
    from ops.bench.program import main

    main(WORKLOAD)
