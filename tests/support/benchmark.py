"""The benchmarks as a user starts them, at the smallest size."""

import sys
from pathlib import Path

from program import approvals

FACTS = 600


def bench(*arguments: str, cwd: Path) -> list[str]:
    """The lines that `python -m` with these arguments prints."""
    size = f"--facts {FACTS} --at-once 4 --rounds 1".split()
    module, *words = arguments
    done = approvals(
        *(*words, *size), program=(sys.executable, "-m", module),
        cwd=cwd, timeout_s=100, BENCH_DATE="2026-11-21",
    )  # fmt: skip
    assert done.code == 0, done.err
    return done.out.splitlines()
