"""The page of a visitor's devices, and the way from one call to the next."""

from datetime import UTC, datetime

import pytest
from console_client import POLICY

from ayes.consumers.notices.devices import Device, DeviceFile
from ayes.ops.visitors import Role, Visitor

KEYS = {"p256dh": "A" * 87, "auth": "A" * 22}


@pytest.mark.parametrize(
    "wrong", [{"endpoint": "ftp://x"}, {"p256dh": "A"}, {"auth": "\u00e9"}, {"endpoint": ""}]
)
async def test_what_is_no_subscription_is_refused(shop, client, wrong):
    """In one sentence, and nothing is kept."""
    sent = {"name": "a phone", "endpoint": "https://push.example/1", **KEYS} | wrong
    answer = await client.post("/devices", data=sent)
    assert answer.status_code == 422
    assert "no subscription of Web Push" in answer.text
    assert DeviceFile(shop.server.store).read().devices == ()


async def test_a_device_is_ones_own(shop, client):
    """Its address is on no page, and nobody removes it but its person."""
    devices = DeviceFile(shop.server.store)
    made = Device(
        "ben", "https://push.example/1", **KEYS, name="a phone", added_at=datetime.now(UTC)
    )
    devices.add(made)
    await client.post(f"/devices/{made.id}/remove")
    assert devices.read().devices == (made,)
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    page = (await client.get("/devices")).text
    assert "a phone" in page
    assert "push.example" not in page
    await client.post(f"/devices/{made.id}/remove")
    assert devices.read().devices == ()


async def test_the_service_worker_needs_no_visitor(shop, client):
    """A browser reads it anew by itself, whoever is signed in."""
    shop.visitor = None
    answer = await client.get("/service-worker.js")
    assert answer.status_code == 200
    assert "caches" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


async def test_the_next_call_is_one_that_one_may_decide(shop, client):
    """After the one that was shown, then from the beginning; without any, the list."""
    first, second = "shop/order-17/refund-1", "shop/order-18/refund-1"
    where = []
    for call in (first, second):
        await shop.ask(call)
    for call in (first, second):
        page = (await client.get(f"/calls/{call}")).text
        path = page.partition('href="/next/')[2].partition('"')[0]
        where.append((await client.get(f"/next/{path}")).headers["location"])
    assert where == [f"/calls/{second}", f"/calls/{first}"]


@pytest.mark.parametrize("shop", [POLICY + "votes_needed = 2\n"], indirect=True)
async def test_the_next_call_is_not_one_on_which_one_has_voted(shop, client):
    """Though it waits for somebody else."""
    call = "shop/order-17/refund-1"
    digest = await shop.ask(call)
    assert (await client.get("/next/1")).headers["location"] == f"/calls/{call}"
    vote = {"verdict": "approve", "digest": digest, "reason": "Right."}
    assert (await client.post(f"/calls/{call}/vote", data=vote)).status_code == 303
    assert (await client.get("/next/1")).headers["location"].startswith("/?q=")
