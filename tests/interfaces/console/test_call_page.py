"""The page of one call."""

import asyncio
import base64
import hashlib
import html
import json
import os
import re
import signal
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from console_client import POLICY, listed, site
from pictures import PNG
from until import until

from ayes.interfaces.api.identity import Role, Visitor
from ayes.interfaces.console.pages import calls
from ayes.ledger.clients.services import Ledger
from ayes.schemas.events import Denied, Revoked, Voted, Withdrawn
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

REF = "shop/order-17/refund-1"
CALL = f"/calls/{REF}"
PANE = {"HX-Request": "true"}


async def page(client, path=CALL, **parameters):
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def words(text):
    """The text of a page, without its elements."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def form(verdict, digest, **more):
    return {"verdict": verdict, "digest": digest, **more}


def wrapped(arguments):
    return json.dumps(arguments)


async def test_a_call_is_shown_with_all_that_a_decision_needs(shop, client):
    """Why, who, what exactly, what led here (B72)."""
    await shop.service.say("shop/order-17", "I want my money back.", message="m1")
    await shop.ask("shop/order-17/refund-0", '{"order":"A-17","amount":120}')
    digest = await shop.ask(REF)
    text = await page(client)
    said = words(text)
    assert "large refunds (policy 1): “ It gives money away. ”" in said or "It gives money" in said
    assert "Who decides anybody" in said
    assert 'order "A-17"' in said
    assert "amount 480 last time: 120 (+300 %)" in said
    assert "I want my money back." in said
    assert digest[:12] in said
    assert "for rita" in said
    assert "ToolRequested" in said
    assert "ApprovalRequested" in said
    assert f'<article class="call" data-call="{REF}" data-status="pending"' in text
    pane = (await client.get(CALL, headers=PANE)).text
    assert pane.lstrip().startswith("<article")
    assert words(pane).count("amount 480") == words(text).count("amount 480")


async def test_a_vote_from_the_page_decides(shop, client):
    """Where htmx sends it, a fragment says that it was taken."""
    other = await shop.ask("shop/order-17/refund-2")
    there = "/calls/shop/order-17/refund-2/vote"
    voted = await client.post(there, data=form("approve", other), headers=PANE)
    assert voted.status_code == 200
    assert json.loads(voted.headers["hx-trigger"]) == {
        "ayes:voted": {"call": "shop/order-17/refund-2", "verdict": "approve"}
    }
    assert voted.text.lstrip().startswith("<article")
    digest = await shop.ask(REF)
    voted = await client.post(f"{CALL}/vote", data=form("approve", digest))
    assert (voted.status_code, voted.headers["location"]) == (303, CALL)
    decided = await shop.service.decision(REF, timeout_s=60)
    assert decided.status == "approved"
    said = words(await page(client))
    assert "Approved by ana" in said
    assert "Approve a" not in said


async def test_the_same_form_sent_again_is_one_vote(shop, client):
    """Double clicks and the back button (B57)."""
    digest = await shop.ask(REF)
    sent = form("deny", digest, reason="Not\r\ntwice.")
    answers = await asyncio.gather(*(client.post(f"{CALL}/vote", data=sent) for _ in range(3)))
    assert [one.status_code for one in answers] == [303, 303, 303]
    known = await shop.service.decision(REF, timeout_s=60)
    assert [(vote.event.verdict, vote.event.reason) for vote in known.votes] == [
        ("deny", "Not\ntwice.")
    ]


async def test_the_slower_of_two_is_told_who_was_first(shop, client):
    """And keeps what they typed (B27, B28)."""
    digest = await shop.ask(REF)
    await client.post(f"{CALL}/vote", data=form("approve", digest))
    await shop.service.decision(REF, timeout_s=60)
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    late = await client.post(f"{CALL}/vote", data=form("deny", digest, reason="Far too much."))
    assert late.status_code == 409
    said = words(late.text)
    assert "is already decided: Approved by ana" in said
    assert "Far too much." in said
    # Nor is the vote of another their own, since it is the same.
    late = await client.post(f"{CALL}/vote", data=form("approve", digest))
    assert late.status_code == 409
    edited = wrapped('{"order":"A-17","amount":7}')
    late = await client.post(f"{CALL}/vote", data=form("approve", digest, edited=edited))
    assert late.status_code == 409
    assert '{"order":"A-17","amount":7}' in html.unescape(late.text)


async def test_who_may_not_vote_is_told_why(shop, client):
    """The requester sees why, and can withdraw (B67). An auditor reads and nothing else."""
    digest = await shop.ask(REF)
    shop.visitor = Visitor("ana", frozenset({Role.AUDITOR}))
    text = await page(client)
    assert "<form" not in text.partition("<article")[2].partition("</article")[0]
    assert (await client.post(f"{CALL}/vote", data=form("approve", digest))).status_code == 403
    shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
    text = await page(client)
    assert "You cannot vote on this call" in words(text)
    assert f'action="{CALL}/vote"' not in text
    assert (await client.post(f"{CALL}/vote", data=form("approve", digest))).status_code == 403
    withdrawn = await client.post(f"{CALL}/withdraw", data={"reason": "Never mind."})
    assert withdrawn.status_code == 303
    known = await shop.service.decision(REF, timeout_s=60)
    assert isinstance(known.decided.event, Withdrawn)


async def test_an_edit_is_reviewed_and_sent(shop, client):
    """Fields, mistakes at their field, the difference, then the vote; what ran is shown (B61)."""
    digest = await shop.ask(REF)
    text = await page(client, f"{CALL}/edit")
    assert 'name="at/order"' in text
    basis = re.search(r'name="basis" value="([^"]*)"', text)[1]
    sent = {"basis": html.unescape(basis), "at/order": "A-17", "step": "review"}

    async def step(**typed):
        files = {name: (None, value) for name, value in (sent | typed).items()}
        return await client.post(f"{CALL}/edit", files=files)

    wrong = await step(**{"at/amount": "1,50"})
    assert wrong.status_code == 422
    assert "This is not a number." in words(wrong.text)
    assert "1,50" in wrong.text
    unfit = await step(**{"at/amount": "1.50"})
    assert unfit.status_code == 422
    assert 'id="at/amount-error"' in unfit.text
    review = await step(**{"at/amount": "100"})
    assert review.status_code == 200
    assert "amount 480 → 100" in words(review.text)
    edited = html.unescape(re.search(r'name="edited" value="([^"]*)"', review.text)[1])
    assert json.loads(edited) == '{"order":"A-17","amount":100}'
    again = await client.post(
        f"{CALL}/edit", files={"basis": (None, edited), "step": (None, "change")}
    )
    assert ">\n100</textarea>" in again.text
    await client.post(f"{CALL}/vote", data=form("approve", digest, edited=edited))
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    offered = await page(client)
    assert "Edit by ana amount 480 → 100 Approve the edit" in words(offered)
    again = html.unescape(re.search(r'name="edited" value="([^"]*)"', offered)[1])
    await client.post(f"{CALL}/vote", data=form("approve", digest, edited=again))
    known = await shop.service.decision(REF, timeout_s=60)
    assert known.arguments == '{"order":"A-17","amount":100}'
    said = words(await page(client))
    assert "What runs, as edited" in said
    assert "amount 100 asked: 480" in said
    assert "What was changed amount 480 → 100" in said


async def test_the_page_is_headed_by_what_runs(shop, client):
    """By the title of the tool, which stands beside its name and arguments; of an edit, the new."""
    spec = ToolSpec(
        name="pay",
        schema='{"type":"object"}',
        description="Pays a supplier.",
        title="Pay {sum} to {who}",
        secret=("/who",),
    )
    await shop.service.declare("shop", spec)
    digest = await shop.ask(REF, '{"sum":5,"who":"Ann"}', tool="pay")
    said = words(await page(client))
    assert "Pay 5 to (secret) pending" in said
    assert "pay · asked" in said
    assert "Pays a supplier." in said
    assert 'sum 5 who "(secret)"' in said
    edited = wrapped('{"sum":4,"who":"Ann"}')
    await client.post(f"{CALL}/vote", data=form("approve", digest, edited=edited))
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    await client.post(f"{CALL}/vote", data=form("approve", digest, edited=edited))
    await shop.service.decision(REF, timeout_s=60)
    assert "Pay 4 to (secret) approved" in words(await page(client))


async def test_a_picture_in_an_argument_is_served_alone(shop, client):
    """By its digest, for this call only; what a browser could run is no picture."""
    [shown, svg] = [
        f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        for kind, data in (("png", PNG), ("svg+xml", b"<svg onload='alert(1)'/>"))
    ]
    await shop.service.declare("shop", ToolSpec(name="post", schema='{"type":"object"}'))
    await shop.ask(REF, json.dumps({"shown": shown, "svg": svg}), tool="post")
    text = await page(client)
    assert f"image/png, {len(PNG)} bytes" in words(text)
    [path] = re.findall(r'<img class="picture" src="([^"]*)"', text)
    served = await client.get(path)
    assert (served.content, served.headers["content-type"]) == (PNG, "image/png")
    assert served.headers["content-security-policy"].endswith("sandbox")
    other = await client.get(path.replace(path[-64:], hashlib.sha256(b"other").hexdigest()))
    assert other.status_code == 404


async def test_an_edit_as_raw_json_keeps_the_bytes(shop, client):
    """Untouched, it is the request itself; a mistake keeps the text (B61)."""
    raw = '{ "order": "\u202eA",\n "amount": 480 }'
    await shop.ask(REF, raw)
    text = await page(client, f"{CALL}/edit")
    area = html.unescape(re.search(r'name="raw"[^>]*>\n(.*?)</textarea>', text, re.DOTALL)[1])
    assert area == raw.replace("\u202e", r"\u202e")
    same = {"raw": (None, area.replace("\n", "\r\n")), "step": (None, "raw")}
    review = await client.post(f"{CALL}/edit", files=same)
    assert "these are the arguments as requested" in words(review.text)
    broken = await client.post(
        f"{CALL}/edit", files={"raw": (None, '{"order":'), "step": (None, "raw")}
    )
    assert broken.status_code == 422
    assert "{&#34;order&#34;:</textarea>" in broken.text
    assert "cannot be read" in words(broken.text)


async def test_members_and_items_are_added_and_removed(tmp_path):
    schema = {
        "type": "object",
        "properties": {
            "to": {"type": "array", "items": {"type": "string"}},
            "note": {"type": "string"},
        },
        "required": ["to"],
    }
    mail = ToolSpec(name="mail", run_by="client", schema=json.dumps(schema))
    async with site(tmp_path, "", mail) as shop, shop.client() as client:
        await shop.service.request("shop/t/mail-1", "mail", '{"to":["a"]}', requester="rita")

        async def step(step, **typed):
            basis = wrapped(typed.pop("basis"))
            files = {"basis": basis, "step": step, **{f"at/{k}": v for k, v in typed.items()}}
            answer = await client.post(
                "/calls/shop/t/mail-1/edit", files={k: (None, v) for k, v in files.items()}
            )
            found = re.search(r'name="basis" value="([^"]*)"', answer.text)[1]
            return json.loads(html.unescape(found))

        two = await step("add:/to/1", basis='{"to":["a"]}', **{"to/0": "b"})
        assert two == '{"to":["b",""]}'
        noted = await step("add:/note", basis=two)
        assert noted == '{"to":["b",""],"note":""}'
        assert await step("remove:/to/0", basis=noted) == '{"to":[""],"note":""}'
        assert await step("remove:/note", basis=noted) == '{"to":["b",""]}'
        for place in ("/nothing", "/to"):  # what the schema requires
            assert await step(f"remove:{place}", basis=noted) == noted


def test_the_arguments_of_a_tool_that_nobody_declared_have_no_notes():
    """A model may wish for any tool."""
    record = SimpleNamespace(state=SimpleNamespace(arguments='{"order":"A-17"}'), tool_schema="")
    assert calls._notes(record) == {}


HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;",
    "bidi": "pay \u202e001\u202c to eve",
    "ansi": "\x1b[2Jgone",
    "long": "x" * 200_000,
}


async def test_a_hostile_call_is_text(tmp_path):
    """HTML, scripts, bidi and ANSI are shown as text, flagged, and complete (B72)."""
    tool = ToolSpec(name="any", run_by="client", schema='{"type":"object"}')
    async with site(tmp_path, "", tool) as shop, shop.client() as client:
        many = HOSTILE | {f"<i>{number}</i>": number for number in range(500)}
        raw = json.dumps(many, ensure_ascii=False)
        await shop.service.request("shop/t/c", "any", raw, requester="<b>eve</b>", agent="<u>")
        text = await page(client, "/calls/shop/t/c")
        article = text[text.index("<article") : text.index("</article>")]
        assert "<script" not in article
        assert "<img" not in article
        assert "<i>" not in article
        assert "\u202e" not in article.partition('id="call-raw"')[0]
        assert "hidden characters" in article
        said = html.unescape(article)
        assert HOSTILE["html"] in said
        assert all(f"<i>{number}</i>" in said for number in range(500))
        shown = re.sub(r"<[^>]+>", "", article)
        assert shown.count("x" * 4000) >= 200_000 // 4000 - 2


async def test_recent_calls_are_read_once_they_are_asked_for(shop, client):
    """The last five of the requester, each with its outcome, of the same workspace only."""
    for number in range(7):
        digest = await shop.ask(f"shop/order-{number}/refund-1")
        await client.post(f"/calls/shop/order-{number}/refund-1/vote", data=form("deny", digest))
        await shop.service.decision(f"shop/order-{number}/refund-1", timeout_s=60)
    await shop.ask(REF)
    text = await page(client)
    assert f'hx-get="{CALL}/recent"' in text
    assert "Recent calls for rita" in words(text)
    assert "order-6" not in text
    answer = await client.get(f"{CALL}/recent", headers=PANE)
    linked = re.findall(r'href="/calls/shop/(.*?)/refund-1">refund</a> denied', answer.text)
    assert linked == [f"order-{number}" for number in (6, 5, 4, 3, 2)]
    own = await client.get("/calls/shop/order-6/refund-1/recent", headers=PANE)
    assert "order-6" not in own.text
    assert "<h1>Recent calls</h1>" in (await client.get(f"{CALL}/recent")).text


async def test_facts_stand_as_recorded(shop, client):
    """Each fact in a sentence, with its number, name and JSON below; one that does not count, with
    the reason (I12).
    """
    digest = await shop.ask(REF)
    await client.post(f"{CALL}/vote", data=form("approve", digest, reason="It is due."))
    known = await shop.service.decision(REF, timeout_s=60)
    text = await page(client)
    said = words(text)
    for fact in known.facts:
        assert f"Fact {fact.seq}, {type(fact.event).__name__}" in said
    assert "Vote of ana: approve: It is due. reviewer ana," in said
    assert '"type":"Voted"' in html.unescape(re.sub(r"<[^>]+>", "", text))
    assert "It is due." in said
    late = Voted(verdict="deny", digest=digest)
    async with Ledger.connect(shop.server.store.path, role="admin") as admin:
        await admin.append(known.ref.vote("ben"), late)
    said = words(await page(client))
    assert "It does not count: the call was decided before it" in said


async def test_an_approval_is_revoked_from_its_page(shop, client):
    digest = await shop.ask(REF)
    await client.post(f"{CALL}/vote", data=form("approve", digest))
    await shop.service.decision(REF, timeout_s=60)
    assert f'action="{CALL}/revoke"' in await page(client)
    shop.visitor = Visitor("ana", frozenset({Role.AUDITOR}))
    assert f'action="{CALL}/revoke"' not in await page(client)
    assert (await client.post(f"{CALL}/revoke", data={"reason": "Mine."})).status_code == 403
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    revoked = await client.post(f"{CALL}/revoke", data={"reason": "A mistake."})
    assert revoked.status_code == 303
    assert "revoked" in words(await page(client))
    again = await client.post(f"{CALL}/revoke", data={"reason": "Another try."})
    assert again.status_code == 409
    assert "Another try." in again.text


async def test_a_call_is_answered_from_its_page_even_when_it_is_approved(shop, client):
    """As an error too, in the reviewer's own words."""
    digest = await shop.ask(REF)
    await client.post(f"{CALL}/vote", data=form("approve", digest))
    await shop.service.decision(REF, timeout_s=60)
    said = {"answer": "No such order.", "is_error": "true"}
    assert (await client.post(f"{CALL}/revoke", data=said)).status_code == 303
    assert "as an error: No such order." in words(await page(client))
    known = await shop.service.known_call(CallRef.parse(REF))
    assert isinstance(known.answer, Revoked)
    assert (known.answer.answer, known.answer.is_error) == ("No such order.", True)
    other = await shop.ask("shop/order-17/refund-2")
    cast = form("answer", other) | said
    assert (await client.post("/calls/shop/order-17/refund-2/vote", data=cast)).status_code == 303
    decided = await shop.service.decision("shop/order-17/refund-2", timeout_s=60)
    assert (decided.answer.answer, decided.answer.is_error) == ("No such order.", True)


