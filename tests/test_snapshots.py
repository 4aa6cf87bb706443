"""Snapshots: with one only the tail is read; without one, or with one that does not hold, everything; the rows never differ."""

import asyncio
import hashlib
import logging
import re
import shutil
import stat

import msgspec
import pytest
import structlog
from conftest import running
from program import approvals
from stories import approval, question, request
from structlog.testing import capture_logs

from ledger.client import Ledger
from ops import snapshots
from ops.commands import replay as replaying
from projections.pending import OPEN
from schemas import events as e
from schemas.slots import CallRef

WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No test writes to anybody's real cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def said():
    """The warnings."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with capture_logs() as lines:
        yield lines
    structlog.configure(**before)


@pytest.fixture
async def admin(store):
    async with Ledger.connect(store, role="admin") as ledger:
        yield ledger


@pytest.fixture
def queue(store, capsys):
    """What the replayed queue is made of: its rows as text, and how many facts were read for it."""

    async def shown(*, until=None, at=store):
        capsys.readouterr()
        code = await replaying.projected(
            "pending", until=until, into=None, diff=False, swap=False, store=at, url=None, json=False
        )
        told = capsys.readouterr()
        assert code == 0
        return told.out, int(re.search(r"([\d,]+) facts read", told.err)[1].replace(",", ""))

    return shown


async def ask(admin, first, count, *, decide=False):
    """So many questions, three facts each if they are decided, else two."""
    for number in range(first, first + count):
        ref = CallRef("acme", f"q{number}", "c")
        assert await admin.fill(ref.requested, request(WISH)) is None
        assert await admin.fill(ref.gated, question(WISH, 3600.0)) is None
        if decide:
            assert await admin.fill(ref.decided, approval(WISH)) is None


def kept(cache):
    (file,) = (path for path in cache.rglob("*") if path.is_file())
    return file


async def test_only_the_tail_is_read(admin, queue, cache):
    """What came since, and nothing else; deleting the snapshot changes the time it takes and not the rows (I11)."""
    await ask(admin, 0, 10)
    await ask(admin, 10, 10, decide=True)
    rows, read = await queue()
    assert (len(rows.splitlines()), read) == (10, 50)
    assert await queue() == (rows, 0)
    await ask(admin, 20, 1)
    assert await admin.fill(CallRef("acme", "q3", "c").decided, approval(WISH)) is None
    more, read = await queue()
    assert (len(more.splitlines()), read) == (10, 3)
    assert "q3" not in more
    kept(cache).unlink()
    assert await queue() == (more, 53)
    assert await queue() == (more, 0)


async def test_the_past_needs_no_snapshot(admin, queue, cache):
    """A queue as it was then is neither made from one nor kept in one."""
    await ask(admin, 0, 5)
    assert (await queue(until="4"))[1] == 4
    assert not cache.exists()
    await queue()
    before = kept(cache).read_bytes()
    assert (await queue(until="6"))[1] == 6
    assert kept(cache).read_bytes() == before


async def test_it_is_its_owners_alone(admin, queue, cache):
    """It holds arguments, as the ledger does."""
    await ask(admin, 0, 1)
    await queue()
    file = kept(cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def _other(file, **changes):
    """The same snapshot, well formed and sealed, with something else in it."""
    found = msgspec.msgpack.decode(file.read_bytes()[32:], type=snapshots._Snapshot)
    body = msgspec.msgpack.encode(msgspec.structs.replace(found, **changes))
    file.write_bytes(hashlib.sha256(body).digest() + body)


def _another_shape(file):
    body = msgspec.msgpack.encode({"fold": "pending", "version": OPEN.version})
    file.write_bytes(hashlib.sha256(body).digest() + body)


def _flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _another_last(file):
    found = msgspec.msgpack.decode(file.read_bytes()[32:], type=snapshots._Snapshot)
    _other(file, last=msgspec.structs.replace(found.last, raw=found.last.raw.replace(b"money", b"honey")))


SPOILED = {
    "empty": lambda file: file.write_bytes(b""),
    "short": lambda file: file.write_bytes(file.read_bytes()[:20]),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a bit flipped": _flipped,
    "no msgpack": lambda file: file.write_bytes(hashlib.sha256(b"\xc1").digest() + b"\xc1"),
    "another shape": _another_shape,
    "another version": lambda file: _other(file, version=OPEN.version + 1),
    "another projection": lambda file: _other(file, fold="calls"),
    "another last fact": _another_last,
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
async def test_one_that_does_not_hold_is_passed_over(admin, queue, cache, spoil, said):
    """It is said, everything is read, and the rows are the same."""
    await ask(admin, 0, 3)
    whole = await queue()
    assert whole[1] == 6
    spoil(kept(cache))
    assert await queue() == whole
    assert "passed over" in said[0]["event"]
    assert said[0]["log_level"] == "warning"


async def test_a_newer_version_looks_at_its_own(admin, queue, cache, monkeypatch, said):
    """The same facts may give other rows than before, so the older snapshot is not even opened."""
    await ask(admin, 0, 3)
    whole = await queue()
    newer = msgspec.structs.replace(OPEN, version=OPEN.version + 1)
    monkeypatch.setitem(replaying.projection.__globals__["PROJECTIONS"], "pending", newer)
    monkeypatch.setattr(replaying, "OPEN", newer)
    assert await queue() == whole
    assert said == []
    assert await queue() == (whole[0], 0)


async def test_another_store_has_its_own(admin, queue, cache, tmp_path):
    """The same subjects on another broker are other facts."""
    await ask(admin, 0, 3)
    rows, _ = await queue()
    async with (
        running(tmp_path / "another") as server,
        Ledger.connect(server.store.path, role="admin") as other,
    ):
        await ask(other, 0, 2)
        await ask(other, 5, 2)
        theirs, read = await queue(at=server.store.path)
        assert (len(theirs.splitlines()), read) == (4, 8)
    assert await queue() == (rows, 0)
    assert len([path for path in cache.rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize("more", [0, 1, 2, 8], ids=lambda more: f"{more} others since")
async def test_a_store_restored_from_a_backup_is_another_log(queue, tmp_path, more, said):
    """It has the same name and birthday, and lacks facts that the snapshot covers, or has others in their place: the
    last fact tells.
    """
    here, saved = tmp_path / "mine", tmp_path / "backup"
    async with running(here), Ledger.connect(here, role="admin") as admin:
        await ask(admin, 0, 3)
    shutil.copytree(here, saved)
    async with running(here), Ledger.connect(here, role="admin") as admin:
        await ask(admin, 10, 2)
        rows, read = await queue(at=here)
        assert (len(rows.splitlines()), read) == (5, 10)
    shutil.rmtree(here)
    shutil.copytree(saved, here)
    async with running(here), Ledger.connect(here, role="admin") as admin:
        await ask(admin, 20, more)
        rows, read = await queue(at=here)
        assert (len(rows.splitlines()), read) == (3 + more, 6 + 2 * more)
        assert [one["event"] for one in said] == ["a snapshot of another log is passed over"]
        assert await queue(at=here) == (rows, 0)


async def test_a_last_fact_that_is_none_is_known_again(admin, queue):
    """Foreign bytes, on a subject that is no slot: they are the log's last message all the same (I12)."""
    await ask(admin, 0, 2)
    await admin.port.connection.client.request("ledger.what.ever.is.this", b"no JSON")
    rows, read = await queue()
    assert read == 5
    assert await queue() == (rows, 0)


