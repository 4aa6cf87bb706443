"""Rivals, measured in the same run as ours: `make bench PEERS=../shared/bench/peers`.

A directory holds one program for each rival, and its README explains how to create the environment
that they need. Each prints one JSON line for each metric. After each of our workloads, the rivals
with a comparable one run, and each of their lines is reported as a `Result` with the rival in the
place of the floor. Our own figures in it are those that were measured just before.

Only the pairs in the table below are compared. Each rival is configured so that a write has reached
the disk before it is answered, in every such way that its makers recommend: LangGraph's `sync` and
not its default, DBOS on SQLite polling at 10 ms and not each second. Their cycles do less than six
facts, and each runs in one process.
"""

import asyncio
import os
import re
import signal
import statistics
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ayes.ops.broker.server import find_binary
from ayes.schemas.errors import BadInput
from bench import append, consumer, cycle, history, pending
from bench.results import Result, rounded

#: By our workload and the line of it (`*` is whatever depends on the log): the rivals' peers and
#: metrics.
RIVALS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    (append.WORKLOAD, "64 writers"): (
        "eventsourcing/sqlite/append.conc64",
        "eventsourcing/postgres/append.conc64",
        "langgraph/sqlite/append.conc64.update_state",
        "langgraph/postgres/append.conc64.update_state",
        "dbos/postgres/append.conc64.steps",
        "dbos/sqlite/append.conc64.steps",
        "openai-agents/sqlite/append.conc64",
        "faststream/fsync-always/append.conc64.pydantic",
        "faststream/fsync-always/append.conc64.msgspec",
    ),
    (append.WORKLOAD, "one writer"): (
        "eventsourcing/sqlite/append.seq",
        "eventsourcing/postgres/append.seq",
        "langgraph/sqlite/append.seq.update_state",
        "langgraph/postgres/append.seq.update_state",
        "dbos/postgres/append.seq.steps",
        "dbos/sqlite/append.seq.steps",
        "openai-agents/sqlite/append.seq",
        "faststream/fsync-always/append.seq.pydantic",
        "faststream/fsync-always/append.seq.msgspec",
    ),
    (cycle.WORKLOAD, "approval cycles, 64 at once"): (
        "eventsourcing/sqlite/approval_cycle.c64.inproc",
        "eventsourcing/postgres/approval_cycle.c64.inproc",
        "eventsourcing/postgres/approval_cycle.c64.projection",
        "langgraph/sqlite/approval_cycle.c64.sync",
        "langgraph/postgres/approval_cycle.c64.sync",
        "dbos/postgres/approval_cycle.c64",
        "dbos/postgres/approval_cycle.c64.no_pre_ping",
        "dbos/sqlite/approval_cycle.c64.poll10ms",
        "pydantic-ai/sqlite/approval_cycle.c64",
        "openai-agents/sqlite/approval_cycle.c64",
    ),
    (cycle.WORKLOAD, "vote to tool started, one at a time, p50"): (
        "eventsourcing/sqlite/approve_to_tool.c1.inproc.p50",
        "eventsourcing/sqlite/approve_to_tool.c1.projection.p50",
        "eventsourcing/postgres/approve_to_tool.c1.inproc.p50",
        "eventsourcing/postgres/approve_to_tool.c1.projection.p50",
        "langgraph/sqlite/approve_to_tool.c1.sync.p50",
        "langgraph/sqlite/approve_to_tool.c1.sync_nonasync.p50",
        "langgraph/postgres/approve_to_tool.c1.sync.p50",
        "dbos/postgres/approve_to_tool.c1.p50",
        "dbos/postgres/approve_to_tool.c1.no_pre_ping.p50",
        "dbos/sqlite/approve_to_tool.c1.poll10ms.p50",
        "pydantic-ai/sqlite/approve_to_tool.c1.p50",
        "openai-agents/sqlite/approve_to_tool.c1.p50",
    ),
    (cycle.WORKLOAD, "vote to tool started, one at a time, p99"): (
        "eventsourcing/sqlite/approve_to_tool.c1.inproc.p99",
        "eventsourcing/sqlite/approve_to_tool.c1.projection.p99",
        "eventsourcing/postgres/approve_to_tool.c1.inproc.p99",
        "eventsourcing/postgres/approve_to_tool.c1.projection.p99",
        "langgraph/sqlite/approve_to_tool.c1.sync.p99",
        "langgraph/sqlite/approve_to_tool.c1.sync_nonasync.p99",
        "langgraph/postgres/approve_to_tool.c1.sync.p99",
        "dbos/postgres/approve_to_tool.c1.p99",
        "dbos/postgres/approve_to_tool.c1.no_pre_ping.p99",
        "dbos/sqlite/approve_to_tool.c1.poll10ms.p99",
        "pydantic-ai/sqlite/approve_to_tool.c1.p99",
        "openai-agents/sqlite/approve_to_tool.c1.p99",
    ),
    (pending.WORKLOAD, "oldest 50 of *, in a running service, p50"): (
        "eventsourcing/sqlite/pending_list.p50",  # a separate table, as on Postgres
        "eventsourcing/postgres/pending_list.p50",
        # it cannot be asked what waits: 50 ids, kept elsewhere
        "langgraph/sqlite/pending_list.known_ids.p50",
        "langgraph/postgres/pending_list.known_ids.p50",
        "dbos/postgres/pending_list.p50",
        "dbos/sqlite/pending_list.p50",
    ),
    # Acknowledging waits for no disk, here as there, and theirs is measured on a broker that
    # flushes later.
    (consumer.WORKLOAD, "handed, decoded, acknowledged"): (
        "faststream/sync-default/consume.pull500.pydantic",
        "faststream/sync-default/consume.pull500.msgspec",
        "faststream/sync-default/consume.pull500_batch.msgspec",
    ),
    (history.WORKLOAD, "200 messages from *, for anthropic, p50"): (
        "eventsourcing/sqlite/history.p50",
        "eventsourcing/sqlite/history.snapshot.p50",
        "eventsourcing/postgres/history.p50",
        "eventsourcing/postgres/history.snapshot.p50",
        "langgraph/sqlite/history.p50",
        "langgraph/postgres/history.p50",
        "pydantic-ai/sqlite/history.p50",
        "openai-agents/sqlite/history.p50",
    ),
}
#: The size of one of their units in ours.
_IN_OURS: Final = {
    ("events/s", "facts/s"): 1.0,
    ("cycles/s", "cycles/s"): 1.0,
    ("ms", "ms"): 1.0,
    ("us", "ms"): 0.001,
}
_PERCENTILES: Final = (".p50", ".p99")
_RAISED: Final = re.compile(r"[\w.]+(Error|Exception|Interrupt)(: |$)")
_ENVIRONMENT: Final = Path(".venv-peers", "bin", "python")

