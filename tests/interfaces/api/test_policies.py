"""Policies over HTTP: versions, trials on the past, proposals; and the pages."""

import asyncio
import re

from console_client import POLICY, REFUND
from shop import rule
from until import recorded

from ayes.ledger.clients.services import Ledger
from ayes.ops.single_flight import in_thread
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.policy import applied
from ayes.schemas.slots import ORGANISATION, CallRef, policy_slot

SHOP = "/api/v1/policies/shop"
FREE, STRICT = rule("free", "allow", tools="*"), rule("none", "block", tools="*")
REVIEWER = Visitor("ana", frozenset({Role.REVIEWER}))


async def test_versions_say_who_applied_them_and_what_changed(shop, client):
    """The one in force first, each with a diff to the one before."""
    done = await client.post(SHOP, json={"text": FREE})
    assert done.json() == {"workspace": "shop", "version": 2}
    assert (await client.post(SHOP, json={"text": FREE})).json()["version"] == 2
    found = (await client.get(SHOP)).json()
    assert (found["in_force"], found["needs_approval"]) == (2, False)
    assert [one["version"] for one in found["versions"]] == [2, 1]
    assert found["versions"][0]["by"] == "operator ana"
    text = (await client.get(f"{SHOP}/versions/2")).json()
    assert (text["text"], text["before"]) == (FREE, 1)
    assert '-then = "ask"' in text["changes"]
    assert '+then = "allow"' in text["changes"]
    first = (await client.get(f"{SHOP}/versions/1")).json()
    assert (first["text"], first["before"], first["changes"]) == (POLICY, 0, [])
    assert (await client.get(f"{SHOP}/versions/3")).status_code == 422
    assert (await client.get("/api/v1/policies")).json() == ["shop"]
    none = (await client.get("/api/v1/policies/elsewhere")).json()
    assert (none["in_force"], none["versions"]) == (0, [])


