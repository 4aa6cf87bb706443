"""Passkeys (W3C WebAuthn, level 3): keys in a person's device that sign after a gesture of theirs.

The browser signs what it says of the page, `clientDataJSON`, and what the device says of itself,
`authenticatorData`; the bytes that we want signed are the challenge in the first. All of it is kept
as it was made, since a browser may add fields at any time, and another spelling has another hash.

Two kinds of keys are taken, as COSE numbers them: ES256 (-7) and Ed25519 (-8).
"""

import json
from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ayes.ledger import ed25519
from ayes.schemas.base64url import base64url

#: Flags of `authenticatorData`: somebody was there, and the device knows that it was this person.
_PRESENT: Final = 0x01
_VERIFIED: Final = 0x04
#: The SHA-256 of the RP ID, the flags and a counter; extensions may follow.
_SHORTEST: Final = 37


class Assertion(NamedTuple):
    """What a device and its browser have signed."""

    authenticator: bytes
    client: bytes
    signature: bytes


class Passkey(Struct, frozen=True):
    """A public key, and the domain for which it was made."""

    #: The RP ID: a domain name, or `localhost`.
    rp: str
    #: As SubjectPublicKeyInfo (RFC 5280), DER.
    spki: bytes


def flaw(key: Passkey, said: Assertion, challenge: bytes, origins: Collection[str]) -> str:
    """Why this is not what the key's person has signed; empty if it is.

    Args:
        origins: of the pages that may ask, such as `https://ayes.example.com`. The RP ID is not
            enough: every host below it, and on `localhost` every port, may use the key.
    """
    client, data = _object(said.client), said.authenticator
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
    signed = data + sha256(said.client).digest()
    return "" if _verifies(key.spki, said.signature, signed) else "another key has signed it"


def _verifies(spki: bytes, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        SECP256R1,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        match load_der_public_key(spki):
            case EllipticCurvePublicKey(curve=SECP256R1()) as key:
                key.verify(signature, data, ECDSA(SHA256()))
            case Ed25519PublicKey() as key:
                return ed25519.verifies(key.public_bytes_raw(), signature, data)
            case _:
                return False
    except (InvalidSignature, ValueError):
        return False
    return True


def _object(text: bytes) -> dict[str, Any] | None:
    """A JSON object in which no name stands twice."""

    def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        pairs = list(pairs)
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