async def test_the_tools_name_is_typed_where_a_rule_wants_it(tmp_path):
    """Approving, with an edit or without, takes the name; one by one, and not in bulk."""
    policy = POLICY + 'confirm = "typed"\nvotes_needed = 1\n'
    async with site(tmp_path, policy) as shop, shop.client() as client:
        digest = await shop.ask(REF)
        text = await page(client)
        assert "It is refund." in words(text)
        assert 'name="typed"' in text
        for typed in ("", "refunds"):
            refused = await client.post(f"{CALL}/vote", data=form("approve", digest, typed=typed))
            assert refused.status_code == 422
            said = "runs refund, and not 'refunds'" if typed else "wants the name of the tool typed"
            assert said in words(refused.text)
        shown = [{"call": REF, "digest": digest}]
        bulk = await client.post("/api/v1/votes", json={"verdict": "approve", "calls": shown})
        assert "wants the name of the tool typed" in bulk.json()[0]["problem"]["detail"]
        await client.post(f"{CALL}/vote", data=form("approve", digest, typed="refund\r\n"))
        known = await shop.service.decision(REF, timeout_s=60)
        assert known.status == "approved"
        other = await shop.ask("shop/order-18/refund-1")
        await client.post("/calls/shop/order-18/refund-1/vote", data=form("deny", other))
        denied = await shop.service.decision("shop/order-18/refund-1", timeout_s=60)
        assert isinstance(denied.decided.event, Denied)


