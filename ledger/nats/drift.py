"""The differences between the broker's streams and consumers and the declared ones.

The flags of `LEDGER` make it a ledger, and an administrator can still switch them off, so each
difference is an alarm. After an upgrade of this program there may be more of them: `upgrade` brings
the broker up to date.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec import Struct

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.streams import (
    BOUNDS,
    Described,
    change_consumer,
    change_stream,
    consumer_config,
    filter_of,
    info,
    is_as_narrow,
    is_needed,
    is_packed,
    kept,
    streams,
)
from ayes.ledger.subscriptions import PARKED, Durable
from ayes.schemas.errors import BrokerRefused
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ledger.nats.drift")

#: Settings that the broker does not change (`configUpdateCheck` and `checkNewConsumerConfig` of
#: nats-server).
_FIXED: Final = frozenset({"storage", "retention", "deliver_policy", "ack_policy", "replay_policy"})
#: Whether nothing may leave the stream. It can be set, and not taken back.
_PURGE: Final = "deny_purge"
#: Until when the broker delivers nothing.
_PAUSE: Final = "pause_until"
#: Settings of a consumer without which its worker would miss deliveries.
_NEEDED: Final = frozenset({"filter_subjects", "deliver_subject", "deliver_group", "ack_policy"})


class Drift(Struct, frozen=True):
    """A setting that is not as declared, or a stream or consumer that is missing."""

    stream: str
    #: Empty: it is the stream itself.
    consumer: str = ""
    #: Empty: all of it is missing.
    key: str = ""
    live: Any = None
    declared: Any = None

    @property
    def is_fixed(self) -> bool:
        """Whether the broker does not change it."""
        return self.key in _FIXED or (self.key == _PURGE and not self.declared)

    @property
    def remedy(self) -> str:
        """What `upgrade` does about it."""
        if not self.key:
            return "will be created"
        if self.key == _PURGE and self.is_fixed:
            return "stays, since the broker takes it back in a restore only: docs/packing.md"
        if self.is_fixed:
            return "stays, since the broker cannot change it: delete and create it without workers"
        if self.key == "filter_subjects" and set(self.declared) - set(self.live):
            return "will be changed; earlier facts on added subjects are not delivered"
        return "will be changed"

    def __str__(self) -> str:
        what = f"consumer {self.consumer}" if self.consumer else f"stream {self.stream}"
        if not self.key:
            return f"{what} is missing; `ayes up` or `ayes setup` creates it"
        if self.key == _PAUSE:
            return f"{what} is paused until {self.live}; `ayes setup --upgrade` sets it going"
        if self.key == "num_replicas":
            has = f"{self.live} replica{'' if self.live == 1 else 's'}"
            return f"{what} has {has}, not {self.declared}"
        if self.key in BOUNDS:
            return (
                f"{what}: {self.key} is {self.live!r}, wider than the declared "
                f"{self.declared!r}; `ayes setup` bounds it"
            )
        return f"{what}: {self.key} is {self.live!r}, declared is {self.declared!r}"


def differences(
    broker: Described, *, replicas: int | None = None, also: Collection[str] = ()
) -> list[Drift]:
    """All differences between the broker and the declarations.

    Args:
        replicas: of each stream; None: as many as `LEDGER` has.
        also: the optional durables that must be there, besides those that were created before.
    """
    found: list[Drift] = []
    wanted = {*also, *kept(broker.ledger)}
    packed = broker.ledger is not None and is_packed(broker.ledger)
    for name, declared in streams(packed=packed).items():
        stream = broker.streams[name]
        if stream is None:
            found.append(Drift(name))
            continue
        live = stream["config"]
        replicas = replicas or live["num_replicas"]
        found += _settings(name, "", declared | {"num_replicas": replicas}, live)
    for durable in broker.durables.values():
        consumer = broker.consumers[durable.name]
        if consumer is not None:
            found += _of_consumer(durable, consumer)
        elif is_needed(durable, wanted):
            found.append(Drift(durable.stream, durable.name))
    return found


async def upgrade(requests: Api, plan: Iterable[Drift]) -> None:
    """Change the settings that differ. `ensure` creates what is missing and adds bounds.

    The broker keeps the position and the start time of a consumer that it changes.

    Raises:
        BrokerRefused: the broker does not allow one of the changes; those before it are made.
    """
    changes: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for one in plan:
        if one.key and not one.is_fixed and one.key not in BOUNDS:
            changes[one.stream, one.consumer][one.key] = one.declared
    for (stream, consumer), settings in changes.items():
        if settings.pop(_PAUSE, "") is None:
            await requests.call(f"CONSUMER.PAUSE.{stream}.{consumer}", {})
        if consumer and settings:
            await change_consumer(requests, f"{stream}.{consumer}", settings)
        elif settings:
            await change_stream(requests, stream, settings)


async def check_own(requests: Api, durable: Durable) -> None:
    """Compare a worker's own consumer with its declaration.

    Raises:
        BrokerRefused: it is missing, or does not deliver all that the worker needs.
    """
    consumer = await info(requests, f"CONSUMER.INFO.{durable.stream}.{durable.name}")
    if consumer is None:
        missing = f"there is no consumer {durable.name}"
        if durable.stream == PARKED:
            _log.warning(f"{missing}, so nothing parked is retried: `ayes setup` creates it")
            return
        option = f" --with {durable.name}" if durable.optional and not durable.workspaces else ""
        raise BrokerRefused(f"{missing}. As an administrator run `ayes setup{option}` first.")
    for one in _of_consumer(durable, consumer):
        is_enough = one.key == "filter_subjects" and set(one.declared) <= set(one.live)
        if one.key in _NEEDED and not is_enough:
            raise BrokerRefused(f"{one}. As an administrator run `ayes setup --upgrade` first.")
        _log.warning("the consumer is not as this program declares it", difference=str(one))


def _of_consumer(durable: Durable, consumer: dict[str, Any]) -> list[Drift]:
    declared, live = consumer_config(durable), consumer["config"]
    del declared["ack_wait"]  # an option of `up` and `work`
    # The server reports a single subject under another name, and keeps the end of a past pause.
    live = live | {"filter_subjects": filter_of(live), _PAUSE: paused_until(consumer)}
    return _settings(durable.stream, durable.name, declared | {_PAUSE: None}, live)


def paused_until(consumer: dict[str, Any]) -> str:
    """The end of a consumer's pause, as the broker writes it; empty if it is not paused."""
    return str(consumer["config"].get(_PAUSE, "")) if consumer.get("paused") else ""


def _settings(
    stream: str, consumer: str, declared: dict[str, Any], live: dict[str, Any]
) -> list[Drift]:
    # The server omits defaults, so 0, false, empty and absent are equal.
    return [
        Drift(stream, consumer, key, live.get(key), value)
        for key, value in declared.items()
        if key != "metadata"
        and not (
            is_as_narrow(key, live, declared)
            if key in BOUNDS
            else (live.get(key) or None) == (value or None)
        )
    ]
