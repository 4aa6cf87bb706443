"""A shop whose people have keys, and whose log is sealed into files: for the tests of receipts."""

from pathlib import Path

from shop import FIRST, SECOND
from signed_site import ASK, Site

from ayes.ledger.in_memory import Memory
from ayes.ledger.nats.credentials import Store
from ayes.ledger.receipts import Receipt
from ayes.ledger.seal import Checkpoint, MerkleTree, SignerKey, leaf_hash
from ayes.ops.sealing.files import SealFiles
from ayes.ops.sealing.receipts import make
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef


class Sealed(Site):
    """A shop whose people have keys, and whose log is sealed into files."""

    def __init__(self, path: Path) -> None:
        super().__init__(Memory())
        self.files = SealFiles(Store(path))
        self.files.folder.mkdir()

    async def seal(self) -> SignerKey:
        """Seal all that is recorded; returns the key that has signed."""
        raws = [await self.log.at(seq) for seq in range(1, await self.log.last_seq() + 1)]
        tree, key = MerkleTree(), SignerKey(f"ayes.example/{await self.log.identity()}", bytes(32))
        for tile in tree.add([leaf_hash(raw.leaf) for raw in raws if raw]) + tree.edge():
            self.files.write(tile)
        note = key.note(Checkpoint(key.public.name, tree.size, tree.root()))
        self.files.publish(note, self.files.policy())
        return key

    async def receipt(self, ref: CallRef = FIRST) -> Receipt:
        key = await self.seal()
        self.ledger.trust = self.trust
        return await make(self.ledger, ref, self.files, key)


async def approved(path: Path) -> Sealed:
    """A site with a call that three people approved, and another one that is pending."""
    site = Sealed(path)
    await site.begin(
        ASK.replace('"ben"]', '"ben", "cy"]\nvotes_needed = 3'), signed_since={"shop": 1}
    )
    async with site.gates():
        for ref in FIRST, SECOND:
            await site.ask(ref)
        for name in "ana", "ben", "cy":
            await site.at(name).reviewer(name).approve(FIRST, reason="as agreed")
        await site.decided(e.Approved)
    return site
