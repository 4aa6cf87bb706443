"""The broker goes away and comes back while a page is open."""

import os
import signal

from playwright.async_api import expect


async def test_a_page_outlives_the_broker(shop, visit):
    """The header says that the connection is lost, and heals without a reload; nothing is missed
    or shown twice, and what was being typed is still there.
    """
    for number in (1, 2):
        await shop.ask(f"shop/order-{number}/refund-1")
    page = await visit()
    rows = page.locator("li.row")
    await expect(rows).to_have_count(2)
    await page.evaluate("window.sameDocument = true")
    os.kill(shop.server.pid, signal.SIGKILL)
    connection = page.locator("#connection")
    await expect(connection).to_be_visible()
    await shop.server.restart()
    await expect(connection).to_be_hidden()
    await shop.ask("shop/order-3/refund-1")
    await expect(rows).to_have_count(3)
    assert await page.evaluate("window.sameDocument")
