"""A call on which people have voted with keys and signatures of every odd kind, and which of these
votes are proved. Each program that judges a receipt must say the same of it.
"""

import json
import string
from collections.abc import Callable
from functools import partial
from hashlib import sha512
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sealed_site import Sealed
from shop import SECOND, rule
from signed_site import DESK

from ayes.ledger.seal import SignerKey, VerifierKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.schemas import events as e
from ayes.schemas.slots import key_slot

BOARD: Final = SignerKey("board", bytes([8] * 32))
_L: Final = 2**252 + 27742317777372353535851937790883648493
#: All encodings of points of small order: of the eight as RFC 8032 has them, and with a y from p on
#: or the sign of an x that is 0.
SMALL_ORDER: Final = tuple(
    map(
        bytes.fromhex,
        (
            "00" * 32,
            "00" * 31 + "80",
            "01" + "00" * 31,
            "ec" + "ff" * 30 + "7f",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
            "01" + "00" * 30 + "80",
            "ec" + "ff" * 31,
            "ed" + "ff" * 30 + "7f",
            "ed" + "ff" * 31,
            "ee" + "ff" * 30 + "7f",
            "ee" + "ff" * 31,
        ),
    )
)


def scalar(seed: bytes) -> int:
    """The secret number of a key (RFC 8032, section 5.1.5)."""
    return int.from_bytes(sha512(seed).digest()[:32], "little") & ~(7 | 1 << 255) | 1 << 254


def challenge(nonce: bytes, public: bytes, data: bytes) -> int:
    return int.from_bytes(sha512(nonce + public + data).digest(), "little")


def by_anybody(public: bytes, data: bytes) -> bytes:
    """A signature of a key of small order, made without any secret."""
    for number in range(1000):
        seed = number.to_bytes(32)
        nonce = SignerKey("x", seed).public.public
        if challenge(nonce, public, data) % 8 == 0:
            return nonce + (scalar(seed) % _L).to_bytes(32, "little")
    raise AssertionError("one of eight fits")


def without_nonce(key: SignerKey, seed: bytes, data: bytes) -> bytes:
    """A signature whose first half is the point of order 1."""
    nonce = (1).to_bytes(32, "little")
    product = challenge(nonce, key.public.public, data) * scalar(seed) % _L
    return nonce + product.to_bytes(32, "little")


def longer(signature: bytes) -> bytes:
    """A signature with the order of the group added to its second half."""
    more = int.from_bytes(signature[32:], "little") + _L
    return signature[:32] + more.to_bytes(32, "little")


class OddKey(SignerKey):
    """A key that signs in another way."""

    def __init__(self, public: VerifierKey, sign: Callable[[bytes], bytes]) -> None:
        self._public, self.sign = public, sign  # type: ignore[method-assign]

    @property
    def public(self) -> VerifierKey:
        return self._public


class OddVotes(Sealed):
    """A site on whose second call people vote oddly."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        #: By person, whether the vote is proved.
        self.expected = dict[str, bool]()
        self._written = dict[str, Callable[[str], str]]()

    async def person(
        self,
        name: str,
        *,
        is_proved: bool = False,
        key: SignerKey | None = None,
        added: Callable[[str], str] = str,
        confirmed: Callable[[str], Any] = lambda text: [text],
        voted: Callable[[str], str] = str,
        by: tuple[SignerKey, ...] = (DESK, BOARD),
    ) -> None:
        """Somebody with a key.

        Args:
            added: how the log has it.
            confirmed: what the log has of the signature of each root, in a fact of its own.
            voted: how the log has the signature of the vote.
        """
        log = await self.log.identity()
        key = self.keys[name] = key or lettered(f"{name}/{log}", len(self.keys))
        self.expected[name], self._written[name] = is_proved, voted
        ident, digest = key_id(key.public), key_digest(log, name, key.public)
        said: e.Event = e.KeyAdded(key=added(str(key.public)))
        await self.ledger.append(key_slot(name, ident, "added"), said)
        for number, one in enumerate(by):
            raw = {"type": "KeyConfirmed", "signatures": confirmed(signed(one, digest))}
            slot = key_slot(name, ident, "confirmed", f"r{number}")
            await self.log.append(slot, msgspec.json.encode(raw), "")

    async def vote(self, name: str) -> None:
        call = await self.ledger.call(SECOND)
        assert call.approval_request
        vote = e.Voted(verdict="approve", digest=call.approval_request.digest)
        vote = await self.at(name).reviewer(name)._signed(call, vote)
        vote = replace(vote, signature=self._written[name](vote.signature))
        await self.ledger.append(SECOND.vote(name), vote)


def lettered(name: str, number: int) -> SignerKey:
    """A key with a letter in its number and its id, so another case of them is another text."""
    for seed in range(1000):
        key = SignerKey(name, b"%03d" % seed + bytes([number]) * 29)
        if not key.public.id.hex().isdecimal() and not key_id(key.public).isdecimal():
            return key
    raise AssertionError("nearly each has one")


def garbage(signature: str) -> str:
    """Another signature by the same key, which is of nothing."""
    return f"{signature.rpartition('.')[0]}.{'A' * 86}"


def as_passkey(signature: str) -> str:
    """What says that the same key has made it as a passkey."""
    return f"{signature.rpartition('.')[0]}.AA.AA.AA".replace("ed25519", "webauthn")


def other_bits(signature: str) -> str:
    """The same signature, with other bits after its last byte."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    return signature[:-1] + letters[letters.index(signature[-1]) ^ 1]


