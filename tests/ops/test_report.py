"""The report: one page that holds all it shows, and says what the tables say."""

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from program import approvals
from stories import START, Story

from ayes.ledger.log import RawMessage
from ayes.ops.lake.report import PLOTS, report
from ayes.ops.lake.writer import LakeWriter
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.slots import ThreadRef

REFUND = e.Wish(tool="refund <b>", arguments='{"order":"A-17"}')


def lake_of(directory, *stories):
    """The lake of these stories, one after the other."""
    facts = [fact for story in stories for fact in story.facts]
    raws = [
        RawMessage(seq, START + timedelta(hours=seq), fact.slot.subject, encode(fact.event))
        for seq, fact in enumerate(facts, 1)
    ]
    with LakeWriter.open(directory, "20261121") as archive:
        archive.take(raws)
        archive.publish()
    return directory / "lake"


@pytest.fixture
def lake(tmp_path):
    """Four calls that ended and one that runs."""
    endings = ("returned", "denied", "expired", "failed", "running")
    stories = []
    for number, ending in enumerate(endings):
        story = Story(ThreadRef("acme", f"t{number}"))
        story.turn(1, REFUND)
        story.live(1, 0, REFUND, ending)
        story.tell(story.ref.wish(1, 0).vote("ana"), e.Voted(verdict="approve", digest=""))
        stories.append(story)
    return lake_of(tmp_path / "archive", *stories)


class Page(HTMLParser):
    """What a page would fetch or run, and the words in it."""

    def __init__(self, text):
        super().__init__()
        self.reaches, self.words, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        told = dict(attrs)
        self.reaches += [told[name] for name in ("src", "href", "action", "data") if told.get(name)]
        self.reaches += [name for name in told if name.startswith("on")]

    def handle_data(self, data):
        self.words.append(data)


def test_a_page_holds_all_that_it_shows(lake):
    """Nothing is fetched and nothing runs; each plot is there for light and for dark; names are
    text and no markup.
    """
    text = report(lake, "Week <47>")
    page = Page(text)
    assert page.reaches == []
    assert not {"script", "iframe", "link", "object", "embed", "img", "b>"} & set(page.tags)
    assert "url(" not in text
    assert "Content-Security-Policy\" content=\"default-src 'none'" in text
    assert page.tags.count("svg") == 2 * len(PLOTS)
    assert text.count("<div class='light'>") == text.count("<div class='dark'>") == len(PLOTS)
    assert "Week <47>" in page.words
    assert any("refund <b>" in word for word in page.words)


def test_its_figures_are_what_the_tables_say(lake):
    """Five calls, all put to people but none changed; one denied, one expired, one open."""
    found = re.findall(r"<div><b>([\d,]+)</b>([^<]+)</div>", report(lake, "Week"))
    assert {said: int(value) for value, said in found} == {
        "calls": 5,
        "put to people": 5,
        "denied by people": 1,
        "changed by a reviewer": 0,
        "expired": 1,
        "open now": 1,
        "in doubt": 0,
    }


def test_an_empty_log_gives_a_page(tmp_path):
    """Nothing was recorded, and it says so at each plot."""
    text = report(lake_of(tmp_path / "archive"), "Nothing")
    assert text.count("Nothing of this kind was recorded.") == len(PLOTS)
    assert "svg" not in Page(text).tags


def test_the_command_writes_it_whole_or_not_at_all(lake, tmp_path):
    """Beside the file nothing is left; where it cannot be written, a sentence says so (exit 2), as
    where there is no lake.
    """
    output = tmp_path / "out" / "week.html"
    output.parent.mkdir()
    done = approvals("report", "-o", output, "--to", lake.parent)
    assert done.code == 0, done.err
    assert "nothing else is needed to read it" in done.err
    assert [path.name for path in output.parent.iterdir()] == ["week.html"]
    assert output.read_text() == report(lake, "Approvals")
    missing = approvals("report", "-o", tmp_path / "nowhere" / "week.html", "--to", lake.parent)
    assert (missing.code, "cannot be written: No such file or directory." in missing.err) == (
        2,
        True,
    )
    none = approvals("report", "-o", output, "--to", tmp_path / "nobody")
    assert (none.code, "`ayes lake sync` makes one" in none.err) == (2, True)
