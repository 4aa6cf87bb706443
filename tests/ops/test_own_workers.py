"""Executors and models of two tenants on one broker: each follows its own durable, and no other."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from brokers import running
from logins import connected
from until import until

from ayes.consumers.model import ModelReply
from ayes.consumers.tools import Tools
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Parked
from ayes.ledger.nats.credentials import LoginFile, RegisteredLogin
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.actions import logins
from ayes.ops.actions.parked import marked
from ayes.ops.broker.setup import apply_policy, declare_streams
from ayes.ops.inspection.checks import GUARD, READY, glance, problems
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerRefused
from ayes.schemas.slots import CallRef, ThreadRef

ALLOW = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
PLACES = ("shop", "bank")


@pytest.fixture
async def store(tmp_path):
    async with running(tmp_path / "store") as server:
        async with Ledger.connect(server.store.path, role="operator") as operator:
            for where in PLACES:
                await apply_policy(operator, where, ALLOW, "a test")
        yield server.store


async def added(store, name, role, *workspaces):
    """The file of a new login."""
    now = datetime.now(UTC)
    new = RegisteredLogin(role, "", now + timedelta(hours=1), now, workspaces)
    made = await logins.add(store, name, new, "")
    file = store.path.parent / f"{name}.login"
    file.write_bytes(msgspec.json.encode(made))
    return str(file)


def paying(begun, name="pay", waits=None):
    """A tool that says who ran what."""
    tools = Tools()

    @tools.add(name=name)
    async def pay(order: str) -> str:
        begun.append(order)
        await (waits.wait() if waits else asyncio.sleep(0))
        return f"paid {order}"

    return tools


@asynccontextmanager
async def executors(store, **of):
    """Of each login, by its file, with its tools declared in its workspace; of the site by None."""
    async with AsyncExitStack() as stack:
        for name, (file, tools, where) in of.items():
            login = name.replace("_", "-") if file else ""
            own = tools.of(login) if login else tools
            at = {"url": file} if file else {"store": store.path}
            async with Ledger.connect(at.get("store"), url=file, role="executor") as ledger:
                for one in where:
                    await own.declare(ledger, one)
            started = reactions(["executor"], tools=own, login=login)
            await stack.enter_async_context(working(started, **at))
        yield


async def consumer(store, name, stream="LEDGER"):
    async with JetStream.connect(store.path, role="admin") as log:
        return await log.api.call(f"CONSUMER.INFO.{stream}.{name}", repeat=True)


# -------------------------------------------------------------------------------------- running


async def test_two_tenants_run_their_calls_at_once_and_each_only_its_own(store):
    """Beside the site's executor, which runs and declines none of theirs, nor they its (I9)."""
    begun = {"shop": [], "bank": [], "site": []}
    both = asyncio.Barrier(2)
    files = {where: await added(store, f"{where}-tools", "executor", where) for where in PLACES}
    async with (
        working(reactions(["gate"]), store=store.path),
        executors(
            store,
            shop_tools=(files["shop"], paying(begun["shop"], waits=both), ["shop"]),
            bank_tools=(files["bank"], paying(begun["bank"], waits=both), ["bank"]),
            site=(None, paying(begun["site"], "refund"), PLACES),
        ),
        Ledger.connect(store.path) as service,
    ):
        calls = []
        for where in PLACES:
            assert (await consumer(store, f"{where}-tools@executor"))["push_bound"]
            for tool in ("pay", "refund"):
                ref = CallRef(where, "t", f"c-{tool}")
                call = await service.request(ref, tool, {"order": where}, requester="rita")
                calls.append((ref, call.wish.run_by))
        for ref, _ in calls:
            done = await service.until(ref, lambda one: one.status is Status.RETURNED, 60)
            assert done.status is Status.RETURNED, ref
    assert (begun["shop"], begun["bank"], sorted(begun["site"])) == (
        ["shop"],
        ["bank"],
        ["bank", "shop"],
    )
    assert [one for _, one in calls] == ["shop-tools", "executor", "bank-tools", "executor"]
    for where in PLACES:
        there = await consumer(store, f"{where}-tools@executor")
        assert there["num_pending"] == there["num_ack_pending"] == 0
        assert there["config"]["filter_subjects"] == [
            f"ledger.{where}.*.call.*.{one}"
            for one in ("decided", "claim.*", "revoked.*", "lapsed")
        ]


class Echo:
    def __init__(self, name):
        self.name = name
        self.asked = []

    async def stream(self, question, on_text):
        self.asked.append(question.model)
        on_text(self.name)
        await asyncio.sleep(0.5)  # so that it is published, and once
        return ModelReply((e.Text(self.name),))

    async def reply(self, question):
        return await self.stream(question, lambda _: None)


