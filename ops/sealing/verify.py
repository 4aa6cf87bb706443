"""Verifying that the facts of a log, or of an export of it, are those that were sealed.

An export is a file of lines of JSON: the checkpoint, then each fact that it covers. So an auditor
verifies it alone, with nothing but the key of the sealer.
"""

import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import batched
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import (
    HASH,
    WIDTH,
    Checkpoint,
    MerkleTree,
    ReadTile,
    Tile,
    leaf_hash,
    split,
)
from ayes.ops.audit.backup import new_file
from ayes.schemas.errors import BadFile

#: Facts that a sentence names.
_NAMED: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE: Final = 1000


async def difference(
    pages: AsyncIterator[list[RawMessage]], sealed: Checkpoint, read: ReadTile | None
) -> str | None:
    """How these facts differ from those that were sealed, as half a sentence; None if they do not.

    Args:
        read: reads the sealer's tiles, which say which facts differ; None: there are none.
    """
    tree, tiles = MerkleTree(), _Compared(read)
    async for page in pages:
        facts = [raw for raw in page if raw.seq <= sealed.size]
        for seq, raw in enumerate(facts, tree.size + 1):
            if raw.seq > seq:
                return f"fact {seq:,} is missing"
            if raw.seq < seq:
                return f"fact {raw.seq:,} comes after fact {seq - 1:,}"
        if not tree.size and facts and identity_of(facts[0]) not in sealed.origin.split("/"):
            return "this is another log, or its first fact was changed"
        tiles.compare(tree.add([leaf_hash(raw.leaf) for raw in facts]))
        if len(facts) < len(page):
            break
    if tree.size < sealed.size:
        return f"the log ends at fact {tree.size:,}, and {sealed.size:,} were sealed"
    tiles.compare(tree.edge())
    if tree.root() == sealed.root:
        but = f"the facts are those that were sealed, but {tiles.problem}"
        return but if tiles.problem else None
    if read is None or not _lead_to(sealed, read):
        return f"the first {sealed.size:,} facts are not those that were sealed"
    return _others(tiles.others, sealed.size)


class _Compared:
    """The tiles of the facts, compared with those of the sealer."""

    def __init__(self, read: ReadTile | None) -> None:
        self._read = read
        #: The facts that are others, by number.
        self.others = list[int]()
        #: The first tile that is not the sealer's.
        self.problem = ""

    def compare(self, tiles: list[Tile]) -> None:
        if self._read is None:
            return
        for tile in tiles:
            try:
                sealed = self._read(tile.level, tile.index, len(tile.hashes) // HASH)
            except BadFile as problem:
                self.problem = self.problem or str(problem)
                continue
            if sealed != tile.hashes:
                self.problem = self.problem or f"the sealer's {tile.path} is damaged"
            if sealed != tile.hashes and tile.level == 0:
                both = zip(split(sealed), split(tile.hashes), strict=True)
                found = [at for at, (before, now) in enumerate(both) if before != now]
                self.others += [tile.index * WIDTH + at + 1 for at in found]


def _lead_to(sealed: Checkpoint, read: ReadTile) -> bool:
    """Whether the sealer's own tiles have the root that it signed."""
    tree = MerkleTree()
    try:
        for begin in range(0, sealed.size, WIDTH):
            tree.add(split(read(0, begin // WIDTH, min(WIDTH, sealed.size - begin))))
    except BadFile:
        return False
    return tree.root() == sealed.root


def _others(others: list[int], size: int) -> str:
    first = others[0]
    if len(others) > 1 and others == [*range(first, size + 1)]:
        return (
            f"the facts from {first:,} on are not those that were sealed: one was inserted or "
            f"dropped there, or the log was rolled back to fact {first - 1:,} and went on otherwise"
        )
    named = ", ".join(f"{one:,}" for one in others[:_NAMED])
    if len(others) == 1:
        return f"fact {named} is not the one that was sealed"
    more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
    return f"facts {named}{more} are not those that were sealed"


# -------------------------------------------------------------------------------------- the export


class _Head(Struct):
    """The first line of an export."""

    checkpoint: str
    format: str = "ayes export 1"


class _Line(Struct, forbid_unknown_fields=True):
    seq: int
    #: In nanoseconds since 1970; as text, since many programs round numbers of this size.
    time: str
    subject: str
    #: In base64.
    payload: bytes


async def export(log: JetStream, note: str, file: Path) -> int:
    """Write the facts that a checkpoint covers into a new file. Returns how many they are.

    Raises:
        BadInput: there is such a file already, or it cannot be written.
    """
    size = Checkpoint.parse(note).size
    with new_file(file) as written:
        written.write(msgspec.json.encode(_Head(note)) + b"\n")
        async with aclosing(log.scan_leader(1)) as pages:
            async for page in pages:
                for raw in page:
                    if raw.seq <= size:
                        line = _Line(raw.seq, str(raw.at_ns), raw.subject, raw.data)
                        written.write(msgspec.json.encode(line) + b"\n")
                if page[-1].seq >= size:
                    break
    return size


def exported(file: Path) -> str:
    """The signed checkpoint of an export.

    Raises:
        BadFile: it is no export.
    """
    try:
        with file.open("rb") as content:
            return msgspec.json.decode(content.readline(), type=_Head).checkpoint
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise BadFile(
            str(file), "", f"it is not an export of `ayes seal export`: {problem}"
        ) from None


def count(file: Path) -> int:
    """How many facts an export has, sealed or not."""
    with file.open("rb") as content:
        return sum(1 for _ in content) - 1


async def exported_facts(file: Path) -> AsyncGenerator[list[RawMessage]]:
    """The facts of an export, in pages.

    Raises:
        BadFile: a line is not a fact.
    """
    decoder = msgspec.json.Decoder(_Line)
    with file.open("rb") as content:
        content.readline()
        for page in batched(enumerate(content, 2), _PAGE, strict=False):
            yield [_raw(file, number, line, decoder) for number, line in page]


def _raw(file: Path, number: int, text: bytes, decoder: msgspec.json.Decoder[_Line]) -> RawMessage:
    try:
        line = decoder.decode(text)
        at_us, below_us = divmod(int(line.time), 1000)
        at = _EPOCH + timedelta(microseconds=at_us)
        raw = RawMessage(line.seq, at, line.subject, line.payload, below_us)
        is_fact = bool(line.time.isdecimal() and raw.leaf)
    except (msgspec.MsgspecError, ValueError, OverflowError, struct.error):
        is_fact = False
    if not is_fact:
        raise BadFile(str(file), f"line {number}", "it is not a fact.")
    return raw
