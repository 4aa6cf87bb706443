"""Child processes: their environment, their end with their parent, their memory."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def environment() -> dict[str, str]:
    """Our environment without `AYES_*`, for another program of ours that is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AYES_")}


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` by which the kernel ends the child when its parent ends in any way.

    Linux only. Elsewhere a child whose parent was killed runs until it is stopped. To the
    kernel the parent is the *thread* that started the child, so that thread must last.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed in between
            os._exit(1)

    return ask


def resident_bytes(pid: int) -> int:
    """The memory that this process has now. Linux only; elsewhere, and once it has ended, 0."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
