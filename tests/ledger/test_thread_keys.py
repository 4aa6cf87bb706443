"""The directory of the keys of threads: who may use it, and what a crash leaves of forgetting."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ayes.ledger import thread_keys
from ayes.ledger.thread_keys import ThreadKeys
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.slots import ThreadRef

GONE, LEFT, MORE = (ThreadRef("shop", name) for name in ("gone", "left", "more"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def keys(folder: Path) -> ThreadKeys:
    return ThreadKeys(folder)


def test_a_thread_has_one_key_whoever_asks(keys: ThreadKeys, folder: Path):
    """Two services that begin at the same moment are given the same one."""
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: ThreadKeys(folder).made(GONE), range(32)))
    assert made == {keys.key(GONE)}
    assert keys.key(LEFT) is None
    assert keys.made(LEFT) not in made


def test_its_files_are_private_and_their_names_say_nothing(keys: ThreadKeys, folder: Path):
    keys.made(ThreadRef("shop", "-" * 64))
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert {len(file.stem) for file in folder.glob("*.key")} == {32}
    assert keys.made(GONE) not in b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: folder.chmod(0o750), "chmod 700"),
        (lambda folder: folder.rename(folder.with_name("else")), "mkdir -m 700"),
        (
            lambda folder: (
                folder.rename(folder.with_name("else")),
                folder.symlink_to(folder.with_name("else")),
            ),
            "symbolic link",
        ),
        (lambda folder: (folder / "epoch").chmod(0o640), "chmod 600"),
        (
            lambda folder: (
                (folder / "epoch").rename(folder / "x"),
                (folder / "epoch").symlink_to(folder / "x"),
            ),
            "symbolic link",
        ),
    ],
)
def test_a_directory_that_others_may_use_is_refused(
    keys: ThreadKeys, folder: Path, spoil: Callable[[Path], object], says: str
):
    keys.made(GONE)
    spoil(folder)
    for use in (keys.key, keys.made, lambda ref: keys.destroy([ref])):
        with pytest.raises(BadInput, match=says):
            use(GONE)


def test_a_broken_or_exchanged_file_is_named_and_opens_nothing(keys: ThreadKeys, folder: Path):
    keys.made(GONE)
    keys.made(LEFT)
    gone, left = keys._file(GONE), keys._file(LEFT)
    whole = left.read_bytes()
    gone.write_bytes(whole)
    with pytest.raises(BadFile, match="not the key of its thread"):
        keys.key(GONE)
    left.write_bytes(whole[:-20])
    with pytest.raises(BadFile, match="not the key of a thread"):
        keys.key(LEFT)


def test_a_lost_epoch_key_is_not_made_anew(keys: ThreadKeys, folder: Path):
    """All keys would seem to be lost for ever, while a backup has them."""
    keys.made(GONE)
    (folder / "epoch").unlink()
    assert keys.key(GONE) is None
    for ref in (GONE, LEFT):
        with pytest.raises((BadInput, BadFile), match="Restore"):
            keys.made(ref)


@pytest.mark.parametrize("broken", ["epoch", "epoch.next", "missing"])
def test_a_broken_epoch_key_is_never_replaced(keys: ThreadKeys, folder: Path, broken: str):
    """What it wraps would be lost for ever, of all threads, while a backup could have it."""
    keys.made(GONE)
    key = keys.made(LEFT)
    whole = (folder / "epoch").read_bytes()
    if broken == "missing":
        (folder / "epoch").unlink()
    else:
        (folder / broken).touch(mode=0o600)
        (folder / broken).write_bytes(whole[:-9])
    before = copied(folder)
    with pytest.raises(BadFile, match="it holds no epoch key"):
        keys.destroy([GONE])
    assert copied(folder) == before
    (folder / "epoch").touch(mode=0o600)
    (folder / "epoch").write_bytes(whole)
    (folder / "epoch.next").unlink(missing_ok=True)
    keys.destroy([GONE])
    assert (keys.key(GONE), keys.key(LEFT)) == (None, key)


def test_a_destroyed_key_is_known_and_not_made_anew(keys: ThreadKeys, folder: Path):
    keys.made(GONE)
    assert (keys.knows(GONE), keys.knows(LEFT)) == (True, False)
    keys.destroy([GONE])
    assert (keys.knows(GONE), keys.holds(GONE), keys.key(GONE)) == (True, False, None)
    with pytest.raises(BadInput, match="it is destroyed"):
        keys.made(GONE)
    assert keys._file(GONE).read_bytes() == b""


def test_stray_files_are_no_obstacle(keys: ThreadKeys, folder: Path):
    key = keys.made(LEFT)
    keys.made(GONE)
    for name in ("old.epoch", "epoch.next~", ".epoch-abc", "x.key.bak"):
        (folder / name).write_text("?")
    keys.destroy([GONE])
    assert (keys.key(GONE), keys.key(LEFT)) == (None, key)
    assert not (folder / ".epoch-abc").exists()  # it may be a key that was being written


def copied(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def opens(found: dict[str, bytes], key: bytes) -> bool:
    """Whether the key is in these files for somebody who tries every one of them on each other."""
    if any(key in data for data in found.values()):
        return True
    read = [msgspec.json.decode(one) for one in found.values() if one.startswith(b"{")]
    for epoch in (one for one in read if "key" in one):
        for wrapped in (one for one in read if "wrapped" in one):
            sealed = msgspec.convert(wrapped["wrapped"], bytes, strict=False)
            try:
                plain = AESGCM(msgspec.convert(epoch["key"], bytes, strict=False)).decrypt(
                    sealed[:12], sealed[12:], wrapped["thread"].encode()
                )
            except InvalidTag:
                continue
            if plain == key:
                return True
    return False


def test_a_destroyed_key_is_in_none_of_all_files_that_there_were(keys: ThreadKeys, folder: Path):
    """But the epoch key that was destroyed (criterion F1). Deleted files stay on disks."""
    gone, left = keys.made(GONE), keys.made(LEFT)
    before = copied(folder)
    assert opens(before, gone)
    keys.destroy([GONE])
    after = copied(folder)
    ever = {f"before {name}": data for name, data in before.items() if name != "epoch"}
    assert not opens({**ever, **after}, gone)
    assert opens(after, left)
    keys.destroy([GONE])  # it has nothing to do
    assert copied(folder) == after


def test_the_old_epoch_key_is_overwritten_where_it_was(keys: ThreadKeys, folder: Path):
    keys.made(GONE)
    with (folder / "epoch").open("rb") as same:
        before = same.read()
        keys.destroy([GONE])
        same.seek(0)
        assert same.read() == bytes(len(before))


class Crash(BaseException):
    """The process dies."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Die before the n-th thing that `destroy` does to a file."""
    left = [at]

    def dying[**P, R](does: Callable[P, R]) -> Callable[P, R]:
        def done(*args: P.args, **named: P.kwargs) -> R:
            left[0] -= 1
            if left[0] == 0:
                raise Crash
            return does(*args, **named)

        return done

    for name in ("write_atomically", "move_into_place"):
        monkeypatch.setattr(thread_keys, name, dying(getattr(thread_keys, name)))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
    monkeypatch.setattr(os, "fsync", dying(os.fsync))


