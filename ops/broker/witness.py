"""What was seen of a log, kept outside of its store: so a log that is shorter or other than it was
is noticed.

The broker drops a fact whose bytes were changed on disk, and all behind it, without a word; a
store may also be replaced by an older copy. Then slots are free again whose facts had effects: the
same payment would be approved and made twice. So a process that runs a gate on a store keeps the
number of the last fact and a running digest of all facts up to it in the user's state directory,
and starts no worker on a log that does not lead to the same digest (decision 0021).

    digest of fact n = SHA-256(digest of fact n-1, n, the broker's time,
                               length of the subject, subject, payload)

At each start the last 10,000 to 20,000 facts are read again, the whole log by
`ayes doctor --deep`. Nothing is proved against somebody who may write both the store and this
file.
"""

import asyncio
import hashlib
import os
import struct
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from platformdirs import user_state_path

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas.errors import BrokerRefused, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.broker.witness")

#: At each multiple of it the digest is kept; the last two of them are.
CHECKPOINT: Final = 10_000
#: How often what is new is read, and what was seen is saved.
EVERY_S: Final = 5.0
#: How long the last look may take: whoever stops a worker waits for it.
_LAST_LOOK_S: Final = 2.0
#: How many facts are read before they are saved, where much is new.
_SAVED_EACH: Final = 100_000


class Seen(Struct, frozen=True):
    """What was seen of the log of a store."""

    #: For people who look at the file.
    store: str
    #: When the broker created the stream. One that was created anew is another log.
    created: str = ""
    seq: int = 0
    recorded_at: datetime | None = None
    digest: str = ""
    #: The digest at earlier facts, oldest first: where a comparison may begin.
    checkpoints: tuple[tuple[int, str], ...] = ()

    def add(self, raw: RawMessage) -> "Seen":
        digest = _next(self.digest, raw)
        checkpoints = self.checkpoints
        if raw.seq // CHECKPOINT > self.seq // CHECKPOINT:
            checkpoints = (*checkpoints[-1:], (raw.seq, digest))
        return Seen(self.store, self.created, raw.seq, raw.recorded_at, digest, checkpoints)

    @property
    def begin(self) -> tuple[int, str]:
        """From which fact on, and after which digest, the end of the log is compared."""
        return self.checkpoints[0] if len(self.checkpoints) > 1 else (0, "")


def _next(digest: str, raw: RawMessage) -> str:
    subject = raw.subject.encode(errors="surrogateescape")
    at = int(raw.recorded_at.timestamp() * 1_000_000)
    head = struct.pack(">QqI", raw.seq, at, len(subject))
    return hashlib.sha256(bytes.fromhex(digest) + head + subject + raw.data).hexdigest()


def file_of(store: Store) -> Path:
    """`$XDG_STATE_HOME/approval-ledger/witness` or its like: one file for each store."""
    name = hashlib.sha256(os.fsencode(store.path.resolve())).hexdigest()[:24]
    return user_state_path("approval-ledger") / "witness" / f"{name}.json"


def load(store: Store) -> Seen | None:
    """What was seen of this store's log; None when nobody looked.

    Raises:
        Unavailable: the file cannot be read.
    """
    file = file_of(store)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Seen)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as problem:
        raise Unavailable(
            f"what was seen of the log in {store.path} cannot be read: {file}: {problem}. Put a "
            "copy of that file back, or "
            "go on deliberately with --accept-log."
        ) from None


def save(store: Store, seen: Seen) -> None:
    """Keep it, whole or not at all; never less than another process keeps of the same log."""
    with suppress(Unavailable):
        other = load(store)
        if other is not None and other.created == seen.created and other.seq > seen.seq:
            return
    _write(file_of(store), msgspec.json.format(msgspec.json.encode(seen)))


def forget(store: Store) -> None:
    """Begin anew: whoever runs this store says that its log is the right one."""
    file_of(store).unlink(missing_ok=True)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(content)
        Path(beside).replace(file)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


