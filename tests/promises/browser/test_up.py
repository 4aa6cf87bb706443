"""The link that `ayes up` prints leads to a decision."""

import asyncio

from browser import Problems, opened
from playwright.async_api import expect
from program import ask, declare, until, up

from ayes.schemas.slots import CallRef

CALL = CallRef("shop", "order-17", "refund-1")


async def test_from_the_printed_link_to_a_decision(tmp_path, browser):
    """Whoever opens the link and agrees to sign in sees what comes, and decides; it works once."""
    with up(tmp_path / "store", "--console", "--console-port", 0, "--as", "ana") as ready:
        await asyncio.to_thread(declare, tmp_path / "store", ["refund"], "shop")
        problems = Problems()
        context = await opened(browser)
        page = await context.new_page()
        problems.watch(page)
        await page.goto(ready["console"])
        await page.get_by_role("button", name="Sign in as ana").click()
        await expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
        await asyncio.to_thread(ask, tmp_path / "store", CALL, "refund")
        await page.locator("article[data-ready] [data-key=a]").click()
        await asyncio.to_thread(until, tmp_path / "store", CALL.decided)
        another = await (await opened(browser)).new_page()
        await another.goto(ready["console"])
        await expect(another.get_by_role("alert")).to_contain_text("used already")
        for one in browser.contexts:
            await one.close()
        assert problems.seen == []
