"""Passkeys that a visitor adds, and what the console refuses where only signed votes count."""

import json
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import cbor2
import pytest
from authenticator import Authenticator
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key
from httpx import AsyncClient
from passkey_vectors import ORIGIN, RP, WANTED, taken_apart, vectors
from signed_site import DESK
from webauthn import verify_authentication_response
from webauthn.helpers.exceptions import InvalidAuthenticationResponse

from ayes.interfaces.console import serving
from ayes.ledger.keys import key_name
from ayes.ledger.passkeys import flaw
from ayes.ledger.signing import fingerprint, key_id, passkey_digest
from ayes.ledger.trust import Trust
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import BadInput
from ayes.schemas.events import KeyRevoked
from ayes.schemas.slots import KEYS, CallRef, key_slot

CALL = "shop/order-17/refund-1"
PAGE = "http://localhost:8420"


def cose(device: Authenticator) -> bytes:
    """The public key as devices have it (RFC 9052)."""
    public = load_der_public_key(device.public.spki)
    if isinstance(public, EllipticCurvePublicKey):
        at = public.public_numbers()
        return cbor2.dumps({1: 2, 3: -7, -1: 1, -2: at.x.to_bytes(32), -3: at.y.to_bytes(32)})
    return cbor2.dumps({1: 1, 3: -8, -1: 6, -2: public.public_bytes_raw()})


def made(device: Authenticator, challenge: bytes, **changed: Any) -> str:
    """What a browser says of a passkey that it has made."""
    given = {"type": "webauthn.create", "origin": PAGE, "flags": 0x45, "rp": device.rp} | changed
    client = {
        "type": given["type"],
        "challenge": base64url(challenge),
        "origin": given["origin"],
        "crossOrigin": False,
    }
    id_ = sha256(device.public.spki).digest()
    data = sha256(given["rp"].encode()).digest() + bytes([given["flags"]]) + bytes(4)
    data += bytes(16) + len(id_).to_bytes(2) + id_ + given.get("key", cose(device))
    attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
    return json.dumps(
        {
            "id": base64url(id_),
            "rawId": base64url(id_),
            "type": "public-key",
            "response": {
                "clientDataJSON": base64url(json.dumps(client).encode()),
                "attestationObject": base64url(attestation),
            },
        }
    )


async def trusting(shop: Any, **more: Any) -> Trust:
    """The console has a trust file."""
    log = await shop.service.log.identity()
    said = {"log": log, "roots": [str(DESK.public)], "rp": "localhost", "origins": [PAGE]}
    trust = Trust.model_validate(said | more)
    await shop.app.state.backend.reading.trust_in(trust)
    return trust


@pytest.mark.parametrize("kind", ["ES256", "Ed25519"])
async def test_a_passkey_is_added_and_waits_for_its_person(shop: Any, client: AsyncClient, kind):
    """It stands among the visitor's keys with its digits, and counts for nothing yet."""
    trust = await trusting(shop)
    device = Authenticator("localhost", kind, key_name("ana", trust.log))
    said = made(device, passkey_digest(trust.log, "ana"))
    answer = await client.post("/passkeys", data={"made": said})
    assert answer.status_code == 303
    page = (await client.get("/passkeys")).text
    assert fingerprint(device.public) in page
    assert "not confirmed yet, by nobody so far" in page
    assert f"ayes key confirm ana {fingerprint(device.public)} --as ana" in page
    [added] = await shop.service.read(KEYS)
    assert added.event.key == str(device.public)
    again = await client.post("/passkeys", data={"made": said})
    assert "among your keys already" in again.text
    # A device makes no second one beside it, and one in its place once it is revoked.
    shop.security.url = PAGE
    credential = base64url(sha256(device.public.spki).digest())
    assert credential in (await client.get("/passkeys")).text
    reviewer = await shop.app.state.backend.as_reviewer("ana")
    slot = key_slot("ana", key_id(device.public), "revoked", "ana")
    await reviewer.append(slot, KeyRevoked())
    page = (await client.get("/passkeys")).text
    assert "revoked at" in page
    assert credential not in page


@pytest.mark.parametrize(
    "changed",
    [
        {"flags": 0x41},  # the device did not ask who it is
        {"flags": 0x44},
        {"origin": "http://localhost:8421"},
        {"rp": "other.example"},
        {"type": "webauthn.get"},
        {"person": "ben"},
        {"key": cbor2.dumps({1: 3, 3: -257, -1: bytes(256), -2: b"\1\0\1"})},  # RSA
    ],
)
async def test_what_is_no_passkey_of_this_visitor_is_refused(
    shop: Any, client: AsyncClient, changed: dict[str, Any]
):
    """In one sentence, and nothing is recorded."""
    trust = await trusting(shop)
    device = Authenticator("localhost")
    digest = passkey_digest(trust.log, changed.pop("person", "ana"))
    answer = await client.post("/passkeys", data={"made": made(device, digest, **changed)})
    assert answer.status_code == 422
    assert "made no passkey that can be used here" in answer.text
    for broken in ("", "{}", "[]", '{"id":1}', "\0", "[" * 100_000):
        answer = await client.post("/passkeys", data={"made": broken})
        assert answer.status_code == 422
    assert await shop.service.read(KEYS) == ()


