"""The benchmarks, as short as they get: that each runs, does its work, and tells what it measured.
Never how fast.

Each workload checks its own work (facts folded, rows written, answers counted) and ends with an
error where it falls short, so a line that comes is one that was earned.
"""

import json
import math
from datetime import UTC, datetime

import msgspec
import pytest
from benchmark import FACTS, bench

from ayes.projections.pending import entry
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import encode, fact_of
from bench import logs
from bench.results import Result, compared, told

WORKLOADS = {"replay": 3, "lake": 9, "analysts": 3, "policy": 6, "history": 3}
AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_tells_what_it_measured_one_json_line_a_result(workload, tmp_path):
    """Each line has every declared field and no other, and says on which log and with which
    versions it was measured.
    """
    lines = bench("bench", workload, "--json", cwd=tmp_path)
    assert len(lines) == WORKLOADS[workload]
    for line in lines:
        result = msgspec.json.decode(line, type=Result)
        assert set(json.loads(line)) == set(Result.__struct_encode_fields__)
        assert result.workload == workload
        assert all(
            math.isfinite(one) and one > 0 for one in (result.value, result.floor, result.ratio)
        )
        assert result.facts >= FACTS // 5
        assert result.versions.nats_server.startswith("2.")
        assert result.versions.nats_py
        assert (result.sync_interval, result.date) == ("always", "2026-11-21")


@pytest.mark.parametrize(
    ("better", "target", "met"),
    [("higher", 0.5, True), ("higher", 0.51, False), ("lower", 0.5, True), ("lower", 0.49, False)],
)
def test_a_ratio_is_held_against_its_target(better, target, met):
    """The best round of ours over the best of the floor; what misses its target says so."""
    best = {
        "higher": ([5.0, 1.0, 3.0], [10.0, 2.0, 9.0]),
        "lower": ([5.0, 9.0, 8.0], [10.0, 12.0, 11.0]),
    }
    ours, floor = best[better]
    result = compared(
        "one", "thing", "s", ours, floor,
        beside="other", better=better, target=target, facts=1, nats_server="2.15.0",
    )  # fmt: skip
    assert (result.value, result.floor, result.ratio, result.met) == (5, 10, 0.5, met)
    sentence = told(result, json=False)
    assert "(other): ratio 0.50" in sentence
    assert ("MISSED" in sentence) is not met


@pytest.mark.parametrize(("facts", "at_once"), [(500, 3), (4000, 20), (10_000, 7)])
def test_a_log_of_any_length_ends_with_the_same_number_of_open_approvals(facts, at_once):
    """Short logs and long ones differ in what was recorded, not in what is open, and every fact
    stands where it may.
    """
    log = [
        fact_of(seq, AT, slot.subject, encode(event))
        for seq, (slot, event) in enumerate(logs.mixed(facts, at_once), 1)
    ]
    assert abs(len(log) - facts) < 200 * at_once
    assert len({fact.slot for fact in log}) == len(log)
    assert not any(isinstance(fact.event, e.Carried) for fact in log)
    by_thread = {fact.slot.thread_ref: [] for fact in log}
    for fact in log:
        by_thread[fact.slot.thread_ref].append(fact)
    calls = [
        call for ref, facts in by_thread.items() for call in thread_of(ref, facts).calls.values()
    ]
    assert sum(entry(call) is not None for call in calls) == at_once
