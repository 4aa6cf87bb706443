"""Threads, the histories made of them, and the words for calls that did not run."""

import time
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import (
    EDIT,
    REF,
    SETTLED,
    UNSETTLED,
    Story,
    approval,
    disorder,
    life,
    lives,
    question,
    request,
)

from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.projections import pending, refusal_texts
from ayes.projections.formats import FORMATS
from ayes.projections.history import (
    Assistant,
    History,
    Note,
    Outcome,
    System,
    User,
    compacted,
    decode,
    digest,
    encode,
    history,
)
from ayes.projections.thread import Thread, is_settled, thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import Defect
from ayes.schemas.slots import ThreadRef

REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")
LOOK_UP = e.Wish(tool="look_up", arguments='{"order":"A-17"}', provider_id="call_b")


def told(story: Story, before_turn: int | None = None) -> History:
    return history(thread_of(story.ref, story.facts), before_turn)


def brief(found: History) -> list[str]:
    """A history as one short word for each entry."""
    return [
        f"turn {entry.turn}" if isinstance(entry, Assistant)
        else f"{entry.call} {entry.kind}" if isinstance(entry, Outcome)
        else entry.text
        for entry in found.entries
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- the order


def test_what_was_said_stands_where_the_model_saw_it():
    """What is said after the claim of a turn stands after it, even if the reply came later (B4)."""
    story = Story().say("be kind", "system").say("hello").ask(1).say("are you there?")
    story.reply(1, e.Text("Hi!")).say("no hurry", "note", "clock")
    assert told(story).entries == (
        System("be kind"),
        User("hello"),
        Assistant(1, (e.Text("Hi!"),)),
        User("are you there?"),
        Note("no hurry", "clock"),
    )


def test_the_first_claim_is_the_cut():
    """A second attempt is sent what the first was; what was said between comes after the turn."""
    story = Story().say("hello").ask(1).say("hurry").ask(1, attempt=2)
    story.reply(1, e.Text("Hi!"))
    assert brief(told(story)) == ["hello", "turn 1", "hurry"]
    assert brief(told(story, before_turn=1)) == ["hello"]


def test_results_stand_beside_their_calls():
    """Whatever is recorded between a call and its result, the result follows the call, in the order
    of the wishes: one approved and one denied call make two whole pairs, and so does one that
    nobody had to approve (B1, B3, B4, B11, B12, B16).
    """
    story = Story().say("refund me").turn(1, e.Text("Let me see."), REFUND, LOOK_UP)
    first, second = (
        life(REF.wish(1, 0), REFUND, "denied"),
        life(REF.wish(1, 1), LOOK_UP, "returned", "found"),
    )
    for step in (*second[:1], *first[:2], "quick!", *second[2:], "still there?", *first[2:]):
        story.say(step) if isinstance(step, str) else story.tell(*step)
    assert brief(told(story)) == [
        "refund me", "turn 1", "1-0 denied", "1-1 returned", "quick!", "still there?",
    ]  # fmt: skip
    assert brief(told(story, before_turn=2)) == brief(told(story))


def test_a_turn_with_an_open_call_is_not_sent():
    """The history stops before it, and says at which call; later words wait with it (B8, I10)."""
    for ending in UNSETTLED:
        story = Story().say("refund me").turn(1, REFUND, LOOK_UP).live(1, 0, REFUND, "returned")
        story.live(1, 1, LOOK_UP, ending).say("well?")
        assert told(story) == History((User("refund me"),), stopped_at=REF.wish(1, 1)), ending


def test_a_wish_that_nobody_requested_yet_is_open():
    """A reply stands before the requests that come of it: until then its turn is not sent."""
    story = Story().turn(1, REFUND)
    assert told(story) == History((), stopped_at=REF.wish(1, 0))


def test_a_model_that_failed_leaves_nothing_and_an_empty_reply_leaves_a_turn():
    """A failed turn is passed over; a model that answers with nothing has had its turn (B59)."""
    story = Story().say("hello").ask(1)
    story.tell(REF.replied(1), e.ModelFailed(error="overloaded"))
    story.say("again?").turn(2).turn(3, e.Text(""))
    assert told(story).entries == (
        User("hello"),
        User("again?"),
        Assistant(2, ()),
        Assistant(3, (e.Text(""),)),
    )


def test_a_question_outlives_a_model_that_fails_after_it():
    """The call still waits, with the same entry in the queue, the decision is told there (B60)."""
    story = Story().turn(1, REFUND)
    facts = life(REF.wish(1, 0), REFUND, "returned")
    story.tell_all(facts[:2])
    waiting = pending.entry(thread_of(REF, story.facts).call(REF.wish(1, 0)))
    assert waiting
    story.ask(2)
    story.tell(REF.replied(2), e.ModelFailed(error="overloaded"))
    assert pending.entry(thread_of(REF, story.facts).call(REF.wish(1, 0))) == waiting
    story.tell_all(facts[2:])
    assert brief(told(story)) == ["turn 1", "1-0 returned"]


def test_late_results_are_never_shown():
    """A result that came after the call was closed changes nothing the model reads (I9, B6)."""
    story = Story().turn(1, REFUND).live(1, 0, REFUND, "happened", "it went through")
    assert "too late to be told" in str(story.facts)
    assert "too late to be told" not in encode(told(story).entries).decode()


def test_a_call_that_ran_stays_one_that_ran():
    """Votes, withdrawals and results that come later change nothing (B6, B77)."""
    story = Story().turn(1, REFUND).live(1, 0, REFUND, "returned")
    before, ref = told(story), REF.wish(1, 0)
    story.tell(ref.vote("ben"), e.Voted(verdict="deny", digest=request(REFUND).digest))
    story.tell(ref.withdrawn, e.Withdrawn())
    story.tell(ref.late(1), e.ToolFailed(error="no"))
    assert told(story) == before


def test_bookkeeping_is_not_shown():
    """Questions, votes and claims leave no trace: a settled call is wish and outcome (B7, B15)."""
    story = Story().turn(1, REFUND).live(1, 0, REFUND, "returned")
    assert told(story).entries == (
        Assistant(1, (REFUND,)),
        Outcome("1-0", "refund", "call_a", "returned", "done", is_error=False),
    )


def test_before_a_turn_is_what_it_was_asked_with():
    """Whatever comes after a claim, what its turn was sent stays the same."""
    story = Story().say("one").turn(1, REFUND).live(1, 0, REFUND, "returned").say("two")
    story.ask(2)
    sent = told(story, before_turn=2)
    assert brief(sent) == ["one", "turn 1", "1-0 returned", "two"]
    story.say("three").reply(2, e.Text("yes"))
    assert told(story, before_turn=2) == sent
    assert brief(told(story, before_turn=1)) == ["one"]


def test_a_reply_without_a_claim_is_its_own_cut():
    """A service with its own loop may record replies only."""
    story = Story().say("one").reply(1, e.Text("yes")).say("two")
    assert brief(told(story)) == ["one", "turn 1", "two"]


def test_a_turn_that_is_answered_late_stands_in_its_place():
    """A turn without a reply leaves nothing; once it has one, words after its cut come after it."""
    story = Story().say("one").ask(1).say("two").turn(2, e.Text("b"))
    assert brief(told(story)) == ["one", "two", "turn 2"]
    story.reply(1, e.Text("a"))
    assert brief(told(story)) == ["one", "turn 1", "two", "turn 2"]


def test_turns_recorded_out_of_order_tell_nothing_twice():
    """A service may hand in its turns in any order: numbers count, and words stand once."""
    story = Story().say("one").reply(2, e.Text("b")).say("two").reply(1, e.Text("a"))
    story.reply(3, e.Text("c"))
    assert brief(told(story)) == ["one", "two", "turn 1", "turn 2", "turn 3"]


# ----------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("ending", "output", "kind", "text", "is_error"),
    [
        ("returned", "done", "returned", "done", False),
        ("returned", "", "returned", "", False),
        ("edited", "done", "returned", f"{refusal_texts.arguments_changed(EDIT)}\n\ndone", False),
        ("edited", "", "returned", refusal_texts.arguments_changed(EDIT), False),
        ("failed", "no such order", "failed", "no such order", True),
        ("failed", " ", "failed", "`refund` was started and failed. It gave no reason.", True),
        ("denied", "", "denied", "refund was denied", True),
        ("answered", "", "answered", "It is on its way.", False),
        ("expired", "", "expired", "refund was expired", True),
        ("withdrawn", "", "withdrawn", "refund was withdrawn", True),
        ("superseded", "", "superseded", "refund was superseded", True),
        ("revoked", "", "revoked", "taken back", True),
        ("unknown_tool", "", "unknown_tool", "unknown_tool it is", True),
        ("digest_mismatch", "", "digest_mismatch", "digest_mismatch it is", True),
        ("happened", "paid out", "reconciled", "paid out", False),
        ("happened", "", "reconciled", refusal_texts.reconciled_in_silence("refund", happened=True),
         False),
        ("did not happen", "nothing was paid", "reconciled", "nothing was paid", True),
        ("did not happen", "", "reconciled",
         refusal_texts.reconciled_in_silence("refund", happened=False), True),
    ],
)  # fmt: skip
def test_each_ending_has_its_outcome(ending, output, kind, text, is_error):
    """What the model reads about each way in which a call can end, under the tool's real name
    (I5, I9, B2, B5, B9, B34).
    """
    story = Story().turn(1, REFUND).live(1, 0, REFUND, ending, output)
    assert told(story).entries[1] == Outcome("1-0", "refund", "call_a", kind, text, is_error)


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "superseded", "revoked"])
def test_how_a_call_ended_is_never_read_off_its_text(ending):
    """A tool that says word for word what a refusal says has returned all the same, and no provider
    is told otherwise (B70).
    """
    refused, ran = Story(), Story()
    for story in (refused, ran):
        story.turn(1, REFUND)
    refused.live(1, 0, REFUND, ending)
    [_, no] = told(refused).entries
    assert isinstance(no, Outcome)
    ran.live(1, 0, REFUND, "returned", no.text)
    [_, yes] = told(ran).entries
    assert yes == Outcome("1-0", "refund", "call_a", "returned", no.text, is_error=False)
    assert (no.kind, no.is_error) == (ending, True)
    for name in ("anthropic", "ai-sdk", "ai-sdk-ui"):
        write = FORMATS[name].write
        assert write(told(refused).entries) != write(told(ran).entries), name


