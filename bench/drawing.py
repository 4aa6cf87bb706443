"""The time from a fact in the log to the change on the page, in a real browser.

The page is the list of waiting calls. Each decision strikes a row out; a `MutationObserver` notes
when. Page and broker are on one machine, so both times are those of its clock.
"""

import asyncio
import os
import shutil
import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ayes.schemas.slots import CallRef

if TYPE_CHECKING:  # the other workloads do without it
    from playwright.async_api import Page

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: What a page does when it is opened is over by then.
_SETTLED_S: Final = 2.0
#: The pause between two decisions.
_PAUSE_S: Final = 0.1
_PATIENCE_MS: Final = 120_000
_OBSERVE: Final = """() => {
    window.changed = {};
    const note = (row, now) => { if (row) window.changed[row.dataset.call] ??= now; };
    new MutationObserver((records) => {
        const now = performance.timeOrigin + performance.now();
        for (const { target } of records) note(target.closest(".row.leaving"), now);
    }).observe(document.querySelector("#calls"), { subtree: true, attributeFilter: ["class"] });
}"""


def chromium() -> str | None:
    """The Chromium that AYES_CHROMIUM names, or that of the system."""
    if named := os.environ.get("AYES_CHROMIUM"):
        return shutil.which(named)
    return next(filter(None, map(shutil.which, _NAMES)), None)


@asynccontextmanager
async def listing(url: str, authorization: str) -> AsyncGenerator["Page"]:
    """The list of waiting calls of the console at `url`, in a browser."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(),
            args=("--disable-gpu",),
            chromium_sandbox=os.geteuid() != 0,  # root has no sandbox
            timeout=_PATIENCE_MS,
        )
        page = await browser.new_page(extra_http_headers={"Authorization": authorization})
        page.set_default_timeout(_PATIENCE_MS)
        await page.goto(url)
        await page.locator("article[data-ready]").wait_for()
        await asyncio.sleep(_SETTLED_S)
        await page.evaluate(_OBSERVE)
        yield page
        await browser.close()


async def drawn_ms(
    page: "Page", count: int, decide: Callable[[CallRef], Awaitable[float]]
) -> float:
    """The median of `count` decisions, in milliseconds.

    Args:
        decide: records the decision of a call, and returns when it was stored, in milliseconds
            since 1970.
    """
    rows = page.locator("#calls .row:not(.leaving)")
    listed = await rows.evaluate_all("rows => rows.map(row => row.dataset.call)")
    recorded_ms: dict[str, float] = {}
    for name in listed[:count]:
        recorded_ms[name] = await decide(CallRef.parse(name))
        await asyncio.sleep(_PAUSE_S)
    await page.wait_for_function(
        "names => names.every(name => name in window.changed)", arg=[*recorded_ms]
    )
    changed_ms = await page.evaluate("window.changed")
    return float(statistics.median(changed_ms[name] - at for name, at in recorded_ms.items()))
