"""The page that checks a receipt: one file, opened from a disk, without a network."""

from pathlib import Path

import pytest_asyncio
from browser import opened
from odd_votes import BOARD, CONFIRMERS, LOST, voted_oddly
from passkey_vectors import ORIGIN, WANTED, vectors
from paths import ROOT
from playwright.async_api import Browser, Page, expect
from sealed_site import PAGES, Sealed, approved, with_passkeys
from shop import FIRST, SECOND, THIRD
from signed_site import DESK

from ayes.ledger.clients.reviewers import Ballot

PAGE = ROOT / "interfaces" / "receipt.html"


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> Sealed:
    return await approved(tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, site: Sealed):
    """The page with the keys of the log and of whom its reader trusts."""
    context = await opened(browser, offline=True)
    page = await context.new_page()
    await page.goto(PAGE.as_uri())
    await page.get_by_label("The public key of the log").fill(str((await site.seal()).public))
    await page.get_by_label("Public keys that say together").fill(str(DESK.public))
    yield page
    await context.close()


async def shown(page: Page, receipt: bytes) -> str:
    """What the page says of a receipt."""
    file = {"name": "c1.receipt", "mimeType": "application/json", "buffer": receipt}
    await page.get_by_label("The receipt").set_input_files(file)
    await page.locator("#result").evaluate("(one) => one.replaceChildren()")
    await page.get_by_role("button", name="Check").click()
    await expect(page.locator("#verdict")).to_be_visible()
    return await page.locator("#result").inner_text()


async def test_a_stranger_reads_what_a_receipt_proves(page: Page, site: Sealed):
    """By the receipt, the page and public keys, and nothing else (E4)."""
    said = await shown(page, (await site.receipt()).text())
    assert said.startswith("These ")
    assert "facts are in the log." in said
    assert "3 people have signed a yes to exactly this request and this question" in said
    assert "It is not judged here whether they were asked." in said
    assert said.count("signed with the key ") == 3
    assert "NOT PROVED" not in said
    assert "That nothing else was recorded" in said
    await page.get_by_label("Public keys that say together").fill("")
    said = await shown(page, (await site.receipt()).text())
    assert said.count("NOT PROVED: nobody whom you trust has confirmed its key") == 3
    assert "0 people have signed a yes" in said
    said = await shown(page, (await site.receipt(SECOND)).text())
    assert "not decided yet" in said


async def test_all_of_it_is_on_a_narrow_screen(page: Page, site: Sealed):
    await page.set_viewport_size({"width": 360, "height": 800})
    await shown(page, (await site.receipt()).text())
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    name = page.get_by_role("rowheader", name="ana", exact=True)
    box = await name.bounding_box()
    assert box
    assert box["width"] > 60


async def test_who_answers_in_place_of_the_tool_says_yes_too(page: Page, site: Sealed):
    paid = Ballot("answer", answer="it is paid already")
    await site.at("ana").reviewer("ana").vote(SECOND, paid)
    await site.at("ben").reviewer("ben").deny(SECOND, reason="no")
    said = await shown(page, (await site.receipt(SECOND)).text())
    assert "1 person has signed a yes to exactly this request" in said


async def test_the_page_asks_how_many_keys_are_needed(page: Page, site: Sealed):
    """Without a number nobody would have to say whose a key is."""
    text = (await site.receipt()).text()
    for needed, why in (
        ("", "is not a whole number"),
        ("0", "is not a whole number"),
        ("2", "More keys are needed than are given"),
    ):
        await page.get_by_label("How many of them are needed").fill(needed)
        said = await shown(page, text)
        assert said.startswith("Refused."), needed
        assert why in said


async def test_the_page_refuses_what_was_changed(page: Page, site: Sealed):
    """A sample of all bytes; and a receipt of another log."""
    text = (await site.receipt()).text()
    for place in range(0, len(text), 499):
        flipped = bytearray(text)
        flipped[place] ^= 1
        assert (await shown(page, bytes(flipped))).startswith("Refused."), place
    other = site.keys["ana"].public
    await page.get_by_label("The public key of the log").fill(str(other))
    assert "It is of the log" in await shown(page, text)


