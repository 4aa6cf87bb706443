"""What an agent writes is text on every page, whatever it is."""

import msgspec
from scene import HOSTILE

from ayes.schemas.tools import ToolSpec


async def test_a_hostile_call_is_shown_as_text(shop, visit):
    """Markup, scripts, hidden and bidirectional characters, terminal escapes, 200 kB and 500
    arguments: all of it appears, what cannot be seen is marked, and nothing of it runs.
    """
    await shop.service.declare("shop", ToolSpec(name="mail", schema='{"type":"object"}'))
    arguments = HOSTILE | {"long": "x" * 200_000, "end": "the end"}
    many = arguments | {f"field {number}": number for number in range(500)}
    await shop.ask("shop/mail-1/send-1", msgspec.json.encode(many).decode(), tool="mail")
    page = await visit("/calls/shop/mail-1/send-1")
    text = await page.locator("main").text_content()
    for part in ("<script>alert(2)</script>", "</pre></code><h1", "{{ 7 * 7 }}", "x" * 200_000):
        assert part in text
    for marked in ("U+200B", "U+202E", "U+2066", "U+001B"):
        assert marked in text
    assert "field 499" in text
    # Nothing of it has become an element.

    assert await page.locator("main :is(script, img, h1[style], a[href^=javascript])").count() == 0
