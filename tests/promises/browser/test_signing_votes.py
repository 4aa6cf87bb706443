"""A passkey is made, confirmed, and signs votes, on the console's own pages and on a sign page."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, Problems, opened, sign_in, violations
from passkey_site import Device, PasskeySite, passkey_site
from playwright.async_api import Browser, Page, Route, expect
from signed_site import DESK

from ayes.interfaces.cli.trust import sign_page
from ayes.ledger.passkeys import Assertion
from ayes.ledger.signing import Signature, passkey_digest
from ayes.ledger.trust import Trust
from ayes.schemas.base64url import base64url
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CallRef

CALL, OTHER = "shop/order-17/refund-1", "shop/order-17/refund-2"
DIGITS = "[data-digits]"


#: A script of a console that is not honest: it asks the browser without the sign page.
SWAP = """async (form) => {
    const { rp, challenge, keys, until } = form.dataset;
    const standard = challenge.replaceAll("-", "+").replaceAll("_", "/");
    const { response } = await navigator.credentials.get({ publicKey: {
        rpId: rp, userVerification: "required",
        challenge: Uint8Array.from(atob(standard), (one) => one.charCodeAt(0)) } });
    const text = (raw) => btoa(String.fromCharCode(...new Uint8Array(raw)))
        .replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
    const parts = [response.authenticatorData, response.clientDataJSON, response.signature];
    const key = Object.keys(JSON.parse(keys))[0];
    form.elements.signature.value = ["webauthn.1", key, until, ...parts.map(text)].join(".");
    form.requestSubmit();
}"""


class Offered(Problems):
    """Chromium warns of a page that wants no RSA; we want none (docs/decisions/0087)."""

    def _on_console(self, message):
        if "pubKeyCredParams" not in message.text:
            super()._on_console(message)


async def tab(browser: Browser, site: PasskeySite, **options) -> tuple[Page, Problems]:
    """Ana's tab."""
    context = await opened(browser, site, **options)
    await sign_in(context, site, "ana")
    page, problems = await context.new_page(), Offered()
    problems.watch(page)
    return page, problems


async def with_passkey(page: Page, site: PasskeySite) -> Device:
    """Ana makes a passkey, and somebody confirms it."""
    device = await Device.of(page)
    await page.goto("/passkeys")
    if site.sign_page:
        await page.get_by_role("link", name="Make a passkey on the sign page").click()
        await page.get_by_role("button", name="Make a passkey").click()
        await expect(page.get_by_role("status")).to_contain_text("ayes key confirm ana")
        digits = await page.locator("#digits").inner_text()
        await page.get_by_role("button", name="Go on to the console").click()
    else:
        await page.get_by_role("button", name="Make a passkey").click()
        await expect(page.locator(DIGITS)).not_to_be_empty()
        digits = await page.locator(DIGITS).inner_text()
    await page.get_by_role("button", name="Add this passkey").click()
    await expect(page.locator(".row")).to_contain_text(digits)
    await expect(page.locator(".row")).to_contain_text("not confirmed yet")
    await site.confirm(digits)
    await page.reload()
    await expect(page.locator(".row")).to_contain_text("counts since")
    return device


async def signature_of(site: PasskeySite, call: str) -> tuple[Signature, dict]:
    """The signature of ana's vote, and what her browser said of the page."""
    ref = CallRef.parse(call)
    known = await site.service.decision(call, timeout_s=60)
    [vote] = known.votes
    assert vote.slot == ref.vote("ana")
    found = Signature.parse(vote.event.signature)
    assert isinstance(found.raw, Assertion)
    return found, json.loads(found.raw.client)


async def test_a_vote_is_signed_where_it_is_cast(browser: Browser, tmp_path: Path):
    """On a phone's width, with the keyboard alone, and nothing that axe finds (D4). The press asks
    the browser for a signature of what the gate then finds signed.
    """
    async with passkey_site(tmp_path) as site:
        page, problems = await tab(browser, site, viewport=PHONE)
        await with_passkey(page, site)
        assert await violations(page) == ""
        await site.ask(CALL)
        await page.goto(f"/calls/{CALL}")
        await expect(page.locator("article[data-ready]")).to_be_visible()
        await page.keyboard.press("a")
        button = page.get_by_role("button", name="Sign with your passkey")
        await expect(button).to_be_visible()
        await expect(page.locator("article")).to_contain_text("A-17")
        assert await violations(page) == ""
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        await button.focus()
        await page.keyboard.press("Enter")
        signature, client = await signature_of(site, CALL)
        assert client["origin"] == site.security.url
        assert signature.until > 0
        assert (await site.service.call(CallRef.parse(CALL))).approval.voters == ("ana",)
        assert problems.seen == []
        await page.context.close()


