"""For whoever wants to know whether the log bears it out: fold it again, show what it gives,
compare, and repair.
"""

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from ayes.ledger.log import Pending
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure_empty
from ayes.ledger.services import Ledger
from ayes.ops.audit.replay import Until
from ayes.ops.audit.replay import projection as projection_named
from ayes.ops.audit.replay import replay as replay_log
from ayes.ops.audit.replay import until as read_until
from ayes.ops.audit.verify import Difference, caught_up, queue_differences, rebuild
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import JsonOption, StoreOption, UrlOption
from ayes.ops.terminal.output import print_data, print_line, print_message
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
#: How often the live queue is looked at again while facts keep coming.
_ROUNDS: Final = 5
#: Of the facts that are void, so many are told of without --json.
_VOID_SHOWN: Final = 10

type Show = Callable[[ProjectedRow], Awaitable[None]]


@command(app)
async def replay(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare what is rebuilt with what is live.")
    ] = False,
    projection: Annotated[
        str | None,
        typer.Option(
            "--projection",
            metavar="NAME",
            help="Show the rows of one of them: pending, histories, calls.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="SEQ|TIME", help="Stop there: a number, or an ISO time (UTC)."
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="BUCKET",
            help="Put the rows into a key-value bucket of this name, beside the live one.",
            show_default=False,
        ),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Say where the live queue is not what the log gives; then exit 1."
        ),
    ] = False,
    swap: Annotated[
        bool, typer.Option("--swap", help="Make the live queue what the log gives.")
    ] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Rebuild every projection from the first fact, or one; with --verify, exit 1 at the first
    difference.
    """
    if projection is None:
        if into is not None or diff or swap:
            raise BadInput(
                "--into, --diff and --swap need to know of which projection: add --projection "
                "pending."
            )
        return await verified(verify=verify, until=until, store=store, url=url, json=json)
    if verify:
        raise BadInput("--verify looks at every projection, so it goes without --projection.")
    return await projected(
        projection, until=until, into=into, diff=diff, swap=swap, store=store, url=url, json=json
    )


async def verified(
    *, verify: bool, until: str | None, store: Path | None, url: str | None, json: bool
) -> int:
    """Every projection, and what it comes to."""
    stop = read_until(until)
    async with Ledger.connect(store, url=url, role="operator") as ledger:
        rebuilt = await rebuild(ledger, until=stop, verify=verify)
    if json:
        print_data(msgspec.json.encode(rebuilt).decode())
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
    name: str,
    *,
    until: str | None,
    into: str | None,
    diff: bool,
    swap: bool,
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    """One projection: shown, or put into a bucket beside the live one, compared with it, and put in
    its place.
    """
    fold, stop = projection_named(name), read_until(until)
    if (diff or swap) and fold is not OPEN_APPROVALS:
        raise BadInput(
            f"there is no live copy of {name} to compare with: only the queue "
            f"({OPEN_APPROVALS.name}) has one. "
            "`ayes replay --verify` holds every history against what its model was sent."
        )
    if swap and stop is not None:
        raise BadInput(
            "--swap with --until would put the past in place of the present. Leave one of them out."
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
            return 0
        if stop is not None:
            differences = await _then_and_now(ledger, state)
        else:
            if not swap:  # what is put right needs no worker
                await caught_up(ledger)
            differences = await queue_differences(ledger, state)
        _tell(differences, json=json)
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
    """The state of the log up to there, how many rows were shown of it, and how many facts were
    read.

    What comes to rest is shown when it is let go, and once more should it go on: the last row of a
    key counts.
    """
    state = ProjectionState(fold)
    shown = read = 0

    def each(_fact: Fact) -> None:
        nonlocal read
        read += 1

    async def batch() -> None:
        nonlocal shown
        state.reloaded(fold)  # it comes again, and nothing is counted here
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


async def _then_and_now(ledger: Ledger, state: ProjectionState) -> list[Difference]:
    live = await ledger.log.pending.entries()
    then = {row.key: row.value for row in state.rows(OPEN_APPROVALS)}
    return [
        Difference(name, live.get(name, b""), (then.get(name, b""),))
        for name in sorted({*live, *then})
        if live.get(name, b"") != then.get(name, b"")
    ]


def _tell(differences: list[Difference], *, json: bool) -> None:
    for one in differences:
        if json:
            log = [msgspec.Raw(value or b"null") for value in one.log]
            told = {"key": one.key, "live": _as_json(one.live), "log": log}
            print_data(msgspec.json.encode(told).decode())
        else:
            print_line(str(one))


def _as_json(live: bytes) -> object:
    """What stands in the bucket, on one line of JSON: as it is, or its text where it is not
    JSON.
    """
    try:
        found = msgspec.json.decode(live or b"null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return live.decode(errors="backslashreplace")
    return found if b"\n" in live or b"\r" in live else msgspec.Raw(live or b"null")


async def _swap(ledger: Ledger, state: ProjectionState, differences: list[Difference]) -> None:
    """Make the live queue what the log gives, key by key, so that whoever watches it sees just what
    changes.
    """
    for _ in range(_ROUNDS):
        if not differences:
            return
        for one in differences:
            await _put_right(ledger, one.key)
        differences = await queue_differences(ledger, state)
    raise Unavailable(
        f"the queue keeps changing; {len(differences):,} entries differ still. Do the same again."
    )


async def _put_right(ledger: Ledger, name: str) -> None:
    """As the queue's own worker does it: the revision first, then the facts. Who has the older
    facts loses.

    And who has written looks again: a decision that was recorded meanwhile may have found no entry
    to delete.
    """
    live = ledger.log.pending
    while True:
        value, revision = await live.get(name)
        try:
            found = pending.entry(await ledger.call(CallRef(*name.split("."))))
        except (BadId, TypeError):  # no call's key: somebody put it there by hand
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


async def _set(bucket: Pending, row: ProjectedRow) -> None:
    if len(row.value) > _MAX_ROW:
        raise TooLarge(
            f"the row of {row.key} has {len(row.value):,} bytes, and a bucket takes {_MAX_ROW:,}. "
            "Leave out --into to have it printed."
        )
    won = await bucket.put(row.key, row.value, 0)
    while not won:  # it went on after it had come to rest
        _, revision = await bucket.get(row.key)
        won = await bucket.put(row.key, row.value, revision)
