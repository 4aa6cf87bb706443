"""An agent's side of the crash matrix: a shop whose policy asks people, and what a kernel meets.

`Deaths` wraps a log and ends the program at its Nth write or read, as SIGKILL would: before the
broker has it, or after that and before the answer. `Silent` never answers, `Raising` always raises.
"""

import asyncio
from typing import Any, Final

from shop import rule

from ayes.ledger.log import EventLog
from ayes.schemas.errors import BrokerAway

_ASKED: Final = ('voters = ["ana"]', "editor_counts = true")
POLICY: Final = (
    rule("small", "allow", 'when = "args.amount < 10"')
    + rule("large", "ask", 'when = "args.amount >= 10"', *_ASKED, "expires_in_s = 3600")
    + rule("charts", "allow", tools="chart")
    + rule("never", "block", 'reason = "Not from here."', tools="wipe")
    + rule("soon", "ask", *_ASKED, "expires_in_s = 0.2", tools="hurry")
)


class Killed(BaseException):
    """The process ends here. Nothing catches it."""


class Deaths:
    """The log of a process that ends at its Nth step."""

    def __init__(self, log: EventLog, step: int = 0, *, after: bool = False) -> None:
        self._log, self._left, self._after = log, step, after
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._log, name)
        if name not in {"append", "read", "latest"}:
            return value

        async def stepped(*args: Any, **more: Any) -> Any:
            self.steps += 1
            if self.steps != self._left:
                return await value(*args, **more)
            if self._after:
                await value(*args, **more)
            raise Killed

        return stepped


class Raising:
    """The log when the broker is away."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        if name not in {"append", "read", "latest"}:
            return getattr(self._log, name)

        async def raises(*args: Any, **more: Any) -> Any:
            raise BrokerAway("no broker answered")

        return raises


class Silent(Raising):
    """The log when nothing answers."""

    def __getattr__(self, name: str) -> Any:
        if name not in {"append", "read", "latest"}:
            return getattr(self._log, name)

        async def hangs(*args: Any, **more: Any) -> Any:
            await asyncio.Event().wait()

        return hangs