def test_an_approval_that_repeats_the_arguments_is_no_edit():
    """The model is told of a change only if there is one."""
    story, ref = Story(), REF.wish(1, 0)
    story.turn(1, REFUND)
    story.tell(ref.requested, request(REFUND))
    story.tell(ref.decided, approval(REFUND, REFUND.arguments))
    digest = approval(REFUND).digest
    story.tell(ref.claim(1), e.ToolStarted(digest=digest, idempotency_key=""))
    story.tell(ref.finished, e.ToolReturned(output="done"))
    assert told(story).entries[1].text == "done"


def test_a_refusal_without_words_still_says_something():
    """An outcome that is no success is never empty, whoever recorded it."""
    story, ref = Story(), REF.wish(1, 0)
    story.turn(1, REFUND).tell_all(life(ref, REFUND, "denied")[:-1])
    story.tell(ref.finished, e.ToolRefused(ending="denied", text=" "))
    assert told(story).entries[1].text == "`refund` did not run."


# -------------------------------------------------------------------------------------------- words


def decided(
    event: e.Event | None,
    tool_version: str = "v1",
    *,
    gated: bool = True,
    claim: e.Event | None = None,
):
    ref = REF.call("c")
    story = Story()
    story.tell(ref.requested, request(REFUND, tool_version))
    if gated:
        story.tell(ref.gated, question(REFUND))
    if event:
        story.tell(ref.decided, event)
    if claim:
        own = ref.revoked_by("ana") if isinstance(claim, e.Revoked) else ref.claim(1)
        story.tell(own, claim)
    return call_of(ref, tuple(story.facts))


