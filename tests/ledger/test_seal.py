"""The seal of a log, checked by a stranger's implementation of the same specifications."""

import base64
import hashlib
import random
from datetime import UTC, datetime

import aics_tlog
import pytest
from aics_tlog.tiles import materialise_tiles
from hypothesis import given
from hypothesis import strategies as st
from long import sampled
from other_notes import other_notes

from ayes.ledger import seal
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.nats.jetstream import JetStream, _nanoseconds
from ayes.ledger.seal import (
    Checkpoint,
    CosignerKey,
    MerkleTree,
    Proofs,
    SignerKey,
    VerifierKey,
    WitnessKey,
)
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ThreadRef

SIZES = (1, 2, 3, 255, 256, 257, 1000, 65_535, 65_536, 65_537)
ORIGIN = "approvals.example.com/0123456789abcdef0123456789abcdef"
KEY = SignerKey(ORIGIN, bytes(range(32)))
WITNESS = CosignerKey("witness.example.org/w1", bytes(range(1, 33)))
AT = datetime(2026, 11, 27, 8, 30, 15, tzinfo=UTC)


def entries(count: int) -> list[bytes]:
    return [
        seal.leaf(n, 1_795_622_400_000_000_000 + n, b"ledger.shop.t", b"{}") for n in range(count)
    ]


def grown(leaves: list[bytes], *parts: int) -> tuple[MerkleTree, dict[str, bytes]]:
    """A tree of these leaves, added in parts, and its tiles."""
    tree, tiles = MerkleTree(), dict[str, bytes]()
    for begin, end in zip((0, *parts), (*parts, len(leaves)), strict=True):
        whole = tree.add([seal.leaf_hash(one) for one in leaves[begin:end]])
        tiles |= {one.path: one.hashes for one in (*whole, *tree.edge())}
    return tree, tiles


def proofs(size: int, tiles: dict[str, bytes]) -> Proofs:
    return Proofs(size, lambda *place: tiles[seal.tile_path(*place)])


@pytest.mark.parametrize("size", sampled(SIZES, 1, 2, 255, 256, 257))
def test_a_strangers_tree_has_the_same_root_tiles_and_proofs(size):
    leaves = entries(size)
    tree, tiles = grown(leaves)
    theirs = aics_tlog.MerkleTree(leaves)
    assert tree.root() == proofs(size, tiles).root() == theirs.root()
    expected = materialise_tiles(leaves)
    assert tiles == {path: raw for path, raw in expected.items() if "entries" not in path}
    chosen = {
        0,
        1,
        size // 2,
        size - 2,
        size - 1,
        *random.Random(size).sample(range(size), size % 9),
    }
    for index in chosen & {*range(size)}:
        proof = proofs(size, tiles).inclusion(index)
        assert proof == theirs.inclusion_proof(index)
        assert seal.is_included(seal.leaf_hash(leaves[index]), index, size, tree.root(), proof)
    for old in chosen & {*range(1, size)}:
        proof = proofs(size, tiles).consistency(old)
        assert proof == theirs.consistency_proof(old)
        assert seal.is_consistent(old, theirs.root(old), size, tree.root(), proof)


def test_the_roots_are_those_of_certificate_transparency():
    """The vectors of its reference implementation."""
    leaves = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
    leaves.append("606162636465666768696a6b6c6d6e6f")
    tree, _ = grown([bytes.fromhex(one) for one in leaves])
    assert tree.root().hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert MerkleTree().root() == hashlib.sha256().digest()


@pytest.mark.parametrize(
    ("index", "path"), [(0, "000"), (999, "999"), (1000, "x001/000"), (1234067, "x001/x234/067")]
)
def test_a_tile_is_where_the_specification_says(index, path):
    assert seal.tile_path(1, index) == f"tile/1/{path}"
    assert seal.tile_path(1, index, 255) == f"tile/1/{path}.p/255"


@given(size=st.integers(1, 700), data=st.data())
def test_a_tree_goes_on_from_its_tiles(size, data):
    """Whatever parts it is added in, and wherever it was continued from its files."""
    leaves = entries(size)
    at = data.draw(st.integers(0, size))
    tree, tiles = grown(leaves, at)
    again = MerkleTree(at, proofs(at, tiles).read)
    again.add([seal.leaf_hash(one) for one in leaves[at:]])
    assert (again.root(), again.edge()) == (tree.root(), tree.edge())
    assert tree.root() == aics_tlog.MerkleTree(leaves).root()


