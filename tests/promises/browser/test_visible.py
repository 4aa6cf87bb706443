"""What would run is within the reader's sight, whatever an agent makes of its arguments."""

import base64
import json
import re

import pytest
from long import sampled
from pictures import png
from playwright.async_api import expect

from ayes.schemas.tools import ToolSpec

#: Wider than 768 px there are two panes.
WIDTHS = (360, 768, 1024, 1280, 1440, 1920)
LONG = "unbroken" * 60
#: Where the texts of the arguments are that lie outside of their card or pane, or have no size.
OUTSIDE = """() => {
  const card = [...document.querySelectorAll("article .card")].find(
    (one) => one.querySelector("h2")?.textContent === "What would run");
  for (const fold of card.querySelectorAll("details")) fold.open = true;
  for (const button of card.querySelectorAll("[data-rows]")) if (!button.hidden) button.click();
  const pane = card.closest(".pane-detail") ?? document.documentElement;
  const right = Math.min(card.getBoundingClientRect().right,
    pane.getBoundingClientRect().left + pane.clientWidth);
  const left = card.getBoundingClientRect().left;
  const found = [];
  const walker = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    if (!text || walker.currentNode.parentElement.closest("#call-raw, button")) continue;
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


ROWS = [{"id": number, "name": f"Customer {number}", "paid": 1.5 * number} for number in range(120)]
LINE = "word " * 1500 + "x" * 2500  # a line of 10,000 characters
RIGHT_TO_LEFT = "\u05d4\u05e9\u05d1 \u05d0\u05ea \u05d4\u05db\u05e1\u05e3 480 " * 20
PICTURE = f"data:image/png;base64,{base64.b64encode(png(1600, 200)).decode()}"
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
    **{
        f"keys-{count}": {f"field_{number}": number for number in range(count)}
        for count in (1, 40, 41, 500)
    },
    "lines": {
        "text": LINE,
        "lines": f"{LINE}\n{LINE}",
        LINE: 1,
        "sql": f"select {LINE}",
        "diff": f"--- a\n+++ b\n+{LINE}\n-{LINE}",
        "markdown": f"# Title {LINE[:4000]}\n\n* {LINE[-2500:]}\n\n```\n{LINE[-2500:]}\n```",
    },
    "right-to-left": {
        "text": RIGHT_TO_LEFT,
        RIGHT_TO_LEFT: RIGHT_TO_LEFT,
        "list": [RIGHT_TO_LEFT[:90]] * 3,
        "rows": [{"name": RIGHT_TO_LEFT[:60], "amount": number} for number in range(3)],
        "markdown": f"# {RIGHT_TO_LEFT}\n\n* {RIGHT_TO_LEFT}",
    },
    "renderings": {
        "rows": ROWS,
        "wide": [{f"column {column}": column * 10**9 for column in range(8)} for _ in range(3)],
        "texts": [{"a": "x" * 119, "b": "y " * 59}] * 3,
        "names": [f"Customer {number}" for number in range(60)],
        "markdown": "# Title\n\n1. one\n   * two\n\n> said\n\n`code`\n\n[a](https://a.example)",
        "python": "import os\n" + "    " * 30 + "os.remove('/')\n",
        "at": "2026-03-01T12:00:00Z",
        "picture": PICTURE,
    },
}


@pytest.mark.parametrize("shape", sampled(ARGUMENTS, "deep", "renderings"))
async def test_no_value_lies_outside_of_the_screen(shop, visit, shape):
    """At each width of a screen, beside the list on a desk, 20 and 98 levels deep, under long keys
    and among 500, in long lines, from right to left and in each rendering: each name and value is
    within its card, and nothing scrolls sideways (B27). An agent hid `"delete": true` by nesting
    it, beside a key that approves.
    """
    call = f"shop/{shape}/c1"
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    await shop.ask(call, json.dumps(ARGUMENTS[shape]), tool="deploy")
    page = await visit(f"/calls/{call}")
    await expect(page.locator("article.call[data-ready]")).to_be_visible()
    found = {}
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 800})
        if bad := await page.evaluate(OUTSIDE):
            found[width] = bad[:5]
    assert found == {}


#: The texts under "What would run" that nobody sees, though no fold is closed around them.
UNSEEN = """() => [...document.querySelectorAll("article .pairs :is(dt, dd, td, li, pre)")].filter(
  (one) => !one.checkVisibility() && !one.closest("details:not([open]), .rows"),
).map((one) => one.textContent)"""


@pytest.mark.parametrize("shape", sampled(ARGUMENTS, "renderings"))
async def test_what_is_not_seen_is_counted(shop, visit, shape):
    """Nothing is left out of the page, and nothing is hidden but within folds that say how much."""
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    await shop.ask("shop/folds/c1", json.dumps(ARGUMENTS[shape]), tool="deploy")
    page = await visit("/calls/shop/folds/c1", viewport={"width": 1024, "height": 800})
    assert await page.evaluate(UNSEEN) == []
    folds = await page.locator("article .pairs .fold > summary").all_text_contents()
    assert [one for one in folds if not re.search(r"\d", one)] == []
    hidden = await page.locator(".rows .more tr:not(:visible)").count()
    said = await page.locator("[data-rows]:visible").all_text_contents()
    assert hidden == sum(int(one.split()[0]) for one in said)


async def test_rows_are_sorted_by_a_column(shop, visit):
    """Every row is reachable, and the order of the request too; numbers are sorted as such."""
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    rows = [{"id": 7 * number % 120, "name": f"c{number}"} for number in range(120)]
    await shop.ask("shop/rows/c1", json.dumps({"rows": rows}), tool="deploy")
    page = await visit("/calls/shop/rows/c1")
    ids = page.locator(".rows td:nth-child(2):visible")
    await expect(ids).to_have_count(20)
    await page.get_by_role("button", name="id").click()
    await expect(ids).to_have_text([str(number) for number in range(20)])
    await page.get_by_role("button", name="id").click()
    await page.get_by_role("button", name="100 more rows").click()
    await expect(ids).to_have_text([str(number) for number in reversed(range(120))])
    await page.get_by_role("button", name="#").click()
    await expect(ids).to_have_text([str(one["id"]) for one in rows])


async def test_what_is_folded_says_how_much(shop, visit):
    """Beyond 40 members the rest opens with a click; that it is there is said beside the others."""
    await shop.service.declare("shop", ToolSpec(name="deploy", schema='{"type":"object"}'))
    await shop.ask("shop/many/c1", json.dumps(ARGUMENTS["many"]), tool="deploy")
    page = await visit("/calls/shop/many/c1")
    await expect(page.locator("summary", has_text="460 more")).to_be_visible()
