"""The console over a real broker with its workers, asked by a client in the same process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request

from ayes.ledger.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.console.application import console
from ayes.ops.console.identity import Role, Visitor
from ayes.ops.workers import KINDS, durables, reactions, working
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot
from ayes.schemas.tools import ToolSpec

POLICY = """
[[rule]]
name = "large refunds"
tools = ["refund"]
then = "ask"
reason = "It gives money away."
"""
REFUND = ToolSpec(
    name="refund",
    run_by="client",
    schema='{"type":"object","properties":{"order":{"type":"string"},"amount":{"type":"integer"}},'
    '"required":["order","amount"],"additionalProperties":false}',
)


class Site:
    """A workspace `shop` with a tool that people are asked about, and its console."""

    def __init__(self, server: EmbeddedServer, service: Ledger, app: FastAPI) -> None:
        self.server = server
        self.service = service
        self.app = app
        #: Who the next requests are from.
        self.visitor = Visitor("ana", frozenset(Role))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://console") as client:
            yield client

    async def ask(self, call: str, arguments: str = '{"order":"A-17","amount":480}') -> str:
        """Request a refund for rita, and wait until people are asked. Returns its digest."""
        known = await self.service.request(call, "refund", arguments, requester="rita")
        async for fact in self.service.watch(1, known.ref.gated.subject):
            return fact.event.digest
        raise AssertionError


@asynccontextmanager
async def site(path, policy: str = POLICY, *tools: ToolSpec) -> AsyncIterator[Site]:
    async with EmbeddedServer(path / "store") as server:
        store = server.store.path
        started = reactions([kind for kind in KINDS if kind != "model"])
        await declare_streams(store, also=durables(started))
        async with (
            Ledger.connect(store, role="operator") as operator,
            Ledger.connect(store, name="desk") as service,
            working(started, store=store),
            console(store) as app,
        ):
            await operator.append(policy_slot("shop", 1), applied(policy))
            for spec in tools or (REFUND,):
                await service.declare("shop", spec)
            made = Site(server, service, app)

            @app.middleware("http")
            async def sign_in(request: Request, proceed):
                request.state.visitor = made.visitor
                return await proceed(request)

            yield made
