"""Projections of a whole log: the same rows live, rebuilt, in any order and in any batches.

What is right is always made in another way than the state makes it: from all facts of one thread or
call at once.
"""

import random
from collections import defaultdict
from functools import reduce
from itertools import product
from pathlib import Path

import msgspec
import pytest
from busy_log import MODEL, TOOLS, busy_log, call_row, history_row, one_log, rebuilt
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stories import (
    REF,
    SETTLED,
    START,
    UNSETTLED,
    Story,
    approval,
    disorder,
    life,
    lives,
    question,
    request,
)

from ayes.consumers.model import ModelWorker
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import MAY_FOLLOW, Status
from ayes.ledger.lifecycle import SETTLED as ENDS
from ayes.ledger.validity import call_of, evolve, refusal
from ayes.projections import pending
from ayes.projections.calls import CALLS
from ayes.projections.fold import ProjectionState
from ayes.projections.formats import FORMATS
from ayes.projections.histories import HISTORIES, ThreadFacts
from ayes.projections.history import Assistant, Outcome, history
from ayes.projections.pending import OPEN_APPROVALS
from ayes.projections.thread import thread_of
from ayes.schemas import codec
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import FILLED_BY, Slot, ThreadRef

FOLDS = (OPEN_APPROVALS, HISTORIES, CALLS)


def folds(keep_complete):
    """All of them, keeping so many things at rest: few, so that some are let go and recalled."""
    return tuple(msgspec.structs.replace(fold, keep_complete=keep_complete) for fold in FOLDS)


class Live:
    """A state that is driven as `ops/audit/replay.py` drives it; recalled from a list of facts."""

    def __init__(self, log, keep_complete):
        self.log = log
        self.folds = folds(keep_complete)
        self.state = ProjectionState(*self.folds)
        self.shown = {fold.name: {} for fold in self.folds}
        self.recalls = 0

    def apply(self, fact):
        self.state.apply(fact)
        if wanted := self.state.to_reload:
            self.recalls += 1
            self.state.reload([one for one in self.log if wanted & _keys(one)])

    def drain(self):
        """Take away what was let go: the last row of a key counts."""
        for fold in self.folds:
            for row in map(fold.row, self.state.evicted(fold)):
                if row is not None:
                    self.shown[fold.name][row.key] = row.value

    def rows(self):
        self.drain()
        in_hand = {
            fold.name: {row.key: row.value for row in self.state.rows(fold)} for fold in self.folds
        }
        # The queue shows what is open, and nothing that is open was let go.
        assert self.shown["pending"] == {}
        return {name: self.shown[name] | in_hand[name] for name in in_hand}


def _keys(fact):
    """What a ledger reads again: a thread, or a call."""
    at = fact.slot
    return {
        (at.workspace, at.thread),
        (at.workspace, at.thread, at.tail[1] if at.tail[0] == "call" else ""),
    }


def same(rows, expected):
    """Row by row, so that a difference is small enough to read. Calls are compared as values."""
    read = rows | {
        "calls": {key: msgspec.json.decode(value) for key, value in rows["calls"].items()}
    }
    for name in expected:
        assert read[name].keys() == expected[name].keys(), name
        for key, value in expected[name].items():
            assert read[name][key] == value, (name, key)


# ----------------------------------------------------------------------- one log of several threads


def _opened(facts, model, most):
    """The same, with a model that answers it (or none)."""
    first = msgspec.structs.replace(
        facts[0], event=e.ThreadOpened(requester="rita", model=model, max_turns=most)
    )
    return [first, *facts[1:]]


