"""The copier: it follows a sealed log and puts what is sealed into a bucket, once and for years.

    log/000000000001-000000000100          these facts, as lines of an export
    checkpoint/000000000001-000000000100   a checkpoint that covers them, with the proof of that: a
                                           request of c2sp.org/tlog-witness has both

A segment ends at each 100th fact, and before a fact that was recorded an hour after its first one.
So its bounds follow from the log alone, and the last one waits an hour at most. What is in the
bucket says where to go on: a copier that was killed, and a second one, put the same objects.

The copy has facts and signatures of the log, and neither keys nor logins.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import batched, islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile, TemporaryFile
from time import sleep
from typing import IO, Final, NamedTuple, Self

from ayes.consumers.supervision import beside, keep_running
from ayes.ledger import clock
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import MerkleTree, Proofs, VerifierKey, is_consistent, leaf_hash
from ayes.ops.audit.backup import new_file
from ayes.ops.sealing.bucket import CopySettings, LockedBucket, StoredObject
from ayes.ops.sealing.cosigning import parsed_request, request_of
from ayes.ops.sealing.exports import fact_of_line, head, line
from ayes.ops.sealing.files import SealFiles, opened, read_key
from ayes.ops.sealing.sealer import whole_log
from ayes.schemas.errors import BadFile, BadInput, Distrusted, LogDamaged, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.sealing.copier")

#: The facts of a whole segment.
SIZE: Final = 100
#: How long a segment waits for further facts; and then for those of that time to be sealed.
WAITS: Final = timedelta(hours=1)
_SEALED_BY_THEN: Final = timedelta(minutes=1)
#: How often the copier looks for more that is sealed.
EVERY_S: Final = 1.0
#: Of a segment, so many facts are read at once, and so many bytes are kept in memory.
_AT_ONCE: Final = 16
_IN_MEMORY: Final = 1 << 20
#: More lines than a checkpoint with its proof and the signatures of witnesses has.
_MAX_REQUEST: Final = 1000
#: The pauses of a rebuild before what failed is read again.
_PAUSES_S: Final = (1.0, 10.0, 60.0)
_FACTS: Final = "log/"
_CHECKPOINTS: Final = "checkpoint/"


class CopiedSegment(NamedTuple):
    """The facts of an object, by their numbers."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first:012}-{self.last:012}"

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """None: it is not the key of a segment."""
        found = re.fullmatch(f"{_FACTS}([0-9]{{12,18}})-([0-9]{{12,18}})", key)
        one = cls(int(found[1]), int(found[2])) if found else None
        is_one = one and 0 < one.first <= one.last <= _end(one.first) and key == _FACTS + one.name
        return one if is_one else None


def _end(first: int) -> int:
    """The last fact that a segment can have."""
    return first + SIZE - 1 - (first - 1) % SIZE


def _segments(found: Mapping[str, StoredObject]) -> list[CopiedSegment]:
    """In the order of their facts."""
    return sorted(filter(None, map(CopiedSegment.parse, found)))


@asynccontextmanager
async def copying(
    kinds: Collection[str],
    settings: CopySettings | None,
    *,
    store: Path | str | None = None,
    url: str | None = None,
) -> AsyncGenerator[None]:
    """Copy the log during the block, if these workers are to. The others go on if it fails.

    Raises:
        BadInput: the log of the store is not sealed, the bucket has no Object Lock or refuses, or
            the login reads some workspaces alone.
    """
    if "copier" not in kinds or settings is None:
        yield
        return
    key, files = read_key(Store(store)).public, SealFiles(Store(store))
    bucket = await asyncio.to_thread(LockedBucket, settings.url)
    with suppress(Unavailable):  # it may be away, as it may be later
        await asyncio.to_thread(bucket.check)
    async with whole_log("copier", store, url) as log:
        copier = Copier(log, files, key, bucket, settings.retention_s)
        async with beside(keep_running("copier", copier.run, ends=())):
            yield