async def test_a_thread_is_answered_by_the_model_whose_login_it_names(store):
    """And by the site's where it names none. Its live text is heard by who may read it, once."""
    mine, other, site = Echo("mine"), Echo("other"), Echo("site")
    shop = await added(store, "shop-llm", "model", "shop")
    bank = await added(store, "bank-llm", "model", "bank")
    near, far = [await added(store, f"{one}-eyes", "observer", one) for one in PLACES]
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        for model, login, at in (
            (mine, "shop-llm", {"url": shop}),
            (other, "bank-llm", {"url": bank}),
            (site, "", {"store": store.path}),
        ):
            started = reactions(["model"], models={"test": model}, login=login)
            await enter(working(started, **at))
        heard = []
        for at in ({"url": near}, {"store": store.path}, {"url": far}):
            log = await enter(JetStream.connect(role="observer", **at))
            heard.append(pieces := [])
            where = "bank" if at.get("url") == far else "shop"
            await log.connection.client.subscribe(f"live.{where}.>", cb=_into(pieces))
            await log.connection.client.flush()
        service = await enter(Ledger.connect(store.path))
        for thread, model in (("t", "shop-llm/test:m"), ("u", "test:m")):
            ref = ThreadRef("shop", thread)
            await service.append(ref.opened, e.ThreadOpened(requester="rita", model=model))
            await service.append(ref.said("m1"), e.Said(role="user", text="hello"))
        for thread, name in (("t", "mine"), ("u", "site")):
            replied = ThreadRef("shop", thread).replied(1)
            fact = await until(lambda slot=replied: service.log.latest(slot.subject))
            assert fact.event.parts == (e.Text(name),)
    assert (mine.asked, other.asked, site.asked) == (["test:m"], [], ["test:m"])
    for name in (b'"mine"', b'"site"'):
        assert [sum(name in one for one in pieces) for pieces in heard] == [1, 1, 0]
    assert heard[2] == []


def _into(pieces):
    async def take(message):
        pieces.append(message.data)

    return take


# ------------------------------------------------------------------------------------- attacking


def raw(file):
    """A plain client with the key of a login."""
    made = LoginFile.read(Path(file))
    return connected(made, made.name)


async def test_a_tenant_s_worker_cannot_touch_what_is_another_s(store):
    """Take its deliveries, settle them, change or delete its durable, or record in its workspace;
    neither directly nor by having an answer sent there (I9).
    """
    shop = await added(store, "shop-tools", "executor", "shop")
    bank = await added(store, "bank-tools", "executor", "bank")
    name = "bank-tools@executor"
    decided = CallRef("bank", "t", "c").decided
    async with (
        raw(shop) as thief,
        raw(bank) as owner,
        Ledger.connect(store.path, role="gate") as gate,
    ):
        taken = asyncio.Queue()
        await owner.client.subscribe(f"deliver.scoped.{name}", name, cb=taken.put)
        await owner.client.flush()
        await gate.log.connection.client.request(decided.subject, b"{}", timeout=60)
        delivery = await taken.get()
        before = await consumer(store, name)
        ack = delivery.reply
        assert ack.startswith(f"$JS.ACK.LEDGER.{name}.1.")
        own = ack.replace("bank-tools", "shop-tools")
        sealed = before["config"]["opt_start_time"]
        config = before["config"] | {"filter_subjects": ["ledger.>"]}
        body = json.dumps({"stream_name": "LEDGER", "config": config, "action": "update"}).encode()
        hours = json.dumps({"pause_until": "2199-01-01T00:00:00Z"}).encode()
        written = [f"ledger.bank.t.call.c.{one}" for one in ("claim.1", "finished", "late.1")]
        asked = {
            ack: b"+ACK",
            **dict.fromkeys(written, b"{}"),
            f"parked.executor.{name}.1": b"{}",
            f"deliver.scoped.{name}": b"{}",
            **{
                f"{prefix}.CONSUMER.{verb}.LEDGER.{name}": content
                for prefix in ("$JS.API", "reads.shop-tools.shop", "reads.bank-tools.bank")
                for verb, content in (
                    *(("DELETE", b""), ("PAUSE", hours), ("CREATE", body), ("INFO", b"")),
                    *(("DURABLE.CREATE", body), ("MSG.NEXT", b"1"), ("UNPIN", b"{}")),
                    *(("RESET", b""), ("LEADER.STEPDOWN", b"")),
                )
            },
        }
        for what in (b"+ACK", b"-NAK", b"+TERM", b"+NXT", b"+WPI"):
            await thief.client.publish(ack, what, reply="_INBOX.shop-tools._.a")
            for target in (ack, f"deliver.scoped.{name}", *written):
                # What the broker answers to an acknowledgement of its own goes nowhere else.
                await thief.client.publish(own, what, reply=target)
        for subject, content in asked.items():
            await thief.client.publish(subject, content, reply="_INBOX.shop-tools._.a")
            await thief.client.publish("ledger.shop.t.call.x.late.1", content, reply=subject)
        await thief.client.request("reads.shop-tools.shop.STREAM.INFO.LEDGER", timeout=60)
        is_denied = {one: thief.denied(one) for one in asked}
        own_reads = {one for one in asked if one.startswith("reads.shop-tools.")}
        assert {one for one, denied in is_denied.items() if not denied} == own_reads
        for queue in ("", name):
            thief.problems.clear()
            await thief.client.subscribe(f"deliver.scoped.{name}", queue)
            await thief.client.request("reads.shop-tools.shop.STREAM.INFO.LEDGER", timeout=60)
            assert thief.denied(f"deliver.scoped.{name}"), queue
        for subject in own_reads:
            answer = json.loads((await thief.client.request(subject, asked[subject])).data)
            assert answer["error"]["code"] in {400, 403}, subject
        mine = "reads.shop-tools.shop.CONSUMER.INFO.LEDGER.shop-tools@executor"
        answer = (await thief.client.request(mine, timeout=60)).data
        assert b"opt_start_time" not in answer
        assert b'"filter_subjects"' in answer
        after = await consumer(store, name)
        assert sealed in json.dumps(after)
        for one in ("config", "delivered", "ack_floor", "num_ack_pending", "num_redelivered"):
            assert after[one] == before[one]
        while not taken.empty():  # answers of the broker, which workers tell from deliveries
            assert taken.get_nowait().reply == ""
        assert [one.slot.subject for one in await gate.log.read("ledger.bank.>")] == [
            "ledger.bank._policy.1",
            decided.subject,
        ]
        await delivery.ack_sync()
    assert (await consumer(store, name))["num_ack_pending"] == 0


