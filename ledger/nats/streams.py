"""The declared streams and durable consumers of the broker.

`ensure` creates the missing ones. On existing streams it changes only bounds that are absent or
wider than declared (`_missing_bounds`); `drift.py` reports all differences, and changes the others.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ayes.ledger.nats.api import Api, ApiError
from ayes.ledger.subscriptions import (
    ACK_WAIT_S,
    DURABLES,
    LEDGER,
    MAX_PARKED,
    PARKED,
    PARKED_BYTES,
    TIMERS,
    Durable,
)
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.errors import BadInput, BrokerRefused, NewerLog
from ayes.schemas.logs import get_logger
from ayes.schemas.sizes import size
from ayes.schemas.slots import FILES, ROOT

PENDING: Final = "KV_pending"
RUNNING: Final = "KV_running"
#: The searches that people have saved (interfaces/api/views.py).
VIEWS: Final = "KV_views"
#: The store of files.
STORED: Final = "FILES"

#: The level of the log, in the metadata of its stream (ADR-33). It is raised by a version whose log
#: earlier programs would misread or damage; they refuse it (docs/upgrading.md). A log without it is
#: of level 1, and so is a new one, unless it is to be packed. A fact of an unknown type or version
#: does not need a new level.
LEVEL: Final = 1
#: The level of a log whose facts may leave its stream (docs/decisions/0091): the highest one.
PACKED_LEVEL: Final = 2
_LEVEL_KEY: Final = "ayes-level"
#: In the metadata of `LEDGER`: the optional durables that were created here, separated by commas.
#: One of them that is missing was deleted.
_KEPT_KEY: Final = "ayes-consumers"
#: The beginning of the keys there that name the durables of logins with some workspaces; their
#: values are these.
_OWN_KEY: Final = "ayes-consumer-"

#: The account of all logins that have some workspaces only.
SCOPED: Final = "scoped"

#: The oldest nats-server that is tested. Earlier ones lose facts, or the time at which a stream was
#: created, in ways that this program met (docs/decisions/0055).
OLDEST_SERVER: Final = (2, 15, 0)

_log: Final = get_logger("ayes.ledger.nats.streams")

_SECOND_NS: Final = 1_000_000_000

#: The default limit of each stream. The broker reserves the bytes; `fitting` asks for fewer if the
#: disk is smaller. 16 GiB hold about 30 million facts (docs/capacity.md).
MAX_BYTES_OF: Final[dict[str, int]] = {
    LEDGER: 16 << 30,
    TIMERS: 256 << 20,
    PARKED: 256 << 20,
    PENDING: 2 << 30,
    RUNNING: 64 << 20,
    VIEWS: 64 << 20,
    STORED: 4 << 30,
}
#: The lowest limit of a stream.
LEAST_BYTES: Final = 16 << 20
#: The limit of consumers of each stream: the default of nats-server 2.15.
MAX_CONSUMERS: Final = 1_000
#: How long a consumer may outlive its reader. Clients ask for five seconds to five minutes.
READER_GONE_S: Final = 300
#: The share of a bound from which on it is an alarm.
ALARM: Final = 0.8
#: "insufficient storage resources available": there is less space than a stream would reserve.
_NO_ROOM: Final = 10047
_NO_PEERS: Final = 10005
#: "stream name already in use with a different configuration".
_NAME_TAKEN: Final = 10058
#: A stream that lives for a moment, to see whether there is so much room. Of a program that was
#: killed in that moment it stays until the next `ensure`.
_ROOM: Final = "AYES-ROOM"
#: How long nodes may take to tell each other that the room of a deleted stream is free again.
_ROOM_BACK_S: Final = 10.0
#: How long a broker may take to make a stream or consumer: it flushes several files.
_MAKING_S: Final = 30.0
#: The bounds that `ensure` updates on an existing stream.
BOUNDS: Final = ("max_bytes", "max_consumers", "consumer_limits")


def _common(replicas: int, max_bytes: int) -> dict[str, Any]:
    return {
        "storage": "file",
        "num_replicas": replicas,
        "allow_direct": True,
        "compression": "none",
        # Messages do not expire and are not evicted.
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": max_bytes,
        "max_consumers": MAX_CONSUMERS,
    }


#: The broker's limit for consumers without a reader. Not on streams of our durables: they would
#: expire too, and a gate that is stopped for five minutes would start over (decision 0020). There
#: `dismiss_abandoned` does it.
_READERS_ONLY: Final[dict[str, Any]] = {
    "consumer_limits": {"inactive_threshold": READER_GONE_S * _SECOND_NS}
}


def streams(replicas: int = 1, *, packed: bool = False) -> dict[str, dict[str, Any]]:
    """The declared configuration of each stream, for the JetStream API (ADR-1, ADR-8).

    Args:
        packed: of a log whose facts may leave its stream.
    """
    return {
        LEDGER: _common(replicas, MAX_BYTES_OF[LEDGER])
        | {
            "subjects": [f"{ROOT}.>"],
            "retention": "limits",
            # At most one fact per slot, for ever; the second one is refused with error 10077.
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "deny_delete": True,
            # No role may purge. The server takes `True` back in a restore only.
            "deny_purge": not packed,
            "allow_rollup_hdrs": False,
            # Batches of group commit (ADR-50). Room for their headers beside the payload.
            "allow_atomic": True,
            "max_msg_size": MAX_BYTES + 1024,
            "metadata": {_LEVEL_KEY: str(PACKED_LEVEL if packed else LEVEL)},
        },
        # A stream of its own, since `discard: new` excludes schedules (ADR-51). A work queue:
        # handled hints are deleted. No max_age: it would drop deadlines that are further away.
        TIMERS: _common(replicas, MAX_BYTES_OF[TIMERS])
        | {
            "subjects": ["timer.>"],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "discard": "old",
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        },
        # No entry gives way to another. Whatever a role writes, it has its own consumers' places
        # only, and all places together fit into the stream.
        PARKED: _common(replicas, MAX_BYTES_OF[PARKED])
        | {
            "subjects": ["parked.*.*.*"],
            "subject_transform": {
                "src": "parked.*.*.*",
                "dest": "parked.{{wildcard(1)}}.{{wildcard(2)}}."
                f"{{{{partition({MAX_PARKED},3)}}}}",
            },
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": False,
            "max_msg_size": PARKED_BYTES,
        },
        PENDING: bucket("pending", replicas),
        RUNNING: bucket("running", replicas, MAX_BYTES_OF[RUNNING]),
        VIEWS: bucket("views", replicas, MAX_BYTES_OF[VIEWS]),
        # As of slots: a piece of a file is filled once. Only an administrator can delete one. It is
        # the last, so that on a small disk it has what the others leave, if anything.
        STORED: _common(replicas, MAX_BYTES_OF[STORED])
        | {
            "subjects": [f"{FILES}.>"],
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "allow_rollup_hdrs": False,
            "max_msg_size": MAX_BYTES + 1024,
        },
    }


def bucket(name: str, replicas: int = 1, max_bytes: int = MAX_BYTES_OF[PENDING]) -> dict[str, Any]:
    """A standard key-value bucket (ADR-8). Deleted keys leave a marker that expires."""
    return (
        _common(replicas, max_bytes)
        | _READERS_ONLY
        | {
            "subjects": [f"$KV.{name}.>"],
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "discard": "new",
            # A rollup, on any key that a role may write, would remove all other entries.
            "allow_rollup_hdrs": False,
            "deny_delete": True,
            "allow_msg_ttl": True,
        }
    )


def bucket_stream(name: str) -> str:
    """The stream behind a bucket."""
    return f"KV_{name}"


def of_all(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a stream without what tells which logins there are, and how many."""
    metadata = config.get("metadata") or {}
    kept = {key: value for key, value in metadata.items() if not key.startswith(_OWN_KEY)}
    return {key: value for key, value in config.items() if key != "max_bytes"} | {"metadata": kept}


