"""How far a log is sealed, as `doctor`, `status` and the metrics say it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ayes.ledger import clock
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import Checkpoint, CosignerKey, SignerKey, WitnessPolicy
from ayes.ops.inspection.checks import ALARMS, DOCTOR, Look, examined, problems
from ayes.ops.inspection.metrics import Snapshot, values
from ayes.ops.sealing.files import SealFiles, make_key
from ayes.ops.sealing.status import SealStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, OTHER = CosignerKey("w1"), CosignerKey("w2")
BOTH = WitnessPolicy((ONE.public, OTHER.public), 2)


class Log:
    """A log of 300 facts, the last of which is this old; one was recorded each second."""

    def __init__(self, age: timedelta) -> None:
        self._age = age

    async def at(self, seq: int) -> RawMessage:
        at = NOW - self._age - timedelta(seconds=300 - seq)
        return RawMessage(seq, at, f"ledger.shop.t1.said.m{seq}", b"")


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture
def key(tmp_path: Path) -> SignerKey:
    return make_key(Store(tmp_path), "approvals.example.com/1f")


def sealed(store: Path, key: SignerKey, size: int, *witnesses: CosignerKey) -> None:
    """Publish a checkpoint as the sealer does."""
    files, checkpoint = SealFiles(Store(store)), Checkpoint(key.public.name, size, bytes(32))
    files.folder.mkdir(exist_ok=True)
    lines = "".join(one.line(checkpoint, NOW) for one in witnesses)
    files.publish(key.note(checkpoint) + lines, files.policy())


async def status_of(store: Path, age: timedelta) -> SealStatus | None:
    return await SealStatus.of(Store(store), Log(age), 300)  # type: ignore[arg-type]


def said(seal: SealStatus | None) -> tuple[list[str], str]:
    """The alarms, and what `doctor` says."""
    look = Look(seal=seal)
    [check] = examined(look, ["seal"])
    return problems(look, ["seal"]), check.detail


def test_doctor_and_status_look_at_it():
    assert "seal" in DOCTOR
    assert "seal" in ALARMS


async def test_a_log_without_a_key_is_not_sealed_and_nobody_is_alarmed(tmp_path):
    assert await status_of(tmp_path, timedelta(days=9)) is None
    assert await SealStatus.of(None, Log(timedelta()), 300) is None  # type: ignore[arg-type]
    assert said(None) == ([], "the log is not sealed (docs/seals.md)")


async def test_a_fact_that_nobody_seals_for_a_minute_is_an_alarm(tmp_path, key):
    """Not an idle log whose facts are sealed, and not a fact of this second behind an old one."""
    sealed(tmp_path, key, 300)
    assert said(await status_of(tmp_path, timedelta(days=9))) == ([], "300 facts are sealed")
    sealed(tmp_path, key, 299)
    assert said(await status_of(tmp_path, timedelta(seconds=59)))[0] == []
    [alarm], shown = said(await status_of(tmp_path, timedelta(seconds=61)))
    assert alarm == shown
    assert alarm == (
        "the facts after 299 are not sealed, although the next one is 61 s old: `ayes work sealer` "
        "seals them"
    )
    (tmp_path / "seal/checkpoint").unlink()
    assert "the facts after 0 are not" in said(await status_of(tmp_path, timedelta()))[1]


async def test_too_few_witnesses_for_ten_minutes_are_an_alarm(tmp_path, key):
    sealed(tmp_path, key, 0)
    SealFiles(Store(tmp_path)).set_policy(BOTH, key.public)
    sealed(tmp_path, key, 100, ONE, OTHER)
    sealed(tmp_path, key, 300, OTHER)
    alarms, shown = said(await status_of(tmp_path, timedelta(minutes=6)))
    assert (alarms, shown) == ([], "300 facts are sealed, and 1 of 2 witnesses have signed that")
    [alarm], _ = said(await status_of(tmp_path, timedelta(minutes=7)))
    assert alarm == (
        "fewer than 2 witnesses have signed the facts after 100, although the next one is 619 s "
        "old; silent: w1. The sealer logs why"
    )
    sealed(tmp_path, key, 300, OTHER, ONE)
    assert said(await status_of(tmp_path, timedelta(minutes=7)))[0] == []


async def test_a_seal_that_cannot_be_read_is_an_alarm(tmp_path, key):
    sealed(tmp_path, key, 300)
    (tmp_path / "seal/checkpoint").write_text("rotten\n\n")
    [alarm], _ = said(await status_of(tmp_path, timedelta()))
    assert alarm.startswith(f"the seal in {tmp_path / 'seal'} cannot be read: it is not a check")


async def test_the_metrics_tell_how_far_it_is_sealed(tmp_path, key):
    sealed(tmp_path, key, 0)
    SealFiles(Store(tmp_path)).set_policy(BOTH, key.public)
    sealed(tmp_path, key, 290, ONE)
    look = Look(seal=await status_of(tmp_path, timedelta(minutes=2)))
    found = {
        name: value for name, _, value in values(Snapshot(NOW, "", status=look)) if "seal" in name
    }
    assert found == {"ayes_log_sealed_facts": 290, "ayes_log_unsealed_seconds": 129.0}
    assert ("ayes_failing_targets", ("witness",), 1) in [*values(Snapshot(NOW, "", status=look))]


async def test_a_fact_that_nobody_copies_for_two_hours_is_an_alarm(tmp_path, key):
    """Where a copier has begun; one waits an hour at most."""
    assert "copies" in DOCTOR
    assert "copies" in ALARMS
    sealed(tmp_path, key, 300)
    files = SealFiles(Store(tmp_path))

    async def found(age: timedelta) -> tuple[list[str], str, list[object]]:
        look = Look(seal=await status_of(tmp_path, age))
        [check] = examined(look, ["copies"])
        metrics = [one for one in values(Snapshot(NOW, "", status=look)) if ("copy",) in one]
        return problems(look, ["copies"]), check.detail, metrics

    failing = "ayes_failing_targets"
    old, fresh = timedelta(days=9), timedelta(hours=1, minutes=59)
    assert await found(old) == (
        [], "the log is not copied (docs/copies.md)", [(failing, ("copy",), 0)],
    )  # fmt: skip
    files.set_copied(300)
    assert (await found(old))[:2] == ([], "300 facts are copied")
    files.set_copied(299)
    assert (await found(fresh))[0] == []
    [alarm], shown, metrics = await found(timedelta(hours=2, minutes=1))
    assert alarm == shown
    assert alarm.startswith("the facts after 299 are not copied, although the next one is 7,260 s")
    assert metrics == [(failing, ("copy",), 1)]
    assert examined(Look(), ["copies"])[0].detail == "the log is not copied (docs/copies.md)"
