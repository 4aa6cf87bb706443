"""The documentation can be built as pages (`make site`): all that it needs is there."""

import importlib.util
import tomllib

import pytest
from paths import ROOT

FILE = ROOT / "docs" / "site" / "build.py"
SPEC = importlib.util.spec_from_file_location("build", FILE)
assert SPEC
assert SPEC.loader
build = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(build)


def test_every_page_has_its_place(tmp_path):
    """If not: docs/site/zensical.toml. And each page is staged with all that it links to."""
    pages = build.stage(tmp_path)
    settings = build.SETTINGS.read_text().replace("@DECISIONS@", build.decisions(pages))
    named = list(build.named(tomllib.loads(settings)["project"]["nav"]))
    assert sorted(named) == sorted(pages)
    assert [page for page in named if not (tmp_path / page).exists()] == []
    assert (tmp_path / "ledger" / "lifecycle.py.md").read_text().startswith("# ledger/lifecycle.py")
    assert (tmp_path / "docs" / "pictures" / "waiting-desk.png").exists()


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ('<a href="there.html#place">there</a>', []),
        ('<a href="https://example.com">elsewhere</a>', []),
        ('<a href="nowhere.html">nowhere</a>', ["there is no nowhere.html"]),
        ('<a href="there.html#other">there</a>', ["there is no place there.html#other"]),
        (
            '<script src="https://example.com/a.js">',
            ["<script> comes from https://example.com/a.js"],
        ),
        ('<link href="//example.com/a.css">', ["<link> comes from //example.com/a.css"]),
    ],
)
def test_links_of_the_pages_are_checked(tmp_path, page, says):
    """Links to pages and places, and what a browser would fetch from elsewhere."""
    (tmp_path / "here.html").write_text(page)
    (tmp_path / "there.html").write_text('<h1 id="place">There</h1>')
    assert list(build.check(tmp_path)) == [f"here.html: {one}" for one in says]
