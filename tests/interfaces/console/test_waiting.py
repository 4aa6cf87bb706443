"""The page of waiting calls, as it is without a script."""

import html
import json
import re

import pytest
from console_client import listed

from ayes.ops.visitors import Role, Visitor
from ayes.schemas.tools import ToolSpec

ARGUMENTS = '{"order":"A-17","amount":480}'
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
    assert await rows(client, "/?q=thread:shop/order-17") == [queue[0], queue[2]]
    assert await rows(client, "/?q=tool:ref*+is:mine") == queue
    assert await rows(client, "/?q=rule:%22large+refunds%22&workspace=shop") == queue
    assert await rows(client, "/?q=a-17+rita&sort=-age&group=tool") == queue[::-1]
    for nothing in ("/?q=tool:pay", "/?q=elsewhere", "/?q=is:overdue", "/?workspace=other"):
        assert await rows(client, nothing) == []
    first = await client.get("/?limit=2")
    [following] = re.findall(r'href="(/\?[^"]*after=[^"]*)"', first.text)
    assert await rows(client, following.replace("&amp;", "&")) == queue[2:]
    part = await client.get("/", headers={"HX-Request": "true"})
    assert THE_FRAME not in part.text
    assert part.text.count('<li class="row"') == 3


async def test_a_row_says_what_its_call_would_do(shop, client):
    """By the title that its tool declares, else by its arguments; both are cut with a count."""
    await shop.ask("shop/order-17/refund-1")
    titled = ToolSpec(name="pay", schema='{"type":"object"}', title="Pay {sum} to {who}")
    await shop.service.declare("shop", titled)
    await shop.ask("shop/order-18/pay-1", '{"sum":1.50,"who":"Ann\u202e L"}', tool="pay")
    await shop.service.declare("shop", ToolSpec(name="mail", schema='{"type":"object"}'))
    many = {"who": "x" * 70} | {f"f{number}": [number] for number in range(8)}
    five = " · ".join(f"f{number}: 1 item" for number in range(5))
    await shop.ask("shop/order-19/refund-1", json.dumps(many), tool="mail")
    await listed(client, 3)
    text = html.unescape((await client.get("/")).text)
    notes = re.findall(r'<p class="row-what">(.*?)</p>', text)
    assert notes == [
        "order: A-17 · amount: 480",
        r'Pay 1.50 to "Ann\u202e L"',
        f"who: {'x' * 60}… (70 characters) · {five} · 3 more",
    ]
    waiting = (await client.get("/api/v1/calls")).json()["calls"]
    assert [one["title"] for one in waiting] == ["", 'Pay 1.50 to "Ann\u202e L"', ""]


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


async def test_what_is_searched_is_shown_and_each_word_can_be_taken_out(client, queue):
    """Without a script: a chip is a link to the list without its word; nothing found says what was
    searched, and offers to clear it.
    """
    page = (await client.get("/?q=tool:refund+a-17+amount>100&sort=due&workspace=shop")).text
    assert 'value="tool:refund a-17 amount&gt;100"' in page
    chips = re.findall(r'<a class="badge" href="([^"]+)" aria-label="Take out ([^"]+)"', page)
    assert [word for _, word in chips] == ["tool:refund", "a-17", "amount&gt;100"]
    assert chips[1][0] == "/?q=tool%3Arefund+amount%3E100&amp;sort=due&amp;workspace=shop"
    assert await rows(client, chips[1][0].replace("&amp;", "&")) == queue
    page = (await client.get("/?q=tool:pay+-rita&workspace=shop")).text
    assert "<code>tool:pay</code>, <code>-rita</code> among the calls that wait in shop" in page
    assert '<a href="/?q=&amp;workspace=shop">Show all that wait</a>' in page
    page = (await client.get("/?q=shop/order-9/refund-1")).text
    assert '<a href="/calls/shop/order-9/refund-1">Open the call' in page


async def test_a_query_that_nobody_understands_stays_in_the_box(client, queue):
    """With the sentence of the API beside it, and no call that it may not mean."""
    for path in ("/?q=tool:refund+due:soon", "/decided?q=due%3C1h"):
        page = await client.get(path)
        assert page.status_code == 422
        assert '<p class="error" id="search-problem" role="alert">due' in page.text
        assert 'aria-invalid="true"' in page.text
        assert queue[0] not in page.text


async def test_a_page_says_mine_where_it_tells_calls_apart(shop, client, queue):
    """Not on every row of a list of which all are."""
    badge = '<span class="badge accent">mine</span>'
    assert badge not in (await client.get("/")).text
    shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
    await shop.service.request("shop/order-19/refund-1", "refund", ARGUMENTS, requester="olga")
    await listed(client, 4)
    page = (await client.get("/")).text
    assert page.count(badge) == 1


async def test_calls_stand_together_below_a_heading_with_their_number(shop, client, queue):
    await shop.service.request(
        "shop/order-19/refund-1", "refund", ARGUMENTS, requester="olga", agent="desk-1"
    )
    await listed(client, 4)
    page = (await client.get("/?group=requester&limit=2")).text
    assert re.findall(r'<h2>(\w+) <span class="count">(\d)</span>', page) == [
        ("olga", "1"),
        ("rita", "3"),
    ]
    page = (await client.get("/?group=agent")).text
    assert re.findall(r"<h2>([\w -]+) <span", page) == ["no agent", "desk-1"]


async def test_the_box_suggests_names_that_the_visitor_may_see(shop, client, queue):
    found = (await client.get("/api/v1/names")).json()
    assert found == {
        "tool": ["refund"], "agent": [], "requester": ["rita"], "rule": ["large refunds"],
        "label": [],
    }  # fmt: skip
    assert (await client.get("/api/v1/names?workspace=other")).json()["tool"] == []
    shop.visitor = Visitor("eve", frozenset({Role.AUDITOR}), workspaces=("other",))
    for path in ("/api/v1/names", "/api/v1/names?workspace=shop"):
        assert (await client.get(path)).json()["requester"] == []
    assert (await client.get("/api/v1/calls?q=rita+A-17")).json()["waiting"] == 0
    assert "rita" not in (await client.get("/?group=requester")).text


async def test_problems_are_pages(client):
    """The same sentence as over the API; htmx gets it as a message above the page."""
    page = await client.get("/nothing")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'role="alert"' in page.text
    part = await client.get("/nothing", headers={"HX-Request": "true"})
    assert part.headers["HX-Retarget"] == "#messages"
    assert THE_FRAME not in part.text
