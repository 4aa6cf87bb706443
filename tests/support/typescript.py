"""The client in TypeScript, with Node and its packages from npm."""

import atexit
import json
import os
import shutil
from pathlib import Path

import npm
from paths import ROOT

TYPESCRIPT = ROOT / "clients" / "typescript"


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
