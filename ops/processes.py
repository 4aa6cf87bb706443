"""Processes: what ours run on, and that none that we start outlives whoever started it."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_NO_UVLOOP: Final = "APPROVALS_NO_UVLOOP"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker event loop of uvloop where it is installed and nobody said no; None stands for asyncio's own."""
    if os.environ.get(_NO_UVLOOP):
        return None
    try:
        import uvloop
    except ImportError:
        return None
    quicker: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return quicker


def environment() -> dict[str, str]:
    """Ours, for another program of ours that is measured: without what was set for this one, but on the same event loop."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == _NO_UVLOOP or not name.startswith("APPROVALS_")
    }


def die_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes the program: ask to be ended when we are, however we are ended.

    Linux only. Elsewhere a child whose parent was killed goes on until somebody stops it. The kernel counts the *thread* that
    started it as the parent, so it must be one that lasts.
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


def apart() -> Callable[[], None]:
    """As `die_with_parent`; and the child leaves our process group, to which a terminal sends Ctrl-C.

    It does so by itself because uvloop takes no `process_group`.
    """
    die = die_with_parent()

    def leave() -> None:
        os.setpgrp()
        if die is not None:
            die()

    return leave
