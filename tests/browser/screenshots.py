"""Pictures of every page on a desk and on a phone: `make screenshots`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from browser import DESK, PHONE, launched, served
from console_client import site
from scene import PAGES, Scene


async def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as path:
        async with (
            launched() as browser,
            site(Path(path)) as shop,
            served(shop.app) as shop.url,
        ):
            await Scene(shop).fill()
            for device, size, theme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
                context = await browser.new_context(
                    base_url=shop.url, viewport=size, color_scheme=theme, reduced_motion="reduce"
                )
                await sign_in(context, shop, "ana")
                page = await context.new_page()
                for name, place in PAGES.items():
                    await page.goto(place)
                    await page.screenshot(path=folder / f"{name}-{device}.png")


asyncio.run(main(Path(sys.argv[1])))