async def test_a_call_that_wants_signed_votes_can_only_be_denied(tmp_path):
    """The page has no key of anybody's. It says where the vote is cast, and which one counts."""
    policy = f"{POLICY}signed = true\n"
    async with site(tmp_path, policy) as shop, shop.client() as client:
        digest = await shop.ask(REF)
        said = words(await page(client))
        assert "signed votes only" in said
        assert f"You can only deny it here: only signed votes count on {REF}" in said
        assert "Deny…" in said
        assert not {"Approve", "Edit…", "Answer…"} & {*said.split()}
        refused = await client.post(f"{CALL}/vote", data=form("approve", digest))
        assert "A denial needs no signature" in words(refused.text)
        unsigned = Voted(verdict="approve", digest=digest)
        async with Ledger.connect(shop.server.store.path, role="reviewer-ana") as ana:
            await ana.append(CallRef.parse(REF).vote("ana"), unsigned)
        assert "does not count: it is not signed" in words(await page(client))


async def test_a_requester_who_may_confirm_is_told_so_and_others_see_that_they_did(tmp_path):
    """In the list, on the call's page, among what was decided, and over the API."""
    policy = POLICY + 'mode = "requester_confirms"\n'
    async with site(tmp_path, policy) as shop, shop.client() as client:
        digest = await shop.ask(REF)
        [one] = (await listed(client, 1))["calls"]
        assert (one["mode"], one["mine"], one["may_confirm"]) == ("requester_confirms", True, False)
        assert "requester confirms" in words((await client.get("/")).text)
        shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
        [one] = (await listed(client, 1))["calls"]
        assert (one["mine"], one["may_confirm"]) == (True, True)
        assert "you may confirm your own request" in words((await client.get("/?q=is:mine")).text)
        assert "rita may confirm their own request." in words(await page(client))
        await client.post(f"{CALL}/vote", data=form("approve", digest))
        known = await shop.service.decision(REF, timeout_s=60)
        assert known.approval.mode == "requester_confirms"
        said = words(await page(client))
        assert "Approved by rita requester confirms" in said
        assert "by rita (requester confirms)" in said
        assert "requester confirms" in words((await client.get("/decided")).text)
        record = (await client.get(f"/api/v1{CALL}")).json()
        assert (record["state"]["mode"], record["question"]["own"]) == (
            "requester_confirms",
            ["rita"],
        )


