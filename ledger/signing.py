r"""What people sign with keys of their own, and the text of a signature.

The signed bytes are the SHA-256 of

    <purpose>\n<length>:<field><length>:<field>...

without blanks. A length is the decimal count of a field's UTF-8 bytes. All fields of a purpose are
always there, in one order, and an absent one is `0:`. So no two different things have the same
bytes, and no signature for one purpose is valid for another. A signature is written as

    ed25519.1.<key>.<until>.<signature>
    webauthn.1.<key>.<until>.<authenticatorData>.<clientDataJSON>.<signature>

with the key's id, an end in seconds since 1970 (0: none), and base64url without padding. The second
one is made with a passkey, whose challenge is the SHA-256; it signs votes and nothing else
(docs/decisions/0087).
"""

import base64
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, Self

from msgspec import Struct

from ayes.ledger.passkeys import Assertion, Passkey
from ayes.ledger.seal import SignerKey, VerifierKey
from ayes.schemas import events as e
from ayes.schemas.base64url import base64url
from ayes.schemas.digest import call_digest, text_digest
from ayes.schemas.slots import CallRef, DelegationRef, GrantRef

#: How long after it was signed a vote may be recorded, in seconds.
MAX_LIFE_S: Final = 300
#: By how much the clock of whoever signs may differ from the broker's, in seconds.
MAX_SKEW_S: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: An end of at most 12 digits is a time that `datetime` can be compared with.
_WRITTEN: Final = re.compile(
    r"(?:ed25519|webauthn)\.1\.([0-9a-f]{16})\.(0|[1-9][0-9]{0,11})\."
    r"(?:([A-Za-z0-9_-]{86})"
    r"|([A-Za-z0-9_-]{1,1400})\.([A-Za-z0-9_-]{1,2800})\.([A-Za-z0-9_-]{1,110}))"
)
#: What stands before the 32 bytes of a public key of Ed25519 in a SubjectPublicKeyInfo (RFC 8410).
_SPKI: Final = bytes.fromhex("302a300506032b6570032100")


#: A key with which a person signs.
type PublicKey = VerifierKey | Passkey


def parse_key(text: str) -> PublicKey:
    """Read a person's key.

    Raises:
        BadInput: it is not one.
    """
    return Passkey.parse(text) if Passkey.is_written(text) else VerifierKey.parse(text)


def fingerprint(key: PublicKey) -> str:
    """32 hex digits by which people compare a key, in groups of four: the first of the SHA-256 of
    its SubjectPublicKeyInfo.
    """
    spki = key.spki if isinstance(key, Passkey) else _SPKI + key.public
    digits = sha256(spki).hexdigest()[:32]
    return " ".join(digits[at : at + 4] for at in range(0, 32, 4))


def key_id(key: PublicKey) -> str:
    """The id of a key in slots and signatures: the first 16 digits of its fingerprint."""
    return fingerprint(key).replace(" ", "")[:16]