type Figure = Annotated[float, Meta(gt=0)]


class Config(Struct, frozen=True):
    """The part of a line's circumstances that is reported."""

    #: In their order. The line's own value is the median of them.
    runs: Annotated[tuple[Figure, ...], Meta(min_length=1)]
    version: str = ""
    durability: str = ""


class Line(Struct, frozen=True):
    """A line of a rival's program."""

    peer: str
    metric: str
    unit: str
    config: Config

    @property
    def name(self) -> str:
        return f"{self.peer}/{self.metric}"


class Peers(Struct, frozen=True):
    """The rivals' programs, and the Python that has what they need."""

    directory: Path
    python: Path
    #: In their smallest sizes: whether they run at all, and no figure to be quoted.
    quick: bool = False


def found(directory: Path, *, quick: bool = False) -> Peers:
    """The programs in this directory, and the Python of `$PEERS_PYTHON` or of the environment that
    its README has one make.

    Raises:
        BadInput: one of the two is not there.
    """
    if absent := [
        one
        for one in _programs(chain.from_iterable(RIVALS.values()))
        if not (directory / one).is_file()
    ]:
        raise BadInput(
            f"{directory} has no {', '.join(absent)}. Name the directory with the rivals' "
            "programs in PEERS (--peers)."
        )
    if named := os.environ.get("PEERS_PYTHON"):
        if not Path(named).is_file():
            raise BadInput(
                f"PEERS_PYTHON names {named}, which does not exist. Name the Python of the "
                f"environment that {directory / 'README.md'} describes, or unset it."
            )
        return Peers(directory, Path(named), quick)
    usual = (directory / _ENVIRONMENT, _ENVIRONMENT)
    python = next((one for one in usual if one.is_file()), None)
    if python is None:
        raise BadInput(
            f"the rivals' Python environment is missing: neither {usual[0]} nor {usual[1]} exists. "
            f"Create it as {directory / 'README.md'} says, or name its Python in PEERS_PYTHON."
        )
    return Peers(directory, python, quick)


