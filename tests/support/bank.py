"""A workspace whose executor pays, and whoever attacks it with a raw client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from nats.aio.client import Client
from until import recorded

from ayes.consumers.tools import Tools
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import ensure_account
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.digest import call_digest
from ayes.schemas.ids import new_id
from ayes.schemas.slots import CallRef, Slot


class Bank:
    """A workspace whose executor pays, with gate and queue at work, and what was really paid."""

    def __init__(self, store: Path, service: Ledger) -> None:
        self.store = store
        self.service = service
        self.paid: list[int] = []
        self.tools = Tools()
        self.tools.add(name="pay", repeatable=True)(self.pay)

    def pay(self, amount: int) -> str:
        """Pay an amount."""
        self.paid.append(amount)
        return f"{amount} paid"

    @property
    def version(self) -> str:
        return self.tools["pay"].version

    def digest(self, amount: int) -> str:
        return call_digest("pay", self.version, self.arguments(amount))

    @staticmethod
    def arguments(amount: int) -> str:
        return msgspec.json.encode({"amount": amount}).decode()

    async def request(self, ref: CallRef, amount: int) -> None:
        await self.service.request(ref, "pay", self.arguments(amount), requester="ben")

    async def there(self, slot: Slot) -> Fact:
        """Wait until a slot is filled."""
        return (await recorded(self.service, slot.subject))[0]

    async def call(self, ref: CallRef, must_include: Slot) -> Call:
        await self.there(must_include)
        return await self.service.call(ref, must_include=must_include)

    async def approve(self, ref: CallRef) -> None:
        async with Ledger.connect(self.store, role="reviewer-ana") as ana:
            await ana.reviewer("ana").approve(ref)

    async def raw(self, role: str, slot: Slot, event: e.Event) -> str:
        """Publish as this role, past our own client: "denied" by the broker, or "stored"."""
        await ensure_account(self.store, role)
        async with attacker(self.store, role) as (client, denials):
            stamped = msgspec.structs.replace(event, id=event.id or new_id())
            await client.publish(slot.subject, encode(stamped))
            await client.flush()
            # The broker says what it denies before it answers the next request.
            await client.request("$JS.API.INFO", timeout=60)
            return "denied" if any(slot.subject.lower() in one for one in denials) else "stored"


@asynccontextmanager
async def attacker(store: Path, role: str) -> AsyncIterator[tuple[Client, list[str]]]:
    login = Store(store).login(role)
    denials: list[str] = []

    async def denied(problem: Exception) -> None:
        denials.append(str(problem).lower())

    client = Client()
    await client.connect(
        login.servers,
        user=login.user,
        password=login.password,
        tls=login.tls() if login.ca else None,
        inbox_prefix=f"_INBOX.{role}._".encode(),
        error_cb=denied,
        max_reconnect_attempts=1,
    )
    try:
        yield client, denials
    finally:
        await client.close()
