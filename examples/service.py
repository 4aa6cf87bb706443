import asyncio

from ayes import Ledger, Status, spec_of


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


async def main(call: str) -> None:
    async with Ledger.connect(name="billing") as ledger:
        await ledger.declare("shop", spec_of(refund))
        await ledger.request(call, "refund", {"order": "A-17", "amount": 480}, requester="ben")
        decided = await ledger.decision(call)
        if decided.status is Status.APPROVED:
            print(await ledger.run(call, refund))
        else:
            print(f"{call} is {decided.status}")


asyncio.run(main("shop/order-17/refund-1"))
