"""The key of the links in messages: made once, in the store, and readable by its owner only.

Programs on other machines are given a copy of the file. When it is removed, a new key is made, and
all links that were sent before it end.
"""

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from ayes.ledger.nats.credentials import Store, read_private
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.files import write_new
from ayes.schemas.links import KEY_BYTES

FILE: Final = "links.key"


def link_key(store: Store, file: Path | None = None) -> bytes:
    """The key of a store, made if there is none yet; or the one in `file`, which must be there.

    Raises:
        BadInput: the file cannot be read, or is another user's, or others can read it.
        BadFile: it is not a key.
    """
    try:
        return _read(file or _made(store.path / FILE))
    except OSError as problem:
        raise BadInput(
            f"the key of links in {file or store.path / FILE} cannot be read: {problem.strerror}. "
            f"Name a copy of {FILE} of the console's store with --link-key."
        ) from None


def _made(file: Path) -> Path:
    if file.exists():
        return file
    with suppress(FileExistsError):  # of two programs that begin at once, both use the first key
        write_new(file, secrets.token_bytes(KEY_BYTES))
    return file


def _read(file: Path) -> bytes:
    key = read_private(file)
    if len(key) != KEY_BYTES:
        raise BadFile(
            str(file), "", f"not a key: it must have exactly {KEY_BYTES} bytes. Remove it."
        )
    return key
