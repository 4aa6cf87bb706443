"""The provider of the Agent Approval Protocol, asked by the released client over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentapprovalprotocol import AsyncClient, ConflictError, CredentialRefused, NotFound
from agentapprovalprotocol import AsyncGate as Gate
from agentapprovalprotocol import Call as Wished
from asking_agent import Raising
from gateways import serving
from msgspec.structs import replace
from shop import Shop, rule
from until import question

from ayes.interfaces.aap.routes import application
from ayes.interfaces.aap.settings import ProviderSettings
from ayes.interfaces.aap.wire import CONTEXT, REASONING, request_id
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.thread_keys import ThreadKeys
from ayes.schemas import events as e
from ayes.schemas.slots import StopRef, ThreadRef
from ayes.schemas.tools import ToolSpec

# What is tested here is the provider's; what it rests on is the contract of the log (test_log.py).
pytestmark = pytest.mark.log("memory")

POLICY = (
    rule("harmless", "allow", tools="search desk/*")
    + rule("money", "ask", "editor_counts = true", tools="refund github/*")
    + rule("brief", "allow", "valid_for_s = 0.3", tools="brief")
    + rule("lasting", "allow", "valid_for_s = 3600", tools="lasting")
    + rule("never", "block", 'reason = "it cannot be undone"', tools="wipe")
)
TOKEN, OTHERS = "a" * 32, "b" * 32
SETTINGS = ProviderSettings.model_validate(
    {
        "workspace": "shop",
        "outcome_within": "15m",
        "instance": [
            {"name": "bot", "requester": "rita", "token": TOKEN},
            {"name": "other", "requester": "rita", "token": OTHERS},
        ],
    }
)
THREAD = ThreadRef("shop", "aap-bot")
BODY: dict[str, Any] = {"tool": "refund", "arguments": {"order": "A-17"}, "timeout": "10m"}


class World:
    """A provider over HTTP, its gate, and a reviewer."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.shop, self.url = shop, url
        self.clients: list[AsyncClient] = []
        self.ana = shop.ledger.reviewer("ana")

    def client(self, token: str = TOKEN, **options: Any) -> AsyncClient:
        made = AsyncClient(self.url, token, **{"retry_budget": 5.0} | options)
        self.clients.append(made)
        return made

    def gate(self, **options: Any) -> Gate:
        return Gate(self.client(), **options)

    async def asked(self) -> Call:
        return await question(self.shop.ledger, THREAD)

    async def call(self, name: str) -> Call:
        return await self.shop.ledger.call(THREAD.call(name))


@pytest.fixture
async def world(port: EventLog) -> AsyncIterator[World]:
    shop = Shop(port)
    await shop.apply(POLICY)
    async with shop.gates(), serving(application(SETTINGS, shop.ledger)) as url:
        made = World(shop, url.removesuffix("/mcp"))
        yield made
        for client in made.clients:
            await client.aclose()


def wished(tool: str = "refund", key: str = "run:1", **more: Any) -> Wished:
    return Wished(key, tool, {"order": "A-17"}, **more)


async def test_what_the_policy_allows_is_approved_consumed_and_reported(world: World):
    """The released gate allows it; the ledger has request, claim and outcome (B1, I1)."""
    allowed = await world.gate().check(wished("search"))
    assert allowed
    call = await world.call(allowed.request_id)
    assert (call.status, call.wish.requester, call.wish.agent) == (Status.RUNNING, "rita", "bot")
    assert await allowed.report("succeeded", "3 found")
    assert await allowed.report("succeeded", "3 found")
    assert not await allowed.report("failed", "3 found")
    call = await world.call(allowed.request_id)
    assert (call.status, call.finished.event.output) == (Status.RETURNED, "3 found")


async def test_an_agent_that_can_pause_does_not_where_nobody_is_asked(world: World):
    """The request is answered once the gate has judged it."""
    assert await world.gate(mode="async").check(wished("search"))


async def test_what_comes_back_is_what_was_sent(world: World):
    """Numbers, the context and the reasoning, to the last digit: the client compares them."""
    exact = '{"tool":"github/x","server":"desk","arguments":{"n":1.0000000000000000001,"a":[null]},'
    exact += '"timeout":"90s","agent_reasoning":"\\u00e9","context":{"call_id":"1","deep":[1.50]}}'
    async with httpx.AsyncClient(base_url=world.url) as http:
        headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "k"}
        made = await http.post("/v1/requests", content=exact, headers=headers)
        again = await http.post("/v1/requests", content=exact, headers=headers)
    assert (made.status_code, again.status_code) == (201, 200)
    for part in ('"arguments":{"n":1.0000000000000000001,"a":[null]}', '"deep":[1.50]', '"é"'):
        assert part in made.text
    call = await world.call(request_id("bot", "k"))
    assert call.wish.tool == "desk/github/x"
    assert call.wish.labels[REASONING] == "é"
    assert call.wish.labels[CONTEXT] == '{"call_id":"1","deep":[1.50]}'


