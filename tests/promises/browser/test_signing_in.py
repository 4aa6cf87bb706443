"""Signing in with a real browser, which alone knows when it sends a cookie."""

from contextlib import asynccontextmanager

import httpx
import pytest
from browser import opened, person
from oidc_provider_mock import User, run_server_in_thread
from playwright.async_api import expect

from ayes.interfaces.access.openid import OpenIdProvider, OpenIdSettings
from ayes.ledger.clients.services import Ledger
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot

ELSEWHERE = "http://elsewhere.example/"


async def put_elsewhere(page, html):
    """Go to a page of another site."""

    async def answer(route):
        await route.fulfill(body=html, content_type="text/html")

    await page.route(ELSEWHERE, answer)
    await page.goto(ELSEWHERE)


async def test_a_link_signs_in(shop, visit):
    """After one click, and then no more: the code is in no address that stays."""
    code = shop.security.access.new_link("ana")
    page = await visit(f"/sign-in?code={code}", name="")
    await page.get_by_role("button", name="Sign in as ana").click()
    await expect(page).to_have_url(f"{shop.security.url}/")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Waiting")


async def test_a_link_in_a_message_finds_its_reader_signed_in(visit):
    """Although a browser that comes from another site brings no `Strict` cookie."""
    page = await visit()
    here = page.url
    await put_elsewhere(page, f'<a href="{here}doubt?workspace=shop">Please decide</a>')
    await page.get_by_text("Please decide").click()
    await expect(page).to_have_url(f"{here}doubt?workspace=shop")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("In doubt")


async def test_a_form_of_another_site_has_no_effect(shop, visit):
    """It comes without a cookie, and leads to the first page, whose reader is still signed in."""
    page = await visit()
    form = f'<form method="post" action="{page.url}sign-out"><button>Win</button></form>'
    await put_elsewhere(page, form)
    await page.get_by_text("Win").click()
    await expect(page).to_have_url(f"{shop.security.url}/")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Waiting")
    assert shop.security.sessions.find(shop.secret_of(person("ana")))


@pytest.fixture
def issuer():
    users = [User(sub="ben", claims={"preferred_username": "ben", "groups": ["leads"]})]
    with run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@asynccontextmanager
async def signing_in_at(issuer, security):
    roles = {"reviewer": ("leads",)}
    settings = OpenIdSettings(issuer=issuer, client_id="ayes", roles=roles)
    security.provider = OpenIdProvider(settings, security.url)
    yield
    security.provider = None


@pytest.mark.long
async def test_a_member_of_a_group_votes(browser, shop, issuer):
    """Whose groups are read before the vote; the page of the call shows who named them."""
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        rule = '[[rule]]\nname = "money"\ntools = ["*"]\nthen = "ask"\nvoters = ["group:leads"]\n'
        await operator.append(policy_slot("shop", 2), applied(rule))
    await shop.ask("shop/order-1/refund-1")
    async with signing_in_at(issuer, shop.security):
        context = await opened(browser, shop)
        page = await context.new_page()
        await page.goto("/sign-in/start?next=/calls/shop/order-1/refund-1")
        await page.get_by_role("button", name="Authorize as ben").click()
        await expect(page).to_have_url(f"{shop.security.url}/calls/shop/order-1/refund-1")
        await page.locator("article.call[data-ready] [data-key=a]").click()
        decision = page.get_by_role("region", name="The decision")
        await expect(decision).to_contain_text("Approved by ben")
        await expect(decision).to_contain_text(f"leads, as {issuer} said of ben")
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.put(f"{issuer}/users/ben", json={"groups": ["guests"]})
        await shop.ask("shop/order-1/refund-2")
        await page.goto("/calls/shop/order-1/refund-2")
        await page.locator("article.call[data-ready] [data-key=a]").click()
        await expect(page.get_by_text(f"{issuer} named guests for ben").first).to_be_visible()
        await context.close()


async def test_a_provider_on_another_site_signs_in(browser, shop, issuer):
    """Its answer comes from another site, and leads to the page that was asked for."""
    async with signing_in_at(issuer, shop.security):
        context = await opened(browser, shop)
        page = await context.new_page()
        await page.goto("/doubt")
        await page.get_by_role("link", name="Sign in").click()
        await page.get_by_role("button", name="Authorize as ben").click()
        await expect(page).to_have_url(f"{shop.security.url}/doubt")
        await expect(page.locator("body")).to_have_attribute("data-visitor", "ben")
        [kept] = [one for one in await context.cookies() if one["name"] == shop.security.cookie]
        assert (kept["httpOnly"], kept["sameSite"]) == (True, "Strict")
        await context.close()
