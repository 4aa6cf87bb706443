"""Containers for tests: podman on whatever machine this is."""

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def run(*command: Any, check: bool = True, **options: Any) -> str:
    """What a command writes to stdout; its stderr is part of the failure."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    if check and done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


def until(look: Callable[[], Any], what: str, within_s: float = 180) -> Any:
    """The first result that counts."""
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not happen within {within_s} s"
        time.sleep(0.2)
    return found


class Podman:
    """podman, with limits that this user may set, and without a systemd that runs health checks."""

    def __init__(self, here: Path) -> None:
        names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        hard = {name: min(resource.getrlimit(which)[1], 20_000) for name, which in names.items()}
        limits = json.dumps([f"{name}={most}:{most}" for name, most in hard.items()])
        runtime = "runc" if shutil.which("runc") else "crun"
        config = here / "containers.conf"
        config.write_text(
            f"[containers]\ndefault_ulimits = {limits}\n"
            '[network]\nnetwork_backend = "netavark"\n'
            f'[engine]\nruntime = "{runtime}"\n'
            'cgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(config),
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "overlay",
        }

    def __call__(self, *words: Any, check: bool = True) -> str:
        return run("podman", *words, check=check, env=self.environment)

    def errors(self, *words: Any) -> str:
        """What a command writes to stderr."""
        done = subprocess.run(
            ["podman", *map(str, words)],
            env=self.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stderr

    def works(self, *words: Any) -> bool:
        done = subprocess.run(
            ["podman", *map(str, words)], env=self.environment, capture_output=True, check=False
        )
        return done.returncode == 0

    def users(self, container: str) -> set[int]:
        """Who runs the processes of a container, as the machine sees them."""
        pids = self("top", container, "hpid").split()[1:]
        return {Path(f"/proc/{pid}").stat().st_uid for pid in pids}