class Copier:
    def __init__(
        self,
        log: JetStream,
        files: SealFiles,
        key: VerifierKey,
        bucket: LockedBucket,
        retention_s: float,
    ) -> None:
        self._log, self._files, self._key = log, files, key
        self._bucket, self._retention_s = bucket, retention_s
        #: The facts that are copied, as far as is known.
        self.copied = 0

    async def run(self) -> None:
        await self.begin()
        while True:
            if not await self.copy_next():
                await asyncio.sleep(EVERY_S)

    async def begin(self) -> None:
        """Find out what is copied.

        Raises:
            BadInput: the bucket has no Object Lock, or has the copy of another log.
            Distrusted: what is copied is not what is sealed.
        """
        if self._files.copied() is None:  # from now on `doctor` looks at it
            await asyncio.to_thread(self._files.set_copied, 0)
        await asyncio.to_thread(self._bucket.check)
        last = None
        self.copied, found = await asyncio.to_thread(self._found)
        for one in found:
            if one.first <= self.copied + 1 and one.last > self.copied:
                self.copied, last = one.last, one
        if last is not None:
            sealed = self._files.checkpoint(self._key)
            if sealed is None or sealed.size < last.last:
                size = sealed.size if sealed else 0
                raise Distrusted(
                    f"{self._bucket.url} has {last.last:,} facts, and {size:,} are sealed: the log "
                    "was cut, or its seal was lost."
                )
            await asyncio.to_thread(
                self._check_covered, last, MerkleTree(last.last, self._files.tile)
            )
        await asyncio.to_thread(self._files.set_copied, self.copied)

    def _found(self) -> tuple[int, list[CopiedSegment]]:
        """How many facts are copied without these segments. They begin with the last one that is
        known of, since there may be millions before it; without it, all of them are listed.
        """
        if known := self._files.copied():
            # The one before too: some storages take a marker for the key of an object.
            after = f"{_FACTS}{max(known - 2 * SIZE, 0):012}"
            found = _segments(self._bucket.stored(_FACTS, after))
            for at, one in enumerate(found):
                if one.last == known:
                    return one.first - 1, found[at:]
        return 0, _segments(self._bucket.stored(_FACTS))

    async def copy_next(self) -> bool:
        """Copy the next segment. False: it is not complete, or not sealed."""
        note = self._files.note()  # before the log is read, which may grow meanwhile
        sealed = opened(str(self._files.file), note, self._key) if note else None
        first = self.copied + 1
        if sealed is None or sealed.size < first:
            return False
        begun = await self._log.at(first)
        if begun is None:
            raise LogDamaged(f"fact {first:,} cannot be read")
        is_due = clock.now() >= begun.recorded_at + WAITS + _SEALED_BY_THEN
        if not is_due and sealed.size < _end(first):
            return False
        with SpooledTemporaryFile(_IN_MEMORY, dir=str(self._files.folder)) as content:
            hashes = await self._read(begun, min(_end(first), sealed.size), content)
            segment = CopiedSegment(first, first + len(hashes) - 1)
            tree = MerkleTree(self.copied, self._files.tile)
            tree.add(hashes)
            proof = await asyncio.to_thread(
                Proofs(sealed.size, self._files.tile).consistency, tree.size
            )
            if not is_consistent(tree.size, tree.root(), sealed.size, sealed.root, proof):
                raise Distrusted(
                    f"the facts {first:,} to {segment.last:,} are not those that were sealed, so "
                    "they are not copied. `ayes verify` says which."
                )
            request = BytesIO(request_of(tree.size, proof, note))
            # The checkpoint first: what has the facts is copied.
            if not await self._put(_CHECKPOINTS + segment.name, request):
                await asyncio.to_thread(self._check_covered, segment, tree)
            if not await self._put(_FACTS + segment.name, content):
                await asyncio.to_thread(self._check_same, segment, content)
        self.copied = segment.last
        await asyncio.to_thread(self._files.set_copied, self.copied)
        return True

    async def _read(self, begun: RawMessage, last: int, content: IO[bytes]) -> list[bytes]:
        """Write the facts of the segment that begins with this one, as the leader has them; the
        hashes of their leaves.
        """
        hashes, until = list[bytes](), begun.recorded_at + WAITS
        for some in batched(range(begun.seq, last + 1), _AT_ONCE, strict=False):
            found = await asyncio.gather(*map(self._log.at, some))
            for seq, raw in zip(some, found, strict=True):
                if raw is None:
                    raise LogDamaged(f"fact {seq:,} cannot be read")
                if raw.recorded_at >= until:
                    return hashes
                content.write(line(raw))
                hashes.append(leaf_hash(raw.leaf))
        return hashes

    async def _put(self, key: str, content: IO[bytes]) -> bool:
        return await asyncio.to_thread(
            self._bucket.put_once, key, content, _digest(content), self._retention_s
        )

    def _check_covered(self, segment: CopiedSegment, tree: MerkleTree) -> None:
        """Check that a checkpoint is there and covers the facts of the tree.

        Raises:
            BadFile: it is that of another log, or covers others.
        """
        key = _CHECKPOINTS + segment.name
        _vouched(self._bucket, self._bucket.stored(key).get(key), key, self._key, tree)

    def _check_same(self, segment: CopiedSegment, content: IO[bytes]) -> None:
        key = _FACTS + segment.name

        def digest(version: str) -> bytes:
            there = sha256()
            for some in self._bucket.lines(key, version):
                there.update(some)
            return there.digest()

        if (there := self._bucket.stored(key).get(key)) is None:
            raise Unavailable(f"{self._bucket.where(key)}: it is there, and not listed yet.")
        if _digest(content) not in map(digest, there.versions):
            raise Distrusted(f"{self._bucket.where(key)} has others than the facts of this log.")


def _digest(content: IO[bytes]) -> bytes:
    """The SHA-256 of a file, which is at its beginning afterwards."""
    content.seek(0)
    found = sha256()
    while some := content.read(_IN_MEMORY):
        found.update(some)
    content.seek(0)
    return found.digest()


