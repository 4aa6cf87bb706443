"""docs/runbook.md has an entry for each alert, each check, and what people are told most."""

import re

import pytest
import yaml
from paths import ROOT

from ayes.ops.inspection.checks import CHECKS, DOCTOR

PAGE = (ROOT / "docs" / "runbook.md").read_text()
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
FOLDERS = ("schemas", "ledger", "projections", "consumers", "adapters", "ops", "interfaces")


def entries(part: str) -> dict[str, str]:
    """The headings of a part of the page, and what stands below each."""
    [found] = re.findall(rf"^## {part}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", found, re.MULTILINE | re.DOTALL))


def test_each_alert_has_an_entry_that_says_when_it_is_over():
    """What it means, what to look at, what to type, and when it is over, with its severity."""
    [group] = ALERTS["groups"]
    found = entries("Alerts")
    assert [*found] == [rule["alert"] for rule in group["rules"]]
    for rule in group["rules"]:
        said = found[rule["alert"]]
        assert said.strip().startswith(f"*{rule['labels']['severity'].capitalize()}.*"), said
        assert re.findall(r"^\* (\w+)", said, re.MULTILINE)[0] == "Look"
        assert "ype: " in said, said
        assert "\n* Over: " in said, said


def test_each_check_has_an_entry():
    """Those of `doctor`, `status`, `ready` and the page Operations, and doctor's own two more."""
    assert [*entries("Checks")] == [*CHECKS, "permissions", "store is private"]


def test_each_check_of_doctor_has_a_row_in_the_page_on_watching():
    page = (ROOT / "docs" / "watching.md").read_text()
    [table] = re.findall(r"^\| check \| fails when \|\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|*]+?) \|", table, re.MULTILINE)
    assert rows == [*DOCTOR, "store is private"]


def test_links_within_the_page_lead_somewhere():
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    places = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= places


@pytest.fixture(scope="module")
def code() -> str:
    """All texts of the program, each in one line, however its source breaks it."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))


def test_the_sentences_are_those_of_the_program(code):
    sentences = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(sentences) > 10
    assert [one for one in sentences if one not in code] == []
