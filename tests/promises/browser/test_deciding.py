"""People decide in a browser: by keyboard, on a phone, many calls at once, two people at once."""

import asyncio
import re

import pytest
from browser import PHONE, person, sign_in, violations
from console_client import POLICY
from long import sampled
from playwright.async_api import Page, expect

from ayes.ledger.clients.services import Ledger
from ayes.schemas.events import Voted
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

CALL = "shop/order-17/refund-1"
REASON = "It was refunded in spring: ade r."
#: Of the article that is shown: its call, and the digest of what would run.
ON_SCREEN = "one => [one.dataset.call, one.querySelector('[name=digest]').value]"
#: How the line looks that says what a key did, at the moment of the press.
PRESSED_Q = """() => {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "q", bubbles: true }));
    return document.querySelector("#announcer").className;
}"""


def button(page: Page, name: str):
    return page.get_by_role("button", name=name, exact=True)


def shown(page: Page, call: str = CALL):
    """The article of a call, once its buttons take a press."""
    return page.locator(f'article.call[data-call="{call}"][data-ready]')


async def approve(page: Page, call: str = CALL) -> None:
    await shown(page, call).locator("[data-key=a]").click()


async def decision(shop, call: str = CALL) -> str:
    known = await shop.service.decision(call, timeout_s=60)
    return type(known.decided.event).__name__


async def votes(shop, call: str = CALL) -> list[Voted]:
    facts = await shop.service.read(CallRef.parse(call))
    return [fact.event for fact in facts if isinstance(fact.event, Voted)]


async def test_by_keyboard_alone(shop, visit):
    """Two calls are decided without a mouse; Enter decides nothing, and typed letters are text."""
    first, second = "shop/order-17/refund-1", "shop/order-18/refund-1"
    for call in (first, second):
        await shop.ask(call)
    page = await visit()
    press = page.keyboard.press
    await expect(shown(page, first)).to_be_visible()
    # A screen reader tells their links apart.
    link = page.locator(f'.row[data-call="{second}"] .row-title')
    await expect(link).to_have_accessible_name(re.compile(rf"^refund: .*A-17.*, {second}$"))
    await press("j")
    await expect(shown(page, second)).to_be_visible()
    await press("k")
    await expect(shown(page, first)).to_be_visible()
    for _ in range(3):
        await press("Enter")
    await press("a")
    assert await decision(shop, first) == "Approved"
    # The next call is there already.
    await expect(shown(page, second)).to_be_visible()
    await press("Enter")
    await press("d")
    await page.keyboard.type(REASON)
    await press("Control+Enter")
    assert await decision(shop, second) == "Denied"
    assert [vote.reason for vote in await votes(shop, second)] == [REASON]
    assert len(await votes(shop, first)) == 1


async def test_a_key_that_does_nothing_says_so(shop, visit):
    """A press before the call has been shown for a moment, and one that has no use here."""
    first, second = "shop/order-17/refund-1", "shop/order-18/refund-1"
    for call in (first, second):
        await shop.ask(call)
    page = await visit()
    press, said = page.keyboard.press, page.locator("#announcer")
    await expect(shown(page, first)).to_be_visible()
    # As in the first moment, however long this machine takes to press the key.
    await page.locator("article.call").evaluate("one => one.removeAttribute('data-ready')")
    await press("a")
    await expect(said).to_have_text("Too early: this call has just appeared. Press again.")
    await press("k")
    await expect(said).to_have_text("There is no call above this one.")
    await press("]")
    await expect(said).to_have_text("There is no next page.")
    assert await page.evaluate(PRESSED_Q) == "notice toast"
    await expect(said).to_have_text("The key q does nothing. ? lists the keys.")
    await page.goto("/stops")
    await press("a")
    await expect(said).to_have_text("There is no call on this page.")
    assert not await violations(page)
    assert await votes(shop, first) == await votes(shop, second) == []


async def test_pages_and_ranges_by_keyboard(shop, visit):
    calls = [f"shop/order-{number}/refund-1" for number in range(6)]
    for call in calls:
        await shop.ask(call)
    page = await visit("/?limit=5")
    press, boxes = page.keyboard.press, page.locator("#calls input")
    await expect(shown(page, calls[0])).to_be_visible()

    async def selected() -> list[str]:
        return await page.locator("#calls input:checked").evaluate_all(
            "all => all.map(b => b.value)"
        )

    await press("x")
    await press("j")
    await press("j")
    await press("Shift+X")
    assert await selected() == calls[:3]
    await boxes.nth(4).click(modifiers=["Shift"])
    assert await selected() == calls[:5]
    await boxes.nth(3).click(modifiers=["Shift"])
    assert await selected() == calls[:3]
    await press("*")
    assert await selected() == calls[:5]
    await expect(page.locator("#decide-selected")).to_contain_text("5")
    await press("*")
    assert await selected() == []
    await press("]")
    await expect(shown(page, calls[5])).to_be_visible()
    await press("[")
    await expect(shown(page, calls[2])).to_be_visible()
    await press("[")
    await expect(page.locator("#announcer")).to_have_text("There is no page before this one.")


