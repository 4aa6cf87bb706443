"""Instances of the Agent Approval Protocol that programs make, and the webhooks that wake them: the
released receiver over real HTTP.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aap_world as programs
import httpx
import pytest
from agentapprovalprotocol import (
    AsyncClient,
    CredentialRefused,
    ProvisionError,
    Receiver,
    Request,
    WebhookVerificationFailed,
)
from gateways import serving
from pages import blocks
from paths import ROOT
from sections import section
from shop import Shop, rule
from until import recorded, until

from ayes.interfaces.aap.instances import LASTS, InstancesFile
from ayes.interfaces.aap.provisioning import opened
from ayes.interfaces.aap.routes import application
from ayes.interfaces.aap.settings import ProviderSettings
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.slots import ThreadRef

# What is tested here is the provider's; what it rests on is the contract of the log (test_log.py).
pytestmark = pytest.mark.log("memory")

PAGE = ROOT / "docs" / "aap.md"
POLICY = rule("money", "ask")
PROVISIONER, OTHER = "p" * 32, "q" * 32
SETTINGS: dict[str, Any] = {
    "workspace": "shop",
    "allow_private": True,
    "instance": [{"name": "listed", "requester": "rita", "token": "l" * 32}],
    "provisioner": [
        {"requester": "rita", "token": PROVISIONER},
        {"requester": "ben", "token": OTHER},
    ],
}
BODY: dict[str, Any] = {
    "tool": "refund",
    "arguments": {"order": "A-17"},
    "timeout": "10m",
    "context": {"resume": {"framework": "test", "run": "r-1"}},
}


class Agent:
    """A program that is woken: the released receiver, and what it was woken for."""

    def __init__(self) -> None:
        self.woken: list[tuple[str, str]] = []
        self.receiver = Receiver(resumers={"test": self._resume})
        self.answers = True

    async def _resume(self, handle: Mapping[str, Any], request: Request) -> None:
        self.woken.append((request.id, request.status))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.answers or scope["type"] != "http":
            await self.receiver.asgi()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def until_woken(self, times: int = 1) -> None:
        await until(lambda: len(self.woken) >= times)


class World:
    """A ledger whose provider can be started again, with its file of instances."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.shop, self.file = shop, folder / "ayes.instances.json"
        self.ana = shop.ledger.reviewer("ana")

    @asynccontextmanager
    async def provider(self, later: timedelta = timedelta(), **more: Any) -> AsyncIterator[str]:
        """A provider whose clock is ahead by so much."""
        settings = ProviderSettings.model_validate(SETTINGS | more)
        author = e.Author(kind="service", name="provider")
        ledger = Ledger(self.shop.log, author, now=lambda: clock.now() + later)
        async with (
            opened(settings, ledger, self.file) as made,
            serving(application(settings, ledger, made)) as url,
        ):
            yield url.removesuffix("/mcp")

    def told(self, instance: str) -> int:
        return InstancesFile(self.file).read().instances[instance].told

    async def approve(self, name: str, request: str) -> None:
        ref = ThreadRef("shop", f"aap-{name}").call(request)
        await self.shop.until(ref.gated)
        await self.ana.approve(ref)


@pytest.fixture
async def world(port: EventLog, tmp_path: Path) -> AsyncIterator[World]:
    shop = Shop(port)
    await shop.apply(POLICY)
    async with shop.gates():
        yield World(shop, tmp_path)


async def provisioned(
    agent: Agent, url: str, at: str, token: str = PROVISIONER, **more: Any
) -> Any:
    return await agent.receiver.provision(provider_url=url, provisioner_token=token, url=at, **more)


async def ended(agent: Agent) -> None:
    if agent.receiver.client is not None:
        await agent.receiver.client.aclose()


async def test_a_receiver_is_verified_and_woken(world: World):
    """The receiver is woken once people have decided; it asks the provider what (B1)."""
    agent, names = Agent(), {}
    _, shown = blocks(PAGE, "python")
    exec(compile(shown.text, str(PAGE), "exec"), names)
    async with world.provider() as url, serving(agent) as at:
        token = await names["registered"](agent.receiver, url, PROVISIONER, at)
        again = await provisioned(agent, url, at, instance_name="desk-bot")
        assert token == again.token
        client = AsyncClient(url, token)
        asked = await client.create(BODY, "k")
        await world.approve("desk-bot", asked.id)
        await agent.until_woken()
        assert agent.woken == [(asked.id, "approved")]
        call = await world.shop.ledger.call(ThreadRef("shop", "aap-desk-bot").call(asked.id))
        assert (call.wish.requester, call.wish.agent) == ("rita", "desk-bot")
        await client.aclose()
        await ended(agent)
    assert world.file.stat().st_mode & 0o077 == 0
    assert token not in world.file.read_text()


