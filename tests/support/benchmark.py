"""The benchmarks as a user starts them, at the smallest size."""

import subprocess
import sys
from pathlib import Path

from program import environment

FACTS = 600


def bench(*arguments: str, cwd: Path) -> list[str]:
    """The lines that `python -m` with these arguments prints."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, *f"--facts {FACTS} --at-once 4 --rounds 1".split()],
        env=environment(BENCH_DATE="2026-11-21"),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