async def test_without_a_domain_in_the_trust_file_there_are_none(shop: Any, client: AsyncClient):
    await trusting(shop, rp="", origins=[])
    assert "the trust file names no <code>rp</code>" in (await client.get("/passkeys")).text
    answer = await client.post("/passkeys", data={"made": "{}"})
    assert answer.status_code == 409


async def test_nothing_is_recorded_unsigned_where_only_signed_votes_count(
    shop: Any, client: AsyncClient
):
    """Neither by votes on several calls, nor by an approval of such calls; both say so."""
    await trusting(shop, signed_since={"shop": 1})
    digest = await shop.ask(CALL)
    shown = {"verdict": "approve", "shown": f"{CALL} {digest}"}
    assert "only signed votes count" in (await client.post("/bulk", data=shown)).text
    assert (await client.get(f"/allow/{CALL}")).status_code == 403
    grant = {"call": CALL, "for_s": 60, "any_thread": True}
    answer = await client.post("/api/v1/grants", json=grant)
    assert "only signed grants count in shop" in answer.json()["detail"]
    assert (await shop.service.call(CallRef.parse(CALL))).votes == ()
    denied = {"verdict": "deny", "shown": f"{CALL} {digest}"}
    await client.post("/bulk", data=denied)
    assert (await shop.service.decision(CALL, timeout_s=60)).decided


async def test_a_browser_at_an_address_is_led_to_the_name(shop: Any, client: AsyncClient):
    """No passkey works at 127.0.0.1. A program goes on there."""
    shop.security.url, shop.security.local_name = PAGE, "localhost:8420"
    page = {"host": "127.0.0.1:8420", "sec-fetch-mode": "navigate"}
    answer = await client.get("/passkeys?x=1", headers=page)
    assert (answer.status_code, answer.headers["location"]) == (307, f"{PAGE}/passkeys?x=1")
    answer = await client.get("/api/v1/calls", headers={"host": "127.0.0.1:8420"})
    assert answer.status_code == 200
    answer = await client.get("/", headers=page | {"host": "localhost:8420"})
    assert answer.status_code == 200
    for name in "publickey-credentials-get", "publickey-credentials-create":
        assert name not in answer.headers["permissions-policy"]


async def test_the_console_is_opened_at_the_name_of_its_passkeys(shop: Any):
    """It says so if none can sign there, and takes no sign page but one of the trust file."""
    trust, store = await trusting(shop), shop.server.store
    async with serving.serving(store, "ana", trust=trust, port=0) as served:
        assert served.url.startswith("http://localhost:")
        assert f"No passkey signs at {served.url}: the trust file names {PAGE}." in served.notes
    async with serving.serving(store, "ana", port=0) as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert not any("passkey" in one for one in served.notes)
    async with serving.serving(store, "ana", trust=trust, port=0, sign_page=f"{PAGE}/s") as served:
        assert not any("passkey" in one for one in served.notes)
    # With the console's own page beside it, a sign page protects nobody.
    both = trust.model_copy(update={"origins": (PAGE, served.url)})
    port = urlsplit(served.url).port
    async with serving.serving(
        store, "ana", trust=both, port=port, sign_page=f"{PAGE}/s"
    ) as served:
        assert any("the sign page protects from no console" in one for one in served.notes)
    with pytest.raises(BadInput, match="is on none of the origins of the trust file"):
        async with serving.serving(store, "ana", trust=trust, port=0, sign_page="http://x/s"):
            pass


#: Vectors on which the library looks at less than we do, or reads more.
OURS_ALONE = (
    "in a frame", "a name twice", "blanks", "a line feed", "an escape", "an object",
    "a byte order mark", "a truth as text", "UTF-16", "cut", "of small order",
)  # fmt: skip


@pytest.mark.parametrize("vector", vectors(), ids=lambda one: one["name"])
def test_py_webauthn_refuses_the_same(vector: dict[str, Any]):
    """Of the vectors that all our programs judge, it takes no one that we refuse, but for what a
    reader of JSON forgives, for frames and for keys for which anybody can sign (D2).
    """
    key, said = taken_apart(vector)
    try:
        public = cose(_of(key))
        verify_authentication_response(
            credential={
                "id": "AAAA",
                "rawId": "AAAA",
                "type": "public-key",
                "response": {
                    "authenticatorData": base64url(said.authenticator),
                    "clientDataJSON": base64url(said.client),
                    "signature": base64url(said.signature),
                },
            },
            expected_challenge=WANTED,
            expected_rp_id=RP,
            expected_origin=ORIGIN,
            credential_public_key=public,
            credential_current_sign_count=0,
            require_user_verification=True,
        )
        taken = True
    except (InvalidAuthenticationResponse, ValueError):
        taken = False
    ours = flaw(key, said, WANTED, {ORIGIN}) == ""
    if any(one in vector["name"] for one in OURS_ALONE):
        assert not ours
    else:
        assert taken is ours


def _of(key: Any) -> Any:
    class Holder:
        public = key

    return Holder()
