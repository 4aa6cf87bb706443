"""Where votes are signed, no login of ours lets anything run that the people who were asked have
not signed: each of them in the hands of a thief, alone and in pairs, by raw clients (C1).

A thief publishes whatever the login's role may write. What an executor has run is counted where the
tool is.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from bank import Bank
from cluster import SIZES, sized
from long import sampled
from msgspec.structs import replace
from shop import rule

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.ledger.trust import Trust
from ayes.ops.broker.accounts import ROLES
from ayes.ops.broker.setup import apply_policy
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    key_slot,
    policy_slot,
)

shared = pytest.mark.asyncio(loop_scope="module")

DESK, RULES, THIEF = (SignerKey(name, bytes([at] * 32)) for at, name in enumerate("drt", 1))
ASK: Final = rule("money", "ask", 'voters = ["ana", "ben"]', "signed = true", tools="pay")
ALLOW: Final = rule("money", "allow", tools="pay")
#: The console has the logins of all reviewers.
PEOPLE: Final = ("ana", "ben", "eve")
CONSOLE: Final = tuple(f"reviewer-{name}" for name in PEOPLE)
THIEVES: Final = {
    **{role: (role,) for role in ROLES},
    "console": CONSOLE,
    "gate and console": ("gate", *CONSOLE),
    "gate and operator": ("gate", "operator", "organisation"),
    "gate and executor": ("gate", "executor"),
}
#: What honest calls pay. A thief's pay more, each another amount.
HONEST = 1


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SIZES)
async def bank(request: Any, tmp_path_factory: Any) -> AsyncIterator[Bank]:
    """With a trust file, its policies signed, and keys of Ana's and Eve's that count. Eve, whom no
    policy asks, is a friend of thieves.
    """
    path = tmp_path_factory.mktemp("vault")
    async with AsyncExitStack() as stack:
        store = (await stack.enter_async_context(sized(request.param, path, *PEOPLE))).path
        service = await stack.enter_async_context(Ledger.connect(store, name="desk"))
        bank = Bank(store, service)
        async with Ledger.connect(store, role="executor") as executor:
            await bank.tools.declare(executor, "bank")
        log = await service.log.identity()
        trust = Trust.model_validate(
            {
                "log": log,
                "roots": [str(DESK.public)],
                "policies": [str(RULES.public)],
                "signed_since": {"bank": 1},
            }
        )
        async with Ledger.connect(store, role="operator") as operator:
            operator.trust = trust
            await apply_policy(operator, "bank", ASK, "policy.toml", keys=[RULES])
        for name in "ana", "eve":
            key = key_of(name, log)
            slot, added = key_slot(name, key_id(key.public), "added"), e.KeyAdded(str(key.public))
            assert await bank.raw(f"reviewer-{name}", slot, added) == "stored"
            said = e.KeyConfirmed(signatures=(signed(DESK, key_digest(log, name, key.public)),))
            slot = replace(slot, tail=(*slot.tail[:-1], "confirmed"))
            assert await bank.raw("organisation", slot, said) == "stored"
        at_work = reactions(["gate", "queue", "executor"], tools=bank.tools)
        await stack.enter_async_context(working(at_work, store=store, trust=trust))
        yield bank


def key_of(name: str, log: str) -> SignerKey:
    return SignerKey(f"{name}/{log}", sum(name.encode()).to_bytes(32))


class Thief:
    """Whoever has some logins, and what they publish with them."""

    def __init__(self, bank: Bank, name: str) -> None:
        self.bank = bank
        self.name = name.replace(" ", "-")
        self.logins = THIEVES[name]
        self.calls: list[CallRef] = []
        #: What the broker has stored.
        self.stored = 0

    async def says(self, slot: Slot, event: e.Event) -> None:
        """Publish it with each login that they have."""
        for login in self.logins:
            self.stored += await self.bank.raw(login, slot, event) == "stored"

    def call(self) -> CallRef:
        self.calls.append(CallRef("bank", self.name, f"c{len(self.calls)}"))
        return self.calls[-1]

    def digest(self) -> str:
        """That of the last call."""
        return self.bank.digest(self.amount())

    def amount(self) -> int:
        return HONEST + len(self.calls)

    async def request(self) -> None:
        """Request the last call."""
        await self.bank.request(self.calls[-1], self.amount())

    async def asked(self) -> CallRef:
        """A call that people are asked about."""
        ref = self.call()
        await self.request()
        await self.bank.there(ref.gated)
        return ref

    def approval(self, **said: Any) -> e.Approved:
        """Of the last call."""
        yes = e.Approved(digest=self.digest(), ground="people", rule="money", policy_version=1)
        return replace(yes, **said)

    async def votes(self) -> None:
        """Of everybody, without a signature; and with the thief's own, which nobody confirmed."""
        for signature in "", signed(THIEF, b"", 0), "ed25519.1.x.0.AA":
            ref = await self.asked()
            for name in "ana", "ben":
                vote = e.Voted(verdict="approve", digest=self.digest(), signature=signature)
                await self.says(ref.vote(name), vote)

    async def decisions(self) -> None:
        """Of nobody's, before the gate looks at the call and once people are asked."""
        for said in (
            {"voters": ("ana",)},
            {"ground": "policy"},
            {"ground": "grant", "grants": ("ana/all",)},
            {"ground": "broken_glass", "voters": ("ana",)},
        ):
            early = self.call()
            await self.says(early.decided, self.approval(**said))
            await self.request()
            await self.says((await self.asked()).decided, self.approval(**said))

    async def questions(self) -> None:
        """That nobody needs to answer, or an accomplice, or everybody without a signature."""
        for changed in {"votes_needed": 0}, {"voters": ("eve",)}, {"signed": True}:
            ref = self.call()
            asked = e.ApprovalRequested(
                digest=self.digest(), rule="money", policy_version=1, voters=("ana", "ben")
            )
            asked = replace(asked, **changed)
            await self.says(ref.gated, asked)
            await self.request()
            for name in "ana", "ben", "eve":
                vote = e.Voted(verdict="approve", digest=asked.digest)
                await self.says(ref.vote(name), vote)
            await self.says(ref.decided, self.approval(voters=asked.voters[:1]))

    async def policies(self) -> None:
        """That allow everything."""
        for owner in "bank", ORGANISATION:
            for version in range(2, 5):
                await self.says(policy_slot(owner, version), applied(ALLOW))
        ref = self.call()
        await self.request()
        await self.says(ref.decided, self.approval(ground="policy", policy_version=2))

    async def stages(self) -> None:
        """That ask a friend, who has a key and signs."""
        ref = await self.asked()
        await self.says(ref.escalated(1), e.Escalated(voters=("eve",), expires_in_s=3600.0))
        async with Ledger.connect(self.bank.store, role="reviewer-eve") as eve:
            eve.signer = key_of("eve", await eve.log.identity())
            vote = e.Voted(verdict="approve", digest=self.digest())
            vote = await eve.reviewer("eve")._signed(await eve.call(ref), vote)
        assert await self.bank.raw("reviewer-eve", ref.vote("eve"), vote) == "stored"
        await self.says(ref.decided, self.approval(voters=("eve",)))

    async def claims(self) -> None:
        """Of another executor, who has died."""
        ref = await self.asked()
        await self.says(ref.decided, self.approval(voters=("ana",)))
        claim = e.ToolStarted(digest=self.digest(), idempotency_key=str(ref))
        await self.says(ref.claim(1), claim)

    async def permissions(self) -> None:
        """Grants, delegations and keys in Ana's name, and their use."""
        grant = GrantRef("bank", "ana", f"all-{self.name}")
        await self.says(grant.given, e.Granted(tool="pay", expires_in_s=900.0, uses=100))
        ref = self.call()
        await self.says(grant.used(1), e.GrantUsed(call=str(ref)))
        named = (f"ana/{grant.name}",)
        await self.says(ref.decided, self.approval(ground="grant", voters=("ana",), grants=named))
        await self.request()
        log, now = await self.bank.service.log.identity(), self.bank.service.now()
        given = e.Delegated(
            to="eve", starts_at=now - timedelta(hours=1), ends_at=now + timedelta(hours=1)
        )
        await self.says(DelegationRef("bank", "ana", f"to-{self.name}").given, given)
        own = SignerKey(f"ana/{log}", sum(self.name.encode()).to_bytes(32))
        slot = key_slot("ana", key_id(own.public), "added")
        await self.says(slot, e.KeyAdded(key=str(own.public)))
        said = e.KeyConfirmed(signatures=(signed(own, key_digest(log, "ana", own.public)),))
        for place, by in ("confirmed", ""), ("confirmed", "ben"), ("confirmed", "ana"):
            await self.says(key_slot("ana", key_id(own.public), place, by), said)
        ref = await self.asked()
        async with Ledger.connect(self.bank.store, role="reviewer-ana") as ana:
            ana.signer = own
            vote = e.Voted(verdict="approve", digest=self.digest())
            vote = await ana.reviewer("ana")._signed(await ana.call(ref), vote)
        await self.says(ref.vote("ana"), vote)
        await self.says(ref.vote("eve"), replace(vote, on_behalf_of="ana"))
        await self.says(ref.decided, self.approval(voters=("ana",)))


