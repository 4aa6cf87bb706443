"""Driving folds over the log of a running broker, without any effect but what is shown.

Nothing here appends, sets a timer or starts a tool: a replay only reads.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final

from ayes.ledger.services import Ledger
from ayes.ops.terminal.times import parse_time
from ayes.projections.calls import CALLS
from ayes.projections.fold import Projection, ProjectionState
from ayes.projections.histories import HISTORIES
from ayes.projections.pending import OPEN_APPROVALS
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef, ThreadRef

PROJECTIONS: Final[dict[str, Projection[Any]]] = {
    fold.name: fold for fold in (OPEN_APPROVALS, HISTORIES, CALLS)
}

#: Where a replay stops: after a sequence number, after a time, or (None) at what was the end when
#: it began.
type Until = int | datetime | None

#: So many facts are folded before what was let go is taken away.
_BATCH: Final = 1000
#: Of a sequence number; NATS counts to 2**64.
_MOST_DIGITS: Final = 20


def projection(name: str) -> Projection[Any]:
    """The projection of that name.

    Raises:
        BadInput: there is none.
    """
    if name not in PROJECTIONS:
        raise BadInput(f"there is no projection {name!r}. Known are: {', '.join(PROJECTIONS)}.")
    return PROJECTIONS[name]


def until(text: str | None) -> Until:
    """Read where to stop.

    Raises:
        BadInput: it is neither a sequence number nor a time.
    """
    if text is None:
        return None
    if text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    try:
        return parse_time("--until", text)
    except BadInput:
        raise BadInput(
            f"--until {text!r} is neither a sequence number nor an ISO time such as "
            "2026-11-21T08:50:00."
        ) from None


async def replay(
    ledger: Ledger,
    state: ProjectionState,
    *,
    until: Until = None,
    each: Callable[[Fact], None] = lambda _fact: None,
    batch: Callable[[], Awaitable[None]] | None = None,
) -> list[range]:
    """Go on with a state up to `until`; answers with the facts that the log should have and does
    not.

    Args:
        each: told of every fact, after it was folded.
        batch: called now and then, and at the end, to take away what has ended (`Folding.evicted`).
    """
    gaps: list[range] = []
    folded = 0
    end = await ledger.log.last_seq()
    async with aclosing(ledger.log.follow((), state.seq + 1, until_end=True)) as batches:
        async for facts in batches:
            within = _within(facts, until)
            for fact in within:
                state.apply(fact)
                if (
                    state.seq < fact.seq
                ):  # the log is read in its order, so what is not there now never comes
                    gaps.append(state.missing)
                    state.pass_over()
                if state.to_reload:
                    await _recall(ledger, state, fact)
                each(fact)
                folded += 1
                if batch is not None and folded % _BATCH == 0:
                    await batch()
            if len(within) < len(facts):
                # Whether what is missing just before it is before or after a time, nobody knows.
                end = min(end, until) if isinstance(until, int) else state.seq
                break
    if batch is not None:
        await batch()
    if state.seq < end:
        gaps.append(range(state.seq + 1, end + 1))
    return gaps


async def _recall(ledger: Ledger, state: ProjectionState, fact: Fact) -> None:
    """Read again what went on with this fact after it had been let go."""
    refs = [CallRef(*key) if len(key) == 3 else ThreadRef(*key) for key in sorted(state.to_reload)]
    facts = [one for ref in refs for one in await ledger.read(ref, must_include=fact.slot)]
    state.reload(facts)


def _within(facts: list[Fact], until: Until) -> list[Fact]:
    """Those before the first one that is after `until`."""
    match until:
        case None:
            return facts
        case datetime():
            return list(takewhile(lambda fact: fact.recorded_at <= until, facts))
        case int():
            return facts[: bisect_right(facts, until, key=attrgetter("seq"))]
