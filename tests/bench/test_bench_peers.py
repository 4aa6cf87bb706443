"""Rivals beside ours, with a small stand-in for their programs: nobody needs the rivals themselves
to run the tests.

The stand-in prints what the real programs print. Where their directory is at hand,
`../shared/bench/peers`, it is held to the lines that their own code prints, and the table of rivals
to what they measured.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from paths import ROOT
from program import environment

from bench import append, consumer, cycle, history, logs, peers, pending
from bench.logs import Log
from bench.results import Result, compared

REAL = ROOT.parent / "shared" / "bench" / "peers"
PROGRAMS = ("dbos", "eventsourcing", "faststream", "langgraph", "openai_agents", "pydantic_ai")
NAMES = [rival for rivals in peers.RIVALS.values() for rival in rivals]

STAND_IN = """\
import argparse, json
options = argparse.ArgumentParser()
options.add_argument("--repeat", type=int)
options.add_argument("--only", type=lambda text: text.split(","))
options.add_argument("--quick", action="store_true")
given = options.parse_args()

def tell(peer, metric, unit):
    runs = [float(number) for number in range(2, 2 + given.repeat)]
    config = {"api": "a call", "version": "rival 1.2", "durability": "to disk", "load1": 0.4}
    config["runs"] = runs
    if unit.endswith("/s"):
        config["cpu_us"] = {"client": 123.0, "server": 0.0}
    value = sorted(runs)[len(runs) // 2]
    told = {"peer": peer, "metric": metric, "value": value, "unit": unit, "n": 30}
    print(json.dumps(told | {"config": config}), flush=True)

def main():
    for name in given.only:
        peer, _, metric = name.rpartition("/")
        if metric.startswith("append") or metric.startswith("consume"):
            tell(peer, metric, "events/s")
        elif metric.startswith("approval_cycle"):
            tell(peer, metric, "cycles/s")
        else:
            for percentile in ("p50", "p99"):
                tell(peer, f"{metric}.{percentile}", "us" if metric.startswith("history") else "ms")

"""
RUN = "main()\n"


@pytest.fixture
def directory(tmp_path):
    """A directory with a program for each rival."""
    directory = tmp_path / "peers"
    directory.mkdir()
    for program in PROGRAMS:
        (directory / f"{program}_peer.py").write_text(STAND_IN + RUN)
    return directory


def bench(cwd, *arguments, workload="append", **env):
    """A run of the real program, as short as it gets."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "bench", workload),
            *("--facts", "128", "--at-once", "4", "--rounds", "3", *arguments),
        ],
        env=environment(BENCH_DATE="2026-11-21", PYTHONPATH=str(ROOT), **env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip


def ours(what="vote to tool started, one at a time, p50", unit="ms", better="lower"):
    return compared(
        "cycle", what, unit, [6.0, 4.0, 5.0], [1.0],
        beside="wanted", better=better, target=1.0, facts=7, nats_server="2.15.0",
    )  # fmt: skip


def line(name, unit, *runs, **config):
    peer, _, metric = name.rpartition("/")
    return peers.Line(peer, metric, unit, peers.Config(runs, **config))


def test_each_workload_is_followed_by_its_rivals_in_the_same_form(directory, tmp_path):
    """Ours as it was measured, the rival where the floor is otherwise; no target, so none is
    missed.
    """
    done = bench(tmp_path, "--json", "--peers", str(directory), PEERS_PYTHON=sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    results = [msgspec.json.decode(one, type=Result) for one in done.stdout.splitlines()]
    rivals = [one for one in results if "rival 1.2" in one.beside]
    assert {(one.what, one.beside) for one in rivals} == {
        (what, f"{name}: rival 1.2, to disk")
        for (workload, what), names in peers.RIVALS.items()
        if workload == "append"
        for name in names
    }
    for rival in rivals:
        first = next(one for one in results if one.what == rival.what)
        assert (rival.workload, rival.value, rival.median) == ("append", first.value, first.median)
        assert (rival.floor, rival.floor_median) == (4.0, 3.0)
        assert rival.ratio == pytest.approx(rival.value / 4, rel=1e-3)
        assert rival.ratio_of_medians == pytest.approx(rival.median / 3, rel=1e-3)
        assert (rival.target, rival.met, rival.sync_interval) == ("", True, "always")


@pytest.mark.parametrize(
    ("name", "unit", "runs", "unit_of_ours", "better", "expected"),
    [
        ("dbos/sqlite/approve_to_tool.c1.p50", "ms", (8, 2, 4), "ms", "lower", (2, 4, 2, 1.25)),
        ("langgraph/sqlite/history.p50", "us", (8000, 2000, 4000), "ms", "lower", (2, 4, 2, 1.25)),
        ("dbos/sqlite/append.seq", "events/s", (8, 2, 4), "facts/s", "higher", (8, 4, 0.75, 1.25)),
        ("dbos/sqlite/cycle.c64", "cycles/s", (8,), "cycles/s", "higher", (8, 8, 0.75, 0.625)),
    ],
)
def test_the_best_rounds_are_compared_and_the_medians_in_our_unit(
    name, unit, runs, unit_of_ours, better, expected
):
    """The best is the quickest: the highest rate, the shortest time. Theirs are told in our
    unit.
    """
    result = peers.beside(ours(unit=unit_of_ours, better=better), line(name, unit, *runs))
    assert (result.floor, result.floor_median, result.ratio, result.ratio_of_medians) == expected
    assert (result.unit, result.beside, result.rounds) == (unit_of_ours, name, 3)


@pytest.mark.parametrize(
    "workload", [append, cycle, pending, consumer, history], ids=lambda one: one.WORKLOAD
)
async def test_every_row_of_the_table_names_a_line_of_ours(
    workload, directory, tmp_path, monkeypatch
):
    """And one that is durable: what is not flushed is compared to nobody, except where nothing
    waits for the disk.
    """
    facts = 8 if workload is cycle else 128
    monkeypatch.setattr(history, "_RUNS", 2)
    if workload is history:
        async with logs.written(tmp_path / "store", facts, 4) as log:
            measured = await workload.measure(log, 1, tmp_path)
    else:
        measured = await workload.measure(Log(tmp_path / "unused", facts, 4), 1, tmp_path)
    there = peers.Peers(directory, Path(sys.executable))
    results, problems = await peers.measure(there, workload.WORKLOAD, measured, 1)
    assert problems == []
    rows = [one for (name, _), one in peers.RIVALS.items() if name == workload.WORKLOAD]
    assert len(results) == len([rival for row in rows for rival in row]) > 0
    assert len({one.what for one in results}) == len(rows)
    assert not any("not durable" in one.what for one in results)


async def test_a_workload_without_rivals_is_followed_by_nothing(directory):
    """No program is started for it."""
    assert await peers.measure(peers.Peers(directory, Path("/nowhere")), "replay", [], 1) == (
        [],
        [],
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "the rivals' Python environment is missing: neither "),
        ("/no/python", "PEERS_PYTHON names /no/python, which does not exist."),
    ],
)
def test_without_the_environment_nothing_is_measured_and_it_is_said_how_to_make_it(
    named, said, directory, tmp_path
):
    """Exit code 2 at once, and a sentence that names the README of the programs."""
    done = bench(tmp_path, "--peers", str(directory), PEERS_PYTHON=named)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert str(directory / "README.md") in done.stderr


