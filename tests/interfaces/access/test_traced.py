"""The `traceparent` header of HTTP requests, with and without OpenTelemetry."""

import pytest
from console_client import listed
from traces import TRACE, named, path, recorded

from ayes.ledger import tracing
from ayes.schemas.slots import CallRef

CALL = "shop/order-17/refund-1"
PATH = f"/api/v1/calls/{CALL}"
REQUEST = {"tool": "refund", "arguments": '{"order":"A-17","amount":480}', "requester": "rita"}


async def request(client, **headers):
    return await client.put(PATH, json=REQUEST, headers=headers)


async def approve(client, **headers):
    [shown] = (await listed(client, 1))["calls"]
    vote = {"verdict": "approve", "digest": shown["digest"]}
    return await client.post(f"{PATH}/votes", json=vote, headers=headers)


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_the_header_of_a_request_is_recorded(shop, client, monkeypatch, is_loaded):
    """A program in any language passes its trace on by the header alone; the vote stays in it."""
    monkeypatch.setattr(tracing, "_is_in_use", lambda: is_loaded)
    assert (await request(client, traceparent=TRACE)).status_code == 200
    other = TRACE.replace("4bf9", "ffff")
    assert (await approve(client, traceparent=other)).status_code == 200
    call = await shop.service.known_call(CallRef.parse(CALL))
    assert [fact.event.trace for fact in call.facts] == [TRACE] * len(call.facts)


async def test_a_request_is_a_span_and_a_vote_is_linked_to_its_own(shop, client):
    """The request's span is below the header's; the vote is in the call's trace."""
    with recorded() as traces:
        await request(client, traceparent=TRACE)
        await approve(client)
        await client.get(PATH)
        call = await shop.service.known_call(CallRef.parse(CALL))
    spans = traces.spans
    route = "/api/v1/calls/{workspace}/{thread}/{call}"
    asked, voted = named(spans, f"PUT {route}"), named(spans, f"POST {route}/votes")
    assert asked.attributes == {
        "http.request.method": "PUT",
        "http.route": route,
        "http.response.status_code": 200,
    }
    assert (asked.trace, asked.parent) == (TRACE.split("-")[1], TRACE.split("-")[2])
    assert call.requested.event.trace.split("-")[2] == asked.id
    vote = named(spans, "vote approve")
    assert (vote.trace, vote.links) == (asked.trace, (voted.id,))
    assert voted.trace != asked.trace
    assert not [one for one in spans if one.name.startswith("GET")]


async def test_nobody_who_is_refused_writes_into_a_trace(shop, client):
    """The header of a visitor who is not signed in, and one that is invalid, count as absent."""
    with recorded() as traces:
        visitor, shop.visitor = shop.visitor, None
        assert (await request(client, traceparent=TRACE)).status_code == 401
        assert traces.spans == []
        shop.visitor = visitor
        await request(client, traceparent="nonsense")
        [asked] = [one for one in traces.spans if one.name.startswith("PUT")]
    assert (asked.parent, asked.trace != TRACE.split("-")[1]) == ("", True)
    call = await shop.service.known_call(CallRef.parse(CALL))
    assert path([asked], call.requested.event.trace) == [asked.name]
