"""The broker goes away and comes back while a page is open."""

import os
import signal

import pytest
from playwright.async_api import expect

from ayes.schemas.events import Voted
from ayes.schemas.slots import CallRef

REASON = "It was refunded in spring."


async def test_a_page_outlives_the_broker(shop, visit):
    """The header says that the connection is lost, and heals without a reload. A vote that could
    not be recorded is kept and sent again; nothing is missed, and nothing is there twice.
    """
    first, second, third = (f"shop/order-{number}/refund-1" for number in (1, 2, 3))
    for call in (first, second):
        await shop.ask(call)
    page = await visit()
    visit.problems.expected = {503}
    await expect(page.locator(f'article[data-call="{first}"][data-ready]')).to_be_visible()
    await page.evaluate("window.isSameDocument = true")
    await page.keyboard.press("d")
    await page.get_by_label("Why not").fill(REASON)
    os.kill(shop.server.pid, signal.SIGKILL)
    connection = page.locator("#connection")
    await expect(connection).not_to_be_empty()
    await page.get_by_role("button", name="Deny", exact=True).click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await shop.server.restart()
    await expect(connection).to_be_empty()
    await shop.ask(third)
    rows = page.locator("#calls .row")
    await expect(rows).to_have_count(3)
    await page.get_by_role("button", name="Send it again").click()
    await expect(page.locator(f'article[data-call="{second}"]')).to_be_visible()
    listed = await rows.evaluate_all("rows => rows.map(row => row.dataset.call)")
    assert [call for call in listed if call != first] == [second, third]
    facts = await shop.service.read(CallRef.parse(first))
    votes = [fact.event for fact in facts if isinstance(fact.event, Voted)]
    assert [(vote.verdict, vote.reason) for vote in votes] == [("deny", REASON)]
    assert await page.evaluate("window.isSameDocument")


@pytest.mark.long
async def test_a_console_that_answers_again_takes_its_message_back(shop, visit):
    """What was said of a request that failed is not left above a page that is up to date again."""
    call = "shop/order-1/refund-1"
    await shop.ask(call)
    page = await visit()
    await expect(page.locator(f'article[data-call="{call}"][data-ready]')).to_be_visible()
    await page.context.set_offline(offline=True)
    await page.keyboard.press("a")
    message = page.locator("#messages")
    await expect(message).to_contain_text("The console does not answer.")
    await page.context.set_offline(offline=False)
    await expect(message).to_be_empty()
    visit.problems.seen.clear()  # the stream of events was lost
