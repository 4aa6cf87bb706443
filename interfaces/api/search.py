"""Searching decided calls, newest or oldest first, in pages.

The candidates come from the lake, as far as it reaches, and from the log, which has the newest.
Both only say which calls to look at: the facts of each are then read from the log. So what is found
is the same with and without a lake, and as the call is now.

One search takes a limited time. If that is not enough, the page is short and says where the search
goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import batched
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator

from ayes.interfaces.api.backend import log_of
from ayes.interfaces.api.scope import ScopedLog
from ayes.interfaces.api.windows import newest_first, oldest_first
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.validity import call_of
from ayes.ops.lake.catalog import connect
from ayes.ops.lake.writer import read_manifest
from ayes.projections.call_filter import CallFilter
from ayes.projections.views.call import DecidedCall, decided_call
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ROOT, CallRef, ThreadRef

type Order = Literal["newest", "oldest"]
type DecisionKind = Literal["approved", "denied", "answered", "expired", "withdrawn", "superseded"]

#: A search that has taken this long returns what it has found.
_PATIENCE_S: Final = 1.0
#: The number of calls that are read together: with a dozen facts each, still one answer.
_TOGETHER: Final = 50
#: Bytes of arguments on a page.
_MAX_BYTES: Final = 4 << 20
#: Rows of one query to the lake.
_ROWS: Final = 500


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


#: A form sends an empty text for a time that was not entered.
_Time = Annotated[
    Annotated[datetime, AfterValidator(_in_utc)] | None, BeforeValidator(lambda at: at or None)
]


class DecidedFilter(CallFilter, frozen=True):
    """Selects decided calls; the parameters of a request.

    Raises:
        BadId: `workspace` or `thread` is not valid.
    """

    verdict: DecisionKind | Literal[""] = ""
    status: Annotated[Status | Literal[""], Query(description="As it is now.")] = ""
    by: Annotated[str, Query(description="Somebody on whose vote the decision rests.")] = ""
    requester: str = ""
    since: Annotated[_Time, Query(description="UTC, unless it has an offset.")] = None
    until: Annotated[_Time, Query(description="The first time that is too late.")] = None

    def __post_init__(self) -> None:
        self.checked()  # before the lake is asked, which would find nothing

    def selects(self, call: DecidedCall) -> bool:
        return (
            self.fits(call)
            and self.verdict in {"", call.verdict}
            and self.status in {"", call.status}
            and (not self.by or self.by in call.by)
            and self.requester in {"", call.requester}
            and (self.since is None or call.decided_at >= self.since)
            and (self.until is None or call.decided_at < self.until)
        )

    @property
    def subjects(self) -> str:
        """The decisions in the log among which it selects."""
        workspace, thread = self.workspace or "*", "*"
        if self.thread:
            ref = ThreadRef.parse(self.thread)
            workspace, thread = ref.workspace, ref.thread
        return f"{ROOT}.{workspace}.{thread}.call.*.decided"

    def condition(self, within: Collection[str] = ()) -> tuple[str, list[object]]:
        """A condition on `calls` in the lake that holds for all it selects in these workspaces
        (none: all), and its parameters.
        """
        where, values = ["decided_seq IS NOT NULL"], list[object]()
        for sql, value in (
            ("list_contains(?, workspace)", [*within]),
            ("workspace = ?", self.workspace),
            ("workspace || '/' || thread = ?", self.thread),
            # GLOB has more patterns than these.
            ("tool GLOB ?", "" if set(self.tool) & set("[\\") else self.tool),
            ("rule = ?", self.rule),
            ("lower(verdict) = ?", self.verdict),
            ("list_contains(reviewers, ?)", self.by),
            ("requester = ?", self.requester),
        ):
            if value:
                where.append(sql)
                values.append(value)
        return " AND ".join(where), values


class Found(NamedTuple):
    calls: list[DecidedCall]
    #: The decision behind which the search goes on; None: there is nothing more.
    next: int | None


class _Candidates(NamedTuple):
    """Decided calls with the sequences of their decisions, in order."""

    calls: list[tuple[int, CallRef]]
    #: All decisions up to this one have been looked at.
    until: int


async def search(
    ledger: Ledger,
    lake: Path,
    chosen: DecidedFilter,
    order: Order = "newest",
    after: int | None = None,
    limit: int = 50,
) -> Found:
    """The decided calls that the filter selects.

    Args:
        lake: where the lake is, if there is one.
        after: the decision behind which to go on.

    Raises:
        Unavailable: the broker does not answer, or the lake cannot be read.
    """
    clock = asyncio.get_running_loop()
    late, room = clock.time() + _PATIENCE_S, _MAX_BYTES
    found: list[DecidedCall] = []
    reached = 0
    async with aclosing(_candidates(ledger, lake, chosen, order, after)) as candidates:
        async for some in candidates:
            for together in batched(some.calls, _TOGETHER, strict=False):
                known = await _read(ledger, [ref for _, ref in together])
                for call in filter(chosen.selects, known):
                    room -= len(call.arguments)
                    if found and (len(found) == limit or room < 0):
                        return Found(found, reached)
                    found.append(call)
                    reached = call.seq
                if clock.time() > late:
                    return Found(found, together[-1][0])
            if clock.time() > late:
                return Found(found, some.until)
    return Found(found, None)


async def _read(ledger: Ledger, refs: Collection[CallRef]) -> list[DecidedCall]:
    """Those of these calls that are decided."""
    facts = await ledger.read(*refs)
    calls = (call_of(ref, facts) for ref in refs)
    return [decided_call(call) for call in calls if call.requested and call.decided]


async def _candidates(
    ledger: Ledger, lake: Path, chosen: DecidedFilter, order: Order, after: int | None
) -> AsyncGenerator[_Candidates]:
    """Calls that the filter may select, in order: those in the lake, and those after it."""
    log = log_of(ledger)
    within = log.workspaces if isinstance(log, ScopedLog) else ()
    end = await log.last_seq() + 1
    begin = 1 if chosen.since is None else await _first(log, chosen.since, end)
    end = end if chosen.until is None else await _first(log, chosen.until, end)
    if after is not None and order == "newest":
        end = min(end, after)
    elif after is not None:
        begin = max(begin, after + 1)
    middle = min(max(begin, await _end_of(lake, ledger) + 1), end)
    parts = (
        _in_lake(lake, chosen.condition(within), order, begin, middle),
        _in_log(log, chosen, order, middle, end),
    )
    for part in parts if order == "oldest" else reversed(parts):
        async with aclosing(part):
            async for some in part:
                yield some


async def _first(log: JetStream | ScopedLog, at: datetime, end: int) -> int:
    """The sequence of the first fact that was recorded at this time or later, or `end`."""
    low, high = 1, end
    while low < high:
        middle = (low + high) // 2
        raw = await log.at(middle)
        low, high = (low, middle) if raw and raw.recorded_at >= at else (middle + 1, high)
    return low


async def _in_log(
    log: JetStream | ScopedLog, chosen: DecidedFilter, order: Order, begin: int, end: int
) -> AsyncGenerator[_Candidates]:
    if begin >= end:
        return
    reading = newest_first if order == "newest" else oldest_first
    async with aclosing(reading(log, chosen.subjects, begin, end)) as windows:
        async for facts, until in windows:
            calls = [(fact.seq, ref) for fact in facts if (ref := fact.slot.call_ref) is not None]
            yield _Candidates(calls, until)


async def _end_of(lake: Path, ledger: Ledger) -> int:
    """The last fact in the lake of this log; 0 if there is no such lake, or no program for it."""
    if find_spec("duckdb") is None:
        return 0
    try:
        manifest = await asyncio.to_thread(read_manifest, lake)
    except BadInput:
        return 0
    is_whole = not manifest.workspaces and manifest.log == await ledger.log.identity()
    return manifest.until if is_whole else 0


async def _in_lake(
    lake: Path, condition: tuple[str, list[object]], order: Order, begin: int, end: int
) -> AsyncGenerator[_Candidates]:
    while begin < end:
        rows = await asyncio.to_thread(_query, lake, condition, order, begin, end)
        if not rows:
            return
        until = rows[-1][0]
        yield _Candidates(rows, until)
        begin, end = (begin, until) if order == "newest" else (until + 1, end)


def _query(
    lake: Path, condition: tuple[str, list[object]], order: Order, begin: int, end: int
) -> list[tuple[int, CallRef]]:
    where, values = condition
    with connect(lake) as rows:
        found = rows(
            f"""SELECT decided_seq, workspace, thread, call FROM calls
            WHERE {where} AND decided_seq >= ? AND decided_seq < ?
            ORDER BY decided_seq {"DESC" if order == "newest" else "ASC"} LIMIT {_ROWS}""",  # noqa: S608 - our own words
            [*values, begin, end],
        )
    return [
        (row["decided_seq"], CallRef(row["workspace"], row["thread"], row["call"])) for row in found
    ]
