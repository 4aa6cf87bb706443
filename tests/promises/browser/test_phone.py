"""The console as an application on a phone: installed, notified, and used with one thumb."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from browser import PHONE, violations
from playwright.async_api import Page, expect
from push_service import PushService, push_service
from until import until

from ayes.consumers.notices.channels import Channel, Channels
from ayes.consumers.notices.devices import DeviceFile
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.setup import declare_streams
from ayes.ops.workers import durables, reactions, working
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot

CALL, OTHER = "shop/order-17/refund-1", "shop/order-18/refund-1"
POLICY = """
[contacts]
ana = ["push:ana"]

[[notify]]
on = ["asked"]

[[rule]]
name = "large refunds"
tools = ["refund"]
then = "ask"
voters = ["ana", "ben"]
"""
#: Chromium subscribes at Google only, so what it would be given is given here, and kept.
SUBSCRIBES = """
const made = %s;
const mine = {
  endpoint: made.endpoint,
  toJSON: () => made,
  unsubscribe: async () => delete localStorage.subscribed,
};
PushManager.prototype.getSubscription = async () => (localStorage.subscribed ? mine : null);
PushManager.prototype.subscribe = async (options) => {
  if (await Notification.requestPermission() !== "granted") throw Error("denied");
  localStorage.subscribed = options.applicationServerKey;
  return mine;
};
"""
ON_SCREEN = """navigator.serviceWorker.ready
  .then((one) => one.getNotifications())
  .then((shown) => shown.map(({ title, body, data }) => ({ title, body, path: data })))"""
#: What a thumb must hit, and cannot; links in a text are not among it.
TOO_SMALL = """[...document.querySelectorAll(
    "button, summary, .button, nav a, select, textarea, input:not([type=hidden], [type=checkbox])")]
  .filter((one) => one.checkVisibility() && one.getClientRects().length)
  .map((one) => [one.textContent.trim(), one.getBoundingClientRect()])
  .filter(([, { width, height }]) => Math.min(width, height) < 43.9)
  .map(([text, { width, height }]) => `${text}: ${width} x ${height}`)"""


@asynccontextmanager
async def notifying(shop, devices: DeviceFile) -> AsyncIterator[None]:
    """With a notifier that may send to this machine."""
    channel = Channel(subject="mailto:ops@example.org", allow_private=True, tries=1)
    channels = Channels({"push": channel}, devices)
    started = reactions(["notifier"], notifying=(channels, lambda _message, _call: ""))
    store = shop.server.store.path
    await declare_streams(store, also=durables(started))
    async with Ledger.connect(store, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(POLICY))
    async with working(started, store=store):
        yield
    channels.close()


class Phone:
    """The browser of a person, to which the push service delivers."""

    def __init__(self, page: Page, service: PushService) -> None:
        self.page, self.service, self._workers = page, service, []

    async def add(self) -> None:
        """Add this device on the page of devices."""
        await self.page.get_by_role("button", name="Notify this device").click()
        await expect(self.page.get_by_text("This device is notified.")).to_be_visible()
        self._debugger = await self.page.context.new_cdp_session(self.page)
        self._debugger.on(
            "ServiceWorker.workerRegistrationUpdated",
            lambda event: self._workers.extend(event["registrations"]),
        )
        await self._debugger.send("ServiceWorker.enable")
        # A message for one that is being installed is dropped.
        await self.page.evaluate("navigator.serviceWorker.ready.then(() => null)")

    async def deliver(self) -> tuple[dict[str, str], dict[str, str]]:
        """Bring the next message to the service worker, as Chromium does."""
        headers, message = await self.service.next()
        await until(lambda: bool(self._workers))
        origin = self._workers[-1]["scopeURL"].rstrip("/")
        arrived = {"origin": origin, "registrationId": self._workers[-1]["registrationId"]}
        await self._debugger.send(
            "ServiceWorker.deliverPushMessage", arrived | {"data": json.dumps(message)}
        )
        return headers, message

    async def shows(self, *paths: str) -> None:
        """Wait until exactly the notifications of these pages are on the screen."""
        seen: list[str] = []

        async def same() -> bool:
            seen[:] = [one["path"] for one in await self.page.evaluate(ON_SCREEN)]
            return seen == [*paths]

        try:
            await until(same)
        except TimeoutError:
            raise AssertionError(f"{seen} on the screen, not {paths}") from None


@asynccontextmanager
async def phone(shop, visit) -> AsyncIterator[Phone]:
    devices = DeviceFile(shop.server.store)
    async with push_service() as service, notifying(shop, devices):
        page = await visit("/", viewport=PHONE, permissions=["notifications"])
        await page.context.add_init_script(SUBSCRIBES % json.dumps(service.subscription))
        await page.goto("/devices")
        made = Phone(page, service)
        await made.add()
        yield made


async def test_a_phone_is_notified_until_the_call_is_decided(shop, visit):
    """Who adds a device is told of a call by a notification that leads to it, has no arguments,
    and is gone once somebody else has decided, or once its page was opened.
    """
    async with phone(shop, visit) as ana:
        await shop.ask(CALL)
        headers, message = await ana.deliver()
        await ana.shows(f"/calls/{CALL}")
        [shown] = await ana.page.evaluate(ON_SCREEN)
        assert shown["title"] == f"refund needs approval: {CALL}"
        assert "A-17" not in json.dumps(message)
        assert "480" not in json.dumps(message)

        await (await shop.app.state.backend.reviewer("ben")).approve(CALL)
        ends, over = await ana.deliver()
        await ana.shows()
        assert (over["tag"], ends["Topic"]) == (message["tag"], headers["Topic"])

        await shop.ask(OTHER)
        await ana.deliver()
        await ana.shows(f"/calls/{OTHER}")
        await ana.page.goto(f"/calls/{OTHER}")
        await ana.shows()


async def test_a_device_is_told_nothing_once_it_is_removed_gone_or_its_persons_visits_end(
    shop, visit
):
    """By its person, by its push service, and with everything else of somebody who was removed."""
    devices = DeviceFile(shop.server.store)
    async with phone(shop, visit) as ana:
        await ana.page.get_by_role("button", name="Stop notifying").click()
        await expect(ana.page.get_by_role("button", name="Notify this device")).to_be_visible()
        assert devices.read().devices == ()

        await ana.page.get_by_role("button", name="Notify this device").click()
        await expect(ana.page.get_by_text("This device is notified.")).to_be_visible()
        [device] = devices.read().devices
        assert device.person == "ana"
        ana.service.status = 410
        await shop.ask(CALL)
        await ana.service.next()
        await until(lambda: not devices.read().devices)

        devices.add(device)
        shop.security.end_visits("ana", device.added_at)
        assert devices.read().devices == ()


async def test_the_console_can_be_installed_and_says_when_there_is_no_connection(shop, visit):
    """Chromium finds nothing to complain about, and nothing of a call is kept in the browser."""
    await shop.ask(CALL)
    page = await visit(f"/calls/{CALL}", viewport=PHONE)
    await page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    debugger = await page.context.new_cdp_session(page)
    found = await debugger.send("Page.getAppManifest")
    assert found["errors"] == []
    assert found["manifest"]["display"] == "kStandalone"
    sizes = {one["sizes"] for one in json.loads(found["data"])["icons"]}
    assert sizes == {"any", "192x192", "512x512"}
    wrong = (await debugger.send("Page.getInstallabilityErrors"))["installabilityErrors"]
    assert [one["errorId"] for one in wrong if one["errorId"] != "in-incognito"] == []

    await page.context.set_offline(offline=True)
    await page.goto("/decided")
    await expect(page.get_by_role("heading", name="No connection")).to_be_visible()
    assert await page.evaluate("caches.keys()") == []
    await page.context.set_offline(offline=False)
    visit.problems.seen.clear()  # the page that was left had lost its stream of events


async def test_calls_are_decided_with_one_thumb(shop, visit):
    """On 360 px: what is judged can be read above an open form, the next call is one tap away, and
    all that a thumb must hit is large enough.
    """
    for call in (CALL, OTHER):
        await shop.ask(call)
    page = await visit(f"/calls/{CALL}", viewport=PHONE, has_touch=True, is_mobile=True)
    await expect(page.locator("article[data-ready]")).to_be_visible()
    await page.locator("[data-key=d]").tap()
    sheet = await page.locator(".decide").bounding_box()
    assert sheet is not None
    for value in await page.locator("article dd", has_text="A-17").all():
        await value.evaluate("(one) => one.scrollIntoView({block: 'center'})")
        await page.evaluate("scrollBy(0, 120)")
        box = await value.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= sheet["y"]
    assert await violations(page) == ""
    assert await page.evaluate(TOO_SMALL) == []
    await page.locator("[data-key=d]").tap()
    await page.get_by_role("link", name="Later").tap()
    await expect(page.locator(f'article[data-call="{OTHER}"][data-ready]')).to_be_visible()
    await page.locator("[data-key=a]").tap()
    await page.get_by_role("link", name="Next call").tap()
    await expect(page.locator(f'article[data-call="{CALL}"][data-ready]')).to_be_visible()


async def test_every_page_is_reached_without_ones_own_name(shop, visit):
    """From the bar at the bottom, on a phone and on a tablet."""
    for width in (360, 768):
        page = await visit(viewport={"width": width, "height": 740})
        bar = page.get_by_role("navigation", name="Pages")
        await bar.get_by_text("More").click()
        seen = await bar.get_by_role("link").all_inner_texts()
        names = [one.split("\n")[0].split(" 0")[0] for one in seen]
        assert names == [
            "Waiting", "Mine", "In doubt", "Decided",
            "Conversations", "Grants", "Stops", "Policy", "Operations",
        ]  # fmt: skip
        assert await page.evaluate(TOO_SMALL) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == width
