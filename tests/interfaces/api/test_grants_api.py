"""Grants and delegations over HTTP, and their page."""

import json
import re
from datetime import timedelta

from console_client import REFUND

from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.slots import DelegationRef, GrantRef, ThreadRef, policy_slot

GRANTS, DELEGATIONS = "/api/v1/grants", "/api/v1/delegations"
AUDITOR = Visitor("olga", frozenset({Role.AUDITOR}))
DAYS = {"starts_at": "2026-01-01T00:00:00Z", "ends_at": "2999-01-01T00:00:00Z"}


async def decided(shop, call):
    return await shop.service.decision(call, timeout_s=60)


async def test_a_grant_for_calls_like_one_is_given_used_and_revoked(shop, client):
    """Giving it votes on the call itself; the next call like it needs nobody."""
    await shop.ask("shop/order-17/refund-1")
    new = {"call": "shop/order-17/refund-1", "for_s": 3600, "uses": 5, "name": "small"}
    given = await client.post(GRANTS, json=new)
    assert given.status_code == 200, given.text
    assert given.json()["grant"] == "shop/ana/small"
    assert (await decided(shop, "shop/order-17/refund-1")).approval.ground == "people"
    arguments = '{"order":"A-17","amount":480}'
    await shop.service.request("shop/order-17/refund-2", "refund", arguments, requester="rita")
    assert (await decided(shop, "shop/order-17/refund-2")).approval.ground == "grant"
    found = (await client.get(f"{GRANTS}?workspace=shop")).json()
    [one] = found["grants"]
    assert (one["standing"], one["left"], found["in_force"]) == ("in force", 4, 1)
    assert one["used_by"] == ["shop/order-17/refund-2"]
    assert one["used_at"] is not None
    revoke = f"{GRANTS}/shop/ana/small/revoke"
    revoked = await client.post(revoke, json={"reason": "enough"})
    assert (revoked.json()["standing"], revoked.json()["revoked_by"]) == ("revoked", "ana")
    assert (await client.post(revoke, json={})).status_code == 409
    assert (await client.get(f"{GRANTS}?standing=in force")).json()["grants"] == []


async def test_a_grant_for_a_tool_says_which_calls_it_is_for(shop, client):
    """The scope must be said, and the same grant again is the same fact."""
    tool = {"workspace": "shop", "tool": "refund", "for_s": 60}
    vague = await client.post(GRANTS, json=tool)
    assert vague.status_code == 422
    assert vague.json()["detail"].startswith("which calls of the tool?")
    like = {"call": "shop/order-17/refund-1", "workspace": "other", "for_s": 60}
    elsewhere = await client.post(GRANTS, json=like)
    assert "is not in workspace 'other'" in elsewhere.json()["detail"]
    new = tool | {"when": "args.amount < 20", "name": "small"}
    first, again = [(await client.post(GRANTS, json=new)).json() for _ in range(2)]
    assert (first["when"], first["seq"]) == ("args.amount < 20", again["seq"])
    bad = await client.post(GRANTS, json=new | {"when": "args.amount <", "name": "bad"})
    assert bad.status_code == 422
    everywhere = (await client.get(GRANTS)).json()["grants"]
    assert [one["grant"] for one in everywhere] == ["shop/ana/small"]


async def test_who_may_only_read_gives_nothing(shop, client):
    shop.visitor = AUDITOR
    assert (await client.get(GRANTS)).status_code == 200
    new = {"workspace": "shop", "tool": "refund", "for_s": 60, "any_arguments": True}
    assert (await client.post(GRANTS, json=new)).status_code == 403
    assert (await client.post(f"{GRANTS}/shop/ana/x/revoke", json={})).status_code == 403
    new = {"workspace": "shop", "to": "ben", **DAYS}
    assert (await client.post(DELEGATIONS, json=new)).status_code == 403
    assert "Give a grant" not in (await client.get("/grants")).text


async def test_a_delegation_is_its_givers(shop, client):
    """Ana gives one and ends it; nobody else can end it."""
    new = {"workspace": "shop", "to": "ben", "name": "leave", "tools": ["refund*"], **DAYS}
    given = await client.post(DELEGATIONS, json=new)
    assert given.status_code == 200, given.text
    [one] = (await client.get(f"{DELEGATIONS}?workspace=shop")).json()["delegations"]
    assert (one["delegation"], one["standing"], one["to"]) == ("shop/ana/leave", "in force", "ben")
    end = f"{DELEGATIONS}/shop/ana/leave/end"
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    assert (await client.post(end, json={})).status_code == 403
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    assert (await client.post(end, json={})).json()["standing"] == "ended"
    naive = new | {"name": "n", "starts_at": "2026-01-01T00:00:00", "ends_at": "2999-01-01T00:00"}
    assert (await client.post(DELEGATIONS, json=naive)).status_code == 422
    assert (await client.post(DELEGATIONS, json=new | {"tools": ["a:b"]})).status_code == 422


