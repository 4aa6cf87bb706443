"""The TypeScript client checks receipts. Part of `make conformance`, since it needs Node 24."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import npm
import pytest
from paths import ROOT
from sealed_site import approved
from signed_site import DESK

CHECK = ROOT / "clients" / "typescript" / "test" / "receipt.check.ts"

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)


async def test_the_client_takes_no_other_byte(tmp_path: Path):
    """It proves the votes by the public keys, and refuses each receipt with another byte (E2)."""
    site, file = await approved(tmp_path), tmp_path / "c1.receipt"
    file.write_bytes((await site.receipt()).text())
    keys = [str((await site.seal()).public), str(DESK.public)]
    done = await asyncio.to_thread(
        subprocess.run, [npm.node(), CHECK, file, *keys], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"votes": [True] * 3, "votesNeeded": 3, "taken": []}
