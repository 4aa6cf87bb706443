"""axe finds nothing on any page, in either theme and at either width."""

import pytest
import pytest_asyncio
from browser import DESK, PHONE, opened, served, sign_in, violations
from scene import PAGES, Scene

EMPTY = ("/", "/doubt", "/decided", "/conversations", "/grants", "/policy", "/operations")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(browser, tmp_path_factory):
    """One site for all pages, with everything that they can show."""
    path = tmp_path_factory.mktemp("scene")
    async with served(path) as made:
        await Scene(made).fill()
        yield made


@pytest.mark.parametrize("name", PAGES)
async def test_everybody_can_use_the_page(shop, visit, name):
    """WCAG 2.2 AA, in both themes and at both widths, and nothing to scroll sideways."""
    visitor = "" if name == "sign-in" else "ana"
    page = await visit(PAGES[name], visitor, reduced_motion="reduce")
    # What is folded counts as well.
    await page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
    for size in (DESK, PHONE):
        await page.set_viewport_size(size)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for theme in ("light", "dark"):
            await page.emulate_media(color_scheme=theme)
            found = await violations(page)
            assert not found, (size, theme, found)


async def test_the_first_day(browser, tmp_path):
    """Pages that have nothing to show yet, and that of a call which does not exist."""
    async with served(tmp_path) as made:
        context = await opened(browser, made)
        await sign_in(context, made, "ana")
        page = await context.new_page()
        for path in (*EMPTY, "/calls/shop/order-17/none"):
            await page.goto(path)
            assert not await violations(page), path
        await context.close()
