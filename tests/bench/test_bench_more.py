"""The workloads with brokers of their own, as short as they get: that each does its work and tells
what it measured.

As in `test_bench.py`, never how fast: each checks its own work and ends with an error where it
falls short.
"""

import asyncio
import itertools
import json
import math
import shutil
from collections import Counter

import msgspec
import pytest

from bench import (
    adapters,
    append,
    chain,
    console,
    consumer,
    cycle,
    drawing,
    following,
    monitor,
    nodes,
    pending,
    start,
)
from bench.logs import Log
from bench.results import SYNC, Result, compared, told

FACTS = 128
#: How many lines each tells of a store that is flushed before each acknowledgement, and of one that
#: is not.
LINES = {
    append: {"always": 3, "2m": 3},
    cycle: {"always": 7, "2m": 7},
    pending: {"2m": 3},
    consumer: {"always": 2},
    start: {"always": 2},
    console: {"2m": 11 if drawing.chromium() else 10},
    monitor: {"2m": 5},
    adapters: {"2m": 12},
    following: {"always": 8},
    nodes: {"always": 22 if shutil.which("strace") else 17},
}


@pytest.mark.parametrize("workload", LINES, ids=lambda module: module.WORKLOAD)
async def test_a_workload_tells_what_it_measured(workload, tmp_path):
    """Each line is whole, its figures are figures, and no two say the same beside the same."""
    results = await workload.measure(Log(tmp_path / "unused", FACTS, 4), 1, tmp_path)
    assert Counter(one.sync_interval for one in results) == LINES[workload]
    for result in results:
        line = told(result, json=True)
        assert msgspec.json.decode(line, type=Result) == result
        assert set(json.loads(line)) == set(Result.__struct_encode_fields__)
        assert result.workload == workload.WORKLOAD
        assert all(
            math.isfinite(one) and one > 0 for one in (result.value, result.floor, result.ratio)
        )
        assert result.facts > 0
        assert result.versions.nats_server.startswith("2.")
    assert len({(one.what, one.beside) for one in results}) == len(results)


def test_what_is_not_durable_says_so_in_words():
    """Two lines of one workload that differ in nothing else can be told apart, by people and by
    programs.
    """
    assert append.named("one writer", SYNC) == "one writer"
    assert append.named("one writer", append.LATER) == "one writer, not durable"
    for sync in (SYNC, append.LATER):
        result = compared(
            "append", "one writer", "facts/s", [1.0], [2.0],
            beside="other", better="higher", facts=1, nats_server="2.15.0", sync=sync,
        )  # fmt: skip
        assert result.sync_interval == sync


def test_what_is_told_for_contrast_has_no_target_and_misses_none():
    """It says nothing of a target, to people and to programs."""
    result = compared(
        "append",
        "one writer",
        "s",
        [9.0],
        [1.0],
        beside="other",
        better="lower",
        facts=1,
        nats_server="2.15.0",
    )
    assert (result.target, result.met) == ("", True)
    assert told(result, json=False).endswith("of medians 9.00")


@pytest.mark.parametrize("at_once", [1, 7, 64])
async def test_so_many_are_under_way_at_a_time_and_each_is_done_once(at_once):
    """As many as were asked for, never more, and nothing is left out."""
    under_way, most, done = 0, 0, []

    async def one(thing: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        done.append(thing)

    assert await append.timed(one, list(range(200)), at_once) > 0
    assert most == at_once
    assert sorted(done) == list(range(200))


@pytest.fixture
async def plain(tmp_path):
    """A store of its own, and nats-py connected to it."""
    async with (
        append.broker(tmp_path / "store", append.LATER),
        append.bare(tmp_path / "store") as (_, jetstream),
    ):
        yield tmp_path / "store", jetstream


@pytest.mark.parametrize("at_once", [1, 3])
async def test_the_bare_chain_is_six_facts_a_cycle_of_the_size_of_ours(at_once, plain):
    """It tells a wait for each cycle, each tool starts after its vote, and facts are as long as
    those of a real call.
    """
    store, jetstream = plain
    rate, waits = await chain.chain_cycles(store, jetstream, 7, at_once)
    assert rate > 0
    assert len(waits) == 7
    assert min(waits) > 0
    for number, place in itertools.product(range(7), chain.PLACES):
        fact = await jetstream.get_last_msg(append.BARE, f"bare.{place}.c{number}")
        assert 300 < len(fact.data or b"") < 400


@pytest.mark.parametrize("more", ["bare.claim.c1", "bare.claim.other", "bare.other.c1"])
async def test_a_chain_that_did_anything_else_is_no_measurement(more, plain):
    """A tool that did not run, one that ran twice, a call nobody made, and a fact that is none of
    the six: each is seen.
    """
    _, jetstream = plain
    await append.afresh(jetstream)
    *facts, last = [f"bare.{place}.{call}" for call in ("c0", "c1") for place in chain.PLACES]
    for subject in facts:
        await jetstream.publish(subject)
    with pytest.raises(AssertionError, match=f"2 cycles left 11 facts.* {last}$"):
        await chain.each_once(jetstream, ["c0", "c1"])
    await jetstream.publish(last)
    await chain.each_once(jetstream, ["c0", "c1"])
    await jetstream.publish(more)
    with pytest.raises(AssertionError, match=f"2 cycles left 13 facts.* {more}$"):
        await chain.each_once(jetstream, ["c0", "c1"])
