"""Whose keys are in force, by the facts about them in the order of the log.

A key is added by its person and counts for nothing until it is confirmed with signatures, whoever
records these: of as many roots or confirmers as the trust file says, or of an older key of that
person. If all of a person's keys are lost, as many others as it says confirm a new one, and it
counts after a time in which anybody may revoke it. A key is of one person and one log; it is
written with both, so none counts under another name or elsewhere.

A passkey signs votes and nothing else: on a page that is not honest, a gesture that was meant for
one vote would otherwise confirm a key, or give grants.

Once a name stands for nobody, or for somebody else, no key that it had counts any more.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.passkeys import Assertion, Passkey, flaw, is_signed
from ayes.ledger.seal import VerifierKey
from ayes.ledger.signing import Bound, PublicKey, Signature, key_digest, key_id, parse_key
from ayes.ledger.trust import Lost, Trust
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.people import plain


class PersonKey(Struct, frozen=True):
    """A key of a person, as of a moment."""

    person: str
    id: str
    public: PublicKey
    added: Fact
    #: Of the pages on which a passkey signs.
    origins: Collection[str] = ()
    #: The ids of the roots and confirmers that have confirmed it.
    by: frozenset[str] = frozenset()
    #: The names of others who have, after its person had a key that was confirmed.
    others: frozenset[str] = frozenset()
    #: The fact by which it is confirmed; None: it is not.
    confirmed: Fact | None = None
    #: From when on it counts, by the clock of the log.
    counts_from: datetime | None = None
    #: Its revocation, or the end of its person's name.
    revoked: Fact | None = None

    def counts(self, at: Fact, until: int | None = None) -> bool:
        """Whether it was confirmed before a fact.

        Args:
            until: and not revoked before that number of the log; None: not at all.
        """
        return (
            self.confirmed is not None
            and self.counts_from is not None
            and self.confirmed.seq < at.seq
            and self.counts_from <= at.recorded_at
            and (self.revoked is None or (until is not None and self.revoked.seq >= until))
        )

    def standing(self, now: datetime) -> str:
        """Whether it counts, in words."""
        if self.revoked is not None:
            return f"revoked at {self.revoked.recorded_at:%Y-%m-%d %H:%M:%S} UTC"
        if self.counts_from is None:
            by = ", ".join(sorted(self.by | self.others)) or "nobody"
            return f"not confirmed yet, by {by} so far"
        word = "counts since" if self.counts_from <= now else "will count from"
        return f"{word} {self.counts_from:%Y-%m-%d %H:%M:%S} UTC"

    def signed(self, signature: Signature, digest: bytes) -> bool:
        """Whether it is this key's signature of a digest; a passkey signs nothing but votes."""
        return isinstance(self.public, VerifierKey) and signature.is_of(self.public, digest)

    def voted(self, signature: Signature, digest: bytes) -> bool:
        """Whether it is this key's signature of a vote."""
        match self.public, signature.raw:
            case Passkey() as public, Assertion() as said:
                return not flaw(public, said, digest, self.origins)
            case _:
                return self.signed(signature, digest)


class Keys(Struct, frozen=True):
    """People's keys, by id: a key with two names would let one person vote twice."""

    each: dict[str, PersonKey] = {}

    def of(self, person: str) -> tuple[PersonKey, ...]:
        return tuple(one for one in self.each.values() if one.person == person)

    def confirmed(self, person: str) -> tuple[PersonKey, ...]:
        """Those that count, or did."""
        return tuple(one for one in self.of(person) if one.confirmed is not None)

    def get(self, person: str, key: str) -> PersonKey | None:
        found = self.each.get(key)
        return found if found is not None and found.person == person else None


class Signatures(Struct, frozen=True):
    """By what the signatures of a call's votes are judged."""

    bound: Bound
    keys: Keys = Keys()
    #: The votes that do not count by the counters of their passkeys (`Counters`).
    fallen: dict[int, Fact] = {}
    #: Whether the trust file wants them signed, whatever the question says.
    is_wanted: bool = False
    #: The number of the log from which on revocations change nothing; None: they all count.
    until: int | None = None


#: What must be known of keys.
ABOUT_KEYS: Final = (e.KeyAdded, e.KeyConfirmed, e.KeyRevoked, e.PersonAdded, e.PersonRemoved)


def keys_of(facts: Iterable[Fact], trust: Trust) -> Keys:
    """The keys, by all facts about them and about removals, in the order of the log."""
    each = dict[str, PersonKey]()
    keys = Keys(each)
    for fact in facts:
        match fact.event, fact.slot.tail:
            case e.KeyAdded(key=text), (_, person, key, "added") if key not in each:
                public = _public(text, person, key, trust)
                if public is not None:
                    each[key] = PersonKey(person, key, public, fact, trust.origins)
            case e.KeyConfirmed(), (_, person, key, *_) if keys.get(person, key):
                each[key] = _confirmed(keys, each[key], fact, trust)
            case e.KeyRevoked(), (_, person, key, *_) if keys.get(person, key):
                each[key] = _revoked(each[key], fact)
            case e.PersonAdded() | e.PersonRemoved(), (_, name, _):
                for key, one in each.items():
                    if plain(one.person) == plain(name):
                        each[key] = _revoked(one, fact)
            case _:
                pass
    return keys


