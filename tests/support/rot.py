"""Rot: bytes of a stopped broker's files that are other than they were written."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


def blocks(store: Path, stream: str = "LEDGER") -> list[Path]:
    """The files with the messages of a stream, in their order."""
    found = store.glob(f"jetstream/**/streams/{stream}/msgs/*.blk")
    return sorted(found, key=lambda block: int(block.stem))


def flip(block: Path, at: int, bit: int = 1) -> None:
    """Flip one bit of a file in its place."""
    with block.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bit]))


def rot(store: Path, text: str, *, index: bool = True, stream: str = "LEDGER") -> None:
    """Flip one bit of the first message that has this text.

    Args:
        index: whether the broker's index is kept, as after it was stopped; else it is rebuilt at
            the next start, as after it was killed.
    """
    block, at = next(places(store, text, stream))
    flip(block, at)
    if not index:
        forget_index(store, stream)


def places(store: Path, text: str, stream: str = "LEDGER") -> Iterator[tuple[Path, int]]:
    for block in blocks(store, stream):
        if (at := block.read_bytes().find(text.encode())) >= 0:
            yield block, at


def forget_index(store: Path, stream: str = "LEDGER") -> None:
    for one in store.glob(f"jetstream/**/streams/{stream}/msgs/index.db"):
        one.unlink()


class Record(NamedTuple):
    """A message in a block: where its bytes are, and on which subject it is."""

    block: Path
    begin: int
    end: int
    subject: str


def records(store: Path) -> Iterator[Record]:
    """The messages of `LEDGER`, as nats-server writes them: length (its highest bit: headers),
    sequence, time, length of the subject, subject, ..., checksum (server/filestore.go).
    """
    for block in blocks(store):
        held, at = block.read_bytes(), 0
        while at < len(held):
            length, _seq, _time, subject = struct.unpack_from("<IQQH", held, at)
            length &= ~(1 << 31)
            name = held[at + 22 : at + 22 + subject].decode()
            yield Record(block.relative_to(store), at, at + length, name)
            at += length
