"""The durable subscriptions of all workers, in one table.

`nats/streams.py` sets up JetStream from it; the twin in memory (`in_memory.py`) delivers the same
from this table alone.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.schemas.slots import CLIENT, GRANT, KEY, ORGANISATION, POLICY, ROOT, STOP

#: The streams that subscriptions read: the facts, the timers of deadlines, and parked deliveries.
LEDGER: Final = "LEDGER"
TIMERS: Final = "TIMERS"
PARKED: Final = "PARKED"

#: The role that decides about parked deliveries.
OPERATOR: Final = "operator"

#: The parked deliveries that a consumer may have. The broker knows no limit by consumer, so it maps
#: the last token of their subjects to so many places (`parked_place`), of one entry each.
MAX_PARKED: Final = 2048
#: The largest entry, in bytes. All places together are smaller than the stream.
PARKED_BYTES: Final = 4096

#: After this many seconds without an acknowledgement, another worker receives the delivery.
ACK_WAIT_S: Final = 30.0
#: At most this many if the work is not slow. Nothing that such a worker does is spoiled by another
#: one that does it too, and what was delivered into a dead connection soon goes to a living one.
QUICK_ACK_WAIT_S: Final = 10.0


class Durable(Struct, frozen=True):
    """A subscription that survives its readers, shared by all processes of that name."""

    name: str
    #: Only its credentials may receive deliveries (`ops/broker/accounts.py`).
    role: str
    subjects: tuple[str, ...]
    stream: str = LEDGER
    #: The number of unacknowledged deliveries over all processes. Bounds the redeliveries after a
    #: crash.
    at_once: int = 512
    #: Created when a worker first needs it, or by `ayes setup --with`. The
    #: `-recorded` ones are those of `bench.rehearsal`.
    optional: bool = False
    #: Its work may take long, as tools and models do, so a delivery may long be unacknowledged.
    slow: bool = False
    #: Whether its workers handle only what is delivered again, such as parked deliveries that an
    #: operator has tried again. They park what they cannot read, too.
    only_again: bool = False
    #: After so many deliveries one is parked whatever the reason; 0: as the worker says. More where
    #: many are in hand at a time, since each is delivered again whenever their worker dies, and
    #: where deliveries wait by being handed on.
    max_deliveries: int = 0
    #: Those of the login whose own this is; none: all of them, for all logins of the role.
    workspaces: tuple[str, ...] = ()

    def ack_wait_s(self, chosen_s: float = ACK_WAIT_S) -> float:
        """How long a delivery may be silent, in seconds.

        Args:
            chosen_s: the choice of the user of `ayes up` or `ayes work`.
        """
        return chosen_s if self.slow else min(chosen_s, QUICK_ACK_WAIT_S)

    @property
    def again(self) -> "Durable":
        """The subscription to this one's parked deliveries that are to be tried again."""
        subjects = tuple(f"parked.{role}.{self.name}.*" for role in (self.role, OPERATOR))
        return Durable(
            f"{self.name}-parked",
            self.role,
            subjects,
            PARKED,
            at_once=64,
            optional=self.optional,
            slow=self.slow,
            max_deliveries=self.max_deliveries,
            workspaces=self.workspaces,
        )

    def of(self, login: str, workspaces: tuple[str, ...]) -> "Durable":
        """The login's own subscription of this kind, if it has some workspaces only; else this."""
        if not workspaces:
            return self
        if self.name != self.origin:
            return DURABLES[self.origin].of(login, workspaces).again
        subjects = tuple(
            one.replace(".*.", f".{where}.", 1) for one in self.subjects for where in workspaces
        )
        name = f"{login}@{self.name}"
        return replace(self, name=name, subjects=subjects, optional=True, workspaces=workspaces)

    @property
    def origin(self) -> str:
        """The subscription whose parked deliveries this one has; its own name if it has none."""
        return self.name.removesuffix("-parked")


def kind_of(name: str) -> str:
    """The kind of a subscription, by which `DURABLES` has it: `executor` for `shop@executor`."""
    return name.rpartition("@")[2]


def parked_place(word: str) -> str:
    """The place to which the broker maps this word: FNV-1a, as `partition` of nats-server."""
    found = 0x811C9DC5
    for byte in word.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return str(found % MAX_PARKED)


def _call(*tails: str) -> tuple[str, ...]:
    return tuple(f"{ROOT}.*.*.call.*.{tail}" for tail in tails)


_SAID: Final = f"{ROOT}.*.*.said.*"

