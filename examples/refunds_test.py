"""Tests of a service that gives money back, without a broker: pytest examples/refunds_test.py"""

import asyncio

from ayes import Ledger, Status, spec_of
from ayes.testing import asked, ledger

POLICY = """
[[rule]]
name = "large"
tools = ["refund"]
when = "args.amount > 100"
then = "ask"
voters = ["ana"]

[[rule]]
name = "small"
tools = ["refund"]
then = "allow"
"""
BANK: list[str] = []


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    BANK.append(f"{amount} for {order}")
    return "given back"


async def give_back(desk: Ledger, order: str, amount: int) -> str:
    """The service: asks, waits, and runs what was approved. It is handed its ledger."""
    call = f"shop/order-{order}/refund-1"
    await desk.declare("shop", spec_of(refund))
    await desk.request(call, "refund", {"order": order, "amount": amount}, requester="ben")
    decided = await desk.decision(call, timeout_s=10)
    if decided.outcome is Status.APPROVED:
        await desk.run(call, refund)
        return "done"
    return f"{decided.outcome}: {decided.decided.event.reason}"


async def told(order: str, amount: int, verdict: str = "", **words: str) -> str:
    """What the service says, if ana decides so as soon as she is asked."""
    BANK.clear()
    async with ledger(POLICY, workspace="shop") as desk:
        service = asyncio.create_task(give_back(desk, order, amount))
        if verdict:
            call = await asked(desk, f"shop/order-{order}/refund-1")
            await getattr(desk.reviewer("ana"), verdict)(call.ref, **words)
        return await service


def test_a_small_refund_asks_nobody() -> None:
    assert asyncio.run(told("A-17", 20)) == "done"
    assert BANK == ["20 for A-17"]


def test_a_large_refund_runs_once_ana_approves() -> None:
    assert asyncio.run(told("A-18", 480, "approve")) == "done"
    assert BANK == ["480 for A-18"]


def test_a_denied_refund_does_not_run() -> None:
    assert asyncio.run(told("A-19", 480, "deny", reason="Never paid.")) == "denied: Never paid."
    assert BANK == []