@pytest.mark.timeout(1800)  # 200 of them on a busy machine
@pytest.mark.parametrize("count", sampled((8, 200), 8))
async def test_many_calls_by_keyboard_alone(shop, visit, count):
    """No key is lost, and each vote is on the arguments that were on the screen at the press."""
    calls = [f"shop/order-{number}/refund-1" for number in range(count)]
    made = await asyncio.gather(
        *(shop.ask(call, f'{{"order":"{call}","amount":{n}}}') for n, call in enumerate(calls))
    )
    digests = dict(zip(calls, made, strict=True))
    page = await visit("/?limit=200")
    press, expected = page.keyboard.press, {}
    for number in range(count):
        article = page.locator("article.call[data-ready][data-status=pending]")
        await expect(article).to_be_visible()
        call, digest = await article.evaluate(ON_SCREEN)
        if number % 5 == 4 and number < count - 1:
            await press("s")  # later: it is decided when it comes again
            await expect(page.locator(f'article.call:not([data-call="{call}"])')).to_be_visible()
            await expect(article).to_be_visible()
            call, digest = await article.evaluate(ON_SCREEN)
        verdict = "deny" if number % 2 else "approve"
        assert call not in expected
        assert digest == digests[call]
        expected[call] = verdict, f"Reason {number}" * (verdict == "deny"), digest
        if verdict == "deny":
            await press("d")
            await page.keyboard.type(f"Reason {number}")
            await press("Control+Enter")
        else:
            await press("a")
        await expect(
            page.locator(f'article.call[data-call="{call}"][data-status=pending]')
        ).to_have_count(0)
    assert expected.keys() == set(calls)
    for call in calls:
        [vote] = await votes(shop, call)
        assert (vote.verdict, vote.reason or "", vote.digest) == expected[call]


async def test_on_a_phone(shop, visit):
    """From the list, two taps decide at 360 x 740, on targets of 44 px, with no sideways scroll."""
    await shop.ask(CALL)
    page = await visit(viewport=PHONE, has_touch=True, is_mobile=True)
    await page.locator(".row-title").tap()
    await expect(shown(page)).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    press = shown(page).locator("[data-key=a]")
    box = await press.bounding_box()
    assert box
    assert box["height"] >= 44
    await press.tap()
    assert await decision(shop) == "Approved"


async def test_values_off_the_screen_are_shown_before_they_are_approved(shop, visit):
    """In a window that shows only why people are asked, the first press brings the values."""
    await shop.ask(CALL)
    page = await visit(viewport={"width": 780, "height": 340})
    await expect(shown(page)).to_be_visible()
    value = shown(page).locator("[data-values] dt").first
    await expect(value).not_to_be_in_viewport()
    await page.keyboard.press("a")
    await expect(page.get_by_text("Read what would run")).to_be_visible()
    await expect(value).to_be_in_viewport()
    assert await votes(shop) == []
    await page.keyboard.press("a")
    assert await decision(shop) == "Approved"


async def test_edited_through_the_form(shop, visit):
    """Types are kept, errors stand at their fields, and what changes is shown before it is sent."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await expect(shown(page)).to_be_visible()
    await page.keyboard.press("e")
    await expect(page.locator("article").get_by_label("order")).to_be_focused()
    amount = page.locator("article").get_by_label("amount")
    await amount.fill("much")
    await button(page, "Review the changes").click()
    await expect(amount).to_have_attribute("aria-invalid", "true")
    assert not await violations(page)
    await amount.fill("48")
    await button(page, "Review the changes").click()
    await expect(page.locator("del")).to_have_text("480")
    await expect(page.locator("ins")).to_have_text("48")
    assert not await violations(page)
    assert await votes(shop) == []
    await button(page, "Approve with these changes").click()
    await expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    [vote] = await votes(shop)
    assert vote.arguments == '{"order":"A-17","amount":48}'


async def test_the_name_of_the_tool_is_typed(shop, visit):
    """With `confirm = "typed"` a key opens a form, Enter sends nothing, a wrong name is refused."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(f'{POLICY}confirm = "typed"\n'))
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await expect(shown(page)).to_be_visible()
    await page.keyboard.press("a")
    name = page.get_by_label("Type the name of the tool")
    await expect(name).to_be_focused()
    await page.keyboard.type("refnd")
    await page.keyboard.press("Enter")
    await button(page, "Approve").click()
    await expect(page.get_by_role("alert")).to_contain_text("refund")
    assert await votes(shop) == []
    await expect(name).to_have_value("refnd")
    assert not await violations(page)
    await name.fill("refund")
    await name.press("Control+Enter")
    assert await decision(shop) == "Approved"
    await expect(page.locator("article.call")).to_have_attribute("data-status", "approved")
    assert len(await votes(shop)) == 1


