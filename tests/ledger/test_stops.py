"""What a stop covers, when it holds, and which starts count (docs/decisions/0063)."""

from datetime import UTC, datetime, timedelta

import pytest

from ayes.ledger.lifecycle import Status
from ayes.ledger.log import RawMessage
from ayes.ledger.stops import stops_of
from ayes.ledger.validity import call_of, evolve, refusal, void_runs, voids
from ayes.projections.lake.counting import judgements
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadId, NotOpen
from ayes.schemas.slots import ORGANISATION, CallRef, Slot, StopRef

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
CALL = CallRef("shop", "t1", "c1")
DIGEST = call_digest("refund", "v1", "{}")
STOP = StopRef("shop", "ana", "s1")


def wish(tool: str = "refund", agent: str = "desk", requester: str = "rita") -> e.ToolRequested:
    return e.ToolRequested(
        tool=tool,
        tool_version="v1",
        arguments="{}",
        digest=call_digest(tool, "v1", "{}"),
        requester=requester,
        agent=agent,
        run_by="executor",
    )


def log(*told: tuple[Slot, e.Event]) -> tuple[Fact, ...]:
    """One fact each minute."""
    return tuple(
        Fact(number, NOW + timedelta(minutes=number), slot, event)
        for number, (slot, event) in enumerate(told, start=1)
    )


REQUESTED = (CALL.requested, wish())
APPROVED = (CALL.decided, e.Approved(ground="policy", rule="free", policy_version=1, digest=DIGEST))
STARTED = (CALL.claim(1), e.ToolStarted(digest=DIGEST, idempotency_key=str(CALL)))
STOPPED = (STOP.given, e.Stopped(reason="A wrong account."))
RESUMED = (STOP.resumed_by("ben"), e.Resumed())
ENDED = (STOP.ended, e.StopEnded(resumed_by=("ben",)))


def stopped(**fields: object) -> tuple[Slot, e.Event]:
    return STOP.given, e.Stopped(reason="A wrong account.", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        # Without a stop, and before one.
        ((REQUESTED, APPROVED, STARTED), Status.RUNNING),
        ((REQUESTED, APPROVED, STARTED, STOPPED), Status.RUNNING),
        # After one, whether it was given before or after the approval.
        ((REQUESTED, APPROVED, STOPPED, STARTED), Status.APPROVED),
        ((STOPPED, REQUESTED, APPROVED, STARTED), Status.APPROVED),
        # Of another workspace; of all workspaces.
        (
            (REQUESTED, APPROVED, (StopRef("bank", "ana", "s1").given, STOPPED[1]), STARTED),
            Status.RUNNING,
        ),
        (
            (REQUESTED, APPROVED, (StopRef(ORGANISATION, "ana", "s").given, STOPPED[1]), STARTED),
            Status.APPROVED,
        ),
        # That somebody resumed ends nothing; the gate's word does.
        ((REQUESTED, APPROVED, STOPPED, RESUMED, STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, STOPPED, RESUMED, ENDED, STARTED), Status.RUNNING),
        ((REQUESTED, APPROVED, STOPPED, STARTED, RESUMED, ENDED), Status.APPROVED),
        # An end that came before the stop is about nothing.
        ((REQUESTED, APPROVED, ENDED, STOPPED, STARTED), Status.APPROVED),
        # One ends by itself: the start comes one minute after it.
        ((REQUESTED, APPROVED, stopped(expires_in_s=61.0), STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, stopped(expires_in_s=60.0), STARTED), Status.RUNNING),
        # What it covers: all three must fit.
        ((REQUESTED, APPROVED, stopped(agents=("desk",)), STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, stopped(agents=("de*", "x")), STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, stopped(agents=("other",)), STARTED), Status.RUNNING),
        ((REQUESTED, APPROVED, stopped(tools=("ref*",)), STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, stopped(tools=("cancel",)), STARTED), Status.RUNNING),
        ((REQUESTED, APPROVED, stopped(requesters=("rita",)), STARTED), Status.APPROVED),
        ((REQUESTED, APPROVED, stopped(requesters=("ben",)), STARTED), Status.RUNNING),
        (
            (REQUESTED, APPROVED, stopped(agents=("desk",), tools=("cancel",)), STARTED),
            Status.RUNNING,
        ),
        # Whose a call is that names no agent, nobody knows.
        (
            ((CALL.requested, wish(agent="")), APPROVED, stopped(agents=("desk",)), STARTED),
            Status.APPROVED,
        ),
    ],
)
def test_which_starts_count(told, status):
    """By all facts at once, in any order, one by one, and as the lake counts them (I11)."""
    facts = log(*told)
    call = call_of(CALL, facts)
    assert call.status is status
    assert call_of(CALL, reversed(facts)).status is status
    grown = call_of(CALL, ())
    for fact in facts:
        grown = evolve(grown, fact)
    assert grown == call
    raws = [RawMessage(f.seq, f.recorded_at, f.slot.subject, encode(f.event)) for f in facts]
    mine = [raw for raw, fact in zip(raws, facts, strict=True) if fact.slot.call_ref]
    others = [raw for raw in raws if raw not in mine]
    [start] = [
        one
        for raw, one in zip(mine, judgements(mine, others), strict=True)
        if raw.subject == CALL.claim(1).subject
    ]
    assert start.counts is (status is Status.RUNNING)


