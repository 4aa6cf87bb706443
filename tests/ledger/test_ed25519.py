"""Which keys and signatures of Ed25519 are taken, beside what the library refuses."""

import pytest
from odd_votes import SMALL_ORDER, by_anybody, longer, scalar, without_nonce

from ayes.ledger import ed25519
from ayes.ledger.seal import SignerKey, VerifierKey
from ayes.schemas.errors import BadInput

SEED = bytes(range(32))
KEY = SignerKey("ana", SEED)
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P

type Point = tuple[int, int]


def point_of(encoded: bytes) -> Point:
    """As RFC 8032, section 5.1.3, but for what it refuses."""
    number = int.from_bytes(encoded, "little")
    y = (number & ~(1 << 255)) % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0, "it is a point"
    return (-x % P if x % 2 != number >> 255 else x), y


def doubled(one: Point) -> Point:
    x, y = one
    both = D * x * x * y * y % P
    return (2 * x * y * pow(1 + both, -1, P) % P, (y * y + x * x) * pow(1 - both, -1, P) % P)


def test_the_points_that_are_refused_are_those_of_small_order():
    """All eight, in each way in which a program may read them."""
    points = {point_of(one) for one in SMALL_ORDER}
    assert len(points) == 8
    for one in SMALL_ORDER:
        assert doubled(doubled(doubled(point_of(one)))) == (0, 1)
        assert not ed25519.is_sound(one)
    x, y = point_of(KEY.public.public)
    assert doubled(doubled(doubled((x, y)))) != (0, 1)
    assert ed25519.is_sound(KEY.public.public)


@pytest.mark.parametrize("y", [P, P + 2, P + 18])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_point_is_written_as_the_standard_has_it(y: int, sign: int):
    """Of two encodings of one point, a reader might take both, and know the key as two."""
    assert not ed25519.is_sound((y | sign << 255).to_bytes(32, "little"))
    assert ed25519.is_sound((P - 2 | sign << 255).to_bytes(32, "little"))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_has_32_bytes(length: int):
    assert not ed25519.is_sound(b"\x05" * length)


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_for_which_anybody_can_sign_is_no_key(point: bytes):
    """The library takes such a signature, which needs no secret."""
    with pytest.raises(BadInput, match="not a key"):
        VerifierKey.parse(str(VerifierKey("ana", point)))
    assert not VerifierKey("ana", point).verifies(by_anybody(point, b"x"), b"x")


def test_a_signature_is_one_that_every_library_takes():
    """Some refuse a first half of small order, and all a second half beyond the order."""
    good = KEY.sign(b"x")
    assert (scalar(SEED) & 7, scalar(SEED) >> 254) == (0, 1)
    assert KEY.public.verifies(good, b"x")
    assert not KEY.public.verifies(without_nonce(KEY, SEED, b"x"), b"x")
    assert not KEY.public.verifies(longer(good), b"x")
    assert not KEY.public.verifies(good[:-1], b"x")
