"""Pictures of every page on a desk and on a phone: `make screenshots`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from browser import DESK, PHONE, launched, opened, served, sign_in
from scene import PAGES, Scene

DEVICES = {
    "desk": {"viewport": DESK, "color_scheme": "light"},
    "phone": {"viewport": PHONE, "color_scheme": "dark", "has_touch": True, "is_mobile": True},
}


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as path:
        async with launched() as browser, served(Path(path)) as shop:
            await Scene(shop).fill()
            for device, options in DEVICES.items():
                context = await opened(browser, shop, reduced_motion="reduce", **options)
                page = await context.new_page()
                for name, place in PAGES.items():
                    if name != "sign-in":
                        await sign_in(context, shop, "ana")
                    await page.goto(place)
                    if name in {"waiting", "mine"} and device == "desk":
                        await page.locator("article[data-ready]").wait_for()
                    await page.screenshot(path=folder / f"{name}-{device}.png")


asyncio.run(main(Path(sys.argv[1])))
