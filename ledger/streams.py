"""What the broker must hold: streams and durable consumers, declared here and nowhere else.

`ensure` creates what is missing and touches nothing that is there; `drift` says where what is there differs from
what is declared. The flags of `LEDGER` make it a ledger, and an administrator can still switch them off, which is
why drift is an alarm (design, section 3).
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from ledger.requests import Requests
from schemas.codec import MAX_BYTES
from schemas.errors import BadInput, BrokerRefused
from schemas.slots import ROOT

LEDGER: Final = "LEDGER"
TIMERS: Final = "TIMERS"
PARKED: Final = "PARKED"
PENDING: Final = "KV_pending"

_SECOND_NS: Final = 1_000_000_000


def _common(replicas: int) -> dict[str, Any]:
    return {
        "storage": "file",
        "num_replicas": replicas,
        "allow_direct": True,
        "compression": "none",
        # Nothing ages, nothing is let go of.
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
    }


def streams(replicas: int = 1) -> dict[str, dict[str, Any]]:
    """Each stream's declared configuration, as the JetStream API takes it (ADR-1, ADR-8 for the bucket)."""
    common = _common(replicas)
    return {
        LEDGER: common
        | {
            "subjects": [f"{ROOT}.>"],
            "retention": "limits",
            # At most one fact a slot, for ever; the second one is refused with error 10077.
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            # Batches of group commit (ADR-50). Room for their headers beside the payload.
            "allow_atomic": True,
            "max_msg_size": MAX_BYTES + 1024,
        },
        # `discard: new` cannot hold schedules (ADR-51), so deadlines live apart. A work queue: a hint that was
        # handled is gone. No max_age: it would drop a deadline that is further away.
        TIMERS: common
        | {
            "subjects": ["timer.>"],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "discard": "old",
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        },
        PARKED: common
        | {"subjects": ["parked.>"], "retention": "limits", "max_msgs_per_subject": 1, "discard": "old"},
        PENDING: bucket("pending", replicas),
    }


def bucket(name: str, replicas: int = 1) -> dict[str, Any]:
    """A key-value bucket as every NATS client knows it (ADR-8). Deleted keys leave a marker that ages by itself."""
    return _common(replicas) | {
        "subjects": [f"$KV.{name}.>"],
        "retention": "limits",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
    }


def bucket_stream(name: str) -> str:
    """The stream that a bucket is."""
    return f"KV_{name}"


async def ensure_empty(requests: Requests, name: str, description: str) -> None:
    """Create a bucket, or empty the one that was created with this description.

    Raises:
        BadInput: a bucket of that name is there, and it was made for something else.
    """
    stream = bucket_stream(name)
    there = await info(requests, f"STREAM.INFO.{stream}")
    if there is not None and there["config"].get("description") != description:
        raise BadInput(
            f"there is a bucket {name!r} already, which was not made for this. Choose another name, or delete it."
        )
    if there is None:
        body = {"name": stream, "description": description, **bucket(name)}
        await _ensure(requests, f"STREAM.{{}}.{stream}", body)
        return
    answer = msgspec.json.decode((await requests.ask(f"$JS.API.STREAM.PURGE.{stream}", b"{}")).data)
    if problem := answer.get("error"):
        raise BrokerRefused(f"the broker does not empty bucket {name}: {problem['description']}.")


class Durable(Struct, frozen=True):
    """A durable push consumer: who is handed which subjects, shared by all processes of that name."""

    name: str
    role: str
    subjects: tuple[str, ...]
    stream: str = LEDGER
    #: Handed out and not yet acknowledged, over all processes. Bounds what a crash hands out again.
    at_once: int = 512
    #: Created when it is first needed: the `-recorded` ones are those of `approvals rehearse`.
    optional: bool = False

    @property
    def deliver_subject(self) -> str:
        return f"deliver.{self.role}.{self.name}"

    @property
    def sealed(self) -> bool:
        """Only what everybody may read needs a seal, and a work queue takes none."""
        return self.stream == LEDGER

    def config(self, ack_wait_s: float) -> dict[str, Any]:
        return {
            "durable_name": self.name,
            "deliver_subject": self.deliver_subject,
            "deliver_group": self.name,
            "deliver_policy": "by_start_time" if self.sealed else "all",
            "ack_policy": "explicit",
            # Whoever works longer says so (`Delivery.in_progress`); whoever is silent is taken for dead.
            "ack_wait": int(ack_wait_s * _SECOND_NS),
            # The loop parks what cannot be handled; the broker must not drop it before.
            "max_deliver": -1,
            "max_ack_pending": self.at_once,
            "replay_policy": "instant",
            "filter_subjects": list(self.subjects),
        }


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

#: Claims for the sake of those that decline a call, in older logs also revoke it: the model must be told.
_EXECUTOR: Final = _call("decided", "claim.*", "revoked.*")

