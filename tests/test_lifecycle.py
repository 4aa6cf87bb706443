"""The life of a call: the table, what facts come to, and what may not happen next."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import DECISIONS, REF, SETTLED, START, UNSETTLED, Story, disorder, life, question, request

from ledger.lifecycle import MAY_FOLLOW, Call, Status, call_of, describe, evolve, refusal
from ledger.lifecycle import SETTLED as SETTLED_STATUSES
from schemas import events as e
from schemas.codec import Fact
from schemas.errors import AlreadyDecided, AlreadyFilled, DeadlinePassed, NotAllowed, NotOpen, UnknownCall
from schemas.slots import FILLED_BY, CallRef, Slot

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
DIGEST = request(WISH).digest
SOON = START + timedelta(seconds=10)
LATER = START + timedelta(hours=2)

#: One of each fact that may stand in a call, and where.
EXAMPLES: dict[type[e.Event], tuple[Slot, e.Event]] = {
    e.ToolRequested: (CALL.requested, request(WISH)),
    e.ApprovalRequested: (CALL.gated, question(WISH)),
    e.Voted: (CALL.vote("ana"), e.Voted(verdict="approve", digest=DIGEST)),
    e.Approved: (CALL.decided, e.Approved(digest=DIGEST, ground="people", rule="money", policy_version=1)),
    **{type(decision): (CALL.decided, decision) for decision in DECISIONS.values()},
    e.ToolStarted: (CALL.claim(1), e.ToolStarted(digest=DIGEST, idempotency_key=str(CALL))),
    e.Revoked: (CALL.claim(1), e.Revoked(reviewer="ben")),
    e.Declined: (CALL.claim(1), e.Declined(why="unknown_tool")),
    e.ToolReturned: (CALL.finished, e.ToolReturned(output="done")),
    e.ToolFailed: (CALL.finished, e.ToolFailed(error="no such order")),
    e.ToolRefused: (CALL.finished, e.ToolRefused(ending="denied", text="it did not run")),
    e.InDoubt: (CALL.finished, e.InDoubt(attempt=1, text="nobody knows")),
    e.Reconciled: (CALL.reconciled, e.Reconciled(happened=True, output="done", reviewer="ana")),
}


def told(*facts: tuple[Slot, e.AnyEvent]) -> Call:
    """The call that these make, each recorded a second after the one before."""
    story = Story()
    for slot, event in facts:
        story.tell(slot, event)
    return call_of(CALL, tuple(story.facts))


def following(status: Status, kind: type[e.Event]) -> tuple[Slot, e.Event]:
    slot, event = EXAMPLES[kind]
    if status is Status.RUNNING and kind is e.ToolStarted:  # the next attempt
        return CALL.claim(2), event
    return slot, event


def walks() -> list[tuple[list[tuple[Slot, e.Event]], Status]]:
    """Every way through the table, each step taken once, with the status that the table says it leads to."""
    found: list[tuple[list[tuple[Slot, e.Event]], Status]] = []

    def walk(
        story: list[tuple[Slot, e.Event]], status: Status, taken: frozenset[tuple[Status, type]]
    ) -> None:
        for kind, after in MAY_FOLLOW[status].items():
            if (status, kind) in taken:
                continue
            longer = [*story, following(status, kind)]
            found.append((longer, after))
            walk(longer, after, taken | {(status, kind)})

    walk([], Status.UNKNOWN, frozenset())
    return found


# ------------------------------------------------------------------------------------------------ the table


def test_the_table_says_what_evolve_does():
    """Whatever way is taken through the table, the facts come to the status that the table names."""
    ways = walks()
    for story, status in ways:
        assert told(*story).status is status, [type(event).__name__ for _, event in story]
    assert {status for _, status in ways} == set(Status) - {Status.UNKNOWN}, "some status cannot be reached"


def test_the_table_knows_every_fact_that_a_call_can_hold():
    """No fact about a call is without a place in the table, and none stands in it that a call cannot hold."""
    in_slots = {kind for shape, kinds in FILLED_BY.items() if shape[0] == "call" for kind in kinds}
    in_table = {kind for follows in MAY_FOLLOW.values() for kind in follows}
    assert in_table == in_slots
    assert set(MAY_FOLLOW) == set(Status)


def test_what_the_table_lets_happen_is_not_refused():
    """Along every way through the table, the next fact is one that may be recorded."""
    for story, _ in walks():
        *before, (slot, event) = story
        assert refusal(told(*before), slot, event, SOON) is None, [type(one).__name__ for _, one in story]


def test_nothing_is_told_after_the_end():
    """From a settled status no fact leads on, and every other one leads somewhere."""
    assert {status for status, follows in MAY_FOLLOW.items() if not follows} == SETTLED_STATUSES


def test_nothing_runs_without_an_approval():
    """The only way to RUNNING is through APPROVED (I1, B73)."""
    before = {status for status, follows in MAY_FOLLOW.items() if e.ToolStarted in follows}
    assert before == {Status.APPROVED, Status.RUNNING}
    for story, status in walks():
        if status is Status.RUNNING:
            assert any(isinstance(event, e.Approved) for _, event in story)


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_each_ending_is_its_own(ending: str):
    """Expired, denied, withdrawn and superseded stay apart in the facts, though none of them ran (I5, B34)."""
    call = told(*life(CALL, WISH, ending))
    status = {
        "approved": Status.APPROVED,
        "running": Status.RUNNING,
        "in doubt": Status.IN_DOUBT,
        "happened": Status.RECONCILED,
        "did not happen": Status.RECONCILED,
        "returned": Status.RETURNED,
        "edited": Status.RETURNED,
        "failed": Status.FAILED,
    }.get(ending, Status.REFUSED)
    assert call.status is status
    if ending in DECISIONS:
        before = told(*life(CALL, WISH, ending)[:-1])
        assert before.status == {"denied by policy": "denied", "invalid": "denied"}.get(ending, ending)


# ------------------------------------------------------------------------------------------------ the facts


@given(st.data())
def test_the_same_facts_make_the_same_call(data: st.DataObject):
    """In any order, and however often each comes: the same facts give the same call (I13, I11)."""
    story = Story()
    ending = data.draw(st.sampled_from([*SETTLED, *UNSETTLED]))
    lane = life(CALL, WISH, ending)
    lane[2:2] = [
        (CALL.vote(name), e.Voted(verdict="approve", digest=DIGEST)) for name in ("ben", "ana", "cy")
    ]
    for slot, event in lane:
        story.tell(slot, event)
    for slot, event in life(REF.wish(1, 1), WISH, data.draw(st.sampled_from(SETTLED))):
        story.tell(slot, event)
    call = call_of(CALL, tuple(data.draw(disorder(story.facts))))
    assert call == call_of(CALL, tuple(story.facts))
    assert [fact.slot.tail[3] for fact in call.votes] == ["ben", "ana", "cy"]


STRANGERS = [
    pytest.param(REF.wish(1, 1).decided, DECISIONS["denied"], id="of another call"),
    pytest.param(REF.said("m1"), e.Said(role="user", text="stop"), id="of no call"),
    pytest.param(CALL.decided, e.Carried(type="Postponed", raw=b"{}", v=3), id="from the future"),
    pytest.param(CALL.decided, e.Carried(type="", raw=b"?", problem="no fact"), id="no fact at all"),
    pytest.param(CALL.decided, e.Voted(verdict="approve", digest=DIGEST), id="in a slot of another kind"),
]


@pytest.mark.parametrize(("slot", "event"), STRANGERS)
def test_what_has_no_place_changes_nothing(slot: Slot, event: e.Event | e.Carried):
    """A fact about anything else, or one that cannot be read, leaves the call as it was (I12)."""
    call = told(*life(CALL, WISH, "approved")[:2])
    assert evolve(call, Fact(9, SOON, slot, event)) is call


def test_the_first_in_a_slot_stays():
    """Were a second fact ever handed in for a slot, it would change nothing: a decision never turns (B29, B77)."""
    call = told(*life(CALL, WISH, "denied"))
    assert evolve(call, Fact(9, SOON, *EXAMPLES[e.Approved])) == call
    assert evolve(call, Fact(9, SOON, CALL.requested, request(WISH))) == call


def test_a_call_that_was_started_stays_started():
    """A revocation in a later claim's slot undoes no start, and nobody may say that the call did not run."""
    call = told(*life(CALL, WISH, "running"), (CALL.claim(2), e.Revoked(reviewer="ben")))
    assert call.status is Status.RUNNING
    call = told(
        *life(CALL, WISH, "approved"),
        (CALL.claim(1), e.Revoked()),
        (CALL.claim(2), EXAMPLES[e.ToolStarted][1]),
    )
    assert call.status is Status.RUNNING


