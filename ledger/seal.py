"""The seal of a log: a Merkle tree over its facts, its tiles, checkpoints and proofs.

Pure. The forms are those of transparency logs, so programs of others check them:

    the tree and proofs           RFC 6962, section 2.1
    its tiles                     c2sp.org/tlog-tiles, without bundles of entries
    checkpoints and keys          c2sp.org/tlog-checkpoint, c2sp.org/signed-note
    signatures of witnesses       c2sp.org/tlog-cosignature, with Ed25519
    which of them are enough      c2sp.org/tlog-policy, without groups in groups

Fact n of the log is leaf n - 1 of the tree. A leaf holds the digest of the fact's payload and not
the payload, so a proof is short whatever the fact holds.
"""

import base64
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple, Self

from msgspec import Struct

from ayes.ledger import ed25519
from ayes.schemas.errors import BadInput

#: The hashes of a whole tile, and the bytes of one hash.
WIDTH: Final = 256
HASH: Final = 32
_HEAD: Final = struct.Struct(">QQH").pack
_LENGTH: Final = struct.Struct(">I").pack


def leaf(seq: int, at_ns: int, subject: bytes, data: bytes) -> bytes:
    r"""The bytes that stand for a fact: "ayes fact 1\n", its number (u64, big-endian), the broker's
    time in nanoseconds (u64), the length (u16) and bytes of its subject, and the length (u32) and
    SHA-256 of its payload.
    """
    head = b"ayes fact 1\n" + _HEAD(seq, at_ns, len(subject)) + subject
    return head + _LENGTH(len(data)) + sha256(data).digest()


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\0" + entry).digest()


def _parent(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _fold(nodes: list[bytes]) -> bytes:
    """The root over nodes of one level, each but the last of which is a whole subtree."""
    while len(nodes) > 1:
        odd = nodes[-1:] if len(nodes) % 2 else []
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        nodes = [sha256(b"\1" + left + right).digest() for left, right in pairs] + odd
    return nodes[0]


class Tile(Struct, frozen=True):
    """Up to 256 hashes of one level: of leaves on level 0, else the roots of whole tiles below."""

    level: int
    index: int
    hashes: bytes

    @property
    def path(self) -> str:
        return tile_path(self.level, self.index, len(self.hashes) // HASH)


def tile_path(level: int, index: int, width: int = WIDTH) -> str:
    digits = f"{index:,}".split(",")
    digits[0] = digits[0].zfill(3)
    number = "/".join([*(f"x{one}" for one in digits[:-1]), digits[-1]])
    return f"tile/{level}/{number}" + (f".p/{width}" if width < WIDTH else "")


#: Reads the first hashes of a tile: its level, its index, and how many.
type ReadTile = Callable[[int, int, int], bytes]


def split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH] for at in range(0, len(hashes), HASH)]


