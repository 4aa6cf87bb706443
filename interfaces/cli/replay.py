"""Rebuild the projections from the log: show them, compare them with the live ones, repair."""

import functools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.interfaces.cli.settings import trust_of
from ayes.interfaces.cli.terminal.output import print_data, print_json, print_line, print_message
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Bucket
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure_empty
from ayes.ops.audit.replay import Until
from ayes.ops.audit.replay import projection as projection_named
from ayes.ops.audit.replay import replay as replay_log
from ayes.ops.audit.replay import until as read_until
from ayes.ops.audit.verify import (
    Difference,
    caught_up,
    differences_since,
    queue_differences,
    rebuild,
)
from ayes.projections import pending
from ayes.projections.fold import ProjectedRow, Projection, ProjectionState
from ayes.projections.pending import OPEN_APPROVALS
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, BadInput, TooLarge, Unavailable
from ayes.schemas.ids import token
from ayes.schemas.slots import CallRef

app: Final = commands()

#: One value of a bucket: NATS takes a message of 1 MiB, headers included.
_MAX_ROW: Final = 1_000_000
#: How many times the live queue is compared again while facts keep coming.
_ROUNDS: Final = 5
#: The number of void facts shown without --json.
_VOID_SHOWN: Final = 10

type Show = Callable[[ProjectedRow], Awaitable[None]]


@command(app)
async def replay(
    verify: Annotated[
        bool, option("--verify", "Compare the rebuilt projections with the live ones.")
    ] = False,
    projection: Annotated[
        str | None,
        option(
            "--projection",
            "NAME",
            "Show the rows of one projection: pending, histories, calls.",
            autocompletion=completion.one_of("pending", "histories", "calls"),
        ),
    ] = None,
    until: Annotated[
        str | None, option("--until", "SEQ|TIME", "Stop there: a number, or an ISO time (UTC).")
    ] = None,
    into: Annotated[
        str | None,
        option(
            "--into",
            "BUCKET",
            "Put the rows into a key-value bucket of this name, next to the live one.",
        ),
    ] = None,
    diff: Annotated[
        bool, option("--diff", "Show where the live queue differs from the log; exit 1 if it does.")
    ] = False,
    swap: Annotated[bool, option("--swap", "Correct the live queue from the log.")] = False,
    *,
    session: Session,
) -> int:
    """Rebuild all projections from the first fact, or one; exit 1 if --verify finds differences."""
    if projection is None:
        if into is not None or diff or swap:
            raise BadInput(
                "--into, --diff and --swap are for one projection: add --projection pending."
            )
        return await verified(session, verify=verify, until=until)
    if verify:
        raise BadInput("--verify is for every projection. Leave out --projection.")
    return await projected(projection, session, until=until, into=into, diff=diff, swap=swap)


async def verified(session: Session, *, verify: bool, until: str | None) -> int:
    """Rebuild every projection and print a summary."""
    stop = read_until(until)
    async with session.connect("operator") as ledger:
        await ledger.trust_in(trust_of(session.store, None))
        rebuilt = await rebuild(ledger, until=stop, verify=verify)
    if session.json:
        print_json(rebuilt)
    else:
        calls = (
            ", ".join(f"{count} {status}" for status, count in rebuilt.calls.items()) or "no calls"
        )
        print_line(
            f"{rebuilt.facts:,} facts up to {rebuilt.until:,} in {rebuilt.seconds:.1f} s: "
            f"{rebuilt.threads:,} threads; {calls}; {rebuilt.pending:,} pending"
        )
        if verify and not rebuilt.differences:
            queue = "the live queue is what the log gives; " if stop is None else ""
            print_line(
                f"verified: {queue}{rebuilt.histories:,} histories are what their models were sent"
            )
        for void in rebuilt.void[:_VOID_SHOWN]:
            print_line(str(void))
        if len(rebuilt.void) > _VOID_SHOWN:
            print_line(
                f"and {len(rebuilt.void) - _VOID_SHOWN:,} more that are void; --json lists them"
            )
        for difference in rebuilt.differences[:1]:
            print_line(f"differs: {difference}")
        if len(rebuilt.differences) > 1:
            print_line(f"and {len(rebuilt.differences) - 1} more; --json lists them")
    return 1 if rebuilt.differences else 0


