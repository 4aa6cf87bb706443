"""A witness of seals: it signs a checkpoint of a log that continues the one before, and no other.

    witness.key   the key that signs, readable by its owner only
    4f6b….json    what it signed last of a log; the name is the SHA-256 of the log's name

Both are in a folder of its own, on a machine that the operators of the log do not control. The
requests are those of c2sp.org/tlog-witness: they are anybody's, and only the log's own signature
counts. It needs neither the log nor a broker.
"""

import base64
from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.private_file import PrivateFile
from ayes.ledger.seal import (
    HASH,
    Checkpoint,
    CosignerKey,
    MerkleTree,
    VerifierKey,
    is_consistent,
    signatures_of,
)
from ayes.ops.key_files import named_key, write_key
from ayes.schemas.errors import BadInput
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.sealing.cosigning")

KEY: Final = "witness.key"
#: A proof has at most so many hashes.
_MAX_PROOF: Final = 63


def make_key(folder: Path, name: str) -> CosignerKey:
    """Make the key of a witness.

    Raises:
        BadInput: there is one already, or the folder cannot be written.
    """
    key = CosignerKey(name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(folder / KEY, key)
    except FileExistsError:
        raise BadInput(f"{folder / KEY} is there already.") from None
    except OSError as problem:
        raise BadInput(f"{folder / KEY} cannot be written: {problem.strerror}.") from None
    return key


def read_key(folder: Path) -> CosignerKey:
    """The key of a witness.

    Raises:
        BadInput: there is none, or it is not private.
    """
    return named_key(folder / KEY, CosignerKey, "`ayes witness init` makes one.")


class LastSigned(Struct, frozen=True):
    """What a witness signed last of a log."""

    #: A signed checkpoint with the lines of the log and the witness; empty: there is none yet.
    note: str = ""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.parse(self.note) if self.note else Checkpoint("", 0, MerkleTree().root())


class Reply(NamedTuple):
    status: HTTPStatus
    text: str


class Cosigner:
    """A witness of these logs.

    Raises:
        BadInput: two of the keys have the same name.
        BadFile: a file of what was signed is damaged.
    """

    def __init__(
        self,
        folder: Path,
        key: CosignerKey,
        logs: Sequence[VerifierKey],
        now: clock.Clock = clock.now,
    ) -> None:
        self._folder, self._key, self._now = folder, key, now
        self._logs = {one.name: one for one in logs}
        if len(self._logs) < len(logs):
            raise BadInput("two of the keys are of the same log. A log has one key.")
        for name in self._logs:
            self.signed(_hashed(name))

    def signed(self, hashed: str) -> str:
        """What was signed last of the log whose name has this SHA-256; empty if nothing was."""
        is_known = hashed in map(_hashed, self._logs)
        return self._file(hashed).read().note if is_known else ""

    def _file(self, hashed: str) -> PrivateFile[LastSigned]:
        # A new one each time: another process may write it too, and this one remembers nothing.
        path = self._folder / f"{hashed}.json"
        hint = " Without it this witness could sign another tree: begin a new one, with a new key."
        return PrivateFile(path, LastSigned(), "what a witness signed", hint=hint)

    def add(self, body: bytes) -> Reply:
        """Reply a request to sign a checkpoint. What is signed is on disk before."""
        try:
            old, proof, note = parsed_request(body)
            checkpoint = Checkpoint.parse(note)
        except (BadInput, ValueError):
            return Reply(HTTPStatus.BAD_REQUEST, "it is not a tlog-witness request.\n")
        if (log := self._logs.get(checkpoint.origin)) is None:
            return Reply(HTTPStatus.NOT_FOUND, "this log is not known here.\n")
        if not log.signed(note):
            return Reply(HTTPStatus.FORBIDDEN, "it is not signed with the key of this log.\n")
        if old > checkpoint.size:
            return Reply(HTTPStatus.BAD_REQUEST, "the old size is above the new one.\n")
        line = self._key.line(checkpoint, self._now())
        refusal: Reply | None = None

        def advance(before: LastSigned) -> LastSigned:
            nonlocal refusal
            refusal = _refusal(before.checkpoint, old, checkpoint, proof)
            if refusal is not None:
                return before
            return LastSigned(f"{checkpoint.text}\n{''.join(log.lines(signatures_of(note)))}{line}")

        self._file(_hashed(log.name)).change(advance)
        if refusal is None:
            return Reply(HTTPStatus.OK, line)
        if refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY:  # it may prove a fork, to people
            _log.error("a log does not continue what was signed of it", log=log.name, note=note)
        return refusal


def _refusal(
    signed: Checkpoint, old: int, checkpoint: Checkpoint, proof: list[bytes]
) -> Reply | None:
    if old != signed.size:
        return Reply(HTTPStatus.CONFLICT, f"{signed.size}\n")
    if not is_consistent(old, signed.root, checkpoint.size, checkpoint.root, proof):
        said = f"this is not shown to continue the {signed.size} leaves that were signed.\n"
        return Reply(HTTPStatus.UNPROCESSABLE_ENTITY, said)
    return None


def _hashed(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def request_of(old: int, proof: list[bytes], note: str) -> bytes:
    """The request to sign a checkpoint.

    Args:
        old: the size that the witness signed last.
        proof: of consistency, from that size on.
    """
    lines = [f"old {old}", *(base64.b64encode(one).decode() for one in proof)]
    return f"{'\n'.join(lines)}\n\n{note}".encode()


def parsed_request(body: bytes) -> tuple[int, list[bytes], str]:
    """The parts of a request.

    Raises:
        ValueError: it is none.
    """
    head, _, note = body.decode().partition("\n\n")
    first, *lines = head.split("\n")
    old = int(first.removeprefix("old "))
    proof = [base64.b64decode(one, validate=True) for one in lines]
    is_whole = note.endswith("\n") and len(proof) <= _MAX_PROOF
    if first != f"old {old}" or old < 0 or not is_whole or any(len(one) != HASH for one in proof):
        raise ValueError
    return old, proof, note