async def test_a_comment_is_said_from_the_page(shop, client):
    """It stands there as it was typed; the request is answered as taken."""
    await shop.ask(REF)
    said = {"text": "Is this the parcel?\r\n<b>no</b>"}
    taken = await client.post(f"{CALL}/comment", data=said, headers=PANE)
    assert json.loads(taken.headers["hx-trigger"]) == {"ayes:taken": {"path": f"{CALL}/comment"}}
    assert "Comments ana" in words(taken.text)
    assert "Is this the parcel?\n&lt;b&gt;no" in taken.text
    shop.visitor = Visitor("ben", frozenset({Role.AUDITOR}))
    pane = words(await page(client))
    assert "Is this the parcel?" in pane
    assert "Comment…" not in pane


async def test_a_call_is_handed_over_from_its_page(shop, client):
    """To somebody who may vote; the page and the list say to whom, by whom and why."""
    await shop.ask(REF)
    await listed(client, 1)
    sent = {"to": "rita", "reason": "You know <her>."}
    refused = await client.post(f"{CALL}/hand", data=sent, headers=PANE)
    assert refused.status_code == 403
    assert "cannot be handed to rita" in words(refused.text)
    assert 'value="rita"' in refused.text
    taken = await client.post(f"{CALL}/hand", data=sent | {"to": " ben "}, headers=PANE)
    assert json.loads(taken.headers["hx-trigger"]) == {"ayes:taken": {"path": f"{CALL}/hand"}}
    assert "handed to ben by ana" in words(taken.text)
    assert "You know &lt;her&gt;." in taken.text
    await until(lambda: shop.app.state.backend.waiting.oldest()[0].handed)
    assert "handed to ben by ana" in words(await page(client, "/"))
    assert f'data-call="{REF}"' not in await page(client, "/", q="is:mine")
    assert f'data-call="{REF}"' in await page(client, "/", q="handed:ana")


