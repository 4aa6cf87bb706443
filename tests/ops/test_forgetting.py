"""Secrets and forgetting on a real broker: nothing that is kept ever has a sealed value, and
`ayes forget` destroys what opens it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokers import running
from heard import heard
from inboxes import http
from program import approvals
from receivers import endpoint, receiving
from sections import section
from shop import Shop
from traces import recorded as spans
from until import recorded

from ayes.consumers.notices.channels import Channels
from ayes.consumers.tools import Tools
from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.ledger.sealed_values import Unopened, commitment, unseal
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ops.actions import forgetting
from ayes.ops.actions.forgetting import destroy_forgotten, forget, personal_names
from ayes.ops.audit.backup import back_up
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

CARD = "4111-1111-1111-1111"
THREAD, OTHER = ThreadRef("shop", "order-17"), ThreadRef("shop", "order-18")
CALL, FAILS, OPEN = (THREAD.call(name) for name in ("c1", "c2", "c3"))
POLICY = """
[contacts]
ana = ["web:ana"]

[[rule]]
name = "all"
tools = ["*"]
then = "ask"
voters = ["ana"]
"""
SCHEMA = (
    '{"type":"object","properties":{"card":{"type":"string"},"amount":{"type":"integer"}},'
    '"required":["card"]}'
)


@pytest.fixture
def keys(tmp_path: Path) -> ThreadKeys:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    return ThreadKeys(folder)


def registry(seen: list[str]) -> Tools:
    tools = Tools()

    @tools.add(sealed=["/card"], title="Charge {card}")
    def charge(card: str, amount: int) -> dict[str, Any]:
        seen.append(card)
        if amount < 0:
            raise ValueError(f"no such card: {card}")
        return {"charged": amount, "card": card}

    return tools


@asynccontextmanager
async def site(tmp_path: Path, keys: ThreadKeys) -> AsyncIterator[tuple[Path, Ledger]]:
    """A broker, and a service on it that has keys."""
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as admin,
        Ledger.connect(server.store.path, keys=keys) as service,
    ):
        await admin.append(policy_slot("shop", 1), applied(POLICY))
        await service.declare("shop", ToolSpec(name="pay", schema=SCHEMA, sealed=("/card",)))
        yield server.store.path, service


def with_any(folder: Path, but: Path, *values: str) -> list[Path]:
    """The files that have one of these values, outside of the directory of keys."""
    files = (one for one in folder.rglob("*") if one.is_file() and not one.is_relative_to(but))
    return [file for file in files if any(one.encode() in file.read_bytes() for one in values)]


async def test_nothing_that_is_kept_or_sent_ever_has_a_sealed_value(tmp_path, keys):
    """Criterion F1: a whole run with a real broker, gate, executor, queue, notices, webhooks,
    traces, log lines, lake and backup. Afterwards, no key that is left opens one.
    """
    seen: list[str] = []
    tools, file = registry(seen), EndpointFile(tmp_path / "webhooks.json")
    with http() as inbox, spans() as traced, heard() as lines:
        async with site(tmp_path, keys) as (store, service), receiving() as receiver:
            text = f'[notices.web]\nurl = "json://{inbox.place}/{{address}}"\n'
            channels = Channels(section("notices", tmp_path, text))
            file.add(endpoint(receiver, workspaces=("shop",)))
            file.verify("crm", clock.now())
            started = reactions(
                ["gate", "queue", "executor", "notifier", "webhooks"],
                tools=tools,
                notifying=(channels, lambda _message, _expires: ""),
                webhooks=file,
            )
            await tools.declare(service, "shop")
            async with (
                working(started, store=store, keys=keys),
                Ledger.connect(store, role="admin") as admin,
            ):
                for ref, amount in ((CALL, 5), (FAILS, -5)):
                    asked = {"card": CARD, "amount": amount}
                    await service.request(ref, "charge", asked, requester="rita")
                    await recorded(admin, ref.gated.subject)
                    await admin.reviewer("ana").approve(ref)
                    await recorded(admin, ref.finished.subject)
                asked = await service.request(OPEN, "charge", {"card": CARD, "amount": 7})
                await recorded(admin, OPEN.notified("ana", "asked").subject)
                await receiver.until(lambda: "ToolFailed" in receiver.types)
                shown = [
                    await asyncio.to_thread(approvals, *words, store=store)
                    for words in (["show", CALL], ["pending"], ["thread", THREAD], ["lake", "sync"])
                ]
                await back_up(admin.log, tmp_path / "backup")
                assert seen == [CARD, CARD]
                token = msgspec.json.decode(asked.arguments)["card"]
                key, wrapping = keys.key(THREAD), (keys.folder / "epoch").read_text()
                assert unseal(key, commitment(key), OPEN.requested.subject, "/card", token)
                ended = await asyncio.to_thread(
                    approvals, "forget", THREAD, "--yes", "--settings", settings(tmp_path, keys),
                    store=store,
                )  # fmt: skip
                assert ended.code == 0, ended.err
                await admin.reviewer("ana").approve(OPEN)
                told = (await recorded(admin, OPEN.finished.subject))[0].event
                assert (told.ending, seen) == ("forgotten", [CARD, CARD])
            channels.close()
    assert f"will not run      {OPEN}" in ended.out
    assert "stays             backups of the keys" in ended.out
    assert all(one.code == 0 for one in shown), shown
    assert "(sealed)" in shown[0].out
    assert "ayes:sealed" not in "".join(one.out for one in shown)
    sent = f"{inbox} {receiver.requests} {traced.spans} {lines} {shown} {ended}"
    assert CARD not in sent
    secret = msgspec.json.decode(wrapping)["key"]
    assert with_any(tmp_path, keys.folder, CARD, CARD.replace("-", ""), secret) == []
    assert with_any(tmp_path, keys.folder, token)  # it looks where the log is
    assert keys.key(THREAD) is None
    left = {file.name for file in keys.folder.iterdir() if file.stat().st_size}
    assert left == {"epoch"}
    epoch = msgspec.json.decode((keys.folder / "epoch").read_bytes())["key"]
    for other in (msgspec.convert(epoch, bytes, strict=False), bytes(32)):
        with pytest.raises(Unopened):
            unseal(other, commitment(key), OPEN.requested.subject, "/card", token)


def settings(folder: Path, keys: ThreadKeys) -> Path:
    file = folder / "forget.toml"
    file.write_text(f'[secrets]\ndirectory = "{keys.folder}"\n')
    return file


async def test_a_forgotten_thread_leaves_the_others_readable(tmp_path, keys):
    """And both facts, once each however often it is said; a second one says nothing else."""
    async with site(tmp_path, keys) as (store, service):
        for thread in (THREAD, OTHER):
            await service.request(thread.call("c"), "pay", {"card": CARD}, requester="rita")
        async with Ledger.connect(store, role="operator") as operator:
            for _ in range(2):
                found = await forget(operator, keys, THREAD)
                assert found.open == (f"{THREAD}/c",)
        facts = await service.read(THREAD)
        assert [fact.slot.tail[0] for fact in facts][-2:] == ["forgetting", "forgotten"]
        assert (keys.key(THREAD), keys.key(OTHER) is None) == (None, False)
        assert (await service.log.latest(OTHER.forgetting.subject)) is None


@pytest.mark.parametrize("after", ["ForgettingBegan", "destroyed"])
async def test_a_run_that_was_killed_is_finished_by_the_next_of_any_thread(
    tmp_path, keys, monkeypatch, after
):
    """Criterion F4, the steps between the two facts; those between are in test_thread_keys.py."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    async def killed_later(*_: object) -> None:
        raise Killed

    async with site(tmp_path, keys) as (store, service):
        for thread in (THREAD, OTHER):
            await service.request(thread.call("c"), "pay", {"card": CARD}, requester="rita")
        async with Ledger.connect(store, role="operator") as operator:
            with monkeypatch.context() as patch:
                if after == "destroyed":
                    forgetting_of = forgetting._forgetting
                    calls = iter([forgetting_of, killed_later])

                    async def once(ledger: Ledger) -> list[ThreadRef]:
                        return await next(calls)(ledger)

                    patch.setattr(forgetting, "_forgetting", once)
                else:
                    patch.setattr(ThreadKeys, "destroy", killed)
                with pytest.raises(Killed):
                    await forget(operator, keys, THREAD)
            assert await service.log.latest(THREAD.forgetting.subject)
            assert await service.log.latest(THREAD.forgotten.subject) is None
            await forget(operator, keys, OTHER)
        for thread in (THREAD, OTHER):
            assert await service.log.latest(thread.forgotten.subject)
            assert keys.key(thread) is None


