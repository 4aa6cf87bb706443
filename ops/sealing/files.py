"""The seal of a log in files of a store: its key, and beside the lake its tiles and checkpoint.

    seal.key               the key that signs, readable by its owner only
    seal/checkpoint        what was sealed last (c2sp.org/tlog-checkpoint)
    seal/witnessed         what enough witnesses signed last, if that is another checkpoint
    seal/policy            who they are, as of the sealer's last start (c2sp.org/tlog-policy)
    seal/tile/0/000 …      the tiles (c2sp.org/tlog-tiles)
    seal/copied            how many facts the copier has found or put in its bucket, for `doctor`

A file is whole or absent, and a tile never changes. So a process may be killed at any moment, and
a tile that would be another one shows that the log has changed. What a killed sealer has left is
removed by the next one, which is alone; each directory of tiles as it writes there.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from ayes.ledger.nats.credentials import Store, open_own
from ayes.ledger.seal import (
    HASH,
    WIDTH,
    Checkpoint,
    ReadTile,
    SignerKey,
    Tile,
    VerifierKey,
    WitnessPolicy,
    tile_path,
)
from ayes.ops.key_files import named_key, write_key
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.files import remove_unfinished, write_atomically, write_each_atomically

KEY: Final = "seal.key"
#: The files beside the tiles that the sealer writes.
_SEALERS: Final = ("checkpoint", "witnessed", "policy")
#: How often a second sealer looks whether the first one has ended.
_LOOK_S: Final = 0.5


def make_key(store: Store, origin: str) -> SignerKey:
    """Make the key of a store.

    Raises:
        BadInput: there is one already, or it cannot be written.
    """
    key, file = SignerKey(origin), store.path / KEY
    try:
        write_key(file, key)
    except FileExistsError:
        raise BadInput(
            f"{file} is there already. To begin another seal, move it away together with "
            f"{store.path / 'seal'}, and keep both: they prove what was sealed until then."
        ) from None
    except OSError as problem:
        raise BadInput(f"{file} cannot be written: {problem.strerror}.") from None
    return key


def read_key(store: Store) -> SignerKey:
    """The key of a store.

    Raises:
        BadInput: there is none, or it is not private.
    """
    return named_key(store.path / KEY, SignerKey, "`ayes seal init` makes one.")


class SealFiles:
    """The tiles and the checkpoint in the folder `seal` of a store."""

    def __init__(self, store: Store) -> None:
        self.folder: Final = store.path / "seal"
        self.file: Final = self.folder / "checkpoint"

    def tile(self, level: int, index: int, width: int) -> bytes:
        """The first hashes of a tile.

        Raises:
            BadFile: it is missing, or has another length.
        """
        for written in range(width, WIDTH + 1):  # a later one begins with the same hashes
            with suppress(OSError):
                hashes = (self.folder / tile_path(level, index, written)).read_bytes()
                if len(hashes) == written * HASH:
                    return hashes[: width * HASH]
        raise BadFile(
            str(self.folder / tile_path(level, index, width)), "", "it is missing, or not whole."
        )

    def reading(self, key: VerifierKey) -> ReadTile | None:
        """Reads tiles; None if there are none that were sealed with this key."""
        with suppress(BadFile):
            return self.tile if self.checkpoint(key) else None
        return None

    def write(self, tiles: Collection[Tile]) -> None:
        """Write the tiles that are not there.

        Raises:
            BadFile: another one is there.
        """
        files = {self.folder / tile.path: tile.hashes for tile in tiles}
        new = {file: hashes for file, hashes in files.items() if not file.exists()}
        for file in files.keys() - new.keys():
            if file.read_bytes() != files[file]:
                raise BadFile(
                    str(file), "", "it is not the tile that the log gives now. See `ayes verify`."
                )
        for folder in {file.parent for file in new}:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
        write_each_atomically(new)
        for file in files:  # the incomplete tiles before a whole one are its beginnings
            shutil.rmtree(f"{file}.p", ignore_errors=True)

    def note(self) -> str:
        """The signed checkpoint; empty if there is none."""
        return _text(self.file)

    def policy(self) -> WitnessPolicy:
        """Whose signatures it should have."""
        return WitnessPolicy.parse(_text(self.folder / "policy"))

    def witnessed(self, policy: WitnessPolicy) -> str:
        """The last checkpoint that enough witnesses signed; empty if there is none."""
        notes = [self.note(), _text(self.folder / "witnessed")]
        return next(filter(policy.is_met, notes), "")

    def checkpoint(self, key: VerifierKey) -> Checkpoint | None:
        """What was sealed last; None if nothing was.

        Raises:
            BadFile: as of `opened`.
        """
        return opened(str(self.file), note, key) if (note := self.note()) else None

    def copied(self) -> int | None:
        """How many facts are copied; None if no copier has begun."""
        text = _text(self.folder / "copied").strip()
        return int(text) if text.isdecimal() else None

    def set_copied(self, facts: int) -> None:
        if self.copied() != facts:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self.folder / "copied", f"{facts}\n".encode())

    def set_policy(self, policy: WitnessPolicy, log: VerifierKey) -> None:
        if _text(self.folder / "policy") != (text := policy.text(log)):
            write_atomically(self.folder / "policy", text.encode())

    def publish(self, note: str, policy: WitnessPolicy) -> None:
        """Replace the checkpoint. The last one that enough witnesses signed is kept."""
        if not policy.is_met(note) and policy.is_met(before := self.note()):
            write_atomically(self.folder / "witnessed", before.encode())
        write_atomically(self.file, note.encode())

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Wait until no other process seals here, and keep others waiting during the block."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        lock = open_own(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            while not _locked(lock):  # noqa: ASYNC110 - another process releases it
                await asyncio.sleep(_LOOK_S)
            for name in _SEALERS:  # the copier, which may be at work, writes its own
                remove_unfinished(self.folder, name)
            yield
        finally:
            os.close(lock)


def _text(file: Path) -> str:
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def opened(where: str, note: str, key: VerifierKey) -> Checkpoint:
    """Read a signed checkpoint.

    Raises:
        BadFile: it is none, is of another log, or is not signed with this key.
    """
    try:
        found = Checkpoint.parse(note)
    except BadInput as problem:
        raise BadFile(where, "", str(problem)) from None
    if found.origin != key.name:
        raise BadFile(where, "", f"it is of the log {found.origin}, and not of {key.name}.")
    if not key.signed(note):
        raise BadFile(where, "", f"it is not signed with the key {key}.")
    return found
