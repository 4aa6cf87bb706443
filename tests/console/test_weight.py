"""What a page loads: our own files, few of them, and small ones."""

import hashlib
import re
from pathlib import Path

import pytest

from ayes.ops.console import application

STATIC = Path(application.__file__).parent / "static"


def test_the_vendored_files_are_those_of_the_readme():
    readme = (STATIC / "README.md").read_text()
    [(name, digest)] = re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", readme, re.MULTILINE)
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", ["/"])
async def test_a_page_weighs_less_than_150_kb_with_everything(shop, client, path):
    """It loads nothing from elsewhere, and no script or style stands in it."""
    await shop.ask("shop/order-17/refund-1")
    page = (await client.get(path)).raise_for_status()
    assert not re.search(r"<style|<script(?! src=)|\son\w+=|style=|https?://", page.text)
    files = set(re.findall(r'(?:src|href)="(/static/[^"#]+)', page.text))
    assert {name.partition("?")[0].rpartition("/")[2] for name in files} >= {
        "console.css",
        "console.js",
        "htmx.min.js",
    }
    weight = len(page.content)
    for name in files:
        weight += len((await client.get(name)).raise_for_status().content)
    assert weight < 150_000
