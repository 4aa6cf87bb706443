"""Packages from npm, installed once for all runs on this machine."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def installed(*packages: str) -> Path:
    """A folder with npm packages such as `ai@6`; skips the test if they cannot be had."""
    package = " ".join(packages)
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip(f"node and npm are not here, so {package} cannot be asked")
    name = re.sub(r"[^a-z0-9]+", "-", package)
    folder = Path(tempfile.gettempdir()) / f"ayes-{name}-{os.getuid()}"
    if not (folder / "node_modules").exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0")
        try:
            done = subprocess.run(
                ["npm", "install", *packages, *options],
                cwd=fresh,
                timeout=60,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(
                f"the npm registry did not answer within 60 s, so {package} cannot be asked"
            )
        if done.returncode != 0:
            pytest.skip(
                f"npm cannot install {package}, so it cannot be asked: {done.stderr[-200:]}"
            )
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
    return folder