@given(size=st.integers(2, 600), data=st.data())
def test_a_change_of_any_fact_is_noticed(size, data):
    """Changed, dropped, inserted, swapped or cut: the root is another."""
    leaves = entries(size)
    tree, _ = grown(leaves)
    at = data.draw(st.integers(0, size - 2))
    flipped = bytearray(leaves[at])
    flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    swapped = [*leaves[:at], leaves[at + 1], leaves[at], *leaves[at + 2 :]]
    for other in (
        [*leaves[:at], bytes(flipped), *leaves[at + 1 :]],
        leaves[:at] + leaves[at + 1 :],
        [*leaves[:at], leaves[0] + b"0", *leaves[at:]],
        swapped,
        leaves[:at],
    ):
        assert grown(other)[0].root() != tree.root()


@given(size=st.integers(2, 600), data=st.data())
def test_a_proof_shows_one_thing_only(size, data):
    leaves = entries(size)
    tree, tiles = grown(leaves)
    at = data.draw(st.integers(1, size - 1))
    old = grown(leaves[:at])[0].root()
    for proof, holds in (
        (proofs(size, tiles).inclusion(at), lambda entry, root, steps:
            seal.is_included(entry, at, size, root, steps)),
        (proofs(size, tiles).consistency(at), lambda entry, root, steps:
            seal.is_consistent(at, entry, size, root, steps)),
    ):  # fmt: skip
        entry = old if holds(old, tree.root(), proof) else seal.leaf_hash(leaves[at])
        assert holds(entry, tree.root(), proof)
        assert not holds(entry, bytes(32), proof)
        assert not holds(bytes(32), tree.root(), proof)
        assert not holds(entry, tree.root(), [*proof, bytes(32)])
        if proof:
            gone = data.draw(st.integers(0, len(proof) - 1))
            assert not holds(entry, tree.root(), proof[:gone] + proof[gone + 1 :])
            assert not holds(entry, tree.root(), [*proof[:gone], bytes(32), *proof[gone + 1 :]])
    assert not seal.is_included(seal.leaf_hash(leaves[at]), size, size, tree.root(), [])
    assert seal.is_consistent(0, b"", size, tree.root(), [])
    assert not seal.is_consistent(0, b"", size, tree.root(), [bytes(32)])
    assert not seal.is_consistent(0, b"", 0, tree.root(), [])
    assert not seal.is_consistent(size + 1, tree.root(), size, tree.root(), [])


def test_a_stranger_takes_checkpoint_and_key():
    checkpoint = Checkpoint(ORIGIN, 257, grown(entries(257))[0].root())
    note = KEY.note(checkpoint)
    assert Checkpoint.parse(note) == checkpoint
    found, theirs = aics_tlog.checkpoint.checkpoint_from_note(note)
    assert (found.origin, found.size, found.root) == checkpoint
    assert aics_tlog.verify_checkpoint(theirs, aics_tlog.parse_vkey(str(KEY.public))).ok
    others = SignerKey("log.example.com").note(checkpoint).rpartition("\n\n")[2]
    assert KEY.public.signed(note)
    assert KEY.public.signed(note + others)
    assert not KEY.public.signed(f"{checkpoint.text}\n{others}")
    assert VerifierKey.parse(str(KEY.public)) == KEY.public
    assert str(SignerKey.parse(f"{KEY}\n")) == str(KEY)


def test_a_stranger_takes_what_a_witness_signed_and_when():
    checkpoint = Checkpoint(ORIGIN, 257, grown(entries(257))[0].root())
    note = KEY.note(checkpoint) + WITNESS.line(checkpoint, AT)
    _, theirs = aics_tlog.checkpoint.checkpoint_from_note(note)
    log, witness = map(aics_tlog.parse_vkey, map(str, (KEY.public, WITNESS.public)))
    found = aics_tlog.verify_checkpoint(theirs, log, [witness], 1)
    assert (found.ok, found.timestamps) == (True, {WITNESS.public.name: int(AT.timestamp())})
    assert (KEY.public.signed(note), WITNESS.public.signed_at(note)) == (True, AT)
    assert WitnessKey.parse(str(WITNESS.public)) == WITNESS.public
    assert str(CosignerKey.parse(str(WITNESS))) == str(WITNESS)
    other = CosignerKey("witness.example.org/w2", bytes(range(1, 33))).public
    assert other.signed_at(note) is WITNESS.public.signed_at(KEY.note(checkpoint)) is None
    with pytest.raises(BadInput, match=r"not a key. It looks like NAME\+1a2b3c4d\+BA…=."):
        WitnessKey.parse(str(KEY.public))
    with pytest.raises(BadInput, match="not a key that signs"):
        CosignerKey.parse(str(KEY))


