"""Signatures of Ed25519 (RFC 8032), judged as the client in TypeScript and the page of receipts do.

Implementations differ in which odd keys and signatures they take ("Taming the many EdDSAs",
eprint.iacr.org/2020/1244). So what some of them refuse is refused before they are asked: points of
small order, for which anybody can sign, and points that are not written as RFC 8032 encodes them.
"""

from types import ModuleType
from typing import Final

from ayes.schemas.errors import BadInput

_P: Final = 2**255 - 19
#: Of the points of order 8; the others of small order have 0, 1 and -1.
_Y: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL: Final = frozenset({0, 1, _P - 1, _Y, _P - _Y})


def is_sound(point: bytes) -> bool:
    """Whether this can be a public key, and the first half of a signature."""
    y = int.from_bytes(point, "little") & ~(1 << 255)  # the last bit is the sign of x
    return len(point) == 32 and y < _P and y not in _SMALL


def verifies(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether it is this key's signature of the data."""
    key = library().Ed25519PublicKey.from_public_bytes(public)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return is_sound(public) and is_sound(signature[:32])


def library() -> ModuleType:
    """Imported here, since a site without seals and signatures does without it."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise BadInput(
            "seals and signatures need the package cryptography: `pip install cryptography`."
        ) from None
    return ed25519
