"""A private file that several processes read and change.

It is replaced whole, under a lock, and read anew when it has changed, so each process sees at once
what another one wrote.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from ayes.ledger.nats.credentials import open_own
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.files import write_atomically


class PrivateFile[T: Struct]:
    """A private file of one value; reading it again costs nothing as long as it has not changed.

    Args:
        empty: its value while there is no such file.
        what: it holds, for the error about a broken one.
        hint: what to do about a broken one.
        lock: held while it is changed; by default the file beside it that ends in `.lock`.

    Raises (each method):
        BadFile: the file is broken.
        BadInput: it is another user's, or a symbolic link, or its directory is missing.
    """

    def __init__(
        self, path: Path, empty: T, what: str, *, hint: str = "", lock: Path | None = None
    ) -> None:
        self.path, self.lock = path, lock or path.with_suffix(".lock")
        self._empty, self._what, self._hint = empty, what, hint
        self._read: tuple[tuple[int, int, int], T] = ((0, 0, 0), empty)

    def read(self) -> T:
        try:
            there = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return self._empty
        except PermissionError:
            raise BadInput(
                f"{self.path} is in a directory that this user may not use. Run this as its owner, "
                "or name another file or store."
            ) from None
        version = there.st_ino, there.st_mtime_ns, there.st_size
        if version != self._read[0]:
            with os.fdopen(open_own(self.path, os.O_RDONLY), "rb") as content:
                self._read = version, self.decoded(content.read())
        return self._read[1]

    def change(self, change: Callable[[T], T]) -> T:
        """Replace the content by what `change` makes of it, and return that."""
        try:
            lock = open_own(self.lock, os.O_RDWR | os.O_CREAT)
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput(f"{self.path.parent} is not a directory. Create it first.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.read()
            after = change(before)
            if after != before:
                content = msgspec.json.format(msgspec.json.encode(after))
                write_atomically(self.path, content)
            return after
        finally:
            os.close(lock)

    def decoded(self, content: bytes) -> T:
        """The value of such a file."""
        try:
            return msgspec.json.decode(content, type=type(self._empty))
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            why = f"not a file of {self._what}: {problem}.{self._hint}"
            raise BadFile(str(self.path), "", why) from None
