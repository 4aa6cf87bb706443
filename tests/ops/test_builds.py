"""Which nats-server is started: a known build, the pinned one, or one that is told of."""

import json
import shutil
from pathlib import Path

import pytest
from brokers import running

from ayes.interfaces.cli import check
from ayes.interfaces.cli.command import Session
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.builds import KNOWN, PINNED, Build
from ayes.ops.broker.server import EmbeddedServer, find_binary
from ayes.schemas.errors import BadInput


@pytest.fixture
def other(tmp_path) -> Path:
    """A nats-server that does all that the real one does, and has one more byte."""
    copied = tmp_path / "nats-server"
    shutil.copy(find_binary(), copied)
    with copied.open("ab") as content:
        content.write(b"\0")
    return copied


@pytest.fixture
def doctor(tmp_path, capsys):
    """What the doctor says of the build."""

    async def said():
        await check.doctor(session=Session(tmp_path / "store", json=True))
        found = map(json.loads, capsys.readouterr().out.splitlines())
        return {one["check"]: one for one in found}["build"]

    return said


def test_the_nats_server_of_the_locked_package_is_known(monkeypatch):
    """Each version that the lock files name is on the list (SECURITY.md)."""
    monkeypatch.delenv("NATS_SERVER_BIN", raising=False)
    monkeypatch.delenv(PINNED, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    found = Build.of(find_binary())
    assert found.is_known
    assert str(found) == f"{found.binary} is {KNOWN[found.sha256]}"
    locked = Path(__file__).parents[2] / "requirements.lock"
    package = KNOWN[found.sha256].split(" of ")[1].split(",")[0].replace(" ", "==")
    assert f"\n{package} " in locked.read_text()


async def test_a_build_that_is_not_known_is_told(tmp_path, other, monkeypatch, doctor):
    """It runs, since many builds are honest, and `doctor` names its digest and what to do."""
    monkeypatch.setenv("NATS_SERVER_BIN", str(other))
    async with running(tmp_path / "store"):
        said = await doctor()
    digest = Build.of(other).sha256
    assert not said["ok"]
    assert f"{other} is no known build of nats-server: its SHA-256 is {digest}." in said["detail"]


async def test_one_that_was_replaced_while_it_ran_is_told(tmp_path, other, monkeypatch, doctor):
    """`doctor` looks at the file now, so what the next start would run is seen before it."""
    monkeypatch.setenv("NATS_SERVER_BIN", str(other))
    monkeypatch.setenv(PINNED, Build.of(other).sha256)
    async with running(tmp_path / "store"):
        before = await doctor()
        other.unlink()
        other.write_bytes(b"another")
        after = await doctor()
        other.unlink()
        gone = await doctor()
    assert before["ok"], before
    assert before["detail"] == f"{other} is the one that {PINNED} names"
    assert not after["ok"]
    assert "no known build" in after["detail"]
    assert not gone["ok"]
    assert gone["detail"].startswith(f"the nats-server {other} cannot be read: No such file")


async def test_none_but_the_pinned_one_is_started(tmp_path, other, monkeypatch):
    """A byte more is another program; nothing of the store is touched."""
    monkeypatch.setenv(PINNED, Build.of(find_binary()).sha256.upper())
    monkeypatch.setenv("NATS_SERVER_BIN", str(other))
    with pytest.raises(BadInput, match=rf"{PINNED} names [0-9a-f]{{64}}\. Install that"):
        async with EmbeddedServer(tmp_path / "store"):
            pass
    assert not (tmp_path / "store").exists()
    monkeypatch.delenv("NATS_SERVER_BIN")
    async with EmbeddedServer(tmp_path / "store"):
        assert Store(tmp_path / "store").read().binary == str(find_binary())


@pytest.mark.parametrize("named", ["443a", "g" * 64, "443a" * 16 + "\n0"])
async def test_what_is_pinned_is_a_digest(tmp_path, monkeypatch, named: str):
    monkeypatch.setenv(PINNED, named)
    with pytest.raises(BadInput, match=r"is no SHA-256 of 64 hexadecimal digits"):
        async with EmbeddedServer(tmp_path):
            pass
