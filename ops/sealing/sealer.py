"""The sealer: it follows a log and signs, once a second, a checkpoint over all of its facts.

It only reads the log. Tiles are written before the checkpoint that names them, so after a kill it
goes on from its last checkpoint. Witnesses sign a checkpoint before it is written, so after a kill
they may be ahead of the file, and never of the log.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from ayes.consumers.supervision import beside, keep_running
from ayes.consumers.webhooks.requests import Sender
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import READING_RATE, JetStream
from ayes.ledger.seal import (
    WIDTH,
    Checkpoint,
    MerkleTree,
    Proofs,
    SignerKey,
    WitnessPolicy,
    leaf_hash,
)
from ayes.ops.sealing.files import SealFiles, read_key
from ayes.ops.sealing.witnesses import AskedWitness, SealSettings
from ayes.schemas.errors import BadFile, BadInput, Distrusted, LogDamaged

#: A fact that can be read may still be lost in a power failure, so it is sealed a second later.
EVERY_S: Final = 1.0


@asynccontextmanager
async def sealing(
    kinds: Collection[str],
    settings: SealSettings | None = None,
    *,
    store: Path | str | None = None,
    url: str | None = None,
) -> AsyncGenerator[None]:
    """Seal the log during the block, if these workers are to. The others go on if it fails.

    Raises:
        BadInput: the store has no key, the login reads some workspaces alone, or the packages for
            asking witnesses are not installed.
    """
    if "sealer" not in kinds:
        yield
        return
    key, files = read_key(Store(store)), SealFiles(Store(store))
    async with whole_log("sealer", store, url) as log:
        sealer = Sealer(log, files, key, settings)
        async with beside(keep_running("sealer", sealer.run, ends=())):
            yield


@asynccontextmanager
async def whole_log(
    worker: str, store: Path | str | None, url: str | None
) -> AsyncGenerator[JetStream]:
    """The log for a worker that reads all of it.

    Raises:
        BadInput: the login reads some workspaces alone.
    """
    async with JetStream.connect(store, url=url, role="observer", name=worker) as log:
        if log.connection.login.workspaces:
            raise BadInput(
                f"the {worker} needs a login that reads all workspaces, not some of them."
            )
        yield log


class Sealer:
    def __init__(
        self,
        log: JetStream,
        files: SealFiles,
        key: SignerKey,
        settings: SealSettings | None = None,
    ) -> None:
        self._log, self._files, self._key = log, files, key
        self._tree = MerkleTree()
        self._settings = settings
        self._sender = Sender() if settings else None
        self._policy = settings.policy if settings else WitnessPolicy()
        self._witnesses = list[AskedWitness]()

    async def run(self) -> None:
        async with self._files.alone():
            await self.begin()
            while True:
                end = await self._log.last_seq()
                await asyncio.sleep(EVERY_S)
                await self.seal(end)

    async def begin(self) -> None:
        """Go on from the last checkpoint. The facts since the last whole tile are read again.

        Raises:
            Distrusted: they are not those that were sealed.
        """
        origin = self._key.public.name
        if (identity := await self._log.identity()) not in origin.split("/"):
            raise Distrusted(f"the key of the sealer is for {origin}, and the log is {identity}.")
        sealed = self._files.checkpoint(self._key.public)
        size = sealed.size if sealed else 0
        try:
            self._tree = MerkleTree(max(size - 1, 0) // WIDTH * WIDTH, self._files.tile)
        except BadFile:  # they are written again
            self._tree = MerkleTree()
        await self._check_not_shorter(size)
        await self._add(size)
        if sealed and self._tree.root() != sealed.root:
            raise Distrusted(
                f"the {size:,} facts that are sealed in {self._files.folder} are not those of the "
                "log, or tiles are damaged. `ayes verify` says which."
            )
        await asyncio.to_thread(self._files.write, self._tree.edge())
        await asyncio.to_thread(self._files.set_policy, self._policy, self._key.public)
        if self._settings and self._sender:
            self._witnesses = [
                AskedWitness(one, self._sender, self._files.note(), size)
                for one in self._settings.witnesses
            ]

    async def _check_not_shorter(self, size: int, witness: str = "") -> None:
        stream = await self._log.stream_with(size)
        if (last := stream["state"]["last_seq"] if stream else 0) < size:
            by = f" The witness {witness} signed them." if witness else ""
            raise Distrusted(f"the log ends at fact {last:,}, and {size:,} are sealed.{by}")

    async def seal(self, until: int) -> None:
        """Seal the facts up to this number."""
        if until > self._tree.size:
            await self._add(until)
        else:
            await self._check_not_shorter(self._tree.size)
            if not any(one.lacks(self._tree.size) for one in self._witnesses):
                return
        await self._publish()

    async def _add(self, until: int) -> None:
        """Add the facts up to this number, as the leader has them."""
        async with aclosing(self._log.scan_leader(self._tree.size + 1)) as pages:
            while self._tree.size < until:
                page = [raw for raw in await anext(pages, []) if raw.seq <= until]
                expected = range(self._tree.size + 1, self._tree.size + 1 + (len(page) or 1))
                if lacking := {*expected} - {raw.seq for raw in page}:
                    raise LogDamaged(f"fact {min(lacking):,} cannot be read")
                whole = self._tree.add([leaf_hash(raw.leaf) for raw in page])
                await asyncio.to_thread(self._files.write, whole)
                await asyncio.sleep(len(page) / READING_RATE)

    async def _publish(self) -> None:
        """Write the tiles, let the witnesses sign, and write the checkpoint."""
        await asyncio.to_thread(self._files.write, self._tree.edge())
        size = self._tree.size
        note = self._key.note(Checkpoint(self._key.public.name, size, self._tree.root()))
        proofs = Proofs(size, self._files.tile)
        lines = await asyncio.gather(*(one.sign(note, proofs) for one in self._witnesses))
        for one in self._witnesses:
            await self._check_agrees(one, size)
        await asyncio.to_thread(self._files.publish, note + "".join(lines), self._policy)

    async def _check_agrees(self, witness: AskedWitness, size: int) -> None:
        """Refuse to seal what contradicts a witness.

        Raises:
            Distrusted: it signed more facts than there are, or others.
        """
        if witness.size > size:
            await self._check_not_shorter(witness.size, witness.key.name)
        if witness.contradicts:
            raise Distrusted(
                f"the witness {witness.key.name} signed {witness.size:,} facts, and what is sealed "
                "does not continue them. `ayes verify` says whether log or tiles have changed."
            )
