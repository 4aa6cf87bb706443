"""Verifying that the facts of a log, or of an export of it, are those that were sealed."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.seal import (
    HASH,
    WIDTH,
    Checkpoint,
    MerkleTree,
    ReadTile,
    Tile,
    is_consistent,
    leaf_hash,
    split,
)
from ayes.schemas.errors import BadFile

#: Facts that a sentence names.
_NAMED: Final = 5


async def difference(
    pages: AsyncIterator[list[RawMessage]],
    sealed: Checkpoint,
    read: ReadTile | None,
    proof: Sequence[bytes] = (),
) -> str | None:
    """How these facts differ from those that were sealed, as half a sentence; None if they do not.

    Args:
        read: reads the sealer's tiles, which say which facts differ; None: there are none.
        proof: that these facts, if they are fewer, are the first of those that were sealed.
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
    if proof and 0 < tree.size < sealed.size:
        if is_consistent(tree.size, tree.root(), sealed.size, sealed.root, [*proof]):
            return None
        return f"the facts are not the first {tree.size:,} of those that were sealed"
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
