"""A file of events of OCSF, a line each, to which one program appends.

The file alone says where to go on: after its last whole line. A line that was half written is cut
off. A file that is renamed or deleted meanwhile, as by `logrotate`, is begun anew.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from ayes.ledger.nats.credentials import open_own
from ayes.projections.ocsf import begins
from ayes.schemas.errors import BadFile, BadInput

#: No line is longer.
_MAX_LINE: Final = 1 << 20


class OcsfFile:
    """A file for the events of one log.

    Args:
        log: its identity.

    Raises:
        BadInput: it is not an ordinary file of this user, another program appends to it, or it has
            something else.
    """

    def __init__(self, path: Path, log: str) -> None:
        self._path, self._begins, self._file = path, begins(log).encode(), -1
        self._open()

    def _open(self) -> None:
        try:
            self._file = open_own(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)
        except OSError as problem:
            raise BadInput(f"{self._path} cannot be written: {problem.strerror}.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            #: The number of the last fact that it has; 0: it has none.
            self.last = self._resume()
        except BlockingIOError:
            self.close()
            raise BadInput(f"another program appends to {self._path}. Name another file.") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _resume(self) -> int:
        """Cut off a line that was half written; the number of the last fact."""
        kind, size = os.fstat(self._file).st_mode, os.fstat(self._file).st_size
        if not stat.S_ISREG(kind):
            raise BadInput(
                f"{self._path} is not an ordinary file, so nobody could go on after its last line. "
                "Name a file."
            )
        end = os.pread(self._file, _MAX_LINE, max(0, size - _MAX_LINE))
        whole, newline, rest = end.rpartition(b"\n")
        last = whole.rpartition(b"\n")[2]
        is_ours = last.startswith(self._begins) if newline else size <= _MAX_LINE
        if not (is_ours and (rest.startswith(self._begins) or self._begins.startswith(rest))):
            raise BadFile(
                str(self._path), "", "it does not have the events of this log. Name another file."
            )
        found = 0
        if newline:
            try:
                found = int(msgspec.json.decode(last)["metadata"]["sequence"])
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
                raise BadFile(
                    str(self._path), "", "its last line is not an event. Name another file."
                ) from None
        os.ftruncate(self._file, size - len(rest))
        return found

    def append(self, event: dict[str, Any]) -> None:
        """Append the event of a fact.

        Raises:
            BadInput: the file cannot be written, or another one is in its place.
        """
        left = msgspec.json.encode(event) + b"\n"
        try:
            if not self._is_in_place():
                self.close()
                self._open()
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as problem:
            raise BadInput(f"{self._path} cannot be written: {problem.strerror}.") from None
        self.last = event["metadata"]["sequence"]

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file))
        except FileNotFoundError:
            return False