async def test_a_void_version_says_why_it_has_no_effect(shop, client):
    """What was in force before it stays."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied("this is no policy"))
    found = (await client.get(SHOP)).json()
    assert found["in_force"] == 1
    assert "no TOML" in found["versions"][0]["void"]
    page = await client.get("/policy/shop?version=2")
    assert "It has no effect" in page.text


async def test_a_trial_judges_the_past_and_records_nothing(shop, client):
    """Asked, allowed and blocked calls, and those that would change."""
    await shop.ask("shop/order-17/refund-1")
    await shop.ask("shop/order-17/refund-2", '{"order":"B-1","amount":5}')
    before = await shop.service.log.last_seq()
    shop.visitor = Visitor("olga", frozenset({Role.AUDITOR}))
    tried = await client.post(f"{SHOP}/try", json={"text": FREE, "days": 7})
    assert tried.status_code == 200, tried.text
    found = tried.json()
    assert (found["calls"], found["allowed"], found["changed"]) == (2, 2, 2)
    assert found["changes"][0] == {
        "call": "shop/order-17/refund-1", "tool": "refund", "actual": "open",
        "outcome": "allowed", "rule": "free",
    }  # fmt: skip
    assert found["in_force"] == 1
    assert '+then = "allow"' in found["differences"]
    same = (await client.post(f"{SHOP}/try", json={"text": POLICY})).json()
    assert (same["asked"], same["changed"], same["differences"]) == (2, 0, [])
    whole = (
        await client.post(f"/api/v1/policies/{ORGANISATION}/try", json={"text": STRICT})
    ).json()
    assert (whole["blocked"], whole["calls"]) == (2, 2)
    assert await shop.service.log.last_seq() == before
    wrong = await client.post(f"{SHOP}/try", json={"text": "[[rule]]\n"})
    assert wrong.status_code == 422
    assert wrong.json()["detail"].startswith("the policy, line 1")


async def test_one_visitor_tries_one_policy_at_a_time(shop, client):
    """A second trial is refused until the first has ended; other visitors may try theirs."""
    ana = shop.visitor
    async with shop.app.state.backend.busy.once(("trial", ana.name), "It is tried already."):
        assert (await client.post(f"{SHOP}/try", json={"text": FREE})).status_code == 409
        shop.visitor = Visitor("ben", ana.roles)
        assert (await client.post(f"{SHOP}/try", json={"text": FREE})).status_code == 200
    shop.visitor = ana
    assert (await client.post(f"{SHOP}/try", json={"text": FREE})).status_code == 200


async def test_long_work_is_done_beside_the_event_loop_and_ends_with_its_caller():
    """Other requests go on meanwhile; a caller that goes away takes its work with it."""
    begun, ended = asyncio.Event(), []
    here = asyncio.get_running_loop()

    async def work():
        assert asyncio.get_running_loop() is not here
        here.call_soon_threadsafe(begun.set)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    caller = asyncio.create_task(in_thread(work))
    await asyncio.wait_for(begun.wait(), 60)
    caller.cancel()
    await asyncio.wait({caller}, timeout=60)
    assert caller.cancelled()
    assert ended == [True]


async def test_a_version_that_needs_approval_is_proposed_and_then_applied(shop, client):
    """Applied directly it would have no effect, so that is refused (B69)."""
    store = shop.server.store.path
    async with Ledger.connect(store, role="organisation") as organisation:
        needed = applied("policies_need_approval = true\n")
        await organisation.append(policy_slot(ORGANISATION, 1), needed)
    assert (await client.get(SHOP)).json()["needs_approval"] is True
    refused = await client.post(SHOP, json={"text": FREE})
    assert refused.status_code == 403
    assert "Propose it instead" in refused.json()["detail"]
    proposed = await client.post(f"{SHOP}/proposals", json={"text": FREE})
    ref = proposed.json()["proposal"]
    [one] = (await client.get(f"{SHOP}/proposals")).json()
    assert (one["proposal"], one["version"], one["requester"]) == (ref, 2, "ana")
    apply = f"{SHOP}/proposals/{ref.partition('/')[2]}/apply"
    assert (await client.post(apply)).status_code == 409
    [fact] = await recorded(shop.service, CallRef.parse(ref).gated.subject)
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    vote = {"verdict": "approve", "digest": fact.event.digest}
    assert (await client.post(f"/api/v1/calls/{ref}/votes", json=vote)).status_code == 200
    assert (await shop.service.decision(ref, timeout_s=60)).status == "approved"
    shop.visitor = Visitor("ana", frozenset(Role))
    assert "Apply shop/policy/v2-" in (await client.get("/policy/shop")).text
    assert (await client.post(apply)).json()["version"] == 2
    assert (await client.post(apply)).json()["version"] == 2
    found = (await client.get(SHOP)).json()
    assert (found["in_force"], found["versions"][0]["proposal"]) == (2, ref)


async def test_only_operators_apply_policies_and_nobody_the_organisations(shop, client):
    answer = await client.post(f"/api/v1/policies/{ORGANISATION}", json={"text": FREE})
    assert answer.status_code == 403
    assert "--organisation" in answer.json()["detail"]
    page = f"/policy/{ORGANISATION}"
    assert f'href="{page}"' in (await client.get("/policy/shop")).text
    tried = (await client.post(f"{page}/try", data={"text": FREE})).text
    assert "ayes policy apply organisation.toml --organisation" in tried
    assert "Apply this policy" not in tried
    shop.visitor = REVIEWER
    for path in (SHOP, f"{SHOP}/proposals"):
        assert (await client.post(path, json={"text": FREE})).status_code == 403
    assert (await client.post(f"{SHOP}/proposals/policy/v2-x/apply")).status_code == 403
    assert (await client.post("/policy/shop/apply", data={"text": FREE})).status_code == 403
    assert (await client.get(SHOP)).json()["in_force"] == 1


async def test_the_page_shows_a_policy_and_tries_another(shop, client):
    """Lines are numbered, and the trial stands below what was pasted."""
    await shop.ask("shop/order-17/refund-1")
    chosen = await client.get("/policy")
    assert (chosen.status_code, chosen.headers["location"]) == (303, "/policy/shop")
    page = (await client.get("/policy/shop")).text
    assert '<ol class="code numbered"><li>' in page
    assert "in force" in page
    tried = await client.post("/policy/shop/try", data={"text": FREE.replace("\n", "\r\n")})
    assert tried.status_code == 200, tried.text
    assert "1 call would change" in tried.text
    assert re.search(r"<ins>\+then = &#34;allow&#34;</ins>", tried.text)
    assert "Apply this policy" in tried.text
    wrong = await client.post("/policy/shop/try", data={"text": "<b>", "days": "0"})
    assert wrong.status_code == 422
    assert "&lt;b&gt;" in wrong.text
    done = await client.post("/policy/shop/apply", data={"text": FREE.replace("\n", "\r\n")})
    assert done.status_code == 303
    assert (await client.get(f"{SHOP}/versions/2")).json()["text"] == FREE
    page = (await client.get("/policy/shop")).text
    assert "Changes since version 1" in page
    assert "2 versions" in page
    assert "No policy yet" in (await client.get("/policy/elsewhere")).text
    assert "No policy yet" in (await client.get(f"/policy/{ORGANISATION}")).text


async def test_tools_are_listed_in_their_newest_version(shop, client):
    [one] = (await client.get("/api/v1/tools/shop")).json()
    assert (one["name"], one["run_by"], one["json_schema"]) == (
        "refund", "client", REFUND.schema_text,
    )  # fmt: skip
    newer = REFUND.model_copy(update={"description": "Gives money back."})
    await shop.service.declare("shop", newer)
    [one] = (await client.get("/api/v1/tools/shop")).json()
    assert one["description"] == "Gives money back."
    assert (await client.get("/api/v1/tools/none")).json() == []