@pytest.mark.parametrize("at", range(1, 21))
@pytest.mark.parametrize("then", [[GONE], [GONE, MORE]], ids=["the same", "another too"])
def test_a_crash_at_any_step_is_gone_on_with(
    keys: ThreadKeys, folder: Path, at: int, then: list[ThreadRef]
):
    """Whatever is left, the living keys open; after the next run the forgotten ones are nowhere
    (criterion F4). Also if another thread is forgotten then, whose key was wrapped anew already.
    """
    made = {ref: keys.made(ref) for ref in (GONE, LEFT, MORE)}
    before = copied(folder)
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, at)
        try:
            keys.destroy([GONE])
            crashed = False
        except Crash:
            crashed = True
    left = copied(folder)
    assert keys.key(LEFT) == made[LEFT]
    assert keys.key(MORE) == made[MORE]
    assert keys.key(GONE) in (made[GONE], None)
    fresh = ThreadRef("shop", f"fresh-{at}")
    made[fresh] = keys.made(fresh)  # a service goes on meanwhile
    keys.destroy(then)
    assert not (folder / "epoch.next").exists()
    after = copied(folder)
    epochs = {name for name in (*before, *left) if name.startswith(("epoch", ".epoch"))}
    ever = {
        f"{when} {name}": data
        for when, files in (("before", before), ("left", left))
        for name, data in files.items()
        if name not in epochs
    }
    for ref, key in made.items():
        assert keys.key(ref) == (None if ref in then else key)
        assert opens({**ever, **after}, key) == (ref not in then), ref
    assert crashed or at > 8