@pytest.mark.parametrize(
    "shop", [POLICY + 'voters = ["ana", "ben", "cy", "rita"]\nvotes_needed = 2\n'], indirect=True
)
async def test_those_are_proposed_for_a_call_who_may_still_vote(shop, client):
    """Not the reader, nor who has voted, nor who asked for it."""
    digest = await shop.ask(REF)
    shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
    await client.post(f"{CALL}/vote", data=form("approve", digest))
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    [proposed] = re.findall(r'<datalist id="call-voters">(.*?)</datalist>', await page(client))
    assert re.findall(r'value="(\w+)"', proposed) == ["cy"]


async def test_a_vote_that_cannot_be_sent_keeps_its_text(shop, client):
    digest = await shop.ask(REF)
    os.kill(shop.server.pid, signal.SIGKILL)
    await shop.server.exited()
    sent = form("deny", digest, reason="Typed at length.")
    answer = await client.post(f"{CALL}/vote", data=sent, headers=PANE)
    assert answer.status_code == 503
    assert "Typed at length." in answer.text
    assert "Send it again" in words(answer.text)


async def test_arguments_are_checked_over_the_api(shop, client):
    await shop.ask(REF)
    check = f"/api/v1{CALL}/check"
    fits = await client.post(check, json={"arguments": '{"order":"A-17","amount":1}'})
    assert fits.json()["mistakes"] == []
    unfit = await client.post(check, json={"arguments": '{"order":17,"amount":"x"}'})
    assert [one["pointer"] for one in unfit.json()["mistakes"]] == ["/amount", "/order"]
    for odd in (b'"\\ud800"', b'"[[[["', b'"\\u0000"'):
        answer = await client.post(
            check, content=b'{"arguments":%b}' % odd, headers={"content-type": "application/json"}
        )
        assert answer.status_code in {200, 422}


async def test_a_damaged_form_is_refused(shop, client):
    """And a call that there is not has no page."""
    for path in ("nothing", quote("a b"), "x" * 65):
        answer = await client.get(f"/calls/shop/order-17/{path}")
        assert answer.status_code in {404, 422}
    await shop.ask(REF)
    damaged = [{"basis": '"{"'}, {"basis": "x"}, {"basis": "17"}]
    odd = [{"step": "raw", "raw": "[" * 5000}, {"step": "add:/x", "basis": '"[1]"'}, {}]
    for fields in (*damaged, *odd):
        files = {name: (None, text) for name, text in ({"step": "review"} | fields).items()}
        answer = await client.post(f"{CALL}/edit", files=files)
        assert answer.status_code in {200, 422}
        assert ("the form is damaged" in words(answer.text)) == (fields in damaged)