def test_a_late_result_does_not_settle_anything():
    """A result that came after the call was put in doubt is kept, and the call stays in doubt (I9)."""
    call = told(*life(CALL, WISH, "in doubt"))
    assert [type(fact.event) for fact in call.late] == [e.ToolReturned]
    assert call.status is Status.IN_DOUBT


def test_the_deadline_counts_from_the_question():
    """It is the broker's time of the question, and so many seconds after; without them there is none."""
    call = told((CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=900)))
    assert call.deadline == START + timedelta(seconds=2 + 900)
    assert told((CALL.requested, request(WISH)), (CALL.gated, question(WISH))).deadline is None
    assert told((CALL.requested, request(WISH))).deadline is None


# ----------------------------------------------------------------------------------------------- refusals

PENDING = [(CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=3600))]
ONLY_BEN = [
    (CALL.requested, request(WISH)),
    (CALL.gated, msgspec.structs.replace(question(WISH), voters=("ben", "ops-*"))),
]
VOTE = EXAMPLES[e.Voted][1]
OTHER_BYTES = e.Voted(verdict="approve", digest="0" * 64)
EARLIER = e.Voted(verdict="approve", digest=DIGEST, id="e-1")
DENIED_ONCE = msgspec.structs.replace(DECISIONS["denied"], id="e-2")
LONG_DENIED = [*PENDING, (CALL.vote("ana"), EARLIER), (CALL.decided, DECISIONS["denied"])]

