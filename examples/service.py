import asyncio
import sys

from ayes import ApprovalsError, Ledger, Status, spec_of


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


async def main(call: str) -> None:
    async with Ledger.connect(name="billing") as ledger:
        await ledger.declare("shop", spec_of(refund))
        asked = {"order": "A-17", "amount": 480}
        if (await ledger.request(call, "refund", asked, requester="ben")).decided is None:
            print(f"{call} waits for people: ayes approve {call} --as NAME", flush=True)
        decided = await ledger.decision(call)
        if decided.status is Status.APPROVED:
            result = await ledger.run(call, refund)
            print(getattr(result, "output", result))  # a failure is printed whole
        else:
            print(f"{call}: {decided.outcome}")


try:
    asyncio.run(main("shop/order-17/refund-1"))
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
