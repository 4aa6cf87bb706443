"""Agents that wait: the state of each paused conversation, and the calls that it waits for.

A framework that pauses hands out its state as text, and the program must keep it. `StateFiles`
keeps it in a folder, a file for each conversation. Any other store with these three methods does.
The state is never read as a decision, and decides nothing: the calls are read from the ledger.
"""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from ayes.schemas.errors import BadFile


class Saved(Struct, frozen=True):
    """A paused conversation."""

    #: The framework's id of the conversation.
    thread: str
    #: The calls that it waits for, each written `workspace/thread/call`.
    waiting: tuple[str, ...]
    #: The framework's own state, as text.
    state: str


class States(Protocol):
    async def save(self, saved: Saved) -> None:
        """Keep the state of a conversation, in place of an earlier one."""
        ...

    async def remove(self, thread: str) -> None:
        """Forget a conversation that goes on or has ended."""
        ...

    async def saved(self) -> Sequence[Saved]:
        """All paused conversations."""
        ...


class StateFiles:
    """The states in a folder, which one program at a time uses."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    async def save(self, saved: Saved) -> None:
        await asyncio.to_thread(self._save, saved)

    async def remove(self, thread: str) -> None:
        await asyncio.to_thread(self._file(thread).unlink, missing_ok=True)

    async def saved(self) -> Sequence[Saved]:
        """All paused conversations.

        Raises:
            BadFile: a file was not written by `save`.
        """
        return await asyncio.to_thread(self._saved)

    def _file(self, thread: str) -> Path:
        raw = thread.encode("utf-8", "surrogatepass")
        return self.folder / f"{hashlib.sha256(raw).hexdigest()}.json"

    def _save(self, saved: Saved) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(saved.thread)
        new = file.with_suffix(".new")
        with new.open("wb") as opened:
            opened.write(msgspec.json.encode(saved))
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)

    def _saved(self) -> list[Saved]:
        return [_read(file) for file in sorted(self.folder.glob("*.json"))]


def _read(file: Path) -> Saved:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Saved)
    except msgspec.MsgspecError as problem:
        why = f"it is not a saved state ({problem}). Move it out of the folder."
        raise BadFile(str(file), "", why) from None
