"""People whom others would pass for, by raw clients with real logins (decision 0054): an operator
who claims their accounts, a visitor who gives their name, a person who was removed, and the next
account with their name at a provider.

    FORGED=200 pytest tests/promises/races/test_forged_people.py
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any

import httpx
import nats.errors
import pytest
import pytest_asyncio
from cluster import SIZES, sized
from fastapi import FastAPI
from long import sampled
from nats.aio.client import Client
from program import approvals
from shop import rule
from slack_stand_in import (
    APP_TOKEN,
    BOT_TOKEN,
    CHANNEL,
    TEAM,
    SlackStandIn,
    slack_stand_in,
)
from until import recorded

from ayes.consumers.slack.api import SlackApi
from ayes.consumers.slack.questions import SlackQuestions
from ayes.interfaces.access.security import Security
from ayes.interfaces.api.accounts import admit
from ayes.interfaces.api.backend import Backend
from ayes.interfaces.cli.policy import explanation
from ayes.interfaces.console.application import console
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ops.actions import people
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role, Visitor
from ayes.ops.workers import reactions, working
from ayes.projections.slack_messages import APPROVE
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.errors import NotAllowed
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    person_slot,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

#: On the loop that the brokers of this file live in.
pytestmark = pytest.mark.asyncio(loop_scope="module")

TRIES = int(os.environ.get("FORGED", "2"))
NAMES = ("ana", "ben", "cy", "dan", "kim", "rita", "tess")
POLICY = (
    rule("payments", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2",
         f'ask_in = ["slack:{CHANNEL}"]', tools="pay")
    + rule("refunds", "ask", 'voters = ["ana", "ben", "cy", "tess"]', "votes_needed = 2",
           f'ask_in = ["slack:{CHANNEL}"]')
    + rule("small ones", "ask", 'voters = ["ana"]', tools="tip")
)  # fmt: skip
CLAIMED = '[people]\nana = ["slack:U0EVIL1"]\nben = ["slack:U0EVIL2"]\n# {number}\n'
ISSUER = "https://provider.example"
URL = "http://127.0.0.1:8420"


class Bank:
    """A ledger whose organisation says who is asked, with all that people decide in."""

    def __init__(self, store: Store, slack: SlackStandIn, stack: AsyncExitStack) -> None:
        self.store = store
        self.slack = slack
        self._stack = stack
        self.app = FastAPI()
        self._ledgers: dict[str, Ledger] = {}

    async def ledger(self, role: str) -> Ledger:
        if role not in self._ledgers:
            connecting = Ledger.connect(self.store.path, role=role, timeout_s=20)
            self._ledgers[role] = await self._stack.enter_async_context(connecting)
        return self._ledgers[role]

    async def asked(self, tool: str, name: str) -> CallRef:
        """A call that the gate put to people, and did not decide."""
        ref = CallRef("bank", f"{tool}-{name.replace(' ', '-')}", "c")
        await (await self.ledger("service")).request(ref, tool, "{}", requester="rita")
        assert isinstance((await self.first(ref.gated, ref.decided)).event, e.ApprovalRequested)
        return ref

    async def first(self, *slots: Slot) -> Fact:
        subjects = (slot.subject for slot in slots)
        return (await recorded(await self.ledger("service"), *subjects))[0]

    async def message(self, ref: CallRef) -> dict[str, Any]:
        await self.first(ref.posted(CHANNEL))
        [found] = [one for one in self.slack.messages[CHANNEL] if str(ref) in one["text"]]
        return found

    async def forge(self, role: str, slot: Slot, event: e.Event) -> None:
        """Record what another program records with this login."""
        event = (await self.ledger("service")).with_envelope(event)
        async with raw(self.store, role) as client:
            answer = await client.request(slot.subject, encode(event), timeout=20)
        assert "error" not in json.loads(answer.data), answer.data


@asynccontextmanager
async def raw(store: Store, role: str) -> AsyncIterator[Client]:
    """nats-py with this login, and nothing of ours."""
    login, client = store.login(role), Client()
    await client.connect(
        login.servers,
        user=login.user,
        password=login.password,
        tls=login.tls() if login.ca else None,
        inbox_prefix=f"_INBOX.{role}._".encode(),
    )
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SIZES)
async def bank(request: Any, tmp_path_factory: Any) -> AsyncIterator[Bank]:
    path: Path = tmp_path_factory.mktemp("bank")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        store = await enter(sized(request.param, path, *NAMES))
        slack = await enter(slack_stand_in())
        bank = Bank(store, slack, stack)
        above, service = await bank.ledger("organisation"), await bank.ledger("service")
        await above.append(policy_slot(ORGANISATION, 1), applied(POLICY))
        for name in ("pay", "refund", "tip"):
            spec = ToolSpec(name=name, schema='{"type":"object"}', run_by="client")
            await service.declare("bank", spec)
        chat = SlackQuestions(SlackApi(BOT_TOKEN, APP_TOKEN, slack.url), bytes(32), lambda: "")
        started = [*reactions(["gate", "queue"]), ("slack", chat)]
        await enter(working(started, store=store.path))
        bank.app = await enter(console(Security(AccessFile(store), URL)))
        await slack.until(lambda: slack.sockets)
        yield bank


def at_once() -> Iterator[list[int]]:
    """The numbers of all tries, as many together as are tried at once."""
    yield from (list(some) for some in batched(range(1, TRIES + 1), 20))


async def test_a_workspaces_policy_gives_nobody_an_account(bank: Bank):
    """An operator claims ana's and ben's accounts in a raw policy: no click votes (B40)."""

    async def tried(number: int) -> None:
        ref = await bank.asked("pay", str(number))
        message = await bank.message(ref)
        for user in ("U0EVIL1", "U0EVIL2"):
            await bank.slack.click(message, APPROVE, user)
        refs.append(ref)

    for some in at_once():
        refs: list[CallRef] = []
        bank.slack.whispers.clear()
        for number in some:
            claim = applied(CLAIMED.format(number=number))
            await bank.forge("operator", policy_slot("bank", number), claim)
        await gather(tried, some)
        told = await bank.slack.whispered(2 * len(some))
        assert all("belongs to no reviewer" in text for _, _, text in told)
        for ref in refs:
            known = await (await bank.ledger("service")).known_call(ref)
            assert (known.votes, known.decided) == ((), None)


@pytest.mark.parametrize("role", ["observer", "operator"])
async def test_a_name_of_ones_own_is_nobodys(bank: Bank, role: str):
    """A visitor over NATS calls himself rita, whose call it is, and ana, who is asked (B27, I8)."""

    async def tried(number: int) -> None:
        ref = await bank.asked("refund", f"{role}-{number}")
        digest = (await (await bank.ledger("service")).known_call(ref)).wish.digest
        vote = {"verdict": "approve", "digest": digest}
        async with raw(bank.store, role) as client:
            for name, endpoint, more in (("rita", "withdraw", {}), ("ana", "decide", vote)):
                subject = f"approvals.{role}.{name}.{endpoint}"
                found = await answered(client, subject, {"call": str(ref)} | more)
                assert (found["status"], found["type"]) == (403, "urn:ayes:error:NotAllowed")
        known = await (await bank.ledger("service")).known_call(ref)
        assert (known.votes, known.withdrawn) == ((), None)

    for some in at_once():
        await gather(tried, some)


async def answered(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of the console, once it serves."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await client.request(subject, json.dumps(body).encode(), timeout=20)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.02)
                continue
            return json.loads(answer.data)


@pytest.mark.parametrize("how", ["herself", "by her delegate", "by a grant"])
async def test_a_removed_person_decides_nothing_with_the_old_password(bank: Bank, how: str):
    """What it records lets nothing run, and people who are still there decide (B40)."""
    ana, dan = await bank.ledger("reviewer-ana"), "reviewer-dan"
    now = ana.now()
    span = {"starts_at": now - timedelta(hours=1), "ends_at": now + timedelta(days=1)}
    if how == "by her delegate":
        await ana.reviewer("ana").delegate("bank/ana/leave", "dan", **span)

    async def asked(number: int) -> CallRef:
        return await bank.asked("refund", f"{how}-{number}")

    async def tried(number: int) -> None:
        if how == "by a grant":
            granted = e.Granted(tool="tip", expires_in_s=600, uses=9)
            await bank.forge("reviewer-ana", GrantRef("bank", "ana", f"g{number}").given, granted)
            await bank.asked("tip", f"{how}-{number}")
            return
        ref = calls[number]
        digest = (await ana.known_call(ref)).wish.digest
        vote = e.Voted(verdict="approve", digest=digest)
        if how == "herself":
            await bank.forge("reviewer-ana", ref.vote("ana"), vote)
        else:
            given = e.Delegated(to="dan", tools=("*",), **span)
            late = DelegationRef("bank", "ana", f"d{number}")
            await bank.forge("reviewer-ana", late.given, given)
            for_ana = e.Voted(verdict="approve", digest=digest, on_behalf_of="ana")
            await bank.forge(dan, ref.vote("dan"), for_ana)
        for voter in ("ben", "cy"):
            await (await bank.ledger(f"reviewer-{voter}")).reviewer(voter).approve(ref)
        decided = (await bank.first(ref.decided)).event
        assert isinstance(decided, e.Approved)
        assert decided.voters == ("ben", "cy")
        await ana.log.last_seq()  # a replica that is behind may lack the last vote
        flaws = [one.flaw for one in (await explanation(ana, ref)).votes]
        assert flaws == ["ana was removed before it", "", ""]

    for some in at_once():
        if how != "by a grant":
            calls = dict(zip(some, await gather(asked, some), strict=True))
        await people.say(bank.store, "ana", e.PersonRemoved())
        await gather(tried, some)
        await people.say(bank.store, "ana", e.PersonAdded())


async def test_a_name_at_a_provider_is_whose_it_was_first(bank: Bank):
    """Two kims sign in at two consoles at once: one is kim, until the name is free (B27, B40)."""
    visitor = Visitor("kim", frozenset({Role.REVIEWER}))
    async with Backend.connect(bank.store.path) as one, Backend.connect(bank.store.path) as other:

        async def is_let_in(backend: Backend, subject: str) -> bool:
            try:
                await admit(backend, visitor, ISSUER, subject)
            except NotAllowed:
                return False
            return True

        async def both(first: Backend, second: Backend) -> list[bool]:
            asked = (is_let_in(first, "kim-1"), is_let_in(second, "kim-2"))
            return await asyncio.gather(*asked)

        for _ in range(TRIES):
            found = await both(one, other)
            assert sorted(found) == [False, True]
            assert await both(other, one) == found
            await people.say(bank.store, "kim", e.PersonAdded())


# -------------------------------------------------------------------------------- through each door


class Tess:
    """All that somebody has to decide with, as long as it is hers: a session, a token, logins, an
    account in Slack.
    """

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.security: Security = bank.app.state.security
        visitor = Visitor("tess", frozenset({Role.REVIEWER}))
        self.session = self.security.sessions.begin(visitor)
        lasts = timedelta(hours=1)
        self.token, _ = self.security.access.add_token("tess", Role.REVIEWER, lasts)

    async def vote(self, door: str, ref: CallRef, digest: str) -> None:
        """Try to approve a call by this door, whatever it answers."""
        said = {"verdict": "approve", "digest": digest}
        match door:
            case "a page":
                cookie = {"cookie": f"{self.security.cookie}={self.session}", "origin": URL}
                await self._post(f"/calls/{ref}/vote", headers=cookie, data=said)
            case "the API":
                bearer = {"authorization": f"Bearer {self.token}"}
                await self._post(f"/api/v1/calls/{ref}/votes", headers=bearer, json=said)
            case "the API over NATS":
                async with raw(self.bank.store, "reviewer-tess") as client:
                    asked = {"call": str(ref)} | said
                    await answered(client, "approvals.reviewer.tess.decide", asked)
            case "a fact":
                vote = e.Voted(verdict="approve", digest=digest)
                await self.bank.forge("reviewer-tess", ref.vote("tess"), vote)
            case "the terminal":
                words = ("approve", ref, "--as", "tess", "--digest", digest)
                await asyncio.to_thread(approvals, *words, store=self.bank.store.path)
            case "Slack":
                await self.bank.slack.click(await self.bank.message(ref), APPROVE, "U0TESS")

    async def _post(self, path: str, **request: Any) -> None:
        transport = httpx.ASGITransport(app=self.bank.app)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            await client.post(path, **request)


DOORS = ("a page", "the API", "the API over NATS", "a fact", "the terminal", "Slack")


@pytest.mark.parametrize("how", ["removed", "of other workspaces", "allowed"])
@pytest.mark.parametrize("door", sampled(DOORS, "a page", "a fact", "Slack"))
async def test_through_no_door_decides_who_may_not(bank: Bank, door: str, how: str):
    """With what she had before; the others decide. It is a door, if she may (B40, B74, I7)."""
    above, login = await bank.ledger("organisation"), await bank.ledger("reviewer-tess")
    tess_slot = partial(person_slot, "tess")
    voters = ("tess", "ben") if how == "allowed" else ("ben", "cy")

    async def asked(number: int) -> CallRef:
        return await bank.asked("refund", f"{door}-{how}-{number}")

    async def tried(ref: CallRef) -> None:
        digest = (await login.known_call(ref)).wish.digest
        await tess.vote(door, ref, digest)
        if how == "allowed":
            await bank.first(ref.vote("tess"))
        for voter in voters:
            if voter != "tess":
                await (await bank.ledger(f"reviewer-{voter}")).reviewer(voter).approve(ref)
        decided = (await bank.first(ref.decided)).event
        assert isinstance(decided, e.Approved)
        assert decided.voters == voters

    for some in at_once():
        refs = await gather(asked, some)
        await login.reviewer("tess").bind(f"slack:{TEAM}/U0TESS")
        tess = Tess(bank)
        if how == "removed":
            await above.record_person(tess_slot, e.PersonRemoved())
        elif how == "of other workspaces":
            await above.record_person(tess_slot, e.WorkspacesSet(("till",)))
        await gather(tried, refs)
        await above.record_person(tess_slot, e.PersonAdded())


async def gather[T, R](one: Callable[[T], Awaitable[R]], of: Iterable[T]) -> list[R]:
    """Do it with each of these, all at once."""
    return await asyncio.gather(*map(one, of))
