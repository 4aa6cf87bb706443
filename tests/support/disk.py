"""A small disk of one's own, whose size can be changed."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Room for the limits of all streams, of which the broker reserves the bytes.
LARGE = 1 << 30


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def leave(self, free: int) -> None:
        """Make the disk as small as necessary to leave so many bytes."""
        disk = os.statvfs(self.path)
        self._mount("remount", (disk.f_blocks - disk.f_bfree) * disk.f_frsize + free)

    def enlarge(self) -> None:
        self._mount("remount", LARGE)

    def _mount(self, how: str, size: int) -> None:
        options = ["-o", f"{how},size={size},mode=700" if how else f"size={size},mode=700"]
        done = subprocess.run(
            ["mount", "-t", "tmpfs", *options, "tmpfs", str(self.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


@contextmanager
def small_disk(path: Path, size: int = LARGE) -> Generator[Disk]:
    """A tmpfs, which takes up memory only for what is written."""
    path.mkdir()
    disk = Disk(path)
    disk._mount("", size)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
