"""Disks that lose power: each an ext4 file system on a loop device of its own.

A power failure loses what the kernel has not yet written to the device. The image behind a loop
device is that device: it holds what ext4 has submitted, and nothing of what is only in the page
cache of the mounted file system. So a copy of the image, taken while no write is in progress, is
the disk as a power failure at that moment would leave it.

It is a disk whose completed writes are durable. A volatile cache that loses them before a flush,
a disk that confirms flushes which it did not do, and torn sectors are not simulated.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

#: Room for the bounds of all streams; the image is sparse.
_SIZE = 8 << 30
#: How long the writes in progress may take to end.
_QUIET_S = 30.0


class NoDisks(Exception):
    """This machine or user may not mount loop devices; says why."""


class Disk:
    """An image of an ext4 file system."""

    def __init__(self, image: Path) -> None:
        self.image = image
        self._device = ""

    @classmethod
    def formatted(cls, image: Path) -> "Disk":
        with image.open("xb") as file:
            file.truncate(_SIZE)
        # Nothing is left for the kernel to initialise later, in the midst of a copy.
        lazy = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        _run("mkfs.ext4", "-q", "-F", "-N", "8192", "-J", "size=16", "-E", lazy, str(image))
        return cls(image)

    @contextmanager
    def mounted(self, place: Path) -> Iterator[None]:
        """Mount it at a directory, which is created if needed, for as long as the block lasts."""
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._device = _run("losetup", "--find", "--show", str(self.image))
            stack.callback(_run, "losetup", "--detach", self._device)
            _run("mount", self._device, str(place))
            stack.callback(_run, "umount", str(place))
            with suppress(FileNotFoundError):
                (place / "lost+found").rmdir()  # a store has no files that are not its own
            yield

    @property
    def writes(self) -> "Writes":
        """The writes to the mounted device so far."""
        statistics = Path("/sys/block", Path(self._device).name, "stat").read_text().split()
        # Documentation/block/stat.rst: the 5th field counts the writes, the 9th is in flight, the
        # 12th counts discards, and the 16th flushes.
        fields = [int(one) for one in statistics]
        return Writes(in_flight=fields[8], ended=(fields[4], fields[11], fields[15]))


class Writes(NamedTuple):
    in_flight: int
    ended: tuple[int, ...]


def power_failure(disks: list[Disk], copies: list[Path]) -> list[Disk]:
    """Copies of the mounted disks, all as of one moment, at which no write was in progress.

    The programs that write to them must be stopped, so that the moment comes.
    """
    until = time.monotonic() + _QUIET_S
    while time.monotonic() < until:
        before = [disk.writes for disk in disks]
        for disk, copy in zip(disks, copies, strict=True):
            _run("cp", "--sparse=always", str(disk.image), str(copy))
        if before == [disk.writes for disk in disks] and not any(one.in_flight for one in before):
            return [Disk(copy) for copy in copies]
    raise AssertionError(f"the disks are still written after {_QUIET_S} s: {before}")


def why_not(directory: Path) -> str:
    """Why no disk can be mounted here; empty if one can."""
    if os.geteuid() != 0:
        return "only root may mount a disk"
    image = directory / "probe"
    try:
        with Disk.formatted(image).mounted(directory / "probed"):
            return ""
    except (OSError, NoDisks) as problem:
        return f"no loop device can be mounted here: {problem}"
    finally:
        image.unlink(missing_ok=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoDisks(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