@st.composite
def logs(draw):
    """Random lives of several threads in one log."""
    threads = [
        _opened(
            draw(lives()), draw(st.sampled_from(["", MODEL])), draw(st.sampled_from([1, 2, 100]))
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return one_log(threads, draw(st.randoms(use_true_random=False)))


@settings(deadline=None)
@given(logs(), st.sampled_from([0, 1, 2]), st.data())
def test_any_order_and_any_batches_give_the_same_rows(log, resting, data):
    """Every fact in any order, some twice, rows taken at any place in between: always what each
    thread and call comes to by itself (I11, I13).
    """
    live = Live(log, resting)
    breaks = data.draw(st.sets(st.integers(1, len(log)), max_size=6))
    for count, fact in enumerate(data.draw(disorder(log)), 1):
        live.apply(fact)
        if count in breaks:
            data.draw(st.sampled_from([live.drain, live.rows]))()
    assert not live.state.missing
    same(live.rows(), rebuilt(log))


# ------------------------------------------------------------------------------ every single prefix


def test_live_is_rebuilt_at_every_prefix():
    """2,000 facts of many threads at once, letting go as soon as possible: after each fact, what is
    shown of the thing that it is about is what all of its facts so far give; and from time to time
    everything is compared (I11, I13, B77).
    """
    log = busy_log(2000)
    live = Live([], 0)
    threads, calls = defaultdict(list), defaultdict(list)
    statuses = set()
    for count, fact in enumerate(log, 1):
        live.log.append(fact)
        live.apply(fact)
        live.drain()
        assert live.state.seq == count
        ref, call_ref = fact.slot.thread_ref, fact.slot.call_ref
        threads[ref].append(fact)
        expected = history_row(ref, threads[ref])
        assert _shown(live, "histories", fact.slot, f"{ref.workspace}.{ref.thread}") == expected, (
            fact
        )
        if call_ref is not None:
            calls[call_ref].append(fact)
            call = call_of(call_ref, tuple(calls[call_ref]))
            statuses.add(call.status)
            entry = pending.entry(call)
            assert _shown(live, "pending", fact.slot, pending.key(call_ref)) == (
                pending.encode(entry) if entry else None
            ), fact
            row = _shown(live, "calls", fact.slot, pending.key(call_ref))
            assert msgspec.json.decode(row) == call_row(call), fact
        if count % 100 == 0:
            same(live.rows(), rebuilt(log[:count]))
    # It was a log in which everything happened, and much went on after it had been let go.
    assert statuses == set(Status) - {Status.UNKNOWN}
    assert live.recalls > 100


def _shown(live, name, slot, key):
    """What is shown of it: the row in hand, else the one with which it was let go."""
    (fold,) = (fold for fold in live.folds if fold.name == name)
    row = live.state.row(fold, slot)
    if (
        row is None and fold.key(slot) is None
    ):  # this fact does not show; what does, stands as it was
        row = next((one for one in live.state.rows(fold) if one.key == key), None)
    return live.shown[name].get(key) if row is None else row.value


# ----------------------------------------------------------------------------- what is kept in hand


def fold_all(facts, keep_complete=0):
    state = ProjectionState(*folds(keep_complete))
    for fact in facts:
        state.apply(fact)
    return state


def in_hand(state):
    """The threads of which anything is kept."""
    things = (thing for fold in FOLDS for thing in state.things(fold))
    return {fact.slot.thread for thing in things for fact in thing.facts}


def test_memory_grows_with_what_is_under_way():
    """Of many conversations that ended nothing is kept but the newest, and what still waits."""
    wish = e.Wish(tool="refund", arguments="{}")
    threads = []
    for number in range(30):
        story = Story()
        story.tell(REF.opened, e.ThreadOpened(requester="rita", model=MODEL))
        story.say("hello").turn(1, wish).live(1, 0, wish, "approved" if number == 7 else "returned")
        if number != 7:
            story.turn(2, e.Text("Done."))
        threads.append(story.facts)
    log = one_log(threads, random.Random(1))
    assert len(in_hand(fold_all(log, keep_complete=2))) <= 1 + 2 * 2
    assert in_hand(fold_all(log)) == {"t8"}


@pytest.mark.parametrize(
    ("opened", "kept"),
    [
        (e.ThreadOpened(requester="rita"), False),
        (e.ThreadOpened(requester="rita", model=MODEL), True),
    ],
    ids=["a service answers", "a model of ours answers"],
)
def test_a_service_that_answers_by_itself_is_not_waited_for(opened, kept):
    """It may never record a turn, so it would be kept for ever; a model of ours answers."""
    story = Story()
    story.tell(REF.opened, opened)
    story.say("hello")
    story.tell(REF.call("own").requested, request(e.Wish(tool="refund", arguments="{}")))
    live = Live(story.facts, 0)
    for fact in story.facts:
        live.apply(fact)
    assert bool(list(live.state.things(HISTORIES))) is kept


def test_an_opened_thread_in_which_nothing_was_said_is_at_rest():
    """Nobody is asked for anything, as the model's worker sees it too."""
    conversation = ThreadFacts()
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", model=MODEL))
    story.say("be kind", "system")
    for fact in story.facts:
        conversation.apply(fact)
    assert conversation.is_complete


def test_a_call_of_an_older_turn_keeps_the_conversation_in_hand():
    """A service may go on before a call is settled; then the history changes."""
    wish = e.Wish(tool="refund", arguments="{}")
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita"))
    story.turn(1, wish).turn(2, e.Text("Meanwhile:"))
    live = Live(story.facts, 0)
    for fact in story.facts:
        live.apply(fact)
    story.live(1, 0, wish, "returned")
    for fact in story.facts[-5:]:
        live.apply(fact)
    same(live.rows(), rebuilt(story.facts))


def test_a_result_that_comes_before_its_reply_counts():
    """A service may write down in an order of its own; nothing waits for what is there already."""
    wish = e.Wish(tool="refund", arguments="{}")
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita"))
    story.live(1, 0, wish, "returned").reply(1, wish)
    conversation = ThreadFacts()
    for fact in story.facts:
        conversation.apply(fact)
    assert conversation.is_complete
    assert conversation.facts == story.facts


def test_what_is_shown_after_a_recall_is_never_half_a_thing():
    """Facts that are taken at once, behind a hole in the log, bring a thing back whole and once."""
    wish = e.Wish(tool="refund", arguments="{}")
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", model=MODEL))
    story.say("hello").turn(1, wish).live(1, 0, wish, "returned")
    story.turn(2, e.Text("Done."))
    end = len(story.facts)
    call = REF.wish(1, 0)
    story.say("one")
    for number in (1, 2, 3):
        story.tell(call.late(number), e.ToolReturned(output="late"))
    story.say("two")
    live = Live(story.facts, 0)
    for fact in [*story.facts[:end], *story.facts[:end:-1], story.facts[end]]:
        live.apply(fact)
    same(live.rows(), rebuilt(story.facts))
    for thing in (*live.state.things(live.folds[1]), *live.state.things(live.folds[2])):
        assert thing.facts[0] in (story.facts[0], story.facts[4])


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_a_call_is_in_hand_until_it_is_settled(ending):
    """A call in doubt waits for a person, and one that is approved for whoever runs it."""
    story = Story().tell_all(life(REF.call("c"), e.Wish(tool="refund", arguments="{}"), ending))
    fold = msgspec.structs.replace(CALLS, keep_complete=0)
    state = ProjectionState(fold)
    for fact in story.facts:
        state.apply(fact)
    assert bool(list(state.rows(fold))) is (ending in UNSETTLED)


def test_a_thing_that_is_let_go_twice_says_so():
    """Whoever counts what ended hears with which facts it had been let go before."""
    story = Story()
    wish = e.Wish(tool="refund", arguments="{}")
    call = REF.call("c")
    story.tell_all(life(call, wish, "returned"))
    settled = list(story.facts)
    story.tell(call.late(1), e.ToolReturned(output="late"))
    (fold,) = (calls := folds(0))[2:]
    state = ProjectionState(*calls)
    for fact in story.facts:
        state.apply(fact)
        if state.to_reload:
            state.reload(story.facts)
    assert [wanted.facts for wanted in state.evicted(fold)] == [settled, story.facts]
    assert [wanted.facts for wanted in state.reloaded(fold)] == [settled]
    # The queue shows nothing of what was decided, and is not troubled with it again.
    assert state.reloaded(calls[0]) == []
    assert len(state.evicted(calls[0])) == 1


def test_several_that_go_on_at_once_come_back_in_the_order_of_the_log():
    """Behind a hole much is taken at once; what is let go again comes in an order that only the log
    decides, and each says with what it had been let go (I11).
    """
    story = Story()
    calls = [REF.call(f"c{number}") for number in range(9)]
    for call in calls:
        story.tell_all(life(call, e.Wish(tool="refund", arguments="{}"), "returned"))
    settled = list(story.facts)
    order = [calls[number] for number in (8, 0, 5, 2, 7)]
    for attempt in (1, 2):
        for call in order:
            story.tell(call.late(attempt), e.ToolReturned(output="late"))
    fold = msgspec.structs.replace(CALLS, keep_complete=0)
    state = ProjectionState(fold)
    for fact in settled:
        state.apply(fact)
    assert len(state.evicted(fold)) == len(calls)
    for fact in reversed(story.facts[len(settled) :]):
        state.apply(fact)
    state.reload(story.facts)
    assert [wanted.call.ref for wanted in state.evicted(fold)] == order
    assert [wanted.facts for wanted in state.reloaded(fold)] == [
        [fact for fact in settled if fact.slot.call_ref == one] for one in order
    ]
    assert not state.to_reload


def test_what_came_before_is_not_waited_for():
    """A duplicate is no early fact: missing is what is behind the last, and may be passed over."""
    facts = busy_log(6)
    state = ProjectionState(OPEN_APPROVALS)
    for fact in (*facts[:3], facts[0], facts[1], facts[4]):
        state.apply(fact)
    assert state.missing == range(4, 5)
    state.pass_over()
    assert state.seq == 5
    assert not state.missing


def test_a_call_whose_request_is_not_in_the_log_is_shown_by_nobody():
    """It is in hand as its facts have it, and has no row."""
    story = Story()
    story.tell(REF.call("c").claim(1), e.ToolStarted(digest="d", idempotency_key="k"))
    live = Live(story.facts, 0)
    live.apply(story.facts[0])
    assert [wanted.facts for wanted in live.state.things(CALLS)] == [story.facts]
    assert live.rows()["calls"] == {}


def test_a_late_result_of_an_open_question_does_not_hide_it():
    """Only what decides takes a question out of the queue."""
    story = Story()
    call = REF.call("c")
    wish = e.Wish(tool="refund", arguments="{}")
    story.tell(call.requested, request(wish))
    story.tell(call.gated, question(wish))
    story.tell(call.late(1), e.ToolReturned(output="from nowhere"))
    live = Live(story.facts, 0)
    for fact in story.facts:
        live.apply(fact)
    assert rebuilt(story.facts)["pending"] == live.rows()["pending"] != {}


def test_every_projection_skips_what_it_cannot_read():
    """A fact from the future moves the place in the log and nothing else (I12)."""
    log = busy_log(60)
    state = fold_all(log, 2)
    rows = [list(state.rows(fold)) for fold in folds(2)]
    state.apply(Fact(61, START, REF.said("later"), e.Carried(type="Pondered", raw=b"{}")))
    assert state.seq == 61
    assert [list(state.rows(fold)) for fold in folds(2)] == rows


# --------------------------------------------------------------------------------- any story at all


def stops(call):
    """Whoever decides about the first call of a turn stops the model."""
    return call.ref.call.endswith("-0")


#: What may be recorded next about a call, in the shape that fits it.
NEXT = {
    e.ApprovalRequested: lambda call: (call.ref.gated, question(_wish(call))),
    e.Voted: lambda call: (
        call.ref.vote("ana"),
        e.Voted(verdict="approve", digest=call.approval_request.digest),
    ),
    e.Escalated: lambda call: (
        call.ref.escalated(len(call.escalated) + 1),
        e.Escalated(voters=("lea",)),
    ),
    e.GlassBroken: lambda call: (
        call.ref.announced,
        e.GlassBroken(reviewer="lea", reason="it burns"),
    ),
    e.Approved: lambda call: (call.ref.decided, approval(_wish(call))),
    e.Denied: lambda call: (
        call.ref.decided,
        e.Denied(ground="people", rule="no", policy_version=1, halt=stops(call)),
    ),
    e.Answered: lambda call: (
        call.ref.decided,
        e.Answered(answer="42", rule="r", policy_version=1, halt=stops(call)),
    ),
    e.Expired: lambda call: (call.ref.decided, e.Expired(rule="r", policy_version=1, after_s=1)),
    e.Withdrawn: lambda call: (call.ref.decided, e.Withdrawn()),
    e.Superseded: lambda call: (call.ref.decided, e.Superseded()),
    e.ToolStarted: lambda call: (
        call.ref.claim(len(call.claims) + 1),
        e.ToolStarted(digest=call.digest, idempotency_key=str(call.ref)),
    ),
    e.Revoked: lambda call: (
        call.ref.revoked_by("ben"),
        e.Revoked(reason="no", reviewer="ben", halt=stops(call)),
    ),
    e.Lapsed: lambda call: (call.ref.lapsed, e.Lapsed(after_s=60)),
    e.Declined: lambda call: (call.ref.claim(1), e.Declined(why="unknown_tool")),
    e.ToolReturned: lambda call: (call.ref.finished, e.ToolReturned(output="done")),
    e.ToolFailed: lambda call: (call.ref.finished, e.ToolFailed(error="broken")),
    e.InDoubt: lambda call: (call.ref.finished, e.InDoubt(attempt=1, text="who knows")),
    e.ToolRefused: lambda call: (
        call.ref.finished,
        e.ToolRefused(
            ending=call.status if call.status != "declined" else "unknown_tool", text="it did not"
        ),
    ),
    e.Reconciled: lambda call: (
        call.ref.reconciled_by("ana"),
        e.Reconciled(happened=True, output="it did", reviewer="ana"),
    ),
}


def _wish(call):
    return e.Wish(tool=call.wish.tool, arguments=call.wish.arguments)


class AnyStory(RuleBasedStateMachine):
    """Two conversations go on in any way that the table allows; the projections are right."""

    def __init__(self):
        super().__init__()
        self.asker = ModelWorker({"test": None})
        self.refs = [ThreadRef("acme", "t1"), ThreadRef("acme", "t2")]
        self.live = Live([], 0)
        self.facts = self.live.log
        #: The thread that the last step was about.
        self.changed = self.refs[0]

    @initialize(resting=st.sampled_from([0, 1]), most=st.sampled_from([1, 3, 100]))
    def begin(self, resting, most):
        self.live = Live(self.facts, resting)
        for ref in self.refs:
            self.tell(ref.opened, e.ThreadOpened(requester="rita", model=MODEL, max_turns=most))

    def tell(self, slot, event):
        seq = len(self.facts) + 1
        event = msgspec.structs.replace(event, id=f"e{seq}")
        fact = Fact(seq, START.replace(microsecond=seq), slot, event)
        self.facts.append(fact)
        self.live.apply(fact)
        self.changed = fact.slot.thread_ref

    def of(self, ref):
        return [fact for fact in self.facts if fact.slot.thread_ref == ref]

    def thread(self, ref):
        return thread_of(ref, self.of(ref))

    def calls(self):
        return [call for ref in self.refs for call in self.thread(ref).calls.values()]

    @rule(which=st.integers(0, 1), role=st.sampled_from(["user", "note", "system"]))
    def a_message_is_said(self, which, role):
        self.tell(self.refs[which].said(f"m{len(self.facts)}"), e.Said(role=role, text="well?"))

    @rule(which=st.integers(0, 1))
    def the_model_is_asked(self, which):
        ref = self.refs[which]
        thread = self.thread(ref)
        last = thread.turns.get(thread.latest)
        if last is not None and last.replied is None:
            self.tell(ref.asked(thread.latest, len(last.asked) + 1), e.ModelAsked(model=MODEL))
        elif last is None or not thread.unsettled(thread.latest):
            # As a model's worker does it: the claim is caused by what was handed.
            cause = self.of(ref)[-1].event.id
            self.tell(ref.asked(thread.latest + 1, 1), e.ModelAsked(model=MODEL, cause=cause))

    @rule(which=st.integers(0, 1), wishes=st.integers(-1, 3))
    def the_model_replies(self, which, wishes):
        ref = self.refs[which]
        thread = self.thread(ref)
        last = thread.turns.get(thread.latest)
        if last is None or last.replied is not None:
            return
        if wishes < 0:
            self.tell(ref.replied(thread.latest), e.ModelFailed(error="overloaded"))
            return
        parts = [
            e.Wish(tool=TOOLS[index], arguments='{"a":1}', provider_id=f"call_{index}")
            for index in range(wishes)
        ]
        self.tell(ref.replied(thread.latest), e.ModelReplied(parts=(e.Text("Well."), *parts)))
        for wished, wish in self.thread(ref).wishes(thread.latest):
            self.tell(wished.requested, request(wish))

    @precondition(lambda self: any(call.status not in ENDS for call in self.calls()))
    @rule(data=st.data())
    def a_call_goes_on(self, data):
        call = data.draw(
            st.sampled_from([call for call in self.calls() if call.status not in ENDS])
        )
        kind = data.draw(st.sampled_from(list(MAY_FOLLOW[call.status])))
        slot, event = NEXT[kind](call)
        if refusal(call, slot, msgspec.structs.replace(event, id="new"), START) is None:
            self.tell(slot, event)

    @precondition(lambda self: any(call.status is Status.PENDING for call in self.calls()))
    @rule(data=st.data())
    def its_requester_withdraws_it(self, data):
        call = data.draw(
            st.sampled_from([one for one in self.calls() if one.status is Status.PENDING])
        )
        if call.withdrawn is None:
            self.tell(call.ref.withdrawn, e.Withdrawn(reason="changed my mind"))

    @precondition(lambda self: any(call.finished for call in self.calls()))
    @rule(data=st.data())
    def a_result_comes_late(self, data):
        call = data.draw(st.sampled_from([call for call in self.calls() if call.finished]))
        self.tell(call.ref.late(len(call.late) + 1), e.ToolReturned(output="too late"))

    @rule(data=st.data())
    def a_fact_is_delivered_again(self, data):
        self.live.apply(data.draw(st.sampled_from(self.facts)))

    @rule()
    def a_batch_is_taken_away(self):
        self.live.drain()

    @invariant()
    def every_provider_takes_the_history(self):
        """(B1, B3, B17)"""
        entries = history(self.thread(self.changed)).entries
        if not entries:
            return
        for name, provider in FORMATS.items():
            payload = provider.write(entries)
            if any(payload.get(key) for key in ("messages", "input", "contents")):
                assert provider.check(payload) == [], name

    @invariant()
    def every_call_of_a_settled_turn_has_its_outcome_behind_its_turn(self):
        """(B1, B3)"""
        thread = self.thread(self.changed)
        entries = history(thread).entries
        told = []
        for place, entry in enumerate(entries):
            if isinstance(entry, Assistant):
                wishes = [ref.call for ref, _ in thread.wishes(entry.turn)]
                behind = entries[place + 1 : place + 1 + len(wishes)]
                assert [one.call for one in behind if isinstance(one, Outcome)] == wishes
                told += wishes
        assert [entry.call for entry in entries if isinstance(entry, Outcome)] == told
        settled = [n for n, turn in thread.turns.items() if turn.reply and not thread.unsettled(n)]
        assert {entry.turn for entry in entries if isinstance(entry, Assistant)} == set(settled)

    @invariant()
    def at_rest_is_what_the_models_worker_thinks(self):
        """A conversation rests exactly while the worker has nothing to do and no call waits."""
        facts = self.of(self.changed)
        if not facts:
            return
        thread = thread_of(self.changed, facts)
        conversation = ThreadFacts()
        for fact in facts:
            conversation.apply(fact)
        last = thread.turns.get(thread.latest)
        if last is not None and last.replied is None:
            assert not conversation.is_complete
            return
        steps = [step for fact in facts for step in self.asker.decide(thread, fact)]
        assert conversation.is_complete == (not steps and not thread.unsettled(thread.latest))

    @invariant()
    def live_is_rebuilt(self):
        same(self.live.rows(), rebuilt(self.facts))


AnyStory.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=50, deadline=None, derandomize=True
)
test_any_story = AnyStory.TestCase


def test_the_table_of_what_may_be_recorded_next_is_whole():
    """Whatever may follow in the life of a call can happen in those stories."""
    assert {kind for follows in MAY_FOLLOW.values() for kind in follows} == {*NEXT, e.ToolRequested}
    assert Call(REF.call("c")).status is Status.UNKNOWN


# ----------------------------------------------------------------- one call, at once and one by one

SAMPLES = {
    path.name.split(".")[0]: codec.decode(path.read_bytes())
    for path in (Path(codec.__file__).parent / "samples").glob("*.json")
}


def places(call):
    """Each place about a call with each fact that may stand there; two where the name is free."""
    for shape, kinds in FILLED_BY.items():
        if shape[:2] == ("call", "*"):
            for tail in product(
                *({"*": ("ana", "ben"), "#": ("1", "2")}.get(word, (word,)) for word in shape[2:])
            ):
                for kind in kinds:
                    yield (
                        Slot(REF.workspace, REF.thread, ("call", call, *tail)),
                        SAMPLES[kind.__name__],
                    )


OURS = list(places("1-0"))
STRANGE = [
    *list(places("1-1"))[:5],
    *((Slot("elsewhere", slot.thread, slot.tail), event) for slot, event in OURS[:5]),
    *((Slot(slot.workspace, "other", slot.tail), event) for slot, event in OURS[:5]),
    *((slot, SAMPLES["Said"]) for slot, _ in OURS),
    *((slot, e.Carried(type="New", raw=b"{}")) for slot, _ in OURS),
    (REF.said("m1"), SAMPLES["Said"]),
]


@given(st.lists(st.sampled_from(OURS + STRANGE), max_size=40), st.randoms(use_true_random=False))
def test_a_call_made_at_once_is_the_call_made_fact_by_fact(stood, chance):
    """`call_of` is `evolve` over all facts, of every kind in every place, strangers among them, in
    any order and more than once (I11, I13).
    """
    facts = [Fact(seq, START, slot, event) for seq, (slot, event) in enumerate(stood, 1)]
    chance.shuffle(facts)
    call = REF.call("1-0")
    assert call_of(call, tuple(facts)) == reduce(evolve, facts, Call(call))
