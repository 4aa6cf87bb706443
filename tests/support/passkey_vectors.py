"""What passkeys have signed, right and wrong: one file that every program which judges them reads.

Run as a program, it makes the file anew.
"""

import base64
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

from authenticator import Authenticator
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from msgspec.structs import replace
from odd_votes import SMALL_ORDER, by_anybody
from paths import ROOT

from ayes.ledger.passkeys import Assertion, Passkey
from ayes.ledger.signing import Signature, key_id

FILE: Final = ROOT / "tests" / "data" / "passkeys.json"
RP, ORIGIN = "ayes.example", "https://sign.ayes.example"
WANTED: Final = bytes(range(32))
#: The order of P-256: with a signature (r, s), (r, order - s) is one too.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

#: Each with what is changed, and whether it is taken.
_CHANGED: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "as asked": ({}, True),
    "with what a browser adds": ({"other_keys_can_be_added_here": "do not compare it"}, True),
    "synchronised and backed up": ({"flags": 0x1D}, True),
    "without a look at who it is": ({"flags": 0x01}, False),
    "without anybody": ({"flags": 0x04}, False),
    "of another domain": ({"rp": "other.example"}, False),
    "of a domain above": ({"rp": "example"}, False),
    "on another page of the domain": ({"origin": "https://ayes.example"}, False),
    "on another port": ({"origin": f"{ORIGIN}:8443"}, False),
    "in a frame": ({"crossOrigin": True}, False),
    "in a frame, it says so": ({"topOrigin": ORIGIN}, False),
    "of another call": ({"challenge": "AAAA"}, False),
    "as a key was made": ({"type": "webauthn.create"}, False),
}


def vectors() -> list[dict[str, Any]]:
    return json.loads(FILE.read_text())


def taken_apart(vector: dict[str, Any]) -> tuple[Passkey, Assertion]:
    """The key and the assertion of a vector."""
    key = vector["key"].split("+", 3)
    said = [base64.b64decode(one) for one in vector["said"]]
    return Passkey(key[1], key[2], base64.b64decode(key[3])), Assertion(*said)


def _made() -> Iterator[dict[str, Any]]:
    for kind in "ES256", "Ed25519":
        device, other = Authenticator(RP, kind), Authenticator(RP, kind)
        for name, (changed, is_taken) in _CHANGED.items():
            said = device.signs(WANTED, **({"origin": ORIGIN} | changed))
            yield _vector(f"{kind}, {name}", device.public, said, is_taken)
        said = device.signs(WANTED, ORIGIN)
        yield _vector(f"{kind}, by another key", other.public, said, False)
        yield _vector(f"{kind}, cut", device.public, said._replace(authenticator=bytes(36)), False)
        for name, client in _clients(said.client.decode()):
            signed = device.signed(said.authenticator, client)
            yield _vector(f"{kind}, {name}", device.public, signed, False)
        for name, signature, is_taken in _signatures(said.signature, kind):
            changed = said._replace(signature=signature)
            yield _vector(f"{kind}, {name}", device.public, changed, is_taken)
        yield _vector(f"{kind}, of no key", Passkey("ana/0", RP, b"no key"), said, False)
    for number, point in enumerate(SMALL_ORDER):
        key = replace(device.public, spki=device.public.spki[:-32] + point)
        signed = by_anybody(point, said.authenticator + sha256(said.client).digest())
        changed = said._replace(signature=signed)
        yield _vector(f"Ed25519, of small order, {number}", key, changed, False)


def _clients(text: str) -> Iterator[tuple[str, bytes]]:
    """The same in forms that readers understand differently."""
    origin = f'"origin":"{ORIGIN}"'
    for name, other in (
        ("a name twice", text.replace(origin, f'"origin":"https://evil.example",{origin}')),
        ("a name twice, the first right", text.replace("}", ',"origin":"https://evil.example"}')),
        ("blanks", text.replace(",", ", ")),
        ("a line feed after it", f"{text}\n"),
        ("an escape", text.replace("webauthn", "web\\u0061uthn")),
        ("an escaped name", text.replace('"type"', '"typ\\u0065"')),
        ("a byte order mark", f"\N{ZERO WIDTH NO-BREAK SPACE}{text}"),
        ("an object in it", text.replace("}", ',"more":{}}')),
        ("a truth as text", text.replace("false", '"false"')),
    ):
        yield name, other.encode()
    yield "UTF-16", text.encode("utf-16")
    yield "no text", text.encode()[:-1] + b"\xff}"


def _signatures(signature: bytes, kind: str) -> Iterator[tuple[str, bytes, bool]]:
    yield "a byte after it", signature + b"\0", False
    yield "a byte less", signature[:-1], False
    yield "empty", b"", False
    if kind == "ES256":
        r, s = decode_dss_signature(signature)
        yield "the other one of its kind", encode_dss_signature(r, _ORDER - s), True
        yield "zero", encode_dss_signature(0, 0), False
        yield "over the order", encode_dss_signature(r, s + _ORDER), False
        head, value = signature[:2], signature[4:]
        padded = bytes([head[0], head[1] + 1, 2, signature[3] + 1, 0]) + value
        yield "a zero before it", padded, False
        yield "a length in two bytes", bytes([0x30, 0x81, head[1]]) + signature[2:], False
        yield "without DER", r.to_bytes(32) + s.to_bytes(32), False


def _vector(name: str, key: Passkey, said: Assertion, is_taken: bool) -> dict[str, Any]:
    text = str(Signature(key_id(key), 1_800_000_000, said))
    parts = [base64.b64encode(one).decode() for one in said]
    is_key = "of no key" not in name and "of small order" not in name
    return {
        "name": name,
        "key": str(key),
        "is_key": is_key,
        "signature": text,
        "said": parts,
        "taken": is_taken,
    }


if __name__ == "__main__":
    made = {one["name"]: one for one in _made()}
    FILE.write_text(json.dumps([*made.values()], indent=1) + "\n")