def denied(ground, reason="", rule="money"):
    return e.Denied(ground=ground, rule=rule, policy_version=1, reason=reason, voters=("ana",))


APPROVED = approval(REFUND)
WORDS = [
    (decided(denied("people", "not him again ")), "denied",
     "`refund` did not run: a person reviewed this call and said no. Their reason: not him again"),
    (decided(denied("people")), "denied",
     "`refund` did not run: a person reviewed this call and said no. They gave no reason."),
    (decided(denied("policy", rule="no-refunds"), gated=False), "denied",
     ("`refund` did not run: rule 'no-refunds' of the policy does not allow this call. No person "
     "was asked.")),
    (decided(denied("policy", "over the limit", "limit")), "denied",
     ("`refund` did not run: rule 'limit' of the policy does not allow this call. The rule says: "
     "over the limit")),
    (decided(denied("invalid", "`order` is missing"), gated=False), "denied",
     ("`refund` did not run: the call is not valid, and nobody was asked about it. "
     "What is wrong with it: `order` is missing")),
    (decided(denied("invalid"), tool_version="", gated=False), "unknown_tool",
     "`refund` did not run: no tool of that name is offered here."),
    (decided(e.Expired(rule="money", policy_version=1, after_s=900)), "expired",
     ("`refund` did not run: a person had to approve this call and nobody decided within 15 "
      "minutes. " "Nobody said no either.")),
    (decided(e.Withdrawn(reason="changed my mind")), "withdrawn",
     ("`refund` did not run: the request was taken back before it was decided. The reason: changed "
     "my mind")),
    (decided(e.Superseded()), "superseded",
     ("`refund` did not run: something newer came before it was decided, and the call no longer "
     "stands.")),
    (decided(e.Answered(answer="It is on its way.", rule="r", policy_version=1)), "answered",
     "It is on its way."),
    (decided(e.Answered(answer="\n", rule="r", policy_version=1)), "answered",
     "A person answered in place of `refund`, which did not run. Their answer was empty."),
    (decided(e.Answered(answer="No such order.", rule="r", policy_version=1, is_error=True)),
     "answered_with_error", "No such order."),
    (decided(APPROVED, claim=e.Revoked(reason="done", answer="It is on its way.")), "answered",
     "It is on its way."),
    (decided(APPROVED, claim=e.Revoked(answer="No such order.", is_error=True)),
     "answered_with_error", "No such order."),
    (decided(APPROVED, claim=e.Revoked(answer=" ")), "answered",
     "A person answered in place of `refund`, which did not run. Their answer was empty."),
    (decided(APPROVED, claim=e.Revoked(reason="wrong customer")), "revoked",
     ("`refund` did not run: it was approved, and a person took the approval back before it "
      "started. " "Their reason: wrong customer")),
    (decided(APPROVED, claim=e.Declined(why="unknown_tool")), "unknown_tool",
     "`refund` did not run: there is no such tool here any more."),
    (decided(APPROVED, claim=e.Declined(why="people_were_asked")), "people_were_asked",
     ("`refund` did not run: people were asked about this call, and before they answered it was "
      "let through " "without them.")),
    (decided(APPROVED, claim=e.Declined(why="digest_mismatch")), "digest_mismatch",
     "`refund` did not run: what was about to run was not exactly what had been approved."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "ending", "text"), WORDS, ids=[f"{row[1]}-{at}" for at, row in enumerate(WORDS)]
)
def test_each_refusal_has_its_own_words(call, ending, text):
    """The model reads that nothing ran, who stopped it and why, under the tool's real name
    (B2, B5, B9, B32, B33, B37, B87).
    """
    assert refusal_texts.tool_not_run(call) == e.ToolRefused(ending=ending, text=text)


