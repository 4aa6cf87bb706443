"""`ayes work` while the broker comes and goes."""

from pathlib import Path

import pytest
from program import started, up

TOOLS = """
from pathlib import Path

from ayes import Tools
from ayes.schemas.errors import BrokerAway


class AwayOnce(Tools):
    async def declare(self, ledger, workspace, **more):
        seen = Path(__file__).with_name("seen")
        if not seen.exists():
            seen.touch()
            raise BrokerAway("the leader is gone again.")
        return await super().declare(ledger, workspace, **more)


tools = AwayOnce()
"""


def test_a_worker_starts_over_if_the_broker_goes_away_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The leader may be lost again between two steps of the start; the worker does not end (D9)."""
    (tmp_path / "away_once.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    log, store = tmp_path / "log", tmp_path / "store"
    work = ("work", "executor", "--tools", "away_once:tools", "--json", "--store", store)
    # Its broker asks `up` about logins, which this process does not answer while it waits.
    with up(store, "--workers", "none"), started(*work, log=log) as process:
        assert process.stdout.readline() == '{"workers":["executor"]}\n', log.read_text()
    assert (tmp_path / "seen").exists()