def level_of(stream: dict[str, Any]) -> str:
    """The level of the log, by the description of its stream."""
    return str((stream["config"].get("metadata") or {}).get(_LEVEL_KEY, "1"))


def is_packed(stream: dict[str, Any]) -> bool:
    """Whether facts may have left the log's stream, by its description."""
    return level_of(stream) == str(PACKED_LEVEL)


def check_level(stream: dict[str, Any] | None) -> None:
    """Refuse a log that this program would misread. No log yet, or an older one, is fine.

    Raises:
        NewerLog: it is at a level that this program does not know.
    """
    if stream is not None and level_of(stream) not in map(str, range(1, PACKED_LEVEL + 1)):
        from importlib import metadata

        raise NewerLog(
            f"this log is at level {level_of(stream)}; this program "
            f"(ayes {metadata.version('ayes')}) knows levels up to {PACKED_LEVEL}: upgrade it."
        )


def check_packed(stream: dict[str, Any] | None) -> None:
    """Refuse a log whose facts stay in its stream. No log yet is fine.

    Raises:
        BadInput: it is one.
    """
    if stream is not None and not is_packed(stream):
        raise BadInput(
            f"the facts of this log stay in its stream (it is at level {level_of(stream)}, and not "
            f"at {PACKED_LEVEL}), and nats-server changes that in a restore only: `ayes backup`, "
            "then `ayes restore` into a new ledger, which `ayes setup --packed` or `ayes up "
            "--pack-after` has made."
        )