class Signature(NamedTuple):
    """A signature in the form of a text."""

    key: str
    until: int
    raw: bytes | Assertion

    def __str__(self) -> str:
        kind, parts = (
            ("webauthn", self.raw) if isinstance(self.raw, Assertion) else ("ed25519", (self.raw,))
        )
        return ".".join((kind, "1", self.key, str(self.until), *map(base64url, parts)))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a signature; None if it is not one, or written in another way than ours."""
        if (said := _WRITTEN.fullmatch(text)) is None:
            return None
        key, until, one, *three = said.groups()
        try:
            raw, *more = (_decoded(part) for part in ((one,) if one else three))
        except ValueError:
            return None
        found = cls(key, int(until), Assertion(raw, *more) if more else raw)
        return found if str(found) == text else None

    def is_of(self, key: VerifierKey, digest: bytes) -> bool:
        """Whether it is the signature of this digest by a key that is no passkey."""
        return isinstance(self.raw, bytes) and _is_of(key, self.raw, digest)


@lru_cache(4096)
def _is_of(key: VerifierKey, raw: bytes, digest: bytes) -> bool:
    """Gate and executor judge the same votes, often in one process. (Whether the key counts is not
    asked here.)
    """
    return key.verifies(raw, digest)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def signed(key: SignerKey, digest: bytes, until: int = 0) -> str:
    """The signature of a digest, as a text."""
    return str(Signature(key_id(key.public), until, key.sign(digest)))


def is_fresh(until: int, recorded_at: datetime) -> bool:
    """Whether what ends then was recorded before, and not long before."""
    return 0 <= until - recorded_at.timestamp() <= MAX_LIFE_S


class Bound(Struct, frozen=True):
    """The log and the facts of a call that a signed vote is bound to."""

    #: The identity of the log.
    log: str
    #: The SHA-256 of each of these facts, as the log has it.
    requested: str
    gated: str
    #: The SHA-256 of the text of the policy that the question names; empty: it names none.
    policy: str


def vote_digest(
    bound: Bound, ref: CallRef, wish: e.ToolRequested, reviewer: str, vote: e.Voted, until: int
) -> bytes:
    """What the signature of a vote signs."""
    is_answer = bool(vote.answer) or vote.is_error
    arguments = wish.arguments if vote.arguments is None else vote.arguments
    return _digest(
        "ayes vote 1",
        (
            bound.log,
            ref.workspace,
            ref.thread,
            ref.call,
            reviewer,
            vote.on_behalf_of,
            vote.verdict,
            "1" if vote.halt else "",
            call_digest(wish.tool, wish.tool_version, arguments),
            text_digest(f"{'error' if vote.is_error else 'answer'}\n{vote.answer}")
            if is_answer
            else "",
            text_digest(vote.reason) if vote.reason else "",
            bound.requested,
            bound.gated,
            bound.policy,
            str(until),
        ),
    )


def delegation_digest(log: str, ref: DelegationRef, given: e.Delegated) -> bytes:
    """What the signature of a delegation signs."""
    starts, ends = ((at - _EPOCH) // _MICROSECOND for at in (given.starts_at, given.ends_at))
    fields = (log, ref.workspace, ref.giver, ref.name, given.to, str(starts), str(ends))
    tools, reason = _digest("tools", given.tools).hex(), given.reason and text_digest(given.reason)
    return _digest("ayes delegation 1", (*fields, tools, reason))


def grant_digest(log: str, ref: GrantRef, granted: e.Granted, until: int) -> bytes:
    """What the signature of a grant signs."""
    scope = (granted.when, granted.agent, granted.thread)
    fields = (
        log,
        ref.workspace,
        ref.giver,
        ref.name,
        granted.tool,
        str(round(granted.expires_in_s * 1_000_000)),
        str(granted.uses),
        "" if granted.arguments is None else text_digest(granted.arguments),
        *scope,
        granted.reason and text_digest(granted.reason),
        str(until),
    )
    return _digest("ayes grant 1", fields)


def key_digest(log: str, person: str, key: PublicKey) -> bytes:
    """What the confirmation of a person's key signs."""
    return _digest("ayes key 1", (log, person, str(key)))


def passkey_digest(log: str, person: str) -> bytes:
    """The challenge with which a person's passkey is made. A device signs nothing as it makes one,
    so it is no secret, and may be the same each time.
    """
    return _digest("ayes passkey 1", (log, person))


def policy_digest(log: str, owner: str, version: int, text: str) -> bytes:
    """What the signature of a policy signs."""
    return _digest("ayes policy 1", (log, owner, str(version), text_digest(text)))


def _digest(purpose: str, fields: Iterable[str]) -> bytes:
    encoded = [field.encode() for field in fields]
    return sha256(
        b"".join([f"{purpose}\n".encode(), *(b"%d:%b" % (len(one), one) for one in encoded)])
    ).digest()
