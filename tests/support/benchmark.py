"""The benchmarks as people start them, at the smallest size."""

import subprocess
import sys
from pathlib import Path

from program import environment

FACTS = 600


def bench(*arguments: str, cwd: Path) -> list[str]:
    """The lines that `python -m` with these arguments prints."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *arguments,
            "--facts",
            str(FACTS),
            "--at-once",
            "4",
            "--rounds",
            "1",
        ],
        env=environment(BENCH_DATE="2026-11-21"),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
