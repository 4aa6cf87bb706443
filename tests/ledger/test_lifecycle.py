"""The life of a call: the table, what facts come to, and what may not happen next."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stories import (
    DECISIONS,
    REF,
    SETTLED,
    START,
    UNSETTLED,
    Story,
    disorder,
    life,
    question,
    request,
)

from ayes.ledger.call import Call
from ayes.ledger.descriptions import describe
from ayes.ledger.lifecycle import LEADS_TO, MAY_FOLLOW, NOT_RUN, Status
from ayes.ledger.lifecycle import SETTLED as SETTLED_STATUSES
from ayes.ledger.validity import call_of, evolve, may_vote, refusal, void
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    DeadlinePassed,
    NotAllowed,
    NotOpen,
    UnknownCall,
)
from ayes.schemas.slots import FILLED_BY, CallRef, Slot, StopRef

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
    e.Escalated: (CALL.escalated(1), e.Escalated(voters=("lea",), expires_in_s=60)),
    e.GlassBroken: (CALL.announced, e.GlassBroken(reviewer="ana", reason="the shop burns")),
    e.Approved: (
        CALL.decided,
        e.Approved(digest=DIGEST, ground="people", rule="money", policy_version=1),
    ),
    **{type(one): (CALL.decided, one) for one in reversed(DECISIONS.values())},
    e.ToolStarted: (CALL.claim(1), e.ToolStarted(digest=DIGEST, idempotency_key=str(CALL))),
    e.Revoked: (CALL.revoked_by("ben"), e.Revoked(reviewer="ben")),
    e.Lapsed: (CALL.lapsed, e.Lapsed(after_s=60)),
    e.Declined: (CALL.claim(1), e.Declined(why="unknown_tool")),
    e.ToolReturned: (CALL.finished, e.ToolReturned(output="done")),
    e.ToolFailed: (CALL.finished, e.ToolFailed(error="no such order")),
    e.ToolRefused: (CALL.finished, e.ToolRefused(ending="denied", text="it did not run")),
    e.InDoubt: (CALL.finished, e.InDoubt(attempt=1, text="nobody knows")),
    e.Reconciled: (
        CALL.reconciled_by("ana"),
        e.Reconciled(happened=True, output="done", reviewer="ana"),
    ),
}


def told(*facts: tuple[Slot, e.AnyEvent]) -> Call:
    """The call that these make, each recorded a second after the one before."""
    return call_of(CALL, tuple(Story().tell_all(facts).facts))


def following(status: Status, kind: type[e.Event]) -> tuple[Slot, e.Event]:
    slot, event = EXAMPLES[kind]
    if status is Status.RUNNING and kind is e.ToolStarted:  # the next attempt
        return CALL.claim(2), event
    if kind is e.ToolRefused:
        ending = "unknown_tool" if status is Status.DECLINED else str(status)
        return slot, e.ToolRefused(ending=ending, text="it did not run")
    if (status, kind) == (Status.RUNNING, e.Withdrawn):
        return CALL.withdrawn, event
    return slot, event


def walks() -> list[tuple[list[tuple[Slot, e.Event]], Status]]:
    """Every way through the table, each step taken once, with the status of the table."""
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


# ---------------------------------------------------------------------------------------- the table


def test_the_table_says_what_evolve_does():
    """Whatever way goes through the table, the facts come to the status that the table names."""
    ways = walks()
    for story, status in ways:
        assert told(*story).status is status, [type(event).__name__ for _, event in story]
    assert {status for _, status in ways} == set(Status) - {Status.UNKNOWN}, (
        "some status cannot be reached"
    )


def test_the_table_knows_every_fact_that_a_call_can_hold():
    """No fact about a call is without a place in the table, and none that a call cannot hold."""
    in_slots = {kind for shape, kinds in FILLED_BY.items() if shape[0] == "call" for kind in kinds}
    in_table = {kind for follows in MAY_FOLLOW.values() for kind in follows}
    # Who was told, and what people say, is recorded in any status, and has no effect on it.
    assert in_table | {e.Notified, e.Posted, e.Commented, e.HandedOver} == in_slots
    assert set(MAY_FOLLOW) == set(Status)


def test_what_the_table_lets_happen_is_not_refused():
    """Along every way through the table, the next fact is one that may be recorded."""
    for story, _ in walks():
        *before, (slot, event) = story
        assert refusal(told(*before), slot, event, SOON) is None, [
            type(one).__name__ for _, one in story
        ]


def test_each_fact_leads_to_one_status():
    """So a status can be read off the furthest fact alone, whatever was there before it."""
    leads = {
        (kind, after)
        for before, follows in MAY_FOLLOW.items()
        for kind, after in follows.items()
        # In its own place, from which no status is read.
        if (before, kind) != (Status.RUNNING, e.Withdrawn)
    }
    assert dict(leads) == LEADS_TO
    assert len(leads) == len(LEADS_TO)


def test_every_status_but_unknown_is_one_that_a_fact_leads_to():
    """No status is out of reach, and none is needed that the table does not name."""
    assert set(LEADS_TO.values()) == set(Status) - {Status.UNKNOWN}


def test_every_status_is_open_or_not_run_or_settled():
    """What may still happen, what never will and what is over: each status is in one."""
    still_open = {"unknown", "requested", "pending", "approved", "running", "in_doubt"}
    assert {"returned", "failed", "refused", "reconciled"} == SETTLED_STATUSES
    assert set(Status) - SETTLED_STATUSES - still_open == NOT_RUN
    assert all(set(MAY_FOLLOW[status]) == {e.ToolRefused} for status in NOT_RUN)


def test_nothing_runs_without_an_approval():
    """The only way to RUNNING is through APPROVED (I1, B73)."""
    before = {status for status, follows in MAY_FOLLOW.items() if e.ToolStarted in follows}
    assert before == {Status.APPROVED, Status.RUNNING}
    for story, status in walks():
        if status is Status.RUNNING:
            assert any(isinstance(event, e.Approved) for _, event in story)


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_each_ending_is_its_own(ending: str):
    """Expired, denied, withdrawn and superseded stay apart, though none of them ran (I5, B34)."""
    call = told(*life(CALL, WISH, ending))
    status = {
        "approved": Status.APPROVED, "running": Status.RUNNING, "in doubt": Status.IN_DOUBT,
        "happened": Status.RECONCILED, "did not happen": Status.RECONCILED,
        "returned": Status.RETURNED, "edited": Status.RETURNED, "failed": Status.FAILED,
    }.get(ending, Status.REFUSED)  # fmt: skip
    assert call.status is status
    if ending in DECISIONS:
        before = told(*life(CALL, WISH, ending)[:-1])
        word = {
            "denied by policy": "denied",
            "invalid": "denied",
            "answered_with_error": "answered",
        }.get(ending, ending)
        assert before.status == before.outcome == call.outcome == word


# ---------------------------------------------------------------------------------------- the facts


@given(st.data())
def test_the_same_facts_make_the_same_call(data: st.DataObject):
    """In any order, and however often each comes: the same facts give the same call (I13, I11)."""
    story = Story()
    ending = data.draw(st.sampled_from([*SETTLED, *UNSETTLED]))
    lane = life(CALL, WISH, ending)
    lane[2:2] = [
        (CALL.vote(name), e.Voted(verdict="approve", digest=DIGEST))
        for name in ("ben", "ana", "cy")
    ]
    story.tell_all(lane).tell_all(life(REF.wish(1, 1), WISH, data.draw(st.sampled_from(SETTLED))))
    call = call_of(CALL, tuple(data.draw(disorder(story.facts))))
    assert call == call_of(CALL, tuple(story.facts))
    assert [fact.slot.tail[3] for fact in call.votes] == ["ben", "ana", "cy"]


STRANGERS = [
    pytest.param(REF.wish(1, 1).decided, DECISIONS["denied"], id="of another call"),
    pytest.param(REF.said("m1"), e.Said(role="user", text="stop"), id="of no call"),
    pytest.param(CALL.decided, e.Carried(type="Postponed", raw=b"{}", v=3), id="from the future"),
    pytest.param(CALL.decided, e.Carried(type="", raw=b"?", problem="no fact"),
                 id="no fact at all"),
    pytest.param(CALL.decided, e.Voted(verdict="approve", digest=DIGEST),
                 id="in a slot of another kind"),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "event"), STRANGERS)
def test_what_has_no_place_changes_nothing(slot: Slot, event: e.Event | e.Carried):
    """A fact about anything else leaves the call as it was; an unreadable one is noted (I12)."""
    call = told(*life(CALL, WISH, "approved")[:2])
    after = evolve(call, Fact(9, SOON, slot, event))
    noted = replace(after, void=(), newer=())
    assert noted == call
    unread = isinstance(event, e.Carried)
    assert len(after.void) == (unread and event.problem != "")
    assert len(after.newer) == (unread and event.problem == "")


def test_the_first_in_a_slot_stays():
    """Were a second fact ever handed in for a slot, it would change nothing (B29, B77)."""
    call = told(*life(CALL, WISH, "denied"))
    assert evolve(call, Fact(9, SOON, *EXAMPLES[e.Approved])) == call
    assert evolve(call, Fact(9, SOON, CALL.requested, request(WISH))) == call


def test_the_last_revocation_stays_the_last_whatever_comes():
    """Starts are ordered by its number, also by that of one without a place in the call."""
    call = told(*life(CALL, WISH, "approved"))
    assert call.last_revocation == 0
    call = evolve(call, Fact(8, SOON, CALL.revoked_by("ana"), EXAMPLES[e.Voted][1]))
    assert (call.status, call.last_revocation) == (Status.APPROVED, 8)
    stop = Fact(9, SOON, StopRef("acme", "ana", "s1").given, e.Stopped(reason="wait"))
    for later in (stop, Fact(9, SOON, *EXAMPLES[e.Lapsed])):
        assert evolve(call, later).last_revocation == 8


def test_a_call_that_was_started_stays_started():
    """A revocation after the start is void, and so is a start after the revocation (I6)."""
    start = EXAMPLES[e.ToolStarted]
    back = EXAMPLES[e.Revoked]
    call = told(*life(CALL, WISH, "running"), back)
    assert call.status is Status.RUNNING
    assert [void.why for void in call.void] == ["the call was started before it"]
    call = told(*life(CALL, WISH, "approved"), back, start)
    assert call.status is Status.REVOKED
    assert [void.why for void in call.void] == ["the approval was revoked before it"]


def test_a_call_that_was_started_does_not_lapse():
    """The order of the log decides between a start and the end of the validity."""
    lapse, start = EXAMPLES[e.Lapsed], EXAMPLES[e.ToolStarted]
    call = told(*life(CALL, WISH, "running"), lapse)
    assert call.status is Status.RUNNING
    assert [void.why for void in call.void] == ["the call was started before it"]
    for late in (start, EXAMPLES[e.Revoked], EXAMPLES[e.Declined]):
        call = told(*life(CALL, WISH, "approved"), lapse, late)
        assert call.status is Status.LAPSED
        assert [void.why for void in call.void] == ["the approval had lapsed before it"]


def test_what_is_not_approved_any_more_does_not_lapse():
    """The first end of an approval is its end, and a call that was denied has none."""
    back, lapse = EXAMPLES[e.Revoked], EXAMPLES[e.Lapsed]
    call = told(*life(CALL, WISH, "approved"), back, lapse)
    assert call.status is Status.REVOKED
    assert [void.why for void in call.void] == ["the approval was revoked before it"]
    call = told(*life(CALL, WISH, "denied")[:-1], lapse)
    assert call.status is Status.DENIED
    assert [void.why for void in call.void] == ["the call was not approved, but denied"]


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(0.5, Status.APPROVED), (1, Status.APPROVED), (1.5, Status.RUNNING), (None, Status.RUNNING)],
)
def test_a_start_counts_within_the_validity(seconds: float | None, status: Status):
    """What was approved on Friday does not start on Monday: the broker's time of the claim decides,
    a second after the approval here, and at the very end it is too late.
    """
    approved = replace(EXAMPLES[e.Approved][1], valid_for_s=seconds)
    call = told((CALL.requested, request(WISH)), (CALL.decided, approved), EXAMPLES[e.ToolStarted])
    assert call.status is status
    valid = None if seconds is None else START + timedelta(seconds=2 + seconds)
    assert call.valid_until == valid
    if status is Status.APPROVED:
        assert [void.why for void in call.void] == [
            f"the approval was valid until {valid:%F %T} UTC"
        ]


def test_a_second_attempt_counts_within_the_validity_too():
    """A repeatable tool whose executor died is not started again after the end."""
    approved = replace(EXAMPLES[e.Approved][1], valid_for_s=1.5)
    start = e.ToolStarted(digest=DIGEST, idempotency_key=str(CALL))
    call = told(
        (CALL.requested, request(WISH)),
        (CALL.decided, approved),
        (CALL.claim(1), start),
        (CALL.claim(2), start),
    )
    assert (call.status, call.attempt, len(call.void)) == (Status.RUNNING, 1, 1)


def test_an_approval_without_an_end_is_valid_for_ever():
    """Also with a number of seconds that leads beyond any date, as anybody may have recorded."""
    for seconds in (None, 1e300):
        approved = replace(EXAMPLES[e.Approved][1], valid_for_s=seconds)
        assert told((CALL.requested, request(WISH)), (CALL.decided, approved)).valid_until is None


def test_a_start_after_the_validity_is_refused_with_its_end():
    """Before anything is recorded."""
    approved = replace(EXAMPLES[e.Approved][1], valid_for_s=60)
    call = told((CALL.requested, request(WISH)), (CALL.decided, approved))
    slot, start = EXAMPLES[e.ToolStarted]
    assert refusal(call, slot, start, START + timedelta(seconds=61)) is None
    late = refusal(call, slot, start, START + timedelta(seconds=62))
    assert isinstance(late, DeadlinePassed)
    assert "was approved until" in str(late)
    assert "Request it again under another id." in str(late)


def test_a_late_result_does_not_settle_anything():
    """A result that came after the call was in doubt is kept, and the call stays in doubt (I9)."""
    call = told(*life(CALL, WISH, "in doubt"))
    assert [type(fact.event) for fact in call.late] == [e.ToolReturned]
    assert call.status is Status.IN_DOUBT


def test_the_deadline_counts_from_the_question():
    """It is the broker's time of the question, and so many seconds after; else there is none."""
    call = told((CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=900)))
    assert call.deadline == START + timedelta(seconds=2 + 900)
    assert told((CALL.requested, request(WISH)), (CALL.gated, question(WISH))).deadline is None
    assert told((CALL.requested, request(WISH))).deadline is None


