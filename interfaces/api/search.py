"""Searching decided calls, newest or oldest first, in pages.

The candidates come from the lake, as far as it reaches, and from the log, which has the newest.
Both only say which calls to look at: the facts of each are then read from the log. So what is found
is the same with and without a lake, and as the call is now.

One search takes a limited time. If that is not enough, the page is short and says where the search
goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from datetime import datetime
from importlib.util import find_spec
from itertools import batched
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ayes.interfaces.api.backend import log_of
from ayes.interfaces.api.scope import ScopedLog
from ayes.interfaces.api.windows import newest_first, oldest_first
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.validity import call_of
from ayes.ops.lake.catalog import connect
from ayes.ops.lake.writer import read_manifest
from ayes.projections.call_query import OF_PENDING, TIMES, CallQuery, Seen
from ayes.projections.views.call import DecidedCall, decided_call
from ayes.projections.views.secrets import WHOLE, Secrets
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ROOT, CallRef

type Order = Literal["newest", "oldest"]
type ToVisitor = Callable[..., Awaitable[Secrets]]

#: A search that has taken this long returns what it has found.
_PATIENCE_S: Final = 1.0
#: The number of calls that are read together: with a dozen facts each, still one answer.
_TOGETHER: Final = 50
#: Bytes of arguments on a page.
_MAX_BYTES: Final = 4 << 20
#: Rows of one query to the lake.
_ROWS: Final = 500

#: The columns of `calls` in the lake by which decided calls are found, by the words for them.
_COLUMNS: Final = {
    "workspace": "workspace",
    "thread": "thread",
    "tool": "lower(tool)",
    "rule": "lower(rule)",
    "requester": "lower(requester)",
    "agent": "lower(agent)",
    "verdict": "lower(verdict)",
}


def _subjects(chosen: CallQuery) -> str:
    """The decisions in the log among which it selects."""
    workspace, thread = chosen.exact("workspace") or "*", chosen.exact("thread") or "*"
    if thread.count("/") == 1:
        workspace, _, thread = thread.partition("/")
    return f"{ROOT}.{workspace}.{'*' if '/' in thread else thread}.call.*.decided"


def _condition(chosen: CallQuery, within: Collection[str] = ()) -> tuple[str, list[object]]:
    """A condition on `calls` in the lake that holds for all it selects in these workspaces (none:
    all), and its parameters.
    """
    where, values = ["decided_seq IS NOT NULL"], list[object]()
    if within:
        where.append("list_contains(?, workspace)")
        values.append([*within])
    for one in chosen.words:
        # GLOB has more patterns than queries.
        if one.negated or not one.value.isascii() or set(one.value) & set("[\\"):
            continue
        column = _COLUMNS.get(one.key)
        if one.key == "thread" and "/" in one.value:
            column = "workspace || '/' || thread"
        if column:
            where.append(f"{column} GLOB ?")
            values.append(one.value.lower() if column.startswith("lower") else one.value)
        elif one.key == "by" and not set(one.value) & set("*?"):
            where.append("contains(lower(array_to_string(reviewers, ' ')), ?)")
            values.append(one.value.lower())
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
    chosen: CallQuery,
    order: Order = "newest",
    after: int | None = None,
    limit: int = 50,
    shown: ToVisitor | None = None,
) -> Found:
    """The decided calls that the query selects.

    Args:
        lake: where the lake is, if there is one.
        after: the decision behind which to go on.
        shown: what of these calls is secret to the visitor; None: nothing.

    Raises:
        BadInput: it has words that need what decided calls do not have.
        Unavailable: the broker does not answer, or the lake cannot be read.
    """
    chosen.only("decided calls", *OF_PENDING)
    clock = asyncio.get_running_loop()
    late, room = clock.time() + _PATIENCE_S, _MAX_BYTES
    found: list[DecidedCall] = []
    reached = 0
    async with aclosing(_candidates(ledger, lake, chosen, order, after)) as candidates:
        async for some in candidates:
            for together in batched(some.calls, _TOGETHER, strict=False):
                for call in await _selected(ledger, [ref for _, ref in together], chosen, shown):
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


async def _selected(
    ledger: Ledger, refs: Collection[CallRef], chosen: CallQuery, shown: ToVisitor | None
) -> list[DecidedCall]:
    """Those of these calls that are decided and that the query selects."""
    facts = await ledger.read(*refs)
    known = [call_of(ref, facts) for ref in refs]
    calls = {str(one.ref): one for one in known if one.requested and one.decided}
    found = await selected(ledger, calls.values(), chosen)
    if shown is None:
        return found
    secrets = await shown(*(calls[one.call] for one in found))
    return [decided_call(calls[one.call], secrets) for one in found]


async def selected(
    ledger: Ledger,
    calls: Collection[Call],
    chosen: CallQuery,
    mine: Mapping[str, bool] | None = None,
) -> list[DecidedCall]:
    """Those of these decided calls that the query selects.

    Args:
        mine: whether each is for the reader to settle; None: nobody knows who reads.
    """
    secret: dict[str, tuple[str, ...] | None] = {}
    if chosen.searches:
        tools = {
            str(one.ref): (one.ref.workspace, one.wish.tool, one.wish.tool_version) for one in calls
        }
        declared = await ledger.secrets(set(tools.values()))
        secret = {call: declared[tool] for call, tool in tools.items()}
    is_mine = None if mine is None else lambda one: mine[one.call]
    seen = Seen(ledger.now(), is_mine, secret=lambda one: secret.get(one.call))
    return list(filter(chosen.selecting(seen), (decided_call(one, WHOLE) for one in calls)))


async def _candidates(
    ledger: Ledger, lake: Path, chosen: CallQuery, order: Order, after: int | None
) -> AsyncGenerator[_Candidates]:
    """Calls that the filter may select, in order: those in the lake, and those after it."""
    log = log_of(ledger)
    within = log.workspaces if isinstance(log, ScopedLog) else ()
    end = await log.last_seq() + 1
    begin, times = 1, [one for one in chosen.words if one.key in TIMES and not one.negated]
    for one in times:
        found = await _first(log, one.time, end)
        begin, end = (max(begin, found), end) if one.key == "since" else (begin, min(end, found))
    if after is not None and order == "newest":
        end = min(end, after)
    elif after is not None:
        begin = max(begin, after + 1)
    middle = min(max(begin, await _end_of(lake, ledger) + 1), end)
    parts = (
        _in_lake(lake, _condition(chosen, within), order, begin, middle),
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
    log: JetStream | ScopedLog, chosen: CallQuery, order: Order, begin: int, end: int
) -> AsyncGenerator[_Candidates]:
    if begin >= end:
        return
    reading = newest_first if order == "newest" else oldest_first
    async with aclosing(reading(log, _subjects(chosen), begin, end)) as windows:
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