def check_server(version: tuple[int, ...]) -> None:
    """Refuse a nats-server that is older than `OLDEST_SERVER`.

    Raises:
        BrokerRefused: it is.
    """
    if version < OLDEST_SERVER:
        raise BrokerRefused(
            f"the broker is nats-server {version_text(version)}, and {version_text()} or newer is "
            "needed: upgrade it."
        )


def version_text(version: tuple[int, ...] = OLDEST_SERVER) -> str:
    return ".".join(map(str, version))


async def ensure_empty(requests: Api, name: str, description: str) -> None:
    """Create a bucket, or empty the one that was created with this description.

    Raises:
        BadInput: a bucket of that name is there, and it was made for something else.
    """
    stream = bucket_stream(name)
    there = await info(requests, f"STREAM.INFO.{stream}")
    if there is not None and there["config"].get("description") != description:
        raise BadInput(
            f"there is a bucket {name!r} already, which was not made for this. Choose another "
            "name, or delete it."
        )
    if there is None:
        body = {"name": stream, "description": description, **bucket(name)}
        await _ensure(requests, f"STREAM.{{}}.{stream}", body)
        return
    await requests.call(f"STREAM.PURGE.{stream}", {})


def deliver_subject(durable: Durable) -> str:
    """Where the broker pushes the deliveries of a durable consumer."""
    whose = SCOPED if durable.workspaces else durable.role
    return f"deliver.{whose}.{durable.name}"


def consumer_config(durable: Durable, ack_wait_s: float = ACK_WAIT_S) -> dict[str, Any]:
    """A durable push consumer's configuration, as the JetStream API takes it."""
    return {
        "durable_name": durable.name,
        "deliver_subject": deliver_subject(durable),
        "deliver_group": durable.name,
        "deliver_policy": "by_start_time" if _is_sealed(durable) else "all",
        "ack_policy": "explicit",
        # A worker that needs longer reports it (`Delivery.in_progress`); a silent one counts as
        # dead.
        "ack_wait": int(durable.ack_wait_s(ack_wait_s) * _SECOND_NS),
        # The worker parks deliveries that it cannot handle; the broker must not drop them before.
        "max_deliver": -1,
        "max_ack_pending": durable.at_once,
        "replay_policy": "instant",
        "filter_subjects": list(durable.subjects),
    }


def _is_sealed(durable: Durable) -> bool:
    """Whether others may create consumers on its stream; on a work queue they may not."""
    return durable.stream != TIMERS