@pytest.mark.long
async def test_a_vote_is_signed_on_a_page_of_another_origin(browser: Browser, tmp_path: Path):
    """The sign page computes what is signed from the facts, shows it, and leads back (D3)."""
    async with passkey_site(tmp_path, "ayes.localhost", elsewhere=True) as site:
        page, problems = await tab(browser, site)
        # Another site that leads back with a passkey of its own finds that none was asked for.
        await page.goto(f"/passkeys#{base64url(b'{}')}")
        await expect(page.get_by_role("link", name="Make a passkey")).to_be_visible()
        await expect(page.get_by_role("button", name="Add this passkey")).to_be_hidden()
        await with_passkey(page, site)
        await site.ask(CALL)
        await page.goto(f"/calls/{CALL}")
        await page.locator("article[data-ready] button[data-key=a]").click()
        await page.get_by_role("link", name="Sign on the sign page").click()
        await expect(page.get_by_role("heading", name="Approve?")).to_be_visible()
        for said in CALL, "refund", "rita", "large refunds":
            await expect(page.locator("#facts")).to_contain_text(said)
        await expect(page.locator("#content")).to_have_text('{"order":"A-17","amount":480}')
        assert await violations(page) == ""
        await page.get_by_role("button", name="Sign").click()
        _, client = await signature_of(site, CALL)
        assert client["origin"] == site.sign_page
        await page.wait_for_url(f"**/calls/{CALL}")
        assert problems.seen == []
        await page.context.close()


async def test_a_console_that_swaps_what_is_signed_gets_nothing(browser: Browser, tmp_path: Path):
    """With a sign page: it shows the call that is signed, and a console that asks the browser
    itself has a signature of its own origin, which counts nowhere (D3).
    """
    async with passkey_site(tmp_path, "ayes.localhost", elsewhere=True) as site:
        page, _ = await tab(browser, site)
        await with_passkey(page, site)
        for call in CALL, OTHER:
            await site.ask(call)
        # A page of the console shows one call, and asks for the other one's signature.
        await page.goto(f"/calls/{OTHER}")
        await page.locator("article[data-ready] button[data-key=a]").click()
        other = page.locator("form[data-passkey=vote]")
        await expect(other).to_be_visible()
        await other.evaluate(SWAP)
        alert = page.locator("article .problem")
        await expect(alert).to_contain_text("does not count on shop/order-17/refund-2")
        assert (await site.service.call(CallRef.parse(OTHER))).votes == ()
        # What the sign page is given is what it shows.
        await page.goto(f"/calls/{OTHER}")
        await page.locator("article[data-ready] button[data-key=a]").click()
        await page.get_by_role("link", name="Sign on the sign page").click()
        await expect(page.locator("#facts")).to_contain_text(OTHER)
        await page.context.close()


@pytest.mark.parametrize("is_here", [True, False])
async def test_without_a_passkey_the_page_names_the_command(
    browser: Browser, tmp_path: Path, is_here: bool
):
    """Where the browser has none, or the device refuses, nothing is sent (D4)."""
    async with passkey_site(tmp_path) as site:
        page, _ = await tab(browser, site)
        device = await with_passkey(page, site)
        await site.ask(CALL)
        if is_here:
            await device.verifies(is_user=False)
        else:
            await page.add_init_script("delete window.PublicKeyCredential")
        await page.goto(f"/calls/{CALL}")
        await page.locator("article[data-ready] button[data-key=a]").click()
        state = page.locator("[data-passkey] [role=status]")
        button = page.get_by_role("button", name="Sign with your passkey")
        if is_here:
            await button.click()
            await expect(state).to_contain_text("Nothing was signed")
        else:
            await expect(button).to_be_hidden()
        await expect(state).to_contain_text(f"ayes approve {CALL} --as ana")
        assert (await site.service.call(CallRef.parse(CALL))).votes == ()
        await page.context.close()


ELSEWHERE = "https://sign.ayes.example/sign.html"
#: Keeps what the page asks the browser for.
ASKING = """for (const one of ["get", "create"])
    navigator.credentials[one] = async ({ publicKey }) => {
        const hex = (raw) => [...raw].map((one) => one.toString(16).padStart(2, "0")).join("");
        const { challenge, user } = publicKey;
        window.asked = [hex(challenge), user && hex(user.id)];
        throw new DOMException("no");
    };
"""


def asking(now: float, **changed: Any) -> dict[str, Any]:
    """What the console gives the sign page for a vote."""
    runs = '{"order":"A-17"}'
    wish = {"type": "ToolRequested", "tool": "refund", "arguments": runs, "requester": "rita"}
    gated = {
        "type": "ApprovalRequested",
        "rule": "money",
        "digest": call_digest("refund", "", runs),
    }
    said = {"verdict": "approve", "reason": "", "arguments": None, "answer": "", "halt": False}
    given = {"call": CALL, "reviewer": "ana", "vote": said | {"is_error": False}}
    given |= {"until": int(now) + 240, "policy": "", "keys": {"0" * 16: "AAAA"}}
    return given | {"requested": json.dumps(wish), "gated": json.dumps(gated)} | changed


