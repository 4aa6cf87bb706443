"""Passkeys (W3C WebAuthn, level 3): keys in a person's device that sign after a gesture of theirs.

The browser signs what it says of the page, `clientDataJSON`, and what the device says of itself,
`authenticatorData`; the bytes that we want signed are the challenge in the first. All of it is kept
as it was made, since a browser may add fields at any time, and another spelling has another hash.

Two kinds of keys are taken, as COSE numbers them: ES256 (-7) and Ed25519 (-8). A key is written as

    webauthn+<name>+<RP ID>+<SubjectPublicKeyInfo (RFC 5280), DER, in base64>

Three programs judge passkeys: this one, the TypeScript client and the page that checks receipts.
So what is taken is narrow, and the same in each: of a key one encoding, of `clientDataJSON` one
object of plain texts and truth values, as every browser writes it.
"""

import base64
import binascii
import re
from collections.abc import Collection
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, Self

from msgspec import Struct

from ayes.ledger import ed25519
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import BadInput

_MARK: Final = "webauthn"
#: What stands before the bytes of a key in its SubjectPublicKeyInfo, and how many bytes follow:
#: Ed25519 (RFC 8410), and an uncompressed point of P-256 (RFC 5480).
_SPKI: Final = (
    (bytes.fromhex("302a300506032b6570032100"), 32),
    (bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004"), 64),
)
#: Flags of `authenticatorData`: somebody was there, and the device knows that it was this person.
_PRESENT: Final = 0x01
_VERIFIED: Final = 0x04
#: The SHA-256 of the RP ID, the flags and a counter; extensions may follow.
_SHORTEST: Final = 37
_MEMBER: Final = re.compile(r'"([A-Za-z0-9_]+)":("[^"\\\x00-\x1f]*"|true|false)')
_CLIENT: Final = re.compile(rf"\{{(?:{_MEMBER.pattern})(?:,(?:{_MEMBER.pattern}))*\}}")


class Assertion(NamedTuple):
    """What a device and its browser have signed."""

    authenticator: bytes
    client: bytes
    signature: bytes

    @property
    def counter(self) -> int:
        """How many signatures the device says that it has made; 0: it does not count."""
        return int.from_bytes(self.authenticator[33:_SHORTEST])


class Passkey(Struct, frozen=True):
    """A public key, and the domain for which it was made."""

    #: Of whom and for which log.
    name: str
    #: The RP ID: a domain name, or `localhost`.
    rp: str
    #: As SubjectPublicKeyInfo.
    spki: bytes

    def __str__(self) -> str:
        return f"{_MARK}+{self.name}+{self.rp}+{base64.b64encode(self.spki).decode()}"

    @classmethod
    def is_written(cls, text: str) -> bool:
        """Whether a text says that it is a passkey."""
        return text.startswith(f"{_MARK}+")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a key.

        Raises:
            BadInput: it is not one, or not of a kind that is taken.
        """
        mark, _, rest = text.partition("+")
        name, _, rest = rest.partition("+")
        rp, _, key = rest.partition("+")
        try:
            found = cls(name, rp, base64.b64decode(key, validate=True))
        except (binascii.Error, ValueError):
            found = None
        is_whole = found is not None and str(found) == text and bool(name and rp)
        if found is None or mark != _MARK or not is_whole or not is_taken(found.spki):
            raise BadInput(f"{text[:200]!r} is not a passkey with ES256 or Ed25519.")
        return found


def is_taken(spki: bytes) -> bool:
    """Whether it is a key of a kind that is taken, in its one encoding, and not one for which
    anybody can sign.
    """
    for head, more in _SPKI:
        if spki.startswith(head) and len(spki) == len(head) + more:
            return head != _SPKI[0][0] or ed25519.is_sound(spki[len(head) :])
    return False


def flaw(key: Passkey, said: Assertion, challenge: bytes, origins: Collection[str]) -> str:
    """Why this is not what the key's person has signed; empty if it is.

    Args:
        origins: of the pages that may ask, such as `https://ayes.example.com`. The RP ID is not
            enough: every host below it, and on `localhost` every port, may use the key.
    """
    client, data = _members(said.client), said.authenticator
    if client is None or len(data) < _SHORTEST:
        return "it is not what a browser signs"
    if client.get("type") != "webauthn.get":
        return "it was made for something else than to sign"
    if client.get("challenge") != base64url(challenge):
        return "it is about something else"
    if client.get("origin") not in origins:
        return f"it was made on a page of {str(client.get('origin'))[:200]!r}"
    if client.get("crossOrigin", False) is not False or "topOrigin" in client:
        return "the page was in a frame of another one"
    if data[:32] != sha256(key.rp.encode()).digest():
        return f"the key was used for another domain than {key.rp}"
    if data[32] & _PRESENT == 0 or data[32] & _VERIFIED == 0:
        return "the device did not ask who its person is"
    return "" if is_signed(key.spki, said) else "another key has signed it"


@lru_cache(4096)
def is_signed(spki: bytes, said: Assertion) -> bool:
    """Whether this key has signed it, whatever it is about."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        SECP256R1,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    data = said.authenticator + sha256(said.client).digest()
    try:
        match load_der_public_key(spki):
            case EllipticCurvePublicKey(curve=SECP256R1()) as key:
                key.verify(said.signature, data, ECDSA(SHA256()))
            case Ed25519PublicKey() as key:
                return ed25519.verifies(key.public_bytes_raw(), said.signature, data)
            case _:
                return False
    except (InvalidSignature, ValueError):
        return False
    return True


def _members(text: bytes) -> dict[str, str | bool] | None:
    """The members of `clientDataJSON`, each once; None if it is not written as browsers do."""
    try:
        whole = text.decode()
    except UnicodeDecodeError:
        return None
    if _CLIENT.fullmatch(whole) is None:
        return None
    pairs = _MEMBER.findall(whole)
    found = {name: value == "true" if value[0] != '"' else value[1:-1] for name, value in pairs}
    return found if len(found) == len(pairs) else None
