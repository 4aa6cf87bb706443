"""An event loop whose time is simulated: where nothing is ready to run it jumps to the next timer.

So an hour of deadlines, backoffs and leases takes as long as the code that runs in it, and the
order of everything depends on the timers alone. Nothing in it may wait for a thread or a socket.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

#: The broker's clock at the beginning of each world.
START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)


class _Jumping(selectors.SelectSelector):
    """Where a real selector would sleep until the next timer, the time jumps to it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that will never happen")
        self._loop.now_s += max(0.0, timeout)
        return []


def run[T](main: Coroutine[object, object, T]) -> T:
    """Run it in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


def simulated(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """Let a test run in simulated time, on a log in memory whose clock is simulated, too. So what
    is in time does not depend on how busy the machine is.
    """

    @functools.wraps(test)
    def in_simulated_time(**fixtures: Any) -> None:
        run(test(**fixtures))

    return pytest.mark.log("simulated")(in_simulated_time)


def passed_s() -> float:
    """As `time.monotonic`, for modules that ask it for the time."""
    return asyncio.get_running_loop().time()


def now() -> datetime:
    """The broker's clock: within `run`, and before it its beginning."""
    loop = asyncio.get_running_loop()
    return loop.now() if isinstance(loop, SimulatedLoop) else START
