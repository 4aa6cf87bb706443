"""Start-up times: printing the help, and from `ayes up` to the first fact.

Each run is a process, started as from a terminal. `up` begins with an empty directory, so it
creates accounts, streams and consumers as well; the clock stops when a service has recorded a fact.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ops.broker.processes import die_with_parent, environment
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef
from bench.logs import Log
from bench.results import Result, compared

WORKLOAD: Final = "start"
#: Targets in seconds.
WANTED_HELP_S: Final = 0.5
WANTED_UP_S: Final = 2.0
#: Runs of `--help` in a round.
_RUNS: Final = 3


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Seconds for each."""
    helps = [await _help() for _ in range(rounds * _RUNS)]
    begun = [await _up(scratch / f"up-{number}") for number in range(rounds)]
    version = begun[0][1]

    def line(what: str, ours: list[float], wanted: float, facts: int) -> Result:
        return compared(
            WORKLOAD, what, "s", ours, [wanted], beside="wanted", better="lower", target=1.0,
            facts=facts, nats_server=version,
        )  # fmt: skip

    return [
        line("ayes --help", helps, WANTED_HELP_S, log.facts),
        line("ayes up, to the first fact", [spent for spent, _ in begun], WANTED_UP_S, log.facts),
    ]


async def _help() -> float:
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, "--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    said, problem = await process.communicate()
    spent = time.perf_counter() - begun
    if process.returncode or b"pending" not in said:
        raise AssertionError(f"`ayes --help` failed: {problem.decode()}")
    return spent


async def _up(store: Path) -> tuple[float, str]:
    """Seconds until a fact is recorded, and the version of the broker."""
    begun = time.perf_counter()
    with store.with_suffix(".log").open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            *(*_PROGRAM, "up", "--store", str(store), "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            preexec_fn=die_with_parent(),
            env=environment(),
        )
    try:
        assert process.stdout
        ready = await process.stdout.readline()
        if not ready:
            raise AssertionError(f"it does not start: {store.with_suffix('.log').read_text()}")
        async with Ledger.connect(json.loads(ready)["store"]) as ledger:
            answer = await ledger.append(
                ThreadRef("bench", "first").said("m1"), e.Said(role="note", text="Here.")
            )
            spent = time.perf_counter() - begun
            if answer != Recorded(1):
                raise AssertionError(f"the first fact was not recorded: {answer}")
            return spent, ledger.log.server_version
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


_PROGRAM: Final = (str(Path(sys.executable).with_name("ayes")),)
