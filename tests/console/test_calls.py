"""Calls and votes over HTTP."""

import asyncio


async def waiting(client, count):
    """The page of waiting calls, once it has so many."""
    async with asyncio.timeout(20):
        while True:
            found = (await client.get("/api/v1/calls?status=pending")).json()
            if found["waiting"] == count:
                return found
            await asyncio.sleep(0.02)


async def test_a_call_is_listed_and_decided(shop, client):
    digest = await shop.ask("shop/order-17/refund-1")
    [listed] = (await waiting(client, 1))["calls"]
    assert (listed["call"], listed["tool"]) == ("shop/order-17/refund-1", "refund")
    assert listed["arguments"] == '{"order":"A-17","amount":480}'
    votes = f"/api/v1/calls/{listed['call']}/votes"
    voted = await client.post(votes, json={"verdict": "approve", "digest": digest})
    assert voted.status_code == 200, voted.text
    decided = await shop.service.decision(listed["call"], timeout_s=20)
    assert decided.status == "approved"
    assert (await waiting(client, 0))["calls"] == []
    record = (await client.get(f"/api/v1/calls/{listed['call']}")).json()
    kinds = [fact["event"]["type"] for fact in record["facts"]]
    assert kinds == ["ToolRequested", "ApprovalRequested", "Voted", "Approved"]


async def test_errors_are_problems(client):
    """An error is problem+json with the sentence of the command line (RFC 9457)."""
    answer = await client.get("/api/v1/calls/shop/order-17/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith("shop/order-17/nothing was never requested.")