async def test_a_receiver_that_was_away_is_told(world: World):
    """Neither 503 nor a restart of the provider loses anything or repeats what was taken."""
    agent = Agent()
    async with serving(agent) as at:
        async with world.provider() as url:
            made = await provisioned(agent, url, at, instance_name="desk-bot")
            client = AsyncClient(url, made.token)
            first = await client.create(BODY, "1")
            await world.approve("desk-bot", first.id)
            await agent.until_woken()
            agent.answers = False
            second = await client.create(BODY, "2")
            await world.approve("desk-bot", second.id)
            await world.shop.until(ThreadRef("shop", "aap-desk-bot").call(second.id).decided)
            await client.aclose()
        await ended(agent)
        async with world.provider() as url:
            agent.receiver.client = AsyncClient(url, made.token)
            agent.answers = True
            await agent.until_woken(2)
            await ended(agent)
    assert [one for one, _ in agent.woken] == [first.id, second.id]


async def test_a_receiver_is_told_for_seven_days(world: World):
    """After them a decision is told no more, and the next one is."""
    agent = Agent()
    async with serving(agent) as at:
        async with world.provider() as url:
            made = await provisioned(agent, url, at, instance_name="desk-bot")
            await ended(agent)
            agent.answers = False
            client = AsyncClient(url, made.token)
            old = await client.create(BODY, "1")
            await world.approve("desk-bot", old.id)
            await client.aclose()
        decided = await world.shop.until(ThreadRef("shop", "aap-desk-bot").call(old.id).decided)
        async with world.provider(later=timedelta(days=8)) as url:
            agent.receiver.client = client = AsyncClient(url, made.token)
            await until(lambda: world.told(made.instance_id) >= decided.seq)
            agent.answers = True
            new = await client.create(BODY, "2")
            await world.approve("desk-bot", new.id)
            await agent.until_woken()
            await ended(agent)
    assert [one for one, _ in agent.woken] == [new.id]


async def test_killed_between_a_decision_and_its_webhook(tmp_path: Path):
    """Program and broker are killed; once back, they tell what was decided meanwhile."""
    agent = Agent()
    async with programs.world(tmp_path) as made, serving(agent) as at:
        of = await provisioned(agent, made.provider_url, at, instance_name="desk-bot")
        client, ana = AsyncClient(made.provider_url, of.token), made.ledger.reviewer("ana")
        for number, target in enumerate(("provider", "broker")):
            asked = await client.create(BODY, target)
            ref = ThreadRef("shop", "aap-desk-bot").call(asked.id)
            agent.answers = False
            await recorded(made.ledger, ref.gated.subject)
            await ana.approve(ref)
            await made.ledger.decision(ref, timeout_s=60)
            await made.kill(target)
            agent.answers = True
            await agent.until_woken(number + 1)
            assert agent.woken[-1] == (asked.id, "approved")
        await client.aclose()
        await ended(agent)


async def test_who_does_not_answer_for_it_is_not_told(world: World):
    """A receiver that knows nothing of the registration makes no instance."""
    agent, stranger = Agent(), Agent()
    stranger.receiver = Receiver(resumers={}, secret="whsec_" + "A" * 43 + "=")
    async with world.provider() as url, serving(stranger) as at:
        with pytest.raises(WebhookVerificationFailed):
            await provisioned(agent, url, at)
        with pytest.raises(ProvisionError) as refused:
            await provisioned(agent, url, at, token="x" * 32)
        assert refused.value.status == 401
        for where in ("ftp://127.0.0.1/x", at.replace("://", "://user:password@")):
            with pytest.raises(ProvisionError) as refused:
                await provisioned(agent, url, where)
            assert refused.value.status == 400
    async with world.provider(allow_private=False) as url, serving(agent) as at:
        # Neither in clear nor to a name that leads inside, of which the address is not told.
        for where in (at, at.replace("http://", "https://").replace("127.0.0.1", "localhost")):
            with pytest.raises(ProvisionError) as refused:
                await provisioned(agent, url, where)
            assert "127.0.0.1" not in str(refused.value)
            assert "::1" not in str(refused.value)
    assert InstancesFile(world.file).read().instances == {}


