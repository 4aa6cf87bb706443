"""A witness of the log, kept outside of its store: it detects a log that was cut or replaced.

The broker drops a fact whose bytes were changed on disk, and all later ones, without an error; a
store may also be replaced by an older copy. Then slots are free again whose facts had effects: the
same payment would be approved and made twice. So a process that runs a gate on a store keeps the
number of the last fact and a running digest of all facts up to it in the user's state directory,
and starts no worker on a log that does not lead to the same digest (decision 0021).

    digest of fact n = SHA-256(digest of fact n-1, n, the broker's time,
                               length of the subject, subject, payload)

At each start the last 10,000 to 20,000 facts are read again; `ayes doctor --deep` reads the whole
log. This is no protection against a person who may write both the store and this file.
"""

import asyncio
import hashlib
import os
import struct
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from platformdirs import user_state_path

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas.errors import BrokerRefused, Unavailable
from ayes.schemas.files import write_atomically
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.broker.witness")

#: Facts between two checkpoints; the last two checkpoints are kept.
CHECKPOINT: Final = 10_000
#: The interval at which new facts are read and the state is saved.
EVERY_S: Final = 5.0
#: How long the last look may take, since stopping a worker waits for it.
_LAST_LOOK_S: Final = 2.0
#: How long a node may take to learn that it is not the leader any more: nats-server looks every
#: 10 s whether it still has a majority (`lostQuorumInterval` in server/raft.go).
_DEPOSED_S: Final = 20.0
#: Facts between two saves, if many are new.
_SAVE_EVERY: Final = 100_000


class Seen(Struct, frozen=True):
    """The state of a store's log when it was last seen."""

    #: For people who read the file.
    store: str
    #: When the broker created the stream: one that was created again is another log.
    created: str = ""
    seq: int = 0
    recorded_at: datetime | None = None
    digest: str = ""
    #: The digest at earlier facts, oldest first: where a comparison may begin.
    checkpoints: tuple[tuple[int, str], ...] = ()

    def add(self, raw: RawMessage) -> "Seen":
        digest = next_digest(self.digest, raw)
        checkpoints = self.checkpoints
        if raw.seq // CHECKPOINT > self.seq // CHECKPOINT:
            checkpoints = (*checkpoints[-1:], (raw.seq, digest))
        return Seen(self.store, self.created, raw.seq, raw.recorded_at, digest, checkpoints)

    @property
    def begin(self) -> tuple[int, str]:
        """The checkpoint after which the log is compared: a fact, and its digest."""
        return self.checkpoints[0] if len(self.checkpoints) > 1 else (0, "")


def next_digest(digest: str, raw: RawMessage) -> str:
    subject = raw.subject.encode(errors="surrogateescape")
    at = int(raw.recorded_at.timestamp() * 1_000_000)
    head = struct.pack(">QqI", raw.seq, at, len(subject))
    return hashlib.sha256(bytes.fromhex(digest) + head + subject + raw.data).hexdigest()


def file_of(store: Store) -> Path:
    """The store's file in `$XDG_STATE_HOME/approval-ledger/witness` or its equivalent."""
    name = hashlib.sha256(os.fsencode(store.path.resolve())).hexdigest()[:24]
    return user_state_path("approval-ledger") / "witness" / f"{name}.json"


class Distrusted(Unavailable):
    """The log is not what it was, or nobody can say: trying again does not help."""

    exit_code = 1


def load(store: Store) -> Seen | None:
    """The state of this store's log when it was last seen, if it ever was.

    Raises:
        Distrusted: the file cannot be read.
    """
    file = file_of(store)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Seen)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as problem:
        raise Distrusted(
            f"the witness of the log in {store.path} cannot be read: {file}: {problem}. Restore a "
            "copy of that file, or continue deliberately with --accept-log."
        ) from None


def save(store: Store, seen: Seen) -> None:
    """Write the state, unless another process has seen more of the same log."""
    with suppress(Unavailable):
        other = load(store)
        if other is not None and other.created == seen.created and other.seq > seen.seq:
            return
    file = file_of(store)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.format(msgspec.json.encode(seen)))


def forget(store: Store) -> None:
    """Start again: the operator of this store says that its log is the right one."""
    file_of(store).unlink(missing_ok=True)


async def difference(log: JetStream, store: Store, *, deep: bool = False) -> str | None:
    """How the log differs from its witness, as half a sentence; `None` if it does not.

    Args:
        deep: compare the whole log, and not only its end.

    Raises:
        Distrusted: the witness cannot be read.
    """
    seen = load(store)
    if seen is None or seen.seq == 0:
        return None
    stream = await _stream(log, seen.seq)
    last = (
        f"fact {seen.seq:,}, recorded at {seen.recorded_at:%Y-%m-%d %H:%M:%S} UTC, was seen before"
    )
    if stream is None:
        return f"there is no log, and {last}"
    if stream["created"] != seen.created:
        return f"the log was created again at {stream['created']}, and {last}"
    if stream["state"]["last_seq"] < seen.seq:
        return f"the log ends at fact {stream['state']['last_seq']:,}, and {last}"
    begin, digest = (0, "") if deep else seen.begin
    checkpoints = dict(seen.checkpoints)
    async with aclosing(log.scan(begin + 1)) as pages:
        async for page in pages:
            for raw in page:
                if raw.seq > seen.seq:
                    break
                digest = next_digest(digest, raw)
                if checkpoints.get(raw.seq, digest) != digest:
                    return f"the facts up to {raw.seq:,} are not those that were seen before"
            if page[-1].seq >= seen.seq:
                break
    if digest == seen.digest:
        return None
    return f"the facts {begin + 1:,} to {seen.seq:,} are not those that were seen before"


