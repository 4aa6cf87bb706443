"""Whose keys are in force: the facts so far, in the order of the log, and what they come to."""

from datetime import UTC, datetime, timedelta

import pytest

from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.keys import Keys, keys_of
from ayes.ledger.seal import SignerKey, VerifierKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.ledger.trust import NOBODY, Trust
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import key_slot, person_slot

LOG = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"
BEGIN = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def made(name: str, number: int, log: str = LOG) -> SignerKey:
    return SignerKey(f"{name}/{log}", bytes([number] * 32))


ANA, NEW, BEN, CY, DAN = (
    made(name, at) for at, name in enumerate(("ana", "ana", "ben", "cy", "dan"), 1)
)
BOARD = [SignerKey(f"board-{at}", bytes([100 + at] * 32)) for at in range(3)]
DESK = SignerKey("desk", bytes([200] * 32))
TRUST = Trust.model_validate(
    {
        "log": LOG,
        "roots": [str(one.public) for one in BOARD],
        "roots_needed": 2,
        "confirmers": [str(DESK.public)],
        "lost": {},
    }
)


def added(key: SignerKey, person: str = "", ident: str = "") -> tuple:
    person = person or key.public.name.partition("/")[0]
    slot = key_slot(person, ident or key_id(key.public), "added")
    return slot, e.KeyAdded(key=str(key.public))


def confirmed(key: SignerKey, *by: SignerKey, recorder: str = "rita", log: str = LOG) -> tuple:
    person = key.public.name.partition("/")[0]
    digest = key_digest(log, person, key.public)
    slot = key_slot(person, key_id(key.public), "confirmed", recorder)
    return slot, e.KeyConfirmed(signatures=tuple(signed(one, digest) for one in by))


def revoked(key: SignerKey, by: str = "cy") -> tuple:
    person = key.public.name.partition("/")[0]
    return key_slot(person, key_id(key.public), "revoked", by), e.KeyRevoked()


def told(*steps: tuple) -> list[Fact]:
    """These facts, an hour apart."""
    return [Fact(at, BEGIN + at * HOUR, slot, event) for at, (slot, event) in enumerate(steps, 1)]


def counting(*steps: tuple, later: timedelta = HOUR, trust: Trust = TRUST) -> set[str]:
    """The ids of the keys that sign votes on what people are asked after these facts."""
    facts = told(*steps)
    last = facts[-1]
    asked = Fact(last.seq + 1, last.recorded_at + later, last.slot, e.Said(role="note", text=""))
    return {one.id for one in keys_of(facts, trust).each.values() if one.counts(asked)}


BY_TWO = (added(ANA), confirmed(ANA, *BOARD[:2]))
OTHERS = (
    *(added(one) for one in (BEN, CY, DAN)),
    *(confirmed(one, DESK) for one in (BEN, CY, DAN)),
)
REMOVED, AGAIN = person_slot("Ana", 1), person_slot("ana", 2)
COUNTS = {
    "confirmed by two roots": BY_TWO,
    "by two roots, one after the other": (
        added(ANA),
        confirmed(ANA, BOARD[0], recorder="ben"),
        confirmed(ANA, BOARD[2], recorder="cy"),
    ),
    "confirmed by a confirmer": (added(ANA), confirmed(ANA, DESK)),
    "revoked by nobody, since it is another key that was": (*BY_TWO, added(NEW), revoked(NEW)),
    "of an account that is added again, and added anew": (
        (REMOVED, e.PersonRemoved()),
        (AGAIN, e.PersonAdded()),
        *BY_TWO,
    ),
}
NOT = {
    "added only": (added(ANA),),
    "confirmed before it is added": (confirmed(ANA, *BOARD), added(ANA)),
    "confirmed by one root": (added(ANA), confirmed(ANA, BOARD[0])),
    "by one root, twice": (
        added(ANA),
        confirmed(ANA, BOARD[0], BOARD[0], recorder="ben"),
        confirmed(ANA, BOARD[0], recorder="cy"),
    ),
    "confirmed by itself": (added(ANA), confirmed(ANA, ANA, recorder="ana")),
    "confirmed by another person": (added(ANA), *OTHERS, confirmed(ANA, BEN)),
    "confirmed for another log": (added(ANA), confirmed(ANA, *BOARD, log="0" * 32)),
    "with a root's signature of another key": (
        added(ANA),
        added(NEW),
        (confirmed(ANA, DESK)[0], confirmed(NEW, DESK)[1]),
    ),
    "under another person's name": (
        added(ANA, "ben"),
        (key_slot("ben", key_id(ANA.public), "confirmed"), confirmed(ANA, DESK)[1]),
    ),
    "of another log": (
        added(made("ana", 1, "0" * 32)),
        confirmed(made("ana", 1, "0" * 32), DESK),
    ),
    "under another id": (
        added(ANA, ident="0" * 16),
        (key_slot("ana", "0" * 16, "confirmed"), confirmed(ANA, DESK)[1]),
    ),
    "revoked by anybody": (*BY_TWO, revoked(ANA)),
    "confirmed again after it was revoked": (*BY_TWO, revoked(ANA), confirmed(ANA, DESK)),
    "of a person who was removed": (*BY_TWO, (REMOVED, e.PersonRemoved())),
    "of a name that is somebody else's": (*BY_TWO, (AGAIN, e.PersonAdded())),
    "confirmed by signatures that are none": (
        added(ANA),
        (confirmed(ANA)[0], e.KeyConfirmed(signatures=("", "x", "ed25519.1.0.0.AA"))),
    ),
}