# ----------------------------------------------------------------------------------------- refusals

PENDING = [(CALL.requested, request(WISH)), (CALL.gated, question(WISH, expires_in_s=3600))]
ONLY_BEN = [
    (CALL.requested, request(WISH)),
    (CALL.gated, replace(question(WISH), voters=("ben", "ops-*"))),
]
#: Somebody of security must agree too, and the workspace's own people; the agent is one of the
#: desk's.
MANY = [
    (CALL.requested, request(WISH)),
    (
        CALL.gated,
        replace(
            question(WISH),
            voters=("ben",),
            also=(e.Quorum(("sam",), 1, "@security"),),
            besides=(e.Quorum(("olga", "ben")),),
            excluded=("rita", "desk-*"),
            may_break_glass=("sam", "rita"),
        ),
    ),
]
STAGED = [
    (CALL.requested, request(WISH)),
    (
        CALL.gated,
        replace(
            question(WISH, expires_in_s=60),
            voters=("ben",),
            on_timeout="escalate",
            stages=(e.Stage(("lea",), 60), e.Stage(("max", "ops-*"), 30)),
        ),
    ),
]
MORE = (CALL.escalated(1), e.Escalated(voters=("lea",), expires_in_s=60))
LAST = (CALL.escalated(2), e.Escalated(voters=("max", "ops-*"), expires_in_s=30))
STAYS = [
    (CALL.requested, request(WISH)),
    (CALL.gated, replace(question(WISH, expires_in_s=60), on_timeout="stay")),
]
VOTE = EXAMPLES[e.Voted][1]
BREAK = e.Voted(verdict="break_glass", digest=DIGEST, reason="the shop burns")