@pytest.mark.parametrize(
    ("how", "more", "status", "words"),
    [
        ("deny", {"reason": "not this one"}, "denied", "not this one"),
        ("answer", {"answer": "It was paid by hand."}, "denied", "It was paid by hand."),
        ("approve", {"arguments": '{"order":"B-2"}'}, "denied",
         'exactly these arguments: {"order"'),
    ],
)  # fmt: skip
async def test_what_people_say_instead_reaches_the_model(world: World, how, more, status, words):
    """Nothing runs that the protocol cannot carry; the note says what people said (B61)."""
    checking = asyncio.create_task(world.gate().check(wished()))
    call = await world.asked()
    await world.ana.vote(call.ref, Ballot(how, **more))
    said = await checking
    assert (bool(said), said.status) == (False, status)
    assert words in said.reason
    with pytest.raises(ConflictError, match="not_approved"):
        await world.client().consume(call.ref.call, "k")
    assert not (await world.call(call.ref.call)).starts


async def test_a_call_that_waits_is_found_again_and_runs_once(world: World):
    """In async mode the run pauses. Asked again it is the same request, also from another process;
    approved it is consumed once, and every other attempt is told so (I1, I6).
    """
    first = await world.gate(mode="async").check(wished())
    again = await world.gate(mode="async").check(wished())
    assert first == again
    await world.ana.approve((await world.asked()).ref)
    gates = [world.gate(timeout="24h") for _ in range(4)]
    checks = await asyncio.gather(*(gate.check(wished()) for gate in gates))
    assert sorted(bool(one) for one in checks) == [False, False, False, True]
    assert {one.status for one in checks if not one} == {"consumed"}
    call = await world.call(first.request_id)
    assert len(call.starts) == 1
    # The answer to its own consumption was lost: the same key is the same claim.
    claimed = (await world.shop.ledger.read(call.ref.client_claim(1)))[0].event
    assert isinstance(claimed, e.ToolStarted)
    assert claimed.lease_s == 900


async def test_the_same_key_is_the_same_claim(world: World):
    """Before and after the outcome; another key never is."""
    client = world.client()
    made = await client.create(BODY | {"tool": "search"}, "k-1")
    await client.get(made.id, wait=25)
    for _ in range(2):
        assert (await client.consume(made.id, "once")).consumption.outcome is None
    await client.report_outcome(made.id, "failed")
    told = (await client.consume(made.id, "once")).consumption.outcome
    assert (told.status, told.note) == ("failed", None)
    for key in ("twice", "onc"):
        with pytest.raises(ConflictError, match="already_consumed"):
            await client.consume(made.id, key)


async def test_what_was_not_consumed_has_no_outcome(world: World):
    """Also if it was approved: the agent ran it without a claim, or means another one."""
    client = world.client()
    made = await client.create(BODY | {"tool": "search"}, "k")
    await client.get(made.id, wait=25)
    with pytest.raises(ConflictError, match="not_consumed"):
        await client.report_outcome(made.id, "succeeded")
    assert (await world.call(made.id)).status is Status.APPROVED


async def test_an_agent_that_waits_no_longer(world: World):
    """Its timeout is the call's; cancelled it is withdrawn, unless it is decided (B36)."""
    client = world.client()
    made = await client.create(BODY | {"timeout": "1s"}, "short")
    assert made.deadline_at - made.created_at == timedelta(seconds=1)
    assert (await client.get(made.id, wait=25)).status == "expired"
    waiting = await client.create(BODY, "long")
    assert (await client.cancel(waiting.id)).status == "cancelled"
    assert (await client.cancel(waiting.id)).status == "cancelled"
    assert isinstance((await world.call(waiting.id)).decided.event, e.Withdrawn)
    allowed = await client.create(BODY | {"tool": "search"}, "allowed")
    await client.get(allowed.id, wait=25)
    with pytest.raises(ConflictError, match="already_terminal"):
        await client.cancel(allowed.id)