def _first_good[T](versions: Iterable[str], read: Callable[[str], T]) -> T:
    """What is read of the oldest version that is not somebody else's.

    Raises:
        BadFile: there is none; why the oldest one is not.
    """
    problems = list[BadFile]()
    for version in versions:
        try:
            return read(version)
        except BadFile as problem:
            problems.append(problem)
    raise problems[0]


def _vouched(
    bucket: LockedBucket, found: StoredObject | None, name: str, key: VerifierKey, tree: MerkleTree
) -> tuple[str, list[bytes]]:
    """The checkpoint that covers the facts of the tree, and the proof of that.

    Raises:
        BadFile: it is missing, of another log, or covers others.
    """
    where = bucket.where(name)
    if found is None:
        raise BadFile(where, "", "it is missing.")

    def read(version: str) -> tuple[str, list[bytes]]:
        try:
            lines = islice(bucket.lines(name, version), _MAX_REQUEST)
            size, proof, note = parsed_request(b"".join(lines))
        except ValueError:
            raise BadFile(where, "", "it is not a checkpoint with its proof.") from None
        sealed = opened(where, note, key)
        is_of_these = size == tree.size and is_consistent(
            size, tree.root(), sealed.size, sealed.root, proof
        )
        if not is_of_these:
            raise BadFile(where, "", "it does not cover the facts that are to be beside it.")
        return note, proof

    return _first_good(found.versions, read)


# -------------------------------------------------------------------------------------- the rebuild


class RebuiltLog(NamedTuple):
    """What an export was made of."""

    facts: int
    #: The objects over which somebody wrote, or which somebody deleted.
    hidden: list[str]
    #: Why objects were left out, in whose place there are others.
    ignored: list[str]
    #: Why the export ends before the last object does; empty if it does not.
    lacking: str = ""


def rebuild(bucket: LockedBucket, key: VerifierKey, file: Path) -> RebuiltLog:
    """Write an export (`exports.py`) of what was copied, as far as the checkpoints beside it verify
    it: anybody who may write there can put an object that looks like a later one.

    Args:
        key: of the log.

    Raises:
        BadFile: the first segment is missing, or is not what was sealed.
        BadInput: there is no copy, there is such a file already, or it cannot be written.
    """
    facts, checkpoints = bucket.stored(_FACTS), bucket.stored(_CHECKPOINTS)
    segments = _segments(facts)
    if not segments:
        raise BadInput(f"{bucket.url} has no copy of a log.")
    last = max(one.last for one in segments)
    tree, first_line, end, problems = MerkleTree(), b"", 0, dict[CopiedSegment, BadFile]()
    with new_file(file) as written, TemporaryFile(dir=file.parent) as body:

        def take(one: CopiedSegment, version: str) -> tuple[MerkleTree, bytes]:
            body.seek(end)
            body.truncate()
            grown, name = deepcopy(tree), _CHECKPOINTS + one.name
            _append(bucket, one, version, grown, body)
            return grown, head(*_vouched(bucket, checkpoints.get(name), name, key, grown))

        for one in segments:
            if one.first > tree.size + 1 or one.last <= tree.size:
                continue
            try:
                tree, first_line = _patiently(
                    partial(_first_good, facts[_FACTS + one.name].versions, partial(take, one))
                )
                end = body.tell()
            except BadFile as problem:  # anybody who may write there can add an object
                problems[one] = problem
        body.truncate(end)
        lacking = BadFile(
            bucket.url,
            "",
            f"no object has fact {tree.size + 1:,}, and there are facts up to {last:,}.",
        )
        lacking = next((why for one, why in problems.items() if one.last > tree.size), lacking)
        if not tree.size:
            raise lacking
        written.write(first_line)
        body.seek(0)
        copyfileobj(body, written)
    hidden = [one.key for one in (*facts.values(), *checkpoints.values()) if one.is_hidden]
    ignored = [str(why) for one, why in problems.items() if one.last <= tree.size]
    return RebuiltLog(tree.size, hidden, ignored, str(lacking) if tree.size < last else "")


def _patiently[T](read: Callable[[], T]) -> T:
    """Read again if the storage fails meanwhile: a rebuild reads for hours."""
    for pause_s in _PAUSES_S:
        with suppress(Unavailable):
            return read()
        sleep(pause_s)
    return read()


def _append(
    bucket: LockedBucket, segment: CopiedSegment, version: str, tree: MerkleTree, body: IO[bytes]
) -> None:
    """Append the facts of a segment that come after those of the tree."""
    key, seq = _FACTS + segment.name, segment.first - 1
    where = bucket.where(key)
    for seq, text in enumerate(bucket.lines(key, version), segment.first):
        raw = fact_of_line(where, seq - segment.first + 1, text)
        if raw.seq != seq or seq > segment.last:
            raise BadFile(where, f"line {seq - segment.first + 1}", f"it is fact {raw.seq:,}.")
        if seq > tree.size:
            body.write(line(raw))
            tree.add([leaf_hash(raw.leaf)])
    if seq != segment.last:
        raise BadFile(where, "", f"it ends at fact {seq:,}.")
