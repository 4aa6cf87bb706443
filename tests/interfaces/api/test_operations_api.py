"""Operations over HTTP: the state of the broker, and what workers gave up on."""

import asyncio
import json

import pytest

from ayes.interfaces.cli import check
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Parked
from ayes.ops.single_flight import Fresh
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import BrokerAway
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

OPERATIONS, PARKED = "/api/v1/operations", "/api/v1/operations/parked"
AUDITOR = Visitor("olga", frozenset({Role.AUDITOR}))


async def park(shop, reason="no gate could read it", ref="shop/order-17/refund-1") -> int:
    """Park the request of a call for the gate; returns its number."""
    requested = CallRef.parse(ref).requested
    [fact] = await shop.service.read(requested)
    async with Ledger.connect(shop.server.store.path, role="gate") as gate:
        parked = Parked("gate", fact.seq, requested.subject, reason, 3, fact.recorded_at)
        await gate.log.park(parked)
        return max(one.number for one in await gate.log.parked("gate"))


async def test_the_state_is_that_of_the_command_line(shop, client, capsys):
    """The same data as `ayes status`, and the call that waits for longest."""
    await shop.ask("shop/order-17/refund-1")
    await shop.ask("shop/order-17/refund-2")
    shop.visitor = AUDITOR
    found = (await client.get(OPERATIONS)).json()
    await check.status(session=Session(shop.server.store.path, json=True))
    told = json.loads(capsys.readouterr().out)
    assert {*told} - {*found} == set()
    for same in ("url", "facts", "last_seq", "alarms", "in_doubt", "parked"):
        assert found[same] == told[same]
    assert [one["name"] for one in found["consumers"]] == [one["name"] for one in told["consumers"]]
    assert (found["pending"], found["oldest"]) == (2, "shop/order-17/refund-1")
    assert {one["stream"] for one in found["room"]} >= {"LEDGER", "PARKED"}
    assert all(one["listening"] for one in found["consumers"] if one["name"] in {"gate", "queue"})


async def test_an_answer_for_everybody_is_asked_for_once_at_a_time():
    """Those who ask meanwhile get the same one, until it is too old; an error is not kept."""
    asked = []

    async def ask():
        asked.append(len(asked))
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise BrokerAway("away")
        return len(asked)

    fresh = Fresh(ask, for_s=3600)
    with pytest.raises(BrokerAway):
        await fresh()
    assert await asyncio.gather(*(fresh() for _ in range(5))) == [2] * 5
    always = Fresh(ask, for_s=-1)
    assert (await always(), await always()) == (3, 4)


async def test_an_alarm_is_shown(shop, client):
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied("this is no policy"))
    found = (await client.get(OPERATIONS)).json()
    assert any("ledger.shop._policy.2" in one for one in found["alarms"])
    assert "ledger.shop._policy.2" in (await client.get("/operations")).text


async def test_a_parked_delivery_is_shown_tried_again_and_dropped(shop, client):
    """With its reason and the payload of its fact, as `ayes parked` does it."""
    await shop.ask("shop/order-17/refund-1")
    number = await park(shop, reason="<b>no</b>")
    [one] = (await client.get(PARKED)).json()["parked"]
    assert (one["number"], one["consumer"], one["tries"]) == (number, "gate", 3)
    assert (one["standing"], one["is_open"]) == ("parked", True)
    shown = (await client.get(f"{PARKED}/{number}")).json()
    assert json.loads(shown["payload"])["type"] == "ToolRequested"
    page = (await client.get("/operations")).text
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "Try again" in page
    assert "ToolRequested" in (await client.get(f"/operations/parked/{number}")).text
    retried = await client.post(f"{PARKED}/retry", json={"numbers": [number]})
    assert retried.status_code == 200, retried.text
    assert retried.json()["parked"][0]["standing"] == "to be tried again"


async def test_dropping_takes_it_off_the_list_with_a_reason(shop, client):
    """Operators do, and nobody else."""
    await shop.ask("shop/order-17/refund-1")
    number, operator = await park(shop), shop.visitor
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    for what in ("retry", "drop"):
        refused = await client.post(f"{PARKED}/{what}", json={"numbers": [number]})
        assert refused.status_code == 403
        form = {"number": str(number)}
        assert (await client.post(f"/operations/{what}", data=form)).status_code == 403
    assert "Try again" not in (await client.get("/operations")).text
    assert len((await client.get(PARKED)).json()["parked"]) == 1
    shop.visitor = operator
    dropped = await client.post(f"{PARKED}/drop", json={"numbers": [number], "reason": "old"})
    assert dropped.json()["parked"][0]["standing"] == "dropped"
    assert (await client.get(PARKED)).json()["parked"] == []
    [one] = (await client.get(f"{PARKED}?all=true")).json()["parked"]
    assert (one["said"], one["is_open"]) == ("old", False)
    again = await client.post(f"{PARKED}/drop", json={"numbers": [number]})
    assert again.status_code == 422
    assert "there is nothing to drop" in again.json()["detail"]
    assert "Nothing is parked" in (await client.get("/operations")).text


async def test_the_page_retries_and_drops(shop, client):
    """Plain forms; what cannot be done any more is said."""
    await shop.ask("shop/order-17/refund-1")
    number = await park(shop)
    done = await client.post("/operations/drop", data={"number": str(number), "reason": "old"})
    assert (done.status_code, done.headers["location"]) == (303, "/operations")
    again = await client.post("/operations/retry", data={"number": str(number)})
    assert again.status_code == 422
    assert "there is nothing to retry" in again.text


async def test_the_page_says_that_the_broker_is_away_and_asks_again(shop, client, monkeypatch):
    """Without the frame where htmx asks, so that it heals without a reload."""
    good = (await client.get("/operations")).text
    assert 'hx-select="#live"' in good

    async def away():
        raise BrokerAway("the broker is away.")

    monkeypatch.setattr(shop.app.state.backend, "status", away)
    first = await client.get("/operations")
    assert first.status_code == 503
    assert "the broker is away. This page tries again by itself." in first.text
    assert 'hx-select="#operations"' in first.text
    later = await client.get("/operations", headers={"HX-Request": "true"})
    assert 'hx-select="#live"' in later.text
    assert "hx-retarget" not in later.headers
