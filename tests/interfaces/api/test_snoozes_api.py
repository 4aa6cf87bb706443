"""Calls that are put aside, over HTTP, in the console and at the terminal."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from console_client import POLICY, listed
from until import until

from ayes.interfaces.cli.command import Session
from ayes.interfaces.cli.decide import pending
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import BadInput
from ayes.schemas.events import PersonAdded, PersonRemoved
from ayes.schemas.slots import person_slot

FIRST, SECOND = "shop/order-1/refund-1", "shop/order-2/refund-1"
REVIEWER = frozenset({Role.REVIEWER})
ANA, BEN, DESK = (
    Visitor("ana", REVIEWER),
    Visitor("ben", REVIEWER, workspaces=("shop",)),
    Visitor("desk", frozenset({Role.SERVICE}), "token"),
)
HOUR = timedelta(hours=1)
FOUR_HOURS = POLICY + 'expires_in_s = 14400\nvoters = ["ana", "ben"]\n'


def path(call):
    return f"/api/v1/calls/{call}/snooze"


async def put(client, call, after=HOUR):
    until = datetime.now(UTC) + after
    return await client.put(path(call), json={"until": until.isoformat()})


async def found(client, q=""):
    page = (await client.get("/api/v1/calls", params={"q": q})).raise_for_status().json()
    return [one["call"] for one in page["calls"]], page["waiting"], page["put_aside"]


async def numbers(client):
    counts = (await client.get("/api/v1/counts")).json()
    return counts["waiting"], counts["mine"]


@pytest.fixture
async def two(shop, client):
    shop.visitor = ANA
    for call in (FIRST, SECOND):
        await shop.ask(call)
    await listed(client, 2)


@pytest.mark.parametrize("shop", [FOUR_HOURS], indirect=True)
async def test_it_leaves_the_lists_and_numbers_of_one_person(shop, client, two, monkeypatch):
    """It comes back at its time, by the record and not by a timer, and says that it was away."""
    assert (await put(client, FIRST)).status_code == 200
    assert await found(client) == ([SECOND], 1, 1)
    assert await found(client, "is:mine") == ([SECOND], 1, 1)
    assert await found(client, "is:snoozed") == ([FIRST], 1, 0)
    assert await found(client, "order-2") == ([SECOND], 1, 0)
    assert await numbers(client) == (1, 1)
    (await client.put("/api/v1/views", json={"name": "all", "q": "refund"})).raise_for_status()
    [view] = (await client.get("/api/v1/views")).json()["views"]
    assert view["waiting"] == 1
    page = (await client.get("/")).text
    assert ">1 put aside</a>" in page
    assert (await client.get("/next/0")).headers["location"] == f"/calls/{SECOND}"
    assert list((await client.get("/api/v1/snoozed")).json()["calls"]) == [FIRST]
    for other in BEN, DESK:
        shop.visitor = other
        assert (await found(client))[1:] == (2, 0)
        assert await found(client, "is:snoozed") == ([], 0, 0)
    assert await numbers(client) == (2, 0)
    shop.visitor = ANA
    reading = shop.app.state.backend.reading
    later = reading.now() + 2 * HOUR
    monkeypatch.setattr(reading, "now", lambda: later)
    assert await found(client) == ([FIRST, SECOND], 2, 0)
    assert "back from later" in (await client.get("/")).text
    assert await numbers(client) == (2, 2)


@pytest.mark.parametrize("shop", [FOUR_HOURS], indirect=True)
async def test_it_is_brought_back_and_what_cannot_be_is_refused(shop, client, two):
    late = await put(client, FIRST, 3.5 * HOUR)
    assert (late.status_code, "at the latest" in late.json()["detail"]) == (422, True)
    assert (await client.put(path(FIRST), json={"until": "2030-01-01T09:00"})).status_code == 422
    assert (await put(client, "shop/order-9/refund-1")).status_code == 404
    shop.visitor = DESK
    assert (await put(client, FIRST)).status_code == 403
    shop.visitor = Visitor("ben", REVIEWER, workspaces=("bank",))
    assert (await put(client, FIRST)).status_code == 404
    shop.visitor = ANA
    await put(client, FIRST)
    assert (await client.get(path(FIRST))).json()["until"]
    for _ in range(2):
        assert (await client.delete(path(FIRST))).json()["until"] is None
    assert await found(client) == ([FIRST, SECOND], 2, 0)


@pytest.mark.parametrize("shop", [FOUR_HOURS], indirect=True)
async def test_handing_it_to_its_person_brings_it_back(shop, client, two):
    await put(client, FIRST)
    shop.visitor = BEN
    (await client.post(f"/api/v1/calls/{FIRST}/hand", json={"to": "ana"})).raise_for_status()
    await until(lambda: shop.app.state.backend.waiting.oldest()[0].handed)
    shop.visitor = ANA
    assert await found(client) == ([FIRST, SECOND], 2, 0)


async def test_the_page_puts_aside_and_brings_back(shop, client, two):
    """Without a script: in an hour, or until a time in UTC."""
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT09:00}"
    for value in ("hour", tomorrow):
        done = await client.post(f"/calls/{FIRST}/snooze", data={"until": value})
        assert done.headers["location"] == f"/calls/{FIRST}"
        assert (await found(client))[2] == 1
        assert "You have put this call aside until" in (await client.get(f"/calls/{FIRST}")).text
        await client.post(f"/calls/{FIRST}/wake")
        assert (await found(client))[2] == 0
    bad = await client.post(f"/calls/{FIRST}/snooze", data={"until": "soon"})
    assert "&#39;soon&#39; is not a valid time" in bad.text


async def test_the_terminal_finds_what_is_put_aside_and_a_name_inherits_nothing(
    shop, client, two, capsys
):
    """The terminal asks the console, with the person's own login."""
    await put(client, FIRST)

    async def calls(query, name):
        session = Session(shop.server.store.path, json=True)
        await pending(query, name=name, session=session)
        return [json.loads(line)["call"] for line in capsys.readouterr().out.splitlines()]

    assert await calls("is:snoozed", "ana") == [FIRST]
    assert await calls("is:mine -is:snoozed", "ana") == [SECOND]
    assert await calls("is:snoozed", "ben") == []
    with pytest.raises(BadInput, match="is:snoozed is about a reader"):
        await calls("is:snoozed", "")
    backend = shop.app.state.backend
    organisation = await backend._logins.connection("organisation", "sre")
    for number, event, is_removed in (1, PersonRemoved(), True), (2, PersonAdded(), False):
        await organisation.append(person_slot("ana", number), event)
        await until(lambda wanted=is_removed: backend.people.is_removed("ana") is wanted)
    shop.visitor = Visitor("ana", REVIEWER | {Role.AUDITOR})  # in a session of its own
    assert await found(client) == ([FIRST, SECOND], 2, 0)
