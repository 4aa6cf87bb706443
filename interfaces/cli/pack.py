"""The command that packs what was settled long ago."""

from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.ops.actions.packing import HeldBack, PackedThread, pack_log
from ayes.schemas.durations import parse_duration

app: Final = commands()

#: A hundred years: longer than any log.
_MOST_S: Final = 36_500 * 86_400.0


@command(app, examples="ayes pack --settled-for 30d")
async def pack(
    settled_for: Annotated[
        str,
        option("--settled-for", "DURATION", "Only what was settled so long ago, such as 30d."),
    ],
    *,
    session: Session,
) -> int:
    """Pack what was settled long ago, so that it takes less of the broker's memory.

    A run removes from the stream what an earlier one packed, two minutes ago or more; all of it
    stays in the log. Names the consumers that hold something back; exits with 1 if a thread cannot
    be packed. Needs the administrator's login, and a log of `ayes setup --packed` or `ayes up
    --pack-after`. After a crash, run it again.
    """
    age = settled_for_of("--settled-for", settled_for)
    each, held = list[PackedThread](), list[HeldBack]()
    async with (
        session.connect("admin") as ledger,
        aclosing(pack_log(ledger, settled_for=age)) as threads,
    ):
        async for one in threads:
            if session.json:
                print_json(one)
            if isinstance(one, HeldBack):
                held.append(one)
                continue
            each.append(one)
            if (one.packed or one.removed) and not session.json:
                print_line(f"{one.thread}  packed {one.packed:,}, removed {one.removed:,}")
            if one.problem and not session.json:
                print_message(f"error: {one.thread} was not packed: {one.problem}")
    packed, removed = sum(one.packed for one in each), sum(one.removed for one in each)
    failed = int(any(one.problem for one in each))
    if session.json:
        print_json({"threads": len(each), "packed": packed, "removed": removed})
        return failed
    later = " What was packed is removed by a run in two minutes or later." if packed else ""
    threads_of = "1 thread" if len(each) == 1 else f"{len(each):,} threads"
    print_message(f"Of {threads_of}, {packed:,} facts were packed and {removed:,} removed.{later}")
    for waiting in held:
        print_message(str(waiting))
    return failed


def settled_for_of(option: str, text: str) -> timedelta:
    """For how long what is packed must have been settled; `option` is named in errors.

    Raises:
        BadInput: it is not a duration.
    """
    return timedelta(seconds=parse_duration(option, text, most=_MOST_S))
