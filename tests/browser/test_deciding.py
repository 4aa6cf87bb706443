"""People decide in a browser: by keyboard, on a phone, many at once, and two of them at once."""

from browser import PHONE
from playwright.async_api import Page, expect

from ayes.schemas.events import Voted
from ayes.schemas.slots import CallRef

CALL = "shop/order-17/refund-1"
ARGUMENTS = '{"order":"A-17","amount":480}'


def button(page: Page, name: str):
    return page.get_by_role("button", name=name)


async def decided(shop, call=CALL):
    return await shop.service.decision(call, timeout_s=30)


async def votes(shop, call=CALL):
    facts = await shop.service.read(CallRef.parse(call))
    return [fact.event for fact in facts if isinstance(fact.event, Voted)]


async def test_by_keyboard_alone(shop, visit):
    """A queue is decided without a mouse, and Enter decides nothing (B46)."""
    for number in (1, 2):
        await shop.ask(f"shop/order-17/refund-{number}")
    page = await visit()
    press = page.keyboard.press
    await press("j")
    await press("Enter")
    await expect(button(page, "Approve")).to_be_visible()
    await press("Enter")
    await press("a")
    assert (await decided(shop)).status == "approved"
    await expect(page.get_by_text("approved by ana")).to_be_visible()
    # The next request is already there.
    await expect(page.get_by_role("heading", name="refund")).to_be_visible()
    await press("d")
    await page.keyboard.type("Not this one: a d e r are letters here.")
    await press("Tab")
    await press("Enter")
    denied = await decided(shop, "shop/order-17/refund-2")
    assert (denied.status, len(await votes(shop, str(denied.ref)))) == ("denied", 1)


async def test_on_a_phone(shop, visit):
    """One request is decided by two taps at 360 x 740, with nothing to scroll sideways."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}", viewport=PHONE, has_touch=True, is_mobile=True)
    approve = button(page, "Approve")
    box = await approve.bounding_box()
    assert box["height"] >= 44
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await approve.tap()
    assert (await decided(shop)).status == "approved"


async def test_edited_through_the_form(shop, visit):
    """The form keeps types, the schema's error stands at its field, and what changed is shown
    before it is sent.
    """
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await page.keyboard.press("e")
    amount = page.get_by_label("amount")
    await amount.fill("much")
    await button(page, "Review").click()
    await expect(amount).to_have_attribute("aria-invalid", "true")
    await amount.fill("48")
    await button(page, "Review").click()
    await expect(page.locator(".diff del")).to_contain_text("480")
    await expect(page.locator(".diff ins")).to_contain_text("48")
    assert await votes(shop) == []
    await button(page, "Approve").click()
    await expect(page.get_by_text("edited")).to_be_visible()
    [vote] = await votes(shop)
    assert vote.arguments == '{"order":"A-17","amount":48}'


async def test_twenty_at_once_of_which_two_fail(shop, visit):
    """All are listed before, each is one vote, and the two that others decided meanwhile are
    reported one by one.
    """
    calls = [f"shop/order-{number}/refund-1" for number in range(20)]
    for call in calls:
        await shop.ask(call)
    page = await visit()
    ...


async def test_the_slower_of_two_is_told_who_was_first(shop, visit):
    """Both have the page open; the second vote is refused, with what was typed still there."""
    await shop.ask(CALL)
    slower, faster = await visit(f"/calls/{CALL}", "ana"), await visit(f"/calls/{CALL}", "ben")
    await slower.keyboard.press("d")
    await slower.get_by_label("Reason").fill("It was refunded in spring.")
    await button(faster, "Approve").click()
    await decided(shop)
    await button(slower, "Deny").click()
    await expect(slower.get_by_role("alert")).to_contain_text("Approved by ben")
    await expect(slower.get_by_text("It was refunded in spring.")).to_be_visible()
    assert len(await votes(shop)) == 1


async def test_going_back_never_decides_twice(shop, visit):
    """Back, forward and a reload after a vote send nothing again."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await button(page, "Approve").click()
    await decided(shop)
    for again in (page.go_back, page.go_forward, page.reload):
        await again()
    assert len(await votes(shop)) == 1


async def test_an_expired_session_loses_no_text(shop, visit):
    """Whoever signs in again finds what they had typed."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await page.keyboard.press("d")
    await page.get_by_label("Reason").fill("It was refunded in spring.")
    await expire(page.context, shop)
    await button(page, "Deny").click()
    await expect(page).to_have_url(re.compile("/sign-in"))
    await sign_in(page.context, shop, "ana")
    await page.goto(f"/calls/{CALL}")
    await expect(page.get_by_label("Reason")).to_have_value("It was refunded in spring.")
    assert await votes(shop) == []