async def _stream(log: JetStream, seen: int) -> dict[str, Any] | None:
    """What the leader says of the log; `None` if there is none.

    A node that was paused or cut off while another became the leader answers for the log as it had
    it, until it learns of that. So in a cluster an end before fact `seen` is believed if it stays.
    """
    until = time.monotonic() + _DEPOSED_S
    while True:
        stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
        is_behind = stream is not None and stream["state"]["last_seq"] < seen
        replicated = stream is not None and stream.get("cluster", {}).get("replicas")
        if not (is_behind and replicated) or time.monotonic() >= until:
            return stream
        await asyncio.sleep(0.5)


async def check(store: Store, *, accept: bool) -> None:
    """Refuse a log that differs from its witness.

    Args:
        accept: accept the log as it is, and start the witness again.

    Raises:
        Distrusted: the log is shorter, or differs.
    """
    if accept:
        forget(store)
        return
    if (problem := await _connected_difference(store)) is not None:
        raise Distrusted(
            f"the log in {store.path} is not what it was: {problem}. No worker starts on it, since "
            "a payment could be made again. Restore the right log; or look at it with "
            "`ayes up --workers none`, and continue deliberately with --accept-log."
        )


async def tell(store: Store) -> None:
    """Log an error if the log differs from its witness. For a process that starts no worker."""
    if (problem := await _connected_difference(store)) is not None:
        _log.error("the log is not what it was", store=str(store.path), problem=problem)


async def _connected_difference(store: Store) -> str | None:
    async with JetStream.connect(store.path, role="observer") as log:
        return await difference(log, store)


class Watched(Struct, frozen=True):
    """A log with a witness, or (by default) one without."""

    #: Called with the facts that this process receives anyway, so that they are not read again.
    hear: Callable[[list[RawMessage]], None] = lambda _facts: None
    #: Tasks that fail if the log becomes shorter meanwhile.
    ends: tuple[asyncio.Task[None], ...] = ()


@asynccontextmanager
async def keeping(store: Store) -> AsyncGenerator[Watched]:
    """Keep the witness up to date for as long as the block lasts, and at its end."""
    async with JetStream.connect(store.path, role="observer") as log:
        keeper = _Keeper(log, store)
        task = asyncio.create_task(keeper.run(), name="witness")
        try:
            yield Watched(keeper.hear, (task,))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with suppress(Unavailable, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_LOOK_S):
                    await keeper.look()


class _Keeper:
    def __init__(self, log: JetStream, store: Store) -> None:
        self._log = log
        self._store = store
        self._seen = load(store) or Seen(str(store.path))
        #: The last fact that is in the file.
        self._saved = self._seen.seq

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except (BrokerRefused, OSError) as problem:
                _log.warning("the witness of the log cannot be saved", problem=str(problem))
            except _Shorter:
                raise
            except Unavailable as problem:
                _log.debug("the log cannot be read now", problem=str(problem))
            await asyncio.sleep(EVERY_S)

    def hear(self, facts: list[RawMessage]) -> None:
        """Add the facts that come next; others are read by the next look."""
        for raw in facts:
            if raw.seq == self._seen.seq + 1:
                self._seen = self._seen.add(raw)

    async def look(self) -> None:
        """Read the facts that were not received yet, and save the state."""
        before = self._seen.seq  # while the broker answers, more may be received
        stream = await _stream(self._log, before)
        last = stream["state"]["last_seq"] if stream else 0
        if last < before or (stream and self._seen.created not in {"", stream["created"]}):
            raise _Shorter(
                f"the log in {self._store.path} ends at fact {last:,}, and fact {before:,} was "
                "seen in it before. It has lost its end while the gate was running; start this "
                "again."
            )
        if stream is None or last == self._saved:
            return
        self._seen = msgspec.structs.replace(self._seen, created=stream["created"])
        if self._seen.seq < last:
            async with aclosing(self._log.scan(self._seen.seq + 1)) as pages:
                async for page in pages:
                    for raw in page:  # in order, but `hear` may have added some meanwhile
                        if raw.seq > self._seen.seq:
                            self._seen = self._seen.add(raw)
                    if self._seen.seq - self._saved >= _SAVE_EVERY:
                        self._save()
        self._save()

    def _save(self) -> None:
        save(self._store, self._seen)
        self._saved = self._seen.seq


class _Shorter(Distrusted):
    """The log has lost facts while the process was running."""
