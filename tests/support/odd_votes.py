"""A call on which people have voted with keys and signatures of every odd kind, and which of these
votes are proved. Each program that judges a receipt must say the same of it.
"""

import json
import string
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from authenticator import Authenticator
from msgspec.structs import replace
from sealed_site import PAGES, Sealed
from shop import SECOND, rule
from signed_site import DESK

from ayes.ledger import clock
from ayes.ledger.in_memory import Memory
from ayes.ledger.seal import SignerKey, VerifierKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.schemas import events as e
from ayes.schemas.slots import key_slot, person_slot

BOARD: Final = SignerKey("board", bytes([8] * 32))
CLERK, NIGHT = (SignerKey(name, bytes([at] * 32)) for at, name in ((6, "clerk"), (7, "night")))
#: What a reader trusts besides the roots, as the client and the page are given it.
CONFIRMERS: Final = [str(one.public) for one in (CLERK, NIGHT)]
LOST: Final = {"people": 2, "after": "60s"}
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


#: A key of a person, by its number or as a passkey, and what confirms it: whoever signs, another
#: number, or a person with their key; of a pair the second part says how it is written. Without any
#: it is revoked; None instead of a key: the name is another person's from then on.
type Step = tuple[Any, ...]


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
        self._added = set[str]()
        #: How far ahead the clock of the log is.
        self.ahead = timedelta()
        cast(Memory, self.log)._now = lambda: clock.now() + self.ahead

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

    async def person_with_keys(self, name: str, *steps: Step, is_proved: bool = False) -> None:
        """Somebody with several keys, of which number 1 signs the vote; or more about them."""
        log = await self.log.identity()
        self.expected[name], self._written[name] = is_proved, str
        self.keys[name] = numbered(name, log, 1)
        for at, (key, *by) in enumerate(steps):
            if key is None:
                await self.ledger.append(person_slot(name, 1), e.PersonAdded())
                continue
            pairs = [one if isinstance(one, tuple) else (one, str) for one in by]
            for one in (key, *(one for one, _ in pairs)):
                if not isinstance(one, str | SignerKey):
                    await self._add(name, numbered(name, log, one))
            public = numbered(name, log, key).public
            digest = key_digest(log, name, public)
            texts = tuple(written(self._signed(name, log, one, digest)) for one, written in pairs)
            said: e.Event = e.KeyConfirmed(signatures=texts) if by else e.KeyRevoked()
            place = "confirmed" if by else "revoked"
            await self.ledger.append(key_slot(name, key_id(public), place, f"r{at}"), said)

    async def _add(self, name: str, key: SignerKey | Authenticator) -> None:
        if key_id(key.public) not in self._added:
            self._added.add(key_id(key.public))
            await self.add(cast(SignerKey, key), name, None)

    def _signed(self, name: str, log: str, by: Any, digest: bytes) -> str:
        by = self.keys[by] if isinstance(by, str) else by
        by = numbered(name, log, by) if isinstance(by, int) else by
        if isinstance(by, Authenticator):
            return by.text(digest, 0, PAGES["origins"][0])
        return signed(by, digest)

    async def vote(self, name: str) -> None:
        call = await self.ledger.call(SECOND)
        assert call.approval_request
        vote = e.Voted(verdict="approve", digest=call.approval_request.digest)
        vote = await self.at(name).reviewer(name)._signed(call, vote)
        vote = replace(vote, signature=self._written[name](vote.signature))
        await self.ledger.append(SECOND.vote(name), vote)


def numbered(name: str, log: str, key: Any) -> Any:
    """A key of this person by its number; another thing is one."""
    seed = sha256(f"{name} {key}".encode()).digest()
    return SignerKey(f"{name}/{log}", seed) if isinstance(key, int) else key


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


def ending(signature: str) -> str:
    """The same signature with an end, which a confirmation has not."""
    return signature.replace(".0.", ".9.", 1)