async def measure(
    peers: Peers, workload: str, ours: list[Result], rounds: int
) -> tuple[list[Result], list[str]]:
    """Our figure and that of each rival with such a workload; and a sentence for each program
    that fell short.
    """
    wanted = {
        rival: _line_of(ours, workload, what)
        for (name, what), rivals in RIVALS.items()
        if name == workload
        for rival in rivals
    }
    results: list[Result] = []
    problems: list[str] = []
    for program, rivals in _programs(wanted).items():
        told, failure = await _run(peers, program, rivals, rounds)
        read, wrong = lines_of(program, told)
        lines = {line.name: line for line in read}
        problems += wrong
        for line in map(lines.get, rivals):
            if line is None:
                continue
            ours_in = wanted[line.name].unit
            if (line.unit, ours_in) in _IN_OURS:
                results.append(beside(wanted[line.name], line))
            else:
                problems.append(
                    f"{line.name} is in {line.unit} and ours in {ours_in}: they cannot be compared."
                )
        missing = ", ".join(rival for rival in rivals if rival not in lines)
        if failure:
            problems.append(f"{failure} Without it there is no {missing}." if missing else failure)
        elif missing:
            problems.append(
                f"{program} reported nothing about {missing}. See whether {peers.directory} is as "
                "old as the table of rivals here."
            )
    return results, problems


def beside(ours: Result, line: Line) -> Result:
    """Our result with this rival instead of the floor. The units are a pair of the table."""
    scale = _IN_OURS[line.unit, ours.unit]
    runs = [run * scale for run in line.config.runs]
    best, median = (max if ours.better == "higher" else min)(runs), statistics.median(runs)
    said = ", ".join(filter(None, (line.config.version, line.config.durability)))
    return msgspec.structs.replace(
        ours,
        floor=rounded(best),
        floor_median=rounded(median),
        beside=f"{line.name}: {said}" if said else line.name,
        ratio=rounded(ours.value / best),
        ratio_of_medians=rounded(ours.median / median),
        target="",
        met=True,
    )


def lines_of(program: str, told: bytes) -> tuple[list[Line], list[str]]:
    """The results that a program printed, and a sentence for each line that is not a result."""
    lines: list[Line] = []
    problems: list[str] = []
    for number, line in enumerate(told.splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(line, type=Line))
        except msgspec.MsgspecError as problem:
            begun = line[:200].decode(errors="replace")
            problems.append(
                f"{program}, line {number} of its output is not a result and was left out: "
                f"{problem}. It begins: {begun}"
            )
    return lines, problems


def _line_of(ours: list[Result], workload: str, what: str) -> Result:
    line = next((one for one in ours if fnmatchcase(one.what, what)), None)
    assert line, f"the workload {workload} has no line {what!r}"
    return line


def _programs(rivals: Iterable[str]) -> dict[str, list[str]]:
    """By program: that of `pydantic-ai/sqlite/...` is `pydantic_ai_peer.py`."""
    programs: dict[str, list[str]] = {}
    for rival in rivals:
        name = rival.partition("/")[0].replace("-", "_")
        programs.setdefault(f"{name}_peer.py", []).append(rival)
    return programs


async def _run(peers: Peers, program: str, rivals: list[str], rounds: int) -> tuple[bytes, str]:
    """The output of a program, and its failure, if any."""
    only = dict.fromkeys(_without_percentile(rival) for rival in rivals)
    process = await asyncio.create_subprocess_exec(
        str(peers.python.absolute()),
        str((peers.directory / program).absolute()),
        *("--repeat", str(rounds), "--only", ",".join(only)),
        *(["--quick"] if peers.quick else []),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # The same broker as ours, unless they are given another.
        env={"PEERS_NATS_SERVER": str(find_binary())} | os.environ,
        # Ctrl-C goes to the whole group. It hears of it from us, once, and so can stop the servers
        # that it started.
        preexec_fn=os.setpgrp,
    )
    try:
        told, words = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await process.wait()
    if not process.returncode:
        return told, ""
    return told, (
        f"{program} ended with {process.returncode}: {_why(words.decode(errors='replace'))}. "
        f"See {peers.directory / 'README.md'} for what it needs."
    )


def _why(words: str) -> str:
    """The line that names the exception, since some go on with advice after it; else the last."""
    lines = words.strip().splitlines() or ["it said nothing"]
    return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1]).rstrip(".")


def _without_percentile(rival: str) -> str:
    """Programs choose by metric, before it is reported as percentiles."""
    for ending in _PERCENTILES:
        rival = rival.removesuffix(ending)
    return rival
