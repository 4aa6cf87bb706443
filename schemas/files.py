"""Files that may be missing, and files that are written whole or not at all: neither a reader nor a
crash leaves half of one.
"""

import os
import tempfile
from collections.abc import Iterator
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
    with _written(file, content) as temporary:
        move_into_place(temporary, file)


def write_new(file: Path, content: bytes) -> None:
    """Make a file that only its owner may read.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be written.
    """
    with _written(file, content) as temporary:
        _sync(temporary)
        file.hardlink_to(temporary)  # unlike a rename, it replaces nothing
        _sync(file.parent)


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