@pytest.fixture
async def sealing(port: EventLog, keys: ThreadKeys) -> Shop:
    """A shop on the log in memory whose service has keys."""
    shop = Shop(port)
    shop.ledger.keys = keys
    for name, sealed in (("pay", ("/card",)), ("ship", ())):
        await shop.ledger.declare("shop", ToolSpec(name=name, schema=SCHEMA, sealed=sealed))
    return shop


@pytest.mark.log("memory")
async def test_a_thread_is_forgotten_where_its_key_was_alone(tmp_path, keys, sealing):
    """A run that was killed is not finished by one with another directory, which destroys
    nothing.
    """
    (tmp_path / "other").mkdir(mode=0o700)
    other, ledger = ThreadKeys(tmp_path / "other"), sealing.ledger
    await ledger.request(THREAD.call("c"), "pay", {"card": CARD}, requester="rita")
    ledger.keys = other
    await ledger.request(OTHER.call("c"), "pay", {"card": CARD}, requester="rita")
    await ledger.append(THREAD.forgetting, e.ForgettingBegan())
    with pytest.raises(BadInput, match="the key of shop/order-17 is not in"):
        await forget(ledger, other, THREAD)
    await forget(ledger, other, OTHER)
    assert await ledger.log.latest(OTHER.forgotten.subject)
    assert await ledger.log.latest(THREAD.forgotten.subject) is None
    for _ in range(2):
        await forget(ledger, keys, THREAD)
        assert await ledger.log.latest(THREAD.forgotten.subject)
        assert keys.key(THREAD) is None