# -------------------------------------------------------------------------------------- operating


async def test_its_durable_is_watched_made_again_and_ends_with_the_login(store):
    """As those of the site: nobody listens, paused, missing. A later login begins anew."""
    await added(store, "shop-tools", "executor", "shop", "desk")
    name = "shop-tools@executor"
    async with (
        JetStream.connect(store.path, role="admin") as admin,
        JetStream.connect(store.path, role="operator") as operator,
    ):

        async def status():
            return next(one for one in (await glance(operator)).consumers if one.name == name)

        gated = CallRef("shop", "t", "c").decided.subject
        await admin.connection.client.request(gated, b"{}", timeout=60)
        assert (await until(lambda: _waiting(status))).problem == "nobody listens"
        look = await glance(operator)
        assert (
            f"{name}: 1 waits and nobody listens; start it with `ayes work executor` and the "
            "login shop-tools" in problems(look, ["workers"])
        )
        until_then = {"pause_until": "2199-01-01T00:00:00Z"}
        await admin.api.call(f"CONSUMER.PAUSE.LEDGER.{name}", until_then)
        assert (await status()).problem == "paused until 2199-01-01T00:00:00Z"
        assert any(name in one for one in problems(await glance(admin), GUARD))
        await admin.api.call(f"CONSUMER.DELETE.LEDGER.{name}")
        assert (await status()).problem == "missing"
        assert any(f"{name} is missing" in one for one in problems(await glance(admin), READY))
        await declare_streams(store.path)
        assert (await status()).exists
        await logins.revoke(store, "shop-tools", "")
        assert all(one.name != name for one in (await glance(operator)).consumers)
        found = await admin.api.call("CONSUMER.LIST.LEDGER")
        assert all("@" not in one["name"] for one in found["consumers"])
        assert problems(await glance(admin), GUARD) == []
    await added(store, "shop-tools", "executor", "bank")
    there = await consumer(store, name)
    assert {one.split(".")[1] for one in there["config"]["filter_subjects"]} == {"bank"}


async def _waiting(status):
    found = await status()
    return found if found.waiting else None


async def test_what_it_parks_is_its_own_and_the_operator_retries_it(store):
    """The other tenant cannot read it, nor does who gets the name later."""
    shop = await added(store, "shop-tools", "executor", "shop")
    bank = await added(store, "bank-tools", "executor", "bank")
    fact = CallRef("shop", "t", "c").decided.subject
    async with (
        Ledger.connect(url=shop, role="executor") as own,
        Ledger.connect(url=bank, role="executor") as other,
        Ledger.connect(store.path, role="operator") as operator,
    ):
        entry = Parked("executor", 3, fact, "odd", 1, own.now())
        assert await own.log.park(entry)
        [found] = await own.log.parked("executor")
        assert found.consumer == "shop-tools@executor"
        assert await other.log.parked("executor") == []
        assert await other.log.parked_at(found.number) is None
        with pytest.raises(BrokerRefused, match="may read the workspaces bank alone"):
            await other.log.parked("*")
        assert [one async for one in marked(operator, "retry", [found.number])]
        seen = await own.log.parked("executor")
        assert seen[0].mark is not None
    await logins.revoke(store, "shop-tools", "")
    again = await added(store, "shop-tools", "executor", "shop")
    async with Ledger.connect(url=again, role="executor") as own:
        assert await own.log.parked("executor") == []


async def test_a_login_without_a_durable_is_not_left(store, monkeypatch):
    """It is registered first, so that the durable is never nobody's, and taken back without one."""

    async def refuses(*_):
        assert "shop-tools" in store.read().logins
        raise BrokerRefused("there is no room")

    monkeypatch.setattr(logins, "employ", refuses)
    with pytest.raises(BrokerRefused, match="no room"):
        await added(store, "shop-tools", "executor", "shop")
    assert store.read().logins == {}
    monkeypatch.undo()
    file = await added(store, "shop-tools", "executor", "shop")
    async with Ledger.connect(url=file, role="executor") as own:
        assert await own.log.parked("executor") == []
