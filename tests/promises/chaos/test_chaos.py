"""A short chaos: one server and a few programs, with a fault every two seconds.

`make chaos` runs all of it for twenty minutes (docs/faults.md).
"""

from argparse import Namespace
from pathlib import Path

import chaos
import pytest


@pytest.mark.timeout(600)
async def test_a_short_chaos_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Broker, `up`, workers, services and reviewers are killed and paused: what was acknowledged is
    there, nothing runs twice or unapproved, every call comes to its end, and no worker ends by
    itself (B43, B49, B53, B60, I1 to I8, I13).
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    args = Namespace(servers=1, seed="1", minutes=0.1, short=True, packed=False)
    found = await chaos.run(tmp_path, args)
    assert found.problems == []
    assert found.runs > 0
