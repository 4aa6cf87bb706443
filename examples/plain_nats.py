"""A whole approval with nats-py alone, by the AsyncAPI document: nothing of ayes is imported.

python plain_nats.py              with the store of `ayes up` in AYES_STORE

A service requests a refund, a reviewer approves it, the service claims the call, runs it, and
records the result. In a real system they are two programs, each with its own login.
"""

import asyncio
import json
import os
import secrets
import uuid
from pathlib import Path
from typing import Self

import nats
import nats.errors

STORE = Path(os.environ.get("AYES_STORE", Path.home() / ".local/share/approval-ledger"))
CALL = "shop/order-31/refund-1"


class Login:
    """One login, and the endpoints that it may ask."""

    def __init__(self, role: str, name: str) -> None:
        self.role, self.name = role, name
        self.login = f"reviewer-{name}" if role == "reviewer" else role

    async def __aenter__(self) -> Self:
        address = json.loads((STORE / "address.json").read_text())
        # An inbox that no other program with this login may hear.
        inbox = secrets.token_urlsafe(16)
        self.client = await nats.connect(
            address["url"],
            user=self.login,
            password=address["passwords"][self.login],
            name=f"{self.name} inbox={inbox}",
            inbox_prefix=f"_INBOX.{self.login}.{inbox}".encode(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def ask(self, endpoint: str, **fields: object) -> dict:
        """Send a request; end the program with the sentence of an error."""
        subject = f"approvals.{self.role}.{self.name}.{endpoint}"
        try:
            answer = await self.client.request(subject, json.dumps(fields).encode(), timeout=30)
        except nats.errors.NoRespondersError:
            raise SystemExit("error: no console answers; `ayes up` runs one.") from None
        if problem := (answer.headers or {}).get("Nats-Service-Error"):
            raise SystemExit(f"error: {problem}")
        return json.loads(answer.data)


async def decide() -> None:
    """The reviewer: reads what waits, and votes on exactly what was shown."""
    async with Login("reviewer", "ana") as ana:
        waiting: list[dict] = []
        while not waiting:
            waiting = (await ana.ask("pending", workspace="shop"))["calls"]
        [call] = waiting
        print(f"ana is shown {call['tool']} {call['arguments']}")
        vote = {"call": call["call"], "digest": call["digest"], "verdict": "approve"}
        await ana.ask("decide", **vote)


async def main() -> None:
    async with Login("service", "billing") as billing:
        arguments = json.dumps({"order": "A-31", "amount": 480})
        request = {"call": CALL, "tool": "refund", "arguments": arguments, "requester": "ben"}
        await billing.ask("request", **request)
        reviewing = asyncio.create_task(decide())
        while not (decision := await billing.ask("wait", call=CALL, timeout_s=20))["decided"]:
            pass
        await reviewing
        if decision["state"]["status"] != "approved":
            raise SystemExit(f"{CALL} is {decision['state']['outcome']}")
        # Only whoever is answered without an error runs the tool, with these arguments.
        claimed = await billing.ask("claim", call=CALL, claim=str(uuid.uuid4()))
        order = json.loads(claimed["arguments"])
        output = f"{order['amount']} given back for order {order['order']}"
        ended = await billing.ask("finish", call=CALL, output=output)
        print(f"{CALL} {ended['status']}: {output}")


asyncio.run(main())
