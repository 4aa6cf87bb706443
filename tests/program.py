"""The real `approvals` program, as people and scripts start it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

APPROVALS = Path(sys.executable).with_name("approvals")

#: What a shell may hold in which somebody works with it; no test shall depend on that.
FROM_A_SHELL = ("APPROVALS_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES", "TTY_")


class Ended(NamedTuple):
    """What a program left: its exit code, its data, its words."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        # Not splitlines: JSON may hold U+2028, which is no end of a line here.
        return [json.loads(line) for line in self.out.split("\n") if line]

    @property
    def one(self) -> Any:
        (line,) = self.lines
        return line

    @property
    def problem(self) -> Any:
        """The error, as `--json` tells it."""
        return json.loads(self.err.splitlines()[-1])


def environment(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(FROM_A_SHELL)}
    return ours | {name: str(value) for name, value in variables.items()}


def approvals(
    *arguments: object,
    store: Path | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60,
    **variables: str,
) -> Ended:
    """Run it to its end. On a store it is told so as a shell would be, by an environment variable."""
    if store is not None:
        variables["APPROVALS_STORE"] = str(store)
    done = subprocess.run(
        [APPROVALS, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=cwd,
        env=environment(**variables),
    )
    # Nobody looks at a terminal here.
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def started(*arguments: object, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """It running, for as long as the block does. Without a log its words come through a pipe."""
    with (
        (log or Path(os.devnull)).open("a") as words,
        subprocess.Popen(
            [APPROVALS, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words if log else subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=20)


@contextmanager
def up(store: Path, *options: object) -> Iterator[dict[str, Any]]:
    """`approvals up` on this store, ready; what it said about itself, and its own pid as `up`."""
    store.parent.mkdir(parents=True, exist_ok=True)
    log = store.parent / "up.log"
    with started("up", "--store", store, "--json", *options, log=log) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line) | {"up": process.pid}
