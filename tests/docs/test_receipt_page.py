"""The page that checks receipts has the check of the TypeScript client in it.

Run as a program, it makes the page anew. Part of `make conformance`, since it needs the compiler of
TypeScript from npm.
"""

import os
import re
import subprocess
from pathlib import Path

import npm
import pytest
from paths import ROOT
from typescript import packages

PAGE = ROOT / "interfaces" / "receipt.html"
FRAME = ROOT / "clients" / "receipt" / "page.html"


def made() -> str:
    """The page: its frame, with the compiled check in it."""
    package = packages()
    tsc = package / "node_modules" / "typescript" / "bin" / "tsc"
    if not tsc.exists():
        tsc = package.parent / "node_modules" / "typescript" / "bin" / "tsc"
    subprocess.run([npm.node(), tsc, "--project", package], check=True, cwd=package)
    return page(package / "dist" / "receipt.js")


def page(compiled: Path) -> str:
    """A script in a page exports nothing."""
    script = re.sub(r"(?m)^export ", "", compiled.read_text())
    frame = FRAME.read_text()
    assert "/* RECEIPT */" in frame
    assert "</script" not in script
    return frame.replace("/* RECEIPT */", script.strip())


@pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)
def test_the_page_has_the_check_of_the_client():
    assert PAGE.read_text() == made(), "`python tests/docs/test_receipt_page.py` makes it anew"


if __name__ == "__main__":
    PAGE.write_text(made())
