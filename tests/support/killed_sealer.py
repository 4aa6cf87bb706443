"""A sealer that is killed at each file that it writes.

    python killed_sealer.py FOLDER KILLS

A child seals a log that grows, and ends itself by SIGKILL before or after a call that makes,
flushes or renames a file. After each kill all tiles that there were are compared with those that
are there, and the checkpoint with the tiles. Writes how many facts are sealed in the end, and how
many kills left a half-written file. Of these there is never a second one in a directory.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import Proofs, SignerKey
from ayes.ops.sealing import sealer as sealing
from ayes.ops.sealing.files import SealFiles
from ayes.ops.sealing.sealer import Sealer

START = datetime(2026, 1, 1, tzinfo=UTC)
#: The most calls that a child survives; a checkpoint needs some twenty of them.
_MOST_CALLS: Final = 60


def facts(count: int, text: str = "") -> list[RawMessage]:
    return [
        RawMessage(
            n, START + timedelta(seconds=n), f"ledger.shop.t1.said.m{n}", f"{text}{n}".encode()
        )
        for n in range(1, count + 1)
    ]


class Log:
    """What a sealer reads: the facts as their leader has them."""

    def __init__(self, has: list[RawMessage]) -> None:
        self.facts = has

    async def identity(self) -> str:
        return identity_of(self.facts[0])

    async def last_seq(self) -> int:
        return self.facts[-1].seq

    async def stream_with(self, _seq: int) -> dict[str, Any]:
        return {"state": {"last_seq": self.facts[-1].seq}}

    async def scan_leader(self, start: int) -> AsyncGenerator[list[RawMessage]]:
        found = [raw for raw in self.facts if raw.seq >= start]
        for at in range(0, len(found), 100):
            yield found[at : at + 100]


KEY = SignerKey(f"approvals.example.com/{identity_of(facts(1)[0])}", bytes(range(32)))


def sealer(has: list[RawMessage], store: Path, settings: Any = None) -> Sealer:
    files = SealFiles(Store(store))
    files.folder.mkdir(parents=True, exist_ok=True)
    return Sealer(Log(has), files, KEY, settings)  # type: ignore[arg-type]


def dies_after(calls: int) -> None:
    """Let this process end at one of its next calls that write a file."""
    left = calls

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal left
            for of_call in (lambda: None, lambda: call(*given, **named)):
                found = of_call()
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted

    tempfile.mkstemp = dying(tempfile.mkstemp)
    os.fsync = dying(os.fsync)
    Path.replace = dying(Path.replace)  # type: ignore[method-assign]


async def seals(store: Path, dice: random.Random) -> None:
    sealed = SealFiles(Store(store)).checkpoint(KEY.public)
    log = facts((sealed.size if sealed else 0) + 2_000)
    one = sealer(log, store)
    async with one._files.alone():
        await one.begin()
        size = sealed.size if sealed else 0
        while size < len(log):
            size = min(len(log), size + dice.choice((1, 7, 100, 300)))
            await one.seal(size)


def tiles(store: Path) -> dict[str, bytes]:
    found = (store / "seal" / "tile").rglob("*")
    return {str(one): one.read_bytes() for one in found if one.is_file() and one.name[0] != "."}


def main(store: Path, kills: int) -> tuple[int, int]:
    sealing.READING_RATE = 1e9
    dice, before, size, halves = random.Random(kills), dict[str, bytes](), 0, 0
    for _ in range(kills):
        seed, calls = dice.random(), dice.randrange(1, _MOST_CALLS)
        if not (child := os.fork()):
            dies_after(calls)
            asyncio.run(seals(store, random.Random(seed)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it was killed"
        assert os.WTERMSIG(status) == signal.SIGKILL
        there = tiles(store)
        assert all(there.get(name, was) == was for name, was in before.items()), "a tile changed"
        assert all(".p/" in name for name in before.keys() - there.keys()), "a tile is gone"
        files = SealFiles(Store(store))
        if sealed := files.checkpoint(KEY.public):
            assert sealed.size >= size, "an older checkpoint"
            assert Proofs(sealed.size, files.tile).root() == sealed.root, "tiles of another root"
            size = sealed.size
        before, left = there, [one.parent for one in store.rglob(".*")]
        assert len(left) == len({*left}), "what killed sealers left stays"
        halves += bool(left)
    return size, halves


if __name__ == "__main__":
    sys.stdout.write("{} {}".format(*main(Path(sys.argv[1]), int(sys.argv[2]))))
