"""Fixtures of the tests in a real browser: one Chromium for all of them, and for each test a broker,
its workers and its console on a port.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from browser import DESK, MISSING, PATIENCE_MS, Problems, chromium, launched, served
from console_client import Site, site
from playwright.async_api import Browser, BrowserContext, Page


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser outlives a test, and so must the event loop that drives it."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if chromium() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(MISSING)
    async with launched() as running:
        yield running


class Visits:
    """Opens pages, each as somebody with a browser of their own."""

    def __init__(self, browser: Browser, shop: Site) -> None:
        self._browser, self._shop = browser, shop
        self.problems = Problems()
        self.contexts: list[BrowserContext] = []

    async def __call__(self, path: str = "/", name: str = "ana", **options: Any) -> Page:
        """The page at `path` for a reviewer of this name; `options` are those of a context."""
        settings: dict[str, Any] = {"viewport": DESK, "locale": "en-GB", "timezone_id": "UTC"}
        context = await self._browser.new_context(base_url=self._shop.url, **settings | options)
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        await sign_in(context, self._shop, name)
        page = await context.new_page()
        self.problems.watch(page)
        await page.goto(path)
        return page

    async def close(self) -> None:
        for context in self.contexts:
            await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def shop(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made, served(made.app) as made.url:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, shop: Site) -> AsyncIterator[Visits]:
    visits = Visits(browser, shop)
    yield visits
    await visits.close()
    assert visits.problems.seen == []