async def test_the_sign_page_by_itself(browser: Browser):
    """What it takes from a console that is not honest: no end later than in minutes, nothing that
    cannot be seen, no frame, no other call just as somebody presses, no passkey in the place of
    another log's.
    """
    log = "0" * 32
    said = {"log": log, "roots": [str(DESK.public)], "rp": "ayes.example"}
    text = sign_page(
        "https://ayes.example", Trust.model_validate(said | {"origins": [ELSEWHERE[:25]]})
    )
    context = await opened(browser)
    await context.add_init_script(ASKING)
    frame = f"<iframe src='{ELSEWHERE}#{base64url(b'{}')}'></iframe>"

    async def served(route: Route) -> None:
        is_page = route.request.url.startswith(ELSEWHERE)
        await route.fulfill(body=text if is_page else frame, content_type="text/html")

    await context.route("**/*", served)
    page = await context.new_page()
    now = 1_800_000_000.0
    await page.clock.install(time=now)
    await page.clock.pause_at(now + 1)
    button = page.get_by_role("button")

    async def opens(given: dict[str, Any]) -> str:
        await page.goto("about:blank")
        await page.goto(f"{ELSEWHERE}#{base64url(json.dumps(given).encode())}")
        return await page.get_by_role("status").inner_text()

    hidden = asking(now, vote=asking(now)["vote"] | {"reason": "a\u3164b\u202ec\u2800d\u00a0e f"})
    assert "asks for your signature of exactly this" in await opens(hidden)
    await expect(page.locator("#facts")).to_contain_text("aU+3164bU+202EcU+2800dU+00A0e f")
    await expect(button).to_be_disabled()
    await page.clock.run_for(1000)
    await expect(button).to_be_enabled()
    await expect(button).to_be_focused()
    # A console whose end is days away could record this vote then.
    for later in 60, 24 * 3600:
        refused = await opens(asking(now, until=int(now) + 300 + later))
        assert "could be used later than in five minutes" in refused
        await expect(button).to_be_hidden()
    # Also an answer without words is one.
    await opens(asking(now, vote=asking(now)["vote"] | {"verdict": "answer"}))
    await expect(page.get_by_role("heading")).to_have_text("Answer in its place?")
    await opens({"person": "ana", "taken": []})
    await page.clock.run_for(1000)
    await button.click()
    await expect(page.get_by_role("status")).to_contain_text("Nothing was signed")
    assert await page.evaluate("asked") == [passkey_digest(log, "ana").hex()] * 2
    await page.goto("https://ayes.example")
    status = page.frame_locator("iframe").get_by_role("status")
    await expect(status).to_have_text("This page signs in no frame.")
    await context.close()


MAKE = """async (rp) => {
    if (!navigator.credentials) return "no credentials";
    try {
        const made = await navigator.credentials.create({ publicKey: {
            rp: { id: rp, name: "ayes" },
            user: { id: new Uint8Array([1]), name: "ana", displayName: "ana" },
            challenge: new Uint8Array(32),
            pubKeyCredParams: [{ type: "public-key", alg: -7 }],
            authenticatorSelection: { userVerification: "required" },
        } });
        return made.type;
    } catch (problem) {
        return problem.name;
    }
}"""


async def test_where_a_passkey_can_be_made_at_all(browser: Browser):
    """An address has none, with TLS neither; a page without TLS has no API (D1)."""
    context = await opened(browser, ignore_https_errors=True)
    await context.route("**/*", lambda route: route.fulfill(body="<!doctype html><title>x</title>"))
    table = [
        ("http://127.0.0.1:8420", "127.0.0.1", "SecurityError"),
        ("https://127.0.0.1", "127.0.0.1", "SecurityError"),
        ("http://localhost:8420", "localhost", "public-key"),
        ("http://ayes.localhost:8420", "ayes.localhost", "public-key"),
        ("http://ayes.localhost:8420", "localhost", "SecurityError"),
        ("http://ayes.test", "ayes.test", "no credentials"),
        ("https://ayes.corp.test", "corp.test", "public-key"),
        ("https://ayes.corp.test", "ayes.corp.test", "public-key"),
        ("https://ayes.corp.test", "test", "SecurityError"),
        ("https://corp.test", "ayes.corp.test", "SecurityError"),
    ]
    found = []
    for url, rp, _ in table:
        page = await context.new_page()
        await Device.of(page)
        await page.goto(url)
        found.append((url, rp, await page.evaluate(MAKE, rp)))
        await page.close()
    await context.close()
    assert found == table
