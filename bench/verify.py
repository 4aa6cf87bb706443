"""Verifying a whole log by its seal, as `ayes verify` does, beside only reading it from the leader;
and the processor time of hashing a fact into the tree, as the sealer does.
"""

import time
from contextlib import aclosing
from pathlib import Path
from typing import Final

from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import Checkpoint, MerkleTree, leaf_hash, tile_path
from ayes.ops.sealing.verify import difference
from bench.logs import Log
from bench.results import Result, compared, in_turns

WORKLOAD: Final = "verify"
#: What hashing a fact may cost, in microseconds.
_HASHING_US: Final = 4.0


async def measure(log: Log, rounds: int, _scratch: Path) -> list[Result]:
    """Facts a second that are verified, and microseconds of hashing one."""
    async with JetStream.connect(log.store, role="observer") as reader:
        sealed, tiles, hashing = await _sealed(reader)

        def read(level: int, index: int, width: int) -> bytes:
            return tiles[tile_path(level, index, width)]

        async def verified() -> float:
            begun = time.perf_counter()
            async with aclosing(reader.scan_leader(1)) as pages:
                if problem := await difference(pages, sealed, read):
                    raise AssertionError(problem)
            return sealed.size / (time.perf_counter() - begun)

        async def only_read() -> float:
            begun, count = time.perf_counter(), 0
            async with aclosing(reader.scan_leader(1)) as pages:
                async for page in pages:
                    count += len(page)
            return count / (time.perf_counter() - begun)

        rates = await in_turns(rounds, verified, only_read)
        version = reader.server_version
    return [
        compared(
            WORKLOAD, "verifying the log by its seal", "facts/s", *rates, beside="reading it",
            better="higher", target=0.5, facts=sealed.size, nats_server=version,
        ),
        compared(
            WORKLOAD, "hashing a fact into the tree, processor time", "us",
            [hashing / sealed.size * 1e6], [_HASHING_US], beside="what it may cost",
            better="lower", target=1.0, facts=sealed.size, nats_server=version,
        ),
    ]  # fmt: skip


async def _sealed(reader: JetStream) -> tuple[Checkpoint, dict[str, bytes], float]:
    """The checkpoint of the whole log, its tiles, and the seconds of processor time for them."""
    tree, tiles, spent = MerkleTree(), dict[str, bytes](), 0.0
    async with aclosing(reader.scan_leader(1)) as pages:
        async for page in pages:
            begun = time.process_time()
            whole = tree.add([leaf_hash(raw.leaf) for raw in page])
            spent += time.process_time() - begun
            tiles |= {one.path: one.hashes for one in whole}
    tiles |= {one.path: one.hashes for one in tree.edge()}
    origin = f"bench.example/{await reader.identity()}"
    return Checkpoint(origin, tree.size, tree.root()), tiles, spent
