"""What an operator looks at first: the log, its nodes, each consumer, and what needs a person."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.consumers.doubt import in_doubt, void_runs
from ayes.consumers.webhooks import endpoints as webhook_endpoints
from ayes.consumers.webhooks.endpoints import EndpointFile, EndpointStatus
from ayes.ledger.clients.services import CHANNEL, Ledger
from ayes.ledger.log import Parked
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ALARM, check_level, info, kept
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED, PARKED_MOST
from ayes.ops.inspection.guard import alarms
from ayes.ops.inspection.health import takes_writes
from ayes.ops.inspection.nodes import Copies, clock_trouble, copies, trouble
from ayes.ops.inspection.progress import ConsumerStatus, progress, seconds
from ayes.schemas.errors import BrokerRefused, Unavailable

#: The void starts and results that an alarm names.
_FEW: Final = 3
#: The login that `status` needs.
ROLE: Final = "operator"


class FailingChannel(Struct, frozen=True):
    """A channel of notices whose last try failed."""

    #: The name of the channel.
    channel: str
    since: datetime
    #: What went wrong.
    why: str


class BrokerStatus(Struct, frozen=True):
    url: str
    #: The number of facts, that of the last one, and the bytes of the log.
    facts: int
    last_seq: int
    bytes: int
    #: Seconds since the last fact; None in an empty log. With nothing waiting, a log that does not
    #: grow looks healthy; people know whether it should.
    head_age_s: float | None
    #: The calls that wait for people; None if they cannot be read.
    pending: int | None
    #: The calls in doubt, as `workspace/thread/call`; None if they cannot be read.
    in_doubt: list[str] | None
    #: The calls with a start or result of the last week that counts for nothing, and why; None if
    #: they cannot be read.
    void_runs: dict[str, str] | None
    consumers: list[ConsumerStatus]
    streams: list[Copies]
    #: Of the store's disk; None if the broker runs elsewhere.
    free_bytes: int | None
    #: The channels of notices that fail; None if they cannot be read.
    channels: list[FailingChannel] | None
    #: One sentence each.
    alarms: list[str]
    parked: list[Parked]
    #: The endpoints of the file of webhooks on this machine.
    webhooks: list[EndpointStatus] = []


async def status(
    log: JetStream,
    store: Store | None,
    pending: Callable[[], Awaitable[int]],
    unlike: Callable[[], Awaitable[str]],
    webhooks: EndpointFile | None = None,
) -> BrokerStatus:
    """The state of the broker at this moment.

    Args:
        log: on the login of `ROLE`.
        store: the store of the broker, if it runs on this machine.
        pending: counts the pending calls.
        unlike: says how the log differs from its witness; empty if it does not.
        webhooks: the endpoints, if they are on this machine; by default those in the store.

    Raises:
        NewerLog: the log is at a level that this program does not know.
        BrokerRefused: there is no log.
        BrokerAway: no node answers, or there is no leader.
    """
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    check_level(stream)
    if stream is None:
        raise BrokerRefused(f"there is no stream {LEDGER} here. `ayes up` creates it.")
    ledger = Ledger.on(log, ROLE)
    if webhooks is None and store is not None:
        webhooks = EndpointFile(store.path / webhook_endpoints.NAME)
    endpoints = webhooks.statuses() if webhooks else []
    nodes, health = await copies(log), await takes_writes(log, store)
    runs = await _if_readable(void_runs(ledger))
    differs, parked = await unlike(), await log.parked()
    return BrokerStatus(
        url=log.connection.login.url,
        facts=stream["state"]["messages"],
        last_seq=stream["state"]["last_seq"],
        bytes=stream["state"]["bytes"],
        head_age_s=_head_age_s(stream),
        pending=await _if_readable(pending()),
        in_doubt=await _if_readable(doubts(ledger)),
        void_runs=runs,
        consumers=await _consumers(log, kept(stream)),
        streams=nodes,
        free_bytes=health.free_bytes,
        channels=await _if_readable(failing_channels(ledger)),
        alarms=[
            *([f"the log is not what it was: {differs}"] if differs else []),
            *filter(None, [health.why, trouble(nodes), await clock_trouble(log, nodes)]),
            *await alarms(log.api),
            *await void_facts(ledger),
            *([_void_runs(runs)] if runs else []),
            *(str(one) for one in endpoints if one.is_alarming),
            *_full_parts(parked),
        ],
        parked=parked,
        webhooks=endpoints,
    )


def _void_runs(found: dict[str, str]) -> str:
    few = "; ".join(f"{call}: {why}" for call, why in list(found.items())[:_FEW])
    return (
        f"starts or results that count for nothing, of {len(found):,} calls ({few}): somebody ran "
        "a tool without leave, or made up what it returned. `ayes thread` shows it"
    )


def _full_parts(parked: list[Parked]) -> list[str]:
    """The consumers that have nearly as many parked deliveries as they may."""
    return [
        f"{consumer or 'no known consumer'} has {count:,} of {PARKED_MOST:,} parked deliveries: "
        "retry or drop some (`ayes parked ls`). While it has no room, what it cannot handle stays "
        "with the broker and is tried again."
        for consumer, count in Counter(one.consumer for one in parked).items()
        if count >= ALARM * PARKED_MOST
    ]


def _head_age_s(stream: dict[str, Any]) -> float | None:
    state = stream["state"]
    return seconds(state["last_ts"], stream["ts"]) if state["messages"] else None


async def _if_readable[T](reading: Awaitable[T]) -> T | None:
    """What is read from a bucket; None if that fails, since the rest is worth to be shown.

    A consumer for reading it may be placed on a node that has just gone away, and never answers.
    """
    try:
        return await reading
    except Unavailable:
        return None


async def _consumers(log: JetStream, kept_here: Collection[str]) -> list[ConsumerStatus]:
    """Those that are needed; those for parked deliveries only if something is to be retried."""
    found = [await progress(log, name, kept_here) for name in DURABLES]
    return [one for one in found if _is_shown(one)]


def _is_shown(one: ConsumerStatus) -> bool:
    if DURABLES[one.name].stream == PARKED:
        return bool(one.waiting or one.in_hand)
    return one.is_shown


async def doubts(ledger: Ledger) -> list[str]:
    """The calls that a person must reconcile, as `workspace/thread/call`."""
    return [f"{one.workspace}/{one.thread}/{one.call}" for one in await in_doubt(ledger)]


async def failing_channels(ledger: Ledger) -> list[FailingChannel]:
    """The channels through which the notifier reached nobody when it last tried, by name."""
    found = []
    for key, entry in sorted((await ledger.log.running.written()).items()):
        if key.startswith(CHANNEL):
            try:
                said = msgspec.json.decode(entry.value, type=_Said)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                said = _Said("an entry of another version", entry.at)
            found.append(FailingChannel(key.removeprefix(CHANNEL), said.since, said.why))
    return found


class _Said(Struct):
    why: str
    since: datetime


async def void_facts(ledger: Ledger) -> list[str]:
    """Recorded policies and declarations that do not count; those before them stay in force."""
    try:
        return [
            f"{one.subject} (fact {one.seq}) is void: {one.why}" for one in await ledger.alarms()
        ]
    except Unavailable as problem:
        return [f"policies and tools cannot be read: {problem}"]
