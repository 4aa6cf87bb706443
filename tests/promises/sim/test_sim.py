"""The simulated world: no seed breaks an invariant, each replays exactly, and bugs are found.

`make sim SEEDS=1000` runs more and larger worlds, and `make sim SEED=123` one of them again.
"""

import os
import secrets
import subprocess
import sys

import bugs
import pytest
from checker import check
from hostile import CALM
from long import sampled
from paths import ROOT, TESTS
from simulate import result_of, seeds_for
from world import simulate

#: Calls of a world here; `make sim` has 200.
CALLS = 40
#: The first seeds that find the bugs which seed 1 does not. When the code changes, so does what
#: happens in a seed; then others are tried.
FOUND_BY = {
    "a-claim-before-its-approval-counts": 2,
    "a-followers-gaps-are-left": 2,
    "a-late-result-is-shown": 70,
    "a-replica-takes-the-later-fact": 2,
    "a-requester-waits-for-ever": 3,
    "a-retry-is-a-new-event": 2,
    "a-service-runs-what-is-stopped": 14,
    "a-stop-is-read-too-late": 3,
    "a-stop-that-has-ended-is-forgotten": 78,
    "a-timer-beats-a-decision": 3,
    "a-withdrawal-stops-after-one-level": 5,
    "an-unknown-append-is-taken-for-done": 3,
    "approvals-are-valid-for-ever": 3,
    "calls-spend-in-slots-of-their-own": 40,
    "models-are-asked-while-stopped": 8,
    "the-digest-is-not-checked": 2,
    "votes-after-the-deadline-count": 10,
    "what-a-worker-waits-for-is-removed": 2,
    "what-the-gate-holds-is-not-looked-at-again": 7,
}


#: Bugs that the first seeds find in a second or two; of these `make test` plants two.
QUICKLY_FOUND = ["stale-reads-are-believed", "appends-have-no-condition"]


def whole(*seeds: str) -> None:
    """Check these worlds."""
    for seed in seeds:
        found = result_of(seed, CALLS).violations
        again = f"python tests/promises/sim/simulate.py --seed {seed} --calls {CALLS}"
        assert not found, "\n".join([*map(str, found[:10]), f"Again: {again}"])


@pytest.mark.parametrize("first", sampled(range(1, 101, 2), 1))
def test_a_hundred_fixed_seeds(first: int):
    """Whatever is lost, repeated, behind, killed, paused or cut off, the invariants hold and every
    call comes to its end (I1 to I14, B43 to B57, D1 to D3).
    """
    whole(str(first), str(first + 1))


@pytest.mark.parametrize("seed", sampled(range(1, 41), 1))
def test_forty_fixed_seeds_with_packs(seed: int):
    """The same where what is settled is packed, leaves the stream, and is filled again."""
    whole(f"packed-{seed}")


@pytest.mark.parametrize("part", sampled(range(10), 0))
def test_twenty_new_seeds(part: int):
    """Each run of the tests lives through worlds that no earlier one has seen."""
    whole(secrets.token_hex(4), f"packed-{secrets.token_hex(4)}")


@pytest.mark.parametrize("seed", ["calm", "packed-calm"])
def test_a_calm_world_has_no_doubts(seed: str):
    """Where nothing goes wrong but what the rogue does, nobody is told to try again."""
    told = simulate(seed, CALLS, CALM)
    assert check(told.log, told.journal) == []
    errors = {line.get("error") for line in told.journal}
    assert errors.isdisjoint({"OutcomeUnknown"})


@pytest.mark.parametrize("seed", ["7", "packed-7"])
def test_a_seed_replays_exactly(seed: str):
    """The same seed is the same world, fact by fact and answer by answer, in each process."""
    path = os.pathsep.join(map(str, (ROOT, TESTS / "support", TESTS / "promises" / "sim")))
    calls = CALLS // 4
    printed = subprocess.run(
        [sys.executable, "tests/promises/sim/simulate.py", "--seed", seed, "--calls", str(calls)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = result_of(seed, calls)
    assert printed == f"seed {seed}, {here.facts} facts, digest {here.digest[:16]}\n"


@pytest.mark.parametrize("bug", sampled(bugs.ALL, *QUICKLY_FOUND))
def test_a_bug_is_found(bug: str):
    """The simulation finds this bug within 200 seeds, D1 to D3 among them."""
    kind = "packed-" if bug in bugs.PACKED else ""
    seeds = (f"{kind}{FOUND_BY.get(bug, 1)}", *seeds_for(bug))
    assert any(result_of(seed, CALLS, bug).violations for seed in seeds)
