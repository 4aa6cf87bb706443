"""Processes that we start: none of them outlives whoever started it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def environment() -> dict[str, str]:
    """Ours, for another program of ours that is measured: without what was set for this one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AYES_")}


def die_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes the program: ask to be ended when we are, however we are
    ended.

    Linux only. Elsewhere a child whose parent was killed goes on until somebody stops it. The
    kernel counts the *thread* that started it as the parent, so it must be one that lasts.
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
