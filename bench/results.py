"""The result of a measurement: one JSON line with everything needed to judge it."""

import gc
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ayes.schemas.errors import BadInput
from ayes.schemas.toml_files import read_text

type Better = Literal["higher", "lower"]


class Versions(Struct, frozen=True, rename={"nats_server": "nats-server", "nats_py": "nats-py"}):
    python: str
    nats_server: str
    nats_py: str


class Result(Struct, frozen=True, kw_only=True):
    """One comparison; `value` and `floor` are the best of their rounds."""

    workload: str
    what: str
    value: float
    unit: str
    floor: float
    #: What the floor is.
    beside: str
    #: value / floor, and the same of the medians.
    ratio: float
    ratio_of_medians: float
    better: Better
    #: The target of `ratio`; empty for a comparison without one, which is always met.
    target: str
    met: bool
    median: float
    floor_median: float
    rounds: int
    #: In the log that it was measured on.
    facts: int
    versions: Versions
    #: When the broker flushes its log: `always` is before each acknowledgement.
    sync_interval: str
    cores: int
    #: As the environment tells it (`BENCH_DATE`); empty when it does not.
    date: str


#: With what the stores of all workloads are written.
SYNC: Final = "always"


def compared(
    workload: str,
    what: str,
    unit: str,
    ours: list[float],
    floor: list[float],
    *,
    beside: str,
    better: Better,
    target: float | None = None,
    facts: int,
    nats_server: str,
    sync: str = SYNC,
) -> Result:
    """The result of some rounds of ours and of the floor.

    Args:
        target: what the ratio should be, if anything.
        sync: how the broker flushed.
    """
    best = max if better == "higher" else min
    sign = ">=" if better == "higher" else "<="
    ratio = best(ours) / best(floor)
    return Result(
        workload=workload,
        what=what,
        value=rounded(best(ours)),
        unit=unit,
        floor=rounded(best(floor)),
        beside=beside,
        ratio=rounded(ratio),
        ratio_of_medians=rounded(statistics.median(ours) / statistics.median(floor)),
        better=better,
        target="" if target is None else f"{sign} {target:.3g}",
        met=target is None or (ratio >= target if better == "higher" else ratio <= target),
        median=rounded(statistics.median(ours)),
        floor_median=rounded(statistics.median(floor)),
        rounds=len(ours),
        facts=facts,
        versions=Versions(
            platform.python_version(), nats_server, importlib.metadata.version("nats-py")
        ),
        sync_interval=sync,
        cores=os.cpu_count() or 0,
        date=os.environ.get("BENCH_DATE", ""),
    )


async def in_turns(
    rounds: int, ours: Callable[[], Awaitable[float]], floor: Callable[[], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """Both, one after the other, so that what else the machine does meets them alike."""
    measured: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        for measure, into in ((floor, beside), (ours, measured)):
            gc.collect()  # what the other one left is not to be cleared away in this one's time
            into.append(await measure())
    return measured, beside


def told(result: Result, *, json: bool) -> str:
    """A line: JSON for programs, a sentence for people."""
    if json:
        return msgspec.json.encode(result).decode()
    wanted = f", target {result.target}" if result.target else ""
    return (
        f"{result.workload:9} {result.what}: {result.value:,.4g} {result.unit}, beside "
        f"{result.floor:,.4g} "
        f"({result.beside}): ratio {result.ratio:.2f}, of medians {result.ratio_of_medians:.2f}"
        f"{wanted}{'' if result.met else '  MISSED'}"
    )


def read_results(*files: Path) -> list[Result]:
    """The results in these files, one JSON object a line.

    Raises:
        BadInput: a line is none; with its place.
    """
    found: list[Result] = []
    for file in files:
        for number, line in enumerate(read_text(file).splitlines(), 1):
            try:
                found.append(msgspec.json.decode(line, type=Result))
            except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
                raise BadInput(
                    f"{file}, line {number} is not a result ({problem}). Give it what `make bench "
                    "JSON=1` prints."
                ) from None
    return found


def rounded(value: float) -> float:
    return float(f"{value:.4g}")
