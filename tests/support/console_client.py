"""The console over a real broker with its workers, asked by a client in the same process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from brokers import running
from fastapi import FastAPI
from until import recorded

from ayes.interfaces.access.security import Security
from ayes.interfaces.console.application import console
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role, Visitor
from ayes.ops.workers import KINDS, durables, reactions, working
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot
from ayes.schemas.tools import ToolSpec

URL = "http://127.0.0.1:8420"
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
        self.security: Security = app.state.security
        #: Who the next requests are from: a person with a session, a program with a token, or None.
        self.visitor: Visitor | None = Visitor("ana", frozenset(Role))
        self._secrets: dict[Visitor, str] = {}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A browser, or a program, whose requests are those of `visitor`."""
        transport = httpx.ASGITransport(app=self.app)
        hooks = {"request": [self._sign]}
        async with httpx.AsyncClient(
            transport=transport, base_url=self.security.url, event_hooks=hooks
        ) as client:
            yield client

    def secret_of(self, visitor: Visitor) -> str:
        """The secret of this visitor's session or token; it begins when it is first asked for."""
        if visitor not in self._secrets:
            if visitor.kind == "session":
                self._secrets[visitor] = self.security.sessions.begin(visitor)
            else:
                [role] = visitor.roles
                lasts = timedelta(days=1)
                self._secrets[visitor], _ = self.security.access.add_token(
                    visitor.name, role, lasts, visitor.workspaces
                )
        return self._secrets[visitor]

    def expire(self, visitor: Visitor) -> None:
        """End this visitor's session."""
        self.security.sessions.end(self._secrets.pop(visitor))

    async def _sign(self, request: httpx.Request) -> None:
        if self.visitor is None:
            return
        if self.visitor.kind == "token":
            request.headers["authorization"] = f"Bearer {self.secret_of(self.visitor)}"
            return
        request.headers["cookie"] = f"{self.security.cookie}={self.secret_of(self.visitor)}"
        request.headers.setdefault("origin", self.security.url)

    async def ask(
        self,
        call: str,
        arguments: str = '{"order":"A-17","amount":480}',
        tool: str = "refund",
    ) -> str:
        """Request a call for rita, and wait until people are asked. Returns its digest."""
        known = await self.service.request(call, tool, arguments, requester="rita")
        [fact] = await recorded(self.service, known.ref.gated.subject)
        return fact.event.digest


@asynccontextmanager
async def site(path, policy: str = POLICY, *tools: ToolSpec) -> AsyncIterator[Site]:
    started = reactions([kind for kind in KINDS if kind != "model"])
    async with running(path / "store", also=tuple(durables(started))) as server:
        store = server.store.path
        async with (
            Ledger.connect(store, role="operator") as operator,
            Ledger.connect(store, name="desk") as service,
            working(started, store=store),
            console(Security(AccessFile(server.store), URL)) as app,
        ):
            await operator.append(policy_slot("shop", 1), applied(policy))
            for spec in tools or (REFUND,):
                await service.declare("shop", spec)
            yield Site(server, service, app)


def routes(app: FastAPI) -> Iterator[str]:
    """Each method and path of the application's own table."""
    for each in app.routes:
        if hasattr(each, "original_router"):
            prefix = each.include_context.prefix
            inner = [(prefix + one.path, one.methods) for one in each.original_router.routes]
        elif hasattr(each, "methods"):
            inner = [(each.path, each.methods)]
        else:
            assert each.path == "/static"
            continue
        for path, methods in inner:
            yield from (f"{method} {path}" for method in methods - {"HEAD"})


async def listed(client: httpx.AsyncClient, count: int) -> dict[str, Any]:
    """The page of pending calls, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get("/api/v1/calls?status=pending")
            # The list may be loading.
            if answer.status_code == 200 and answer.json()["waiting"] == count:
                return answer.json()
            await asyncio.sleep(0.02)