def test_no_two_endings_share_their_words():
    """Expired is not denied is not withdrawn is not superseded (I5)."""
    texts = [refusal_texts.tool_not_run(call).text for call, *_ in WORDS if call.answer is None]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    "call",
    [
        decided(None),
        decided(APPROVED),
        decided(APPROVED, claim=e.ToolStarted(digest="", idempotency_key="")),
    ],
)
def test_what_nobody_refused_has_no_refusal(call):
    """An open, an approved or a running call is never told to the model as one that did not run."""
    with pytest.raises(Defect):
        refusal_texts.tool_not_run(call)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (900, "15 minutes"),
        (60, "1 minute"),
        (3600, "1 hour"),
        (90, "90 seconds"),
        (172_800, "2 days"),
        (1, "1 second"),
        (0.5, "0.5 seconds"),
    ],
)
def test_durations_read_as_people_say_them(seconds, said):
    """A deadline reaches the model in words."""
    call = decided(e.Expired(rule="r", policy_version=1, after_s=seconds))
    assert f"within {said}." in refusal_texts.tool_not_run(call).text


# ------------------------------------------------------------------------------------------ threads


def test_a_thread_knows_its_turns_and_calls():
    """The latest turn, its wishes with the calls they become, and which of them are open."""
    story = Story().turn(1, e.Text("first"), REFUND, e.Text("then"), LOOK_UP)
    story.live(1, 0, REFUND, "denied").ask(2)
    thread = thread_of(REF, story.facts)
    assert thread.latest == 2
    assert thread.wishes(1) == ((REF.wish(1, 0), REFUND), (REF.wish(1, 1), LOOK_UP))
    assert thread.unsettled(1) == (REF.wish(1, 1),)
    assert thread.call(REF.wish(1, 1)).status is Status.UNKNOWN
    assert is_settled(thread.call(REF.wish(1, 0)))
    assert thread.wishes(2) == thread.wishes(3) == ()
    assert Thread(REF).latest == 0


