"""The sealer: it follows a log and signs, once a second, a checkpoint over all of its facts.

It only reads the log. Tiles are written before the checkpoint that names them, so after a kill it
goes on from its last checkpoint.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from ayes.consumers.supervision import keep_running
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import WIDTH, Checkpoint, MerkleTree, SignerKey, Tile, leaf_hash
from ayes.ops.inspection.watching import READING_RATE
from ayes.ops.inspection.witness import Distrusted, stream_of
from ayes.ops.sealing.files import SealFiles, read_key
from ayes.schemas.errors import BadFile, BadInput, LogDamaged

#: A fact that can be read may still be lost in a power failure, so it is sealed a second later.
EVERY_S: Final = 1.0


@asynccontextmanager
async def sealing(
    kinds: Collection[str], *, store: Path | str | None = None, url: str | None = None
) -> AsyncGenerator[None]:
    """Seal the log during the block, if these workers are to. The others go on if it fails.

    Raises:
        BadInput: the store has no key, or the login reads some workspaces alone.
    """
    if "sealer" not in kinds:
        yield
        return
    key, files = read_key(Store(store)), SealFiles(Store(store))
    async with JetStream.connect(store, url=url, role="observer", name="sealer") as log:
        if log.connection.login.workspaces:
            raise BadInput("a login with some workspaces cannot seal a log: it does not read all.")
        task = asyncio.create_task(keep_running("sealer", Sealer(log, files, key).run, ends=()))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Sealer:
    def __init__(self, log: JetStream, files: SealFiles, key: SignerKey) -> None:
        self._log, self._files, self._key = log, files, key
        self._tree = MerkleTree()

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
        await asyncio.to_thread(self._write, self._tree.edge())

    async def _check_not_shorter(self, size: int) -> None:
        stream = await stream_of(self._log, size)
        if (last := stream["state"]["last_seq"] if stream else 0) < size:
            raise Distrusted(f"the log ends at fact {last:,}, and {size:,} are sealed.")

    async def seal(self, until: int) -> None:
        """Seal the facts up to this number."""
        if until <= self._tree.size:
            await self._check_not_shorter(self._tree.size)
            return
        await self._add(until)
        await asyncio.to_thread(self._publish)

    async def _add(self, until: int) -> None:
        """Add the facts up to this number, as the leader has them."""
        async with aclosing(self._log.scan_leader(self._tree.size + 1)) as pages:
            while self._tree.size < until:
                page = [raw for raw in await anext(pages, []) if raw.seq <= until]
                expected = range(self._tree.size + 1, self._tree.size + 1 + (len(page) or 1))
                if lacking := {*expected} - {raw.seq for raw in page}:
                    raise LogDamaged(f"fact {min(lacking):,} cannot be read")
                whole = self._tree.add([leaf_hash(raw.leaf) for raw in page])
                await asyncio.to_thread(self._write, whole)
                await asyncio.sleep(len(page) / READING_RATE)

    def _write(self, tiles: list[Tile]) -> None:
        for tile in tiles:
            self._files.write(tile)

    def _publish(self) -> None:
        self._write(self._tree.edge())
        origin = self._key.public.name
        checkpoint = Checkpoint(origin, self._tree.size, self._tree.root())
        self._files.publish(self._key.note(checkpoint))
