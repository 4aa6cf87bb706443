"""A shop whose people have keys, and whose log is sealed into files: for the tests of receipts."""

from pathlib import Path

from authenticator import Authenticator
from msgspec.structs import replace
from shop import FIRST, SECOND, THIRD
from signed_site import ASK, DESK, Site

from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.nats.credentials import Store
from ayes.ledger.receipts import Receipt
from ayes.ledger.seal import Checkpoint, MerkleTree, SignerKey, leaf_hash
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.ops.sealing.files import SealFiles
from ayes.ops.sealing.receipts import make
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, key_slot


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
        self.files.write(tree.add([leaf_hash(raw.leaf) for raw in raws if raw]) + tree.edge())
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


PAGES = {"rp": "ayes.example", "origins": ["https://sign.ayes.example"]}


async def with_passkeys(path: Path) -> Sealed:
    """A site where ana has voted on three calls with a passkey, whose counter fell in the third.

    The key at her terminal has confirmed it.
    """
    site = Sealed(path)
    await site.begin(signed_since={"shop": 1}, **PAGES)
    log = await site.log.identity()
    device = Authenticator(PAGES["rp"], name=f"ana/{log}")
    added = e.KeyAdded(key=str(device.public))
    key = key_id(device.public)
    await site.ledger.append(key_slot("ana", key, "added"), added)
    digest = key_digest(log, "ana", device.public)
    said = e.KeyConfirmed(signatures=(signed(site.keys["ana"], digest),))
    await site.ledger.append(key_slot("ana", key, "confirmed"), said)
    # Ben has added it too, and the desk has not looked: a key is one person's.
    twin = replace(device.public, name=f"ben/{log}")
    await site.ledger.append(key_slot("ben", key, "added"), e.KeyAdded(key=str(twin)))
    said = e.KeyConfirmed(signatures=(signed(DESK, key_digest(log, "ben", twin)),))
    await site.ledger.append(key_slot("ben", key, "confirmed"), said)
    reader = Ledger(site.log, e.Author(kind="reviewer", name="ana"))
    reader.trust = site.trust
    async with site.gates():
        for ref, count in (FIRST, 3), (SECOND, 8), (THIRD, 5):
            await site.ask(ref)
            asked = await reader.reviewer("ana").to_sign(ref, Ballot("approve", reason=str(ref)))
            assert asked
            device.count = count - 1
            text = device.text(asked.digest, asked.until, PAGES["origins"][0])
            vote = replace(asked.vote, signature=text)
            await site.ledger.append(ref.vote("ana"), vote)
            if ref != THIRD:
                await site.decided(e.Approved, ref)
        # The gate has seen it, too.
        call = await site.ledger.call(THIRD)
        forged = e.Voted(verdict="approve", digest=call.digest, signature=text)
        await site.ledger.append(THIRD.vote("ben"), forged)
    return site