async def test_odd_keys_and_signatures_prove_nothing(page: Page, tmp_path: Path):
    """As in Python: tests/ops/test_receipts.py."""
    (tmp_path / "odd").mkdir()
    site = await voted_oddly(tmp_path / "odd")
    await page.get_by_label("The public key of the log").fill(str((await site.seal()).public))
    roots = "\n".join(str(one.public) for one in (DESK, BOARD))
    await page.get_by_label("Public keys that say together").fill(roots)
    await page.get_by_label("How many of them are needed").fill("2")
    await page.get_by_label("the confirmers of the trust").fill("\n".join(CONFIRMERS))
    await page.get_by_label("How many of the confirmers are needed").fill("2")
    await page.get_by_label("How many other people together").fill(str(LOST["people"]))
    await page.get_by_label("How long after their confirmation").fill(str(LOST["after"]))
    await page.get_by_label("The domain of people's passkeys").fill(PAGES["rp"])
    await page.get_by_label("The origins of the pages").fill(PAGES["origins"][0])
    await shown(page, (await site.receipt(SECOND)).text())
    rows = page.locator("table").nth(1).locator("tr")
    votes = [(await row.locator("th,td").all_inner_texts()) for row in await rows.all()]
    assert {name: "NOT PROVED" not in vote for name, vote in votes} == site.expected


async def test_the_page_asks_for_witnesses(page: Page, site: Sealed):
    await page.get_by_label("Public keys of witnesses").fill(str(site.keys["ben"].public))
    assert (await shown(page, (await site.receipt()).text())).startswith("Refused.")
    assert str(FIRST) not in await page.locator("#result").inner_text()


async def test_the_page_proves_votes_with_passkeys(page: Page, tmp_path: Path):
    """On the pages that its reader trusts; a counter that fell is said."""
    folder = tmp_path / "passkeys"
    folder.mkdir()
    site = await with_passkeys(folder)
    await page.get_by_label("The public key of the log").fill(str((await site.seal()).public))
    said = await shown(page, (await site.receipt()).text())
    assert "NOT PROVED: its key is not among the facts" in said
    await page.get_by_label("The domain of people's passkeys").fill(PAGES["rp"])
    await page.get_by_label("The origins of the pages").fill(PAGES["origins"][0])
    said = await shown(page, (await site.receipt()).text())
    assert "1 person has signed a yes" in said
    assert "NOT PROVED" not in said
    said = await shown(page, (await site.receipt(THIRD)).text())
    assert "NOT PROVED: the counter of its passkey was as high before" in said
    assert "NOT PROVED: its key is that of ana" in said
    assert "0 people have signed a yes" in said


async def test_the_page_judges_passkeys_as_python_does(browser: Browser):
    """The vectors that all our programs judge, by the script of the page."""
    context = await opened(browser, offline=True, bypass_csp=True)
    page = await context.new_page()
    await page.goto(PAGE.as_uri())
    script = PAGE.read_text().partition('<script type="module">')[2].partition("const at = (id)")[0]
    found = await page.evaluate(
        """async ([script, vectors, wanted, origins]) => {
            const url = URL.createObjectURL(new Blob(
                [`${script}; export { flawOf, isTaken, signatureOf };`],
                { type: "text/javascript" }));
            const { flawOf, isTaken, signatureOf } = await import(url);
            const wrong = [];
            for (const { name, key, is_key, signature, taken } of vectors) {
                const [, , rp, ...spki] = key.split("+");
                const raw = Uint8Array.from(atob(spki.join("+")), (one) => one.charCodeAt(0));
                const said = signatureOf(signature);
                const challenge = Uint8Array.from(wanted);
                const isSigned = said !== null
                    && (await flawOf({ rp, raw }, said.raw, challenge, origins)) === "";
                if (isSigned !== taken || isTaken(raw) !== is_key) wrong.push(name);
            }
            return wrong;
        }""",
        [script, vectors(), [*WANTED], [ORIGIN]],
    )
    await context.close()
    assert found == []
