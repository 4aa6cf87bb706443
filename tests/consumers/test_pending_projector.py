"""The queue: what it writes into the bucket `pending`, and that an older view never wins."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from stories import DECISIONS, REF, SETTLED, UNSETTLED, Story, life

from ayes.consumers.effects import Effect, WritePending
from ayes.consumers.pending_projector import PendingProjector, PendingState
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.validity import call_of
from ayes.projections import pending
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import Slot

CALL = REF.wish(1, 0)
KEY = "acme.t1.1-0"
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')


def call_as(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> tuple[Call, Story]:
    story = Story().tell_all(facts)
    return call_of(CALL, tuple(story.facts)), story


def reacts(facts: Sequence[tuple[Slot, e.AnyEvent]], value: bytes = b"", revision: int = 0):
    call, story = call_as(facts)
    return list(PendingProjector().decide(PendingState(call, value, revision), story.facts[-1]))


def value_of(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> bytes:
    entry = pending.entry(call_as(facts)[0])
    assert entry is not None
    return pending.encode(entry)


*GATED, DENIED = life(CALL, WISH, "denied")[:3]
OPEN = value_of(GATED)

#: What stands in the ledger, what in the bucket (value and revision), and what is written.
ROWS = [
    ("asked: it is shown", GATED, b"", 0, [WritePending(KEY, OPEN, 0)]),
    ("asked, after an entry that went", GATED, b"", 9, [WritePending(KEY, OPEN, 9)]),
    ("asked, and shown already", GATED, OPEN, 4, []),
    ("shown by an older program", GATED, b'{"tool":"refund"}', 4,
     [WritePending(KEY, OPEN, 4)]),
    ("not asked: nothing", GATED[:1], b"", 0, []),
    ("decided by policy: never shown", [GATED[0], (CALL.decided, DECISIONS["denied by policy"])],
     b"", 0, []),
    ("decided before it was shown", [*GATED, DENIED], b"", 0,
     [WritePending(KEY, b"", 0)]),
    ("decided and taken off", [*GATED, DENIED], b"", 5, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "value", "revision", "follows"), [pytest.param(*row, id=name) for name, *row in ROWS]
)
def test_what_is_shown(facts, value: bytes, revision: int, follows: list[Effect]):
    """Open is shown, all of it and once; what never waited for people is not (B22, B57, B72)."""
    assert reacts(facts, value, revision) == follows


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_what_is_decided_is_taken_off(ending: str):
    """However it was decided, and however far it has come since, no entry is left of it; the entry
    follows from the verdict (B35, I5).
    """
    facts = life(CALL, WISH, ending)
    for end in range(3, len(facts) + 1):
        assert reacts(facts[:end], OPEN, 4) == [WritePending(KEY, b"", 4)]


def test_votes_do_not_change_an_entry():
    """Who has voted is in the ledger; the entry stands as it is until the gate decides (B83)."""
    voted = [*GATED, (CALL.vote("ana"), e.Voted(verdict="approve", digest="d"))]
    assert reacts(voted, OPEN, 4) == []


async def asked(ledger: Ledger) -> Fact:
    """A call that people are asked about; its question."""
    for slot, event in GATED:
        await ledger.append(slot, event)
    return (await ledger.read(CALL))[-1]


@pytest.mark.parametrize("is_shown", [True, False])
async def test_an_older_view_loses_and_looks_again(is_shown: bool):
    """One projector saw the call open, then stalled; the other's writes stay. Where it has no entry
    to take off, it deletes it all the same, so that none can be put any more (B53, B77, I13).
    """
    ledger = Ledger(Memory(), e.Author(kind="queue", name="tests"))
    bucket, gated = ledger.log.pending, await asked(ledger)
    stalled, other = PendingProjector(), PendingProjector()
    old = await stalled.load(ledger, gated)
    if is_shown:
        [shown] = other.decide(await other.load(ledger, gated), gated)
        assert await bucket.put(shown.key, shown.value, shown.replaces)
    await ledger.append(*DENIED)
    decided = (await ledger.read(CALL))[-1]
    [gone] = other.decide(await other.load(ledger, decided), decided)
    assert await bucket.delete(gone.key, gone.replaces)
    [late] = stalled.decide(old, gated)
    assert not await bucket.put(late.key, late.value, late.replaces)
    assert stalled.decide(await stalled.load(ledger, gated), gated) == ()
    assert await bucket.entries() == {}


class Meanwhile(Memory):
    """A log that somebody else goes on with while it is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], Awaitable[None]] | None = None

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        found = await super().read(*subjects)
        if then := self.then:
            self.then = None
            await then()
        return found


async def test_the_revision_is_older_than_the_facts():
    """What is decided while the facts are read is not put back on by who read them (I13)."""
    log = Meanwhile()
    ledger = Ledger(log, e.Author(kind="queue", name="tests"))
    gated = await asked(ledger)
    await log.pending.put(KEY, b"shown by an older program", 0)

    async def decided_and_taken_off() -> None:
        await ledger.append(*DENIED)
        _, revision = await log.pending.get(KEY)
        assert await log.pending.delete(KEY, revision)

    log.then = decided_and_taken_off
    queue = PendingProjector()
    [late] = queue.decide(await queue.load(ledger, gated), gated)
    assert not await log.pending.put(late.key, late.value, late.replaces)
    assert await log.pending.entries() == {}
