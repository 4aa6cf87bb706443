"""The page of stops, and the line about them on the other pages, as they are without a script."""

import re

from console_client import listed
from shop import rule
from until import recorded

from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

STOPS = "/api/v1/stops"
FREE = rule("free", "allow", tools="refund")
CALL = "shop/order-17/refund-1"
TYPED = {
    "name": "s-1", "workspace": "shop", "agents": "desk-*, builder", "tools": "refund",
    "requesters": "*", "duration": "8h", "reason": "<b>A wrong account.</b>\u202e",
}  # fmt: skip


def fields(page):
    """What the form of the second step would send."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text)
    return {name: value.replace("&lt;", "<").replace("&gt;", ">") for name, value in found}


async def test_a_stop_is_shown_once_more_before_it_is_recorded(shop, client):
    """The first step records nothing; the second one is safe to repeat."""
    page = await client.get("/stops?workspace=shop")
    assert "Nothing is stopped" in page.text
    assert '<option value="shop" selected>shop</option>' in page.text
    assert '<option value="_organisation">All workspaces</option>' in page.text
    asked = await client.post("/stops", data=TYPED)
    assert asked.status_code == 200, asked.text
    assert "Stop this?" in asked.text
    for shown in ("desk-*, builder", "refund", "8 hours, unless people resume before", "U+202E"):
        assert shown in asked.text
    assert "<b>A wrong" not in asked.text
    assert (await client.get(STOPS)).json()["stops"] == []

    assert fields(asked) == TYPED | {"sure": "true"}
    for _ in range(2):
        done = await client.post("/stops", data=fields(asked))
        assert (done.status_code, done.headers["location"]) == (303, "/stops/shop/ana/s-1")
    [one] = (await client.get(STOPS)).json()["stops"]
    assert (one["stop"], one["agents"]) == ("shop/ana/s-1", ["desk-*", "builder"])
    page = await client.get("/stops")
    assert "<b>A wrong" not in page.text
    for shown in ("1 in force", "agents desk-*, builder", "by ana", "nobody", "1 more needed"):
        assert shown in page.text


async def test_the_page_of_a_stop_says_what_it_found(shop, client):
    """Also that this cannot be found out now: that it is in force is shown all the same."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(FREE))
    runs, held = (CallRef.parse(f"shop/order-17/{one}") for one in "rh")
    for call in (runs, held):
        arguments = {"order": "A-17", "amount": 1}
        await shop.service.request(call, "refund", arguments, requester="rita", agent="desk-1")
        await recorded(shop.service, call.decided.subject)
    await shop.service.start(runs)
    done = await client.post("/stops", data=TYPED | {"sure": "true"})
    path = done.headers["location"]
    assert f'href="{path}"' in (await client.get("/stops")).text
    page = await client.get(path)
    assert page.status_code == 200, page.text
    assert "<b>A wrong" not in page.text
    for shown in (
        "in force</span>", "desk-*, builder", ", by ana", "nobody", "1 more needed",
        "1 running", f'href="/calls/{runs}"', "refund by desk-1", "0 in doubt",
        "1 approved and not started", f'href="/calls/{held}"', "0 waiting for people",
        f'action="{path}/resume"', "They wait for the end of the stop.",
    ):  # fmt: skip
        assert shown in page.text, shown

    async with shop.app.state.backend.busy.once(("account", "ana"), ""):
        page = await client.get(path)
    assert page.status_code == 200
    for shown in ("in force</span>", "What it covered is not known: ana is asking"):
        assert shown in page.text
    await client.post(f"{path}/resume", data={"reason": "Mended."})
    page = await client.get(path)
    for shown in (">ended</span>", "Mended.", "1 approved and not started"):
        assert shown in page.text
    for gone in (f"{path}/resume", "They wait"):
        assert gone not in page.text
    unknown = await client.get("/stops/shop/ana/none")
    assert (unknown.status_code, "there is no stop shop/ana/none" in unknown.text) == (422, True)


async def test_resuming_takes_as_many_as_the_policy_says(shop, client):
    """Who has resumed is shown, and has no button any more."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied("resumes_needed = 2\n"))
    await client.post("/stops", data=TYPED | {"sure": "true"})
    resume = "/stops/shop/ana/s-1/resume"
    assert "2 more needed" in (await client.get("/stops")).text
    done = await client.post(resume, data={"reason": "Mended."})
    assert (done.status_code, done.headers["location"]) == (303, "/stops?workspace=shop")
    page = await client.get("/stops")
    assert "1 more needed" in page.text
    assert resume not in page.text
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    assert resume in (await client.get("/stops")).text
    await client.post(resume, data={"reason": "Seen."})
    page = await client.get("/stops")
    assert "ana, ben" in page.text
    assert "Mended. Seen." in page.text
    assert "in force</span>" not in page.text
    again = await client.post(resume, data={})
    assert (again.status_code, "has ended" in again.text) == (409, True)


MISTAKES = [
    ({"workspace": ""}, "which workspace is stopped? Choose it, or all workspaces."),
    ({"reason": " "}, "a stop needs a reason"),
    ({"agents": " , "}, "Agents is empty, so nothing would be stopped. Write * for all."),
    ({"duration": "soon"}, "How long &#39;soon&#39; is not a valid duration"),
    ({"duration": "8"}, "How long 8 has no unit"),
    ({"duration": "0h"}, "How long &#39;0h&#39; is too short: 1s at least"),
    ({"tools": "a:b", "sure": "true"}, "a:b"),
]


async def test_what_was_typed_stays_after_a_mistake(client):
    for typed, says in MISTAKES:
        wrong = await client.post("/stops", data=TYPED | typed)
        assert wrong.status_code == 422, typed
        assert says in wrong.text
        assert 'name="name" value="s-1"' in wrong.text
    assert (await client.get(STOPS)).json()["stops"] == []


async def test_who_may_not_is_told_so(shop, client):
    """By the policy, and by the role."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied('may_stop = ["oncall"]\n'))
    refused = await client.post("/stops", data=TYPED | {"sure": "true"})
    assert refused.status_code == 403
    assert "ana may not stop shop: may_stop in the policy names others" in refused.text
    assert 'value="desk-*, builder"' in refused.text
    shop.visitor = Visitor("olga", frozenset({Role.AUDITOR}))
    assert "Review the stop" not in (await client.get("/stops")).text
    assert (await client.post("/stops", data=TYPED)).status_code == 403


async def test_every_page_says_where_something_is_stopped(shop, client):
    """The list of waiting calls and the page of a call among them, as long as it is so."""
    await shop.ask(CALL)
    await listed(client, 1)
    hidden = '<p id="stopped" role="status" hidden>'
    pages = ("/", "/?workspace=shop", f"/calls/{CALL}")
    for path in pages:
        assert hidden in (await client.get(path)).text, path
    await client.post("/stops", data=TYPED | {"sure": "true"})
    for path in pages:
        assert "Stopped in <span>shop</span>" in (await client.get(path)).text, path
    assert hidden in (await client.get("/?workspace=bank")).text
    assert 'id="stopped"' not in (await client.get("/stops")).text
    assert "the last stop ends <time datetime=" in (await client.get("/")).text
    everywhere = TYPED | {"workspace": "_organisation", "sure": "true"}
    await client.post("/stops", data=everywhere)
    assert "Stopped in <span>all workspaces</span>" in (await client.get("/?workspace=bank")).text
    for stop in ("shop/ana/s-1", "_organisation/ana/s-1"):
        await client.post(f"/stops/{stop}/resume")
    assert hidden in (await client.get("/")).text