async def ensure(
    requests: Api,
    *,
    replicas: int = 1,
    ack_wait_s: float = ACK_WAIT_S,
    also: Sequence[str] = (),
    max_bytes: int | None = None,
    packed: bool = False,
) -> None:
    """Create the missing streams and durables, and add missing bounds. See `drift` for the rest.

    Args:
        also: the optional durables to create, each with the one for its parked deliveries.
        max_bytes: the limit of `LEDGER`. None: its current one, else `MAX_BYTES_OF`.
        packed: the facts of the log may leave its stream. A log that is there stays as it is.

    Raises:
        BadInput: `max_bytes` is less than the ledger holds already, or than the lowest limit; or
            the log is not `packed` and is to be.
        BrokerRefused: the broker does not allow it, lacks the space, or is too old.
    """
    if packed:
        check_packed(await info(requests, f"STREAM.INFO.{LEDGER}"))
    await dismiss_abandoned(requests)
    missing: dict[str, dict[str, Any]] = {}
    for name, config in streams(replicas, packed=packed).items():
        there = await info(requests, f"STREAM.INFO.{name}")
        asked = max_bytes if name == LEDGER else None
        if there is None:
            if asked is not None:
                _check_bound(asked, 0)
                config["max_bytes"] = asked
            missing[name] = config
        elif changes := _missing_bounds(config, there, asked):
            body = there["config"] | changes
            await fitting(
                requests,
                f"STREAM.UPDATE.{name}",
                body,
                exactly=asked is not None or "max_bytes" not in changes,
            )
    try:
        if missing:
            exactly = (LEDGER,) if max_bytes is not None else ()
            await _create(requests, missing, exactly=exactly, replicas=replicas)
            if packed:  # another program may have made one that is not
                check_packed(await info(requests, f"STREAM.INFO.{LEDGER}"))
        elif replicas > 1:
            await _remove(requests, _ROOM)
    except NoRoom as problem:
        if missing.keys() != {STORED}:
            raise
        _log.warning("large files cannot be stored", problem=str(problem))
    await ensure_consumers(requests, ack_wait_s=ack_wait_s, also=also)


async def ensure_consumers(
    requests: Api, *, ack_wait_s: float = ACK_WAIT_S, also: Sequence[str] = ()
) -> None:
    """Create the missing durables. A new one begins at the first fact, so that it misses nothing.

    Args:
        also: the optional ones to create for the first time; those of before are created again.

    Raises:
        BrokerRefused: the broker does not allow it.
    """
    ledger = await requests.call(f"STREAM.INFO.{LEDGER}", repeat=True)
    before = kept(ledger)
    wanted = before | {DURABLES[one].origin for one in also if DURABLES[one].optional}
    if wanted != before:
        await _keep(requests, wanted)
    for durable in declared(ledger).values():
        if not durable.workspaces and durable.optional and durable.origin not in wanted:
            continue
        await _ensure_consumer(requests, durable, ack_wait_s)


async def _ensure_consumer(requests: Api, durable: Durable, ack_wait_s: float) -> None:
    what = f"CONSUMER.{{}}.{durable.stream}.{durable.name}"
    config = consumer_config(durable, ack_wait_s) | (
        {"opt_start_time": _seal()} if _is_sealed(durable) else {}
    )
    await _ensure(
        requests, what, {"stream_name": durable.stream, "config": config, "action": "create"}
    )
    await _subscribe_to_more(requests, what, durable)


def kept(ledger: dict[str, Any] | None) -> frozenset[str]:
    """The optional durables that were created here, by the description of `LEDGER`."""
    metadata = (ledger["config"].get("metadata") or {}) if ledger else {}
    names = metadata.get(_KEPT_KEY, "").split(",")
    return frozenset(one for one in names if one in DURABLES and DURABLES[one].optional)


def declared(ledger: dict[str, Any] | None) -> dict[str, Durable]:
    """All durables by name, also those of logins, by the description of `LEDGER`."""
    found = dict(DURABLES)
    for key, scope in ((ledger["config"].get("metadata") or {}) if ledger else {}).items():
        login, _, kind = key.removeprefix(_OWN_KEY).rpartition("@")
        if key.startswith(_OWN_KEY) and kind in DURABLES:
            own = DURABLES[kind].of(login, tuple(scope.split("+")))
            found |= {one.name: one for one in (own, own.again)}
    return found


def is_needed(durable: Durable, kept_here: Collection[str]) -> bool:
    """Whether the absence of this durable is a fault."""
    return not durable.optional or bool(durable.workspaces) or durable.origin in kept_here


async def employ(requests: Api, durable: Durable) -> None:
    """Create the durable of a login, and room for what it parks, in place of one of before.

    Raises:
        BrokerRefused: the broker does not allow it, or has no room.
    """
    await dismiss(requests, durable.name)
    await _give_room(requests, _ROOM_FOR_PARKED)
    await _note(requests, {f"{_OWN_KEY}{durable.name}": "+".join(durable.workspaces)})
    for one in (durable, durable.again):
        await _ensure_consumer(requests, one, ACK_WAIT_S)


