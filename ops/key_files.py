"""Private keys in files of their own, which only their owner can read.

ana.key                the key with which Ana signs votes, in her store, or where AYES_KEY says
"""

import os
from pathlib import Path
from typing import Final

from ayes.ledger.nats.credentials import Store, read_private
from ayes.ledger.seal import PrivateKey, SignerKey
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.files import is_there, write_new

#: The variable that names the file of one's own key.
VARIABLE: Final = "AYES_KEY"


def write_key(file: Path, key: PrivateKey) -> None:
    """Write a key into a new file; errors as of `write_new`."""
    write_new(file, f"{key}\n".encode())


def new_file(file: Path, key: SignerKey) -> None:
    """As `write_key`, into a file that somebody has named.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        write_key(file, key)
    except OSError as problem:
        raise BadInput(f"the key {file} cannot be written: {problem.strerror}.") from None


def named_key[K: PrivateKey](file: Path, kind: type[K], hint: str = "") -> K:
    """The key in a file.

    Args:
        hint: how a missing one is made, as a sentence.

    Raises:
        BadFile: it holds no key of this kind.
        BadInput: it cannot be read, others can read it too, or it is another user's.
    """
    try:
        text = read_private(file).decode(errors="replace")
    except OSError as problem:
        why = f"the key {file} cannot be read: {problem.strerror}. {hint}"
        raise BadInput(why.strip()) from None
    try:
        return kind.parse(text)
    except BadInput as problem:
        raise BadFile(str(file), "", str(problem)) from None


def own_key_file(store: Path | None, person: str) -> Path:
    """The file of the key with which this person signs."""
    return Path(os.environ.get(VARIABLE) or Store(store).path / f"{person}.key")


def own_key(store: Path | None, person: str) -> SignerKey | None:
    """The key with which this person signs; None: there is no such file.

    Raises:
        BadInput: it cannot be read.
    """
    file = own_key_file(store, person)
    return named_key(file, SignerKey) if is_there(file) else None
