"""A backup of the log: one file, made while the log is in use, and restored into an empty ledger.

The log is in it, the store of the files that facts refer to, the searches that people have saved,
and what lies beside the log in the directory of the store and does not follow from the facts
(`BESIDE`). Everything else does: after a
restore each durable consumer starts at the first fact again, and workers bring queue and deadlines
to where they were without deciding or running anything twice (docs/decisions/0032).

The broker's own snapshot of a stream (ADR-1) keeps numbers and times of the facts. The file has

    {"format": "ayes-backup-3", "config": ..., "state": ...}      one line: the stream of the log
    the snapshot                                                  as the broker sends it
    {"format": "ayes-backup-3", "config": ..., "state": ...}      the same of the store of files,
    the snapshot                                                  and of the saved searches
    {"links.key": ..., "webhooks.json": ...}                      one line: files, in base64
    {"bytes": ..., "sha256": ..., "facts": ..., "digest": ...}    the last line: the `Seal`

A file is stored before a fact refers to it, so the files of all facts are in it. `sha256` is that
of everything before the last line, so a torn or altered backup is found before anything is
restored; whoever can write the file can also write a new seal, so only a copy of `sha256` that is
kept elsewhere shows that it is the backup that was made. `digest` is the witness's over all facts,
so it is found if what was restored is not what was backed up, by whatever cause; facts have the
digests of their files. The backup is not encrypted.
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from msgspec import Struct

from ayes.consumers.notices import devices
from ayes.consumers.webhooks import endpoints as webhook_endpoints
from ayes.ledger import packs
from ayes.ledger.nats import link_key, streams
from ayes.ledger.nats.api import ApiError, NatsReply
from ayes.ledger.nats.credentials import Store, open_own
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import NatsMessage
from ayes.ledger.nats.streams import STORED, VIEWS
from ayes.ledger.subscriptions import LEDGER
from ayes.ops import tokens
from ayes.ops.actions.packing import REMOVED_AFTER
from ayes.ops.audit.digest import next_digest
from ayes.schemas import settings
from ayes.schemas.errors import BadFile, BadInput, BrokerAway, BrokerRefused
from ayes.schemas.files import move_into_place, write_atomically
from ayes.schemas.ids import new_id

_FORMAT: Final = "ayes-backup-3"
#: What is beside the log in a store: API tokens, the key of links, the settings, people's devices,
#: and webhooks with their secrets and positions.
BESIDE: Final = (
    tokens.FILE,
    link_key.FILE,
    settings.NAME,
    devices.FILE,
    webhook_endpoints.NAME,
    "webhooks.state.json",
)
#: The streams of a backup, in its order, and what is in each.
_STREAMS: Final = {LEDGER: "facts", STORED: "pieces of files", VIEWS: "people's saved views"}
#: The size of a piece of a snapshot, and how many the broker is sent without its answer.
_CHUNK: Final = 128 * 1024
_IN_FLIGHT: Final = 32
#: How long the broker may take for the next piece, and for building the stream from all of them.
_PIECE_S: Final = 60.0
_BUILD_S: Final = 3600.0
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
#: The first line of a part is never longer.
_LINE_BYTES: Final = 16 << 20
#: The last line is never longer.
_SEAL_BYTES: Final = 4096


_decoder: Final = msgspec.json.Decoder(dict[str, bytes])


class Seal(Struct, frozen=True):
    """The last line of a backup: what is in it."""

    #: Of everything before this line.
    bytes: int
    sha256: str
    #: Those in the stream of the log. Others are in packs alone (docs/decisions/0091): `packed`.
    facts: int
    last_seq: int
    #: As of the witness, over all facts.
    digest: str
    #: The size of each stream's part in bytes, its first line included; and that of the line with
    #: the files that were beside the log.
    parts: tuple[int, ...]
    #: The names of these files.
    beside: tuple[str, ...]
    packed: int = 0


class Stream(Struct, frozen=True):
    """The first line of a part: the stream, as the broker describes it."""

    config: dict[str, Any]
    state: dict[str, Any]
    format: str = _FORMAT


class Backup(Struct, frozen=True):
    """A backup that was found to be whole."""

    file: Path
    streams: tuple[Stream, ...]
    seal: Seal
    #: By name, the files that were beside the log.
    beside: dict[str, bytes]

    @property
    def log(self) -> Stream:
        return self.streams[0]

    @property
    def names(self) -> list[str]:
        """The names of its streams."""
        return [stream.config["name"] for stream in self.streams]


async def back_up(log: JetStream, file: Path, store: Store | None = None) -> Seal:
    """Write the log, as it is now, into a new file.

    Args:
        log: on an administrator's login.
        store: where the files beside it are, if they are on this machine.

    Raises:
        BadInput: there is such a file already, or no directory for it; or a file of the store
            cannot be read.
        BrokerAway: the broker stopped sending, or the log was packed meanwhile.
    """
    # Before the log, so that no position of a webhook is behind its end.
    beside = _beside(store) if store else {}
    with new_file(file) as temporary:
        sha256, parts, sizes = hashlib.sha256(), list[Stream](), list[int]()

        def write(piece: bytes) -> None:
            temporary.write(piece)
            sha256.update(piece)
            sizes[-1] += len(piece)

        for name in _STREAMS:
            if name != LEDGER and await streams.info(log.api, f"STREAM.INFO.{name}") is None:
                continue  # somebody deleted it, or this version has not set the broker up yet
            sizes.append(0)
            async with _snapshot(log, name) as (stream, pieces):
                write(msgspec.json.encode(stream) + b"\n")
                async for piece in pieces:
                    write(piece)
            if name == LEDGER:
                await _check_stayed(log, stream)
            parts.append(stream)
        sizes.append(0)
        write(msgspec.json.encode(beside) + b"\n")
        of_log = parts[0].state
        last, in_stream = of_log["last_seq"], of_log["messages"]
        digest, count = await _digest(log, last)
        seal = Seal(
            sum(sizes),
            sha256.hexdigest(),
            in_stream,
            last,
            digest,
            tuple(sizes),
            tuple(beside),
            max(count - in_stream, 0),
        )
        temporary.write(b"\n" + msgspec.json.encode(seal) + b"\n")
    return seal


def check(file: Path) -> Backup:
    """Read what is in a backup, after comparing all of it with its seal.

    Raises:
        BadFile: it is torn, altered, or no backup.
    """
    try:
        with file.open("rb") as content:
            seal = _seal(content)
            lines = [*_first_lines(content, seal)]
            beside = _decoder.decode(lines.pop())
            parts = [msgspec.json.decode(line, type=Stream) for line in lines]
            content.seek(0)
            sha256 = hashlib.sha256()
            left = seal.bytes
            while left and (piece := content.read(min(left, 1 << 20))):
                sha256.update(piece)
                left -= len(piece)
    except OSError as problem:
        raise BadInput(f"{file} cannot be read: {problem.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        raise BadFile(str(file), "", "it is torn, or not a backup of `ayes backup`.") from None
    counted = parts[0].state.get("messages"), parts[0].state.get("last_seq")
    if left or sha256.hexdigest() != seal.sha256 or counted != (seal.facts, seal.last_seq):
        raise BadFile(str(file), "", "it was altered after it was written, or is torn.")
    for stream in parts:
        if stream.format != _FORMAT:
            raise BadFile(str(file), "", f"it is a backup of another form: {stream.format}.")
    backup = Backup(file, tuple(parts), seal, beside)
    if unknown := {*beside, *backup.names} - {*BESIDE, *_STREAMS}:
        raise BadFile(str(file), "", f"it holds {', '.join(sorted(unknown))}, which is not ours.")
    return backup


async def restore(
    log: JetStream, file: Path, *, digest: str = "", store: Store | None = None
) -> Seal:
    """Make an empty ledger the one that was backed up. Its durable consumers begin anew.

    Args:
        log: on an administrator's login; no worker may run.
        digest: what the backup's SHA-256 must be or begin with.
        store: where the files beside the log go, if it is on this machine.

    Raises:
        BadInput: the file is not a whole backup or has another digest, or the ledger is not empty,
            or facts may not leave its stream and have left that of the backup.
        NewerLog: it is of a newer program.
        BrokerRefused: the broker does not take it. The ledger is empty again.
    """
    backup = await asyncio.to_thread(checked, file, digest)
    seal = backup.seal
    if store:
        _check_beside(backup, store)
    streams.check_level({"config": backup.log.config})
    names = backup.names
    parts = zip(names, backup.streams, strict=True)
    configs = [await _room_for(log, name, stream) for name, stream in parts]
    _check_same_level(backup, configs[0])
    for name in names:
        await log.api.call(f"STREAM.DELETE.{name}")
    try:
        # The log comes last: when it is there, its files are.
        for part, name in reversed(tuple(enumerate(names))):
            await _send(log, backup, part, name, configs[part])
        await _compare(log, file, seal)
    except BaseException:
        await _empty(log, configs[0])
        raise
    await streams.ensure(log.api, replicas=configs[0]["num_replicas"])
    if store:
        put_beside(backup, store)
    return seal


def checked(file: Path, digest: str) -> Backup:
    """As `check`; and its SHA-256 begins with this."""
    backup = check(file)
    if not backup.seal.sha256.startswith(digest):
        raise BadInput(
            f"{file} has the digest {backup.seal.sha256}, not {digest}. It is another backup."
        )
    return backup


def put_beside(backup: Backup, store: Store) -> None:
    """Put the files that were beside the log into a store. API tokens join those that are there.

    Raises:
        BadInput: the store has other webhooks or settings.
    """
    _check_beside(backup, store)
    for name, content in backup.beside.items():
        if name == tokens.FILE:
            tokens.AccessFile(store).take_over(content)
        else:
            write_atomically(store.path / name, content)


def _check_beside(backup: Backup, store: Store) -> None:
    # A key that is there is that of an empty ledger: nobody has a link that was made with it.
    for name in backup.beside.keys() - {tokens.FILE, link_key.FILE}:
        file = store.path / name
        if file.exists() and _read(file) != backup.beside[name]:
            raise BadInput(f"{file} is there already, and is another. Move it away first.")


def _beside(store: Store) -> dict[str, bytes]:
    files = [store.path / name for name in BESIDE]
    return {file.name: _read(file) for file in files if file.exists()}


def _read(file: Path) -> bytes:
    try:
        with os.fdopen(open_own(file, os.O_RDONLY), "rb") as content:
            return content.read()
    except OSError as problem:
        raise BadInput(f"{file} cannot be read: {problem.strerror}.") from None


async def _room_for(log: JetStream, name: str, stream: Stream) -> dict[str, Any]:
    """The configuration of the empty stream that is there, which the restored one gets."""
    there = await streams.info(log.api, f"STREAM.INFO.{name}")
    if there is None:
        raise BrokerRefused(
            f"this broker has no ledger (no stream {name}). `ayes up` or `ayes setup` creates it."
        )
    if held := there["state"]["last_seq"]:
        raise BadInput(
            f"this ledger holds {held:,} {_STREAMS[name]}, and a backup is restored into an empty "
            "one only. Name a new directory with --store, in which `ayes up --workers none` runs."
        )
    if at_work := await _at_work(log):
        raise BadInput(
            f"workers listen to this ledger: {', '.join(at_work)}. Stop them, so that they do not "
            "act on what is restored before you have looked at it."
        )
    config: dict[str, Any] = there["config"]
    if 0 < config["max_bytes"] < stream.state["bytes"]:
        raise BadInput(
            f"{name} in the backup has {stream.state['bytes']:,} bytes, and this ledger has room "
            f"for {config['max_bytes']:,}. Give it more: `ayes setup --max-bytes`."
        )
    return config


def _check_same_level(backup: Backup, config: dict[str, Any]) -> None:
    """Refuse a backup with packs for a ledger whose programs do not look for any."""
    level, here = (streams.level_of({"config": one}) for one in (backup.log.config, config))
    if streams.is_packed({"config": backup.log.config}) and level != here:
        raise BadInput(
            f"{backup.file} is of a log of level {level}, and this ledger is of level {here}. "
            f"Restore it into an empty ledger of level {level} (docs/packing.md)."
        )


async def _at_work(log: JetStream) -> list[str]:
    """The durable consumers of the log that a worker listens to."""
    known = streams.declared(await streams.info(log.api, f"STREAM.INFO.{LEDGER}"))
    names = [one.name for one in known.values() if one.stream == LEDGER]
    found = [await streams.info(log.api, f"CONSUMER.INFO.{LEDGER}.{name}") for name in names]
    return [one["name"] for one in found if one and one.get("push_bound")]


async def _empty(log: JetStream, config: dict[str, Any]) -> None:
    """Make the ledger empty again, after a restore that failed, with this configuration of its log.

    nats-server 2.15 moves the files of a deleted stream aside and removes them later. While those
    of an earlier deletion are there it moves nothing, and the next stream of that name has them.
    """

    async def holds(name: str) -> bool:
        there = await streams.info(log.api, f"STREAM.INFO.{name}")
        return bool(there and there["state"]["last_seq"])

    async with asyncio.timeout(_PIECE_S):
        while True:
            for name in _STREAMS:
                with suppress(ApiError):  # there is none
                    await log.api.call(f"STREAM.DELETE.{name}")
            with suppress(streams.NoRoom):  # nodes learn later that it is free again
                await streams.fitting(log.api, f"STREAM.CREATE.{LEDGER}", config, exactly=True)
                await streams.ensure(log.api, replicas=config["num_replicas"])
                if not any([await holds(name) for name in _STREAMS]):
                    return
            await asyncio.sleep(0.2)


# --------------------------------------------------------------------------------------- the broker


@asynccontextmanager
async def _snapshot(
    log: JetStream, name: str
) -> AsyncGenerator[tuple[Stream, AsyncGenerator[bytes]]]:
    """A stream, and the pieces of its snapshot; each is acknowledged once it is consumed."""
    inbox = f"{log.connection.inbox}.backup.{new_id()}"
    arrived: asyncio.Queue[NatsMessage] = asyncio.Queue()
    body = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": _CHUNK, "jsck": True}

    async def pieces() -> AsyncGenerator[bytes]:
        while True:
            try:
                async with asyncio.timeout(_PIECE_S):
                    _, reply, data, head = await arrived.get()
            except TimeoutError:
                raise BrokerAway("the broker stopped sending the snapshot. Try again.") from None
            if not data:  # the end
                status = NatsReply(data, head).status
                if status not in {b"", b"204"}:
                    raise BrokerAway(f"the broker broke off the snapshot: {head!r}. Try again.")
                return
            yield data
            if reply:
                await log.api.tell(reply.decode(), b"")

    async with log.api.straight(inbox, arrived.put_nowait), aclosing(pieces()) as each:
        answer = await log.api.call(f"STREAM.SNAPSHOT.{name}", body)
        yield Stream(answer["config"], answer["state"]), each


async def _check_stayed(log: JetStream, stream: Stream) -> None:
    """Refuse a snapshot that was sent for so long that facts may have left the stream before they
    were in it: they are in packs behind its end.
    """
    after = stream.state["last_seq"] + 1
    pack = await log.leaders_message(LEDGER, seq=after, next_by_subj=packs.EVERY)
    if pack is not None and await log.clock() - pack.recorded_at >= REMOVED_AFTER:
        raise BrokerAway(
            "facts may have left the log while it was backed up, as it was packed meanwhile. "
            "Nothing was written; do it again while nobody packs it."
        )


async def _send(
    log: JetStream, backup: Backup, part: int, name: str, config: dict[str, Any]
) -> None:
    """Have the broker make a stream from its snapshot in the backup."""
    sizes = backup.seal.parts
    body = {"config": config, "state": backup.streams[part].state}
    to = (await log.api.call(f"STREAM.RESTORE.{name}", body))["deliver_subject"]
    sent: deque[asyncio.Future[NatsReply]] = deque()

    async def answered(within_s: float) -> None:
        async with asyncio.timeout(within_s):
            reply = await sent.popleft()
        if reply.data and (error := msgspec.json.decode(reply.data).get("error")):
            raise ApiError(f"STREAM.RESTORE.{name}", error)

    try:
        with backup.file.open("rb") as content:
            content.seek(sum(sizes[:part]))
            left = sizes[part] - len(content.readline())
            while left:
                piece = content.read(min(left, _CHUNK))
                left -= len(piece)
                sent.append(await log.api.send(to, piece))
                if len(sent) == _IN_FLIGHT:
                    await answered(_PIECE_S)
        while sent:
            await answered(_PIECE_S)
        sent.append(await log.api.send(to, b""))
        await answered(_BUILD_S)
    except TimeoutError:
        raise BrokerAway("the broker stopped taking the backup. Nothing was restored.") from None


async def _compare(log: JetStream, file: Path, seal: Seal) -> None:
    digest, _ = await _digest(log, seal.last_seq)
    if digest != seal.digest:
        raise BrokerRefused(
            f"the log that the broker made of {file} is not the one that was backed up: its digest "
            f"is {digest or 'that of nothing'}, not {seal.digest}. Nothing was restored."
        )


async def _digest(log: JetStream, last: int) -> tuple[str, int]:
    """The witness's digest of the facts up to this number, and how many they are."""
    digest, count = "", 0
    async with aclosing(log.scan_leader(1)) as pages:
        async for page in pages:
            for raw in page:
                if raw.seq <= last:
                    digest, count = next_digest(digest, raw), count + 1
            if page[-1].seq >= last:
                break
    return digest, count


