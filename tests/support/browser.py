"""A real Chromium, driven by Playwright. A page that reports any problem fails its test."""

import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from console_client import Site, site
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Response,
    async_playwright,
)

from ayes.interfaces.console import serving
from ayes.ops.visitors import Role, Visitor

MISSING: Final = (
    "no Chromium was found. Install that of the system (Debian: apt-get install chromium), or name "
    "one in AYES_CHROMIUM."
)
#: How long a page may take on a busy machine: Chromium can stand still for half a minute there.
PATIENCE_MS: Final = 120_000
DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 360, "height": 740}
#: What Playwright switches off, as far as it is about pages or the network: the last list counts.
_OF_PLAYWRIGHT: Final = (
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "MediaRouter", "PaintHolding",
    "ThirdPartyStoragePartitioning", "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints",
    "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch",
)  # fmt: skip
#: What makes a new window slow though nobody sees it: the lists below its address bar are pages in
#: a process of their own, and the process for a next site is started in advance. Without, a browser
#: and its first page take 0.2 s of CPU rather than 1 (Chromium 156).
_OF_THE_WINDOW: Final = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "SpareRendererForSitePerProcess",
)
#: It asks nothing of the network by itself.
_ARGUMENTS: Final = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    f"--disable-features={','.join((*_OF_PLAYWRIGHT, *_OF_THE_WINDOW))}",
)  # fmt: skip


def chromium() -> str | None:
    """Where the system's Chromium is, or the one that AYES_CHROMIUM names."""
    if named := os.environ.get("AYES_CHROMIUM"):
        return shutil.which(named)
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(),
            args=_ARGUMENTS,
            chromium_sandbox=os.geteuid() != 0,  # root has no sandbox
            timeout=PATIENCE_MS,
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Site]:
    """A site whose console is served at `site.security.url`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with site(path) as made:
            made.security.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with serving.served(made.app, listener, made.security):
                yield made


async def opened(browser: Browser, site: Site | None = None, **options: Any) -> BrowserContext:
    """A browser of somebody's own, for paths of this site; `options` are those of a context."""
    settings: dict[str, Any] = {"viewport": DESK, "locale": "en-GB", "timezone_id": "UTC"} | options
    if site is not None:
        settings["base_url"] = site.security.url
    context = await browser.new_context(**settings)
    context.set_default_timeout(PATIENCE_MS)
    return context


def person(name: str) -> Visitor:
    return Visitor(name, frozenset({Role.REVIEWER, Role.OPERATOR, Role.AUDITOR}))


async def sign_in(context: BrowserContext, site: Site, name: str) -> None:
    """Give the browser the cookie of a session of this person."""
    cookie = {"name": site.security.cookie, "value": site.secret_of(person(name))}
    await context.add_cookies([cookie | {"url": site.security.url, "sameSite": "Strict"}])


class Problems:
    """What goes wrong on pages: errors of scripts, violations of the Content-Security-Policy,
    dialogs, missing files, and failures of the server.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        #: Statuses that a test provokes.
        self.expected: set[int] = set()

    def watch(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("response", self._on_response)
        page.on("dialog", self._on_dialog)

    def _on_console(self, message: ConsoleMessage) -> None:
        # The response is judged by its status. The script is that of the service worker, of a page
        # that is left meanwhile.
        failed = message.text.startswith(
            ("Failed to load resource", "An unknown error occurred when fetching the script")
        )
        if message.type in {"error", "warning"} and not failed:
            self.seen.append(f"console: {message.text}")

    def _on_response(self, response: Response) -> None:
        if (response.status == 404 or response.status >= 500) and (
            response.status not in self.expected
        ):
            self.seen.append(f"{response.status}: {response.url}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        await dialog.dismiss()


async def violations(page: Page, *rules: str) -> str:
    """What axe finds with these rules, by default with all of WCAG 2.2 AA and of good practice.

    It is evaluated by the debugger, which the page's Content-Security-Policy does not bind.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    options: dict[str, object] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = rules
    found = AxeResults(await page.evaluate("options => axe.run(options)", options))
    return found.generate_report() if found.violations_count else ""
