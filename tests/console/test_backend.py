"""The console's connections, one for each person."""

import asyncio

import pytest
from console_client import listed

from ayes.schemas.errors import Unavailable

CALL = "shop/order-17/refund-1"


async def test_only_connections_that_nobody_uses_are_closed(shop, monkeypatch):
    """The oldest is in use by a slow request, so the next one is closed in its place."""
    monkeypatch.setattr("ayes.ops.logins._MOST", 2)
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

    async def get(stream, wanted, *rest):
        asked.append(str(wanted))
        return await page(stream, wanted, *rest)

    async def leaders_message(stream, **which):
        asked.append(str(which))
        return await message(stream, **which)

    monkeypatch.setattr(log, "_get", get)
    monkeypatch.setattr(log, "leaders_message", leaders_message)
    found = (await client.get("/api/v1/calls")).json()
    assert [one["voted"] for one in found["calls"]] == [False] * 3
    assert sum(".vote.ana" in one for one in asked) == 1
