"""In a browser, a vote can be undone before it is sent, where the policy says so."""

from browser import PHONE, violations
from console_client import POLICY
from playwright.async_api import Page, expect
from test_deciding import decision, shown, votes

from ayes.ledger.clients.services import Ledger
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot

FIRST, SECOND, THIRD = (f"shop/order-{number}/refund-1" for number in (17, 18, 19))
UNDO_S = 30


async def ask(shop, *calls: str) -> None:
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(f"undo_s = {UNDO_S}\n{POLICY}"))
    for call in calls:
        await shop.ask(call)


def held(page: Page, call: str):
    """The line about a vote that was not sent yet, or never."""
    return page.locator("#held > p").filter(has_text=call)


async def test_a_vote_can_be_undone_before_it_is_sent(shop, visit):
    """Votes are held one beside the other while the next call is decided, also over a reload. One
    that was undone, overtaken, or whose page was closed, is never sent.
    """
    await ask(shop, FIRST, SECOND, THIRD)
    page = await visit()
    await page.clock.install()
    press = page.keyboard.press
    await expect(shown(page, FIRST)).to_be_visible()
    await press("a")
    await expect(held(page, FIRST)).to_contain_text("Approved: refund")
    await expect(shown(page, SECOND)).to_be_visible()
    assert not await violations(page)
    await press("u")
    await expect(shown(page, FIRST)).to_be_visible()
    await expect(held(page, FIRST)).to_have_count(0)
    await press("a")
    await expect(shown(page, SECOND)).to_be_visible()
    await press("d")
    await press("Control+Enter")
    await expect(held(page, SECOND)).to_contain_text("Denied: refund")
    await expect(shown(page, THIRD)).to_be_visible()
    await page.reload()
    # A call is not offered again while its vote is held.
    await expect(shown(page, THIRD)).to_be_visible()
    await page.locator(f'.row[data-call="{FIRST}"] .row-title').click()
    await expect(shown(page, FIRST)).to_contain_text("Your vote is not sent yet.")
    assert await votes(shop, FIRST) == await votes(shop, SECOND) == []

    await (await shop.app.state.backend.reviewer("ben")).approve(SECOND)
    await expect(held(page, SECOND)).to_contain_text("Meanwhile: approved by ben.")
    await page.clock.run_for(1000 * UNDO_S)
    assert await decision(shop, FIRST) == "Approved"
    await expect(held(page, FIRST)).to_have_count(0)
    assert [len(await votes(shop, call)) for call in (FIRST, SECOND)] == [1, 1]

    await page.goto(f"/calls/{THIRD}")
    await expect(shown(page, THIRD)).to_be_visible()
    await press("a")
    await expect(held(page, THIRD)).to_be_visible()
    later = await page.context.new_page()
    await page.close()
    await later.goto("/")
    await later.clock.run_for(1000 * (UNDO_S + 5))
    await expect(held(later, THIRD)).to_contain_text("Not sent: “Approved: refund")
    assert await votes(shop, THIRD) == []


async def test_a_vote_whose_page_slept_is_not_sent(shop, visit):
    """Nobody knows whether it is still meant; on a phone, where the next call is another page."""
    await ask(shop, FIRST, SECOND)
    page = await visit(f"/calls/{FIRST}", viewport=PHONE, has_touch=True, is_mobile=True)
    await page.clock.install()
    await expect(shown(page, FIRST)).to_be_visible()
    await page.locator("[data-key=a]").tap()
    await page.get_by_role("link", name="Later").tap()
    await expect(shown(page, SECOND)).to_be_visible()
    await page.locator("[data-key=a]").tap()
    await held(page, SECOND).get_by_role("button", name="Undo").tap()
    await expect(shown(page, SECOND).locator("[data-key=a]")).to_be_visible()
    await page.clock.fast_forward(1000 * (UNDO_S + 60))
    await expect(held(page, FIRST)).to_contain_text("Not sent")
    await held(page, FIRST).get_by_role("button", name="Close").tap()
    await expect(held(page, FIRST)).to_have_count(0)
    assert await votes(shop, FIRST) == await votes(shop, SECOND) == []
