"""The keys of threads: a directory beside the store, which no backup of the log has.

    epoch                 the epoch key, which wraps all others
    epoch.next            the next one, while a thread is being forgotten
    <digest>.key          a thread's key, wrapped; the name is a digest of the thread's. Empty: it
                          was destroyed here

Each file belongs to one user and is private to them. A thread is forgotten by wrapping all other
keys under a new epoch key, and destroying the old one: so what is left of a deleted file, on the
disk or in a copy without the epoch key, opens nothing.

    step                                    after a crash before the next one, the next `destroy`
    1  epoch.next is written                wraps the rest
    2  each other key is wrapped under it   as 1
    3  the forgotten keys are emptied       as 1
    4  epoch is overwritten                 puts epoch.next in its place
    5  epoch.next takes the place of epoch  has nothing to do

A crash leaves each key under one of two epoch keys that are there, until step 4, after which no key
needs the old one. Nothing is cached: a program that opens a value reads the two files each time.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from ayes.ledger.nats.credentials import open_own, read_private
from ayes.ledger.sealed_values import KEY_BYTES
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.files import move_into_place, write_atomically
from ayes.schemas.slots import ThreadRef

_NONCE: Final = 12


class _Epoch(Struct, frozen=True):
    """An epoch key in its file. Its name is a digest of it, so that half a file is none."""

    epoch: str
    key: bytes

    @property
    def is_sound(self) -> bool:
        return len(self.key) == KEY_BYTES and self.epoch == _epoch_name(self.key)

    def __repr__(self) -> str:
        return f"_Epoch({self.epoch})"


class _Wrapped(Struct, frozen=True):
    """A thread's key in its file."""

    thread: str
    #: The name of the epoch key that wraps it.
    epoch: str
    wrapped: bytes


