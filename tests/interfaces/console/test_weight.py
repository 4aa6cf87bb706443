"""What a page loads: our own files, few of them, and small ones."""

import hashlib
import re
from pathlib import Path

from console_client import listed

from ayes.interfaces.console import application

STATIC = Path(application.__file__).parent / "static"
#: Characters that are longer as HTML.
LONG = '{"order":"' + "<&>" * 1000 + '","amount":480}'
#: Arguments that fill their line in the list.
SHORT = '{"order":"' + "A" * 100 + '","amount":480}'
#: The first page of the list is full.
PATHS = ("/", "/?q=is:mine", "/calls/shop/order-1/refund-1", "/policy/shop", "/operations")


def test_the_vendored_files_are_those_of_the_readme():
    readme = (STATIC / "README.md").read_text()
    [(name, digest)] = re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", readme, re.MULTILINE)
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


async def test_a_page_weighs_less_than_100_kb_with_everything(shop, client):
    """A list less than 160 kB without compression. It loads nothing from elsewhere, and no
    script or style stands in it.
    """
    for number in range(50):
        await shop.ask(f"shop/order-{number}/refund-1", SHORT)
    await listed(client, 50)
    for path in PATHS:
        page = (await client.get(path)).raise_for_status()
        received = await loaded(client, page)
        assert sum(one.num_bytes_downloaded for one in received) < 100_000, path
        if path.partition("?")[0] == "/":
            assert sum(len(one.content) for one in received) < 160_000, path


async def test_a_long_call_is_a_short_row(shop, client):
    await shop.ask("shop/order-1/refund-1", LONG)
    await listed(client, 1)
    row = re.search(r'<li class="row".*?</li>', (await client.get("/")).text, re.DOTALL)[0]
    assert len(row) < 2_000


async def loaded(client, page):
    """A page, and everything that it loads at first."""
    assert not re.search(r"<style|<script(?! src=)|\son\w+=|style=|https?://", page.text)
    files = set(re.findall(r'(?:src|href)="(/static/[^"#]+)', page.text))
    assert {name.partition("?")[0].rpartition("/")[2] for name in files} >= {
        "console.css",
        "console.js",
        "htmx.min.js",
    }
    return [page, *[(await client.get(name)).raise_for_status() for name in files]]