async def test_the_page_gives_a_grant_and_revokes_it(shop, client):
    """Plain forms; what was typed stays after a mistake."""
    page = await client.get("/grants?workspace=shop")
    assert "No grant" in page.text
    assert "ayes grant give" in page.text
    typed = {
        "workspace": "shop", "tool": "refund", "when": "args.amount < 20", "duration": "soon",
        "uses": "3", "reason": "<b>small</b>",
    }  # fmt: skip
    wrong = await client.post("/grants", data=typed)
    assert wrong.status_code == 422
    assert "How long &#39;soon&#39; is not a valid duration" in wrong.text
    assert 'value="args.amount &lt; 20"' in wrong.text
    # As at the command line: nobody means 8 seconds.
    eight = await client.post("/grants", data=typed | {"duration": "8"})
    assert (eight.status_code, "How long 8 has no unit" in eight.text) == (422, True)
    nothing = await client.post("/grants", data=typed | {"duration": "0h"})
    assert nothing.status_code == 422
    assert "How long &#39;0h&#39; is too short: 1s at least" in nothing.text
    assert (await client.get(GRANTS)).json()["grants"] == []
    [name] = re.findall(r'name="name" value="(g-[0-9a-f]+)"', wrong.text)
    right = typed | {"duration": "8h", "name": name}
    for _ in range(2):  # a form that is sent twice gives one grant
        done = await client.post("/grants", data=right)
        assert (done.status_code, done.headers["location"]) == (303, "/grants?workspace=shop")
    other = await client.post("/grants", data=right | {"uses": "4"})
    assert other.status_code == 409
    assert f'name="name" value="{name}"' not in other.text
    page = (await client.get("/grants")).text
    assert "&lt;b&gt;small&lt;/b&gt;" in page
    assert "0 of 3" in page
    [one] = (await client.get(GRANTS)).json()["grants"]
    done = await client.post(f"/grants/{one['grant']}/revoke", data={"reason": "enough"})
    assert done.status_code == 303
    again = await client.post(f"/grants/{one['grant']}/revoke", data={"reason": "enough"})
    assert again.status_code == 409
    assert "is revoked" in again.text


async def test_the_page_offers_a_grant_for_calls_like_one(shop, client):
    """From the page of a call: its tool, its arguments, its thread."""
    await shop.ask("shop/order-17/refund-1")
    page = await client.get("/grants?call=shop/order-17/refund-1")
    assert 'name="call" value="shop/order-17/refund-1"' in page.text
    form = {"call": "shop/order-17/refund-1", "duration": "1h", "uses": "1"}
    assert (await client.post("/grants", data=form)).status_code == 303
    [one] = (await client.get(GRANTS)).json()["grants"]
    assert (one["thread"], one["arguments"]) == ("order-17", '{"order":"A-17","amount":480}')


async def test_the_page_delegates_and_ends(shop, client):
    form = {"workspace": "shop", "to": "ben", "starts": "2026-01-01T08:00", "ends": "2999-01-01"}
    assert (await client.post("/delegations", data=form)).status_code == 303
    page = (await client.get("/grants")).text
    assert "ben for ana" in page
    [one] = (await client.get(DELEGATIONS)).json()["delegations"]
    assert (await client.post(f"/delegations/{one['delegation']}/end")).status_code == 303
    wrong = await client.post("/delegations", data=form | {"to": "ana"})
    assert wrong.status_code == 422
    assert "ana has their own vote already" in wrong.text


async def test_grants_of_two_workspaces_are_not_mixed(shop, client):
    """The same giver and name in another workspace is another grant."""
    await shop.service.declare("bank", REFUND)
    for workspace in ("shop", "bank"):
        new = {"workspace": workspace, "tool": "refund", "for_s": 60, "name": "same"}
        answer = await client.post(GRANTS, json=new | {"any_arguments": True})
        assert answer.status_code == 200, answer.text
    found = (await client.get(GRANTS)).json()
    assert [one["grant"] for one in found["grants"]] == ["bank/ana/same", "shop/ana/same"]
    first = (await client.get(f"{GRANTS}?limit=1")).json()
    assert [one["grant"] for one in first["grants"]] == ["bank/ana/same"]
    await client.post(f"{GRANTS}/bank/ana/same/revoke", json={})
    rest = (await client.get(f"{GRANTS}?after={first['next']}")).json()
    assert [one["grant"] for one in rest["grants"]] == ["shop/ana/same", "bank/ana/same"]
    assert rest["next"] is None
    assert (await client.get(f"{GRANTS}?after=x")).status_code == 422


async def test_what_hides_itself_is_spelled_out(shop, client):
    """B72: names and types that a login has recorded, and words of a search, turn no page round."""
    turned = "\u202eeve"
    grant, delegation = GrantRef("shop", "ana", "odd"), DelegationRef("shop", "ana", "odd")
    now = shop.service.now()
    facts = [
        (grant.given, e.Granted(tool=turned, expires_in_s=60)),
        (grant.revoked_by("ana"), e.GrantRevoked(reviewer=turned)),
        (
            delegation.given,
            e.Delegated(to=turned, starts_at=now, ends_at=now + timedelta(1), tools=(turned,)),
        ),
        (policy_slot("shop", 2), e.PolicyApplied(text="", digest="", proposal=f"a/b/{turned}")),
    ]
    async with Ledger.connect(shop.server.store.path, role="admin") as admin:
        for slot, event in facts:
            await admin.append(slot, event)
        newer = json.dumps({"type": f"New{turned}", "id": "n"}, ensure_ascii=False).encode()
        await admin.log.append(ThreadRef("shop", "odd").said("m1"), newer, "n")
    pages = ("/grants", "/conversations", "/policy/shop?version=2")
    searches = (f"/?q=tool:{turned}", f"/decided?q=by:{turned}")
    for path in (*pages, *searches):
        page = await client.get(path)
        assert page.status_code == 200, path
        assert "\u202e" not in page.text, path
        assert "U+202E" in page.text or "u202e" in page.text.lower(), path