#: Forgets `shop/gone`, and is killed before the n-th thing that it does to the disk.
CHILD = """
import os, pathlib, signal, sys
from ayes.ledger.thread_keys import ThreadKeys
from ayes.schemas.slots import ThreadRef

left = [int(sys.argv[2])]

def dying(does):
    def done(*args, **named):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return does(*args, **named)
    return done

os.fsync, os.replace, os.unlink = map(dying, (os.fsync, os.replace, os.unlink))
pathlib.Path.unlink, pathlib.Path.replace = map(dying, (pathlib.Path.unlink, pathlib.Path.replace))
ThreadKeys(pathlib.Path(sys.argv[1])).destroy([ThreadRef("shop", "gone")])
"""


@pytest.mark.long
def test_a_process_that_is_killed_at_any_step_leaves_what_the_next_one_finishes(tmp_path: Path):
    """As above, with what a killed process leaves: files that were being written, too (F4)."""
    at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1
        folder = tmp_path / f"{at}"
        folder.mkdir(mode=0o700)
        keys = ThreadKeys(folder)
        made = {ref: keys.made(ref) for ref in (GONE, LEFT)}
        before = {name: data for name, data in copied(folder).items() if name != "epoch"}
        code = subprocess.run(
            [sys.executable, "-c", CHILD, folder, f"{at}"], check=False
        ).returncode
        assert keys.key(LEFT) == made[LEFT], at
        keys.destroy([GONE])
        after = copied(folder)
        assert {"epoch", "lock"} < {*after}
        assert len(after) == 4, after
        assert keys.key(GONE) is None
        assert keys.key(LEFT) == made[LEFT], at
        assert not opens(
            {**{f"before {one}": data for one, data in before.items()}, **after}, made[GONE]
        )
    assert code == 0
    assert at > 8


def test_a_thread_is_read_while_others_are_forgotten_again_and_again(
    keys: ThreadKeys, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each time between the reading of its file and that of the epoch keys."""
    made, reader = keys.made(LEFT), ThreadKeys(folder)
    others = [ThreadRef("shop", f"t{number}") for number in range(5)]
    for one in others:
        keys.made(one)
    epochs = reader._epochs

    def meanwhile() -> Any:
        if others:
            keys.destroy([others.pop()])
        return epochs()

    monkeypatch.setattr(reader, "_epochs", meanwhile)
    assert reader.key(LEFT) == made
    assert not others


def test_a_program_reads_while_a_thread_is_forgotten(keys: ThreadKeys, folder: Path):
    """A living key opens at each moment: its file may be replaced between two readings."""
    made = {ref: keys.made(ref) for ref in (LEFT, MORE)}
    for number in range(20):
        keys.made(ThreadRef("shop", f"t{number}"))
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(lambda: [ThreadKeys(folder).key(LEFT) for _ in range(400)])
        for number in range(20):
            keys.destroy([ThreadRef("shop", f"t{number}")])
        assert set(read.result()) == {made[LEFT]}
    assert keys.key(MORE) == made[MORE]


def test_a_backup_of_keys_that_is_restored_is_destroyed_again(keys: ThreadKeys, folder: Path):
    gone, left = keys.made(GONE), keys.made(LEFT)
    backup = copied(folder)
    keys.destroy([GONE])
    for file in folder.iterdir():
        file.unlink()
    for name, data in backup.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(data)
    assert (keys.holds(GONE), keys.key(GONE)) == (True, gone)
    keys.destroy([GONE])
    assert (keys.holds(GONE), keys.key(GONE), keys.key(LEFT)) == (False, None, left)
    assert not opens(copied(folder), gone)
