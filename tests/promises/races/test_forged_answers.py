"""Answers in the broker's place, by a raw client with the login of another program.

A permission checks the subject of a request and not its reply subject: whoever may ask the broker
can have it answer anybody whose inbox and next request they know. The forger here hears what it
may, and names what it heard, and what might come next, as the reply subjects of its own questions.

    FORGED=200 pytest tests/promises/races/test_forged_answers.py
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from cluster import SIZES, sized
from nats.aio.client import Client
from nats.aio.msg import Msg

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.protocol import settled
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import ToolSpec

#: On the loop that the brokers of this file live in.
shared = pytest.mark.asyncio(loop_scope="module")
TRIES = int(os.environ.get("FORGED", "20"))
SPEC = ToolSpec(name="pay", schema='{"type":"object"}', run_by="client")


class Bank:
    """A ledger whose programs share the login of their role."""

    def __init__(self, store: Store, stack: AsyncExitStack, *, has_own_inboxes: bool) -> None:
        self.store = store
        self.has_own_inboxes = has_own_inboxes
        self._stack = stack
        self._ledgers: dict[str, Ledger] = {}

    async def ledger(self, role: str) -> Ledger:
        if role not in self._ledgers:
            connecting = Ledger.connect(self.store.path, role=role, timeout_s=60)
            self._ledgers[role] = await self._stack.enter_async_context(connecting)
        return self._ledgers[role]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SIZES)
async def bank(request: Any, tmp_path_factory: Any) -> AsyncIterator[Bank]:
    path: Path = tmp_path_factory.mktemp("bank")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(sized(request.param, path, "ana"))
        yield Bank(store, stack, has_own_inboxes=request.param == "one server")


async def revoked(bank: Bank, name: str) -> CallRef:
    """A call that was approved and then revoked."""
    ref = CallRef("bank", "t", name)
    service, gate = await bank.ledger("service"), await bank.ledger("gate")
    ana = await bank.ledger("reviewer-ana")
    tool = await service.declare(ref.workspace, SPEC)
    call = await service.request(ref, tool, "{}", requester="ben")
    of_money: Any = {"digest": call.digest, "rule": "money", "policy_version": 1}
    for slot, event in (
        (ref.gated, e.ApprovalRequested(**of_money, voters=("ana",))),
        (ref.decided, e.Approved(**of_money, ground="people", voters=("ana",))),
    ):
        assert isinstance(await gate.append(slot, event), Recorded)
    await ana.reviewer("ana").revoke(ref)
    return ref


@asynccontextmanager
async def forger(bank: Bank, role: str, *refs: CallRef) -> AsyncIterator[list[str]]:
    """Answer everybody with this login, and leave the revocations out; yields what it heard."""
    login, client, heard = bank.store.login(role), Client(), list[str]()
    named = set[str]()
    claims = [ref.client_claim(number) for ref in refs for number in (1, 2)]
    told = [slot.subject for ref in refs for slot in (ref.requested, ref.gated, ref.decided)]
    parts = {"multi_last": [*told, *(slot.subject for slot in claims)], "batch": 1000}
    questions: dict[str, Any] = {
        "$JS.API.DIRECT.GET.LEDGER": parts,
        "$JS.API.STREAM.MSG.GET.LEDGER": {"seq": 1},
        "$JS.API.STREAM.INFO.KV_pending": {},
    }

    async def quiet(_problem: Exception) -> None:
        pass

    async def hear(message: Msg) -> None:
        if message.subject in named:
            return  # an answer to its own question
        heard.append(message.subject)
        inbox, _, token = message.subject.rpartition(".")
        number = int(token) if token.isdecimal() else 0
        for guess in (token, *range(number + 1, number + 4)):
            named.add(f"{inbox}.{guess}")
            for subject, body in questions.items():
                await client.publish(subject, msgspec.json.encode(body), reply=f"{inbox}.{guess}")

    await client.connect(
        login.servers,
        user=login.user,
        password=login.password,
        tls=login.tls() if login.ca else None,
        inbox_prefix=f"_INBOX.{role}._".encode(),
        error_cb=quiet,
    )
    try:
        await client.subscribe(f"_INBOX.{role}.>", cb=hear)
        await settled(client)
        yield heard
        assert bool(heard) != bank.has_own_inboxes
    finally:
        await client.close()


@shared
async def test_no_revoked_call_runs_for_who_is_answered_by_another_program(bank: Bank):
    """None that somebody else says is approved runs, and none is claimed (B68, I1)."""
    refs = [await revoked(bank, f"run-{number}") for number in range(TRIES)]
    service, ran = await bank.ledger("service"), list[str]()
    outcomes = Counter[str]()

    async def pay(call: str) -> str:
        ran.append(call)
        return "paid"

    async with forger(bank, "service", *refs):
        for ref in refs:
            try:
                await service.run(ref, lambda ref=ref: pay(str(ref)))
                outcomes["ran"] += 1
            except Exception as problem:  # noqa: BLE001 - counted
                outcomes[type(problem).__name__] += 1
    assert (outcomes, ran) == ({"NotOpen": TRIES}, [])
    for ref in refs:
        call = await (await bank.ledger("gate")).call(ref)
        assert (call.claims, call.void) == ((), ())


@shared
async def test_no_reader_is_told_that_a_revoked_call_is_approved(bank: Bank):
    """Readers with one login are answered by one of them: the broker's answer counts (B68)."""
    ref = await revoked(bank, "read")
    observer, told = await bank.ledger("observer"), Counter[str]()
    last = await observer.log.last_seq()
    async with forger(bank, "observer", ref):
        for _ in range(TRIES):
            told[(await observer.known_call(ref)).status] += 1
            assert await observer.log.last_seq() == last
            standing = await observer.log.latest(ref.decided.subject)
            assert standing is not None
            assert standing.slot == ref.decided
            found = [fact.slot async for batch in history(observer) for fact in batch]
            assert len(found) == last
    assert told == {Status.REVOKED: TRIES}


def history(ledger: Ledger) -> AsyncIterator[list[Fact]]:
    return ledger.log.follow((), 1, until_end=True)


@shared
async def test_an_acknowledgement_is_of_the_fact_that_was_sent(bank: Bank):
    """Facts have the numbers that the log gives them, alone and in batches (B68, I2)."""
    ref = await revoked(bank, "acks")
    service = await bank.ledger("service")
    thread = ThreadRef("bank", "acks")
    async with forger(bank, "service", ref):
        for number in range(TRIES):
            batch = [thread.said(f"m{number}-{place}") for place in range(1 + 19 * (number % 2))]
            said = [e.Said(role="user", text=slot.subject) for slot in batch]
            appended = map(service.append, batch, said)
            for slot, result in zip(batch, await asyncio.gather(*appended), strict=True):
                assert isinstance(result, Recorded)
                standing = await service.log.at(result.seq)
                assert standing is not None
                assert standing.subject == slot.subject
