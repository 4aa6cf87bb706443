"""The page on which votes are signed runs its own script and style alone.

Run as a program, it writes their hashes into the page.
"""

import base64
import re
from hashlib import sha256

from paths import ROOT

PAGE = ROOT / "interfaces" / "sign.html"
_POLICY = re.compile(r"script-src '[^']*'; style-src '[^']*'")


def hashed() -> str:
    """The page, with the hashes of its script and its style."""
    text = PAGE.read_text()
    script, style = (
        base64.b64encode(sha256(found.encode()).digest()).decode()
        for tag in ("script", "style")
        for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    )
    return _POLICY.sub(f"script-src 'sha256-{script}'; style-src 'sha256-{style}'", text)


def test_the_page_names_its_script_and_its_style():
    assert PAGE.read_text() == hashed(), "`python tests/docs/test_sign_page.py` writes them anew"


if __name__ == "__main__":
    PAGE.write_text(hashed())
