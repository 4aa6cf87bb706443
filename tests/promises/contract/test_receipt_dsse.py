"""The statement in a receipt is one for programs of others: a DSSE envelope by securesystemslib, a
statement of in-toto by its own parser.

Part of `make conformance`: their packages are not in the locked environment.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from sealed_site import approved

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`: it installs packages"
)
PACKAGES = ("securesystemslib[crypto]>=1.6", "in-toto-attestation>=0.9")


async def test_programs_of_in_toto_take_the_statement_of_a_receipt(tmp_path: Path) -> None:
    """And nothing else for it, whichever byte is another one."""
    site, receipt = await approved(tmp_path), tmp_path / "receipt"
    key = str((await site.seal()).public)
    receipt.write_bytes((await site.receipt()).text())
    assert await asyncio.to_thread(checked, tmp_path / "environment", receipt, key) == "call/v1"


def checked(environment: Path, receipt: Path, key: str) -> str:
    """The end of the type of its predicate, as the others have read it."""
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    command = [python, ROOT / "tests" / "support" / "dsse.py", receipt, key]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout[-7:]
