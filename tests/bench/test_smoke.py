"""One workload, as short as it gets: what `make test` runs of the benchmarks. `make test-bench`
runs the others.
"""

import msgspec
from benchmark import bench

from bench.results import Result


def test_a_workload_runs_and_tells_what_it_measured(tmp_path):
    """Each line is a whole result of this workload."""
    results = [
        msgspec.json.decode(line, type=Result)
        for line in bench("bench", "replay", "--json", cwd=tmp_path)
    ]
    assert len(results) == 3
    assert {one.workload for one in results} == {"replay"}
    assert all(one.value > 0 for one in results)