@pytest.mark.parametrize("what", COUNTS)
def test_a_key_counts_that_was(what):
    assert key_id(ANA.public) in counting(*COUNTS[what])


@pytest.mark.parametrize("what", NOT)
def test_a_key_does_not_count_that_is(what):
    assert key_id(ANA.public) not in counting(*NOT[what])


def test_a_key_of_another_workspace_is_none():
    """Only the organisation has slots of keys that are read."""
    slot, event = added(ANA)
    assert not slot.subject.startswith("ledger.shop.")
    assert slot.subject == f"ledger._organisation._key.ana.{key_id(ANA.public)}.added"
    assert isinstance(event, e.KeyAdded)


def test_the_second_name_of_a_key_does_not_count():
    """One person with two names, and one key, has one vote."""
    twin = made("zoe", 1)
    steps = (*BY_TWO, added(twin), confirmed(twin, DESK))
    keys = keys_of(told(*steps), TRUST)
    assert [one.person for one in keys.each.values()] == ["ana"]


def test_a_key_signs_nothing_that_was_asked_before_it_was_confirmed():
    asked, *_ = told(added(BEN))
    facts = told(added(BEN), *BY_TWO)
    (_, ana) = keys_of(facts, TRUST).each.values()
    assert not ana.counts(asked)


def test_a_revocation_changes_no_call_that_was_decided_before_it():
    facts = told(*BY_TWO, revoked(ANA))
    (ana,) = keys_of(facts, TRUST).each.values()
    asked = Fact(2, BEGIN + 2 * HOUR, facts[0].slot, facts[0].event)
    later = Fact(4, BEGIN + 4 * HOUR, facts[0].slot, facts[0].event)
    assert not ana.counts(later)
    assert not ana.counts(later, until=5)
    assert ana.counts(later, until=3)
    assert not ana.counts(asked, until=3), "it was confirmed as number 2 itself"


def test_an_older_key_of_the_person_confirms_a_new_one_at_once():
    rotated = (*BY_TWO, added(NEW), confirmed(NEW, ANA, recorder="ana"))
    assert counting(*rotated) == {key_id(ANA.public), key_id(NEW.public)}
    assert counting(*rotated, revoked(ANA)) == {key_id(NEW.public)}
    # A key that was taken away confirms nothing.
    stolen = (*BY_TWO, revoked(ANA), added(NEW), confirmed(NEW, ANA, recorder="ana"))
    assert counting(*stolen) == set()
    # Nor does one that is not confirmed itself.
    assert counting(added(ANA), added(NEW), confirmed(NEW, ANA)) == set()


LOST = (*BY_TWO, *OTHERS, revoked(ANA), added(NEW))


@pytest.mark.parametrize(
    ("steps", "later", "counts"),
    [
        ((confirmed(NEW, BEN, CY),), timedelta(hours=24), True),
        ((confirmed(NEW, BEN, CY),), timedelta(hours=23, minutes=59), False),
        ((confirmed(NEW, BEN),), timedelta(days=9), False),
        ((confirmed(NEW, BEN, BEN),), timedelta(days=9), False),
        # Each by themselves: the time begins with the last one who is needed.
        ((confirmed(NEW, BEN), confirmed(NEW, CY, recorder="cy")), timedelta(hours=23), False),
        ((confirmed(NEW, BEN), confirmed(NEW, CY, recorder="cy")), timedelta(hours=24), True),
        # A third one does not make it longer, and a root makes it at once.
        ((confirmed(NEW, BEN, CY), confirmed(NEW, DAN, recorder="dan")), 23 * HOUR, True),
        ((confirmed(NEW, BEN, CY), confirmed(NEW, DESK, recorder="dan")), HOUR, True),
        ((confirmed(NEW, BEN, CY), revoked(NEW)), timedelta(days=9), False),
        ((revoked(BEN), confirmed(NEW, BEN, CY)), timedelta(days=9), False),
        ((confirmed(NEW, BEN, BOARD[0]),), timedelta(days=9), False),
    ],
)
def test_others_confirm_the_key_of_a_person_who_has_lost_theirs(steps, later, counts):
    """As many as the trust file says, and then a day passes in which anybody may revoke it."""
    assert (key_id(NEW.public) in counting(*LOST, *steps, later=later)) is counts


