"""Keys with which logins sign on, in the text form of nkeys (github.com/nats-io/nkeys).

A key is one of Ed25519. A client proves that it has the seed by signing a random number of the
server's, so nothing secret is sent. As text a key is a prefix, 32 bytes and a CRC-16/XMODEM, in
base 32: `U…` is the public key of a user, `A…` that of an account, `SU…` the seed of a user.
"""

import base64
import binascii
from typing import Final

from ayes.schemas.errors import BadInput

#: The first byte of a public key, and what a seed begins with besides.
ACCOUNT: Final = 0
USER: Final = 20 << 3
_SEED: Final = 18 << 3


class Key:
    """A key pair.

    Raises:
        BadInput: the package cryptography is missing, or it is not such a seed.
    """

    def __init__(self, kind: int = USER, seed: str = "") -> None:
        try:  # here, since what signs on with a password does without
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError:
            raise BadInput(
                "a broker of its own, and a login with a key, need the package cryptography: "
                "`pip install cryptography`."
            ) from None
        head = bytes([_SEED | kind >> 5, (kind & 31) << 3])
        raw = _decoded(seed) if seed else head + Ed25519PrivateKey.generate().private_bytes_raw()
        if len(raw) != len(head) + 32 or not raw.startswith(head):
            raise BadInput("the seed of the login's key is damaged. `ayes auth rotate` makes one.")
        self._key = Ed25519PrivateKey.from_private_bytes(raw.removeprefix(head))
        self.public: Final = _encoded(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed: Final = _encoded(raw)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def answer(self, nonce: str) -> bytes:
        """What a client sends to sign on: the server's random number, signed."""
        return base64.b64encode(self.sign(nonce.encode()))


def is_seed(text: str) -> bool:
    """Whether it is the seed of a user, and not a password."""
    return text.startswith("SU") and _decoded(text) != b""


def has_signed(public: str, nonce: str, answer: str) -> bool:
    """Whether the owner of a user's public key signed this number of the server's."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _decoded(public)
    try:
        signature = base64.urlsafe_b64decode(answer.translate({43: 45, 47: 95}).rstrip("=") + "==")
        Ed25519PublicKey.from_public_bytes(raw[1:]).verify(signature, nonce.encode())
    except (InvalidSignature, ValueError):
        return False
    return bool(nonce) and raw[0] == USER


def _encoded(raw: bytes) -> str:
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """Empty if it is not such a text."""
    try:
        checked = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return b""
    raw, crc = checked[:-2], checked[-2:]
    return raw if binascii.crc_hqx(raw, 0).to_bytes(2, "little") == crc else b""
