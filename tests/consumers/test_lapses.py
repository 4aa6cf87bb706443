"""Approvals that nothing has used, when a policy blocks the call or their grant is revoked."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from long import IN_MEMORY_FIRST
from msgspec.structs import replace
from running import working
from shop import FIRST, REFUND, SCHEMA, SECOND, THIRD, Shop, rule

from ayes.consumers.gate import Gate
from ayes.consumers.unstarted import Unstarted
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.verdict import Case
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.projections.refusal_texts import tool_not_run
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerAway, NotOpen
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    GrantRef,
    Slot,
    StopRef,
    policies,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

pytestmark = IN_MEMORY_FIRST
FREE, ASK = rule("free", "allow"), rule("money", "ask", 'voters = ["ana", "ben"]')
BLOCK = rule("frozen", "block", 'reason = "An incident."')
BIG = rule("big", "block", 'when = "args.amount > 50"', 'reason = "An incident."')
STOP = StopRef("shop", "ana", "s1")
ELSEWHERE = CallRef("bank", "t1", "c1")


@pytest.fixture
def shop(port: EventLog) -> Shop:
    return Shop(port)


async def lapsed(shop: Shop, ref: CallRef = FIRST) -> e.Lapsed:
    event = (await shop.until(ref.lapsed)).event
    assert isinstance(event, e.Lapsed)
    return event


@pytest.mark.parametrize("owner", ["shop", ORGANISATION], ids=["its own", "the organisation's"])
async def test_what_a_policy_blocks_now_does_not_start_any_more(shop: Shop, owner: str):
    """Once the gate has seen it: the start is refused with the reason, and the model reads it. What
    it does not block, and what another workspace's blocks, goes on (OWASP AISVS 9.5.6).
    """
    async with shop.at_work(FREE):
        await shop.apply(FREE, "bank")
        await shop.ledger.declare("bank", REFUND)
        for ref, amount in ((FIRST, 100), (SECOND, 5), (ELSEWHERE, 100)):
            await shop.request(ref, f'{{"amount":{amount}}}')
            await shop.decided(e.Approved, ref)
        await shop.apply(BIG + FREE, owner)
        says = await lapsed(shop)
        assert (says.rule, says.reason) == ("big", "An incident.")
        assert (says.policy_version, says.organisation) == (
            2 if owner == "shop" else 1,
            owner != "shop",
        )
        with pytest.raises(NotOpen, match="lapsed"):
            await shop.ledger.start(FIRST)
        refused = tool_not_run(await shop.ledger.call(FIRST))
        assert (refused.ending, "rule 'big'" in refused.text) == ("lapsed", True)
        if owner == ORGANISATION:
            await lapsed(shop, ELSEWHERE)
        else:
            await shop.ledger.start(ELSEWHERE)
        await shop.ledger.start(SECOND)


async def test_a_policy_ends_what_it_blocks_by_class(shop: Shop):
    """A tool that declares none counts as irreversible; one that only reads goes on."""
    last = rule("last", "block", 'class = "irreversible"', "priority = 1", tools="*")
    look = ToolSpec.model_validate({"name": "look", "schema": SCHEMA, "class": "reads"})
    async with shop.at_work(rule("free", "allow", tools="*"), "", REFUND, look):
        await shop.judged(e.Approved)
        await shop.judged(e.Approved, SECOND, tool="look")
        await shop.apply(last + rule("free", "allow", tools="*"))
        assert (await lapsed(shop)).rule == "last"
        await shop.judged(e.Approved, THIRD, tool="look")
        await shop.ledger.start(SECOND)


async def test_each_policy_ends_what_was_approved_since(shop: Shop):
    """The log is read on from where the last policy was (B37)."""
    async with shop.at_work(FREE):
        for version, ref in enumerate((FIRST, SECOND), start=1):
            await shop.request(ref)
            await shop.decided(e.Approved, ref)
            await shop.apply(BLOCK)
            assert (await lapsed(shop, ref)).policy_version == 2 * version
            await shop.apply(FREE)


async def test_a_start_that_does_not_count_hides_nothing(shop: Shop):
    """One of another side, of other bytes, or under a stop: the approval still waits, and ends."""
    async with shop.at_work(FREE):
        for ref in (FIRST, SECOND, THIRD):
            await shop.request(ref, layout=2)
            await shop.decided(e.Approved, ref)
        digest = (await shop.ledger.call(FIRST)).digest
        for ref, slot, of in (
            (FIRST, FIRST.claim(1), digest),
            (SECOND, SECOND.client_claim(1), "0" * 64),
            (THIRD, THIRD.client_claim(1), digest),
        ):
            if ref == THIRD:
                await shop.ledger.reviewer("ana").stop(STOP, reason="A wrong account.")
            started = e.ToolStarted(digest=of, idempotency_key=str(ref))
            assert await shop.ledger.try_append(slot, started) is None
        await shop.apply(BLOCK)
        for ref in (FIRST, SECOND, THIRD):
            await lapsed(shop, ref)
            assert (await shop.ledger.call(ref)).status is Status.LAPSED


class Behind(Gate):
    """A gate whose rival has seen something newer before this one records its approval."""

    def __init__(self, shop: Shop, newer: Callable[[], Awaitable[Slot]]) -> None:
        super().__init__()
        self.shop, self.newer = shop, newer
        self.is_first = True

    async def load(self, ledger, handed):
        if isinstance(handed.event, e.PolicyApplied | e.GrantRevoked):
            return None  # the rival has been handed it
        seen = await super().load(ledger, handed)
        # With a grant it loads twice: first it takes a use of it.
        is_ready = isinstance(seen, Case) and all(one.used for one in seen.grants)
        if self.is_first and handed.slot == FIRST.requested and is_ready:
            self.is_first = False
            slot = await self.newer()
            [fact] = await self.shop.ledger.read(slot)
            rival = Gate()
            assert not rival.decide(await rival.load(self.shop.ledger, fact), fact)
        return seen


@asynccontextmanager
async def at_work(shop: Shop, gate: Gate) -> AsyncIterator[None]:
    async with working(Worker(Ledger(shop.log, e.Author(kind="gate", name="gate")), gate)):
        yield


async def test_a_gate_that_is_late_looks_again(shop: Shop):
    """It judged by the policy of before, and records its approval when the rival has already looked
    for what the newer one blocks: it ends that approval itself (I4).
    """

    async def blocks() -> Slot:
        await shop.apply(BLOCK)
        return policy_slot("shop", 2)

    await shop.open(FREE)
    async with at_work(shop, Behind(shop, blocks)):
        await shop.request()
        assert (await lapsed(shop)).policy_version == 2


async def test_a_gate_that_is_late_looks_again_for_a_grant(shop: Shop):
    """The same where the grant was revoked in between, by somebody else."""
    given = GrantRef("shop", "ana", "early")

    async def revokes() -> Slot:
        await shop.ledger.reviewer("ben").revoke_grant(given, reason="No more.")
        return given.revoked_by("ben")

    await shop.open(ASK)
    await shop.ledger.reviewer("ana").grant(given, "refund", for_s=600)
    async with at_work(shop, Behind(shop, revokes)):
        await shop.request()
        says = await lapsed(shop)
    assert (says.grants, says.reason) == (("ana/early",), "No more.")


async def test_a_revoked_grant_ends_what_it_approved(shop: Shop):
    """And not what people approved, nor what has started (I4)."""
    given = GrantRef("shop", "ana", "early")
    async with shop.at_work(ASK):
        await shop.ask(THIRD)
        await shop.cast("ana", THIRD)
        await shop.decided(e.Approved, THIRD)
        await shop.ledger.reviewer("ana").grant(given, "refund", for_s=600, uses=2)
        for ref in (FIRST, SECOND):
            await shop.judged(e.Approved, ref)
        await shop.ledger.start(SECOND)
        await shop.ledger.reviewer("ben").revoke_grant(given, reason="No more.")
        says = await lapsed(shop)
        assert (says.grants, says.reason) == (("ana/early",), "No more.")
        await shop.ledger.start(THIRD)
    assert (await shop.ledger.call(SECOND)).status is Status.RUNNING


async def test_a_replica_that_is_behind_is_not_believed(shop: Shop):
    """Approvals that it does not show would be taken for none."""
    await shop.open(FREE)
    await shop.apply(BLOCK)
    [_, policy] = await shop.ledger.read(policies("shop"))
    with pytest.raises(BrokerAway, match="a replica is behind"):
        await Unstarted().before(shop.ledger, replace(policy, seq=policy.seq + 10))
