"""The Vercel AI SDK from npm, and histories in its format."""

import json
import subprocess
from pathlib import Path

import npm
from formats import wish

from ayes.projections.history import Assistant, Entry, Outcome


def ended(kind: str, text="done", **fields) -> list[Entry]:
    """A turn with one call that ended this way."""
    is_error = kind not in {"returned", "answered", "reconciled"}
    one = wish(**fields)
    return [Assistant(1, (one,)), Outcome("1-0", one.tool, one.provider_id, kind, text, is_error)]


def installed() -> Path:
    """A folder with the npm package, in the version that the tests of agents use too."""
    return npm.installed("ai@6.0.325")


def asked(folder: Path, script: str, lists: list) -> list:
    """The SDK's verdict on each list."""
    done = subprocess.run(
        [npm.node(), "--input-type=module", "--eval", script],
        cwd=folder,
        input=json.dumps(lists),
        timeout=110,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == len(lists)
    return told
