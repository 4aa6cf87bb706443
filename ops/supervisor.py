"""Supervising the broker of a store while `up` runs.

* A broker that ends by itself is started again on the same port, `MAX_RESTARTS` times within
  `WITHIN_S`.
* While its disk is nearly full, the broker refuses further facts, loudly and before a write fails
  (decision 0028). When there is room again it accepts them again.
* A broker whose streams have failed is restarted when there is room, since they accept nothing
  until then (health.py).
* Each minute its settings are checked (guard.py).
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from ayes.consumers.supervision import keep_running
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import fitting, info
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.inspection.guard import guard
from ayes.ops.inspection.health import CLOSED, LOWERED, former_limit, free_bytes, takes_writes
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerAway, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.supervisor")

#: How often the broker is started again within `WITHIN_S`; the pause doubles each time.
MAX_RESTARTS: Final = 5
WITHIN_S: Final = 300.0
_PAUSES: Final = Backoff(0.25, 60.0)
#: How often writing is tried.
EVERY_S: Final = 2.0
#: How long the broker may take to change the limit of the log; what it misses is tried again.
_PATIENCE_S: Final = 3.0
#: The free space below which facts are refused: this share of the disk, but no more than these
#: bytes. What the broker writes besides facts (the positions of consumers, the queue's bucket)
#: still has room then.
FLOOR_SHARE: Final = 0.05
FLOOR_BYTES: Final = 256 << 20
#: Facts are accepted again from so many times the floor on, lest it changes with each fact.
_REOPEN: Final = 1.5


@asynccontextmanager
async def supervised(server: EmbeddedServer) -> AsyncGenerator["Supervisor"]:
    """Supervise the broker for as long as the block lasts, from before its streams are declared:
    it may end at any time.
    """
    async with JetStream.connect(server.store.path, role="admin") as log:
        supervisor = Supervisor(server, log)
        try:
            yield supervisor
        finally:
            await supervisor.end()


class Supervisor:
    def __init__(self, server: EmbeddedServer, log: JetStream) -> None:
        self._server = server
        self._log = log
        #: When the broker ended by itself, on the loop's clock.
        self._ended: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        #: Why the log takes no writes, as it was reported last.
        self._why = ""
        #: Fails with `BrokerAway` when the broker cannot be kept running.
        running = keep_running("the supervisor", self.run, ends=(BrokerAway,))
        self.broken = asyncio.create_task(running, name="supervisor")
        self._guard: asyncio.Task[None] | None = None

    async def end(self) -> None:
        tasks = [self.broken, *([self._guard] if self._guard else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def watch_log(self) -> None:
        """Check disk and settings, now and from now on: once the streams are declared, and before
        anything is recorded, since an earlier `up` may have been killed while the disk was full.
        """
        await self.check_disk()
        if self._guard is None:
            guarding = keep_running("the guard", partial(guard, self._log), ends=())
            self._guard = asyncio.create_task(guarding, name="guard")

    async def run(self) -> None:
        """Supervise the broker until it cannot be kept running.

        Raises:
            BrokerAway: it has ended too often; with its last output.
        """
        while True:
            try:
                async with asyncio.timeout(EVERY_S):
                    code = await self._server.exited()
            except TimeoutError:
                if self._guard is not None:
                    await self.check_disk()
            else:
                await self._start_again(code)

    async def _start_again(self, code: int) -> None:
        now = asyncio.get_running_loop().time()
        self._ended.append(now)
        recently = sum(now - one < WITHIN_S for one in self._ended)
        words = self._server.last_words()
        if recently > MAX_RESTARTS:
            raise BrokerAway(
                f"the broker ended by itself {recently} times within {WITHIN_S / 60:g} minutes "
                f"(exit code {code}) and is not started again. Its last output:\n{words}"
            )
        _log.error(
            "the broker ended by itself and is started again",
            exit_code=code,
            times=recently,
            most=MAX_RESTARTS,
            last_output=words.partition("\n")[0],
        )
        await asyncio.sleep(_PAUSES.pause_s(recently))
        await self._restart()

    async def _restart(self) -> None:
        try:
            await self._server.restart()
        except BrokerAway as problem:  # the next round finds that it has ended
            _log.error("the broker could not be started", problem=str(problem).partition("\n")[0])
        else:
            _log.warning("the broker runs again", url=self._server.url, pid=self._server.pid)

    async def check_disk(self) -> None:
        """Refuse or accept facts, depending on the free space, and report whether writing works."""
        store = self._server.store
        free, floor = free_bytes(store.path), floor_of(store.path)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._set_open(free, floor)
        except (Unavailable, TimeoutError) as problem:
            _log.debug("the bound of the log cannot be changed", problem=str(problem))
        health = await takes_writes(self._log, store)
        if health.dead and free > floor * _REOPEN:
            _log.warning("the disk has room again, so the broker is restarted", free_bytes=free)
            await self._restart()
            health = await takes_writes(self._log, store)
        if health.why != self._why:
            if health.ok:
                _log.warning("the log takes writes again", free_bytes=free)
            else:
                said = self._server.last_problem()
                _log.error("the log takes no writes", why=health.why, free_bytes=free, broker=said)
            self._why = health.why

    async def _set_open(self, free: int, floor: int) -> None:
        """Lower the limit of the log to what it holds, also if that has become less, or restore it.

        The former limit is in the stream's metadata, where the next `up` finds it.
        """
        stream = await info(self._log.api, f"STREAM.INFO.{LEDGER}")
        if stream is None:
            return
        config, former = stream["config"], former_limit(stream)
        metadata = config.setdefault("metadata", {})
        holds = max(1, stream["state"]["bytes"])
        is_closed = former is not None and config["max_bytes"] <= holds
        if free < floor and not is_closed:
            metadata |= {CLOSED: str(former or config["max_bytes"]), LOWERED: str(holds)}
            config["max_bytes"] = holds
        elif former is not None and free > floor * _REOPEN:
            config["max_bytes"] = former
            del metadata[CLOSED]
            metadata.pop(LOWERED, None)
        else:
            return
        # After a restart the broker may have less room to reserve than before.
        exactly = CLOSED in metadata
        await fitting(self._log.api, f"STREAM.UPDATE.{LEDGER}", config, exactly=exactly)


def floor_of(path: Path) -> int:
    """The free bytes of this disk below which further facts are refused."""
    disk = os.statvfs(path)
    return min(FLOOR_BYTES, int(disk.f_blocks * disk.f_frsize * FLOOR_SHARE))