#: Every durable consumer.
DURABLES: Final[dict[str, Durable]] = {
    durable.name: durable
    for durable in (
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
}

#: How long a silent worker is taken for alive.
ACK_WAIT_S: Final = 30.0


async def ensure(
    requests: Requests, *, replicas: int = 1, ack_wait_s: float = ACK_WAIT_S, also: Sequence[str] = ()
) -> None:
    """Create the streams and durables that are missing. What is there stays as it is: see `drift`.

    Args:
        also: which of the optional durables.

    Raises:
        BrokerRefused: the broker does not allow it, or cannot hold such a stream (older than 2.14).
    """
    for name, config in streams(replicas).items():
        await _ensure(requests, f"STREAM.{{}}.{name}", {"name": name, **config})
    for durable in DURABLES.values():
        if durable.optional and durable.name not in also:
            continue
        what = f"CONSUMER.{{}}.{durable.stream}.{durable.name}"
        config = durable.config(ack_wait_s) | ({"opt_start_time": _seal()} if durable.sealed else {})
        await _ensure(requests, what, {"stream_name": durable.stream, "config": config, "action": "create"})
        await _subscribe_to_more(requests, what, durable)


async def _subscribe_to_more(requests: Requests, what: str, durable: Durable) -> None:
    """Give a consumer of an earlier version the subjects that were added since; all else stays as it is.

    The facts on those subjects are all still to come, so nothing is passed over.
    """
    there = await info(requests, what.format("INFO"))
    if there is None or set(durable.subjects) <= set(_filter(there["config"])):
        return
    config = {name: value for name, value in there["config"].items() if name != "filter_subject"}
    config["filter_subjects"] = list(durable.subjects)
    body = {"stream_name": durable.stream, "config": config, "action": "update"}
    create = what.format("CREATE")
    answer = msgspec.json.decode((await requests.ask(f"$JS.API.{create}", msgspec.json.encode(body))).data)
    if problem := answer.get("error"):
        raise BrokerRefused(
            f"the broker does not let consumer {durable.name} subscribe to more: {problem['description']}. "
            "These credentials must be an administrator's."
        )


def _filter(config: dict[str, Any]) -> list[str]:
    """The subjects of a consumer. One alone comes back under another name."""
    return config.get("filter_subjects") or [config.get("filter_subject", "")]


async def _ensure(requests: Requests, what: str, body: dict[str, Any]) -> None:
    """Create `what`, with INFO or CREATE in its braces, unless it is there. Two who do so at once have made it once."""
    if await info(requests, what.format("INFO")) is not None:
        return
    create = what.format("CREATE")
    answer = msgspec.json.decode((await requests.ask(f"$JS.API.{create}", msgspec.json.encode(body))).data)
    problem = answer.get("error")
    if problem and await info(requests, what.format("INFO")) is None:
        raise BrokerRefused(
            f"the broker refuses {create}: {problem['description']}. It must be nats-server 2.14 or newer, "
            "with JetStream, and these credentials must be an administrator's."
        )


def _seal() -> str:
    """A start long before the first fact, at a time that nobody can guess.

    Whoever may create an ephemeral consumer may also name a durable one in the request's body, and so rewrite
    its filter or pause it. The server lets nobody change the start time, so who does not know it can change nothing.
    """
    before = datetime(1990, 1, 1, tzinfo=UTC) + timedelta(microseconds=secrets.randbelow(10**15))
    return before.isoformat().replace("+00:00", "Z")


async def drift(requests: Requests, *, replicas: int = 1) -> list[str]:
    """Where the broker differs from what is declared, one sentence each; empty when all is as it should be."""
    found: list[str] = []
    for name, declared in streams(replicas).items():
        stream = await info(requests, f"STREAM.INFO.{name}")
        if stream is None:
            found.append(f"stream {name} is missing; `approvals up` or an administrator creates it")
            continue
        found += _differences(f"stream {name}", declared, stream["config"], ignore={"num_replicas"})
    for durable in DURABLES.values():
        consumer = await info(requests, f"CONSUMER.INFO.{durable.stream}.{durable.name}")
        if consumer is None and durable.optional:
            continue
        if consumer is None:
            found.append(f"consumer {durable.name} is missing; `approvals up` or an administrator creates it")
            continue
        found += _differences(
            f"consumer {durable.name}", durable.config(ACK_WAIT_S), consumer["config"], ignore={"ack_wait"}
        )
    return found


async def info(requests: Requests, subject: str) -> dict[str, Any] | None:
    """What the JetStream API says about a stream or consumer; None when there is none.

    Raises:
        BrokerRefused: it says anything else than that.
    """
    answer = msgspec.json.decode((await requests.ask(f"$JS.API.{subject}", b"", repeat=True)).data)
    problem = answer.get("error")
    if problem is None:
        return dict(answer)
    if problem["code"] == 404:
        return None
    raise BrokerRefused(f"the broker refuses {subject}: {problem['description']}.")


def _differences(what: str, declared: dict[str, Any], live: dict[str, Any], ignore: set[str]) -> list[str]:
    # The server leaves out what is at its default; 0, false, empty and absent are one thing.
    live = live | ({"filter_subjects": _filter(live)} if "filter_subject" in live else {})
    return [
        f"{what}: {key} is {live.get(key)!r}, declared is {value!r}"
        for key, value in declared.items()
        if key not in ignore and (live.get(key) or None) != (value or None)
    ]
