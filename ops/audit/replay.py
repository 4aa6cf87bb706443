"""Folding the log of a running broker. A replay only reads: it appends nothing, sets no timer and
starts no tool.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final

from ayes.ledger.clients.services import Ledger
from ayes.projections.calls import CALLS
from ayes.projections.fold import Projection, ProjectionState
from ayes.projections.histories import HISTORIES
from ayes.projections.pending import OPEN_APPROVALS
from ayes.schemas.codec import Fact
from ayes.schemas.durations import parse_position
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef, ThreadRef

PROJECTIONS: Final[dict[str, Projection[Any]]] = {
    fold.name: fold for fold in (OPEN_APPROVALS, HISTORIES, CALLS)
}

#: Where a replay stops: after a sequence number, after a time, or (`None`) at the end of the log as
#: of its start.
type Until = int | datetime | None

#: Facts between two calls of `batch`.
_BATCH: Final = 1000


def projection(name: str) -> Projection[Any]:
    """The projection of that name.

    Raises:
        BadInput: it does not exist.
    """
    if name not in PROJECTIONS:
        raise BadInput(f"there is no projection {name!r}. Known are: {', '.join(PROJECTIONS)}.")
    return PROJECTIONS[name]


def until(text: str | None) -> Until:
    """The value of `--until`.

    Raises:
        BadInput: it is neither a sequence number nor a time.
    """
    return None if text is None else parse_position("--until", text)


async def replay(
    ledger: Ledger,
    state: ProjectionState,
    *,
    until: Until = None,
    each: Callable[[Fact], None] = lambda _fact: None,
    batch: Callable[[], Awaitable[None]] | None = None,
) -> list[range]:
    """Fold the log from a state on up to `until`. Returns the gaps: facts that the log should have.

    Args:
        each: called with every fact after it was folded.
        batch: called at intervals and at the end, to collect what was evicted from the state.
    """
    gaps: list[range] = []
    folded = 0
    end = await ledger.log.last_seq()
    async with aclosing(ledger.log.follow((), state.seq + 1, until_end=True)) as batches:
        async for facts in batches:
            within = _within(facts, until)
            for fact in within:
                state.apply(fact)
                if state.seq < fact.seq:  # the log is read in order, so a gap is never filled later
                    gaps.append(state.missing)
                    state.pass_over()
                if state.to_reload:
                    await _reload(ledger, state, fact)
                each(fact)
                folded += 1
                if batch is not None and folded % _BATCH == 0:
                    await batch()
            if len(within) < len(facts):
                # Whether a gap just before it is before or after a time is unknown.
                end = min(end, until) if isinstance(until, int) else state.seq
                break
    if batch is not None:
        await batch()
    if state.seq < end:
        gaps.append(range(state.seq + 1, end + 1))
    return gaps


async def _reload(ledger: Ledger, state: ProjectionState, fact: Fact) -> None:
    """Read the facts of calls and threads that this fact continues after their eviction."""
    refs = [CallRef(*key) if len(key) == 3 else ThreadRef(*key) for key in sorted(state.to_reload)]
    facts = [one for ref in refs for one in await ledger.read(ref, must_include=fact.slot)]
    state.reload(facts)


def _within(facts: list[Fact], until: Until) -> list[Fact]:
    """The facts up to the first one that is after `until`."""
    match until:
        case None:
            return facts
        case datetime():
            return list(takewhile(lambda fact: fact.recorded_at <= until, facts))
        case int():
            return facts[: bisect_right(facts, until, key=attrgetter("seq"))]
