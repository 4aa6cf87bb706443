"""The box in which calls are searched, and the order and groups of the list."""

import re

import pytest
from browser import violations
from playwright.async_api import expect

FIRST, SECOND, THIRD = (f"shop/order-{number}/refund-1" for number in (1, 2, 3))
ROWS = "#calls .row"


def arguments(order, amount):
    return f'{{"order":"{order}","amount":{amount}}}'


async def ask(shop):
    for call, order, amount in ((FIRST, "A-17", 40), (SECOND, "B-1", 480), (THIRD, "B-2", 90)):
        await shop.ask(call, arguments(order, amount))


async def calls_in(page):
    return await page.locator(ROWS).evaluate_all("rows => rows.map(row => row.dataset.call)")


@pytest.mark.long
async def test_a_search_by_keyboard_is_a_link(shop, visit):
    """`/` goes to the box, names are suggested, each word is a chip that can be taken out. Saved
    under a name, it is the first page.
    """
    await ask(shop)
    page = await visit()
    await expect(page.locator(ROWS)).to_have_count(3)
    await page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Search calls")
    await expect(box).to_be_focused()
    await page.keyboard.type("ref")
    options = page.get_by_role("listbox", name="Suggestions").get_by_role("option")
    await expect(options.first).to_have_text("tool:refund")
    await page.keyboard.press("ArrowDown")
    await expect(options.first).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(box).to_have_value("tool:refund ")
    await page.keyboard.type("amount>50")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"/calls/.*\?q=tool%3Arefund\+amount%3E50$"))
    await expect(page.locator(ROWS)).to_have_count(2)
    assert await violations(page) == ""
    again = await visit("/?q=tool%3Arefund+amount%3E50")
    assert await calls_in(again) == [SECOND, THIRD]
    await again.get_by_role("link", name="Take out amount>50").click()
    await expect(again.locator(ROWS)).to_have_count(3)
    await expect(again.locator("#search")).to_have_value("tool:refund")
    await page.get_by_role("link", name="Save…").click()
    assert await violations(page) == ""
    await page.get_by_label("Name").fill("Large refunds")
    await page.get_by_label("My first page").check()
    await page.get_by_role("button", name="Save").click()
    await again.get_by_role("link", name="All", exact=True).click()
    await expect(again.get_by_role("link", name="Large refunds 2")).to_be_visible()
    await again.get_by_role("link", name="ayes", exact=True).click()
    assert await calls_in(again) == [SECOND, THIRD]


async def test_quoted_names_and_escape(shop, visit):
    """A name with a blank is suggested in quotes; Escape leaves what was typed."""
    await ask(shop)
    page = await visit()
    await page.keyboard.press("/")
    await page.keyboard.type("-large")
    option = page.locator("#suggestions li")
    await expect(option).to_have_text('rule:"large refunds"')
    await page.keyboard.press("Escape")
    await expect(option).to_be_hidden()
    await page.keyboard.press("ArrowDown")
    await option.click()
    await expect(page.locator("#search")).to_have_value('-rule:"large refunds" ')
    await page.keyboard.press("Enter")
    await expect(page.locator("#nothing")).to_contain_text('Searched for -rule:"large refunds"')
    await page.get_by_role("link", name="Show all that wait").click()
    await expect(page.locator(ROWS)).to_have_count(3)


async def test_keys_follow_the_order_on_the_screen(shop, visit):
    """Sorted and grouped, `j` goes down the screen; what comes meanwhile takes its place."""
    await ask(shop)
    page = await visit("/")
    await page.get_by_label("Sort").select_option("-field:amount")
    await expect(page).to_have_url(re.compile(r"/calls/.*\?q=&sort=-field%3Aamount$"))
    await expect(page.locator(ROWS)).to_have_count(3)
    assert await calls_in(page) == [SECOND, THIRD, FIRST]
    await page.get_by_label("Group").select_option("requester")
    await expect(page.locator(".group")).to_have_text("rita 3")
    await shop.service.request(
        "shop/order-4/refund-1", "refund", arguments("C-1", 100), requester="rita"
    )
    await shop.service.request(
        "shop/order-5/refund-1", "refund", arguments("C-2", 1), requester="olga"
    )
    await expect(page.locator(ROWS)).to_have_count(5)
    olga, rita = "shop/order-5/refund-1", "shop/order-4/refund-1"
    assert await calls_in(page) == [olga, SECOND, rita, THIRD, FIRST]
    await expect(page.locator(".group")).to_have_text(["olga 1", "rita 4"])
    await expect(page.locator(f'article[data-call="{SECOND}"][data-ready]')).to_be_visible()
    for call in (rita, THIRD, FIRST):
        await page.keyboard.press("j")
        await expect(page.locator(".row[aria-current]")).to_have_attribute("data-call", call)


async def test_without_a_script_it_is_a_form(shop, visit):
    await ask(shop)
    page = await visit("/", java_script_enabled=False)
    await page.get_by_label("Search calls").fill("a-17")
    await page.get_by_label("Sort").select_option("due")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator(ROWS)).to_have_count(1)
    assert await calls_in(page) == [FIRST]
    await page.goto("/decided?q=by:")
    await expect(page.get_by_role("alert")).to_contain_text("by: at character 1 of the query")


@pytest.mark.parametrize("width", [360, 1280])
async def test_the_box_and_its_suggestions_lie_within_the_screen(shop, visit, width):
    await ask(shop)
    page = await visit("/?q=refund+-olga", viewport={"width": width, "height": 640})
    await page.locator("#search").focus()
    await expect(page.locator("#suggestions")).to_be_visible()
    for selector in ("#search", ".search-field button", "#suggestions", ".chips", ".views"):
        found = await page.locator(selector).bounding_box()
        assert found["x"] >= 0, selector
        assert found["x"] + found["width"] <= width, selector
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
