"""Who receives which subjects: every durable subscription of the workers, in one table.

How JetStream is set up to deliver them stands in `nats/streams.py`; the twin in memory
(`in_memory.py`) delivers the same from this table alone.
"""

from typing import Final

from msgspec import Struct

from ayes.schemas.slots import ROOT

#: The streams that subscriptions read: the facts, the hints about deadlines, and what consumers
#: gave up on.
LEDGER: Final = "LEDGER"
TIMERS: Final = "TIMERS"
PARKED: Final = "PARKED"

#: The role that says what becomes of what was parked.
OPERATOR: Final = "operator"

#: How long a worker may be silent about a delivery, in seconds, before another one receives it.
ACK_WAIT_S: Final = 30.0


class Durable(Struct, frozen=True):
    """A subscription that survives its readers, shared by all processes of that name."""

    name: str
    #: Whose credentials may receive it (`ops/broker/accounts.py`).
    role: str
    subjects: tuple[str, ...]
    stream: str = LEDGER
    #: Deliveries that are not acknowledged yet, over all processes. Bounds what is delivered a
    #: second time after a crash.
    at_once: int = 512
    #: Created when it is first needed: the `-recorded` ones are those of `ayes rehearse`.
    optional: bool = False

    @property
    def again(self) -> "Durable":
        """The subscription to what this one parked, when it is to be tried again."""
        subjects = tuple(f"parked.{role}.{self.name}.*" for role in (self.role, OPERATOR))
        return Durable(
            f"{self.name}-parked", self.role, subjects, PARKED, at_once=64, optional=self.optional
        )


def _call(*tails: str) -> tuple[str, ...]:
    return tuple(f"{ROOT}.*.*.call.*.{tail}" for tail in tails)


_SAID: Final = f"{ROOT}.*.*.said.*"

_REPLIED: Final = f"{ROOT}.*.*.turn.*.replied"

_MODEL: Final = (
    f"{ROOT}.*.*.opened",
    _SAID,
    _REPLIED,
    # `late` too: where a void fact stands in `finished`, the end stands there.
    *_call("finished", "finished.client", "late.>", "reconciled", "reconciled.*"),
)

#: Claims for the sake of those that decline a call, in older logs also revoke it: the model must
#: be told.
_EXECUTOR: Final = _call("decided", "claim.*", "revoked.*")

#: By name: the subscriptions of working consumers, and for each the one to what it parked.
DURABLES: Final[dict[str, Durable]] = {
    durable.name: durable
    for working in (
        Durable("gate", "gate", (*_call("requested", "vote.*", "withdrawn"), _SAID, _REPLIED)),
        Durable("gate-timers", "gate", ("timer.due.>",), stream=TIMERS),
        Durable("queue", "queue", _call("gated", "escalated.*", "decided")),
        Durable("model", "model", _MODEL, at_once=256),
        Durable("executor", "executor", _EXECUTOR, at_once=256, optional=True),
        # Closes what will never run, where no executor with tools does.
        Durable("closer", "executor", _EXECUTOR, at_once=256, optional=True),
        Durable("executor-recorded", "executor", _EXECUTOR, at_once=256, optional=True),
        Durable("model-recorded", "model", _MODEL, at_once=256, optional=True),
    )
    for durable in (working, working.again)
}