async def test_an_approval_that_is_too_old_does_not_start(world: World):
    """It stays approved for the protocol, with an end that has passed (line 5 of B37)."""
    client = world.client()
    made = await client.create(BODY | {"tool": "brief"}, "k")
    approved = await client.get(made.id, wait=25)
    assert approved.decision.expires_at - approved.decision.decided_at == timedelta(seconds=0.3)
    await world.shop.until(THREAD.call(made.id).lapsed)
    assert (await client.get(made.id)).decision.expires_at < datetime.now(UTC)
    with pytest.raises(ConflictError, match="approval_expired"):
        await client.consume(made.id, "k")
    assert not (await world.call(made.id)).starts


async def test_an_approval_is_too_old_before_the_gate_has_said_so(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """The broker's clock says it first."""
    client, ledger = world.client(), world.shop.ledger
    made = await client.create(BODY | {"tool": "lasting"}, "k")
    ends = (await client.get(made.id, wait=25)).decision.expires_at

    async def clock() -> datetime:
        return ends

    monkeypatch.setattr(ledger, "now", lambda: ends)
    monkeypatch.setattr(ledger.log, "clock", clock)
    with pytest.raises(ConflictError, match="approval_expired"):
        await client.consume(made.id, "k")


@pytest.mark.parametrize("why", ["a stop", "a key that is elsewhere"])
async def test_what_is_approved_and_may_not_start_is_not_said_to_be_too_old(
    world: World, why: str, tmp_path: Path
):
    """The agent is told what is so, and may consume it as soon as that has ended."""
    ledger, client = world.shop.ledger, world.client()
    sealed = ("/order",) if why == "a key that is elsewhere" else ()
    schema = '{"type":"object","properties":{"order":{"type":"string"}}}'
    await ledger.declare("shop", ToolSpec(name="search", schema=schema, sealed=sealed))
    ledger.keys = ThreadKeys(tmp_path)
    made = await client.create(BODY | {"tool": "search"}, "k")
    await client.get(made.id, wait=25)
    if sealed:
        ledger.keys = None
    else:
        stop = await world.ana.stop(StopRef("shop", "ana", "s1"), reason="look first")
    with pytest.raises(ConflictError) as told:
        await client.consume(made.id, "k")
    words = "the key of its thread is not here" if sealed else "may not start: "
    assert (told.value.code, words in told.value.message) == ("refused", True)
    assert not (await world.call(made.id)).starts
    if sealed:
        ledger.keys = ThreadKeys(tmp_path)
    else:
        await world.ana.resume(stop.ref)
    assert (await client.consume(made.id, "k")).consumption


async def test_an_approval_that_was_taken_back_does_not_start(world: World):
    """The agent reads who said so, in words."""
    client = world.client()
    made = await client.create(BODY, "k")
    await world.ana.approve((await world.asked()).ref)
    await client.get(made.id, wait=25)
    await world.ana.revoke(THREAD.call(made.id), reason="I read it again.")
    told = await client.get(made.id)
    assert (told.status, told.decision.note) == (
        "denied",
        "The approval was taken back before the call began: I read it again.",
    )
    with pytest.raises(ConflictError, match="not_approved"):
        await client.consume(made.id, "k")


async def test_an_agent_that_dies_leaves_the_call_in_doubt(world: World):
    """A person finds out; what the agent reports after that is kept as late (I7)."""
    client = world.client()
    made = await client.create(BODY | {"tool": "search"}, "k")
    await client.get(made.id, wait=25)
    await client.consume(made.id, "k")
    await world.shop.ledger.doubt(THREAD.call(made.id))
    assert (await client.get(made.id)).consumption.outcome is None
    await client.report_outcome(made.id, "succeeded", "it did")
    call = await world.call(made.id)
    assert (call.status, call.late_result.output) == (Status.IN_DOUBT, "it did")
    await world.ana.reconcile(call.ref, happened=True, output="Paid, says the bank.")
    told = (await client.get(made.id)).consumption.outcome
    assert (told.status, told.note) == ("succeeded", "Paid, says the bank.")


async def test_nobody_reads_or_consumes_anothers_request(world: World):
    """An id is no secret; the token says whose it is."""
    made = await world.client().create(BODY | {"tool": "search"}, "k")
    other = world.client(OTHERS)
    for asking in (
        lambda: other.get(made.id),
        lambda: other.consume(made.id, "k"),
        lambda: other.cancel(made.id),
        lambda: other.report_outcome(made.id, "succeeded"),
        lambda: other.get("no-such-request"),
        lambda: other.get("a.b"),
    ):
        with pytest.raises(NotFound):
            await asking()
    with pytest.raises(CredentialRefused):
        await world.client("c" * 32).get(made.id)
    # A service may write into the thread of an agent.
    wish = (await world.call(made.id)).wish
    await world.shop.ledger.append(THREAD.call("x").requested, replace(wish, agent="other"))
    with pytest.raises(NotFound):
        await world.client().get("x")
    # The same key is another request of another agent.
    assert (await other.create(BODY, "k")).id != made.id


async def test_a_provider_of_another_workspace_has_no_such_request(world: World):
    """B74: an agent of the same name, with the same token, reads and consumes nothing of it."""
    made = await world.client().create(BODY | {"tool": "search"}, "k")
    elsewhere = SETTINGS.model_copy(update={"workspace": "bank"})
    async with serving(application(elsewhere, world.shop.ledger)) as url:
        other = AsyncClient(url.removesuffix("/mcp"), TOKEN)
        for asking in (
            lambda: other.get(made.id),
            lambda: other.consume(made.id, "k"),
            lambda: other.cancel(made.id),
            lambda: other.report_outcome(made.id, "succeeded"),
        ):
            with pytest.raises(NotFound):
                await asking()
        await other.aclose()
    assert (await world.call(made.id)).status is Status.APPROVED


async def test_a_key_is_for_one_request(world: World):
    """Other arguments, another tool, context or timeout under the same key are refused."""
    client = world.client()
    await client.create(BODY, "k")
    for change in (
        {"arguments": {"order": "B-2"}},
        {"tool": "search"},
        {"timeout": "11m"},
        {"context": {"call_id": "2"}},
    ):
        with pytest.raises(ConflictError, match="idempotency_conflict"):
            await client.create(BODY | change, "k")


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("not JSON", {"content": b"{"}, "not one of the protocol"),
    ("a key twice", {"content": b'{"tool":"a","tool":"b","arguments":{},"timeout":"1m"}'}, "twice"),
    ("no tool", {"json": BODY | {"tool": ""}}, "names no tool"),
    ("a list", {"json": BODY | {"arguments": [1]}}, "must be an object"),
    ("no time", {"json": BODY | {"timeout": "soon"}}, "is not a time"),
    ("no time at all", {"json": BODY | {"timeout": "0s"}}, "is not a time"),
    ("another field", {"json": BODY | {"approved": True}}, "approved"),
    ("a name", {"json": BODY | {"tool": "a b"}}, "cannot be named so"),
    ("an executor's tool", {"json": BODY | {"tool": "pay"}}, "not by agents"),
]