#: The story so far, the next fact, when, and the answer; in the order that `refusal` documents. Each row also
#: breaks what the rows below it are about, as far as it can.
REFUSALS = [
    ("1 the very same vote, long after", LONG_DENIED, CALL.vote("ana"), EARLIER, LATER, None, ""),
    ("1 the very same decision", [*PENDING, (CALL.decided, DENIED_ONCE)], CALL.decided, DENIED_ONCE, LATER, None, ""),
    ("2 unknown before all else", [], CALL.vote("ana"), OTHER_BYTES, LATER, UnknownCall,
     "acme/t1/1-0 was never requested. `approvals pending` lists what waits."),
    ("3 decided before taken", LONG_DENIED, CALL.vote("ana"), OTHER_BYTES, LATER, AlreadyDecided,
     "acme/t1/1-0 is already decided: Denied by ana at 2026-03-01 09:00:04 UTC. Nothing was recorded."),
    ("3 decided by the clock: the same, of its own kind", life(CALL, WISH, "expired")[:3], CALL.withdrawn, e.Withdrawn(), LATER, DeadlinePassed,
     "acme/t1/1-0 is already decided: Expired at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("3 ended, and a vote", life(CALL, WISH, "returned"), CALL.vote("ana"), VOTE, LATER, AlreadyDecided,
     "acme/t1/1-0 is already decided: Approved by ana at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("4 taken before the deadline", [*PENDING, (CALL.vote("ana"), EARLIER)], CALL.vote("ana"), OTHER_BYTES, LATER, AlreadyFilled,
     "ledger.acme.t1.call.1-0.vote.ana is taken: Voted by ana at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("4 claimed", life(CALL, WISH, "returned"), CALL.claim(1), e.Revoked(), LATER, AlreadyFilled,
     "ledger.acme.t1.call.1-0.claim.1 is taken: ToolStarted at 2026-03-01 09:00:04 UTC. Nothing was recorded."),
    ("5 not asked yet", [(CALL.requested, request(WISH))], CALL.vote("ana"), OTHER_BYTES, LATER, NotOpen,
     "acme/t1/1-0 is requested, so Voted cannot follow. What can: ApprovalRequested, Approved, Denied, Superseded, Withdrawn."),
    ("5 not approved", PENDING, CALL.claim(1), EXAMPLES[e.ToolStarted][1], SOON, NotOpen,
     "acme/t1/1-0 is pending, so ToolStarted cannot follow. What can: Answered, Approved, Denied, Expired, Superseded, Voted, Withdrawn."),
    ("5 not in doubt", life(CALL, WISH, "returned"), *EXAMPLES[e.Reconciled], LATER, NotOpen,
     "acme/t1/1-0 is returned, so Reconciled cannot follow. What can: nothing."),
    ("6 the deadline before the voter", PENDING, CALL.vote("rita"), OTHER_BYTES, LATER, DeadlinePassed,
     "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("6 the deadline to the second", PENDING, CALL.vote("ana"), VOTE, START + timedelta(seconds=3602), DeadlinePassed,
     "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("7 the requester", ONLY_BEN, CALL.vote("rita"), OTHER_BYTES, LATER, NotAllowed,
     "rita asked for acme/t1/1-0 and cannot vote on it. Somebody else must."),
    ("7 somebody else", ONLY_BEN, CALL.vote("ana"), OTHER_BYTES, LATER, NotAllowed,
     "ana may not vote on acme/t1/1-0. Rule 'money' asks ben, ops-*."),
    ("8 other bytes", ONLY_BEN, CALL.vote("ben"), OTHER_BYTES, LATER, NotOpen,
     "this vote is about other arguments than those that acme/t1/1-0 waits with. Look at it again."),
    ("after that only the broker", ONLY_BEN, CALL.vote("ops-7"), VOTE, LATER, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("story", "slot", "event", "at", "kind", "sentence"),
    [pytest.param(*row, id=name) for name, *row in REFUSALS],
)
def test_refusals_come_in_their_order(
    story: list[tuple[Slot, e.AnyEvent]],
    slot: Slot,
    event: e.Event,
    at: datetime,
    kind: type[Exception] | None,
    sentence: str,
):
    """The story so far, the next word, the answer; idempotence first (B26, B27, B29, B30, B31, B36, B68, I2)."""
    refused = refusal(told(*story), slot, event, at)
    assert (type(refused) if refused else None) is kind
    assert str(refused or "") == sentence


def test_a_vote_without_an_id_is_never_the_very_same():
    """An empty id is no identity: what stands in the slot is somebody's, so it is taken."""
    call = told(*PENDING, (CALL.vote("ana"), VOTE))
    assert isinstance(refusal(call, CALL.vote("ana"), VOTE, SOON), AlreadyFilled)


# ---------------------------------------------------------------------------------------------- describing

BY_GATE = e.Author(kind="gate", name="gate")
AT = "at 2026-03-01 09:00:01 UTC"
POLICY_YES = e.Approved(digest=DIGEST, ground="policy", rule="reading", policy_version=2)
DESCRIBED = [
    (CALL.decided, msgspec.structs.replace(DECISIONS["denied"], by=BY_GATE), f"Denied by ana {AT}"),
    (CALL.decided, msgspec.structs.replace(DECISIONS["answered"], voters=("ana", "ben")), f"Answered by ana, ben {AT}"),
    (CALL.decided, POLICY_YES, f"Approved by policy rule 'reading' {AT}"),
    (CALL.decided, DECISIONS["denied by policy"], f"Denied by policy rule 'no-refunds' {AT}"),
    (CALL.decided, msgspec.structs.replace(DECISIONS["expired"], by=BY_GATE), f"Expired by gate {AT}"),
    (CALL.decided, DECISIONS["expired"], f"Expired {AT}"),
    (CALL.vote("ana"), msgspec.structs.replace(VOTE, by=e.Author(kind="reviewer", name="a shared tablet")), f"Voted by ana {AT}"),
    (CALL.decided, e.Carried(type="Postponed", raw=b"{}"), f"Postponed {AT}"),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "event", "words"), DESCRIBED)
def test_who_came_second_is_told_who_was_first(slot: Slot, event: e.Event | e.Carried, words: str):
    """What, by whom and when, in the words that refusals use; a voter is who the subject says (B27, B40)."""
    assert describe(Story().tell(slot, event)) == words


def test_a_call_is_only_what_its_facts_say():
    """Nothing recorded, nothing known."""
    call = Call(CallRef("acme", "t1", "nobody-asked"))
    assert call.status is Status.UNKNOWN
    assert call.asking is None
    assert call.deadline is None
