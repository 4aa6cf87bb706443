"""A device with a passkey, and the browser in front of it."""

import json
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ayes.ledger.passkeys import Assertion, Passkey
from ayes.ledger.signing import Signature, key_id
from ayes.schemas.base64url import base64url


class Authenticator:
    def __init__(
        self, rp: str, kind: str = "ES256", name: str = "ana/0", *, counts: bool = True
    ) -> None:
        self.rp = rp
        #: By how much its counter rises; one that is synchronised says 0 for ever.
        self.step = int(counts)
        self.is_ec = kind == "ES256"
        self._key = (
            generate_private_key(SECP256R1()) if self.is_ec else Ed25519PrivateKey.generate()
        )
        public = self._key.public_key()
        self.public = Passkey(
            name, rp, public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
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
        self.count += self.step
        said = {
            "type": "webauthn.get",
            "challenge": base64url(wanted),
            "origin": origin,
            "crossOrigin": False,
        }
        text = json.dumps(said | client, separators=(",", ":")).encode()
        domain = sha256((rp or self.rp).encode()).digest()
        data = domain + bytes([flags]) + self.count.to_bytes(4)
        return self.signed(data, text)

    def signed(self, data: bytes, text: bytes) -> Assertion:
        """Its signature of whatever a browser says."""
        signed = data + sha256(text).digest()
        if isinstance(self._key, Ed25519PrivateKey):
            return Assertion(data, text, self._key.sign(signed))
        return Assertion(data, text, self._key.sign(signed, ECDSA(SHA256())))

    def text(self, wanted: bytes, until: int, origin: str, **changed: Any) -> str:
        """Its signature of a vote, as the vote has it."""
        return str(Signature(key_id(self.public), until, self.signs(wanted, origin, **changed)))
