"""The command line of the workloads: one of them, or all on the same log."""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ayes.interfaces.cli.terminal.logs import setup
from ayes.schemas.errors import BadInput
from bench import (
    adapters,
    analysts,
    append,
    console,
    consumer,
    cycle,
    following,
    history,
    lake,
    logs,
    monitor,
    nodes,
    peers,
    pending,
    policy,
    replay,
    scoped,
    signed,
    start,
    traces,
    verify,
)
from bench.logs import Log
from bench.results import Result, told

#: In their order; those of the history and the policy add to the log, so they come last.
WORKLOADS: Final[dict[str, Callable[[Log, int, Path], Awaitable[list[Result]]]]] = {
    append.WORKLOAD: append.measure,
    cycle.WORKLOAD: cycle.measure,
    pending.WORKLOAD: pending.measure,
    consumer.WORKLOAD: consumer.measure,
    start.WORKLOAD: start.measure,
    replay.WORKLOAD: replay.measure,
    lake.WORKLOAD: lake.measure,
    analysts.WORKLOAD: analysts.measure,
    history.WORKLOAD: history.measure,
    policy.WORKLOAD: policy.measure,
}
#: Only if they are named: four brokers, a console, a monitor and adapters, a minute each; traces.
NAMED: Final = {
    nodes.WORKLOAD: nodes.measure,
    console.WORKLOAD: console.measure,
    monitor.WORKLOAD: monitor.measure,
    adapters.WORKLOAD: adapters.measure,
    traces.WORKLOAD: traces.measure,
    following.WORKLOAD: following.measure,
    scoped.WORKLOAD: scoped.measure,
    signed.WORKLOAD: signed.measure,
    verify.WORKLOAD: verify.measure,
}


def main() -> None:
    """Measure workloads, and print a line for each result as it comes."""
    options = argparse.ArgumentParser(
        prog="python -m bench", description="Measure workloads: ours and its floor."
    )
    options.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"{', '.join(WORKLOADS)} (default: all these), {', '.join(NAMED)}",
    )
    options.add_argument(
        "--facts", type=int, default=200_000, help="in the log (default: %(default)s)"
    )
    options.add_argument(
        "--rounds", type=int, default=3, help="of each, in turns (default: %(default)s)"
    )
    options.add_argument(
        "--at-once", type=int, default=logs.AT_ONCE, help="conversations under way"
    )
    options.add_argument(
        "--store", type=Path, help="keep the log in this directory; one that is there is used again"
    )
    options.add_argument(
        "--peers", type=Path, help="also measure the rivals in this directory, after each workload"
    )
    options.add_argument(
        "--peers-quick", action="store_true", help="these in their smallest sizes: do they run?"
    )
    options.add_argument("--json", action="store_true", help="one JSON object a line")
    given = options.parse_args()
    names = tuple(given.workloads or WORKLOADS)
    if unknown := [name for name in names if name not in WORKLOADS | NAMED]:
        options.error(
            f"unknown workload {', '.join(unknown)}. The workloads are {', '.join(WORKLOADS)}."
        )
    setup(verbose=False)
    try:
        rivals = peers.found(given.peers, quick=given.peers_quick) if given.peers else None
    except BadInput as problem:
        options.exit(problem.exit_code, f"error: {problem}\n")
    problems = asyncio.run(_measure(names, given, rivals))
    if problems:
        options.exit(1, "".join(f"error: {problem}\n" for problem in problems))


async def _measure(
    names: tuple[str, ...], given: argparse.Namespace, rivals: peers.Peers | None
) -> list[str]:
    """The problems of the rivals' programs, reported after all measurements."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ayes-bench-") as scratch:
        async with logs.written(
            given.store or Path(scratch) / "store", given.facts, given.at_once
        ) as log:
            for name in names:
                ours = await (WORKLOADS | NAMED)[name](log, given.rounds, Path(scratch))
                _tell(ours, json=given.json)
                if rivals:
                    theirs, fell_short = await peers.measure(rivals, name, ours, given.rounds)
                    _tell(theirs, json=given.json)
                    problems += fell_short
    return problems


def _tell(results: list[Result], *, json: bool) -> None:
    for result in results:
        print(told(result, json=json), flush=True)