def test_a_call_in_doubt_is_not_settled():
    """It waits for a person, so no model goes on from it (I7)."""
    story = Story().turn(1, REFUND).live(1, 0, REFUND, "in doubt")
    assert not is_settled(thread_of(REF, story.facts).call(REF.wish(1, 0)))


def test_facts_of_other_threads_change_nothing():
    """A thread passes over what is not its own, and what cannot stand where it stands."""
    other = Story(ThreadRef("acme", "t2")).say("hello").turn(1, e.Text("hi"))
    elsewhere = Story(ThreadRef("umbrella", "t1")).say("hello")
    misplaced = Story()
    misplaced.tell(REF.said("m1"), e.ModelAsked(model="m"))
    misplaced.tell(REF.call("c").decided, e.ToolReturned(output="x"))
    facts = [*other.facts, *elsewhere.facts, *misplaced.facts]
    assert thread_of(REF, facts) == Thread(REF)


def test_what_cannot_be_read_is_skipped_and_named():
    """A fact from the future is no error, and the thread says that it is there (I12, B14)."""
    story = Story().say("hello").turn(1, e.Text("hi"))
    before = told(story)
    story.tell(REF.said("m9"), e.Carried(type="Said", raw=b"{}", v=9))
    story.tell(REF.call("c").decided, e.Carried(type="Pondered", raw=b"{}"))
    thread = thread_of(REF, story.facts)
    assert history(thread) == before
    assert thread.unread == tuple(story.facts[-2:])
    assert thread_of(REF, [*story.facts, story.facts[-1]]) == thread