async def test_nowhere_to_keep_it_is_no_reason_to_fail(admin, queue, tmp_path, monkeypatch, said):
    """A service may have no home that it can write to: then it reads everything each time, and says so."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    await ask(admin, 0, 2)
    first = await queue()
    assert await queue() == first
    assert first[1] == 4
    assert "no snapshot is kept" in {one["event"] for one in said}


async def test_it_is_kept_whole_or_not_at_all(admin, queue, cache, monkeypatch, said):
    """Where it cannot be put in its place, the older one stays and nothing lies beside it."""
    await ask(admin, 0, 2)
    await queue()
    before = kept(cache).read_bytes()
    await ask(admin, 2, 1)

    def full(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(snapshots.Path, "replace", full)
        await queue()
    assert [one["event"] for one in said] == ["no snapshot is kept"]
    assert kept(cache).read_bytes() == before


async def test_two_at_once(store, admin, queue, cache):
    """Processes that replay at the same time, while facts come, disturb nobody: the last one's snapshot holds."""
    await ask(admin, 0, 5)
    running_ = [
        asyncio.to_thread(approvals, "replay", "--projection", "pending", store=store) for _ in range(3)
    ]
    done, _ = await asyncio.gather(asyncio.gather(*running_), ask(admin, 5, 20))
    assert [one.code for one in done] == [0, 0, 0]
    rows, read = await queue()
    assert len(rows.splitlines()) == 25
    assert read < 50
    kept(cache).unlink()
    assert await queue() == (rows, 50)
