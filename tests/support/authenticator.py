"""A device with a passkey, and the browser in front of it."""

import json
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ayes.ledger.passkeys import Assertion, Passkey
from ayes.schemas.base64url import base64url


class Authenticator:
    def __init__(self, rp: str, kind: str = "ES256") -> None:
        self.rp = rp
        self.is_ec = kind == "ES256"
        self._key = (
            generate_private_key(SECP256R1()) if self.is_ec else Ed25519PrivateKey.generate()
        )
        public = self._key.public_key()
        self.public = Passkey(
            rp, public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        )
        self.count = 0

    def signs(
        self,
        wanted: bytes,
        origin: str,
        *,
        rp: str | None = None,
        flags: int = 0x05,
        **client: Any,
    ) -> Assertion:
        """What it signs for a page of this origin."""
        self.count += 1
        said = {
            "type": "webauthn.get",
            "challenge": base64url(wanted),
            "origin": origin,
            "crossOrigin": False,
        }
        text = json.dumps(said | client, separators=(",", ":")).encode()
        domain = sha256((rp or self.rp).encode()).digest()
        data = domain + bytes([flags]) + self.count.to_bytes(4)
        signed = data + sha256(text).digest()
        if isinstance(self._key, Ed25519PrivateKey):
            return Assertion(data, text, self._key.sign(signed))
        return Assertion(data, text, self._key.sign(signed, ECDSA(SHA256())))
