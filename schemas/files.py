"""Files that may be missing, and files that are written whole or not at all: neither a reader nor a
crash leaves half of one.
"""

import os
import tempfile
from pathlib import Path


def is_there(file: Path) -> bool:
    """Whether there is such a file, as far as this user may look: whoever opens its directory says
    in a sentence that they may not.
    """
    return os.path.exists(file)  # noqa: PTH110 - `Path.exists` raises there


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a file with content that only its owner may read."""
    # mkstemp's files are 0600 from the first moment on.
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(content)
        move_into_place(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move_into_place(temporary: Path, file: Path) -> None:
    """Rename a finished file of the same directory, once its content is on disk."""
    with temporary.open("rb") as content:
        os.fsync(content.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
