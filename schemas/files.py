"""Files that may be missing, and files that are written whole or not at all: neither a reader nor a
crash leaves half of one.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: The end of the name of a temporary file, as `mkstemp` makes it.
_RANDOM: Final = "[a-z0-9_]" * 8


def is_there(file: Path) -> bool:
    """Whether there is such a file, as far as this user may look: whoever opens its directory says
    in a sentence that they may not.
    """
    return os.path.exists(file)  # noqa: PTH110 - `Path.exists` raises there


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a file with content that only its owner may read."""
    write_each_atomically({file: content})


def write_each_atomically(contents: Mapping[Path, bytes]) -> None:
    """Replace files likewise. A crash may leave some replaced and others not; once this returns,
    all are on disk.
    """
    for file, content in contents.items():
        with _written(file, content) as temporary:
            _sync(temporary)
            temporary.replace(file)
    for folder in {file.parent for file in contents}:
        _sync(folder)


def write_new(file: Path, content: bytes) -> None:
    """Make a file that only its owner may read, such as a key: a crash leaves no second copy of it.

    On a file system without unnamed files (NFS; all of macOS) it may, as `.NAME-` and eight
    characters.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be written.
    """
    if not _write_unnamed(file, content):
        with _written(file, content) as temporary:
            _sync(temporary)
            file.hardlink_to(temporary)  # unlike a rename, it replaces nothing
    _sync(file.parent)


def _write_unnamed(file: Path, content: bytes) -> bool:
    """Write into a file without a name, which is gone with its process, and then name it (open(2),
    `O_TMPFILE`). False if that cannot be done here.
    """
    try:
        handle = os.open(file.parent, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except (AttributeError, OSError):
        return False
    with os.fdopen(handle, "wb") as written:
        written.write(content)
        written.flush()
        os.fsync(handle)
        try:
            # With a directory, which does not matter here, Python follows the link in /proc.
            os.link(f"/proc/self/fd/{handle}", file, src_dir_fd=handle)
        except FileExistsError:
            raise
        except OSError:  # without /proc
            return False
    return True


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove what is left of files that were being written there as their writer was killed.

    Args:
        name: of the files, which nobody else writes at the moment.
    """
    for left in folder.glob(f".{name}-{_RANDOM}"):
        left.unlink(missing_ok=True)


@contextmanager
def _written(file: Path, content: bytes) -> Iterator[Path]:
    """The content in a temporary file of the same directory."""
    # mkstemp's files are 0600 from the first moment on.
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(content)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, file: Path) -> None:
    """Rename a finished file of the same directory, once its content is on disk."""
    _sync(temporary)
    temporary.replace(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    """Wait until a file or a directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
