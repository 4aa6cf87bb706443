"""Restricts the source distribution to tracked files, so that no stray file is published."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrackedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the tracked files below the `tracked` paths of its configuration."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        paths = self.config["tracked"]
        if (Path(self.root) / ".git").exists():
            command = ["git", "ls-files", "-z", "--", *paths]
            done = subprocess.run(  # noqa: S603 - our own command
                command, cwd=self.root, capture_output=True, check=True, text=True
            )
            paths = done.stdout.rstrip("\0").split("\0")
        build_data["force_include"] |= {path: path for path in paths}
