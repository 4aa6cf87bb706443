"""Commands for operators: is everything as it should be, and how far behind is each consumer."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Final

from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import WebhooksOption, option
from ayes.interfaces.cli.settings import trust_of
from ayes.interfaces.cli.terminal.output import print_json, print_line
from ayes.interfaces.cli.terminal.tables import print_table
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import Use
from ayes.ledger.subscriptions import OPERATOR
from ayes.ops.inspection.checks import (
    DOCTOR,
    MAX_SHOWN,
    Look,
    counted,
    examination,
    examined,
    listed,
    overview,
    permissions,
)
from ayes.ops.inspection.nodes import explained
from ayes.ops.inspection.witness import place_of
from ayes.schemas.errors import BrokerRefused

app: Final = commands()

#: What `status --json` prints.
_STATUS: Final = (
    "url", "facts", "last_seq", "bytes", "head_age_s", "pending", "in_doubt", "void_runs",
    "stopped", "consumers", "streams", "free_bytes", "channels", "calendars", "alarms", "parked",
    "webhooks",
)  # fmt: skip


@command(app)
async def doctor(
    deep: Annotated[bool, option("--deep", "Check the whole log, however long it is.")] = False,
    *,
    session: Session,
) -> int:
    """Check that everything is as it should be: server, streams, consumers, permissions. Exit 1 if
    not.
    """
    own = Store(session.store) if session.url is None else None
    connecting = JetStream.connect(session.store, url=session.url, role="admin", any_level=True)
    try:
        async with connecting as log, explained(log):
            place = place_of(session.store, session.url)
            trust = trust_of(session.store, None) if own is not None else None
            checks = examined(await examination(log, own, place, trust, deep=deep), DOCTOR)
    except BrokerRefused as problem:
        if own is not None:
            raise
        raise BrokerRefused(
            f"`ayes doctor` needs the login of `admin`: give it in --url, or name the store with "
            f"--store. With this login the broker answered: {problem}"
        ) from None
    checks += await permissions(own)
    for one in checks:
        session.print_rows([(one, f"{'ok  ' if one.ok else 'BAD '}  {one.check}: {one.detail}")])
        if not session.json:
            _print_uses(one.uses)
    return 0 if all(one.ok for one in checks) else 1


def _print_uses(uses: Iterable[Use]) -> None:
    for stream, limits in groupby(uses, attrgetter("stream")):
        print_line(f"        {stream:<13}{', '.join(one.share for one in limits)}")


@command(app)
async def status(webhooks: WebhooksOption = None, *, session: Session) -> int:
    """Show the size of the log, its nodes, how far each consumer is behind, what is parked and
    pending. Exit 1 if there is an alarm.
    """
    own = Store(session.store) if session.url is None else None
    connecting = JetStream.connect(session.store, url=session.url, role=OPERATOR, any_level=True)
    endpoints = None if webhooks is None else EndpointFile(webhooks)
    place = place_of(session.store, session.url)
    async with connecting as log, explained(log):
        found = await overview(log, own, place, webhooks=endpoints)
    if session.json:
        print_json({one: getattr(found, one) for one in _STATUS})
    else:
        _print_status(found)
    return 1 if found.alarms else 0


def _print_status(found: Look) -> None:
    age, pending = found.head_age_s, found.pending
    print_line(
        f"{found.url}   {counted(found.facts, 'fact')}, {found.bytes / 1e6:,.1f} MB   "
        + ("the queue cannot be read" if pending is None else f"{pending:,} pending")
        + ("" if age is None else f"   the last fact came {age:,.0f} s ago")
    )
    if any(one.cluster for one in found.streams):
        for one in found.streams:
            print_line(f"nodes   {one}")
    print_table(
        ("consumer", "waiting", "in hand", "again", "at", ""),
        [
            (
                one.name,
                *(f"{n:,}" for n in (one.waiting, one.in_hand, one.redelivered, one.ack_floor)),
                one.problem,
            )
            for one in found.consumers
        ],
        (False, True, True, True, True, False),
    )
    for alarm in found.alarms:
        print_line(f"ALARM {alarm}")
    for failing in found.channels or ():
        since = f"{failing.since:%Y-%m-%d %H:%M:%S} UTC"
        print_line(f"channel {failing.channel} fails since {since}: {failing.why}")
    for unread in found.calendars or ():
        since = f"{unread.since:%Y-%m-%d %H:%M:%S} UTC"
        print_line(f"the calendar of {unread.channel} has a problem since {since}: {unread.why}")
    if found.in_doubt:
        print_line(f"in doubt: {listed(found.in_doubt)}")
    for stop in found.stopped or ():
        print_line(stop)
    for endpoint in found.webhooks:
        if not endpoint.is_alarming:
            print_line(str(endpoint))
    for given_up in found.parked[:MAX_SHOWN]:
        print_line(
            f"parked by {given_up.consumer}: fact {given_up.seq} ({given_up.subject}), "
            f"{given_up.reason}"
        )
    if (more := len(found.parked) - MAX_SHOWN) > 0:
        print_line(f"parked: and {more:,} more (ayes parked ls)")
