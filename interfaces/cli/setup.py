"""The command that declares the ledger's streams and consumers on a broker of one's own."""

import sys
from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Any, Final

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.decide import confirm
from ayes.interfaces.cli.options import (
    AcceptLogOption,
    AcceptReasonOption,
    MaxBytesOption,
    PackedOption,
    option,
)
from ayes.interfaces.cli.run import accepting, bytes_of
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.ledger.nats.api import Api
from ayes.ledger.nats.drift import Drift, differences, upgrade
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import (
    check_level,
    check_server,
    described,
    dismiss,
    ensure,
    info,
    kept,
    streams,
)
from ayes.ledger.patience import while_away
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED
from ayes.schemas.errors import BadInput

app: Final = commands()

#: How long nodes that have just been started may take to elect a leader.
_ELECTION_S: Final = 30.0

#: The consumers that not every installation needs.
OPTIONAL: Final = [
    name for name, durable in DURABLES.items() if durable.optional and durable.stream != PARKED
]


@command(
    app,
    examples="""
    ayes setup --url tls://admin:PASSWORD@nats.example:4222 --replicas 3 --with executor
    ayes setup --url tls://admin:PASSWORD@nats.example:4222 --upgrade
    """,
)
async def setup(
    replicas: Annotated[
        int | None,
        option(
            "--replicas",
            "Copies of each stream: 1, or 3 in a cluster. By default as it is, else 1.",
            min=1,
            max=5,
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        option(
            "--with",
            "CONSUMER",
            f"Create this consumer too: {', '.join(OPTIONAL)}. Repeatable.",
            autocompletion=completion.one_of(*OPTIONAL),
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        option(
            "--without",
            "CONSUMER",
            "Delete this optional consumer, whose workers are stopped for good. Repeatable.",
            autocompletion=completion.one_of(*OPTIONAL),
        ),
    ] = None,
    do_upgrade: Annotated[
        bool, option("--upgrade", "Change what is not as declared. Shows each change first.")
    ] = False,
    yes: Annotated[bool, option("--yes", "Do not ask before the upgrade.")] = False,
    max_bytes: MaxBytesOption = None,
    packed: PackedOption = False,
    accept_log: AcceptLogOption = False,
    reason: AcceptReasonOption = "",
    *,
    session: Session,
) -> int:
    """Create the streams and consumers on a broker of your own, as its administrator. `up` does it
    automatically.
    """
    also, retired = with_ or [], without or []
    if unknown := sorted({*also, *retired} - {*OPTIONAL}):
        raise BadInput(
            f"there is no optional consumer {', '.join(unknown)}. There are: {', '.join(OPTIONAL)}."
        )
    most = bytes_of(max_bytes)
    plan: list[Drift] = []
    connecting = JetStream.connect(session.store, url=session.url, role="admin", any_level=True)
    async with connecting as log:
        check_server(log.server)
        ledger = await _once_elected(log.api)
        for name in retired:
            await dismiss(log.api, name)
        if do_upgrade:
            plan = differences(await described(log.api), replicas=replicas, also=also)
            if plan and not await _agreed(plan, session, yes=yes):
                return 1
        copies = replicas or (ledger["config"]["num_replicas"] if ledger else 1)
        await ensure(log.api, replicas=copies, also=also, max_bytes=most, packed=packed)
        await upgrade(log.api, plan)
        differing = differences(await described(log.api), replicas=replicas, also=also)
        here = kept(await info(log.api, f"STREAM.INFO.{LEDGER}"))
        if accept_log:
            await accepting(log, session, reason)
    _report(copies, here, plan, differing, session)
    return 1 if differing else 0


async def _once_elected(requests: Api) -> dict[str, Any] | None:
    """The description of the log, None if there is none yet. Nodes that have just been started
    elect a leader before any of them answers.
    """
    looking = partial(info, requests, f"STREAM.INFO.{LEDGER}")
    stream = await while_away(looking, timeout_s=_ELECTION_S)
    check_level(stream)
    return stream


async def _agreed(plan: Sequence[Drift], session: Session, *, yes: bool) -> bool:
    """Show what will be changed; returns whether to do it."""
    if not session.json:
        for one in plan:
            print_line(f"{one} -> {one.remedy}")
    if yes:
        return True
    if session.json or not sys.stdin.isatty():
        if session.json:
            print_json({"plan": _as_json(plan)})
        print_message("Nothing was changed. Add --yes to apply it.")
        return False
    if await confirm("Apply it?"):
        return True
    print_message("Nothing was changed.")
    return False


def _as_json(plan: Sequence[Drift]) -> list[dict[str, str]]:
    return [{"difference": str(one), "remedy": one.remedy} for one in plan]


def _report(
    copies: int,
    here: Collection[str],
    plan: Sequence[Drift],
    differing: Sequence[Drift],
    session: Session,
) -> None:
    if session.json:
        consumers = [
            name for name, one in DURABLES.items() if not one.optional or one.origin in here
        ]
        found: dict[str, Any] = {"streams": list(streams()), "consumers": consumers}
        found |= {"plan": _as_json(plan)} if plan else {}
        print_json(found | ({"differing": list(map(str, differing))} if differing else {}))
    elif differing:
        for one in differing:
            print_line(str(one))
        print_message(
            "The streams and consumers exist, but not as they should be. "
            "`ayes setup --upgrade` shows what it would change."
        )
    else:
        each = "1 replica" if copies == 1 else f"{copies} replicas"
        print_message(f"The streams and consumers exist, with {each} each. Next: ayes doctor")
