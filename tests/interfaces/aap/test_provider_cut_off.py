"""A provider of the Agent Approval Protocol that ends between any two of its reads and writes."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from agentapprovalprotocol import AsyncClient, ConflictError, Request
from asking_agent import Deaths, Killed
from shop import Shop, rule

from ayes.interfaces.aap.routes import application
from ayes.interfaces.aap.settings import ProviderSettings
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef

# What is tested here is the provider's; what it rests on is the contract of the log (test_log.py).
pytestmark = pytest.mark.log("memory")

TOKEN = "a" * 32
SETTINGS = ProviderSettings.model_validate(
    {"workspace": "shop", "instance": [{"name": "bot", "requester": "rita", "token": TOKEN}]}
)
THREAD = ThreadRef("shop", "aap-bot")
BODY: dict[str, Any] = {"tool": "search", "arguments": {"order": "A-17"}, "timeout": "10m"}


def client(log: Any) -> AsyncClient:
    """The released client of a provider in this process."""
    ledger = Ledger(log, e.Author(kind="service", name="provider"))
    transport = httpx.ASGITransport(application(SETTINGS, ledger))
    http = httpx.AsyncClient(transport=transport, timeout=60)
    return AsyncClient("http://localhost", TOKEN, http=http)


class Agent:
    """Does one call with a provider that dies, and with the next one. It sends each request again
    with the same key, as the released client does.
    """

    def __init__(self, dying: Deaths, log: EventLog, key: str) -> None:
        self._providers, self.key = [client(dying), client(log)], key
        self.runs = 0

    async def _asked(self, ask: Callable[[AsyncClient], Awaitable[Request]]) -> Request:
        try:
            return await ask(self._providers[0])
        except Killed:
            self._providers.pop(0)
        return await ask(self._providers[0])

    async def call(self) -> Request:
        made = await self._asked(lambda one: one.create(BODY, self.key))
        decided = await self._asked(lambda one: one.get(made.id, wait=25))
        assert decided.status == "approved"
        await self._asked(lambda one: one.consume(made.id, f"claim {self.key}"))
        self.runs += 1
        return await self._asked(lambda one: one.report_outcome(made.id, "succeeded"))

    async def end(self) -> None:
        for one in self._providers:
            await one.aclose()


async def test_cut_between_any_two_steps(port: EventLog):
    """Before and after each read and write, in each operation: the next provider goes on, the call
    is claimed once, and nobody else can consume it (I1, I6).
    """
    shop = Shop(port)
    await shop.apply(rule("harmless", "allow", tools="search"))
    cuts = 0
    async with shop.gates():
        for step in itertools.count(1):
            died = []
            for is_after in (False, True):
                dying = Deaths(port, step, after=is_after)
                agent = Agent(dying, port, f"{step} {is_after}")
                done = await agent.call()
                assert agent.runs == 1
                call = await shop.ledger.call(THREAD.call(done.id))
                assert (call.status, len(call.starts), call.void) == (Status.RETURNED, 1, ())
                with pytest.raises(ConflictError, match="already_consumed"):
                    await client(port).consume(done.id, "another run")
                await agent.end()
                died.append(dying.steps >= step)
            cuts += sum(died)
            if not any(died):
                break
    assert cuts > 30, "there are more steps than that"
