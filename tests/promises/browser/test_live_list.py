"""The list of waiting calls changes by itself, and never under the hands of the reader."""

from playwright.async_api import Route, expect
from until import until

from ayes.schemas.slots import CallRef

FIRST, SECOND, THIRD = (f"shop/order-{number}/refund-1" for number in (1, 2, 3))
#: Wait until a decided call has been in the list for longer than it has to.
LONG_ENOUGH = """row => new Promise(
    proceed => setTimeout(proceed, Number(row.dataset.until) + 700 - Date.now())
)"""


async def test_views_are_counted_again_if_the_list_changed_before_the_page_heard_of_it(shop, visit):
    """The connection for events comes late; then the page has the numbers of before."""
    for call in (FIRST, SECOND):
        await shop.ask(call)
    await save_view(shop)
    page = await visit("/policy")
    held: list[Route] = []
    await page.route("**/api/v1/events*", lambda route: held.append(route))  # noqa: PLW0108
    await page.goto("/")
    view = page.locator('[data-view="refunds"]')
    await expect(view).to_have_text("2")
    await (await shop.app.state.backend.reviewer("ben")).approve(SECOND)
    await until(lambda: held and shop.app.state.backend.feed._listed.waiting == 1)
    for one in held:
        await one.continue_()
    await expect(view).to_have_text("1")


async def save_view(shop) -> None:
    async with shop.client() as ana:
        saved = await ana.put("/api/v1/views", json={"name": "refunds", "q": "tool:refund"})
        saved.raise_for_status()


async def test_rows_come_by_themselves_and_leave_when_no_form_is_open(shop, visit):
    for call in (FIRST, SECOND):
        await shop.ask(call)
    await save_view(shop)
    page = await visit()
    rows = page.locator("#calls .row")
    await expect(page.locator("article.call[data-ready]")).to_be_visible()
    await page.keyboard.press("d")
    await expect(page.get_by_label("Why not")).to_be_focused()
    await (await shop.app.state.backend.reviewer("ben")).approve(SECOND)
    leaving = page.locator(".row.leaving")
    await expect(leaving).to_contain_text("approved by ben")
    # The page counts its views every 15 s at most, and has done so when the vote was recorded.
    await expect(page.locator('[data-view="refunds"]')).to_have_text("1")
    await shop.ask(THIRD)
    await expect(rows).to_have_count(3)
    await expect(page.locator("#announcer")).to_have_text("New call: refund")
    await leaving.evaluate(LONG_ENOUGH)
    await expect(rows).to_have_count(3)
    await page.keyboard.press("Escape")
    await expect(leaving).to_have_count(0)
    await expect(page.locator(f'.row[data-call="{THIRD}"]')).to_be_visible()
    await expect(page.locator('[data-count="waiting"]')).to_have_text("2")


async def test_a_double_click_decides_one_call(shop, visit):
    """The next call stands where the first one was, and its buttons wait for a moment."""
    for call in (FIRST, SECOND):
        await shop.ask(call)
    page = await visit()
    await page.locator(f'article[data-call="{FIRST}"][data-ready] [data-key=a]').dblclick()
    await expect(page.locator(f'article[data-call="{SECOND}"][data-ready]')).to_be_visible()
    assert (await shop.service.decision(FIRST, timeout_s=60)).status == "approved"
    await expect(page.locator('[data-count="waiting"]')).to_have_text("1")
    assert (await shop.service.known_call(CallRef.parse(SECOND))).status == "pending"
