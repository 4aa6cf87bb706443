"""Simulate many seeds, and check each.

    python tests/promises/sim/simulate.py --seeds 1000  # seeds 1 to 1000
    python tests/promises/sim/simulate.py --seed 123  # one of them again, with its log and journal

Every fourth world has packs: its seed is `packed-4`.

A seed that breaks an invariant is printed with its violations and the command that replays it.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NamedTuple

import bugs
import structlog
from checker import Violation, check
from world import Told, simulate

#: Calls of the worlds in which bugs are looked for.
_SMALL = 40
#: Violations of one seed that are printed.
_MAX_PRINTED = 10


class Result(NamedTuple):
    seed: str
    violations: list[Violation]
    digest: str
    facts: int


def result_of(seed: str, calls: int = 200, bug: str = "") -> Result:
    """What the checker has to say about the world of that seed, with a bug or without."""
    told = simulated(seed, calls, bug)
    return Result(seed, check(told.log, told.journal), told.digest, len(told.log))


def simulated(seed: str, calls: int, bug: str = "") -> Told:
    with bugs.planted(bug):
        return simulate(seed, calls)


def seeds_for(bug: str) -> Iterator[str]:
    """Those of 200 worlds in which this bug may be found."""
    return (f"{'packed-' if bug in bugs.PACKED else ''}{number}" for number in range(1, 201))


def seed_that_finds(bug: str) -> tuple[str, Result | None]:
    """The first of 200 small worlds in which this bug breaks an invariant."""
    found = (result_of(seed, _SMALL, bug) for seed in seeds_for(bug))
    return bug, next((one for one in found if one.violations), None)


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.seed:
        _log_from(30 if arguments.verbose else 50)
        return _replay(arguments)
    seeds = [
        f"packed-{number}" if number % 4 == 0 or arguments.packed else str(number)
        for number in range(arguments.first, arguments.first + arguments.seeds)
    ]
    with multiprocessing.Pool(arguments.jobs, _log_from, (50,)) as pool:
        failed = _check_seeds(pool, seeds, arguments.calls)
        missed = _find_bugs(pool) if arguments.bugs else 0
    return 1 if failed or missed else 0


def _log_from(level: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def _check_seeds(pool: Pool, seeds: list[str], calls: int) -> int:
    begun, failed, facts = time.monotonic(), 0, 0
    for result in pool.imap(partial(result_of, calls=calls), seeds):
        facts += result.facts
        if result.violations:
            failed += 1
            _print(result, calls)
    print(
        f"{len(seeds)} seeds of {calls} calls, {facts:,} facts, "
        f"{time.monotonic() - begun:.0f} s: {failed} broke an invariant."
    )
    return failed


def _find_bugs(pool: Pool) -> int:
    missed = 0
    for bug, result in pool.imap(seed_that_finds, bugs.ALL):
        missed += result is None
        seen = f"seed {result.seed}: {result.violations[0]}" if result else "NOT FOUND"
        print(f"{bug}, {seen}", flush=True)
    print(f"{len(bugs.ALL)} bugs planted, {missed} not found within 200 seeds of {_SMALL} calls.")
    return missed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--packed", action="store_true", help="all of them with packs")
    parser.add_argument("--seed", default="", help="only this one, again")
    parser.add_argument("--calls", type=int, default=200, help="calls of a seed")
    parser.add_argument("--jobs", type=int, default=None, help="processes; one for each core")
    parser.add_argument("--bugs", action="store_true", help="then see that each bug is found")
    parser.add_argument(
        "--bug", default="", choices=("", *bugs.ALL), help="with --seed: plant this one"
    )
    parser.add_argument("--dump", type=Path, help="with --seed: a directory for log and journal")
    parser.add_argument("--verbose", action="store_true", help="what the programs log")
    return parser


def _replay(arguments: argparse.Namespace) -> int:
    told = simulated(arguments.seed, arguments.calls, arguments.bug)
    found = check(told.log, told.journal)
    if arguments.dump:
        arguments.dump.mkdir(parents=True, exist_ok=True)
        for name, lines in (("log", told.log), ("journal", told.journal)):
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (arguments.dump / f"{name}.jsonl").write_text(text)
    _print(Result(told.seed, found, told.digest, len(told.log)), arguments.calls)
    return 1 if found else 0


def _print(result: Result, calls: int) -> None:
    print(f"seed {result.seed}, {result.facts} facts, digest {result.digest[:16]}")
    for found in result.violations[:_MAX_PRINTED]:
        print(f"  {found}")
    if result.violations:
        print(f"  again: make sim SEED={result.seed} CALLS={calls}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
