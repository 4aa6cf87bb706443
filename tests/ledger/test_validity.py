"""Which facts count, for any facts at all: in any slot, in any order, by anybody who may write
there.

The stories of `test_lifecycle.py` are those that somebody thought of. These are the others: a few
hundred in each run of the tests, 20,000 of each with `make properties`.
"""

import asyncio
from datetime import timedelta

from anything import REVIEWERS, ROLES, WISH, fact, may_record, placed, raws_of, recorded, wishes
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from stories import REF, START, approval, disorder, request

from ayes.ledger.call import Call
from ayes.ledger.in_memory import Memory
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.votes import tally
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of, evolve, void, voids
from ayes.projections.lake.counting import judgements
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CLIENT, Slot

CALL = REF.wish(1, 0)
#: Fifty examples of each in `make test`, 300 in `make test-long`, more in `make properties`.
anything = settings(
    max_examples=max(examples(300), settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
RAN = {Status.RUNNING, Status.RETURNED, Status.FAILED, Status.IN_DOUBT, Status.RECONCILED}


def facts_of(told: list[tuple[str, bytes]]) -> list[Fact]:
    return [fact(raw) for raw in raws_of(told)]


def call_in(told: list[tuple[str, bytes]]) -> Call:
    return call_of(CALL, facts_of(told))


def counting(call: Call) -> list[Fact]:
    void = {one.fact.seq for one in voids(call)} | {one.seq for one in call.newer}
    return [one for one in call.facts if one.seq not in void]


@anything
@given(recorded(CALL))
def test_nothing_starts_without_an_approval_of_these_bytes(told):
    """A start counts only behind an approval of exactly the bytes that it names, and before any
    revocation (C1, R6, B61).
    """
    call = call_in(told)
    assert bool(call.starts) == (call.status in RAN)
    for start in call.starts:
        assert isinstance(call.decided.event, e.Approved)
        assert (
            call.requested.seq < call.decided.seq < start.seq
            or call.requested.seq < start.seq > call.decided.seq
        )
        edit = call.decided.event.arguments
        runs = call.wish.arguments if edit is None else edit
        bytes_that_run = call_digest(call.wish.tool, call.wish.tool_version, runs)
        assert start.event.digest == call.decided.event.digest == bytes_that_run
        assert call.revoked is None
        assert call.declined is None


@anything
@given(recorded(CALL))
def test_no_result_is_shown_that_no_start_precedes(told):
    """What the model reads as a result follows a start that counts, of its attempt (H1)."""
    call = call_in(told)
    for end in (*([call.finished] if call.finished else []), *call.late):
        if isinstance(end.event, e.ToolRefused):
            assert not [start for start in call.starts if start.seq < end.seq]
            continue
        starts = [start for start in call.starts if start.seq < end.seq]
        assert end.event.attempt in {int(start.slot.tail[-1]) for start in starts}
    if call.reconciled is not None:
        assert isinstance(call.finished.event, e.InDoubt)
        assert call.finished.seq < call.reconciled.seq


@anything
@given(recorded(CALL))
def test_each_side_has_its_own_slots(told):
    """What a client records of an executor's call counts for nothing, nor the reverse (H1)."""
    call = call_in(told)
    if call.requested is None:
        return
    ran = [*call.claims, *call.late, *([call.finished] if call.finished else [])]
    ran = [one for one in ran if not isinstance(one.event, e.ToolRefused)]
    sides = {one.slot.tail[3:4] == (CLIENT,) for one in ran}
    if not call.is_clients:
        assert True not in sides
    elif call.wish.layout > 1:
        assert False not in sides


def _anybodys(roles: tuple[str, ...]) -> st.SearchStrategy[list[tuple[str, bytes]]]:
    theirs = placed(CALL, *roles).map(lambda one: (one[0].subject, encode(one[1])))
    return st.lists(theirs, max_size=5, unique_by=lambda one: one[0])


PEOPLE = tuple(f"reviewer-{name}" for name in REVIEWERS)
STRANGERS = {"payments": ("service", *PEOPLE), CLIENT: ("executor", *PEOPLE)}


@anything
@given(st.data(), st.sampled_from(sorted(STRANGERS)))
def test_what_is_void_never_stands_in_the_way(data, run_by):
    """Whatever others recorded: an approved, unrevoked call can be claimed and ended (R6)."""
    wish = data.draw(wishes)
    wish = e.ToolRequested(
        tool=wish.tool,
        arguments=wish.arguments,
        digest=wish.digest,
        tool_version="v1",
        run_by=run_by,
        layout=2,
    )
    before = [
        one for one in data.draw(_anybodys(STRANGERS[run_by])) if one[0] != CALL.requested.subject
    ]
    between = data.draw(_anybodys(STRANGERS[run_by]))
    ours = [(CALL.requested.subject, encode(wish)), (CALL.decided.subject, encode(approval(WISH)))]
    told = dict([*before, ours[0]])
    for subject, raw in [*between, ours[1]]:
        told.setdefault(subject, raw)
    call = call_in(list(told.items()))
    assert call.status is Status.APPROVED
    for subject, raw in data.draw(_anybodys(STRANGERS[run_by])):
        told.setdefault(subject, raw)
    call = call_in(list(told.items()))
    if call.revoked is not None:
        return
    started = _record(told, call.claim_slot, e.ToolStarted(digest=wish.digest, idempotency_key="k"))
    assert call_in(list(told.items())).starts[-1].slot == started
    for subject, raw in data.draw(_anybodys(STRANGERS[run_by])):
        told.setdefault(subject, raw)
    call = call_in(list(told.items()))
    ended = _record(told, call.end_slot, e.ToolReturned(output="done", attempt=call.attempt))
    call = call_in(list(told.items()))
    assert (call.status, call.finished.slot) == (Status.RETURNED, ended)


def _record(told: dict[str, bytes], slot: Slot, event: e.Event) -> Slot:
    assert slot.subject not in told
    told[slot.subject] = encode(event)
    return slot


@anything
@given(recorded(CALL), st.data())
def test_the_same_facts_make_the_same_call(told, data):
    """In any order, some of them twice, one by one or at once (B1)."""
    facts = facts_of(told)
    call = call_of(CALL, facts)
    mixed = data.draw(disorder(facts))
    assert call_of(CALL, mixed) == call
    grown = Call(CALL)
    for one in mixed:
        grown = evolve(grown, one)
    assert grown == call


@anything
@given(recorded(CALL), st.data())
def test_what_is_recorded_later_changes_no_judgement(told, data):
    """Whether a fact counts depends on the facts before it: nothing is decided twice."""
    raws = raws_of(told)
    whole = judgements(raws)
    cut = data.draw(st.integers(0, len(raws)))
    assert judgements(raws[:cut]) == whole[:cut]


def test_a_later_question_does_not_undo_a_revocation():
    """A second gate's question comes behind the policy's yes, and asks others than who took it back
    meanwhile.

    Nor does a later escalation let a vote count that came too late, or a person revoke who was not
    asked by then.
    """
    approved = approval(WISH)
    yes = e.Approved(digest=approved.digest, ground="policy", rule="small", policy_version=1)
    told = [
        (CALL.requested.subject, encode(request(WISH))),
        (CALL.decided.subject, encode(yes)),
        (CALL.revoked_by("ana").subject, encode(e.Revoked())),
    ]
    assert call_in(told).status is Status.REVOKED
    asking = e.ApprovalRequested(
        digest=approved.digest, rule="r", policy_version=1, voters=("ben",)
    )
    assert call_in([*told, (CALL.gated.subject, encode(asking))]).status is Status.REVOKED
    asked = e.ApprovalRequested(
        digest=approved.digest, rule="r", policy_version=1, voters=("ben",), expires_in_s=0.5
    )
    told = [
        (CALL.requested.subject, encode(request(WISH))),
        (CALL.gated.subject, encode(asked)),
        (CALL.vote("ben").subject, encode(e.Voted(verdict="approve", digest=approved.digest))),
        (CALL.decided.subject, encode(approved)),
        (CALL.revoked_by("rosa").subject, encode(e.Revoked())),
        (CALL.escalated(1).subject, encode(e.Escalated(voters=("rosa",), expires_in_s=600))),
    ]
    assert call_in(told).status is Status.APPROVED
    assert [one.fact.slot for one in voids(call_in(told))] == [
        CALL.vote("ben"),
        CALL.revoked_by("rosa"),
    ]


@anything
@given(recorded(CALL))
def test_each_fact_is_in_one_place_and_each_void_one_has_a_reason(told):
    """Nothing that stands in a slot of a call is lost, and nothing is in it twice."""
    facts, call = facts_of(told), call_in(told)
    assert list(call.facts) == facts
    assert all(one.why for one in voids(call))
    seqs = [one.fact.seq for one in voids(call)]
    assert seqs == sorted(set(seqs))
    for one in call.votes:
        assert (void(call, one) is None) == (one.seq not in seqs)


@anything
@given(recorded(CALL, foreign=False))
def test_what_people_say_counts_for_nothing(told):
    """Without comments and handovers it is the same call, fact by fact and void by void."""
    facts = facts_of(told)
    said = [one for one in facts if one.slot.tail[2] in ("comment", "handed")]
    call = call_of(CALL, facts)
    assert sorted((*call.comments, *call.handed), key=lambda one: one.seq) == said
    without = call_of(CALL, [one for one in facts if one not in said])
    assert replace(call, comments=(), handed=()) == without
    assert voids(call) == voids(without)
    if call.approval_request is not None:
        assert tally(call, Policies(), None) == tally(without, Policies(), None)


@anything
@given(recorded(CALL, foreign=False))
def test_the_twin_gives_the_same_call(told):
    """What the port in memory hands back makes the call that the facts make."""

    async def through() -> Call:
        clock = iter(START + timedelta(seconds=seq) for seq in range(1, 100))
        port = Memory(now=lambda: next(clock))
        for subject, raw in told:
            await port.append(Slot.parse(subject), raw, "")
        return call_of(CALL, await port.read(CALL.subjects))

    assert asyncio.run(through()) == call_in(told)


@anything
@given(placed(CALL))
def test_every_slot_that_is_tried_here_is_somebody_s(one):
    """The places above are those that the broker lets somebody fill."""
    slot, event = one
    assert isinstance(event, slot.filled_by)
    assert any(may_record(role, slot) for role in ROLES)
