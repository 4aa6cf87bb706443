"""The page of decided calls, its export, and the search over HTTP."""

import json
import re

import pytest


@pytest.fixture
async def decided(shop, client):
    digest = await shop.ask("shop/order-17/refund-1")
    await client.post(
        "/api/v1/calls/shop/order-17/refund-1/votes",
        json={"verdict": "deny", "digest": digest, "reason": "<b>not this one</b>"},
    )
    call = await shop.service.decision("shop/order-17/refund-1", timeout_s=60)
    assert call.status in {"denied", "refused"}


async def test_the_page_and_the_export(decided, client):
    """The filter is in the address, and nothing in a call is HTML."""
    query = "verdict:denied by:ana since:2020-01-01 amount>100 A-17"
    shown = await client.get("/decided", params={"q": query})
    assert shown.status_code == 200
    assert 'href="/calls/shop/order-17/refund-1"' in shown.text
    assert "&lt;b&gt;not this one&lt;/b&gt;" in shown.text
    [export] = re.findall(r'href="(/api/v1/decided.jsonl[^"]*)"', shown.text)
    lines = await client.get(export.replace("&amp;", "&"))
    [found] = map(json.loads, lines.text.splitlines())
    assert (found["call"], found["by"]) == ("shop/order-17/refund-1", ["ana"])
    none = await client.get("/decided", params={"q": "verdict:approved"})
    assert "No decided call fits" in none.text


async def test_a_search_that_makes_no_sense_is_refused(client):
    """And where nothing has been decided yet, the page says so."""
    assert "Nothing has been decided yet" in (await client.get("/decided")).text
    for query in ("verdict:maybe", "since:soon"):
        answer = await client.get(f"/api/v1/decided?q={query}")
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith(f"{query} (character 1): ")
    for query in ("by=ana", "order=best", "limit=0"):
        answer = await client.get(f"/api/v1/decided?{query}")
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith(f"query.{query.split('=')[0]}")