async def dismiss(requests: Api, name: str) -> None:
    """Delete an optional durable, and the one for its parked deliveries, for good; that of a login
    with what it parked, since another login may get the name.

    Raises:
        BrokerRefused: the broker does not allow it.
    """
    ledger = await info(requests, f"STREAM.INFO.{LEDGER}")
    if name in DURABLES:
        await _keep(requests, kept(ledger) - {name})
    for stream, one in ((LEDGER, name), (PARKED, f"{name}-parked")):
        await requests.ask(f"$JS.API.CONSUMER.DELETE.{stream}.{one}", b"", repeat=True)
    if name not in DURABLES:
        parked = {"filter": f"parked.*.{name}.*"}
        await requests.call(f"STREAM.PURGE.{PARKED}", parked, repeat=True)
        if name in declared(ledger):
            await _note(requests, {}, without=f"{_OWN_KEY}{name}")
            await _give_room(requests, -_ROOM_FOR_PARKED)


async def _keep(requests: Api, names: Collection[str]) -> None:
    await _note(requests, {_KEPT_KEY: ",".join(sorted(names))})


async def _note(requests: Api, what: dict[str, str], without: str = "") -> None:
    """Change the metadata of `LEDGER`."""
    config = (await requests.call(f"STREAM.INFO.{LEDGER}", repeat=True))["config"]
    metadata = (config.get("metadata") or {}) | what
    metadata.pop(without, None)
    await change_stream(requests, LEDGER, {"metadata": metadata})


#: The most bytes that a durable's worker and the operator may park together.
_ROOM_FOR_PARKED: Final = 2 * MAX_PARKED * PARKED_BYTES


async def _give_room(requests: Api, more: int) -> None:
    config = (await requests.call(f"STREAM.INFO.{PARKED}", repeat=True))["config"]
    if _is_bounded(config, "max_bytes"):
        most = max(LEAST_BYTES, config["max_bytes"] + more)
        await change_stream(requests, PARKED, {"max_bytes": most})


async def _create(
    requests: Api, missing: dict[str, dict[str, Any]], *, exactly: Collection[str], replicas: int
) -> None:
    """Create streams. Where there is less room, each gets the same share of its limit, but no less
    than `LEAST_BYTES`; so what comes first leaves room for the others.

    Args:
        exactly: those whose limit stays as it is.

    Raises:
        NoRoom: there is not even so much room.
    """
    created: set[str] = set()
    limits: dict[str, int] = {}
    for limits in _shares(missing, exactly):
        try:
            if replicas > 1:
                await _check_room(requests, replicas, sum(limits.values()))
            for name, limit in limits.items():
                if name in created:
                    await change_stream(requests, name, {"max_bytes": limit})
                body = {"name": name, **missing[name], "max_bytes": limit}
                await _ensure(requests, f"STREAM.{{}}.{name}", body, room_seen=replicas > 1)
                created.add(name)
        except NoRoom:
            continue
        return
    fewer = "Name fewer with --max-bytes, or give" if exactly else "Give"
    raise NoRoom(
        f"the broker has no room for the least that the streams {', '.join(limits)} need, "
        f"{sum(limits.values()):,} bytes. {fewer} it more disk (max_file_store in its "
        "configuration; by default three quarters of what is free)."
    )


