"""axe finds nothing on any page, in either theme and at either width."""

import pytest
import pytest_asyncio
from browser import DESK, PHONE, Problems, opened, served, sign_in, violations
from long import sampled
from playwright.async_api import expect
from scene import FIRST_POLICY, PAGES, POLICY, REFUND, TOOLS, Scene

#: Pages that docs/console.md shows no picture of.
OTHERS = {
    "search": "/?q=tool:refund+amount>1&group=tool&sort=due",
    "search without a result": "/?q=tool:no-such-tool",
    "filtered": "/decided?q=tool:refund",
    "allow": f"/allow/{REFUND}",
    "old version": "/policy/shop?version=1",
    "workspaces": "/policy",
    "parked": "/operations/parked/1",
    "signing keys": "/passkeys",
    "signed": "/signed",
    "ended link": "/open/" + "A" * 43,
    "no such page": "/nowhere",
    "used sign-in link": "/sign-in?code=used",
}
#: The rules of axe about colours: all that another theme changes.
COLOURS = ("color-contrast", "link-in-text-block")
EMPTY = (
    "/", "/doubt", "/decided", "/conversations", "/grants", "/stops", "/policy", "/operations",
    "/calls/shop/order-17/none",
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(browser, tmp_path_factory):
    """One site for all pages, with everything that they can show."""
    path = tmp_path_factory.mktemp("scene")
    async with served(path) as made:
        await Scene(made).fill()
        # With a second workspace, `/policy` is a list.
        await made.service.declare("desk", TOOLS[0])
        yield made


class Tabs:
    """A tab of ana's and one of somebody unknown stay open: thirty browsers take a minute."""

    def __init__(self, ana, unknown):
        self.ana, self.unknown = ana, unknown
        self.problems = Problems()
        for page in (ana, unknown):
            self.problems.watch(page)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_tabs(browser, shop):
    contexts = [await opened(browser, shop, reduced_motion="reduce") for _ in range(2)]
    await sign_in(contexts[0], shop, "ana")
    yield Tabs(*[await context.new_page() for context in contexts])
    for context in contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(open_tabs):
    """Both as new tabs look, in which nothing may go wrong."""
    open_tabs.problems.expected = set()
    for page in (open_tabs.ana, open_tabs.unknown):
        await page.set_viewport_size(DESK)
        await page.emulate_media(color_scheme="light")
    yield open_tabs
    seen, open_tabs.problems.seen = open_tabs.problems.seen, []
    assert seen == []


#: Sizes and themes with the rules for each.
LOOKS = (
    (DESK, "light", ()),
    (DESK, "dark", COLOURS),
    (PHONE, "light", ()),
    (PHONE, "dark", COLOURS),
)


#: What floats above a page, and buttons that are too small for their words.
MISPLACED = """() => [...document.querySelectorAll("main *")].filter(
  (one) => getComputedStyle(one).position === "fixed"
    || (one.matches("button, .button") && one.scrollWidth > one.clientWidth),
).map((one) => one.outerHTML.slice(0, 200))"""


async def assert_usable(page, looks=LOOKS):
    """WCAG 2.2 AA, in both themes and at both widths, with nothing cut or to scroll sideways."""
    # What is folded counts as well.
    await page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
    for size, theme, rules in looks:
        await page.set_viewport_size(size)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert await page.evaluate(MISPLACED) == []
        await page.emulate_media(color_scheme=theme)
        found = await violations(page, *rules)
        assert not found, (size, theme, found)


@pytest.mark.parametrize("name", sampled(PAGES | OTHERS, "waiting", "call-forms"))
async def test_everybody_can_use_the_page(tabs, name):
    """What is shown can be seen, read and reached by everybody."""
    tabs.problems.expected = {404} if name in {"ended link", "no such page"} else set()
    page = tabs.unknown if "sign-in" in name else tabs.ana
    await page.goto((PAGES | OTHERS)[name])
    await expect(page.locator("h1").first).to_be_visible()
    await assert_usable(page)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (POLICY, "It has the text of the version in force"),
        (FIRST_POLICY, "Differences from version 2"),
        ("rule = 1", "should be a list"),
    ],
    ids=["same", "other", "bad"],
)
@pytest.mark.long
async def test_everybody_can_use_the_trial_of_a_policy(tabs, text, shown):
    """Its result, or what is wrong with it."""
    page = tabs.ana
    await page.goto("/policy/shop")
    await page.get_by_label("Policy (TOML)").fill(text)
    await page.get_by_role("button", name="Try it").click()
    await expect(page.locator("main")).to_contain_text(shown)
    await assert_usable(page)


@pytest.mark.parametrize("looks", sampled((LOOKS, LOOKS[::3]), LOOKS[::3]), ids=("all", "two"))
async def test_everybody_can_stop_and_resume(tabs, looks):
    """The form, what it asks once more, what the stop found, the line on pages, and the list."""
    page = tabs.ana
    await page.goto("/stops?workspace=desk")
    await assert_usable(page, looks)
    await page.get_by_label("Agents").fill("clerk-*")
    await page.get_by_label("Reason", exact=True).fill("They answer in a wrong language.")
    await page.get_by_role("button", name="Review the stop").click()
    await expect(page.locator("h1")).to_have_text("Stop this?")
    await assert_usable(page, looks)
    await page.get_by_role("button", name="Stop desk").click()
    await expect(page.locator("main")).to_contain_text("They answer in a wrong language.")
    await expect(page.get_by_role("heading", name="What it found")).to_be_visible()
    await assert_usable(page, looks)
    await page.get_by_role("navigation", name="Breadcrumb").get_by_role("link").click()
    row = page.locator("[id^='stop-desk/ana/']").first
    await expect(row).to_contain_text("agents clerk-*")
    await assert_usable(page, looks)
    await page.goto("/")
    await expect(page.locator("#stopped")).to_contain_text("Stopped in desk")
    await assert_usable(page, looks)
    await page.get_by_role("link", name="what, by whom and until when").click()
    await row.get_by_text("Resume…").click()
    await row.get_by_label("Why").fill("They answer well.")
    await row.get_by_role("button", name="Resume desk/ana/").click()
    await expect(row).to_contain_text("ended")
    await assert_usable(page, looks)


@pytest.mark.parametrize("every", sampled((1, 3), 3))
async def test_the_first_day(browser, tmp_path, every):
    """Pages that have nothing to show yet, and that of a call which does not exist."""
    async with served(tmp_path) as made:
        context = await opened(browser, made)
        await sign_in(context, made, "ana")
        page = await context.new_page()
        for path in EMPTY[::every]:
            await page.goto(path)
            assert not await violations(page), path
        await context.close()