@pytest.mark.log("memory")
async def test_calls_that_hold_sealed_values_are_listed_and_no_others(keys, sealing, monkeypatch):
    """Also one that is claimed while the key is destroyed: it may have opened them before."""
    ledger, destroy = sealing.ledger, forgetting.destroy_forgotten

    async def requested(name: str, tool: str) -> CallRef:
        ref = THREAD.call(name)
        await ledger.request(ref, tool, {"card": CARD}, requester="rita")
        return ref

    async def claimed_meanwhile(*given: Any) -> Any:
        call = await ledger.call(runs)
        await ledger.append(
            runs.decided,
            e.Approved(digest=call.digest, ground="policy", rule="all", policy_version=0),
        )
        started = e.ToolStarted(digest=call.digest, idempotency_key=str(runs))
        await ledger.append(call.claim_slot, started)
        return await destroy(*given)

    waits, runs, _ = [await requested(*of) for of in (("c1", "pay"), ("c2", "pay"), ("c3", "ship"))]
    monkeypatch.setattr(forgetting, "destroy_forgotten", claimed_meanwhile)
    found = await forget(ledger, keys, THREAD)
    assert (found.open, found.running) == ((str(waits),), (str(runs),))


async def test_a_key_that_comes_back_is_destroyed_when_an_executor_starts(tmp_path, keys):
    """As from a backup of the keys: the log says that its thread is forgotten."""
    async with site(tmp_path, keys) as (store, service):
        for thread in (THREAD, OTHER):
            await service.request(thread.call("c"), "pay", {"card": CARD}, requester="rita")
        backup = {one: one.read_bytes() for one in keys.folder.iterdir()}
        async with Ledger.connect(store, role="operator") as operator:
            await forget(operator, keys, THREAD)
        for one, data in backup.items():
            one.touch(mode=0o600)
            one.write_bytes(data)
        assert keys.holds(THREAD)
        with heard() as lines:
            async with working(reactions(["executor"], tools=registry([])), store=store, keys=keys):
                assert not keys.holds(THREAD)
        [line] = [one for one in lines if one["event"] == "keys of forgotten threads were here"]
        assert line["threads"] == [str(THREAD)]
        assert keys.key(OTHER) is not None
        assert await destroy_forgotten(service, keys) == ()


async def test_what_cannot_be_forgotten_is_refused_and_nothing_is_recorded(tmp_path, keys):
    (tmp_path / "other").mkdir(mode=0o700)
    async with site(tmp_path, keys) as (store, service):
        await service.request(THREAD.call("c"), "pay", {"card": CARD}, requester="rita")
        before = await service.log.last_seq()
        async with Ledger.connect(store, role="operator") as operator:
            with pytest.raises(BadInput, match="nothing is sealed in shop/order-18"):
                await forget(operator, keys, OTHER)
            with pytest.raises(BadInput, match="the key of shop/order-17 is not in"):
                await forget(operator, ThreadKeys(tmp_path / "other"), THREAD)
        inside = store / "keys"
        inside.mkdir(mode=0o700)
        said = [
            (("--settings", settings(tmp_path, ThreadKeys(inside))), "is in the store"),
            (("--settings", settings(tmp_path / "other", keys)), "Give --yes"),
            ((), "no directory of keys is named"),
        ]
        for words, says in said:
            ended = await asyncio.to_thread(approvals, "forget", THREAD, *words, store=store)
            assert ended.code == 2, ended
            assert says in ended.err
        for name in ("../shop/order-17", "shop/..", "shop"):
            ended = await asyncio.to_thread(approvals, "forget", name, "--yes", store=store)
            assert ended.code == 2, ended
        assert await service.log.last_seq() == before


async def test_the_doctor_names_threads_that_are_called_like_people(tmp_path, keys):
    """It is a hint and no fault: such a name may be an order's."""
    personal = ["ana_at_example-com", "0049-171-5551234", "4915112345678", "ana-example-com"]
    others = ["order-17", "20261128-1", "1234", "at-home", "t-4915112345678x"]
    async with site(tmp_path, keys) as (store, service):
        for name in (*personal, *others):
            ref = CallRef("shop", name, "c")
            await service.request(ref, "pay", {"card": CARD}, requester="rita")
        elsewhere = ThreadRef("ben_at_example-com", "order-17")
        await service.append(elsewhere.keyed, e.Keyed(commitment="0" * 64))
        found = await personal_names(service)
        assert sorted(found) == sorted([*(f"shop/{one}" for one in personal), str(elsewhere)])
        ended = await asyncio.to_thread(approvals, "doctor", store=store)
    [line] = [one for one in ended.out.splitlines() if one.startswith("ok    names:")]
    assert "which forgetting leaves: " in line
    assert "shop/ana_at_example-com" in line