def test_no_bit_of_a_checkpoint_can_be_changed():
    checkpoint = Checkpoint(ORIGIN, 257, bytes(range(32)))
    line = WITNESS.line(checkpoint, AT)
    for key, note in (
        (KEY.public, KEY.note(checkpoint)),
        (WITNESS.public, f"{checkpoint.text}\n{line}"),
    ):
        assert key.signed(note)
        for at, one in enumerate(note.encode()):
            changed = note.encode()[:at] + bytes([one ^ 1]) + note.encode()[at + 1 :]
            text = changed.decode(errors="replace")
            assert not key.signed(text), text


def test_a_wrong_signature_of_a_known_key_is_not_mended_by_a_right_one():
    checkpoint, other = Checkpoint(ORIGIN, 257, bytes(32)), Checkpoint(ORIGIN, 258, bytes(32))
    note, wrong = KEY.note(checkpoint), KEY.note(other).rpartition("\n\n")[2]
    assert not KEY.public.signed(note + wrong)
    assert KEY.public.signed(note + WITNESS.line(checkpoint, AT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "log\n3\n",
        f"log\n-3\n{base64.b64encode(bytes(32)).decode()}\n",
        f"log\n03\n{base64.b64encode(bytes(32)).decode()}\n",
        f"log\n3\n{base64.b64encode(bytes(31)).decode()}\n",
        f"log\n3\n{base64.b64encode(bytes(32)).decode()[:-2]}B=\n",
        f"log\n3\n{base64.b64encode(bytes(32)).decode()}\nmore\n",
    ],
)
def test_a_checkpoint_has_one_form(text):
    with pytest.raises(BadInput, match="not a checkpoint"):
        Checkpoint.parse(f"{text}\n{KEY._line(bytes(64))}")


def test_a_note_has_one_form_but_for_the_signatures_of_others():
    note = KEY.note(Checkpoint(ORIGIN, 257, bytes(range(32))))
    other = f"{note}\N{EM DASH} w AAAAAAA=\n"
    assert KEY.public.signed(other)
    assert Checkpoint.parse(other) == Checkpoint.parse(note)
    for name, one in other_notes(note).items():
        assert not KEY.public.signed(one), name
        with pytest.raises(BadInput, match="not a checkpoint"):
            Checkpoint.parse(one)


ODD = [f"{KEY.public}{one}" for one in ("=", "\n", " ", "\x1c", "\ufeff")]
ODD += [f"{one}{KEY.public}" for one in (" ", "\x1c", "\ufeff")]
ODD += [str(VerifierKey(name, KEY.public.public)) for name in ("a b", "a\x85", "a\ufeff", "")]


@pytest.mark.parametrize("text", ["", "a+b", "log+00000000+AQ==", "\ud800+0+AQ", str(KEY), *ODD])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(BadInput, match="not a key"):
        VerifierKey.parse(text)
    with pytest.raises(BadInput, match="not a key"):
        SignerKey.parse(text.replace("PRIVATE", "PUBLIC"))


@pytest.mark.parametrize(
    ("fraction", "nanoseconds"),
    [("", 0), (".1", 0), (".123456", 0), (".1234567", 700), (".123456789", 789), (".000000001", 1)],
)
def test_a_leaf_has_the_brokers_time_in_nanoseconds(fraction, nanoseconds):
    text = f"2026-11-27T00:00:00{fraction}Z"
    assert _nanoseconds(text) == nanoseconds
    at = datetime.fromisoformat(text)
    raw = RawMessage(1, at, "ledger.shop.t1.said.m1", b"{}", nanoseconds)
    assert raw.at_ns == int(f"{int(at.timestamp())}{fraction[1:]:0<9}")


@pytest.mark.log("jetstream")
async def test_a_fact_has_the_same_leaf_however_it_is_read(ledger: Ledger):
    log = ledger.log
    assert isinstance(log, JetStream)
    for number in range(5):
        slot = ThreadRef("shop", "t1").said(f"m{number}")
        await ledger.append(slot, e.Said(role="user", text=f"Bestätigt {number}"))
    pages = [
        [raw async for page in each for raw in page]
        for each in (log.raw(1, until_end=True), log.scan_leader(1))
    ]
    one_by_one = [await log.at(seq) for seq in range(1, 6)]
    leaves = {tuple(raw.leaf for raw in facts if raw) for facts in (*pages, one_by_one)}
    assert len(leaves) == 1
    assert any(raw.nanoseconds for raw in pages[0]), "the broker's clock has nanoseconds"
    assert await log.identity() == identity_of(pages[0][0])
    assert pages[0][0].recorded_at.tzinfo is UTC