@given(lives(), st.data())
def test_any_order_and_any_number_of_times_gives_the_same_thread(facts, data):
    """Duplicates and disorder leave the thread, the order of its turns and calls, and the bytes of
    its history unchanged (I11, I13).
    """
    thread = thread_of(REF, facts)
    shuffled = thread_of(REF, data.draw(disorder(facts)))
    assert shuffled == thread
    assert list(shuffled.turns) == list(thread.turns)
    assert list(shuffled.calls) == list(thread.calls)
    assert encode(history(shuffled).entries) == encode(history(thread).entries)
    assert digest(history(shuffled).entries) == digest(history(thread).entries)


@given(lives())
def test_every_history_is_whole(facts):
    """Each turn is followed by exactly one outcome for each wish, in their order, and nothing said
    is lost or told twice, unless the history stops at an open call; then it ends before that call's
    turn (B1, B4, B8).
    """
    thread = thread_of(REF, facts)
    found = history(thread)
    due: list[str] = []
    for entry in found.entries:
        if isinstance(entry, Outcome):
            assert entry.call == due.pop(0)
            assert entry.text.strip() or entry.kind == "returned"
        else:
            assert due == []
            if isinstance(entry, Assistant):
                due = [ref.call for ref, _wish in thread.wishes(entry.turn)]
    assert due == []
    said = [entry.text for entry in found.entries if isinstance(entry, System | User | Note)]
    everything = [fact.event.text for fact in thread.said]
    assert said == everything[: len(said)]
    turns = [entry.turn for entry in found.entries if isinstance(entry, Assistant)]
    replied = [number for number, turn in thread.turns.items() if turn.reply]
    if found.stopped_at is None:
        assert said == everything
        assert turns == replied
    else:
        assert not is_settled(thread.call(found.stopped_at))
        assert turns == replied[: len(turns)]
        assert found.stopped_at.call.startswith(f"{replied[len(turns)]}-")


@given(lives())
def test_what_a_turn_was_sent_never_changes(facts):
    """The history before a turn is the same at the moment of its claim and ever after, so its
    digest proves what the model was sent (I11).
    """
    thread = thread_of(REF, facts)
    for number, turn in thread.turns.items():
        then = thread_of(REF, [fact for fact in facts if fact.seq <= turn.cut])
        assert history(thread, before_turn=number) == history(then, before_turn=number)


@given(lives())
def test_the_canonical_bytes_read_back(facts):
    """An archived history is the same history."""
    entries = history(thread_of(REF, facts)).entries
    assert decode(encode(entries)) == entries


def test_a_long_thread_is_read_at_once():
    """Ten times the facts take about ten times as long, not a hundred times."""

    def seconds(turns: int) -> float:
        story = Story()
        for turn in range(1, turns + 1):
            story.say("more").turn(turn, REFUND).live(turn, 0, REFUND, "returned")
        best = 9.0
        for _ in range(3):
            began = time.process_time()
            history(thread_of(REF, story.facts))
            best = min(best, time.process_time() - began)
        return best

    assert seconds(1000) < 40 * seconds(100)


def test_every_ending_is_tried():
    """The random lives know every ending that the ledger knows."""
    kinds = set()
    for ending in SETTLED:
        story = Story().turn(1, REFUND).live(1, 0, REFUND, ending)
        kinds.add(told(story).entries[1].kind)
    endings = get_args(e.Ending.__value__)
    assert kinds == {*endings, "returned", "failed", "reconciled"}


# ---------------------------------------------------------------------------------- the shorter one


