"""Fixtures of the tests in a real browser: one Chromium for all, and for each test a broker, its
workers and its console on a port.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from browser import MISSING, PATIENCE_MS, Problems, chromium, launched, opened, served, sign_in
from console_client import Site
from playwright.async_api import Browser, BrowserContext, Page, expect


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run them in one event loop, as the browser outlives a test; skip without one, not in CI."""
    is_left_out = chromium() is None and os.environ.get("CI") != "true"
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if is_left_out:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    assert chromium(), MISSING
    expect.set_options(timeout=PATIENCE_MS)
    async with launched() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def shop(browser: Browser, tmp_path: Path) -> AsyncIterator[Site]:
    async with served(tmp_path) as made:
        yield made


class Visits:
    """Opens pages, each in a browser of its own."""

    def __init__(self, browser: Browser, shop: Site) -> None:
        self._browser, self._shop = browser, shop
        self._contexts: list[BrowserContext] = []
        self.problems = Problems()

    async def __call__(self, path: str = "/", name: str = "ana", **options: Any) -> Page:
        """The page at `path` for a reviewer of this name, or for nobody who is known."""
        context = await opened(self._browser, self._shop, **options)
        self._contexts.append(context)
        if name:
            await sign_in(context, self._shop, name)
        page = await context.new_page()
        self.problems.watch(page)
        await page.goto(path)
        return page

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, shop: Site) -> AsyncIterator[Visits]:
    visits = Visits(browser, shop)
    yield visits
    await visits.close()
    assert visits.problems.seen == []
