"""Pictures of every page on a desk and on a phone: `make screenshots`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from browser import PHONE, launched, opened, served, sign_in
from scene import PAGES, Scene

# The desk is as small as one is, so that the pictures are.
DEVICES = {
    "desk": {"viewport": {"width": 1024, "height": 600}, "color_scheme": "light"},
    "phone": {"viewport": PHONE, "color_scheme": "dark", "has_touch": True, "is_mobile": True},
}


#: Of the pages that look alike, one.
LEFT_OUT = {"mine", "call-command", "devices", "sign-in"}
PICTURES = [name for name in PAGES if name not in LEFT_OUT]


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as path:
        async with launched() as browser, served(Path(path)) as shop:
            await Scene(shop).fill()
            for device, options in DEVICES.items():
                context = await opened(browser, shop, reduced_motion="reduce", **options)
                page = await context.new_page()
                page.set_default_timeout(60_000)
                link = f"/sign-in?code={shop.security.access.new_link('ana')}"
                places = {"sign-in": link} | {name: PAGES[name] for name in PICTURES}
                for name, place in places.items():
                    if name != "sign-in":
                        await sign_in(context, shop, "ana")
                    await page.goto(place)
                    if device == "desk" and name == "waiting":  # the pane beside the list
                        await page.locator("article[data-ready]").wait_for()
                    await page.screenshot(path=folder / f"{name}-{device}.png")


asyncio.run(main(Path(sys.argv[1])))
