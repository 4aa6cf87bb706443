"""The Vercel AI SDK from npm, and histories in its format."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from formats import wish

from ayes.projections.history import Assistant, Entry, Outcome


def ended(kind: str, text="done", **fields) -> list[Entry]:
    """A turn with one call that ended this way."""
    is_error = kind not in {"returned", "answered", "reconciled"}
    one = wish(**fields)
    return [Assistant(1, (one,)), Outcome("1-0", one.tool, one.provider_id, kind, text, is_error)]


def installed() -> Path:
    """A folder with the npm package, installed once for all runs on this machine."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not here, so the AI SDK itself cannot be asked")
    folder = Path(tempfile.gettempdir()) / f"ayes-ai-sdk-6-{os.getuid()}"
    if not (folder / "node_modules").exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        try:
            done = subprocess.run(
                [
                    "npm",
                    "install",
                    "ai@6",
                    "--no-audit",
                    "--no-fund",
                    "--ignore-scripts",
                    "--fetch-retries=0",
                ],
                cwd=fresh,
                timeout=60,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(
                "the npm registry did not answer within 60 s, so the AI SDK itself cannot be asked"
            )
        if done.returncode != 0:
            pytest.skip(
                f"npm cannot install the AI SDK, so it cannot be asked: {done.stderr[-200:]}"
            )
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
    return folder


def asked(folder: Path, script: str, lists: list) -> list:
    """The SDK's verdict on each list."""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
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
