"""The stream of events over HTTP, from a real console beside a real broker."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import httpx
import pytest

from ayes.interfaces.api.backend import Backend
from ayes.interfaces.api.feed import ALL, LookingToo
from ayes.interfaces.api.identity import Visit
from ayes.interfaces.api.looking import Looking, Told
from ayes.interfaces.console.serving import served
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.slots import CallRef

REVIEWER = frozenset({Role.REVIEWER})
ANA = Visitor("ana", REVIEWER)
OF_CALLS = ("requested", "waiting", "voted", "decided", "started", "finished")


@pytest.fixture
async def online(shop):
    """A client of the console on a port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shop.security.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        hooks = {"request": [shop._sign]}
        async with (
            served(shop.app, listener, shop.security),
            httpx.AsyncClient(base_url=shop.security.url, event_hooks=hooks, timeout=60) as client,
        ):
            yield client


class Stream:
    """The events of one open stream."""

    def __init__(self, response):
        self.headers = response.headers
        self._lines = response.aiter_lines()
        #: The events of calls that came.
        self.came = []

    async def next(self, *kinds):
        """The next event of these kinds: its id, its kind, its data."""
        found = {}
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line:
                    name, _, value = line.partition(": ")
                    found[name] = value
                    continue
                event = found.get("id"), found.get("event"), json.loads(found.get("data", "null"))
                found = {}
                if event[1] in OF_CALLS:
                    self.came.append(event)
                if event[1] in kinds:
                    return event
        raise AssertionError("the stream ended")


@asynccontextmanager
async def stream(client, last_event_id="", **query):
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with client.stream("GET", "/api/v1/events", params=query, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


async def test_a_call_from_its_request_to_its_decision(shop, online):
    """The events are as the facts come; the id is the number in the log (B78, B79)."""
    async with stream(online, call="shop/order-17/refund-1") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        assert (await events.next("broker"))[2]["broker"] == "up"
        digest = await shop.ask("shop/order-17/refund-1")
        await shop.ask("shop/order-18/refund-1")
        votes = "/api/v1/calls/shop/order-17/refund-1/votes"
        await online.post(votes, json={"verdict": "approve", "digest": digest})
        found = [await events.next(*OF_CALLS) for _ in range(4)]
    assert [kind for _, kind, _ in found] == ["requested", "waiting", "voted", "decided"]
    assert [data["status"] for *_, data in found] == ["requested", "pending", "pending", "approved"]
    assert all(at == str(data["seq"]) for at, _, data in found)
    assert {data["call"] for *_, data in found} == {"shop/order-17/refund-1"}
    assert found[3][2]["by"] == "ana"


async def test_the_list_is_announced_after_it_has_changed(shop, online):
    """Whoever reads it again after the event finds the call in it (B54)."""
    async with stream(online) as events:
        await events.next("broker")
        await shop.ask("shop/order-17/refund-1")
        while not (await events.next("listed"))[2]["waiting"]:
            pass
        listed = (await online.get("/api/v1/calls", params={"status": "pending"})).json()["calls"]
        assert [one["call"] for one in listed] == ["shop/order-17/refund-1"]


async def test_a_broker_that_goes_away_and_comes_back(shop, online):
    """Clients are told both times; what came meanwhile arrives once (I13, B53)."""
    async with stream(online, thread="shop/order-17") as events:
        await shop.ask("shop/order-17/refund-1")
        shop.server._process.kill()
        while (await events.next("broker"))[2]["broker"] == "up":
            pass
        asking = asyncio.create_task(shop.ask("shop/order-17/refund-2"))
        await shop.server.restart()
        while (await events.next("broker"))[2]["broker"] == "down":
            pass
        await asyncio.wait_for(asking, 60)
        while len(events.came) < 4:
            await events.next(*OF_CALLS)
        seen = events.came
    assert [(kind, data["call"][-1]) for _, kind, data in seen] == [
        ("requested", "1"), ("waiting", "1"), ("requested", "2"), ("waiting", "2"),
    ]  # fmt: skip
    async with stream(online, thread="shop/order-17", last_event_id=seen[0][0]) as events:
        assert [await events.next(*OF_CALLS) for _ in range(3)] == seen[1:]


async def test_a_position_of_another_log_is_reset(online):
    async with stream(online, after=10**9) as events:
        _, _, data = await events.next("reset")
        assert data["seq"] < 10**9


async def test_a_position_that_is_no_number_is_refused(client):
    for after in ("-1", "soon", str(2**64)):
        answer = await client.get("/api/v1/events", params={"after": after})
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("query.after: ")


CALL = "shop/order-17/refund-1"


async def looking_at(events):
    """The first people whom a visitor's events tell of."""
    async with asyncio.timeout(60):
        async for together in events:
            for one in together:
                if isinstance(one, LookingToo) and one.people:
                    return one.people
    raise AssertionError("the events ended")


async def test_two_consoles_tell_each_other_who_looks_at_a_call(shop, online):
    """By their names, as long as their streams are open; programs look at nothing, and a visitor
    who does not see the workspace hears nothing.
    """
    shop.visitor = ANA
    async with (
        Backend.connect(shop.server.store.path) as elsewhere,
        stream(online, shown=CALL) as events,
    ):
        assert (await events.next("looking"))[2] == {"call": CALL, "people": []}
        shop.visitor = Visitor("bot", REVIEWER, "token")
        async with stream(online, shown=CALL) as of_program:
            assert (await of_program.next("looking"))[2]["people"] == ["ana"]
            ben = Visit(None, Visitor("ben", REVIEWER), elsewhere)
            looks = ben.events(ALL, None, CallRef.parse(CALL))
            assert await looking_at(looks) == ("ana",)
            assert (await events.next("looking"))[2]["people"] == ["ben"]
            await looks.aclose()
            assert (await events.next("looking"))[2]["people"] == []
        cy = Visit(None, Visitor("cy", REVIEWER, workspaces=("bank",)), elsewhere)
        nothing = cy.events(ALL, None, CallRef.parse(CALL))
        assert not any(isinstance(one, LookingToo) for one in await anext(nothing))
        await nothing.aclose()
        assert elsewhere.looking.people(CALL, "") == ("ana",)


async def test_a_console_that_falls_silent_is_forgotten(monkeypatch):
    """It was killed, and could not say who left."""
    told = []
    looking = Looking(lambda: told.append(looking.people(CALL, "ana")))
    looking.note(Told("other", ((CALL, "ben"), (CALL, "ana"))))
    looking.note(Told("other", ((CALL, "ben"), (CALL, "ana"))))
    assert told == [("ben",)]
    clock = asyncio.get_running_loop()
    later = clock.time() + 6
    monkeypatch.setattr(clock, "time", lambda: later)
    assert looking.people(CALL, "ana") == ()
