"""Whether the log takes writes at the moment, tried without recording anything.

When its disk is full, nats-server 2.15 does not refuse a publish: the stream logs a "critical write
error" and answers no publish from then on, also when there is room again, until the server is
restarted. Reads go on, and so does everything that is refused before it would be stored. So there
are two questions to the broker:

* *Opening an atomic batch* (ADR-50), which is then abandoned. With one replica the broker writes
  its first message to a file next to the stream; without room it answers that the batch is
  incomplete. It drops abandoned batches after some seconds.
* *`HEALTHZ`* of the system account, which names each stream with a write error. Only the owner of a
  store has that login.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

import nats.errors
from msgspec import Struct

from ayes.ledger.nats.api import Api, ack_of, is_ack
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import server_id
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.accounts import ADMIN, SYSTEM, slots_of
from ayes.schemas.errors import BrokerRefused, Unavailable
from ayes.schemas.ids import new_id

#: How long one question may take.
_PATIENCE_S: Final = 3.0
#: "atomic publish batch is incomplete": also the answer where the first message cannot be written.
_INCOMPLETE: Final = 10176
#: In the metadata of `LEDGER` while `up` refuses facts for want of space: its former `max_bytes`,
#: and the lower ones.
CLOSED: Final = "ayes-max-bytes"
LOWERED: Final = "ayes-lowered-to"


class Health(Struct, frozen=True):
    """The result of a trial."""

    ok: bool
    #: One sentence if it is not; which says what to do.
    why: str = ""
    #: The free bytes of the store's disk; None if there is no store on this machine.
    free_bytes: int | None = None
    #: The streams that take no writes until the server is restarted.
    dead: tuple[str, ...] = ()
    #: Why it accepts no batch of facts; empty if it does, or if it was not asked.
    no_batches: str = ""


async def takes_writes(log: JetStream, store: Store | None = None) -> Health:
    """Try whether the log takes writes. Never raises `Unavailable`: that is an answer too.

    Args:
        log: on the login of any role that may record facts.
        store: the store of this broker, if it runs on this machine.
    """
    if store is not None and SYSTEM not in store.read().passwords:
        store = None  # the address of a broker elsewhere
    free = None if store is None else free_bytes(store.path)
    no_batches = ""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            dead = {} if store is None else await _write_errors(store)
            if dead:
                stream, problem = next(iter(dead.items()))
                why = (
                    f"the broker records nothing in {stream} until it is restarted ({problem}). "
                    "`ayes up` restarts it when its disk has room."
                )
                return Health(False, why, free, tuple(dead))
            closed = await _closed(log)
            failing, no_batches = await _try(log)
            why = closed or failing
    except (TimeoutError, nats.errors.Error):
        why = f"the broker does not answer within {_PATIENCE_S:g} s."
    except Unavailable as problem:
        why = str(problem)
    return Health(not why, why, free, no_batches=no_batches)


def free_bytes(path: Path) -> int:
    """The bytes that this user may still write on the disk of `path`."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def former_limit(stream: dict[str, Any]) -> int | None:
    """The `max_bytes` of this stream before `up` lowered it to what it holds; None if it did not,
    or if an administrator has set another limit since.
    """
    metadata, limit = stream["config"].get("metadata", {}), stream["config"]["max_bytes"]
    former, lowered = metadata.get(CLOSED), metadata.get(LOWERED)
    # It may hold less by now: facts that are in packs leave the stream (docs/decisions/0091).
    is_lowered = str(limit) == lowered if lowered else limit <= max(1, stream["state"]["bytes"])
    return int(former) if former and is_lowered else None


async def _write_errors(store: Store) -> dict[str, str]:
    """The write errors of the broker of this store, by stream (monitor.go of nats-server)."""
    connection = Connection(store.login(SYSTEM))
    await connection.open(name="ayes health", timeout_s=2 * _PATIENCE_S)  # the caller's comes first
    try:
        api = Api(connection)
        await api.start()
        subject = f"$SYS.REQ.SERVER.{server_id(connection.client)}.HEALTHZ"
        answer = await api.ask(subject, b'{"details":true}', _PATIENCE_S)
    except BrokerRefused:
        return {}  # an earlier version started it, and this login may not ask yet
    finally:
        await connection.close()
    problems = json.loads(answer.data).get("data", {}).get("errors", [])
    return {
        one["stream"]: one["error"].rpartition("write error: ")[2]
        for one in problems
        if "write error" in one.get("error", "")
    }


async def _closed(log: JetStream) -> str:
    """Whether `up` refuses facts since its disk is nearly full."""
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    if stream is None or former_limit(stream) is None:
        return ""
    return (
        "the disk of the ledger is nearly full, so `ayes up` has its broker refuse further facts. "
        "Free some space: it goes on by itself."
    )


async def _try(log: JetStream) -> tuple[str, str]:
    """Open a batch and abandon it. Returns why a write fails, and why batches are refused; both
    empty if nothing is wrong, or if this login may record nothing.
    """
    role = log.connection.login.user
    slots = slots_of("operator" if role in {ADMIN, ""} else role)
    if not slots:
        return "", ""
    headers = {"Nats-Batch-Id": new_id(), "Nats-Batch-Sequence": "1"}
    try:
        # Empty if the batch may begin.
        sent = await log.api.send(
            slots[0].replace("*", "probe"),
            b"{}",
            headers,
            fits=lambda one: not one.data or is_ack(one),
        )
        answer = await sent
    except BrokerRefused:
        return "", ""  # a login of another name than its role
    if answer.status:  # 503
        return "the broker has no stream that takes facts at the moment.", ""
    refusal = answer.data.decode(errors="replace")
    # Other refusals (no batches, too many of them) concern batches only: facts are published one by
    # one then.
    error = ack_of(answer).error if answer.data else None
    if error is None or error.err_code != _INCOMPLETE:
        return "", refusal
    return f"the broker cannot write to its disk: {error.description}.", refusal