# ----------------------------------------------------------------------------------------- the file


@contextmanager
def new_file(file: Path) -> Iterator[IO[bytes]]:
    """A private file, which gets its name when it is whole and on disk."""
    if file.exists():
        raise BadInput(f"{file} exists already. Name a new file.")
    temporary = file.with_name(f".{file.name}-{new_id()}")
    try:
        with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as content:
            yield content
        move_into_place(temporary, file)
    except OSError as problem:
        if problem.errno is None:  # a time-out
            raise
        raise BadInput(f"{file} cannot be written: {problem.strerror}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _first_lines(content: IO[bytes], seal: Seal) -> Iterator[bytes]:
    """The first line of each part."""
    sizes = seal.parts
    if sum(sizes) != seal.bytes or not 2 <= len(sizes) <= len(_STREAMS) + 1:
        raise ValueError("the parts are not the whole")
    begins = 0
    for size in sizes:
        content.seek(begins)
        yield content.readline(_LINE_BYTES)
        begins += size


def _seal(content: IO[bytes]) -> Seal:
    size = content.seek(0, 2)
    content.seek(max(0, size - _SEAL_BYTES))
    end = content.read()
    if not end.endswith(b"}\n"):
        raise ValueError("the last line is missing")
    line = end[:-1].rpartition(b"\n")[2]
    seal = msgspec.json.decode(line, type=Seal)
    if seal.bytes != size - len(line) - 2:
        raise ValueError("something is missing in between")
    return seal