def _public(text: str, person: str, key: str, trust: Trust) -> PublicKey | None:
    """The key that a person adds; None if it is not written as one of theirs, in this log and for
    the domain of its pages.
    """
    try:
        public = parse_key(text)
    except BadInput:
        return None
    is_theirs = public.name == key_name(person, trust.log) and key_id(public) == key
    is_here = not isinstance(public, Passkey) or public.rp == trust.rp
    return public if is_theirs and is_here else None


class Counters:
    """Which votes of a person do not count by the counters of their passkeys: of two devices with
    one key, one is a copy (WebAuthn, 7.2, "signCount").

    A counter that has always been 0 counts nothing. What a key has not signed says nothing of its
    counter, and what it has signed does, whatever it is about.

    Args:
        keys: those whose votes count at all, so that nobody has them read again by adding others.
    """

    def __init__(self, keys: Iterable[PersonKey]) -> None:
        self.keys = {one.id: one.public.spki for one in keys if isinstance(one.public, Passkey)}
        #: How many votes were added, and the number of the last one.
        self.count = self.last = 0
        #: By number the votes that do not count, each with one whose counter was as high before.
        self.fallen: dict[int, Fact] = {}
        self._highest: dict[str, tuple[int, Fact]] = {}

    def add(self, votes: Iterable[Fact]) -> None:
        """Add votes of the person, in the order of the log and without a gap; earlier ones change
        nothing.
        """
        for fact in votes:
            if fact.seq <= self.last:
                continue
            self.count, self.last = self.count + 1, fact.seq
            if (signature := assertion_of(fact)) is None:
                continue
            spki, said = self.keys.get(signature.key), signature.raw
            assert isinstance(said, Assertion)
            if spki is None or not is_signed(spki, said):
                continue
            before, vote = self._highest.get(signature.key, (0, fact))
            if said.counter <= before and (said.counter or before):
                self.fallen[fact.seq] = vote
            if said.counter > before:
                self._highest[signature.key] = said.counter, fact


def assertion_of(vote: Fact) -> Signature | None:
    """The signature of a vote, if it says that it was made with a passkey."""
    event = vote.event
    if not isinstance(event, e.Voted) or not event.signature.startswith("webauthn."):
        return None
    return Signature.parse(event.signature)


def added_keys(facts: Iterable[Fact]) -> list[tuple[str, PublicKey]]:
    """The keys that people have added, whether they count or not, with whose they are."""
    found: list[tuple[str, PublicKey]] = []
    for fact in facts:
        if isinstance(fact.event, e.KeyAdded):
            with suppress(BadInput):
                found.append((fact.slot.tail[1], parse_key(fact.event.key)))
    return found


def key_name(person: str, log: str) -> str:
    """The name in a person's key."""
    return f"{person}/{log}"


def _revoked(key: PersonKey, fact: Fact) -> PersonKey:
    return key if key.revoked is not None else replace(key, revoked=fact)


def _confirmed(keys: Keys, key: PersonKey, fact: Fact, trust: Trust) -> PersonKey:
    """The key after a confirmation, of which the first signature by each key is judged, and none
    by whose has confirmed it before: facts can hold any number of them. A passkey confirms nothing.
    """
    assert isinstance(fact.event, e.KeyConfirmed)
    first = dict[str, Signature]()
    for signature in map(Signature.parse, fact.event.signatures):
        if signature is not None and isinstance(signature.raw, bytes) and not signature.until:
            first.setdefault(signature.key, signature)
    digest = key_digest(trust.log, key.person, key.public)
    # Who never had a key has lost none.
    had = any(one.confirmed is not None for one in keys.of(key.person) if one.id != key.id)
    lost = trust.lost if had else None
    for signature in first.values():
        if key.counts_from is not None and key.counts_from <= fact.recorded_at:
            break
        key = _by_trusted(key, signature, digest, fact, trust)
        other = keys.each.get(signature.key)
        if other is not None and other.counts(fact):
            key = _by_person(key, other, signature, digest, fact, lost)
    return key


def _by_trusted(
    key: PersonKey, signature: Signature, digest: bytes, fact: Fact, trust: Trust
) -> PersonKey:
    """The key as a root or a confirmer confirms it."""
    known = [one for trusted, _ in trust.quorums if (one := trusted.get(signature.key))]
    if not known or signature.key in key.by or not signature.is_of(known[0], digest):
        return key
    key = replace(key, by=key.by | {signature.key})
    is_met = any(len(key.by & trusted.keys()) >= needed for trusted, needed in trust.quorums)
    return _counting(key, fact, 0) if is_met else key


def _by_person(
    key: PersonKey,
    other: PersonKey,
    signature: Signature,
    digest: bytes,
    fact: Fact,
    lost: Lost | None,
) -> PersonKey:
    """The key as a person confirms it with another key: its own, or one of the others who help."""
    is_own = other.person == key.person
    if not is_own and (lost is None or other.person in key.others):
        return key
    if not other.signed(signature, digest):
        return key
    if is_own:
        return _counting(key, fact, 0)
    assert lost is not None
    key = replace(key, others=key.others | {other.person})
    is_met = len({*map(plain, key.others)}) >= lost.people
    return _counting(key, fact, lost.after_s) if is_met else key


def _counting(key: PersonKey, fact: Fact, after_s: float) -> PersonKey:
    """The key, which counts from then on, unless it does so earlier."""
    begins = fact.recorded_at + timedelta(seconds=after_s)
    if key.counts_from is not None and key.counts_from <= begins:
        return key
    return replace(key, confirmed=fact, counts_from=begins)