def cased(text: str, part: int, by: str) -> str:
    parts = text.split(by)
    return by.join([*parts[:part], parts[part].upper(), *parts[part + 1 :]])


async def voted_oddly(path: Path) -> OddVotes:
    site = OddVotes(path)
    odd: dict[str, dict[str, Any]] = {
        "honest": {"is_proved": True},
        "spare": {"is_proved": True, "confirmed": lambda text: [text, garbage(text)]},
        "passkey-first": {"is_proved": True, "confirmed": lambda text: [as_passkey(text), text]},
        "by-passkeys": {"confirmed": lambda text: [as_passkey(text)]},
        "by-one": {"by": (DESK,)},
        "by-one-twice": {"by": (DESK, DESK)},
        "second-signature": {"confirmed": lambda text: [garbage(text), text]},
        "ending": {"confirmed": lambda text: [text.replace(".0.", ".9.", 1)]},
        "in-a-list": {"confirmed": lambda text: [[text]]},
        "beside-a-number": {"confirmed": lambda text: [text, 1]},
        "alone": {"confirmed": lambda text: text},
        "none": {"confirmed": lambda text: None},
        "root-padded": {"confirmed": lambda text: [f"{text}=="]},
        "root-other-bits": {"confirmed": lambda text: [other_bits(text)]},
        "root-upper-case": {"confirmed": lambda text: [cased(text, 2, ".")]},
        "vote-padded": {"voted": lambda text: f"{text}=="},
        "vote-other-bits": {"voted": other_bits},
        "vote-upper-case": {"voted": lambda text: cased(text, 2, ".")},
        "vote-line-feed": {"voted": lambda text: f"{text}\n"},
        "vote-blank": {"voted": lambda text: f" {text}"},
        "key-upper-case": {"added": lambda text: cased(text, 1, "+")},
        "key-other-number": {"added": lambda text: f"{text.split('+')[0]}+00000000+{text[-44:]}"},
        "key-padded": {"added": lambda text: f"{text}="},
    }
    for one in ("\n", " ", "\t", "\x1c", "\x85", "\xa0", "\ufeff", "\u3000"):
        odd[f"key-{ord(one):x}-after"] = {"added": lambda text, one=one: text + one}
        odd[f"key-{ord(one):x}-first"] = {"added": lambda text, one=one: one + text}
    small = {f"small-{number}": point for number, point in enumerate(SMALL_ORDER)}
    others = ["zoe", "yan", "without-nonce", "longer"]
    voters = [*odd, *small, *others]
    needed = f"votes_needed = {len(voters)}"
    asked = rule("money", "ask", f"voters = {json.dumps(voters)}", needed, "signed = true")
    roots = [str(one.public) for one in (DESK, BOARD)]
    await site.begin(asked, roots=roots, roots_needed=2, signed_since={"shop": 1})
    log = await site.log.identity()
    for name, how in odd.items():
        await site.person(name, **how)
    # With two names for one key, one person would have two votes.
    await site.person("silent")
    for name, first in ("zoe", "honest"), ("yan", "silent"):
        twin = site.keys[first]
        public = VerifierKey(f"{name}/{log}", twin.public.public)
        await site.person(name, key=OddKey(public, twin.sign))
    del site.expected["silent"]  # who does not vote
    for name, point in small.items():
        public = VerifierKey(f"{name}/{log}", point)
        await site.person(name, key=OddKey(public, partial(by_anybody, point)))
    for at, name in enumerate(others[2:], 50):
        seed = bytes([at] * 32)
        key = SignerKey(f"{name}/{log}", seed)
        ways = {
            "without-nonce": partial(without_nonce, key, seed),
            "longer": lambda data, key=key: longer(key.sign(data)),
        }
        await site.person(name, key=OddKey(key.public, ways[name]))
    async with site.gates():
        await site.ask(SECOND)
    for name in site.expected:
        await site.vote(name)
    return site