@given(lives(), st.integers(1, 12))
def test_a_shorter_history_is_whole(facts, limit):
    """What is left of any life at any limit begins with the user, keeps every word of the system
    and no half pair, ends as the whole one does, and every provider's checker takes it (B13, I11).
    """
    whole = history(thread_of(REF, facts)).entries
    kept = compacted(whole, limit)
    assert [entry for entry in kept if isinstance(entry, System)][
        : sum(isinstance(entry, System) for entry in whole)
    ] == [entry for entry in whole if isinstance(entry, System)]
    assert kept[-1:] == whole[-1:]
    for entry in whole:
        if isinstance(entry, Assistant):
            pair = [
                entry,
                *(
                    one
                    for one in whole
                    if isinstance(one, Outcome) and one.call.startswith(f"{entry.turn}-")
                ),
            ]
            assert [one in kept for one in pair] in ([True] * len(pair), [False] * len(pair))
    words = [entry for entry in whole if not isinstance(entry, System)]
    if words and isinstance(words[0], User):
        assert not isinstance(
            next(entry for entry in kept if not isinstance(entry, System)), Assistant
        )
    for provider in FORMATS.values():
        assert provider.check(provider.write(kept)) == provider.check(provider.write(whole))


def test_a_limit_is_about_entries_and_never_cuts_a_turn():
    """The oldest go first; a last turn beyond the limit stays whole; 0 is no limit (B13)."""
    story = Story().say("be kind", "system")
    for turn in (1, 2, 3):
        story.say(f"question {turn}").turn(turn, REFUND, LOOK_UP).live(turn, 0, REFUND, "returned")
        story.live(turn, 1, LOOK_UP, "returned")
    whole = told(story).entries
    last = ["turn 3", "3-0 returned", "3-1 returned"]
    turns = {
        0: brief(History(whole)),
        3: ["be kind", "question 3", *last],
        4: ["be kind", "question 3", *last],
        5: ["be kind", "question 3", *last],
        8: ["be kind", "question 2", "turn 2", "2-0 returned", "2-1 returned", "question 3", *last],
        1: ["be kind", "question 3", *last],
        99: brief(History(whole)),
    }
    for limit, expected in turns.items():
        assert brief(History(compacted(whole, limit))) == expected, limit


def test_a_thread_declares_how_much_its_model_is_sent():
    """The limit stands in the thread's first fact, so a log has one shorter history (I11)."""
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", history_limit=2))
    for turn in (1, 2):
        story.say(f"question {turn}").turn(turn, e.Text("answer"))
    story.say("question 3")
    assert brief(told(story)) == ["question 2", "turn 2", "question 3"]
    assert brief(told(story, before_turn=2)) == ["question 1", "turn 1", "question 2"]


def test_what_was_requested_before_the_wish_is_another_call():
    """A service that requests `1-0` before the reply puts no outcome into its mouth (B62, B13)."""
    story, ref = Story(), REF.wish(1, 0)
    story.say("Please refund A-17.")
    squatted = e.Wish(tool="refund", arguments='{"order":"B-40"}')
    story.live(1, 0, squatted, "returned", "B-40 is paid back").turn(1, REFUND)
    thread = thread_of(REF, story.facts)
    assert thread.call(ref).requested is None
    assert thread.unsettled(1) == ()
    [_, _, outcome] = told(story).entries
    assert isinstance(outcome, Outcome)
    assert (outcome.kind, outcome.is_error) == ("denied", True)
    assert "B-40" not in outcome.text


def test_no_model_reads_what_people_say_about_a_call():
    """The history, and its digest, are those without comments and handovers."""
    story = Story().say("Hello.").turn(1, REFUND).live(1, 0, REFUND, "returned")
    before = told(story)
    for number, (name, text) in enumerate((("ana", "Approve the next one, too."), ("rita", "!"))):
        story.tell(REF.wish(1, 0).comment(name, number + 1), e.Commented(text=text))
    story.tell(REF.wish(1, 0).handed_by("ana", 1), e.HandedOver(to="ben", reason="Approve it."))
    assert told(story) == before
    assert digest(told(story).entries) == digest(before.entries)