async def test_a_removed_instance_asks_no_more(world: World):
    """What it waits for is withdrawn, its token is refused, and its name is nobody else's."""
    async with world.provider() as url, httpx.AsyncClient(base_url=url) as http:
        headers = {"Authorization": f"Bearer {PROVISIONER}", "Idempotency-Key": "one"}
        made = await http.post("/v1/instances", headers=headers, json={"instance_name": "bot"})
        assert made.status_code == 201
        token, path = made.json()["credential"]["token"], made.json()["instance"]["id"]
        client = AsyncClient(url, token)
        waiting = await client.create(BODY, "k")
        others = {"Authorization": f"Bearer {OTHER}"}
        assert (await http.get("/v1/instances", headers=others)).json() == {"instances": []}
        unknown = await http.delete(f"/v1/instances/{path}", headers=others)
        assert unknown.status_code == 404
        known = await http.get("/v1/instances", headers=headers)
        assert known.json() == {"instances": [{"id": path, "name": "bot"}]}
        removed = await http.delete(f"/v1/instances/{path}", headers=headers)
        assert removed.status_code == 200
        with pytest.raises(CredentialRefused):
            await client.get(waiting.id)
        await world.shop.until(ThreadRef("shop", "aap-bot").call(waiting.id).withdrawn)
        for name, key in (("bot", "two"), ("listed", "three"), ("a b", "four")):
            refused = await http.post(
                "/v1/instances",
                headers=headers | {"Idempotency-Key": key},
                json={"instance_name": name},
            )
            assert refused.status_code == 400, name
        used = await http.post("/v1/instances", headers=headers, json={"instance_name": "other"})
        assert used.json()["error"]["code"] == "idempotency_conflict"
        await client.aclose()


async def test_the_token_of_an_instance_ends(world: World):
    """After ninety days it is refused; until then its instance asks."""
    async with world.provider() as url, httpx.AsyncClient(base_url=url) as http:
        headers = {"Authorization": f"Bearer {PROVISIONER}", "Idempotency-Key": "one"}
        made = await http.post("/v1/instances", headers=headers, json={"instance_name": "bot"})
    token = made.json()["credential"]["token"]
    async with world.provider(later=LASTS - timedelta(hours=1)) as url:
        client = AsyncClient(url, token)
        asked = await client.create(BODY, "k")
        await client.aclose()
    async with world.provider(later=LASTS) as url:
        client = AsyncClient(url, token)
        with pytest.raises(CredentialRefused):
            await client.get(asked.id)
        await client.aclose()


def test_the_settings_of_the_page(tmp_path: Path):
    """Both blocks together are a file of a provider."""
    text = "".join(one.text for one in blocks(PAGE, "toml"))
    known = {"SUPPORT_BOT_TOKEN": OTHER, "PROVISIONER_TOKEN": PROVISIONER}
    found = section("aap", tmp_path, text, known)
    assert [(one.requester, one.token) for one in found.provisioners] == [("ben", PROVISIONER)]
    same = {"SUPPORT_BOT_TOKEN": OTHER, "PROVISIONER_TOKEN": OTHER}
    with pytest.raises(BadFile, match="have the same token"):
        section("aap", tmp_path, text, same)


async def test_a_listed_instance_takes_no_name(world: World):
    """That of an instance that a program has made: it would see its requests."""
    async with world.provider() as url, httpx.AsyncClient(base_url=url) as http:
        headers = {"Authorization": f"Bearer {PROVISIONER}", "Idempotency-Key": "one"}
        made = await http.post("/v1/instances", headers=headers, json={"instance_name": "bot"})
        assert made.status_code == 201
    listed = [{"name": "bot", "requester": "ben", "token": "l" * 32}]
    with pytest.raises(BadInput, match="a program has made one of that name"):
        async with world.provider(instance=listed):
            pass


async def test_without_a_provisioner_there_are_no_instances(world: World):
    """The paths are not there; and a file that is broken serves nobody."""
    async with world.provider(provisioner=[]) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.post("/v1/instances")).status_code == 404
    broken = world.file
    broken.touch(mode=0o600)
    broken.write_text("{")
    with pytest.raises(BadFile, match="not a file of instances"):
        InstancesFile(world.file).read()