def _shares(
    streams: dict[str, dict[str, Any]], exactly: Collection[str]
) -> Iterator[dict[str, int]]:
    """The limits to try, one after the other: all, half, a quarter, and so on."""
    share = 1
    while True:
        limits = {
            name: config["max_bytes"]
            if name in exactly
            else max(LEAST_BYTES, config["max_bytes"] // share)
            for name, config in streams.items()
        }
        yield limits
        if all(limits[name] == LEAST_BYTES for name in limits if name not in exactly):
            return
        share *= 2


async def _check_room(requests: Api, replicas: int, wanted: int) -> None:
    """Check that each node of a cluster has room for all streams before the first is created.

    The node that places a stream goes by what the others last said of their room, so that streams
    that are created one after the other can be promised more than there is. A node that promised
    more refuses every change of a stream, also of a limit to a lower one (`checkBytesLimits` of
    nats-server 2.15).

    Another program may ask for room at the same moment. Its stream is removed, since it has its
    answer or asks again; and for a while a refusal for want of room may be of before.

    Raises:
        NoRoom: a node has less.
    """
    body = {"name": _ROOM, **_common(replicas, wanted)}
    is_shared, until = False, math.inf
    try:
        while True:
            is_shared |= await _remove(requests, _ROOM)
            try:
                await fitting(requests, f"STREAM.CREATE.{_ROOM}", body, exactly=True)
            except (NoRoom, NameTaken) as problem:
                now = asyncio.get_running_loop().time()
                until = min(until, now + _ROOM_BACK_S)
                is_shared |= isinstance(problem, NameTaken)
                if not is_shared or now >= until:
                    raise
                await asyncio.sleep(0.1)
            else:
                return
    finally:
        await _remove(requests, _ROOM)


async def _remove(requests: Api, stream: str) -> bool:
    """Delete a stream; returns whether it was there."""
    return await info(requests, f"STREAM.DELETE.{stream}") is not None


async def _subscribe_to_more(requests: Api, what: str, durable: Durable) -> None:
    """Add new subjects to a consumer of an earlier version.

    There are no facts on those subjects yet, so it misses none.
    """
    there = await info(requests, what.format("INFO"))
    if there is not None and not set(durable.subjects) <= set(filter_of(there["config"])):
        place = f"{durable.stream}.{durable.name}"
        await change_consumer(requests, place, {"filter_subjects": list(durable.subjects)})


async def change_consumer(requests: Api, place: str, changes: dict[str, Any]) -> None:
    """Change some settings of an existing consumer; its position and start time stay.

    Args:
        place: its stream and its name.

    Raises:
        BrokerRefused: the broker does not allow it.
    """
    stream, _, name = place.partition(".")
    config = (await requests.call(f"CONSUMER.INFO.{place}", repeat=True))["config"] | changes
    if "filter_subjects" in changes:  # instead of the name for a single one
        config.pop("filter_subject", None)
    body = {"stream_name": stream, "config": config, "action": "update"}
    await _change(requests, f"CONSUMER.CREATE.{place}", body, f"consumer {name}")


async def change_stream(requests: Api, name: str, changes: dict[str, Any]) -> None:
    """Change some settings of an existing stream.

    Raises:
        BrokerRefused: the broker does not allow it.
    """
    config = (await requests.call(f"STREAM.INFO.{name}", repeat=True))["config"] | changes
    await _change(requests, f"STREAM.UPDATE.{name}", config, f"stream {name}")


async def _change(requests: Api, subject: str, body: dict[str, Any], what: str) -> None:
    try:
        await requests.call(subject, body)
    except ApiError as problem:
        remedy = (
            "Give it more disk (max_file_store in its configuration)."
            if _lacks_room(problem)
            else "These credentials must be an administrator's."
        )
        raise BrokerRefused(
            f"the broker does not change {what}: {problem.description}. {remedy}"
        ) from None


def filter_of(config: dict[str, Any]) -> list[str]:
    """The subjects of a consumer. The server reports a single one under another name."""
    return config.get("filter_subjects") or [config.get("filter_subject", "")]


async def _ensure(
    requests: Api, what: str, body: dict[str, Any], *, room_seen: bool = False
) -> None:
    """Create `what`, with INFO or CREATE in its braces, unless it exists. Safe to run twice.

    Args:
        room_seen: there was room a moment ago, so that a refusal for want of it may be of before.
    """
    until = asyncio.get_running_loop().time() + (_ROOM_BACK_S if room_seen else 0.0)
    while await info(requests, what.format("INFO")) is None:
        try:
            await fitting(requests, what.format("CREATE"), body, exactly=True)
        except NoRoom:
            if asyncio.get_running_loop().time() > until:
                raise
            await asyncio.sleep(0.1)
        except BrokerRefused:
            if await info(requests, what.format("INFO")) is None:
                raise
        else:
            return


def _lacks_room(problem: ApiError) -> bool:
    """One server says so by a code of its own. A cluster has one for all reasons why no node takes
    a stream.
    """
    return problem.err_code == _NO_ROOM or (
        problem.err_code == _NO_PEERS
        and "insufficient storage" in problem.description
        and "offline" not in problem.description
    )


async def fitting(requests: Api, change: str, body: dict[str, Any], *, exactly: bool) -> None:
    """Have the broker make a change; if it lacks space for `max_bytes`, with half as many."""
    while True:
        try:
            await requests.call(change, body, repeat=True, patience_s=_MAKING_S)
        except ApiError as problem:
            if problem.err_code == _NAME_TAKEN:
                raise NameTaken(str(problem)) from None
            if not _lacks_room(problem):
                raise BrokerRefused(
                    f"{problem} It must be nats-server {version_text()} or newer, with JetStream, "
                    "and these credentials must be an administrator's."
                ) from None
        else:
            return
        if exactly or body["max_bytes"] // 2 < LEAST_BYTES:
            raise NoRoom(
                f"the broker refuses {change}: it has no room for {body['max_bytes']:,} bytes. "
                "Name fewer with --max-bytes, or give it more disk (max_file_store in its "
                "configuration)."
            )
        body = body | {"max_bytes": body["max_bytes"] // 2}


def _missing_bounds(
    declared: dict[str, Any], there: dict[str, Any], max_bytes: int | None
) -> dict[str, Any]:
    """The bounds that a stream lacks or has wider than declared; narrower ones stay."""
    live, held = there["config"], there["state"]["bytes"]
    changes = {}
    if max_bytes is not None and live.get("max_bytes") != max_bytes:
        _check_bound(max_bytes, held)
        changes["max_bytes"] = max_bytes
    elif not _is_bounded(live, "max_bytes"):
        changes["max_bytes"] = max(declared["max_bytes"], 2 * held)
    changes |= {
        key: declared[key]
        for key in ("max_consumers", "consumer_limits")
        if key in declared and not is_as_narrow(key, live, declared)
    }
    return changes


def _check_bound(max_bytes: int, held: int) -> None:
    if max_bytes < LEAST_BYTES:
        raise BadInput(
            f"--max-bytes {max_bytes:,} is too small: the least is {LEAST_BYTES:,} bytes."
        )
    if max_bytes < held:
        raise BadInput(
            f"--max-bytes {max_bytes:,} is less than the ledger holds already: {held:,} bytes."
        )


def _is_bounded(live: dict[str, Any], key: str) -> bool:
    return int(live.get(key) or -1) > 0


def is_as_narrow(key: str, live: dict[str, Any], declared: dict[str, Any]) -> bool:
    """Whether the stream has this limit, at most as large as declared. Byte limits may be any."""
    if key == "consumer_limits":
        limit = int((live.get(key) or {}).get("inactive_threshold", 0))
        return 0 < limit <= int(declared[key]["inactive_threshold"])
    return _is_bounded(live, key) and (key == "max_bytes" or int(live[key]) <= int(declared[key]))


class NoRoom(BrokerRefused):
    """The broker has not even the least bytes for a stream."""


class NameTaken(BrokerRefused):
    """There is a stream of that name with other settings."""


class Described(NamedTuple):
    """The broker's descriptions (ADR-1) by name; None: there is no such stream or consumer."""

    streams: dict[str, dict[str, Any] | None]
    consumers: dict[str, dict[str, Any] | None]
    #: All that are declared, whether they were asked about or not.
    durables: dict[str, Durable]

    @property
    def ledger(self) -> dict[str, Any] | None:
        return self.streams[LEDGER]


async def described(
    requests: Api,
    names: Collection[str] | None = None,
    is_asked: Callable[[Durable], bool] = lambda _: True,
) -> Described:
    """What the broker says of these streams (None: all that are declared) and consumers.

    Raises:
        BrokerAway: it does not answer, or a stream has no leader, so no node can say.
    """
    each = {name: f"STREAM.INFO.{name}" for name in names or streams()}
    found = await _infos(requests, each)
    durables = declared(found.get(LEDGER))
    of = {
        name: f"CONSUMER.INFO.{one.stream}.{name}"
        for name, one in durables.items()
        if is_asked(one)
    }
    return Described(found, await _infos(requests, of), durables)


async def _infos(requests: Api, subjects: dict[str, str]) -> dict[str, dict[str, Any] | None]:
    found = await asyncio.gather(*(info(requests, subject) for subject in subjects.values()))
    return dict(zip(subjects, found, strict=True))


class Use(Struct, frozen=True):
    """The used share of one limit of a stream."""

    stream: str
    #: `bytes` or `consumers`.
    what: str
    #: How much of it is used.
    taken: int
    #: The limit.
    most: int

    @property
    def is_alarming(self) -> bool:
        return self.taken >= ALARM * self.most

    @property
    def share(self) -> str:
        """Such as `1.4 MB of 2.0 GB`, for people."""
        if self.what == "bytes":
            return f"{size(self.taken)} of {size(self.most)}"
        return f"{self.taken:,} of {self.most:,} {self.what}"

    def __str__(self) -> str:
        return f"{self.stream} holds {self.share}"


def uses(described: Described) -> list[Use]:
    """The use of each limit of the streams."""
    return [
        Use(name, what, stream["state"][taken], stream["config"][most])
        for name, stream in described.streams.items()
        if stream is not None
        for what, taken, most in (
            ("bytes", "bytes", "max_bytes"),
            ("consumers", "consumer_count", "max_consumers"),
        )
        if _is_bounded(stream["config"], most)
    ]


class Undeclared(Struct, frozen=True):
    """An undeclared consumer that outlives its reader."""

    stream: str
    name: str
    #: The owner of the inbox to which it delivers, if known.
    role: str
    #: A durable is an administrator's; only others are abandoned.
    durable: bool
    #: None: never.
    gone_after_s: float | None

    def __str__(self) -> str:
        end = "for ever" if self.gone_after_s is None else f"{self.gone_after_s:,.0f} s"
        whose = f" by {self.role}" if self.role else ""
        return f"consumer {self.name} on {self.stream}{whose} is kept {end} without a reader"


async def undeclared(requests: Api) -> list[Undeclared]:
    """The undeclared consumers that outlive their readers for too long."""
    known = declared(await info(requests, f"STREAM.INFO.{LEDGER}"))
    return [
        one
        for stream in streams()
        for config in await _consumers(requests, stream)
        if (one := _undeclared(stream, config, known)) is not None
    ]


def _undeclared(
    stream: str, config: dict[str, Any], known: dict[str, Durable]
) -> Undeclared | None:
    name = config.get("durable_name") or config["name"]
    if name in known and known[name].stream == stream:
        return None
    after_s = config.get("inactive_threshold", 0) / _SECOND_NS
    durable = "durable_name" in config
    # An ephemeral one that names no time ends after five seconds.
    if after_s <= READER_GONE_S and not (durable and after_s == 0):
        return None
    match config.get("deliver_subject", "").split("."):
        case ["_INBOX", role, *_]:
            pass
        case _:
            role = ""
    return Undeclared(stream, name, role, durable, after_s or None)


async def dismiss_abandoned(requests: Api) -> list[Undeclared]:
    """Delete the consumers that `undeclared` finds, except durables.

    Every reader may create one that is kept for years, and the broker cannot forbid it on a stream
    with durables, so the administrator deletes them.
    """
    gone = [one for one in await undeclared(requests) if not one.durable]
    for one in gone:
        await requests.ask(f"$JS.API.CONSUMER.DELETE.{one.stream}.{one.name}", b"")
    return gone


async def _consumers(requests: Api, stream: str) -> list[dict[str, Any]]:
    """The configurations of all consumers of a stream; none if there is no stream."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            answer = await requests.call(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        except ApiError as problem:
            if problem.code == 404:
                return []
            raise
        page = answer.get("consumers") or []
        found += [one["config"] | {"name": one["name"]} for one in page]
        if not page or len(found) >= answer["total"]:
            return found


def _seal() -> str:
    """A start time long before the first fact that nobody can guess.

    A user who may create an ephemeral consumer may also name a durable one in the request's body,
    and so rewrite its filter or pause it. The server refuses a request with another start time, so
    a user who does not know it cannot change the durable.
    """
    before = datetime(1990, 1, 1, tzinfo=UTC) + timedelta(microseconds=secrets.randbelow(10**15))
    return before.isoformat().replace("+00:00", "Z")


async def info(requests: Api, subject: str) -> dict[str, Any] | None:
    """The JetStream API's answer about a stream or consumer; None if it does not exist.

    Raises:
        ApiError: it answers with any other error.
    """
    try:
        return await requests.call(subject, repeat=True)
    except ApiError as problem:
        if problem.code == 404:
            return None
        raise
