"""What is known of one broker, kept up to date.

    monitor = Monitor(store)
    async with monitor.running():
        monitor.seen().why          # empty: calls get decided

It looks all the time, and answers from what it saw: a probe costs the broker nothing, however many
there are, and is answered at once while the broker is away. Whatever cannot be known counts as not
ready: before the first look, and when the last one is older than `STALE_S`.

Any failure of a look ends the connection, and the next one begins anew, with the address that the
store has by then. The counters are those of this object: they go on where they were.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from itertools import batched
from pathlib import Path
from typing import Final

import nats.errors
from msgspec.structs import replace

from ayes.consumers.pending_view import PendingView
from ayes.consumers.supervision import beside, keep_running
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.patience import while_away
from ayes.ledger.subscriptions import OPERATOR
from ayes.ops.inspection.checks import (
    NOT_TRIED,
    Look,
    Wanted,
    glance,
    obstacle,
    overview,
    unlike_witness,
)
from ayes.ops.inspection.health import Health, takes_writes
from ayes.ops.inspection.metrics import Snapshot
from ayes.ops.inspection.nodes import explained
from ayes.ops.inspection.witness import place_of
from ayes.ops.single_flight import Fresh
from ayes.projections.tally import FactCounts, is_decision
from ayes.schemas.codec import Fact
from ayes.schemas.errors import ApprovalsError, Unavailable
from ayes.schemas.slots import CallRef

#: The pauses between two looks, two trials of writing, and two looks at what needs a person. With
#: `progress.STALLED_S` and the patience below, each trouble is known within five seconds.
LOOK_S: Final = 0.5
#: Longer than the others: each trial is an open batch, of which a broker allows some tens.
TRY_S: Final = 1.5
STATUS_S: Final = 10.0
#: How old a comparison of the log with its witness may be; it reads up to 20,000 facts.
_WITNESS_S: Final = 60.0
#: How long it tries to connect before it reads the store's address again.
_ROUND_S: Final = 2.0
#: How long a look may take.
_PATIENCE_S: Final = 3.0
#: A look or trial that is older says nothing.
STALE_S: Final = 5.0
#: How a look or a connection fails.
_FAILURES: Final = (ApprovalsError, nats.errors.Error, OSError)
#: The number of calls that are read together.
_TOGETHER: Final = 80


class Monitor:
    """What is known of a broker while `running`."""

    def __init__(
        self,
        store: Path | str | None = None,
        *,
        url: str | None = None,
        wanted: Wanted = Wanted(),  # noqa: B008 - it is immutable
        measuring: bool | None = None,
    ) -> None:
        """Remember what to look at.

        Args:
            url: a broker elsewhere; without it, the one of the store.
            measuring: whether to keep what only metrics need; by default, if the extra `metrics` is
                installed.
        """
        self._store, self._url, self._wanted = store, url, wanted
        self.measuring = is_installed() if measuring is None else measuring
        #: Why nothing is known of the broker; empty if something is.
        self._lost = "the broker was not looked at yet."
        self._look: Look | None = None
        self._health: Health | None = None
        self._looked_at = self._tried_at = 0.0
        self._status: Look | None = None
        self._view: PendingView | None = None
        self._tally: FactCounts | None = None

    def seen(self) -> Snapshot:
        """What is known now."""
        why = self._why(time.monotonic())
        if self._lost:
            return Snapshot(clock.now(), why, tally=self._tally)
        return Snapshot(
            clock.now(),
            why,
            is_up=True,
            look=self._look,
            health=self._health,
            status=self._status,
            asked_at=self._asked_at(),
            tally=self._tally,
        )

    def _why(self, now: float) -> str:
        if self._lost or self._look is None:
            return self._lost
        if why := obstacle(replace(self._look, health=self._health or NOT_TRIED)):
            return why
        oldest_s = now - min(self._looked_at, self._tried_at)
        return f"the broker was last seen {oldest_s:,.0f} s ago." if oldest_s > STALE_S else ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look at the broker for as long as the block lasts."""
        async with beside(keep_running("the monitor", self._run, ends=())):
            yield

    async def _run(self) -> None:
        while True:
            connecting = JetStream.connect(
                self._store, url=self._url, role=OPERATOR, timeout_s=_ROUND_S, any_level=True
            )
            try:
                async with connecting as log:
                    await self._watch(log)
            except _FAILURES as problem:
                self._lose(problem)
            await asyncio.sleep(LOOK_S)

    def _lose(self, problem: Exception) -> None:
        is_late = isinstance(problem, TimeoutError)
        why = f"the broker did not answer within {_PATIENCE_S:g} s." if is_late else str(problem)
        self._lost = why or type(problem).__name__
        self._look = self._status = self._health = None

    async def _watch(self, log: JetStream) -> None:
        """Look at the broker on this connection, until it does not answer."""
        ledger = Ledger.on(log, OPERATOR)
        own = Store(self._store) if self._url is None else None
        others = {"trial of writing": partial(self._keep_trying, log, own)}
        if self.measuring:
            others |= {
                "status": partial(self._keep_status, log, own),
                "list": partial(self._keep_list, ledger),
                "counters": partial(self._count, ledger),
            }
        running = [
            keep_running(f"the monitor's {what}", run, ends=()) for what, run in others.items()
        ]
        async with beside(*running):
            while True:
                try:
                    async with asyncio.timeout(_PATIENCE_S), explained(log):
                        self._look = await glance(log, self._wanted)
                except _FAILURES as problem:
                    self._lose(problem)  # now: a connection to a frozen broker is slow to close
                    raise
                self._lost, self._looked_at = "", time.monotonic()
                await asyncio.sleep(LOOK_S)

    async def _keep_trying(self, log: JetStream, store: Store | None) -> None:
        while True:
            self._health = await takes_writes(log, store)
            self._tried_at = time.monotonic()
            await asyncio.sleep(TRY_S)

    # ------------------------------------------------------------------------------ for the metrics

    async def _keep_status(self, log: JetStream, store: Store | None) -> None:
        async def pending() -> int:
            return len(self._view.entries) if self._view is not None else 0

        place = place_of(self._store, self._url)
        unlike = Fresh(partial(unlike_witness, log, place), for_s=_WITNESS_S)
        while True:
            try:
                self._status = await overview(log, store, place, pending=pending, unlike=unlike)
            except Unavailable:  # such as a worker's login, which may not read all of it
                self._status = None
            await asyncio.sleep(STATUS_S)

    async def _keep_list(self, ledger: Ledger) -> None:
        try:
            async with PendingView(ledger) as view:
                self._view = view
                await view.lost()
        finally:
            self._view = None

    def _asked_at(self) -> list[datetime] | None:
        if self._view is None:
            return None
        try:
            return [one.gated_at for one in self._view.entries.oldest()]
        except Unavailable:  # it is about to be loaded again
            return None

    async def _count(self, ledger: Ledger) -> None:
        last = await while_away(ledger.log.last_seq)
        if self._tally is None:
            self._tally = FactCounts(last)
        self._tally.seq = min(self._tally.seq, last)  # a log that was replaced by a shorter one
        following = ledger.log.follow((), self._tally.seq + 1, until_end=False)
        async with aclosing(following) as batches:
            async for facts in batches:
                known = await _known(ledger, filter(is_decision, facts))
                for fact in facts:
                    self._tally.apply(fact, known[fact.slot.call_ref])


async def _known(ledger: Ledger, decisions: Iterable[Fact]) -> Mapping[CallRef | None, list[Fact]]:
    """The requests of the calls that these facts decide, and the questions to people, by call."""
    found = defaultdict[CallRef | None, list[Fact]](list)
    calls = dict.fromkeys(ref for one in decisions if (ref := one.slot.call_ref) is not None)
    for together in batched(calls, _TOGETHER, strict=False):
        slots = [slot for ref in together for slot in (ref.requested, ref.gated)]
        for fact in await while_away(partial(ledger.read, *slots)):
            found[fact.slot.call_ref].append(fact)
    return found


def is_installed() -> bool:
    """Whether metrics can be written."""
    return find_spec("prometheus_client") is not None
