"""Each page shows what happens while it is open, and never under the hands of the reader."""

from datetime import timedelta

import pytest
from browser import sign_in
from console_client import POLICY
from playwright.async_api import expect

from ayes.consumers.live import LiveReply
from ayes.ledger import clock
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import ThreadRef, policy_slot

CALL = "shop/order-17/refund-1"
REASON = "It was refunded in spring."


async def reviewer(shop, name):
    return await shop.app.state.backend.reviewer(name)


def shown(page, status):
    return page.locator(f'article.call[data-call="{CALL}"][data-status="{status}"]')


@pytest.mark.long
async def test_lists_change_by_themselves(shop, visit):
    """Conversations, grants, delegations, policies, decided calls and those in doubt."""
    await shop.ask(CALL)
    listed = await visit("/conversations")
    conversation = await visit("/conversations/shop/order-17")
    grants, policy = await visit("/grants"), await visit("/policy/shop")
    decided, doubt = await visit("/decided"), await visit("/doubt")
    await expect(conversation.locator("details.cycle")).to_have_count(1)
    await conversation.locator("details.cycle > summary").click()

    await shop.ask("shop/order-18/refund-1")
    await expect(listed.get_by_text("shop/order-18")).to_be_visible()
    ana, ben = await reviewer(shop, "ana"), await reviewer(shop, "ben")
    await ana.grant("shop/ana/small", "refund", for_s=3600, uses=3, when="args.amount < 20")
    await expect(grants.get_by_text("shop/ana/small", exact=True)).to_be_visible()
    now = clock.now()
    await ben.delegate("shop/ben/away", "cai", starts_at=now, ends_at=now + timedelta(days=1))
    await expect(grants.get_by_text("shop/ben/away", exact=True)).to_be_visible()
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(POLICY))
    await expect(policy.get_by_role("heading", name="Version 2")).to_be_visible()
    await ben.approve(CALL)
    await shop.service.decision(CALL, timeout_s=60)
    await expect(decided.get_by_text(CALL)).to_be_visible()
    # What the reader has unfolded stays so.
    cycle = conversation.locator("details.cycle[open]")
    await expect(cycle.locator("summary")).to_contain_text("Approved by ben")
    await shop.service.start(CALL)
    await shop.service.doubt(CALL)
    await expect(doubt.locator(f'article[data-call="{CALL}"]')).to_be_visible()
    assert await listed.evaluate("performance.getEntriesByType('navigation').length") == 1


async def test_a_stop_is_shown_at_once(shop, visit):
    """The line on an open page, and the list, also of one workspace while all are stopped."""
    page, stops = await visit("/?workspace=shop"), await visit("/stops?workspace=shop")
    await expect(page.locator("#stopped")).to_be_hidden()
    ana = await reviewer(shop, "ana")
    await ana.stop("_organisation/ana/s1", reason="A wrong account.")
    line = page.locator("#stopped")
    await expect(line).to_contain_text("Stopped in all workspaces:", use_inner_text=True)
    await expect(stops.get_by_text("A wrong account.")).to_be_visible()
    await ana.stop("shop/ana/s2", reason="A wrong account.", for_s=7200)
    await ana.resume("_organisation/ana/s1")
    await expect(line).to_contain_text("Stopped in shop, the last stop ends in")
    await ana.resume("shop/ana/s2")
    await expect(page.locator("#stopped")).to_be_hidden()
    await expect(stops.get_by_text("ended", exact=True)).to_have_count(2)


async def test_a_reply_appears_as_it_is_said(shop, visit):
    """Each character once, also on a page that is opened anew, until the reply is recorded."""
    thread = ThreadRef("shop", "order-17")
    path = shop.server.store.path
    async with (
        Ledger.connect(path, role="admin") as ledger,
        Ledger.connect(path, role="model") as model,
    ):
        await ledger.append(thread.opened, e.ThreadOpened(requester="rita"))
        page = await visit("/conversations/shop/order-17")
        await ledger.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
        said = page.locator("[data-reply] pre")
        async with LiveReply.of(model, thread, 1, 1) as live:
            live.publish("<b>On</b> ")
            live.publish("its\u202e ")
            await expect(said).to_have_text("<b>On</b> itsU+202E ")
            await page.reload()
            live.publish("way, soon.")
            await expect(said).to_have_text("<b>On</b> itsU+202E way, soon.")
        async with LiveReply.of(model, thread, 1, 2) as live:  # another worker begins anew
            live.publish("It is late.")
            await expect(said).to_have_text("It is late.")
        await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("It is lost."),)))
    turn = page.get_by_label("Turn 1 of the model")
    await expect(turn.get_by_text("It is lost.", exact=True)).to_be_visible()
    await expect(said).to_have_count(0)


async def test_a_form_in_a_list_stays(shop, visit):
    """Somebody types why they revoke a grant, while another one is given and theirs is used."""
    ana = await reviewer(shop, "ana")
    await ana.grant("shop/ana/first", "refund", for_s=3600, uses=3, when="args.amount < 20")
    page = await visit("/grants")
    row = page.locator('[id="grant-shop/ana/first"]')
    await row.get_by_text("Revoke…").click()
    why = row.get_by_label("Why")
    await why.press_sequentially(REASON)
    await shop.service.request(CALL, "refund", {"order": "A-1", "amount": 1}, requester="rita")
    assert (await shop.service.decision(CALL, timeout_s=60)).status == "approved"
    await ana.grant("shop/ana/second", "refund", for_s=3600, uses=3, when="args.amount < 20")
    await expect(page.get_by_text("shop/ana/second", exact=True)).to_be_visible()
    await expect(why).to_have_value(REASON)
    await expect(why).to_be_focused()
    await expect(row).to_contain_text("0 of 3")
    await page.get_by_role("button", name="Revoke shop/ana/first").click()
    await expect(row).to_contain_text("by ana")
    await expect(row).to_contain_text("1 of 3")