class MerkleTree:
    """A tree that grows. It keeps its right edge alone: at most one incomplete tile a level.

    Args:
        size, read: continue a tree of that many leaves, whose tiles `read` gives.
    """

    def __init__(self, size: int = 0, read: ReadTile = lambda *_: b"") -> None:
        self.size = size
        self._edge = list[list[bytes]]()
        for level in range((size.bit_length() + 7) // 8 or 1):
            width = (size >> 8 * level) % WIDTH
            tile = split(read(level, size >> 8 * (level + 1), width)) if width else []
            self._edge.append(tile)

    def add(self, leaves: list[bytes]) -> list[Tile]:
        """Add the hashes of leaves; returns the tiles that have become whole."""
        whole = list[Tile]()
        while leaves:
            room = WIDTH - len(self._edge[0])
            self._edge[0] += leaves[:room]
            self.size += min(room, len(leaves))
            leaves = leaves[room:]
            level = 0
            while len(tile := self._edge[level]) == WIDTH:
                index = (self.size >> 8 * (level + 1)) - 1
                whole.append(Tile(level, index, b"".join(tile)))
                self._edge[level] = []
                level += 1
                if level == len(self._edge):
                    self._edge.append([])
                self._edge[level].append(_fold(tile))
        return whole

    def edge(self) -> list[Tile]:
        """The incomplete tiles."""
        return [
            Tile(level, self.size >> 8 * (level + 1), b"".join(tile))
            for level, tile in enumerate(self._edge)
            if tile
        ]

    def root(self) -> bytes:
        below: list[bytes] = []
        for tile in self._edge:
            nodes = tile + below
            below = [_fold(nodes)] if nodes else []
        return below[0] if below else sha256().digest()


class Proofs(NamedTuple):
    """Makes proofs about a tree out of its tiles."""

    size: int
    read: ReadTile

    def inclusion(self, index: int) -> list[bytes]:
        """That this leaf is in the tree."""
        return self._beside(index, index)[0]

    def consistency(self, old: int) -> list[bytes]:
        """That the tree begins with all leaves of the one that had `old` leaves, at least one."""
        beside, start = self._beside(old - 1, 0)
        return [self._subtree(start, old), *beside] if start else beside

    def _beside(self, last: int, first: int) -> tuple[list[bytes], int]:
        """The subtrees beside the way from the root down to the first subtree that ends with this
        leaf and does not begin before that one; and where it begins.
        """
        proof, start, end = list[bytes](), 0, self.size
        while end > last + 1 or start < first:
            middle = start + _half(end - start)
            if last < middle:
                proof.append(self._subtree(middle, end))
                end = middle
            else:
                proof.append(self._subtree(start, middle))
                start = middle
        return proof[::-1], start

    def root(self) -> bytes:
        return self._subtree(0, self.size) if self.size else sha256().digest()

    def _subtree(self, start: int, end: int) -> bytes:
        """The hash of these leaves. As RFC 6962 splits a tree, they are in one tile of a level, but
        for an incomplete end.
        """
        top = ((end - start).bit_length() - 1) // 8
        below: list[bytes] = []
        for level in range(top + 1):
            first = start >> 8 * level if level == top else end >> 8 * (level + 1) << 8
            nodes = self._nodes(level, first, end >> 8 * level) + below
            below = [_fold(nodes)] if nodes else []
        return below[0]

    def _nodes(self, level: int, first: int, end: int) -> list[bytes]:
        if first == end:
            return []
        index, at = divmod(first, WIDTH)
        width = min(WIDTH, (self.size >> 8 * level) - index * WIDTH)
        return split(self.read(level, index, width))[at : at + end - first]


def _half(count: int) -> int:
    """The largest power of two below a count of at least two."""
    return 1 << (count - 1).bit_length() - 1


def is_included(entry: bytes, index: int, size: int, root: bytes, proof: list[bytes]) -> bool:
    """Whether a proof shows that the leaf with this hash is in the tree with that root."""
    try:
        return 0 <= index < size and _root_of(entry, index, size, proof) == root
    except ValueError:  # of another length
        return False


def _root_of(entry: bytes, index: int, size: int, proof: list[bytes]) -> bytes:
    if size == 1:
        () = proof
        return entry
    *rest, step = proof
    half = _half(size)
    if index < half:
        return _parent(_root_of(entry, index, half, rest), step)
    return _parent(step, _root_of(entry, index - half, size - half, rest))


def is_consistent(old: int, old_root: bytes, size: int, root: bytes, proof: list[bytes]) -> bool:
    """Whether a proof shows that one tree begins with all leaves of the other."""
    if old in {0, size}:
        return not proof and (old < size or old_root == root)
    try:
        return old <= size and _roots_of(old, old_root, size, proof) == (old_root, root)
    except ValueError:  # of another length
        return False


def _roots_of(old: int, whole: bytes | None, size: int, proof: list[bytes]) -> tuple[bytes, bytes]:
    """The roots of both trees.

    Args:
        whole: the root of the old tree, while all of it is among these leaves.
    """
    if old == size:
        (node,) = proof if whole is None else (whole, *proof)
        return node, node
    *rest, step = proof
    half = _half(size)
    if old <= half:
        before, after = _roots_of(old, whole, half, rest)
        return before, _parent(after, step)
    before, after = _roots_of(old - half, None, size - half, rest)
    return _parent(step, before), _parent(step, after)


# ------------------------------------------------------------------------------------- checkpoints


class Checkpoint(NamedTuple):
    """What is signed: which log, how many of its facts, and the root of the tree over them."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"

    @classmethod
    def parse(cls, note: str) -> Self:
        """Read a signed note, whoever has signed it.

        Raises:
            BadInput: it is not a checkpoint, or it is not written as C2SP says.
        """
        try:
            text, _ = _parts(note)
            origin, size, root, _ = text.split("\n")
            found = cls(origin, int(size), base64.b64decode(root))
        except ValueError:
            found, text = None, ""
        if found is None or found.text != text or len(found.root) != HASH or found.size < 0:
            raise BadInput("it is not a checkpoint (c2sp.org/tlog-checkpoint).")
        return found


#: The first byte of a key: of a log, or of a witness.
_ED25519: Final = 1
_COSIGNATURE: Final = 4
#: Of a key: without blanks, as both Python and ECMAScript know them.
_NAME: Final = re.compile(r"[^\s\ufeff\ud800-\udfff+]+")
#: The bytes of a key's number in a line of a note.
_NUMBER: Final = 4


class VerifierKey(NamedTuple):
    """A public key with the name of its owner; as text `NAME+ID+KEY`."""

    name: str
    public: bytes

    @property
    def kind(self) -> int:
        return _ED25519

    @property
    def id(self) -> bytes:
        return sha256(f"{self.name}\n".encode() + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{_base64(bytes([self.kind]) + self.public)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a key.

        Raises:
            BadInput: it is not one, not of this kind, written in another way than ours, or such
                that anybody can sign for it.
        """
        found = cls(*_parsed(text))
        is_written = _NAME.fullmatch(found.name) and str(found) == text
        if not is_written or not ed25519.is_sound(found.public):
            start = _base64(bytes([found.kind, 0, 0]))[:2]
            raise BadInput(f"{text[:200]!r} is not a key. It looks like NAME+1a2b3c4d+{start}…=.")
        return found

    def signed(self, note: str) -> bool:
        """Whether this key has signed the note. Signatures of others do not matter; a wrong one
        with the name and number of this key does. Nobody has signed what is not a note.
        """
        try:
            text, lines = _parts(note)
        except ValueError:
            return False
        found = self.lines("\n".join(lines))
        return bool(found) and all(self._verifies(one, text) for one in found.values())

    def lines(self, signatures: str) -> dict[str, bytes]:
        """The lines with the name and number of this key among those of a note, and what is
        signed in them.
        """
        found = dict[str, bytes]()
        for line in signatures.split("\n"):
            with suppress(ValueError):
                name, raw = _signature(line)
                if name == self.name and raw[:4] == self.id:
                    found[f"{line}\n"] = raw[4:]
        return found

    def _verifies(self, signature: bytes, text: str) -> bool:
        return self.verifies(signature, text.encode())

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether it is this key's signature of the data."""
        return ed25519.verifies(self.public, signature, data)


class WitnessKey(VerifierKey):
    """The public key of a witness, whose signatures have a time."""

    @property
    def kind(self) -> int:
        return _COSIGNATURE

    def signed_at(self, note: str) -> datetime | None:
        """When this key has signed the note; None if it has not."""
        if not self.signed(note):
            return None
        time = max(one[:8] for one in self.lines(signatures_of(note)).values())
        with suppress(OverflowError, ValueError, OSError):  # a time that no calendar has
            return datetime.fromtimestamp(int.from_bytes(time), UTC)
        return None

    def _verifies(self, signature: bytes, text: str) -> bool:
        return self.verifies(signature[8:], _cosigned(signature[:8], text.encode()))


class WitnessPolicy(NamedTuple):
    """Whose signatures a checkpoint should have, and how many of them."""

    witnesses: tuple[WitnessKey, ...] = ()
    quorum: int = 0

    def signed(self, note: str) -> dict[str, datetime]:
        """The names of the witnesses that signed a note, and when they did."""
        found = ((one.name, one.signed_at(note)) for one in self.witnesses)
        return {name: at for name, at in found if at}

    def is_met(self, note: str) -> bool:
        return len(self.signed(note)) >= self.quorum

    def text(self, log: VerifierKey) -> str:
        """The policy as a file, for programs of others too."""
        names = [f"w{number}" for number in range(1, len(self.witnesses) + 1)]
        keys = zip(names, self.witnesses, strict=True)
        lines = [f"log {log}", *(f"witness {name} {key}" for name, key in keys)]
        if names:
            lines.append(f"group enough {self.quorum} {' '.join(names)}")
        return "\n".join([*lines, f"quorum {'enough' if names else 'none'}", ""])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` has written.

        Raises:
            BadInput: it has something else for a key.
        """
        witnesses, quorum = list[WitnessKey](), 0
        for line in text.splitlines():
            match line.split():
                case ["witness", _, key]:
                    witnesses.append(WitnessKey.parse(key))
                case ["group", _, count, *_] if count.isdecimal():
                    quorum = int(count)
        return cls(tuple(witnesses), quorum)


def signatures_of(note: str) -> str:
    """The lines with the signatures of a note."""
    return note.rpartition("\n\n")[2]


def _parts(note: str) -> tuple[str, list[str]]:
    """The text of a note, and the lines with its signatures.

    Raises:
        ValueError: it is not written as c2sp.org/signed-note says, or has a line twice.
    """
    text, _, signatures = note.rpartition("\n\n")
    *lines, rest = signatures.split("\n")
    if not lines or rest or len({*lines}) < len(lines):
        raise ValueError
    for line in lines:
        _signature(line)
    return f"{text}\n", lines


def _signature(line: str) -> tuple[str, bytes]:
    """The name of a key in a line of a note, and the key's number with what is signed.

    Raises:
        ValueError: it is not such a line.
    """
    dash, name, text = line.split(" ")
    raw = base64.b64decode(text, validate=True)
    is_name = name and "+" not in name
    if dash != "\N{EM DASH}" or not is_name or len(raw) <= _NUMBER or _base64(raw) != text:
        raise ValueError
    return name, raw


def _cosigned(time: bytes, text: bytes) -> bytes:
    return b"cosignature/v1\ntime %d\n" % int.from_bytes(time) + text


class PrivateKey:
    """A key that signs; as text `PRIVATE+KEY+NAME+ID+KEY`, as Go's `sumdb/note` writes it."""

    def __init__(self, name: str, seed: bytes = b"") -> None:
        kind = ed25519.library().Ed25519PrivateKey
        self._name = name
        self._key = kind.from_private_bytes(seed) if seed else kind.generate()

    @property
    def public(self) -> VerifierKey:
        return VerifierKey(self._name, self._key.public_key().public_bytes_raw())

    def __str__(self) -> str:
        seed = _base64(bytes([self.public.kind]) + self._key.private_bytes_raw())
        return f"PRIVATE+KEY+{self._name}+{self.public.id.hex()}+{seed}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a key.

        Raises:
            BadInput: it is not one.
        """
        name, seed = _parsed(text.strip().removeprefix("PRIVATE+KEY+"))
        found = cls(name, seed) if len(seed) == HASH else None
        if found is None or str(found) != text.strip():
            raise BadInput("it is not a key that signs.")
        return found

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._key.sign(data)
        return signature

    def _line(self, signature: bytes) -> str:
        return f"\N{EM DASH} {self._name} {_base64(self.public.id + signature)}\n"


class SignerKey(PrivateKey):
    """The key of a log."""

    def note(self, checkpoint: Checkpoint) -> str:
        """The checkpoint, signed."""
        return f"{checkpoint.text}\n{self._line(self.sign(checkpoint.text.encode()))}"


class CosignerKey(PrivateKey):
    """The key of a witness."""

    @property
    def public(self) -> WitnessKey:
        return WitnessKey(self._name, self._key.public_key().public_bytes_raw())

    def line(self, checkpoint: Checkpoint, at: datetime) -> str:
        """The line by which the witness signs a checkpoint, for the end of its note."""
        time = int(at.timestamp()).to_bytes(8)
        return self._line(time + self.sign(_cosigned(time, checkpoint.text.encode())))


def _parsed(text: str) -> tuple[str, bytes]:
    """Name and bytes of a key in text; empty if it is not one."""
    name, _, key = text.split("+", 2) if text.count("+") > 1 else ("", "", "")
    with suppress(ValueError):
        return name, base64.b64decode(key)[1:]
    return "", b""


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
