"""What would run is within the reader's sight, whatever an agent makes of its arguments."""

import json

import pytest
from long import sampled
from playwright.async_api import expect

from ayes.schemas.tools import ToolSpec

#: Desks have two panes.
DESKS = (1024, 1280, 1440, 1920)
WIDTHS = (360, 768, *DESKS)
LONG = "unbroken" * 60
#: Where the texts of the arguments are that lie outside of their card or pane, or have no size.
OUTSIDE = """() => {
  const card = [...document.querySelectorAll("article .card")].find(
    (one) => one.querySelector("h2")?.textContent === "What would run");
  for (const fold of card.querySelectorAll("details")) fold.open = true;
  const pane = card.closest(".pane-detail") ?? document.documentElement;
  const right = Math.min(card.getBoundingClientRect().right,
    pane.getBoundingClientRect().left + pane.clientWidth);
  const left = card.getBoundingClientRect().left;
  const found = [];
  const walker = document.createTreeWalker(card.querySelector(".pairs"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    if (!text) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const boxes = [...range.getClientRects()].filter((one) => one.width && one.height);
    const narrow = walker.currentNode.parentElement.getBoundingClientRect().width < 24;
    if (!boxes.length || (narrow && text.length > 4)) found.push(`${text.slice(0, 40)}: no room`);
    for (const box of boxes)
      if (box.left < left - 0.5 || box.right > right + 0.5)
        found.push(`${text.slice(0, 40)}: ${box.left} to ${box.right}, card ${left} to ${right}`);
  }
  const sideways = pane.scrollWidth - pane.clientWidth;
  return sideways > 0 ? [...found, `scrolls sideways by ${sideways}`] : found;
}"""


def nested(depth: int, value: object) -> object:
    for level in reversed(range(depth)):
        value = [value] if level % 3 == 2 else {f"level_{level}": value, "beside": level}
    return value


ARGUMENTS = {
    "deep": {f"d{depth}": nested(depth, {"delete_everything": True}) for depth in range(1, 21)},
    "deepest": nested(98, {"delete_everything": True}),
    "long": {
        LONG: "the end",
        "key": LONG,
        "inside": nested(7, {LONG: "the end", "key": LONG}),
        "list": [LONG, [LONG, {LONG: "the end"}]],
    },
    "many": {f"field_{number}": {"value": number} for number in range(500)},
}


@pytest.mark.parametrize("shape", sampled(ARGUMENTS, "deep"))
async def test_no_value_lies_outside_of_the_screen(shop, visit, shape):
    """At each width of a screen, beside the list and on a page of its own, 20 and 98 levels deep,
    under long keys and among 500: each name and value is within its card, and nothing scrolls
    sideways (B27). An agent hid `"delete": true` by nesting it, beside a key that approves.
    """
    call = f"shop/{shape}/c1"
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    await shop.ask(call, json.dumps(ARGUMENTS[shape]), tool="deploy")
    page = await visit()
    found = {}
    for place, widths in ((f"/calls/{call}", WIDTHS), ("/", DESKS)):
        await page.goto(place)
        await expect(page.locator("article.call[data-ready]")).to_be_visible()
        for width in widths:
            await page.set_viewport_size({"width": width, "height": 800})
            if bad := await page.evaluate(OUTSIDE):
                found[width, place] = bad[:5]
    assert found == {}


async def test_what_is_folded_says_how_much(shop, visit):
    """Beyond 40 members the rest opens with a click; that it is there is said beside the others."""
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    await shop.ask("shop/many/c1", json.dumps(ARGUMENTS["many"]), tool="deploy")
    page = await visit("/calls/shop/many/c1")
    await expect(page.locator("summary", has_text="460 more")).to_be_visible()