class ThreadKeys:
    """The keys in a directory.

    Raises (each method):
        BadInput: the directory is missing, others may use it, or a file is another user's or a
            symbolic link.
        BadFile: a file is broken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._epoch, self._next = folder / "epoch", folder / "epoch.next"

    def key(self, thread: ThreadRef) -> bytes | None:
        """The key of a thread; None: it is not here, or it is destroyed."""
        self._check()
        before = None
        # Its file and those of epoch keys may be replaced between the readings of them, again and
        # again while others are forgotten: it is destroyed if the same is read twice.
        while (found := (self._read(self._file(thread)), self._epochs())) != before:
            wrapped, epochs = before = found
            if wrapped is None:
                return None
            if wrapped.epoch in epochs:
                return _unwrapped(wrapped, epochs[wrapped.epoch], self._file(thread))
        return None

    def made(self, thread: ThreadRef) -> bytes:
        """The key of a thread, which is made if it has none."""
        self._check()
        with self._locked():
            if self.knows(thread):
                if (key := self.key(thread)) is None:
                    raise BadInput(
                        f"the key of {thread} in {self.folder} cannot be opened: it is destroyed, "
                        "or the epoch key that wraps it is not there. Restore the directory as a "
                        "whole."
                    )
                return key
            key = os.urandom(KEY_BYTES)
            self._wrap(str(thread), key, [*self._needed().values()][-1])
            return key

    def knows(self, thread: ThreadRef) -> bool:
        """Whether the key of this thread is here, or was destroyed here."""
        self._check()
        return self._file(thread).exists()

    def holds(self, thread: ThreadRef) -> bool:
        """Whether the key of this thread is here."""
        return self.knows(thread) and self._file(thread).stat().st_size > 0

    def destroy(self, threads: Collection[ThreadRef]) -> None:
        """Destroy the keys of these threads. It can be repeated after a crash at any step."""
        self._check()
        with self._locked():
            gone = {self._file(thread) for thread in threads if self.holds(thread)}
            if self._next.exists():
                # A key that is to be destroyed may be under the next epoch key already: that one
                # is finished first, and goes too.
                self._rotate(set())
            if gone:
                self._rotate(gone)

    def _rotate(self, gone: set[Path]) -> None:
        epochs = self._needed()
        if not self._next.exists():
            epochs |= self._begun(self._next)
        last = [*epochs.values()][-1]
        for file in sorted(self.folder.glob("*.key")):
            wrapped = self._read(file)
            if file in gone or wrapped is None or wrapped.epoch == last.epoch:
                continue
            if wrapped.epoch in epochs:  # else nothing opens it any more
                key = _unwrapped(wrapped, epochs[wrapped.epoch], file)
                self._wrap(wrapped.thread, key, last)
        for file in sorted(gone):
            write_atomically(file, b"")
        for stray in self.folder.glob(".*-*"):  # of a crash while one was written
            stray.unlink()
        _overwrite(self._epoch)
        move_into_place(self._next, self._epoch)

    def _needed(self) -> dict[str, _Epoch]:
        """The epoch keys that are there; the first one is made if there is no key yet.

        Raises:
            BadFile: there are keys, and no epoch key that could wrap them.
        """
        if found := self._epochs():
            return found
        if any(self.folder.glob("*.key")) or self._epoch.exists():
            raise BadFile(str(self._epoch), "", "it holds no epoch key. Restore it.")
        return self._begun(self._epoch)

    def _begun(self, file: Path) -> dict[str, _Epoch]:
        key = os.urandom(KEY_BYTES)
        made = _Epoch(_epoch_name(key), key)
        write_atomically(file, msgspec.json.encode(made))
        return {made.epoch: made}

    def _epochs(self) -> dict[str, _Epoch]:
        """The epoch keys that are there, the next one last. One that was overwritten is none.

        Raises:
            BadFile: one is broken: what it wraps must not be taken for destroyed.
        """
        found: dict[str, _Epoch] = {}
        for file in (self._epoch, self._next):
            with suppress(FileNotFoundError):
                if raw := read_private(file).strip(b"\0"):
                    one = _epoch_of(raw, file)
                    found[one.epoch] = one
        return found

    def _read(self, file: Path) -> _Wrapped | None:
        try:
            raw = read_private(file)
            return msgspec.json.decode(raw, type=_Wrapped) if raw else None
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadFile(str(file), "", "not the key of a thread. Restore it.") from None

    def _wrap(self, thread: str, key: bytes, epoch: _Epoch) -> None:
        nonce = os.urandom(_NONCE)
        wrapped = nonce + AESGCM(epoch.key).encrypt(nonce, key, thread.encode())
        file = self.folder / _file_name(thread)
        write_atomically(file, msgspec.json.encode(_Wrapped(thread, epoch.epoch, wrapped)))

    def _file(self, thread: ThreadRef) -> Path:
        return self.folder / _file_name(str(thread))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = open_own(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _check(self) -> None:
        how = f"Create it: mkdir -m 700 {self.folder}"
        try:
            there = self.folder.lstat()
        except OSError as problem:
            raise BadInput(
                f"{self.folder}, the directory of keys, cannot be used: {problem.strerror}. {how}"
            ) from None
        if not stat.S_ISDIR(there.st_mode):
            raise BadInput(f"{self.folder} is not a directory, or is a symbolic link to one. {how}")
        if there.st_uid != os.getuid():
            raise BadInput(f"{self.folder} has keys and is another user's. Run this as its owner.")
        if stat.S_IMODE(there.st_mode) & 0o077:
            raise BadInput(
                f"{self.folder} has keys and can be used by other users: chmod 700 {self.folder}"
            )


def _file_name(thread: str) -> str:
    """Of a fixed length and alphabet, whatever a thread is called."""
    return f"{hashlib.sha256(thread.encode()).hexdigest()[:32]}.key"


def _epoch_name(key: bytes) -> str:
    return hashlib.sha256(b"ayes epoch 1" + key).hexdigest()[:16]


def _epoch_of(raw: bytes, file: Path) -> _Epoch:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        one = msgspec.json.decode(raw, type=_Epoch)
        if one.is_sound:
            return one
    raise BadFile(str(file), "", "it holds no epoch key. Restore it.")


def _unwrapped(wrapped: _Wrapped, epoch: _Epoch, file: Path) -> bytes:
    """The key in a file of that name.

    Raises:
        BadFile: it is broken, or another thread's.
    """
    sealed, is_its = wrapped.wrapped, _file_name(wrapped.thread) == file.name
    try:
        if is_its:
            return AESGCM(epoch.key).decrypt(
                sealed[:_NONCE], sealed[_NONCE:], wrapped.thread.encode()
            )
    except (InvalidTag, ValueError):
        pass
    raise BadFile(str(file), "", "not the key of its thread. Restore it.")


def _overwrite(file: Path) -> None:
    """Replace the bytes of a key where they are. A disk that writes elsewhere may keep them."""
    with os.fdopen(open_own(file, os.O_WRONLY | os.O_CREAT), "wb") as content:
        content.write(bytes(os.fstat(content.fileno()).st_size))
        content.flush()
        os.fsync(content.fileno())