_ROOTS: Final = (DESK, BOARD)
#: By person, whether key 1 is proved, and the steps.
_KEYS: Final[dict[str, tuple[bool, tuple[Step, ...]]]] = {
    "by-confirmers": (True, ((1, CLERK, NIGHT),)),
    "by-one-confirmer": (False, ((1, CLERK),)),
    "by-one-of-each": (False, ((1, DESK, CLERK),)),
    "by-older": (True, ((0, *_ROOTS), (1, 0))),
    "by-older-of-confirmers": (True, ((0, CLERK, NIGHT), (1, 0))),
    "by-older-of-older": (True, ((0, *_ROOTS), (2, 0), (1, 2))),
    "by-older-that-ended": (True, ((0, *_ROOTS), (1, 0), (0,))),
    "by-older-beside-others": (True, ((0, *_ROOTS), (1, "honest", CLERK, 0))),
    "by-ended": (False, ((0, *_ROOTS), (0,), (1, 0))),
    "by-ended-and-confirmed": (False, ((0, *_ROOTS), (0,), (0, *_ROOTS), (1, 0))),
    "by-older-and-ended": (False, ((0, *_ROOTS), (1, 0), (1,))),
    "by-unconfirmed": (False, ((1, 0),)),
    "by-confirmed-later": (False, ((1, 0), (0, *_ROOTS))),
    "by-of-a-name-anew": (False, ((0, *_ROOTS), (None,), (1, 0))),
    "by-itself": (False, ((0, *_ROOTS), (1, 1))),
    "in-a-circle": (False, ((1, 0), (0, 1), (1, 0))),
    "by-others": (True, ((0, *_ROOTS), (1, "honest", "spare"))),
    "by-others-apart": (True, ((0, *_ROOTS), (1, "honest"), (1, "spare"))),
    "by-others-of-ended": (True, ((0, *_ROOTS), (0,), (1, "honest", "spare"))),
    "by-others-and-ended": (False, ((0, *_ROOTS), (1, "honest", "spare"), (1,))),
    "by-one-other": (False, ((0, *_ROOTS), (1, "honest"), (1, "honest"))),
    "by-one-other-spelled-in-two-ways": (False, ((0, *_ROOTS), (1, "silent", "Silent"))),
    "by-others-without-loss": (False, ((1, "honest", "spare"),)),
    "by-others-who-do-not-count": (False, ((0, *_ROOTS), (1, "honest", "by-one"))),
    "by-others-forged": (False, ((0, *_ROOTS), (1, "honest", ("spare", garbage)))),
    "by-one-other-and-a-confirmer": (False, ((0, *_ROOTS), (1, "honest", CLERK))),
    "by-older-forged": (False, ((0, *_ROOTS), (1, (0, garbage)))),
    "by-older-as-passkey": (False, ((0, *_ROOTS), (1, (0, as_passkey)))),
    "by-older-ending": (False, ((0, *_ROOTS), (1, (0, ending)))),
}


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
        "ending": {"confirmed": lambda text: [ending(text)]},
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
    times = ["by-older-late", "again-late", "clock-ahead", "by-clock-ahead", "late-clock-behind"]
    times += ["by-others-too-late", "by-others-too-late-and-older"]
    voters = [*odd, *small, *others, *_KEYS, "by-passkey", *times]
    needed = f"votes_needed = {len(voters)}"
    asked = rule("money", "ask", f"voters = {json.dumps(voters)}", needed, "signed = true")
    roots = [str(one.public) for one in (DESK, BOARD)]
    trust = {"roots": roots, "roots_needed": 2, "confirmers": CONFIRMERS, "confirmers_needed": 2}
    trust |= {"lost": LOST}
    await site.begin(asked, signed_since={"shop": 1}, **trust, **PAGES)
    log = await site.log.identity()
    for name, how in odd.items():
        await site.person(name, **how)
    # With two names for one key, one person would have two votes.
    await site.person("silent")
    await site.person("Silent")
    for name, first in ("zoe", "honest"), ("yan", "silent"):
        twin = site.keys[first]
        public = VerifierKey(f"{name}/{log}", twin.public.public)
        await site.person(name, key=OddKey(public, twin.sign))
    del site.expected["silent"], site.expected["Silent"]  # who do not vote
    ended = key_slot("zoe", key_id(site.keys["honest"].public), "revoked", "zoe")
    await site.ledger.append(ended, e.KeyRevoked())  # of a key that is not zoe's
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
    for name, (is_proved, steps) in _KEYS.items():
        await site.person_with_keys(name, *steps, is_proved=is_proved)
    device = Authenticator(PAGES["rp"], name=f"by-passkey/{log}")
    await site.person_with_keys("by-passkey", (device, *_ROOTS), (1, device))
    site.ahead = timedelta(hours=1)
    await site.person_with_keys("clock-ahead", (1, *_ROOTS))
    await site.person_with_keys("by-clock-ahead", (0, *_ROOTS))
    site.ahead = timedelta()
    await site.person_with_keys("by-clock-ahead", (1, 0))
    await site.person_with_keys("by-older-late", (0, *_ROOTS), (2, 0))
    await site.person_with_keys("again-late", (0, *_ROOTS), (1, 0))
    site.ahead = timedelta(seconds=100)
    helped = (0, *_ROOTS), (1, "honest", "spare")
    await site.person_with_keys("by-others-too-late", *helped)
    await site.person_with_keys("by-others-too-late-and-older", *helped, (1, 0), is_proved=True)
    site.ahead = timedelta(seconds=120)
    async with site.gates():
        await site.ask(SECOND)
    await site.person_with_keys("by-older-late", (1, 2))
    await site.person_with_keys("again-late", (1, CLERK, NIGHT), is_proved=True)
    site.ahead = timedelta(hours=-1)
    await site.person_with_keys("late-clock-behind", (1, *_ROOTS))
    site.ahead = timedelta()
    for name in site.expected:
        await site.vote(name)
    return site
