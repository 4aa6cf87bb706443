"""The page of waiting calls, as it is without a script."""

import re

import pytest
from console_client import listed

from ayes.ops.visitors import Role, Visitor

HOSTILE = '{"order":"<script>alert(1)</script>\u202e","amount":1}'
THE_FRAME = "<html"


async def rows(client, path="/"):
    """The calls in the list of this page, in its order."""
    page = (await client.get(path)).raise_for_status()
    return re.findall(r'<li class="row" data-call="([^"]+)"', page.text)


@pytest.fixture
async def queue(shop, client):
    """Three waiting calls in two threads, the oldest first."""
    names = ["shop/order-17/refund-1", "shop/order-18/refund-1", "shop/order-17/refund-2"]
    for name in names:
        await shop.ask(name)
    await listed(client, len(names))
    return names


async def test_the_list_is_oldest_first_and_its_filters_and_pages_are_in_the_address(client, queue):
    assert await rows(client) == queue
    assert await rows(client, "/?thread=shop/order-17") == [queue[0], queue[2]]
    assert await rows(client, "/?tool=ref*&mine=true") == queue
    assert await rows(client, "/?rule=large+refunds&workspace=shop") == queue
    for nothing in ("/?tool=pay", "/?rule=other", "/?overdue=true", "/?workspace=other"):
        assert await rows(client, nothing) == []
    first = await client.get("/?limit=2")
    [following] = re.findall(r'href="(/\?[^"]*after=[^"]*)"', first.text)
    assert await rows(client, following.replace("&amp;", "&")) == queue[2:]
    part = await client.get("/", headers={"HX-Request": "true"})
    assert THE_FRAME not in part.text
    assert part.text.count('<li class="row"') == 3


async def test_the_header_counts_what_there_is_to_do(client, queue):
    counts = (await client.get("/api/v1/counts")).json()
    assert counts == {
        "waiting": 3, "mine": 3, "doubt": 0, "stopped": [], "stopped_until": None,
        "workspaces": ["shop"],
    }  # fmt: skip
    for path in ("/policy/shop", "/policy/_organisation", "/?workspace=shop"):
        page = await client.get(path)
        assert '<span class="count" data-count="mine">3</span>' in page.text, path


async def test_what_an_agent_writes_is_never_html(shop, client):
    page = await client.get("/?workspace=shop")
    assert "ayes request shop/order-17/refund-1 refund" in page.text, "how to fill an empty list"
    await shop.ask("shop/order-17/refund-1", HOSTILE)
    await listed(client, 1)
    page = await client.get("/")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page.text
    assert "hidden characters" in page.text


async def test_several_calls_are_shown_before_they_are_decided(shop, client, queue):
    """Bulk: one vote for each call, and those that fail are reported one by one."""
    asked = await client.get("/bulk", params={"call": queue})
    shown = re.findall(r'name="shown" value="([^"]+)"', asked.text)
    assert [one.split()[0] for one in shown] == queue
    assert asked.text.count("A-17") == len(queue)
    ana, shop.visitor = shop.visitor, Visitor("ben", frozenset({Role.REVIEWER}))
    denial = {"verdict": "deny", "digest": shown[0].split()[1]}
    (await client.post(f"/api/v1/calls/{queue[0]}/votes", json=denial)).raise_for_status()
    shop.visitor = ana
    done = await client.post("/bulk", data={"verdict": "approve", "shown": shown})
    assert done.status_code == 200, done.text
    assert "2 of 3 votes recorded" in done.text
    assert f"{queue[0]}</a>: {queue[0]} is already decided: Denied by ben" in done.text
    none = await client.get("/bulk")
    assert none.status_code == 422
    assert "0 calls are selected. Select between 1 and 50 of them." in none.text


async def test_problems_are_pages_and_search_leads_on(client):
    """The same sentence as over the API; htmx gets it as a message above the page."""
    page = await client.get("/nothing")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'role="alert"' in page.text
    part = await client.get("/nothing", headers={"HX-Request": "true"})
    assert part.headers["HX-Retarget"] == "#messages"
    assert THE_FRAME not in part.text
    for typed, where in {
        "shop/order-17/refund-1": "/calls/shop/order-17/refund-1",
        " shop/order-17 ": "/conversations/shop/order-17",
        "refund": "/?tool=%2Arefund%2A&workspace=",
        "//evil.example": "/calls///evil.example",
    }.items():
        answer = await client.get("/search", params={"q": typed})
        assert (answer.status_code, answer.headers["location"]) == (303, where)
