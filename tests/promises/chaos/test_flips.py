"""Samples of `make flips`: bytes that rot on disk loosen nothing and free no slot, and what happens
to an honest log alarms nobody.
"""

from pathlib import Path

import flips
import honest
import pytest
from long import sampled


@pytest.mark.timeout(240)
@pytest.mark.parametrize("every", sampled((900, 5400), 5400))
async def test_no_bit_that_rots_loosens_anything(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of each fact that lives long some bytes, and some of all others, with the broker's index kept
    and removed: what programs go by is what it was, or the damage is named (I1, I7; seals 10, 0a).
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(flips.witness, "CHECKPOINT", 4)
    counted = await flips.on_one_server(tmp_path, every=every, seed=7)
    assert counted.total() >= 10_800 // every
    assert counted[flips.NOWHERE] == 0


@pytest.mark.timeout(240)
@pytest.mark.long
async def test_a_node_that_rots_is_named_when_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A bit flipped on one node of three, which then leads: the same. It is mended by removing its
    copy, as docs/cluster.md says (market 5.2, seals 5.1).
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(flips.witness, "CHECKPOINT", 4)
    counted = await flips.on_three_nodes(tmp_path, times=1, seed=7)
    assert counted.total() == 1
    assert counted[flips.NOWHERE] == 0


@pytest.mark.timeout(240)
@pytest.mark.long
async def test_an_honest_log_alarms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stops, kills, rebuilt indexes, restores, moves, settings: no alarm (seals 10, 0b)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert await honest.histories(tmp_path, times=6, seed=3) == []