@pytest.mark.long
async def test_a_reason_of_the_rule_is_one_key(shop, visit):
    """A digit opens the denial with the reason, which may be changed; in a text it is a digit."""
    rules = f'{POLICY}reasons = ["Duplicate", "Wrong amount"]\n'
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(rules))
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    press = page.keyboard.press
    await expect(shown(page)).to_be_visible()
    await press("r")
    await button(page, "Duplicate 1").locator("visible=true").click()
    await expect(page.get_by_label("What the model gets")).to_have_value("Duplicate")
    assert not await violations(page)
    await press("Escape")
    await press("1")
    await expect(page.get_by_label("Why not")).to_have_value("Duplicate")
    await press("Escape")
    await press("d")
    await page.keyboard.type(" of A-12")
    await press("Escape")
    await press("2")
    await press("Control+Enter")
    assert await decision(shop) == "Denied"
    [vote] = await votes(shop)
    assert vote.reason == "Duplicate of A-12\nWrong amount"


@pytest.mark.long
async def test_eight_at_once_of_which_two_fail(shop, visit):
    """All are listed first; each is one vote, and the two decided meanwhile are reported."""
    calls = [f"shop/order-{number}/refund-1" for number in range(8)]
    for call in calls:
        await shop.ask(call)
    page = await visit()
    rows = page.locator("#calls input")
    await expect(rows).to_have_count(8)
    for box in await rows.all():
        await box.check()
    await page.keyboard.press("Shift+A")
    dialog = page.locator("#bulk")
    for call in calls:
        await expect(dialog.get_by_text(call, exact=True)).to_be_visible()
    assert not await violations(page)
    ben = await shop.app.state.backend.reviewer("ben")
    for call in calls[3:5]:
        await ben.deny(call)
        assert await decision(shop, call) == "Denied"
    await dialog.get_by_role("button", name=re.compile("^Approve")).click()
    for call in calls[3:5]:
        problem = dialog.get_by_role("alert").get_by_role("listitem").filter(has_text=call)
        await expect(problem).to_contain_text("Denied by ben")
    for call in calls:
        expected = "Denied" if call in calls[3:5] else "Approved"
        assert await decision(shop, call) == expected
        assert len(await votes(shop, call)) == 1


async def test_the_slower_of_two_is_told_who_was_first(shop, visit):
    """Both have the page open; the slower one's vote is refused, and what they typed is kept."""
    await shop.ask(CALL)
    slower = await visit(f"/calls/{CALL}", "ana")
    faster = await visit(f"/calls/{CALL}", "ben")
    await expect(shown(slower)).to_be_visible()
    await slower.keyboard.press("d")
    await slower.get_by_label("Why not").fill(REASON)
    await approve(faster)
    assert await decision(shop) == "Approved"
    # The page says so by itself, and leaves the form as it is.
    await expect(slower.locator(".live-notice")).to_contain_text("approved by ben")
    await button(slower, "Deny").click()
    problem = slower.get_by_role("alert")
    await expect(problem).to_contain_text("Approved by ben")
    await expect(problem.get_by_role("textbox")).to_have_value(REASON)
    assert [vote.verdict for vote in await votes(shop)] == ["approve"]


async def test_going_back_never_decides_twice(shop, visit):
    """Back, forward and a reload after a vote send nothing again."""
    await shop.ask(CALL)
    page = await visit()
    await page.goto(f"/calls/{CALL}")
    await approve(page)
    assert await decision(shop) == "Approved"
    for again in (page.reload, page.go_back, page.go_forward, page.reload):
        await again()
    await expect(page.locator("article.call")).to_have_attribute("data-status", "approved")
    assert len(await votes(shop)) == 1


async def test_an_expired_session_loses_no_text(shop, visit):
    """Whoever signs in again finds what they had typed, and nothing was sent."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}")
    await expect(shown(page)).to_be_visible()
    await page.keyboard.press("d")
    await page.get_by_label("Why not").fill(REASON)
    shop.expire(person("ana"))
    await button(page, "Deny").click()
    await expect(page).to_have_url(re.compile("/sign-in"))
    await sign_in(page.context, shop, "ana")
    await page.goto(f"/calls/{CALL}")
    await expect(page.get_by_label("Why not")).to_have_value(REASON)
    assert await votes(shop) == []
    await button(page, "Deny").click()
    assert await decision(shop) == "Denied"
