"""Witnesses that are killed while they sign, and trees to ask them about.

    python killed_witness.py FOLDER KILLS

Two processes at a time serve one witness. Once one of them has answered, each is killed after a
random time: before it looks, while it writes, between that and its answer. Writes, as JSON, what
was signed of each log, in answers and in files, in their order.
"""

import json
import os
import random
import select
import signal
import sys
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from ayes.ledger.seal import (
    Checkpoint,
    CosignerKey,
    MerkleTree,
    Proofs,
    SignerKey,
    leaf_hash,
    tile_path,
)
from ayes.ops.sealing.cosigning import Cosigner, request_of

ORIGIN = "approvals.example.com/0123456789abcdef0123456789abcdef"
KEY = SignerKey(ORIGIN, bytes(range(32)))
WITNESS = CosignerKey("witness.example.org/w1", bytes(range(1, 33)))
AT = datetime(2026, 11, 27, 8, 30, 15, tzinfo=UTC)
#: Kills of one witness; then another one begins.
_OF_ONE: Final = 20
_MOST_S: Final = 0.01
#: Two logs that have their first fact alone in common, of which a witness may sign one.
TEXTS: Final = ("", "x")
_SIZES: Final = range(1, 150)


class Tree:
    """A log of some facts; the facts of another text are others from `fork` on."""

    def __init__(self, size: int, text: str = "", fork: int = 0) -> None:
        leaves = [leaf_hash(f"{text if n >= fork else ''}{n}".encode()) for n in range(size)]
        self.text, tree = text, MerkleTree()
        tiles = {one.path: one.hashes for one in (*tree.add(leaves), *tree.edge())}
        self._proofs = Proofs(size, lambda *place: tiles[tile_path(*place)])
        self.checkpoint = Checkpoint(ORIGIN, size, tree.root())

    def request(self, old: int, key: SignerKey = KEY) -> bytes:
        proof = self._proofs.consistency(old) if 0 < old <= self.checkpoint.size else []
        return request_of(old, proof, key.note(self.checkpoint))


def roots(text: str) -> dict[int, str]:
    """The root of each size that is asked for."""
    return {size: Tree(size, text, 1).checkpoint.root.hex() for size in _SIZES}


def cosigner(folder: Path) -> Cosigner:
    return Cosigner(folder, WITNESS, [KEY.public], lambda: AT)


def signed_last(folder: Path) -> Checkpoint | None:
    note = cosigner(folder).signed(sha256(ORIGIN.encode()).hexdigest())
    assert not note or (KEY.public.signed(note) and WITNESS.public.signed(note))
    return Checkpoint.parse(note) if note else None


def serve(folder: Path, trees: list[Tree], seed: int, answers: int) -> None:
    """Ask for shorter and longer trees, for a fork, for the same size again; until it is killed."""
    dice, witness = random.Random(seed), cosigner(folder)
    while True:
        last = signed_last(folder)
        size = last.size if last else 0
        tree = dice.choice([one for one in trees if -4 < one.checkpoint.size - size < 8])
        old = size if dice.random() < 0.7 else dice.randrange(tree.checkpoint.size + 1)
        if witness.add(tree.request(old)).status == 200:
            os.write(answers, f"{tree.checkpoint.size} {tree.checkpoint.root.hex()}\n".encode())


def main(folder: Path, kills: int) -> list[list[str]]:
    trees = [Tree(size, text, 1) for size in _SIZES for text in TEXTS]
    dice, histories, told = random.Random(kills), list[list[str]](), list[str]()
    for kill in range(0, kills, 2):
        if kill % _OF_ONE == 0:
            of_one = folder / str(kill)
            of_one.mkdir()
            histories.append(told := [])
        reading, answers = os.pipe()
        children = list[int]()
        for other in range(2):
            children.append(os.fork())
            if not children[-1]:
                serve(of_one, trees, dice.randrange(1 << 30) + other, answers)
        os.close(answers)
        select.select([reading], [], [])  # they are at work
        for child in children:
            time.sleep(dice.random() * _MOST_S)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        with os.fdopen(reading) as given:
            told.extend(given.read().splitlines())
        if last := signed_last(of_one):
            told.append(f"{last.size} {last.root.hex()} kept")
    return histories


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