def test_without_the_programs_nothing_is_measured(directory, tmp_path):
    """Those that are missing are named."""
    (directory / "dbos_peer.py").unlink()
    done = bench(tmp_path, "--peers", str(directory), PEERS_PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{directory} has no dbos_peer.py." in done.stderr


@pytest.mark.parametrize("where", ["beside the programs", "here"])
def test_the_environment_is_found_where_the_readme_has_it_made(
    where, directory, tmp_path, monkeypatch
):
    """Beside the programs, or in the working directory; `PEERS_PYTHON` comes before both."""
    monkeypatch.delenv("PEERS_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    base = directory if where == "beside the programs" else Path()
    python = base / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert peers.found(directory) == peers.Peers(directory, python)
    monkeypatch.setenv("PEERS_PYTHON", sys.executable)
    assert peers.found(directory, quick=True) == peers.Peers(
        directory, Path(sys.executable), quick=True
    )


def test_a_rival_that_fails_takes_no_result_with_it(directory, tmp_path):
    """Ours are told, the others' and what it told before; then why it ended, in a sentence, and
    exit code 1. Nothing lost.
    """
    (directory / "eventsourcing_peer.py").write_text("import a_package_of_theirs")
    told = (
        'tell("dbos/postgres", "append.seq.steps", "events/s")\n'
        'raise OSError("the disk is full\\n(see the manual)")'
    )
    (directory / "dbos_peer.py").write_text(f"{STAND_IN}\n{told}")
    there = ("--peers", str(directory), "--rounds", "1")
    done = bench(tmp_path, "--json", *there, PEERS_PYTHON=sys.executable)
    assert done.returncode == 1
    results = [json.loads(one) for one in done.stdout.splitlines()]
    assert len(results) == 6 + 18 - 4 - 3
    assert any(one["beside"].startswith("dbos/postgres/append.seq.steps") for one in results)
    theirs, dbos = done.stderr.splitlines()
    assert theirs.startswith(
        "error: eventsourcing_peer.py ended with 1: ModuleNotFoundError: No module named "
        "'a_package_of_theirs'."
    )
    assert dbos.startswith("error: dbos_peer.py ended with 1: OSError: the disk is full.")
    assert dbos.endswith(
        "Without it there is no dbos/postgres/append.conc64.steps, "
        "dbos/sqlite/append.conc64.steps, "
        "dbos/sqlite/append.seq.steps."
    )


async def test_what_is_no_result_is_said_and_the_others_stand(directory):
    """A line that is none, a rate of nothing, a unit that is not ours, a metric that did not
    come.
    """
    (directory / "pydantic_ai_peer.py").write_text(
        f"{STAND_IN}\nprint('Warning: slow disk')\n"
        'tell("pydantic-ai/sqlite", "approve_to_tool.c1.p50", "ms")\n'
        'tell("pydantic-ai/sqlite", "approve_to_tool.c1.p99", "hours")\n'
    )
    whats = ("approval cycles, 64 at once", "vote to tool started, one at a time, p50")
    measured = [
        ours(whats[0], "cycles/s", "higher"),
        ours(whats[1]),
        ours(whats[1].replace("p50", "p99")),
    ]
    there = peers.Peers(directory, Path(sys.executable))
    results, problems = await peers.measure(there, "cycle", measured, 1)
    assert len(results) == len([one for one in NAMES if "appro" in one]) - 2
    assert "pydantic-ai/sqlite/approve_to_tool.c1.p50: rival 1.2, to disk" in {
        one.beside for one in results
    }
    wrong, hours, missing = problems
    assert wrong.startswith(
        "pydantic_ai_peer.py, line 1 of its output is not a result and was left out: "
    )
    assert wrong.endswith("It begins: Warning: slow disk")
    assert hours == (
        "pydantic-ai/sqlite/approve_to_tool.c1.p99 is in hours and ours in ms: they cannot be "
        "compared."
    )
    assert missing.startswith(
        "pydantic_ai_peer.py reported nothing about pydantic-ai/sqlite/approval_cycle.c64. "
        "See whether"
    )


@pytest.mark.parametrize("runs", ["[]", "[0.0]", "[-1.0]"])
def test_a_figure_that_nothing_can_be_divided_by_is_no_result(runs):
    """A rival that did nothing is reported as without results, instead of being infinitely slow."""
    told = (
        '{"peer": "p", "metric": "m", "value": 1, "unit": "ms", "n": 1, '
        f'"config": {{"runs": {runs}}}}}'
    )
    lines, (problem,) = peers.lines_of("p_peer.py", told.encode())
    assert lines == []
    assert "config.runs" in problem


async def test_who_stops_the_measuring_lets_the_rival_stop_its_servers(directory):
    """It hears of Ctrl-C from us, once, and we wait until it has gone."""
    for program in PROGRAMS:
        (directory / f"{program}_peer.py").write_text(
            "import os, pathlib, signal, time\n"
            f"here = pathlib.Path({str(directory)!r})\n"
            # Tests that run in the background of a shell ignore it.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "try:\n"
            "    (here / 'writing').write_text(str(os.getpgrp()))\n"
            "    (here / 'writing').rename(here / 'begun')\n"
            "    time.sleep(60)\n"
            "finally:\n"
            "    time.sleep(0.2)\n"
            "    (here / 'stopped').touch()\n"
        )
    there = peers.Peers(directory, Path(sys.executable))
    running = asyncio.create_task(
        peers.measure(there, "consumer", [ours("handed, decoded, acknowledged")], 1)
    )
    async with asyncio.timeout(60):
        while not (directory / "begun").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (directory / "stopped").exists()
    assert int((directory / "begun").read_text()) != os.getpgrp()


# ------------------------------------------------------------------------ held to the real programs

real = pytest.mark.skipif(not REAL.is_dir(), reason="the rivals' programs are not at hand")


@real
def test_the_stand_in_prints_what_the_real_programs_print(directory):
    """Their own command line, measuring and printing, for a rate and for a latency: the same fields
    in both.
    """
    work = directory / "work.py"
    work.write_text(
        f"import sys; sys.path.insert(0, {str(REAL)!r})\n"
        "import common as c\n"
        "bench = c.Bench(c.cli(None))\n"
        "note = {'api': 'a call', 'version': 'rival 1.2', 'durability': 'to disk'}\n"
        "def worked(timer):\n"
        "    with timer(3):\n"
        "        timer.samples.append(sum(range(1000)) / 1e9)\n"
        "bench.rate('dbos/postgres', 'append.seq.steps', worked, **note)\n"
        "bench.latency('dbos/postgres', 'approve_to_tool.c1', worked, **note)\n"
        "bench.latency('dbos/postgres', 'nobody.asked', worked, **note)\n"
    )
    # What they make their events with; they print with the standard library.
    (directory / "orjson.py").write_text("from json import dumps, loads\n")
    only = (
        "--only",
        "dbos/postgres/append.seq.steps,dbos/postgres/approve_to_tool.c1",
        "--repeat",
        "2",
    )
    told = [
        subprocess.run(
            [sys.executable, "-B", str(program), *only],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for program in (work, directory / "dbos_peer.py")
    ]
    theirs, stand_ins = ([json.loads(one) for one in each.splitlines()] for each in told)
    assert [set(one) for one in theirs] == [set(one) for one in stand_ins]
    assert [set(one["config"]) for one in theirs] == [set(one["config"]) for one in stand_ins]
    assert [one["unit"] for one in theirs] == [one["unit"] for one in stand_ins]
    lines, problems = peers.lines_of("work.py", told[0].encode())
    assert problems == []
    assert [one.name for one in lines] == [
        "dbos/postgres/append.seq.steps",
        "dbos/postgres/approve_to_tool.c1.p50",
        "dbos/postgres/approve_to_tool.c1.p99",
    ]
    assert all(len(one.config.runs) == 2 and one.config.version == "rival 1.2" for one in lines)


@real
def test_the_table_names_what_the_rivals_measure():
    """Each peer and metric in it was measured when its directory was made."""
    rows = re.findall(
        r"^\| ([a-z-]+/[a-z-]+) \| (\S+) \| \*\*", (REAL / "RESULTS.md").read_text(), re.MULTILINE
    )
    assert rows
    measured = {f"{peer}/{metric}" for peer, metric in rows}
    assert {peers._without_percentile(name) for name in NAMES} <= measured
    assert {f"{name}_peer.py" for name in PROGRAMS} == set(peers._programs(NAMES))
    assert all((REAL / f"{name}_peer.py").is_file() for name in PROGRAMS)