#: Confirmations of people's keys.
_CONFIRMED: Final = tuple(
    f"{ROOT}.{ORGANISATION}.{KEY}.*.*.{tail}" for tail in ("confirmed", "confirmed.*")
)

#: A delivery that waits for the end of a stop comes again each minute, for some days.
_OF_A_STOP: Final = 5000

#: Stops, and who resumes.
_STOPPING: Final = (f"{ROOT}.*.{STOP}.*.*.given", f"{ROOT}.*.{STOP}.*.*.resumed.*")

#: What may end approvals of calls that nothing has started.
_TAKING_BACK: Final = (
    f"{ROOT}.*.{POLICY}.*",
    *(f"{ROOT}.*.{GRANT}.*.*.{tail}" for tail in ("revoked", "revoked.*")),
)

_REPLIED: Final = f"{ROOT}.*.*.turn.*.replied"

_MODEL: Final = (
    f"{ROOT}.*.*.opened",
    _SAID,
    _REPLIED,
    # The end is in `late` if a void fact is in `finished`.
    *_call("finished", "finished.client", "late.>", "reconciled.*"),
)

#: Claims too, since a claim can decline a call: then a result for the model must be recorded.
_EXECUTOR: Final = _call("decided", "claim.*", "revoked.*", "lapsed")

#: Each beginning of an occasion to tell somebody. Most ends are none.
_NOTIFIER: Final = (
    *_call(
        "gated",
        "vote.*",
        "escalated.*",
        "handed.*.*",
        "announced",
        "decided",
        "claim.>",
        "finished",
        f"finished.{CLIENT}",
        "late.>",
    ),
    *_CONFIRMED,
)


def _notifier(name: str, at_once: int) -> Durable:
    return Durable(
        name,
        "notifier",
        _NOTIFIER,
        at_once=at_once,
        optional=True,
        slow=True,
        max_deliveries=1000,
    )


#: By name: the subscription of each worker, and the one to its parked deliveries.
DURABLES: Final[dict[str, Durable]] = {
    durable.name: durable
    for working in (
        Durable(
            "gate",
            "gate",
            (
                *_call("requested", "vote.*", "withdrawn"),
                _SAID,
                *_STOPPING,
                *_TAKING_BACK,
            ),
        ),
        # Apart, so that no decision waits behind what models write. The order between the two does
        # not matter: what a reply wishes for is requested, and comes to the gate as a request. Few
        # at a time, so that they leave the gate's process to the others (docs/decisions/0071).
        Durable("gate-replies", "gate", (_REPLIED,), at_once=16),
        Durable("gate-timers", "gate", ("timer.due.>",), stream=TIMERS),
        Durable("queue", "queue", _call("gated", "escalated.*", "handed.*.*", "decided")),
        Durable("model", "model", _MODEL, at_once=2048, slow=True, max_deliveries=_OF_A_STOP),
        _notifier("notifier", at_once=2048),
        # Notices that are due later: reminders, digests, those of quiet hours. Each waits as a
        # delivery, so the bound is that of the calls with such a notice at a time.
        _notifier("notifier-later", at_once=20_000),
        # Whatever changes what a message in a chat says.
        Durable(
            "slack",
            "slack",
            _call("gated", "vote.*", "escalated.*", "decided", "revoked.*", "lapsed"),
            optional=True,
            slow=True,
        ),
        # While a stop covers them, approved calls wait as deliveries.
        Durable(
            "executor",
            "executor",
            _EXECUTOR,
            at_once=2048,
            optional=True,
            slow=True,
            max_deliveries=_OF_A_STOP,
        ),
        # Closes calls that will never run, if no executor with tools does.
        Durable("closer", "executor", _EXECUTOR, at_once=256, optional=True),
        Durable("executor-recorded", "executor", _EXECUTOR, at_once=256, optional=True, slow=True),
        # Begins sub-agents' threads, and records how they end.
        Durable(
            "delegator",
            "service",
            (*_call("decided"), _REPLIED),
            optional=True,
            max_deliveries=_OF_A_STOP,
        ),
        # Endpoints are sent facts by readers of their own; this one is for what is parked.
        Durable(
            "webhooks",
            "webhooks",
            (f"{ROOT}.>",),
            at_once=256,
            optional=True,
            slow=True,
            only_again=True,
        ),
        Durable("model-recorded", "model", _MODEL, at_once=256, optional=True, slow=True),
    )
    for durable in (working, working.again)
}
