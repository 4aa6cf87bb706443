"""A shop whose people have keys, for the tests of signed votes."""

from typing import Any

from shop import FIRST, Shop, rule

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.ledger.trust import Trust
from ayes.ledger.validity import evolve, void, voids
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import key_slot

ASK = rule("money", "ask", 'voters = ["ana", "ben"]', "signed = true", "denials_needed = 2")
DESK = SignerKey("desk", bytes([9] * 32))


class Site(Shop):
    """A shop whose people have keys."""

    def __init__(self, port: EventLog) -> None:
        super().__init__(port)
        self.keys = dict[str, SignerKey]()

    async def begin(self, policy: str = ASK, **trust: Any) -> None:
        await self.open(policy)
        log = await self.log.identity()
        roots = {"log": log, "roots": [str(DESK.public)]}
        self.trust = Trust.model_validate(roots | trust)
        for at, name in enumerate(("ana", "ben", "cy"), 1):
            self.keys[name] = SignerKey(f"{name}/{log}", bytes([at] * 32))
            await self.add(self.keys[name], name)

    async def add(self, key: SignerKey, name: str, by: SignerKey | None = DESK) -> None:
        added = e.KeyAdded(key=str(key.public))
        await self.ledger.append(key_slot(name, key_id(key.public), "added"), added)
        if by is not None:
            digest = key_digest(await self.log.identity(), name, key.public)
            said = e.KeyConfirmed(signatures=(signed(by, digest),))
            await self.ledger.append(key_slot(name, key_id(key.public), "confirmed"), said)

    async def revoke(self, name: str) -> None:
        slot = key_slot(name, key_id(self.keys[name].public), "revoked", "cy")
        await self.ledger.append(slot, e.KeyRevoked())

    def at(self, name: str) -> Ledger:
        """The ledger at a terminal where this person's key is."""
        ledger = Ledger(self.log, e.Author(kind="reviewer", name=name))
        ledger.signer = self.keys[name]
        return ledger

    async def vote_of(self, name: str, **vote: Any) -> e.Voted:
        """A signed vote that is not recorded yet."""
        call = await self.ledger.call(FIRST)
        assert call.approval_request
        digest = call.approval_request.digest
        return (
            await self.at(name)
            .reviewer(name)
            ._signed(call, e.Voted(**({"verdict": "approve", "digest": digest} | vote)))
        )

    async def why_void(self, name: str = "ana") -> str:
        """Why a recorded vote does not count, as of the gate; empty if it does."""
        known, ledger = await self.ledger.call(FIRST), Ledger(self.log, e.Author("x", "x"))
        ledger.trust = self.trust
        known, _ = await ledger.with_given(known)
        slot = FIRST.vote(name)
        return next((one.why for one in voids(known) if one.fact.slot == slot), "")

    async def would_be_void(self, vote: e.Voted, name: str = "ana") -> bool:
        """Whether this vote would not count, were it recorded now."""
        ledger = Ledger(self.log, e.Author("x", "x"))
        ledger.trust = self.trust
        seq, now = await self.log.last_seq() + 1, await self.log.clock()
        fact = Fact(seq, now, FIRST.vote(name), vote)
        call, _ = await ledger.with_given(evolve(await ledger.call(FIRST), fact))
        return void(call, fact) is not None