async def test_what_happens_before_the_page_listens_is_not_missed(shop, visit):
    """The stream of events begins with the first fact that the page does not show."""
    digest = await shop.ask(CALL)
    page = await visit("/", "")
    held = []
    await page.route("**/api/v1/events*", lambda route: held.append(route))  # noqa: PLW0108
    await sign_in(page.context, shop, "ana")
    await page.goto(f"/calls/{CALL}")
    await (await reviewer(shop, "ben")).vote(CALL, Ballot("approve", digest=digest))
    await shop.service.decision(CALL, timeout_s=60)
    await expect(shown(page, "pending")).to_be_visible()
    assert held
    for route in held:
        await route.continue_()
    await expect(shown(page, "approved")).to_be_visible()


async def test_an_old_answer_is_not_the_last(shop, visit):
    """The call is read again until it is as new as its last event."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await expect(shown(page, "pending").and_(page.locator("[data-ready]"))).to_be_visible()
    old = await page.content()
    answered = []

    async def answer(route):
        if answered:
            return await route.continue_()
        answered.append(route)
        return await route.fulfill(body=old, content_type="text/html")

    await page.route("**/calls/**", answer)
    await (await reviewer(shop, "ben")).approve(CALL)
    await expect(shown(page, "approved")).to_be_visible()
    assert answered


async def test_nothing_moves_below_the_pointer(shop, visit):
    """A page that is about to be used changes when the pointer has left its buttons."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    article = page.locator("article.call[data-ready]")
    await article.locator("[data-key=a]").hover()
    await page.evaluate("window.before = document.querySelector('article.call')")
    await (await reviewer(shop, "ben")).approve(CALL)
    await shop.service.decision(CALL, timeout_s=60)
    await expect(page.locator('[data-count="waiting"]')).to_have_text("0")
    assert await page.evaluate("window.before.isConnected")
    await page.mouse.move(0, 0)
    await expect(shown(page, "approved")).to_be_visible()
    assert not await page.evaluate("window.before.isConnected")


@pytest.mark.long
async def test_two_people_talk_about_a_call_and_one_hands_it_over(shop, visit):
    """Each sees at once what the other says, and no text is left that was sent. The call leaves the
    list of the one, and the page of the other says why.
    """
    await shop.ask(CALL)
    ana, ben = await visit("/?q=is:mine"), await visit(f"/calls/{CALL}", "ben")
    ready = ana.locator("article.call[data-ready]")
    await expect(ready).to_be_visible()
    await expect(ready.get_by_text("ben is looking at this call too")).to_be_visible()
    await expect(ben.get_by_text("ana is looking at this call too")).to_be_visible()
    await ana.keyboard.press("c")
    await ana.get_by_label("What you say").fill("Do you know them?")
    await ana.keyboard.press("Control+Enter")
    await expect(ben.get_by_text("Do you know them?").first).to_be_visible()
    await expect(ready.get_by_text("Do you know them?").first).to_be_visible()
    await expect(ana.get_by_label("What you say")).to_be_hidden()
    await _put_aside_and_taken_back(ana)
    await ana.keyboard.press("h")
    await ana.get_by_label("To whom").fill("ben")
    await ana.keyboard.press("Control+Enter")
    await expect(ben.locator("article").get_by_text("handed to ben by ana")).to_be_visible()
    await expect(ana.locator(f'.row[data-call="{CALL}"]')).to_have_count(0)
    await ana.goto(f"/calls/{CALL}")
    await expect(ana.get_by_text("ben is looking at this call too")).to_be_visible()
    await ben.close()
    await expect(ana.get_by_text("is looking at this call")).to_have_count(0)


async def _put_aside_and_taken_back(page):
    """By two keys and one, and by itself when its time comes."""
    row = page.locator(f'.row[data-call="{CALL}"]')
    ready = page.locator("article.call[data-ready]")
    await page.keyboard.press("1")
    await expect(page.locator("#announcer")).to_have_text("You cannot do that with this call.")
    await page.keyboard.press("b")
    await expect(page.get_by_role("button", name="In an hour")).to_be_focused()
    await page.keyboard.press("1")
    await expect(row).to_have_count(0)
    await expect(page.get_by_role("link", name="1 put aside")).to_be_visible()
    await expect(page.locator('[data-count="mine"]').first).to_have_text("0")
    await page.keyboard.press("u")
    await expect(row).to_be_visible()
    await expect(ready).to_be_visible()
    put = """call => fetch(`/api/v1/calls/${call}/snooze`, {
        method: "PUT",
        headers: {"Content-Type": "application/json"},
        body: JSON.stringify({until: new Date(Date.now() + 2000).toISOString()}),
    })"""
    await page.evaluate(put, CALL)
    await page.goto("/?q=is:mine")
    await expect(row.get_by_text("back from later")).to_be_visible()
    await expect(ready).to_be_visible()