def behalf(person: str, **rest: object) -> e.Voted:
    return replace(VOTE, on_behalf_of=person, **rest)


OTHER_BYTES = e.Voted(verdict="approve", digest="0" * 64)
EARLIER = e.Voted(verdict="approve", digest=DIGEST, id="e-1")
DENIED_ONCE = replace(DECISIONS["denied"], id="e-2")
LONG_DENIED = [*PENDING, (CALL.vote("ana"), EARLIER), (CALL.decided, DECISIONS["denied"])]

#: The story so far, the next fact, when, and the answer; in the order that `refusal` documents.
#: Each row also breaks what the rows below it are about, as far as it can.
REFUSALS = [
    ("1 the very same vote, long after", LONG_DENIED, CALL.vote("ana"), EARLIER, LATER, None, ""),
    ("1 the very same decision", [*PENDING, (CALL.decided, DENIED_ONCE)], CALL.decided, DENIED_ONCE,
     LATER, None, ""),
    ("2 unknown before all else", [], CALL.vote("ana"), OTHER_BYTES, LATER, UnknownCall,
     "acme/t1/1-0 was never requested. `ayes pending` lists what waits."),
    ("3 decided before taken", LONG_DENIED, CALL.vote("ana"), OTHER_BYTES, LATER, AlreadyDecided,
     ("acme/t1/1-0 is already decided: Denied by ana at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("3 decided by the clock: the same, of its own kind", life(CALL, WISH, "expired")[:3],
     CALL.withdrawn, e.Withdrawn(), LATER, DeadlinePassed,
     "acme/t1/1-0 is already decided: Expired at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("3 ended, and a vote", life(CALL, WISH, "returned"), CALL.vote("ana"), VOTE, LATER,
     AlreadyDecided,
     ("acme/t1/1-0 is already decided: Approved by ana at 2026-03-01 09:00:03 UTC. "
      "Nothing was recorded.")),
    ("4 taken before the deadline", [*PENDING, (CALL.vote("ana"), EARLIER)], CALL.vote("ana"),
     OTHER_BYTES, LATER, AlreadyFilled,
     ("ana has already voted on acme/t1/1-0: Voted by ana at 2026-03-01 09:00:03 UTC. "
      "Nothing was recorded.")),
    ("4 claimed", life(CALL, WISH, "returned"), CALL.claim(1), e.Declined(why="x"), LATER,
     AlreadyFilled,
     ("acme/t1/1-0 is already claimed: ToolStarted at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("3 withdrawn, and a vote", life(CALL, WISH, "withdrawn"), CALL.vote("ana"), VOTE, SOON,
     AlreadyDecided,
     "acme/t1/1-0 is already decided: Withdrawn at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("3 decided, and more are asked", LONG_DENIED, *EXAMPLES[e.Escalated], LATER, AlreadyDecided,
     ("acme/t1/1-0 is already decided: Denied by ana at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("3 decided, and the glass is broken", LONG_DENIED, CALL.vote("sam"), BREAK, LATER,
     AlreadyDecided,
     ("acme/t1/1-0 is already decided: Denied by ana at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("3 decided, and it is announced", LONG_DENIED, *EXAMPLES[e.GlassBroken], LATER, AlreadyDecided,
     ("acme/t1/1-0 is already decided: Denied by ana at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("3 expired, and in another's place", life(CALL, WISH, "expired")[:3], CALL.vote("zoe"),
     behalf("ana"), LATER, DeadlinePassed,
     "acme/t1/1-0 is already decided: Expired at 2026-03-01 09:00:03 UTC. Nothing was recorded."),
    ("4 started", life(CALL, WISH, "running"), CALL.claim(1), EXAMPLES[e.ToolStarted][1], LATER,
     AlreadyFilled,
     ("acme/t1/1-0 is already claimed: ToolStarted at 2026-03-01 09:00:04 UTC. "
      "Nothing was recorded.")),
    ("5 taken back", life(CALL, WISH, "revoked")[:4], CALL.claim(1), EXAMPLES[e.ToolStarted][1],
     LATER, NotOpen, "acme/t1/1-0 is revoked, so it cannot be started."),
    ("4 asked as well already", [*STAGED, MORE], CALL.escalated(1), LAST[1], LATER, AlreadyFilled,
     ("acme/t1/1-0 is already escalated: Escalated at 2026-03-01 09:00:03 UTC. "
      "Nothing was recorded.")),
    ("4 announced already", [*MANY, EXAMPLES[e.GlassBroken]], *EXAMPLES[e.GlassBroken], LATER,
     AlreadyFilled,
     ("acme/t1/1-0 is already announced: "
      "GlassBroken by ana at 2026-03-01 09:00:03 UTC. Nothing was recorded.")),
    ("5 nobody asked, and more are", [(CALL.requested, request(WISH))], *EXAMPLES[e.Escalated],
     LATER, NotOpen,
     ("acme/t1/1-0 is requested, so it cannot be escalated. No gate has judged it yet.")),
    ("5 nobody asked, and the glass is broken", [(CALL.requested, request(WISH))],
     *EXAMPLES[e.GlassBroken], LATER, NotOpen,
     ("acme/t1/1-0 is requested, so it cannot be announced. No gate has judged it yet.")),
    ("5 not asked yet", [(CALL.requested, request(WISH))], CALL.vote("ana"), OTHER_BYTES, LATER,
     NotOpen, ("acme/t1/1-0 is requested, so it cannot be voted on. No gate has judged it yet.")),
    ("5 not approved", PENDING, CALL.claim(1), EXAMPLES[e.ToolStarted][1], SOON, NotOpen,
     ("acme/t1/1-0 is pending, so it cannot be started.")),
    ("5 not in doubt", life(CALL, WISH, "returned"), *EXAMPLES[e.Reconciled], LATER, NotOpen,
     "acme/t1/1-0 is returned, so it cannot be reconciled."),
    ("6 the deadline before the voter", PENDING, CALL.vote("rita"), OTHER_BYTES, LATER,
     DeadlinePassed, "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("6 the deadline to the second", PENDING, CALL.vote("ana"), VOTE,
     START + timedelta(seconds=3602), DeadlinePassed,
     "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("7 the requester", ONLY_BEN, CALL.vote("rita"), OTHER_BYTES, LATER, NotAllowed,
     ("rita asked for acme/t1/1-0, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("7 somebody else", ONLY_BEN, CALL.vote("ana"), OTHER_BYTES, LATER, NotAllowed,
     "ana is none of those who may vote on acme/t1/1-0. Rule 'money' asks ben, ops-*."),
    ("6 the last stage's deadline", [*STAGED, MORE, LAST], CALL.vote("eve"), OTHER_BYTES,
     START + timedelta(seconds=34), DeadlinePassed,
     "acme/t1/1-0 expired at 2026-03-01 09:00:34 UTC. Nothing was recorded."),
    ("6 the deadline, in another's place", PENDING, CALL.vote("rita"), behalf("rita"), LATER,
     DeadlinePassed, "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("6 the deadline, in an emergency", PENDING, CALL.vote("sam"), BREAK, LATER, DeadlinePassed,
     "acme/t1/1-0 expired at 2026-03-01 10:00:02 UTC. Nothing was recorded."),
    ("7 an owner by a pattern", MANY, CALL.vote("desk-7"), OTHER_BYTES, LATER, NotAllowed,
     ("desk-7 asked for acme/t1/1-0, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("7 the requester for another", MANY, CALL.vote("rita"), behalf("ben"), LATER, NotAllowed,
     ("rita asked for acme/t1/1-0, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("7 another for the requester", MANY, CALL.vote("zoe"), behalf("rita"), LATER, NotAllowed,
     ("rita asked for acme/t1/1-0, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("7 the requester in an emergency", MANY, CALL.vote("rita"), BREAK, LATER, NotAllowed,
     ("rita asked for acme/t1/1-0, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("7 none of them all", MANY, CALL.vote("eve"), OTHER_BYTES, LATER, NotAllowed,
     "eve is none of those who may vote on acme/t1/1-0. Rule 'money' asks ben, sam, olga."),
    ("7 for somebody who was not asked", MANY, CALL.vote("ben"), behalf("eve", digest="0" * 64),
     LATER, NotAllowed,
     "eve is none of those who may vote on acme/t1/1-0. Rule 'money' asks ben, sam, olga."),
    ("7 not yet asked as well", STAGED, CALL.vote("lea"), OTHER_BYTES, LATER, NotAllowed,
     "lea is none of those who may vote on acme/t1/1-0. Rule 'money' asks ben."),
    ("7 not in this stage", [*STAGED, MORE], CALL.vote("max"), VOTE, LATER, NotAllowed,
     "max is none of those who may vote on acme/t1/1-0. Rule 'money' asks ben, lea."),
    ("7 a voter may not break the glass", MANY, CALL.vote("ben"), BREAK, LATER, NotAllowed,
     "ben is none of those who may break the glass for acme/t1/1-0. Rule 'money' asks sam, rita."),
    ("7 nobody may", ONLY_BEN, CALL.vote("ben"), BREAK, LATER, NotAllowed,
     "ben is none of those who may break the glass for acme/t1/1-0. Rule 'money' asks nobody."),
    ("7 not in another's place", MANY, CALL.vote("ben"), replace(BREAK, on_behalf_of="sam"), LATER,
     NotAllowed, "nobody may break the glass in another's place. ben may do it only in their own."),
    ("7 not without a reason", MANY, CALL.vote("sam"), replace(BREAK, reason=" ", digest="0" * 64),
     LATER, NotAllowed, "who breaks the glass for acme/t1/1-0 must say why. Give a reason."),
    ("7 not with an edit", MANY, CALL.vote("sam"),
     replace(BREAK, arguments="{}", reason="", digest="0" * 64), LATER, NotAllowed,
     "arguments goes with approve, and the verdict is break_glass. Nothing was recorded."),
    ("7 for somebody who has voted", [*ONLY_BEN, (CALL.vote("ben"), VOTE)], CALL.vote("zoe"),
     behalf("ben", digest="0" * 64), LATER, AlreadyFilled,
     ("ben has voted on acme/t1/1-0: Voted by ben at 2026-03-01 09:00:03 UTC. "
      "Nothing was recorded.")),
    ("8 other bytes, in another's place", MANY, CALL.vote("zoe"), behalf("ben", digest="0" * 64),
     LATER, NotOpen,
     ("this vote is about other arguments than those that acme/t1/1-0 waits with. "
      "Look at it again.")),
    ("8 other bytes, in an emergency", MANY, CALL.vote("sam"), replace(BREAK, digest="0" * 64),
     LATER, NotOpen,
     ("this vote is about other arguments than those that acme/t1/1-0 waits with. "
      "Look at it again.")),
    ("8 other bytes", ONLY_BEN, CALL.vote("ben"), OTHER_BYTES, LATER, NotOpen,
     ("this vote is about other arguments than those that acme/t1/1-0 waits with. "
      "Look at it again.")),
    ("after that only the broker", ONLY_BEN, CALL.vote("ops-7"), VOTE, LATER, None, ""),
    ("one of security", MANY, CALL.vote("sam"), VOTE, LATER, None, ""),
    ("one of the workspace's", MANY, CALL.vote("olga"), VOTE, LATER, None, ""),
    ("in another's place", MANY, CALL.vote("zoe"), behalf("ben"), LATER, None, ""),
    ("in an emergency", MANY, CALL.vote("sam"), BREAK, LATER, None, ""),
    ("it stays open", STAYS, CALL.vote("ana"), VOTE, LATER, None, ""),
    ("open until more are asked", STAGED, CALL.vote("ben"), VOTE, LATER, None, ""),
    ("asked as well", [*STAGED, MORE], CALL.vote("lea"), VOTE, LATER, None, ""),
    ("in the place of one who was asked as well", [*STAGED, MORE], CALL.vote("zoe"), behalf("lea"),
     LATER, None, ""),
    ("in the last stage", [*STAGED, MORE, LAST], CALL.vote("ops-7"), VOTE, SOON, None, ""),
    ("more are asked", STAGED, *MORE, LATER, None, ""),
    ("and more", [*STAGED, MORE], *LAST, LATER, None, ""),
    ("it is announced", [*MANY, (CALL.vote("sam"), BREAK)], *EXAMPLES[e.GlassBroken], LATER, None,
     ""),
    ("and then approved", [*MANY, EXAMPLES[e.GlassBroken]], *EXAMPLES[e.Approved], LATER, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("story", "slot", "event", "at", "kind", "sentence"),
    [pytest.param(*row, id=name) for name, *row in REFUSALS],
)
def test_refusals_come_in_their_order(story, slot, event, at, kind, sentence):
    """Story, next word, answer; idempotence first (B26 to B31, B36, B40, B42, B68, I2, I5, I6)."""
    refused = refusal(told(*story), slot, event, at)
    assert (type(refused) if refused else None) is kind
    assert str(refused or "") == sentence


@pytest.mark.parametrize(
    ("story", "slot", "vote", "at", "kind"),
    [
        pytest.param(*row[:5], id=name)
        for name, *row in REFUSALS
        # That somebody has voted voids nothing: the count sees to it.
        if isinstance(row[2], e.Voted) and name[0] not in "12345" and row[4] is not AlreadyFilled
    ],
)
def test_a_vote_that_is_refused_would_not_count_either(story, slot, vote, at, kind):
    """What another client records all the same is void, for the same reasons (B40)."""
    call = told(*story)
    recorded = Fact(call.facts[-1].seq + 1, at, slot, vote)
    why = void(call_of(CALL, (*call.facts, recorded)), recorded)
    assert (why is None) is (kind is None)


def test_a_vote_without_an_id_is_never_the_very_same():
    """An empty id is no identity: what stands in the slot is somebody's, so it is taken."""
    call = told(*PENDING, (CALL.vote("ana"), VOTE))
    assert isinstance(refusal(call, CALL.vote("ana"), VOTE, SOON), AlreadyFilled)


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize(
    ("slot", "event"),
    [
        (CALL.vote("ana"), VOTE),
        (CALL.vote("zoe"), behalf("ana")),
        (CALL.vote("sam"), BREAK),
        MORE,
        EXAMPLES[e.GlassBroken],
        EXAMPLES[e.Withdrawn],
        EXAMPLES[e.Approved],
        EXAMPLES[e.Expired],
    ],
    ids=[
        "a vote", "a delegate", "an emergency", "a stage", "an announcement", "a withdrawal",
        "a yes", "an end",
    ],
)  # fmt: skip
def test_no_word_comes_after_the_last(decision: str, slot: Slot, event: e.Event):
    """Whichever way a call ended, whoever comes second is told who was first (B27, B29, B30, B36,
    B42, I5).
    """
    call = told(*life(CALL, WISH, decision)[:3])
    refused = refusal(call, slot, event, SOON)
    assert type(refused) is (DeadlinePassed if decision == "expired" else AlreadyDecided)
    assert describe(call.decided) in str(refused)


def test_who_may_vote_depends_on_when():
    """As it was before a fact of the log: whoever is asked only later is not asked then (B40)."""
    call = told(*STAGED, MORE, LAST)
    asked = {
        seq: [
            name
            for name in ("ben", "lea", "max", "ops-7")
            if may_vote(call, VOTE, name, START, seq)
        ]
        for seq in (3, 4, 5)
    }
    assert asked == {3: ["ben"], 4: ["ben", "lea"], 5: ["ben", "lea", "max", "ops-7"]}
    assert may_vote(call, VOTE, "ops-7", START)
    assert may_vote(call, behalf("lea"), "zoe", START)
    assert not may_vote(call, behalf("lea"), "zoe", START, 3)
    assert not may_vote(told(STAGED[0]), VOTE, "ben", START)


# ------------------------------------------------------------------------------ until when, and who


def seconds(when: datetime | None) -> float | None:
    return None if when is None else (when - START).total_seconds()


@pytest.mark.parametrize(
    ("story", "due", "deadline", "next_stage"),
    [
        ([(CALL.requested, request(WISH))], None, None, None),
        (ONLY_BEN, None, None, None),
        (PENDING, 3602, 3602, None),
        (STAYS, None, None, None),
        # With stages it becomes due, and has no deadline before the last one.
        (STAGED, 62, None, e.Stage(("lea",), 60)),
        ([*STAGED, MORE], 63, None, e.Stage(("max", "ops-*"), 30)),
        ([*STAGED, MORE, LAST], 34, 34, None),
        ([*STAGED, MORE, (CALL.escalated(2), e.Escalated(voters=("max",)))], None, None, None),
        # Stages that nobody said to go to.
        ([STAGED[0], (CALL.gated, replace(STAGED[1][1], on_timeout="deny"))], 62, 62, None),
    ],
)  # fmt: skip
def test_when_something_happens_by_itself(story, due, deadline, next_stage):
    """Due: more are asked or it expires; the deadline: it expires; by the broker's clock (B36)."""
    call = told(*story)
    assert (seconds(call.due), seconds(call.deadline), call.next_stage) == (
        due,
        deadline,
        next_stage,
    )


@pytest.mark.parametrize(
    ("story", "waits_s", "due", "deadline", "next_stage"),
    [
        ([(CALL.requested, request(WISH))], 10, None, None, None),
        (ONLY_BEN, 10, 11, 11, None),
        (PENDING, 10, 11, 11, None),
        (PENDING, 3601, 3602, 3602, None),
        # A policy is never made to ask for longer.
        (PENDING, 9999, 3602, 3602, None),
        (PENDING, 1e300, 3602, 3602, None),
        (STAYS, 10, 11, 11, None),
        # Nobody else is asked at the end of the wait or after it.
        (STAGED, 10, 11, 11, None),
        (STAGED, 61, 62, 62, None),
        (STAGED, 62, 62, None, e.Stage(("lea",), 60)),
        ([*STAGED, MORE], 62, 63, 63, None),
        ([*STAGED, MORE, LAST], 20, 21, 21, None),
        # It was over before anybody could be asked.
        (PENDING, 0.5, 1.5, 1.5, None),
        (PENDING, -5, -4, -4, None),
    ],
)
def test_nobody_is_asked_for_longer_than_the_requester_waits(
    story, waits_s, due, deadline, next_stage
):
    """The time counts from when the broker recorded the request, whenever a gate asked (B36)."""
    [(slot, wish), *rest] = story
    call = told((slot, replace(wish, expires_in_s=waits_s)), *rest)
    found = seconds(call.due), seconds(call.deadline), call.next_stage
    assert found == (due, deadline, next_stage)


@pytest.mark.parametrize(
    ("story", "before", "voters", "asked_as_well"),
    [
        ([(CALL.requested, request(WISH))], None, (), ()),
        (PENDING, None, ("*",), ()),
        (MANY, None, ("ben", "sam", "olga"), ()),
        (STAGED, None, ("ben",), ()),
        ([*STAGED, MORE], None, ("ben", "lea"), ("lea",)),
        ([*STAGED, MORE, LAST], None, ("ben", "lea", "max", "ops-*"), ("lea", "max", "ops-*")),
        ([*STAGED, MORE, LAST], 3, ("ben",), ()),
        ([*STAGED, MORE, LAST], 4, ("ben", "lea"), ("lea",)),
    ],
)
def test_everybody_who_may_vote_is_named_once(story, before, voters, asked_as_well):
    """Those of every group, and whoever was asked as well by then."""
    call = told(*story)
    assert (call.voters(before), call.escalated_to(before)) == (voters, asked_as_well)


GROUNDS = [
    ("people", True, None),
    ("broken_glass", True, None),
    ("policy", True, "people_were_asked"),
    ("grant", True, "people_were_asked"),
    ("policy", False, None),
    ("grant", False, None),
]


@pytest.mark.parametrize(("ground", "asked", "flaw"), GROUNDS)
def test_neither_policy_nor_grant_overtakes_people(ground: e.Ground, asked: bool, flaw: str | None):
    """What lets a call run unseen does not once people were asked before it (I3, I4)."""
    approved = e.Approved(digest=DIGEST, ground=ground, rule="money", policy_version=1)
    wished, gated = (CALL.requested, request(WISH)), (CALL.gated, question(WISH))
    decided = (CALL.decided, approved)
    assert told(wished, *([gated] if asked else []), decided).flaw == flaw
    assert told(wished, decided, gated).flaw is None  # the question came too late to be one


@pytest.mark.parametrize("ground", ["people", "broken_glass", "policy", "grant"])
def test_other_bytes_are_a_flaw_whatever_it_rests_on(ground: e.Ground):
    """An approval of anything else lets nothing run (B61, I1)."""
    approved = e.Approved(digest="0" * 64, ground=ground, rule="money", policy_version=1)
    assert told((CALL.requested, request(WISH)), (CALL.decided, approved)).flaw == "digest_mismatch"
    assert (
        told((CALL.requested, request(WISH)), (CALL.decided, DECISIONS["denied"])).flaw
        == "digest_mismatch"
    )


@given(
    st.permutations([*STAGED, MORE, LAST, (CALL.vote("ben"), VOTE), EXAMPLES[e.GlassBroken]]),
    st.data(),
)
def test_stages_and_announcements_find_their_places(story, data: st.DataObject):
    """In any order stages stand as they were recorded, and nothing else moves (I13)."""
    telling = Story().tell_all(story)
    call = call_of(CALL, tuple(data.draw(disorder(telling.facts))))
    assert call == call_of(CALL, tuple(telling.facts))
    assert call.status is Status.PENDING
    assert [fact.seq for fact in call.escalated] == sorted(fact.seq for fact in call.escalated)
    assert len(call.escalated) == 2
    assert call.announced is not None


# --------------------------------------------------------------------------------------- describing

BY_GATE = e.Author(kind="gate", name="gate")
AT = "at 2026-03-01 09:00:01 UTC"
POLICY_YES = e.Approved(digest=DIGEST, ground="policy", rule="reading", policy_version=2)
DESCRIBED = [
    (CALL.decided, replace(DECISIONS["denied"], by=BY_GATE), f"Denied by ana {AT}"),
    (CALL.decided, replace(DECISIONS["answered"], voters=("ana", "ben")),
     f"Answered by ana, ben {AT}"),
    (CALL.decided, POLICY_YES, f"Approved by policy rule 'reading' {AT}"),
    (CALL.decided, DECISIONS["denied by policy"], f"Denied by policy rule 'no-refunds' {AT}"),
    (CALL.decided, replace(DECISIONS["expired"], by=BY_GATE), f"Expired {AT}"),
    (CALL.decided, DECISIONS["expired"], f"Expired {AT}"),
    (CALL.vote("ana"), replace(VOTE, by=e.Author(kind="reviewer", name="a shared tablet")),
     f"Voted by ana {AT}"),
    (CALL.decided, e.Carried(type="Postponed", raw=b"{}"), f"Postponed {AT}"),
    (CALL.vote("zoe"), behalf("ana"), f"Voted by zoe for ana {AT}"),
    (CALL.decided, replace(DECISIONS["denied"], voters=("zoe", "ben"), on_behalf_of={"zoe": "ana"}),
     f"Denied by zoe for ana, ben {AT}"),
    (CALL.decided, replace(DECISIONS["answered"], voters=("zoe",), on_behalf_of={"zoe": "ana"}),
     f"Answered by zoe for ana {AT}"),
    (CALL.decided,
     replace(POLICY_YES, ground="people", voters=("ben", "zoe"), on_behalf_of={"zoe": "ana"}),
     f"Approved by ben, zoe for ana {AT}"),
    (CALL.decided, replace(POLICY_YES, ground="broken_glass", voters=("sam",)),
     f"Approved by sam, who broke the glass {AT}"),
    (CALL.decided,
     replace(POLICY_YES, ground="grant", voters=("ana", "ben"), grants=("ana/g1", "ben/g2")),
     f"Approved by ana, ben (grant ana/g1, ben/g2) {AT}"),
    (CALL.decided, replace(DECISIONS["denied by policy"], ground="limit", by=BY_GATE),
     f"Denied by policy rule 'no-refunds' {AT}"),
    (CALL.decided, replace(DECISIONS["denied by policy"], ground="repeated", by=BY_GATE),
     f"Denied by the gate, as it was before {AT}"),
    (CALL.decided, replace(DECISIONS["denied"], voters=(), by=BY_GATE), f"Denied by gate {AT}"),
    (*MORE, f"Escalated {AT}"),
    (*EXAMPLES[e.GlassBroken], f"GlassBroken by ana {AT}"),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "event", "words"), DESCRIBED)
def test_who_came_second_is_told_who_was_first(slot: Slot, event: e.Event | e.Carried, words: str):
    """What, by whom and when, as refusals say it; a voter is who the subject says (B27, B40)."""
    assert describe(Story().tell(slot, event)) == words


def test_a_call_is_only_what_its_facts_say():
    """Nothing recorded, nothing known."""
    call = Call(CallRef("acme", "t1", "nobody-asked"))
    assert call.status is Status.UNKNOWN
    assert call.approval_request is None
    assert call.deadline is None


# -------------------------------------------------------------------------------------- what counts

REQUESTED = (CALL.requested, request(WISH))
CLIENTS = (CALL.requested, replace(request(WISH), layout=2))
EXECUTORS = (CALL.requested, replace(request(WISH), run_by="executor"))
YES, NO = EXAMPLES[e.Approved], (CALL.decided, DECISIONS["denied"])
STARTED, CLIENT_START = EXAMPLES[e.ToolStarted], (CALL.client_claim(1), EXAMPLES[e.ToolStarted][1])
OTHER_START = (CALL.claim(1), e.ToolStarted(digest="0" * 64, idempotency_key=str(CALL)))
BACK, BACK_BY_RITA = EXAMPLES[e.Revoked], (CALL.revoked_by("rita"), e.Revoked())
DONE, CLIENT_DONE = EXAMPLES[e.ToolReturned], (CALL.client_finished, e.ToolReturned(output="done"))
SECOND = (CALL.finished, e.ToolReturned(output="done", attempt=2))
INSTEAD = (CALL.revoked_by("ana"), e.Revoked(answer="by hand"))
INSTEAD_ERROR = (CALL.revoked_by("ana"), e.Revoked(answer="no such order", is_error=True))
ANSWERED_ERROR = (CALL.decided, DECISIONS["answered_with_error"])
TOLD, TOLD_ERROR, TOLD_REVOKED = (
    (CALL.finished, e.ToolRefused(ending=ending, text="it did not run"))
    for ending in ("answered", "answered_with_error", "revoked")
)
DOUBT, REFUSED = EXAMPLES[e.InDoubt], EXAMPLES[e.ToolRefused]
FOUND, FOUND_BY_RITA = (
    EXAMPLES[e.Reconciled],
    (CALL.reconciled_by("rita"), EXAMPLES[e.Reconciled][1]),
)
JUNK = (CALL.finished, e.Carried(type="", raw=b"?", problem="no fact"))
LATE = (CALL.late(1), e.ToolReturned(output="done"))
CLIENT_JUNK, CLIENT_LATE = (CALL.client_finished, JUNK[1]), (CALL.client_late(1), LATE[1])

#: The story so far, how it stands, and why each fact of it is void that is.
VOID = [
    ("claimed before it was asked for", [STARTED, REQUESTED, YES], Status.APPROVED,
     ["the call was not requested before it"]),
    ("claimed before it was decided", [REQUESTED, STARTED, YES], Status.APPROVED,
     ["the call was not decided before it"]),
    ("claimed before it was denied", [REQUESTED, STARTED, NO], Status.DENIED,
     ["the call was not decided before it"]),
    ("claimed after it was denied", [REQUESTED, NO, STARTED], Status.DENIED,
     ["the call was not approved, but denied"]),
    ("claimed with other bytes", [REQUESTED, YES, OTHER_START], Status.APPROVED,
     ["it is about other bytes than were approved"]),
    ("an executor claims a client's", [CLIENTS, YES, STARTED], Status.APPROVED,
     ["calls that 'client' runs are not claimed in claim.1"]),
    ("a client claims an executor's", [EXECUTORS, YES, CLIENT_START], Status.APPROVED,
     ["calls that 'executor' runs are not claimed in claim.client.1"]),
    ("a client claims its own", [CLIENTS, YES, CLIENT_START], Status.RUNNING, []),
    ("a client of an older log", [REQUESTED, YES, STARTED, DONE], Status.RETURNED, []),
    ("revoked before it was approved", [REQUESTED, BACK, YES], Status.APPROVED,
     ["the call was not decided before it"]),
    ("revoked by who asked", [REQUESTED, YES, BACK_BY_RITA], Status.APPROVED,
     ["rita may not revoke this approval"]),
    ("revoked twice", [REQUESTED, YES, BACK, (CALL.revoked_by("ana"), e.Revoked())], Status.REVOKED,
     ["the approval was revoked before it"]),
    ("ended before it was claimed", [REQUESTED, YES, DONE, STARTED], Status.RUNNING,
     ["attempt 1 was not started before it"]),
    ("ended in another attempt", [REQUESTED, YES, STARTED, SECOND], Status.RUNNING,
     ["attempt 2 was not started before it"]),
    ("an executor ends a client's", [CLIENTS, YES, CLIENT_START, DONE], Status.RUNNING,
     ["calls that 'client' runs do not end in finished"]),
    ("a client ends an executor's", [EXECUTORS, YES, STARTED, CLIENT_DONE], Status.RUNNING,
     ["calls that 'executor' runs do not end in finished.client"]),
    ("in doubt before it was claimed", [REQUESTED, YES, DOUBT], Status.APPROVED,
     ["attempt 1 was not started before it"]),
    ("told as denied before it was", [REQUESTED, REFUSED, NO], Status.DENIED,
     ["nothing before it says that the call ended so (denied)"]),
    ("told as denied when it was approved", [REQUESTED, YES, REFUSED], Status.APPROVED,
     ["nothing before it says that the call ended so (denied)"]),
    ("answered after the approval", [REQUESTED, YES, INSTEAD, TOLD], Status.REFUSED, []),
    ("an error after the approval", [REQUESTED, YES, INSTEAD_ERROR, TOLD_ERROR],
     Status.REFUSED, []),
    ("told as revoked when it was answered", [REQUESTED, YES, INSTEAD, TOLD_REVOKED],
     Status.REVOKED, ["nothing before it says that the call ended so (revoked)"]),
    ("told as an error when it was none", [REQUESTED, YES, INSTEAD, TOLD_ERROR],
     Status.REVOKED, ["nothing before it says that the call ended so (answered_with_error)"]),
    ("told as a result when it was an error", [REQUESTED, ANSWERED_ERROR, TOLD],
     Status.ANSWERED, ["nothing before it says that the call ended so (answered)"]),
    ("answered when it had started", [REQUESTED, YES, STARTED, INSTEAD], Status.RUNNING,
     ["the call was started before it"]),
    ("told as denied when it ran", [REQUESTED, YES, STARTED, REFUSED], Status.RUNNING,
     ["the call was started before it"]),
    ("reconciled without a doubt", [REQUESTED, YES, STARTED, FOUND], Status.RUNNING,
     ["the call was not in doubt before it"]),
    ("reconciled after it had returned", [REQUESTED, YES, STARTED, DONE, FOUND], Status.RETURNED,
     ["the call was not in doubt before it"]),
    ("reconciled by who asked", [REQUESTED, YES, STARTED, DOUBT, FOUND_BY_RITA], Status.IN_DOUBT,
     ["rita may not reconcile this call"]),
    ("reconciled twice",
     [REQUESTED, YES, STARTED, DOUBT, FOUND, (CALL.reconciled_by("ben"), FOUND[1])],
     Status.RECONCILED, ["the call was reconciled before it"]),
    ("in doubt after it had ended", [REQUESTED, YES, STARTED, DONE, (CALL.late(1), DOUBT[1])],
     Status.RETURNED, ["the call had ended before it"]),
    ("a void end gives way to the late one", [REQUESTED, YES, DONE, STARTED, LATE], Status.RETURNED,
     ["attempt 1 was not started before it"]),
    ("junk gives way as well", [JUNK, REQUESTED, YES, STARTED, LATE], Status.RETURNED,
     ["it cannot be read: no fact"]),
    ("junk in a client's place as well", [CLIENT_JUNK, CLIENTS, YES, CLIENT_START, CLIENT_LATE],
     Status.RETURNED, ["it cannot be read: no fact"]),
    ("junk in the other side's place does not", [JUNK, CLIENTS, YES, CLIENT_START, CLIENT_LATE],
     Status.RUNNING, ["it cannot be read: no fact"]),
    ("past a free slot it is only kept", [REQUESTED, YES, STARTED, LATE], Status.RUNNING, []),
    ("declined after the start",
     [REQUESTED, YES, STARTED, (CALL.claim(2), e.Declined(why="unknown_tool"))], Status.RUNNING,
     ["the call was started before it"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("story", "status", "why"), [pytest.param(*row, id=name) for name, *row in VOID]
)
def test_a_fact_counts_only_for_what_it_rests_on(story, status: Status, why: list[str]):
    """What earlier facts do not bear out changes nothing, and says why (B61, B62, I1, I6)."""
    call = told(*story)
    assert call.status is status
    assert [void.why for void in call.void] == why
    assert len(call.facts) == len(story), "nothing is dropped"


def test_a_void_fact_is_no_obstacle():
    """A claim goes to the next free attempt, an end to `late`, where the call runs (I6)."""
    call = told(STARTED, OTHER_START, JUNK, EXECUTORS, YES)
    assert call.claim_slot == CALL.claim(2)
    assert call.end_slot == CALL.late(1)
    call = told(CLIENT_START, CLIENT_DONE, CLIENTS, YES)
    assert (call.claim_slot, call.end_slot) == (CALL.client_claim(2), CALL.client_late(1))
    call = told(*life(CALL, WISH, "returned"))
    assert (call.end_slot, call.refusal_slot, call.late_slot) == (None, None, CALL.client_late(1))


def test_the_attempt_of_a_call_is_that_of_its_last_start():
    """Void claims use up attempts: what ends a call names the attempt that runs (I6)."""
    start = (CALL.claim(2), STARTED[1])
    call = told(REQUESTED, STARTED, YES, start)
    assert (call.attempt, len(call.starts)) == (2, 1)
    assert told(REQUESTED, STARTED, YES, start, SECOND).status is Status.RETURNED
    assert told(REQUESTED, STARTED, YES).attempt == 0


def test_nobody_acts_on_what_a_newer_program_wrote():
    """A fact from the future is neither void nor known, so nothing may follow it (I4, I12)."""
    newer = (CALL.claim(1), e.Carried(type="ToolStarted", raw=b"{}", v=2))
    call = told(REQUESTED, YES, newer)
    assert (call.status, call.void, len(call.newer)) == (Status.APPROVED, (), 1)
    refused = refusal(call, CALL.claim(2), STARTED[1], SOON)
    assert isinstance(refused, NotOpen)
    assert "a fact of a newer program: ToolStarted" in str(refused)
