"""The visitor's keys, and the passkeys among them. Only the console's own pages use them: a passkey
is made by a browser, for the page that asks it.
"""

from typing import Final

from msgspec import Struct

from ayes.interfaces.api.identity import Reviewing
from ayes.ledger.keys import key_name
from ayes.ledger.passkeys import Passkey, is_taken
from ayes.ledger.signing import fingerprint, key_id, passkey_digest
from ayes.ledger.trust import Trust
from ayes.schemas import events as e
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import AlreadyFilled, BadInput, NotOpen
from ayes.schemas.slots import key_slot

_MAX: Final = 100_000


class KeyState(Struct, frozen=True):
    """A key of the visitor's."""

    id: str
    #: The digits by which people compare it.
    fingerprint: str
    is_passkey: bool
    #: By which its device finds a passkey, in base64url.
    credential: str
    #: Whether it counts, in words.
    standing: str
    #: Whether it waits for a confirmation.
    is_new: bool
    is_revoked: bool


def trust_of(visit: Reviewing) -> Trust | None:
    """The trust file, if people vote with passkeys here."""
    trust = visit.backend.reading.trust
    return trust if trust is not None and trust.rp else None


async def keys_of(visit: Reviewing) -> list[KeyState]:
    """The visitor's keys, in the order of the log; none without a trust file."""
    if (trust := visit.backend.reading.trust) is None:
        return []
    keys, now = await visit.backend.reading.keys_of(trust), await visit.reading.log.clock()
    return [
        KeyState(
            one.id,
            fingerprint(one.public),
            isinstance(one.public, Passkey),
            credential_of(one.added.event),
            one.standing(now),
            one.counts_from is None and one.revoked is None,
            one.revoked is not None,
        )
        for one in keys.of(visit.name)
    ]


def challenge_of(person: str, trust: Trust) -> bytes:
    """With what a browser makes a passkey of this person."""
    return passkey_digest(trust.log, person)


def credential_of(event: object) -> str:
    return event.credential if isinstance(event, e.KeyAdded) else ""


async def register(visit: Reviewing, made: str) -> None:
    """Add the passkey that a browser has made, as JSON. It counts once it is confirmed.

    Raises:
        NotOpen: nobody votes with passkeys here.
        BadInput: it is not one of this visitor's, for this log and these pages, or the device did
            not ask who they are.
        AlreadyFilled: the visitor has it.
    """
    if (trust := trust_of(visit)) is None:
        raise NotOpen("nobody votes with passkeys here: the trust file names no rp.")
    key, credential = _read(made, visit.name, trust)
    added = e.KeyAdded(key=str(key), credential=credential)
    slot = key_slot(visit.name, key_id(key), "added")
    if await (await visit.as_reviewer()).try_append(slot, added) is not None:
        raise AlreadyFilled("this passkey is among your keys already. Nothing was recorded.")


def _read(made: str, person: str, trust: Trust) -> tuple[Passkey, str]:
    """The passkey, and its device's name for it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from webauthn import verify_registration_response
    from webauthn.helpers import decode_credential_public_key, decoded_public_key_to_cryptography
    from webauthn.helpers.cose import COSEAlgorithmIdentifier
    from webauthn.helpers.exceptions import WebAuthnException

    try:
        found = verify_registration_response(
            credential=made[:_MAX],
            expected_challenge=challenge_of(person, trust),
            expected_rp_id=trust.rp,
            expected_origin=[*trust.origins],
            require_user_verification=True,
            supported_pub_key_algs=[
                COSEAlgorithmIdentifier.ECDSA_SHA_256,
                COSEAlgorithmIdentifier.EDDSA,
            ],
        )
        cose = decode_credential_public_key(found.credential_public_key)
        public = decoded_public_key_to_cryptography(cose)
    except (WebAuthnException, ValueError, TypeError, LookupError, RecursionError) as problem:
        raise BadInput(
            f"the browser made no passkey that can be used here: {problem}. It must ask who you "
            "are (a PIN, a fingerprint, a face), and sign with ES256 or Ed25519."
        ) from None
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if not is_taken(spki):
        raise BadInput("the passkey is neither of P-256 nor of Ed25519. Use another device.")
    name = key_name(person, trust.log)
    return Passkey(name, trust.rp, spki), base64url(found.credential_id)