async def projected(
    name: str, session: Session, *, until: str | None, into: str | None, diff: bool, swap: bool
) -> int:
    """Rebuild one projection: show it, write it to a bucket, or compare or correct the live one."""
    store, url, json = session
    fold, stop = projection_named(name), read_until(until)
    if (diff or swap) and fold is not OPEN_APPROVALS:
        raise BadInput(
            f"there is no live copy of {name} to compare with: only the queue "
            f"({OPEN_APPROVALS.name}) has one. `ayes replay --verify` compares every history with "
            "what its model was sent."
        )
    if swap and stop is not None:
        raise BadInput(
            "--swap with --until would replace the present by the past. Leave out one of them."
        )
    if into is not None and token("bucket", into) == OPEN_APPROVALS.name:
        raise BadInput(
            f"{into!r} is the live queue itself. Choose another name for --into, or use --swap."
        )
    role = "admin" if into or swap else "operator"
    async with JetStream.connect(store, url=url, role=role) as log:
        ledger = Ledger.on(log, role)
        show: Show = _show
        if into is not None:
            await ensure_empty(log.api, into, f"ayes replay --projection {fold.name}")
            show = functools.partial(_set, log.bucket(into))
        elif diff or swap:
            show = _nothing
        state, rows, read = await _folded(ledger, fold, stop, show)
        what = f" in bucket {into}" if into else ""
        print_message(
            f"{fold.name}: {rows:,} rows as of fact {state.seq:,}, {read:,} facts read{what}"
        )
        if not diff and not swap:
            if json and into is not None:  # otherwise the rows or the differences are the data
                print_json(
                    {"projection": fold.name, "bucket": into, "rows": rows, "seq": state.seq}
                )
            return 0
        if stop is not None:
            differences = await differences_since(ledger, state)
        else:
            if not swap:  # a correction needs no worker
                await caught_up(ledger)
            differences = await queue_differences(ledger, state)
        _print_differences(differences, json=json)
        if not swap:
            return 1 if differences else 0
        await _swap(ledger, state, differences)
        print_message(
            f"swapped: the live queue is what the log gives; {len(differences):,} entries were not"
        )
        return 0


async def _folded(
    ledger: Ledger, fold: Projection[Any], stop: Until, show: Show
) -> tuple[ProjectionState, int, int]:
    """The state of the log up to `stop`, the number of rows shown, and of facts read.

    A row is shown when it is evicted, and again if it changes later: the last row of a key counts.
    """
    state = ProjectionState(fold)
    shown = read = 0

    def each(_fact: Fact) -> None:
        nonlocal read
        read += 1

    async def batch() -> None:
        nonlocal shown
        state.reloaded(fold)  # a changed row is shown again, without counting
        for row in map(fold.row, state.evicted(fold)):
            if row is not None:
                await show(row)
                shown += 1

    for gap in await replay_log(ledger, state, until=stop, each=each, batch=batch):
        print_message(
            f"the log does not have facts {gap.start:,} to {gap.stop - 1:,}; see `ayes doctor`"
        )
    for row in state.rows(fold):
        await show(row)
        shown += 1
    return state, shown, read


def _print_differences(differences: list[Difference], *, json: bool) -> None:
    for one in differences:
        if json:
            log = [msgspec.Raw(value or b"null") for value in one.log]
            found = {"key": one.key, "live": _as_json(one.live), "log": log}
            print_json(found)
        else:
            print_line(str(one))


def _as_json(live: bytes) -> object:
    """A value of the bucket on one line of JSON: as it is, or as a string if it is not JSON."""
    try:
        found = msgspec.json.decode(live or b"null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return live.decode(errors="backslashreplace")
    return found if b"\n" in live or b"\r" in live else msgspec.Raw(live or b"null")


async def _swap(ledger: Ledger, state: ProjectionState, differences: list[Difference]) -> None:
    """Correct the live queue key by key, so that its watchers see only the changes."""
    for _ in range(_ROUNDS):
        if not differences:
            return
        for one in differences:
            await _put_right(ledger, one.key)
        differences = await queue_differences(ledger, state)
    raise Unavailable(
        f"the queue keeps changing; {len(differences):,} entries still differ. Try again."
    )


async def _put_right(ledger: Ledger, name: str) -> None:
    """Correct one entry as the queue's worker does: read the revision first, then the facts, so
    that the writer with the older facts loses.

    After a write it compares again: a decision recorded meanwhile may have found no entry to
    delete.
    """
    live = ledger.log.pending
    while True:
        value, revision = await live.get(name)
        try:
            found = pending.entry(await ledger.call(CallRef(*name.split("."))))
        except (BadId, TypeError):  # not a call's key: somebody wrote it by hand
            found = None
        wanted = pending.encode(found) if found is not None else b""
        if value == wanted:
            return
        if wanted:
            await live.put(name, wanted, revision)
        else:
            await live.delete(name, revision)


async def _show(row: ProjectedRow) -> None:
    print_data(f'{{"key":{msgspec.json.encode(row.key).decode()},"value":{row.value.decode()}}}')


async def _nothing(_row: ProjectedRow) -> None:
    pass


async def _set(bucket: Bucket, row: ProjectedRow) -> None:
    if len(row.value) > _MAX_ROW:
        raise TooLarge(
            f"the row of {row.key} has {len(row.value):,} bytes, and a bucket takes {_MAX_ROW:,}. "
            "Leave out --into to have it printed."
        )
    won = await bucket.put(row.key, row.value, 0)
    while not won:  # it changed after it was evicted
        _, revision = await bucket.get(row.key)
        won = await bucket.put(row.key, row.value, revision)