async def difference(log: JetStream, store: Store, *, deep: bool = False) -> str | None:
    """How the log differs from what was seen of it, as half a sentence; None where it does not.

    Args:
        deep: compare all of it, and not only its end.

    Raises:
        Unavailable: what was seen cannot be read.
    """
    seen = load(store)
    if seen is None or seen.seq == 0:
        return None
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    last = (
        f"fact {seen.seq:,}, recorded at {seen.recorded_at:%Y-%m-%d %H:%M:%S} UTC, was seen before"
    )
    if stream is None:
        return f"there is no log, and {last}"
    if stream["created"] != seen.created:
        return f"the log was created anew at {stream['created']}, and {last}"
    if stream["state"]["last_seq"] < seen.seq:
        return f"the log ends at fact {stream['state']['last_seq']:,}, and {last}"
    begin, digest = (0, "") if deep else seen.begin
    checkpoints = dict(seen.checkpoints)
    async with aclosing(log.scan(begin + 1)) as pages:
        async for page in pages:
            for raw in page:
                if raw.seq > seen.seq:
                    break
                digest = _next(digest, raw)
                if checkpoints.get(raw.seq, digest) != digest:
                    return f"the facts up to {raw.seq:,} are not those that were seen before"
            if page[-1].seq >= seen.seq:
                break
    return (
        None
        if digest == seen.digest
        else f"the facts {begin + 1:,} to {seen.seq:,} are not those that were seen before"
    )


async def check(store: Store, *, accept: bool) -> None:
    """Refuse a log that is not what was seen of it.

    Args:
        accept: take it as it is from now on.

    Raises:
        Unavailable: it is shorter, or differs.
    """
    if accept:
        forget(store)
        return
    async with JetStream.connect(store.path, role="observer") as log:
        problem = await difference(log, store)
    if problem is not None:
        raise Unavailable(
            f"the log in {store.path} is not what it was: {problem}. No worker starts on it, "
            "since what was paid could "
            "be paid again. Put the right log back; or look at it with `ayes up --workers none`, "
            "and go on "
            "deliberately with --accept-log."
        )


async def tell(store: Store) -> None:
    """Log an error where the log is not what was seen of it, and go on: no worker starts."""
    async with JetStream.connect(store.path, role="observer") as log:
        problem = await difference(log, store)
    if problem is not None:
        _log.error("the log is not what it was", store=str(store.path), problem=problem)


class Watched(Struct, frozen=True):
    """A log that is being looked at, or (by default) one that is not."""

    #: To be told of the facts that this process hears of anyway, so that they need not be read
    #: again.
    hear: Callable[[list[RawMessage]], None] = lambda _facts: None
    #: Tasks that fail when the log becomes shorter meanwhile.
    ends: tuple[asyncio.Task[None], ...] = ()


@asynccontextmanager
async def keeping(store: Store) -> AsyncGenerator[Watched]:
    """Keep what is seen of the log for as long as the block does, and at its end."""
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
                _log.warning("what was seen of the log is not kept", problem=str(problem))
            except _Shorter:
                raise
            except Unavailable as problem:
                _log.debug("the log cannot be looked at now", problem=str(problem))
            await asyncio.sleep(EVERY_S)

    def hear(self, facts: list[RawMessage]) -> None:
        """Take the facts that come next; any other is left to the next look."""
        for raw in facts:
            if raw.seq == self._seen.seq + 1:
                self._seen = self._seen.add(raw)

    async def look(self) -> None:
        """Read what is new and was not heard of, and save it all."""
        before = self._seen.seq  # while the broker answers, more may be heard of
        stream = await info(self._log.api, f"STREAM.INFO.{LEDGER}")
        last = stream["state"]["last_seq"] if stream else 0
        if last < before or (stream and self._seen.created not in {"", stream["created"]}):
            raise _Shorter(
                f"the log in {self._store.path} ends at fact {last:,}, and fact {before:,} was "
                "seen in it before. "
                "It has lost its end while the gate was running; start this again."
            )
        if stream is None or last == self._saved:
            return
        self._seen = msgspec.structs.replace(self._seen, created=stream["created"])
        if self._seen.seq < last:
            async with aclosing(self._log.scan(self._seen.seq + 1)) as pages:
                async for page in pages:
                    self._read(page)
                    if self._seen.seq - self._saved >= _SAVED_EACH:
                        self._save()
        self._save()

    def _read(self, page: list[RawMessage]) -> None:
        """Take a page of the log, which leaves nothing out, but for what was heard of while it was
        read.
        """
        for raw in page:
            if raw.seq > self._seen.seq:
                self._seen = self._seen.add(raw)

    def _save(self) -> None:
        save(self._store, self._seen)
        self._saved = self._seen.seq


class _Shorter(Unavailable):
    """The log lost facts while it was looked at."""