@shared
@pytest.mark.parametrize("name", sampled(THIEVES, "executor", "gate and console"))
async def test_nothing_runs_that_nobody_signed(bank: Bank, name: str):
    """Votes, decisions, questions, policies, stages, grants, delegations, keys and claims that are
    forged.
    """
    thief = Thief(bank, name)
    await thief.votes()
    await thief.decisions()
    await thief.questions()
    await thief.policies()
    await thief.stages()
    await thief.permissions()
    await thief.claims()
    honest = CallRef("bank", thief.name, "honest")
    before = list(bank.paid)
    await bank.request(honest, HONEST)
    await bank.there(honest.gated)
    async with Ledger.connect(bank.store, role="reviewer-ana") as ana:
        ana.signer = key_of("ana", await ana.log.identity())
        await ana.reviewer("ana").approve(honest)
    await bank.there(honest.finished)
    for ref in thief.calls:
        call = await bank.service.call(ref)
        is_early = bool(call.decided and call.requested) and call.decided.seq < call.requested.seq
        if call.status is Status.APPROVED and not is_early:
            assert isinstance((await bank.there(ref.finished)).event, e.ToolRefused)
    assert bank.paid == [*before, HONEST]
    started = [ref for ref in thief.calls if (await bank.service.call(ref)).starts]
    assert started in ([], thief.calls[-1:])  # the thief's own claim
    if {"gate", "operator", "organisation", *CONSOLE} & {*thief.logins}:
        assert thief.stored
