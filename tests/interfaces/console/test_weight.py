"""What a page loads: our own files, few of them, and small ones."""

import hashlib
import re
from pathlib import Path

from console_client import listed

from ayes.interfaces.console import application

STATIC = Path(application.__file__).parent / "static"
#: Characters that are longer as HTML.
LONG = '{"order":"' + "<&>" * 1000 + '","amount":480}'
#: The first page of the list is full, with calls as they are.
PATHS = ("/", "/?q=is:mine", "/calls/shop/order-1/refund-1", "/policy/shop", "/operations")


def test_the_vendored_files_are_those_of_the_readme():
    readme = (STATIC / "README.md").read_text()
    [(name, digest)] = re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", readme, re.MULTILINE)
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


async def test_a_page_weighs_less_than_100_kb_with_everything(shop, client):
    """It loads nothing from elsewhere, and no script or style stands in it."""
    for number in range(50):
        await shop.ask(f"shop/order-{number}/refund-1")
    await listed(client, 50)
    for path in PATHS:
        page = (await client.get(path)).raise_for_status()
        assert await weight(client, page) < 100_000, path


async def test_a_long_call_is_a_short_row(shop, client):
    await shop.ask("shop/order-1/refund-1", LONG)
    await listed(client, 1)
    row = re.search(r'<li class="row".*?</li>', (await client.get("/")).text, re.DOTALL)[0]
    assert len(row) < 2_000


async def weight(client, page):
    """The bytes that a browser receives for a page and for everything that it loads. Without
    compression a full list would have 154 kB.
    """
    assert not re.search(r"<style|<script(?! src=)|\son\w+=|style=|https?://", page.text)
    files = set(re.findall(r'(?:src|href)="(/static/[^"#]+)', page.text))
    assert {name.partition("?")[0].rpartition("/")[2] for name in files} >= {
        "console.css",
        "console.js",
        "htmx.min.js",
    }
    loaded = [(await client.get(name)).raise_for_status() for name in files]
    return sum(one.num_bytes_downloaded for one in (page, *loaded))
