"""Each call that the list shows has an address: what is shown there is what a key decides."""

import re

import pytest
from browser import PHONE, sign_in, violations
from console_client import POLICY
from playwright.async_api import Page, expect

from ayes.ledger.clients.services import Ledger
from ayes.schemas.events import Voted
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

FIRST, SECOND, THIRD = (f"shop/order-{number}/refund-1" for number in (1, 2, 3))
ROWS = "#calls .row"


def shown(page: Page, call: str):
    """The article of a call at its address, once its buttons take a press."""
    return page.locator(f'article.call[data-call="{call}"][data-ready]')


async def opens(page: Page, call: str, search: str = "") -> None:
    await expect(shown(page, call)).to_be_visible()
    await expect(page).to_have_url(re.compile(re.escape(f"/calls/{call}{search}") + "$"))


async def votes(shop, call: str) -> list[tuple[str, str, str]]:
    facts = await shop.service.read(CallRef.parse(call))
    cast = [(one.slot.tail[-1], one.event) for one in facts if isinstance(one.event, Voted)]
    return [(reviewer, one.verdict, one.digest) for reviewer, one in cast]


async def decided(shop, call: str) -> str:
    return type((await shop.service.decision(call, timeout_s=60)).decided.event).__name__


@pytest.mark.long
async def test_each_tab_decides_the_call_of_its_address(shop, visit):
    """In two tabs of one person; back and forward go through the calls that were opened."""
    digests = {call: await shop.ask(call) for call in (FIRST, SECOND, THIRD)}
    page = await visit()
    await opens(page, FIRST)
    for call in (SECOND, THIRD):
        await page.keyboard.press("j")
        await opens(page, call)
    await expect(page).to_have_title(f"Waiting 3 · {THIRD} · ayes")
    assert not await violations(page)

    other = await page.context.new_page()
    visit.problems.watch(other)
    await other.goto(f"/calls/{SECOND}?q=thread:shop/order-2")
    await opens(other, SECOND, "?q=thread:shop/order-2")
    await expect(other.locator(ROWS)).to_have_count(1)
    await expect(other.locator(".row[aria-current]")).to_have_attribute("data-call", SECOND)

    await page.go_back()
    await opens(page, SECOND)
    # A key in the moment in which the address has changed and the screen has not.
    await page.evaluate("""() => {
        const press = new KeyboardEvent("keydown", { key: "a", bubbles: true });
        addEventListener("popstate", () => document.body.dispatchEvent(press), { once: true });
        history.back();
    }""")
    await opens(page, FIRST)
    await expect(page.locator("#announcer")).to_contain_text("Too early")
    await page.reload()
    await opens(page, FIRST)
    await page.keyboard.press("a")
    assert await decided(shop, FIRST) == "Approved"
    await opens(page, SECOND)
    await page.go_back()
    await opens(page, FIRST)
    await page.keyboard.press("a")
    await expect(page.locator("#announcer")).to_have_text("You cannot do that with this call.")
    assert await votes(shop, SECOND) == await votes(shop, THIRD) == []

    await other.keyboard.press("d")
    await other.keyboard.type("No.")
    await other.keyboard.press("Control+Enter")
    assert await decided(shop, SECOND) == "Denied"
    assert await votes(shop, FIRST) == [("ana", "approve", digests[FIRST])]
    assert await votes(shop, SECOND) == [("ana", "deny", digests[SECOND])]
    assert await votes(shop, THIRD) == []


async def test_a_pasted_address_shows_its_call(shop, visit):
    """After sign-in, on a phone, and in a page that shows another call; one that names no call is a
    page that says so.
    """
    for call in (FIRST, SECOND):
        await shop.ask(call)
    page = await visit(f"/calls/{SECOND}", name="")
    await expect(page).to_have_url(re.compile("/sign-in.next="))
    address = page.url
    await sign_in(page.context, shop, "ana")
    await page.goto(address)
    await opens(page, SECOND)
    await page.goto(f"/calls/{FIRST}")
    await opens(page, FIRST)
    await expect(page.locator(ROWS)).to_have_count(2)

    visit.problems.expected.add(404)
    for name in ("shop/order-1/refund-2", "bank/order-1/refund-1"):
        await page.goto(f"/calls/{name}")
        await expect(page.get_by_role("alert")).to_contain_text(name)
        await page.keyboard.press("a")
        await expect(page.locator("#announcer")).to_have_text("There is no call on this page.")
    await page.go_back()
    await page.go_back()
    await opens(page, FIRST)

    phone = await visit(
        f"/calls/{SECOND}?sort=-age", viewport=PHONE, has_touch=True, is_mobile=True
    )
    await opens(phone, SECOND, "?sort=-age")
    await expect(phone.locator("#calls")).to_be_hidden()
    assert await phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    await shown(phone, SECOND).locator("[data-key=a]").tap()
    assert await decided(shop, SECOND) == "Approved"
    assert await votes(shop, FIRST) == []


async def test_a_key_decides_what_its_page_shows_or_nothing(shop, visit):
    """A page without news of the ledger does not know that another person has decided, or voted for
    other arguments: the vote is refused, or is for what was on the screen.
    """
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        two = f"{POLICY}votes_needed = 2\n"
        await operator.append(policy_slot("shop", 2), applied(two))
    digests = {call: await shop.ask(call) for call in (FIRST, SECOND)}
    page = await visit("/stops")
    await page.route("**/api/v1/events**", lambda route: route.abort())
    ben = await shop.app.state.backend.reviewer("ben")
    await page.goto(f"/calls/{FIRST}")
    await opens(page, FIRST)
    await ben.deny(FIRST)  # one denial decides, so nobody else may follow it
    assert await decided(shop, FIRST) == "Denied"
    await page.keyboard.press("a")
    await expect(page.get_by_role("alert")).to_contain_text("Denied by ben")
    await opens(page, FIRST)

    await page.goto(f"/calls/{SECOND}")
    await opens(page, SECOND)
    await ben.approve(SECOND, arguments='{"order":"A-17","amount":1}')
    await page.keyboard.press("a")
    await expect(page.locator("#announcer")).to_have_text(f"Your vote on {SECOND} is recorded.")
    assert [name for name, _, _ in await votes(shop, FIRST)] == ["ben"]
    assert (await votes(shop, SECOND))[-1] == ("ana", "approve", digests[SECOND])