def test_a_stopped_start_says_by_whom_and_is_no_alarm():
    """Whoever claimed and saw the stop has not run it; a result of that start is one (kind 11)."""
    facts = log(REQUESTED, APPROVED, STOPPED, STARTED)
    call = call_of(CALL, facts)
    [void] = voids(call)
    assert void.why.startswith("stopped in workspace shop by ana at 2026-03-02 09:33:00 UTC, until")
    assert void.why.endswith("(shop/ana/s1): A wrong account.")
    assert void_runs(call) == ()
    assert call.claim_slot == CALL.claim(2)
    result = (CALL.finished, e.ToolReturned(output="paid", attempt=1))
    [run] = void_runs(call_of(CALL, log(REQUESTED, APPROVED, STOPPED, STARTED, result)))
    assert run.fact.slot == CALL.finished


def test_a_start_is_refused_while_it_is_stopped():
    """Before it is sent; and not once the stop has ended."""
    start = e.ToolStarted(digest=DIGEST, idempotency_key=str(CALL))
    call = call_of(CALL, log(REQUESTED, APPROVED, STOPPED))
    problem = refusal(call, CALL.claim(1), start, NOW)
    assert isinstance(problem, NotOpen)
    assert "may not start: stopped in workspace shop by ana" in str(problem)
    ended = call_of(CALL, log(REQUESTED, APPROVED, STOPPED, ENDED))
    assert refusal(ended, CALL.claim(1), start, NOW) is None


def test_the_same_stop_is_one():
    """Each with its own end, in the order of the log; another's facts make none."""
    other = StopRef("shop", "ben", "s1")
    facts = log(STOPPED, (other.given, STOPPED[1]), RESUMED, ENDED, APPROVED)
    first, second = stops_of(facts)
    assert (first.ref, second.ref) == (STOP, other)
    assert [fact.slot for fact in first.resumed] == [STOP.resumed_by("ben")]
    assert first.ended is not None
    assert second.ended is None
    assert stops_of(facts, "bank") == ()


@pytest.mark.parametrize("text", ["shop/ana/s1", "_organisation/ana/s1"])
def test_a_stop_is_named(text):
    assert str(StopRef.parse(text)) == text


@pytest.mark.parametrize("text", ["_policy/ana/s1", "shop/_x/s1", "shop/ana/"])
def test_a_name_that_is_none_is_refused(text):
    with pytest.raises(BadId):
        StopRef.parse(text)
