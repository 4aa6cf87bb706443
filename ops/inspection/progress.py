"""How far each consumer is behind, and whether its workers stand still."""

from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Any, Final

from msgspec import Struct

from ayes.ledger.nats.drift import paused_until
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import is_needed
from ayes.ledger.subscriptions import DURABLES, TIMERS, Durable, kind_of

#: Work that waits for longer while nothing is done is a stall. Less than five seconds, so that
#: whoever looks each second sees it within five.
STALLED_S: Final = 4.0
#: The roles without which no call is decided. Services may call their own models and run their own
#: tools.
ESSENTIAL: Final = ("gate", "queue")


class ConsumerStatus(Struct, frozen=True):
    """The progress of one durable consumer."""

    #: The name of the consumer.
    name: str
    #: Whether the broker has it.
    exists: bool = False
    #: Whether it was created here, or every ledger has it.
    needed: bool = False
    #: Until when an administrator has paused it; empty if it is not paused.
    paused_until: str = ""
    #: Whether a worker is subscribed.
    listening: bool = False
    #: Deliveries that no worker has received yet.
    waiting: int = 0
    #: Deliveries that are not acknowledged yet.
    in_hand: int = 0
    #: Deliveries that were sent again.
    redelivered: int = 0
    #: The fact up to which everything is acknowledged.
    ack_floor: int = 0
    #: Seconds since its workers last did something; see `_quiet_s`.
    quiet_s: float = 0.0
    #: Its oldest work waits for longer than `STALLED_S`, and nothing was done meanwhile.
    frozen: bool = False
    #: Whether a worker listens, or ever received something, or it was made for a login.
    used: bool = False

    @property
    def kind(self) -> Durable:
        return DURABLES[kind_of(self.name)]

    @property
    def login(self) -> str:
        """The login whose own it is; empty: it is for all logins of the role."""
        return self.name.rpartition("@")[0]

    @property
    def role(self) -> str:
        return self.kind.role

    @property
    def is_missing(self) -> bool:
        return self.needed and not self.exists

    @property
    def is_shown(self) -> bool:
        """Whether it says something about this installation."""
        return self.used or self.is_missing or not self.kind.optional

    @property
    def problem(self) -> str:
        """What a person should look at."""
        if self.is_missing:
            return "missing"
        if self.paused_until:
            return f"paused until {self.paused_until}"
        if self.waiting and not self.listening:
            is_needed = self.used or self.role in ESSENTIAL
            return "nobody listens" if is_needed else "not used"
        return f"frozen: nothing was done for {self.quiet_s:,.0f} s" if self.frozen else ""


async def progress(
    log: JetStream, durable: Durable, consumer: dict[str, Any] | None, kept: Collection[str]
) -> ConsumerStatus:
    """How far a consumer is.

    Args:
        consumer: the broker's description; None: it does not exist.
        kept: the optional durables that were created here.

    Raises:
        Unavailable: the broker cannot say.
    """
    if consumer is None:
        return ConsumerStatus(durable.name, needed=is_needed(durable, kept))
    listening = consumer.get("push_bound", False)
    used = listening or consumer["delivered"]["consumer_seq"] > 0 or bool(durable.workspaces)
    return ConsumerStatus(
        durable.name,
        exists=True,
        needed=is_needed(durable, kept),
        paused_until=paused_until(consumer),
        listening=listening,
        waiting=consumer["num_pending"],
        in_hand=consumer["num_ack_pending"],
        redelivered=consumer["num_redelivered"],
        ack_floor=consumer["ack_floor"]["stream_seq"],
        quiet_s=_quiet_s(durable, consumer),
        # What no worker ever took belongs to an installation that does not need it.
        frozen=(used or durable.role in ESSENTIAL) and await _is_frozen(log, durable, consumer),
        used=used,
    )


async def _is_frozen(log: JetStream, durable: Durable, consumer: dict[str, Any]) -> bool:
    """Whether the oldest work waits for too long, and nothing was done meanwhile.

    Work that takes long by nature counts until it is delivered, unless its workers hold as many
    deliveries as they may; other work counts until it is acknowledged, since a stopped process
    still receives deliveries.
    """
    work, begin = consumer["num_pending"], consumer["delivered"]["stream_seq"]
    if not durable.slow:
        work, begin = work + consumer["num_ack_pending"], consumer["ack_floor"]["stream_seq"]
    elif consumer["num_ack_pending"] >= durable.at_once:
        work = 0
    if not work or _quiet_s(durable, consumer) <= STALLED_S:
        return False
    if durable.stream == TIMERS:  # which only the gate may read
        return True
    next_of = partial(log.leaders_message, durable.stream, seq=begin + 1)
    first = [await next_of(next_by_subj=subject) for subject in durable.subjects]
    oldest = min((one.recorded_at for one in first if one is not None), default=None)
    now = datetime.fromisoformat(consumer["ts"])
    return oldest is not None and (now - oldest).total_seconds() > STALLED_S


def _quiet_s(durable: Durable, consumer: dict[str, Any]) -> float:
    """Since the last acknowledgement; for slow work and timers, or the last delivery."""
    marks = ["ack_floor"]
    if durable.slow or durable.stream == TIMERS:
        marks.append("delivered")
    last = (consumer[one].get("last_active", consumer["created"]) for one in marks)
    return min(seconds(since, consumer["ts"]) for since in last)


def seconds(since: str, now: str) -> float:
    """Between two times in the broker's format."""
    return round((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds(), 3)
