"""A call and calls like it are approved in a browser, on a phone's width."""

from playwright.async_api import expect

CALL = "shop/order-17/refund-1"


async def test_a_call_and_calls_like_it_are_approved_after_a_second_look(shop, visit):
    """The choice is a link beside Approve; the next call that fits needs nobody."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}", viewport={"width": 360, "height": 740})
    await page.get_by_role("link", name="Approve, and allow such calls…").click()
    await page.get_by_label("order", exact=True).select_option("any")
    await page.get_by_label("How often").fill("3")
    await page.get_by_role("button", name="Review").click()
    await expect(page.locator("#proposal")).to_contain_text(
        "order any, amount 0 to 480; for 8 hours; at most 3 calls."
    )
    await expect(page.locator("#proposal")).to_contain_text("No call of it was decided")
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360
    await page.get_by_role("button", name="Approve and allow").click()
    await expect(page.locator("#grants")).to_contain_text("in force")
    await shop.service.request("shop/o-2/r", "refund", {"order": "B", "amount": 5})
    known = await shop.service.decision("shop/o-2/r", timeout_s=60)
    assert known.approval.ground == "grant"
    assert not visit.problems.seen
