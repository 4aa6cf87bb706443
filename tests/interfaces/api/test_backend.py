"""The console's connections, one for each person."""

import asyncio
import json
from contextlib import suppress
from datetime import timedelta

import pytest
from brokers import running
from console_client import listed
from msgspec.structs import replace
from program import approvals
from until import until

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import connection
from ayes.ops.broker import callout
from ayes.ops.broker.accounts import SYSTEM
from ayes.ops.broker.logins import Logins
from ayes.ops.broker.open_connections import end_connections
from ayes.ops.broker.server import ensure_account
from ayes.ops.visitors import Role
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BrokerRefused, Unavailable
from ayes.schemas.slots import PEOPLE, CallRef

CALL = "shop/order-17/refund-1"


async def test_only_connections_that_nobody_uses_are_closed(shop, monkeypatch):
    """The oldest is in use by a slow request, so the next one is closed in its place."""
    monkeypatch.setattr("ayes.ops.broker.logins._MAX_OPEN", 2)
    await shop.ask(CALL)
    backend = shop.app.state.backend
    begun, proceed = asyncio.Event(), asyncio.Event()

    async def slow():
        ana = await backend.reviewer("ana")
        begun.set()
        await proceed.wait()
        return await ana.deny(CALL)

    vote = asyncio.create_task(slow())
    await begun.wait()
    ben = await asyncio.create_task(backend.as_reviewer("ben"))
    assert await ben.log.last_seq()
    await asyncio.create_task(backend.as_reviewer("cai"))
    with pytest.raises(Unavailable):
        await ben.log.last_seq()
    proceed.set()
    assert [fact.slot.tail[3] for fact in (await vote).votes] == ["ana"]
    again = await asyncio.create_task(backend.as_reviewer("ben"))
    assert await again.log.last_seq()


async def test_a_page_asks_once_who_has_voted(shop, client, monkeypatch):
    """However many calls it lists, and although nobody has voted on any."""
    for number in range(3):
        await shop.ask(f"shop/order-{number}/refund-1")
    await listed(client, 3)
    log = shop.app.state.backend.reading.log
    asked, page, message = [], log._get, log.leaders_message

    async def get(stream, wanted, *rest, **named):
        asked.append(str(wanted))
        return await page(stream, wanted, *rest, **named)

    async def leaders_message(stream, **which):
        asked.append(str(which))
        return await message(stream, **which)

    monkeypatch.setattr(log, "_get", get)
    monkeypatch.setattr(log, "leaders_message", leaders_message)
    found = (await client.get("/api/v1/calls")).json()
    assert [one["voted"] for one in found["calls"]] == [False] * 3
    assert sum(".vote.ana" in one for one in asked) == 1


async def test_a_person_who_was_removed_votes_no_more(shop, client):
    """I7: not on a connection of theirs that was open before, nor with a token, nor with another
    login, nor through this process; and nobody's approvals are undone.
    """
    ref = CallRef.parse("shop/order-17/refund-9")
    digest = await shop.ask(str(ref))
    store = shop.server.store
    login = await ensure_account(store, "reviewer-ana")
    access = shop.security.access
    secret, _ = access.add_token("ana", Role.REVIEWER, timedelta(days=1))
    await (await shop.app.state.backend.reviewer("ana")).bind("slack:T1/U1")
    port = int(login.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    options = {"user": login.user, "pass": login.password, "verbose": False}
    writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
    await reader.readuntil(b"PONG\r\n")
    vote = encode(shop.service.with_envelope(e.Voted(verdict="approve", digest=digest)))
    done = await asyncio.to_thread(approvals, "people", "remove", "Ana", "--store", store.path)
    assert done.code == 0, done.err
    with suppress(OSError):
        writer.write(b"PUB %b %d\r\n%b\r\n" % (ref.vote("ana").subject.encode(), len(vote), vote))
        async with asyncio.timeout(60):
            await reader.read()  # to its end
    writer.close()
    assert access.visitor_of(secret) is None
    url = login.url.replace("://", f"://{login.user}:{login.password}@")
    with pytest.raises(BrokerRefused, match="does not accept the credentials"):
        async with Ledger.connect(url=url, role="reviewer-ana"):
            pass
    with pytest.raises(BrokerRefused, match="ayes people add"):
        await ensure_account(store, "reviewer-ana")
    await until(lambda: shop.app.state.backend.people.is_removed("ana"))
    vote = {"verdict": "approve", "digest": digest}
    answer = await client.post(f"/api/v1/calls/{ref}/votes", json=vote)
    assert answer.status_code in (303, 401, 403)
    assert (await shop.service.known_call(ref)).votes == ()
    assert (await shop.service.people()).accounts == {}
    for words in (["add", "ana"], ["list"]):
        back = await asyncio.to_thread(approvals, "people", *words, "--json", "--store", store.path)
        row = {"name": "ana", "removed": False, "accounts": [], "workspaces": []}
        assert back.one == row, back.err
    await until(lambda: not shop.app.state.backend.people.is_removed("ana"))
    await (await shop.app.state.backend.reviewer("ana")).approve(ref)
    assert [vote.slot.tail[3] for vote in (await shop.service.known_call(ref)).votes] == ["ana"]


async def test_what_an_auditor_does_ends_no_console(shop):
    """I8: a flood by the login of `observer` ends the connections of this login alone."""
    store = shop.server.store
    async with Ledger.connect(store.path, role="observer") as auditor:
        theirs = auditor.log.connection.client
        await end_connections(store.login(SYSTEM), {"observer"})
        await until(lambda: theirs.stats["reconnects"] and theirs.is_connected)
        assert await shop.app.state.backend.reading.log.last_seq() == await auditor.log.last_seq()
    assert shop.app.state.backend.reading.log.connection.client.stats["reconnects"] == 0


async def test_a_login_that_ends_is_repeated_and_loses_nothing(tmp_path, monkeypatch):
    """I7, I8: a person's token ends by itself. Their programs sign on again without a word, and
    lose nothing that they record meanwhile. Who was removed in between does not come back, and the
    connection is closed for good.
    """
    monkeypatch.setattr(callout, "LASTS_S", 3.0)
    monkeypatch.setattr(connection, "REFUSED_S", 0.0)
    async with running(tmp_path / "store") as server, Logins.of(server.store) as logins:
        ana = await logins.reviewer("ana")
        client = ana.log.connection.client
        number = 0
        async with asyncio.timeout(120):
            while client.stats["reconnects"] < 2:
                number += 1
                await ana.bind(f"slack:T1/U{number}")
                await asyncio.sleep(0.01)
        async with Ledger.connect(server.store.path, role="observer") as observer:
            facts = await observer.read(*PEOPLE)
            accounts = [fact.event.account for fact in facts]
            assert len({*accounts}) == number
            assert (
                number <= len(accounts) <= number + 2
            )  # an answer that was lost is asked for anew
            address = server.store.read()
            server.store.write(
                replace(address, passwords=address.passwords | {"reviewer-ana": "x"})
            )
            async with asyncio.timeout(120):
                await ana.log.connection.closed.wait()
            with pytest.raises(Unavailable):
                await ana.bind("slack:T1/U0")
            server.store.write(address)
            again = await logins.reviewer("ana")
            assert again.log is not ana.log
            await again.bind("slack:T1/U0")