def test_others_give_nobody_a_first_key():
    """Who never had a key has lost none: the roots confirm the first."""
    steps = (*OTHERS, added(NEW), confirmed(NEW, BEN, CY, DAN))
    assert key_id(NEW.public) not in counting(*steps, later=timedelta(days=9))
    alone = Trust.model_validate(TRUST.model_dump() | {"lost": None})
    steps = (*LOST, confirmed(NEW, BEN, CY, DAN))
    assert key_id(NEW.public) not in counting(*steps, later=timedelta(days=9), trust=alone)


def test_a_name_that_reads_as_the_id_of_a_root_is_no_root():
    root = key_id(BOARD[0].public)
    other = made(root, 9)
    alone = (*BY_TWO, added(other), confirmed(other, DESK), revoked(ANA), added(NEW))
    by_both = confirmed(NEW, other, BOARD[1])
    assert key_id(NEW.public) not in counting(*alone, by_both)


def test_others_help_who_has_had_a_key_by_then():
    """What they said before does not count later."""
    early = (*OTHERS, added(NEW), confirmed(NEW, BEN, CY), *BY_TWO)
    again = confirmed(NEW, BEN, recorder="ben")
    assert key_id(NEW.public) not in counting(*early, again, later=timedelta(days=9))
    both = (again, confirmed(NEW, CY, recorder="cy"))
    assert key_id(NEW.public) in counting(*early, *both, later=timedelta(days=9))


def test_keys_that_confirm_each_other_are_judged_once_each(monkeypatch: pytest.MonkeyPatch):
    """However often they do, and whatever else facts hold: no more checks than pairs of them."""
    many = [made(f"p{number}", number) for number in range(1, 13)]
    steps = [*map(added, many), *(confirmed(one, DESK) for one in many)]
    fresh = [SignerKey(f"{one.public.name}", bytes([100 + at] * 32)) for at, one in enumerate(many)]
    steps += [*map(added, fresh)]
    for number in range(12):
        for one in fresh:
            slot, said = confirmed(one, *many[:1] * 5, *many, recorder=f"r{number}")
            steps.append((slot, said))
    checked = list[bytes]()
    verifies = VerifierKey.verifies

    def counted(key: VerifierKey, signature: bytes, data: bytes) -> bool:
        checked.append(key.public + data)
        return verifies(key, signature, data)

    monkeypatch.setattr(VerifierKey, "verifies", counted)
    facts = told(*steps)
    keys = keys_of(facts, TRUST)
    assert all(one.counts_from for one in keys.each.values())
    assert len(checked) == len({*checked})


def test_of_a_fact_the_first_signature_by_each_key_is_judged():
    """So a fact costs no more checks than there are keys."""
    slot, said = confirmed(ANA, *BOARD[:2])
    assert isinstance(said, e.KeyConfirmed)
    wrong = [f"{one.rpartition('.')[0]}.{'A' * 86}" for one in said.signatures]
    for texts, counts in (((*said.signatures, *wrong), True), ((*wrong, *said.signatures), False)):
        fact = slot, e.KeyConfirmed(signatures=texts)
        assert (key_id(ANA.public) in counting(added(ANA), fact)) is counts


def test_without_a_trust_file_no_key_counts():
    assert keys_of(told(*BY_TWO), NOBODY) == Keys()


def test_keys_are_judged_once_for_all_deliveries():
    """Each delivery has a ledger of its own, and each confirmation costs a verification."""
    ledger, facts = Ledger.on(Memory(), "gate"), told(added(ANA), confirmed(ANA, *BOARD))
    first = ledger.reading_from(ledger.log).judged_keys(facts, TRUST)
    assert ledger.reading_from(ledger.log).judged_keys(facts, TRUST) is first
    facts = [*facts, *told(*[revoked(ANA)] * 3)[2:]]
    again = ledger.reading_from(ledger.log).judged_keys(facts, TRUST)
    assert (first.of("ana")[0].revoked, again.of("ana")[0].revoked) == (None, facts[-1])