async def test_what_is_no_request_is_refused_in_one_sentence(world: World):
    """And nothing is recorded. JSON is UTF-8."""
    await world.shop.ledger.declare(
        "shop", ToolSpec(name="pay", schema='{"type":"object"}', run_by="executor")
    )
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "k"}
    not_utf_8 = b'{"status":"succeeded","note":"\xff"}'
    async with httpx.AsyncClient(base_url=world.url, headers=headers) as http:
        for name, sent, said in BAD:
            answer = await http.post("/v1/requests", **sent)
            assert answer.status_code == 400, name
            assert said in answer.json()["error"]["message"], name
        for path in ("/v1/requests", "/v1/requests/x/outcome"):
            answer = await http.post(path, content=not_utf_8)
            assert answer.status_code == 400
            assert "is not UTF-8" in answer.json()["error"]["message"]
    assert await world.shop.ledger.read(THREAD) == ()


async def test_without_the_ledger_nothing_is_approved(port: EventLog):
    """The client tries again until it gives up, and denies (fails closed)."""
    shop = Shop(port)
    await shop.apply(POLICY)
    ledger = Ledger(Raising(port), e.Author(kind="service", name="provider"))
    async with shop.gates(), serving(application(SETTINGS, ledger)) as url:
        client = AsyncClient(url.removesuffix("/mcp"), TOKEN, retry_budget=0.5)
        said = await Gate(client).check(wished("search"))
        await client.aclose()
    assert (bool(said), said.status) == (False, "error")
    assert await shop.ledger.read(ThreadRef("shop", "aap-bot")) == ()


async def test_another_provider_goes_on(world: World):
    """It keeps nothing, so one that was killed is replaced by the next, over another connection."""
    client = world.client()
    made = await client.create(BODY, "k")
    ledger = Ledger(world.shop.log, world.shop.ledger.author)
    async with serving(application(SETTINGS, ledger)) as url:
        other = AsyncClient(url.removesuffix("/mcp"), TOKEN)
        assert (await other.create(BODY, "k")).id == made.id
        await world.ana.approve((await world.asked()).ref)
        await other.get(made.id, wait=25)
        await other.consume(made.id, "k")
        assert (await client.consume(made.id, "k")).consumption
        await client.report_outcome(made.id, "succeeded")
        assert (await other.get(made.id)).consumption.outcome.status == "succeeded"
        await other.aclose()
